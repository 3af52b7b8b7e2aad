"""A lowered node and its original, each as a separate model, run in onnxruntime and computed in float64."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.float64_model import widen
from rnn_lowering.compare.process import Ran, Runner, SessionError
from rnn_lowering.compare.references.every_kind import reference_of
from rnn_lowering.compare.references.node_reference import NodeReference
from rnn_lowering.compare.session import Session, quantizes_inputs
from rnn_lowering.files.tensor_file import TensorFile, root
from rnn_lowering.model.copying import clone
from rnn_lowering.model.fixed_inputs import at_sizes, recorded
from rnn_lowering.model.folding import folded
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.scopes import (
    NodePlace,
    RecurrentNode,
    ScopePath,
    bodies_of,
    recurrent_nodes,
    scopes,
    sort_nodes,
)
from rnn_lowering.model.sizes import known_inputs
from rnn_lowering.options import Lowering
from rnn_lowering.spec.constant_values import computed, constant_of
from rnn_lowering.spec.kinds import read_spec
from rnn_lowering.spec.node_spec import NodeSpec, default_opset
from rnn_lowering.types import Array, array_of

_LONG = 256
"""More nodes get a session for each combination of sizes: with open sizes, creating one takes half a minute."""


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


Symbols = dict[str, Array]


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


def run_node(
    node: NodePair, feeds: Sequence[NodeFeed], runner: Runner, *, original: bool = False, ran: Ran = lambda: None
) -> Iterator[Symbols]:
    """Run a lowered node in onnxruntime, in one session; return its connected outputs by symbol, feed by feed.

    The arrays are mapped files, as `Run.outputs` returns them.

    Args:
        original: Run the node of the original.
        feeds: Its inputs; those of nodes beside it that have no values are random.
        ran: Called after each feed.

    Raises:
        SessionError: onnxruntime cannot run it.
    """
    model = node.whole() if original else node.cut
    if model is None:
        raise SessionError(f"{node.spec.node} has no counterpart in the lowered model")
    named = [_named(node, model, given.feed, given.values) for given in feeds]
    held: list[Mapping[str, Array]] = []
    try:
        for sizes, group in groupby(named, _sizes if len(model.graph.node) > _LONG else lambda _: {}):
            path = runner.folder / "node.onnx"
            proto = with_shapes(model, sizes)
            onnx.save(proto, path)
            groups = [[runner.write_feed(feed)] for feed in group]
            for run in runner.run(Session(path, root(path), proto=proto), groups, ran).runs:
                if run.error:
                    raise SessionError(run.error)
                held.append(run.outputs())
    except SessionError as error:
        raise error.about(node.spec.node) from None
    return ({s: outputs[f"{k}:0"] for k, s in enumerate(node.spec.outputs)} for outputs in held)


def _sizes(feed: Symbols) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


def _named(
    node: NodePair, model: onnx.ModelProto, feed: Mapping[str, Array], values: Mapping[str, Array]
) -> Symbols:
    """Return all inputs of the model of a node by name, those of the nodes beside it too."""
    taken = {value.name for value in model.graph.input}
    arrays = {name: feed[symbol] for symbol, name in node.feeds.items() if name in taken}
    arrays |= {name: array for name, array in values.items() if name in taken - arrays.keys()}
    if taken - arrays.keys():
        data, axes = node.inputs(feed)[node.spec.data], node.spec.axes(node.spec.data)
        T, N = (data.shape[axes.index(axis)] for axis in ("T", "N"))
        made = [random_inputs(other.reference, other.feeds, T, N) for other in node.beside]
        arrays |= {name: array for given in made for name, array in given.items() if name in taken - arrays.keys()}
    return {n: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for n, a in arrays.items()}


def node_pairs(original: ir.Model, lowered: ir.Model, tensors: TensorFile | None = None) -> Iterator[NodePair]:
    """Yield every recurrent node of the original that the lowered model no longer has.

    Functions that the lowered model no longer has are inlined first, as the lowering does: only where they are
    called do the attributes of their nodes become known. Sizes that the lowered model fixes are fixed first, since
    constants follow from them. The nodes of `original` are sorted in place.

    Args:
        tensors: Where large tensors of the models of single nodes are; None: in those models.

    Raises:
        RnnLoweringError: A node of the original cannot be read.
    """
    sort_nodes(original)
    original = at_sizes_of(original, lowered)
    if original.functions.keys() - lowered.functions.keys():
        original = clone(original)
        most = max(Lowering.max_nodes, sum(1 for _ in lowered.graph.all_nodes()))  # a lowering makes no fewer
        inline_functions(original, lambda found: _identifier(found) not in lowered.functions, most)
    folded = fold_like(original, lowered)
    if folded is not original:
        nodes = list(pairs_of_prepared(folded, lowered, tensors))
        if all(node.cut is not None for node in nodes):
            yield from nodes
            return
    yield from pairs_of_prepared(original, lowered, tensors)  # the lowering did not fold


def pairs_of_prepared(
    original: ir.Model, lowered: ir.Model, tensors: TensorFile | None, inferred: bool = False
) -> Iterator[NodePair]:
    """Yield the `node_pairs` of an original that has the sizes of the lowered model, inlined and folded as that.

    `inferred`: whether its values declare what inference has found.
    """
    found = list(recurrent_nodes(original))
    values, order = values_by_name(lowered), order_of_nodes(lowered)
    left = {(entry.path, v.name) for entry in recurrent_nodes(lowered) for v in entry.node.outputs}
    gone = [e for e in found if not left.intersection((e.path, v.name) for v in e.node.outputs if v.name)]
    known = known_inputs(original, gone, inferred=inferred)
    specs = [read_spec(e.node, e.opset, e.scope, known) for e in gone]
    nodes: list[LoweredNode] = []
    for entry, spec in zip(gone, specs, strict=True):
        if not spec.outputs:
            continue
        feeds = {s: v.name or "" for s, v in spec.inputs.items() if s not in spec.constants}
        found_values = [values.get((entry.path, v.name or "")) for v in spec.outputs.values()]
        outputs = [value for value in found_values if value is not None]
        nodes.append(LoweredNode(entry, reference_of(entry.node, spec), feeds, outputs))
    yield from _pairs(nodes, lowered, order, tensors)


def _pairs(
    nodes: Sequence[LoweredNode], lowered: ir.Model, order: Mapping[ir.Node, int], tensors: TensorFile | None
) -> Iterator[NodePair]:
    """Yield nodes with the part of the lowered model between their inputs, and those of the nodes beside them, and
    their outputs. A layer none of whose outputs is left is compared with the layer above it."""
    pairs: dict[NodePlace, NodePair] = {}
    used: set[NodePlace] = set()
    for node in nodes:
        complete = len(node.outputs) == len(node.reference.spec.outputs)
        cut = cut_out(lowered, order, [node], tensors) if complete else None
        beside: list[LoweredNode] = []
        if cut is None and node.outputs:
            beside = _beside(node, nodes)
            cut = cut_out(lowered, order, [node, *beside], tensors)
        pair = _pair(node, beside, cut, tensors)
        taken = {value.name for value in cut.graph.input} if cut is not None else set()
        below, path = _layer_below(node, beside if node.outputs else nodes)
        if below is not None and pair.feeds.get("X") not in (None, *taken):
            moves = partial(_moved, path, node.entry.opset)
            pair = replace(pair, below=_from(taken, pairs.get(below.entry.place)), moves=moves)
        pairs[node.entry.place] = pair
    for pair in pairs.values():
        used |= _places_below(pair) if pair.cut is not None else set()
    for place, pair in pairs.items():
        if pair.cut is not None or place not in used:
            yield pair


def _places_below(pair: NodePair) -> set[NodePlace]:
    """Return the places of the layers below one."""
    return set() if pair.below is None else {pair.below.place} | _places_below(pair.below)


def _from(taken: Collection[str], pair: NodePair | None) -> NodePair | None:
    """Return the layer without the layer below if X is among the inputs `taken`."""
    if pair is None or pair.below is None:
        return pair
    starts = pair.feeds["X"] in taken
    return replace(pair, below=None if starts else _from(taken, pair.below))


def _pair(
    node: LoweredNode,
    beside: Sequence[LoweredNode],
    cut: onnx.ModelProto | None,
    tensors: TensorFile | None,
) -> NodePair:
    spec, reference = node.reference.spec, node.reference
    if cut is not None and not quantizes_inputs(cut):
        spec = spec.as_floats()
    if cut is not None:
        left = {value.name for value in cut.graph.output}
        spec = replace(spec, outputs={s: v for s, v in spec.outputs.items() if v.name in left})
        reference = reference_of(node.entry.node, spec)
    as_it_was = partial(original_model, node.entry, spec, node.feeds, tensors)
    return NodePair(node.entry.place, reference, node.feeds, cut, as_it_was, beside)


def _beside(node: LoweredNode, others: Sequence[LoweredNode]) -> list[LoweredNode]:
    """Return the nodes that share a loop with this node, and the layers below it."""
    same = [other for other in others if other is not node and other.entry.path == node.entry.path]
    stop = {name for other in (node, *same) for name in other.feeds.values()}
    reached = _reached(node.outputs, stop)
    found = [other for other in same if not reached.isdisjoint(_reached(other.outputs, stop))]
    below, _ = _layer_below(node, same)
    while below is not None:
        found += [] if below in found else [below]
        below, _ = _layer_below(below, same)
    return found


def _layer_below(node: LoweredNode, others: Sequence[LoweredNode]) -> tuple[LoweredNode | None, list[ir.Node]]:
    """Return the node whose Y becomes X of a node by what nodes move and add to, and these nodes, in order."""
    by_Y = {other.reference.spec.outputs.get("Y"): other for other in others}
    value, path = node.reference.spec.inputs.get("X"), []
    while value is not None and value not in by_Y and (producer := value.producer()) is not None:
        path.append(producer)
        value = _moved_input(producer, node.entry.opset)
    return (None, []) if value is None else (by_Y.get(value), path[::-1])


def _moved_input(node: ir.Node, opset: int) -> ir.Value | None:
    """Return the input of a node that it moves, or that it adds a constant to."""
    added = node.op_type == "Add" and node.inputs[0] is not None and constant_of(node.inputs[0], opset) is not None
    return node.inputs[int(added)] if node.inputs else None


def _moved(path: Sequence[ir.Node], opset: int, Y: Array) -> Array:
    """Return X of a layer for Y of the layer below, by onnx's reference evaluator."""
    moved = [_moved_input(node, opset) for node in path]
    if not moved or moved[0] is None:
        return Y
    leaves = {moved[0]: ir.tensor(Y)}
    for value in (v for node, of_node in zip(path, moved, strict=True) for v in node.inputs if v is not of_node):
        constant = None if value is None else constant_of(value, opset)
        if value is None or constant is None:
            raise SessionError(f"'{'' if value is None else value.name}' is not a constant")
        floats = constant.dtype.is_floating_point()
        leaves[value] = ir.tensor(array_of(constant).astype(Y.dtype)) if floats else constant
    X = computed(path[-1].outputs[0], path, leaves, opset)
    if X is None:
        raise SessionError(f"onnx cannot compute '{path[-1].outputs[0].name}'")
    return array_of(X)


def _reached(outputs: Sequence[ir.Value], stop: Collection[str]) -> set[ir.Node]:
    """Return the nodes that compute `outputs`, up to the values named in `stop`."""
    found: set[ir.Node] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is not None and value.name not in stop and node not in found:
            found.add(node)
            pending += _needs(node)
    return found


def _identifier(found: RecurrentNode) -> ir.OperatorIdentifier | None:
    return found.function.identifier() if found.function else None


_NEWEST_RUNNABLE = 26
"""The newest opset that onnxruntime runs; the operators that a lowering emits are the same in 27 and 28."""


def order_of_nodes(model: ir.Model) -> dict[ir.Node, int]:
    """Return the position of each node of a model, those of outer scopes first."""
    return {node: n for n, node in enumerate(node for scope in scopes(model) for node in scope.graph)}


def cut_out(
    model: ir.Model, order: Mapping[ir.Node, int], nodes: Sequence[LoweredNode], tensors: TensorFile | None = None
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
            pending += () if node in needed else _needs(node)
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
    return _model(in_order, initializers, given, spec, opset, tensors or TensorFile())


def original_model(
    entry: RecurrentNode, spec: NodeSpec, feeds: Mapping[str, str], tensors: TensorFile | None = None
) -> onnx.ModelProto:
    """Return the node itself as a model from the values of `feeds` to its connected outputs."""
    constants = {spec.inputs[symbol].name or "": tensor for symbol, tensor in spec.stored.items()}
    given = {name: symbol for symbol, name in feeds.items()}
    return _model([entry.node], constants, given, spec, entry.opset, tensors or TensorFile())


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


def _needs(node: ir.Node) -> Iterator[ir.Value]:
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
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return copy


def at_sizes_of(original: ir.Model, lowered: ir.Model) -> ir.Model:
    """Return the original with the sizes and values that the lowered model fixes; itself if there are none."""
    fixed = {value.name: value.shape for value in lowered.graph.inputs}
    dims: dict[str, int] = {}
    shapes: dict[str, list[int]] = {}
    for value in original.graph.inputs:
        before, after = value.shape, fixed.get(value.name)
        if after is None or (before is not None and len(before) != len(after)):
            continue
        pairs = list(zip(before if before is not None else [None] * len(after), after, strict=True))
        dims |= {a.value: b for a, b in pairs if isinstance(a, ir.SymbolicDim) and a.value and isinstance(b, int)}
        sizes = [size for size in after if isinstance(size, int)]
        if len(sizes) == len(after) and not all(isinstance(a, int) for a, _ in pairs):
            shapes[value.name or ""] = sizes
    arrays = recorded(original, lowered)
    return at_sizes(original, dims, shapes, arrays).model if dims or shapes or arrays else original


def fold_like(original: ir.Model, lowered: ir.Model) -> ir.Model:
    """Return the folded original if the lowered model has the outputs of its recurrent nodes, else the original."""
    branches = _count_branches(original) > _count_branches(lowered)
    if not branches and not all(v.shape is not None and v.shape.is_static() for v in lowered.graph.inputs):
        return original
    known = folded(original, decide=branches)
    if known is None:
        return original
    values = values_by_name(lowered)
    given = [(entry.path, v) for entry in recurrent_nodes(known) for v in entry.node.outputs]
    kept = all((path, v.name) in values for path, v in given if v.uses() or v.is_graph_output())
    return known if kept else original


def _count_branches(model: ir.Model) -> int:
    return sum(node.op_type == "If" for node in model.graph.all_nodes())


def values_by_name(model: ir.Model) -> dict[tuple[ScopePath, str], ir.Value | None]:
    """Return computed values by scope and name, as bodies may share names; None if that is ambiguous."""
    values: dict[tuple[ScopePath, str], ir.Value | None] = {}
    for scope in scopes(model):
        for value in (v for node in scope.graph for v in node.outputs):
            key = scope.path, value.name or ""
            values[key] = None if key in values else value
    return values
