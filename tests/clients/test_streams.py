"""A stream of one frame in runtimes that hold no loop, driven by nothing but the metadata."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from stream_models import CHUNKINGS, chunked, plan_of, random, streamed, whole

import rnn_lowering as rl
from clients.driving import PACKAGES, fault, in_calls, run_python
from clients.environments import HERE
from clients.recipes import run_commands
from clients.trials import FRAMES, attention_nets, nets
from rnn_lowering.cli.command import main

LEFT = {
    "ncnn": {  # ncnn does not load what pnnx makes of the first; it has no Where
        *("speech enhancement", "first frame repeated", "computed initial state"),
    },
    "tvm": set[str](),
    "tract": set[str](),
    "opencv": set[str](),
    "mnn": set[str](),
    "openvino": set[str](),
    "onnxruntime-web": set[str](),
    "litert": set[str](),
}


@pytest.mark.parametrize("client", LEFT)
def test_states_are_fed_back(client: Any, tmp_path: Path) -> None:
    models = {name: net for name, net in nets().items() if name not in LEFT[client]}
    steps: dict[str, onnx.ModelProto] = {}
    for name, (model, _, time) in models.items():
        names = {dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim} - {time, ""}
        steps[name] = rl.lower(model, target=client, stream={time: 1}, dims=dict.fromkeys(names, 1))
    streams = {name: (step, models[name][1]) for name, step in steps.items()}
    for name, got in in_calls(client, streams, tmp_path).items():
        model, feed, _ = models[name]
        assert fault(plan_of(steps[name]), got, whole(model, feed), atol=1e-5) == "", name


@pytest.mark.parametrize("client", ["mnn", "openvino", "tract", "tvm"])
def test_past_keys_and_values_are_fed_back(client: Any, tmp_path: Path) -> None:
    """A window, 64 frames, also behind a learned row, in each; all past frames where states may grow."""
    nets = attention_nets()
    model, feed = nets["all past frames"]
    steps = {
        "window": rl.lower(nets["window"][0], target=client, stream="time=1"),
        "64 frames": rl.lower(model, target=client, stream="time=1", max_frames=64),
        "a row in front": rl.lower(nets["a row in front"][0], target=client, stream="time=1", max_frames=64),
    }
    if client in ("openvino", "tract"):
        steps["all past frames"] = rl.lower(model, target=client, stream="time=1")
    got = in_calls(client, {name: (step, feed) for name, step in steps.items()}, tmp_path)
    for name, step in steps.items():
        expected = whole(nets.get(name, (model,))[0], feed)
        assert fault(plan_of(step), got[name], expected, atol=1e-5) == "", name


@pytest.mark.parametrize("client", ["mnn", "openvino", "tract", "tvm"])
def test_a_conformer(client: Any, tmp_path: Path) -> None:
    """The encoder of examples/stream_conformer.py: relative positions, a window of 64, half the rate."""
    model = onnx.load(HERE.parents[1] / "examples" / "conformer.onnx")
    step = rl.lower(model, target=client, stream="time=2", dims={"batch": 1})
    feed = {"features": random((1, 200, 40), 3)}
    got = in_calls(client, {"conformer": (step, feed)}, tmp_path)
    assert fault(plan_of(step), got["conformer"], whole(model, feed), atol=1e-5) == ""


DOCUMENT = HERE.parents[1] / "docs" / "streaming.md"


@pytest.mark.parametrize("client", ["tvm", "ncnn"])
def test_the_recipes(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands and lines of docs/streaming.md as they are, on the model that all pages use."""
    text, code = DOCUMENT.read_text(encoding="utf-8").split(f"<!-- {client} -->\n```python\n")
    lowering, *commands = [line[4:] for line in text.split("```")[-1].splitlines() if line.startswith("    ")]
    model = onnx.load(HERE.parents[1] / "examples" / "model.onnx")
    onnx.save(model, tmp_path / "model.onnx")
    sequence = random((FRAMES, 1, 80), 8)
    np.save(tmp_path / "X.npy", sequence)
    monkeypatch.chdir(tmp_path)
    assert main(lowering.split()[1:]) == 0
    (tmp_path / "recipe.py").write_text(f"{code.split('```')[0]}np.save('Y.npy', Y)\n")
    packages = Path(onnx.__file__).parents[1]
    run_commands(client, [*commands, "python recipe.py"], tmp_path, PYTHONPATH=str(packages))
    np.testing.assert_allclose(np.load("Y.npy"), whole(model, {"X": sequence})["Y"], rtol=0, atol=1e-5)


@pytest.mark.environments("pytorch")
def test_a_net_of_pytorch_in_chunks(tmp_path: Path) -> None:
    """As PyTorch exports it; the truth is what PyTorch computes of whole sequences."""
    run_python("pytorch", HERE / "drivers" / "export_enhancer.py", tmp_path, lent=PACKAGES)
    with np.load(tmp_path / "expected.npz") as held:
        expected = dict(held)
    model = onnx.load(tmp_path / "enhancer.onnx")
    for to in ("keep", "auto"):
        stepped = streamed(model, "time", to)
        assert [s["state"] for s in plan_of(stepped)["states"]] == ["h", "x", "x", "x"]
        for sizes in CHUNKINGS:
            got = chunked(stepped, {"spectra": expected["spectra"]}, sizes)["enhanced"]
            np.testing.assert_allclose(got, expected["enhanced"], rtol=0, atol=1e-5, err_msg=f"{to} {sizes}")
