"""Group the nodes that share a loop: independent nodes of equal sizes, or layers.

The level of a node is the number of recurrent nodes on the longest path to the node. Nodes of one level are
independent. A group has nodes of one level only, so groups never depend on each other in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.axes import Axes, Label, Mixed
from rnn_lowering.facts.constants import constant_of, integers_at
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, axes_by_rule, input_at, operator_of, values_used
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.nodes.kinds import CELLS
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.recurrence.directions import can_join, can_stack
from rnn_lowering.types import Array, array_of


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
    if len(plan) == 1:
        return [Group([*plan])]
    levels = _levels({planned.found.graph for planned in plan}, {planned.found.node for planned in plan})
    groups = _stacks(plan, levels)
    stacked = {planned.found.node for group in groups for planned in group.members}
    places = {p.found.node: (levels[p.found.node], *_place(p)) for p in plan if _may_join(p)}
    crowd = Counter(place for node, place in places.items() if node not in stacked)
    open_groups: dict[object, Group] = {}
    for planned in plan:
        if planned.found.node in stacked:
            continue
        place = places.get(planned.found.node)
        if place is None or crowd[place] == 1:
            groups.append(Group([planned]))
            continue
        key = *place, *_sizes(planned)
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
        moved = input_moved(Output(node, len(axes), opset), axes)
        source = None if moved is None else node.inputs[moved[0]]
        if moved is None or source is None:
            break
        place, axes = moved
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


# Where the axes of a value come from: the input of a node whose axis has the same rows, one operator at a time.
# `origin_of` follows an axis back while its size stays the same, `input_moved` a value while its elements do.
# What an operator does to its axes is in `facts/operators`.


_MOST_AXES = 8
"""Maximum rank of an input that no shape declares."""


@dataclass(frozen=True)
class Output:
    """An output of a node, and its rank."""

    node: ir.Node
    rank: int
    opset: int

    def constant(self, place: int) -> ir.TensorProtocol | None:
        """Return an input of the node that is a constant."""
        return constant_of(input_at(self.node, place), self.opset)

    def axes(self) -> Axes | None:
        """Return how the node uses its axes; None if unknown. An undeclared rank follows from the output."""
        if operator_of(self.node).axes is None:
            return None
        given = [(n, value) for n, value in enumerate(self.node.inputs) if value is not None]
        ranks = {value: rank for n, value in given if (rank := self._rank(n)) is not None}
        undeclared = next((value for _, value in given if value not in ranks), None)
        tried = [ranks] if undeclared is None else [{**ranks, undeclared: n} for n in range(_MOST_AXES)]
        numbers = cache(
            lambda name: integers_at(self.node, name, self.opset)
        )  # each rank that is tried asks for them
        fits = [axes for each in tried if (axes := self._axes_at(each, numbers)) and len(axes.output) == self.rank]
        return fits[0] if len(fits) == 1 else None

    def _axes_at(self, ranks: Mapping[ir.Value, int], numbers: Callable[[str], list[int] | None]) -> Axes | None:
        """Return how the node uses its axes, if its inputs have these ranks."""

        def shape(value: ir.Value) -> list[None]:
            return [None] * (self.rank if value is self.node.outputs[0] else ranks[value])

        return axes_by_rule(self.node, self.opset, shape, numbers)

    def _rank(self, place: int) -> int | None:
        tensor = self.constant(place)
        return _rank(self.node.inputs[place]) if tensor is None else len(tensor.shape)


def origin_of(value: ir.Value, axis: int, opset: int) -> tuple[ir.Value, int]:
    """Follow an axis of a value of rank 3 back while its size stays the same."""
    rank = 3
    while (node := value.producer()) is not None and (value.index() == 0 or node.op_type == "Split"):
        source = _source(Output(node, rank, opset), axis)
        if source is None:
            break
        value, axis, rank = source
    return value, axis


def _source(out: Output, axis: int) -> tuple[ir.Value, int, int] | None:
    """Return the input that has the size of an axis of the output, the axis there, and its rank."""
    node, used = out.node, _recurrent(out.node) or out.axes()
    if used is None or used.repeats:
        return None
    label = used.output[axis]
    label = label.label if isinstance(label, Mixed) else label
    slots = [slot for slot, labels in used.inputs.items() if label in labels]
    if not (operator_of(node).same_shape or operator_of(node).moves):  # an axis of size 1 may be broadcast
        slots = [slot for slot in slots if not _has_size_1(out.constant(slot), used.inputs[slot], label)]
        slots = slots if len(slots) == 1 else []
    source = node.inputs[slots[0]] if slots else None
    if source is None or label is None:
        return None
    labels = used.inputs[slots[0]]
    return source, labels.index(label), len(labels)


def _has_size_1(tensor: ir.TensorProtocol | None, labels: Sequence[Label], label: Label | None) -> bool:
    return tensor is not None and label is not None and tensor.shape[labels.index(label)] == 1


def _recurrent(node: ir.Node) -> Axes | None:
    """Return how RNN, GRU and LSTM use the axes of X and Y; None for any other node."""
    if ("", node.op_type) not in CELLS or node.domain not in DEFAULT_DOMAIN:
        return None
    batch_first = node.attributes.get_int("layout", 0)
    X, Y = ("NTI", "NTDH") if batch_first else ("TNI", "TDNH")
    return Axes({0: X}, Y)


def input_moved(out: Output, axes: list[str]) -> tuple[int, list[str]] | None:
    """Return the input whose elements an output has, moved or plus a constant, as its number and its axes."""
    if operator_of(out.node).keeps_axes:
        used = out.axes()
        if used is None:
            return None
        places = [used.output.index(label) if label in used.output else None for label in used.inputs[0]]
        return 0, ["1" if place is None else axes[place] for place in places]
    if out.node.op_type == "Reshape" and _merges_directions(out) and axes[2:] == ["H"]:
        return 0, [*axes[:2], "1", "H"]
    constant = _place_added(out, axes) if out.node.op_type == "Add" else None
    return None if constant is None else (1 - constant, axes)


def _place_added(out: Output, axes: list[str]) -> int | None:
    """Return the number of the operand of an Add that is a constant, finite and the same at every step and row."""
    if out.node.attributes:  # of opset 6 and earlier: axis aligns other axes
        return None
    for place in (1, 0):
        tensor = out.constant(place)
        if tensor is None or len(tensor.shape) > len(axes):
            continue
        sizes = (1,) * (len(axes) - len(tensor.shape)) + tuple(tensor.shape.numpy())
        same = all(size == 1 or axis == "H" for size, axis in zip(sizes, axes, strict=True))
        if same and _is_finite(tensor):
            return place
    return None


def _is_finite(tensor: ir.TensorProtocol) -> bool:
    numbers: Array = array_of(tensor)
    return tensor.dtype.is_floating_point() and bool(np.isfinite(numbers.astype(np.float64)).all())


def _merges_directions(out: Output) -> bool:
    """Return whether a Reshape merges directions and hidden size as exporters do: rank 4 to [0, 0, -1]."""
    shape = out.constant(1)
    if shape is None or out.node.attributes.get_int("allowzero") or _rank(out.node.inputs[0]) != 4:
        return False
    return array_of(shape).reshape(-1).tolist() == [0, 0, -1]


def _rank(value: ir.Value | None) -> int | None:
    """Return the rank of a value: the declared rank, or the rank that a Transpose gives."""
    if value is None:
        return None
    node = value.producer()
    perm = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    if perm is not None and not perm.is_ref():
        return len(perm.as_ints())
    return None if value.shape is None else value.shape.rank()
