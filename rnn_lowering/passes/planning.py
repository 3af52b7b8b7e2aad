"""Plan a lowering before the first edit: the steps of `ModelPlanner.plan`, on copies, until each node has its form.

Exported Loops and Scans are lowered on the way, if the options or the target ask for it. A preview makes the same
plan, and says for each node which form it would get, or why it stays or is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from shlex import quote

import onnx_ir as ir

from rnn_lowering.emit.dialect import PLAIN
from rnn_lowering.errors import (
    InvalidNodeError,
    NodeRef,
    OptionError,
    RnnLoweringError,
    UnknownLengthsError,
    UnknownSizeError,
    UnknownTripsError,
    UnsupportedError,
    documented,
)
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.loops.body_values import LoopLimits
from rnn_lowering.loops.lowering import LoopForms, lower_loops
from rnn_lowering.model.copying import clone, restored
from rnn_lowering.model.fixed_inputs import at_sizes, folded, input_arrays, with_constants
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.loop_sharing import groups_of, shared_loops
from rnn_lowering.model.model_sizes import forget_sizes, known_inputs
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.model.opsets import OLDEST_LOWERED_OPSET, is_new, opset_without
from rnn_lowering.model.preparation import (
    NodePlan,
    NodeSelection,
    PreparedModel,
    prepare,
    read,
    read_node,
)
from rnn_lowering.model.replace import operators_for, prefix_of, replace_nodes, shorten_convolutions
from rnn_lowering.model.scopes import (
    SORTED,
    RecurrentNode,
    exported_loops,
    foreign_nodes,
    operators_in,
    recurrent_nodes,
    repeating_nodes,
    sort_nodes,
)
from rnn_lowering.nodes.connections import InputFacts
from rnn_lowering.nodes.kinds import has_steps
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.options import KEEP, Lowering, parse_stream
from rnn_lowering.passes.hints import (
    NO_LENGTHS,
    StreamInputs,
    deciding_conditions,
    deciding_input,
    one_call,
    open_lengths,
    open_sizes,
    open_trips,
)
from rnn_lowering.passes.report import LEFT, NodeReport, Preview, Report, SetInput
from rnn_lowering.passes.stream import StreamPass, open_time
from rnn_lowering.streaming.frames import time_inputs
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.targets.choice import Choice, FormChooser
from rnn_lowering.targets.target import check_operators, check_types

_FOLDED = "computed the values that follow from the fixed sizes"

_CONSTANTS = "computed the values that follow from constants"

FOREIGN = "not an operator of ONNX"

_UNSELECTED = "not selected"

_KEPT = "kept"

_EXPORTED = "--loops lowers it"

_QUOTE = "'"

_LOOP_FORMS = ("scan", "loop", "unroll")

_RUNTIMES_OF_FOREIGN = ("portable", "onnxruntime")


@dataclass(frozen=True)
class ModelPlan:
    """The nodes of a model that are lowered, and their forms.

    Attributes:
        prepared: The model, or a copy, in which the nodes are replaced.
        nodes: The nodes and their forms.
        opset: The opset that the lowered model imports.
    """

    prepared: PreparedModel
    nodes: list[NodePlan]
    opset: int

    @property
    def model(self) -> ir.Model:
        return self.prepared.model


@dataclass(frozen=True)
class ModelPlanner:
    """Plans what the options ask for; `report` gets what each step did.

    The nodes of the given model are sorted. All other changes are made in copies.
    """

    lowering: Lowering
    report: Report

    def plan(self, model: ir.Model) -> ModelPlan:
        """Return the plan of a model.

        Raises:
            InvalidNodeError, UnsupportedError, OptionError: As `LowerRecurrentPass`.
        """
        self.check_selection(model)
        sized = self.at_given_sizes(model)
        work = self.without_loops(self.as_stream(sized))
        inferred = work is sized and sized is not model
        plan = self.with_known_sizes(self.prepare(work, inferred=inferred))
        if plan.nodes and self.lowering.runtime.straight_line:
            plan = self._with_constants(plan)
        self.report_preparation(plan.prepared)
        return plan

    @property
    def _selection(self) -> NodeSelection:
        return NodeSelection.of(self.lowering)

    def check_selection(self, model: ir.Model) -> None:
        """Check that every pattern matches a recurrent node, or a Loop or Scan that may be lowered.

        Raises:
            OptionError: A pattern matches none.
        """
        if not (self.lowering.only or self.lowering.except_):
            return
        loops = [node for _, node in repeating_nodes(model)]
        found = [entry.node for entry in recurrent_nodes(model)]
        if found or any(_is_asked_for(node, self.lowering) for node in loops):
            self._selection.check([*found, *loops])

    def at_given_sizes(self, model: ir.Model) -> ir.Model:
        """Return a copy with the sizes and values that the options give inputs; without any, the model.

        Raises:
            UnsupportedError: The model has no such input or dimension, or cannot have these sizes.
        """
        lowering, report = self.lowering, self.report
        if not lowering.fixes_inputs:
            return model
        report.notes += [SORTED] if sort_nodes(model) else []
        arrays = input_arrays(model, lowering.set_inputs)
        sized = at_sizes(model, lowering.dims, lowering.input_shapes, arrays)
        if sized.fault and not fault_of(model):
            hint = deciding_input(sized.model, lambda trial: not fault_of(trial))
            raise UnsupportedError(
                f"the model is not valid at these sizes: {sized.fault}",
                hint=hint or "give sizes that the model supports",
            )
        report.set_inputs += [SetInput.of(name, array) for name, array in arrays.items()]
        report.notes += [_FOLDED] if sized.folded else []
        return sized.model

    def as_stream(self, model: ir.Model) -> ir.Model:
        """Return the model, or a copy that is a stream if the options ask for one."""
        if self.lowering.stream is None:
            return model
        sort_nodes(model)
        copy = clone(model)
        count_type = self.lowering.runtime.dialect.index_type
        with without_collector():
            lowered = self._lower_without_steps(copy)
            result = StreamPass(self.lowering.stream, self.lowering.delay, count_type=count_type).call(copy)
            if lowered and result.plan.frames is not None:
                shorten_convolutions(copy, lowered, widen=self.lowering.widens)
        self.report.stream, self.report.loops = result.plan, [*result.loops]
        return copy

    def _lower_without_steps(self, model: ir.Model) -> dict[str, NodePlan]:
        """Lower the nodes without steps, in place: a stream then keeps the past frames of their convolutions, which
        must not depend on the number of frames.

        Return them by the prefix of the names in their equivalents.
        """
        inline_functions(model, lambda entry: not has_steps(entry.node), self.lowering.max_nodes)
        found = [entry for entry in recurrent_nodes(model) if not has_steps(entry.node)]
        if found and self.lowering.stream is not None:
            open_time(model, time_inputs(model, parse_stream(self.lowering.stream)))
            forget_sizes(model)
        opset = default_opset(model.opset_imports)
        plan = [self.planned(e, spec, model, opset) for e, spec in zip(found, read(model, found), strict=True)]
        plan = [replace(planned, choice=planned.choice.for_any_length()) for planned in plan]
        self.report.nodes = [NodeReport.of(planned) for planned in plan]
        lowered = {prefix_of(planned.found.node): planned for planned in plan}
        self.report.notes += replace_nodes(model, plan, widen=self.lowering.widens)
        return lowered

    def without_loops(self, model: ir.Model) -> ir.Model:
        """Return the model, or a copy in which Loops and Scans are lowered as the options or the target ask."""
        lowering, opset = self.lowering, default_opset(model.opset_imports)
        limits = LoopLimits(lowering.max_unroll, lowering.max_nodes)
        with without_collector():
            try:
                with documented("loops.md#what-is-refused"):
                    lowered, loops, notes = lower_loops(model, partial(_forms_of, lowering, opset), limits)
            except UnsupportedError as error:
                inputs = self._stream_inputs(model)
                fixes = ""
                if isinstance(error, UnknownTripsError):
                    fixes = open_trips(model, error.value, inputs, is_known=self._knows_trips)
                error.advise(fixes, error.hint, _way_to_keep(error.node, lowering))
                raise
            self.report.notes += notes
            self.report.loops += loops
            if loops and lowering.runtime.loop_forms == ("unroll",):
                return with_constants(lowered, sizes=True) or lowered
            return lowered

    def _knows_trips(self, model: ir.Model) -> bool:
        """Return whether the numbers of steps of Loops and Scans are known where they must be."""
        limits = LoopLimits(self.lowering.max_unroll, self.lowering.max_nodes)
        forms = partial(_forms_of, self.lowering, default_opset(model.opset_imports))
        try:
            lower_loops(model, forms, limits)
        except UnknownTripsError:
            return False
        except UnsupportedError:
            pass
        return True

    def prepare(self, model: ir.Model, *, inferred: bool = False) -> PreparedModel:
        try:
            return prepare(model, self._selection, self.lowering.max_nodes, inferred=inferred)
        except UnsupportedError as error:
            if default_opset(model.opset_imports) < OLDEST_LOWERED_OPSET and not model.functions:
                error.advise(deciding_conditions(model), error.hint)
            raise

    def with_known_sizes(self, prepared: PreparedModel) -> ModelPlan:
        """Return the plan of a model; that of a folded copy if a form needs sizes that are known then, or if an
        invalid branch is removed because it is never run."""
        try:
            return self._plan(prepared)
        except (UnknownSizeError, UnknownLengthsError):
            known = folded(prepared.model)
            if known is None:
                raise
        except InvalidNodeError as error:
            known = self._without_branches(prepared.model, error)
        try:
            plan = self._plan(self.prepare(known, inferred=True))
        except InvalidNodeError as error:  # the sizes that are known now make a branch invalid
            plan = self._plan(self.prepare(self._without_branches(prepared.model, error), inferred=True))
        self.report.notes.append(_FOLDED)
        return replace(plan, prepared=replace(plan.prepared, notes=prepared.notes))

    def _with_constants(self, plan: ModelPlan) -> ModelPlan:
        """Return the plan of a copy that has constants for what nodes compute from constants."""
        known = with_constants(plan.model)
        if known is None:
            return plan
        self.report.notes += [_CONSTANTS] if _FOLDED not in self.report.notes else []
        again = self._plan(self.prepare(known, inferred=True))
        return replace(again, prepared=replace(again.prepared, notes=plan.prepared.notes))

    def _without_branches(self, model: ir.Model, error: InvalidNodeError) -> ir.Model:
        """Return a copy of a model without branches that are never run; raise the error, and name the input that
        decides, if that leaves an invalid one."""
        if not any(entry.ref == error.node and len(entry.path) > 1 for entry in recurrent_nodes(model)):
            raise error
        known = folded(model, decide=True)
        if known is None or not self._is_valid(known):
            hint = deciding_input(known or model, self._is_valid)
            raise InvalidNodeError(error.reason, hint=hint or error.hint, node=error.node) from None
        return known

    def _is_valid(self, model: ir.Model) -> bool:
        try:
            read(model, self._selection(list(recurrent_nodes(model))))
        except InvalidNodeError:
            return False
        return True

    def _plan(self, prepared: PreparedModel) -> ModelPlan:
        specs = read(prepared.model, prepared.wanted, inferred=prepared.inferred)
        model, opset = prepared.model, self.opset(prepared)
        nodes = [self.planned(e, spec, model, opset) for e, spec in zip(prepared.wanted, specs, strict=True)]
        return ModelPlan(prepared, nodes, opset)

    def opset(self, prepared: PreparedModel) -> int:
        """Return the opset that the lowered model imports."""
        opset, nodes = default_opset(prepared.model.opset_imports), {entry.node for entry in prepared.wanted}
        if self.lowering.keep_opset or not (self.lowering.stream or any(is_new(node, opset) for node in nodes)):
            return opset
        return opset_without(prepared.model, nodes)

    def planned(self, entry: RecurrentNode, spec: NodeSpec, model: ir.Model, opset: int) -> NodePlan:
        """Return a node with its form.

        Raises:
            UnsupportedError: As `FormChooser.choose`; if a size or length is unknown, the hint names inputs to fix.
        """
        options = self.lowering

        def emitted(choice: Choice) -> frozenset[str]:
            planned = NodePlan(entry, spec, choice, opset)
            return operators_for(planned, model.ir_version, widen=options.widens, dequantize=options.dequantize)

        try:
            as_lowered = spec.as_floats() if options.dequantize else spec
            target = options.runtime if options.join else options.runtime.without_joins()
            choice = FormChooser(as_lowered, opset, options.max_unroll, target, emitted).choose(options.to)
        except UnknownSizeError as error:
            axes = tuple(spec.axes(spec.data).index(size) for size in error.sizes)
            every, inputs = options.runtime.straight_line, self._stream_inputs(model)
            sizes = open_sizes(model, spec.inputs[spec.data], axes, every=every, stream=inputs)
            filled = ", with a number for each ?" if "?" in sizes else ""
            error.advise(f"fix the sizes of the inputs{filled}: {sizes}" if sizes else "", error.hint)
            raise
        except UnknownLengthsError as error:
            if self.report.stream is not None:
                raise self._lengths_in_stream(error, self.report.stream) from error
            error.advise(open_lengths(model, spec.inputs["sequence_lens"], spec.inputs[spec.data]) or NO_LENGTHS)
            raise
        return NodePlan(entry, spec, choice, opset)

    @property
    def _time_axes(self) -> Sequence[str]:
        """The time axes of a stream, as the user names them."""
        return () if self.lowering.stream is None else list(parse_stream(self.lowering.stream))

    def _stream_inputs(self, model: ir.Model) -> StreamInputs:
        return StreamInputs.of(model, self.report.stream, self._time_axes)

    def _lengths_in_stream(self, error: UnknownLengthsError, plan: StreamPlan) -> UnsupportedError:
        """Return the error for sequence_lens in a stream: the model's own, or those that start a late layer."""
        if plan.lengths:
            return UnknownLengthsError(error.reason, hint="export the model without sequence_lens", node=error.node)
        calls = one_call(self._time_axes, plan)
        return UnknownLengthsError(
            f"{self.lowering.runtime.name} cannot start a layer behind a look-ahead within a call",
            hint=f"give each call one frame of that layer: {calls}",
            node=error.node,
        )

    @property
    def why_left(self) -> str:
        """The reason why a recurrent node that could be lowered is not."""
        return _KEPT if self.lowering.to == KEEP else _UNSELECTED

    def report_preparation(self, prepared: PreparedModel) -> None:
        """Add to the report what preparing a model did, and which nodes are not lowered."""
        wanted = set(prepared.wanted)
        left = [(entry.ref, self.why_left) for entry in prepared.found if entry not in wanted]
        left += _nodes_left(prepared.model, self.lowering)
        self.report.notes += prepared.notes
        self.report.left += [f"{ref}: {why}" for ref, why in left]


def _is_asked_for(node: ir.Node, lowering: Lowering) -> bool:
    """Whether the options ask to lower a Loop or Scan, if it is selected: by `loops`, by a form that it does not
    have, or by a target that does not run it."""
    own = node.op_type.lower()
    other_form = lowering.to in _LOOP_FORMS and lowering.to != own
    return lowering.to != KEEP and (lowering.loops or other_form or own not in lowering.runtime.loop_forms)


def _way_to_keep(ref: NodeRef | None, lowering: Lowering) -> str:
    """Return how to keep a Loop or Scan that is only lowered since the nodes get another form."""
    if ref is None or lowering.loops or ref.operator.lower() not in lowering.runtime.loop_forms:
        return ""
    name = quote(ref.operator if ref.name.startswith("-> ") else ref.name)
    return f"keep it: --except {name if name.startswith(_QUOTE) else _QUOTE + name + _QUOTE}"


def _forms_of(lowering: Lowering, opset: int, node: ir.Node) -> LoopForms:
    """Return the forms that a Loop or Scan may get."""
    runtime, own = lowering.runtime, node.op_type.lower()
    forms = runtime.loop_forms
    runs, asked = own in forms, _is_asked_for(node, lowering)
    if not NodeSelection.of(lowering).selects(node):
        return LoopForms((), stays_in_bodies=True)
    one_step = lowering.stream is not None and lowering.to != KEEP and _has_one_step(node)
    if not one_step and (lowering.to == KEEP or (runtime.runs_exported and not asked)):
        return LoopForms((), without_steps=lowering.to != KEEP)
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


def _has_one_step(node: ir.Node) -> bool:
    """Return whether a Scan has one row to scan."""
    count = node.attributes.get_int("num_scan_inputs", 0) or 0
    if node.op_type != "Scan" or not count:
        return False
    value, axes = node.inputs[len(node.inputs) - count], node.attributes.get_ints("scan_input_axes", ()) or (0,)
    return value is not None and value.shape is not None and value.shape[axes[0]] == 1


def _nodes_left(model: ir.Model, lowering: Lowering) -> Iterator[tuple[NodeRef, str]]:
    """Yield the foreign nodes, and the Loops and Scans of the model itself that stay, each with the reason."""
    for ref in foreign_nodes(model):
        yield ref, FOREIGN
    left = _KEPT if lowering.to == KEEP else _EXPORTED
    for ref, node in exported_loops(model):
        yield ref, left if NodeSelection.of(lowering).selects(node) else _UNSELECTED


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


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the garbage collector: nothing that we emit is garbage, and collecting takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def preview_model(model: ir.Model, lowering: Lowering) -> tuple[list[Preview], Report]:
    """Return previews of the recurrent nodes, and of the Loops and Scans of the model itself, and a report of what
    else would be done to the model, which stays as it is.

    Raises:
        InvalidNodeError, UnsupportedError: A selected node cannot be read.
    """
    planner = ModelPlanner(lowering, Report(lowering.target))
    planner.check_selection(model)
    with restored(model):
        work, loops = _without_loops(planner, planner.as_stream(planner.at_given_sizes(model)))
        prepared, refusal = _prepared(planner, work)
        with suppress(RnnLoweringError):  # the preview of each node says it
            plan = planner.with_known_sizes(prepared)
            prepared = plan.prepared
            planner.report.notes += shared_loops(groups_of(plan.nodes))
        planner.report_preparation(prepared)
        known = known_inputs(prepared.model, prepared.found)
        nodes = [_preview_of(planner, entry, prepared, known, refusal) for entry in prepared.found]
        planner.report.spell()
        return [*nodes, *_others(prepared.model, lowering, loops).values()], planner.report


def _without_loops(planner: ModelPlanner, model: ir.Model) -> tuple[ir.Model, dict[NodeRef, Preview]]:
    """Return the model without the Loops and Scans that are lowered, and their previews; if one is refused, the
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
    """Return the prepared model; if that is refused, the model itself and the error."""
    try:
        return planner.prepare(model), None
    except OptionError:
        raise
    except UnsupportedError as error:
        found = list(recurrent_nodes(model))
        return PreparedModel(model, found, NodeSelection.of(planner.lowering)(found)), error


def _preview_of(
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


def _others(model: ir.Model, lowering: Lowering, loops: dict[NodeRef, Preview]) -> dict[NodeRef, Preview]:
    """Return the previews of Loops, Scans and foreign nodes: of those that stay, of `loops`, then of those that the
    target cannot run."""
    left = {ref: Preview(ref, None, LEFT, why) for ref, why in _nodes_left(model, lowering)}
    previews = left | loops
    for error in refusals(model, lowering):
        assert error.node is not None
        if previews.get(error.node) is left.get(error.node):
            previews[error.node] = Preview.refused(error, error.node)
    return previews
