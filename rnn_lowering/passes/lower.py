"""The pass: finds the recurrent nodes of every scope, chooses their forms and replaces them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering.boundary import boundary
from rnn_lowering.errors import NodeRef, OptionError, RnnLoweringError, UnsupportedError, warn
from rnn_lowering.model.copying import replace_content, restored, restored_on_failure
from rnn_lowering.model.dimensions import fix_dimensions
from rnn_lowering.model.inference import known_inputs
from rnn_lowering.model.plan import Planned, Prepared, prepare, read
from rnn_lowering.model.replace import replace_nodes
from rnn_lowering.model.scopes import Found, recurrent_nodes
from rnn_lowering.model.selection import Choose
from rnn_lowering.options import Lowering, LoweringOptions, lowering_of
from rnn_lowering.passes.report import NodeReport, Report, count_operators
from rnn_lowering.spec.connections import KnownValues
from rnn_lowering.spec.node import RecurrentSpec, node_ref
from rnn_lowering.targets.choice import choose

REFUSED, LEFT = "refused", "left as it is"


@dataclass
class LoweringResult(ir.passes.PassResult):
    """What the pass returns: `model`, `modified` and `report`."""

    report: Report


@dataclass(frozen=True)
class Preview:
    """What would become of a recurrent node.

    Attributes:
        node: Its name, operator and scope.
        spec: What it says; None where it is left as it is, or the model refused, and it cannot be read.
        form: "scan", "loop", "unroll", `REFUSED` or `LEFT`.
        reason: Why.
        hint: What to try where it is refused.
    """

    node: NodeRef
    spec: RecurrentSpec | None
    form: str
    reason: str
    hint: str = ""


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace RNN, GRU and LSTM nodes by equivalent subgraphs of primitive operators.

    Every node is validated before the first is replaced: when one is refused, the model is as it was.

    Args:
        lowering: What is lowered and how, or a form.
        options: The attributes of `Lowering` as keywords.

    Raises:
        InvalidNodeError: A node specifies what its operator does not allow.
        UnsupportedError: A valid node that the chosen form cannot express, or an option that does not exist.
    """

    def __init__(self, lowering: Lowering | str = "auto", **options: Unpack[LoweringOptions]) -> None:
        super().__init__()
        self.lowering = lowering_of(lowering, options)

    if TYPE_CHECKING:  # the result of a call is that of `call`

        def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> LoweringResult: ...

    def call(self, model: ir.Model) -> LoweringResult:
        """Lower `model` in place."""
        with boundary():
            return self._lowered(model)

    def _lowered(self, model: ir.Model) -> LoweringResult:
        report = Report(self.lowering.target, operators_before=count_operators(model))
        with restored_on_failure(model):
            self._fix_sizes(model, report)
            prepared = self._prepared(model, report)
            specs = read(prepared.model, prepared.wanted)
            plan = [self._planned(entry, spec) for entry, spec in zip(prepared.wanted, specs, strict=True)]
        for text in (text for spec in specs for text in spec.warnings):
            warn(text)
        replace_content(model, prepared.model.graph, prepared.model.functions)
        replace_nodes(model, plan, widen=self.lowering.compute == "float32")
        report.nodes = [NodeReport.of(node.spec, node.choice.form, node.choice.reason) for node in plan]
        report.operators_after = count_operators(model)
        return LoweringResult(model, bool(plan) or self.lowering.fixes_sizes, report)

    def preview(self, model: ir.Model) -> tuple[list[Preview], Report]:
        """Return what would become of every recurrent node, and in a report what else of the model, which stays as
        it is.

        Raises:
            InvalidNodeError, UnsupportedError: A selected node that cannot be read.
        """
        with boundary():
            return self._previewed(model)

    def _previewed(self, model: ir.Model) -> tuple[list[Preview], Report]:
        report = Report(self.lowering.target)
        with restored(model):
            self._fix_sizes(model, report)
            try:
                prepared, refusal = self._prepared(model, report), None
            except OptionError:
                raise
            except UnsupportedError as error:
                found = list(recurrent_nodes(model))
                prepared, refusal = Prepared(model, found, self._choose(found)), error
            known = known_inputs(prepared.model, prepared.found)
            wanted = set(prepared.wanted)
            return [self._preview(e, e in wanted, known, refusal) for e in prepared.found], report

    @property
    def _choose(self) -> Choose:
        return Choose(self.lowering.only, self.lowering.except_)

    def _fix_sizes(self, model: ir.Model, report: Report) -> None:
        if fix_dimensions(model, self.lowering.dims, self.lowering.input_shapes):
            report.notes.append("folded what follows from the fixed sizes")

    def _prepared(self, model: ir.Model, report: Report) -> Prepared:
        """Prepare a model, in place or in a copy, and report that and what stays as it is."""
        prepared = prepare(model, self._choose, self.lowering.max_nodes)
        wanted = set(prepared.wanted)
        report.notes += prepared.notes
        report.left += [f"{e.ref}: not selected" for e in prepared.found if e not in wanted]
        report.left += _quantized(prepared.model)
        return prepared

    def _planned(self, entry: Found, spec: RecurrentSpec) -> Planned:
        options = self.lowering
        return Planned(entry, spec, choose(spec, entry.opset, options.to, options.max_unroll, options.runtime))

    def _preview(self, entry: Found, wanted: bool, known: KnownValues, refusal: UnsupportedError | None) -> Preview:
        if not wanted:
            return Preview(entry.ref, _readable(entry, known), LEFT, "not selected")
        if refusal is not None:
            return Preview(entry.ref, _readable(entry, known), REFUSED, refusal.reason, refusal.hint)
        spec = RecurrentSpec.parse(entry.node, entry.opset, entry.scope, known)
        try:
            choice = self._planned(entry, spec).choice
        except UnsupportedError as error:
            return Preview(entry.ref, spec, REFUSED, error.reason, error.hint)
        return Preview(entry.ref, spec, choice.form, choice.reason)


def _readable(entry: Found, known: KnownValues) -> RecurrentSpec | None:
    try:
        return RecurrentSpec.parse(entry.node, entry.opset, entry.scope, known)
    except RnnLoweringError:
        return None


def _quantized(model: ir.Model) -> list[str]:
    """Name the recurrent nodes of onnxruntime's own domain, which are not lowered."""
    return [
        f"{node_ref(node, 'the model')}: quantized weights are not lowered; lower before quantizing"
        for node in model.graph.all_nodes()
        if node.op_type == "DynamicQuantizeLSTM" and node.domain == "com.microsoft"
    ]
