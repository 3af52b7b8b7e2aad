"""The eleven activation functions of the recurrent operators: their names and the defaults of their parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """The parameters of an activation function.

    Attributes:
        alpha: Its default, None for a function without alpha.
        beta: Its default, None for a function without beta.
        defaults_disputed: onnxruntime's defaults (given here) are not those of the operator specification.
    """

    alpha: float | None = None
    beta: float | None = None
    defaults_disputed: bool = False


ACTIVATIONS = {
    "Relu": Parameters(),
    "Tanh": Parameters(),
    "Sigmoid": Parameters(),
    "Affine": Parameters(0.0, 0.0, defaults_disputed=True),
    "ScaledTanh": Parameters(0.0, 0.0, defaults_disputed=True),
    "LeakyRelu": Parameters(0.01),
    "ThresholdedRelu": Parameters(0.0, defaults_disputed=True),
    "HardSigmoid": Parameters(0.2, 0.5),
    "Elu": Parameters(1.0),
    "Softsign": Parameters(),
    "Softplus": Parameters(),
}

CANONICAL_NAMES = {name.lower(): name for name in ACTIVATIONS}
"""Names are valid in any letter case."""
