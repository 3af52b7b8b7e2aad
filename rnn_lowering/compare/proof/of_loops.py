"""The Loops and Scans of the original that the lowered model has no more, each with what takes its place.

Both are cut out of their graphs as small models, from the same values: data that both models have by name. What is
computed of sizes alone, such as the number of steps, each of them has for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from rnn_lowering.compare.node_models import message_of
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.operators import is_used, values_used
from rnn_lowering.model.model_sizes import Inferred, inferred_values
from rnn_lowering.model.protobuf import graphs_in
from rnn_lowering.model.scopes import ScopePath, repeating_nodes
from rnn_lowering.nodes.spec import node_ref

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class LoopPair:
    """A Loop or Scan of the original that was converted.

    Attributes:
        ref: The node.
        path: The path of its bodies, as far as they share it.
        original, lowered: Models of what computes its used outputs, in this order; None if there is a reason.
        shapes: The shapes of their inputs.
        types: The element types of these and of the constants and Casts of the original.
        reason: Why there are no models.
    """

    ref: NodeRef
    path: ScopePath
    original: onnx.ModelProto | None = None
    lowered: onnx.ModelProto | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    types: frozenset[int] = frozenset()
    reason: str = ""


def loop_pairs(original: ir.Model, lowered: ir.Model) -> list[LoopPair]:
    """Return each Loop and Scan of the original that the lowered model has no more; not those in its bodies."""
    found = list(repeating_nodes(original))
    if not found:
        return []
    kept = {_identity(node) for _, node in repeating_nodes(lowered)}
    converted, pairs = list[LoopPair](), _ConvertedLoops(original, lowered)
    for scope, node in found:
        path = *scope.path, next((v.name for v in node.outputs if v.name), "")
        if _identity(node) in kept or any(path[: len(pair.path)] == pair.path for pair in converted):
            continue
        ref = node_ref(node, scope.text)
        in_body = LoopPair(ref, path, reason="it stands in a body or function")
        converted.append(pairs.of(node, ref, path) if scope.graph is original.graph else in_body)
    return converted


def _identity(node: ir.Node) -> tuple[str | None, ...]:
    """Return by what a lowered model still has a Loop or Scan, though nodes in its body may be lowered."""
    return node.op_type, node.name, *(v.name for v in node.inputs if v is not None)


def _types_in(root: onnx.GraphProto) -> Iterator[int]:
    """Yield the types of constants and Casts, also in bodies."""
    for graph in graphs_in(root):
        yield from (tensor.data_type for tensor in graph.initializer)
        for node in graph.node:
            yield from (a.i if node.op_type == "Cast" else a.t.data_type for a in node.attribute)


class _ConvertedLoops:
    """Cuts Loops and Scans and what takes their place out of two models."""

    def __init__(self, original: ir.Model, lowered: ir.Model) -> None:
        self.model = original
        self.after = {v.name: v for v in lowered.graph.inputs}
        self.after |= {v.name: v for node in lowered.graph for v in node.outputs if v.name}
        self.data = set(original.graph.inputs)
        self._inferred: Inferred | None = None
        for node in original.graph:
            if node.op_type not in ("Shape", "Size") and not self.data.isdisjoint(values_used(node)):
                self.data |= set(node.outputs)

    def of(self, node: ir.Node, ref: NodeRef, path: ScopePath) -> LoopPair:
        """Return a Loop or Scan and what takes its place, or why nothing does."""
        outputs = [v for v in node.outputs if v.name and is_used(v)]
        lost = [v.name for v in outputs if v.name not in self.after]
        if lost or not outputs:
            return LoopPair(ref, path, reason=f"the lowered model has no '{lost[0] if lost else path[-1]}'")
        before = _Slice(outputs, self._is_data_of_both)
        if before.lacks is not None:
            return LoopPair(ref, path, reason=f"it depends on input '{before.lacks.name}'")
        shapes = {v.name or "": self._shape(v) for v in before.inputs}
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        if unknown := sorted(shapes.keys() - known.keys()):
            return LoopPair(ref, path, reason=f"the shape of '{unknown[0]}' is not known")
        after = _Slice([self.after[v.name] for v in outputs], lambda value: value.name in known)
        if after.lacks is not None:
            return LoopPair(ref, path, reason=f"what takes its place depends on '{after.lacks.name}'")
        model = before.model(known)
        types = {*_types_in(model.graph), *(int(v.dtype) for v in before.inputs if v.dtype is not None)}
        return LoopPair(ref, path, model, after.model(known), known, frozenset(types))

    def _is_data_of_both(self, value: ir.Value) -> bool:
        """Whether a value holds numbers that depend on the inputs, in both models."""
        is_float = value.dtype is not None and value.dtype.is_floating_point()
        return is_float and value in self.data and value.name in self.after

    def _shape(self, value: ir.Value) -> Shape | None:
        """Return the shape of a value; a size that has no name gets one of its own."""
        found = value.shape
        if value.producer() is not None:  # what is declared of it may be wrong
            if self._inferred is None:
                with suppress(UnsupportedError):
                    self._inferred = inferred_values(self.model)
            found = (self._inferred or {}).get(value, ir.Value()).shape
        if found is None:
            return None
        sizes = ((axis, dim if isinstance(dim, int) else dim.value) for axis, dim in enumerate(found))
        return tuple(f"{value.name} {axis}" if size is None else size for axis, size in sizes)


class _Slice:
    """What computes outputs of a graph from inputs.

    Attributes:
        inputs: The values that it starts from.
        lacks: An input of the graph that it depends on beside those; None if there is none.
    """

    def __init__(self, outputs: Sequence[ir.Value], is_input: Callable[[ir.Value], bool]) -> None:
        self.outputs, self.inputs = outputs, list[ir.Value]()
        self.lacks: ir.Value | None = None
        self._nodes: dict[ir.Node, None] = {}
        self._tensors: dict[str, onnx.TensorProto] = {}
        done, pending = set[ir.Value](), list(outputs)
        while pending:
            value = pending.pop()
            node = value.producer()
            if value in done or (value.graph if node is None else node.graph) is not outputs[0].graph:
                continue  # those of a body are in it
            done.add(value)
            if is_input(value) and value not in outputs:
                self.inputs.append(value)
            elif node is not None:
                self._nodes[node] = None
                pending += values_used(node)
            elif value.const_value is not None and not value.is_graph_input():
                self._tensors[value.name or ""] = message_of(value.const_value, value.name or "")
            else:
                self.lacks = value

    def model(self, inputs: Iterable[str]) -> onnx.ModelProto:
        """Return it as a model with these inputs."""
        graph = onnx.GraphProto(
            name="loop",
            node=[ir.to_proto(node) for node in self.outputs[0].graph or () if node in self._nodes],
            initializer=self._tensors.values(),
            input=[onnx.ValueInfoProto(name=name) for name in inputs],
            output=[onnx.ValueInfoProto(name=value.name or "") for value in self.outputs],
        )
        return onnx.ModelProto(graph=graph)
