"""One Loop or Scan that computes an RNN, GRU or LSTM: its step, its match, and the node in its place.

A Loop is read as a recurrence (`loops/as_recurrence`). Its step is computed once with polynomials (`step`), matched
with the equations of the operators (`cells`), and the rows that it reads are followed back to X (`rows`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.composites import can_flip, flip
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import detach, is_used, moved_inputs, operator_of
from rnn_lowering.facts.size import Size
from rnn_lowering.loops.as_recurrence import (
    LoopRecurrence,
    loop_as_recurrence,
    positions,
    rows_along,
    scan_as_recurrence,
)
from rnn_lowering.loops.body import LoopBody, ScanBody, behind_identities, checked_axis
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.counters import Counters
from rnn_lowering.loops.hoisting import hoist_invariants
from rnn_lowering.loops.raising.affine import C, H, Unknowns
from rnn_lowering.loops.raising.cells import RaisedCell, match_cell
from rnn_lowering.loops.raising.masks import (
    NUMBER,
    LengthMask,
    StepNumbers,
    length_mask_of,
    mask_row,
    sequence_lens,
    without_mask,
)
from rnn_lowering.loops.raising.polynomials import NotRaised, Polynomial, Variables
from rnn_lowering.loops.raising.raised_node import NodeOutputs, emit_node
from rnn_lowering.loops.raising.rows import Layout, RowWalk, Source, follow_rows, layouts, row_of
from rnn_lowering.loops.raising.step import StepEvaluator
from rnn_lowering.loops.value_facts import TRUE, Elements, Item, KnownTensor
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.types import Array

_OPEN_SIZE = 2
"""The number that stands for an open size: with one sequence, mixed rows of the batch look right."""


@dataclass
class _Match:
    """A cell, and where it has its states.

    Attributes:
        cell: The cell.
        states: The number of h among the states, and of c.
        layouts: The layouts of h, of c, and of each source.
    """

    cell: RaisedCell
    states: Sequence[int]
    layouts: dict[Hashable, Layout]


class RaisedLoop:
    """Raises one Loop or Scan."""

    def __init__(self, writer: BodyWriter, loop: LoopBody | ScanBody, *, some_rows: bool) -> None:
        self.writer = writer
        self.loop = loop
        self.some_rows = some_rows
        self.r = self._recurrence()
        self._check_types()
        self.variables = Variables()
        self.xs = {value: writer.value_of(x) for value, x in self.r.xs.items()}
        self.mask_rows = self._mask_rows()
        self.sources = self._sources()
        before, new, stacked = self._step()
        self.new = new
        self.unmasked = without_mask(before, new, stacked)
        self.next, self.stacked = self.unmasked.next, self.unmasked.stacked
        self.match = self._matched()
        self.cell = self.match.cell

    def _recurrence(self) -> LoopRecurrence:
        writer, loop = self.writer, self.loop
        r = (
            loop_as_recurrence(writer, loop, gathers=True)
            if isinstance(loop, LoopBody)
            else scan_as_recurrence(writer, loop)
        )
        if r.trips is None:
            raise NotRaised("the number of its steps depends on data")
        if not r.states:
            raise NotRaised("it has no state")
        if r.trips.static_count == 0:
            raise NotRaised("it has no step")
        return r

    def _check_types(self) -> None:
        for value, item in zip(self.r.state_inputs, self.r.init, strict=True):
            if isinstance(item, Elements) or isinstance(value.type, ir.SequenceType):
                raise NotRaised(f"its state '{value.name}' is a sequence")
            kind = self.writer.facts.kind(item)
            if kind is None or kind.shape is None:
                raise NotRaised(f"the rank of its state '{value.name}' is not known")
            if kind.dtype.is_floating_point() and kind.dtype != ir.DataType.FLOAT:
                raise NotRaised(f"onnxruntime has no RNN, GRU and LSTM of {kind.dtype.name.lower()}")

    # Sizes

    def _shape(self, item: Item) -> list[int] | None:
        """Return a shape with a number for each open size."""
        shape = self.writer.facts.shape(item)
        return None if shape is None else [_number(size) for size in shape]

    def _open_axes(self, item: Item) -> list[int]:
        shape = self.writer.facts.shape(item) or ()
        return [n for n, size in enumerate(shape) if size is None or size.constant is None]

    def _evaluator(self) -> StepEvaluator:
        facts = self.writer.facts

        def dtype(value: ir.Value) -> ir.DataType | None:
            known = facts.kind(value)
            return None if known is None else known.dtype

        return StepEvaluator(self.variables, self.writer.op.opset, self._shape, self._open_axes, dtype)

    # The step

    def _sources(self) -> dict[ir.Value, Source]:
        """Return the sequence behind each row; all are read in the same direction."""
        walk = RowWalk(self._evaluator())
        sources = {value: follow_rows(rows, walk) for value, rows in self._real_rows()}
        if len({source.backwards for source in sources.values()}) > 1:
            sources = {value: follow_rows(rows, walk, flips=False) for value, rows in self._real_rows()}
        return sources

    def _real_rows(self) -> Iterator[tuple[ir.Value, ir.Value]]:
        for value, rows in self.xs.items():
            kind = self.writer.facts.kind(rows)
            if kind is not None and kind.dtype.is_floating_point() and value not in self.mask_rows:
                yield value, rows

    def _mask_rows(self) -> dict[ir.Value, Array]:
        """Return the rows that compare the number of the step with other numbers."""
        walk = RowWalk(self._evaluator())
        rows_of_masks = {value: mask_row(self._evaluator(), rows, walk) for value, rows in self.xs.items()}
        return {value: row for value, row in rows_of_masks.items() if row is not None}

    def _step(self) -> tuple[list[Array | None], list[Array | None], list[Array | None]]:
        """Return the states, the next states and the stacked rows as polynomials."""
        writer, r, op = self.writer, self.r, self.writer.op
        e = self._evaluator()
        with op.body(), writer.inner_scope():
            states = [writer.input_like(value) for value in r.state_inputs]
            before: list[Array | None] = []
            for n, (state, item) in enumerate(zip(states, r.init, strict=True)):
                kind = writer.facts.kind(item)
                writer.facts.declare(state, kind)
                shape = self._shape(item)
                before.append(None if shape is None else self.variables.elements(n, shape))
                e.bind(state, before[-1])
            rows = []
            for value, x in r.xs.items():
                row = writer.value_of(op.body_input("x", x.dtype, x.shape[1:]))
                kind = writer.facts.kind(self.xs[value])
                writer.facts.declare(row, None if kind is None else kind.row)
                e.bind(row, self._row(value))
                rows.append(row)
            number = writer.value_of(op.body_input("i", ir.DataType.INT64, ()))
            e.bind(number, self.variables.elements(NUMBER, ()))
            items = r.step(writer, states, rows, number, TRUE)
            arrays = [self._array(e, item) for item in items]
            self.unknown = list(e.unknown)
            for node in op.nodes:
                detach(node)
        return before, arrays[: len(r.states)], arrays[len(r.states) :]

    def _row(self, value: ir.Value) -> Array | None:
        """Return a row of a sequence."""
        if value in self.mask_rows:
            return self.mask_rows[value]
        rows = self.xs[value]
        kind, shape = self.writer.facts.kind(rows), self._shape(rows)
        if kind is None or shape is None:
            return None
        if kind.dtype == ir.DataType.BOOL:
            return self.variables.truths(value, shape[1:])
        source = self.sources.get(value)
        outer = None if source is None else self._shape(source.value)
        if source is None or outer is None:
            return None
        del outer[source.axis]
        return row_of(self._evaluator(), source, rows, outer)

    @staticmethod
    def _array(e: StepEvaluator, item: Item) -> Array | None:
        if isinstance(item, KnownTensor):
            return item.array
        return e.find(item) if isinstance(item, ir.Value) else None

    # The cell

    def _matched(self) -> _Match:
        """Return the cell that the states compute."""
        known = [n for n, array in enumerate(self.next) if array is not None and array.dtype == object]
        if not known:
            if self.unknown:
                raise NotRaised(f"its step uses {', '.join(self.unknown)}, which no RNN, GRU or LSTM has")
            n = next((n for n, array in enumerate(self.next) if array is None), None)
            fault = "does not depend on a state or row" if n is None else "is not known"
            raise NotRaised(f"the next value of its state '{self.r.state_inputs[n or 0].name}' {fault}")
        reasons: list[str] = []
        for states in (*permutations(known, 2), *permutations(known, 1)):
            for places in self._layouts(states):
                try:
                    cell = self._match(states, places)
                except NotRaised as reason:
                    reasons.append(str(reason))
                    continue
                return _Match(cell, states, places)
        specific = [reason for reason in reasons if not reason.startswith("its step computes no")]
        raise NotRaised((specific or reasons or ["its states have too many axes"])[0])

    def _layouts(self, states: Sequence[int]) -> Iterator[dict[Hashable, Layout]]:
        """Yield layouts of states and sources."""
        items = [self.r.init[n] for n in states]
        h = items[0]
        for of_h in layouts(self._shape(h) or (), None, self._open_axes(h)):
            batch = of_h.sizes[0]
            choices = [
                [of_h],
                *(list(layouts(self._shape(item) or (), batch, self._open_axes(item))) for item in items[1:]),
            ]
            sources = list(dict.fromkeys(self.sources.values()))
            for source in sources:
                shape, open_axes = self._shape(source.value) or [], self._open_axes(source.value)
                del shape[source.axis : source.axis + 1]
                rest = [axis - (axis > source.axis) for axis in open_axes if axis != source.axis]
                choices.append(list(layouts(shape, batch, rest)))
            names: list[Hashable] = [*(H, C)[: len(states)], *sources]
            for each in product(*choices):
                yield dict(zip(names, each, strict=True))

    def _match(self, states: Sequence[int], places: dict[Hashable, Layout]) -> RaisedCell:
        unknowns = Unknowns(self.variables)
        matrices = []
        for n, name in zip(states, (H, C), strict=False):
            array, layout = self.next[n], places[name]
            assert array is not None
            if array.shape != layout.shape:
                raise NotRaised(f"the shape of its state '{self.r.state_inputs[n].name}' changes")
            unknowns.add(n, name, layout.places())
            matrices.append(layout.matrix(array))
        for source in dict.fromkeys(self.sources.values()):
            unknowns.add(source, source, places[source].places())
        cell = match_cell(unknowns, matrices[0], matrices[1] if len(matrices) > 1 else None)
        self.mask = self._mask(states, places)
        return cell

    def _mask(self, states: Sequence[int], places: dict[Hashable, Layout]) -> LengthMask | None:
        """Return the mask of the states, if there is one."""
        masked, stacked = self.unmasked.masks, self.unmasked.stacked_masks
        if not masked and not stacked:
            return None
        if any(n not in masked for n in states) or len(stacked) < len(self.stacked):
            raise NotRaised("the mask covers only some outputs of the step, so sequence_lens cannot express it")
        if self._backwards:
            raise NotRaised("its mask is read from the end")
        if not all(self._is_zero(self.r.init[n]) for n in states):
            raise NotRaised(
                "its mask may leave a first state that is not zero; with a length of 0 the operators return zeros"
            )
        arrays = [places[name].matrix(masked[n]) for n, name in zip(states, (H, C), strict=False)]
        return length_mask_of(StepNumbers(self.variables, self.new, self._first), arrays)

    def _first(self, n: int) -> int | None:
        """Return the first number of a state, if it is known and whole."""
        item = self.r.init[n]
        tensor = constant_of(item, self.writer.op.opset) if isinstance(item, ir.Value) else None
        array = item.array if isinstance(item, KnownTensor) else None if tensor is None else tensor.numpy()
        return int(array.item()) if array is not None and array.size == 1 and array.dtype.kind in "iu" else None

    # The node

    def items(self) -> list[Item]:
        """Emit the node; return an item for each output of the Loop or Scan."""
        writer, r, m = self.writer, self.r, self.match
        followers, added = self._followers(), self._joined_outside()
        kinds = [self._kind_of_stack(n) for n in range(len(self.stacked))]
        outputs = self._node()
        final: list[Item] = []
        for n, item in enumerate(r.init):
            if not is_used(self.loop.results[r.states[n]]):
                final.append(item)
                continue
            name = C if n in m.states[1:] else H
            layout = m.layouts[H] if n in followers else m.layouts[name]
            last = outputs.Y_c if name == C else outputs.Y_h
            assert last is not None
            tensor = layout.from_matrix(writer.op, last, 0)
            final.append(writer.value_of(self._unless_empty(tensor, item)))
        if added is not None:
            self._take_over(added, outputs)
            return r.results([*final, None, None])
        stacks = [writer.value_of(self._stack(place, layout, outputs)) for place, layout in enumerate(kinds)]
        return r.results([*final, *stacks])

    def _joined_outside(self) -> ir.Node | None:
        """Return the Add or Mul of two stacked outputs, if it alone uses them and they are h in parts.

        They stand for one stacked output from here on. The loops that `rnn-lower` writes for onnxruntime have them.
        """
        values = [self.loop.stacked[n] for n in self.r.stacked]
        users = {node for value in values for node, _ in value.uses()}
        if (
            self.mask is not None
            or len(values) != 2
            or len(users) != 1
            or any(value.is_graph_output() for value in values)
        ):
            return None
        (node,) = users
        alike = {(self.loop.stacked_axes[n], self.loop.stacked_in_front[n]) for n in self.r.stacked}
        a, b = self.stacked
        if node.op_type not in ("Add", "Mul") or len(alike) > 1 or node.graph is not self.loop.node.graph:
            return None
        if a is None or b is None or a.shape != b.shape or a.dtype != object or b.dtype != object:
            return None
        self.stacked = [np.asarray(a + b if node.op_type == "Add" else a * b, object)]
        return node

    def _take_over(self, added: ir.Node, outputs: NodeOutputs) -> None:
        """Put h of all steps in the place of a sum or product of stacked outputs."""
        layout = self._kind_of_stack(0)
        value = self.writer.own_value(self.writer.value_of(self._stack(0, layout, outputs)), [])
        take_over(added.outputs[0], value)
        assert added.graph is not None
        added.graph.remove(added, safe=True)

    def _followers(self) -> list[int]:
        """Return the states that are copies of h."""
        m, followers = self.match, []
        h = m.layouts[H].matrix(self.next[m.states[0]])  # type: ignore[arg-type]
        for n, array in enumerate(self.next):
            if n in m.states or not is_used(self.loop.results[self.r.states[n]]):
                continue
            layout = m.layouts[H]
            if (
                array is None
                or array.dtype != object
                or array.shape != layout.shape
                or not _equal(layout.matrix(array), h)
                or not self._has_mask_of_h(self.unmasked.masks.get(n), layout)
                or (self.mask is not None and not self._is_zero(self.r.init[n]))
            ):
                raise NotRaised(f"its state '{self.r.state_inputs[n].name}' belongs to no cell")
            followers.append(n)
        return followers

    def _has_mask_of_h(self, masks: Array | None, layout: Layout) -> bool:
        """Whether a value has the mask of h, if there is one."""
        of_h = self.unmasked.masks.get(self.match.states[0])
        if masks is None or of_h is None:
            return masks is None and of_h is None
        return bool((layout.matrix(masks) == self.match.layouts[H].matrix(of_h)).all())

    def _kind_of_stack(self, n: int) -> Layout | None:
        """Return the layout of h in a stacked row; None if the row is something else."""
        m, array, masks = self.match, self.stacked[n], self.unmasked.stacked_masks.get(n)
        if array is None or array.dtype != object:
            return None
        h = m.layouts[H].matrix(self.next[m.states[0]])  # type: ignore[arg-type]
        for layout in layouts(array.shape):
            if layout.sizes == h.shape and _equal(layout.matrix(array), h) and self._has_mask_of_h(masks, layout):
                return layout
        return None

    def _node(self) -> NodeOutputs:
        writer, m, op = self.writer, self.match, self.writer.op
        op.dtype = self.writer.facts.kind(self.r.init[m.states[0]]).dtype  # type: ignore[union-attr]
        xs = []
        for source in m.cell.W:
            assert isinstance(source, Source)
            x = writer.tensor(source.value, self.loop.ref)
            if source.axis:
                x = op.transpose(x, [source.axis, *(n for n in range(x.rank) if n != source.axis)])
            xs.append(m.layouts[source].to_matrix(op, x, 1))
        states = [self._initial(n, m.layouts[name]) for n, name in zip(m.states, (H, C), strict=False)]
        lens = None if self.mask is None else self._lens(self.mask, xs[0])
        return emit_node(op, m.cell, xs, states, self.loop.node.name, reverse=self._backwards, lens=lens)

    def _lens(self, mask: LengthMask, X: Tensor) -> Tensor:
        op, trips = self.writer.op, self.r.trips
        assert trips is not None
        lens, batch = self.writer.tensor(mask.lens, self.loop.ref), op.dim(X, 1)
        return sequence_lens(op, lens, mask.more, trips.tensor, batch, X.shape[1])

    @property
    def has_steps(self) -> bool:
        """Whether there is a step for certain."""
        trips = self.r.trips
        if trips is None or self.some_rows:
            return self.some_rows
        return trips.positive and (trips.static_count is not None or isinstance(self.loop, LoopBody))

    @property
    def _backwards(self) -> bool:
        return any(source.backwards for source in self.sources.values())

    def _initial(self, n: int, layout: Layout) -> Tensor | None:
        """Return a first state [batch, units]; None for zeros."""
        item = self.r.init[n]
        if self._is_zero(item):
            return None
        return layout.to_matrix(self.writer.op, self.writer.tensor(item, self.loop.ref), 0)

    def _is_zero(self, item: Item) -> bool:
        """Whether all elements are 0 for certain."""
        while isinstance(item, ir.Value):
            tensor, node = constant_of(item, self.writer.op.opset), item.producer()
            if tensor is not None:
                return not np.any(tensor.numpy())
            if node is not None and node.op_type == "ConstantOfShape":
                value = node.attributes.get("value")
                return value is None or not np.any(value.as_tensor().numpy())
            if node is None or not operator_of(node).moves or moved_inputs(node) > 1:
                return False
            item = node.inputs[0]
        return isinstance(item, KnownTensor) and not np.any(item.array)

    def _unless_empty(self, last: Tensor, item: Item) -> Tensor:
        """Return a last state; without a step the first one, as there RNN returns zeros, and LSTM anything."""
        op, trips = self.writer.op, self.r.trips
        if self.has_steps or (self._is_zero(item) and self.cell.op_type != "LSTM"):
            return last
        assert trips is not None
        first = self.writer.tensor(item, self.loop.ref)
        return op.where(op.less(op.constant([0]), trips.tensor), last, first)

    def _stack(self, place: int, layout: Layout | None, outputs: NodeOutputs) -> Tensor:
        """Return a stacked output."""
        op, loop, n = self.writer.op, self.loop, self.r.stacked[place]
        stacked, in_order = outputs.Y, not self._backwards
        if layout is not None:
            stacked = layout.from_matrix(op, stacked, 1)
        else:
            h = self.match.layouts[H].from_matrix(op, stacked, 1)
            stacked, in_order = self._head(loop.rows[n], h if in_order else self._flipped(h)), True
        if in_order == loop.stacked_in_front[n]:
            stacked = self._flipped(stacked)
        return rows_along(op, stacked, checked_axis(loop.stacked_axes[n], stacked.rank, loop))

    def _flipped(self, rows: Tensor) -> Tensor:
        op = self.writer.op
        if not can_flip(op.opset, rows.shape[0]):
            raise NotRaised(f"its rows cannot be flipped at opset {op.opset}")
        return flip(op, rows)

    def _head(self, row: ir.Value, h: Tensor) -> Tensor:
        """Return what the step computes of the new h, or of its own number, and stacks, for all steps.

        Args:
            row: What it stacks.
            h: All h, in the order of the steps.
        """
        if self.mask is not None:
            raise NotRaised("it stacks something else than the state h")
        writer, loop, value = self.writer, self.loop, self.loop.state_outputs[self.r.states[self.match.states[0]]]
        invariant = [loop.state_inputs[n] for n in sorted(loop.invariant_states)]
        given = {**self.r.xs, behind_identities(value): writer.declared(h)}
        head = hoist_invariants(writer, loop, given, lambda _: None, invariant).rows.get(row)
        trips = self.r.trips
        if head is None and isinstance(loop, LoopBody) and trips is not None and writer.facts.shape(row) == ():
            head = positions(Counters(writer, loop), row, trips)
        if head is None:
            raise NotRaised("it stacks something else than the state h")
        return head


def _number(size: Size | None) -> int:
    """Return a size with `_OPEN_SIZE` for each symbol."""
    if size is None:
        return _OPEN_SIZE
    total = sum((factor * _OPEN_SIZE ** len(monomial) for monomial, factor in size.terms), Fraction(0))
    return max(int(total), 1)


def _equal(a: Array, b: Array) -> bool:
    """Whether two arrays have the same polynomials."""
    pairs = zip(a.ravel(), b.ravel(), strict=True)
    return a.shape == b.shape and all(isinstance(p, Polynomial) and p.equals(q) for p, q in pairs)
