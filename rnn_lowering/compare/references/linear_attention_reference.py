"""LinearAttention in float64 NumPy, step by step, and inputs for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun

from rnn_lowering.compare.references.node_reference import (
    FLOAT32_EPS,
    Attributes,
    NodeReference,
    Symbols,
    attributes_of,
    by_symbol,
    check_size,
    moved_by_a_rounding,
)
from rnn_lowering.spec.linear_attention import LinearAttentionSpec
from rnn_lowering.types import Array

_RULES = {"linear": "", "gated": "decay", "delta": "beta", "gated_delta": "decay beta"}
"""The optional inputs that a rule uses."""

_INPUTS = ("query", "key", "value", "past_state", "decay", "beta")

_OF_SIZE, _OF_SHOWN = 16, 8
"""How many roundings are allowed: of the largest number in the row, and of what float32 shows."""

_SIZES = ((5, 4), (1, 1), (70, 2), (2, 4), (33, 3), (3, 1))
"""(sequence length, batch size) where the node leaves them open."""

_ROW_KINDS = ("plain", "weak and strong decays", "equal keys", "positive keys")
_FEWEST = 3
_BUDGET = 4e8
"""Multiplications of the reference for all inputs of one node, about: a large node gets fewer and shorter ones."""


def evaluate(attributes: Attributes, inputs: Mapping[str, Array], dtype: Any = np.float64) -> Symbols:
    """Return output and present_state.

    Args:
        attributes: Those of the node as Python values.
        inputs: By their names in the operator specification.
        dtype: The type to compute in; float32 shows what rounding does to the result.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return _evaluate(attributes, {s: np.asarray(a, dtype) for s, a in inputs.items()}, dtype)


def _evaluate(attributes: Attributes, given: Mapping[str, Array], dtype: Any) -> Symbols:
    used = _RULES[attributes.get("update_rule", "gated_delta")].split()
    queries, states = attributes["q_num_heads"], attributes["kv_num_heads"]
    B, T, width = given["query"].shape
    d = width // queries
    q = given["query"].reshape(B, T, queries, d)
    k = given["key"].reshape(B, T, -1, d)
    v = given["value"].reshape(B, T, states, given["value"].shape[2] // states)
    k = np.repeat(k, states // k.shape[2], axis=2)
    if queries < states:
        q = np.repeat(q, states // queries, axis=2)
    q = q.reshape(B, T, states, -1, d)
    scale = dtype(np.float32(attributes.get("scale", 0.0)) or 1 / np.sqrt(np.float64(d)))
    S = np.array(given.get("past_state", np.zeros((B, states, d, v.shape[3]), dtype)))
    O = np.zeros((B, T, states, q.shape[3], v.shape[3]), dtype)  # noqa: E741
    for t in range(T):
        if "decay" in used:
            S = S * np.exp(given["decay"][:, t].reshape(B, states, -1, 1))
        u = v[:, t, :, None]
        if "beta" in used:
            u = given["beta"][:, t, :, None, None] * (u - k[:, t, :, None] @ S)
        S = S + k[:, t, :, :, None] * u
        O[:, t] = scale * q[:, t] @ S
    return {"output": O.reshape(B, T, -1), "present_state": S}


class LinearAttentionReference(NodeReference[LinearAttentionSpec]):
    """The reference of a LinearAttention."""

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        return evaluate(self.attributes, inputs)

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        truth = evaluate(self.attributes, inputs)
        rounded = evaluate(self.attributes, moved_by_a_rounding(inputs, inputs), np.float32)
        allowed: Symbols = {}
        for symbol, array in truth.items():
            info = ml_dtypes.finfo(self.spec.dtype_of(symbol).numpy())  # type: ignore[no-untyped-call]
            size, shown = _of_rows(array), _of_rows(rounded[symbol] - array)
            level = (
                _OF_SIZE * FLOAT32_EPS * size
                + _OF_SHOWN * shown
                + float(info.eps) * np.abs(array)
                + float(info.tiny)
            )
            level = np.where(np.isfinite(level) & (size < float(info.max) ** 0.75), level, np.inf)
            allowed[symbol] = np.broadcast_to(level, array.shape)
        return truth, allowed

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator) -> list[Symbols]:
        T, N = self.spec.seq_length, self.spec.batch_size
        sizes = list(dict.fromkeys((t if T is None else T, n if N is None else N) for t, n in _SIZES))
        sizes += sizes[:1] * (_FEWEST - len(sizes))
        made: list[Symbols] = []
        spent = 0.0
        for run, (t, n) in enumerate(sizes):
            steps = min(t, self._most_steps(n)) if T is None else t
            spent += self._cost(steps, n)
            if made and spent > _BUDGET:
                break
            made.append(self._feed(steps, n, run + 1, names, rng))
        return made

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        T = steps if self.spec.seq_length is None else self.spec.seq_length
        return self._feed(T, 3 if self.spec.batch_size is None else self.spec.batch_size, 0, names, rng)

    def _cost(self, T: int, N: int) -> float:
        """What the reference computes for one run, about, in multiplications."""
        return 4.0 * T * N * self.spec.state_heads * self.spec.key_size * self.spec.value_size

    def _most_steps(self, rows: int) -> int:
        return max(1, int(_BUDGET / 4 / self._cost(1, rows)))

    def _feed(self, T: int, N: int, run: int, names: Mapping[str, str], rng: np.random.Generator) -> Symbols:
        """Return the inputs of one run; each row of the batch is of another kind."""
        spec = self.spec
        shapes = self._shapes(T, N)
        numbers = sum(math.prod(shapes[symbol]) for symbol in {*names, "past_state"})
        numbers += N * T * spec.output_heads * (spec.key_size + spec.value_size)
        check_size(spec, numbers)
        kinds = [_ROW_KINDS[(run + row) % len(_ROW_KINDS)] for row in range(N)]
        made = {symbol: self._made(symbol, shapes[symbol], kinds, rng) for symbol in shapes if symbol in names}
        return by_symbol(made, names)

    def _shapes(self, T: int, N: int) -> dict[str, tuple[int, ...]]:
        spec = self.spec
        return {
            "query": (N, T, spec.query_heads * spec.key_size),
            "key": (N, T, spec.key_heads * spec.key_size),
            "value": (N, T, spec.state_heads * spec.value_size),
            "past_state": (N, spec.state_heads, spec.key_size, spec.value_size),
            "decay": (N, T, spec.state_heads * (spec.decay_size or 1)),
            "beta": (N, T, spec.beta_heads or spec.state_heads),
        }

    def _made(self, symbol: str, shape: tuple[int, ...], kinds: list[str], rng: np.random.Generator) -> Array:
        """Return an input: keys of length 1, so that the delta rule does not amplify; decays at most 0."""
        if symbol == "decay":
            numbers = -rng.uniform(0.001, 0.3, shape)
        elif symbol == "beta":
            numbers = rng.uniform(0, 1, shape)
        else:
            numbers = rng.standard_normal(shape)
        for row, kind in enumerate(kinds):
            of_row = numbers[row]
            if symbol == "decay" and kind == "weak and strong decays":
                of_row[rng.random(of_row.shape) < 0.2] = -20
                of_row[rng.random(of_row.shape) < 0.1] = -np.inf
            if symbol == "key" and kind == "equal keys":
                of_row[:] = of_row[:1]
            if symbol == "key" and kind == "positive keys":
                of_row[:] = np.abs(of_row)
        if symbol == "key":
            heads = numbers.reshape(*shape[:2], -1, self.spec.key_size)
            numbers = (heads / np.linalg.norm(heads, axis=-1, keepdims=True)).reshape(shape)
        return np.asarray(numbers.astype(self.spec.dtype_of(symbol).numpy()))


class LinearAttention(OpRun):
    """LinearAttention of ONNX for onnx's evaluator, in the type of the query."""

    op_domain = ""

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        given = {s: a for s, a in zip(_INPUTS, inputs, strict=False) if a is not None}
        found = evaluate(dict(attributes_of(self.onnx_node)), given, given["query"].dtype.type)
        return found["output"], found["present_state"]


LinearAttentionOfMicrosoft = type("LinearAttention", (LinearAttention,), {"op_domain": "com.microsoft"})


def _of_rows(array: Array) -> Array:
    """The largest magnitude in each row of the batch."""
    axes = tuple(range(1, array.ndim))
    return np.asarray(np.abs(array).max(axis=axes, keepdims=True, initial=0.0), np.float64)
