"""Write the magnitudes of ten generated signals to a file of float32, for the programs in this folder.

python examples/host/frames.py magnitude.f32
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import signals


def main(file: str) -> None:
    """Write the frames of all signals one after another."""
    _, noisy = signals.noisy_signals(np.random.default_rng(2026), count=10, seconds=3.0, snr=(-5.0, 5.0))
    np.abs(signals.to_spectra(noisy)).astype(np.float32).tofile(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
