"""The equations of the package on NumPy arrays, compared with the oracle."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from cases import Array
from numpy_ops import NumpyOps, repeat
from oracle import DEFAULT_ACTIVATIONS, GATES, evaluate

from rnn_lowering.recurrence.recurrence import Recurrence
from rnn_lowering.recurrence.weights import Operands

T, N, H, INPUTS = 4, 2, 5, 3
OP: Any = NumpyOps()


@dataclass(frozen=True)
class Equation:
    """A node of one direction.

    Attributes:
        functions: Names of activations with alpha and beta.
    """

    op_type: str
    functions: tuple[tuple[str, float, float], ...]
    clip: float | None = None
    peepholes: bool = False
    input_forget: bool = False
    linear_before_reset: bool = False
    reverse: bool = False
    apart: bool = False  # a product for each activation
    bias_last: bool = False  # the bias follows the sum of both products and the peephole
    matrix: bool = False  # states [batch, hidden], else [1, batch, hidden]

    def attributes(self) -> dict[str, Any]:
        """As the oracle reads them."""
        takes = {"LeakyRelu": (1, 0), "ThresholdedRelu": (1, 0), "Elu": (1, 0)}
        takes |= dict.fromkeys(("Affine", "ScaledTanh", "HardSigmoid"), (1, 1))
        uses = [(name, a, b, *takes.get(name, (0, 0))) for name, a, b in self.functions]
        found: dict[str, Any] = {
            "activations": [name for name, _, _ in self.functions],
            "activation_alpha": [a for _, a, _, alpha, _ in uses if alpha],
            "activation_beta": [b for _, _, b, _, beta in uses if beta],
            "direction": "reverse" if self.reverse else "forward",
        }
        found |= {"LSTM": {"input_forget": int(self.input_forget)}}.get(self.op_type, {})
        found |= {"GRU": {"linear_before_reset": int(self.linear_before_reset)}}.get(self.op_type, {})
        return found | ({} if self.clip is None else {"clip": self.clip})


def equations() -> list[Equation]:
    """Every operator with every attribute that its equations know."""
    default = {op: tuple((name, 0.0, 0.0) for name in names) for op, names in DEFAULT_ACTIVATIONS.items()}
    found = []
    for op in GATES:
        for reverse in (False, True):
            found.append(Equation(op, default[op], reverse=reverse))
        found.append(Equation(op, default[op], clip=0.1))
        found.append(Equation(op, default[op], apart=True))
    for clip in (None, 0.1):
        lbr = Equation("GRU", default["GRU"], clip, linear_before_reset=True)
        found += [replace(lbr, apart=a, matrix=m) for a in (False, True) for m in (False, True)]
        for forget in (False, True):
            found += [Equation("LSTM", default["LSTM"], clip, p, forget) for p in (False, True)]
    for apart in (False, True):
        found += [
            Equation("LSTM", default["LSTM"], peepholes=p, apart=apart, bias_last=True) for p in (False, True)
        ]
    found.append(Equation("LSTM", (("Sigmoid", 0, 0), ("Softsign", 0, 0), ("Relu", 0, 0))))
    return found


def differs(
    equation: Equation, cells: ModuleType, formulas: Any, *, composed: bool = False, repeat: Any = repeat
) -> bool:
    """Whether a cell, repeated over time, computes something else than the oracle."""
    rng = np.random.default_rng(1)
    gates = GATES[equation.op_type]
    shapes = {"X": (T, N, INPUTS), "W": (1, gates * H, INPUTS), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}
    states = ["initial_h", *(["initial_c"] if equation.op_type == "LSTM" else [])]
    shapes |= dict.fromkeys(states, (1, N, H)) | ({"P": (1, 3 * H)} if equation.peepholes else {})
    given = {symbol: rng.uniform(-1, 1, shape) for symbol, shape in shapes.items()}
    expected = evaluate(equation.op_type, equation.attributes(), given)
    k, xs = _operands(equation, given, formulas, composed)

    def step(before: Any, rows: Any) -> Any:
        given_rows = [row.reshape(N, -1) for row in rows] if equation.matrix else rows
        new = cells.CELLS[equation.op_type](OP, k, before, given_rows)
        return new, new[:1]

    init: Any = [given[state][0] if equation.matrix else given[state] for state in states]
    final, (Y,) = repeat(OP, Recurrence(init, xs, step, equation.reverse))
    found = {"Y": Y, **{f"Y_{s}": state for s, state in zip("hc", final, strict=False)}}
    ends = [(found[name].reshape(array.shape), array) for name, array in expected.items()]
    return not all(np.allclose(end, array, 1e-6, 1e-7) for end, array in ends)


def _operands(equation: Equation, given: dict[str, Array], formulas: Any, composed: bool) -> tuple[Operands, Any]:
    """The operands of a cell, and X W^T + Wb + Rb by gate group."""
    gates, lbr = GATES[equation.op_type], equation.linear_before_reset
    W, R, (Wb, Rb) = given["W"][0], given["R"][0], given["B"].reshape(2, gates * H)
    apart = [gates * H - H] if equation.op_type != "RNN" else []
    of_x = apart if equation.op_type == "GRU" or equation.apart else []
    of_h = apart if (equation.op_type == "GRU" and not lbr) or equation.apart else []
    bias = Wb + (np.where(np.arange(3 * H) < 2 * H, Rb, 0) if lbr else Rb)
    last = bias if equation.bias_last else 0 * bias
    bi, bo, bf = np.split(last, gates)[:3] if equation.peepholes else (0, 0, 0)
    last = np.where(np.arange(gates * H) < (3 * H if equation.peepholes else 0), 0, last)
    Pi, Po, Pf = given["P"].reshape(3, H) if equation.peepholes else (None,) * 3

    def function(name: str, alpha: float, beta: float) -> Any:
        row = formulas[name]
        formula = row.compose if composed and row.compose else row.operator
        return lambda x: formula(OP, x, alpha, beta)

    functions = [function(*f) for f in equation.functions]
    f, g, h = (*functions, *functions[:1] * 2)[:3]
    bound = np.inf if equation.clip is None else equation.clip
    operands: Any = {
        "W": None,
        "Wb": None,
        "groups": (),
        "R": tuple(part.T for part in np.split(R, of_h)),
        "product": np.matmul,
        **{"b": np.split(last, of_h), "Pb": (bi, bo, bf)},
        "Rbh": Rb[2 * H :] if lbr else np.zeros(H),
        "Rb": tuple(np.split(np.where(np.arange(len(Rb)) < 2 * H, 0, Rb) if lbr else 0 * Rb, of_h)),
        "P": (Pi, Po, Pf) if equation.peepholes else None,
        **{"f": f, "g": g, "h": h, "clip": lambda x: np.clip(x, -bound, bound), "hidden_size": H},
        **{"input_forget": equation.input_forget, "linear_before_reset": lbr},
    }
    return Operands(**operands), np.split(given["X"] @ W.T + (0 if equation.bias_last else bias), of_x, -1)


def activations() -> list[Equation]:
    """An RNN of each activation function, with parameters where it has some."""
    names = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid"]
    return [Equation("RNN", ((name, 0.6, 0.3),)) for name in [*names, "Elu", "Softsign", "Softplus"]]


def first_wrong(cells: ModuleType, formulas: Any) -> str:
    """The first equation that differs from the oracle; "" where none does."""
    wrong = (e for e in [*equations(), *activations()] if differs(e, cells, formulas))
    composed = (e for e in activations() if differs(e, cells, formulas, composed=True))
    return str(next(wrong, None) or next(composed, None) or "")
