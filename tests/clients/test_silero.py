"""silero-vad as one static file for 16 kHz, in twelve runtimes, frame by frame."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from loop_models import operators
from paths import EXAMPLES, MODELS
from running import OF_RUNTIMES, assert_close, run

from clients.driving import LENT, Job, drive, run_python
from clients.environments import CLIENTS
from rnn_lowering.cli.command import main

SILERO = MODELS / "github" / "snakers4__silero-vad" / "silero_vad_v6_op16.onnx"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SILERO.exists(), reason=f"{SILERO.name} is not there"),
]


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the command in the document writes."""
    document, path = (EXAMPLES / "README.md").read_text(), tmp_path_factory.mktemp("silero") / "vad.onnx"
    command = re.search(r"rnn-lower silero_vad.onnx vad.onnx (.*)", document)
    assert command
    assert main([str(SILERO), str(path), "-q", *command[1].split()]) == 0
    assert not operators(onnx.load(path)) & {"If", "LSTM", "Loop", "Scan"}
    return path


@pytest.mark.parametrize("client", ["onnxruntime", "tract", "openvino", "opencv"])
def test_the_example(client: str, static: Path) -> None:
    printed = run_python(client, EXAMPLES / "run_silero.py", SILERO, static, f"--in={client}", lent=LENT)
    assert re.search(rf"94 frames in {client}, speech in \d+", printed)
    difference = re.search(r"largest difference of the probabilities (\S+)", printed)
    assert difference
    assert float(difference[1]) < 1e-5


OTHERS = ("onnxruntime-web", "ncnn", "tvm", "mnn", "litert", "emx-onnx-cgen", "qnn", "rknn")


@pytest.mark.parametrize("client", OTHERS)
def test_other_runtimes_take_the_same_file(client: str, static: Path, tmp_path: Path) -> None:
    """With the state of the call before. ncnn gives the probability a third axis."""
    original, model = onnx.load(SILERO), onnx.load(static)
    frames = np.random.default_rng(0).standard_normal((3, 576)).astype(np.float32) / 10
    first = state = np.zeros((2, 1, 128), np.float32)
    wanted = []
    for frame in frames:
        wanted.append(run(original, {"input": frame[None], "state": state, "sr": np.asarray(16_000)}))
        state = wanted[-1]["stateN"]
    calls = {"frames": 1, "axes": {"input": 0, "output": 0}, "fed_back": {"stateN": "state"}, "grows": {}}
    job: Job = (model, {"input": frames, "state": first})
    found = drive(client, {"frames": job}, tmp_path, {"frames": calls})["frames"]
    assert not isinstance(found, str), found
    expected = {"output": np.concatenate([each["output"] for each in wanted]), "stateN": state}
    got = found | {"output": found["output"].reshape(3, 1)}
    assert_close(got, expected, CLIENTS[client].precision, tolerances=OF_RUNTIMES)
