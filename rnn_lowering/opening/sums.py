"""Sums over an open axis: a number that scales one may be the size of the axis."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Symbol
from rnn_lowering.opening.questions import Questions, refuse


@dataclass
class Sums:
    """What follows from sums over open axes, and from counts of their rows.

    Attributes:
        known: What is known of the values.
        questions: Have the size that each symbol had.
        values: The values that do.
    """

    known: KnownValues
    questions: Questions
    values: set[ir.Value] = field(default_factory=set)

    def check(self, node: ir.Node, *, counts: bool) -> None:
        """Check that no sum is scaled by a number that may be the size of its axis.

        Args:
            node: The next node.
            counts: Whether it counts the rows.
        """
        data = [value for value in node.inputs if value is not None]
        summed = not self.values.isdisjoint(data)
        if node.op_type in ("Div", "Mul") and summed:
            for value in data:
                number = self.known.constant(value)
                if number is not None and number.size == 1 and self._may_be_size(float(number.reshape(-1)[0])):
                    found = f"{number.reshape(-1)[0]:g}"
                    raise refuse(node, f"scales a sum over an open axis by {found}, which may be its size")
        if summed or counts or any(self._is_contracted(node, value) for value in data):
            self.values.update(node.outputs)

    def _symbols(self, value: ir.Value) -> set[Symbol]:
        return {symbol for dim in self.known.shapes.get(value, ()) for symbol in dim.symbols}

    def _is_contracted(self, node: ir.Node, value: ir.Value) -> bool:
        return bool(self._symbols(value) - {symbol for output in node.outputs for symbol in self._symbols(output)})

    def _may_be_size(self, number: float) -> bool:
        """Whether a number is a size or its inverse; a variance has one less."""
        sizes = [n for n in self.questions.exported.values() if n > 1]
        counts = [count for n in sizes for count in (n, n - 1, n / (n - 1)) if count > 1]
        return any(abs(number - n) < 1e-6 * n or abs(number * n - 1) < 1e-6 for n in counts)
