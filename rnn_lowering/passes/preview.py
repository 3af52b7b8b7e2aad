"""Preview a lowering: the form that each node would get, or why it stays or is refused."""

from __future__ import annotations

from contextlib import suppress

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.model.copying import restored
from rnn_lowering.model.preparation import NodeSelection, PreparedModel, read_node
from rnn_lowering.model.scopes import RecurrentNode, recurrent_nodes
from rnn_lowering.model.siblings import groups_of, shared_loops
from rnn_lowering.model.sizes.model_sizes import known_inputs
from rnn_lowering.options import Lowering
from rnn_lowering.passes.exported_loops import nodes_left, refusals
from rnn_lowering.passes.planning import ModelPlanner
from rnn_lowering.passes.report import LEFT, Preview, Report
from rnn_lowering.spec.connections import InputFacts
from rnn_lowering.spec.node_spec import NodeSpec


def preview_model(model: ir.Model, lowering: Lowering) -> tuple[list[Preview], Report]:
    """Return previews of the recurrent nodes, and of the Loops and Scans of the model itself, and a report of what
    else would be done to the model, which stays as it is.

    Raises:
        InvalidNodeError, UnsupportedError: A selected node cannot be read.
    """
    planner = ModelPlanner(lowering, Report(lowering.target))
    planner.check_selection(model)
    with restored(model):
        given, loops = _without_loops(planner, planner.as_stream(planner.at_given_sizes(model)))
        prepared, refusal = _prepared(planner, given)
        with suppress(RnnLoweringError):  # it is said of each node
            plan = planner.with_known_sizes(prepared)
            prepared = plan.prepared
            planner.report.notes += shared_loops(groups_of(plan.nodes))
        planner.tell(prepared)
        known = known_inputs(prepared.model, prepared.found)
        nodes = [_of_node(planner, entry, prepared, known, refusal) for entry in prepared.found]
        return [*nodes, *_others(prepared.model, lowering, loops).values()], planner.report


def _without_loops(planner: ModelPlanner, model: ir.Model) -> tuple[ir.Model, dict[NodeRef, Preview]]:
    """Return the model without the Loops and Scans that are lowered, and their previews; where one is refused the
    model itself and the preview of that one."""
    try:
        lowered = planner.without_loops(model)
    except OptionError:
        raise
    except RnnLoweringError as error:
        if error.node is None:
            raise
        return model, {error.node: Preview.refused(error, error.node)}
    return lowered, {each.ref: Preview(each.ref, None, each.form, each.reason) for each in planner.report.loops}


def _prepared(planner: ModelPlanner, model: ir.Model) -> tuple[PreparedModel, UnsupportedError | None]:
    """Return the prepared model; where that is refused, the model itself and the error."""
    try:
        return planner.prepare(model), None
    except OptionError:
        raise
    except UnsupportedError as error:
        found = list(recurrent_nodes(model))
        return PreparedModel(model, found, NodeSelection.of(planner.lowering)(found)), error


def _others(model: ir.Model, lowering: Lowering, loops: dict[NodeRef, Preview]) -> dict[NodeRef, Preview]:
    """Return the previews of nodes that are not recurrent, or foreign: those that stay, those of `loops`, then
    those that the target cannot run."""
    stay = {ref: Preview(ref, None, LEFT, why) for ref, why in nodes_left(model, lowering)}
    found = stay | loops
    for error in refusals(model, lowering):
        assert error.node is not None
        if found.get(error.node) is stay.get(error.node):
            found[error.node] = Preview.refused(error, error.node)
    return found


def _of_node(
    planner: ModelPlanner,
    entry: RecurrentNode,
    prepared: PreparedModel,
    known: InputFacts,
    refusal: UnsupportedError | None,
) -> Preview:
    if entry not in prepared.wanted:
        return Preview(entry.ref, _readable(prepared.model, entry, known), LEFT, planner.why_left)
    if refusal is not None:
        return Preview.refused(refusal, entry.ref, _readable(prepared.model, entry, known))
    spec = read_node(prepared.model, entry, known)
    try:
        choice = planner.planned(entry, spec, prepared.model, planner.opset(prepared)).choice
    except UnsupportedError as error:
        return Preview.refused(error, entry.ref, spec)
    return Preview(entry.ref, spec, choice.form, choice.reason)


def _readable(model: ir.Model, entry: RecurrentNode, known: InputFacts) -> NodeSpec | None:
    try:
        return read_node(model, entry, known)
    except RnnLoweringError:
        return None
