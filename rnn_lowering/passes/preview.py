"""What a lowering would do: for each node its form, or why it stays or is refused. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.flags import spelled
from rnn_lowering.model.loop_sharing import groups_of, shared_loops
from rnn_lowering.model.model_sizes import known_inputs
from rnn_lowering.model.opsets import refuse_imports
from rnn_lowering.model.preparation import NodePlan, NodeSelection, PreparedModel, read_node
from rnn_lowering.model.scopes import (
    REPEATING,
    RecurrentNode,
    exported_loops,
    recurrent_nodes,
    repeating_nodes,
)
from rnn_lowering.nodes.connections import KnownInputs
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.options import Lowering
from rnn_lowering.passes.nodes import (
    ModelPlan,
    check_selection,
    opset_of,
    others_left,
    planned,
    prepared_nodes,
    refusals,
    why_left,
    with_known_sizes,
)
from rnn_lowering.passes.report import Report
from rnn_lowering.passes.stages import Work, run_stages, stages_until
from rnn_lowering.types import in_brackets

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
        >>> print(rl.preview(model)[0])
        LSTM node '/lstm/LSTM' in main graph: scan (first choice for target portable)
    """

    node: NodeRef
    spec: NodeSpec | None
    form: str
    reason: str
    hint: str = ""
    recurrent: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", spelled(self.reason))

    __repr__ = in_brackets

    def __str__(self) -> str:
        return f"{self.node}: {self.form} ({self.reason})" + (f"; {self.hint}" if self.hint else "")

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
    work = Work.on_copy(model, lowering)
    work.refused = {}
    check_selection(work)
    run_stages(work, stages_until("raise"))
    order = {ref: n for n, (ref, _) in enumerate(exported_loops(work.model))}
    cells = _raisable(work)
    run_stages(work, stages_until("loops", since="raise"))
    order |= {ref: n for n, (ref, _) in enumerate(exported_loops(work.model), len(order)) if ref not in order}
    run_stages(work, stages_until("nodes", since="loops"))
    prepared, refusal = _prepared(work)
    plan: ModelPlan | None = None
    with suppress(RnnLoweringError):  # the preview of each node says it
        plan = with_known_sizes(work, prepared)
        prepared = plan.prepared
        work.report.notes += shared_loops(groups_of(plan.nodes))
        work.report.notes += plan.native.notes(plan.every) if plan.native else ()
    work.report.notes += prepared.notes
    known = known_inputs(prepared.model, prepared.found)
    shown = {} if plan is None else {each.found.node: _planned_preview(each, plan) for each in plan.every}
    nodes = [
        shown.get(entry.node) or _preview_of(work, entry, prepared, known, refusal) for entry in prepared.found
    ]
    work.report.spell()
    opset = opset_of(work, prepared)
    others = [_with_hint(each, cells) for each in _others(prepared.model, work, opset).values()]
    others.sort(key=lambda each: (not each.recurrent, order.get(each.node, -1)))
    return [*nodes, *others], work.report


def _raisable(work: Work) -> dict[NodeRef, str]:
    """Return the operators of the nodes that Loops and Scans could become."""
    if work.lowering.raise_loops or not any(repeating_nodes(work.model)):
        return {}
    from rnn_lowering.loops.stage import raisable

    return raisable(work)


def _with_hint(preview: Preview, cells: Mapping[NodeRef, str]) -> Preview:
    """Return the preview of a Loop or Scan with the node that it could become."""
    if preview.node not in cells:
        return preview
    return replace(preview, reason=f"{preview.reason}; it computes {_ARTICLES[cells[preview.node]]}: --raise-loops")


_ARTICLES = {"RNN": "an RNN", "GRU": "a GRU", "LSTM": "an LSTM"}


def _prepared(work: Work) -> tuple[PreparedModel, UnsupportedError | None]:
    """Return the prepared model; if that is refused, the model itself and the error."""
    try:
        return prepared_nodes(work), None
    except OptionError:
        raise
    except UnsupportedError as error:
        found = list(recurrent_nodes(work.model))
        return PreparedModel(work.model, found, NodeSelection(work.lowering)(found)), error


def _planned_preview(planned: NodePlan, plan: ModelPlan) -> Preview:
    hint = plan.native.hint_for(planned.found) if plan.native else ""
    reason = f"{planned.choice.reason}; {hint}" if hint else planned.choice.reason
    return Preview(planned.found.ref, planned.spec, planned.choice.form, reason)


def _preview_of(
    work: Work,
    entry: RecurrentNode,
    prepared: PreparedModel,
    known: KnownInputs,
    refusal: UnsupportedError | None,
) -> Preview:
    if entry not in prepared.wanted:
        return Preview(entry.ref, _readable(prepared.model, entry, known), LEFT, why_left(work.lowering))
    if refusal is not None:
        return Preview.refused(refusal, entry.ref, _readable(prepared.model, entry, known))
    spec = read_node(prepared.model, entry, known)
    try:
        choice = planned(work, entry, spec, prepared.model, opset_of(work, prepared)).choice
    except UnsupportedError as error:
        return Preview.refused(error, entry.ref, spec)
    return Preview(entry.ref, spec, choice.form, choice.reason)


def _readable(model: ir.Model, entry: RecurrentNode, known: KnownInputs) -> NodeSpec | None:
    with suppress(RnnLoweringError):
        return read_node(model, entry, known)
    return None


def _others(model: ir.Model, work: Work, opset: int) -> dict[NodeRef, Preview]:
    """Return the previews of Loops, Scans and foreign nodes: of those that stay, of those that are lowered or
    refused, then of those that the target cannot run."""
    lowering = work.lowering
    left = {ref: Preview(ref, None, LEFT, why) for ref, why in others_left(model, lowering, work.not_raised)}
    previews = left | {each.ref: Preview(each.ref, None, each.form, each.reason) for each in work.report.loops}
    previews |= {ref: Preview.refused(error, ref) for ref, error in (work.refused or {}).items()}
    for error in refusals(model, lowering):
        assert error.node is not None
        if previews.get(error.node) is left.get(error.node):
            previews[error.node] = Preview.refused(error, error.node)
    return previews | (dict(_lacking(model, work, opset)) if lowering.for_a_runtime else {})


def _lacking(model: ir.Model, work: Work, opset: int) -> Iterator[tuple[NodeRef, Preview]]:
    """Yield the previews of the nodes that the target does not compute right."""
    from rnn_lowering.decomposition.stage import OperatorsLeft, unsupported_error

    left = OperatorsLeft.of(model, work.lowering, opset)
    for node in left.replaced:
        reason = f"{node.reason}: becomes {', '.join(node.operators)}"
        yield node.node, Preview(node.node, None, REPLACED, reason, recurrent=False)
    for each in left.unsupported:
        refused = work.lowering.require_supported
        form, hint = (REFUSED, unsupported_error(each, work).hint) if refused else (UNSUPPORTED, "")
        yield each.node, Preview(each.node, None, form, each.reason, hint, recurrent=False)
