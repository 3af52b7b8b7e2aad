"""The stored nets as streams in every runtime: one call's frames, driven by nothing but the metadata.

What a runtime rejects, what it computes otherwise and what is refused for it is in `REJECTED`, by runtime and net.
Once a release mends it, the test fails, and the entry goes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from paths import MODELS
from stream_models import expected_of, plan_of, random

import rnn_lowering as rl
from clients.driving import fault, in_calls

STREAMS = MODELS / "streams"
CLIENTS = ("tract", "tvm", "ncnn", "openvino", "mnn", "opencv", "onnxruntime-web", "onnxruntime-webgpu")
CALLS = 4

pytestmark = pytest.mark.shared


def steps(client: str, said: dict[str, str]) -> dict[str, tuple[onnx.ModelProto, onnx.ModelProto, Arrays]]:
    """By net the original, its stream of the least number of frames for a client, and a whole sequence.

    What is refused goes to `said`.
    """
    found = {}
    for line in (STREAMS / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["class"] in ("trap", "never"):
            continue
        model = onnx.load(STREAMS / entry["file"])
        frames = entry["frames"][0]
        shapes = {
            v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
        }
        names = {name for shape in shapes.values() for name in shape if isinstance(name, str)} - {entry["axis"]}
        lowering: Any = {"target": client, "dims": dict.fromkeys(names, 1), "delay": True}
        try:
            step = rl.lower(model, stream={entry["axis"]: frames}, **lowering)
        except rl.UnsupportedError as error:
            said[entry["file"]] = f"refused: {error}"
            continue
        sizes = dict.fromkeys(names, 1) | {entry["axis"]: CALLS * frames}
        states = {s["input"] for s in plan_of(step)["states"]}
        feed = {
            name: np.zeros([sizes.get(n, n) for n in shape], np.float32)
            if name in states
            else random([sizes.get(n, n) for n in shape], 5)
            for name, shape in shapes.items()
        }
        found[entry["file"]] = (model, step, feed)
    return found


@pytest.mark.filterwarnings("ignore:left for ncnn")
@pytest.mark.parametrize("client", CLIENTS)
def test_the_stored_nets_call_by_call(client: str, tmp_path: Path) -> None:
    if not STREAMS.exists():
        pytest.skip("the stored models are not there")
    said: dict[str, str] = {}
    nets = steps(client, said)
    streams = {name: (step, feed) for name, (_, step, feed) in nets.items()}
    for name, got in in_calls(client, streams, tmp_path).items():
        model, step, feed = nets[name]
        plan, names = plan_of(step), {value.name for value in model.graph.input}
        expected = expected_of(plan, model, {n: array for n, array in feed.items() if n in names})
        if wrong := fault(plan, got, expected, atol=2e-5):
            said[name] = wrong
    assert {name: text.split(":")[0] for name, text in said.items()} == REJECTED.get(client, {}), said


REJECTED: dict[str, dict[str, str]] = {
    "ncnn": {
        "classifier_mean_max.legacy.onnx": "refused",  # it counts frames in integers
        "deep_filter_unfold.dynamo.onnx": "refused",
        "deep_filter_unfold.legacy.onnx": "refused",
        "denoiser_lookahead.dynamo.onnx": "refused",  # Less and Where
        "skip_and_pixel_shuffle.dynamo.onnx": "rejects",  # a Slice with steps
        "tcn_cumulative_norm.legacy.onnx": "refused",  # Cast of an integer
    },
}
