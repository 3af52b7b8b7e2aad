"""Run the denoiser frame by frame, as on a live signal, and compare it with whole signals.

rnn-lower examples/denoiser_forward.onnx step.onnx --stream time=1
python examples/stream_denoiser.py examples/denoiser_forward.onnx step.onnx

It needs numpy, onnxruntime and rnn_lowering.
"""

import time
from pathlib import Path

import guide
import numpy as np
import onnxruntime
import signals

import rnn_lowering as rl

SEED = 2026  # training uses others
COUNT = 10
SECONDS = 3.0
SNR = (-5.0, 5.0)


def main() -> None:
    """Print the quality of both, and what a frame takes."""
    parser = guide.Parser(description="Denoise generated signals at once and frame by frame.")
    parser.add_argument("whole", type=Path, metavar="DENOISER.onnx")
    parser.add_argument("step", type=Path, metavar="STEP.onnx", help="made with --stream time=1")
    paths = parser.parse_args()

    clean, noisy = signals.noisy_signals(np.random.default_rng(SEED), COUNT, SECONDS, SNR)
    spectra = signals.to_spectra(noisy)
    session = onnxruntime.InferenceSession(paths.whole, providers=["CPUExecutionProvider"])
    at_once = np.asarray(session.run(["mask"], {"magnitude": np.abs(spectra)})[0])
    stepped, seconds = frame_by_frame(paths.step, np.abs(spectra))

    before = signals.mean_snr(clean, noisy)
    for label, mask in {"whole signals": at_once, "frame by frame": stepped}.items():
        after = signals.mean_snr(clean, signals.to_signals(spectra * mask, noisy.shape[1]))
        print(f"{label:14}  SNR {before:.2f} dB -> {after:.2f} dB")
    print(f"largest difference of the masks {np.abs(stepped - at_once).max():.1e}")
    frame = signals.HOP / signals.RATE
    print(f"{1e6 * np.median(seconds):.0f} microseconds per frame, of {1e6 * frame:.0f} that a frame lasts")


def frame_by_frame(path: Path, magnitudes: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return the masks of signals (signal, frame, bin), one signal after another, and the seconds of each call."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a frame is too little for more
    stream = rl.Stream(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
    masks, seconds = np.empty_like(magnitudes), []
    for n, signal in enumerate(magnitudes):
        stream.reset()
        for t in range(len(signal)):
            start = time.perf_counter()
            masks[n, t] = stream({"magnitude": signal[None, t : t + 1]})["mask"][0, 0]
            seconds.append(time.perf_counter() - start)
    return masks, seconds


if __name__ == "__main__":
    main()
