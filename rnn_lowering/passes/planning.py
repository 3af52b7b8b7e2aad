"""Plan a lowering before the first edit: fix sizes, make a stream, lower loops, choose the form of each node."""

from __future__ import annotations

import gc
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lowering.errors import (
    InvalidNodeError,
    NodeRef,
    OptionError,
    RnnLoweringError,
    UnknownLengthsError,
    UnknownSizeError,
    UnknownTripsError,
    UnsupportedError,
)
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.copying import clone
from rnn_lowering.model.fixed_inputs import at_sizes, folded, input_arrays, with_constants
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.model_sizes import declares_negative_sizes, forget_sizes, open_negative_sizes
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.model.opsets import OLDEST_LOWERED_OPSET, import_opset, is_new, opset_without
from rnn_lowering.model.preparation import NodePlan, NodeSelection, PreparedModel, prepare, read
from rnn_lowering.model.replace import emitted_for, prefix_of, replace_nodes, shorten_convolutions
from rnn_lowering.model.scopes import SORTED, RecurrentNode, recurrent_nodes, repeating_nodes, sort_nodes
from rnn_lowering.nodes.cell import CELLS
from rnn_lowering.nodes.kinds import has_steps
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.options import Lowering, Stream, parse_stream
from rnn_lowering.passes.hints import (
    NO_STREAM,
    StreamInputs,
    advise,
    deciding_conditions,
    deciding_input,
    open_names,
)
from rnn_lowering.passes.native import NativeNodes
from rnn_lowering.passes.not_lowered import others_left, why_left
from rnn_lowering.passes.report import NodeReport, Report, SetInput, count_operators
from rnn_lowering.targets.choice import Choice, FormChooser
from rnn_lowering.targets.target import Emitted

if TYPE_CHECKING:
    from rnn_lowering.loops.lowering import LoopReport
    from rnn_lowering.streaming.metadata import StreamPlan

_FOLDED = "computed the values that follow from the fixed sizes"

_ENDLESS = "--max-frames had no effect: the stream has no attention to all past frames"

_CONSTANTS = "computed the values that follow from constants"


@dataclass(frozen=True)
class ModelPlan:
    """The nodes of a model that are lowered, and their forms.

    Attributes:
        prepared: The model, or a copy, in which the nodes are replaced.
        nodes: The nodes that are replaced, and their forms.
        opset: The opset that the lowered model imports.
        every: Those and the nodes that stay native as they are, in the order of the model.
        native: What is known of them as native nodes.
    """

    prepared: PreparedModel
    nodes: list[NodePlan]
    opset: int
    every: list[NodePlan]
    native: NativeNodes

    @property
    def model(self) -> ir.Model:
        return self.prepared.model


@dataclass
class ModelPlanner:
    """Plans what the options ask for.

    The nodes of the given model are sorted. All other changes are made in copies.

    Attributes:
        lowering: The options.
        report: Gets what each step did.
        inputs: The inputs of the stream, once it is made.
        not_raised: Why Loops and Scans are not raised, where that is asked for.
    """

    lowering: Lowering
    report: Report
    inputs: StreamInputs = NO_STREAM
    not_raised: dict[NodeRef, str] = field(default_factory=dict)

    def plan(self, model: ir.Model) -> ModelPlan:
        """Return the plan of a model.

        Raises:
            InvalidNodeError, UnsupportedError, OptionError: As `LowerRecurrentPass`.
        """
        self.check_selection(model)
        sized = self.at_given_sizes(model)
        work = self.without_loops(self.as_stream(self.raised(sized)))
        inferred = work is sized and self.lowering.fixes_inputs
        plan = self.with_known_sizes(self.prepare(work, inferred=inferred))
        if plan.nodes and self.lowering.runtime.straight_line:
            plan = self._with_constants(plan)
        self._report_preparation(plan.prepared)
        return plan

    def check_selection(self, model: ir.Model) -> None:
        """Check that every pattern matches a recurrent node, or a Loop or Scan that may be lowered.

        Raises:
            OptionError: A pattern matches none.
        """
        if not (self.lowering.only or self.lowering.except_):
            return
        selection, loops = NodeSelection(self.lowering), [node for _, node in repeating_nodes(model)]
        found = [entry.node for entry in recurrent_nodes(model)]
        if found or any(map(selection.asks_for, loops)):
            selection.check([*found, *loops])

    # Sizes, streams and loops

    def at_given_sizes(self, model: ir.Model) -> ir.Model:
        """Return a copy with the sizes and values that the options give inputs; without any, the model.

        Raises:
            UnsupportedError: The model has no such input or dimension, or cannot have these sizes.
        """
        lowering, report = self.lowering, self.report
        if declares_negative_sizes(model):
            model = clone(model)
            open_negative_sizes(model)
        model, dims = self.opened(model)
        if not lowering.fixes_inputs:
            return model
        report.notes += [SORTED] if sort_nodes(model) else []
        arrays = input_arrays(model, lowering.set_inputs)
        sized = at_sizes(model, dims, lowering.input_shapes, arrays)
        self._check_time_is_open(model, sized.model, dims)
        if sized.fault and not fault_of(model):
            hint = deciding_input(sized.model, lambda trial: not fault_of(trial))
            raise UnsupportedError(
                f"the model is not valid at these sizes: {sized.fault}",
                hint=hint or "give sizes that the model supports",
            )
        report.set_inputs += [SetInput.of(name, array) for name, array in arrays.items()]
        report.notes += [_FOLDED] if sized.folded else []
        return sized.model

    def _check_time_is_open(self, model: ir.Model, sized: ir.Model, dims: Mapping[str, int]) -> None:
        """Refuse a size of the axis that a stream names."""
        stream = self.lowering.stream
        fixed = {*open_names(model)} - {*open_names(sized)}
        for axis in fixed & parse_stream(stream).keys() if stream is not None else ():
            given = f"{axis}={dims.get(axis)}"
            raise OptionError(
                f"'{axis}' is the time axis of the stream, and another option fixes its size",
                hint=f"drop --set-dim {quote(given)}, since the stream says how many frames a call has"
                if axis in dims
                else "drop the shape or value that fixes it, and fix other sizes by name (--set-dim)",
            )

    def opened(self, model: ir.Model) -> tuple[ir.Model, Mapping[str, int]]:
        """Return a copy in which the axes that the options name are open, or the model without any; and the sizes
        that are left to fix. One of an axis to open says which size the model has."""
        axes, dims = self.lowering.open_dims, self.lowering.dims
        if not axes:
            return model, dims
        from rnn_lowering.opening.open_dims import exported_dims, open_dims  # most models have open axes

        copy, exported = clone(model), exported_dims(model, axes, dims)
        self.report.notes += open_dims(copy, axes, self.lowering.max_nodes, exported)
        return copy, {name: size for name, size in dims.items() if name not in exported}

    def raised(self, model: ir.Model) -> ir.Model:
        """Return the model, or a copy in which Loops and Scans that compute an RNN, GRU or LSTM are nodes: all with
        `raise_loops`, else those that are lowered and smaller then."""
        options = self.lowering
        if not any(repeating_nodes(model)):
            self.report.notes += ["no Loop or Scan to raise"] if options.raise_loops else []
            return model
        if not options.raise_loops:
            return self._raised_to_lower(model)
        from rnn_lowering.raising.raising import raise_loops  # most models have no Loop

        with without_collector():
            work, loops, reasons, notes = raise_loops(model, options)
        self.report.loops += loops
        self.report.notes += notes
        self.not_raised |= reasons
        return work

    def _raised_to_lower(self, model: ir.Model) -> ir.Model:
        """Return the model, or a copy in which Loops and Scans that are lowered are nodes if it is smaller then.

        Patterns may be meant for the Loops, so with any all stay.
        """
        options, opset = self.lowering, default_opset(model.opset_imports)
        if options.only or options.except_ or options.stream is not None or opset < OLDEST_LOWERED_OPSET:
            return model
        from rnn_lowering.passes.exported_loops import is_lowered_with_products

        wanted = partial(is_lowered_with_products, options, opset)
        if not any(wanted(node) for _, node in repeating_nodes(model)):
            return model
        from rnn_lowering.raising.raising import raise_loops

        with without_collector():
            work, loops, _, _ = raise_loops(model, options, wanted)
            work = self._with_sizes(work) if loops else model
            if not loops or self._lowered_size(work) >= self._lowered_size(model):
                return model
        self.report.loops += loops
        return work

    def _lowered_size(self, model: ir.Model) -> float:
        """Return how many nodes a model has once its Loops and nodes are lowered; infinity if it is refused."""
        trial = ModelPlanner(self.lowering, Report(self.lowering.target))
        try:
            plan = trial.with_known_sizes(trial.prepare(trial.without_loops(clone(model))))
            replace_nodes(plan.model, plan.nodes, widen=self.lowering.widens)
        except RnnLoweringError:
            return math.inf
        return sum(count_operators(plan.model).values())

    def raisable(self, model: ir.Model) -> dict[NodeRef, str]:
        """Return the operators of the nodes that Loops and Scans of a model would become with `raise_loops`."""
        if self.lowering.raise_loops or not any(repeating_nodes(model)):
            return {}
        from rnn_lowering.raising.raising import raise_loops

        with without_collector():
            return {each.ref: each.form for each in raise_loops(model, self.lowering)[1]}

    def as_stream(self, model: ir.Model) -> ir.Model:
        """Return the model, or a copy that is a stream if the options ask for one."""
        if self.lowering.stream is None:
            return model
        from rnn_lowering.passes.stream import StreamPass  # most models are no streams
        from rnn_lowering.streaming.attention.softmax_apart import set_softmax_apart

        sort_nodes(model)
        copy, stream = clone(model), self.lowering.stream
        count_type = self.lowering.runtime.dialect.index_type
        with without_collector():
            lowered = self._lower_without_steps(copy, stream)
            streaming = StreamPass(
                stream, self.lowering.delay, max_frames=self.lowering.max_frames, count_type=count_type
            )
            result = streaming.call(copy)
            self._check_growing_states(result.plan)
            if self.lowering.runtime.softmax_apart:
                set_softmax_apart(copy)
            if self.lowering.max_frames is not None and result.plan.max_frames is None:
                self.report.notes.append(_ENDLESS)
            if lowered and result.plan.frames is not None:
                shorten_convolutions(copy, lowered, widen=self.lowering.widens)
        self.report.stream = result.plan
        self.report.loops += result.loops
        self.inputs = StreamInputs.of(copy, result.plan, parse_stream(stream))
        return copy

    def _check_growing_states(self, plan: StreamPlan) -> None:
        """Refuse states that grow, for a runtime whose sizes must be fixed."""
        growing = next((state for state in plan.states if state.grows is not None), None)
        if growing is not None and not self.lowering.runtime.growing_states:
            target = self.lowering.target
            raise UnsupportedError(
                f"the state '{growing.input}' of '{growing.node}' grows, and {target} needs a cache of fixed size",
                hint="--max-frames N, or a mask with a window",
            )

    def _lower_without_steps(self, model: ir.Model, stream: Stream) -> dict[str, NodePlan]:
        """Lower the nodes without steps, in place: a stream then keeps the past frames of their convolutions, which
        must not depend on the number of frames.

        Return them by the prefix of the names in their equivalents.
        """
        from rnn_lowering.passes.stream import open_time
        from rnn_lowering.streaming.time_axes import time_inputs

        inline_functions(model, lambda entry: not has_steps(entry.node), self.lowering.max_nodes)
        found = [entry for entry in recurrent_nodes(model) if not has_steps(entry.node)]
        if found:
            open_time(model, time_inputs(model, parse_stream(stream)))
            forget_sizes(model)
        opset = self._opset(model, [entry.node for entry in found])
        if opset < default_opset(model.opset_imports):
            self.report.notes += import_opset(model, opset)
        calls = None not in parse_stream(stream).values()
        pairs = zip(found, read(model, found), strict=True)
        plan = [self.planned(entry, spec, model, opset, in_calls=calls) for entry, spec in pairs]
        plan = [replace(planned, choice=planned.choice.for_any_length()) for planned in plan]
        self.report.nodes = [NodeReport.of(planned) for planned in plan]
        lowered = {prefix_of(planned.found.node): planned for planned in plan}
        self.report.notes += replace_nodes(model, plan, widen=self.lowering.widens)
        return lowered

    def without_loops(self, model: ir.Model, refused: dict[NodeRef, UnsupportedError] | None = None) -> ir.Model:
        """Return the model, or a copy in which Loops and Scans are lowered as the options or the target ask.

        With `refused`, the nodes that are refused stay, and it takes their errors.
        """
        if not any(repeating_nodes(model)):
            return model
        with without_collector():
            lowered, loops, notes = self._without_exported(model, refused)
            self.report.notes += notes
            self.report.loops += loops
            return self._with_sizes(lowered) if loops else lowered

    def _without_exported(
        self, model: ir.Model, refused: dict[NodeRef, UnsupportedError] | None
    ) -> tuple[ir.Model, list[LoopReport], list[str]]:
        """Lower Loops and Scans; those of a folded copy if the number of steps of one is known then."""
        from rnn_lowering.passes.exported_loops import lower_exported  # most models have none

        try:
            found = lower_exported(model, self.lowering, self.inputs, refused)
        except UnknownTripsError:
            known = folded(model)
            if known is None:
                raise
        else:
            unknown = any(isinstance(error, UnknownTripsError) for error in (refused or {}).values())
            known = folded(model) if unknown else None
            if known is None:
                return found
        if refused is not None:
            refused.clear()
        lowered, loops, notes = lower_exported(known, self.lowering, self.inputs, refused)
        return lowered, loops, [_FOLDED, *notes]

    def _with_sizes(self, model: ir.Model) -> ir.Model:
        """Return a copy with constants for what follows from sizes, if the target needs them; else the model."""
        known = self.lowering.runtime.loop_forms == ("unroll",)
        return (with_constants(model, sizes=True) if known else None) or model

    # The nodes and their forms

    def prepare(self, model: ir.Model, *, inferred: bool = False) -> PreparedModel:
        """Return the model, or a copy, in which the nodes can be replaced."""
        try:
            return prepare(model, NodeSelection(self.lowering), self.lowering.max_nodes, inferred=inferred)
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
            plan = self._plan_of_copy(known, prepared)
        except InvalidNodeError as error:  # the sizes that are known now make a branch invalid
            plan = self._plan_of_copy(self._without_branches(prepared.model, error), prepared)
        self.report.notes.append(_FOLDED)
        return plan

    def _with_constants(self, plan: ModelPlan) -> ModelPlan:
        """Return the plan of a copy that has constants for what nodes compute from constants."""
        known = with_constants(plan.model)
        if known is None:
            return plan
        self.report.notes += [_CONSTANTS] if _FOLDED not in self.report.notes else []
        return self._plan_of_copy(known, plan.prepared)

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
            read(model, NodeSelection(self.lowering)(list(recurrent_nodes(model))))
        except InvalidNodeError:
            return False
        return True

    def _plan_of_copy(self, known: ir.Model, before: PreparedModel) -> ModelPlan:
        """Return the plan of a copy of a model that is prepared, in which more is known."""
        plan = self._plan(self.prepare(known, inferred=True))
        return replace(plan, prepared=replace(plan.prepared, notes=before.notes))

    def _plan(self, prepared: PreparedModel) -> ModelPlan:
        specs = read(prepared.model, prepared.wanted, inferred=prepared.inferred)
        model, opset = prepared.model, self.opset(prepared)
        native = NativeNodes.of(self.lowering, prepared, specs, opset)
        plan = []
        for entry, spec in zip(prepared.wanted, specs, strict=True):
            try:
                plan.append(self.planned(entry, spec, model, opset))
            except UnsupportedError:
                if not native.stays(entry):
                    raise
                plan.append(native.kept(entry, spec, opset))
        every = native.chosen(plan)
        replaced = [planned for planned in every if not native.is_untouched(planned)]
        return ModelPlan(prepared, replaced, opset, every, native)

    def opset(self, prepared: PreparedModel) -> int:
        """Return the opset that the lowered model imports."""
        return self._opset(prepared.model, [entry.node for entry in prepared.wanted])

    def _opset(self, model: ir.Model, nodes: Collection[ir.Node]) -> int:
        """Return the opset that a model imports once some nodes are replaced."""
        opset, newest = default_opset(model.opset_imports), self.lowering.runtime.newest_opset
        if self.lowering.keep_opset:
            return opset
        if newest is not None and opset > newest:
            lowest = opset_without(model, nodes, newest)
            return lowest if lowest <= newest else opset
        if self.lowering.stream or any(is_new(node, opset) for node in nodes):
            return opset_without(model, nodes)
        return opset

    def planned(
        self, entry: RecurrentNode, spec: NodeSpec, model: ir.Model, opset: int, *, in_calls: bool = False
    ) -> NodePlan:
        """Return a node with its form.

        Args:
            entry: The node.
            spec: Its specification.
            model: The model.
            opset: The opset of its graph.
            in_calls: Whether the model becomes a stream of a fixed number of frames: no length need be known.

        Raises:
            UnsupportedError: As `FormChooser.choose`; if a size or length is unknown, the hint names inputs to fix.
        """
        options = self.lowering

        def emitted(choice: Choice) -> Emitted:
            planned = NodePlan(entry, spec, choice, opset)
            return emitted_for(planned, model.ir_version, widen=options.widens, dequantize=options.dequantize)

        as_lowered = spec.as_floats() if options.dequantize else spec
        target = options.runtime if options.join else options.runtime.without_joins()
        target = target.of_any_length() if in_calls else target
        try:
            chooser = FormChooser(as_lowered, opset, options.max_unroll, target, emitted, "Scan" in entry.around)
            choice = chooser.choose(options.to)
        except (UnknownSizeError, UnknownLengthsError) as error:
            advise(error, model, spec, options, self.inputs)
            raise
        return NodePlan(entry, spec, choice, opset)

    def _report_preparation(self, prepared: PreparedModel) -> None:
        """Add to the report what preparing a model did, and which nodes are not lowered."""
        wanted = set(prepared.wanted)
        raised = {
            loop.name for loop in self.report.loops if loop.form in {cell.operator for cell in CELLS.values()}
        }
        found = [entry for entry in prepared.found if entry not in wanted and entry.node.name not in raised]
        left = [(entry.ref, why_left(self.lowering)) for entry in found]
        left += others_left(prepared.model, self.lowering, self.not_raised)
        self.report.notes += prepared.notes
        self.report.left += [f"{ref}: {why}" for ref, why in left]


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
