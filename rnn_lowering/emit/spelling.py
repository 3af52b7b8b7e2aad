"""How a runtime wants the same values computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """How a runtime wants the same values computed.

    Attributes:
        gemm: A product [m, k] @ [k, n] in a loop and the sum that alone uses it are one Gemm.
        gemm_per_activation: The gates of each activation have a product of their own, which onnxruntime fuses with
            the activation; otherwise as many gates as possible share one.
        stack_outside: A loop stacks the operands of its last sum or product, which is then computed once for all
            steps.
        join_directions: A small bidirectional node is one loop over both directions side by side.
        composed: Operators that the runtime lacks and that are composed of others.
    """

    gemm: bool = False
    gemm_per_activation: bool = False
    stack_outside: bool = False
    join_directions: bool = False
    composed: frozenset[str] = frozenset()
