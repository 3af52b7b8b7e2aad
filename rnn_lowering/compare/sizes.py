"""The sizes and switches of runs, by what a model does with its inputs."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import onnx
from onnx import helper, numpy_helper

from rnn_lowering.compare.options import Check
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.nodes.kinds import is_recurrent, role_of
from rnn_lowering.nodes.spec import AxisName, InputRole, axis_by_name
from rnn_lowering.types import Array


@dataclass(frozen=True)
class Use:
    """The uses of an input.

    Attributes:
        axes: What runs along each axis, as a recurrent node reads it.
        bound: Indices are less than this.
        lengths: Whether it is the lengths of sequences.
        cases: The integers that it is compared with.
        bounds: Real numbers are between these.
        starts_a_loop: Whether it is the first state of a Loop or Scan.
    """

    axes: tuple[AxisName, ...] = ()
    bound: int | None = None
    lengths: bool = False
    cases: tuple[int, ...] = ()
    bounds: tuple[float, float] | None = None
    starts_a_loop: bool = False


_PASSING = ("Cast", "Identity")
"""Operators whose consumers count as those of their input."""


Uses = Mapping[str, Use]
"""The use of each input that says most, by name; of any other name none."""


def uses_of(graph: onnx.GraphProto) -> Uses:
    """Return the uses of the inputs of a graph."""
    names = [value.name for value in graph.input]
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {name: [] for name in names}
    for node in nodes_in(graph):
        if consumers.keys().isdisjoint(node.input):
            continue
        for slot, name in enumerate(node.input):
            if name in consumers:
                consumers[name].append((node, slot))
        if node.op_type in _PASSING:
            consumers.setdefault(node.output[0], [])
    starts = _starts_of_states(graph, {name: {name} for name in names})
    return defaultdict(Use, {name: _use(graph, name in starts, [*_followed(consumers, name, 3)]) for name in names})


def _use(graph: onnx.GraphProto, starts_a_state: bool, consumers: Sequence[tuple[onnx.NodeProto, int]]) -> Use:
    for node, slot in consumers:
        role = role_of(node, slot) if is_recurrent(node) else InputRole()
        if role.axes or role.is_lengths:
            return Use(axes=role.axes, lengths=role.is_lengths, bounds=role.bounds)
        if node.op_type == "ReverseSequence" and slot == 1:
            return Use(lengths=True)
        if node.op_type.startswith("Gather") and slot == 1:
            table = next((t for t in graph.initializer if t.name == node.input[0]), None)
            return Use(bound=table.dims[0] if table is not None else 1)
    if starts_a_state:
        return Use(axes=(None, "N"))
    starts = any(_is_state_of_a_loop(node, slot) for node, slot in consumers)
    return Use(cases=tuple(_cases(graph, consumers)), starts_a_loop=starts)


def _is_state_of_a_loop(node: onnx.NodeProto, slot: int) -> bool:
    if node.op_type == "Loop":
        return slot >= 2  # the number of steps and the condition come first
    given = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    return node.op_type == "Scan" and slot < len(node.input) - given


def _cases(graph: onnx.GraphProto, consumers: Sequence[tuple[onnx.NodeProto, int]]) -> Iterator[int]:
    """Yield the integers that a value is compared with: a branch may depend on them."""
    for node, slot in consumers:
        if node.op_type == "Equal":
            other = node.input[1 - slot]
            made = (a.t for n in graph.node if other in n.output for a in n.attribute if a.name == "value")
            tensor = next((t for t in graph.initializer if t.name == other), None) or next(made, None)
            if tensor is not None and helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "iu":
                yield from numpy_helper.to_array(tensor).ravel().tolist()[:1]


def _starts_of_states(graph: onnx.GraphProto, parts: dict[str, set[str]]) -> set[str]:
    """Return the inputs of which a part is the initial state of a node.

    Args:
        graph: The graph.
        parts: By value the inputs that it is a part of. Computed values are added.
    """
    found = set[str]()
    for node in graph.node:
        bodies = list(bodies_in(node)) if node.attribute else []
        if not bodies and parts.keys().isdisjoint(node.input):
            continue
        if is_recurrent(node):
            states = (name for n, name in enumerate(node.input) if role_of(node, n).is_state)
            found.update(*(parts.get(name, ()) for name in states))
        moved = node.input[:1] if operator_of(node).moves or node.op_type == "Cast" else ()
        returned = [(name, source) for name in node.output for source in moved]
        for body in bodies:
            found |= _starts_of_states(body, parts)
            returned += zip(node.output, (value.name for value in body.output), strict=False)
        for name, source in returned:
            if name and source in parts:
                parts.setdefault(name, set()).update(parts[source])
    return found


def _followed(
    consumers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]], name: str, depth: int
) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that read a value, with the input's index, and those behind casts of it."""
    for node, slot in consumers.get(name, ()):
        yield node, slot
        if depth and node.op_type in _PASSING:
            yield from _followed(consumers, node.output[0], depth - 1)


def length_inputs(uses: Uses) -> set[str]:
    """Return the names of the inputs that are sequence lengths."""
    return {name for name, use in uses.items() if use.lengths}


# Which runs there are: the sizes of open dimensions and the values of switches, independently of each other.


ShapesByName = dict[str, list[int]]
"""The shapes of inputs by name."""

_BATCHES, _LENGTHS = (9, 1, 2, 70), (7, 1, 70, 2)
"""The batch size and the length of each run. The last run is only for models that do not say which is which."""

_OTHERS = ((3, 70, 1, 2), (2, 1, 3, 4))
"""The sizes of other open dimensions in each run."""

_SEVERAL, _ONE, _LONG, _OTHER_WAY = range(4)
"""Columns of the above: several rows, one step, many steps, and the two exchanged."""

_FALLBACKS = (
    *((2, 7), (1, 1), (1, 16), (2, 33), (1, 64), (1, 128), (1, 257), (1, 512), (1, 1024), (2, 2), (3, 3)),
)
"""(batch size, length) to try if a model does not accept the sizes of a run."""

_MOST_FROZEN = 4
"""Maximum lengths that an exporter may have frozen."""

_MOST_COMBINATIONS = 8
"""Maximum combinations of switches that run; of more switches, each is chosen in an order of its own."""

_FEW_COMBINATIONS = 4
"""If there are at most so many combinations, each runs at all sizes; else at several rows and at many steps."""

_FEW_RUNS = 3
"""A user who wants fewer runs gets no more than one for each combination of switches."""


def given_in_runs(
    check: Check, graph: onnx.GraphProto, uses: Uses, declared: onnx.GraphProto | None = None
) -> Sequence[Mapping[str, Array]]:
    """Return the inputs that the user gives for each run; none in runs on random inputs.

    Args:
        check: The user's check.
        graph: The main graph of the original.
        uses: What it does with its inputs.
        declared: The inputs with the sizes of the other model, which may fix some; None if all are known.
    """
    if check.feeds is not None:
        return check.feeds
    if not check.runs:
        return []
    combinations, count = len(combinations_of(graph, uses)), check.runs
    if check.runs >= _FEW_RUNS and declared is not None:
        unknown = bool(_unknown_axes(fed_inputs(declared), uses))
        each = _FEW_RUNS + unknown
        count = max(count, each * combinations if combinations <= _FEW_COMBINATIONS else 2 * combinations + each)
    return [{}] * max(count, combinations)


def combinations_of(graph: onnx.GraphProto, uses: Uses) -> list[dict[str, int | None]]:
    """Return the values of all switches, by input, of each run in turn.

    A switch is a single boolean, or an integer that is compared with constants; None is a random integer.
    """
    switches = dict(_switches(graph, uses))
    count = math.prod(map(len, switches.values()))
    if count > _MOST_COMBINATIONS:
        each = {name: _in_random_order(name, options) for name, options in switches.items()}
        return [{name: order[n] for name, order in each.items()} for n in range(_MOST_COMBINATIONS)]
    combinations: list[dict[str, int | None]] = [{}]
    for name, options in switches.items():
        combinations = [{**others, name: value} for value in options for others in combinations]
    return combinations


def column(run: int, combinations: int) -> int:
    """Return which sizes a run has: each combination of switches meets several rows, and many steps."""
    if combinations == 1:
        return run % len(_LENGTHS)
    turn, combination = divmod(run, combinations)
    if turn < 2:
        return (_SEVERAL, _LONG)[(turn + combination) % 2]
    return (_ONE, _OTHER_WAY)[turn % 2]


def _in_random_order(name: str, options: Sequence[int | None]) -> list[int | None]:
    """Return options in turn, each as often as the others, in an order of its own for each name."""
    order = (list(options) * _MOST_COMBINATIONS)[: max(_MOST_COMBINATIONS, len(options))]
    random.Random(name).shuffle(order)
    return order


def _switches(graph: onnx.GraphProto, uses: Uses) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the inputs that may choose a branch, and their options."""
    for value in fed_inputs(graph):
        cases = uses[value.name].cases
        shape = value.type.tensor_type.HasField("shape")
        if value.type.tensor_type.elem_type == onnx.TensorProto.BOOL:
            if shape and all(dim.dim_value == 1 for dim in dims_of(value)):
                yield value.name, (0, 1)
        elif cases:
            yield value.name, (*cases, None)


def alternative_sizes(
    inputs: Sequence[onnx.ValueInfoProto],
    uses: Uses,
    number: int,
    fixed: ShapesByName,
    frozen: Sequence[int] = (),
) -> Iterator[tuple[ShapesByName, int]]:
    """Yield the shapes of all inputs, and the usual length, the preferred ones first.

    Args:
        inputs: The inputs with their declared sizes.
        uses: What the model does with each.
        number: The `column` of the run.
        fixed: Shapes that are given. A symbolic dimension has the same size in all inputs.
        frozen: Lengths to try after the preferred one.
    """
    N, T = _BATCHES[number], _LENGTHS[number]
    unknown = _unknown_axes(inputs, uses)
    known = {axis for value in inputs for axis in _names_of_axes(value, uses[value.name])}
    rows = [*([_BATCHES] * ("N" not in known)), *([_LENGTHS] * ("T" not in known)), *_OTHERS]
    others = {name: rows[min(n, len(rows) - 1)][number] for n, name in enumerate(unknown)}
    yield _shapes(inputs, uses, {"N": N, "T": T}, others, fixed), T
    for batch, length in dict.fromkeys(((N, T), *product((N, 1), frozen), *_FALLBACKS)):
        yield _shapes(inputs, uses, {"N": batch, "T": length}, {}, fixed), length


def frozen_lengths(graph: onnx.GraphProto) -> list[int]:
    """Return lengths that the exporter may have frozen: sizes that outputs declare, but for features, and the first
    numbers of shapes: torch writes [50, -1, 128]."""
    shapes = {node.input[1] for node in graph.node if node.op_type == "Reshape" and len(node.input) > 1}
    tensors = (t for t in graph.initializer if t.name in shapes and not t.external_data)
    first = (numpy_helper.to_array(t).ravel()[:1] for t in tensors)
    declared = (dim.dim_value for value in graph.output for dim in dims_of(value)[:-1])
    lengths = dict.fromkeys(int(n) for n in (*declared, *(n for numbers in first for n in numbers)) if n > 1)
    return list(lengths)[:_MOST_FROZEN]


def fed_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a graph that have no default."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def dims_of(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    """Return the declared dimensions of an input."""
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def is_known(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Return whether a dimension has a size; old exporters write -1 for an unknown one."""
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _unknown_axes(inputs: Sequence[onnx.ValueInfoProto], uses: Uses) -> list[str]:
    """Return the open dimensions of which neither a node nor their name says what they are: their names; the number
    of an axis without a name."""
    doubtful: dict[str, None] = {}
    sure: set[str] = set()
    for value in inputs:
        for n, (axis, dim) in enumerate(zip(_names_of_axes(value, uses[value.name]), dims_of(value), strict=True)):
            if not is_known(dim):
                (sure.add if axis else doubtful.setdefault)(dim.dim_param or str(n))
    return [name for name in doubtful if name not in sure]


def _names_of_axes(value: onnx.ValueInfoProto, use: Use) -> list[AxisName]:
    """Return what runs along each axis, as far as a node or a name says so."""
    axes = [*use.axes, *[None] * len(dims_of(value))]
    return [axis or axis_by_name(dim.dim_param) for axis, dim in zip(axes, dims_of(value), strict=False)]


def _shapes(
    inputs: Sequence[onnx.ValueInfoProto],
    uses: Uses,
    by_axis: Mapping[AxisName, int],
    others: Mapping[str, int],
    fixed: ShapesByName,
) -> ShapesByName:
    """Return the shapes of all inputs; a symbolic dimension has the same size everywhere."""
    named: dict[str, int] = {}
    for value in inputs:
        for size, dim in zip(fixed.get(value.name, ()), dims_of(value), strict=False):
            named.setdefault(dim.dim_param, size)
    for value in inputs:
        for axis, dim in zip(uses[value.name].axes, dims_of(value), strict=False):
            if axis and dim.dim_param:
                named.setdefault(dim.dim_param, by_axis[axis])
    sizes: ShapesByName = {}
    for value in inputs:
        chosen = []
        for n, (axis, dim) in enumerate(zip(_names_of_axes(value, uses[value.name]), dims_of(value), strict=True)):
            usual = by_axis[axis] if axis else others.get(dim.dim_param or str(n), by_axis["T" if n else "N"])
            size = dim.dim_value if is_known(dim) else usual
            chosen.append(named.setdefault(dim.dim_param, size) if dim.dim_param else size)
        sizes[value.name] = fixed.get(value.name, chosen)
    return sizes
