"""Which recurrent nodes stay native, and what such a node gets: names, hidden_size, other axes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.composites import flip
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.dialect import PLAIN
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, captured_values, in_order, inputs_of, operator_of
from rnn_lowering.model.loop_sharing import Group, groups_of
from rnn_lowering.model.preparation import NodePlan, PreparedModel
from rnn_lowering.model.scopes import RecurrentNode
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.options import Lowering
from rnn_lowering.recurrence.forms import Choice
from rnn_lowering.targets.native import ACTIVATION_ATTRIBUTES, NativeRule, PlacedNode, Verdict
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Dims

_STATE = [1, 0, 2]  # [batch, dirs, hidden] and back
_TO_LAYOUT_1 = [2, 0, 1, 3]  # [seq, dirs, batch, hidden]


def _adapted_node(
    op: Ops,
    specs: Sequence[RecurrentSpec],
    added: Sequence[Sequence[Constant]],
    *,
    node: ir.Node,
    flipped: bool,
    without: Collection[str] = (),
) -> list[dict[str, Tensor]]:
    """Emit the node itself, with a name for every output, hidden_size and layout 0.

    Args:
        op: The emitter.
        specs: What it specifies, as the only entry.
        added: Nothing: nodes with kernels of their own share no loop.
        node: The node.
        flipped: Whether a reverse node runs forward, over X in reverse order, whose Y is reversed again.
        without: Attributes to leave out, since they say what is the default.
    """
    (spec,) = specs
    values = dict(spec.inputs)
    sizes: Dims = (spec.seq_length, spec.batch_size, spec.input_size)
    if spec.layout:
        X = _given(op, spec, "X", (sizes[1], sizes[0], sizes[2]))
        values["X"] = op.value(op.transpose(X, [1, 0, 2]))
        shape = (spec.batch_size, len(spec.directions), spec.hidden_size)
        states = (s for s in spec.cell.initial_states if s in values)
        values |= {s: op.value(op.transpose(_given(op, spec, s, shape), _STATE)) for s in states}
    if flipped:
        values["X"] = op.value(flip(op, op.given(values["X"], spec.dtype, sizes)))
    order = ("X", "W", "R", "B", "sequence_lens", *spec.cell.initial_states, "P")
    inputs = [values.get(symbol) for symbol in order]
    while inputs[-1] is None:
        inputs.pop()
    dropped = ("hidden_size", "layout", *(["direction"] if flipped else []), *without)
    kept = [attribute for name, attribute in node.attributes.items() if name not in dropped]
    size = ir.AttrInt64("hidden_size", spec.hidden_size)
    emitted = op.node(node.op_type, inputs, [*kept, size], 1 + len(spec.cell.states))
    return [_outputs(op, spec, emitted, flipped)]


def _given(op: Ops, spec: RecurrentSpec, symbol: str, shape: Dims) -> Tensor:
    return op.given(spec.inputs[symbol], spec.dtype, shape)


def _outputs(op: Ops, spec: RecurrentSpec, node: ir.Node, flipped: bool) -> dict[str, Tensor]:
    """Return the outputs of the emitted node with the layout and direction of the given one."""
    dirs, batch, hidden = len(spec.directions), spec.batch_size, spec.hidden_size
    shapes: list[Dims] = [(spec.seq_length, dirs, batch, hidden), *[(dirs, batch, hidden)] * len(spec.cell.states)]
    symbols = ("Y", *(f"Y_{state}" for state in spec.cell.states))
    found = zip(symbols, node.outputs, shapes, strict=True)
    outputs = {symbol: op.given(value, spec.dtype, shape) for symbol, value, shape in found}
    if flipped and "Y" in spec.outputs:
        outputs["Y"] = flip(op, outputs["Y"])
    if spec.layout:
        outputs = {s: op.transpose(x, _TO_LAYOUT_1 if s == "Y" else _STATE) for s, x in outputs.items()}
    return {symbol: outputs[symbol] for symbol in spec.outputs}


# Which recurrent nodes stay native: the target was measured to compute them right, and not slower where known.


NATIVE = "native"
"""The form of a node that stays."""

_AS_FAST = 1.1
"""Up to here a speed is within what varies from run to run."""


def _allows_native(lowering: Lowering) -> bool:
    """Return whether nodes could stay native: forms that are asked for, and streams, need lowered nodes."""
    return lowering.to == "auto" and lowering.stream is None


def asks_for_native(lowering: Lowering) -> bool:
    """Return whether nodes may stay native."""
    return lowering.native and _allows_native(lowering)


def _verdict_of(
    target: Target,
    entry: RecurrentNode,
    spec: NodeSpec,
    opset: int,
    *,
    shares_data: bool = False,
    unnamed_sizes: bool = False,
) -> Verdict:
    """Return whether a target computes a node right itself; of one without a rule nothing is known.

    Args:
        target: The target.
        entry: The node in its model.
        spec: What it specifies.
        opset: The opset of the result.
        shares_data: Whether another recurrent node may read its X: see `sharing_X`.
        unnamed_sizes: Whether the model has such sizes: see `PlacedNode`.
    """
    if target.native is None:
        return Verdict(frozenset(), "was not measured with recurrent nodes")
    around = (*(("function",) if entry.function else ()), *entry.around)
    return target.native.judge(PlacedNode(spec, entry.node, opset, around, shares_data, unnamed_sizes))


@dataclass
class NativeNodes:
    """The judgement of the nodes of a model that a lowering wants.

    Attributes:
        lowering: The options.
        verdicts: By node; empty if the target has no rule.
        remarks: What the user should know of each node, once its form is chosen.
        speeds: How many times as fast those are that are native, or could be.
    """

    lowering: Lowering
    verdicts: dict[ir.Node, Verdict]
    remarks: dict[ir.Node, str]
    speeds: dict[ir.Node, float]

    @classmethod
    def of(cls, lowering: Lowering, prepared: PreparedModel, specs: Sequence[NodeSpec], opset: int) -> NativeNodes:
        target = lowering.runtime
        verdicts: dict[ir.Node, Verdict] = {}
        if target.native is not None and specs and _allows_native(lowering):
            shared, unnamed = _sharing_X(prepared.found), _has_unnamed_sizes(prepared.model.graph)
            verdicts = {
                entry.node: _verdict_of(
                    target, entry, spec, opset, shares_data=entry.node in shared, unnamed_sizes=unnamed
                )
                for entry, spec in zip(prepared.wanted, specs, strict=True)
                if not _is_converted(lowering, spec)
            }
        return cls(lowering, verdicts, {}, {})

    @property
    def rule(self) -> NativeRule:
        rule = self.lowering.runtime.native
        assert rule is not None
        return rule

    @property
    def _name(self) -> str:
        return f"{self.lowering.runtime.name} {self.rule.version}"

    def stays(self, entry: RecurrentNode) -> bool:
        """Return whether a node that cannot be lowered stays."""
        verdict = self.verdicts.get(entry.node)
        return asks_for_native(self.lowering) and verdict is not None and verdict.right

    def kept(self, entry: RecurrentNode, spec: NodeSpec, opset: int) -> NodePlan:
        """Return the plan of a node that stays."""
        target, verdict = self.lowering.runtime, self.verdicts[entry.node]
        remark = self.remarks.get(entry.node) or f"{self._name} computes it right itself"
        flipped, without = (name in verdict.adaptations for name in ("flipped X and Y", "no activations"))
        left_out = ACTIVATION_ATTRIBUTES if without else ()
        lower = partial(_adapted_node, node=entry.node, flipped=flipped, without=left_out)
        rules, apart = target.rules(opset), target.model.outputs_apart
        return NodePlan(entry, spec, Choice(NATIVE, remark, lower, PLAIN, rules, target.finish, apart), opset)

    def chosen(self, plan: Sequence[NodePlan]) -> list[NodePlan]:
        """Return the nodes in the form that is best: of those that would share a loop, all stay or none."""
        if not self.verdicts:
            return list(plan)
        native: set[ir.Node] = set()
        for group in groups_of([planned for planned in plan if planned.choice.form != NATIVE]):
            if self._is_better(group):
                native |= {planned.found.node for planned in group.members}
        return [self._final(planned, planned.found.node in native) for planned in plan]

    def _is_better(self, group: Group) -> bool:
        """Return whether the nodes of a group are better native; add what the user should know of each."""
        verdicts = [self.verdicts.get(planned.found.node) for planned in group.members]
        if not all(verdict is not None and verdict.right for verdict in verdicts):
            for planned, verdict in zip(group.members, verdicts, strict=True):
                self._add_fault(planned, verdict, group)
            return False
        if self.rule.simulated:
            return self._is_right(group)
        speeds = [
            self.rule.speed(verdict, planned.spec, len(verdicts))
            for planned, verdict in zip(group.members, verdicts, strict=True)
            if verdict is not None
        ]
        known = [speed for speed in speeds if speed is not None]
        if len(known) < len(speeds):
            return False
        slowest = min(known)
        better = slowest >= 1
        how = _times(slowest) if better else f"but takes {1 / slowest:.2g} times as long"
        if better or asks_for_native(self.lowering):
            for planned in group.members:
                self.remarks[planned.found.node] = f"{self._name} computes it right itself, {how}"
                self.speeds[planned.found.node] = slowest
        return better and asks_for_native(self.lowering)

    def _is_right(self, group: Group) -> bool:
        """Add what the user should know of nodes that are right in a simulator; return whether they stay."""
        for planned in group.members:
            remark = f"{self._name} computes it right itself; how fast was not measured"
            self.remarks[planned.found.node] = remark
        return asks_for_native(self.lowering)

    def _add_fault(self, planned: NodePlan, verdict: Verdict | None, group: Group) -> None:
        if verdict is None or not asks_for_native(self.lowering):
            return
        beside = "shares a loop with a node that is not native" if len(group.members) > 1 else ""
        if fault := verdict.fault or beside:
            who = self._name if verdict.fault else "it"
            self.remarks[planned.found.node] = f"{who} {fault}"

    def _final(self, planned: NodePlan, native: bool) -> NodePlan:
        if native:
            return self.kept(planned.found, planned.spec, planned.opset)
        remark = self.remarks.get(planned.found.node)
        if remark is None or planned.choice.form == NATIVE or not asks_for_native(self.lowering):
            return planned
        return replace(planned, choice=replace(planned.choice, reason=f"{planned.choice.reason}; {remark}"))

    def is_untouched(self, planned: NodePlan) -> bool:
        """Return whether a node stays just as it is."""
        return planned.choice.form == NATIVE and not self.verdicts[planned.found.node].adaptations

    def hint_for(self, entry: RecurrentNode) -> str:
        """Return what `native` would do to a node; "" if it is given, or would do nothing."""
        remark = self.remarks.get(entry.node, "")
        return f"{remark}: --native" if remark and not self.lowering.native else ""

    def notes(self, plan: Sequence[NodePlan]) -> Iterator[str]:
        """Yield what the user should know of all native nodes, or of those that could be."""
        if self.lowering.native and not asks_for_native(self.lowering):
            yield "--native had no effect: it is for --to auto without --stream"
        count = sum(planned.choice.form == NATIVE for planned in plan)
        if count:
            verb = "node stays" if count == 1 else "nodes stay"
            rule = self.rule
            yield (
                f"{count} {verb} native: measured with {self._name} on {rule.date}; other versions may compute "
                "them wrongly"
            )
        could = sum(bool(self.hint_for(planned.found)) for planned in plan)
        if could:
            nodes = "a node" if could == 1 else f"{could} nodes"
            how = f", {_times(max(self.speeds.values()))}" if self.speeds else ""
            yield f"{self._name} computes {nodes} right itself{how}: --native"


def _is_converted(lowering: Lowering, spec: NodeSpec) -> bool:
    """Return whether the options ask for other types than those of the node."""
    return bool(lowering.dequantize and spec.quantized) or spec.computes_in(widen=lowering.widens) != spec.dtype


def _has_unnamed_sizes(graph: ir.Graph) -> bool:
    """Return whether an input or output has a size, or all of its sizes, neither as a number nor as a name."""
    shapes = [value.shape for value in (*graph.inputs, *graph.outputs)]
    return any(shape is None or shape.has_unknown_dim() for shape in shapes)


def _times(speed: float) -> str:
    return f"{speed:.2g} times as fast" if speed > _AS_FAST else "as fast"


def _sharing_X(found: Sequence[RecurrentNode]) -> set[ir.Node]:
    """Return the nodes whose X may be that of another recurrent node or Transpose of their graph, once a runtime
    has merged equal nodes: it follows from the same values by the same operators, apart from those that only move
    elements. A Transpose on the way to X does not count if nothing else uses it."""
    keys: dict[ir.Value, Hashable] = {}
    readers: dict[Hashable, set[ir.Node]] = {}
    places: dict[ir.Node, Hashable] = {}
    for entry in found:
        if (X := next(iter(entry.node.inputs), None)) is not None:
            places[entry.node] = place = (id(entry.graph), _key(X, keys))
            readers.setdefault(place, set()).add(entry.node)
    for graph in dict.fromkeys(entry.graph for entry in found):
        for node in graph:
            if node.op_type == "Transpose" and node.inputs and node.inputs[0] is not None:
                place = (id(graph), _key(node.inputs[0], keys))
                if place in readers and not _leads_only_to(node, readers[place]):
                    readers[place].add(node)
    return {node for node, place in places.items() if len(readers[place]) > 1}


def _leads_only_to(node: ir.Node, readers: Collection[ir.Node]) -> bool:
    """Return whether a node, and those that move what it gives, have one user each, and the last is a reader."""
    while node not in readers:
        value = node.outputs[0]
        users = list(value.uses())
        if len(users) != 1 or value.is_graph_output():
            return False
        node, place = users[0]
        if place or not (node in readers or _moves(node)):
            return False
    return True


def _moves(node: ir.Node) -> bool:
    operator = operator_of(node)
    return operator.keeps_order or operator.keeps_axes


def _key(value: ir.Value, keys: dict[ir.Value, Hashable]) -> Hashable:
    """Return a key. Two values get the same key if they may hold the same elements in any order."""
    for current in in_order(value, _sources, keys):
        node = current.producer()
        sources = tuple(keys[source] for source in _sources(current))
        if node is None:
            keys[current] = id(current)
        elif sources and _moves(node):
            keys[current] = sources[0]
        else:
            keys[current] = hash((node.op_identifier(), current.index(), sources))
    return keys[value]


def _sources(value: ir.Value) -> list[ir.Value]:
    """Return what the node of a value uses but initializers and Constants."""
    node = value.producer()
    used = [] if node is None else [*inputs_of(value), *captured_values(node)]
    return [value for value in used if not value.is_initializer() and not _is_constant(value.producer())]


def _is_constant(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Constant" and node.domain in DEFAULT_DOMAIN
