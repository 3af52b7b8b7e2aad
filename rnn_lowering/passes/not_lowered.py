"""The nodes that are left as they are, and those of them that the target cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import onnx_ir as ir

from rnn_lowering.decomposition.decompose import Decomposition, decompositions
from rnn_lowering.decomposition.float_rounding import roundings, written_as_floats
from rnn_lowering.decomposition.lacking import Lacking
from rnn_lowering.errors import NodeRef, UnsupportedError, counted
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.scopes import ORIGIN, exported_loops, foreign_nodes, operators_in, repeating_nodes, scopes
from rnn_lowering.nodes.node_spec import node_ref
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import ReplacedNode, UnsupportedNode
from rnn_lowering.targets.onnx_tests import Misread
from rnn_lowering.targets.target import NESTED_SCAN, Target, check_operators

_FOREIGN = "not an operator of ONNX"
_UNSELECTED, _KEPT = "not selected", "kept"
_EXPORTED = "--loops lowers it"

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


def refusals(model: ir.Model, lowering: Lowering) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that is not lowered and that the target cannot run."""
    runtime, selected = lowering.runtime, NodeSelection(lowering)
    if runtime.name not in _RUNTIMES_OF_FOREIGN:
        for ref in foreign_nodes(model):
            reason = f"{runtime.name} does not support it: {_FOREIGN}"
            yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
    yield from _misread(model, runtime)
    if not runtime.empty_tensors:
        yield from _empty(model.graph, runtime)
    for scope, node in repeating_nodes(model, ("Scan",)) if not runtime.nested_scans else ():
        if "Scan" in scope.around:
            hint = "unroll one of them (--to unroll), or drop --target"
            ref = node.meta.get(ORIGIN) or node_ref(node, scope.text)
            yield UnsupportedError(NESTED_SCAN.format(runtime.name), hint=hint, node=ref)
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


def _empty(graph: ir.Graph, runtime: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node with an input or output of the model that has no elements."""
    for value in (*graph.inputs, *graph.outputs):
        node = value.producer() or next((use.node for use in value.uses()), None)
        if node is not None and value.shape is not None and 0 in value.shape:
            kind = "output" if value.is_graph_output() else "input"
            shape = f"[{', '.join(map(str, value.shape))}]"
            reason = f"{runtime.name} takes no {kind} without elements, such as '{value.name}' {shape}"
            ref = node.meta.get(ORIGIN) or node_ref(node)
            yield UnsupportedError(reason, hint=f"remove this {kind} from the model, or drop --target", node=ref)


@dataclass(frozen=True)
class OperatorsLeft:
    """The nodes of a model that the target was measured not to run, none if it was not measured.

    Attributes:
        decompositions: Those that other operators take the place of.
        replaced: The same for the report.
        unsupported: Those that stay.
    """

    decompositions: Sequence[Decomposition]
    replaced: list[ReplacedNode]
    unsupported: list[UnsupportedNode]

    @classmethod
    def of(cls, model: ir.Model, lowering: Lowering, opset: int) -> OperatorsLeft:
        """Find them in a model whose other nodes get operators of an opset."""
        target = lowering.runtime.name
        lacking = Lacking(model, target, lowering.runtime.misreads)
        written = set() if lowering.runtime.quantizes else written_as_floats(model)
        left = [each for each in lacking.nodes if each.node not in written]
        if not left or lacking.measured is None:
            return cls([], [], [])
        named = {n.node: UnsupportedNode(n.ref, target, lacking.measured.version, n.tests) for n in left}
        made = () if lowering.keep_ops else decompositions(lacking, opset)
        found = {each.lacking.node: each for each in made if each.lacking.node in named}
        replaced = [
            ReplacedNode(named[node].node, tuple(each.operators), named[node].reason)
            for node, each in found.items()
        ]
        return cls([*found.values()], replaced, [each for node, each in named.items() if node not in found])

    def refused(self, lowering: Lowering) -> list[UnsupportedNode]:
        """The nodes with which no model is written: those that stay and are computed wrongly; on demand, all."""
        if lowering.require_supported:
            return self.unsupported
        return [each for each in self.unsupported if isinstance(each.tests, Misread) and not lowering.keep_ops]


def unsupported_texts(nodes: Sequence[UnsupportedNode]) -> Iterator[str]:
    """Yield a warning for each operator that the target cannot run, and each reason."""

    def key(each: UnsupportedNode) -> tuple[str, str]:
        return each.node.operator, each.reason

    for _, group in groupby(sorted(nodes, key=key), key=key):
        first, *more = group
        yield f"{first}, and {len(more)} more" if more else str(first)


def unsupported_error(node: UnsupportedNode) -> UnsupportedError:
    """Return the error for a node that the target cannot run, or misreads."""
    return UnsupportedError(
        node.reason,
        hint="export at opset 13 or later, in float32, or quantized in another way; or keep the node (--keep-ops)"
        if isinstance(node.tests, Misread)
        else "use another runtime, or drop --require-supported",
        node=node.node,
    )


def _misread(model: ir.Model, runtime: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each other node that a runtime computes wrongly without one, and that stays as it is."""
    for each in roundings(model) if not runtime.quantizes else ():
        if each.reason:
            wrong = f"{runtime.name} computes it wrongly, and it cannot become arithmetic on floats"
            hint = "export the model without it, or drop --target"
            yield UnsupportedError(f"{wrong}: {each.reason}", hint=hint, node=each.ref)
    opset, firsts = default_opset(model.opset_imports), dict(runtime.ignores_axes)
    for scope in scopes(model) if firsts else ():
        for node in scope.graph:
            first = firsts.get(node.op_type, opset + 1) if is_of_default_domain(node) else opset + 1
            floats = node.outputs[0].dtype is None or node.outputs[0].dtype.is_floating_point()
            if opset >= first and floats and len(node.inputs) > 1 and node.inputs[1] is not None:
                reason = f"{runtime.name} ignores its axes, which are an input from opset {first} on"
                hint = f"export the model at opset {first - 1} (torch.onnx.export: opset_version={first - 1})"
                yield UnsupportedError(reason, hint=hint, node=node_ref(node, scope.text))


def replaced_texts(nodes: Sequence[ReplacedNode]) -> Iterator[str]:
    """Yield a note for each operator that others took the place of."""
    for operator, group in groupby(sorted(nodes, key=lambda n: n.node.operator), key=lambda n: n.node.operator):
        members = list(group)
        others = ", ".join(sorted({name for each in members for name in each.operators}))
        which = str(members[0].node) if len(members) == 1 else f"{counted(len(members), f'{operator} node')}"
        yield f"replaced {which} by {others}: {members[0].reason} (--keep-ops keeps it)"
