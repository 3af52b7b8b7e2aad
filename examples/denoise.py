"""Denoise generated signals with one or more models, and print how well each did.

rnn-lower examples/denoiser.onnx denoiser_lowered.onnx
python examples/denoise.py examples/denoiser.onnx denoiser_lowered.onnx

It needs numpy and onnxruntime.
"""

from pathlib import Path

import guide
import numpy as np
import onnxruntime
import signals

SEED = 2026  # training uses others
COUNT = 100
SECONDS = 3.0  # longer than the signals of the training
SNR = (-5.0, 5.0)


def main() -> None:
    """Print one line for each model."""
    parser = guide.Parser(description="Denoise generated signals with each model.")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.onnx")
    paths: list[Path] = parser.parse_args().models

    clean, noisy = signals.noisy_signals(np.random.default_rng(SEED), COUNT, SECONDS, SNR)
    spectra = signals.to_spectra(noisy)
    before = signals.mean_snr(clean, noisy)
    width = max(len(path.name) for path in paths)
    first_mask = None
    for path in paths:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        mask = np.asarray(session.run(["mask"], {"magnitude": np.abs(spectra)})[0])
        after = signals.mean_snr(clean, signals.to_signals(spectra * mask, noisy.shape[1]))
        line = f"{path.name:{width}}  SNR {before:.1f} dB -> {after:.1f} dB"
        if first_mask is None:
            first_mask = mask
        else:
            line += f"   largest difference to the first {np.abs(mask - first_mask).max():.1e}"
        print(line)


if __name__ == "__main__":
    main()
