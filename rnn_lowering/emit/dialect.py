"""Which of several equivalent sets of operators a runtime supports or runs fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """Which of several equivalent sets of operators a runtime supports or runs fastest.

    Attributes:
        gemm: In a loop, a MatMul of rank 2 and the Add that is its only use are emitted as one Gemm.
        gemm_per_activation: The gates of each activation have a product of their own, which onnxruntime fuses with
            the activation (FusedGemm); otherwise as many gates as possible share one product.
        stack_outside: A loop outputs the operands of its last sum or product, which is then computed after the
            loop, once for all steps.
        join_directions: A small bidirectional node becomes one loop that computes both directions in each step.
        columns_from: Products with constant weights of at least so many rows are emitted with columns on the right:
            a @ b as Transpose(bᵀ @ Transpose(a)), where bᵀ is a weight as the node has it.
        columns_from_batch: The least known batch size for which they are.
        reverse_in_loop: In reverse a Scan of unknown length runs by its direction attributes, and a Loop counts
            down; otherwise rows are flipped before and after.
        recognized_lstm: The step of an LSTM is emitted as OpenVINO recognizes it (see `recurrence.recognized`); no
            loop outputs a state through an Unsqueeze alone.
        dequantize_inside: Weights that are stored as integers are dequantized in the body that multiplies by them,
            right before the product; otherwise once, outside of all bodies and behind a Reshape.
        split_as_rows: The largest batch size whose gates are split behind a Reshape, those of an LSTM all at once.
        matrix_product: X of known sizes is multiplied by W as a matrix [seq * batch, input].
        matrix_steps: An unrolled step computes on matrices [batch, ...] where the batch size is known; otherwise on
            [1, batch, ...].
        bounded_tanh: Tanh gets what is clipped to [-20, 20], beyond which it is -1 or 1 in every element type.
        gather_by_rank_1: A row is gathered by an index of rank 1, never by a scalar.
        zeros_apart: No two states of a loop start from one tensor of zeros.
        cast_zeros: Zeros of unknown number are made in float32 and cast.
        max_of_outputs: Relu of an output of the same graph is emitted as Max(x, 0).
        outputs_apart: A value that nodes read is no output of the graph; that is a Transpose that moves nothing.
        no_constant_minus: A constant minus x is emitted as x * -1 + constant.
        unsupported: Operators that the runtime does not support; their formulas are emitted instead.
    """

    gemm: bool = False
    gemm_per_activation: bool = False
    stack_outside: bool = False
    join_directions: bool = False
    columns_from: float = math.inf
    columns_from_batch: int = 1
    reverse_in_loop: bool = False
    recognized_lstm: bool = False
    dequantize_inside: bool = False
    split_as_rows: int = 0
    matrix_product: bool = False
    matrix_steps: bool = False
    bounded_tanh: bool = False
    gather_by_rank_1: bool = False
    zeros_apart: bool = False
    cast_zeros: bool = False
    max_of_outputs: bool = False
    outputs_apart: bool = False
    no_constant_minus: bool = False
    unsupported: frozenset[str] = frozenset()
