"""Write a robot policy with random weights: an LSTM whose state is an input and an output, called for each step.

It is as torch.onnx.export writes `LSTM(obs[None], (h_in, c_in))` and a linear layer.

    python examples/policy.py POLICY.onnx
    python examples/policy.py TRACED.onnx --steps 11

With `--steps` it is as torch.onnx.export traces `for t in range(11): h, c = cell(obs[:, t], (h, c))`: 11 times the
nodes of a cell, over 11 observations.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import guide
import numpy as np
import onnx
from onnx import numpy_helper, parser

OBSERVATIONS, HIDDEN, ACTIONS = 48, 64, 12
POLICY = f"""<ir_version: 8, opset_import: ["" : 17]>
policy (float[1, {OBSERVATIONS}] obs, float[1, 1, {HIDDEN}] h_in, float[1, 1, {HIDDEN}] c_in)
    => (float[1, {ACTIONS}] actions, float[1, 1, {HIDDEN}] h_out, float[1, 1, {HIDDEN}] c_out) {{
  first = Constant <value = int64[1] {{0}}> ()
  X = Unsqueeze (obs, first)
  Y, h_out, c_out = LSTM <hidden_size = {HIDDEN}> (X, W, R, B, , h_in, c_in)
  both = Constant <value = int64[2] {{0, 1}}> ()
  features = Squeeze (Y, both)
  actions = Gemm <transB = 1> (features, weight, bias)
}}"""
WEIGHTS = {
    "W": (1, 4 * HIDDEN, OBSERVATIONS),
    "R": (1, 4 * HIDDEN, HIDDEN),
    "B": (1, 8 * HIDDEN),
    "weight": (ACTIONS, HIDDEN),
    "bias": (ACTIONS,),
}
OF_A_CELL = {
    "weight_ih": (4 * HIDDEN, OBSERVATIONS),
    "weight_hh": (4 * HIDDEN, HIDDEN),
    "bias_ih": (4 * HIDDEN,),
    "bias_hh": (4 * HIDDEN,),
    "weight": (ACTIONS, HIDDEN),
    "bias": (ACTIONS,),
}


def weights(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[np.ndarray, str]]:
    """Yield random weights and their names."""
    rng, scale = np.random.default_rng(0), HIDDEN**-0.5
    for name, shape in shapes.items():
        yield rng.uniform(-scale, scale, shape).astype(np.float32), name


def policy() -> onnx.ModelProto:
    """Return the model."""
    model: onnx.ModelProto = parser.parse_model(POLICY)
    model.graph.initializer.extend(numpy_helper.from_array(*pair) for pair in weights(WEIGHTS))
    return model


def traced(steps: int) -> onnx.ModelProto:
    """Return the model whose loop over an LSTMCell was traced."""
    lines, outputs = ["axis = Constant <value = int64[1] {1}> ()"], []
    h, c = "h_in", "c_in"
    for t in range(steps):
        lines += [
            f"t{t} = Constant <value = int64 {{{t}}}> ()",
            f"x{t} = Gather <axis = 1> (obs, t{t})",
            f"xs{t} = Gemm <transB = 1> (x{t}, weight_ih, bias_ih)",
            f"hs{t} = Gemm <transB = 1> ({h}, weight_hh, bias_hh)",
            f"sum{t} = Add (xs{t}, hs{t})",
            f"i{t}, f{t}, g{t}, o{t} = Split <axis = 1, num_outputs = 4> (sum{t})",
            f"si{t} = Sigmoid (i{t})",
            f"sf{t} = Sigmoid (f{t})",
            f"tg{t} = Tanh (g{t})",
            f"so{t} = Sigmoid (o{t})",
            f"kept{t} = Mul (sf{t}, {c})",
            f"new{t} = Mul (si{t}, tg{t})",
            f"c{t} = Add (kept{t}, new{t})",
            f"tc{t} = Tanh (c{t})",
            f"h{t} = Mul (so{t}, tc{t})",
            f"a{t} = Gemm <transB = 1> (h{t}, weight, bias)",
            f"action{t} = Unsqueeze (a{t}, axis)",
        ]
        h, c = f"h{t}", f"c{t}"
        outputs.append(f"action{t}")
    lines += [f"actions = Concat <axis = 1> ({', '.join(outputs)})"]
    lines += [f"h_out = Identity ({h})", f"c_out = Identity ({c})"]
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    policy (float[1, {steps}, {OBSERVATIONS}] obs, float[1, {HIDDEN}] h_in, float[1, {HIDDEN}] c_in)
        => (float[1, {steps}, {ACTIONS}] actions, float[1, {HIDDEN}] h_out, float[1, {HIDDEN}] c_out) {{"""
    model: onnx.ModelProto = parser.parse_model("\n".join([text, *lines, "}"]))
    model.graph.initializer.extend(numpy_helper.from_array(*pair) for pair in weights(OF_A_CELL))
    return model


def main() -> None:
    """Write it to the file that the command names."""
    arguments = guide.Parser(description=__doc__)
    arguments.add_argument("file", type=Path, metavar="POLICY.onnx")
    arguments.add_argument("--steps", type=int, help="trace a loop of so many steps")
    given = arguments.parse_args()
    onnx.save(policy() if given.steps is None else traced(given.steps), given.file)


if __name__ == "__main__":
    main()
