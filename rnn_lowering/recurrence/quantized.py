"""Products of integers, as DynamicQuantizeLSTM computes them: the cells multiply as always.

Source: onnxruntime's rnn_helpers.cc (ComputeGemm) and uni_directional_lstm.cc. The scales are multiplied first; a
bias follows the sum of both products and the peephole. One range holds for all that a product takes: X of all steps
up to the longest length, or H of all rows. A row that has ended enters as zeros where the node has an output Y, and
holds its state where not. (The kernel reads unset memory for a row of length 0 without Y; here it holds its state.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnn_lowering.emit.dequantized import Dequantized
from rnn_lowering.emit.integers import integer_product, where
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensors import Tensor
from rnn_lowering.recurrence.folds import Step, Tensors
from rnn_lowering.recurrence.ragged import Lengths


@dataclass(frozen=True, eq=False)
class _Product(Tensor):
    """A product; when something is added, so is the bias."""

    bias: Tensor | None = None

    def __add__(self, other: Tensor) -> Tensor:
        total = self.op.add(self, other)
        return total if self.bias is None else total + self.bias

    def __radd__(self, other: Tensor) -> Tensor:
        total = self.op.add(other, self)
        return total if self.bias is None else total + self.bias


@dataclass(frozen=True, eq=False)
class _Peephole(Tensor):
    """A peephole; the sum with its product is followed by the bias."""

    bias: Tensor | None = None

    def __mul__(self, other: Tensor) -> Tensor:
        product = self.op.mul(self, other)
        return _Product(product.value, product.dtype, product.shape, self.op, bias=self.bias)


@dataclass(frozen=True, eq=False)
class IntegerWeights(Tensor):
    """Weights [k, n] that a product multiplies as integers, its other operand quantized by its range."""

    ops: Ops | None = None
    bias: Tensor | None = None

    def __rmatmul__(self, a: Tensor) -> Tensor:
        op, shape = self.ops, (*a.shape[:-1], self.shape[-1])
        assert op is not None
        assert isinstance(self.value, Dequantized)
        product = op.zero(shape) if a.is_zero else integer_product(op, a, self.value)
        return _Product(product.value, product.dtype, shape, op, bias=self.bias)


def integer_weights(op: Ops, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return weights whose products are of integers.

    Args:
        bias: Is added after the sum of a product.
    """
    return IntegerWeights(weights.value, weights.dtype, weights.shape, op, ops=op, bias=bias)


def peephole(weights: Tensor, bias: Tensor) -> Tensor:
    """Return a peephole, the sum with whose product is followed by a bias."""
    return _Peephole(weights.value, weights.dtype, weights.shape, weights.op, bias=bias)


def up_to_longest(op: Ops, X: Tensor, lengths: Lengths) -> Tensor:
    """Return X [seq, batch, input] with zeros, which change no range, for the steps that no sequence has."""
    return where(op, op.unsqueeze(lengths.any_alive, [1]), X, op.constant(0.0))


def with_ended_rows(op: Ops, step: Step, *, zeros: bool) -> Step:
    """Return a step whose last input tells which rows are within their lengths; the others enter the next one as
    zeros, or hold their state."""

    def ended(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        *given, alive = rows
        new, ys = step(states, given)
        kept: Sequence[Tensor] = [op.constant(0.0)] * len(new) if zeros else states
        pairs = ((n, op.constant(0.0) if k.is_zero else k) for n, k in zip(new, kept, strict=True))
        held = [where(op, alive, n, k) for n, k in pairs]
        return held, [held[0]] if ys else []

    return ended
