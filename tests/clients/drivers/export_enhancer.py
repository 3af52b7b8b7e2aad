"""Export a speech enhancer of PyTorch (causal convolutions, GRUs, skip connections), and what it computes itself.

python export_enhancer.py FOLDER writes FOLDER/enhancer.onnx and FOLDER/expected.npz (spectra, enhanced).
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CHANNELS, BINS = 8, 16


class Enhancer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Spectra [batch, 2, time, 32] times a mask that looks back only."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv2d(2, CHANNELS, (3, 4), stride=(1, 2), padding=(0, 1))
        self.deep = nn.Conv2d(CHANNELS, CHANNELS, (3, 3), padding=(4, 1), dilation=(2, 1), groups=CHANNELS)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.intra = nn.GRU(CHANNELS, CHANNELS // 2, batch_first=True, bidirectional=True)
        self.inter = nn.GRU(CHANNELS, CHANNELS, batch_first=True)
        self.last = nn.LayerNorm([BINS, CHANNELS])
        self.decode = nn.ConvTranspose2d(CHANNELS, 2, (3, 4), stride=(1, 2), padding=(2, 1))

    def forward(self, spectra: Tensor) -> Tensor:
        x = nn.functional.elu(self.encode(nn.functional.pad(spectra, (0, 0, 2, 0))))
        skip = self.norm(self.deep(x)[:, :, :-4]) + x  # padded on both sides, the frames ahead cut off
        x = skip.permute(0, 2, 3, 1)  # [batch, time, bins, channels]
        batch, time = x.shape[0], x.shape[1]
        inner = self.intra(x.reshape(batch * time, BINS, CHANNELS))[0].reshape(batch, time, BINS, CHANNELS)
        x = inner + x
        y = x.permute(0, 2, 1, 3).reshape(batch * BINS, time, CHANNELS)
        y = self.inter(y)[0].reshape(batch, BINS, time, CHANNELS).permute(0, 2, 1, 3)
        x = (self.last(y) + x).permute(0, 3, 1, 2) + skip
        mask: Tensor = torch.tanh(self.decode(nn.functional.pad(x, (0, 0, 2, 0))))
        return mask * spectra


def main(folder: Path) -> None:
    torch.manual_seed(0)
    net = Enhancer().eval()
    axes = {0: "batch", 2: "time"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the exporter is the older one
        torch.onnx.export(
            net,
            (torch.randn(1, 2, 30, 2 * BINS),),
            folder / "enhancer.onnx",
            dynamo=False,
            opset_version=17,
            input_names=["spectra"],
            output_names=["enhanced"],
            dynamic_axes={"spectra": axes, "enhanced": axes},
        )
    spectra = torch.randn(2, 2, 23, 2 * BINS)
    with torch.no_grad():
        np.savez(folder / "expected.npz", spectra=spectra.numpy(), enhanced=net(spectra).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
