"""Find recurrent nodes that one loop can compute: siblings, of the same sequence length and batch size, none of
which depends on another.

All follows from the graph. Nodes with the same number of recurrent nodes on the longest way to them do not depend
on each other; as a group has nodes of one such level only, groups do not depend on each other in a circle either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from rnn_lowering.model.plan import NodePlan
from rnn_lowering.model.scopes import bodies_of
from rnn_lowering.recurrence.directions import can_join
from rnn_lowering.spec.constants import constant_of
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN
from rnn_lowering.spec.rnn import GATES, RecurrentSpec
from rnn_lowering.types import array_of


def sibling_groups(plan: Sequence[NodePlan]) -> list[list[NodePlan]]:
    """Return the nodes of a plan in groups, each of which becomes one recurrence; most are of one node."""
    levels = _levels({planned.found.graph for planned in plan}, {planned.found.node for planned in plan})
    groups: list[list[NodePlan]] = []
    open_groups: dict[object, list[NodePlan]] = {}
    for planned in plan:
        spec = planned.spec
        if not isinstance(spec, RecurrentSpec) or not planned.choice.dialect.join_up_to or spec.quantized:
            groups.append([planned])
            continue
        key = levels[planned.found.node], planned.found.graph, planned.opset, planned.choice.form, _sizes(planned)
        group = open_groups.get(key, [])
        if group and can_join(planned.choice.dialect, [*map(_rnn, group), spec]):
            group.append(planned)
        else:
            open_groups[key] = [planned]
            groups.append(open_groups[key])
    return groups


def _rnn(planned: NodePlan) -> RecurrentSpec:
    assert isinstance(planned.spec, RecurrentSpec)
    return planned.spec


def _levels(graphs: Collection[ir.Graph], recurrent: Collection[ir.Node]) -> dict[ir.Node, int]:
    """Return the largest number of recurrent nodes of its graph on a way to each node, itself included."""
    levels: dict[ir.Node, int] = {}
    for graph in graphs:
        for node in graph:
            before = (levels.get(p, 0) for v in _read(node) if (p := v.producer()) is not None and p.graph is graph)
            levels[node] = max(before, default=0) + (node in recurrent)
    return levels


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, also those that its bodies read."""
    yield from (v for v in node.inputs if v is not None)
    for body in bodies_of(node):
        yield from (v for inner in body.all_nodes() for v in inner.inputs if v is not None)
        yield from (v for graph in (body, *body.subgraphs()) for v in graph.outputs)


def _sizes(planned: NodePlan) -> tuple[object, ...]:
    """Return what T, the batch size and sequence_lens follow from: equal ones are equal at run time."""
    spec, opset = planned.spec, planned.found.opset
    known = {"T": spec.seq_length, "N": spec.batch_size}
    X, axes = spec.inputs["X"], spec.axes("X")
    sizes = (_origin(X, axes.index(axis), opset) if size is None else size for axis, size in known.items())
    return *sizes, spec.inputs.get("sequence_lens")


def _origin(value: ir.Value, axis: int, opset: int) -> tuple[ir.Value, int]:
    """Follow an axis of a value of rank 3 back as far as its size stays."""
    rank = 3
    while (node := value.producer()) is not None and node.domain in DEFAULT_DOMAIN and node.op_type in _RULES:
        found = _RULES[node.op_type](_Output(node, value.index() or 0, rank, opset), axis)
        source = None if found is None else node.inputs[found[0]]
        if found is None or source is None:
            break
        value, (_, axis, rank) = source, found
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

    def numbers(self, name: str, place: int) -> list[int] | None:
        """Return integers that are an attribute, or at newer opsets a constant input; None: they are neither."""
        given = self.attribute(name)
        if given is not None:
            return [int(n) for n in given]
        tensor = self.constant(place)
        return None if tensor is None else [int(n) for n in array_of(tensor).reshape(-1)]


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
    axes = out.numbers("axes", 3)
    return None if axes is None or axis in {n % out.rank for n in axes} else (0, axis, out.rank)


def _squeezed(out: _Output, axis: int) -> Found:
    axes = out.numbers("axes", 1)
    if axes is None:
        return None
    before = out.rank + len(axes)
    left = [n for n in range(before) if n not in {m % before for m in axes}]
    return (0, left[axis], before)


def _unsqueezed(out: _Output, axis: int) -> Found:
    axes = out.numbers("axes", 1)
    added = {n % out.rank for n in axes or ()}
    if axes is None or axis in added:
        return None
    return (0, axis - sum(n < axis for n in added), out.rank - len(added))


def _reshaped(out: _Output, axis: int) -> Found:
    """Of a Reshape that copies this axis and all before it."""
    shape, given = out.constant(1), out.node.inputs[0]
    if shape is None or given is None or given.shape is None or out.attribute("allowzero"):
        return None
    kept = not array_of(shape).reshape(-1)[: axis + 1].any()
    return (0, axis, given.shape.rank()) if kept and axis < given.shape.rank() else None


def _multiplied(out: _Output, axis: int) -> Found:
    """Of a product with a matrix that is a constant."""
    matrix = out.constant(1)
    return (0, axis, out.rank) if matrix is not None and len(matrix.shape) == 2 and axis < out.rank - 1 else None


def _with_constant(out: _Output, axis: int) -> Found:
    """Of an element-wise operator one operand of which is a constant with one number along the axis."""
    for place in (1, 0):
        tensor = out.constant(place)
        if tensor is not None and len(tensor.shape) < out.rank:
            shape = (1,) * (out.rank - len(tensor.shape)) + tuple(tensor.shape.numpy())
            return (1 - place, axis, out.rank) if shape[axis] == 1 else None
    return None


def _recurrent(out: _Output, axis: int) -> Found:
    """Of Y [seq, directions, batch, hidden], or with layout 1 [batch, seq, directions, hidden]."""
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
