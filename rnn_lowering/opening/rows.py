"""Which rows of a result follow from which rows of an open axis: what can be compared with the original.

Row n of a causal net follows from rows 0 to n, so the first rows are the same for any number of rows. A row of a
batch follows from that row alone. Where a node is not known to keep this, all rows may matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.facts.axes import Axes
from rnn_lowering.facts.infer import pads, slice_bounds
from rnn_lowering.facts.known import KnownValues, axes_of, constants_of
from rnn_lowering.facts.operators import captured_values, may_differ, operator_of
from rnn_lowering.facts.size import Shape, Size, Symbol, product, size
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.opening.node_sizes import WINDOWED, sliding_window

_ONE = size(1)

_GIVEN_SIZES = ("ConstantOfShape", "Expand", "Range", "Reshape", "Slice")


@dataclass(frozen=True)
class Rows:
    """Where the rows of an open axis are in a value.

    Attributes:
        axis: Their axis in the value.
        outer, inner: What this axis has more: it has outer * rows * inner elements, in this order.
        ahead: Row n follows from no row behind n + ahead.
        alone: Row n follows from row n alone, wherever it is.
    """

    axis: int
    outer: Size = _ONE
    inner: Size = _ONE
    ahead: int = 0
    alone: bool = True

    @property
    def merged(self) -> bool:
        """Whether their axis has other rows, too."""
        return self.outer != _ONE or self.inner != _ONE


RowsBySymbol = Mapping[Symbol, Rows | None]
"""The rows of each open axis that a value depends on; None if each of its elements may follow from all."""


def rows_of_outputs(
    model: ir.Model, known: KnownValues, axes: Mapping[tuple[str, int], str]
) -> dict[str, RowsBySymbol]:
    """Return the rows of each output of a model.

    Args:
        model: The model, whose nodes are in order.
        known: The sizes of its values, with a symbol for each open one.
        axes: By input and axis, the symbol of its size.
    """
    walk = _OpenRowWalk(known, axes)
    for value in model.graph.inputs:
        walk.start(value)
    for node in model.graph:
        walk.follow(node)
    return {value.name or "": walk.rows.get(value, {}) for value in model.graph.outputs}


class _OpenRowWalk:
    def __init__(self, known: KnownValues, axes: Mapping[tuple[str, int], str]) -> None:
        self.known, self.axes = known, axes
        self.symbols = sorted(set(axes.values()))
        self.rows: dict[ir.Value, RowsBySymbol] = {}

    def start(self, value: ir.Value) -> None:
        name = value.name or ""
        found: dict[Symbol, Rows | None] = {}
        for (owner, axis), symbol in self.axes.items():
            if owner == name:
                found[symbol] = None if symbol in found else Rows(axis)
        lengths = any(
            use.node.inputs[use.idx] is value and is_recurrent(use.node) and use.idx == 4 for use in value.uses()
        )
        self.rows[value] = {**dict.fromkeys(self.symbols if lengths else ()), **found}

    def follow(self, node: ir.Node) -> None:
        """Set the rows of a node's outputs."""
        for n, value in enumerate(node.outputs):
            found: dict[Symbol, Rows | None] = {}
            for symbol in self.symbols:
                given = self._given(node, symbol)
                if given or may_differ(node) or symbol in self._symbols_of(value):
                    found[symbol] = self._checked(value, symbol, self._rows(node, n, symbol, given))
            self.rows[value] = found

    def _given(self, node: ir.Node, symbol: Symbol) -> dict[int, Rows | None]:
        """Return the rows of the inputs of a node that depend on an open size. Sizes that it is given count as its
        own, and lengths as numbers: they only say which rows there are."""
        data = operator_of(node).data
        given: dict[int, Rows | None] = {}
        for slot, value in enumerate((*node.inputs, *captured_values(node))):
            if value is None or symbol not in self.rows.get(value, {}):
                continue
            rows = self.rows[value][symbol]
            if data is not None and data <= slot < len(node.inputs):
                if not (node.op_type in _GIVEN_SIZES and value in self.known.contents):
                    given[slot] = None
            elif not (is_recurrent(node) and slot == 4 and rows is None):
                given[slot] = rows
        return given

    def _symbols_of(self, value: ir.Value) -> set[Symbol]:
        numbers = self.known.numbers(value) or []
        return {symbol for each in (*numbers, *self.known.shape(value)) for symbol in each.symbols}

    def _checked(self, value: ir.Value, symbol: Symbol, rows: Rows | None) -> Rows | None:
        """Return the rows if their axis has their size, and no other axis depends on it."""
        shape, numbers = self.known.shape(value), self.known.contents.get(value)
        if rows is None or rows.axis >= len(shape) or (numbers is not None and numbers.dtype == object):
            return None
        rest = shape[rows.axis] - rows.outer * Size.symbol(symbol) * rows.inner
        fits = not rest.symbols and (rest == size(0) or not rows.merged)
        others = [dim for n, dim in enumerate(shape) if n != rows.axis and symbol in dim.symbols]
        return rows if fits and not others else None

    # Nodes

    def _rows(self, node: ir.Node, n: int, symbol: Symbol, given: Mapping[int, Rows | None]) -> Rows | None:
        """Return the rows of output n of a node, from the rows of its inputs."""
        if may_differ(node) or None in given.values():
            return None
        rows = {slot: each for slot, each in given.items() if each is not None}
        if not rows:
            return self._made(node, symbol)
        if is_recurrent(node):
            return self._of_recurrence(node, n, rows)
        if n and node.op_type != "Split":
            return None
        if node.op_type in ("Reshape", "Flatten") and not node.domain:
            return self._reshaped(rows[0], self.known.shape(node.inputs[0]), self.known.shape(node.outputs[0]))
        return (
            self._shifted(node, rows[0])
            if 0 in rows and self._acts(node, rows[0])
            else self._along(axes_of(self.known, node), rows)
        )

    def _made(self, node: ir.Node, symbol: Symbol) -> Rows | None:
        """Return the rows that a node makes: equal ones, or those from 0 on."""
        shape = self.known.shape(node.outputs[0])
        axes = [n for n, dim in enumerate(shape) if symbol in dim.symbols]
        if len(axes) != 1 or node.domain or len(node.outputs) != 1:
            return None
        if node.op_type in ("ConstantOfShape", "Expand"):
            return Rows(axes[0])
        if node.op_type == "Range":
            ends = [self.known.numbers_of_input(node, slot) for slot in (0, 2)]
            return Rows(0, alone=False) if all(e and e[0].constant is not None for e in ends) else None
        if node.op_type == "Slice":
            first, _, step = (slice_bounds(self.known, node, len(shape)) or {}).get(axes[0], (None, None, None))
            return Rows(axes[0], alone=False) if first == size(0) and step == _ONE else None
        return None

    @staticmethod
    def _along(axes: Axes | None, rows: Mapping[int, Rows]) -> Rows | None:
        """Return the rows of the first output where the axis of all of them becomes one of its axes."""
        labels = {slot: None if axes is None else axes.label(slot, each.axis) for slot, each in rows.items()}
        label, *others = set(labels.values())
        first = next(iter(rows.values()))
        merged = {(each.outer, each.inner) for each in rows.values()}
        if axes is None or label is None or others or len(merged) > 1 or label not in axes.output:
            return None
        ahead, alone = max(each.ahead for each in rows.values()), all(each.alone for each in rows.values())
        return replace(first, axis=[*axes.output].index(label), ahead=ahead, alone=alone)

    def _of_recurrence(self, node: ir.Node, n: int, rows: Mapping[int, Rows]) -> Rows | None:
        """Return the rows of an output of an RNN, GRU or LSTM."""
        if node.domain or node.op_type not in ("RNN", "GRU", "LSTM"):
            return None
        first = node.attributes.get_int("layout", 0)
        states = "NDH" if first else "DNH"
        inputs = {0: "NTI" if first else "TNI", 4: "N", 5: states, 6: states}
        found = self._along(Axes(inputs, states if n else "NTDH" if first else "TDNH"), rows)
        if found is None or inputs[0].index("T") != rows.get(0, Rows(-1)).axis:
            return found
        forward = node.attributes.get_string("direction", "forward") == "forward"
        return replace(found, alone=False) if forward else None

    @staticmethod
    def _reshaped(rows: Rows, before: Shape, after: Shape) -> Rows | None:
        """Return the rows behind a Reshape: as many elements are before them as before it."""
        first = product(before[: rows.axis]) * rows.outer
        whole = before[rows.axis].divided(rows.outer * rows.inner)
        for axis, dim in enumerate(after):
            outer = first.divided(product(after[:axis]))
            inner = None if outer is None or whole is None else dim.divided(outer * whole)
            if outer is not None and inner is not None and _is_count(outer) and _is_count(inner):
                return replace(rows, axis=axis, outer=outer, inner=inner)
        return None

    # Nodes that act along the rows

    def _acts(self, node: ir.Node, rows: Rows) -> bool:
        if node.domain or rows.merged:
            return False
        if node.op_type == "Slice":
            return rows.axis in (slice_bounds(self.known, node, len(self.known.shape(node.inputs[0]))) or {})
        return node.op_type in ("CumSum", "Pad") or (node.op_type in WINDOWED and rows.axis > 1)

    def _shifted(self, node: ir.Node, rows: Rows) -> Rows | None:
        """Return the rows behind a node that takes rows away, adds some, or sums them."""
        rank = len(self.known.shape(node.inputs[0]))
        if node.op_type == "CumSum":
            axes = constants_of(self.known, node, "axis") or []
            if rows.axis not in [axis % rank for axis in axes]:
                return rows if axes else None
            return None if node.attributes.get_int("reverse", 0) else replace(rows, alone=False)
        moved: Size | None = None
        if node.op_type == "Slice":
            first, _, step = (slice_bounds(self.known, node, rank) or {})[rows.axis]
            moved = first if step == _ONE and (first.constant or 0) >= 0 else None
        elif node.op_type == "Pad":
            amounts = pads(self.known, node, rank)
            if amounts is not None and amounts[rows.axis] == amounts[rows.axis + rank] == size(0):
                return rows
            constant = node.attributes.get_string("mode", "constant") == "constant"
            moved = -amounts[rows.axis] if amounts is not None and constant else None
        else:
            window = sliding_window(
                node, rows.axis, self.known.shape(node.inputs[1]) if node.op_type == "Conv" else ()
            )
            moved = None if window is None else size(window.span - 1 - window.before)
        if moved is None or moved.constant is None:
            return None
        whole = self.known.shape(node.inputs[0])[rows.axis] == self.known.shape(node.outputs[0])[rows.axis]
        still = whole and moved == size(0) and node.op_type not in WINDOWED
        return replace(rows, ahead=rows.ahead + int(moved.constant), alone=rows.alone and still)


def _is_count(number: Size) -> bool:
    return all(factor.denominator == 1 for _, factor in number.terms)
