"""The inputs of runs: random ones that the model accepts, and the user's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnn_lowering.errors import OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.files.reading import from_proto
from rnn_lowering.limits import excess
from rnn_lowering.model.fixed_inputs import has_record, recorded
from rnn_lowering.model.messages import bodies_in, nodes_in
from rnn_lowering.options import Check
from rnn_lowering.spec.kinds import is_recurrent, role_of
from rnn_lowering.spec.node_spec import AxisName, InputRole
from rnn_lowering.streaming.stream_runner import array_of_type
from rnn_lowering.types import Array, Shapes

Feed = dict[str, Array]
_Sizes = dict[str, list[int]]
"""The shapes of inputs by name."""

_SIZES = ((2, 7), (1, 1), (4, 33), (9, 5), (2, 70))
"""(batch, sequence) of the runs."""

_SCALES = (0.5, 2.0, 0.5, 0.05, 1.0)
"""Standard deviation of real numbers in the runs."""

_FALLBACKS = ((1, 1), (1, 16), (2, 33), (1, 64), (1, 128), (1, 257), (1, 512), (1, 1024), (2, 2), (3, 3))
"""Sizes to try if a model does not accept those of a run."""

_PARTS = ("Cast", "Identity", "Gather", "Split", "Slice", "Squeeze", "Unsqueeze")
"""Operators that take the state of one recurrent node from a tensor with several."""

_MOST_SWITCHES = 3
"""Every combination of this many switches gets a run."""


def candidate_feeds(
    model: onnx.ModelProto,
    run: int,
    seed: int,
    declared: onnx.ModelProto | None = None,
    given: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Iterator[Feed]:
    """Yield feeds for one run of `model`, the likeliest to be accepted first.

    Args:
        model: The original model; its graph inputs that are not initializers are fed.
        run: The number of the run: each has other sizes for dynamic dimensions.
        seed: Seed of the values.
        declared: The model that declares the shapes of the inputs, if not `model`; the lowered one may fix sizes.
        given: Inputs that are not random.
        shapes: Shapes of random inputs, by name. A symbolic dimension has the same size in the other inputs.

    Raises:
        UnsupportedError: All feeds would be larger than the memory limit.
    """
    given = given or {}
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in (declared or model).graph.input if v.name not in initializers]
    made = [value for value in inputs if value.name not in given]
    if not made:
        yield dict(given)
        return
    uses = {value.name: _use(model.graph, value.name) for value in inputs}
    fixed = {name: list(shape) for name, shape in (shapes or {}).items()}
    fixed |= {name: list(array.shape) for name, array in given.items()}
    preferred, scale = _SIZES[run % len(_SIZES)], _SCALES[run % len(_SCALES)]
    switches = {name: bool(run >> n & 1) for n, name in enumerate(_switches(model.graph))}
    constants = {v.name: uses[v.name].compared_in(run) for v in made} | switches
    tried = (preferred, *(pair for pair in _FALLBACKS if pair != preferred))
    for sizes, seq in _within_limit(
        made, [(_dimension_sizes(inputs, uses, *pair, fixed), pair[1]) for pair in tried]
    ):
        longest = next((_length(sizes[v.name], uses[v.name]) for v in inputs if "T" in uses[v.name].axes), seq)
        lengths = (longest, 1) if any(use.lengths for use in uses.values()) else (longest,)
        for length, positive in product(lengths, (False, True)):
            rng, numbers = np.random.default_rng((seed, run)), _Numbers(length, scale, positive)
            random = {v.name: numbers.of(v, sizes[v.name], uses[v.name], constants[v.name], rng) for v in made}
            yield {**given, **random}


def given_in_runs(check: Check, graph: onnx.GraphProto) -> Sequence[Mapping[str, Array]]:
    """Return the inputs that the user gives for each run; none in runs on random inputs."""
    if check.feeds is not None:
        return check.feeds
    combinations = 2 ** min(len(_switches(graph)), _MOST_SWITCHES)
    return [{}] * (max(check.runs, combinations) if check.runs else 0)


def recorded_inputs(original: onnx.ModelProto, lowered: onnx.ModelProto) -> dict[str, Array]:
    """Return the inputs of the original that the lowered model has as constants."""
    with suppress(RnnLoweringError):  # onnxruntime refuses what is not a model
        return recorded(from_proto(original), from_proto(lowered)) if has_record(lowered) else {}
    return {}


def length_inputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs that are sequence lengths."""
    return {value.name for value in graph.input if _use(graph, value.name).lengths}


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


def _switches(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the inputs that are a single boolean: they may choose a branch."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [
        value.name
        for value in graph.input
        if value.name not in initializers
        and value.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        and value.type.tensor_type.HasField("shape")
        and all(dim.dim_value == 1 for dim in _dims(value))
    ]


def _within_limit(
    inputs: Sequence[onnx.ValueInfoProto], alternatives: Sequence[tuple[_Sizes, int]]
) -> list[tuple[_Sizes, int]]:
    """Return the distinct sizes whose random inputs stay within the memory limit."""
    faults: dict[int, str] = {}
    kept: list[tuple[_Sizes, int]] = []
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


def _length(shape: list[int], use: _Use) -> int:
    axis = use.axes.index("T")
    return shape[axis] if axis < len(shape) else 1


def _dimension_sizes(
    inputs: list[onnx.ValueInfoProto], uses: dict[str, _Use], batch: int, seq: int, fixed: _Sizes
) -> _Sizes:
    """Return the shapes of all inputs; a symbolic dimension has the same size everywhere."""
    by_axis: dict[AxisName, int] = {"N": batch, "T": seq}
    named: dict[str, int] = {}
    for value in inputs:
        for size, dim in zip(fixed.get(value.name, ()), _dims(value), strict=False):
            named.setdefault(dim.dim_param, size)
    for value in inputs:
        for axis, dim in zip(uses[value.name].axes, _dims(value), strict=False):
            if axis and dim.dim_param:
                named.setdefault(dim.dim_param, by_axis[axis])
    sizes: _Sizes = {}
    for value in inputs:
        chosen = []
        for axis, (n, dim) in zip_longest(uses[value.name].axes[: len(_dims(value))], enumerate(_dims(value))):
            size = dim.dim_value if dim.HasField("dim_value") else by_axis[axis or _axis_by_name(dim.dim_param, n)]
            chosen.append(named.setdefault(dim.dim_param, size) if dim.dim_param else size)
        sizes[value.name] = fixed.get(value.name, chosen)
    return sizes


def _dims(value: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def _axis_by_name(name: str, number: int) -> AxisName:
    if re.search(r"batch|^b$|^n$|bs\b", name.lower()):
        return "N"
    if re.search(r"seq|time|len|^t$|frame|step|width", name.lower()):
        return "T"
    return "T" if number else "N"


@dataclass(frozen=True)
class _Numbers:
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
        use: _Use,
        constant: int | None,
        rng: np.random.Generator,
    ) -> Array:
        """Return random numbers for an input; `constant` if it is a single integer or boolean."""
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f" or dtype.name == "bfloat16":
            numbers = self._reals(shape, rng) if use.bounds is None else rng.uniform(*use.bounds, shape)
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

    def _reals(self, shape: list[int], rng: np.random.Generator) -> Array:
        numbers = np.asarray(rng.standard_normal(shape))
        numbers *= self.scale
        if self.positive:
            np.abs(numbers, out=numbers)
            numbers += 0.01
        return numbers


@dataclass(frozen=True)
class _Use:
    """The uses of an input.

    Attributes:
        axes: What runs along each axis, as a recurrent node reads it.
        bound: Indices are less than this.
        lengths: Whether it is the lengths of sequences.
        compared: The integers that it is compared with.
        bounds: Real numbers are between these.
    """

    axes: tuple[AxisName, ...] = ()
    bound: int | None = None
    lengths: bool = False
    compared: tuple[int, ...] = ()
    bounds: tuple[float, float] | None = None

    def compared_in(self, run: int) -> int | None:
        """Return the integer to compare in a run: each in turn, then none."""
        return (*self.compared, None)[run % (len(self.compared) + 1)]


def _use(graph: onnx.GraphProto, name: str) -> _Use:
    for node, slot in _consumers(graph, name, depth=3):
        role = role_of(node, slot) if is_recurrent(node) else InputRole()
        if role.axes or role.is_lengths:
            return _Use(axes=role.axes, lengths=role.is_lengths, bounds=role.bounds)
        if node.op_type == "ReverseSequence" and slot == 1:
            return _Use(lengths=True)
        if node.op_type.startswith("Gather") and slot == 1:
            table = next((t for t in graph.initializer if t.name == node.input[0]), None)
            return _Use(bound=table.dims[0] if table is not None else 1)
    if _starts_a_state(graph, {name}):
        return _Use(axes=(None, "N"))
    return _Use(compared=tuple(_compared(graph, name)))


def _compared(graph: onnx.GraphProto, name: str) -> Iterator[int]:
    """Yield the integers that a value is compared with: a branch may depend on them."""
    nodes = {output: node for node in graph.node for output in node.output}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node, slot in _consumers(graph, name, depth=3):
        if node.op_type == "Equal":
            other = node.input[1 - slot]
            values = (a.t for a in nodes[other].attribute if a.name == "value") if other in nodes else ()
            tensor = tensors.get(other) or next(iter(values), None)
            if tensor is not None and helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "iu":
                yield from numpy_helper.to_array(tensor).ravel().tolist()[:1]


def _starts_a_state(graph: onnx.GraphProto, names: set[str]) -> bool:
    """Return whether part of one of these values is the initial state of a node; the parts are added to `names`."""
    for node in graph.node:
        states = (name for n, name in enumerate(node.input) if is_recurrent(node) and role_of(node, n).is_state)
        if not names.isdisjoint(states):
            return True
        if node.op_type in _PARTS and not names.isdisjoint(node.input[:1]):
            names.update(filter(None, node.output))
        for body in bodies_in(node):
            if _starts_a_state(body, names):
                return True
            outer = zip(node.output, body.output, strict=False)
            names.update(name for name, inner in outer if name and inner.name in names)
    return False


def _consumers(graph: onnx.GraphProto, name: str, depth: int) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that read a value, with the input's index; casts are followed, subgraphs searched."""
    for node in nodes_in(graph):
        for slot, given in enumerate(node.input):
            if given == name:
                yield node, slot
                if depth and node.op_type in ("Cast", "Identity"):
                    yield from _consumers(graph, node.output[0], depth - 1)


def _feed(given: Mapping[str, Array], declared: Mapping[str, onnx.ValueInfoProto]) -> dict[str, Array]:
    return {
        name: array_of_type(f"input '{name}'", array, _dtype(_input(declared, name)))
        for name, array in given.items()
    }


def _input(declared: Mapping[str, onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto:
    if name not in declared:
        raise OptionError(
            f"the model has no input '{name}'", hint=f"its inputs are {', '.join(declared) or 'none'}"
        )
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
        wanted = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in _dims(value)]
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
