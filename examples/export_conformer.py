"""Export the encoder of a conformer transducer with random weights, of two blocks with relative positions.

python examples/export_conformer.py CONFORMER.onnx

It needs torch and onnx. Each frame attends to the last 64 encoded ones, or with --all to all past ones.
"""

import math
from pathlib import Path

import guide
import torch
from exporting import export
from torch import Tensor, nn

SEED = 5
BANDS, WIDTH, HEADS, BLOCKS = 40, 32, 4, 2
WINDOW = 64
KERNEL = 7


class RelativeAttention(nn.Module):  # type: ignore[misc, unused-ignore]  # a linter may have no torch
    """Attention whose scores also depend on the distance, as in Transformer-XL."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.position = nn.Linear(WIDTH, WIDTH, bias=False)
        self.of_content = nn.Parameter(torch.randn(HEADS, WIDTH // HEADS) / 4)
        self.of_position = nn.Parameter(torch.randn(HEADS, WIDTH // HEADS) / 4)

    def forward(self, x: Tensor, positions: Tensor, removed: Tensor) -> Tensor:
        q, k, v = (
            each(x).view(x.shape[0], -1, HEADS, WIDTH // HEADS) for each in (self.query, self.key, self.value)
        )
        p = self.position(positions).view(1, -1, HEADS, WIDTH // HEADS)
        by_content = (q + self.of_content).transpose(1, 2) @ k.permute(0, 2, 3, 1)
        by_distance = shifted((q + self.of_position).transpose(1, 2) @ p.permute(0, 2, 3, 1))
        scores = (by_content + by_distance) / math.sqrt(WIDTH // HEADS)
        weights = torch.softmax(scores.masked_fill(removed, -1e4), -1)
        return self.out((weights @ v.transpose(1, 2)).transpose(1, 2).reshape(x.shape[0], -1, WIDTH))


def shifted(scores: Tensor) -> Tensor:
    """Move column T - 1 - i + j of row i to column j."""
    batch, heads, frames, distances = scores.shape
    padded = nn.functional.pad(scores, (1, 0)).view(batch, heads, -1, frames)
    return padded[:, :, 1:].view(batch, heads, frames, distances)[..., :frames]


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Half a feed-forward layer, attention, a causal convolution, and the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (self.feed_forward() for _ in range(2))
        self.before, self.middle, self.after = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = RelativeAttention()
        self.expand = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, KERNEL, groups=WIDTH)
        self.project = nn.Conv1d(WIDTH, WIDTH, 1)

    @staticmethod
    def feed_forward() -> nn.Sequential:
        return nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, positions: Tensor, removed: Tensor) -> Tensor:
        x = x + self.first(x) / 2
        x = x + self.attention(self.before(x), positions, removed)
        gated = nn.functional.glu(self.expand(self.middle(x).transpose(1, 2)), 1)
        convolved = self.depthwise(nn.functional.pad(gated, (KERNEL - 1, 0)))
        x = x + self.project(nn.functional.silu(convolved)).transpose(1, 2)
        return self.after(x + self.last(x) / 2)


class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Encode features (batch, time, band) as (batch, time / 2, width)."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.halve = nn.Conv1d(BANDS, WIDTH, 4, stride=2)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.window = window
        self.register_buffer("rates", 1e4 ** -(torch.arange(0, WIDTH, 2) / WIDTH))

    def forward(self, features: Tensor) -> Tensor:
        x = self.halve(nn.functional.pad(features.transpose(1, 2), (2, 0))).transpose(1, 2)
        frames = x.shape[1]
        angles = torch.arange(frames - 1, -frames, -1.0)[:, None] * self.rates
        positions = torch.cat([angles.sin(), angles.cos()], -1)[None]
        numbers = torch.arange(frames)
        distance = numbers[:, None] - numbers
        removed = distance < 0
        if self.window is not None:
            removed = removed | (distance >= self.window)
        for block in self.blocks:
            x = block(x, positions, removed)
        return x


def main() -> None:
    """Write the encoder."""
    parser = guide.Parser(description="Export a small conformer encoder.")
    parser.add_argument("path", type=Path, metavar="CONFORMER.onnx")
    parser.add_argument("--all", action="store_true", help="attend to all past frames, not to a window")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    encoder = Encoder(None if options.all else WINDOW).eval()
    export(encoder, torch.zeros(1, 8, BANDS), options.path, given="features", returned="encoded")


if __name__ == "__main__":
    main()
