"""What a model computes, and which numbers count as equal; nothing here comes from the package.

Onnxruntime runs a model without optimizations. What it has no kernel for in float64, bfloat16 or with layout=1, it
runs in float32 with layout=0. The rest, such as opsets 1 to 6, onnx's evaluator runs, with the float64 equations of
tests/support for the recurrent operators.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from cases import Array, Arrays
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from oracle import GATES, evaluate
from running import bodies, nodes, session

NEAR = {"float32": 1e-4, "float64": 1e-8, "float16": 2e-2, "bfloat16": 1.5e-1}
"""The largest difference by type, relative to the largest number of an output, or to 1."""


class _Recurrent(OpRun):
    """A recurrent operator of the evaluator, by the equations of tests/support/oracle.py."""

    op_domain = ""
    formals = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")

    def _run(self, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        node = self.onnx_node
        given: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        texts = {n: v.decode() if isinstance(v, bytes) else v for n, v in given.items()}
        if "activations" in texts:
            texts["activations"] = [n.decode() if isinstance(n, bytes) else n for n in texts["activations"]]
        held = dict(zip(self.formals, inputs, strict=False))
        results = evaluate(node.op_type, texts, held)
        arrays = [results[name].astype(inputs[0].dtype) for name in ("Y", "Y_h", "Y_c") if name in results]
        return tuple(arrays[: len(node.output)])


class RNN(_Recurrent):
    """RNN."""


class GRU(_Recurrent):
    """GRU."""


class LSTM(_Recurrent):
    """LSTM."""


class Running:
    """A model that can be run many times.

    Raises:
        Exception: Nothing can run it.

    Attributes:
        by: "onnxruntime"; "float32", if onnxruntime runs it with these floats and layout=0; or "evaluator".
        near: The type whose rounding counts, if it is not that of the outputs.
    """

    def __init__(self, model: onnx.ModelProto, exactly: bool = False) -> None:
        self.names = [value.name for value in model.graph.output]
        self.types = [helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in _tensors(model)]
        inputs = {value.name for value in model.graph.input}
        self.inputs = inputs - {tensor.name for tensor in model.graph.initializer}
        self.by, self._held = _held(model, exactly)
        self.near = "float32" if self.by == "float32" else ""

    def __call__(self, feed: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name; further arrays in `feed` do not matter."""
        given = {name: array for name, array in feed.items() if name in self.inputs}
        if self.by == "float32":
            given = {n: a.astype(np.float32) if a.dtype.name in _WIDE else a for n, a in given.items()}
        got = dict(zip(self.names, self._held.run(None, given), strict=True))
        if self.by == "float32":
            got = {
                n: a.astype(t) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a
                for (n, a), t in zip(got.items(), self.types, strict=True)
            }
        return got


_WIDE = ("float64", "bfloat16")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The outputs, those that are no tensors as if they were float32."""
    float32 = helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    yield from (v if v.type.tensor_type.elem_type else float32 for v in model.graph.output)


def _held(model: onnx.ModelProto, exactly: bool) -> tuple[str, Any]:
    """Return what runs a model, with its kind."""
    used = {node.op_type for node in nodes(model)}
    kinds = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    runs_late = onnx.TensorProto.DOUBLE in kinds and used & {*GATES}  # is loaded, and fails when it is run
    try:
        if not runs_late and onnx.TensorProto.BFLOAT16 not in kinds:
            return "onnxruntime", session(model, optimize=False, relabel=True)
    except Exception:  # onnxruntime's errors have no common class
        if exactly:
            raise
    try:
        return "float32", session(in_float32(model), optimize=False, relabel=True)
    except Exception:
        if any(node.attribute and [*bodies(node)] for node in nodes(model)):
            raise  # the evaluator does not know our operators in bodies
        flat = onnx.ModelProto.FromString(model.SerializeToString())
        flat = onnx.inliner.inline_local_functions(flat) if model.functions else flat
        for number, node in enumerate(flat.graph.node):  # it would take an output "" for an absent input
            node.output[:] = [name or f"unused_{number}_{place}" for place, name in enumerate(node.output)]
        return "evaluator", ReferenceEvaluator(flat, new_ops=[RNN, GRU, LSTM])


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 for float64 and bfloat16, and Transposes around nodes with layout=1."""
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    retype(copy, (onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16), onnx.TensorProto.FLOAT)
    within = [body for node in nodes(copy) for body in bodies(node)]
    for graph in (*reversed(within), *copy.functions, copy.graph):
        laid_out = [new for node in graph.node for new in _transposed(node)]
        del graph.node[:]
        graph.node.extend(laid_out)
    return copy


def retype(message: Any, kinds: Collection[int], kind: int) -> None:
    """Let all tensors and declared types of some floats, at any depth, be of another."""
    if isinstance(message, onnx.TensorProto):
        if message.data_type in kinds:
            array = numpy_helper.to_array(message).astype(helper.tensor_dtype_to_np_dtype(kind))
            message.CopyFrom(numpy_helper.from_array(array, message.name))
        return
    if isinstance(message, onnx.TypeProto.Tensor) and message.elem_type in kinds:
        message.elem_type = kind
    if isinstance(message, onnx.AttributeProto) and message.name in ("to", "dtype") and message.i in kinds:
        message.i = kind
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                retype(inner, kinds, kind)


def _transposed(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node with layout=0, and what brings its inputs and outputs to it."""
    layout = next((a.i for a in node.attribute if a.name == "layout" and node.op_type in GATES), 0)
    if not layout:
        yield node
        return
    kept = [a for a in node.attribute if a.name != "layout"]
    del node.attribute[:]
    node.attribute.extend(kept)
    after = []
    for place, name in enumerate(node.input):
        if name and place in (0, 5, 6):
            node.input[place] = f"{node.output[0]}{node.name}_{name}_{place}_first"
            yield helper.make_node("Transpose", [name], [node.input[place]], perm=[1, 0, 2])
    for place, name in enumerate(node.output):
        if name:
            node.output[place] = f"{name}_first"
            perm = [1, 0, 2] if place else [2, 0, 1, 3]
            after.append(helper.make_node("Transpose", [node.output[place]], [name], perm=perm))
    yield node
    yield from after


def steady(whole: Running, feed: Mapping[str, Array]) -> bool:
    """Whether a small change of the inputs changes the outputs little: else nothing can be said of rounding."""
    moved = {n: a * np.array(1.0003, a.dtype) if a.dtype.name in NEAR else a for n, a in feed.items()}
    for name in moved:
        if moved[name].dtype.name == "float32":
            moved[name] = (feed[name] * np.float32(1 + 1e-6)).astype(np.float32)
    first, second = whole(feed), whole(moved)
    return all(not difference(second[name], first[name]) for name in first)


def feeds(
    model: onnx.ModelProto,
    sizes: Mapping[str, int],
    seed: int,
    high: Mapping[str, int] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Arrays:
    """Return random inputs.

    Args:
        sizes: Of open dimensions, by name; others are 2.
        high: The bounds of integer inputs; 3 without.
        given: Inputs that are not random.
    """
    feed: Arrays = {}
    held = {tensor.name for tensor in model.graph.initializer}
    for number, value in enumerate(model.graph.input):
        if value.name in held:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, 2) for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if given and value.name in given:
            feed[value.name] = np.asarray(given[value.name], dtype).reshape(shape)
        else:
            feed[value.name] = _numbers(dtype, shape, (seed, number), (high or {}).get(value.name, 3))
    return feed


def _numbers(dtype: Any, shape: Sequence[int], seed: tuple[int, int], high: int) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, high, shape)).astype(dtype)
    return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype)


def difference(got: Any, expected: Any, loose: float = 1.0, near: str = "") -> str:
    """Return how an output differs from what it must be, or nothing.

    Args:
        loose: How many times as large a difference may be.
        near: The type whose rounding counts, if it is not that of the output.

    Integers may differ by 1 where floats are rounded, in a few places; infinities and NaN are equal to themselves.
    """
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return f"a sequence of {len(got) if isinstance(got, list) else got}, not {len(expected)}"
        pairs = zip(got, expected, strict=True)
        return next((text for a, b in pairs if (text := difference(a, b, loose, near))), "")
    a, b = np.asarray(got), np.asarray(expected)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
    if a.dtype.name not in NEAR:
        if a.dtype.kind not in "iu":
            return "" if (a == b).all() else "other values"
        apart = np.abs(a.astype(np.int64) - b.astype(np.int64))
        return (
            "" if apart.max(initial=0) <= 1 and (apart > 0).sum() <= max(2, 0.05 * apart.size) else "other integers"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(y)
        if not ((x == y) | (np.isnan(x) & np.isnan(y)) | finite).all() or not np.isfinite(x[finite]).all():
            return "other infinities or NaN"
        apart = np.abs(x - y)[finite]
    scale = max(1.0, float(np.abs(y[finite]).max(initial=0)))
    worst = float(apart.max(initial=0)) / scale
    return f"{worst:.2g} apart" if worst > max(NEAR[a.dtype.name], NEAR.get(near, 0)) * loose else ""
