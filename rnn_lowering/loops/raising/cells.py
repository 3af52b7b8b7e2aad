"""Recognises an RNN, GRU or LSTM in the polynomials of one step.

Each new state of each unit is matched with the equation of the operator
(https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html, onnx__RNN.html). The coefficients that are left are
the rows of W, R, B and P. They must be the same for each sequence of the batch, and name no other sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_lowering.loops.raising.affine import Affine, C, H, Unknowns, affine
from rnn_lowering.loops.raising.polynomials import Atom, NotRaised, Polynomial, all_close, close, constant
from rnn_lowering.types import Array

_NO_CELL = "its step computes no RNN, GRU or LSTM"

_LARGE, _LEAST = 64, 8
"""From this number of units on, at least one element of R in so many must not be 0."""

_ACTIVATIONS = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)
"""The activations that a step may have as one function; ScaledTanh is Tanh times a number."""


@dataclass(frozen=True)
class Activation:
    """An activation as the operators take it."""

    name: str
    alpha: float | None = None
    beta: float | None = None


@dataclass
class RaisedCell:
    """An RNN, GRU or LSTM.

    Attributes:
        op_type: The operator.
        W: By source of X, the weights [gates * units, features].
        R, B, P: The other weights, without the axis of directions; None for none.
        activations: Its activations.
        clip, input_forget, linear_before_reset: Its attributes.
    """

    op_type: str
    W: dict[Hashable, Array]
    R: Array
    B: Array | None
    activations: list[Activation]
    P: Array | None = None
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False


def match_cell(u: Unknowns, h: Array, c: Array | None) -> RaisedCell:
    """Return the cell whose new states are these, [batch, units].

    Raises:
        NotRaised: The states are those of no RNN, GRU or LSTM.
    """
    if c is not None:
        return _lstm(u, h, c)
    terms = len(h[0, 0].terms)
    return _rnn(u, h) if terms == 1 else _gru(u, h)


# Activations


def _activation(atoms: Array, scales: Sequence[float] = (1.0,)) -> Activation:
    """Return the activation that functions [batch, units] have in common, times a factor."""
    kinds = {(atom.name, atom.alpha) for atom in atoms.ravel()}
    if len(kinds) != 1 or any(not close(scale, scales[0]) for scale in scales):
        raise NotRaised("its units have different activations")
    ((name, alpha),) = kinds
    if name not in _ACTIVATIONS:
        raise NotRaised(f"{name} is no activation of the operators")
    if not close(scales[0], 1.0):
        if name != "Tanh":
            raise NotRaised(f"it scales {name}")
        return Activation("ScaledTanh", float(scales[0]), 1.0)
    return Activation("HardSigmoid", 1.0, 0.0) if name == "HardSigmoid" else Activation(name, alpha)


def _same(first: Activation, *others: Activation) -> Activation:
    if any(other != first for other in others):
        raise NotRaised("its gates have different activations")
    return first


def _per_unit(function: Callable[..., object], *arrays: Array) -> Array:
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


@dataclass(frozen=True)
class _Gates:
    """The arguments of gates, each [batch, units], and their activations, without a Clip that all of them have."""

    arguments: list[Array]
    activations: list[Activation]
    clip: float | None


def _gates(u: Unknowns, *atoms: Array, scales: Sequence[Sequence[float]] = ()) -> _Gates:
    """Return gates, given by their functions.

    Clip(v, -c, c) is 2 c HardSigmoid(.) - c here. A HardSigmoid of it is one of a multiple.
    """
    factors = [*scales, *[(1.0,)] * (len(atoms) - len(scales))]
    activations = [_activation(each, factor) for each, factor in zip(atoms, factors, strict=True)]
    arguments = [_per_unit(lambda atom: atom.argument, each) for each in atoms]
    lines = [{_line(u, p) for p in each.ravel()} for each in arguments]
    if any(len(each) != 1 or None in each for each in lines):
        return _Gates(arguments, activations, None)
    firsts = [line for each in lines for line in each if line is not None]
    fixed = [n for n, each in enumerate(activations) if each.name not in ("HardSigmoid", "Tanh", "ScaledTanh")]
    fixed = fixed or [n for n, each in enumerate(activations) if each.name != "HardSigmoid"][:1] or [0]
    bound = firsts[fixed[0]][0] / 2
    for n, ((factor, shift), each) in enumerate(zip(firsts, activations, strict=True)):
        scale, rest = _rounded(factor / (2 * bound)), shift + factor / 2
        is_centred = close(shift, -factor / 2)
        if each.name == "HardSigmoid":
            activations[n] = Activation("HardSigmoid", scale, _rounded(rest))
        elif not is_centred or bound <= 0 or (n in fixed and not close(scale, 1.0)):
            raise NotRaised("it clips a gate to bounds that are not -c and c")
        elif not close(scale, 1.0):
            activations[n] = Activation("ScaledTanh", each.alpha or 1.0, scale)
    inside = [_per_unit(lambda p: _argument_of_line(u, p) * (2 * bound) - bound, each) for each in arguments]
    return _Gates(inside, activations, bound)


def _line(u: Unknowns, p: Polynomial) -> tuple[float, float] | None:
    """Return the factor and the constant of a polynomial that is linear in one HardSigmoid."""
    atoms = [m for m in p.terms if m]
    atom = u.atom(atoms[0]) if len(atoms) == 1 else None
    if atom is None or atom.name != "HardSigmoid":
        return None
    return _rounded(p.terms[atoms[0]]), _rounded(p.terms.get((), 0.0))


def _argument_of_line(u: Unknowns, p: Polynomial) -> Polynomial:
    return next(atom.argument for m in p.terms if m and (atom := u.atom(m)) is not None)


def _rounded(number: float) -> float:
    return float(f"{number:.7g}")


# The operators


def _weights(
    u: Unknowns, gates: Sequence[Affine], states: Sequence[str]
) -> tuple[dict[Hashable, Array], Array, Array | None]:
    """Return W by source, R, and the biases; no gate may use another state."""
    size = u.sizes[H]
    sources = dict.fromkeys(name for gate in gates for name in gate.parts if name not in (H, C))
    if not sources:
        raise NotRaised("it reads no rows of a sequence")
    for gate in gates:
        if C in gate.parts and C not in states:
            raise NotRaised("a gate uses the cell state in a way that LSTM has not")
    W = {name: np.concatenate([gate.part(name, u.sizes[name]) for gate in gates]) for name in sources}
    R = np.concatenate([gate.part(H, size) for gate in gates])
    if size >= _LARGE and np.count_nonzero(R) * _LEAST < R.size:
        raise NotRaised("its R is nearly empty, so a node would compute more than the Loop")
    bias = np.concatenate([gate.constant for gate in gates])
    return W, R, bias if bias.any() else None


def _with_zeros(bias: Array | None, count: int) -> Array | None:
    return None if bias is None else np.concatenate([bias, np.zeros(count)])


def _rnn(u: Unknowns, h: Array) -> RaisedCell:
    """h = f(x W + h R + b)."""
    terms = _per_unit(lambda p: next(iter(p.terms.items())) if len(p.terms) == 1 else None, h)
    atoms = _per_unit(lambda term: None if term is None else u.atom(term[0]), terms)
    if any(atom is None for atom in atoms.ravel()):
        raise NotRaised(_NO_CELL)
    gates = _gates(u, atoms, scales=[[term[1] for term in terms.ravel()]])
    W, R, bias = _weights(u, [affine(u, gates.arguments[0])], ())
    return RaisedCell("RNN", W, R, _with_zeros(bias, len(R)), gates.activations, clip=gates.clip)


@dataclass(frozen=True)
class _GruUnit:
    """The functions of a unit of a GRU: z, n, the factor of n, and whether z and 1 - z are swapped."""

    z: Atom
    n: Atom
    scale: float
    swapped: bool


def _gru(u: Unknowns, h: Array) -> RaisedCell:
    """h = n - z n + z h."""
    units = np.empty(h.shape, object)
    for (b, j), p in np.ndenumerate(h):
        units[b, j] = _gru_unit(u, p, b, j)
    swapped = {unit.swapped for unit in units.ravel()}
    if len(swapped) != 1:
        raise NotRaised(_NO_CELL)
    zs, ns = (_per_unit(lambda unit, name=name: getattr(unit, name), units) for name in "zn")
    scales = [unit.scale for unit in units.ravel()]
    (hidden,) = _gates(u, ns).arguments
    rs = _reset_after(u, hidden)
    linear = rs is not None
    if rs is None:
        rs = _reset_before(u, hidden)
    gates = _gates(u, ns, zs, rs, scales=[scales])
    n_arguments, z_arguments, r_arguments = gates.arguments
    again = _reset_after(u, n_arguments) if linear else rs
    if again is None or any(a is not b for a, b in zip(again.ravel(), rs.ravel(), strict=True)):
        raise NotRaised("only some of its gates are clipped")  # a Clip of n looks like a reset gate
    g, f = gates.activations[0], _same(*gates.activations[1:])
    z, r = affine(u, z_arguments), affine(u, r_arguments)
    if swapped == {True}:
        z = _swapped(z, f, gates.clip)
    n, bias_of_R = _after(u, n_arguments) if linear else (affine(u, n_arguments, {}), None)
    W, R, bias = _weights(u, [z, r, n], ())
    B = _with_zeros(bias, len(R))
    if bias_of_R is not None and bias_of_R.any():
        B = np.zeros(2 * len(R)) if B is None else B
        B[-len(bias_of_R) :] = bias_of_R
    return RaisedCell("GRU", W, R, B, [f, g], clip=gates.clip, linear_before_reset=linear)


def _after(u: Unknowns, arguments: Array) -> tuple[Affine, Array]:
    """Return hidden gates x W + r (h R + b) without r and b, and b."""
    inner, outer = np.empty(arguments.shape, object), np.empty(arguments.shape, object)
    for place, p in np.ndenumerate(arguments):
        r = next(v for m in p.terms for v in m if u.is_atom(v))
        inner[place] = Polynomial({tuple(v for v in m if v != r): c for m, c in p.terms.items() if r in m})
        outer[place] = Polynomial({m: c for m, c in p.terms.items() if r not in m})
    inside, outside = affine(u, inner), affine(u, outer)
    if set(inside.parts) - {H}:
        raise NotRaised("its reset gate is applied to W x too")
    if H in outside.parts:
        raise NotRaised("its hidden gate uses the state without the reset gate too")
    return Affine(outside.constant, {**outside.parts, **inside.parts}), inside.constant


def _gru_unit(u: Unknowns, p: Polynomial, b: int, j: int) -> _GruUnit:
    """Return the functions in n - z n + z h, or in h - z h + z n."""
    single = [m for m in p.terms if len(m) == 1]
    pairs = [m for m in p.terms if len(m) == 2]
    if len(p.terms) != 3 or len(single) != 1 or len(pairs) != 2:
        raise NotRaised(_NO_CELL)
    with_h = [m for m in pairs if any(u.is_state(v, H, b, j) for v in m)]
    if len(with_h) != 1:
        raise NotRaised(_NO_CELL)
    ((other,),) = [[m for m in pairs if m is not with_h[0]]]
    z = next(v for v in with_h[0] if not u.is_state(v, H, b, j))
    n = [v for v in other if v != z]
    swapped = u.is_state(single[0][0], H, b, j)
    held = u.variables[z], u.variables[n[0]] if len(n) == 1 and z in other else None
    if not (isinstance(held[0], Atom) and isinstance(held[1], Atom)):
        raise NotRaised(_NO_CELL)
    one, of_h, of_n = p.terms[single[0]], p.terms[with_h[0]], p.terms[other]
    if swapped:
        fits, scale = close(one, 1.0) and close(of_h, -1.0), of_n
    else:
        fits, scale = single[0][0] == n[0] and close(of_h, 1.0) and close(one, -of_n), one
    if not fits:
        raise NotRaised(_NO_CELL)
    return _GruUnit(held[0], held[1], scale, swapped)


def _swapped(z: Affine, f: Activation, clip: float | None) -> Affine:
    """Return the argument of 1 - f(u): -u for Sigmoid, -u + (1 - 2 beta) / alpha for HardSigmoid."""
    if f.name == "Sigmoid":
        return -z
    shift = (1.0 - 2.0 * (f.beta or 0.0)) / (f.alpha or 1.0)
    if f.name != "HardSigmoid" or (clip is not None and not close(2.0 * (f.beta or 0.0), 1.0)):
        raise NotRaised(f"its update gate is 1 - {f.name}")
    return Affine(shift - z.constant, (-z).parts)


def _reset_after(u: Unknowns, arguments: Array) -> Array | None:
    """Return the reset gates of hidden gates x W + r (h R + b); None if there is more than one in a unit."""
    rs = np.empty(arguments.shape, object)
    for place, p in np.ndenumerate(arguments):
        reset = {v for m in p.terms for v in m if u.is_atom(v)}
        if len(reset) != 1 or any(len(m) > len({*m}) for m in p.terms):
            return None
        rs[place] = u.variables[reset.pop()]
    return rs


def _reset_before(u: Unknowns, arguments: Array) -> Array:
    """Return the reset gates of hidden gates x W + (r h) R + b, by the unit of h."""
    gates: dict[tuple[int, int], int] = {}
    affine(u, arguments, gates)
    rs = np.empty(arguments.shape, object)
    for b, k in np.ndindex(rs.shape):
        if (b, k) not in gates:
            raise NotRaised(_NO_CELL)
        rs[b, k] = u.variables[gates[b, k]]
    return rs


@dataclass(frozen=True)
class _LstmUnit:
    """The functions of a unit of an LSTM, and the factors of h and g; t is a function of `scale` c + `shift`."""

    i: Atom
    o: Atom
    f: Atom | None
    g: Atom
    t: Atom
    of_h: float
    of_g: float
    scale: float
    shift: float


def _lstm(u: Unknowns, h: Array, c: Array) -> RaisedCell:
    """c = f c + i g, h = o t(c)."""
    units = np.empty(h.shape, object)
    for b, j in np.ndindex(h.shape):
        units[b, j] = _lstm_unit(u, h.item(b, j), c.item(b, j), b, j)
    coupled = {unit.f is None for unit in units.ravel()}
    if len(coupled) != 1:
        raise NotRaised(_NO_CELL)
    i, o, f, g, t = (_per_unit(lambda unit, name=name: getattr(unit, name), units) for name in "iofgt")
    forgets = coupled == {False}
    of_g, of_h = ([getattr(unit, name) for unit in units.ravel()] for name in ("of_g", "of_h"))
    gates = _gates(u, g, i, o, *([f] if forgets else []), scales=[of_g])
    of_cell, *others = gates.activations
    lines = [(unit.scale, unit.shift) for unit in units.ravel()]
    activations = [_same(*others), of_cell, _of_line(_activation(t, of_h), lines)]
    peephole = _cut_peephole_of_o(gates.arguments[2], c)
    of_g_gate, *found = [affine(u, each) for each in gates.arguments]
    if not forgets:
        found.append(Affine(np.zeros(len(of_g_gate.constant)), {}))
    found.append(of_g_gate)
    P = np.stack([_diagonal(found[0]), peephole, _diagonal(found[2])])
    if C in found[1].parts:
        raise NotRaised("its output gate uses the cell state from before the step")
    if C in found[3].parts:
        raise NotRaised("its cell gate uses the cell state")
    W, R, bias = _weights(u, found, (C,))
    return RaisedCell(
        "LSTM",
        W,
        R,
        _with_zeros(bias, len(R)),
        activations,
        P=P.ravel() if P.any() else None,
        clip=gates.clip,
        input_forget=not forgets,
    )


def _lstm_unit(u: Unknowns, h: Polynomial, c: Polynomial, b: int, j: int) -> _LstmUnit:
    """Return the functions in o t(c), and in f c + i g or c - i c + i g."""
    o, t, of_h, (scale, shift) = _output_of_unit(u, h, c)
    with_c = [m for m in c.terms if any(u.is_state(v, C, b, j) for v in m)]
    alone, kept = ([m for m in with_c if len(m) == count] for count in (1, 2))
    added = [m for m in c.terms if m not in with_c]
    if len(kept) != 1 or len(added) != 1 or len(added[0]) != 2 or len(alone) > 1:
        raise NotRaised(_NO_CELL)
    factors = [v for v in kept[0] if not u.is_state(v, C, b, j)]
    atoms = [atom for v in (*factors, *added[0]) if isinstance(atom := u.variables[v], Atom)]
    fits = close(c.terms[kept[0]], -1.0 if alone else 1.0) and all(close(c.terms[m], 1.0) for m in alone)
    if not fits or not factors or len(atoms) != 3:
        raise NotRaised(_NO_CELL)
    f, i, g = atoms
    if alone:  # what multiplies c is i
        if factors[0] not in added[0]:
            raise NotRaised(_NO_CELL)
        i, g = f, g if factors[0] == added[0][0] else i
    elif i.name != f.name:
        i, g = g, i
    return _LstmUnit(i, o, None if alone else f, g, t, of_h, c.terms[added[0]], scale, shift)


def _output_of_unit(u: Unknowns, h: Polynomial, c: Polynomial) -> tuple[Atom, Atom, float, tuple[float, float]]:
    """Return o and t in x o t(a c + b), and the numbers x and (a, b)."""
    if len(h.terms) != 1:
        raise NotRaised(_NO_CELL)
    ((monomial, factor),) = h.terms.items()
    atoms = [atom for v in monomial if isinstance(atom := u.variables[v], Atom)]
    lines = [_line_of(atom.argument, c) for atom in atoms]
    of_c = [(n, line) for n, line in enumerate(lines) if line is not None]
    if not len(monomial) == len(atoms) == 2 or not of_c:
        raise NotRaised(_NO_CELL)
    n, line = of_c[0]
    return atoms[1 - n], atoms[n], factor, line


def _line_of(p: Polynomial, c: Polynomial) -> tuple[float, float] | None:
    """Return a and b if a polynomial is a c + b."""
    monomial = next((m for m in c.terms if m), ())
    factor = p.terms.get(monomial, 0.0) / c.terms[monomial] if monomial else 0.0
    rest = p - c * factor
    shift = rest.terms.get((), 0.0)
    return (factor, shift) if factor and rest.equals(constant(shift)) else None


def _of_line(activation: Activation, lines: Sequence[tuple[float, float]]) -> Activation:
    """Return an activation of a c + b as an activation of c."""
    scale, shift = lines[0]
    if any(not (close(scale, a) and close(shift, b)) for a, b in lines):
        raise NotRaised("its units have different activations")
    if activation.name == "HardSigmoid":
        return Activation("HardSigmoid", _rounded(scale), _rounded(shift))
    if close(scale, 1.0) and close(shift, 0.0):
        return activation
    if activation.name not in ("Tanh", "ScaledTanh") or not close(shift, 0.0):
        raise NotRaised(_NO_CELL)
    return Activation("ScaledTanh", activation.alpha or 1.0, _rounded(scale))


def _cut_peephole_of_o(arguments: Array, c: Array) -> Array:
    """Take the new c out of the arguments of an output gate; return by how much it was in them [units]."""
    peepholes = np.empty(c.shape)
    for place, p in np.ndenumerate(arguments):
        terms = c.item(*place).terms
        monomial = next((m for m in terms if len(m) == 2), ())
        peepholes[place] = p.terms.get(monomial, 0.0) / terms[monomial]
        arguments[place] = p - c[place] * peepholes[place]
    if not all_close(peepholes, peepholes[:1]):
        raise NotRaised("its weights differ between the sequences of the batch")
    return np.asarray(peepholes[0])


def _diagonal(gate: Affine) -> Array:
    """Return the peepholes of a gate, which are no full matrix."""
    part = gate.parts.pop(C, None)
    if part is None:
        return np.zeros(len(gate.constant))
    if not all_close(part, np.diag(np.diag(part))):
        raise NotRaised("its peepholes are a full matrix")
    return np.diag(part).copy()
