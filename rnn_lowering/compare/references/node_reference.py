"""What a comparison needs of one kind of recurrent nodes: `NodeReference`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.limits import excess
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.types import Array

Attributes = Mapping[str, Any]
"""The attributes of a node as Python values."""

Symbols = dict[str, Array]
"""Inputs or outputs by their names in the operator specification."""

Spec = TypeVar("Spec", bound=NodeSpec)


@dataclass(frozen=True)
class NodeReference(ABC, Generic[Spec]):
    """Computes a node of one kind in float64, and makes inputs for it.

    A subclass reads attributes and computes steps on its own, not with what it judges.

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
        """Return its outputs in float64, and by how much a correct lowering may differ from them: two dictionaries
        of equal shapes, infinite where nothing is compared."""

    @abstractmethod
    def feeds(self, names: Mapping[str, str], rng: np.random.Generator) -> list[Symbols]:
        """Return inputs of several runs, such that each term of the node matters in one.

        Args:
            names: The inputs that are not constants: symbol -> name of the value. One value may enter twice.
            rng: Source of the numbers.

        Raises:
            UnsupportedError: The node has sizes such that a run exceeds the limit.
        """

    @abstractmethod
    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        """Return inputs of one ordinary run, of so many steps where the node leaves that open; see `feeds`."""

    def single_rows(self, feeds: Sequence[Mapping[str, Array]]) -> list[Symbols]:
        """Return a feed for each row of the batch, where rows are compared with onnxruntime's kernel, not with
        float64."""
        return []

    def axes_of_a_row(self, symbol: str) -> tuple[int, ...]:
        """Return the axes of an output that one row of the batch runs along."""
        return tuple(n for n, axis in enumerate(self.spec.axes(symbol)) if axis != "N")


def attributes_of(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a node as Python values."""
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, list):
            value = [item.decode() if isinstance(item, bytes) else item for item in value]
        yield attribute.name, value.decode() if isinstance(value, bytes) else value


FLOAT32_EPS = float(np.finfo(np.float32).eps)
"""A rounding of float32."""

_FLOAT64_BYTES = 8


def check_size(spec: NodeSpec, numbers: int) -> None:
    """Raise if the inputs and outputs of one run exceed the memory limit in float64.

    Args:
        numbers: How many numbers they have.

    Raises:
        UnsupportedError: They exceed it.
    """
    if fault := excess("inputs and outputs", bytes_in_float64(numbers)):
        raise UnsupportedError(fault, hint="compare it at smaller sizes", node=spec.node)


def bytes_in_float64(numbers: int) -> int:
    """Return the bytes that numbers take in float64."""
    return _FLOAT64_BYTES * numbers


def sizes_of_runs(spec: NodeSpec, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the distinct (batch size, length) of runs: those of the node, where open those of `sizes`."""
    N, T = spec.batch_size, spec.seq_length
    return list(dict.fromkeys((n if N is None else N, t if T is None else T) for n, t in sizes))


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
