"""Find siblings: independent recurrent nodes of the same sequence length and batch size. One loop can compute them.

The level of a node is the number of recurrent nodes on the longest path to the node. Nodes of one level are
independent. A group has nodes of one level only, so groups never depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.versions import parameter
from rnn_lowering.model.plan import NodePlan
from rnn_lowering.model.scopes import values_used
from rnn_lowering.recurrence.directions import can_join
from rnn_lowering.recurrence.layers import can_stack
from rnn_lowering.spec.constant_values import constant_of
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN
from rnn_lowering.spec.rnn import GATES, RecurrentSpec
from rnn_lowering.types import Array, array_of


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
        held = parameter(self.node, "axes", self.opset)
        if isinstance(held, ir.Attr):
            return list(held.as_ints())
        tensor = None if held is None else constant_of(held, self.opset)
        return None if tensor is None else [int(n) for n in array_of(tensor).reshape(-1)]


@dataclass(frozen=True)
class Between:
    """What is between Y of a layer and X of the layer above.

    Attributes:
        moves: The nodes, from X on, each with the number of its input that comes from Y.
        added: The constants that some of them add, each of one number or of one for each number of H.
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
        place = levels[planned.found.node], planned.found.graph, planned.opset, planned.choice.form
        key = *place, _sizes(planned)
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
    by_Y = {
        p.spec.outputs["Y"]: p
        for p in plan
        if _may_join(p) and p.choice.dialect.stack_up_to and "Y" in p.spec.outputs
    }
    below: dict[ir.Node, tuple[NodePlan, Between]] = {}
    for planned in plan:
        source, between = _source_of_X(planned) if _may_join(planned) else (None, Between())
        layer = None if source is None else by_Y.get(source)
        others = [v for s, v in planned.spec.inputs.items() if s != "X"]
        first = all((node := v.producer()) is None or not levels.get(node) for v in others)
        same = layer is not None and (layer.found.graph, layer.opset, layer.choice.form) == (
            planned.found.graph,
            planned.opset,
            planned.choice.form,
        )
        if (
            layer is not None
            and same
            and first
            and _adds_to_H(planned, layer, between)
            and _can_pass_end(layer, between)
        ):
            below[planned.found.node] = layer, between
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


def _source_of_X(planned: NodePlan) -> tuple[ir.Value | None, Between]:
    """Follow X back through Transpose, Squeeze and similar, and additions of constants, to the Y it comes from."""
    spec, opset = planned.spec, planned.found.opset
    axes: list[str] = [axis or "H" for axis in spec.axes("X")]
    value = spec.inputs["X"]
    moves: list[tuple[ir.Node, int]] = []
    added: list[ir.Value] = []
    while (node := value.producer()) is not None and node.domain in DEFAULT_DOMAIN:
        out = _Output(node, 0, len(axes), opset)
        place = 0
        before = _MOVES[node.op_type](out, axes) if node.op_type in _MOVES else None
        if node.op_type == "Add" and (constant := _place_added(out, axes)) is not None:
            place, before = 1 - constant, axes
            added += [v for v in (node.inputs[constant],) if v is not None]
        source = node.inputs[place] if before is not None else None
        if source is None or before is None:
            break
        moves.append((node, place))
        value, axes = source, before
    wanted = ["N", "T", "1", "H"] if _rnn(planned).layout else ["T", "1", "N", "H"]
    return (value if axes == wanted else None), Between(moves, added)


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


def _unmoved(_: _Output, axes: list[str]) -> list[str] | None:
    return axes


def _untransposed(out: _Output, axes: list[str]) -> list[str] | None:
    perm = out.attribute("perm") or list(reversed(range(out.rank)))
    return [axes[perm.index(n)] for n in range(out.rank)] if sorted(perm) == list(range(out.rank)) else None


def _unsqueezed_again(out: _Output, axes: list[str]) -> list[str] | None:
    """Handle a Squeeze: each dropped axis has size 1."""
    given = out.axes()
    if given is None:
        return None
    rank, left = len(axes) + len(given), iter(axes)
    dropped = {n % rank for n in given}
    return ["1" if n in dropped else next(left) for n in range(rank)] if len(dropped) == len(given) else None


def _squeezed_again(out: _Output, axes: list[str]) -> list[str] | None:
    given = out.axes()
    added = {n % out.rank for n in given or ()}
    return None if given is None else [axis for n, axis in enumerate(axes) if n not in added]


def _unmerged(out: _Output, axes: list[str]) -> list[str] | None:
    """Handle a Reshape to [0, 0, -1] of a value of rank 4: exporters merge directions and hidden size so."""
    shape = out.constant(1)
    if shape is None or out.attribute("allowzero") or _rank(out.node.inputs[0]) != 4:
        return None
    merges = array_of(shape).reshape(-1).tolist() == [0, 0, -1] and axes[2:] == ["H"]
    return [*axes[:2], "1", "H"] if merges else None


def _rank(value: ir.Value | None) -> int | None:
    """Return the rank of a value: the declared rank, or the rank that a Transpose gives."""
    if value is None:
        return None
    node = value.producer()
    perm = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    if perm is not None and not perm.is_ref():
        return len(perm.as_ints())
    return None if value.shape is None else value.shape.rank()


_MOVES: dict[str, Callable[[_Output, list[str]], list[str] | None]] = {
    "Identity": _unmoved,
    "Transpose": _untransposed,
    "Squeeze": _unsqueezed_again,
    "Unsqueeze": _squeezed_again,
    "Reshape": _unmerged,
}


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
        found = _RULES[node.op_type](_Output(node, value.index() or 0, rank, opset), axis)
        source = None if found is None else node.inputs[found[0]]
        if found is None or source is None:
            break
        value, (_, axis, rank) = source, found
    return value, axis


Found = tuple[int, int, int] | None
"""The number of an input of a node, the axis of it that has the size of an axis of an output, and its rank."""


def _kept(out: _Output, axis: int) -> Found:
    return None if out.number else (0, axis, out.rank)


def _transposed(out: _Output, axis: int) -> Found:
    perm = out.attribute("perm") or list(reversed(range(out.rank)))
    return (0, perm[axis], out.rank) if len(perm) == out.rank else None


def _apart_from_its_axis(out: _Output, axis: int) -> Found:
    return None if (out.attribute("axis") or 0) % out.rank == axis else (0, axis, out.rank)


def _sliced(out: _Output, axis: int) -> Found:
    axes = out.axes()
    return None if axes is None or axis in {n % out.rank for n in axes} else (0, axis, out.rank)


def _squeezed(out: _Output, axis: int) -> Found:
    axes = out.axes()
    if axes is None:
        return None
    before = out.rank + len(axes)
    left = [n for n in range(before) if n not in {m % before for m in axes}]
    return (0, left[axis], before)


def _unsqueezed(out: _Output, axis: int) -> Found:
    axes = out.axes()
    added = {n % out.rank for n in axes or ()}
    if axes is None or axis in added:
        return None
    return (0, axis - sum(n < axis for n in added), out.rank - len(added))


def _reshaped(out: _Output, axis: int) -> Found:
    """Handle a Reshape that copies this axis and all axes before."""
    shape, given = out.constant(1), out.node.inputs[0]
    if shape is None or given is None or given.shape is None or out.attribute("allowzero"):
        return None
    kept = not array_of(shape).reshape(-1)[: axis + 1].any()
    return (0, axis, given.shape.rank()) if kept and axis < given.shape.rank() else None


def _multiplied(out: _Output, axis: int) -> Found:
    """Handle a product with a constant matrix."""
    matrix = out.constant(1)
    return (0, axis, out.rank) if matrix is not None and len(matrix.shape) == 2 and axis < out.rank - 1 else None


def _with_constant(out: _Output, axis: int) -> Found:
    """Handle an element-wise operator with a constant operand of size 1 along the axis."""
    for place in (1, 0):
        tensor = out.constant(place)
        if tensor is not None and len(tensor.shape) < out.rank:
            shape = (1,) * (out.rank - len(tensor.shape)) + tuple(tensor.shape.numpy())
            return (1 - place, axis, out.rank) if shape[axis] == 1 else None
    return None


def _recurrent(out: _Output, axis: int) -> Found:
    """Handle Y [seq, directions, batch, hidden], with layout 1 [batch, seq, directions, hidden]."""
    axes = {0: 0, 1: 1} if out.attribute("layout") else {0: 0, 2: 1}
    return (0, axes[axis], 3) if out.number == 0 and axis in axes else None


_ELEMENTWISE = (
    *("Identity", "Cast", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "PRelu", "Elu", "Selu", "Softplus", "Softsign"),
    *("HardSigmoid", "Gelu", "Erf", "Neg", "Abs", "Exp", "Log", "Sqrt", "Clip", "Dropout", "Softmax", "LogSoftmax"),
    *("LayerNormalization", "BatchNormalization", "InstanceNormalization"),
)

_RULES: dict[str, Callable[[_Output, int], Found]] = {
    **dict.fromkeys(_ELEMENTWISE, _kept),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), _with_constant),
    **dict.fromkeys(("Split", "Concat"), _apart_from_its_axis),
    **dict.fromkeys(GATES, _recurrent),
    "Transpose": _transposed,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "MatMul": _multiplied,
    "Reshape": _reshaped,
}
