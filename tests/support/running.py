"""Models in onnxruntime, what counts as equal, and what a model consists of."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from cases import Array, Arrays
from onnx.reference import ReferenceEvaluator
from oracle import GATES

NEWEST_OPSET = 26
"""The newest that onnxruntime supports."""

NEWEST_IR_VERSION = 13

TOLERANCES = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}
"""rtol, atol by type; other types must be equal."""

OF_RUNTIMES = TOLERANCES | {"each operator in float16": (1e-2, 5e-3)}
"""The same, with that of a runtime that rounds what each operator computes."""


def session(model: onnx.ModelProto | Path, *, optimize: bool = True, relabel: bool = False) -> Any:
    """Return onnxruntime's session of a model, on one thread.

    Args:
        relabel: Whether a model that is newer than onnxruntime supports gets an older label; else it needs
            ALLOW_RELEASED_ONNX_OPSET_ONLY=0.
    """
    if isinstance(model, onnx.ModelProto):
        return _kept((relabeled(model) if relabel else model).SerializeToString(deterministic=True), optimize)
    return _started(str(model), optimize)


def _started(held: bytes | str, optimize: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(held, options, providers=["CPUExecutionProvider"])


_kept = lru_cache(maxsize=8)(_started)
"""An original is loaded once for all that it is compared with."""


def run(
    model: onnx.ModelProto | Path, feed: Mapping[str, Array], *, optimize: bool = True, relabel: bool = True
) -> Arrays:
    """Return what onnxruntime computes; see `session`."""
    running = session(model, optimize=optimize, relabel=relabel)
    names = [output.name for output in running.get_outputs()]
    return dict(zip(names, running.run(None, dict(feed)), strict=True))


def evaluated(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Arrays:
    """Return what onnx's reference evaluator computes."""
    results: Any = ReferenceEvaluator(model).run(None, dict(feed))
    return dict(zip((output.name for output in model.graph.output), results, strict=True))


def runs_in_onnxruntime(model: onnx.ModelProto) -> bool:
    """Return whether the installed onnxruntime can load a model: later versions know more operators and opsets."""
    try:
        session(model)
    except Exception:  # onnxruntime's errors have no common class
        return False
    return True


def optimizations_change(model: onnx.ModelProto, feed: Mapping[str, Array]) -> bool:
    """Return whether the installed onnxruntime computes something else when it optimizes a model."""
    plain, optimized = (run(model, feed, optimize=optimize) for optimize in (False, True))
    return any(not np.allclose(plain[name], optimized[name], rtol=1e-3, atol=1e-4) for name in plain)


def relabeled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at the newest opset and IR version that onnxruntime supports, or itself where it is not newer."""
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = min(model.ir_version, NEWEST_IR_VERSION)
    for holder in (older, *older.functions):
        for opset in holder.opset_import:
            if opset.domain in ("", "ai.onnx"):
                opset.version = min(opset.version, NEWEST_OPSET)
    return older


def assert_close(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    dtype: str | None = None,
    label: str = "",
    tolerances: Mapping[str, tuple[float, float]] = TOLERANCES,
) -> None:
    """Compare outputs by name, within the tolerance of `dtype` or of the type of each actual output."""
    assert actual.keys() == expected.keys(), label
    for name, array in expected.items():
        got = actual[name]
        if not isinstance(got, np.ndarray):  # a sequence or a map
            assert str(got) == str(array), f"{label} {name}"
            continue
        rtol, atol = tolerances.get(dtype or got.dtype.name, (0.0, 0.0))
        assert got.shape == np.shape(array), f"{label} {name}: {got.shape} is not {np.shape(array)}"
        np.testing.assert_allclose(
            _comparable(got), _comparable(np.asarray(array)), rtol, atol, err_msg=f"{label} {name}"
        )


def assert_near(actual: Mapping[str, Any], expected: Mapping[str, Array], near: float) -> None:
    """Compare outputs by name; `near`: the largest error, relative to the largest value or to 1."""
    for name, array in expected.items():
        assert actual[name].shape == array.shape, name
        bound = near * max(1.0, np.abs(array).max(initial=0))
        got = np.asarray(actual[name], np.float64)
        np.testing.assert_allclose(got, array, rtol=0, atol=bound, err_msg=name)


def _comparable(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.name in TOLERANCES else array


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the graph, its subgraphs and the functions."""
    yield from _walk(model.graph.node)
    for function in model.functions:
        yield from _walk(function.node)


def _walk(scope: Any) -> Iterator[onnx.NodeProto]:
    for node in scope:
        yield node
        for body in bodies(node):
            yield from _walk(body.node)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node has as attributes."""
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def scopes(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and every body in it."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from scopes(body)


def recurrent_left(model: onnx.ModelProto) -> list[str]:
    """The RNN, GRU and LSTM nodes of a model, in any scope."""
    return [f"{n.op_type} {n.name}" for n in nodes(model) if n.domain in ("", "ai.onnx") and n.op_type in GATES]


def operators(model: onnx.ModelProto) -> set[str]:
    """The operators of the default domain that a model uses, in any scope."""
    return {n.op_type for n in nodes(model) if n.domain in ("", "ai.onnx")}
