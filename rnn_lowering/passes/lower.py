"""The pass that lowers a model: run the stages, make their edits, check the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import argument_checks
from rnn_lowering.errors import boundary, warn
from rnn_lowering.libraries import without_collector
from rnn_lowering.limits import limited
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.copying import refuse_many_calls, take_over
from rnn_lowering.model.model_sizes import ensure_valid
from rnn_lowering.model.opsets import refuse_imports
from rnn_lowering.model.preparation import PreparedModel, export_faults
from rnn_lowering.model.scopes import nodes_with_functions
from rnn_lowering.options import Lowering, LoweringOptions, lowering_of
from rnn_lowering.passes.nodes import ModelPlan, check_selection
from rnn_lowering.passes.report import NodeReport, Report, count_operators, unsupported_texts
from rnn_lowering.passes.stages import Edit, Work, run_stages
from rnn_lowering.targets.names import FormName
from rnn_lowering.types import in_brackets

if TYPE_CHECKING:
    from rnn_lowering.passes.preview import Preview

_LOG = logging.getLogger("rnn_lowering")

_MOST_STEPS = 512
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
        >>> print(result)
        lowered 1 LSTM node: scan
        lowered 1 GRU node: scan
    """

    report: Report
    prepared: PreparedModel | None = None
    message: onnx.ModelProto | None = None

    __repr__ = in_brackets

    def __str__(self) -> str:
        return str(self.report)


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace recurrent nodes with subgraphs of primitive operators, and do what else the options ask for.

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

    def call(self, model: ir.Model) -> LoweringResult:
        """Lower `model` in place."""
        argument_checks.ir_model("model", model)
        return lower_model(model, self.lowering)

    def preview(self, model: ir.Model) -> tuple[list[Preview], Report]:
        """Return a preview for every recurrent node, and a report of what else would be done to the model, which
        stays as it is.

        Raises:
            InvalidNodeError, UnsupportedError: A selected node cannot be read.
        """
        from rnn_lowering.passes.preview import preview_model

        with boundary(), limited(self.lowering.max_bytes), onnx_checks.one_child(), without_collector():
            refuse_many_calls(model, self.lowering.max_nodes)
            return preview_model(model, self.lowering)


def lower_model(
    model: ir.Model,
    lowering: Lowering,
    *,
    read_again: Callable[[], ir.Model] | None = None,
    keep: bool = False,
    as_message: bool = False,
) -> LoweringResult:
    """Lower a model in place: run the stages, then make their edits.

    Args:
        model: The model. If it is refused, it is as it was.
        lowering: The options.
        read_again: Reads the model again. Then no copy is made, and a refused model is left half changed.
        keep: Also return a copy of it as it was when its nodes were replaced: with fixed sizes and values, and
            without functions.
        as_message: Also return the result as a message, which is the one that is checked.
    """
    with boundary(), limited(lowering.max_bytes), onnx_checks.one_child(), without_collector():
        refuse_imports(model)
        refuse_many_calls(model, lowering.max_nodes)
        if read_again is None:
            work = Work.on_copy(model, lowering)
        else:
            work = Work(model, lowering, Report(lowering.target), read_again)
        work.report.operators_before = count_operators(model)
        check_selection(work)
        edits = run_stages(work)
        return _result(model, work, edits, keep, as_message)


def _result(model: ir.Model, work: Work, edits: Mapping[str, Edit], keep: bool, as_message: bool) -> LoweringResult:
    """Make the edits, check what they made, and give it to the model of the caller."""
    report, plan = work.report, work.chosen
    for text in _warnings(plan, report):
        warn(text)
    prepared = plan.prepared.copied() if keep and plan.every else None
    for name, edit in edits.items():
        if work.changes or name == "adapt":
            edit()
    modified, message = work.changes, None
    if modified:
        declares = "no declared shapes" not in work.lowering.runtime.model.adaptations
        notes, message = ensure_valid(work.model, work.original, whole=as_message, declares=declares)
        report.notes += notes
        take_over(model, work.model)
    report.spell()
    _log(plan, report)
    report.operators_after = count_operators(model)
    return LoweringResult(model, modified, report, prepared, message)


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


def _log(plan: ModelPlan, report: Report) -> None:
    """Log what was decided, under the name of the package."""
    for text in (*report.notes, *report.left):
        _LOG.info("%s", text)
    for node in plan.every:
        _LOG.info("%s becomes %s: %s", node.found.ref, node.choice.form, node.choice.reason)


def _long_work(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a warning if so many steps are unrolled that a runtime may take minutes to compile them."""
    steps = sum(node.steps for node in nodes if node.form == "unroll")
    if steps <= _MOST_STEPS:
        return []
    return [f"{steps:,} steps are unrolled in total: compilers may take minutes to load them"]
