"""Train a small keyword spotter for three whistles on generated recordings and export it to ONNX.

python examples/train_whistles.py MY_WHISTLES.onnx

It needs torch, onnx and onnxruntime, about a minute on one core, and no data.
"""

from pathlib import Path

import guide
import numpy as np
import onnxruntime
import signals
import torch
import whistles
from exporting import export
from torch import Tensor, nn

SEED = 1
HELD_OUT = 77
"""The seed of recordings that neither training nor any choice of this example has used."""
BATCH = 32
SECONDS = 3.0


class Spotter(nn.Module):  # type: ignore[misc, unused-ignore]  # a linter may have no torch
    """Tell from magnitudes which whistle has just ended."""

    def __init__(self) -> None:
        super().__init__()
        self.to_features = nn.Linear(signals.BINS, 24)
        self.memory = nn.GRU(24, 32, batch_first=True)
        self.to_names = nn.Linear(32, len(whistles.NAMES))

    def forward(self, magnitude: Tensor) -> Tensor:
        """Map (batch, time, bin) magnitudes to (batch, time, name) probabilities."""
        return torch.softmax(self.logits(magnitude), -1)

    def logits(self, magnitude: Tensor) -> Tensor:
        hidden, _ = self.memory(self.to_features(torch.log(magnitude + 1e-2) + 3))
        return self.to_names(hidden)  # type: ignore[no-any-return, unused-ignore]


def train(model: Spotter, steps: int) -> None:
    """Fit on fresh recordings at every step, so that nothing can be learned by heart."""
    rng = np.random.default_rng(SEED)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for step in range(1, steps + 1):
        recordings, labels = whistles.recordings(rng, BATCH, SECONDS)
        magnitude = torch.from_numpy(np.abs(signals.to_spectra(recordings)))
        logits = model.logits(magnitude).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels).flatten(), ignore_index=-1)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)


def check(path: Path) -> None:
    """Count the whistles that are heard in the held-out recordings."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    recordings, labels = whistles.recordings(np.random.default_rng(HELD_OUT), 50, SECONDS)
    (found,) = session.run(["probability"], {"magnitude": np.abs(signals.to_spectra(recordings))})
    right = total = more = 0
    for probabilities, row in zip(found, labels, strict=True):
        ends = np.flatnonzero((row[1:] > 0) & (row[:-1] < 0)) + 1
        wanted = {(whistles.NAMES[row[end]], frame) for end in ends for frame in range(end - 3, end + 6)}
        names = whistles.heard(probabilities)
        hits = sum(name in wanted for name in names)
        total, right, more = total + len(ends), right + hits, more + len(names) - hits
    print(f"held-out recordings: {right} of {total} whistles heard in time, {more} that are not there")


def main() -> None:
    """Train, export and check."""
    parser = guide.Parser(description="Train the example keyword spotter and export it to ONNX.")
    parser.add_argument("output", type=Path, metavar="MY_WHISTLES.onnx")
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums are split by thread, and the seed should decide alone
    model = Spotter()
    train(model, arguments.steps)
    model.eval()
    export(model, torch.rand(1, 50, signals.BINS), arguments.output, given="magnitude", returned="probability")
    check(arguments.output)
    print(f"wrote {arguments.output}, {arguments.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
