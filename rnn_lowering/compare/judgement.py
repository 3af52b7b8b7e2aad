"""Which outputs count as equal: tolerances by type, nodes beside float64, and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto

from rnn_lowering.compare.float64.node_reference import NodeReference
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.model.protobuf import bodies_in
from rnn_lowering.nodes.spec import AxisName, NodeSpec
from rnn_lowering.types import Array, Dims

_BY_TYPE = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}
"""Relative and absolute tolerance by element type; arrays of other types must be equal."""

BLOCK = 1 << 20
"""Elements that are compared at once: arrays may be files that are larger than memory."""


def allowance(expected: Array, tolerance: Tolerance, precision: str = "") -> Array:
    """Return the allowed difference of each element, in float64; `precision` as in `compare`.

    If the largest number is below 1, the default absolute tolerance is multiplied by it: small outputs are compared
    as closely as others.
    """
    rtol, atol = _limits(expected, tolerance, precision)
    allowed: Array = atol + rtol * _magnitudes(expected)
    return allowed


def _limits(expected: Array, tolerance: Tolerance, precision: str) -> tuple[float, float]:
    """Return the relative and absolute tolerance for an array."""
    name = expected.dtype.name
    rtol, atol = _BY_TYPE.get(precision if precision and name in _BY_TYPE else name, (0.0, 0.0))
    if tolerance.atol is None and atol:
        atol *= min(1.0, max((_magnitudes(part).max() for part in blocks(expected)), default=0.0))
    return rtol if tolerance.rtol is None else tolerance.rtol, atol if tolerance.atol is None else tolerance.atol


def _magnitudes(array: Array) -> Array:
    size: Array = np.abs(np.where(np.isfinite(array), array, 0).astype(np.float64))
    return size


def blocks(array: Array) -> Iterator[Array]:
    """Yield the elements in blocks, in C order."""
    flat = array.reshape(-1)
    for start in range(0, array.size, BLOCK):
        yield flat[start : start + BLOCK]


def distance(a: Array, b: Array) -> Array:
    """Return the absolute difference by element, infinite if only one of the two is NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far)
    return np.where(np.isnan(far), np.inf, far)


def compare(
    expected: Array | None,
    actual: Array | None,
    tolerance: Tolerance,
    uncertain: Array | None = None,
    precision: str = "",
) -> tuple[float, str]:
    """Return the largest absolute difference, and the reason if it is out of tolerance.

    Args:
        expected, actual: Two outputs; None for a missing one.
        tolerance: The user's tolerance. Integers must be equal without one.
        uncertain: How far each integer may be off, True for one unit; None: not at all.
        precision: The least precise type on the way to real numbers; "" for their own.
    """
    if expected is None or actual is None:
        return np.inf, "a part is missing"
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return np.inf, (f"{expected.dtype}{list(expected.shape)} became {actual.dtype}{list(actual.shape)}")
    if expected.dtype.name not in _BY_TYPE:
        return _compare_exact(expected, actual, tolerance, uncertain)
    pairs = zip(blocks(expected), blocks(actual), strict=True)
    rtol, atol = _limits(expected, tolerance, precision)
    wrong, largest, one_sided = 0, 0.0, False
    for a, b in pairs:
        far = distance(a, b)
        wrong += int((far > atol + rtol * _magnitudes(a)).sum())
        largest = max(largest, float(far.max()))
        one_sided = one_sided or not np.array_equal(np.isnan(a), np.isnan(b))
    if wrong and np.isinf(largest) and one_sided:
        return largest, f"NaN in different places, {wrong} of {expected.size} elements differ"
    return (
        largest,
        f"largest difference {largest:.2g}, {wrong} of {expected.size} out of tolerance" if wrong else "",
    )


def _compare_exact(
    expected: Array, actual: Array, tolerance: Tolerance, uncertain: Array | None
) -> tuple[float, str]:
    """Compare integers, booleans or texts."""
    units = np.zeros(expected.shape, bool) if uncertain is None else uncertain
    rtol, atol = (tolerance.rtol or 0.0, tolerance.atol or 0.0) if expected.dtype.kind in "iu" else (0.0, 0.0)
    wrong, largest = 0, 0.0
    for a, b, unit in zip(blocks(expected), blocks(actual), blocks(units), strict=True):
        other = a != b
        if not other.any():
            continue
        far = distance(a, b) if a.dtype.kind in "iu" else np.ones(a.shape)
        far = np.where(other, np.maximum(far, 1.0), 0.0)  # float64 does not tell large integers apart
        largest = max(largest, float(far.max()))
        allowed = atol + rtol * _magnitudes(a) if atol or rtol else 0.0
        wrong += int((far > np.maximum(allowed, unit)).sum())
    text = f", by up to {largest:.4g}" if expected.dtype.kind in "iu" else ""
    return largest, f"{wrong} of {expected.size} elements differ{text}" if wrong else ""


# The least precise float type between the inputs of a model and each output: its rounding is in the output.


_BITS: Mapping[int, int] = {
    TensorProto.DOUBLE: 53,
    TensorProto.FLOAT: 24,
    TensorProto.FLOAT16: 11,
    TensorProto.BFLOAT16: 8,
}
"""By float type the bits of its numbers."""

_EXACT = 64
"""Bits of what follows from the inputs, but has no float type."""

_NAMES = {24: "float32", 11: "float16", 8: "bfloat16"}

_Known = dict[str, int]
"""By value the fewest bits on the way from the inputs to it; absent: it does not follow from the inputs."""


def least_precise(model: onnx.ModelProto) -> Mapping[str, str]:
    """Return the NumPy name of the least precise type on the way to each output; absent: all are float64."""
    bits = _Walk(model).outputs(model.graph, {}, None)
    fewest_bits = {value.name: bits.get(value.name, _EXACT) for value in model.graph.output}
    return {name: _NAMES[fewest] for name, fewest in fewest_bits.items() if fewest in _NAMES}


class _Walk:
    """Follows values through a model, its bodies and its functions."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._returned: dict[tuple[object, ...], list[int | None]] = {}

    def outputs(self, graph: onnx.GraphProto, outer: Mapping[str, int], given: int | None) -> _Known:
        """Return what is known of the values in a graph.

        Args:
            graph: The graph.
            outer: The values around it.
            given: The bits of all its inputs; None for the main graph.
        """
        constants = {tensor.name for tensor in graph.initializer}
        known = {name: bits for name, bits in outer.items() if name not in constants}
        for value in (value for value in graph.input if value.name not in constants):
            bits = _BITS.get(value.type.tensor_type.elem_type, _EXACT)
            known[value.name] = bits if given is None else min(bits, given)
        declared = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
        self._walk(graph.node, known, declared)
        return known

    def _walk(self, nodes: Iterable[onnx.NodeProto], known: _Known, declared: Mapping[str, int]) -> None:
        for node in nodes:
            for name, bits in zip(node.output, self._of_node(node, known), strict=False):
                if name and bits is not None:
                    known[name] = min(bits, _BITS.get(declared.get(name, 0), _EXACT))

    def _of_node(self, node: onnx.NodeProto, known: _Known) -> list[int | None]:
        """Return the fewest bits on the way to each output; None for one that does not follow from the inputs."""
        given = [known.get(name) for name in node.input]
        if (node.domain, node.op_type) in self._functions:
            return self._call((node.domain, node.op_type), given)
        fewest = min((bits for bits in given if bits is not None), default=None)
        for body in bodies_in(node) if node.attribute else ():
            inside = fewest
            for _ in range(len(_BITS)):  # what a step returns enters the next one
                values = self.outputs(body, known, _EXACT if inside is None else inside)
                of_outputs = [bits for v in body.output if (bits := values.get(v.name)) is not None]
                before, inside = inside, min([*of_outputs, *([inside] if inside is not None else [])], default=None)
                if inside == before:
                    break
            fewest = inside if fewest is None else min(fewest, inside if inside is not None else fewest)
        if fewest is not None and node.op_type == "Cast" and node.domain in DEFAULT_DOMAIN:
            fewest = min([fewest, *(_BITS.get(a.i, _EXACT) for a in node.attribute if a.name == "to")])
        return [fewest] * len(node.output)

    def _call(self, key: tuple[str, str], given: list[int | None]) -> list[int | None]:
        function, call = self._functions[key], (key, *given)
        if call not in self._returned:
            self._returned[call] = [None] * len(function.output)  # it may call itself
            pairs = zip(function.input, given, strict=False)
            known = {name: bits for name, bits in pairs if bits is not None}
            self._walk(function.node, known, {})
            self._returned[call] = [known.get(name) for name in function.output]
        return self._returned[call]


# An output of a lowered node beside its operator in float64.


@dataclass(frozen=True, eq=False)
class NodeOutput:
    """An output of a lowered node, beside its operator in float64.

    Attributes:
        reference: The node in float64.
        symbol: Its name in the operator specification.
        got: The output of the lowered node.
        expected: The output by the operator specification, in float64.
        allowed: The allowed difference, of the same shape; infinite for numbers that are not compared.
    """

    reference: NodeReference[Any]
    symbol: str
    got: Array
    expected: Array
    allowed: Array

    @property
    def spec(self) -> NodeSpec:
        """The specification of the node."""
        return cast(NodeSpec, self.reference.spec)

    @property
    def comparable(self) -> bool:
        return bool(self.got.shape == self.expected.shape)

    @property
    def largest(self) -> float:
        """The largest absolute difference; infinite where the shapes differ."""
        return float(self._far(self.got).max(initial=0.0)) if self.comparable else np.inf

    @property
    def right(self) -> bool:
        return self.comparable and not bool(self._wrong().any())

    def no_further(self, original: Array) -> bool:
        """Whether no row is further from float64 than what the original node computed, to within a rounding."""
        if not self.comparable or original.shape != self.expected.shape or original.dtype != self.got.dtype:
            return False
        axes = self.reference.axes_of_a_row(self.symbol)
        ours, theirs = (self._far(x).max(axis=axes, initial=0.0) for x in (self.got, original))
        return bool((ours <= theirs + np.finfo(original.dtype).eps).all())

    @property
    def reason(self) -> str:
        """The reason why the output is wrong."""
        if not self.comparable:
            return f"shape {list(self.expected.shape)} became {list(self.got.shape)}"
        wrong = self._wrong()
        wide = f"{wrong.sum()} of {wrong.size} out of tolerance{self._first(wrong)}"
        return f"largest difference {self.largest:.2g}, {wide}"

    def _far(self, array: Array) -> Array:
        return np.where(np.isfinite(self.allowed), distance(self.expected, array), 0.0)

    def _wrong(self) -> Array:
        wrong: Array = self._far(self.got) > self.allowed
        return wrong

    def _first(self, wrong: Array) -> str:
        axes = self.spec.axes(self.symbol)
        if "T" not in axes:
            return ""
        time = axes.index("T")
        order = np.flatnonzero(wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != time)))
        return f", from time step {order[-1 if self.spec.direction == 'reverse' else 0]}"


_ELEMENTS_AT_ONCE = 1 << 23
"""Maximum numbers in the outputs of rows that are compared together."""


def blocks_of_rows(spec: NodeSpec, data: Array, outputs: Mapping[str, Array]) -> Iterator[slice]:
    """Yield slices of the batch for which the outputs are small; the whole batch if an output has other rows."""
    rows = data.shape[spec.axes(spec.data).index("N")]
    largest = max((array.size for array in outputs.values()), default=0)
    at_once = max(1, _ELEMENTS_AT_ONCE * rows // max(1, largest))
    if at_once >= rows or not all(_has_rows(array, spec.axes(symbol), rows) for symbol, array in outputs.items()):
        yield slice(None)
        return
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _has_rows(array: Array, axes: tuple[AxisName, ...], rows: int) -> bool:
    return array.ndim == len(axes) and array.shape[axes.index("N")] == rows


# The shapes of outputs: those that the lowered model declares must be those that it returns. onnxruntime warns of
# another shape and goes on; other runtimes allocate what is declared. A shape that the original declares wrongly
# too is no fault of the lowering.


def are_no_rows(expected: Array | None, actual: Array | None) -> bool:
    """Whether two arrays have no rows, and differ at most in sizes that onnxruntime does not know.

    The specification does not say which shape a Loop of no steps stacks. onnxruntime takes the sizes that it
    infers for the body: 0 for a size that it does not know, and [0] if it does not even know the rank.
    """
    if expected is None or actual is None or expected.dtype != actual.dtype:
        return False
    if expected.shape[:1] != (0,) or actual.shape[:1] != (0,):
        return False
    pairs = zip(expected.shape, actual.shape, strict=False)
    return expected.ndim == 1 or (expected.ndim == actual.ndim and all(a in (0, b) for a, b in pairs))


@dataclass(frozen=True)
class DeclaredShapes:
    """The declared shapes of the outputs of two models.

    Attributes:
        original, lowered: The models; their outputs have the same names.
    """

    original: onnx.ModelProto
    lowered: onnx.ModelProto

    @cached_property
    def _before(self) -> Mapping[str, Dims | None]:
        return _shapes(self.original.graph.output)

    @cached_property
    def _after(self) -> Mapping[str, Dims | None]:
        return _shapes(self.lowered.graph.output)

    def fault(self, name: str, array: Array) -> str:
        """Return how an output of the lowered model contradicts its declared shape; "" if it does not.

        Args:
            name: The output.
            array: What was returned. onnxruntime gives rows that a Loop without a step stacks another rank.
        """
        before, after = self._before.get(name), self._after.get(name)
        if after is None or before == after:
            return ""
        same_rank = before is not None and len(before) == len(after)
        if len(after) != array.ndim:
            wrong = array.size > 0 and not same_rank
        else:
            sizes = zip(after, array.shape, before if before and same_rank else [None] * array.ndim, strict=True)
            wrong = any(declared not in (None, size, old) for declared, size, old in sizes)
        shown = ", ".join("?" if size is None else str(size) for size in after)
        return f"has shape {list(array.shape)}, but the lowered model declares [{shown}]" if wrong else ""

    def contradicted(self, name: str, array: Array) -> list[int]:
        """Return the axes of an output whose size both models declare, and a run contradicts."""
        before, after = self._before.get(name), self._after.get(name)
        if after is None or before != after or len(after) != array.ndim:
            return []
        return [axis for axis, size in enumerate(after) if size not in (None, array.shape[axis])]


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, Dims | None]:
    """Return shapes by name; None for an unknown rank, and for what is no tensor."""
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
        if tensor.HasField("shape")
        else None
        for name, tensor in tensors.items()
    }
