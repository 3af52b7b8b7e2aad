"""The inputs of runs: what the user gives, whether both models have them, and random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rnn_lowering.argument_checks import array_of_type, listed
from rnn_lowering.compare.options import Check
from rnn_lowering.compare.runs.meeting_sizes import MeetingSizes, met
from rnn_lowering.compare.sizes import (
    ShapesByName,
    Use,
    Uses,
    alternative_sizes,
    column,
    combinations_of,
    dims_of,
    frozen_lengths,
    is_known,
)
from rnn_lowering.errors import OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.limits import excess
from rnn_lowering.model.fixed_inputs import has_record, recorded
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.types import Array, Shapes


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
        raise OptionError(f"the model has no input '{name}'", hint=f"its inputs: {listed(declared, name)}")
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
        wanted = [dim.dim_value if is_known(dim) else dim.dim_param or "?" for dim in dims_of(value)]
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


# The inputs and outputs of two models: the lowered one may have inputs as constants, or open what was fixed.


FIRST_IR_WITH_DEFAULTS = 4
"""Since this IR version, an initializer that is also an input is a default that a caller may override."""


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
    if original.ir_version < FIRST_IR_WITH_DEFAULTS:
        return []
    defaults = {tensor.name for tensor in original.graph.initializer}
    kept = {value.name for value in lowered.graph.input} | recorded_inputs(original, lowered).keys()
    return [v.name for v in original.graph.input if v.name in defaults and v.name not in kept]


def other_names(original: onnx.ModelProto, lowered: onnx.ModelProto) -> str:
    """Return which inputs and outputs only one of the models has, or with another type, rank or fixed size, if they
    cannot be compared; else "".

    The lowered model may have inputs of the original as constants, and more inputs. Inputs with defaults do not
    count.
    """
    lost_inputs, lost_outputs = _lacking(original, lowered)
    lost_inputs = [name for name in lost_inputs if name not in recorded_inputs(original, lowered)]
    more_inputs, more_outputs = _lacking(lowered, original)
    if not (lost_inputs or lost_outputs or more_outputs):
        return _other_kinds(original, lowered)
    lost, more = _named(lost_inputs, lost_outputs), _named(more_inputs, more_outputs)
    facts = (lost and f"the lowered model has no {lost}", more and f"the original has no {more}")
    return "; ".join(filter(None, facts))


def _other_kinds(original: onnx.ModelProto, lowered: onnx.ModelProto) -> str:
    """Return which input has another type, rank or fixed size in the lowered model; else ""."""
    before = {value.name: value for value in original.graph.input}
    for value in lowered.graph.input:
        kinds = [_kind(each) for each in (before.get(value.name, value), value)]
        if all(kinds) and kinds[0] != kinds[1]:
            texts = [f"{TensorProto.DataType.Name(dtype).lower()} of rank {rank}" for dtype, rank in kinds]
            return f"input '{value.name}' is {texts[0]} in the original, and {texts[1]} in the lowered model"
        dims = [dims_of(each) for each in (before.get(value.name, value), value)]
        if all(kinds) and any(
            min(sizes) > 0 and len({*sizes}) > 1 for sizes in zip(*map(_sizes, dims), strict=True)
        ):
            texts = [_shape(each) for each in dims]
            return f"input '{value.name}' is {texts[0]} in the original, and {texts[1]} in the lowered model"
    return ""


def _sizes(dims: Sequence[onnx.TensorShapeProto.Dimension]) -> list[int]:
    """Return the sizes of dimensions, 0 for one that is not fixed."""
    return [dim.dim_value for dim in dims]


def _shape(dims: Sequence[onnx.TensorShapeProto.Dimension]) -> str:
    return f"[{', '.join(str(dim.dim_value) if is_known(dim) else dim.dim_param or '?' for dim in dims)}]"


def _kind(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the element type and the rank of an input; nothing if it does not declare both."""
    tensor = value.type.tensor_type
    return (tensor.elem_type, len(tensor.shape.dim)) if tensor.elem_type and tensor.HasField("shape") else ()


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


# Random inputs of runs, such that the model accepts them.


Feed = dict[str, Array]

_SCALES = (0.5, 1.0, 2.0, 0.05)
"""Standard deviation of real numbers in the runs; the third is the longest, and has the largest numbers."""

_OF_STATES = 4.0
"""The states of loops are so many times larger: a state may leave the range of the other inputs."""

_SMALL = 0.05
"""The scale for a model whose outputs are infinite at the usual one."""

_INTEGERS, _FEWER_INTEGERS = 4, (2, 1)
"""Integers of which no bound is known are below this; below the others where several together make one index."""

_MOST_DEFAULT = 1 << 20
"""Maximum elements of a default that a run overrides."""


def candidate_feeds(
    model: onnx.ModelProto,
    uses: Uses,
    run: int,
    check: Check,
    declared: onnx.ModelProto,
    given: Mapping[str, Array],
    meeting: MeetingSizes = MappingProxyType({}),
) -> Iterator[Feed]:
    """Yield feeds for one run of `model`, the likeliest to be accepted first.

    In every third run, defaults are overridden, unless the user gives the inputs.

    Args:
        model: The original model; its graph inputs that are not initializers are fed.
        uses: What it does with them.
        run: The number of the run: each has other sizes for dynamic dimensions.
        check: Has the seed, and the user's inputs and shapes. A symbolic dimension has the same size in the other
            inputs.
        declared: The model that declares the shapes of the inputs; the lowered one may fix sizes.
        given: Inputs that are not random.
        meeting: By name the sizes that follow from others.

    Raises:
        UnsupportedError: All feeds would be larger than the memory limit.
    """
    others = {} if check.feeds is not None else _overridden_defaults(model, run, check.seed)
    for defaults in (others, {}) if others else ({},):
        yield from _feeds(model, uses, run, check, declared, {**defaults, **given}, meeting)


def _feeds(
    model: onnx.ModelProto,
    uses: Uses,
    run: int,
    check: Check,
    declared: onnx.ModelProto,
    given: Mapping[str, Array],
    meeting: MeetingSizes,
) -> Iterator[Feed]:
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in declared.graph.input if v.name not in initializers]
    made = [value for value in inputs if value.name not in given]
    if not made:
        yield dict(given)
        return
    fixed = {name: list(shape) for name, shape in (check.shapes or {}).items()}
    fixed |= {name: list(array.shape) for name, array in given.items()}
    switches = combinations_of(model.graph, uses)
    frozen = frozen_lengths(model.graph)
    sizes_of_run = alternative_sizes(inputs, uses, column(run, len(switches)), fixed, frozen)
    constants = switches[run % len(switches)]
    together = [(met(inputs, sizes, meeting), seq) for sizes, seq in sizes_of_run]
    for sizes, seq in _within_limit(made, together):
        longest = next((_length(sizes[v.name], uses[v.name]) for v in inputs if "T" in uses[v.name].axes), seq)
        lengths = (longest, 1) if any(use.lengths for use in uses.values()) else (longest,)
        scale = _SCALES[run % len(_SCALES)]
        fewer = [(scale, False, integers) for integers in _FEWER_INTEGERS] if has_integers(made, uses) else []
        kinds = ((scale, False, _INTEGERS), *fewer, (scale, True, _INTEGERS), (_SMALL, False, _INTEGERS))
        for length, kind in product(lengths, kinds):
            rng, numbers = np.random.default_rng((check.seed, run)), _RandomNumbers(length, *kind)
            random = {v.name: numbers.of(v, sizes[v.name], uses[v.name], constants.get(v.name), rng) for v in made}
            yield {**given, **random}


def has_integers(inputs: Sequence[onnx.ValueInfoProto], uses: Uses) -> bool:
    """Whether an input has integers of which no bound is known."""
    return any(
        _dtype_of(v).kind in "iu" and uses[v.name].bound is None and not uses[v.name].lengths for v in inputs
    )


def _dtype_of(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def _overridden_defaults(model: onnx.ModelProto, run: int, seed: int) -> Feed:
    """Return other numbers for the inputs that have defaults, in every third run; else none."""
    if run % 3 != 2 or model.ir_version < FIRST_IR_WITH_DEFAULTS:
        return {}
    inputs, rng = {value.name for value in model.graph.input}, np.random.default_rng((seed, run))
    feed = {}
    for tensor in model.graph.initializer:
        if tensor.name in inputs and math.prod(tensor.dims) <= _MOST_DEFAULT and not tensor.external_data:
            array = numpy_helper.to_array(tensor)
            if array.dtype.kind == "f":
                moved = array * rng.uniform(0.75, 1.25, array.shape)
                other = moved if array.any() else rng.uniform(0, 0.25, array.shape)
                feed[tensor.name] = np.asarray(other, array.dtype)
    return feed


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
    return math.prod(shape) * (8 + int(_dtype_of(value).itemsize))


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
        integers: Integers of which no bound is known are below this.
    """

    longest: int
    scale: float
    positive: bool
    integers: int

    def of(
        self,
        value: onnx.ValueInfoProto,
        shape: list[int],
        use: Use,
        constant: int | None,
        rng: np.random.Generator,
    ) -> Array:
        """Return random numbers for an input; `constant` if it is a single integer or boolean."""
        dtype = _dtype_of(value)
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
        return rng.integers(0, self.integers if use.bound is None else max(use.bound, 1), shape).astype(dtype)

    def _reals(self, shape: list[int], use: Use, rng: np.random.Generator) -> Array:
        numbers = np.asarray(rng.standard_normal(shape))
        numbers *= self.scale * (_OF_STATES if use.starts_a_loop else 1.0)
        if self.positive:
            np.abs(numbers, out=numbers)
            numbers += 0.01
        return numbers
