"""The types, shapes and numbers of the values of a model and of one step of a Loop.

`facts/` computes them, node by node, and `Facts` remembers them. Sizes may be 0 (`any_size`). Numbers are
computed in their own type: a float32 counter is rounded in each step. Declared shapes of a body are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.bodies import bodies_of
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import SymbolicValues
from rnn_lowering.facts.node_outputs import NodeModel, numbers_in
from rnn_lowering.facts.numbers import can_evaluate, compute_exactly, element_of, evaluate
from rnn_lowering.facts.operators import RANDOM, is_of_default_domain
from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.facts.size import Size, size
from rnn_lowering.model.model_sizes import VARIES, inferred_values
from rnn_lowering.model.onnx_checks import ANONYMOUS
from rnn_lowering.types import Array

_LARGEST_READ, _LARGEST_MADE, _LARGEST_FLOATS = 1 << 16, 1 << 14, 64
"""Maximum elements of a tensor that is read, of one that is computed, and of floats that are computed."""

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
"""By operator, the first input whose numbers decide the shape of the result."""

SizeOrName = int | str | None
"""A size, the name of an unknown one, or None."""


@dataclass(frozen=True)
class TensorKind:
    """An element type, as a number of `onnx.TensorProto`, and a shape; None for an unknown rank."""

    element: int
    shape: tuple[SizeOrName, ...] | None

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType(self.element)

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def dims(self) -> tuple[int | None, ...]:
        """The sizes that are known, of a known rank."""
        return tuple(size if isinstance(size, int) else None for size in self.shape or ())

    @classmethod
    def of(cls, values: SymbolicValues, value: ir.Value) -> TensorKind | None:
        """Return what is known of a value."""
        if value not in values.types:
            return None
        shape = values.shapes.get(value)
        return cls(int(values.types[value]), None if shape is None else tuple(map(values.number_or_name, shape)))

    def add_to(self, values: SymbolicValues, value: ir.Value) -> None:
        """Record it as the type and shape of a value."""
        values.types[value] = ir.DataType(self.element)
        if self.shape is not None:
            dims = (size(dim) if isinstance(dim, int) else values.unknown(dim or "") for dim in self.shape)
            values.shapes[value] = tuple(dims)


def common_kind(kinds: Sequence[TensorKind | None]) -> TensorKind | None:
    """Return the kind that all these have in common."""
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds) or len({kind.element for kind in known}) != 1:
        return None
    shapes = [kind.shape for kind in known if kind.shape is not None]
    if len(shapes) < len(kinds) or len({len(shape) for shape in shapes}) != 1:
        return TensorKind(known[0].element, None)
    sizes = (dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes, strict=True))
    return TensorKind(known[0].element, tuple(sizes))


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """A tensor that is known, and the value of the graph that holds it, if there is one."""

    array: Array
    value: ir.Value | None = None

    def key(self) -> Hashable:
        if self.value is not None:
            return self.value
        return self.array.dtype.str, self.array.shape, self.array.tobytes()

    def kind(self) -> TensorKind:
        return TensorKind(element_of(self.array), self.array.shape)


TRUE = KnownTensor(np.asarray(True))


@dataclass(frozen=True, eq=False)
class Elements:
    """A sequence whose elements are known, and the value of the graph that holds it, if there is one."""

    items: tuple[Item, ...]
    value: ir.Value | None = None


Item = ir.Value | KnownTensor | Elements | None
"""A value of a body in one step: a value of the graph, a constant, a sequence, or nothing."""


def number_of(item: Item) -> int | float | None:
    """Return the number of a known tensor of one element; None for any other item."""
    return item.array.item() if isinstance(item, KnownTensor) and item.array.size == 1 else None


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
        self._exact: set[ir.Value] = set()
        self._known: dict[ir.Value, KnownTensor | None] = {}
        self._outside = SymbolicValues(self._opsets, any_size=True)
        self._elements: dict[ir.Value, Elements] = {}
        self._inferred: dict[Hashable, list[TensorKind | None]] = {}
        self._shapes: dict[Hashable, list[Array] | None] = {}
        self._node_models: dict[ir.Node, NodeModel] = {}
        self._places: dict[str, tuple[ir.Value, int]] = {}
        with _distinct_names(model):
            for value in (*model.graph.inputs, *model.graph.initializers.values()):
                self._add_inferred(value, value)
            for value, found in inferred_values(model).items():
                self._add_inferred(value, found)
        for value in model.graph.inputs:
            kind = self._kinds.get(value)
            for axis, dim in enumerate((kind and kind.shape) or ()):
                if isinstance(dim, str):
                    self._places.setdefault(dim, (value, axis))

    def _add_inferred(self, value: ir.Value, found: ir.Value) -> None:
        if value.const_value is not None and not value.is_graph_input():
            tensor = value.const_value
            self._kinds[value] = TensorKind(int(tensor.dtype), tuple(int(d) for d in tensor.shape.numpy()))
        elif isinstance(found.type, ir.TensorType):
            shape = None if found.shape is None else tuple(map(_size, found.shape))
            self._kinds[value] = TensorKind(int(found.type.dtype), shape)

    # Types and shapes

    def kind(self, item: Item) -> TensorKind | None:
        """Return the type and shape of a tensor; None if unknown, or if it is no tensor."""
        if isinstance(item, KnownTensor):
            return item.kind()
        if isinstance(item, ir.Value) and item not in self._exact:
            self._add_exact_sizes(item)
        return self._kinds.get(item) if isinstance(item, ir.Value) else None

    def _add_exact_sizes(self, value: ir.Value) -> None:
        """Follow the sizes of a value from node to node, where ONNX's inference does not know them."""
        self._exact.add(value)
        kind = self._kinds.get(value)
        if kind is None or kind.shape is None or not any(map(_is_vague, kind.shape)):
            return
        self.known_tensor(value)
        self._record(value)
        exact = TensorKind.of(self._outside, value)
        if exact is not None and exact.shape is not None and len(exact.shape) == len(kind.shape):
            sizes = (
                b if _is_vague(a) and b is not None else a for a, b in zip(kind.shape, exact.shape, strict=True)
            )
            self._kinds[value] = TensorKind(kind.element, tuple(sizes))

    def shape(self, item: Item) -> tuple[SizeOrName, ...] | None:
        """Return the shape of a tensor; None if its rank is unknown."""
        kind = self.kind(item)
        return None if kind is None else kind.shape

    def places(self, size: str) -> list[tuple[int, list[tuple[ir.Value, int]]]] | None:
        """Return a size, by its name, as a sum of products: each a factor, and inputs of the model with the axes
        that have the other factors. None if no inputs have them."""
        terms = self._outside.named_terms(self._outside.unknown(size)) or []
        found = [
            (int(factor), [self._places[key] for key in keys if key in self._places]) for factor, keys in terms
        ]
        complete = all(
            factor.denominator == 1 and len(places) == len(keys)
            for (factor, keys), (_, places) in zip(terms, found, strict=True)
        )
        return found if found and complete else None

    def declare(self, value: ir.Value, kind: TensorKind | None) -> None:
        """Record and declare the type and shape of a value that is emitted."""
        if kind is None:
            return
        self._kinds[value] = kind
        value.type = ir.TensorType(kind.dtype)
        if kind.shape is not None:
            value.shape = ir.Shape(kind.dims)

    def infer(self, node: ir.Node, items: Sequence[Item]) -> list[TensorKind | None]:
        """Return the types and shapes of what a node computes from these items."""
        sizes = _sizes_in(node, items)
        kinds = tuple(map(self.kind, items))
        key = _operation(node), kinds, tuple((n, item.key()) for n, item in sizes.items())
        if key not in self._inferred:
            values = self._values(node, items)
            for n, item in sizes.items():
                if (value := node.inputs[n]) is not None:
                    values.contents[value] = item.array
            self._inferred[key] = _inferred_kinds(values, node)
        return self._inferred[key]

    def _values(self, node: ir.Node, items: Sequence[Item]) -> SymbolicValues:
        """Return the types and shapes of a node's inputs."""
        values = self._outside.without_values()
        for value, item in zip(node.inputs, items, strict=True):
            kind = self.kind(item)
            if value is not None and kind is not None:
                kind.add_to(values, value)
        return values

    # Sizes and numbers outside of the bodies

    def size_of_axis(self, value: ir.Value, axis: int) -> Size | None:
        """Return the size of an axis, as a polynomial of other sizes; None if the rank is unknown."""
        self._record(value)
        shape = self._outside.shapes.get(value)
        return None if shape is None else shape[axis]

    def size_in(self, value: ir.Value) -> Size | None:
        """Return the size that a value of one element holds: an unknown one that an axis has."""
        self.known_tensor(value)
        numbers = self._outside.numbers(value)
        sizes = {dim for shape in self._outside.shapes.values() for dim in shape if dim.constant is None}
        return numbers[0] if numbers is not None and len(numbers) == 1 and numbers[0] in sizes else None

    def _record(self, value: ir.Value) -> None:
        """Record the type and shape of a value; sizes without a name are followed from node to node."""
        values, nodes = self._outside, list[ir.Node]()
        kind = self._record_kind(value)
        while kind is not None and any(map(_is_vague, kind.shape or ())):
            node = value.producer()
            if node is None or not node.inputs or node.inputs[0] is None:
                break
            nodes.append(node)
            value = node.inputs[0]
            kind = self._record_kind(value)
        for node in reversed(nodes):
            for other in node.inputs[1:]:
                self._record_kind(other)
            _inferred_kinds(values, node)

    def _record_kind(self, value: ir.Value | None) -> TensorKind | None:
        """Record the type and shape of a value; return them if they are new."""
        kind = None if value is None or value in self._outside.types else self._kinds.get(value)
        if value is not None and kind is not None:
            kind.add_to(self._outside, value)
        return kind

    def elements(self, value: ir.Value) -> Elements | None:
        """Return the elements of a sequence that is computed outside of bodies, as far as they were found."""
        return self._elements.get(value)

    def record_elements(self, value: ir.Value, items: Sequence[Item]) -> None:
        self._elements[value] = Elements(tuple(items), value)

    def known_tensor(self, value: ir.Value) -> KnownTensor | None:
        """Return the tensor of a value outside of bodies, if it is small and follows from constants and sizes."""
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
            self._known[current] = None
            if node is None or node.op_type == "Constant":
                self._read(current)
            else:
                self._compute(node)
            pending.pop()
        return self._known[value]

    def _needed(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs whose numbers a node needs; Shape and Size need those without an inferred shape."""
        if node.op_type not in _EVALUATED:
            return []
        given = [v for v in node.inputs if v is not None]
        return given if node.op_type not in ("Shape", "Size") else [v for v in given if not self._is_static(v)]

    def _is_static(self, value: ir.Value) -> bool:
        kind = self._kinds.get(value)
        return kind is not None and kind.is_static

    def _read(self, value: ir.Value) -> None:
        """Add the tensor of an initializer or a Constant."""
        array = self._constant(value)
        if array is not None:
            self._known[value] = found = KnownTensor(array, value)
            found.kind().add_to(self._outside, value)
            self._outside.contents[value] = array

    def _constant(self, value: ir.Value) -> Array | None:
        """Return the array of an initializer or a Constant."""
        fixed = value.producer() is None and not value.is_graph_input()
        tensor = value.const_value if fixed else constant_of(value, self.opset)
        small = tensor is not None and tensor.size <= _LARGEST_READ and is_plain(tensor.dtype)
        return numbers_in(tensor) if small and tensor is not None else None

    def _compute(self, node: ir.Node) -> None:
        """Add what a node outside of the bodies computes from constants and sizes."""
        values = self._outside
        if node.op_type not in _EVALUATED or not is_of_default_domain(node):
            return
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                self._record(value)
        if not can_evaluate(values, node):
            return
        if any(values.static_type(v) is None for v in node.outputs if v.name):
            _inferred_kinds(values, node)
        if all(_is_small(TensorKind.of(values, v)) for v in node.outputs if v.name):
            evaluate(values, node)
            found = ((v, values.constant(v)) for v in node.outputs)
            self._known |= {v: KnownTensor(np.array(array), v) for v, array in found if array is not None}

    def evaluate(self, node: ir.Node, items: Sequence[Item]) -> list[Array] | None:
        """Return what a node computes from these items, if it is small and they are known."""
        if node.op_type not in _EVALUATED or not is_of_default_domain(node):
            return None
        if node.op_type in ("Shape", "Size"):
            return self._shape(node, items)
        if node.op_type == "Constant":
            array = self._constant(node.outputs[0])
            return None if array is None else [array]
        if node.op_type == "CastLike" and len(items) > 1:
            like = self.kind(items[1])
            items = [items[0], None if like is None else _zero_like(like)]
        arrays = [item.array if isinstance(item, KnownTensor) else None for item in items]
        if not any(a is not None for a in arrays) or any(
            a is None and item is not None for a, item in zip(arrays, items, strict=True)
        ):
            return None
        kinds = self.infer(node, items)
        if not all(_is_small(kind) for kind, value in zip(kinds, node.outputs, strict=True) if value.name):
            return None
        if node not in self._node_models:
            self._node_models[node] = NodeModel.of(node, self.opset)
        return compute_exactly(
            self._node_models[node], arrays, [None if k is None else (k.element, k.dims) for k in kinds]
        )

    def _shape(self, node: ir.Node, items: Sequence[Item]) -> list[Array] | None:
        """Return what a Shape or Size returns, if known."""
        key = node, self.kind(items[0])
        if key not in self._shapes:
            values = self._values(node, items)
            _inferred_kinds(values, node)
            evaluate(values, node)
            found = values.constant(node.outputs[0])
            self._shapes[key] = None if found is None else [np.array(found)]
        return self._shapes[key]


@contextmanager
def _distinct_names(model: ir.Model) -> Iterator[None]:
    """In the block, give each size of an input a name that ONNX's inference does not make: tf2onnx writes such."""
    shapes = [(value, value.shape) for value in model.graph.inputs]
    for value, shape in shapes:
        if shape is not None:
            value.shape = ir.Shape([_distinct_name(d, f"axis {n} of {value.name}") for n, d in enumerate(shape)])
    yield
    for value, shape in shapes:
        value.shape = shape


def _distinct_name(dim: int | ir.SymbolicDim, otherwise: str) -> int | str:
    if isinstance(dim, int):
        return dim
    return otherwise if dim.value is None else f"size {dim.value}"


def _is_vague(size: SizeOrName) -> bool:
    """Whether nothing is known of a size but its name, which ONNX's inference made."""
    return size is None or (isinstance(size, str) and size.startswith(ANONYMOUS))


def _size(dim: int | ir.SymbolicDim) -> SizeOrName:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim.value == VARIES else dim.value


def _operation(node: ir.Node) -> Hashable:
    """Return what two nodes have in common that compute the same of the same inputs."""
    if node.attributes:
        return node
    connected = (tuple(v is not None for v in node.inputs), tuple(bool(v.name) for v in node.outputs))
    return node.domain, node.op_type, *connected


def _inferred_kinds(values: SymbolicValues, node: ir.Node) -> list[TensorKind | None]:
    unknown: list[TensorKind | None] = [None] * len(node.outputs)
    if bodies_of(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return unknown
    try:
        infer(values, node)
    except Exception:  # inference has no common error: nothing is known
        return unknown
    return [TensorKind.of(values, output) for output in node.outputs]


def _sizes_in(node: ir.Node, items: Sequence[Item]) -> dict[int, KnownTensor]:
    """Return, by their place, the known inputs whose numbers decide the shape of the result."""
    first = _FIRST_OF_SIZES.get(node.op_type, len(items))
    return {n: item for n, item in enumerate(items) if n >= first and isinstance(item, KnownTensor)}


def known_bounds(items: Sequence[Item]) -> list[tuple[int, int, int, int]] | None:
    """Return the axis, start, end and step of each axis that a Slice names; None if unknown.

    Args:
        items: Its starts, ends, axes and steps.
    """
    if len(items) < 2 or not all(item is None or isinstance(item, KnownTensor) for item in items):
        return None
    given = [
        item.array.ravel().tolist() if isinstance(item, KnownTensor) else [] for item in (*items, None, None)[:4]
    ]
    starts, ends = given[:2]
    axes, steps = given[2] or list(range(len(starts))), given[3] or [1] * len(starts)
    same = len(starts) == len(ends) == len(axes) == len(steps)
    return list(zip(axes, starts, ends, steps, strict=True)) if same else None


def takes_all(start: int, end: int, step: int) -> bool:
    """Whether a Slice takes all of an axis, whatever its size is."""
    return (start, step) == (0, 1) and end >= TO_THE_END


def is_plain(dtype: ir.DataType) -> bool:
    """Whether NumPy has the type."""
    return dtype.numpy().kind in "biuf" and dtype.bitwidth >= 8


def _is_small(kind: TensorKind | None) -> bool:
    if kind is None or not kind.is_static or not is_plain(kind.dtype):
        return False
    return math.prod(kind.dims) <= _most(kind.dtype)  # type: ignore[arg-type]


def _most(dtype: ir.DataType) -> int:
    return _LARGEST_FLOATS if dtype.is_floating_point() else _LARGEST_MADE


def _zero_like(kind: TensorKind) -> Item:
    dtype = kind.dtype
    return KnownTensor(np.zeros((), dtype.numpy())) if is_plain(dtype) else ir.Value(name="like")
