"""Train a small enhancer that looks two frames ahead, as DeepFilterNet does, and export it to ONNX.

python examples/train_enhancer.py MY_ENHANCER.onnx

It needs torch, onnx and onnxruntime, a minute on two cores, and no data. The features come from two frames ahead, a
mask scales all bins of a frame, and a filter over three frames cleans the lowest bins.
"""

import math
import time
from pathlib import Path

import guide
import numpy as np
import onnx
import signals
import torch
from exporting import export
from torch import Tensor, nn

SEED = 3
BATCH = 8
SECONDS = 1.5
SNR = (-5.0, 10.0)
AHEAD = 2
FLOOR = 1e-6
SILENCE = math.log(FLOOR)
TAPS = 3
FILTERED = 40  # bins
HIDDEN = 64


class Enhancer(nn.Module):  # type: ignore[misc, unused-ignore]  # a linter may have no torch
    """Map noisy spectra (batch, time, bin, 2) to enhanced ones."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(signals.BINS, HIDDEN, kernel_size=3)
        self.onward = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.to_mask = nn.Linear(HIDDEN, signals.BINS)
        self.to_filter = nn.Linear(HIDDEN, FILTERED * TAPS * 2)

    def forward(self, spectrum: Tensor) -> Tensor:
        features = torch.log(spectrum.square().sum(3) + FLOOR).transpose(1, 2)  # batch, bin, time
        ahead = nn.functional.pad(features, (-AHEAD, AHEAD), value=SILENCE)  # as of frames of zeros
        encoded = torch.relu(self.encode(nn.functional.pad(ahead, (2, 0))))
        hidden, _ = self.onward(encoded.transpose(1, 2))
        masked = spectrum * torch.sigmoid(self.to_mask(hidden)).unsqueeze(3)
        filtered = self.filtered(masked[:, :, :FILTERED], self.to_filter(hidden))
        return torch.cat([filtered, masked[:, :, FILTERED:]], 2)

    def filtered(self, low: Tensor, coefficients: Tensor) -> Tensor:
        """Add to each bin a complex filter over its last frames."""
        frames = low.shape[1]
        past = nn.functional.pad(low, (0, 0, 0, 0, TAPS - 1, 0))
        each = coefficients.unflatten(2, (TAPS, FILTERED, 2))
        for tap in range(TAPS):
            x, c = past[:, tap : tap + frames], each[:, :, tap]
            real = x[..., 0] * c[..., 0] - x[..., 1] * c[..., 1]
            imaginary = x[..., 0] * c[..., 1] + x[..., 1] * c[..., 0]
            low = low + torch.stack([real, imaginary], 3)
        return low


def as_real(spectra: signals.Spectra) -> Tensor:
    return torch.view_as_real(torch.from_numpy(spectra))


def train(model: Enhancer, steps: int) -> None:
    """Fit on fresh signals at every step, so that nothing can be learned by heart."""
    rng = np.random.default_rng(SEED)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    start, recent = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        clean, noisy = (as_real(signals.to_spectra(s)) for s in signals.noisy_signals(rng, BATCH, SECONDS, SNR))
        loss = torch.mean((model(noisy) - clean) ** 2)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {recent / 50:.5f}  {time.perf_counter() - start:3.0f} s", flush=True)
            recent = 0.0


def main() -> None:
    parser = guide.Parser(description="Train an enhancer that looks two frames ahead.")
    parser.add_argument("output", type=Path, metavar="MY_ENHANCER.onnx")
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the steps are small
    model = Enhancer()
    train(model, given.steps)
    export(model.eval(), torch.rand(1, 50, signals.BINS, 2), given.output, given="spectrum", returned="enhanced")
    onnx.checker.check_model(given.output, full_check=True)


if __name__ == "__main__":
    main()
