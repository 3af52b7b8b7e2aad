"""RNN, GRU and LSTM on symbols, as https://onnx.ai/onnx/operators/onnx__LSTM.html and its like define them.

Every sequence takes all steps, those of a shorter one too; its outputs are those before its end. In reverse it is
read from its end. Each state of each step gets a name, so that whatever equals it is known by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rnn_lowering.compare.proof.axes import RunSizes
from rnn_lowering.compare.proof.functions import FUNCTIONS
from rnn_lowering.compare.proof.loops import CONTROL
from rnn_lowering.compare.proof.machine import Machine, Operator, Values
from rnn_lowering.compare.proof.operators import OPERATORS, numbers_of_integers
from rnn_lowering.compare.proof.polynomials import Algebra, BoundedPolynomial, Function, UnprovenError, number
from rnn_lowering.compare.proof.sequences import marks_of
from rnn_lowering.compare.proof.symbolic_rows import SymbolicRows, is_symbolic
from rnn_lowering.types import Array

Attributes = Mapping[str, Any]

ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "relu": ("Relu", None, None),
    "tanh": ("Tanh", None, None),
    "sigmoid": ("Sigmoid", None, None),
    "affine": ("Affine", 0.0, 0.0),
    "leakyrelu": ("LeakyRelu", 0.01, None),
    "thresholdedrelu": ("ThresholdedRelu", 0.0, None),
    "scaledtanh": ("ScaledTanh", 0.0, 0.0),
    "hardsigmoid": ("HardSigmoid", 0.2, 0.5),
    "elu": ("Elu", 1.0, None),
    "softsign": ("Softsign", None, None),
    "softplus": ("Softplus", None, None),
}
"""By name in lower case: the function; the defaults of alpha and beta, as in onnxruntime."""


class Specification(Machine):
    """Runs nodes by their equations, which name the states themselves; their numbers are exact.

    Attributes:
        rounds: Whether products of a DynamicQuantizeLSTM round their operands to 8 bits.
    """

    def __init__(self, rows: SymbolicRows, axes: RunSizes, rounding: float, *, rounds: bool = False) -> None:
        super().__init__(rows, axes, rounding, CONTROL | RECURRENT, OPERATORS, marks_of)
        self.rounds = rounds

    def halves(self, values: Array) -> Array:
        return np.zeros_like(super().halves(values))

    def stepped(self, step: Callable[[], list[Array]], states: slice, name: Hashable, number: int) -> list[Array]:
        for n, state in enumerate(step()[states]):
            if is_symbolic(state):
                self.named(state, name, n, number)
        return step()  # on names

    def named(self, values: Array, name: Hashable, state: int, step: int) -> Array:
        """Return a new state, each element as an atom that stands for it."""
        names, width = [], values.shape[-1] if values.ndim else 1
        for first, end, (value,) in self.rows.runs(values):
            row, place = divmod(first, width)
            label = "state", name, state, row, step, place
            names.append((self.algebra.state(value, end - first, label), end - first))
        return self.rows.of(*names, shape=values.shape)

    def rounded(self, x: Array) -> tuple[Array, Array]:
        """Return numbers without their zero point, and their scale, as DynamicQuantizeLinear rounds them."""
        integers, scale, zero_point = OPERATORS["DynamicQuantizeLinear"](self, x)
        return OPERATORS["Sub"](self, *(numbers_of_integers(self, x) for x in (integers, zero_point))), scale


class _Weights:
    """W or R of a direction, of which each gate has rows of its own.

    Args:
        matrix: Its numbers; integers without their zero point, if there are factors.
        factors: The scale of each row.
    """

    def __init__(self, m: Machine, matrix: Array, factors: Array | None, H: int) -> None:
        self.m, self.matrix, self.factors, self.H = m, matrix, factors, H

    def product(self, x: Array, scale: Array | None, first: int, end: int | None) -> Array:
        """Return x times the transposed matrix of some gates."""
        rows = slice(first * self.H, None if end is None else end * self.H)
        product = self.m.product(x, self.matrix[rows].T, self.H)
        if self.factors is None or scale is None:
            return product
        return self.m.times(product, self.m.times(scale, self.factors[rows]))


class SymbolicDirection:
    """One direction of a node: its weights, its functions, and the number of the step that it takes."""

    def __init__(
        self,
        m: Specification,
        name: Hashable,
        attributes: Attributes,
        weights: Values,
        functions: list[Function],
        N: int,
    ) -> None:
        self.m, self.name, self.attributes, self.functions = m, name, attributes, functions
        self.step, self.scale_of_x = 0, weights.get("X_scale")
        self.H = H = weights["R"].shape[-1]
        self.W, self.R = (_Weights(m, weights[name], weights.get(f"{name}_scale"), H) for name in "WR")
        self.Wb, self.Rb = map(m.lifted, np.split(weights.get("B", np.zeros(2 * len(self.R.matrix))), 2))
        rows = np.split(weights["P"], len(weights["P"]) // H) if "P" in weights else []
        self.P = [m.lifted(np.broadcast_to(row, (N, H))) for row in rows]

    def of_x(self, X: Array) -> Array:
        """Return Xt*(W^T) + Wb of all gates, and Rb of those that add it outside of what a reset changes."""
        late = self.H if self.resets_late else 0
        outside = len(self.Rb) - late
        bias = self.m.sum(self.Wb, np.concatenate([self.Rb[:outside], self.m.rows.zeros((late,))]))
        return self.m.sum(self.W.product(X, self.scale_of_x, 0, None), bias)

    @property
    def resets_late(self) -> bool:
        """Whether a GRU resets Ht-1*(R^T) + Rb, not Ht-1."""
        return bool(self.attributes.get("linear_before_reset", 0))

    def of_h(self, h: Array, first: int = 0, end: int | None = None) -> Array:
        """Return Ht-1*(R^T) of some gates."""
        values, scale = (h, None) if self.R.factors is None else self.m.rounded(h)
        return self.R.product(values, scale, first, end)

    def by_gate(self, x: Array) -> list[Array]:
        return self.m.rows.split(x, [self.H] * (x.shape[-1] // self.H))

    def with_peephole(self, n: int, x: Array, c: Array) -> Array:
        """Return x + P (.) c of a gate."""
        return self.m.sum(x, self.m.times(c, self.P[n])) if self.P else x

    def activated(self, n: int, x: Array) -> Array:
        """Return f (0) or g (1) of a clipped sum."""
        clip = self.attributes.get("clip")
        if clip is not None and 0 <= clip < np.inf:
            x = OPERATORS["Clip"](self.m, x, min=-clip, max=clip)
        return self.m.elementwise(self.functions[n], x)

    def named(self, state: int, values: Array) -> Array:
        """Return a new state, each element as an atom that stands for it."""
        return self.m.named(values, self.name, state, self.step)

    def one_minus(self, x: Array) -> Array:
        return self.m.elementwise(BoundedPolynomial.complement, x)


def _rnn(k: SymbolicDirection, x: Array, h: Array) -> list[Array]:
    return [k.named(0, k.activated(0, k.m.sum(x, k.of_h(h))))]


def _gru(k: SymbolicDirection, x: Array, h: Array) -> list[Array]:
    of_x, of_h = k.by_gate(x), k.by_gate(k.of_h(h, 0, 3 if k.resets_late else 2))
    z, r = (k.activated(0, k.m.sum(*pair)) for pair in zip(of_x[:2], of_h[:2], strict=True))
    if k.resets_late:
        new = k.m.times(r, k.m.sum(of_h[2], np.broadcast_to(k.Rb[-k.H :], h.shape)))
    else:
        new = k.of_h(k.m.times(r, h), 2)
    new = k.activated(1, k.m.sum(of_x[2], new))
    return [k.named(0, k.m.sum(k.m.times(k.one_minus(z), new), k.m.times(z, h)))]


def _lstm(k: SymbolicDirection, x: Array, h: Array, c: Array) -> list[Array]:
    i, o, f, g = k.by_gate(k.m.sum(x, k.of_h(h)))
    i = k.activated(0, k.with_peephole(0, i, c))
    f = k.one_minus(i) if k.attributes.get("input_forget", 0) else k.activated(0, k.with_peephole(2, f, c))
    new = k.named(1, k.m.sum(k.m.times(f, c), k.m.times(i, k.activated(1, g))))
    o = k.activated(0, k.with_peephole(1, o, new))
    return [k.named(0, k.m.times(o, k.m.elementwise(k.functions[2], new))), new]


Equation = Callable[..., list[Array]]

EQUATIONS: dict[str, tuple[Equation, list[str], list[str]]] = {
    "RNN": (_rnn, ["Tanh"], ["initial_h"]),
    "GRU": (_gru, ["Sigmoid", "Tanh"], ["initial_h"]),
    "LSTM": (_lstm, ["Sigmoid", "Tanh", "Tanh"], ["initial_h", "initial_c"]),
}
"""By operator: the step, from what Xt adds to its gates and the states to the next states; the default functions;
the first states."""


_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_OF_INTEGERS = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")


def _of_integers(m: Specification, page: dict[str, Array]) -> None:
    """Make W and R of a DynamicQuantizeLSTM those of an LSTM: integers with the scale of each row, or floats."""
    for name in "WR":
        stored, scale, zero_point = (page.pop(f"{name}{part}") for part in ("", "_scale", "_zero_point"))
        dirs, _, rows = stored.shape
        scale, zero_point = (np.broadcast_to(x.reshape(dirs, -1), (dirs, rows)) for x in (scale, zero_point))
        integers = stored.swapaxes(1, 2).astype(np.int16) - zero_point.astype(np.int16)[:, :, None]
        if m.rounds:
            page[name], page[f"{name}_scale"] = integers, scale
        else:
            page[name] = integers.astype(np.float32) * scale.astype(np.float32)[:, :, None]


def recurrent(op: str, m: Specification, _: Values, *inputs: Array | None, **attributes: Any) -> list[Array]:
    """Return the outputs of an RNN, GRU, LSTM or DynamicQuantizeLSTM."""
    formals, has_y = (*_INPUTS, *_OF_INTEGERS), m.asked[0]
    page = {formal: x for formal, x in zip(formals, inputs, strict=False) if x is not None}
    if "W_scale" in page:
        _of_integers(m, page)
    equation, default, initial = EQUATIONS[op]
    backwards = {"reverse": [True], "bidirectional": [False, True]}.get(
        _text(attributes.get("direction", b"")), [False]
    )
    functions = _functions(m.algebra, attributes, default * len(backwards))
    batch_first = bool(attributes.get("layout", 0))
    X = np.swapaxes(page["X"], 0, 1) if batch_first else page["X"]
    T, N = X.shape[:2]
    m.axes.closed(*page["R"].shape)
    lengths = np.array([int(n) for n in page["sequence_lens"]] if "sequence_lens" in page else [T] * N)
    rounds = "W_scale" in page
    if rounds:
        longest = lengths.max(initial=0)
        within, scale = m.rounded(X[:longest])
        X = np.concatenate([within, m.rows.zeros((T - longest, *X.shape[1:]))])
    outputs = []
    for d, back in enumerate(backwards):
        weights: dict[str, Array] = {name: page[name][d] for name in _WEIGHTS if name in page}
        weights |= {"X_scale": scale} if rounds else {}
        k = SymbolicDirection(m, m.rows.fresh(), attributes, weights, [next(functions) for _ in default], N)
        states = [[_first(m, page, name, d, (N, k.H), batch_first) for name in initial]]
        for t, x in enumerate(_in_steps(m, k.of_x(X), lengths, back)):
            k.step = t + 1
            if rounds:
                states.append(_rounded_step(k, equation, x, states[-1], lengths, zeros=has_y))
            else:
                states.append(equation(k, x, *states[-1]))
        outputs.append(_outputs(m, states, lengths, back))
    m.taken = None if m.axes.is_open(T) else T
    found = [np.stack([y for y, _ in outputs], 1)]
    found += [np.stack(parts) for parts in zip(*(finals for _, finals in outputs), strict=True)]
    if "sequence_lens" in page:
        found = [m.marked(x, np.arange(1, N + 1)[:, None]) for x in found]
    return [m.arranged(x, lambda of: np.moveaxis(of, -2, 0)) for x in found] if batch_first else found


def _in_steps(m: Machine, rows: Array, lengths: Array, back: bool) -> Iterator[Array]:
    """Yield the rows that the sequences read in each step."""
    of_steps = m.rows.entries(rows)
    for t in range(len(rows)):
        read = [n - 1 - t if back and t < n else t for n in lengths]
        yield of_steps[read[0]] if len(set(read)) == 1 else rows[read, np.arange(len(read))]


_WEIGHTS = ("W", "R", "B", "P", "W_scale", "R_scale")


def _rounded_step(
    k: SymbolicDirection, equation: Equation, x: Array, states: list[Array], lengths: Array, *, zeros: bool
) -> list[Array]:
    """Take a step of a node that rounds H of all rows by one range: rows that ended enter as `zeros`, as in
    onnxruntime's kernel if the node has an output Y, and otherwise as they ended."""
    h, t = states[0].copy(), k.step - 1
    if zeros and t:
        h[lengths < t] = k.m.rows.zeros((1,))
    new = [state.copy() for state in equation(k, x, h, *states[1:])]
    for after, before in zip(new, states, strict=True):
        after[lengths <= t] = before[lengths <= t]
    return new


def _outputs(
    m: Machine, states: Sequence[Sequence[Array]], lengths: Array, back: bool
) -> tuple[Array, list[Array]]:
    """Return Y and the last states of a direction: zeros after the end of a sequence, and for one of length 0."""
    T, (N, H) = len(states) - 1, states[0][0].shape
    Y, finals = m.rows.zeros((T, N, H)), [m.rows.zeros((N, H)) for _ in states[0]]
    for n, length in enumerate(lengths):
        for t in range(length):
            Y[length - 1 - t if back else t, n] = states[t + 1][0][n]
        for final, state in zip(finals, states[length], strict=True):
            if length:
                final[n] = state[n]
    return Y, finals


def _first(
    m: Machine, page: Mapping[str, Array], name: str, d: int, shape: tuple[int, int], batch_first: bool
) -> Array:
    if name not in page:
        return m.rows.zeros(shape)
    return m.lifted(page[name][:, d] if batch_first else page[name][d])


def _functions(algebra: Algebra, attributes: Mapping[str, Any], default: Sequence[str]) -> Iterator[Function]:
    """Yield the functions of all directions; alpha and beta are queues that run across them."""
    queues = [iter(attributes.get(f"activation_{name}", ())) for name in ("alpha", "beta")]
    for name in map(_text, attributes.get("activations") or default):
        if name.lower() not in ACTIVATIONS:
            raise UnprovenError(f"{name} has no equation")
        function, *defaults = ACTIVATIONS[name.lower()]
        pairs = zip(queues, defaults, strict=True)
        taken = [number(float(np.float32(next(queue, given)))) for queue, given in pairs if given is not None]
        yield algebra.function(FUNCTIONS[function], *taken)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


# LinearAttention


_RULES: dict[str, tuple[bool, bool]] = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}
"""By update_rule: whether a state decays, and whether it changes by what a value differs from it."""


def linear_attention(m: Specification, _: Values, *inputs: Array | None, **attributes: Any) -> list[Array]:
    """Return the outputs of a LinearAttention: S = exp(g) S + k u^T, u = v or beta (v - S^T k), and scale q S."""
    formals = ("query", "key", "value", "past_state", "decay", "beta")
    page = {formal: x for formal, x in zip(formals, inputs, strict=False) if x is not None}
    decays, corrects = _RULES[_text(attributes.get("update_rule", "gated_delta"))]
    queries, H = attributes["q_num_heads"], attributes["kv_num_heads"]
    N, T, width = page["query"].shape
    d, by_head = (
        width // queries,
        {name: x.reshape(N, T, -1, x.shape[2] // H) for name, x in page.items() if x.ndim == 3 and name != "beta"},
    )
    q, k = (page[name].reshape(N, T, -1, d) for name in ("query", "key"))
    v = by_head["value"]
    k = np.repeat(k, H // k.shape[2], 2)
    q = (np.repeat(q, H // queries, 2) if queries < H else q).reshape(N, T, H, -1, d)
    scale = np.array(np.float32(attributes.get("scale", 0.0)) or 1 / np.sqrt(d))
    S = m.lifted(page.get("past_state", np.zeros((N, H, d, v.shape[3]))))
    m.axes.closed(*S.shape[1:], H * S.shape[3])
    name, rows = m.rows.fresh(), []
    for t in range(T):
        if decays:
            S = m.times(S, OPERATORS["Exp"](m, by_head["decay"][:, t, :, :, None]))
        u = v[:, t, :, None]
        if corrects:
            of_state = m.product(k[:, t, :, None], S)
            u = m.times(page["beta"][:, t, :, None, None], OPERATORS["Sub"](m, u, of_state))
        S = m.named(m.sum(S, m.times(k[:, t, :, :, None], u)), name, 0, t + 1)
        rows.append(m.times(scale, m.product(q[:, t], S)).reshape(N, -1))
    m.taken = None if m.axes.is_open(T) else T
    return [np.stack(rows, 1), S]


RECURRENT: dict[str, Operator] = {op: partial(recurrent, op) for op in EQUATIONS} | {
    "com.microsoft.DynamicQuantizeLSTM": partial(recurrent, "LSTM"),
    "LinearAttention": linear_attention,
    "com.microsoft.LinearAttention": linear_attention,
}
"""By operator."""
