"""RNN, GRU and LSTM: each attribute, input, output and activation on its own."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from cases import FUNCTIONS, Case
from oracle import DEFAULT_ACTIVATIONS, GATES

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}),
    "GRU lbr0": ("GRU", {"linear_before_reset": 0}),
    "GRU lbr1": ("GRU", {"linear_before_reset": 1}),
    "RNN": ("RNN", {}),
}
ACTIVATIONS = {
    "RNN": ["Relu", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"],
    "GRU": ["HardSigmoid", "Softsign"],
    "LSTM": ["HardSigmoid", "Softplus", "Softsign"],
}
_SIZES: dict[str, Any] = {"T": 4, "N": 2, "I": 3, "H": 4}
_STATES = ("B", "initial_h", "initial_c")


def cases() -> dict[str, Case]:
    """Attributes, inputs and outputs, by name."""
    return {name: Case(name, op, attributes, **_SIZES | fields) for name, op, attributes, fields in _rows()}


def _rows() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    for kind, (op, flags) in KINDS.items():
        both = flags | {"direction": "bidirectional"}
        yield kind, op, flags, {}
        yield f"{kind} reverse", op, flags | {"direction": "reverse"}, {}
        yield f"{kind} bidirectional", op, both, {}
        yield f"{kind} sequence_lens", op, both, {"optional": ("B", "sequence_lens"), "N": 3, "lengths": (4, 0, 2)}
        yield f"{kind} layout 1", op, both | {"layout": 1}, {"optional": _STATES}
        yield f"{kind} initial states", op, both, {"optional": _STATES}
        yield f"{kind} clip", op, flags | {"clip": 0.2}, {"x_scale": 3.0}
    for op in GATES:
        yield f"{op} only Y", op, {}, {"outputs": ("Y",)}
        yield f"{op} only Y_h", op, {}, {"outputs": ("Y_h",)}
    for direction in ("forward", "bidirectional"):
        yield f"LSTM peepholes {direction}", "LSTM", {"direction": direction}, {"optional": ("B", "P")}
    yield "LSTM input_forget", "LSTM", {"input_forget": 1}, {}
    for op in ("GRU", "LSTM"):
        yield f"{op} activations", op, _activations(*ACTIVATIONS[op]), {}
    for name in ACTIVATIONS["RNN"]:
        yield f"RNN {name}", "RNN", _activations(name), {"x_scale": 2.0}


def _activations(*names: str) -> dict[str, Any]:
    return {"activations": list(names), "activation_alpha": [0.6], "activation_beta": [0.7]}


def activations() -> dict[tuple[str, int], dict[str, Case]]:
    """Each activation in each place of each operator, with all outputs connected: (operator, place) -> function."""
    found: dict[tuple[str, int], dict[str, Case]] = {}
    for op, defaults in DEFAULT_ACTIVATIONS.items():
        for place, function in product(range(len(defaults)), FUNCTIONS):
            chosen = [*defaults[:place], function, *defaults[place + 1 :]]
            case = Case(f"{op} {function}", op, _activations(*chosen), T=2, N=2, I=3, H=4, x_scale=2.0)
            found.setdefault((op, place), {})[function] = case
    return found


def saturated() -> dict[str, Case]:
    """Gates and activations far from zero: some runtimes overflow in Tanh or Softplus."""
    softplus = _activations("Softplus")
    return {
        "LSTM": Case("LSTM", "LSTM", {}, T=2, N=8, I=3, x_scale=60.0, outputs=("Y",)),
        "GRU": Case("GRU", "GRU", {}, T=2, N=8, I=3, x_scale=60.0, outputs=("Y",)),
        "Softplus": Case("Softplus", "RNN", softplus, T=2, N=8, I=3, x_scale=200.0, outputs=("Y",)),
    }
