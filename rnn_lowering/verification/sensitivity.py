"""Which terms of a node matter to which rows of its inputs.

A fault in a term shows only where the term moves the result by more than rounding does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from rnn_lowering.types import Array
from rnn_lowering.verification import reference
from rnn_lowering.verification.rounding import expected

Symbols = dict[str, Array]
Attributes = dict[str, Any]

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

_CLEARLY = 20
"""How many times what rounding may do a term must move the result, for a fault in it to be seen."""


def rows_that_matter(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Mapping[str, Array],
    dtype: Any,
    outputs: Collection[str],
    chosen: int,
) -> list[int]:
    """Return the rows of the batch to add to the first `chosen` ones, so that each term matters to one of them.

    Args:
        op_type, attributes, inputs, dtype: As in `rounding.expected`; all rows have full length.
        outputs: The symbols of the connected outputs.
        chosen: How many rows are used in any case.
    """
    batch_first = bool(attributes.get("layout", 0))
    truth, allowed = expected(op_type, attributes, inputs, dtype)
    added: list[int] = []
    for other_attributes, other_inputs in _without_each_term(op_type, attributes, inputs):
        other = reference.evaluate(op_type, other_attributes, other_inputs)
        moved = [_by_row((other[s] - truth[s]) / allowed[s], s, batch_first) for s in outputs]
        for by_row in np.max(moved, axis=0):  # of each direction
            used = max(by_row[:chosen].max(initial=0.0), by_row[added].max(initial=0.0))
            best = int(by_row.argmax())
            if used < _CLEARLY and by_row[best] > max(2 * used, 1.0):
                added.append(best)
    return added


def _by_row(array: Array, symbol: str, batch_first: bool) -> Array:
    """The largest magnitude, [directions, batch]."""
    over = tuple(n for n in range(array.ndim) if n not in _directions_and_batch(symbol, batch_first))
    largest: Array = np.nan_to_num(np.abs(array)).max(axis=over, initial=0.0)
    return largest.T if batch_first else largest


def _directions_and_batch(symbol: str, batch_first: bool) -> tuple[int, int]:
    if symbol == "Y":
        return (2, 0) if batch_first else (1, 2)
    return (1, 0) if batch_first else (0, 1)


def _without_each_term(
    op_type: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array]
) -> Iterator[tuple[Attributes, Symbols]]:
    """Yield the node without each gate of each weight, without each state and its clip, and with each parameter
    changed."""
    gates = _GATES[op_type]
    parts = {"W": gates, "R": gates, "B": 2 * gates, "P": 3, "initial_h": 1, "initial_c": 1}
    for symbol, count in parts.items():
        if symbol in inputs:
            size = inputs[symbol].shape[1] // count
            for n in range(count):
                less = np.array(inputs[symbol])
                less[:, n * size : (n + 1) * size] = 0
                yield dict(attributes), {**inputs, symbol: less}
    for name in ("activation_alpha", "activation_beta"):
        given = list(attributes.get(name, ()))
        for n, number in enumerate(given):
            yield {**attributes, name: [*given[:n], 1.05 * number + 0.01, *given[n + 1 :]]}, dict(inputs)
    clip = attributes.get("clip")
    if clip is not None and np.isfinite(clip):
        yield {name: a for name, a in attributes.items() if name != "clip"}, dict(inputs)
        yield {**attributes, "clip": 1.1 * clip}, dict(inputs)
