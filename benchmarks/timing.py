"""Time models in onnxruntime: the medians of turns in one process, on one thread, in processor time.

A turn is as many runs as take 4 ms: the clock of the processor is coarser than one run of a small model, and a run
behind one of another model finds cold caches.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

TURN = 4e-3
"""Seconds."""


def medians(models: Sequence[onnx.ModelProto], feeds: Sequence[Mapping[str, Any]], seconds: float) -> list[float]:
    """Return the seconds of one run of each model. `seconds`: for all of them."""
    sessions = [_session(model) for model in models]
    times: list[list[float]] = [[] for _ in sessions]
    for session, feed in zip(sessions, feeds, strict=True):
        session.run(None, feed)
    counts = [_runs_of_a_turn(session, feed) for session, feed in zip(sessions, feeds, strict=True)]
    end = time.process_time() + seconds
    while time.process_time() < end or len(times[0]) < 5:
        for taken, session, feed, count in zip(times, sessions, feeds, counts, strict=True):
            taken.append(_timed(session, feed, count))
    return [float(np.median(taken)) for taken in times]


def _session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _runs_of_a_turn(session: Any, feed: Mapping[str, Any]) -> int:
    return max(1, int(TURN / max(1e-6, _timed(session, feed, 1))))


def _timed(session: Any, feed: Mapping[str, Any], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        session.run(None, feed)
    return (time.process_time() - start) / count
