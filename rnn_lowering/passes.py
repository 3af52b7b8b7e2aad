"""The pass: finds the recurrent nodes of every scope, chooses their forms and replaces them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from rnn_lowering.errors import RnnLoweringError, RnnLoweringWarning, UnsupportedError
from rnn_lowering.legacy import FIRST_OPSET, NEW_OPSET, modernize
from rnn_lowering.lowering import lower_node
from rnn_lowering.ops import Names, Ops
from rnn_lowering.report import NodeReport, Report, count_operators
from rnn_lowering.spec import RecurrentSpec, is_recurrent, known_dims, node_ref
from rnn_lowering.targets import FORMS, Choice, choose


@dataclass
class LoweringResult(ir.passes.PassResult):
    """What the pass returns: `model`, `modified` and `report`."""

    report: Report


@dataclass(frozen=True)
class _Found:
    """A recurrent node, the graph that holds it and what that scope imports."""

    node: ir.Node
    graph: ir.Graph
    scope: str
    opset: int


class LowerRecurrentPass(ir.passes.InPlacePass):
    """Replace RNN, GRU and LSTM nodes by equivalent subgraphs of primitive operators.

    Every node is validated before the first is replaced: when one is refused, the model is as it was.

    Args:
        to: "auto", "scan", "loop" or "unroll". A sequence of length 1 is written out straight in each.
        only: Lower only nodes whose operator or name matches one of these (names as shell globs).
        except_: Leave nodes that match one of these.
        max_unroll: The most steps that "unroll" writes out.

    Raises:
        InvalidNodeError: A node says what its operator page does not allow.
        UnsupportedError: A valid node that the chosen form cannot express.
    """

    def __init__(
        self,
        to: str = "auto",
        *,
        only: Collection[str] = (),
        except_: Collection[str] = (),
        max_unroll: int = 512,
    ) -> None:
        super().__init__()
        if to not in FORMS:
            raise UnsupportedError(f"form '{to}' does not exist", hint=f"known are {', '.join(FORMS)}")
        self.to = to
        self.only = only
        self.except_ = except_
        self.max_unroll = max_unroll

    def call(self, model: ir.Model) -> LoweringResult:
        """Lower `model` in place."""
        report = Report(operators_before=count_operators(model))
        graph = model.graph
        try:
            plan = self._plan(model, report)
        except RnnLoweringError:
            model.graph = graph
            raise
        names = Names(_all_names(model) if plan else ())
        for entry, spec, choice in plan:
            for text in spec.warnings:
                warnings.warn(text, RnnLoweringWarning, stacklevel=3)
            _replace(model, entry, spec, choice, names)
            report.nodes.append(NodeReport.of(spec, choice))
        report.operators_after = count_operators(model)
        return LoweringResult(model, bool(plan), report)

    def _plan(self, model: ir.Model, report: Report) -> list[tuple[_Found, RecurrentSpec, Choice]]:
        """Read and validate all nodes and choose their forms; only an old model is changed, to a newer opset."""
        opset = _default_opset(model.opset_imports)
        if opset < FIRST_OPSET and any(self._selected(entry.node) for entry in recurrent_nodes(model)):
            modernize(model, opset)
            report.notes.append(f"brought from opset {opset} to {NEW_OPSET}")
        found = []
        for entry in recurrent_nodes(model):
            if self._selected(entry.node):
                found.append(entry)
            else:
                report.left.append(f"{node_ref(entry.node, entry.scope)}: not selected")
        with _inferred_shapes(model, found):
            specs = [RecurrentSpec.parse(entry.node, entry.opset, entry.scope) for entry in found]
        choices = [
            choose(spec, entry.opset, self.to, self.max_unroll) for entry, spec in zip(found, specs, strict=True)
        ]
        return list(zip(found, specs, choices, strict=True))

    def _selected(self, node: ir.Node) -> bool:
        def matches(patterns: Collection[str]) -> bool:
            return any(p == node.op_type or fnmatchcase(node.name or "", p) for p in patterns)

        return (not self.only or matches(self.only)) and not matches(self.except_)


def recurrent_nodes(model: ir.Model) -> Iterator[_Found]:
    """Yield the recurrent nodes of the main graph, of all its subgraphs and of all functions."""
    yield from _walk(model.graph, "main graph", _default_opset(model.opset_imports))
    for function in model.functions.values():
        scope = f"function {function.domain}::{function.name}"
        for entry in _walk(function.graph, scope, _default_opset(function.opset_imports)):
            raise UnsupportedError(
                "it stands in a model-local function",
                hint="inline the function first (onnx.inliner.inline_local_functions)",
                node=node_ref(entry.node, entry.scope),
            )


def _walk(graph: ir.Graph, scope: str, opset: int) -> Iterator[_Found]:
    for node in graph:
        if is_recurrent(node):
            yield _Found(node, graph, scope, opset)
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                continue
            inner = f"{scope} > {node.op_type} '{node.name or node.outputs[0].name}' {name}"
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _walk(attribute.as_graph(), inner, opset)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for subgraph in attribute.as_graphs():
                    yield from _walk(subgraph, inner, opset)


def _default_opset(imports: dict[str, int]) -> int:
    return imports.get("", imports.get("ai.onnx", 1))


def _all_names(model: ir.Model) -> Iterator[str]:
    """Every name of a node or value in any scope of the model."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for scope in (graph, *graph.subgraphs()):
            yield from (v.name for v in (*scope.inputs, *scope.initializers.values()) if v.name)
            for node in scope:
                yield from (v.name for v in node.outputs if v.name)
                if node.name:
                    yield node.name


@contextmanager
def _inferred_shapes(model: ir.Model, found: list[_Found]) -> Iterator[None]:
    """Let the inputs of the nodes have the types and shapes that ONNX infers, where they declare none."""
    before: list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None]] = []
    if any(_lacks_shape(entry.node) for entry in found):
        inferred = ShapeInferencePass(check_type=False, strict_mode=False)(model.clone()).model
        for entry, twin in zip(recurrent_nodes(model), recurrent_nodes(inferred), strict=True):
            for value, known in zip(entry.node.inputs, twin.node.inputs, strict=True):
                if value is None or known is None or (value.type is not None and value.shape is not None):
                    continue
                before.append((value, value.type, value.shape))
                value.type, value.shape = value.type or known.type, value.shape or known.shape
    try:
        yield
    finally:
        for value, value_type, shape in reversed(before):
            value.type, value.shape = value_type, shape


def _lacks_shape(node: ir.Node) -> bool:
    X = node.inputs[0] if node.inputs else None
    return X is not None and (X.dtype is None or known_dims(X) is None)


def _replace(model: ir.Model, entry: _Found, spec: RecurrentSpec, choice: Choice, names: Names) -> None:
    node, graph = entry.node, entry.graph
    op = Ops(entry.opset, names, _prefix(node), spec.dtype, "initializer" if model.ir_version >= 4 else "node")
    outputs = lower_node(op, spec, choice.fold)
    replacements = [(spec.outputs[symbol], op.output(tensor)) for symbol, tensor in outputs.items()]
    for old, new in replacements:
        _take_over(old, new, spec)
    for value in op.initializers:
        graph.register_initializer(value)
    graph.insert_before(node, op.nodes)
    inputs = [value for value in node.inputs if value is not None]
    graph.remove(node, safe=True)
    for value in dict.fromkeys(inputs):
        _drop_unused(value)


def _prefix(node: ir.Node) -> str:
    return node.name or f"{node.op_type}_{next((v.name for v in node.outputs if v.name), 'unused')}"


def _take_over(old: ir.Value, new: ir.Value, spec: RecurrentSpec) -> None:
    """Put `new` in the place of an output of the node, under its name and with what was declared of it."""
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name
    new.type = old.type or ir.TensorType(spec.dtype)
    new.shape = old.shape
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)


def _drop_unused(value: ir.Value) -> None:
    """Remove a constant that only the replaced node used."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if value.is_initializer():
        graph = value.graph
        assert graph is not None
        assert value.name is not None
        graph.initializers.pop(value.name)
    elif producer is not None and producer.op_type == "Constant" and producer.domain == "":
        assert producer.graph is not None
        producer.graph.remove(producer, safe=True)
