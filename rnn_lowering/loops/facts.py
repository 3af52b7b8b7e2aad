"""What follows from constants and sizes about the values of a model: their types, shapes and numbers.

Only operators that onnx's reference evaluator computes as onnxruntime does are evaluated, on small tensors, in the
numbers of their own type: a float32 counter is rounded at each step. Shapes are those that ONNX infers, node by
node; nothing that a body declares is believed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END
from rnn_lowering.model.contrib_shapes import like_inputs
from rnn_lowering.model.onnx_checks import is_anonymous
from rnn_lowering.model.scopes import bodies_of
from rnn_lowering.model.sizes import VARIES, inferred_values
from rnn_lowering.spec.constant_values import constant_of
from rnn_lowering.spec.node_outputs import (
    MOVING,
    RANDOM,
    NodeModel,
    infer_outputs,
    is_of_default_domain,
    moved_inputs,
    numbered,
    numbers_in,
)
from rnn_lowering.types import Array, array_of

_LARGEST_READ, _LARGEST_MADE, _LARGEST_FLOATS = 1 << 16, 1 << 14, 64
"""The most elements of a tensor that is read, that is computed, and that is computed if it has floats."""

_EVALUATED = frozenset(
    (
        *("Identity", "Cast", "CastLike", "Transpose", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Slice"),
        *("Concat", "Split", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "ConstantOfShape", "Range"),
        *("ScatterND", "Shape", "Size", "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Min", "Max"),
        *("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Not", "Xor", "Where"),
        *("Floor", "Ceil", "ReduceMin", "ReduceMax", "ReduceSum", "ReduceProd", "Constant", "CumSum", "Trilu"),
    )
)
CHANCE = RANDOM | {"Dropout"}
"""Operators whose results may differ each time."""

_FIRST_OF_SIZES = {
    **{"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0, "Range": 0, "Slice": 1, "Pad": 1, "Split": 1},
    **{"Squeeze": 1, "Unsqueeze": 1, "ReduceSum": 1, "ReduceMean": 1, "ReduceMax": 1, "ReduceMin": 1, "TopK": 1},
    **{"ReduceProd": 1, "ReduceL2": 1, "ReduceL1": 1, "Resize": 1, "OneHot": 1, "CenterCropPad": 1},
}
"""The first input of an operator whose numbers decide the shape of the result."""

SizeOrName = int | str | None
"""A size, the name of one that is not known, or None."""


@dataclass(frozen=True)
class TensorKind:
    """An element type, as a number of `onnx.TensorProto`, and a shape; None for an unknown rank."""

    element: int
    shape: tuple[SizeOrName, ...] | None

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def dims(self) -> tuple[int | None, ...]:
        """The sizes that are known, of a known rank."""
        return tuple(size if isinstance(size, int) else None for size in self.shape or ())

    def proto(self) -> onnx.TypeProto:
        proto: onnx.TypeProto = onnx.helper.make_tensor_type_proto(self.element, self.shape)
        return proto


def common_kind(kinds: Sequence[TensorKind | None]) -> TensorKind | None:
    """Return what is the same in all kinds."""
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds) or len({kind.element for kind in known}) != 1:
        return None
    shapes = [kind.shape for kind in known if kind.shape is not None]
    if len(shapes) < len(kinds) or len({len(shape) for shape in shapes}) != 1:
        return TensorKind(known[0].element, None)
    sizes = (dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes, strict=True))
    return TensorKind(known[0].element, tuple(sizes))


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor that is known, and the value of the graph that holds it, if there is one."""

    array: Array
    value: ir.Value | None = None

    def key(self) -> Hashable:
        if self.value is not None:
            return self.value
        return self.array.dtype.str, self.array.shape, self.array.tobytes()

    def kind(self) -> TensorKind:
        return TensorKind(_element(self.array), self.array.shape)


@dataclass(frozen=True, eq=False)
class Elements:
    """A sequence whose elements are known, and the value of the graph that holds it, if there is one."""

    items: tuple[Item, ...]
    value: ir.Value | None = None


Item = ir.Value | Known | Elements | None
"""What stands for a value of a body in one step: a value of the graph, a constant, a sequence, or nothing."""


@dataclass(frozen=True)
class _Partial:
    """Integers of which some are known."""

    numbers: Array
    known: Array


class Facts:
    """Facts about a model, which may gain nodes; a value's facts do not change.

    Args:
        model: The model, sorted.
        opset: Its version of the default domain.
    """

    def __init__(self, model: ir.Model, opset: int) -> None:
        self.opset = opset
        self._opsets = {**{d: v for d, v in model.opset_imports.items() if d != "ai.onnx"}, "": opset}
        self._kinds: dict[ir.Value, TensorKind] = {}
        self._known: dict[ir.Value, Known | _Partial | None] = {}
        self._elements: dict[ir.Value, Elements] = {}
        self._inferred: dict[Hashable, list[TensorKind | None]] = {}
        self._alone: dict[ir.Node, NodeModel] = {}
        self._places: dict[str, tuple[ir.Value, int]] = {}
        with _names_kept(model):
            for value in (*model.graph.inputs, *model.graph.initializers.values()):
                self._take(value, value)
            for value, found in inferred_values(model).items():
                self._take(value, found)
        for value in model.graph.inputs:
            kind = self._kinds.get(value)
            for axis, size in enumerate((kind and kind.shape) or ()):
                if isinstance(size, str):
                    self._places.setdefault(size, (value, axis))

    def _take(self, value: ir.Value, found: ir.Value) -> None:
        if value.const_value is not None and not value.is_graph_input():
            tensor = value.const_value
            self._kinds[value] = TensorKind(int(tensor.dtype), tuple(int(d) for d in tensor.shape.numpy()))
        elif isinstance(found.type, ir.TensorType):
            shape = None if found.shape is None else tuple(map(_size, found.shape))
            self._kinds[value] = TensorKind(int(found.type.dtype), shape)

    # Types and shapes

    def kind(self, item: Item) -> TensorKind | None:
        """Return the type and shape of a tensor; None where they are not known, or it is none."""
        if isinstance(item, Known):
            return item.kind()
        return self._kinds.get(item) if isinstance(item, ir.Value) else None

    def place(self, size: str) -> tuple[ir.Value, int] | None:
        """Return an input of the model and its axis that have a size, by its name."""
        return self._places.get(size)

    def declare(self, value: ir.Value, kind: TensorKind | None) -> None:
        """Record and declare the type and shape of a value that is emitted."""
        if kind is None:
            return
        self._kinds[value] = kind
        value.type = ir.TensorType(ir.DataType(kind.element))
        if kind.shape is not None:
            value.shape = ir.Shape(kind.dims)

    def infer(self, node: ir.Node, items: Sequence[Item]) -> list[TensorKind | None]:
        """Return the types and shapes of what a node computes from these items."""
        unknown: list[TensorKind | None] = [None] * len(node.outputs)
        if like := like_inputs(node):
            return [self._kind_like(items, slot, copies) for slot, copies in like]
        if bodies_of(node) or not onnx.defs.has(node.op_type, self.opset, "") or not is_of_default_domain(node):
            return unknown
        kinds = [self.kind(item) for item in items]
        key = node, tuple(kinds), tuple((n, item.key()) for n, item in _sizes_in(node, items).items())
        if key not in self._inferred:
            absent = any(kind is None and item is not None for kind, item in zip(kinds, items, strict=True))
            self._inferred[key] = unknown if absent else self._infer(node, items, kinds) or unknown
        return self._inferred[key]

    def _kind_like(self, items: Sequence[Item], slot: int, copies: int) -> TensorKind | None:
        """Return the type and shape of an input, with axis 2 repeated."""
        kind = self.kind(items[slot]) if slot < len(items) else None
        if kind is None or kind.shape is None or copies == 1:
            return kind
        repeated = (None if not isinstance(size, int) else size * copies for size in kind.shape[2:3])
        return TensorKind(kind.element, (*kind.shape[:2], *repeated, *kind.shape[3:]))

    def _infer(
        self, node: ir.Node, items: Sequence[Item], kinds: Sequence[TensorKind | None]
    ) -> list[TensorKind | None] | None:
        types = [None if kind is None else kind.proto() for kind in kinds]
        try:
            found = infer_outputs(
                node, self._opsets, types, {n: item.array for n, item in _sizes_in(node, items).items()}
            )
        except Exception:  # inference has no common error: nothing is known
            return None
        kinds_found = [_kind_of(proto) for proto in found]
        return [_sliced(kinds_found[0], kinds[0], items[1:])] if node.op_type == "Slice" else kinds_found

    # Numbers

    def elements(self, value: ir.Value) -> Elements | None:
        """Return the elements of a sequence that is computed outside of bodies, as far as they were found."""
        return self._elements.get(value)

    def record_elements(self, value: ir.Value, items: Sequence[Item]) -> None:
        self._elements[value] = Elements(tuple(items), value)

    def known(self, value: ir.Value) -> Known | None:
        """Return the tensor of a value outside of the bodies that are repeated, where it follows from constants and
        sizes, and is small."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._known:
                pending.pop()
                continue
            node = current.producer()
            missing = [v for v in self._needed(node) if v not in self._known] if node is not None else []
            if missing and len(pending) < 10_000:
                pending += missing
                continue
            self._add(current, node)
            pending.pop()
        found = self._known[value]
        return found if isinstance(found, Known) else None

    def _needed(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs whose numbers a node needs: Shape and Size those of which no shape was inferred."""
        if node.op_type not in _EVALUATED:
            return []
        given = [v for v in node.inputs if v is not None]
        return given if node.op_type not in ("Shape", "Size") else [v for v in given if not self._is_static(v)]

    def _is_static(self, value: ir.Value) -> bool:
        kind = self.kind(value)
        return kind is not None and kind.is_static

    def _add(self, value: ir.Value, node: ir.Node | None) -> None:
        self._known[value] = None
        if node is None:
            tensor = None if value.is_graph_input() else value.const_value
            small = tensor is not None and tensor.size <= _LARGEST_READ and is_plain(tensor.dtype)
            array = numbers_in(tensor) if small and tensor is not None else None
            self._known[value] = None if array is None else Known(array, value)
            return
        items: list[Any] = [None if v is None else self._known.get(v) or v for v in node.inputs]
        found = self.evaluate(node, items)
        for output, array in zip(node.outputs, found or (), strict=False):
            self._known[output] = Known(array, output)
        if found is None and node.op_type in (*MOVING, "Cast", "Shape"):
            for output, partial in zip(node.outputs, self._partial(node, items) or (), strict=False):
                whole = Known(partial.numbers, output) if partial.known.all() else partial
                self._known[output] = whole

    def evaluate(self, node: ir.Node, items: Sequence[Item]) -> list[Array] | None:
        """Return what a node computes, where that is small and follows from its items."""
        if node.op_type not in _EVALUATED or not is_of_default_domain(node):
            return None
        if node.op_type in ("Shape", "Size"):
            return self._shape(node, self.kind(items[0]) if items else None)
        if node.op_type == "Constant":
            tensor = constant_of(node.outputs[0], self.opset)
            small = tensor is not None and tensor.size <= _LARGEST_READ and is_plain(tensor.dtype)
            return [array_of(tensor)] if small and tensor is not None else None
        if node.op_type == "CastLike" and len(items) > 1:
            like = self.kind(items[1])
            items = [items[0], None if like is None else _zero_like(like)]
        arrays = [item.array if isinstance(item, Known) else None for item in items]
        if not any(a is not None for a in arrays) or any(
            a is None and item is not None for a, item in zip(arrays, items, strict=True)
        ):
            return None
        kinds = self.infer(node, items)
        if not all(_is_small(kind) for kind, value in zip(kinds, node.outputs, strict=True) if value.name):
            return None
        return self._run(node, arrays, kinds)

    def _run(
        self, node: ir.Node, arrays: Sequence[Array | None], kinds: Sequence[TensorKind | None]
    ) -> list[Array] | None:
        if _differs_from_onnxruntime(node, arrays, kinds):
            return None
        try:
            if node not in self._alone:
                self._alone[node] = NodeModel.of(node, self.opset)
            with np.errstate(all="ignore"):
                found = self._alone[node].run(arrays)
        except Exception:  # the evaluator has no common error; what it cannot do stays in the graph
            return None
        for kind, array in zip(kinds, found, strict=True):
            if array is not None and (kind is None or (array.shape, _element(array)) != (kind.shape, kind.element)):
                return None
        return [np.empty(0) if array is None else array for array in found]

    def _shape(self, node: ir.Node, kind: TensorKind | None) -> list[Array] | None:
        partial = self._partial_shape(node, kind)
        if partial is None or not partial.known.all():
            return None
        numbers = partial.numbers
        return [np.asarray(math.prod(numbers.tolist()), np.int64) if node.op_type == "Size" else numbers]

    def _partial_shape(self, node: ir.Node, kind: TensorKind | None) -> _Partial | None:
        if kind is None or kind.shape is None:
            return None
        start, end = (node.attributes.get(name) for name in ("start", "end"))
        part = kind.dims[None if start is None else start.as_int() : None if end is None else end.as_int()]
        numbers = np.asarray([size or 0 for size in part], np.int64)
        return _Partial(numbers, np.asarray([size is not None for size in part], np.bool_))

    def _partial(self, node: ir.Node, items: Sequence[Any]) -> list[_Partial] | None:
        """Return what a node moves of integers of which some are known."""
        if node.op_type == "Shape":
            shape = self._partial_shape(node, self.kind(items[0]))
            return None if shape is None else [shape]
        moved = moved_inputs(node)
        if not all(isinstance(item, Known | _Partial if n < moved else Known) for n, item in enumerate(items)):
            return None
        parts = [_partial_of(item) for item in items[:moved]]
        arrays = [part.numbers for part in parts]
        places = [Known(p.astype(a.dtype)) for p, a in zip(numbered(arrays), arrays, strict=True)]
        found = self.evaluate(node, [*places, *items[moved:]])
        if found is None or any(array.dtype not in (np.int32, np.int64) for array in (*found, *arrays)):
            return None
        numbers = np.concatenate([array.ravel() for array in arrays])
        known = np.concatenate([part.known.ravel() for part in parts])
        return [_Partial(numbers[n].astype(n.dtype), known[n]) for n in found]


@contextmanager
def _names_kept(model: ir.Model) -> Iterator[None]:
    """Let names of sizes that look like those of ONNX's inference be others in the block: tf2onnx writes such."""
    shapes = [(value, value.shape) for value in model.graph.inputs]
    for value, shape in shapes:
        if shape is not None and any(map(is_anonymous, shape)):
            value.shape = ir.Shape([f"size {d}" if _is_named(d) else d for d in shape])
    yield
    for value, shape in shapes:
        value.shape = shape


def _is_named(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value is not None


def _partial_of(item: Known | _Partial) -> _Partial:
    return item if isinstance(item, _Partial) else _Partial(item.array, np.ones(item.array.shape, np.bool_))


def _size(dim: int | ir.SymbolicDim) -> SizeOrName:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim.value == VARIES else dim.value


def _kind_of(proto: onnx.TypeProto | None) -> TensorKind | None:
    if proto is None or not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return TensorKind(tensor.elem_type, None)
    sizes = (d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    return TensorKind(tensor.elem_type, tuple(sizes))


def _sizes_in(node: ir.Node, items: Sequence[Item]) -> dict[int, Known]:
    """Return the known inputs, by their place, whose numbers decide the shape of the result."""
    first = _FIRST_OF_SIZES.get(node.op_type, len(items))
    return {n: item for n, item in enumerate(items) if n >= first and isinstance(item, Known)}


def known_bounds(items: Sequence[Item]) -> list[tuple[int, int, int, int]] | None:
    """Return the axis, start, end and step of each axis that a Slice names; None where they are not known.

    Args:
        items: Its starts, ends, axes and steps.
    """
    if len(items) < 2 or not all(item is None or isinstance(item, Known) for item in items):
        return None
    given = [item.array.ravel().tolist() if isinstance(item, Known) else [] for item in (*items, None, None)[:4]]
    starts, ends = given[:2]
    axes, steps = given[2] or list(range(len(starts))), given[3] or [1] * len(starts)
    same = len(starts) == len(ends) == len(axes) == len(steps)
    return list(zip(axes, starts, ends, steps, strict=True)) if same else None


def takes_all(start: int, end: int, step: int) -> bool:
    """Whether a Slice takes all of an axis, whatever its size is."""
    return (start, step) == (0, 1) and end >= TO_THE_END


def _sliced(found: TensorKind | None, given: TensorKind | None, items: Sequence[Item]) -> TensorKind | None:
    """Return what ONNX finds for a Slice, with the names of sizes of which it takes everything."""
    if found is None or given is None or not found.shape or given.shape is None:
        return found
    shape = list(found.shape)
    for axis, *bounds in known_bounds(items) or ():
        if takes_all(*bounds):
            shape[axis] = given.shape[axis]
    return TensorKind(found.element, tuple(shape))


def is_plain(dtype: ir.DataType) -> bool:
    """Whether NumPy has the type."""
    return dtype.numpy().kind in "biuf" and dtype.bitwidth >= 8


def _element(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _is_small(kind: TensorKind | None) -> bool:
    if kind is None or not kind.is_static or not is_plain(ir.DataType(kind.element)):
        return False
    most = _LARGEST_FLOATS if ir.DataType(kind.element).is_floating_point() else _LARGEST_MADE
    return math.prod(kind.dims) <= most  # type: ignore[arg-type]


def _zero_like(kind: TensorKind) -> Item:
    dtype = ir.DataType(kind.element)
    return Known(np.zeros((), dtype.numpy())) if is_plain(dtype) else ir.Value(name="like")


def _differs_from_onnxruntime(
    node: ir.Node, arrays: Sequence[Array | None], kinds: Sequence[TensorKind | None]
) -> bool:
    """Whether the reference evaluator may compute something else than onnxruntime, or nothing is specified."""
    given = [array for array in arrays if array is not None]
    integers = all(array.dtype.kind in "iu" for array in given)
    if node.op_type in ("Div", "Mod") and integers:
        return bool(np.any(given[1] <= 0) or np.any(given[0] < 0))
    if node.op_type in ("Mod", "Range", "CumSum") and not integers:
        return True
    if node.op_type in ("Cast", "CastLike") and given[0].dtype.kind == "f" and kinds[0] is not None:
        target = ir.DataType(kinds[0].element).numpy()
        if target.kind in "iu":
            limits = np.iinfo(target)
            whole = given[0].astype(np.float64)
            return not bool(np.all((whole > float(limits.min) - 1) & (whole < float(limits.max))))
    return False
