"""`Dialect`: options that shape loops and steps for one runtime."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True)
class Dialect:
    """Options for loops and steps, off by default. Single operators are rewritten by `Target.instead` and
    `Target.finish`.

    Attributes:
        gemm_per_activation: One product per activation, which onnxruntime fuses with it (FusedGemm), instead of one
            product for as many gates as possible.
        gates_apart: Split all gates of an LSTM at once, and apply each activation alone.
        stack_outside: Compute the last sum or product of a step after the loop, once for all steps.
        join_up_to: Lower both directions of a node, or several nodes, to one loop if the sum of their hidden sizes
            is at most this; 0: never.
        stack_up_to: Lower layers, one above the other, to one loop up to this sum of hidden sizes; 0: never.
        reverse_in_loop: Reverse a Scan of unknown length by its direction attributes, and a Loop by counting down,
            instead of flipping rows before and after.
        dequantize_inside: Dequantize integer weights in the body, right before their product, instead of once
            outside of all bodies and behind a Reshape.
        matrix_product: Multiply X of known sizes by W as a matrix [seq * batch, input].
        matrix_steps: Compute unrolled steps on matrices [batch, ...] if the batch size is known, instead of [1,
            batch, ...].
        by_length: Choose by an If what is fastest for an open length: steps for few tokens and chunks for more, or
            the sums of one frame and a convolution of more.
        zeros_apart: Start each state of a loop from zeros of its own, and linear attention from a tensor of zeros.
        index_type: The integers in which `sequence_lens` and the rows that follow from them are computed.
    """

    gemm_per_activation: bool = False
    gates_apart: bool = False
    stack_outside: bool = False
    join_up_to: int = 0
    stack_up_to: int = 0
    reverse_in_loop: bool = False
    dequantize_inside: bool = False
    matrix_product: bool = False
    matrix_steps: bool = False
    zeros_apart: bool = False
    by_length: bool = False
    index_type: ir.DataType = ir.DataType.INT64


PLAIN = Dialect()
"""Without options."""
