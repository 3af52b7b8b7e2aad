"""The types, shapes and numbers of the values of a model and of one step of a Loop.

`facts/` computes them, node by node, and `Facts` remembers them. Sizes may be 0 (`any_size`). Numbers are
computed in their own type: a float32 counter is rounded in each step. Declared shapes of a body are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import Known, KnownValues
from rnn_lowering.facts.node_outputs import NodeModel, element_of, numbers_in
from rnn_lowering.facts.numbers import UnfollowedError, can_evaluate, evaluate
from rnn_lowering.facts.operators import bodies_of, in_order, inputs_of, is_of_default_domain, operator_of
from rnn_lowering.facts.size import PartialShape, Size, Symbol, size
from rnn_lowering.model.model_sizes import VARIES, inferred_values
from rnn_lowering.model.onnx_checks import ANONYMOUS
from rnn_lowering.types import Array

_LARGEST_READ, _LARGEST_MADE, _LARGEST_FLOATS = 1 << 16, 1 << 14, 64
"""Maximum elements of a tensor that is read, of one that is computed, and of floats that are computed."""


def common_kind(kinds: Sequence[Known | None]) -> Known | None:
    """Return the kind that all these have in common."""
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds) or len({kind.dtype for kind in known}) != 1:
        return None
    shapes = [kind.shape for kind in known if kind.shape is not None]
    if len(shapes) < len(kinds) or len({len(shape) for shape in shapes}) != 1:
        return Known(known[0].dtype)
    sizes = (dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes, strict=True))
    return Known(known[0].dtype, tuple(sizes))


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """A tensor that is known, and the value of the graph that holds it, if there is one."""

    array: Array
    value: ir.Value | None = None

    def key(self) -> Hashable:
        if self.value is not None:
            return self.value
        return self.array.dtype.str, self.array.shape, self.array.tobytes()

    def kind(self) -> Known:
        return Known.at(ir.DataType(element_of(self.array)), self.array.shape)


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
        opsets = {**{d: v for d, v in model.opset_imports.items() if d != "ai.onnx"}, "": opset}
        self._values = KnownValues(opsets, any_size=True)
        self._exact: set[ir.Value] = set()
        self._followed: set[ir.Value] = set()
        self._tensors: dict[ir.Value, KnownTensor | None] = {}
        self._elements: dict[ir.Value, Elements] = {}
        self._inferred: dict[Hashable, list[Known | None]] = {}
        self._shapes: dict[Hashable, list[Array] | None] = {}
        self._node_models: dict[ir.Node, NodeModel] = {}
        self._anonymous: set[Size] = set()
        self._places: dict[Symbol, tuple[ir.Value, int]] = {}
        self._symbols: dict[Size | ir.Value, Size] = {}
        self._numbers = count()
        self._main = model.graph
        with _distinct_names(model):
            for value in (*model.graph.inputs, *model.graph.initializers.values()):
                self._add_inferred(value, value)
            inferred = inferred_values(model)
            self._computed = {*inferred}
            for value, found in inferred.items():
                self._add_inferred(value, found)
        for value in model.graph.inputs:
            for axis, dim in enumerate(self._values.shapes.get(value, ())):
                for symbol in dim.symbols:
                    self._places.setdefault(symbol, (value, axis))

    def _add_inferred(self, value: ir.Value, found: ir.Value) -> None:
        """Add the type and shape of a value that are inferred; the declared ones of another domain's operator."""
        tensor = None if value.is_graph_input() else value.const_value
        if tensor is not None:
            self._values.declare(value, Known.at(tensor.dtype, tensor.shape.numpy()))
            return
        node = value.producer()
        if found.shape is None and node is not None and not is_of_default_domain(node) and not bodies_of(node):
            dims = [_distinct_name(dim, None) for dim in value.shape or ()]
            found = value if value.shape is None else ir.Value(type=value.type, shape=ir.Shape(dims))
        if isinstance(found.type, ir.TensorType):
            shape = None if found.shape is None else tuple(map(self._size, found.shape))
            self._values.declare(value, Known(found.type.dtype, shape))

    def _size(self, dim: int | ir.SymbolicDim) -> Size | None:
        """Return a dimension; equal names give equal sizes."""
        if isinstance(dim, int):
            return size(dim) if dim >= 0 else None
        if dim.value is None or dim.value == VARIES:
            return None
        unknown = self._values.unknown(dim.value)
        if dim.value.startswith(ANONYMOUS):
            self._anonymous.add(unknown)
        return unknown

    # Types and shapes

    def kind(self, item: Item) -> Known | None:
        """Return the type and shape of a tensor; None if unknown, or if it is no tensor."""
        if isinstance(item, KnownTensor):
            return item.kind()
        if not isinstance(item, ir.Value):
            return None
        if item not in self._exact:
            self._exact.add(item)
            if self._has_vague_sizes(item):
                self.known_tensor(item)
                self._follow(item)
        return self._values.of(item)

    def _is_vague(self, dim: Size) -> bool:
        """Whether nothing is known of a size but its name, which ONNX's inference made."""
        return dim in self._anonymous or not self._values.is_named(dim)

    def _has_vague_sizes(self, value: ir.Value) -> bool:
        """Whether ONNX's inference does not know a size of a value, or its rank."""
        shape = self._values.shapes.get(value)
        return value in self._computed if shape is None else any(map(self._is_vague, shape))

    def _follow(self, value: ir.Value) -> None:
        """Follow the sizes of a value from node to node, where ONNX's inference does not know them."""
        if value in self._followed or not self._has_vague_sizes(value):
            return
        learned = set[ir.Value]()
        for current in in_order(value, self._open_inputs, learned):
            learned.add(current)
            self._learn(current, current.producer())

    def _open_inputs(self, value: ir.Value) -> list[ir.Value]:
        """Return the inputs of a value's node that must be followed before it; none at the second call."""
        if value in self._followed:
            return []
        self._followed.add(value)
        return list(filter(self._is_open, inputs_of(value)))

    def _is_open(self, value: ir.Value) -> bool:
        """Whether a value was not followed yet, and its sizes are vague or its numbers may be sizes."""
        if value in self._followed or value.producer() is None:
            return False
        return self._has_vague_sizes(value) or (value not in self._tensors and _is_small(self._values.of(value)))

    def _learn(self, value: ir.Value, node: ir.Node | None) -> None:
        """Infer the sizes of a value whose node has inputs that were followed, and its numbers if it is small."""
        if node is not None and self._has_vague_sizes(value):
            self._infer_vague_sizes(node)
        if _is_small(self._values.of(value)):
            self.known_tensor(value)

    def _infer_vague_sizes(self, node: ir.Node) -> None:
        """Infer the sizes of a node's outputs that nothing is known of."""
        shapes = self._values.shapes
        before = {value: shapes[value] for value in node.outputs if value in shapes}
        _infer(self._values, node)
        for value, dims in before.items():
            if len(dims) == len(shapes[value]):
                pairs = zip(dims, shapes[value], strict=True)
                shapes[value] = tuple(b if self._is_vague(a) and self._values.is_named(b) else a for a, b in pairs)

    def shape(self, item: Item) -> PartialShape | None:
        """Return the shape of a tensor; None if its rank is unknown."""
        kind = self.kind(item)
        return None if kind is None else kind.shape

    def places(self, dim: Size) -> list[tuple[int, list[tuple[ir.Value, int]]]] | None:
        """Return a size as a sum of products: each a factor, and inputs of the model with the axes that have the
        other factors. None if no inputs have them."""
        if not dim.terms or not dim.symbols <= self._places.keys() or not dim.is_integral:
            return None
        return [(int(factor), [self._places[symbol] for symbol in monomial]) for monomial, factor in dim.terms]

    def with_names(self, item: Item) -> Known | None:
        """Return the type and shape of a tensor, in which a size that is not known is one of its own; in the main
        graph its axis can be read. None as for `kind`."""
        kind = self.kind(item)
        if not isinstance(item, ir.Value) or kind is None or kind.shape is None:
            return kind
        named = [self._values.unknown(f"a size {next(self._numbers)}") if s is None else s for s in kind.shape]
        for axis, dim in enumerate(named if item.graph is self._main else ()):
            for symbol in dim.symbols:
                if dim == Size.symbol(symbol):
                    self._places.setdefault(symbol, (item, axis))
        return Known(kind.dtype, tuple(named))

    def declare(self, value: ir.Value, kind: Known | None) -> None:
        """Record and declare the type and shape of a value that is emitted."""
        if kind is None:
            return
        self._values.declare(value, kind)
        value.type = ir.TensorType(kind.dtype)
        if kind.shape is not None:
            value.shape = ir.Shape(kind.dims)

    def infer(self, node: ir.Node, items: Sequence[Item]) -> list[Known | None]:
        """Return the types and shapes of what a node computes from these items."""
        sizes = _sizes_in(node, items)
        kinds = tuple(map(self.kind, items))
        key = _operation(node), kinds, tuple((n, item.key()) for n, item in sizes.items())
        if key not in self._inferred:
            values = self._inputs(node, items)
            for n, item in sizes.items():
                if (value := node.inputs[n]) is not None:
                    values.contents[value] = item.array
            _infer(values, node)
            self._inferred[key] = [values.of(output) for output in node.outputs]
        return self._inferred[key]

    def _inputs(self, node: ir.Node, items: Sequence[Item]) -> KnownValues:
        """Return the types and shapes of a node's inputs."""
        values = self._values.without_values()
        for value, item in zip(node.inputs, items, strict=True):
            kind = self.kind(item)
            if value is not None and kind is not None:
                values.declare(value, kind)
        return values

    def without_values(self) -> KnownValues:
        """Return an empty `KnownValues` for the values of a step; it shares the symbols of this one."""
        return self._values.without_values()

    def read_by(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs whose numbers decide the numbers of the outputs; none if they are not followed."""
        return [value for value in node.inputs if value is not None] if _is_followed(node) else []

    def follow(self, values: KnownValues, node: ir.Node) -> None:
        """Add the types, shapes and small numbers of what a node of a step computes."""
        _infer(values, node)
        for value in node.outputs:
            if value not in values.types and (kind := self.kind(value)) is not None:
                values.declare(value, kind)
        if _is_followed(node) and all(_is_small(values.of(value)) for value in node.outputs if value.name):
            with suppress(UnfollowedError):
                evaluate(values, node)
            for value in node.outputs:
                array = values.contents.pop(value, None)
                if array is not None and not _has_fractions(array):
                    values.contents[value] = np.broadcast_to(array, values.static_shape(value) or ())

    # Sizes and numbers outside of the bodies

    def size_of_axis(self, value: ir.Value, axis: int) -> Size | None:
        """Return the size of an axis, as a polynomial of other sizes; None if the rank is unknown."""
        self._follow(value)
        shape = self._values.shapes.get(value)
        return None if shape is None else shape[axis]

    def size_in(self, value: ir.Value) -> Size | None:
        """Return the size that a value of one element holds: an unknown one that an axis has."""
        self.known_tensor(value)
        numbers = self._values.numbers(value) or []
        held = numbers[0] if len(numbers) == 1 and numbers[0].constant is None else None
        return held if held is not None and any(held in shape for shape in self._values.shapes.values()) else None

    def symbol_of(self, key: Size | ir.Value) -> Size:
        """Return a symbol for a size, whatever polynomial it is, or for the number that a value holds."""
        if key not in self._symbols:
            self._symbols[key] = self._values.unknown(negative=True)
        return self._symbols[key]

    def is_size(self, symbol: Size) -> bool:
        """Whether a number is the symbol of a size, and nothing else."""
        return any(symbol == each for key, each in self._symbols.items() if isinstance(key, Size))

    def elements(self, value: ir.Value) -> Elements | None:
        """Return the elements of a sequence that is computed outside of bodies, as far as they were found."""
        return self._elements.get(value)

    def record_elements(self, value: ir.Value, items: Sequence[Item]) -> None:
        self._elements[value] = Elements(tuple(items), value)

    def known_tensor(self, value: ir.Value) -> KnownTensor | None:
        """Return the tensor of a value outside of bodies, if it is small and follows from constants and sizes."""
        for current in in_order(value, self._needed, self._tensors):
            node = current.producer()
            self._tensors[current] = None
            if node is None or node.op_type == "Constant":
                self._read(current)
            else:
                self._compute(node)
        return self._tensors[value]

    def _needed(self, value: ir.Value) -> list[ir.Value]:
        """Return the inputs whose numbers a node needs; Shape and Size need those without an inferred shape."""
        node = value.producer()
        if node is None or not operator_of(node).exact:
            return []
        of_shape = node.op_type in ("Shape", "Size")
        return [v for v in inputs_of(value) if not of_shape or self._values.static_shape(v) is None]

    def _read(self, value: ir.Value) -> None:
        """Add the tensor of an initializer or a Constant."""
        array = self._constant(value)
        if array is not None:
            self._tensors[value] = tensor = KnownTensor(array, value)
            self._values.declare(value, tensor.kind())
            self._values.contents[value] = array

    def _constant(self, value: ir.Value) -> Array | None:
        """Return the array of an initializer or a Constant."""
        tensor = constant_of(value, self.opset)
        small = tensor is not None and tensor.size <= _LARGEST_READ and is_plain(tensor.dtype)
        return numbers_in(tensor) if small and tensor is not None else None

    def _compute(self, node: ir.Node) -> None:
        """Add what a node outside of the bodies computes from constants and sizes."""
        values = self._values
        if not _is_followed(node):
            return
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                self._follow(value)
        if not can_evaluate(values, node):
            return
        outputs = [value for value in node.outputs if value.name]
        if any(values.static_type(value) is None for value in outputs):
            self._infer_vague_sizes(node)
        if all(_is_small(values.of(value)) for value in outputs):
            evaluate(values, node)
            arrays = ((v, values.constant(v)) for v in node.outputs)
            self._tensors |= {v: KnownTensor(np.array(array), v) for v, array in arrays if array is not None}

    def evaluate(self, node: ir.Node, items: Sequence[Item]) -> list[Array] | None:
        """Return what a node computes from these items, if it is small and they are known."""
        if not _is_followed(node):
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
        expected = [None if k is None else (int(k.dtype), k.dims) for k in kinds]
        return self._node_models[node].compute(arrays, expected)

    def _shape(self, node: ir.Node, items: Sequence[Item]) -> list[Array] | None:
        """Return what a Shape or Size returns, if known."""
        key = node, self.kind(items[0])
        if key not in self._shapes:
            values = self._inputs(node, items)
            _infer(values, node)
            evaluate(values, node)
            numbers = values.constant(node.outputs[0])
            self._shapes[key] = None if numbers is None else [np.array(numbers)]
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


def _distinct_name(dim: int | ir.SymbolicDim, otherwise: str | None) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return otherwise if dim.value is None else f"size {dim.value}"


def _is_followed(node: ir.Node) -> bool:
    """Whether a node computes known numbers if its inputs are known."""
    return operator_of(node).exact and is_of_default_domain(node)


def _has_fractions(array: Array) -> bool:
    """Whether an element is a polynomial that may be a fraction: a runtime rounds it in each operator."""
    return array.dtype == object and not all(size(number).is_integral for number in array.reshape(-1))


def _operation(node: ir.Node) -> Hashable:
    """Return what two nodes have in common that compute the same of the same inputs."""
    if node.attributes:
        return node
    connected = (tuple(v is not None for v in node.inputs), tuple(bool(v.name) for v in node.outputs))
    return node.domain, node.op_type, *connected


def _infer(values: KnownValues, node: ir.Node) -> None:
    """Add the types and shapes of a node's outputs, as far as they follow from its inputs."""
    if bodies_of(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return
    with suppress(Exception):  # inference has no common error: nothing is known
        infer(values, node)


def _sizes_in(node: ir.Node, items: Sequence[Item]) -> dict[int, KnownTensor]:
    """Return, by their place, the known inputs whose numbers decide the shape of the result."""
    data = operator_of(node).data
    first = len(items) if data is None else data
    return {n: item for n, item in enumerate(items) if n >= first and isinstance(item, KnownTensor)}


def is_plain(dtype: ir.DataType) -> bool:
    """Whether NumPy has the type."""
    return dtype.numpy().kind in "biuf" and dtype.bitwidth >= 8


def _is_small(kind: Known | None) -> bool:
    if kind is None or not kind.is_static or not is_plain(kind.dtype):
        return False
    most = _LARGEST_FLOATS if kind.dtype.is_floating_point() else _LARGEST_MADE
    return math.prod(kind.dims) <= most  # type: ignore[arg-type]


def _zero_like(kind: Known) -> Item:
    dtype = kind.dtype
    return KnownTensor(np.zeros((), dtype.numpy())) if is_plain(dtype) else ir.Value(name="like")
