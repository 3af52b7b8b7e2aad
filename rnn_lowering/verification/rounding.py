"""What rounding does to one node: how far from float64 a correct lowering may be.

The reference computes a node in float64 and, from inputs that are a rounding away, in float32. How far apart the
two are shows how the node amplifies rounding. What a lowering may differ by follows from that and from the size of
what is compared, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rnn_lowering.types import Array
from rnn_lowering.verification import reference

Symbols = dict[str, Array]

_EPS = float(np.finfo(np.float32).eps)

_FACTORS = {"float32": (4, 16, 8), "float64": (4, 16, 8), "float16": (2, 4, 4), "bfloat16": (1, 1, 2)}
"""How many roundings are allowed: of 1, which a gate is near to; of the largest number in the row; and of what
float32 shows. float16 kernels compute in float32 inside and round what enters and leaves them; bfloat16 runs in
float32 with constants that are rounded."""

_BAND = 8
"""How many roundings a pre-activation may be off where a threshold is near."""


def expected(
    op_type: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array], dtype: Any
) -> tuple[Symbols, Symbols]:
    """Return the outputs of a node in float64, and by how much a correct lowering may differ from them.

    Args:
        op_type, attributes, inputs: As in `reference.evaluate`.
        dtype: The type of the node.

    Returns:
        Two dictionaries by symbol, of equal shapes. What is allowed is infinite for rows that exceed the type.
    """
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    batch_first = bool(attributes.get("layout", 0))
    eps, largest = float(info.eps), float(info.max) ** 0.75
    of_one, of_size, of_shown = _FACTORS[np.dtype(dtype).name]
    truth = reference.evaluate(op_type, attributes, inputs)
    rounded = reference.evaluate(op_type, attributes, _perturbed(inputs), np.float32)
    beside = [reference.evaluate(op_type, a, inputs) for a in _thresholds_beside(attributes, eps)]
    if attributes.get(reference.ROUNDED):  # a rounding may move a number by a step of the 8 bits: as far as all do
        without = {name: value for name, value in attributes.items() if name != reference.ROUNDED}
        beside.append(reference.evaluate(op_type, without, inputs))
    allowed: Symbols = {}
    for symbol, array in truth.items():
        axes = axes_of_a_row(symbol, batch_first)
        shown = _largest(rounded[symbol] - array, axes) / _EPS
        size = _largest(array, axes)
        level = eps * (of_one + of_size * size + of_shown * shown)
        for other in beside:
            level = level + 2 * _largest(other[symbol] - array, axes)
        allowed[symbol] = np.where(np.isfinite(level) & (size < largest), level, np.inf)
    return truth, _same_rows(truth, allowed, batch_first)


def _same_rows(truth: Symbols, allowed: Symbols, batch_first: bool) -> Symbols:
    """Let a row that exceeds the type in one output do so in all, broadcast to the outputs."""
    axes = {symbol: 0 if batch_first else array.ndim - 2 for symbol, array in truth.items()}
    levels = {symbol: np.moveaxis(level, axes[symbol], 0) for symbol, level in allowed.items()}
    beyond = np.any([np.isinf(level).any(axis=tuple(range(1, level.ndim))) for level in levels.values()], axis=0)
    for symbol, level in levels.items():
        level[beyond] = np.inf
        allowed[symbol] = np.broadcast_to(np.moveaxis(level, 0, axes[symbol]), truth[symbol].shape)
    return allowed


def axes_of_a_row(symbol: str, batch_first: bool) -> tuple[int, ...]:
    """The axes of an output that one direction of one row of the batch runs along."""
    if symbol != "Y":
        return (2,)
    return (1, 3) if batch_first else (0, 3)


def _largest(array: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.abs(array).max(axis=axes, keepdims=True, initial=0.0), np.float64)


def _perturbed(inputs: Mapping[str, Array]) -> Symbols:
    """Return inputs whose states and X have each number moved by one rounding, up or down."""
    rng = np.random.default_rng(0)
    moved = dict(inputs)
    for symbol in sorted(moved.keys() & {"X", "initial_h", "initial_c"}):  # in one order in every process
        signs = rng.integers(0, 2, moved[symbol].shape) * 2.0 - 1
        moved[symbol] = np.asarray(moved[symbol], np.float64) * (1 + _EPS * signs)
    return moved


def _thresholds_beside(attributes: Mapping[str, Any], eps: float) -> Iterator[dict[str, Any]]:
    """Yield attributes whose thresholds are a little lower and higher: an activation that jumps turns a rounding
    into the whole jump."""
    if any(str(name).lower() == "thresholdedrelu" for name in attributes.get("activations", ())):
        alphas = attributes.get("activation_alpha", ())
        for sign in (-1, 1):
            moved = [alpha + sign * _BAND * eps * max(1.0, abs(alpha)) for alpha in alphas]
            yield {**attributes, "activation_alpha": moved}
