"""Write a robot policy with random weights: an LSTM whose state is an input and an output, called for each step.

It is as torch.onnx.export writes `LSTM(obs[None], (h_in, c_in))` and a linear layer.

    python examples/policy.py POLICY.onnx
"""

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


def policy() -> onnx.ModelProto:
    """Return the model."""
    model: onnx.ModelProto = parser.parse_model(POLICY)
    rng, scale = np.random.default_rng(0), HIDDEN**-0.5
    for name, shape in WEIGHTS.items():
        values = rng.uniform(-scale, scale, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def main() -> None:
    """Write it to the file that the command names."""
    arguments = guide.Parser(description=__doc__)
    arguments.add_argument("file", type=Path, metavar="POLICY.onnx")
    onnx.save(policy(), arguments.parse_args().file)


if __name__ == "__main__":
    main()
