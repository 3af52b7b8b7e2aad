"""Find what the lowered model has in place of each recurrent node of the original."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import onnx
import onnx_ir as ir

from rnn_lowering.compare.nodes.cut import LoweredNode, NodePair, TensorFile, cut_out, needs, original_model
from rnn_lowering.compare.references.every_kind import reference_of
from rnn_lowering.compare.runner.process import SessionError
from rnn_lowering.compare.runner.session import quantizes_inputs
from rnn_lowering.model.copying import clone
from rnn_lowering.model.fixed_inputs import at_sizes, folded, recorded
from rnn_lowering.model.model_sizes import known_inputs
from rnn_lowering.model.preparation import inline_functions
from rnn_lowering.model.scopes import (
    NodePlace,
    RecurrentNode,
    ScopePath,
    recurrent_nodes,
    scopes,
    sort_nodes,
)
from rnn_lowering.options import Lowering
from rnn_lowering.spec.constant_values import computed, constant_of
from rnn_lowering.spec.kinds import read_spec
from rnn_lowering.types import Array, array_of


def node_pairs(original: ir.Model, lowered: ir.Model, tensors: TensorFile | None = None) -> Iterator[NodePair]:
    """Yield every recurrent node of the original that the lowered model no longer has.

    Functions that the lowered model no longer has are inlined first, as the lowering does: the attributes of their
    nodes are known only where they are called. Sizes that the lowered model fixes are fixed first, since constants
    follow from them. The nodes of `original` are sorted in place.

    Args:
        tensors: Where large tensors of the models of single nodes are; None: in those models.

    Raises:
        RnnLoweringError: A node of the original cannot be read.
    """
    sort_nodes(original)
    original = _at_sizes_of(original, lowered)
    if original.functions.keys() - lowered.functions.keys():
        original = clone(original)
        most = max(Lowering.max_nodes, sum(1 for _ in lowered.graph.all_nodes()))  # a lowering makes no fewer
        inline_functions(original, lambda found: _identifier(found) not in lowered.functions, most)
    folded = _fold_like(original, lowered)
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

    Args:
        inferred: Whether its values declare what inference has found.
    """
    found = list(recurrent_nodes(original))
    values = _values_by_name(lowered)
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
    yield from _Cutter(nodes, lowered, tensors or TensorFile()).pairs()


class _Cutter:
    """Cuts nodes out of a lowered model: the part between their inputs, those of the nodes beside them, and their
    outputs."""

    def __init__(self, nodes: Sequence[LoweredNode], lowered: ir.Model, tensors: TensorFile) -> None:
        self._nodes, self._lowered, self._tensors = nodes, lowered, tensors
        self._order = {node: n for n, node in enumerate(node for scope in scopes(lowered) for node in scope.graph)}

    def pairs(self) -> Iterator[NodePair]:
        """Yield all pairs. A layer of which no output is left is compared with the layer above it."""
        pairs: dict[NodePlace, NodePair] = {}
        for node in self._nodes:
            cut, beside = self._cut(node)
            pair = self._pair(node, beside, cut)
            taken = {value.name for value in cut.graph.input} if cut is not None else set()
            below, path = _layer_below(node, beside if node.outputs else self._nodes)
            if below is not None and pair.feeds.get("X") not in (None, *taken):
                moves = partial(_moved, path, node.entry.opset)
                pair = replace(pair, below=_from(taken, pairs.get(below.entry.place)), moves=moves)
            pairs[node.entry.place] = pair
        used = {below.place for pair in pairs.values() if pair.cut is not None for below in pair.layers_below()}
        for place, pair in pairs.items():
            if pair.cut is not None or place not in used:
                yield pair

    def _cut(self, node: LoweredNode) -> tuple[onnx.ModelProto | None, Sequence[LoweredNode]]:
        """Return the model of a node, if there is one, and the nodes that share a loop with it."""
        if len(node.outputs) == len(node.reference.spec.outputs):
            cut = cut_out(self._lowered, self._order, [node], self._tensors)
            if cut is not None:
                return cut, ()
        beside = _beside(node, self._nodes) if node.outputs else ()
        cut = cut_out(self._lowered, self._order, [node, *beside], self._tensors) if node.outputs else None
        return cut, beside

    def _pair(self, node: LoweredNode, beside: Sequence[LoweredNode], cut: onnx.ModelProto | None) -> NodePair:
        spec, reference = node.reference.spec, node.reference
        if cut is not None:
            spec = spec if quantizes_inputs(cut) else spec.as_floats()
            left = {value.name for value in cut.graph.output}
            spec = replace(spec, outputs={s: v for s, v in spec.outputs.items() if v.name in left})
            reference = reference_of(node.entry.node, spec)
        whole = partial(original_model, node.entry, spec, node.feeds, self._tensors)
        return NodePair(node.entry.place, reference, node.feeds, cut, whole, beside)


def _from(taken: Collection[str], pair: NodePair | None) -> NodePair | None:
    """Return the layer without the layer below if X is among the inputs `taken`."""
    if pair is None or pair.below is None:
        return pair
    starts = pair.feeds["X"] in taken
    return replace(pair, below=None if starts else _from(taken, pair.below))


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
    """Return the node whose Y becomes X of this node, and the nodes between them, which move or add, in order."""
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
            pending += needs(node)
    return found


def _identifier(found: RecurrentNode) -> ir.OperatorIdentifier | None:
    return found.function.identifier() if found.function else None


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
    if not branches and not all(v.shape is not None and v.shape.is_static() for v in lowered.graph.inputs):
        return original
    known = folded(original, decide=branches)
    if known is None:
        return original
    values = _values_by_name(lowered)
    given = [(entry.path, v) for entry in recurrent_nodes(known) for v in entry.node.outputs]
    kept = all((path, v.name) in values for path, v in given if v.uses() or v.is_graph_output())
    return known if kept else original


def _count_branches(model: ir.Model) -> int:
    return sum(node.op_type == "If" for node in model.graph.all_nodes())


def _values_by_name(model: ir.Model) -> dict[tuple[ScopePath, str], ir.Value | None]:
    """Return computed values by scope and name, as bodies may share names; None if that is ambiguous."""
    values: dict[tuple[ScopePath, str], ir.Value | None] = {}
    for scope in scopes(model):
        for value in (v for node in scope.graph for v in node.outputs):
            key = scope.path, value.name or ""
            values[key] = None if key in values else value
    return values
