"""What shapes the folds that a runtime runs right, or fastest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """Options for the loops and steps of one runtime. Rewrites of single operators are in `Target.instead` and
    `Target.finish`.

    Attributes:
        gemm_per_activation: The gates of each activation have a product of their own, which onnxruntime fuses with
            the activation (FusedGemm); otherwise as many gates as possible share one product.
        gates_apart: The gates of an LSTM are split all at once, each with its activation.
        stack_outside: A loop outputs the operands of its last sum or product, which is then computed after the
            loop, once for all steps.
        join_directions: A small bidirectional node becomes one loop that computes both directions in each step.
        reverse_in_loop: In reverse a Scan of unknown length runs by its direction attributes, and a Loop counts
            down; otherwise rows are flipped before and after.
        recognized_lstm: The step of an LSTM is emitted as OpenVINO recognizes it (see `recurrence.openvino_lstm`);
            no loop outputs a state through an Unsqueeze alone.
        dequantize_inside: Weights that are stored as integers are dequantized in the body that multiplies by them,
            right before the product; otherwise once, outside of all bodies and behind a Reshape.
        matrix_product: X of known sizes is multiplied by W as a matrix [seq * batch, input].
        matrix_steps: An unrolled step computes on matrices [batch, ...] where the batch size is known; otherwise on
            [1, batch, ...].
        zeros_apart: No two states of a loop start from one tensor of zeros.
    """

    gemm_per_activation: bool = False
    gates_apart: bool = False
    stack_outside: bool = False
    join_directions: bool = False
    reverse_in_loop: bool = False
    recognized_lstm: bool = False
    dequantize_inside: bool = False
    matrix_product: bool = False
    matrix_steps: bool = False
    zeros_apart: bool = False
