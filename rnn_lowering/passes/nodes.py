"""The stage of the nodes: their forms, chosen before the first edit, and equivalents; and the stage that adapts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lowering.errors import (
    InvalidNodeError,
    NodeRef,
    UnknownLengthsError,
    UnknownSizeError,
    UnsupportedError,
)
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.model_sizes import name_cut_axes
from rnn_lowering.model.opsets import OLDEST_LOWERED_OPSET, import_opset, is_new, opset_without
from rnn_lowering.model.preparation import NodePlan, NodeSelection, PreparedModel, prepare, read, read_node
from rnn_lowering.model.replace import emitted_for, replace_nodes
from rnn_lowering.model.scopes import (
    SORTED,
    RecurrentNode,
    exported_loops,
    foreign_nodes,
    operators_in,
    origin_of,
    recurrent_nodes,
    repeating_nodes,
)
from rnn_lowering.nodes.kinds import CELLS
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import CONSTANTS, FOLDED, NodeReport, count_operators
from rnn_lowering.passes.stages import Edit, Work
from rnn_lowering.recurrence.forms import Choice, Emitted
from rnn_lowering.targets.choice import FormChooser
from rnn_lowering.targets.target import NESTED_SCAN, Target, check_operators

if TYPE_CHECKING:
    from rnn_lowering.passes.native import NativeNodes

_MOST_ASKED = 8
"""The number of nodes that are asked for the sizes that they need, before the first is refused."""


@dataclass(frozen=True)
class ModelPlan:
    """The nodes of a model that are lowered, and their forms.

    Attributes:
        prepared: The model in which the nodes are replaced.
        nodes: The nodes that are replaced, and their forms.
        opset: The opset that the lowered model imports.
        every: Those and the nodes that stay native as they are, in the order of the model.
        native: What is known of them as native nodes; None for a target without a rule.
    """

    prepared: PreparedModel
    nodes: list[NodePlan]
    opset: int
    every: list[NodePlan]
    native: NativeNodes | None

    @property
    def model(self) -> ir.Model:
        return self.prepared.model


def lower_nodes(work: Work) -> Edit:
    """Choose the form of each node; return what replaces them.

    Raises:
        InvalidNodeError, UnsupportedError: A node, or another one that the target does not run.
    """
    plan = choose_forms(work)
    if (plan.nodes or work.lowering.fixes_inputs) and work.lowering.runtime.folds:
        plan = _with_constants(work, plan)
    work.plan = plan
    work.model = plan.model
    _report_preparation(work, plan.prepared)
    for refusal in refusals(plan.model, work.lowering):
        raise refusal
    work.report.notes += map(str, work.report.loops)
    work.report.nodes += map(NodeReport.of, plan.every)
    work.report.notes += _not_as_requested(work.lowering.to, plan.nodes)
    work.report.notes += plan.native.notes(plan.every) if plan.native else ()
    return lambda: _replace(work, plan)


def _replace(work: Work, plan: ModelPlan) -> None:
    """Replace the nodes of a plan, in place."""
    model, lowering, notes = work.model, work.lowering, work.report.notes
    notes += [_dequantized(node.spec) for node in plan.nodes if lowering.dequantize and node.spec.quantized]
    notes += replace_nodes(model, plan.nodes, widen=lowering.widens, dequantize=lowering.dequantize)
    name_cut_axes(model)
    if plan.opset < default_opset(model.opset_imports):
        notes += import_opset(model, plan.opset)


def _not_as_requested(to: str, nodes: Iterable[NodePlan]) -> Iterator[str]:
    """Yield why nodes are unrolled though another form was requested."""
    unrolled = (node.choice for node in nodes if node.choice.form == "unroll")
    reasons = dict.fromkeys(choice.reason for choice in unrolled if to not in ("auto", "unroll"))
    return (f"unroll in place of {to}: {reason}" for reason in reasons)


def _dequantized(spec: NodeSpec) -> str:
    loss = "; X and H are not rounded to 8 bits any more" if spec.rounds else ""
    return f"{spec.node}: the integers of {' and '.join(spec.quantized)} became floats, as requested{loss}"


def check_selection(work: Work) -> None:
    """Check that every pattern matches a recurrent node, or a Loop or Scan that may be lowered.

    Raises:
        OptionError: A pattern matches none.
    """
    lowering, model = work.lowering, work.model
    if not (lowering.only or lowering.except_):
        return
    selection, loops = NodeSelection(lowering), [node for _, node in repeating_nodes(model)]
    recurrent = [entry.node for entry in recurrent_nodes(model)]
    if recurrent or any(map(selection.asks_for, loops)):
        selection.check([*recurrent, *loops])


def choose_forms(work: Work) -> ModelPlan:
    """Return the plan of a model; that of a folded copy if a form needs sizes that are known then, or if an invalid
    branch is removed because it is never run."""
    return with_known_sizes(work, prepared_nodes(work))


def prepared_nodes(work: Work) -> PreparedModel:
    """Return the model, or a copy, in which the nodes can be replaced."""
    lowering, model = work.lowering, work.model
    try:
        prepared = prepare(model, NodeSelection(lowering), lowering.max_nodes, inferred=work.inferred)
    except UnsupportedError as error:
        if default_opset(model.opset_imports) < OLDEST_LOWERED_OPSET and not model.functions:
            from rnn_lowering.passes.hints import deciding_conditions

            error.advise(deciding_conditions(model), error.hint)
        raise
    if prepared.wanted and not work.was_sorted and SORTED not in work.report.notes:
        return replace(prepared, notes=(SORTED, *prepared.notes))
    return prepared


def with_known_sizes(work: Work, prepared: PreparedModel) -> ModelPlan:
    """Return the plan of a prepared model, as `choose_forms`."""
    try:
        return _plan(work, prepared)
    except (UnknownSizeError, UnknownLengthsError):
        from rnn_lowering.model.folding import folded

        known = folded(prepared.model)
        if known is None:
            raise
    except InvalidNodeError as error:
        known = _without_branches(work, prepared.model, error)
    try:
        plan = _plan_of_copy(work, known, prepared)
    except InvalidNodeError as error:  # the sizes that are known now make a branch invalid
        plan = _plan_of_copy(work, _without_branches(work, prepared.model, error), prepared)
    work.report.notes.append(FOLDED)
    return plan


def _with_constants(work: Work, plan: ModelPlan) -> ModelPlan:
    """Return the plan of a copy that has constants for what nodes compute from constants and known sizes."""
    from rnn_lowering.model.folding import with_constants

    known = with_constants(plan.model, sizes=True)
    if known is None or count_operators(known) == count_operators(plan.model):
        return plan
    work.report.notes += [CONSTANTS] if FOLDED not in work.report.notes else []
    return _plan_of_copy(work, known, plan.prepared)


def _without_branches(work: Work, model: ir.Model, error: InvalidNodeError) -> ir.Model:
    """Return a copy of a model without branches that are never run; raise the error, and name the input that
    decides, if that leaves an invalid one."""
    from rnn_lowering.model.folding import folded
    from rnn_lowering.passes.hints import deciding_input

    def is_valid(trial: ir.Model) -> bool:
        try:
            read(trial, NodeSelection(work.lowering)(list(recurrent_nodes(trial))))
        except InvalidNodeError:
            return False
        return True

    if not any(entry.ref == error.node and len(entry.path) > 1 for entry in recurrent_nodes(model)):
        raise error
    known = folded(model, decide=True)
    if known is None or not is_valid(known):
        hint = deciding_input(known or model, is_valid)
        raise InvalidNodeError(error.reason, hint=hint or error.hint, node=error.node) from None
    return known


def _plan_of_copy(work: Work, known: ir.Model, before: PreparedModel) -> ModelPlan:
    """Return the plan of a copy of a model that is prepared, in which more is known."""
    prepared = prepare(known, NodeSelection(work.lowering), work.lowering.max_nodes, inferred=True)
    plan = _plan(work, prepared)
    return replace(plan, prepared=replace(plan.prepared, notes=before.notes))


def _plan(work: Work, prepared: PreparedModel) -> ModelPlan:
    prepared = prepared.with_known_inputs()
    specs = [read_node(prepared.model, entry, prepared.known) for entry in prepared.wanted]
    opset = opset_of(work, prepared)
    native = _native_nodes(work, prepared, specs, opset)
    plan = _planned_nodes(work, prepared, specs, native, opset)
    every = native.chosen(plan) if native else plan
    replaced = [each for each in every if native is None or not native.is_untouched(each)]
    return ModelPlan(prepared, replaced, opset, every, native)


def _planned_nodes(
    work: Work, prepared: PreparedModel, specs: list[NodeSpec], native: NativeNodes | None, opset: int
) -> list[NodePlan]:
    """Return each node with its form. If nodes need sizes, the error of the first names those of all."""
    plan, unknown = [], list[UnknownSizeError]()
    for entry, spec in zip(prepared.wanted, specs, strict=True):
        try:
            plan.append(planned(work, entry, spec, prepared.model, opset))
        except UnsupportedError as error:
            if native is not None and native.stays(entry):
                plan.append(native.kept(entry, spec, opset))
            elif isinstance(error, UnknownSizeError):
                unknown.append(error)
            else:
                raise
        if len(unknown) == _MOST_ASKED:
            break
    if unknown:
        from rnn_lowering.passes.hints import advise_all

        raise advise_all(unknown)
    return plan


def _native_nodes(work: Work, prepared: PreparedModel, specs: list[NodeSpec], opset: int) -> NativeNodes | None:
    """Return what is known of the nodes as native ones; None for a target without a rule."""
    if work.lowering.runtime.native is None:
        return None
    from rnn_lowering.passes.native import NativeNodes

    return NativeNodes.of(work.lowering, prepared, specs, opset)


def opset_of(work: Work, prepared: PreparedModel) -> int:
    """Return the opset that the lowered model imports."""
    return opset_behind(work, prepared.model, [entry.node for entry in prepared.wanted])


def opset_behind(work: Work, model: ir.Model, nodes: Collection[ir.Node]) -> int:
    """Return the opset that a model imports once some nodes are replaced."""
    lowering = work.lowering
    opset, newest = default_opset(model.opset_imports), lowering.runtime.newest_opset
    if lowering.keep_rest:
        return opset
    if newest is not None and opset > newest:
        lowest = opset_without(model, nodes, newest)
        return lowest if lowest <= newest else opset
    if lowering.stream or any(is_new(node, opset) for node in nodes):
        return opset_without(model, nodes)
    return opset


def planned(
    work: Work, entry: RecurrentNode, spec: NodeSpec, model: ir.Model, opset: int, *, in_calls: bool = False
) -> NodePlan:
    """Return a node with its form.

    Args:
        work: The options, and the inputs of a stream.
        entry: The node.
        spec: Its specification.
        model: The model.
        opset: The opset of its graph.
        in_calls: Whether the model becomes a stream of a fixed number of frames: no length need be known.

    Raises:
        UnsupportedError: As `FormChooser.choose`; if a size or length is unknown, the hint names inputs to fix.
    """
    options = work.lowering

    def emitted(choice: Choice) -> Emitted:
        trial = NodePlan(entry, spec, choice, opset)
        return emitted_for(trial, model.ir_version, widen=options.widens, dequantize=options.dequantize)

    as_lowered = spec.as_floats() if options.dequantize else spec
    target = options.runtime if options.join else options.runtime.without_joins()
    target = target.of_any_length() if in_calls else target
    try:
        chooser = FormChooser(as_lowered, opset, options.max_unroll, target, emitted, "Scan" in entry.around)
        choice = chooser.choose(options.to)
    except (UnknownSizeError, UnknownLengthsError) as error:
        from rnn_lowering.passes.hints import advise

        advise(error, model, spec, options, work.inputs)
        raise
    return NodePlan(entry, spec, choice, opset)


def _report_preparation(work: Work, prepared: PreparedModel) -> None:
    """Add to the report what preparing a model did, and which nodes are not lowered."""
    wanted, report = set(prepared.wanted), work.report
    raised = {loop.name for loop in report.loops if loop.form in {cell.operator for cell in CELLS.values()}}
    entries = [entry for entry in prepared.found if entry not in wanted and entry.node.name not in raised]
    left = [(entry.ref, why_left(work.lowering)) for entry in entries]
    left += others_left(prepared.model, work.lowering, work.not_raised)
    report.notes += prepared.notes
    report.left += [f"{ref}: {why}" for ref, why in left]


# The model as a whole


_MANY_STEPS = 32
"""Compilers take 0.03 to 0.3 s for each unrolled step, and more for each if there are more."""


def adapt(work: Work) -> Edit:
    """Return what changes the model once its nodes are lowered."""
    return lambda: _adapt(work)


def _adapt(work: Work) -> None:
    runtime, report = work.lowering.runtime, work.report
    if runtime.model.adaptations:
        from rnn_lowering.decomposition.adaptations import adapted

        texts = list(adapted(work.model, runtime, changed=work.changes))
        report.adapted += texts
        report.notes += texts
    if work.chosen.every or report.loops:
        report.notes += _not_run(runtime)
    report.notes += _many_steps(report.nodes)


def _not_run(target: Target) -> Iterator[str]:
    """Yield what the user should know of a runtime that was not run."""
    page = target.documented
    if page is not None and not page.run:
        unchecked = f"; not checked: {page.unchecked}" if page.unchecked else ""
        yield f"{target.name} was not run: its operators come from {page.source}, of {page.date}{unchecked}"


def _many_steps(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a note if more steps are unrolled than compilers load quickly, and a stream is possible."""
    unrolled = [node for node in nodes if node.form == "unroll" and node.steps > _MANY_STEPS]
    if not unrolled or any(node.direction != "forward" for node in unrolled):
        return []
    steps = max(node.steps for node in unrolled)
    stream = "--stream AXIS=1 (AXIS: the time dimension)"
    return [f"{steps} steps are unrolled, which compilers load slowly; a stream has only one step: {stream}"]


# The nodes that stay as they are, and which of them the target does not run


_FOREIGN = "not an operator of ONNX"
_UNSELECTED, _KEPT = "not selected", "kept"
_EXPORTED = "--lower-loops lowers it"
_TRACED = "--raise-loops makes a node of its steps, if they compute one"

_OFTEN = 4
"""A loop that is traced has so many steps at least."""

_RUNTIMES_OF_FOREIGN = ("portable", "onnxruntime")


def why_left(lowering: Lowering) -> str:
    """Return the reason why a recurrent node that could be lowered is not."""
    return _KEPT if lowering.keeps_nodes else _UNSELECTED


def others_left(
    model: ir.Model, lowering: Lowering, not_raised: Mapping[NodeRef, str]
) -> Iterator[tuple[NodeRef, str]]:
    """Yield the foreign nodes, and the Loops and Scans of the model itself that stay, each with the reason.

    Args:
        model: The model.
        lowering: The options.
        not_raised: Why Loops and Scans are not raised.
    """
    for ref in foreign_nodes(model):
        yield ref, _FOREIGN
    selected, stays = NodeSelection(lowering), _KEPT if lowering.keeps_nodes else _EXPORTED
    for ref, node in exported_loops(model):
        why = f"not raised: {not_raised[ref]}" if ref in not_raised else stays
        yield ref, why if selected.selects(node) else _UNSELECTED
    if not lowering.raise_loops and _repeats_products(model):
        from rnn_lowering.loops.door import traced_loops

        yield from ((ref, _TRACED) for ref in traced_loops(model))


def _repeats_products(model: ir.Model) -> bool:
    """Whether a model multiplies with the same weights often, as a loop does that was traced step by step."""
    weights = Counter(
        source.inputs[0] if source is not None and source.op_type == "Identity" else value
        for node in model.graph
        if node.op_type in ("Gemm", "MatMul")
        for value in node.inputs[1:2]
        if value is not None
        for source in [value.producer()]
    )
    return max(weights.values(), default=0) >= _OFTEN


def refusals(model: ir.Model, lowering: Lowering) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that is not lowered and that the target cannot run."""
    runtime, selected = lowering.runtime, NodeSelection(lowering)
    if runtime.name not in _RUNTIMES_OF_FOREIGN:
        for ref in foreign_nodes(model):
            reason = f"{runtime.name} does not support it: {_FOREIGN}"
            yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
    if runtime.model.adaptations:
        from rnn_lowering.decomposition.adaptations import refused

        yield from refused(model, runtime)
    for scope, node in repeating_nodes(model, ("Scan",)) if not runtime.loops.nested_scans else ():
        if "Scan" in scope.around:
            hint = "unroll one of them (--to unroll), or drop --target"
            yield UnsupportedError(NESTED_SCAN.format(runtime.name), hint=hint, node=origin_of(node, scope.text))
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
