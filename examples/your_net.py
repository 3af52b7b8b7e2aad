"""Take a PyTorch net to a runtime. Put your net in the place of `Net`, and its input in that of `example`.

    pip install torch==2.13.0 onnxscript
    python examples/your_net.py NET.onnx
    python examples/your_net.py NET.onnx --target openvino --run-in-target    # needs openvino

It exports the net at the size of the example, lowers it, compares the result with PyTorch, and says how to run it.
"""

import tempfile
import warnings
from pathlib import Path

import guide
import numpy as np
import onnxruntime
import torch

import rnn_lowering as rl


class Net(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # a linter may have no torch
    """Your net: this one has an LSTM, a GRU and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = torch.nn.LSTM(80, 64, batch_first=True), torch.nn.GRU(64, 64, batch_first=True)
        self.linear = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.gru(self.lstm(x)[0])[0])


def example() -> torch.Tensor:
    """Return an input of your net: this one is [batch, steps, features]."""
    return torch.randn(1, 16, 80)


def main() -> None:
    """Write the lowered net."""
    parser = guide.Parser(description="Export a PyTorch net, lower it and compare the two.")
    parser.add_argument("path", type=Path, metavar="NET.onnx")
    parser.add_argument(
        "--target", default="portable", help="the runtime that will run it: see rnn-lower --targets"
    )
    parser.add_argument("--run-in-target", action="store_true", help="run it there too, and compare")
    options = parser.parse_args()
    torch.manual_seed(0)
    net, x = Net().eval(), example()
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder, "exported.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own
            torch.onnx.export(net, (x,), exported, dynamo=True, verbose=False, external_data=False)
        report = rl.lower_file(
            exported,
            options.path,
            target=options.target,
            run_in_target=options.run_in_target,
            overwrite=True,
        )
    print(report)
    with torch.no_grad():
        expected = net(x).numpy()
    session = onnxruntime.InferenceSession(options.path)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    print(f"largest difference to PyTorch {np.abs(found - expected).max():.1e}")


if __name__ == "__main__":
    main()
