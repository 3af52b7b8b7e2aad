"""The suite as streams: each model takes one frame a call, with the states of the call before."""

import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from clients.driving import Job, drive
from clients.environments import CLIENTS
from stream_models import initial_states, plan_of

import rnn_lowering as rl
from conformance.judging import Arrays, EndedError, Outcome, called, judge, one_line
from conformance.suite import Stored
from rnn_lowering.targets.drivers.jobs import each_time, once


def in_runtime(runtime: Any, features: Iterable[Stored]) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each feature as a stream of one frame a call; the runtime runs all of them first."""
    chosen, steps, refused = list(features), dict[str, onnx.ModelProto](), dict[str, Outcome]()
    for feature in chosen:
        try:
            steps[feature.name] = stream(feature, rl.Lowering(target=runtime))
        except rl.RnnLoweringError as error:
            refused[feature.name] = Outcome("rejects", f"rnn-lower: {error}")
    jobs: dict[str, Job] = {f.name: (step, _feed(f, step)) for f in chosen if (step := steps.get(f.name))}
    calls = {name: _calls(plan_of(step)) for name, step in steps.items()}
    with tempfile.TemporaryDirectory() as folder:
        got = drive(runtime, jobs, Path(folder), calls)
    for feature in chosen:
        result = got.get(feature.name, "")
        if feature.name in refused:
            yield feature.name, refused[feature.name]
        elif isinstance(result, str):
            kind, _, reason = result.partition(": ")
            yield feature.name, Outcome(kind, one_line(reason))
        else:
            precision = CLIENTS[runtime].precision if runtime in CLIENTS else "float32"
            yield feature.name, judge(feature, result, precision)


def by_command(command: str, features: Iterable[Stored], lowering: rl.Lowering) -> Iterator[tuple[str, Outcome]]:
    """Run a command once for each frame of each feature, as `judging.by_command`, and yield the outcome."""
    for feature in features:
        try:
            step = stream(feature, lowering)
        except rl.RnnLoweringError as error:
            yield feature.name, Outcome("rejects", f"rnn-lower: {error}")
        else:
            yield feature.name, _in_calls(command, feature, step)


def _in_calls(command: str, feature: Stored, step: onnx.ModelProto) -> Outcome:
    run = once(each_time(partial(called, command)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(step, path)
        path.with_name("calls.json").write_text(json.dumps(_calls(plan_of(step))))
        feed = _feed(feature, step)
        ordered = {value.name: feed[value.name] for value in step.graph.input}
        try:
            return judge(feature, run(path, ordered, [value.name for value in step.graph.output]))
        except EndedError as ended:
            return ended.outcome


def stream(feature: Stored, lowering: rl.Lowering) -> onnx.ModelProto:
    """Return the model of one frame a call.

    Raises:
        rl.RnnLoweringError: It cannot be a stream, or not for this target.
    """
    model = onnx.load(feature.folder / "model.onnx")
    axes = {f"{name}:{axis}": 1 for name, axis in time_axes(feature, model).items()}
    with warnings.catch_warnings(action="ignore"):  # that a kernel of 1 has no past frames
        return rl.lower(model, replace(lowering, stream=axes))


def time_axes(feature: Stored, model: onnx.ModelProto) -> dict[str, int]:
    """The axis of time of the inputs that have one."""
    if feature.group == "LinearAttention":
        return {value.name: 1 for value in model.graph.input if value.name != "past_state"}
    if feature.group == "CausalConvWithState":
        return {"input": 2}
    return {"X": int(feature.label.endswith("layout 1"))}


def _feed(feature: Stored, step: onnx.ModelProto) -> Arrays:
    """The inputs of a feature and the first states."""
    feed = feature.arrays("input")
    return initial_states(plan_of(step), _sizes(step, feed)) | feed


def _sizes(step: onnx.ModelProto, feed: Arrays) -> dict[str, int]:
    """The open sizes of the inputs, by their names."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in step.graph.input}
    pairs = (pair for name, array in feed.items() for pair in zip(dims[name], array.shape, strict=True))
    return {dim.dim_param: size for dim, size in pairs if dim.dim_param}


def _calls(plan: Mapping[str, Any]) -> dict[str, Any]:
    """How jobs.py calls a stream."""
    return {
        "frames": plan["frames"],
        "axes": plan["inputs"] | plan["outputs"],
        "fed_back": {state["output"]: state["input"] for state in plan["states"]},
        "grows": {},
    }
