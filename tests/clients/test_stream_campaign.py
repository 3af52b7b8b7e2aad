"""The stored nets as streams in every runtime: one call's frames, driven by nothing but the metadata.

What a runtime itself rejects, or computes otherwise, is in `REJECTED`, by runtime and net: once a release mends it,
the test fails, and the entry goes.
"""

import json
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from paths import MODELS
from stream_models import expected_of, plan_of, random

import rnn_lowering as rl
from clients.driving import drive
from clients.environments import why_absent

STREAMS = MODELS / "streams"
CLIENTS = ("tract", "tvm", "ncnn", "openvino", "mnn", "opencv", "onnxruntime-web", "onnxruntime-webgpu")
CALLS = 4

pytestmark = [pytest.mark.clients, pytest.mark.shared]


def steps(client: str) -> dict[str, tuple[onnx.ModelProto, onnx.ModelProto, Arrays]]:
    """By net the original, its stream of the least number of frames for a client, and a whole sequence."""
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
        step = rl.lower(model, stream={entry["axis"]: frames}, **lowering)
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


def first_states(plan: Mapping[str, Any]) -> Arrays:
    return {
        s["input"]: np.broadcast_to(
            0 if s["initial"] == "zeros" else np.array(s["initial"], np.float64), s["shape"]
        ).astype(s["dtype"])
        for s in plan["states"]
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_the_stored_nets_call_by_call(client: str, tmp_path: Path) -> None:
    if not STREAMS.exists():
        pytest.skip("the stored models are not there")
    if reason := why_absent(client):
        pytest.skip(reason)
    nets = steps(client)
    plans = {name: plan_of(step) for name, (_, step, _) in nets.items()}
    states = {name: first_states(plan) for name, plan in plans.items()}
    parts: dict[str, list[Arrays]] = {name: [] for name in nets}
    said: dict[str, str] = {}
    late = {
        name: max((ceil(n / plan["frames"]) for n in plan["delay"].values()), default=0)
        for name, plan in plans.items()
    }
    for call in range(CALLS + max(late.values())):
        jobs = {}
        for name in (n for n in nets if n not in said and call < CALLS + late[n]):
            plan, (_, step, feed) = plans[name], nets[name]
            size, given = plan["frames"], {}
            for key, axis in plan["inputs"].items():
                own = (
                    feed[key].take(range(call * size, (call + 1) * size), axis, mode="clip")
                    if axis is not None
                    else feed[key]
                )
                given[key] = own if call < CALLS or axis is None else np.zeros_like(own)
            jobs[name] = (step, {**given, **states[name]})
        for name, results in drive(client, jobs, tmp_path / str(call)).items() if jobs else ():
            if isinstance(results, str):
                said[name] = results
                continue
            states[name] = {
                s["input"]: results[s["output"]].reshape(s["shape"]).astype(s["dtype"])
                for s in plans[name]["states"]
            }
            parts[name].append({key: results[key] for key in plans[name]["outputs"]})
    for name in nets:
        if name not in said and (wrong := differing(plans[name], nets[name], parts[name])):
            said[name] = wrong
    assert {name: text.split(":")[0] for name, text in said.items()} == REJECTED.get(client, {}), said


def differing(plan: Mapping[str, Any], net: Any, parts: list[Arrays]) -> str:
    """Return "wrong: ..." where outputs differ from those of the whole sequence, else nothing."""
    model, _, feed = net
    expected = expected_of(plan, model, {n: a for n, a in feed.items() if n in {v.name for v in model.graph.input}})
    for key, axis in plan["outputs"].items():
        got = parts[-1][key] if axis is None else np.concatenate([part[key] for part in parts], axis)
        if axis is not None:
            first = plan["delay"].get(key, 0)
            got = got.take(range(first, first + expected[key].shape[axis]), axis)
        if got.shape != expected[key].shape or not np.allclose(got, expected[key], rtol=0, atol=2e-5):
            return f"wrong: {key} {got.shape}"
    return ""


REJECTED: dict[str, dict[str, str]] = {
    "opencv": {
        "nearest_upsampling.legacy.onnx": "rejects",  # Resize with 3 inputs
    },
    "onnxruntime-webgpu": {
        "asr_subsampling.dynamo.onnx": "rejects",  # LogSoftmax has no kernel
    },
    "ncnn": {
        "classifier_attention.dynamo.onnx": "rejects",  # ncnn does not load the converted model
        "classifier_mean_max.legacy.onnx": "rejects",  # pnnx has no Cast of an integer
        "deep_filter_unfold.dynamo.onnx": "rejects",  # Reshape of more than four axes
        "deep_filter_unfold.legacy.onnx": "rejects",
        "denoiser_lookahead.dynamo.onnx": "rejects",  # Less and Where
        "skip_and_pixel_shuffle.dynamo.onnx": "rejects",  # a Slice with steps
        "tcn_cumulative_norm.legacy.onnx": "rejects",  # Cast of an integer
    },
}
