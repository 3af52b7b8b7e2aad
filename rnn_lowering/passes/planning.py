"""Plan a lowering: its steps run in the order of `ModelPlanner.plan`, on copies; then each node has its form."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.errors import (
    InvalidNodeError,
    UnknownLengthsError,
    UnknownSizeError,
    UnsupportedError,
)
from rnn_lowering.model.copying import clone
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.model.opset_import import is_new, opset_without
from rnn_lowering.model.preparation import NodePlan, NodeSelection, PreparedModel, prepare, read
from rnn_lowering.model.replace import operators_for, prefix_of, replace_nodes, shorten_convolutions
from rnn_lowering.model.scopes import SORTED, RecurrentNode, recurrent_nodes, repeating_nodes, sort_nodes
from rnn_lowering.model.sizes.fixed_inputs import at_sizes, input_arrays
from rnn_lowering.model.sizes.folding import folded, with_constants
from rnn_lowering.options import KEEP, Lowering
from rnn_lowering.passes.advice import NO_LENGTHS, deciding_input, open_lengths, open_sizes
from rnn_lowering.passes.exported_loops import UNSELECTED, lower_exported, nodes_left
from rnn_lowering.passes.report import NodeReport, Report, SetInput
from rnn_lowering.passes.stream import StreamPass
from rnn_lowering.spec.kinds import has_steps
from rnn_lowering.spec.node_spec import NodeSpec, default_opset
from rnn_lowering.targets.choice import Choice, choose

_FOLDED = "computed the values that follow from the fixed sizes"
_CONSTANTS = "computed the values that follow from constants"


@dataclass(frozen=True)
class ModelPlan:
    """What is lowered in a model.

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
        given = self.without_loops(self.as_stream(sized))
        inferred = given is sized and sized is not model
        plan = self.with_known_sizes(self.prepare(given, inferred=inferred))
        if plan.nodes and self.lowering.runtime.straight_line:
            plan = self._with_constants(plan)
        self.tell(plan.prepared)
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
        runs = self.lowering.runtime.loop_forms
        loops = [node for _, node in repeating_nodes(model)]
        found = [entry.node for entry in recurrent_nodes(model)]
        if found or self.lowering.loops or any(node.op_type.lower() not in runs for node in loops):
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
        given = at_sizes(model, lowering.dims, lowering.input_shapes, arrays)
        if given.fault and not fault_of(model):
            hint = deciding_input(given.model, lambda trial: not fault_of(trial))
            raise UnsupportedError(
                f"the model is not valid at these sizes: {given.fault}",
                hint=hint or "give sizes that the model supports",
            )
        report.set_inputs += [SetInput.of(name, array) for name, array in arrays.items()]
        report.notes += [_FOLDED] if given.folded else []
        return given.model

    def as_stream(self, model: ir.Model) -> ir.Model:
        """Return the model, or where a stream is wanted a copy that is one."""
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
        """Lower, in place, the nodes that are a straight line at any length: a stream then has the past frames of
        their convolutions. Return them by the prefix of the names in their equivalents."""
        inline_functions(model, lambda entry: not has_steps(entry.node), self.lowering.max_nodes)
        found = [entry for entry in recurrent_nodes(model) if not has_steps(entry.node)]
        opset = default_opset(model.opset_imports)
        plan = [self.planned(e, spec, model, opset) for e, spec in zip(found, read(model, found), strict=True)]
        self.report.nodes = [NodeReport.of(planned) for planned in plan]
        lowered = {prefix_of(planned.found.node): planned for planned in plan}
        self.report.notes += replace_nodes(model, plan, widen=self.lowering.widens)
        return lowered

    def without_loops(self, model: ir.Model) -> ir.Model:
        """Return the model, or a copy in which Loops and Scans are lowered as the options or the target ask."""
        with without_collector():
            return lower_exported(model, self.lowering, self.report)

    def prepare(self, model: ir.Model, *, inferred: bool = False) -> PreparedModel:
        return prepare(model, self._selection, self.lowering.max_nodes, inferred=inferred)

    def with_known_sizes(self, prepared: PreparedModel) -> ModelPlan:
        """Return the plan of a model; that of a folded copy where a form needs sizes that are known then, or where
        an invalid branch is removed because it is never run."""
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
        """Return a copy of a model without branches that are never run; raise the error, with a hint which input
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
            UnsupportedError: As `choose`; where a size or length must be known, with a hint which inputs to fix.
        """
        options = self.lowering

        def emitted(choice: Choice) -> frozenset[str]:
            planned = NodePlan(entry, spec, choice, opset)
            return operators_for(planned, model.ir_version, widen=options.widens, dequantize=options.dequantize)

        try:
            as_lowered = spec.as_floats() if options.dequantize else spec
            target = options.runtime if options.join else options.runtime.without_joins()
            choice = choose(as_lowered, opset, options.to, options.max_unroll, target, emitted)
        except UnknownSizeError as error:
            axes = tuple(spec.axes(spec.data).index(size) for size in error.sizes)
            sizes = open_sizes(model, spec.inputs[spec.data], axes, every=options.runtime.straight_line)
            filled = ", with a number for each ?" if "?" in sizes else ""
            error.advise(f"fix the sizes of the inputs{filled}: {sizes}" if sizes else "", error.hint)
            raise
        except UnknownLengthsError as error:
            error.advise(open_lengths(model, spec.inputs["sequence_lens"], spec.inputs[spec.data]) or NO_LENGTHS)
            raise
        return NodePlan(entry, spec, choice, opset)

    @property
    def why_left(self) -> str:
        """Why a recurrent node that could be lowered is not."""
        return "kept" if self.lowering.to == KEEP else UNSELECTED

    def tell(self, prepared: PreparedModel) -> None:
        """Add to the report what preparing a model did, and which nodes are not lowered."""
        wanted = set(prepared.wanted)
        left = [(entry.ref, self.why_left) for entry in prepared.found if entry not in wanted]
        left += nodes_left(prepared.model, self.lowering)
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
