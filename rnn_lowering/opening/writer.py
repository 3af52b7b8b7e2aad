"""Writes what follows from sizes as nodes: a size is read by Shape, where the value is that has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Shape, Size, Symbol, size
from rnn_lowering.opening.evidence import Evidence, Number
from rnn_lowering.types import Array

_INT64, _DOUBLE, _FLOAT = ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.FLOAT

_OF_POWER = {Fraction(1): (), Fraction(-1): ("Reciprocal",), Fraction(1, 2): ("Sqrt",)}
_OF_POWER[Fraction(-1, 2)] = ("Sqrt", "Reciprocal")


@dataclass
class Writer:
    """Writes nodes before a node.

    Attributes:
        names: Gives names to new nodes.
        known: Gets the type, the shape and the numbers of what is written.
        evidence: Has the values whose sizes the symbols are.
        place: The node before which nodes are written.
    """

    names: Names
    known: KnownValues
    evidence: Evidence
    place: ir.Node = field(init=False)
    _sizes: dict[Symbol, ir.Value] = field(default_factory=dict)

    def add(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Write a node with one output."""
        node = self._node(op_type, inputs, attributes)
        assert self.place.graph is not None
        self.place.graph.insert_before(self.place, node)
        return node.outputs[0]

    def _node(self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, Any]) -> ir.Node:
        name = self.names.unique(f"open/{op_type}")
        return ir.node(op_type, inputs, attributes, name=name, outputs=[ir.Value(name=self.names.unique(name))])

    def told(self, value: ir.Value, dtype: ir.DataType, shape: Shape, numbers: Array | None = None) -> ir.Value:
        """Let the type, the shape and the numbers of a written value be known; return it."""
        value.type = ir.TensorType(dtype)
        self.known.types[value], self.known.shapes[value] = dtype, shape
        if numbers is not None:
            self.known.contents[value] = numbers
        return value

    def constant(self, array: Array) -> ir.Value:
        value = self.add("Constant", value=ir.tensor(array))
        return self.told(value, ir.DataType.from_numpy(array.dtype), tuple(map(size, array.shape)), array)

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    # Sizes

    def size(self, number: Size) -> ir.Value:
        """Return a size as a tensor of one integer."""
        if number.constant is not None:
            return self.integers([int(number.constant)])
        total: ir.Value | None = None
        for monomial, factor in number.terms:
            parts = [self._of_symbol(symbol) for symbol in monomial]
            parts += [self.integers([int(factor)])] if factor != 1 or not parts else []
            term = parts[0]
            for part in parts[1:]:
                term = self.add("Mul", term, part)
            total = term if total is None else self.add("Add", total, term)
        assert total is not None
        return total

    def _of_symbol(self, symbol: Symbol) -> ir.Value:
        """Return the size that a symbol stands for; it is computed once, behind the value that has it."""
        if symbol not in self._sizes:
            value, axis = self.evidence.origins[symbol]
            shape = self._node("Shape", [value], {})
            index = self._node("Constant", [], {"value": ir.tensor(np.array([axis], np.int64))})
            found = self._node("Gather", [shape.outputs[0], index.outputs[0]], {"axis": 0})
            producer = value.producer()
            graph = value.graph if producer is None else producer.graph
            assert graph is not None
            if producer is None:
                graph.insert_before(graph[0], [shape, index, found])
            else:
                graph.insert_after(producer, [shape, index, found])
            self._sizes[symbol] = found.outputs[0]
        return self._sizes[symbol]

    def sizes(self, numbers: Sequence[Size]) -> ir.Value:
        """Return sizes as a tensor of rank 1, with what is known of it."""
        constants = [number.constant for number in numbers]
        if None not in constants:
            return self.integers([int(number or 0) for number in constants])
        held = np.empty(len(numbers), object)
        held[:] = list(numbers)
        return self.told(self.joined([self.size(n) for n in numbers]), _INT64, (size(len(numbers)),), held)

    def joined(self, parts: Sequence[ir.Value], axis: int = 0) -> ir.Value:
        return self.add("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    # Numbers of any type

    def numbers(self, numbers: Sequence[Number | float], dtype: ir.DataType) -> ir.Value:
        """Return numbers as a tensor of rank 1."""
        return self.joined([self._number(number, dtype) for number in numbers])

    def _number(self, number: Number | float, dtype: ir.DataType) -> ir.Value:
        if not isinstance(number, Number):
            return self.constant(np.array([number], dtype.numpy()))
        computed, value = _DOUBLE if dtype == _DOUBLE else _FLOAT, self.size(number.size)
        if not dtype.is_floating_point():
            return self.cast(value, _INT64, dtype)
        value = self.cast(value, _INT64, computed)
        for op_type in _OF_POWER[number.power]:
            value = self.add(op_type, value)
        if number.factor != 1:
            value = self.add("Mul", value, self.constant(np.array([number.factor], computed.numpy())))
        return self.cast(value, computed, dtype)

    def cast(self, value: ir.Value, dtype: ir.DataType, to: ir.DataType) -> ir.Value:
        return value if dtype == to else self.add("Cast", value, to=int(to))

    def count(self, number: Size) -> ir.Value:
        """Return the integers from 0 up to a size."""
        limit = self.add("Reshape", self.size(number), self.integers([]))
        zero, one = (self.constant(np.array(n, np.int64)) for n in (0, 1))
        return self.add("Range", zero, limit, one)
