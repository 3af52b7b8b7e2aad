"""What a model computes, and which numbers count as equal; nothing here comes from the package.

Onnxruntime runs a model without optimizations. What it has no kernel for in float64, bfloat16 or with layout=1, it
runs in float32 with layout=0. The rest, such as opsets 1 to 6, onnx's evaluator runs in float64.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from cases import Array, Arrays
from onnx import TensorProto, helper
from oracle import GATES
from running import bodies, nodes, session

from fuzz.double import truth
from fuzz.element_types import element_types, retype

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

NEAR = {"float32": 1e-4, "float64": 1e-8, "float16": 2e-2, "bfloat16": 1.5e-1}
"""The largest difference by type, relative to the largest number of an output, or to 1."""


_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_BRAIN: Any = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


class Running:
    """A model that can be run many times.

    Args:
        exactly: Whether it is an error that onnxruntime refuses it.
        narrow: Whether float32 is as good as float64, and better than the evaluator.

    Raises:
        Exception: Nothing can run it.

    Attributes:
        by: "onnxruntime"; "float32", if onnxruntime runs it with these floats and layout=0; or "float64", if onnx's
            evaluator does.
        why: Why onnxruntime refuses it; "" if it does not.
        near: The type whose rounding counts, if it is not that of the outputs.
    """

    def __init__(self, model: onnx.ModelProto, *, exactly: bool = False, narrow: bool = True) -> None:
        self.model, self.why = model, ""
        self.names = [value.name for value in model.graph.output]
        self.types = [helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in _tensors(model)]
        self.by, message, self._session = self._first_that_runs(exactly, narrow)
        held = {tensor.name for tensor in message.graph.initializer}
        self._takes = {
            v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            for v in message.graph.input
            if v.name not in held
        }
        self.near = "float32" if self.by == "float32" else ""

    def _first_that_runs(self, exactly: bool, narrow: bool) -> tuple[str, onnx.ModelProto, Any]:
        """Return what runs the model, the model that it runs, and its session if it has one."""
        try:
            if not _fails_late(self.model):
                message = _with_floats(self.model)
                return "onnxruntime", message, _session(message)
        except Exception as error:  # onnxruntime's errors have no common class
            self.why = " ".join(str(error).split())
            if exactly:
                raise
        if narrow or element_types(self.model) & {"float16", "bfloat16"}:
            message = in_float32(self.model, (TensorProto.DOUBLE, TensorProto.BFLOAT16) if narrow else _HALVES)
            try:
                return "float32", message, _session(message)
            except Exception:
                if narrow and any(node.attribute and [*bodies(node)] for node in nodes(self.model)):
                    raise  # the evaluator misreads some bodies
        return "float64", self.model, None

    @cached_property
    def wide(self) -> "Running":
        """The same in float32 where it is in half precision, with inputs of any floats."""
        copy: onnx.ModelProto = onnx.ModelProto.FromString(self.model.SerializeToString())
        retype(copy, _HALVES, TensorProto.FLOAT)
        return Running(copy, narrow=False)

    def __call__(self, feed: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name; further arrays in `feed` do not matter."""
        renamed = {_as_float(name): array for name, array in feed.items()} | dict(feed)
        given = {name: _of_type(renamed[name], dtype) for name, dtype in self._takes.items() if name in renamed}
        if self._session is None:
            results = list(truth(self.model, given).values())
        else:
            results = self._session.run(None, given)
        return {n: self._as_declared(a, t) for n, a, t in zip(self.names, results, self.types, strict=True)}

    def _as_declared(self, array: Any, dtype: Any) -> Any:
        """Return an output in the type that the model declares; a sequence as it is."""
        exact = self.by == "onnxruntime" and dtype != _BRAIN
        return array if exact or not isinstance(array, np.ndarray) else _of_type(array, dtype)


def _of_type(array: Array, dtype: Any) -> Array:
    """Return real numbers in another type."""
    with np.errstate(all="ignore"):
        return array.astype(dtype) if array.dtype.name in NEAR and dtype.name in NEAR else array


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """The outputs, those that are no tensors as if they were float32."""
    float32 = helper.make_tensor_value_info("", TensorProto.FLOAT, None)
    yield from (v if v.type.tensor_type.elem_type else float32 for v in model.graph.output)


def _fails_late(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime loads a model that it cannot run: recurrent operators in float64."""
    kinds = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    return TensorProto.DOUBLE in kinds and any(node.op_type in GATES for node in nodes(model))


def _session(model: onnx.ModelProto) -> Any:
    """Return a session without optimizations, at the newest opset that onnxruntime knows."""
    with suppress(Exception):  # onnxruntime's errors have no common class
        return session(model, optimize=False)
    return session(model, optimize=False, relabel=True)


def _with_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs and outputs of float where they are of bfloat16, which Python cannot pass."""
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    brain, single = TensorProto.BFLOAT16, TensorProto.FLOAT
    read, returned = (_of_kind(values, brain) for values in (copy.graph.input, copy.graph.output))
    before = [helper.make_node("Cast", [_as_float(v.name)], [v.name], to=brain) for v in read]
    after = [helper.make_node("Cast", [v.name], [_as_float(v.name)], to=single) for v in returned]
    for value in (*read, *returned):
        value.name, value.type.tensor_type.elem_type = _as_float(value.name), single
    inner = [*copy.graph.node]
    del copy.graph.node[:]
    copy.graph.node.extend([*before, *inner, *after])
    return copy


def _of_kind(values: Iterable[onnx.ValueInfoProto], kind: int) -> list[onnx.ValueInfoProto]:
    return [value for value in values if value.type.tensor_type.elem_type == kind]


def _as_float(name: str) -> str:
    return f"{name}/float"


def in_float32(model: onnx.ModelProto, kinds: Collection[int]) -> onnx.ModelProto:
    """The model with float32 for some floats, and Transposes around nodes with layout=1."""
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    retype(copy, kinds, TensorProto.FLOAT)
    within = [body for node in nodes(copy) for body in bodies(node)]
    for graph in (*reversed(within), *copy.functions, copy.graph):
        laid_out = [new for node in graph.node for new in _transposed(node)]
        del graph.node[:]
        graph.node.extend(laid_out)
    return copy


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
        sizes: Of open dimensions, by name, and by "" if they have none; others are 2.
        high: The bounds of integer inputs; 3 without.
        given: Inputs that are not random.
    """
    feed: Arrays = {}
    held = {tensor.name for tensor in model.graph.initializer}
    for number, value in enumerate(model.graph.input):
        if value.name in held:
            continue
        kind = value.type.tensor_type
        sized = [(d, d.HasField("dim_value") and d.dim_value >= 0) for d in kind.shape.dim]
        shape = [d.dim_value if fixed else sizes.get(d.dim_param, 2) for d, fixed in sized]
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


def are_no_rows(got: Any, expected: Any) -> bool:
    """Whether both are what a loop without steps stacks: the specification does not say of which shape."""
    return all(hasattr(a, "shape") and a.ndim and not a.shape[0] for a in (got, expected))
