"""The pass that finds recurrent nodes, chooses their forms and replaces them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import types
from rnn_lowering.emit.dialect import PLAIN
from rnn_lowering.errors import (
    InvalidNodeError,
    NodeRef,
    OptionError,
    RnnLoweringError,
    UnknownLengthsError,
    UnknownSizeError,
    UnsupportedError,
    boundary,
    warn,
)
from rnn_lowering.limits import limited
from rnn_lowering.loops.body_copy import LoopLimits
from rnn_lowering.loops.lowering import LoopForms, lower_loops
from rnn_lowering.loops.trips import UnknownTripsError
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.copying import changed, clone, restored, restored_on_failure
from rnn_lowering.model.fixed_inputs import at_sizes, input_arrays, record
from rnn_lowering.model.folding import folded, with_constants
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.model.opset_import import import_opset, is_new, opset_without
from rnn_lowering.model.plan import NodePlan, NodeSelection, PreparedModel, export_faults, prepare, read, read_node
from rnn_lowering.model.replace import operators_for, prefix_of, replace_nodes, shorten_convolutions
from rnn_lowering.model.scopes import (
    REPEATING,
    SORTED,
    RecurrentNode,
    drop_unused_constants,
    exported_loops,
    foreign_nodes,
    nodes_with_functions,
    operators_in,
    recurrent_nodes,
    repeating_nodes,
    sort_nodes,
)
from rnn_lowering.model.siblings import groups_of, shared_loops
from rnn_lowering.model.sizes import ensure_valid, forget_names, known_inputs
from rnn_lowering.options import KEEP, Lowering, LoweringOptions, lowering_of
from rnn_lowering.passes.advice import (
    NO_LENGTHS,
    deciding_input,
    long_work,
    many_steps,
    open_lengths,
    open_sizes,
    open_trips,
)
from rnn_lowering.passes.report import LEFT, REFUSED, NodeReport, Preview, Report, SetInput, count_operators
from rnn_lowering.passes.stream import StreamPass
from rnn_lowering.spec.connections import InputFacts
from rnn_lowering.spec.kinds import has_steps
from rnn_lowering.spec.node_spec import NodeSpec, default_opset
from rnn_lowering.targets.choice import Choice, choose
from rnn_lowering.targets.support import check_operators, check_types
from rnn_lowering.targets.target import Target

_LOG = logging.getLogger("rnn_lowering")


_FOLDED = "computed the values that follow from the fixed sizes"
_CONSTANTS = "computed the values that follow from constants"

_FOREIGN = "not an operator of ONNX"
_WRITTEN = "a Loop or Scan of the model; --loops lowers it"
_UNSELECTED = "not selected"
_RUNTIMES_OF_FOREIGN = ("portable", "onnxruntime")


@dataclass
class LoweringResult(ir.passes.PassResult):
    """What the pass returns.

    Attributes:
        model, modified: As every pass of onnx_ir returns.
        report: What was done.
        prepared: With `keep`, the model whose nodes were replaced.
        message: With `as_message`, the model as a message, if it is modified.

    Examples:
        >>> result = rl.LowerRecurrentPass()(onnx_ir.load("model.onnx"))
        >>> result.modified, len(result.report.nodes)
        (True, 2)
    """

    report: Report
    prepared: PreparedModel | None = None
    message: onnx.ModelProto | None = None


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace RNN, GRU and LSTM nodes with equivalent subgraphs of primitive operators.

    Every node is validated before the first is replaced: when one is refused, the model is as it was.

    Args:
        lowering: Which nodes to lower and how, or a form.
        options: The attributes of `Lowering` as keywords.

    Raises:
        InvalidNodeError: A node breaks the specification of its operator.
        UnsupportedError: A valid node that the chosen form cannot express, or an option that does not exist.

    Examples:
        >>> model = onnx_ir.load("model.onnx")
        >>> rl.LowerRecurrentPass("loop")(model).report.nodes[0].form
        'loop'
    """

    def __init__(self, lowering: Lowering | str = "auto", **options: Unpack[LoweringOptions]) -> None:
        super().__init__()
        self.lowering = lowering_of(lowering, options, type(self))

    if TYPE_CHECKING:  # the result of a call is that of `call`

        def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> LoweringResult: ...

    def call(self, model: ir.Model, *, keep: bool = False, as_message: bool = False) -> LoweringResult:
        """Lower `model` in place.

        Args:
            model: The model.
            keep: Also return a copy of it as it was when its nodes were replaced: with fixed sizes and values,
                functions inlined.
            as_message: Also return the result as a message, which is the one that is checked.
        """
        types.ir_model("model", model)
        with boundary(), limited(self.lowering.max_bytes), onnx_checks.one_child():
            return self._lowered(model, keep, as_message)

    def _lowered(self, model: ir.Model, keep: bool, as_message: bool) -> LoweringResult:
        report = Report(self.lowering.target, operators_before=count_operators(model))
        self._check_selection(model)
        with restored_on_failure(model):
            arrays = input_arrays(model, self.lowering.set_inputs)
            sized = _as_given(model, self.lowering, report)
            given = self._as_stream(sized, report)
            given = self._without_loops(given, report)
            inferred = given is sized and sized is not model
            prepared, plan = self._folded_plan(self._prepare(given, inferred=inferred), report)
            if plan and self.lowering.runtime.straight_line:
                prepared, plan = self._with_constants(prepared, plan, report)
            opset = self._opset(prepared)
            self._tell(prepared, report)
            for refusal in self._refusals(prepared.model):
                raise refusal
        report.notes += map(str, report.loops)
        report.nodes += [NodeReport.of(n.spec, n.choice.form, n.choice.reason, n.found.place) for n in plan]
        left = [entry for entry in prepared.found if entry not in prepared.wanted]
        texts = [text for node in plan for text in node.spec.warnings]
        texts += [text for entry in left for text in export_faults(prepared.model, entry)]
        texts += _namesakes(prepared.model)
        for text in (*texts, *long_work(report.nodes)):
            warn(text)
        kept = replace(prepared, model=clone(prepared.model), found=(), wanted=()) if keep and plan else None
        message = None
        modified = bool(plan or report.loops) or self.lowering.fixes_inputs or report.stream is not None
        if modified:
            with _without_collector(), changed(model, prepared.model) as (work, original):
                record(work, arrays)
                if report.stream is not None:
                    report.stream.write(work)
                self._replace(work, plan, opset, report)
                notes, message = ensure_valid(work, original, whole=as_message)
                report.notes += notes
        _log(plan, report)
        report.operators_after = count_operators(model)
        return LoweringResult(model, modified, report, kept, message)

    def _replace(self, model: ir.Model, plan: list[NodePlan], opset: int, report: Report) -> None:
        """Replace the nodes of a plan, and tell it in the report; the model then imports `opset`."""
        dequantize = self.lowering.dequantize
        report.notes += [_dequantized(node.spec) for node in plan if dequantize and node.spec.quantized]
        report.notes += replace_nodes(model, plan, widen=self.lowering.compute == "float32", dequantize=dequantize)
        if opset < default_opset(model.opset_imports):
            report.notes += import_opset(model, opset)
        report.notes += _for_runtime(model, self.lowering.runtime) if plan or report.loops else ()
        report.notes += many_steps(report.nodes)

    def preview(self, model: ir.Model) -> tuple[list[Preview], Report]:
        """Return a preview for every recurrent node, and a report of what else would be done to the model, which
        stays as it is.

        Raises:
            InvalidNodeError, UnsupportedError: A selected node that cannot be read.
        """
        with boundary(), limited(self.lowering.max_bytes), onnx_checks.one_child():
            return self._previewed(model)

    def _previewed(self, model: ir.Model) -> tuple[list[Preview], Report]:
        report = Report(self.lowering.target)
        self._check_selection(model)
        with restored(model):
            given = self._as_stream(_as_given(model, self.lowering, report), report)
            given, others = self._previewed_loops(given, report)
            try:
                prepared, refusal = self._prepare(given), None
            except OptionError:
                raise
            except UnsupportedError as error:
                found = list(recurrent_nodes(given))
                prepared, refusal = PreparedModel(given, found, self._choose(found)), error
            with suppress(RnnLoweringError):  # it is said of each node
                prepared, plan = self._folded_plan(prepared, report)
                report.notes += shared_loops(groups_of(plan))
            self._tell(prepared, report)
            known = known_inputs(prepared.model, prepared.found)
            left = {ref: Preview(ref, None, LEFT, _FOREIGN) for ref in foreign_nodes(prepared.model)}
            left |= {ref: Preview(ref, None, LEFT, why) for ref, why in self._loops_left(prepared.model)}
            others = left | others
            for lacks in self._refusals(prepared.model):
                assert lacks.node is not None
                if others.get(lacks.node, left.get(lacks.node)) is not left.get(lacks.node):
                    continue
                others[lacks.node] = Preview(lacks.node, None, REFUSED, lacks.reason, lacks.hint)
            return [*(self._preview(e, prepared, known, refusal) for e in prepared.found), *others.values()], report

    def _previewed_loops(self, model: ir.Model, report: Report) -> tuple[ir.Model, dict[NodeRef, Preview]]:
        """Return the model without the Loops and Scans that are lowered, and what becomes of them; the model itself
        and the first that is refused, if one is."""
        try:
            lowered = self._without_loops(model, report)
        except OptionError:
            raise
        except RnnLoweringError as error:
            if error.node is None:
                raise
            return model, {error.node: Preview(error.node, None, REFUSED, error.reason, error.hint)}
        return lowered, {each.ref: Preview(each.ref, None, each.form, each.reason) for each in report.loops}

    @property
    def _choose(self) -> NodeSelection:
        selected = self._selected
        return replace(selected, only=_nothing) if self.lowering.to == KEEP else selected

    @property
    def _selected(self) -> NodeSelection:
        return NodeSelection(self.lowering.only, self.lowering.except_)

    def _check_selection(self, model: ir.Model) -> None:
        """Check that every pattern matches a recurrent node, or a Loop or Scan that may be lowered.

        Raises:
            OptionError: A pattern matches none.
        """
        if not (self.lowering.only or self.lowering.except_):
            return
        loops = [node for _, node in repeating_nodes(model)]
        found = [entry.node for entry in recurrent_nodes(model)]
        if found or self.lowering.loops or any(node.op_type.lower() not in self._loop_forms for node in loops):
            self._choose.check([*found, *loops])

    @property
    def _loop_forms(self) -> Sequence[str]:
        return self.lowering.runtime.loop_forms

    def _as_stream(self, model: ir.Model, report: Report) -> ir.Model:
        """Return the model, or where a stream is wanted a copy that is one."""
        if self.lowering.stream is None:
            return model
        sort_nodes(model)
        copy = clone(model)
        count_type = self.lowering.runtime.dialect.index_type
        with _without_collector():
            lowered = self._lower_without_steps(copy, report)
            result = StreamPass(self.lowering.stream, self.lowering.delay, count_type=count_type).call(copy)
            if lowered and result.plan.frames is not None:
                shorten_convolutions(copy, lowered, widen=self.lowering.compute == "float32")
        report.stream, report.loops = result.plan, [*result.loops]
        return copy

    def _lower_without_steps(self, model: ir.Model, report: Report) -> dict[str, NodePlan]:
        """Lower, in place, the nodes that are a straight line at any length: a stream then has the past frames of
        their convolutions. Return them by the prefix of the names in their equivalents."""
        inline_functions(model, lambda entry: not has_steps(entry.node), self.lowering.max_nodes)
        found = [entry for entry in recurrent_nodes(model) if not has_steps(entry.node)]
        opset = default_opset(model.opset_imports)
        plan = [self._planned(e, spec, model, opset) for e, spec in zip(found, read(model, found), strict=True)]
        report.nodes = [NodeReport.of(n.spec, n.choice.form, n.choice.reason, n.found.place) for n in plan]
        lowered = {prefix_of(planned.found.node): planned for planned in plan}
        report.notes += replace_nodes(model, plan, widen=self.lowering.compute == "float32")
        return lowered

    def _without_loops(self, model: ir.Model, report: Report) -> ir.Model:
        """Return the model, or a copy in which Loops and Scans are lowered as the options or the target ask."""
        limits = LoopLimits(self.lowering.max_unroll, self.lowering.max_nodes)
        opset = default_opset(model.opset_imports)
        try:
            with _without_collector():
                lowered, loops, notes = lower_loops(model, partial(self._forms_of_loop, opset), limits)
        except UnknownTripsError as error:
            error.advise(open_trips(model, error.value), error.hint)
            raise
        report.notes += notes
        report.loops += loops
        if loops and self._loop_forms == ("unroll",):
            return with_constants(lowered, sizes=True) or lowered
        return lowered

    def _loops_left(self, model: ir.Model) -> Iterator[tuple[NodeRef, str]]:
        """Yield the Loops and Scans of the model's own that stay, each with the reason."""
        for ref, node in exported_loops(model):
            yield ref, _WRITTEN if self._selected.selects(node) else _UNSELECTED

    def _forms_of_loop(self, opset: int, node: ir.Node) -> LoopForms:
        """Return the forms that a Loop or Scan may get."""
        options, runtime, own = self.lowering, self.lowering.runtime, node.op_type.lower()
        forms = self._loop_forms
        runs = own in forms
        if not self._selected.selects(node):
            return LoopForms((), left=True)
        if options.to == KEEP or (runs and not options.loops and runtime.runs_exported):
            return LoopForms((), without_steps=options.to != KEEP and options.target is not None)
        check_types([value.dtype for value in (*node.inputs, *node.outputs) if value is not None], None, runtime)
        dialect = runtime.loop_dialect or PLAIN
        shaped = partial(
            LoopForms,
            optional=runs and not options.loops,
            scans_need_rows=runtime.scans_need_rows,
            check=self._check_operators,
            dialect=dialect,
            instead=runtime.rules(opset),
            finish=(*runtime.finish, *runtime.loop_finish),
        )
        if options.to in forms:
            return shaped((options.to,), "requested")
        if options.to != "auto":
            raise UnsupportedError(
                f"{runtime.name} does not support the form {options.to} of an exported {node.op_type}",
                hint=f"use --to {' or --to '.join(forms)}",
            )
        if runs:
            faster = ("scan",) if own == "loop" and "scan" in forms[: forms.index(own)] else ()
            return shaped((*faster, own), "requested", nested_stay={"scan", "loop"} <= {*forms})
        return shaped(forms, f"first choice for target {runtime.name}")

    def _check_operators(self, operators: frozenset[str], node: NodeRef) -> None:
        """Check what is emitted for a Loop or Scan, or is in its body, against a document."""
        runtime = self.lowering.runtime
        if runtime.documented is not None:
            check_operators(operators, node, runtime, runtime.documented)

    def _prepare(self, model: ir.Model, *, inferred: bool = False) -> PreparedModel:
        return prepare(model, self._choose, self.lowering.max_nodes, inferred=inferred)

    def _tell(self, prepared: PreparedModel, report: Report) -> None:
        """Add to the report what was done to a model before nodes are replaced, and which nodes are not lowered."""
        wanted = set(prepared.wanted)
        report.notes += prepared.notes
        why = "kept" if self.lowering.to == KEEP else _UNSELECTED
        report.left += [f"{e.ref}: {why}" for e in prepared.found if e not in wanted]
        report.left += [f"{ref}: {_FOREIGN}" for ref in foreign_nodes(prepared.model)]
        report.left += [f"{ref}: {why}" for ref, why in self._loops_left(prepared.model)]

    def _refusals(self, model: ir.Model) -> Iterator[UnsupportedError]:
        """Yield an error for each node of a model that is not lowered and that the target cannot run."""
        runtime = self.lowering.runtime
        if runtime.name not in _RUNTIMES_OF_FOREIGN:
            for ref in foreign_nodes(model):
                reason = f"{runtime.name} does not support it: {_FOREIGN}"
                yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
        for ref, node in exported_loops(model):
            try:
                if self._selected.selects(node):
                    self._check_operators(operators_in([node]), ref)
            except UnsupportedError as error:
                yield error
        for ref, node in exported_loops(model, REPEATING - {form.title() for form in runtime.loop_forms}):
            if not self._selected.selects(node):
                continue
            hint = "export the model with its steps unrolled, or drop --target"
            yield UnsupportedError(f"{runtime.name} does not support {ref.operator}", hint=hint, node=ref)

    def _folded_plan(self, prepared: PreparedModel, report: Report) -> tuple[PreparedModel, list[NodePlan]]:
        """Return the model and its plan; those of a folded copy where a form needs sizes that are known then, or
        where an invalid branch is removed because it is never run."""
        try:
            return prepared, self._plan(prepared)
        except (UnknownSizeError, UnknownLengthsError):
            known = folded(prepared.model)
            if known is None:
                raise
        except InvalidNodeError as error:
            known = self._decided(prepared.model, error)
        again = self._prepare(known, inferred=True)
        try:
            plan = self._plan(again)
        except InvalidNodeError as error:  # the sizes that are known now make a branch invalid
            again = self._prepare(self._decided(prepared.model, error), inferred=True)
            plan = self._plan(again)
        report.notes.append(_FOLDED)
        return replace(again, notes=prepared.notes), plan

    def _with_constants(
        self, prepared: PreparedModel, plan: list[NodePlan], report: Report
    ) -> tuple[PreparedModel, list[NodePlan]]:
        """Return the model with constants for what nodes compute from constants, and its plan."""
        known = with_constants(prepared.model)
        if known is None:
            return prepared, plan
        again = self._prepare(known, inferred=True)
        report.notes += [_CONSTANTS] if _FOLDED not in report.notes else []
        return replace(again, notes=prepared.notes), self._plan(again)

    def _decided(self, model: ir.Model, error: InvalidNodeError) -> ir.Model:
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
            read(model, self._choose(list(recurrent_nodes(model))))
        except InvalidNodeError:
            return False
        return True

    def _plan(self, prepared: PreparedModel) -> list[NodePlan]:
        specs = read(prepared.model, prepared.wanted, inferred=prepared.inferred)
        opset = self._opset(prepared)
        return [
            self._planned(e, spec, prepared.model, opset) for e, spec in zip(prepared.wanted, specs, strict=True)
        ]

    def _opset(self, prepared: PreparedModel) -> int:
        """Return the opset that the lowered model imports."""
        opset, nodes = default_opset(prepared.model.opset_imports), {entry.node for entry in prepared.wanted}
        if self.lowering.keep_opset or not (self.lowering.stream or any(is_new(node, opset) for node in nodes)):
            return opset
        return opset_without(prepared.model, nodes)

    def _planned(self, entry: RecurrentNode, spec: NodeSpec, model: ir.Model, opset: int) -> NodePlan:
        options = self.lowering
        widen, dequantize = options.compute == "float32", options.dequantize

        def emitted(choice: Choice) -> frozenset[str]:
            planned = NodePlan(entry, spec, choice, opset)
            return operators_for(planned, model.ir_version, widen=widen, dequantize=dequantize)

        try:
            as_lowered = spec.as_floats() if dequantize else spec
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

    def _preview(
        self, entry: RecurrentNode, prepared: PreparedModel, known: InputFacts, refusal: UnsupportedError | None
    ) -> Preview:
        if entry not in prepared.wanted:
            return Preview(entry.ref, _readable(prepared.model, entry, known), LEFT, _UNSELECTED)
        if refusal is not None:
            return Preview(
                entry.ref, _readable(prepared.model, entry, known), REFUSED, refusal.reason, refusal.hint
            )
        spec = read_node(prepared.model, entry, known)
        try:
            choice = self._planned(entry, spec, prepared.model, self._opset(prepared)).choice
        except UnsupportedError as error:
            return Preview(entry.ref, spec, REFUSED, error.reason, error.hint)
        return Preview(entry.ref, spec, choice.form, choice.reason)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector: nothing that we emit is garbage, and collecting takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _namesakes(model: ir.Model) -> Iterator[str]:
    """Say how nodes were understood that have the name of an operator and of a function of the model."""
    for ref, calls in nodes_with_functions(model):
        if calls:
            yield f"{ref} calls a function of the model and does not fit the operator of that name: not lowered"
        else:
            yield f"{ref} is lowered as the operator, as in onnxruntime; the function of that name is removed"


def _nothing(_: ir.Node) -> bool:
    return False


def _readable(model: ir.Model, entry: RecurrentNode, known: InputFacts) -> NodeSpec | None:
    try:
        return read_node(model, entry, known)
    except RnnLoweringError:
        return None


def _log(plan: list[NodePlan], report: Report) -> None:
    """Log what was decided, under the name of the package."""
    for text in (*report.notes, *report.left):
        _LOG.info("%s", text)
    for node in plan:
        _LOG.info("%s becomes %s: %s", node.found.ref, node.choice.form, node.choice.reason)


def _dequantized(spec: NodeSpec) -> str:
    loss = "; X and H are not rounded to 8 bits any more" if spec.rounds else ""
    return f"{spec.node}: the integers of {' and '.join(spec.quantized)} became floats, as requested{loss}"


def _as_given(model: ir.Model, lowering: Lowering, report: Report) -> ir.Model:
    """Return a copy of a model with the sizes and values that the options give its inputs; without any, the model.

    The nodes of the model are sorted first, in place.

    Raises:
        UnsupportedError: The model has no such input or dimension, or cannot have these sizes.
    """
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


def _for_runtime(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a lowered model as its runtime needs it, in place; yield what the user should know."""
    if not target.named_sizes:
        count = forget_names(model)
        if count:
            yield f"{target.name} fails on names of unknown sizes: removed them from {count} declared shapes"
    if not target.unused_constants and (names := drop_unused_constants(model)):
        yield f"{target.name} crashes on unused initializers: removed {', '.join(names)}"
    known = target.documented
    if known is not None:
        unchecked = f"; not checked: {known.unchecked}" if known.unchecked else ""
        yield f"{target.name} was not run: its operators come from {known.source}, of {known.date}{unchecked}"
