"""The ONNX operators RNN, GRU and LSTM, versions 1 to 22, in float64, straight from their pages.

Symbols are those of the pages. Where a page is silent or ambiguous, onnxruntime on CPU decides.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Activation: TypeAlias = Callable[[Array], Array]
Step: TypeAlias = Callable[[Array, Array, Array], tuple[Array, Array]]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULT_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
# name in lower case -> f(x, alpha, beta), default alpha, default beta; None: not a parameter of f.
# Affine, ThresholdedRelu and ScaledTanh default to 0, as in onnxruntime.
ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float | None, float | None]] = {
    # max(0, x)
    "relu": (lambda x, alpha, beta: np.maximum(x, 0), None, None),
    # (1 - e^{-2x})/(1 + e^{-2x})
    "tanh": (lambda x, alpha, beta: np.tanh(x), None, None),
    # 1/(1 + e^{-x})
    "sigmoid": (lambda x, alpha, beta: 1 / (1 + np.exp(-x)), None, None),
    # alpha*x + beta
    "affine": (lambda x, alpha, beta: alpha * x + beta, 0.0, 0.0),
    # x if x >= 0 else alpha * x
    "leakyrelu": (lambda x, alpha, beta: np.where(x >= 0, x, alpha * x), 0.01, None),
    # x if x >= alpha else 0; onnxruntime gives 0 at x = alpha
    "thresholdedrelu": (lambda x, alpha, beta: np.where(x > alpha, x, 0), 0.0, None),
    # alpha*Tanh(beta*x)
    "scaledtanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), 0.0, 0.0),
    # min(max(alpha*x + beta, 0), 1)
    "hardsigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
    # x if x >= 0 else alpha*(e^x - 1)
    "elu": (lambda x, alpha, beta: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))), 1.0, None),
    # x/(1 + |x|)
    "softsign": (lambda x, alpha, beta: x / (1 + np.abs(x)), None, None),
    # log(1 + e^x)
    "softplus": (lambda x, alpha, beta: np.logaddexp(0, x), None, None),
}


@dataclass(frozen=True)
class Direction:
    """What one direction computes with: lists hold one entry per gate, in the order of the page."""

    W: list[Array]  # [hidden, input] each
    R: list[Array]  # [hidden, hidden] each
    Wb: list[Array]  # [hidden] each
    Rb: list[Array]  # [hidden] each
    P: list[Array]  # [hidden] each
    activations: list[Activation]
    clip: Activation


def evaluate(
    op_type: str, attributes: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any] | None]
) -> dict[str, Array]:
    """Return Y, Y_h and, for LSTM, Y_c of a valid node.

    inputs: keyed by the names of the page, absent ones missing or None. FLOAT attributes hold 32 bits.
    """
    present = {name: np.asarray(array) for name, array in inputs.items() if array is not None}
    reverse = _directions(op_type, attributes)
    layout = attributes.get("layout", 0)
    operands = _operands(op_type, attributes, present, len(reverse), layout)
    directions = _split(op_type, attributes, operands, len(reverse))
    lengths = _lengths(present.get("sequence_lens"), operands["X"])
    with np.errstate(over="ignore", invalid="ignore"):
        outputs = _run(op_type, attributes, operands, directions, reverse, lengths)
    if layout == 1:
        outputs["Y"] = outputs["Y"].transpose(2, 0, 1, 3)  # [batch, seq, dirs, hidden]
        for state in outputs.keys() - {"Y"}:
            outputs[state] = outputs[state].transpose(1, 0, 2)  # [batch, dirs, hidden]
    return outputs


def _run(
    op_type: str,
    attributes: Mapping[str, Any],
    operands: Mapping[str, Array],
    directions: list[Direction],
    reverse: list[bool],
    lengths: list[int],
) -> dict[str, Array]:
    X, initial_h, initial_c = operands["X"], operands["initial_h"], operands["initial_c"]
    Y = np.zeros((X.shape[0], *initial_h.shape))  # [seq, dirs, batch, hidden]
    Y_h, Y_c = np.zeros_like(initial_h), np.zeros_like(initial_c)  # [dirs, batch, hidden]
    for d, direction in enumerate(directions):
        step = _step(op_type, attributes, direction)
        for b, length in enumerate(lengths):
            if length == 0:
                continue  # the final state is 0, not the initial state
            H, C = initial_h[d, b], initial_c[d, b]
            for t in range(length - 1, -1, -1) if reverse[d] else range(length):
                H, C = step(X[t, b], H, C)
                Y[t, d, b] = H
            Y_h[d, b], Y_c[d, b] = H, C
    return {"Y": Y, "Y_h": Y_h, "Y_c": Y_c} if op_type == "LSTM" else {"Y": Y, "Y_h": Y_h}


def _step(op_type: str, attributes: Mapping[str, Any], direction: Direction) -> Step:
    if op_type == "RNN":
        return partial(_rnn, direction)
    if op_type == "GRU":
        return partial(_gru, direction, attributes.get("linear_before_reset", 0) != 0)
    return partial(_lstm, direction, attributes.get("input_forget", 0) != 0)


def _rnn(k: Direction, Xt: Array, H: Array, C: Array) -> tuple[Array, Array]:
    (Wi,), (Ri,), (Wbi,), (Rbi,) = k.W, k.R, k.Wb, k.Rb
    (f,) = k.activations
    # Ht = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi)
    Ht = f(k.clip(Xt @ Wi.T + H @ Ri.T + Wbi + Rbi))
    return Ht, C


def _gru(k: Direction, linear_before_reset: bool, Xt: Array, H: Array, C: Array) -> tuple[Array, Array]:
    (Wz, Wr, Wh), (Rz, Rr, Rh), (Wbz, Wbr, Wbh), (Rbz, Rbr, Rbh) = k.W, k.R, k.Wb, k.Rb
    f, g = k.activations
    # zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Wbz + Rbz)
    zt = f(k.clip(Xt @ Wz.T + H @ Rz.T + Wbz + Rbz))
    # rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Wbr + Rbr)
    rt = f(k.clip(Xt @ Wr.T + H @ Rr.T + Wbr + Rbr))
    if linear_before_reset:
        # ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)
        ht = g(k.clip(Xt @ Wh.T + rt * (H @ Rh.T + Rbh) + Wbh))
    else:
        # ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)
        ht = g(k.clip(Xt @ Wh.T + (rt * H) @ Rh.T + Rbh + Wbh))
    # Ht = (1 - zt) (.) ht + zt (.) Ht-1
    Ht = (1 - zt) * ht + zt * H
    return Ht, C


def _lstm(k: Direction, input_forget: bool, Xt: Array, H: Array, C: Array) -> tuple[Array, Array]:
    (Wi, Wo, Wf, Wc), (Ri, Ro, Rf, Rc), (Pi, Po, Pf) = k.W, k.R, k.P
    (Wbi, Wbo, Wbf, Wbc), (Rbi, Rbo, Rbf, Rbc) = k.Wb, k.Rb
    f, g, h = k.activations
    # it = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Pi (.) Ct-1 + Wbi + Rbi)
    it = f(k.clip(Xt @ Wi.T + H @ Ri.T + Pi * C + Wbi + Rbi))
    # ft = f(Xt*(Wf^T) + Ht-1*(Rf^T) + Pf (.) Ct-1 + Wbf + Rbf)
    ft = f(k.clip(Xt @ Wf.T + H @ Rf.T + Pf * C + Wbf + Rbf))
    if input_forget:
        ft = 1 - it  # "Couple the input and forget gates if 1."
    # ct = g(Xt*(Wc^T) + Ht-1*(Rc^T) + Wbc + Rbc)
    ct = g(k.clip(Xt @ Wc.T + H @ Rc.T + Wbc + Rbc))
    # Ct = ft (.) Ct-1 + it (.) ct
    Ct = ft * C + it * ct
    # ot = f(Xt*(Wo^T) + Ht-1*(Ro^T) + Po (.) Ct + Wbo + Rbo)
    ot = f(k.clip(Xt @ Wo.T + H @ Ro.T + Po * Ct + Wbo + Rbo))
    # Ht = ot (.) h(Ct)
    Ht = ot * h(Ct)
    return Ht, Ct


def _directions(op_type: str, attributes: Mapping[str, Any]) -> list[bool]:
    """One entry per direction: whether it runs backwards in time."""
    direction = attributes.get("direction", "forward")
    return DIRECTIONS["forward" if direction == "foward" else direction]  # a typing error in the default of GRU-1


def _operands(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Mapping[str, npt.NDArray[Any]],
    num_directions: int,
    layout: int,
) -> dict[str, Array]:
    """Every float input in float64 and layout 0; absent ones are 0."""
    arrays = {name: array.astype(np.float64) for name, array in inputs.items()}
    if layout == 1:
        for name in arrays.keys() & {"X", "initial_h", "initial_c"}:
            arrays[name] = arrays[name].swapaxes(0, 1)  # [seq, batch, input], [dirs, batch, hidden]
    hidden_size = arrays["R"].shape[2]
    shapes = _shapes(op_type, arrays["X"].shape, hidden_size, num_directions)
    for name, shape in shapes.items():
        assert arrays.setdefault(name, np.zeros(shape)).shape == shape, name
    return {name: arrays[name] for name in shapes}


def _shapes(
    op_type: str, x_shape: tuple[int, ...], hidden_size: int, num_directions: int
) -> dict[str, tuple[int, ...]]:
    _, batch_size, input_size = x_shape
    gates = GATES[op_type] * hidden_size
    return {
        "X": x_shape,
        "W": (num_directions, gates, input_size),
        "R": (num_directions, gates, hidden_size),
        "B": (num_directions, 2 * gates),
        "P": (num_directions, 3 * hidden_size),
        "initial_h": (num_directions, batch_size, hidden_size),
        "initial_c": (num_directions, batch_size, hidden_size),
    }


def _split(
    op_type: str, attributes: Mapping[str, Any], operands: Mapping[str, Array], num_directions: int
) -> list[Direction]:
    gates = GATES[op_type]
    activations = _activations(op_type, attributes, num_directions)
    threshold = _threshold(op_type, attributes)
    directions = []
    for d in range(num_directions):
        biases = np.split(operands["B"][d], 2 * gates)  # B = [Wb, Rb]
        directions.append(
            Direction(
                W=np.split(operands["W"][d], gates),
                R=np.split(operands["R"][d], gates),
                Wb=biases[:gates],
                Rb=biases[gates:],
                P=np.split(operands["P"][d], 3),
                activations=activations[d],
                clip=partial(np.clip, a_min=-threshold, a_max=threshold),
            )
        )
    return directions


def _activations(op_type: str, attributes: Mapping[str, Any], num_directions: int) -> list[list[Activation]]:
    """The functions of each direction; alpha and beta are two queues read across all directions."""
    count = len(DEFAULT_ACTIVATIONS[op_type])
    names = attributes.get("activations")
    if names is None or (op_type != "RNN" and not names):  # onnxruntime refuses an empty list on RNN only
        names = DEFAULT_ACTIVATIONS[op_type] * num_directions
    if op_type == "RNN" and num_directions == 1 and len(names) == 2:
        names = names[:1]  # the schema default is [Tanh, Tanh] in every direction
    assert len(names) == count * num_directions
    alphas = deque[float](attributes.get("activation_alpha", ()))
    betas = deque[float](attributes.get("activation_beta", ()))
    functions = [_activation(name, alphas, betas) for name in names]
    return [functions[d * count : (d + 1) * count] for d in range(num_directions)]


def _activation(name: str, alphas: deque[float], betas: deque[float]) -> Activation:
    formula, default_alpha, default_beta = ACTIVATIONS[name.lower()]
    alpha, beta = _parameter(alphas, default_alpha), _parameter(betas, default_beta)
    return lambda x: formula(x, alpha, beta)


def _parameter(queue: deque[float], default: float | None) -> float:
    if default is None:
        return math.nan
    return _float32(queue.popleft() if queue else default)


def _threshold(op_type: str, attributes: Mapping[str, Any]) -> float:
    """The bound of every pre-activation; infinity means none."""
    clip = _float32(attributes.get("clip", math.inf))
    if op_type == "RNN":
        return clip if clip >= 0 else math.inf  # negative and NaN: no clip
    assert clip > 0
    return clip


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _lengths(sequence_lens: npt.NDArray[Any] | None, X: Array) -> list[int]:
    seq_length, batch_size, _ = X.shape
    if sequence_lens is None:
        return [seq_length] * batch_size
    lengths = [int(length) for length in sequence_lens]
    assert all(0 <= length <= seq_length for length in lengths)
    return lengths
