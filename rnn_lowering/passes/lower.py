"""The pass that lowers a model: plan, replace the recurrent nodes, check the result."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import argument_checks
from rnn_lowering.decomposition.conv_channels import add_output_channels
from rnn_lowering.decomposition.decompose import put_in_place
from rnn_lowering.decomposition.float_rounding import write_as_floats
from rnn_lowering.decomposition.table_lookups import bound_lookups
from rnn_lowering.errors import boundary, warn
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.limits import limited
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.copying import changed, clone, order_restored
from rnn_lowering.model.fixed_inputs import input_arrays, record
from rnn_lowering.model.inlining import refuse_many_calls
from rnn_lowering.model.model_sizes import ensure_valid, forget_names, name_cut_axes
from rnn_lowering.model.opsets import import_opset, refuse_imports
from rnn_lowering.model.preparation import PreparedModel, export_faults
from rnn_lowering.model.replace import compute_copies, replace_nodes
from rnn_lowering.model.scopes import drop_unused_constants, nodes_with_functions
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.options import Lowering, LoweringOptions, lowering_of
from rnn_lowering.passes.not_lowered import (
    OperatorsLeft,
    refusals,
    replaced_texts,
    unsupported_error,
    unsupported_texts,
)
from rnn_lowering.passes.planning import ModelPlan, ModelPlanner, without_collector
from rnn_lowering.passes.preview import Preview, preview_model
from rnn_lowering.passes.report import NodeReport, Report, count_operators
from rnn_lowering.targets.names import FormName
from rnn_lowering.targets.target import Target

_LOG = logging.getLogger("rnn_lowering")

_MANY_STEPS = 32
"""Compilers take 0.03 to 0.3 s for each unrolled step, and more for each if there are more."""

_MINUTES = 512
"""Compilers may take minutes for more unrolled steps."""


@dataclass
class LoweringResult(ir.passes.PassResult):
    """The result of the pass.

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
        UnsupportedError: A valid node that the chosen form cannot express.
        OptionError: A form, target or option that does not exist.

    Examples:
        >>> model = onnx_ir.load("model.onnx")
        >>> rl.LowerRecurrentPass("loop")(model).report.nodes[0].form
        'loop'
    """

    def __init__(self, lowering: Lowering | FormName = "auto", **options: Unpack[LoweringOptions]) -> None:
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
        argument_checks.ir_model("model", model)
        with boundary(), limited(self.lowering.max_bytes), onnx_checks.one_child():
            return self._lowered(model, keep, as_message)

    def preview(self, model: ir.Model) -> tuple[list[Preview], Report]:
        """Return a preview for every recurrent node, and a report of what else would be done to the model, which
        stays as it is.

        Raises:
            InvalidNodeError, UnsupportedError: A selected node cannot be read.
        """
        with boundary(), limited(self.lowering.max_bytes), onnx_checks.one_child():
            refuse_many_calls(model, self.lowering.max_nodes)
            return preview_model(model, self.lowering)

    def _lowered(self, model: ir.Model, keep: bool, as_message: bool) -> LoweringResult:
        report = Report(self.lowering.target, operators_before=count_operators(model))
        refuse_imports(model)
        refuse_many_calls(model, self.lowering.max_nodes)
        with order_restored(model, on_success=False):
            plan = ModelPlanner(self.lowering, report).plan(model)
            for refusal in refusals(plan.model, self.lowering):
                raise refusal
            others = OperatorsLeft.of(plan.model, self.lowering, plan.opset)
            report.replaced, report.unsupported = others.replaced, others.unsupported
            for node in others.refused(self.lowering):
                raise unsupported_error(node)
        report.notes += map(str, report.loops)
        report.nodes += map(NodeReport.of, plan.every)
        report.notes += plan.native.notes(plan.every)
        for text in _warnings(plan, report):
            warn(text)
        modified = (
            bool(plan.every or report.loops or report.replaced)
            or self.lowering.fixes_inputs
            or bool(self.lowering.open_dims)
            or report.stream is not None
        )
        in_place, keep = plan.model is model, keep and bool(plan.every)
        copied = clone(plan.model) if keep or (modified and in_place) else model
        prepared = replace(plan.prepared, model=copied, found=(), wanted=()) if keep else None
        message = None
        if modified:
            message = self._write(model, plan, report, others, copied if in_place else model, as_message)
        report.spell()
        _log(plan, report)
        report.operators_after = count_operators(model)
        return LoweringResult(model, modified, report, prepared, message)

    def _write(
        self,
        model: ir.Model,
        plan: ModelPlan,
        report: Report,
        others: OperatorsLeft,
        original: ir.Model,
        as_message: bool,
    ) -> onnx.ModelProto | None:
        """Make `model` the lowered one, once it is checked; return its message if `as_message`."""
        work = plan.model
        with without_collector(), changed(model, work, original):
            record(work, input_arrays(original, self.lowering.set_inputs))
            if report.stream is not None:
                report.stream.write(work)
            report.notes += self._replaced(work, plan, report)
            put_in_place(work, others.decompositions)
            report.notes += replaced_texts(others.replaced)
            notes, message = ensure_valid(work, original, whole=as_message)
            report.notes += notes
        return message

    def _replaced(self, model: ir.Model, plan: ModelPlan, report: Report) -> Iterator[str]:
        """Replace the nodes of a plan, in place; yield what the user should know."""
        dequantize, target = self.lowering.dequantize, self.lowering.runtime
        yield from (_dequantized(node.spec) for node in plan.nodes if dequantize and node.spec.quantized)
        yield from replace_nodes(model, plan.nodes, widen=self.lowering.widens, dequantize=dequantize)
        name_cut_axes(model)
        if plan.opset < default_opset(model.opset_imports):
            yield from import_opset(model, plan.opset)
        if plan.every or report.loops:
            yield from _for_runtime(model, target)
        if target.loses_copies:
            compute_copies(model)
        if target.misreads_convolutions and (count := add_output_channels(model)):
            yield f"{target.name} computes {count} Conv wrongly: gave them an output channel more, which is cut off"
        if target.bounds_lookups and (count := bound_lookups(model)):
            yield f"{target.name} takes rows of a table by indices in it, without axis = 0: changed {count} Gather"
        yield from _many_steps(report.nodes)


def _warnings(plan: ModelPlan, report: Report) -> Iterator[str]:
    """Yield warnings: what is ambiguous in the nodes, and what takes long."""
    for node in plan.every:
        yield from node.spec.warnings
    for entry in plan.prepared.found:
        if entry not in plan.prepared.wanted:
            yield from export_faults(plan.model, entry)
    yield from _namesakes(plan.model)
    yield from _long_work(report.nodes)
    yield from unsupported_texts(report.unsupported)


def _namesakes(model: ir.Model) -> Iterator[str]:
    """Yield how nodes are understood that have the name of both an operator and a function of the model."""
    for ref, calls in nodes_with_functions(model):
        if calls:
            yield f"{ref} calls a function of the model and does not fit the operator of that name: not lowered"
        else:
            yield f"{ref} is lowered as the operator, as in onnxruntime; the function of that name is removed"


def _dequantized(spec: NodeSpec) -> str:
    loss = "; X and H are not rounded to 8 bits any more" if spec.rounds else ""
    return f"{spec.node}: the integers of {' and '.join(spec.quantized)} became floats, as requested{loss}"


def _for_runtime(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a lowered model for its runtime, in place; yield what the user should know."""
    if not target.named_sizes:
        count = forget_names(model)
        if count:
            yield f"{target.name} fails on names of unknown sizes: removed them from {count} declared shapes"
    if not target.unused_constants and (names := drop_unused_constants(model)):
        yield f"{target.name} crashes on unused initializers: removed {', '.join(names)}"
    if not target.quantizes and (count := write_as_floats(model)):
        nodes = "1 QuantizeLinear" if count == 1 else f"{count} QuantizeLinear"
        yield f"{target.name} computes QuantizeLinear wrongly: wrote {nodes} as arithmetic on floats"
    page = target.documented
    if page is not None and not page.run:
        unchecked = f"; not checked: {page.unchecked}" if page.unchecked else ""
        yield f"{target.name} was not run: its operators come from {page.source}, of {page.date}{unchecked}"


def _log(plan: ModelPlan, report: Report) -> None:
    """Log what was decided, under the name of the package."""
    for text in (*report.notes, *report.left):
        _LOG.info("%s", text)
    for node in plan.every:
        _LOG.info("%s becomes %s: %s", node.found.ref, node.choice.form, node.choice.reason)


def _long_work(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a warning if so many steps are unrolled that a runtime may take minutes to compile them."""
    steps = sum(node.steps for node in nodes if node.form == "unroll")
    if steps <= _MINUTES:
        return []
    return [f"{steps:,} steps are unrolled in total: compilers may take minutes to load them"]


def _many_steps(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a note if more steps are unrolled than compilers load quickly, and a stream is possible."""
    unrolled = [node for node in nodes if node.form == "unroll" and node.steps > _MANY_STEPS]
    if not unrolled or any(node.direction != "forward" for node in unrolled):
        return []
    steps = max(node.steps for node in unrolled)
    return [f"{steps} steps are unrolled, which compilers load slowly; a stream has only one step: --stream AXIS=1"]
