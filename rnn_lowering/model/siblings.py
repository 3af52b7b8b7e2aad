"""Group the nodes that one loop can compute: siblings, which are independent and of equal sizes, and layers.

The level of a node is the number of recurrent nodes on the longest path to the node. Nodes of one level are
independent. A group has nodes of one level only, so groups never depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import parameter
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.model.scopes import values_used
from rnn_lowering.recurrence.directions import can_join
from rnn_lowering.recurrence.stacked_layers import can_stack
from rnn_lowering.spec.constant_values import constant_of
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN
from rnn_lowering.spec.rnn import GATES, RecurrentSpec
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
        between: Of layers, what is below each but the first: X of each is Y of the one before, if nothing is
            between them. Empty if the members are independent.
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
        found = _input_moved(_Output(node, 0, len(axes), opset), axes)
        source = None if found is None else node.inputs[found[0]]
        if found is None or source is None:
            break
        place, axes = found
        added += [v for v in node.inputs[:2] if v is not None and v is not source] if node.op_type == "Add" else []
        moves.append((node, place))
        value = source
    wanted = ["N", "T", "1", "H"] if _rnn(planned).layout else ["T", "1", "N", "H"]
    return (value if axes == wanted else None), Between(moves, added)


def _input_moved(out: _Output, axes: list[str]) -> tuple[int, list[str]] | None:
    """Return the input whose elements an output has, moved or plus a constant, as its number and its axes."""
    if out.node.op_type in _MOVES:
        found = _RULES[out.node.op_type](out)
        return None if found is None else (found[0], ["1" if n is None else axes[n] for n in found[1]])
    if out.node.op_type == "Reshape" and _merges_directions(out) and axes[2:] == ["H"]:
        return 0, [*axes[:2], "1", "H"]
    constant = _place_added(out, axes) if out.node.op_type == "Add" else None
    return None if constant is None else (1 - constant, axes)


def _place_added(out: _Output, axes: list[str]) -> int | None:
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


def _merges_directions(out: _Output) -> bool:
    """Return whether a Reshape merges directions and hidden size as exporters do: rank 4 to [0, 0, -1]."""
    shape = out.constant(1)
    if shape is None or out.attribute("allowzero") or _rank(out.node.inputs[0]) != 4:
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
    sizes = (_origin(X, axes.index(axis), opset) if size is None else size for axis, size in known.items())
    return *sizes, spec.inputs.get("sequence_lens")


def _origin(value: ir.Value, axis: int, opset: int) -> tuple[ir.Value, int]:
    """Follow an axis of a value of rank 3 back while its size stays the same."""
    rank = 3
    while (node := value.producer()) is not None and node.domain in DEFAULT_DOMAIN and node.op_type in _RULES:
        place, axes = _RULES[node.op_type](_Output(node, value.index() or 0, rank, opset)) or (0, [])
        source = node.inputs[place]
        if source is None or axis not in axes:
            break
        value, axis, rank = source, axes.index(axis), len(axes)
    return value, axis


@dataclass(frozen=True)
class _Output:
    """An output of a node, its number and rank."""

    node: ir.Node
    number: int
    rank: int
    opset: int

    def attribute(self, name: str) -> Any:
        given = self.node.attributes.get(name)
        return None if given is None or given.is_ref() else given.value

    def constant(self, place: int) -> ir.TensorProtocol | None:
        """Return an input of the node that is a constant."""
        value = self.node.inputs[place] if place < len(self.node.inputs) else None
        return None if value is None else constant_of(value, self.opset)

    def axes(self) -> list[int] | None:
        """Return the axes that are given, by an attribute or a constant input; None if there is neither."""
        axes = parameter(self.node, "axes", self.opset)
        if isinstance(axes, ir.Attr):
            return list(axes.as_ints())
        tensor = None if axes is None else constant_of(axes, self.opset)
        return None if tensor is None else [int(n) for n in array_of(tensor).reshape(-1)]


_Source = tuple[int, list[int | None]] | None
"""The number of an input of a node, and for each axis of that input the axis of the output that has its size; None
if none has. A rule returns None if nothing is known."""


def _kept(out: _Output) -> _Source:
    return None if out.number else (0, [*range(out.rank)])


def _transposed(out: _Output) -> _Source:
    perm = out.attribute("perm") or list(reversed(range(out.rank)))
    return (0, [perm.index(n) for n in range(out.rank)]) if sorted(perm) == [*range(out.rank)] else None


def _squeezed(out: _Output) -> _Source:
    axes = out.axes()
    if axes is None:
        return None
    before, left = out.rank + len(axes), iter(range(out.rank))
    dropped = {n % before for n in axes}
    return (0, [None if n in dropped else next(left) for n in range(before)]) if len(dropped) == len(axes) else None


def _unsqueezed(out: _Output) -> _Source:
    axes = out.axes()
    return None if axes is None else (0, [n for n in range(out.rank) if n not in {m % out.rank for m in axes}])


def _sliced(out: _Output) -> _Source:
    axes = out.axes()
    return None if axes is None else (0, _but(out, axes))


def _split_or_joined(out: _Output) -> _Source:
    return 0, _but(out, [out.attribute("axis") or 0])


def _but(out: _Output, axes: Sequence[int]) -> list[int | None]:
    """Return the axes of an output, None in place of these."""
    changed = {n % out.rank for n in axes}
    return [None if n in changed else n for n in range(out.rank)]


def _reshaped(out: _Output) -> _Source:
    """Handle a Reshape that copies the first axes."""
    shape, rank = out.constant(1), _rank(out.node.inputs[0])
    if shape is None or rank is None or out.attribute("allowzero"):
        return None
    copied = [*takewhile(lambda size: size == 0, array_of(shape).reshape(-1))]
    return 0, [n if n < len(copied) else None for n in range(rank)]


def _multiplied(out: _Output) -> _Source:
    """Handle a product with a constant matrix."""
    matrix = out.constant(1)
    return (0, _but(out, [-1])) if matrix is not None and len(matrix.shape) == 2 else None


def _with_constant(out: _Output) -> _Source:
    """Handle an element-wise operator with a constant operand: an axis of size 1 there has the other's size."""
    for place in (1, 0):
        tensor = out.constant(place)
        if tensor is not None and len(tensor.shape) < out.rank:
            sizes = (1,) * (out.rank - len(tensor.shape)) + tuple(tensor.shape.numpy())
            return 1 - place, [n if size == 1 else None for n, size in enumerate(sizes)]
    return None


def _recurrent(out: _Output) -> _Source:
    """Handle Y [seq, directions, batch, hidden], with layout 1 [batch, seq, directions, hidden]."""
    return None if out.number else (0, [0, 1 if out.attribute("layout") else 2, None])


_ELEMENTWISE = (
    *("Identity", "Cast", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "PRelu", "Elu", "Selu", "Softplus", "Softsign"),
    *("HardSigmoid", "Gelu", "Erf", "Neg", "Abs", "Exp", "Log", "Sqrt", "Clip", "Dropout", "Softmax", "LogSoftmax"),
    *("LayerNormalization", "BatchNormalization", "InstanceNormalization"),
)

_MOVES = ("Identity", "Transpose", "Squeeze", "Unsqueeze")
"""Operators whose output has the elements of the input."""

_RULES: dict[str, Callable[[_Output], _Source]] = {
    **dict.fromkeys(_ELEMENTWISE, _kept),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), _with_constant),
    **dict.fromkeys(("Split", "Concat"), _split_or_joined),
    **dict.fromkeys(GATES, _recurrent),
    "Transpose": _transposed,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "MatMul": _multiplied,
    "Reshape": _reshaped,
}
