"""How much ONNX's inference would compute of a model: a small file may ask for a billion nodes or sizes.

Calls of functions multiply. The rank of an Expand is the length of its second input, which may be a Range of a
billion numbers. The numbers of a chain of Concat, and the rank of a chain of Gather, double with each node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from rnn_lowering.facts.node_outputs import MOST_AXES, SHAPES_OF
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, Operator, operator_named
from rnn_lowering.model.protobuf import GraphMessage, bodies_in, graphs_in, mentions, nodes_in
from rnn_lowering.types import Array

MOST_CALLED = 1 << 18
"""Maximum nodes that inference may visit in functions."""

HIDDEN = "rnn_lowering.hidden"
"""The domain of nodes that are too large, which inference does not know; the name of a shape of unknown length."""

_MOST_HELD = 1 << 20
"""Maximum elements of a value with one axis that a Concat makes: inference takes 100 bytes for each."""

_MOST_COUNTED = 1 << 62
"""What counts for a larger size: products of sizes would get a digit more with each node."""

_USUAL = 1 << 10
"""The number of elements that counts for a value of unknown length."""

_SMALL = 64
"""Maximum elements of a constant whose numbers are read."""


def called_nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes in calls of functions, as often as they are called; a call that leads to itself
    counts as one node."""
    functions = {(f.domain, f.name): f for f in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(graph: GraphMessage, inside: int) -> int:
        return sum(called(node) or inside for node in nodes_in(graph))

    def called(node: onnx.NodeProto) -> int:
        key = node.domain, node.op_type
        if key in functions and key not in counts:
            counts[key] = 1
            counts[key] = count(functions[key], 1)
        return counts.get(key, 0)

    return count(model.graph, 0) if functions else 0


def grows(model: onnx.ModelProto) -> bool:
    """Return whether a value may be too large for inference."""
    bounds = _Bounds(model)
    if _may_grow(model):
        bounds.walk(model.graph, {})
    return bool(bounds.large)


def hide_growth(model: onnx.ModelProto) -> bool:
    """Hide, in place, what would be too large; return whether anything is.

    A node that gets a long shape gets one of unknown length. Other nodes, and those of functions, move to another
    domain.
    """
    if not mentions(model, *_MATTER - {"Constant"}):
        return False
    bounds = _Bounds(model)
    if _may_grow(model):
        bounds.walk(model.graph, {})
    inner = {id(node) for function in model.functions for node in nodes_in(function)}
    for key, node in bounds.large.items():
        if node.op_type in SHAPES_OF and key not in inner:
            node.input[SHAPES_OF[node.op_type]] = HIDDEN
        else:
            node.domain = HIDDEN
    if bounds.large:
        model.graph.input.append(onnx.helper.make_tensor_value_info(HIDDEN, onnx.TensorProto.INT64, [None]))
    for holder in (model, *model.functions) if bounds.large else ():
        holder.opset_import.append(onnx.helper.make_opsetid(HIDDEN, 1))
    return bool(bounds.large)


def _may_grow(model: onnx.ModelProto) -> bool:
    """Return whether a model has operators that can make a value too large: most models need no closer look."""
    graphs: list[GraphMessage] = [model.graph, *model.functions]
    nodes = [node for graph in graphs for node in nodes_in(graph) if node.op_type in _MATTER]
    constants = [node for node in nodes if node.op_type == "Constant"]
    if len(constants) == len(nodes):
        return False
    tensors = [tensor for graph in graphs_in(model.graph) for tensor in graph.initializer]
    fixed = {tensor.name for tensor in tensors} | {name for node in constants for name in node.output}
    shapes = [tensor.dims for tensor in (*tensors, *(a.t for node in constants for a in node.attribute))]
    shapes += [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in model.graph.input]
    doubling = _FEW if any(len(dims) == 1 and dims[0] > _LONG for dims in shapes) else 0
    for node in nodes:
        doubling += node.op_type in _DOUBLE
        slot = SHAPES_OF.get(node.op_type)
        if doubling > _FEW or (slot is not None and len(node.input) > slot and node.input[slot] not in fixed):
            return True
    return False


class _Bound(NamedTuple):
    """At most this rank, this number of elements, this number of elements that inference holds one by one (all of a
    value with one axis), and this number among the elements; and the numbers of a small constant."""

    rank: float = 1
    size: float = math.inf
    held: float = -1
    greatest: float = math.inf
    numbers: tuple[float, ...] | None = None

    @property
    def computed(self) -> float:
        if self.held >= 0:
            return self.held
        return 0 if self.rank > 1 else self.size if self.size < math.inf else _USUAL


_UNKNOWN = _Bound()

_Scope = Mapping[str, _Bound]

_DOUBLE, _FEW = ("Concat", "Gather", "GatherND"), 5
"""Operators that double a rank or the numbers that inference computes, and how many of them never do too much."""

_MATTER = frozenset(["Constant", *_DOUBLE, *SHAPES_OF])
"""The operators that decide whether a closer look is needed."""

_LONG = _MOST_HELD >> _FEW
"""A value with one axis and more elements may become too long by fewer of them."""

_DISTINCT = 1 << 12
"""So many bounds are remembered: most nodes of a model are like another one."""

_GROW = frozenset(["ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample"])


class _Bounds:
    """Finds the nodes that would be too large."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._returned: dict[tuple[Any, ...], list[_Bound]] = {}
        self.large: dict[int, onnx.NodeProto] = {}

    def walk(self, graph: onnx.GraphProto, outer: _Scope, given: Iterable[_Bound] = ()) -> list[_Bound]:
        """Return the bounds of what a graph returns.

        Args:
            graph: The graph.
            outer: The values around it.
            given: What its inputs get; nothing for the main graph, and what is not known.
        """
        known = dict(outer) | {value.name: _of_declared(value) for value in graph.input}
        known |= {value.name: bound for value, bound in zip(graph.input, given, strict=False)}
        known |= {tensor.name: _of_tensor(tensor) for tensor in graph.initializer}
        self._walk_nodes(graph.node, known)
        return [known.get(value.name, _UNKNOWN) for value in graph.output]

    def _walk_nodes(self, nodes: Iterable[onnx.NodeProto], known: dict[str, _Bound]) -> None:
        for node in nodes:
            given = [known.get(name, _UNKNOWN) for name in node.input if name]
            operator, attributes = (node.domain, node.op_type), node.attribute
            if operator in self._functions:
                known.update(zip(node.output, self._call(operator, given), strict=False))
            elif attributes and (bodies := list(bodies_in(node))):
                known.update(zip(node.output, self._of_bodies(node, bodies, given, known), strict=False))
            else:
                bound = _of_node(operator, attributes, given) if attributes else _of_operator(operator, 0, *given)
                if bound is None:
                    self.large[id(node)] = node
                for name in node.output:
                    known[name] = bound or _UNKNOWN

    def _of_bodies(
        self, node: onnx.NodeProto, bodies: Iterable[onnx.GraphProto], given: list[_Bound], known: _Scope
    ) -> list[_Bound]:
        of_bodies = [self.walk(body, known, _entering(node, given)) for body in bodies]
        returned = [_largest(each) for each in zip(*of_bodies, strict=False)]
        return [_Bound(b.rank + 1, b.size if node.op_type == "If" else math.inf) for b in returned[_first(node) :]]

    def _call(self, key: tuple[str, str], given: list[_Bound]) -> list[_Bound]:
        function = self._functions[key]
        call = (key, *((b.rank, b.size, b.held, b.greatest, id(b.numbers)) for b in given))
        if call not in self._returned:
            self._returned[call] = [_UNKNOWN] * len(function.output)  # it may call itself
            known = dict(zip(function.input, given, strict=False))
            self._walk_nodes(function.node, known)
            self._returned[call] = [known.get(name, _UNKNOWN) for name in function.output]
        return self._returned[call]


def _first(node: onnx.NodeProto) -> int:
    """Return the first output of a body that its node returns."""
    return int(node.op_type == "Loop")


def _entering(node: onnx.NodeProto, given: list[_Bound]) -> list[_Bound]:
    return [_Bound(0, 1), _Bound(0, 1), *given[2:]] if node.op_type == "Loop" else given


def _largest(bounds: Iterable[_Bound]) -> _Bound:
    each = [(bound.rank, bound.size, bound.held, bound.greatest) for bound in bounds]
    rank, size, held, greatest = map(max, zip(*each, strict=True)) if each else (0.0,) * 4
    return _Bound(rank, size, held, greatest)


def _of_declared(value: onnx.ValueInfoProto) -> _Bound:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return _Bound(1, math.inf)
    sizes = [dim.dim_value for dim in kind.shape.dim]
    return _Bound(len(sizes), math.prod(sizes) if all(sizes) else math.inf)


def _of_tensor(tensor: onnx.TensorProto) -> _Bound:
    size = math.prod(tensor.dims)
    most = 1 if tensor.data_type == onnx.TensorProto.FLOAT else _SMALL  # floats count as bounds of a Range only
    held = size <= most and tensor.data_location == onnx.TensorProto.DEFAULT and tensor.data_type in _READ
    with suppress(Exception):  # damaged tensors raise whatever they raise; an error elsewhere names them
        if held:
            return _of_numbers(numpy_helper.to_array(tensor))
    return _Bound(len(tensor.dims), size)


def _of_numbers(numbers: Array) -> _Bound:
    floats = numbers.astype(np.float64)
    return _Bound(floats.ndim, floats.size, -1, float(np.abs(floats).max(initial=0)), tuple(floats.flat))


_READ = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT)


def _of_node(
    operator: tuple[str, str], attributes: Sequence[onnx.AttributeProto], given: Sequence[_Bound]
) -> _Bound | None:
    """Return a bound of the outputs of a node with attributes that are no bodies; None if they may be too large."""
    if operator[1] == "Constant" and operator[0] in DEFAULT_DOMAIN:
        bound = _of_attribute(attributes[0])
        return None if bound.rank > MOST_AXES else bound
    return _of_operator(operator, sum(len(attribute.ints) for attribute in attributes), *given)


@lru_cache(_DISTINCT)
def _of_operator(operator: tuple[str, str], integers: int, *given: _Bound) -> _Bound | None:
    """Return a bound of the outputs of an operator whose attributes have so many integers; None if they may be too
    large."""
    domain, name = operator
    if domain not in DEFAULT_DOMAIN:
        return _UNKNOWN
    bound = _computed(operator_named(domain, name), name, integers, given)
    if _MOST_COUNTED < bound.size < math.inf:
        bound = bound._replace(size=_MOST_COUNTED)
    return None if bound.rank > MOST_AXES or (name == "Concat" and bound.computed > _MOST_HELD) else bound


def _computed(operator: Operator, name: str, integers: int, given: Sequence[_Bound]) -> _Bound:
    all_of = _largest(given)
    flat = all_of.rank <= 1
    size = all_of.size if flat else math.prod(bound.size for bound in given)
    rank = all_of.rank + (name in ("Unsqueeze", "OneHot"))
    if name in ("Shape", "Size"):
        return _Bound(1, all_of.rank, -1, all_of.size)
    if name in SHAPES_OF:
        rank = given[SHAPES_OF[name]].size if len(given) > SHAPES_OF[name] else 1
        size = given[0].size if name == "Reshape" and given else _grown(name, given)
        return _Bound(rank, size)
    if name in _GROW:
        size = _grown(name, given)
    elif name == "Concat":
        size = sum(bound.size for bound in given)
    elif name in ("Gather", "GatherND"):
        rank, size = sum(bound.rank for bound in given), math.prod(bound.size for bound in given)
        size = given[-1].size if flat else size
    elif name == "Unsqueeze":
        rank = all_of.rank + (given[1].size if len(given) > 1 else integers)
    elif not (operator.elementwise or operator.moves or operator.same_shape or name.startswith("Reduce")):
        size = math.inf
    if name == "Concat":
        return _Bound(rank, size, sum(bound.computed for bound in given))
    return _Bound(rank, size)


def _of_attribute(attribute: onnx.AttributeProto) -> _Bound:
    if attribute.HasField("t"):
        return _of_tensor(attribute.t)
    numbers = np.array([*attribute.ints, *attribute.floats])
    return _of_numbers(numbers if numbers.size else np.array(attribute.i or attribute.f))


def _grown(operator: str, given: Sequence[_Bound]) -> float:
    """Return the number of elements of an operator that follows from numbers, as far as they are constants."""
    numbers = [bound.numbers for bound in given]
    if operator == "Range" and all(n is not None and len(n) == 1 for n in numbers):
        start, limit, delta = (n[0] for n in numbers if n is not None)
        return max(0.0, (limit - start) / delta) if delta else math.inf
    if operator == "ConstantOfShape" and numbers:
        return math.inf if given[0].size > _SMALL else math.prod([max(given[0].greatest, 1.0)] * int(given[0].size))
    if operator in ("Expand", "Tile") and len(numbers) > 1 and numbers[1] is not None:
        return given[0].size * math.prod(max(abs(n), 1.0) for n in numbers[1])
    return math.inf
