"""The forms of the Loops and Scans that an exporter wrote, and how to mend one that cannot be lowered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from shlex import quote

import onnx_ir as ir

from rnn_lowering.emit.dialect import PLAIN
from rnn_lowering.errors import NodeRef, RnnLoweringError, UnknownTripsError, UnsupportedError, documented
from rnn_lowering.facts.bodies import with_bodies
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.loops.body_values import LoopLimits
from rnn_lowering.loops.lowering import LoopForms, LoopReport, lower_loops
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.scopes import REPEATING
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.options import Lowering
from rnn_lowering.passes.hints import TRIED, StreamInputs, open_trips, tried_at
from rnn_lowering.targets.target import check_operators, check_types

_QUOTE = "'"


def lower_exported(
    model: ir.Model,
    lowering: Lowering,
    inputs: StreamInputs,
    refused: dict[NodeRef, UnsupportedError] | None = None,
) -> tuple[ir.Model, list[LoopReport], list[str]]:
    """Lower Loops and Scans as the options or the target ask, in a copy; return it, a report of each, and notes.

    Where nothing changes, the model itself is returned.

    With `refused`, the nodes that are refused stay, and it takes their errors.

    Raises:
        InvalidNodeError, UnsupportedError: As `lower_loops`; the hint says which inputs to fix, or how to keep it.
    """
    trials = _Trials(model, lowering)
    try:
        with documented("loops.md#what-is-refused"):
            result = _lowered(model, lowering, refused)
    except UnsupportedError as error:
        _advise(error, trials, inputs, trials.all_known)
        raise
    for ref, each in (refused or {}).items():
        _advise(each, trials, inputs, partial(trials.is_known, ref))
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

    def all_known(self, names: Sequence[str]) -> bool:
        """Return whether all numbers of steps are known once these sizes are."""
        return any(self._all_known_at(names, size) for size in TRIED)

    def _all_known_at(self, names: Sequence[str], size: int) -> bool:
        trial = tried_at(self.model, names, size)
        try:
            if trial is not None:
                _lowered(trial, self.lowering)
        except UnknownTripsError:
            return False
        except UnsupportedError:
            pass
        return True

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
    if ref is None or lowering.loops or ref.operator.lower() not in lowering.runtime.loop_forms:
        return ""
    name = quote(ref.operator if ref.name.startswith("-> ") else ref.name)
    return f"keep it: --except {name if name.startswith(_QUOTE) else _QUOTE + name + _QUOTE}"


def _forms_of(lowering: Lowering, opset: int, node: ir.Node) -> LoopForms:
    """Return the forms that a Loop or Scan may get."""
    runtime, own, selection = lowering.runtime, node.op_type.lower(), NodeSelection(lowering)
    forms = runtime.loop_forms
    inside = [*with_bodies(node)][1:]
    if not runtime.nested_scans and any(inner.op_type in REPEATING or is_recurrent(inner) for inner in inside):
        forms = tuple(form for form in forms if form != "scan")
    runs = own in forms
    asked = selection.asks_for(node) or not runs
    if not selection.selects(node):
        return LoopForms((), stays_in_bodies=True)
    one_step = lowering.stream is not None and not lowering.keeps_nodes and _has_one_step(node)
    if not one_step and (lowering.keeps_nodes or (runtime.runs_exported and not asked)):
        return LoopForms((), without_steps=not lowering.keeps_nodes)
    check_types([value.dtype for value in (*node.inputs, *node.outputs) if value is not None], None, runtime)
    shaped = partial(
        LoopForms,
        optional=not asked,
        scans_need_rows=runtime.scans_need_rows,
        check=partial(check_operators, target=runtime),
        dialect=runtime.loop_dialect or PLAIN,
        instead=runtime.rules(opset),
        finish=(*runtime.finish, *runtime.loop_finish),
    )
    if one_step:
        return shaped(("unroll", *forms), "a call has one step")
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


def is_lowered_with_products(lowering: Lowering, opset: int, node: ir.Node) -> bool:
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
