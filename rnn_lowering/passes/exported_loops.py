"""The Loops and Scans of the model itself: which are lowered, which stay, and what the target cannot run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.dialect import PLAIN
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.loops.body_values import LoopLimits
from rnn_lowering.loops.lowering import LoopForms, lower_loops
from rnn_lowering.loops.trips import UnknownTripsError
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.scopes import exported_loops, foreign_nodes, operators_in
from rnn_lowering.model.sizes.folding import with_constants
from rnn_lowering.options import KEEP, Lowering
from rnn_lowering.passes.advice import open_trips
from rnn_lowering.passes.report import Report
from rnn_lowering.spec.node_spec import default_opset
from rnn_lowering.targets.support import check_operators, check_types

FOREIGN = "not an operator of ONNX"
UNSELECTED = "not selected"
_WRITTEN = "a Loop or Scan of the model; --loops lowers it"
_RUNTIMES_OF_FOREIGN = ("portable", "onnxruntime")


def lower_exported(model: ir.Model, lowering: Lowering, report: Report) -> ir.Model:
    """Return the model, or a copy in which Loops and Scans are lowered as the options or the target ask."""
    limits = LoopLimits(lowering.max_unroll, lowering.max_nodes)
    forms = partial(_forms_of, lowering, default_opset(model.opset_imports))
    try:
        lowered, loops, notes = lower_loops(model, forms, limits)
    except UnknownTripsError as error:
        error.advise(open_trips(model, error.value), error.hint)
        raise
    report.notes += notes
    report.loops += loops
    if loops and lowering.runtime.loop_forms == ("unroll",):
        return with_constants(lowered, sizes=True) or lowered
    return lowered


def _forms_of(lowering: Lowering, opset: int, node: ir.Node) -> LoopForms:
    """Return the forms that a Loop or Scan may get."""
    runtime, own = lowering.runtime, node.op_type.lower()
    forms = runtime.loop_forms
    runs = own in forms
    if not NodeSelection.of(lowering).selects(node):
        return LoopForms((), left=True)
    if lowering.to == KEEP or (runs and not lowering.loops and runtime.runs_exported):
        return LoopForms((), without_steps=lowering.to != KEEP)
    check_types([value.dtype for value in (*node.inputs, *node.outputs) if value is not None], None, runtime)
    shaped = partial(
        LoopForms,
        optional=runs and not lowering.loops,
        scans_need_rows=runtime.scans_need_rows,
        check=partial(check_operators, target=runtime),
        dialect=runtime.loop_dialect or PLAIN,
        instead=runtime.rules(opset),
        finish=(*runtime.finish, *runtime.loop_finish),
    )
    if lowering.to in forms:
        return shaped((lowering.to,), "requested")
    if lowering.to != "auto":
        raise UnsupportedError(
            f"{runtime.name} does not support the form {lowering.to} of an exported {node.op_type}",
            hint=f"use --to {' or --to '.join(forms)}",
        )
    if runs:
        faster = ("scan",) if own == "loop" and "scan" in forms[: forms.index(own)] else ()
        return shaped((*faster, own), "requested", nested_stay={"scan", "loop"} <= {*forms})
    return shaped(forms, f"first choice for target {runtime.name}")


def nodes_left(model: ir.Model, lowering: Lowering) -> Iterator[tuple[NodeRef, str]]:
    """Yield the foreign nodes, and the Loops and Scans of the model itself that stay, each with the reason."""
    for ref in foreign_nodes(model):
        yield ref, FOREIGN
    for ref, node in exported_loops(model):
        yield ref, _WRITTEN if NodeSelection.of(lowering).selects(node) else UNSELECTED


def refusals(model: ir.Model, lowering: Lowering) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that is not lowered and that the target cannot run."""
    runtime, selected = lowering.runtime, NodeSelection.of(lowering)
    if runtime.name not in _RUNTIMES_OF_FOREIGN:
        for ref in foreign_nodes(model):
            reason = f"{runtime.name} does not support it: {FOREIGN}"
            yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
    own = [(ref, node) for ref, node in exported_loops(model) if selected.selects(node)]
    for ref, node in own:
        try:
            check_operators(operators_in([node]), ref, runtime)
        except UnsupportedError as error:
            yield error
    for ref, node in own:
        if node.op_type.lower() not in runtime.loop_forms:
            hint = "export the model with its steps unrolled, or drop --target"
            yield UnsupportedError(f"{runtime.name} does not support {ref.operator}", hint=hint, node=ref)
