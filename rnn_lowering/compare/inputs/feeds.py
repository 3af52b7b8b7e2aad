"""Random inputs of runs, such that the model accepts them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnn_lowering.compare.inputs.interfaces import FIRST_IR_WITH_DEFAULTS
from rnn_lowering.compare.inputs.sizes import ShapesByName, alternative_sizes, column, combinations_of
from rnn_lowering.compare.inputs.uses import Use, uses_of
from rnn_lowering.compare.options import Check
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.limits import excess
from rnn_lowering.types import Array

Feed = dict[str, Array]

_SCALES = (0.5, 1.0, 2.0, 0.05)
"""Standard deviation of real numbers in the runs; the third is the longest, and has the largest numbers."""

_OF_STATES = 4.0
"""The states of loops are so many times larger: a state may leave the range of the other inputs."""

_SMALL = 0.05
"""The scale for a model whose outputs are infinite at the usual one."""

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
    if run % 3 != 2 or model.ir_version < FIRST_IR_WITH_DEFAULTS:
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
