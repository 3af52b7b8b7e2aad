"""`NodeReference`: a recurrent node in float64, and inputs for it. Each kind of nodes has its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.limits import excess
from rnn_lowering.nodes.kinds import imported, kind_of_spec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.types import Array

Attributes = Mapping[str, Any]
"""The attributes of a node as Python values."""

Symbols = dict[str, Array]
"""Inputs or outputs by their names in the operator specification."""

Spec = TypeVar("Spec", bound=NodeSpec)

ROWS = 3
"""The batch size of an ordinary run, if the node leaves it open."""


@dataclass(frozen=True)
class NodeReference(ABC, Generic[Spec]):
    """Computes a node of one kind in float64, and makes inputs for it.

    A subclass reads attributes and computes steps without code of the lowering.

    Attributes:
        spec: What the node specifies: sizes, types and connections are taken from it.
        attributes: Its attributes.
    """

    spec: Spec
    attributes: Attributes

    @classmethod
    def of(cls, node: ir.Node, spec: Spec) -> NodeReference[Spec]:
        """Return the reference of a node."""
        return cls(spec, {name: a.value for name, a in node.attributes.items() if not a.is_ref()})

    @abstractmethod
    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        """Return its outputs in float64; `inputs` are all that are connected."""

    @abstractmethod
    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        """Return its outputs in float64, and how far a correct lowering may be from them: arrays of the same
        shapes, infinite where nothing is compared."""

    @abstractmethod
    def feeds(self, names: Mapping[str, str], rng: np.random.Generator, *, is_proven: bool) -> list[Symbols]:
        """Return inputs of several runs, such that each term of the node matters in one, unless it is proven.

        Args:
            names: The inputs that are not constants: symbol -> name of the value. One value may enter twice.
            rng: Source of the numbers.
            is_proven: Whether the terms of the lowered node are proven to be right.

        Raises:
            UnsupportedError: The node has sizes such that a run exceeds the limit.
        """

    @abstractmethod
    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        """Return inputs of one ordinary run, of this many steps if the node leaves that open; see `feeds`."""

    def single_rows(self, feeds: Sequence[Mapping[str, Array]]) -> list[Symbols]:
        """Return a feed for each row of the batch, if rows are compared with onnxruntime's kernel instead of
        float64; else nothing."""
        return []

    def axes_of_a_row(self, symbol: str) -> tuple[int, ...]:
        """Return the axes of an output that one row of the batch runs along."""
        return tuple(n for n, axis in enumerate(self.spec.axes(symbol)) if axis != "N")


class ShapedReference(NodeReference[Spec]):
    """The reference of a node whose inputs follow from their shapes."""

    SIZES: ClassVar[Sequence[tuple[int, int]]] = ((2, 5), (1, 1), (3, 33), (2, 2))
    """(batch size, length) of the runs, where the node leaves them open."""

    MAGNITUDES: ClassVar[Sequence[float]] = (1.0,)
    """Standard deviations of the rows of a batch, in turn; the first belongs to an ordinary run."""

    @abstractmethod
    def shapes(self, N: int, T: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of all inputs for a batch size and a length."""

    @abstractmethod
    def computed(self, given: Symbols) -> Symbols:
        """Return the outputs, computed in the type of the inputs."""

    @abstractmethod
    def allowed(self, given: Symbols, truth: Symbols) -> Mapping[str, Array | float]:
        """Return how far a correct lowering may be from each output, as `outputs_and_allowed` does; sizes may be
        1.

        Args:
            given, truth: The inputs and the outputs in float64.
        """

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        return self.computed(in_type(inputs))

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        given = in_type(inputs)
        truth = self.computed(given)
        allowed = self.allowed(given, truth)
        return truth, {symbol: np.broadcast_to(allowed[symbol], array.shape) for symbol, array in truth.items()}

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator, *, is_proven: bool) -> list[Symbols]:
        return [self._feed(N, T, run, names, rng) for run, (N, T) in enumerate(self.sizes(), 1)]

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        return self._feed(*self._known_or(ROWS, steps), 0, names, rng)

    def sizes(self) -> list[tuple[int, int]]:
        """Return the distinct (batch size, length) of the runs."""
        return list(dict.fromkeys(self._known_or(*size) for size in self.SIZES))

    def _known_or(self, N: int, T: int) -> tuple[int, int]:
        known = self.spec.batch_size, self.spec.seq_length
        return (N if known[0] is None else known[0]), (T if known[1] is None else known[1])

    def _feed(self, N: int, T: int, run: int, names: Mapping[str, str], rng: np.random.Generator) -> Symbols:
        shapes = {symbol: shape for symbol, shape in self.shapes(N, T).items() if symbol in names}
        check_size(self.spec, 2 * sum(map(math.prod, shapes.values())))  # outputs are about as large
        drawn = {symbol: self.numbers(symbol, shape, run, rng) for symbol, shape in shapes.items()}
        made = {symbol: array.astype(self.spec.dtype_of(symbol).numpy()) for symbol, array in drawn.items()}
        return by_symbol(made, names)

    def numbers(self, symbol: str, shape: tuple[int, ...], run: int, rng: np.random.Generator) -> Array:
        """Return random numbers for an input; run 0 is an ordinary one."""
        numbers = np.asarray(rng.standard_normal(shape))
        axes = self.spec.axes(symbol)
        if "N" in axes:
            by_row = np.resize(np.array(self.MAGNITUDES if run else self.MAGNITUDES[:1]), shape[axes.index("N")])
            numbers *= by_row.reshape([-1 if axis == "N" else 1 for axis in axes])
        return numbers


def attributes_of(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a node as Python values."""
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, list):
            value = [item.decode() if isinstance(item, bytes) else item for item in value]
        yield attribute.name, value.decode() if isinstance(value, bytes) else value


FLOAT32_EPS = float(np.finfo(np.float32).eps)
"""A rounding of float32."""


def limits_of(dtype: Any) -> tuple[float, float, float]:
    """Return a rounding of 1 in a NumPy type, its smallest number, and from where on numbers may exceed it."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.eps), float(info.tiny), float(info.max) ** 0.75


def in_type(arrays: Mapping[str, Array], dtype: Any = np.float64) -> Symbols:
    """Return arrays in a type."""
    return {symbol: np.asarray(array, dtype) for symbol, array in arrays.items()}


def largest(array: Array, axes: tuple[int, ...]) -> Array:
    """Return the largest magnitude along axes, which are kept."""
    return np.asarray(np.abs(array).max(axis=axes, keepdims=True, initial=0.0), np.float64)


_FLOAT64_BYTES = 8


def check_size(spec: NodeSpec, numbers: int) -> None:
    """Raise if the inputs and outputs of one run exceed the memory limit in float64.

    Args:
        numbers: The number of their elements.

    Raises:
        UnsupportedError: They exceed it.
    """
    if fault := excess("inputs and outputs", bytes_in_float64(numbers)):
        raise UnsupportedError(fault, hint="compare it at smaller sizes", node=spec.node)


def bytes_in_float64(numbers: int) -> int:
    """Return the bytes that numbers take in float64."""
    return _FLOAT64_BYTES * numbers


def by_symbol(made: Mapping[str, Array], names: Mapping[str, str]) -> Symbols:
    """Return the inputs that `names` asks for; symbols of one value get the same array.

    Args:
        made: An array for each symbol.
        names: Symbol -> name of the value.
    """
    first = {name: symbol for symbol, name in reversed(list(names.items()))}
    return {symbol: made[first[name]] for symbol, name in names.items()}


def moved_by_a_rounding(inputs: Mapping[str, Array], symbols: Iterable[str]) -> Symbols:
    """Return inputs; each number of those that `symbols` names is moved by one rounding of float32, up or down."""
    rng = np.random.default_rng(0)
    moved = dict(inputs)
    for symbol in sorted(moved.keys() & set(symbols)):  # in one order in every process
        signs = rng.integers(0, 2, moved[symbol].shape) * 2.0 - 1
        moved[symbol] = np.asarray(moved[symbol], np.float64) * (1 + FLOAT32_EPS * signs)
    return moved


def reference_of(node: ir.Node, spec: NodeSpec) -> NodeReference[Any]:
    """Return the reference of a node."""
    kind: type[NodeReference[Any]] = imported(kind_of_spec(spec).reference)
    return kind.of(node, spec)
