"""Group the nodes that share a loop: independent nodes of equal sizes, or layers.

The level of a node is the number of recurrent nodes on the longest path to the node. Nodes of one level are
independent. A group has nodes of one level only, so groups never depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from rnn_lowering.facts.bodies import values_used
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.model.axis_origins import Output, input_moved, origin_of
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.recurrence.directions import can_join
from rnn_lowering.recurrence.stacked_layers import can_stack


@dataclass(frozen=True)
class Between:
    """The nodes between Y of a layer and X of the layer above.

    Attributes:
        moves: The nodes, from X back to Y, each with the number of the input that leads to Y.
        added: The constants that the Adds among them add, each of size 1 or [hidden].
    """

    moves: Sequence[tuple[ir.Node, int]] = ()
    added: Sequence[ir.Value] = ()

    def is_all_of(self, Y: ir.Value) -> bool:
        """Return whether nothing but the layer above uses Y of the layer below."""
        values = [Y, *(node.outputs[0] for node, _ in self.moves)]
        return all(len(value.uses()) == 1 and not value.is_graph_output() for value in values)


@dataclass(frozen=True)
class Group:
    """Nodes that become one recurrence; most groups are of one node.

    Attributes:
        members: The nodes.
        between: Of layers, what lies between each one and the one below. Empty if the members are independent.
    """

    members: list[NodePlan]
    between: list[Between] = field(default_factory=list)


def groups_of(plan: Sequence[NodePlan]) -> list[Group]:
    """Return the nodes of a plan in groups."""
    levels = _levels({planned.found.graph for planned in plan}, {planned.found.node for planned in plan})
    groups = _stacks(plan, levels)
    stacked = {planned.found.node for group in groups for planned in group.members}
    open_groups: dict[object, Group] = {}
    for planned in plan:
        if planned.found.node in stacked:
            continue
        if not _may_join(planned):
            groups.append(Group([planned]))
            continue
        key = levels[planned.found.node], *_place(planned), *_sizes(planned)
        group = open_groups.get(key)
        if group and can_join(planned.choice.dialect, planned.opset, [*map(_rnn, group.members), _rnn(planned)]):
            group.members.append(planned)
        else:
            open_groups[key] = Group([planned])
            groups.append(open_groups[key])
    return groups


def shared_loops(groups: Sequence[Group]) -> list[str]:
    """Return which nodes become one recurrence, for the user."""
    several = ([str(planned.found.ref) for planned in group.members] for group in groups if len(group.members) > 1)
    return [f"{' and '.join(nodes)} become one recurrence" for nodes in several]


def _may_join(planned: NodePlan) -> bool:
    spec, dialect = planned.spec, planned.choice.dialect
    may = isinstance(spec, RecurrentSpec) and not spec.quantized and bool(spec.outputs)
    return may and bool(dialect.join_up_to or dialect.stack_up_to)


def _stacks(plan: Sequence[NodePlan], levels: Mapping[ir.Node, int]) -> list[Group]:
    """Return the layers that one loop can compute, as groups of several nodes."""
    below = _layers_below(plan, levels)
    groups: dict[ir.Node, Group] = {}
    for planned in plan:
        if planned.found.node not in below:
            continue
        layer, between = below[planned.found.node]
        group = groups.get(layer.found.node, Group([layer]))
        if group.members[-1] is layer and can_stack(
            planned.choice.dialect, planned.opset, [*map(_rnn, group.members), _rnn(planned)]
        ):
            group.members.append(planned)
            group.between.append(between)
            groups |= {member.found.node: group for member in group.members}
    return list({id(group): group for group in groups.values()}.values())


def _layers_below(
    plan: Sequence[NodePlan], levels: Mapping[ir.Node, int]
) -> dict[ir.Node, tuple[NodePlan, Between]]:
    """Return, by node, the layer below that it may share a loop with, and what is between them."""
    joinable = [planned for planned in plan if _may_join(planned)]
    stackable = [planned for planned in joinable if planned.choice.dialect.stack_up_to]
    by_Y = {planned.spec.outputs["Y"]: planned for planned in stackable if "Y" in planned.spec.outputs}
    below = {}
    for planned in joinable:
        source, between = _source_of_X(planned)
        layer = None if source is None else by_Y.get(source)
        others = [v.producer() for s, v in planned.spec.inputs.items() if s != "X"]
        if (
            layer is not None
            and _place(layer) == _place(planned)
            and not any(levels.get(node) for node in others if node is not None)
            and _adds_to_H(planned, layer, between)
            and _can_pass_end(layer, between)
        ):
            below[planned.found.node] = layer, between
    return below


def _place(planned: NodePlan) -> tuple[ir.Graph, int, str]:
    """Return what nodes of one loop have in common."""
    return planned.found.graph, planned.opset, planned.choice.form


def _source_of_X(planned: NodePlan) -> tuple[ir.Value | None, Between]:
    """Follow X back through Transpose, Squeeze and similar, and additions of constants, to the Y it comes from."""
    spec, opset = planned.spec, planned.found.opset
    axes: list[str] = [axis or "H" for axis in spec.axes("X")]
    value = spec.inputs["X"]
    moves: list[tuple[ir.Node, int]] = []
    added: list[ir.Value] = []
    while (node := value.producer()) is not None and node.domain in DEFAULT_DOMAIN:
        found = input_moved(Output(node, len(axes), opset), axes)
        source = None if found is None else node.inputs[found[0]]
        if found is None or source is None:
            break
        place, axes = found
        added += [v for v in node.inputs[:2] if v is not None and v is not source] if node.op_type == "Add" else []
        moves.append((node, place))
        value = source
    wanted = ["N", "T", "1", "H"] if _rnn(planned).layout else ["T", "1", "N", "H"]
    return (value if axes == wanted else None), Between(moves, added)


def _adds_to_H(planned: NodePlan, layer: NodePlan, between: Between) -> bool:
    """Return whether constants between two layers leave Y of the layer below as wide as it is."""
    tensors = [constant_of(value, planned.found.opset) for value in between.added]
    return all(t is not None and t.size in (1, _rnn(layer).hidden_size) for t in tensors)


def _can_pass_end(layer: NodePlan, between: Between) -> bool:
    """Return whether the length of a layer is known, or only the layer above uses its outputs.

    Otherwise a joined loop, which goes past the last step of the layer, stacks all its steps to give one; with a
    sequence of one step that takes longer than a second loop.
    """
    outputs = layer.spec.outputs
    return _rnn(layer).seq_length is not None or (set(outputs) == {"Y"} and between.is_all_of(outputs["Y"]))


def _rnn(planned: NodePlan) -> RecurrentSpec:
    assert isinstance(planned.spec, RecurrentSpec)
    return planned.spec


def _levels(graphs: Collection[ir.Graph], recurrent: Collection[ir.Node]) -> dict[ir.Node, int]:
    """Return the level of each node: the recurrent nodes of its graph on the longest path, including the node."""
    levels: dict[ir.Node, int] = {}
    for graph in graphs:
        for node in graph:
            before = (
                levels.get(p, 0) for v in values_used(node) if (p := v.producer()) is not None and p.graph is graph
            )
            levels[node] = max(before, default=0) + (node in recurrent)
    return levels


def _sizes(planned: NodePlan) -> tuple[object, ...]:
    """Return the origins of T, batch size and sequence_lens: equal origins mean equal sizes at run time."""
    spec, opset = planned.spec, planned.found.opset
    known = {"T": spec.seq_length, "N": spec.batch_size}
    X, axes = spec.inputs["X"], spec.axes("X")
    sizes = (origin_of(X, axes.index(axis), opset) if size is None else size for axis, size in known.items())
    return *sizes, spec.inputs.get("sequence_lens")
