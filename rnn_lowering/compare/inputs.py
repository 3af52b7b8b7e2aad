"""The inputs of runs: what a model does with each, which sizes and switches runs have, what the user gives, and
random numbers that the model accepts."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnn_lowering.argument_checks import array_of_type, listed
from rnn_lowering.compare.options import Check
from rnn_lowering.errors import OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.limits import excess
from rnn_lowering.model.fixed_inputs import has_record, recorded
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.nodes.kinds import AxisName, InputRole, is_recurrent, role_of
from rnn_lowering.types import Array, Shapes


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


def uses_of(graph: onnx.GraphProto, names: Iterable[str]) -> dict[str, Use]:
    """Return the use of each input that says most, by name."""
    names = list(names)
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {name: [] for name in names}
    for node in nodes_in(graph):
        if consumers.keys().isdisjoint(node.input):
            continue
        for slot, name in enumerate(node.input):
            if name in consumers:
                consumers[name].append((node, slot))
        if node.op_type in _PASSING:
            consumers.setdefault(node.output[0], [])
    return {name: _use(graph, name, list(_followed(consumers, name, 3))) for name in names}


def _use(graph: onnx.GraphProto, name: str, consumers: Sequence[tuple[onnx.NodeProto, int]]) -> Use:
    for node, slot in consumers:
        role = role_of(node, slot) if is_recurrent(node) else InputRole()
        if role.axes or role.is_lengths:
            return Use(axes=role.axes, lengths=role.is_lengths, bounds=role.bounds)
        if node.op_type == "ReverseSequence" and slot == 1:
            return Use(lengths=True)
        if node.op_type.startswith("Gather") and slot == 1:
            table = next((t for t in graph.initializer if t.name == node.input[0]), None)
            return Use(bound=table.dims[0] if table is not None else 1)
    if _starts_a_state(graph, {name}):
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


def _starts_a_state(graph: onnx.GraphProto, names: set[str]) -> bool:
    """Return whether part of one of these values is the initial state of a node; the parts are added to `names`."""
    for node in graph.node:
        bodies = list(bodies_in(node))
        if not bodies and names.isdisjoint(node.input):
            continue
        states = (name for n, name in enumerate(node.input) if is_recurrent(node) and role_of(node, n).is_state)
        if not names.isdisjoint(states):
            return True
        takes_part = operator_of(node).moves or node.op_type == "Cast"
        if takes_part and not names.isdisjoint(node.input[:1]):
            names.update(filter(None, node.output))
        for body in bodies:
            if _starts_a_state(body, names):
                return True
            outer = zip(node.output, body.output, strict=False)
            names.update(name for name, inner in outer if name and inner.name in names)
    return False


def _followed(
    consumers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]], name: str, depth: int
) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that read a value, with the input's index, and those behind casts of it."""
    for node, slot in consumers.get(name, ()):
        yield node, slot
        if depth and node.op_type in _PASSING:
            yield from _followed(consumers, node.output[0], depth - 1)


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

_MOST_COMBINATIONS = 8
"""Maximum combinations of switches that run; of more switches, each is chosen in an order of its own."""

_FEW_COMBINATIONS = 4
"""If there are at most so many combinations, each runs at all sizes; else at several rows and at many steps."""

_FEW_RUNS = 3
"""A user who wants fewer runs gets no more than one for each combination of switches."""


def given_in_runs(
    check: Check, graph: onnx.GraphProto, declared: onnx.GraphProto | None = None
) -> Sequence[Mapping[str, Array]]:
    """Return the inputs that the user gives for each run; none in runs on random inputs.

    Args:
        check: The user's check.
        graph: The main graph of the original.
        declared: The inputs with the sizes of the other model, which may fix some; None if all are known.
    """
    if check.feeds is not None:
        return check.feeds
    if not check.runs:
        return []
    combinations, count = len(combinations_of(graph)), check.runs
    if check.runs >= _FEW_RUNS and declared is not None:
        unknown = bool(_unknown_axes(fed_inputs(declared), uses_of(graph, [v.name for v in declared.input])))
        each = _FEW_RUNS + unknown
        count = max(count, each * combinations if combinations <= _FEW_COMBINATIONS else 2 * combinations + each)
    return [{}] * max(count, combinations)


def combinations_of(graph: onnx.GraphProto) -> list[dict[str, int | None]]:
    """Return the values of all switches, by input, of each run in turn.

    A switch is a single boolean, or an integer that is compared with constants; None is a random integer.
    """
    switches = dict(_switches(graph))
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


def _switches(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the inputs that may choose a branch, and their options."""
    inputs = fed_inputs(graph)
    uses = uses_of(graph, [value.name for value in inputs])
    for value in inputs:
        cases = uses[value.name].cases
        shape = value.type.tensor_type.HasField("shape")
        if value.type.tensor_type.elem_type == onnx.TensorProto.BOOL:
            if shape and all(dim.dim_value == 1 for dim in dims_of(value)):
                yield value.name, (0, 1)
        elif cases:
            yield value.name, (*cases, None)


def alternative_sizes(
    inputs: Sequence[onnx.ValueInfoProto], uses: Mapping[str, Use], number: int, fixed: ShapesByName
) -> Iterator[tuple[ShapesByName, int]]:
    """Yield the shapes of all inputs, and the usual length, the preferred ones first.

    Args:
        inputs: The inputs with their declared sizes.
        uses: What the model does with each.
        number: The `column` of the run.
        fixed: Shapes that are given. A symbolic dimension has the same size in all inputs.
    """
    N, T = _BATCHES[number], _LENGTHS[number]
    unknown = _unknown_axes(inputs, uses)
    known = {axis for value in inputs for axis in _names_of_axes(value, uses[value.name])}
    rows = [*([_BATCHES] * ("N" not in known)), *([_LENGTHS] * ("T" not in known)), *_OTHERS]
    others = {name: rows[min(n, len(rows) - 1)][number] for n, name in enumerate(unknown)}
    yield _shapes(inputs, uses, {"N": N, "T": T}, others, fixed), T
    for batch, length in dict.fromkeys(((N, T), *_FALLBACKS)):
        yield _shapes(inputs, uses, {"N": batch, "T": length}, {}, fixed), length


def fed_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a graph that have no default."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def dims_of(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    """Return the declared dimensions of an input."""
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def _is_known(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Return whether a dimension has a size; old exporters write -1 for an unknown one."""
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _unknown_axes(inputs: Sequence[onnx.ValueInfoProto], uses: Mapping[str, Use]) -> list[str]:
    """Return the open dimensions of which neither a node nor their name says what they are: their names; the number
    of an axis without a name."""
    found: dict[str, None] = {}
    sure: set[str] = set()
    for value in inputs:
        for n, (axis, dim) in enumerate(zip(_names_of_axes(value, uses[value.name]), dims_of(value), strict=True)):
            if not _is_known(dim):
                (sure.add if axis else found.setdefault)(dim.dim_param or str(n))
    return [name for name in found if name not in sure]


def _names_of_axes(value: onnx.ValueInfoProto, use: Use) -> list[AxisName]:
    """Return what runs along each axis, as far as a node or a name says so."""
    axes = [*use.axes, *[None] * len(dims_of(value))]
    return [axis or _axis_by_name(dim.dim_param) for axis, dim in zip(axes, dims_of(value), strict=False)]


def _axis_by_name(name: str) -> AxisName:
    if re.search(r"batch|^b$|^n$|bs\b", name.lower()):
        return "N"
    if re.search(r"seq|time|len|^t$|frame|step|width", name.lower()):
        return "T"
    return None


def _shapes(
    inputs: Sequence[onnx.ValueInfoProto],
    uses: Mapping[str, Use],
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
            size = dim.dim_value if _is_known(dim) else usual
            chosen.append(named.setdefault(dim.dim_param, size) if dim.dim_param else size)
        sizes[value.name] = fixed.get(value.name, chosen)
    return sizes


# Feeds and shapes that the user gives: whether they fit the models.


def take_feeds(check: Check, graphs: Sequence[onnx.GraphProto], *, frames: bool = False) -> Check:
    """Return a check whose feeds and shapes fit the models, in native byte order.

    Args:
        check: The user's check.
        graphs: The graphs of the original and of the lowered model, which may fix sizes.
        frames: Whether inputs are whole sequences, which may not be empty.

    Raises:
        OptionError: A name that no input has, another type, rank or size, or two sizes for one symbolic name.
    """
    feeds, shapes = check.feeds, check.shapes or {}
    for graph in graphs:
        declared = {value.name: value for value in graph.input}
        feeds = None if feeds is None else [_feed(given, declared) for given in feeds]
        for name in shapes:
            _input(declared, name)
        for given in (*({n: a.shape for n, a in feed.items()} for feed in feeds or ()), shapes):
            _check_sizes(declared, given)
            empty = next((name for name, shape in given.items() if frames and not all(shape)), None)
            if empty is not None:
                raise OptionError(
                    f"input '{empty}' is empty: {list(given[empty])}", hint="give at least 1 frame and 1 row"
                )
    return replace(check, feeds=feeds)


def _feed(given: Mapping[str, Array], declared: Mapping[str, onnx.ValueInfoProto]) -> dict[str, Array]:
    return {
        name: array_of_type(f"input '{name}'", array, _dtype(_input(declared, name)))
        for name, array in given.items()
    }


def _input(declared: Mapping[str, onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    if name not in declared:
        raise OptionError(f"the model has no input '{name}'", hint=f"its inputs are {listed(declared, name)}")
    return declared[name]


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any] | None:
    elem_type = value.type.tensor_type.elem_type
    odd = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    return None if elem_type in odd else helper.tensor_dtype_to_np_dtype(elem_type)


_Declared = Sequence[int | str]
"""Declared sizes: numbers, names, or "?" for unknown."""


def _check_sizes(declared: Mapping[str, onnx.ValueInfoProto], shapes: Shapes) -> None:
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        value = declared[name]
        if not value.type.tensor_type.HasField("shape"):
            continue
        wanted = [dim.dim_value if _is_known(dim) else dim.dim_param or "?" for dim in dims_of(value)]
        if not _fits(wanted, shape, named):
            sizes = {symbol: size for symbol, size in named.items() if symbol in wanted}
            known = f" with {', '.join(f'{s} = {n}' for s, n in sizes.items())}" if sizes else ""
            raise OptionError(
                f"input '{name}' is {_text(wanted)}{known}, but the given shape is {_text(shape)}",
                hint="give a shape that fits",
            )


def _fits(wanted: _Declared, shape: Sequence[int], named: dict[str, int]) -> bool:
    """Whether a shape has the declared rank and sizes; adds the sizes of its symbolic names to `named`."""
    if len(wanted) != len(shape):
        return False
    for size, given in zip(wanted, shape, strict=True):
        expected = size if isinstance(size, int) else given if size == "?" else named.setdefault(size, given)
        if expected != given:
            return False
    return True


def _text(sizes: _Declared) -> str:
    return f"[{', '.join(map(str, sizes))}]"


# Random inputs of runs, such that the model accepts them.


Feed = dict[str, Array]

_SCALES = (0.5, 1.0, 2.0, 0.05)
"""Standard deviation of real numbers in the runs; the third is the longest, and has the largest numbers."""

_OF_STATES = 4.0
"""The states of loops are so many times larger: a state may leave the range of the other inputs."""

_SMALL = 0.05
"""The scale for a model whose outputs are infinite at the usual one."""

_FIRST_IR_WITH_DEFAULTS = 4
"""Since this IR version, an initializer that is also an input is a default that a caller may override."""

_MOST_DEFAULT = 1 << 20
"""Maximum elements of a default that a run overrides."""


def candidate_feeds(
    model: onnx.ModelProto, run: int, check: Check, declared: onnx.ModelProto, given: Mapping[str, Array]
) -> Iterator[Feed]:
    """Yield feeds for one run of `model`, the likeliest to be accepted first.

    In every third run, defaults are overridden, unless the user gives the inputs.

    Args:
        model: The original model; its graph inputs that are not initializers are fed.
        run: The number of the run: each has other sizes for dynamic dimensions.
        check: Has the seed, and the user's inputs and shapes. A symbolic dimension has the same size in the other
            inputs.
        declared: The model that declares the shapes of the inputs; the lowered one may fix sizes.
        given: Inputs that are not random.

    Raises:
        UnsupportedError: All feeds would be larger than the memory limit.
    """
    others = {} if check.feeds is not None else _overridden_defaults(model, run, check.seed)
    for defaults in (others, {}) if others else ({},):
        yield from _feeds(model, run, check, declared, {**defaults, **given})


def _feeds(
    model: onnx.ModelProto, run: int, check: Check, declared: onnx.ModelProto, given: Mapping[str, Array]
) -> Iterator[Feed]:
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in declared.graph.input if v.name not in initializers]
    made = [value for value in inputs if value.name not in given]
    if not made:
        yield dict(given)
        return
    uses = uses_of(model.graph, [value.name for value in inputs])
    fixed = {name: list(shape) for name, shape in (check.shapes or {}).items()}
    fixed |= {name: list(array.shape) for name, array in given.items()}
    switches = combinations_of(model.graph)
    sizes_of_run = alternative_sizes(inputs, uses, column(run, len(switches)), fixed)
    constants = switches[run % len(switches)]
    for sizes, seq in _within_limit(made, list(sizes_of_run)):
        longest = next((_length(sizes[v.name], uses[v.name]) for v in inputs if "T" in uses[v.name].axes), seq)
        lengths = (longest, 1) if any(use.lengths for use in uses.values()) else (longest,)
        kinds = ((_SCALES[run % len(_SCALES)], False), (_SCALES[run % len(_SCALES)], True), (_SMALL, False))
        for length, (scale, positive) in product(lengths, kinds):
            rng, numbers = np.random.default_rng((check.seed, run)), _RandomNumbers(length, scale, positive)
            random = {v.name: numbers.of(v, sizes[v.name], uses[v.name], constants.get(v.name), rng) for v in made}
            yield {**given, **random}


def _overridden_defaults(model: onnx.ModelProto, run: int, seed: int) -> Feed:
    """Return other numbers for the inputs that have defaults, in every third run; else none."""
    if run % 3 != 2 or model.ir_version < _FIRST_IR_WITH_DEFAULTS:
        return {}
    inputs, rng = {value.name for value in model.graph.input}, np.random.default_rng((seed, run))
    found = {}
    for tensor in model.graph.initializer:
        if tensor.name in inputs and math.prod(tensor.dims) <= _MOST_DEFAULT and not tensor.external_data:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                moved = array * rng.uniform(0.75, 1.25, array.shape)
                other = moved if array.any() else rng.uniform(0, 0.25, array.shape)
                found[tensor.name] = np.asarray(other, array.dtype)
    return found


def recorded_inputs(original: onnx.ModelProto, lowered: onnx.ModelProto) -> dict[str, Array]:
    """Return the inputs of the original that the lowered model has as constants."""
    with suppress(RnnLoweringError):  # onnxruntime refuses what is not a model
        return recorded(from_proto(original), from_proto(lowered)) if has_record(lowered) else {}
    return {}


def declared_as(original: onnx.ModelProto, lowered: onnx.ModelProto) -> onnx.ModelProto:
    """Return the inputs of a lowered model, with the sizes that the original fixes and it has opened."""
    fixed = {value.name: dims_of(value) for value in original.graph.input}
    declared = onnx.ModelProto()
    declared.graph.input.extend(lowered.graph.input)
    for value in declared.graph.input:
        for dim, was in zip(dims_of(value), fixed.get(value.name, ()), strict=False):
            if was.dim_value > 0 and not dim.HasField("dim_value"):
                dim.dim_value = was.dim_value
    return declared


def lost_defaults(original: onnx.ModelProto, lowered: onnx.ModelProto) -> list[str]:
    """Return the inputs with defaults that the lowered model neither has nor records as constants."""
    if original.ir_version < _FIRST_IR_WITH_DEFAULTS:
        return []
    defaults = {tensor.name for tensor in original.graph.initializer}
    kept = {value.name for value in lowered.graph.input} | recorded_inputs(original, lowered).keys()
    return [v.name for v in original.graph.input if v.name in defaults and v.name not in kept]


def other_names(original: onnx.ModelProto, lowered: onnx.ModelProto) -> str:
    """Return which inputs and outputs only one of the models has, if they cannot be compared; else "".

    The lowered model may have inputs of the original as constants, and more inputs. Inputs with defaults do not
    count.
    """
    lost_inputs, lost_outputs = _lacking(original, lowered)
    lost_inputs = [name for name in lost_inputs if name not in recorded_inputs(original, lowered)]
    more_inputs, more_outputs = _lacking(lowered, original)
    if not (lost_inputs or lost_outputs or more_outputs):
        return ""
    lost, more = _named(lost_inputs, lost_outputs), _named(more_inputs, more_outputs)
    facts = (lost and f"the lowered model has no {lost}", more and f"the original has no {more}")
    return "; ".join(filter(None, facts))


def _lacking(one: onnx.ModelProto, other: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """Return the inputs and outputs of a model that another model does not have."""
    inputs, outputs = ({value.name for value in values} for values in (other.graph.input, other.graph.output))
    inputs |= {tensor.name for tensor in one.graph.initializer}
    return (
        [value.name for value in one.graph.input if value.name not in inputs],
        [value.name for value in one.graph.output if value.name not in outputs],
    )


def _named(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    return ", ".join([*(f"input '{name}'" for name in inputs), *(f"output '{name}'" for name in outputs)])


def length_inputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs that are sequence lengths."""
    return {name for name, use in uses_of(graph, [value.name for value in graph.input]).items() if use.lengths}


def _within_limit(
    inputs: Sequence[onnx.ValueInfoProto], alternatives: Sequence[tuple[ShapesByName, int]]
) -> list[tuple[ShapesByName, int]]:
    """Return the distinct sizes whose random inputs stay within the memory limit."""
    faults: dict[int, str] = {}
    kept: list[tuple[ShapesByName, int]] = []
    for sizes, seq in alternatives:
        needed = sum(_bytes(value, sizes[value.name]) for value in inputs)
        if fault := excess("random inputs", needed):
            faults[needed] = fault
        elif all(sizes != other for other, _ in kept):
            kept.append((sizes, seq))
    if faults and not kept:
        raise UnsupportedError(faults[min(faults)])
    return kept


def _bytes(value: onnx.ValueInfoProto, shape: Sequence[int]) -> int:
    """Return the bytes needed to generate an input: numbers are drawn as float64 or int64."""
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return math.prod(shape) * (8 + int(dtype.itemsize))


def _length(shape: list[int], use: Use) -> int:
    axis = use.axes.index("T")
    return shape[axis] if axis < len(shape) else 1


@dataclass(frozen=True)
class _RandomNumbers:
    """Draws the random numbers of one feed.

    Attributes:
        longest: The length of the longest sequence.
        scale: Standard deviation of real numbers.
        positive: Whether real numbers are positive, for models that take a logarithm.
    """

    longest: int
    scale: float
    positive: bool

    def of(
        self,
        value: onnx.ValueInfoProto,
        shape: list[int],
        use: Use,
        constant: int | None,
        rng: np.random.Generator,
    ) -> Array:
        """Return random numbers for an input; `constant` if it is a single integer or boolean."""
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f" or dtype.name == "bfloat16":
            numbers = self._reals(shape, use, rng) if use.bounds is None else rng.uniform(*use.bounds, shape)
            return np.asarray(numbers.astype(dtype))
        if constant is not None and math.prod(shape) == 1:
            return np.full(shape, constant).astype(dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        if use.lengths:
            lengths = np.sort(rng.integers(min(self.longest, 1), self.longest + 1, shape))[::-1].copy()
            lengths.flat[:1] = self.longest  # packed sequences start with a full one
            return lengths.astype(dtype)
        return rng.integers(0, 4 if use.bound is None else max(use.bound, 1), shape).astype(dtype)

    def _reals(self, shape: list[int], use: Use, rng: np.random.Generator) -> Array:
        numbers = np.asarray(rng.standard_normal(shape))
        numbers *= self.scale * (_OF_STATES if use.starts_a_loop else 1.0)
        if self.positive:
            np.abs(numbers, out=numbers)
            numbers += 0.01
        return numbers
