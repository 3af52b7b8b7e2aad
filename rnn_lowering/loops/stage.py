"""The stages of the Loops and Scans of a model: nodes for those that compute a cell, forms for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from shlex import quote

import onnx_ir as ir

from rnn_lowering.emit.dialect import PLAIN
from rnn_lowering.errors import (
    NodeRef,
    OptionError,
    RnnLoweringError,
    UnknownTripsError,
    UnsupportedError,
    documented,
)
from rnn_lowering.facts.operators import default_opset, with_bodies
from rnn_lowering.loops.lowering import LoopForms, LoopReport, lower_loops
from rnn_lowering.loops.raising.raised_model import raise_loops
from rnn_lowering.loops.rolling.rolling import raise_all
from rnn_lowering.loops.step_values import LoopLimits
from rnn_lowering.model.copying import clone
from rnn_lowering.model.folding import folded, with_constants
from rnn_lowering.model.model_sizes import open_names
from rnn_lowering.model.opsets import OLDEST_LOWERED_OPSET
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.replace import replace_nodes
from rnn_lowering.model.scopes import REPEATING, repeating_nodes
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.options import Lowering
from rnn_lowering.passes.hints import TRIED, open_trips, tried_at
from rnn_lowering.passes.nodes import choose_forms
from rnn_lowering.passes.report import FOLDED, Report, count_operators
from rnn_lowering.passes.stages import StreamInputs, Work
from rnn_lowering.targets.target import check_operators, check_types

_QUOTE = "'"


def raise_cells(work: Work) -> None:
    """Let Loops and Scans that compute an RNN, GRU or LSTM be nodes: all with `raise_loops`, and loops that an
    exporter traced step by step; else those that are lowered and smaller then."""
    if not work.lowering.raise_loops:
        _raise_to_lower(work)
        return
    raised = raise_all(work.model, work.lowering)
    if not raised.loops and not any(repeating_nodes(raised.model)):
        work.report.notes.append("no Loop or Scan to raise, and no loop that was traced step by step")
    work.report.loops += raised.loops
    work.report.notes += raised.notes
    work.not_raised |= raised.reasons
    if raised.model is not work.model:
        work.put(raised.model)


def _raise_to_lower(work: Work) -> None:
    """Raise Loops and Scans that are lowered, if the model is smaller then. Patterns may be meant for the Loops, so
    with any all stay."""
    options, opset = work.lowering, default_opset(work.model.opset_imports)
    if options.only or options.except_ or options.stream is not None or opset < OLDEST_LOWERED_OPSET:
        return
    wanted = partial(_is_lowered_with_products, options, opset)
    if not any(wanted(node) for _, node in repeating_nodes(work.model)):
        return
    raised = raise_loops(work.model, options, wanted)
    model = _with_sizes(raised.model, options) if raised.loops else raised.model
    if raised.loops and _lowered_size(model, options) < _lowered_size(work.model, options):
        work.report.loops += raised.loops
        work.put(model)


def _lowered_size(model: ir.Model, lowering: Lowering) -> float:
    """Return how many nodes a model has once its Loops and nodes are lowered; infinity if it is refused."""
    trial = Work(clone(model), lowering, Report(lowering.target), lambda: model)
    try:
        lower_exported(trial)
        plan = choose_forms(trial)
        replace_nodes(plan.model, plan.nodes, widen=lowering.widens)
    except RnnLoweringError:
        return math.inf
    return sum(count_operators(plan.model).values())


def raisable(work: Work) -> dict[NodeRef, str]:
    """Return the operators of the nodes that Loops and Scans of a model would become with `raise_loops`."""
    return {each.ref: each.form for each in raise_loops(work.model, work.lowering).loops}


def _with_sizes(model: ir.Model, lowering: Lowering) -> ir.Model:
    """Return a copy with constants for what follows from sizes, if the target needs them; else the model."""
    known = lowering.runtime.loop_forms == ("unroll",)
    return (with_constants(model, sizes=True) if known else None) or model


def lower_exported(work: Work) -> None:
    """Lower Loops and Scans as the options or the target ask. In a preview, those that are refused stay.

    Raises:
        InvalidNodeError, UnsupportedError: As `lower_loops`; the hint says which inputs to fix, or how to keep it.
    """
    if work.refused is None:
        _lower_exported(work, None)
        return
    refused = dict[NodeRef, UnsupportedError]()
    try:
        _lower_exported(work, refused)
    except OptionError:
        raise
    except RnnLoweringError as error:
        if error.node is None:
            raise
        work.refused[error.node] = error
    else:
        work.refused |= refused


def _lower_exported(work: Work, refused: dict[NodeRef, UnsupportedError] | None) -> None:
    """Lower them; those of a folded copy if the number of steps of one is known then. `refused` takes the errors of
    those that are refused, which stay."""
    try:
        lowered = _lowered_or_advised(work, work.model, refused)
    except UnknownTripsError:
        known = folded(work.model)
        if known is None:
            raise
    else:
        unknown = any(isinstance(error, UnknownTripsError) for error in (refused or {}).values())
        known = folded(work.model) if unknown else None
    if known is not None:
        if refused is not None:
            refused.clear()
        work.report.notes.append(FOLDED)
        lowered = _lowered_or_advised(work, known, refused)
    model, loops, notes = lowered
    work.report.notes += notes
    work.report.loops += loops
    if model is not work.model:
        work.put(_with_sizes(model, work.lowering) if loops else model)


def _lowered_or_advised(
    work: Work, model: ir.Model, refused: dict[NodeRef, UnsupportedError] | None
) -> tuple[ir.Model, list[LoopReport], list[str]]:
    """Return a model with its Loops and Scans lowered, a report of each, and notes; errors say what to do."""
    trials = _Trials(model, work.lowering)
    try:
        with documented("loops.md#what-is-refused"):
            result = _lowered(model, work.lowering, refused)
    except UnsupportedError as error:
        _advise(error, trials, work.inputs, partial(trials.all_known, error.node))
        raise
    for ref, each in (refused or {}).items():
        _advise(each, trials, work.inputs, partial(trials.is_known, ref))
    return result


def _advise(
    error: UnsupportedError, trials: _Trials, inputs: StreamInputs, is_known: Callable[[Sequence[str]], bool]
) -> None:
    """Let an error say which inputs to fix, or how to keep the node."""
    fixes, keep = "", _way_to_keep(error.node, trials.lowering)
    if isinstance(error, UnknownTripsError):
        fixes = open_trips(trials.model, error.value, inputs, is_known=is_known)
        keep = keep or ("" if fixes else "keep it, for a runtime that runs Loop (--targets)")
    error.advise(fixes, error.hint, keep)


def _lowered(
    model: ir.Model, lowering: Lowering, refused: dict[NodeRef, UnsupportedError] | None = None
) -> tuple[ir.Model, list[LoopReport], list[str]]:
    forms = partial(_forms_of, lowering, default_opset(model.opset_imports))
    return lower_loops(model, forms, LoopLimits(lowering.max_unroll, lowering.max_nodes), refused)


class _Trials:
    """Tells whether the numbers of steps of Loops and Scans are known once sizes are; each trial is made once."""

    def __init__(self, model: ir.Model, lowering: Lowering) -> None:
        self.model = model
        self.lowering = lowering
        self._unknown: dict[Hashable, set[NodeRef]] = {}

    def all_known(self, ref: NodeRef | None, names: Sequence[str]) -> bool:
        """Return whether the number of steps of one node is known once these sizes are, and all others that any
        sizes decide."""
        every = open_names(self.model)
        return any(
            ref not in (unknown := self._unknown_at(names, size)) and unknown <= self._unknown_at(every, size)
            for size in TRIED
        )

    def is_known(self, ref: NodeRef, names: Sequence[str]) -> bool:
        """Return whether the number of steps of one node is known then."""
        return any(ref not in self._unknown_at(names, size) for size in TRIED)

    def _unknown_at(self, names: Sequence[str], size: int) -> set[NodeRef]:
        key = *names, size
        if key not in self._unknown:
            trial = tried_at(self.model, names, size)
            refused: dict[NodeRef, UnsupportedError] = {}
            with suppress(RnnLoweringError):
                if trial is not None:
                    _lowered(trial, self.lowering, refused)
            self._unknown[key] = {each for each, error in refused.items() if isinstance(error, UnknownTripsError)}
        return self._unknown[key]


def _way_to_keep(ref: NodeRef | None, lowering: Lowering) -> str:
    """Return how to keep a Loop or Scan that is only lowered since the nodes get another form."""
    if ref is None or lowering.lower_loops or ref.operator.lower() not in lowering.runtime.loop_forms:
        return ""
    name = quote(ref.operator if ref.name.startswith("-> ") else ref.name)
    return f"keep it: --except {name if name.startswith(_QUOTE) else _QUOTE + name + _QUOTE}"


def _forms_of(lowering: Lowering, opset: int, node: ir.Node) -> LoopForms:
    """Return the forms that a Loop or Scan may get."""
    runtime, selection, own = lowering.runtime, NodeSelection(lowering), node.op_type.lower()
    forms = _forms_that_run(lowering, node)
    asked = selection.asks_for(node) or own not in forms
    if not selection.selects(node):
        return LoopForms((), stays_in_bodies=True)
    one_step = lowering.stream is not None and not lowering.keeps_nodes and _has_one_step(node)
    if not one_step and (lowering.keeps_nodes or (runtime.loops.runs_exported and not asked)):
        return LoopForms((), without_steps=not lowering.keeps_nodes)
    check_types([value.dtype for value in (*node.inputs, *node.outputs) if value is not None], None, runtime)
    if one_step:
        wanted, reason = ("unroll", *forms), "a call has one step"
    else:
        wanted, reason = _wanted_forms(lowering, forms, node.op_type)
    return LoopForms(
        wanted,
        reason,
        nested_stay=not one_step and lowering.to == "auto" and own in forms and {"scan", "loop"} <= {*forms},
        optional=not asked,
        runs_no_steps=runtime.loops.runs_no_steps,
        strict_scans=runtime.loops.strict_scans,
        check=partial(check_operators, target=runtime),
        dialect=runtime.loops.dialect or PLAIN,
        instead=runtime.rules(opset),
        finish=(*runtime.finish, *runtime.loops.finish),
    )


def _forms_that_run(lowering: Lowering, node: ir.Node) -> tuple[str, ...]:
    """Return the forms that the runtime has for a Loop or Scan, the preferred one first: perhaps no nested Scan."""
    runtime = lowering.runtime
    inner = [*with_bodies(node)][1:]
    nests = any(each.op_type in REPEATING or is_recurrent(each) for each in inner)
    scans = runtime.loops.nested_scans or not nests
    return tuple(form for form in runtime.loop_forms if scans or form != "scan")


def _wanted_forms(lowering: Lowering, forms: tuple[str, ...], operator: str) -> tuple[tuple[str, ...], str]:
    """Return those of the forms that a Loop or Scan gets, and the reason for the first one."""
    own = operator.lower()
    if lowering.to in forms:
        return (lowering.to,), "requested"
    if lowering.to != "auto":
        raise UnsupportedError(
            f"{lowering.runtime.name} does not support the form {lowering.to} of an exported {operator}",
            hint=f"use --to {' or --to '.join(forms)}",
        )
    if own not in forms:
        return forms, f"first choice for target {lowering.runtime.name}"
    faster = ("scan",) if own == "loop" and "scan" in forms[: forms.index(own)] else ()
    return (*faster, own), "requested"


def _is_lowered_with_products(lowering: Lowering, opset: int, node: ir.Node) -> bool:
    """Return whether a Loop or Scan gets another form, and its step has a product of matrices, as a node's has."""
    if not any(inner.op_type in ("Gemm", "MatMul") for inner in with_bodies(node)):
        return False
    try:
        return bool(_forms_of(lowering, opset, node).forms)
    except UnsupportedError:
        return True


def _has_one_step(node: ir.Node) -> bool:
    """Return whether a Scan has one row to scan."""
    count = node.attributes.get_int("num_scan_inputs", 0) or 0
    if node.op_type != "Scan" or not count:
        return False
    value, axes = node.inputs[len(node.inputs) - count], node.attributes.get_ints("scan_input_axes", ()) or (0,)
    return value is not None and value.shape is not None and value.shape[axes[0]] == 1
