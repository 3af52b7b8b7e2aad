"""RNN, GRU and LSTM on symbols, as https://onnx.ai/onnx/operators/onnx__LSTM.html and its like define them.

Every sequence takes all steps, those of a shorter one too; its outputs are those before its end. In reverse it is
read from its end. Each state of each step gets a name, so that whatever equals it is known by that name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lowering.compare.proof.machine import Machine, Operator, SymbolicRows, Values
from rnn_lowering.compare.proof.operators import OPERATORS
from rnn_lowering.compare.proof.polynomials import Algebra, BoundedPolynomial, UnprovenError, number
from rnn_lowering.compare.proof.sizes import RunSizes
from rnn_lowering.types import Array

Function = Callable[[BoundedPolynomial], BoundedPolynomial]
Attributes = Mapping[str, Any]

ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "relu": ("relu", None, None),
    "tanh": ("tanh", None, None),
    "sigmoid": ("sigmoid", None, None),
    "affine": ("affine", 0.0, 0.0),
    "leakyrelu": ("leaky_relu", 0.01, None),
    "thresholdedrelu": ("thresholded_relu", 0.0, None),
    "scaledtanh": ("scaled_tanh", 0.0, 0.0),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "elu": ("elu", 1.0, None),
    "softsign": ("softsign", None, None),
    "softplus": ("softplus", None, None),
}
"""By name in lower case: the function of the algebra; the defaults of alpha and beta, as in onnxruntime."""


class SymbolicDirection:
    """One direction of a node: its weights by gate, its functions, and the number of the step that it takes."""

    def __init__(
        self, m: Machine, name: Hashable, attributes: Attributes, weights: Values, functions: list[Function], N: int
    ) -> None:
        self.m, self.name, self.attributes, self.functions = m, name, attributes, functions
        self.step = 0
        self.H = H = weights["R"].shape[-1]
        self.W, self.R = (np.split(weights[name], len(weights[name]) // H) for name in "WR")
        Wb, Rb = np.split(weights["B"], 2) if "B" in weights else np.zeros((2, len(self.R) * H))
        self.Wb, self.Rb = self._rows(Wb, N), self._rows(Rb, N)
        self.b = [m.sum(*pair) for pair in zip(self.Wb, self.Rb, strict=True)]
        self.P = self._rows(weights["P"], N) if "P" in weights else []

    def _rows(self, vector: Array, N: int) -> list[Array]:
        """Return the part of each gate, the same for each sequence."""
        parts = np.split(vector, len(vector) // self.H)
        return [self.m.lifted(np.broadcast_to(part, (N, self.H))) for part in parts]

    def linear(self, gate: int, x: Array, h: Array) -> Array:
        """Return Xt*(W^T) + Ht-1*(R^T) + Wb + Rb of a gate."""
        return self.m.sum(self.of_x(gate, x), self.of_h(gate, h), self.b[gate])

    def of_x(self, gate: int, x: Array) -> Array:
        """Return Xt*(W^T) of a gate."""
        return self.m.product(x, self.W[gate].T)

    def of_h(self, gate: int, h: Array) -> Array:
        """Return Ht-1*(R^T) of a gate."""
        return self.m.product(h, self.R[gate].T)

    def with_peephole(self, n: int, x: Array, c: Array) -> Array:
        """Return x + P (.) c of a gate."""
        return self.m.sum(x, self.times(c, self.P[n])) if self.P else x

    def times(self, a: Array, b: Array) -> Array:
        return self.m.elementwise(BoundedPolynomial.__mul__, a, b)

    def activated(self, n: int, x: Array) -> Array:
        """Return f (0) or g (1) of a clipped sum."""
        clip = self.attributes.get("clip")
        if clip is not None and 0 <= clip < np.inf:
            x = OPERATORS["Clip"](self.m, {"min": -clip, "max": clip}, x)
        return self.m.elementwise(self.functions[n], x)

    def named(self, state: int, values: Array) -> Array:
        """Return a new state, each element as an atom that stands for it."""
        names = []
        for first, end, (value,) in self.m.rows.runs(values):
            row, place = divmod(first, self.H)
            label = "state", self.name, state, row, self.step, place
            names.append((self.m.algebra.state(value, end - first, label), end - first))
        return self.m.rows.of(*names, shape=values.shape)

    def one_minus(self, x: Array) -> Array:
        return self.m.elementwise(BoundedPolynomial.complement, x)


def _rnn(k: SymbolicDirection, x: Array, h: Array) -> list[Array]:
    return [k.named(0, k.activated(0, k.linear(0, x, h)))]


def _gru(k: SymbolicDirection, x: Array, h: Array) -> list[Array]:
    z, r = (k.activated(0, k.linear(gate, x, h)) for gate in (0, 1))
    if k.attributes.get("linear_before_reset", 0):
        new = k.m.sum(k.of_x(2, x), k.times(r, k.m.sum(k.of_h(2, h), k.Rb[2])), k.Wb[2])
    else:
        new = k.linear(2, x, k.times(r, h))
    return [k.named(0, k.m.sum(k.times(k.one_minus(z), k.activated(1, new)), k.times(z, h)))]


def _lstm(k: SymbolicDirection, x: Array, h: Array, c: Array) -> list[Array]:
    i, o, f, g = (k.linear(gate, x, h) for gate in range(4))
    i = k.activated(0, k.with_peephole(0, i, c))
    f = k.one_minus(i) if k.attributes.get("input_forget", 0) else k.activated(0, k.with_peephole(2, f, c))
    new = k.named(1, k.m.sum(k.times(f, c), k.times(i, k.activated(1, g))))
    o = k.activated(0, k.with_peephole(1, o, new))
    return [k.named(0, k.times(o, k.m.elementwise(k.functions[2], new))), new]


class Specification(Machine):
    """Runs nodes by their equations, which name the states themselves."""

    def __init__(self, rows: SymbolicRows) -> None:
        super().__init__(rows, RunSizes(None, None, None), 0.0, RECURRENT, OPERATORS)

    def settled(self, computed: BoundedPolynomial) -> BoundedPolynomial:
        return computed


EQUATIONS: dict[str, tuple[Callable[..., list[Array]], list[str], list[str]]] = {
    "RNN": (_rnn, ["Tanh"], ["initial_h"]),
    "GRU": (_gru, ["Sigmoid", "Tanh"], ["initial_h"]),
    "LSTM": (_lstm, ["Sigmoid", "Tanh", "Tanh"], ["initial_h", "initial_c"]),
}
"""By operator: the step, from Xt and the states to the next states; the default functions; the first states."""


def recurrent(m: Machine, node: onnx.NodeProto, values: Values) -> list[Array]:
    """Return the outputs of an RNN, GRU or LSTM."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    formals = onnx.defs.get_schema(node.op_type, 22).inputs
    page = {formal.name: values[name] for formal, name in zip(formals, node.input, strict=False) if name}
    equation, default, initial = EQUATIONS[node.op_type]
    backwards = {"reverse": [True], "bidirectional": [False, True]}.get(
        _text(attributes.get("direction", b"")), [False]
    )
    functions = _functions(m.algebra, attributes, default * len(backwards))
    batch_first = bool(attributes.get("layout", 0))
    X = np.swapaxes(page["X"], 0, 1) if batch_first else page["X"]
    T, N = X.shape[:2]
    lengths = np.array([int(n) for n in page["sequence_lens"]] if "sequence_lens" in page else [T] * N)
    outputs = []
    for d, back in enumerate(backwards):
        weights: dict[str, Array] = {name: page[name][d] for name in ("W", "R", "B", "P") if name in page}
        k = SymbolicDirection(m, (*node.output, d), attributes, weights, [next(functions) for _ in default], N)
        first = [_first(m, page, name, d, (N, k.H), batch_first) for name in initial]
        states = [first]
        for t in range(T):
            x = X[[n - 1 - t if back and t < n else t for n in lengths], np.arange(N)]
            k.step = t + 1
            states.append(equation(k, x, *states[-1]))
        outputs.append(_outputs(m, states, lengths, back))
    Y = np.stack([y for y, _ in outputs], 1)
    finals = [np.stack(parts, 1 if batch_first else 0) for parts in zip(*(f for _, f in outputs), strict=True)]
    return [Y.transpose(2, 0, 1, 3) if batch_first else Y, *finals]


RECURRENT: dict[str, Operator] = dict.fromkeys(EQUATIONS, recurrent)
"""By operator."""


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
        yield algebra.function(function, *taken)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
