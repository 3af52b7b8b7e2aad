"""Raise the Loops and Scans of a model that compute an RNN, GRU or LSTM: which, and why others stay."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.loops.body import LoopBody, ScanBody
from rnn_lowering.loops.body_copy import BodyWriter
from rnn_lowering.loops.lowering import LoopForms, LoopReport, lower_loops
from rnn_lowering.loops.raising.polynomials import NotRaised
from rnn_lowering.loops.raising.raised_loop import RaisedLoop
from rnn_lowering.loops.step_values import LoopLimits
from rnn_lowering.loops.value_facts import Item
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.scopes import repeating_nodes
from rnn_lowering.options import Lowering

_NUMBER = "rnn_lowering.number"
"""The key in the metadata of a Loop or Scan of its number in the model: names may repeat in other scopes."""

_REASON = "it computes one"

_NO_STEP = "warning: {}: now a GRU; with T = 0 onnxruntime ends the process; feed at least one step"
"""Of onnxruntime 1.32: an RNN returns zeros, an LSTM what was in memory, which `_unless_empty` replaces."""


@dataclass(frozen=True)
class Raised:
    """A model with nodes in the place of Loops and Scans.

    Attributes:
        model: The model; the given one if nothing was raised.
        loops: A report of each that was raised.
        reasons: Why others stay.
        notes: For the report.
    """

    model: ir.Model
    loops: list[LoopReport]
    reasons: dict[NodeRef, str]
    notes: list[str]


def raise_loops(model: ir.Model, options: Lowering, selects: Callable[[ir.Node], bool] | None = None) -> Raised:
    """Raise the Loops and Scans that the options select, in a copy of a model. Those that stay are as they were.

    Args:
        model: The model.
        options: The options.
        selects: Whether to raise a Loop or Scan, if it always has a step. None for all that the options select.
    """
    refused = dict[NodeRef, UnsupportedError]()
    for number, (_, node) in enumerate(repeating_nodes(model)):
        node.meta[_NUMBER] = number
    limits = LoopLimits(options.max_unroll, options.max_nodes)
    attempt = _Attempt(options.stream is not None, selects or NodeSelection(options).selects, selects is not None)
    work, reports, _ = lower_loops(model, attempt.choose, limits, refused)
    reasons = {ref: error.reason for ref, error in refused.items()}
    while refused and reports:  # reading those that stay has changed them
        chosen = attempt.raised - {node.meta.get(_NUMBER) for _, node in repeating_nodes(work)}
        attempt = _Attempt(attempt.some_rows, partial(_is_one_of, chosen), attempt.needs_step)
        refused.clear()
        work, reports, _ = lower_loops(model, attempt.choose, limits, refused)
        reasons = {ref: error.reason for ref, error in refused.items()} | reasons
        if attempt.raised >= chosen and refused:
            return Raised(model, [], reasons, [])
    if not reports:
        return Raised(model, [], reasons, [])
    notes = [_NO_STEP.format(ref) for ref in attempt.may_be_empty] if options.keeps_nodes else []
    return Raised(work, [replace(each, form=attempt.became[each.ref]) for each in reports], reasons, notes)


def _is_one_of(numbers: Container[int], node: ir.Node) -> bool:
    """Whether a Loop or Scan has one of these numbers in the model."""
    return node.meta.get(_NUMBER) in numbers


@dataclass
class _Attempt:
    """One walk over the Loops and Scans of a model.

    Attributes:
        some_rows: Whether there is always a step, as in a stream.
        selects: Whether to raise a Loop or Scan, if possible.
        needs_step: Whether a Loop or Scan stays if it may have no step.
        became: The operator that each raised Loop or Scan became.
        raised: The numbers in the model of those Loops and Scans.
        may_be_empty: The GRUs that may have no step.
    """

    some_rows: bool
    selects: Callable[[ir.Node], bool]
    needs_step: bool
    became: dict[NodeRef, str] = field(default_factory=dict)
    raised: set[int] = field(default_factory=set)
    may_be_empty: list[NodeRef] = field(default_factory=list)

    def choose(self, node: ir.Node) -> LoopForms:
        """Return the form of a Loop or Scan: a node."""
        forms = ("node",) if self.selects(node) else ()
        return LoopForms(forms, _REASON, stays_in_bodies=True, repeat=partial(self._raised, node))

    def _raised(self, node: ir.Node, writer: BodyWriter, loop: LoopBody | ScanBody) -> list[Item]:
        """Emit the node; return an item for each output of a Loop or Scan.

        Raises:
            UnsupportedError: It computes no RNN, GRU or LSTM.
        """
        try:
            raised = RaisedLoop(writer, loop, some_rows=self.some_rows)
            if self.needs_step and not raised.has_steps:
                raise NotRaised("it may have no step")
            items = raised.items()
        except NotRaised as reason:
            raise UnsupportedError(str(reason), node=loop.ref) from None
        self.raised.add(node.meta.get(_NUMBER, -1))
        self.became[loop.ref] = raised.cell.op_type
        if raised.cell.op_type == "GRU" and not raised.has_steps:
            self.may_be_empty.append(loop.ref)
        return items
