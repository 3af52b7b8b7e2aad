"""The pass: finds the recurrent nodes of every scope, chooses their forms and replaces them."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering.emit.builder import Names
from rnn_lowering.emit.ops import Ops
from rnn_lowering.errors import NodeRef, RnnLoweringError, RnnLoweringWarning, UnsupportedError
from rnn_lowering.model.dimensions import fix_dimensions, fixed_dimensions
from rnn_lowering.model.inference import inferred_shapes
from rnn_lowering.model.old_opsets import FIRST_OPSET, NEW_OPSET, modernize
from rnn_lowering.model.prepare import clone, inline_functions, replace_content, sort_nodes
from rnn_lowering.model.replace import prefix_of, replace_node
from rnn_lowering.model.scopes import Found, all_names, recurrent_nodes
from rnn_lowering.options import Lowering, LoweringOptions, lowering_of
from rnn_lowering.passes.report import NodeReport, Report, count_operators
from rnn_lowering.spec.node import RecurrentSpec, default_opset, node_ref
from rnn_lowering.targets.choice import Choice, choose

REFUSED, LEFT = "refused", "left as it is"

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


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
        report = Report(self.lowering.target, operators_before=count_operators(model))
        with fixed_dimensions(model, self.lowering.dims, self.lowering.input_shapes) as folded:
            report.notes += ["folded what follows from the fixed sizes"] if folded else []
            work = self._prepared(model, report)
            plan = self._plan(work, report)
        for _, spec, _ in plan:
            for text in spec.warnings:
                warnings.warn(text, RnnLoweringWarning, stacklevel=3)
        if work is not model:
            replace_content(model, work.graph, work.functions)
        self._carry_out(plan, model, report)
        report.operators_after = count_operators(model)
        return LoweringResult(model, bool(plan) or self.lowering.fixes_sizes, report)

    def _carry_out(self, plan: list[tuple[Found, RecurrentSpec, Choice]], model: ir.Model, report: Report) -> None:
        names = Names(all_names(model) if plan else ())
        shared: dict[ir.Graph, dict[Any, ir.Value]] = {}
        widened = self.lowering.compute == "float32"
        for entry, spec, choice in plan:
            op = Ops(
                entry.opset,
                names,
                prefix_of(entry.node),
                ir.DataType.FLOAT if widened and spec.dtype in _HALF else spec.dtype,
                choice.spelling,
                constants_as="initializer" if model.ir_version >= 4 else "node",
                shared=shared.setdefault(entry.graph, {}),
            )
            replace_node(entry, spec, choice.fold, op)
            report.nodes.append(NodeReport.of(spec, choice.form, choice.reason))

    def preview(self, model: ir.Model) -> tuple[list[Preview], Report]:
        """Say what would become of every recurrent node, and in a report what else of the model.

        The model is as it was, but for the order of its nodes where that was wrong.

        Raises:
            InvalidNodeError, UnsupportedError: A selected node that cannot be read.
        """
        report = Report()
        if self.lowering.fixes_sizes:
            model = clone(model)
            fix_dimensions(model, self.lowering.dims, self.lowering.input_shapes)
        try:
            work, refusal = self._prepared(model, report), None
        except UnsupportedError as error:
            work, refusal = model, error
        found = list(recurrent_nodes(work))
        report.left += _quantized(work)
        with inferred_shapes(work, found):
            return [self._preview(entry, refusal) for entry in found], report

    def _preview(self, entry: Found, refusal: UnsupportedError | None) -> Preview:
        if not self._selected(entry):
            return Preview(entry.ref, _readable(entry), LEFT, "not selected")
        if refusal is not None:
            return Preview(entry.ref, _readable(entry), REFUSED, refusal.reason, refusal.hint)
        spec = RecurrentSpec.parse(entry.node, entry.opset, entry.scope)
        try:
            choice = self._choose(entry, spec)
        except UnsupportedError as error:
            return Preview(entry.ref, spec, REFUSED, error.reason, error.hint)
        return Preview(entry.ref, spec, choice.form, choice.reason)

    def _prepared(self, model: ir.Model, report: Report) -> ir.Model:
        """Return the model, or a changed clone of it where functions are inlined or the opset is too old."""
        wanted = [entry for entry in recurrent_nodes(model) if self._selected(entry)]
        if wanted and sort_nodes(model):
            report.notes.append("sorted the nodes by their dependencies")
        opset = default_opset(model.opset_imports)
        if not wanted or (opset >= FIRST_OPSET and not any(entry.function for entry in wanted)):
            return model
        work = clone(model)
        inline_functions(work, self._selected)
        inlined = model.functions.keys() - work.functions.keys()
        report.notes += [f"inlined function {domain}::{name}" for domain, name, _ in sorted(inlined)]
        if opset < FIRST_OPSET:
            old = [entry for entry in recurrent_nodes(work) if self._selected(entry)]
            with inferred_shapes(work, old):  # at the versions that they have: the newer ones allow more
                for entry in old:
                    RecurrentSpec.parse(entry.node, entry.opset, entry.scope)
            modernize(work, opset)
            report.notes.append(f"brought from opset {opset} to {NEW_OPSET}")
        return work

    def _plan(self, model: ir.Model, report: Report) -> list[tuple[Found, RecurrentSpec, Choice]]:
        """Read and validate all nodes and choose their forms; nothing is changed yet."""
        found = []
        for entry in recurrent_nodes(model):
            if self._selected(entry):
                found.append(entry)
            else:
                report.left.append(f"{entry.ref}: not selected")
        report.left += _quantized(model)
        with inferred_shapes(model, found):
            specs = [RecurrentSpec.parse(entry.node, entry.opset, entry.scope) for entry in found]
        choices = [self._choose(entry, spec) for entry, spec in zip(found, specs, strict=True)]
        return list(zip(found, specs, choices, strict=True))

    def _choose(self, entry: Found, spec: RecurrentSpec) -> Choice:
        options = self.lowering
        return choose(spec, entry.opset, options.to, options.max_unroll, options.runtime)

    def _selected(self, entry: Found) -> bool:
        node, options = entry.node, self.lowering

        def matches(patterns: Collection[str]) -> bool:
            return any(p == node.op_type or fnmatchcase(node.name or "", p) for p in patterns)

        return (not options.only or matches(options.only)) and not matches(options.except_)


def _readable(entry: Found) -> RecurrentSpec | None:
    try:
        return RecurrentSpec.parse(entry.node, entry.opset, entry.scope)
    except RnnLoweringError:
        return None


def _quantized(model: ir.Model) -> list[str]:
    """Name the recurrent nodes of onnxruntime's own domain, which are not lowered."""
    return [
        f"{node_ref(node, 'the model')}: quantized weights are not lowered; lower before quantizing"
        for node in model.graph.all_nodes()
        if node.op_type == "DynamicQuantizeLSTM" and node.domain == "com.microsoft"
    ]
