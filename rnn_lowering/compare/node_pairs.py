"""The recurrent nodes of the original, each with what the lowered model has in its place, as small models.

The part of the lowered model between the inputs and the outputs of a node becomes a model of its own. If nodes
share a loop, that model has the inputs of all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.float64.node_reference import NodeReference, Symbols, reference_of
from rnn_lowering.compare.node_models import LoweredFile, inputs_of, message_of, original_model
from rnn_lowering.compare.runs.runner import SessionError
from rnn_lowering.compare.runs.sessions import quantizes_inputs
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.node_outputs import NodeModel
from rnn_lowering.facts.operators import is_used, nodes_within
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.copying import clone, inline_functions
from rnn_lowering.model.fixed_inputs import at_sizes, recorded
from rnn_lowering.model.folding import folded, with_constants
from rnn_lowering.model.model_sizes import known_inputs
from rnn_lowering.model.scopes import NodePlace, RecurrentNode, ScopePath, recurrent_nodes, scopes, sort_nodes
from rnn_lowering.nodes.connections import KnownInputs
from rnn_lowering.nodes.kinds import read_spec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.options import Lowering
from rnn_lowering.types import Array, array_of

Values = Mapping[str, Array]
"""Inputs of a node, and of the nodes that share its loop, by the name of the value; behind `_ROUNDING`, how far
they may differ."""

_ROUNDING = "\0 rounding of "


@dataclass(frozen=True, eq=False)
class NodePair:
    """A recurrent node of the original and its lowered form.

    Attributes:
        entry: The node.
        reference: The node in float64.
        feeds: The non-constant inputs: name of the value by symbol of the operator specification.
        cut: The part of the lowered model that replaces it, from those inputs to its connected outputs; None if the
            lowered model has no such part.
        beside: The nodes that share a loop with this node. Their inputs are also inputs of `cut`.
        below: The layer whose Y is X of this node, if both share a loop. X is then no input of `cut`.
        between: The nodes from Y of the layer `below` to X of this node, in order.
        moves: What makes X of this node of Y of the layer `below`; None if nothing does.
        lost: Its outputs that something reads in the original, and that the lowered model does not compute.
    """

    entry: RecurrentNode
    reference: NodeReference[Any]
    feeds: Mapping[str, str]
    cut: onnx.ModelProto | None = None
    beside: Sequence[NodePair] = ()
    below: NodePair | None = None
    between: Sequence[ir.Node] = ()
    moves: _Moves | None = None
    lost: Sequence[ir.Value] = ()

    @property
    def place(self) -> NodePlace:
        """The place of the node in the original."""
        return self.entry.place

    @property
    def spec(self) -> NodeSpec:
        """The specification of the node."""
        return cast(NodeSpec, self.reference.spec)

    def whole(self) -> onnx.ModelProto:
        """Return the node itself as a model."""
        return original_model(self.entry, self.spec, self.feeds)

    def layer(self) -> onnx.ModelProto:
        """Return the node itself behind what is between it and the layer below, as a model."""
        model = self.whole()
        nodes = [*map(ir.serde.serialize_node, self.between), *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        for value, constant in _constants(self.between, self.entry.opset).items():
            if value is not None and constant is not None:
                model.graph.initializer.append(message_of(constant, value.name or ""))
        return model

    def layers_below(self) -> Iterator[NodePair]:
        """Yield the layer below, the layer below that one, and so on."""
        if self.below is not None:
            yield self.below
            yield from self.below.layers_below()

    def fed(self, values: Values) -> Symbols:
        """Return its non-constant inputs by symbol."""
        return {symbol: values[name] for symbol, name in self.feeds.items()}

    def values(self, feed: Symbols) -> dict[str, Array]:
        """Return the values that `fed` gives as these inputs."""
        return {name: feed[symbol] for symbol, name in self.feeds.items()}

    def inputs(self, values: Values) -> Symbols:
        """Return all its inputs by symbol."""
        return {**{symbol: array_of(tensor) for symbol, tensor in self.spec.constants.items()}, **self.fed(values)}

    def float64(self, values: Values) -> Symbols:
        """The node's connected outputs by the operator specification, in float64."""
        result = self.reference.outputs(self.inputs(values))
        return {symbol: result[symbol] for symbol in self.spec.outputs}

    def random_values(self, T: int, N: int) -> dict[str, Array]:
        """Return random inputs of a length and batch size."""
        sized = replace(self.reference, spec=replace(self.reference.spec, seq_length=T, batch_size=N))
        return self.values(sized.usual_feed(self.feeds, np.random.default_rng(0), T))

    def runs(self, rng: np.random.Generator, *, is_proven: bool) -> list[Values]:
        """Return the inputs of several runs, chosen for this node, or for the lowest of its layers; if it is
        proven, ordinary ones."""
        if self.below is None:
            return [self.values(feed) for feed in self.reference.feeds(self.feeds, rng, is_proven=is_proven)]
        return [self._above(self.below, values) for values in self.below.runs(rng, is_proven=is_proven)]

    def usual_run(self, rng: np.random.Generator, steps: int) -> Values:
        """Return the inputs of one ordinary run; see `NodeReference.usual_feed`."""
        if self.below is None:
            return self.values(self.reference.usual_feed(self.feeds, rng, steps))
        return self._above(self.below, self.below.usual_run(rng, steps))

    def _above(self, below: NodePair, values: Values) -> Values:
        """Return the inputs of this layer and of the layers below, for those of the layer below."""
        truth, allowed = below.expected(below.inputs(values), below.rounding_of_X(values))
        name, X = self.feeds[self.spec.data], truth["Y"] if self.moves is None else self.moves(truth["Y"])
        T, N = (X.shape[self.spec.axes(self.spec.data).index(axis)] for axis in ("T", "N"))
        own = {name: X.astype(self.spec.dtype.numpy()), _ROUNDING + name: self._far(allowed)}
        is_fed = {*own, *values}.issuperset(self.feeds.values())
        return {**({} if is_fed else self.random_values(T, N)), **own, **values}

    def rounding_of_X(self, values: Values) -> Array | None:
        """Return the allowed difference of X, if the layer below computes X in the same loop."""
        if self.below is None:
            return None
        if (stored := values.get(_ROUNDING + self.feeds[self.spec.data])) is not None:
            return stored
        return self._far(self.below.expected(self.below.inputs(values), self.below.rounding_of_X(values))[1])

    def _far(self, allowed: Symbols) -> Array:
        """Return how far X may be off, for the outputs of the layer below."""
        return allowed["Y"] if self.moves is None else self.moves(allowed["Y"], adds=False)

    def expected(self, inputs: Symbols, rounding: Array | None) -> tuple[Symbols, Symbols]:
        """Return the outputs in float64, and their allowed difference if X may differ by `rounding`."""
        if rounding is None:
            return self.reference.outputs_and_allowed(inputs)
        spec, rng, X = self.spec, np.random.default_rng(0), inputs[self.spec.data]
        far = np.where(np.isfinite(rounding), rounding, 0.0)
        moved = [X + far * rng.choice((-1.0, 1.0), far.shape) for _ in range(2)]
        N = X.shape[spec.axes(spec.data).index("N")]
        truth, allowed = self.reference.outputs_and_allowed(_side_by_side(spec, inputs, [X, *moved]))
        first, *others = (spec.of_rows(truth, slice(n * N, (n + 1) * N)) for n in range(3))
        levels = spec.of_rows(allowed, slice(0, N))
        for other in others:
            levels = {symbol: level + 2 * np.abs(other[symbol] - first[symbol]) for symbol, level in levels.items()}
        return first, levels


def _side_by_side(spec: NodeSpec, inputs: Symbols, data: Sequence[Array]) -> Symbols:
    """Return the inputs of a node that runs on several X in one batch: its steps are what takes time."""
    axes = {symbol: spec.axes(symbol) for symbol in inputs}
    return {
        symbol: np.concatenate(data if symbol == spec.data else [array] * len(data), axes[symbol].index("N"))
        if "N" in axes[symbol]
        else array
        for symbol, array in inputs.items()
    }


def node_pairs(original: ir.Model, lowered: ModelSource) -> list[NodePair]:
    """Return every recurrent node of the original that the lowered model no longer has.

    Functions that the lowered model no longer has are inlined first, as the lowering does: the attributes of their
    nodes are known only where they are called. Sizes that the lowered model fixes are fixed first, since constants
    follow from them. The nodes of `original` are sorted in place.

    Raises:
        RnnLoweringError: A node of the original cannot be read.
    """
    sort_nodes(original)
    result = lowered.model
    original = _at_sizes_of(original, result)
    if original.functions.keys() - result.functions.keys():
        original = clone(original)
        most = max(Lowering.max_nodes, sum(1 for _ in nodes_within(result.graph)))  # a lowering makes no fewer
        inline_functions(original, lambda entry: _function_of(entry) not in result.functions, most)
    folded = _fold_like(original, result)
    if folded is not original:
        pairs = pairs_of_prepared(folded, lowered)
        if all(pair.cut is not None for pair in pairs):
            return pairs
    return pairs_of_prepared(original, lowered)  # the lowering did not fold


def with_weights(pairs: list[NodePair], original: ir.Model, lowered: ModelSource) -> list[NodePair]:
    """Return pairs whose weights are known, where they follow from constants and sizes; the same ones otherwise."""
    if any(not pair.feeds.keys().isdisjoint("WR") for pair in pairs):
        known = with_constants(original, sizes=True)
        known_pairs = [] if known is None else pairs_of_prepared(known, lowered)
        if len(known_pairs) == len(pairs) and all(pair.cut is not None for pair in known_pairs):
            return known_pairs
    return pairs


def pairs_of_prepared(original: ir.Model, lowered: ModelSource, known: KnownInputs | None = None) -> list[NodePair]:
    """Return the `node_pairs` of an original that has the sizes of the lowered model, inlined and folded as that.

    A layer that has no output any more is compared with the layer above it.

    Args:
        known: What inference found of the inputs of its nodes; None if that is not known yet.
    """
    file = LoweredFile(lowered)
    kept = {(path, name) for path, node in file.left for name in node.output}
    entries = [
        entry
        for entry in recurrent_nodes(original)
        if kept.isdisjoint((entry.path, v.name) for v in entry.node.outputs if v.name)
    ]
    known = known_inputs(original, entries) if known is None else known
    nodes = []
    for entry in entries:
        spec = read_spec(entry.node, entry.opset, entry.scope, known)
        if spec.outputs:
            feeds = {s: v.name or "" for s, v in spec.inputs.items() if s not in spec.constants}
            used = [value for value in spec.outputs.values() if is_used(value)]
            lost = [value for value in used if file.values.get((entry.path, value.name or "")) is None]
            nodes.append(NodePair(entry, reference_of(entry.node, spec), feeds, lost=lost))
    given = dict[ScopePath, dict[str, onnx.ValueInfoProto]]()
    for node in nodes:
        given[node.entry.path] = inputs_of(node.spec, node.feeds) | given.get(node.entry.path, {})
    pairs = [_with_cut(node, nodes, given[node.entry.path], file) for node in nodes]
    inner = {below.place for pair in pairs for below in pair.layers_below()}
    return [pair for pair in pairs if pair.cut is not None or pair.place not in inner]


def _with_cut(
    node: NodePair, nodes: Sequence[NodePair], given: Mapping[str, onnx.ValueInfoProto], file: LoweredFile
) -> NodePair:
    """Return a node with its lowered form, if there is one: on its own, or with the nodes that share its loop.

    Args:
        node: The node.
        nodes: All nodes.
        given: The inputs of those in its graph.
        file: The lowered model.
    """
    path, spec = node.entry.path, node.spec
    computed = {s: v for s, v in spec.outputs.items() if file.values.get((path, v.name or "")) is not None}
    if not computed:
        return node
    is_whole = len(computed) == len(spec.outputs)
    spec = replace(spec, outputs=computed)
    inputs, outputs = inputs_of(spec, node.feeds), [value.name or "" for value in computed.values()]
    cut = file.part(path, inputs, outputs, spec) if is_whole else None
    if cut is None:
        others = [other for other in nodes if other is not node and other.entry.path == path]
        cut = file.part(path, {**given, **inputs}, outputs, spec)
        if cut is None:
            return node
        used = {value.name for value in cut.graph.input}
        beside = [other for other in others if not used.isdisjoint(other.feeds.values())]
        node = replace(_on_its_layers(node, others, used), beside=beside)
    spec = spec if quantizes_inputs(cut) else spec.as_floats()
    return replace(node, cut=cut, reference=reference_of(node.entry.node, spec))


def _on_its_layers(node: NodePair, others: Sequence[NodePair], inputs: Collection[str]) -> NodePair:
    """Return a node with the layers below it whose Y is computed in the same loop: X of the lowest is an input."""
    if node.feeds.get("X") in (None, *inputs):
        return node
    below, between = _layer_below(node, others)
    if below is None:
        return node
    moves = _Moves(between, node.entry.opset) if between else None
    return replace(node, below=_on_its_layers(below, others, inputs), between=between, moves=moves)


def _layer_below(node: NodePair, others: Sequence[NodePair]) -> tuple[NodePair | None, list[ir.Node]]:
    """Return the node whose Y becomes X of this node, and the nodes between them, which move or add, in order."""
    by_Y = {other.spec.outputs.get("Y"): other for other in others}
    value, path = node.spec.inputs.get("X"), []
    while value is not None and value not in by_Y and (producer := value.producer()) is not None:
        path.append(producer)
        value = _moved_input(producer, node.entry.opset)
    return (None, []) if value is None else (by_Y.get(value), path[::-1])


def _moved_input(node: ir.Node, opset: int) -> ir.Value | None:
    """Return the input of a node that it moves, or that it adds a constant to."""
    added = node.op_type == "Add" and node.inputs[0] is not None and constant_of(node.inputs[0], opset) is not None
    return node.inputs[int(added)] if node.inputs else None


def _constants(path: Sequence[ir.Node], opset: int) -> dict[ir.Value | None, ir.TensorProtocol | None]:
    """Return the other inputs of nodes that move what they get."""
    inputs = (v for node in path for v in node.inputs if v is not _moved_input(node, opset))
    return {value: None if value is None else constant_of(value, opset) for value in inputs}


class _Moves:
    """Makes X of a layer of Y of the layer below, by the nodes between them in onnx's reference evaluator."""

    def __init__(self, path: Sequence[ir.Node], opset: int) -> None:
        self._first = _moved_input(path[0], opset)
        self._steps = [(NodeModel.of(node, opset), node.inputs, node.outputs[0]) for node in path]
        self._constants = _constants(path, opset)

    def __call__(self, Y: Array, *, adds: bool = True) -> Array:
        """Return X; without `adds` zeros are added in place of constants."""
        X, arrays = Y, dict[ir.Value | None, Array]({self._first: Y})
        for value, constant in self._constants.items():
            if value is None or constant is None:
                raise SessionError(f"'{'' if value is None else value.name}' is not a constant")
            floats = constant.dtype.is_floating_point()
            arrays[value] = adds * array_of(constant).astype(Y.dtype) if floats else array_of(constant)
        for alone, inputs, output in self._steps:
            results = alone.compute([arrays[value] for value in inputs])
            if results is None:
                raise SessionError(f"onnx cannot compute '{output.name}'")
            X = arrays[output] = results[0]
        return X


def _function_of(entry: RecurrentNode) -> ir.OperatorIdentifier | None:
    return entry.function.identifier() if entry.function else None


def _at_sizes_of(original: ir.Model, lowered: ir.Model) -> ir.Model:
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


def _fold_like(original: ir.Model, lowered: ir.Model) -> ir.Model:
    """Return the folded original if the lowered model has the outputs of its recurrent nodes, else the original."""
    branches = _count_branches(original) > _count_branches(lowered)
    values = _values_by_name(lowered)
    if branches or all(v.shape is not None and v.shape.is_static() for v in lowered.graph.inputs):
        known = folded(original, decide=branches)
    else:
        known = with_constants(original, sizes=True) if _lacks_inputs(original, values) else None
    if known is None:
        return original
    given = [(entry.path, v) for entry in recurrent_nodes(known) for v in entry.node.outputs]
    kept = all((path, v.name) in values for path, v in given if is_used(v))
    return known if kept else original


def _lacks_inputs(original: ir.Model, values: Container[tuple[ScopePath, str]]) -> bool:
    """Return whether a recurrent node of the original gets what a lowered model does not compute any more."""
    inputs = [(entry.path, v) for entry in recurrent_nodes(original) for v in entry.node.inputs if v is not None]
    return any(v.producer() is not None and (path, v.name or "") not in values for path, v in inputs)


def _count_branches(model: ir.Model) -> int:
    return sum(node.op_type == "If" for node in nodes_within(model.graph))


def _values_by_name(model: ir.Model) -> set[tuple[ScopePath, str]]:
    """Return the computed values by scope and name, as bodies may share names."""
    return {(scope.path, v.name or "") for scope in scopes(model) for node in scope.graph for v in node.outputs}
