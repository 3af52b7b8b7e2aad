"""The body of a Loop or Scan: its states, rows and stacked outputs."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.errors import InvalidNodeError, NodeRef, UnsupportedError
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, graphs_of, reached, values_used
from rnn_lowering.nodes.spec import node_ref

_FIRST_UNBATCHED_SCAN = 9
"""First opset whose Scan has no batch axis, and whose Constant may hold integers."""


@dataclass(frozen=True, kw_only=True)
class RepeatedBody:
    """A Loop or Scan.

    Attributes:
        node: The node.
        ref: The node in messages.
        body: Its body.
        initial: The first states.
        state_inputs, state_outputs: The states at the start and at the end of a step.
        rows: What each step stacks.
        stacked_axes, stacked_in_front: The axis along which each output is stacked, and whether in front.
    """

    node: ir.Node
    ref: NodeRef
    body: ir.Graph
    initial: Sequence[ir.Value | None]
    state_inputs: Sequence[ir.Value]
    state_outputs: Sequence[ir.Value]
    rows: Sequence[ir.Value]
    stacked_axes: Sequence[int]
    stacked_in_front: Sequence[bool]

    @property
    def results(self) -> Sequence[ir.Value]:
        """The final states."""
        return self.node.outputs[: len(self.initial)]

    @property
    def stacked(self) -> Sequence[ir.Value]:
        return self.node.outputs[len(self.initial) :]

    @property
    def invariant_states(self) -> set[int]:
        """Which states are the same in each step."""
        pairs = zip(self.state_inputs, self.state_outputs, strict=True)
        return {n for n, (before, after) in enumerate(pairs) if behind_identities(after) is before}

    def values_behind(
        self, values: Sequence[ir.Value], moved: Container[ir.Node] = (), *, in_one_step: bool = False
    ) -> set[ir.Value]:
        """Return values and what they depend on, also through the states of earlier steps.

        Args:
            values: Values of the body.
            moved: Nodes that are not in the body any more.
            in_one_step: Leave earlier steps out.
        """
        before = {} if in_one_step else dict(zip(self.state_inputs, self.state_outputs, strict=True))

        def read(value: ir.Value) -> list[ir.Value | None]:
            node = value.producer()
            in_step = node is not None and node.graph is self.body and node not in moved
            return [before.get(value), *(values_used(node) if node is not None and in_step else ())]

        return {*reached(values, read)}


def behind_identities(value: ir.Value) -> ir.Value:
    """Return what Identities return."""
    node = value.producer()
    while node is not None and node.op_type == "Identity" and node.domain in DEFAULT_DOMAIN and node.inputs[0]:
        value = node.inputs[0]
        node = value.producer()
    return value


@dataclass(frozen=True, kw_only=True)
class LoopBody(RepeatedBody):
    """A Loop.

    Attributes:
        trips, cond: The maximum number of steps, and whether the first one runs; None if absent.
        number, cond_in: The number of the step, and the condition that it gets.
        cond_out: Whether another step follows.
    """

    trips: ir.Value | None
    cond: ir.Value | None
    number: ir.Value
    cond_in: ir.Value
    cond_out: ir.Value


@dataclass(frozen=True, kw_only=True)
class ScanBody(RepeatedBody):
    """A Scan.

    Attributes:
        xs: What each step takes a row of.
        row_inputs: Those rows.
        axes, backwards: The axis of each of xs, and whether it is read from the end.
    """

    xs: Sequence[ir.Value]
    row_inputs: Sequence[ir.Value]
    axes: Sequence[int]
    backwards: Sequence[bool]


def read_body(node: ir.Node, scope: str, opset: int) -> LoopBody | ScanBody:
    """Return what a Loop or Scan says.

    Raises:
        InvalidNodeError: Its inputs and outputs do not fit its body.
        UnsupportedError: Its opset is older than `_FIRST_UNBATCHED_SCAN`.
    """
    ref = node_ref(node, scope)
    if opset < _FIRST_UNBATCHED_SCAN:
        raise UnsupportedError(
            f"{node.op_type} of opset {opset} cannot be lowered",
            hint=f"convert the model to opset {_FIRST_UNBATCHED_SCAN} or later (onnx.version_converter)",
            node=ref,
        )
    attribute = node.attributes.get("body")
    graphs = () if attribute is None else graphs_of(attribute)
    if len(graphs) != 1:
        raise InvalidNodeError("it has no body", node=ref)
    return _loop(node, graphs[0], ref) if node.op_type == "Loop" else _scan(node, graphs[0], ref)


def _loop(node: ir.Node, body: ir.Graph, ref: NodeRef) -> LoopBody:
    given = [*node.inputs, *[None] * (2 - len(node.inputs))]
    states = len(given) - 2
    _check_counts(ref, body, len(given), max(states, len(node.outputs)) + 1)
    outputs = list(body.outputs)
    rows = outputs[1 + states :]
    return LoopBody(
        node=node,
        ref=ref,
        body=body,
        trips=given[0],
        cond=given[1],
        initial=given[2:],
        number=body.inputs[0],
        cond_in=body.inputs[1],
        state_inputs=body.inputs[2:],
        cond_out=outputs[0],
        state_outputs=outputs[1 : 1 + states],
        rows=rows,
        stacked_axes=[0] * len(rows),
        stacked_in_front=[False] * len(rows),
    )


def _scan(node: ir.Node, body: ir.Graph, ref: NodeRef) -> ScanBody:
    count = node.attributes.get("num_scan_inputs")
    xs = -1 if count is None or count.is_ref() else count.as_int()
    states = len(node.inputs) - xs
    if xs < 1 or states < 0:
        raise InvalidNodeError(f"num_scan_inputs is {xs}, but there are {len(node.inputs)} inputs", node=ref)
    _check_counts(ref, body, len(node.inputs), max(states, len(node.outputs)))
    rows = list(body.outputs)[states:]
    given = [v for v in node.inputs[states:] if v is not None]
    if len(given) < xs:
        raise InvalidNodeError("a scanned input is missing", node=ref)
    return ScanBody(
        node=node,
        ref=ref,
        body=body,
        initial=node.inputs[:states],
        xs=given,
        state_inputs=body.inputs[:states],
        row_inputs=body.inputs[states:],
        state_outputs=list(body.outputs)[:states],
        rows=rows,
        axes=_ints(node, "scan_input_axes", xs, ref),
        backwards=_directions(node, "scan_input_directions", xs, ref),
        stacked_axes=_ints(node, "scan_output_axes", len(rows), ref),
        stacked_in_front=_directions(node, "scan_output_directions", len(rows), ref),
    )


def _check_counts(ref: NodeRef, body: ir.Graph, passed: int, needed: int) -> None:
    if len(body.inputs) != passed:
        raise InvalidNodeError(f"the body has {len(body.inputs)} inputs, but the node passes {passed}", node=ref)
    if len(body.outputs) < needed:
        message = f"the body has {len(body.outputs)} outputs, but the node needs at least {needed}"
        raise InvalidNodeError(message, node=ref)


def _ints(node: ir.Node, name: str, count: int, ref: NodeRef) -> list[int]:
    attribute = node.attributes.get(name)
    numbers = [0] * count if attribute is None else list(attribute.as_ints())
    if len(numbers) != count:
        raise InvalidNodeError(f"{name} has {len(numbers)} numbers, not {count}", node=ref)
    return numbers


def _directions(node: ir.Node, name: str, count: int, ref: NodeRef) -> list[bool]:
    numbers = _ints(node, name, count, ref)
    if not set(numbers) <= {0, 1}:
        raise InvalidNodeError(f"{name} is {numbers}, not 0 or 1", node=ref)
    return [direction == 1 for direction in numbers]


def checked_axis(axis: int, rank: int, loop: RepeatedBody) -> int:
    """Return an axis of what a Scan takes or returns, counted from the front.

    Raises:
        InvalidNodeError: There is no such axis.
    """
    if not -rank <= axis < rank:
        raise InvalidNodeError(f"it scans axis {axis}, but the input has {rank} axes", node=loop.ref)
    return axis % rank


@dataclass(frozen=True)
class TakenRow:
    """A row or an element of a value that a node takes: a Gather, or a Squeeze of a Gather or Slice.

    Attributes:
        node: The Gather or Slice.
        data: The value.
        place: The place of the row, or the start of the Slice; the Squeeze fails unless it is one row.
    """

    node: ir.Node
    data: ir.Value
    place: ir.Value

    @classmethod
    def of(cls, node: ir.Node) -> TakenRow | None:
        """Return the row that a node takes; None if it takes none."""
        data = node.inputs[0] if node.inputs else None
        source = data.producer() if node.op_type == "Squeeze" and data is not None else node
        if source is None or (source.op_type != "Gather" and (source is node or source.op_type != "Slice")):
            return None
        value, place = (*source.inputs, None, None)[:2]
        plain = node.domain in DEFAULT_DOMAIN and source.domain in DEFAULT_DOMAIN
        return cls(source, value, place) if plain and value is not None and place is not None else None
