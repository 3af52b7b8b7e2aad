"""GTCRN and silero-vad frame by frame in every runtime.

"GTCRN, streamed" is a net of its layers for whole sequences that `stream=` made a step of; "GTCRN" is the published
step, and "silero-vad" the published file. outcomes_of_streams.json has the nets that a runtime does not run, with
words that it says, and why: mostly for want of another operator of the net.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Array, Arrays
from gtcrn import gtcrn
from paths import MODELS
from running import OF_RUNTIMES, run
from stream_models import initial_states, plan_of, random, whole

import rnn_lowering as rl
from clients.driving import Job, drive
from clients.environments import CLIENTS, HERE

GITHUB = MODELS / "github"
STORED = HERE / "outcomes_of_streams.json"
FRAMES = 3
SECONDS = 300
"""Of each net: LiteRT takes 60 s to convert GTCRN, on a busy machine twice that."""

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not GITHUB.exists(), reason="the stored models are not there"),
    pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning"),
]

Net = tuple[Job, dict[str, Any], Arrays]
"""A step with the whole sequence and the first states, how it is called, and the outputs."""


def streamed(client: Any) -> Net:
    """The net with GTCRN's layers, as a stream."""
    model, feed = gtcrn()
    feed = {"mix": feed["mix"][:, :, :FRAMES]}
    step = rl.lower(model, target=client, stream="time=1")
    plan = plan_of(step)
    fed_back = {state["output"]: state["input"] for state in plan["states"]}
    job = step, feed | initial_states(plan, {})
    return job, calls(plan["inputs"] | plan["outputs"], fed_back), whole(model, feed)


def published(client: Any) -> Net:
    """GTCRN with the weights that its authors trained."""
    model = onnx.load(GITHUB / "Xiaobin-Rong__gtcrn" / "gtcrn_simple_v4.onnx")
    shapes = {v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.input}
    states = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name != "mix"}
    mix = random((1, 257, FRAMES, 2), 3)
    fed_back = {f"{name}_out": name for name in states}
    parts = [mix[:, :, frame : frame + 1] for frame in range(FRAMES)]
    wanted = in_turn(model, [{"mix": part} for part in parts], states, fed_back, {"enh": 2})
    return (rl.lower(model, target=client), {"mix": mix} | states), calls({"mix": 2, "enh": 2}, fed_back), wanted


def silero(client: Any) -> Net:
    """silero-vad 6 for 16 kHz."""
    model = onnx.load(GITHUB / "snakers4__silero-vad" / "silero_vad_v6_op16.onnx")
    rate, shapes = {"sr": np.asarray(16_000)}, {"input": [1, 576], "state": [2, 1, 128]}
    step = rl.lower(model, target=client, set_inputs=rate, input_shapes=shapes)
    sound, states = random((FRAMES, 576), 0, 0.1), {"state": np.zeros((2, 1, 128), np.float32)}
    given: list[Arrays] = [{"input": frame[None], **rate} for frame in sound]
    wanted = in_turn(model, given, states, {"stateN": "state"}, {"output": 0})
    return (step, {"input": sound} | states), calls({"input": 0, "output": 0}, {"stateN": "state"}), wanted


def calls(axes: Mapping[str, int | None], fed_back: Mapping[str, str]) -> dict[str, Any]:
    return {"frames": 1, "axes": dict(axes), "fed_back": dict(fed_back), "grows": {}}


def in_turn(
    model: onnx.ModelProto,
    given: list[Arrays],
    states: Arrays,
    fed_back: Mapping[str, str],
    axes: Mapping[str, int],
) -> Arrays:
    """What the original computes frame by frame, its outputs joined along `axes`, and the last states."""
    found: list[Arrays] = []
    for frame in given:
        found.append(run(model, frame | states))
        states = {name: found[-1][output] for output, name in fed_back.items()}
    joined = {name: np.concatenate([each[name] for each in found], axis) for name, axis in axes.items()}
    return joined | {output: found[-1][output] for output in fed_back}


NETS: dict[str, Callable[[Any], Net]] = {"GTCRN, streamed": streamed, "GTCRN": published, "silero-vad": silero}


@pytest.mark.parametrize("client", CLIENTS)
def test_frame_by_frame(client: str, tmp_path: Path) -> None:
    """Once a release mends what it does not run, the test fails, and the entry goes."""
    jobs, plans, wanted, said = dict[str, Job](), dict[str, dict[str, Any]](), dict[str, Arrays](), dict[str, str]()
    for name, make in NETS.items():
        try:
            jobs[name], plans[name], wanted[name] = make(client)
        except rl.UnsupportedError as error:
            said[name] = f"refused: {error}"
    for name, got in drive(client, jobs, tmp_path, plans, SECONDS).items() if jobs else ():
        if reason := got if isinstance(got, str) else difference(got, wanted[name], CLIENTS[client].precision):
            said[name] = reason
    left = json.loads(STORED.read_text()).get(client, {})
    assert said.keys() == left.keys(), said
    assert all(entry["says"] in said[name] for name, entry in left.items()), said


def difference(got: Arrays, wanted: Arrays, precision: str) -> str:
    """Say which output is wrong; "" if none. ncnn gives some another rank."""
    rtol, atol = OF_RUNTIMES[precision]
    for name, array in wanted.items():
        found: Array = got[name]
        if found.size != array.size or not np.allclose(found.reshape(array.shape), array, rtol, max(atol, 2e-5)):
            return f"wrong: {name}"
    return ""
