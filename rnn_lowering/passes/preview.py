"""What a lowering would do: for each node its form, or why it stays or is refused. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.flags import spelled
from rnn_lowering.model.copying import order_restored
from rnn_lowering.model.loop_sharing import groups_of, shared_loops
from rnn_lowering.model.model_sizes import known_inputs
from rnn_lowering.model.opsets import refuse_imports
from rnn_lowering.model.preparation import NodePlan, NodeSelection, PreparedModel, read_node
from rnn_lowering.model.scopes import REPEATING, RecurrentNode, exported_loops, recurrent_nodes
from rnn_lowering.nodes.connections import KnownInputs
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.options import Lowering
from rnn_lowering.passes.not_lowered import (
    OperatorsLeft,
    others_left,
    refusals,
    unsupported_error,
    why_left,
)
from rnn_lowering.passes.planning import ModelPlan, ModelPlanner
from rnn_lowering.passes.report import Report

REFUSED, LEFT = "refused", "left as it is"
UNSUPPORTED, REPLACED = "left, not supported", "replaced"


@dataclass(frozen=True)
class Preview:
    """The form that a recurrent node would get, or a Loop or Scan of the model itself, which has no `spec`.

    Attributes:
        node: Its name, operator and scope.
        spec: What it specifies; None if it cannot be read.
        form: "scan", "loop", "unroll", "chunked", "native", `REFUSED` or `LEFT`; `UNSUPPORTED` or `REPLACED` for a
            node that is not recurrent and that the target cannot run.
        reason: Why.
        hint: What to try if it is refused.
        recurrent: Whether it is a recurrent node, a Loop or a Scan.

    Examples:
        >>> [(each.spec.op_type, each.form) for each in rl.preview(model)]
        [('LSTM', 'scan'), ('GRU', 'scan')]
    """

    node: NodeRef
    spec: NodeSpec | None
    form: str
    reason: str
    hint: str = ""
    recurrent: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", spelled(self.reason))

    @classmethod
    def refused(cls, error: RnnLoweringError, node: NodeRef, spec: NodeSpec | None = None) -> Preview:
        return cls(node, spec, REFUSED, error.reason, error.hint)

    @property
    def counts(self) -> bool:
        """Whether the node is recurrent by its operator, or refused: a Loop or Scan that stays is neither, nor is
        another node that the target cannot run."""
        return self.form != UNSUPPORTED and (self.node.operator not in REPEATING or self.form != LEFT)


def preview_model(model: ir.Model, lowering: Lowering) -> tuple[list[Preview], Report]:
    """Return previews of the recurrent nodes, and of the Loops and Scans of the model itself, and a report of what
    else would be done to the model, which stays as it is.

    Raises:
        InvalidNodeError, UnsupportedError: A selected node cannot be read.
    """
    refuse_imports(model)
    planner = ModelPlanner(lowering, Report(lowering.target))
    planner.check_selection(model)
    with order_restored(model):
        sized = planner.at_given_sizes(model)
        order = {ref: n for n, (ref, _) in enumerate(exported_loops(sized))}
        given = planner.as_stream(planner.raised(sized))
        order |= {ref: n for n, (ref, _) in enumerate(exported_loops(given), len(order)) if ref not in order}
        work, loops = _without_loops(planner, given)
        prepared, refusal = _prepared(planner, work)
        plan: ModelPlan | None = None
        with suppress(RnnLoweringError):  # the preview of each node says it
            plan = planner.with_known_sizes(prepared)
            prepared = plan.prepared
            planner.report.notes += shared_loops(groups_of(plan.nodes))
            planner.report.notes += plan.native.notes(plan.every)
        planner.report.notes += prepared.notes
        known = known_inputs(prepared.model, prepared.found)
        planned = {} if plan is None else {each.found.node: _planned_preview(each, plan) for each in plan.every}
        nodes = [
            planned.get(entry.node) or _preview_of(planner, entry, prepared, known, refusal)
            for entry in prepared.found
        ]
        planner.report.spell()
        cells, opset = planner.raisable(sized), planner.opset(prepared)
        others = [_with_hint(each, cells) for each in _others(prepared.model, planner, loops, opset).values()]
        others.sort(key=lambda each: (not each.recurrent, order.get(each.node, -1)))
        return [*nodes, *others], planner.report


def _with_hint(preview: Preview, cells: Mapping[NodeRef, str]) -> Preview:
    """Return the preview of a Loop or Scan with the node that it could become."""
    if preview.node not in cells:
        return preview
    return replace(preview, reason=f"{preview.reason}; it computes {_ARTICLES[cells[preview.node]]}: --raise")


_ARTICLES = {"RNN": "an RNN", "GRU": "a GRU", "LSTM": "an LSTM"}


def _without_loops(planner: ModelPlanner, model: ir.Model) -> tuple[ir.Model, dict[NodeRef, Preview]]:
    """Return the model without the Loops and Scans that are lowered, and the previews of all that are judged."""
    refused: dict[NodeRef, UnsupportedError] = {}
    try:
        lowered = planner.without_loops(model, refused)
    except OptionError:
        raise
    except RnnLoweringError as error:
        if error.node is None:
            raise
        return model, {error.node: Preview.refused(error, error.node)}
    loops = {each.ref: Preview(each.ref, None, each.form, each.reason) for each in planner.report.loops}
    loops |= {ref: Preview.refused(error, ref) for ref, error in refused.items()}
    return lowered, loops


def _prepared(planner: ModelPlanner, model: ir.Model) -> tuple[PreparedModel, UnsupportedError | None]:
    """Return the prepared model; if that is refused, the model itself and the error."""
    try:
        return planner.prepare(model), None
    except OptionError:
        raise
    except UnsupportedError as error:
        found = list(recurrent_nodes(model))
        return PreparedModel(model, found, NodeSelection(planner.lowering)(found)), error


def _planned_preview(planned: NodePlan, plan: ModelPlan) -> Preview:
    hint = plan.native.hint_for(planned.found)
    reason = f"{planned.choice.reason}; {hint}" if hint else planned.choice.reason
    return Preview(planned.found.ref, planned.spec, planned.choice.form, reason)


def _preview_of(
    planner: ModelPlanner,
    entry: RecurrentNode,
    prepared: PreparedModel,
    known: KnownInputs,
    refusal: UnsupportedError | None,
) -> Preview:
    if entry not in prepared.wanted:
        return Preview(entry.ref, _readable(prepared.model, entry, known), LEFT, why_left(planner.lowering))
    if refusal is not None:
        return Preview.refused(refusal, entry.ref, _readable(prepared.model, entry, known))
    spec = read_node(prepared.model, entry, known)
    try:
        choice = planner.planned(entry, spec, prepared.model, planner.opset(prepared)).choice
    except UnsupportedError as error:
        return Preview.refused(error, entry.ref, spec)
    return Preview(entry.ref, spec, choice.form, choice.reason)


def _readable(model: ir.Model, entry: RecurrentNode, known: KnownInputs) -> NodeSpec | None:
    with suppress(RnnLoweringError):
        return read_node(model, entry, known)
    return None


def _others(
    model: ir.Model, planner: ModelPlanner, loops: dict[NodeRef, Preview], opset: int
) -> dict[NodeRef, Preview]:
    """Return the previews of Loops, Scans and foreign nodes: of those that stay, of `loops`, then of those that the
    target cannot run."""
    lowering, reasons = planner.lowering, planner.not_raised
    left = {ref: Preview(ref, None, LEFT, why) for ref, why in others_left(model, lowering, reasons)}
    previews = left | loops
    for error in refusals(model, lowering):
        assert error.node is not None
        if previews.get(error.node) is left.get(error.node):
            previews[error.node] = Preview.refused(error, error.node)
    left_too = OperatorsLeft.of(model, lowering, opset)
    for node in left_too.replaced:
        reason = f"{node.reason}: becomes {', '.join(node.operators)}"
        previews[node.node] = Preview(node.node, None, REPLACED, reason, recurrent=False)
    for each in left_too.unsupported:
        form, hint = (REFUSED, unsupported_error(each).hint) if lowering.require_supported else (UNSUPPORTED, "")
        previews[each.node] = Preview(each.node, None, form, each.reason, hint, recurrent=False)
    return previews
