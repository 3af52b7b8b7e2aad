"""Train the small recurrent denoiser on generated signals and export it to ONNX.

python examples/train_denoiser.py MY_DENOISER.onnx

It needs torch, onnx and onnxruntime, about a minute on two cores, and no data. The model has a bidirectional LSTM
and a GRU; its batch size and time are open. With `--forward` the LSTM has one direction, so the denoiser can run
frame by frame (stream_denoiser.py).
"""

import time
from pathlib import Path

import guide
import numpy as np
import onnx
import onnxruntime
import signals
import torch
from exporting import export
from torch import Tensor, nn

SEED = 1
BATCH = 32
SECONDS = 2.0
SNR = (-5.0, 10.0)


class Denoiser(nn.Module):  # type: ignore[misc, unused-ignore]  # a linter may have no torch
    """Estimate from noisy magnitudes how much of every frequency bin to keep, between 0 and 1."""

    def __init__(self, forward_only: bool) -> None:
        super().__init__()
        if forward_only:
            self.first = nn.LSTM(signals.BINS, 64, batch_first=True)
        else:
            self.both_ways = nn.LSTM(signals.BINS, 48, batch_first=True, bidirectional=True)
        self.onward = nn.GRU(64 if forward_only else 2 * 48, 64, batch_first=True)
        self.to_mask = nn.Linear(64, signals.BINS)

    def forward(self, magnitude: Tensor) -> Tensor:
        """Map (batch, time, bin) magnitudes to a mask of the same shape."""
        lstm = self.first if hasattr(self, "first") else self.both_ways
        hidden, _ = lstm(torch.log(magnitude + 1e-3))
        hidden, _ = self.onward(hidden)
        return torch.sigmoid(self.to_mask(hidden))


def train(model: Denoiser, steps: int) -> None:
    """Fit the mask on fresh signals at every step, so that nothing can be learned by heart."""
    rng = np.random.default_rng(SEED)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    start, recent = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        clean, noisy = (signals.to_spectra(s) for s in signals.noisy_signals(rng, BATCH, SECONDS, SNR))
        magnitude = torch.from_numpy(np.abs(noisy))
        # The part of the clean magnitude in phase with the noisy one: the mask cannot correct the phase,
        # so where the two disagree it should keep less.
        target = torch.from_numpy(np.abs(clean) * np.cos(np.angle(clean) - np.angle(noisy)))
        loss = torch.mean((model(magnitude) * magnitude - target) ** 2)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent += loss.item()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {recent / 50:.5f}  {time.perf_counter() - start:3.0f} s", flush=True)
            recent = 0.0


def check(model: Denoiser, path: Path) -> None:
    """Compare the file with the model at several shapes, and report what it does for unseen signals."""
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch, frames in (1, 1), (1, 50), (3, 77):
        magnitude = torch.rand(batch, frames, signals.BINS)
        with torch.no_grad():
            expected = model(magnitude).numpy()
        (mask,) = session.run(["mask"], {"magnitude": magnitude.numpy()})
        np.testing.assert_allclose(mask, expected, rtol=0, atol=1e-5)
        difference = np.abs(mask - expected).max()
        print(f"batch {batch}, {frames:2d} frames: largest difference to torch {difference:.1e}")

    clean, noisy = signals.noisy_signals(np.random.default_rng(SEED + 1), 32, SECONDS, (0.0, 0.0))
    spectra = signals.to_spectra(noisy)
    (mask,) = session.run(["mask"], {"magnitude": np.abs(spectra)})
    denoised = signals.to_signals(spectra * mask, noisy.shape[1])
    before, after = signals.mean_snr(clean, noisy), signals.mean_snr(clean, denoised)
    print(f"unseen signals: SNR {before:.1f} dB -> {after:.1f} dB")


def main() -> None:
    """Train, export and check."""
    parser = guide.Parser(description="Train the example denoiser and export it to ONNX.")
    parser.add_argument("output", type=Path, metavar="MY_DENOISER.onnx")
    parser.add_argument("--forward", action="store_true", help="look back only")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()

    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums are split by thread, and the seed should decide alone
    model = Denoiser(arguments.forward)
    train(model, arguments.steps)
    model.eval()
    export(model, torch.rand(1, 50, signals.BINS), arguments.output, given="magnitude", returned="mask")
    check(model, arguments.output)
    print(f"wrote {arguments.output}, {arguments.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
