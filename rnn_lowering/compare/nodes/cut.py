"""Cut a node out of a model, into a small model that onnxruntime runs.

A recurrent node of the original and its lowered form: both as models, the node in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.references.every_kind import widen
from rnn_lowering.compare.references.node_reference import NodeReference, Symbols
from rnn_lowering.files.locations import ALIGNMENT, refer
from rnn_lowering.model.scopes import NodePlace, RecurrentNode, bodies_of
from rnn_lowering.spec.node_spec import NodeSpec, default_opset
from rnn_lowering.types import Array, array_of


@dataclass(frozen=True, eq=False)
class LoweredNode:
    """A node of the original that the lowered model no longer has.

    Attributes:
        entry: The node.
        reference: The node in float64.
        feeds: As in `NodePair`.
        outputs: The values of the lowered model that have the names of its connected outputs.
    """

    entry: RecurrentNode
    reference: NodeReference[Any]
    feeds: Mapping[str, str]
    outputs: Sequence[ir.Value]


@dataclass(frozen=True)
class NodePair:
    """A recurrent node of the original and its lowered form.

    Attributes:
        place: The place of the node in the original.
        reference: The node in float64.
        feeds: The non-constant inputs: name of the value by symbol of the operator specification.
        cut: The subgraph that replaces it, as a model from those inputs to its connected outputs; None if the
            lowered model has no such subgraph.
        whole: Returns the node itself as a model.
        beside: The nodes that share a loop with this node. Their inputs are also inputs of `cut`.
        below: The layer whose Y is X of this node, if both share a loop. X is then no input of `cut`.
        moves: Returns X of this node for Y of the layer `below`.
    """

    place: NodePlace
    reference: NodeReference[Any]
    feeds: Mapping[str, str]
    cut: onnx.ModelProto | None
    whole: Callable[[], onnx.ModelProto]
    beside: Sequence[LoweredNode] = ()
    below: NodePair | None = None
    moves: Callable[[Array], Array] = lambda Y: Y

    @property
    def spec(self) -> NodeSpec:
        """What the node specifies."""
        return cast(NodeSpec, self.reference.spec)

    def layers_below(self) -> Iterator[NodePair]:
        """Yield the layer below, the layer below that one, and so on."""
        if self.below is not None:
            yield self.below
            yield from self.below.layers_below()

    def inputs(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Return all inputs by symbol: the feed and the constants."""
        return {**{symbol: array_of(tensor) for symbol, tensor in self.spec.constants.items()}, **feed}

    def float64(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The node's connected outputs by the operator specification, in float64."""
        result = self.reference.outputs(self.inputs(feed))
        return {symbol: result[symbol] for symbol in self.spec.outputs}

    def runs(self, rng: np.random.Generator) -> list[NodeFeed]:
        """Return inputs of several runs, chosen for this node, or for the lowest of its layers."""
        if self.below is None:
            return [NodeFeed(feed) for feed in self.reference.feeds(self.feeds, rng)]
        return [self._above(self.below, given) for given in self.below.runs(rng)]

    def usual_run(self, rng: np.random.Generator, steps: int) -> NodeFeed:
        """Return inputs of one ordinary run; see `NodeReference.usual_feed`."""
        if self.below is None:
            return NodeFeed(self.reference.usual_feed(self.feeds, rng, steps))
        return self._above(self.below, self.below.usual_run(rng, steps))

    def _above(self, below: NodePair, given: NodeFeed) -> NodeFeed:
        """Return the inputs of this layer for inputs of the layer below."""
        X = self.moves(below.reference.outputs(below.inputs(given.feed))["Y"])
        T, N = (X.shape[self.spec.axes(self.spec.data).index(axis)] for axis in ("T", "N"))
        own = random_inputs(self.reference, self.feeds, T, N)
        feed = {symbol: own[name] for symbol, name in self.feeds.items()}
        feed[self.spec.data] = X.astype(self.spec.dtype.numpy())
        named = {name: given.feed[symbol] for symbol, name in below.feeds.items()}
        return NodeFeed(feed, {**given.values, **named})

    def rounding_of_X(self, values: Mapping[str, Array]) -> Array | None:
        """Return the allowed difference of X, if the layer below computes X in the same loop.

        Args:
            values: The inputs of the layers below, by name.
        """
        if self.below is None:
            return None
        inputs = self.below.inputs({symbol: values[name] for symbol, name in self.below.feeds.items()})
        return self.moves(self.below.expected(inputs, self.below.rounding_of_X(values))[1]["Y"])

    def expected(self, inputs: Symbols, rounding: Array | None) -> tuple[Symbols, Symbols]:
        """Return the outputs in float64, and their allowed difference if X may differ by `rounding`."""
        truth, allowed = self.reference.outputs_and_allowed(inputs)
        if rounding is None:
            return truth, allowed
        rng, X = np.random.default_rng(0), self.spec.data
        far = np.where(np.isfinite(rounding), rounding, 0.0)
        for _ in range(2):
            moved = self.reference.outputs({**inputs, X: inputs[X] + far * rng.choice((-1.0, 1.0), far.shape)})
            allowed = {
                symbol: level + 2 * np.abs(moved[symbol] - truth[symbol]) for symbol, level in allowed.items()
            }
        return truth, allowed


@dataclass(frozen=True)
class NodeFeed:
    """Inputs of a node for one run.

    Attributes:
        feed: Its inputs by symbol.
        values: The inputs of the layers below it, by name.
    """

    feed: Symbols
    values: Mapping[str, Array] = field(default_factory=dict)


def random_inputs(reference: NodeReference[Any], feeds: Mapping[str, str], T: int, N: int) -> dict[str, Array]:
    """Return random inputs of a node of a length and batch size, by the names of the values."""
    at_sizes = replace(reference, spec=replace(reference.spec, seq_length=T, batch_size=N))
    made = at_sizes.usual_feed(feeds, np.random.default_rng(0), T)
    return {name: made[symbol] for symbol, name in feeds.items()}


_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs; the operators that a lowering emits are the same in 27 and 28."""

_LARGE = 1 << 16
"""Smaller tensors, in bytes, are in the model itself: onnxruntime folds and fuses only such."""


def cut_out(
    model: ir.Model, order: Mapping[ir.Node, int], nodes: Sequence[LoweredNode], tensors: TensorFile
) -> onnx.ModelProto | None:
    """Return the part of a model between the inputs of nodes and the outputs of the first, or None if it needs
    other values.

    Args:
        order: The position of each node of the model.
    """
    symbols = {name: symbol for node in reversed(nodes) for symbol, name in node.feeds.items()}
    needed: set[ir.Node] = set()
    initializers: dict[str, ir.TensorProtocol] = {}
    inputs: set[str] = set()
    pending = list(nodes[0].outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if value.name in symbols:
            inputs.add(value.name)
        elif node is not None:
            pending += () if node in needed else needs(node)
            needed.add(node)
        elif value.const_value is None:
            return None
        else:
            initializers[value.name or ""] = value.const_value
    in_order = sorted(needed, key=order.__getitem__)
    given = {name: symbol for name, symbol in symbols.items() if name in inputs}
    opset = default_opset(model.opset_imports)
    spec, names = nodes[0].reference.spec, {value.name for value in nodes[0].outputs}
    spec = replace(spec, outputs={symbol: v for symbol, v in spec.outputs.items() if v.name in names})
    return _model(in_order, initializers, given, spec, opset, tensors)


def original_model(
    entry: RecurrentNode, spec: NodeSpec, feeds: Mapping[str, str], tensors: TensorFile
) -> onnx.ModelProto:
    """Return the node itself as a model from the values of `feeds` to its connected outputs."""
    constants = {spec.inputs[symbol].name or "": tensor for symbol, tensor in spec.stored.items()}
    given = {name: symbol for symbol, name in feeds.items()}
    return _model([entry.node], constants, given, spec, entry.opset, tensors)


def _model(
    nodes: Iterable[ir.Node],
    initializers: Mapping[str, ir.TensorProtocol],
    inputs: Mapping[str, str],
    spec: NodeSpec,
    opset: int,
    tensors: TensorFile,
) -> onnx.ModelProto:
    """Return a model of some nodes as onnxruntime's CPU runs it: bfloat16 as float32, an opset that it knows.

    Args:
        inputs: Name of the value -> symbol of the operator specification.
    """
    graph = onnx.GraphProto(name="node")
    graph.node.extend(_node(node, tensors) for node in nodes)
    graph.initializer.extend(tensors.proto(t, name) for name, t in initializers.items())
    for name, symbol in inputs.items():
        dtype, rank = int(spec.dtype_of(symbol)), spec.rank(symbol)
        graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, [None] * rank))
    for symbol, value in spec.outputs.items():
        dtype = int(spec.dtype_of(symbol))
        graph.output.append(onnx.helper.make_tensor_value_info(value.name or "", dtype, None))
    widen(graph, (onnx.TensorProto.BFLOAT16,), onnx.TensorProto.FLOAT)
    others = sorted({node.domain for node in graph.node} - {""})
    # an operator that is newer than that runs in the process of `Runner`
    newest = max(_NEWEST_RUNNABLE, spec.version)
    versions = {"": min(opset, newest), **dict.fromkeys(others, 1)}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _node(node: ir.Node, tensors: TensorFile) -> onnx.NodeProto:
    """Return a node whose bodies refer to their tensors as `tensors` does."""
    proto: onnx.NodeProto = ir.to_proto(node)
    bodies = {a.name: a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH}
    for attribute in proto.attribute:
        if attribute.name in bodies:
            _hold(attribute.g, bodies[attribute.name], tensors)
    return proto


def _hold(proto: onnx.GraphProto, body: ir.Graph, tensors: TensorFile) -> None:
    for tensor in proto.initializer:
        held = body.initializers[tensor.name].const_value
        if isinstance(held, ir.ExternalTensor):
            tensor.CopyFrom(tensors.proto(held, tensor.name))
    for n, node in enumerate(body):
        proto.node[n].CopyFrom(_node(node, tensors))


def needs(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node uses, also those that its bodies use from outside."""
    yield from (v for v in node.inputs if v is not None)
    for body in bodies_of(node):
        inside = {body, *body.subgraphs()}
        for inner in body.all_nodes():
            for value in inner.inputs:
                producer = None if value is None else value.producer()
                home = value and (value.graph if producer is None else producer.graph)
                if value is not None and home not in inside:
                    yield value


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a copy of a model with the given input shapes."""
    copy = deepcopy(model)
    for value in copy.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return copy


class TensorFile:
    """Makes protos of tensors: small ones with their data, large ones as external data.

    Args:
        folder: Where large tensors are written that are in no file yet, each once. None: every proto has its data.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / "tensors.data"
        self._written: dict[int, tuple[ir.TensorProtocol, onnx.TensorProto]] = {}

    def proto(self, tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
        """Return the proto of a tensor; bfloat16 becomes float32, which onnxruntime's CPU kernels support.

        Locations start from the root of the file system, links followed: a `Session` needs `data=root(...)`.
        """
        half = tensor.dtype == ir.DataType.BFLOAT16
        if self._file is None or tensor.nbytes < _LARGE or tensor.dtype == ir.DataType.STRING:
            return _inline(tensor, name, half)
        if isinstance(tensor, ir.ExternalTensor) and not half:
            return _reference(name, tensor, Path(tensor.path), tensor.offset or 0)
        if id(tensor) not in self._written:  # the tensor is kept with it: another may not get its identity
            self._written[id(tensor)] = tensor, self._write(tensor, half)
        copy = deepcopy(self._written[id(tensor)][1])
        copy.name = name
        return copy

    def _write(self, tensor: ir.TensorProtocol, half: bool) -> onnx.TensorProto:
        assert self._file is not None
        stored = ir.Tensor(array_of(tensor).astype(np.float32)) if half else tensor
        with self._file.open("ab") as file:
            file.write(bytes(-file.tell() % ALIGNMENT))
            offset = file.tell()
            file.write(stored.tobytes())
        return _reference("", stored, self._file, offset)


def root(path: Path) -> Path:
    """Return the folder that references start from."""
    return Path(path.absolute().anchor)


def _inline(tensor: ir.TensorProtocol, name: str, half: bool) -> onnx.TensorProto:
    array = array_of(tensor)
    held = ir.Tensor(array.astype(np.float32), name=name) if half else ir.Tensor(array, tensor.dtype, name=name)
    proto: onnx.TensorProto = ir.to_proto(held)
    return proto


def _reference(name: str, tensor: ir.TensorProtocol, path: Path, offset: int) -> onnx.TensorProto:
    place = path.resolve()
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
    refer(proto, place.relative_to(place.anchor).as_posix(), offset, tensor.nbytes)
    return proto
