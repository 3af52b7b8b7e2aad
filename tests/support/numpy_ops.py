"""The operators that a recurrence calls, on NumPy arrays: cells, activations and forms compute at once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from cases import Array

from rnn_lowering.emit.dialect import Dialect

UNARY: dict[str, Callable[..., Array]] = {
    **{"Abs": np.abs, "Ceil": np.ceil, "Exp": np.exp, "Log": np.log, "Neg": np.negative, "Tanh": np.tanh},
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "Elu": lambda x, alpha: np.where(x < 0, alpha * (np.exp(np.minimum(x, 0)) - 1), x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.logaddexp(x, 0),
}


class NumpyOps:
    """Operators on arrays of float64."""

    dialect = Dialect()

    def constant(self, number: float) -> Array:
        return np.asarray(number)

    def unary(self, op_type: str, x: Array, **attributes: float) -> Array:
        return UNARY[op_type](x, **attributes)

    def neg(self, x: Array) -> Array:
        return -x

    def above(self, x: Array, threshold: float) -> Array:
        return (x > threshold).astype(x.dtype)

    def split(self, x: Array, sizes: Sequence[int], axis: int = -1) -> list[Array]:
        return np.split(x, np.cumsum(sizes)[:-1], axis)

    def concat(self, parts: Sequence[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)

    def unsqueeze(self, x: Array, axes: Sequence[int]) -> Array:
        return np.expand_dims(x, tuple(axes))

    def name(self, **symbols: Array) -> None:
        pass

    @contextmanager
    def step(self, t: int, *, described: bool) -> Iterator[None]:
        yield


def repeat(op: Any, r: Any) -> tuple[list[Array], list[Array]]:
    """A Python loop with the signature of the forms."""
    states, stacked = list(r.init), []
    length = r.xs[0].shape[0]
    for t in reversed(range(length)) if r.reverse else range(length):
        states, ys = r.step(states, [x[t : t + 1] for x in r.xs])
        stacked.append(ys)
    if r.reverse:
        stacked.reverse()
    return states, [np.stack(y) for y in zip(*stacked, strict=True)]
