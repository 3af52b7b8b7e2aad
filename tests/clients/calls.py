"""Streams in a client, call by call, driven by nothing but their metadata."""

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from cases import Arrays
from stream_models import initial_states, plan_of

from clients.driving import Job, drive


def in_calls(client: str, streams: Mapping[str, Job], calls: int, folder: Path) -> dict[str, Arrays | str]:
    """Run streams, whose states are fed back; return the outputs of all calls of each, joined, or its error.

    Args:
        streams: Each with a whole sequence.
        calls: That the sequence is for; a stream that is late gets zeros behind it.
    """
    plans = {name: plan_of(step) for name, (step, _) in streams.items()}
    late = {n: max((ceil(k / p["frames"]) for k in p["delay"].values()), default=0) for n, p in plans.items()}
    states = {name: initial_states(plan, {}) for name, plan in plans.items()}
    parts: dict[str, list[Arrays]] = {name: [] for name in streams}
    errors: dict[str, str] = {}
    for call in range(calls + max(late.values())):
        jobs = {
            name: (step, _frames(plans[name], feed, call, calls) | states[name])
            for name, (step, feed) in streams.items()
            if name not in errors and call < calls + late[name]
        }
        for name, results in drive(client, jobs, folder / str(call)).items() if jobs else ():
            if isinstance(results, str):
                errors[name] = results
                continue
            states[name] = {
                s["input"]: results[s["output"]].reshape(s["shape"]).astype(s["dtype"])
                for s in plans[name]["states"]
            }
            parts[name].append(results)
    return {name: errors.get(name) or _joined(plans[name], parts[name]) for name in streams}


def _frames(plan: Mapping[str, Any], feed: Arrays, call: int, calls: int) -> Arrays:
    """The inputs of a call, without the states."""
    given = {name: feed[name] for name in plan["inputs"]}
    for name, axis in plan["inputs"].items():
        if axis is not None:
            frames = range(call * plan["frames"], (call + 1) * plan["frames"])
            own = feed[name].take(frames, axis, mode="clip")
            given[name] = own if call < calls else np.zeros_like(own)
    return given


def _joined(plan: Mapping[str, Any], parts: list[Arrays]) -> Arrays:
    return {
        name: parts[-1][name] if axis is None else np.concatenate([part[name] for part in parts], axis)
        for name, axis in plan["outputs"].items()
    }


def fault(plan: Mapping[str, Any], got: Arrays | str, expected: Arrays, atol: float) -> str:
    """Return the error, or "wrong: ..." where outputs differ from those of the whole sequence; "" for none."""
    if isinstance(got, str):
        return got
    for name, axis in plan["outputs"].items():
        array, first = got[name], plan["delay"].get(name, 0)
        if axis is not None:
            array = array.take(range(first, first + expected[name].shape[axis]), axis)
        if array.shape != expected[name].shape or not np.allclose(array, expected[name], rtol=0, atol=atol):
            return f"wrong: {name} {array.shape}"
    return ""
