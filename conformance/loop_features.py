"""Scan and Loop with recurrent bodies: axes, directions, trip counts, conditions and what a body may capture."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]

OPSET = 17
T, C = 5, 3
A = np.float32(0.5)


@dataclass(frozen=True)
class LoopFeature:
    """A model of one Scan or Loop: nodes as text of ONNX's textual format, and its outputs as a function of X."""

    name: str
    body: str
    node: str
    expected: Callable[[Array], dict[str, Array]]


def features() -> Iterator[LoopFeature]:
    """Yield all; the input is X [5, 3], h starts as zeros, and a step is h = h * 0.5 + x."""
    step = "half = Constant <value = float {0.5}> () n = Mul (h, half) g = Add (n, x) y = Identity (g)"
    state, row = f"float[{C}]", f"float[{C}]"
    body = f"b ({state} h, {row} x) => ({state} g, {row} y) {{ {step} }}"
    yield LoopFeature("Scan", body, "last, ys = Scan <num_scan_inputs = 1, body = {body}> (zeros, X)", _forward)
    yield LoopFeature(
        "Scan reads backwards",
        body,
        "last, ys = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = {body}> (zeros, X)",
        lambda X: _forward(X[::-1]),
    )
    yield LoopFeature(
        "Scan stacks in front",
        body,
        "last, ys = Scan <num_scan_inputs = 1, scan_output_directions = [1], body = {body}> (zeros, X)",
        lambda X: _forward(X) | {"ys": _forward(X)["ys"][::-1]},
    )
    yield LoopFeature(
        "Scan over axis 1",
        body,
        "XT = Transpose <perm = [1, 0]> (X) "
        "last, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], body = {body}> "
        "(zeros, XT)",
        lambda X: _forward(X) | {"ys": _forward(X)["ys"].T},
    )
    captured = (
        f"b ({state} h, {row} x) => ({state} g, {row} y) {{ n = Mul (h, W) g = Add (n, x) y = Identity (g) }}"
    )
    yield LoopFeature(
        "Scan captures a weight",
        captured,
        "W = Constant <value = float {0.5}> () last, ys = Scan <num_scan_inputs = 1, body = {body}> (zeros, X)",
        _forward,
    )
    swap = f"b ({state} h, {state} k, {row} x) => ({state} p, {state} q) {{ p = Identity (k) q = Add (h, x) }}"
    yield LoopFeature(
        "Scan swaps two states",
        swap,
        "last, other = Scan <num_scan_inputs = 1, body = {body}> (zeros, zeros, X)",
        _swapped,
    )
    looped = (
        f"b (int64 i, bool c, {state} h) => (bool k, {state} g, {row} y) "
        f"{{ k = Identity (c) x = Gather <axis = 0> (X, i) {step} }}"
    )
    trips = "trips = Constant <value = int64 {N}> () true = Constant <value = bool {1}> () "
    for name, count in (("Loop", T), ("Loop of one trip", 1), ("Loop without a trip", 0)):
        yield LoopFeature(
            name,
            looped,
            trips.replace("N", str(count)) + "last, ys = Loop <body = {body}> (trips, true, zeros)",
            lambda X, count=count: _forward(X[:count]),  # type: ignore[misc]
        )
    until = looped.replace("k = Identity (c)", "two = Constant <value = int64 {2}> () k = Less (i, two)")
    yield LoopFeature(
        "Loop ends by a counter",
        until,
        trips.replace("N", str(T)) + "last, ys = Loop <body = {body}> (trips, true, zeros)",
        lambda X: _forward(X[:3]),
    )
    data = looped.replace(
        "k = Identity (c)",
        "most = Constant <value = float {1.5}> () s = ReduceSum <keepdims = 0> (h) k = Less (s, most)",
    )
    yield LoopFeature(
        "Loop ends by data",
        data,
        trips.replace("N", str(T)) + "last, ys = Loop <body = {body}> (trips, true, zeros)",
        _until_data,
    )
    grows = (
        f"b (int64 i, bool c, float[n,{C}] h) => (bool k, float[m,{C}] g) {{ k = Identity (c) "
        "x = Gather <axis = 0> (X, i) axis = Constant <value = int64[1] {0}> () row = Unsqueeze (x, axis) "
        "g = Concat <axis = 0> (h, row) }"
    )
    yield LoopFeature(
        "Loop whose state grows",
        grows,
        trips.replace("N", str(T))
        + "shape = Constant <value = int64[2] {0, 3}> () none = ConstantOfShape (shape) "
        + "last = Loop <body = {body}> (trips, true, none)",
        lambda X: {"last": X},
    )


def model(feature: LoopFeature) -> onnx.ModelProto:
    """Return the model; its input is X."""
    shapes = {name: ",".join(map(str, array.shape)) for name, array in feature.expected(_x()).items()}
    outputs = ", ".join(f"float[{shape}] {name}" for name, shape in shapes.items())
    nodes = feature.node.replace("{body}", feature.body)
    graph = onnx.parser.parse_graph(f"loops (float[{T},{C}] X) => ({outputs}) {{ {nodes} }}")
    graph.initializer.append(numpy_helper.from_array(np.zeros(C, np.float32), "zeros"))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _x() -> Array:
    return np.random.default_rng(0).standard_normal((T, C)).astype(np.float32)


def feed() -> dict[str, Array]:
    """Return the input of every model."""
    return {"X": _x()}


def _forward(X: Array) -> dict[str, Array]:
    h, ys = np.zeros(C), np.zeros((len(X), C))
    for t, x in enumerate(X.astype(np.float64)):
        h = ys[t] = h * A + x
    return {"last": h, "ys": ys}


def _swapped(X: Array) -> dict[str, Array]:
    h, k = np.zeros(C), np.zeros(C)
    for x in X.astype(np.float64):
        h, k = k, h + x
    return {"last": h, "other": k}


def _until_data(X: Array) -> dict[str, Array]:
    h, ys = np.zeros(C), list[Array]()
    for x in X.astype(np.float64):
        going = h.sum() < 1.5
        h = h * A + x
        ys.append(h)
        if not going:
            break
    return {"last": h, "ys": np.array(ys)}
