"""How a runtime wants the same values computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """How a runtime wants the same values computed.

    Attributes:
        fused: For onnxruntime: a Gemm for each activation, which it fuses, and nothing in a body that can be
            computed for all steps at once.
        composed: Operators that the runtime lacks and that are composed of others.
    """

    fused: bool = False
    composed: frozenset[str] = frozenset()
