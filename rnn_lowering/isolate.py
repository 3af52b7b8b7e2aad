"""One lowered node on its own: cut out of the lowered model, run, and judged by the operator page in float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering import reference
from rnn_lowering.compare import Array
from rnn_lowering.scopes import (
    Found,
    clone,
    graphs_by_scope,
    inferred_shapes,
    inline_functions,
    recurrent_nodes,
    sort_nodes,
)
from rnn_lowering.sessions import Ran, Session, SessionError, run_all, write_feed
from rnn_lowering.spec import GATES, RecurrentSpec

_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs; the operators that a lowering emits are the same in 27 and 28."""

_SIZES = {"seq_length": 7, "batch_size": 3, "input_size": 4}


@dataclass(frozen=True)
class IsolatedNode:
    """A recurrent node of the original and what became of it.

    Attributes:
        spec: What the node says.
        attributes: Its attributes as Python values.
        feeds: The inputs that are not constants: symbol of the operator page -> name of the value.
        cut: The subgraph that replaces it, as a model from those inputs to its connected outputs; None where the
            lowered model has none.
        whole: The node itself as a model.
    """

    spec: RecurrentSpec
    attributes: Mapping[str, Any]
    feeds: Mapping[str, str]
    cut: onnx.ModelProto | None
    whole: onnx.ModelProto

    def random_feed(self, rng: np.random.Generator, **sizes: int) -> dict[str, Array]:
        """Return random inputs by symbol: ragged lengths, T and 0 among them; weights that keep states bounded.

        Args:
            sizes: What the node leaves open: seq_length (at least the longest constant length), batch_size and
                input_size.
        """
        s = self.spec
        known = {size: getattr(s, size) for size in _SIZES if getattr(s, size) is not None}
        T, N, width = (_SIZES | sizes | known).values()
        if s.seq_length is None and "sequence_lens" in s.constants:
            T = max(T, int(s.constants["sequence_lens"].numpy().max(initial=0)))
        H = s.hidden_size
        dirs, rows = len(s.directions), GATES[s.op_type] * s.hidden_size
        shapes = {
            "X": (N, T, width) if s.layout else (T, N, width),
            "W": (dirs, rows, width),
            "R": (dirs, rows, H),
            "B": (dirs, 2 * rows),
            "P": (dirs, 3 * H),
        }
        state = (N, dirs, H) if s.layout else (dirs, N, H)
        feed: dict[str, Array] = {}
        for symbol in self.feeds:
            if symbol == "sequence_lens":
                feed[symbol] = rng.integers(0, T + 1, N).astype(np.int32)
                feed[symbol][1:2] = 0
                feed[symbol][:1] = T
                continue
            scale = 1.0 if symbol == "X" or symbol.startswith("initial") else H**-0.5
            feed[symbol] = rng.uniform(-scale, scale, shapes.get(symbol, state)).astype(s.dtype.numpy())
        first = {name: symbol for symbol, name in reversed(list(self.feeds.items()))}
        return {symbol: feed[first[name]] for symbol, name in self.feeds.items()}  # one value may enter twice

    def expected(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The node's connected outputs by the operator page, in float64."""
        constants = {symbol: tensor.numpy() for symbol, tensor in self.spec.constants.items()}
        result = reference.evaluate(self.spec.op_type, self.attributes, {**constants, **feed})
        return {symbol: result[symbol] for symbol in self.spec.outputs}


Symbols = dict[str, Array]


def run_nodes(
    nodes: Sequence[IsolatedNode],
    feeds: Sequence[Sequence[Symbols]],
    scratch: Path,
    *,
    native: bool = False,
    ran: Ran = lambda: None,
) -> list[list[Symbols]]:
    """Run lowered nodes in onnxruntime; return the connected outputs by symbol, per node and feed.

    Args:
        native: Run the nodes as they were.
        ran: Called after each feed.

    Raises:
        SessionError: onnxruntime cannot run one of them.
    """
    jobs = []
    for n, (node, inputs) in enumerate(zip(nodes, feeds, strict=True)):
        model = node.whole if native else node.cut
        if model is None:
            raise SessionError(f"{node.spec.node} has no counterpart in the lowered model")
        path = scratch / f"node{n}.onnx"
        onnx.save(_runnable(model), path)
        named = [_named(node, model, feed) for feed in inputs]
        files = [write_feed(scratch, f"node{n}-{k}.npz", feed) for k, feed in enumerate(named)]
        jobs.append((Session(path, scratch, scratch), [[file] for file in files]))
    results = []
    for node, outcome in zip(nodes, run_all(jobs, ran) if jobs else [], strict=True):
        errors = [o["error"] for o in (outcome, *outcome.get("groups", ())) if "error" in o]
        if errors:
            raise SessionError(f"{node.spec.node}: {errors[0]}")
        held = [Session(scratch, scratch, scratch).outputs(group["feed"]) for group in outcome["groups"]]
        results.append([{s: outputs[f"{k}:0"] for k, s in enumerate(node.spec.outputs)} for outputs in held])
    return results


def _named(node: IsolatedNode, model: onnx.ModelProto, feed: Mapping[str, Array]) -> Symbols:
    taken = {value.name for value in model.graph.input}
    arrays = {name: feed[symbol] for symbol, name in node.feeds.items() if name in taken}
    half = node.spec.dtype == ir.DataType.BFLOAT16
    return {n: a.astype(np.float32) if half and a.dtype.kind != "i" else a for n, a in arrays.items()}


def isolated_nodes(original: ir.Model, lowered: ir.Model) -> Iterator[IsolatedNode]:
    """Yield every recurrent node of the original that the lowered model no longer has.

    Functions that the lowered model no longer has are inlined first, as the lowering does: only where they are
    called do the attributes of their nodes become known. The nodes of `original` are sorted in place.

    Raises:
        RnnLoweringError: A node of the original cannot be read.
    """
    sort_nodes(original)
    if original.functions.keys() - lowered.functions.keys():
        original = clone(original)
        inline_functions(original, lambda found: _identifier(found) not in lowered.functions)
    found = list(recurrent_nodes(original))
    values = _values(lowered)
    left = {(entry.scope, v.name) for entry in recurrent_nodes(lowered) for v in entry.node.outputs}
    gone = [e for e in found if not left.intersection((e.scope, v.name) for v in e.node.outputs if v.name)]
    with inferred_shapes(original, gone):
        specs = [RecurrentSpec.parse(e.node, e.opset, e.scope) for e in gone]
    for entry, spec in zip(gone, specs, strict=True):
        if not spec.outputs:
            continue
        feeds = {s: v.name or "" for s, v in spec.inputs.items() if s not in spec.constants}
        found_values = [values.get((entry.scope, v.name or "")) for v in spec.outputs.values()]
        outputs = [value for value in found_values if value is not None]
        cut = _cut(lowered, outputs, feeds, spec) if len(outputs) == len(found_values) else None
        yield IsolatedNode(spec, _attributes(entry), feeds, cut, _whole(entry, spec, feeds))


def _values(model: ir.Model) -> dict[tuple[str, str], ir.Value | None]:
    """What nodes compute by scope and name, as bodies may share names; None where that is not enough."""
    values: dict[tuple[str, str], ir.Value | None] = {}
    for scope, graph in graphs_by_scope(model):
        for value in (v for node in graph for v in node.outputs):
            key = scope, value.name or ""
            values[key] = None if key in values else value
    return values


def _identifier(found: Found) -> ir.OperatorIdentifier | None:
    return found.function.identifier() if found.function else None


def _attributes(entry: Found) -> dict[str, Any]:
    return {name: a.value for name, a in entry.node.attributes.items() if not a.is_ref()}


def _all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from (graph, *graph.subgraphs())


def _cut(
    model: ir.Model, outputs: list[ir.Value], feeds: Mapping[str, str], spec: RecurrentSpec
) -> onnx.ModelProto | None:
    """Return the part of a model between the values of `feeds` and `outputs`, None where it needs others."""
    stop = set(feeds.values())
    needed: set[ir.Node] = set()
    initializers: dict[str, ir.TensorProtocol] = {}
    inputs: set[str] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if value.name in stop:
            inputs.add(value.name)
        elif node is not None:
            pending += () if node in needed else _needs(node)
            needed.add(node)
        elif value.const_value is None:
            return None
        else:
            initializers[value.name or ""] = value.const_value
    nodes = [node for graph in _all_graphs(model) for node in graph if node in needed]
    given = {name: symbol for symbol, name in feeds.items() if name in inputs}
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    return _model(nodes, initializers, given, spec, opset)


def _whole(entry: Found, spec: RecurrentSpec, feeds: Mapping[str, str]) -> onnx.ModelProto:
    constants = {spec.inputs[symbol].name or "": tensor for symbol, tensor in spec.constants.items()}
    given = {name: symbol for symbol, name in feeds.items()}
    return _model([entry.node], constants, given, spec, entry.opset)


def _model(
    nodes: Iterable[ir.Node],
    initializers: Mapping[str, ir.TensorProtocol],
    inputs: Mapping[str, str],
    spec: RecurrentSpec,
    opset: int,
) -> onnx.ModelProto:
    """Return a model of some nodes; `inputs`: name of the value -> symbol of the operator page."""
    graph = onnx.GraphProto(name="node")
    graph.node.extend(_node(node) for node in nodes)
    graph.initializer.extend(_tensor(tensor, name) for name, tensor in initializers.items())
    for name, symbol in inputs.items():
        dtype = onnx.TensorProto.INT32 if symbol == "sequence_lens" else int(spec.dtype)
        rank = {"sequence_lens": 1, "B": 2, "P": 2}.get(symbol, 3)
        graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, [None] * rank))
    for value in spec.outputs.values():
        graph.output.append(onnx.helper.make_tensor_value_info(value.name or "", int(spec.dtype), None))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def _node(node: ir.Node) -> onnx.NodeProto:
    """Return a node whose bodies hold their tensors, wherever the model has them."""
    proto: onnx.NodeProto = ir.to_proto(node)
    bodies = {a.name: a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH}
    for attribute in proto.attribute:
        if attribute.name in bodies:
            _hold(attribute.g, bodies[attribute.name])
    return proto


def _hold(proto: onnx.GraphProto, body: ir.Graph) -> None:
    for tensor in proto.initializer:
        held = body.initializers[tensor.name].const_value
        if isinstance(held, ir.ExternalTensor):
            tensor.CopyFrom(_tensor(held, tensor.name))
    for n, node in enumerate(body):
        proto.node[n].CopyFrom(_node(node))


def _tensor(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    held: onnx.TensorProto = ir.to_proto(ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))
    return held


def _needs(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node takes, those included that its bodies capture."""
    yield from (v for v in node.inputs if v is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            body = attribute.as_graph()
            inside = {body, *body.subgraphs()}
            for inner in body.all_nodes():
                for value in inner.inputs:
                    producer = None if value is None else value.producer()
                    home = value and (value.graph if producer is None else producer.graph)
                    if value is not None and home not in inside:
                        yield value


def _runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that onnxruntime's CPU runs: bfloat16 as float32, an opset it knows."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.opset_import[0].version = min(copy.opset_import[0].version, _NEWEST_RUNNABLE)
    _widen(copy.graph)
    return copy


def _widen(graph: onnx.GraphProto) -> None:
    half, full = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == half:
            info.type.tensor_type.elem_type = full
    attributes = [a for node in graph.node for a in node.attribute]
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type == half:
            name, array = tensor.name, onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == half:
            attribute.i = full
        if attribute.HasField("g"):
            _widen(attribute.g)
