"""Enhance signals frame by frame with a model that looks two frames ahead, and compare it with whole signals.

rnn-lower examples/enhancer.onnx enhancer_step.onnx --stream time=1 --delay
python examples/stream_enhancer.py examples/enhancer.onnx enhancer_step.onnx

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
    parser = guide.Parser(description="Enhance generated signals at once and frame by frame.")
    parser.add_argument("whole", type=Path, metavar="ENHANCER.onnx")
    parser.add_argument("step", type=Path, metavar="STEP.onnx", help="made with --stream time=1 --delay")
    paths = parser.parse_args()

    clean, noisy = signals.noisy_signals(np.random.default_rng(SEED), COUNT, SECONDS, SNR)
    spectra = as_real(signals.to_spectra(noisy))
    session = onnxruntime.InferenceSession(paths.whole, providers=["CPUExecutionProvider"])
    at_once = np.asarray(session.run(["enhanced"], {"spectrum": spectra})[0])
    stepped, delay, seconds = frame_by_frame(paths.step, spectra)

    before = signals.mean_snr(clean, noisy)
    for label, enhanced in {"whole signals": at_once, "frame by frame": stepped}.items():
        after = signals.mean_snr(clean, signals.to_signals(enhanced.view(np.complex64)[..., 0], noisy.shape[1]))
        print(f"{label:14}  SNR {before:.2f} dB -> {after:.2f} dB")
    print(f"largest difference of the spectra {np.abs(stepped - at_once).max():.1e}, {delay} frames late")
    frame = signals.HOP / signals.RATE
    print(f"{1e6 * np.median(seconds):.0f} microseconds per frame, of {1e6 * frame:.0f} that a frame lasts")


def as_real(spectra: np.ndarray) -> np.ndarray:
    """Return complex numbers as pairs of real ones along a new last axis."""
    return np.stack([spectra.real, spectra.imag], -1).astype(np.float32)


def frame_by_frame(path: Path, spectra: np.ndarray) -> tuple[np.ndarray, int, list[float]]:
    """Return the enhanced spectra, by how many frames they are late, and the seconds of each call."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a frame is too little for more
    stream = rl.Stream(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
    signals_enhanced, seconds = [], []
    for signal in spectra:
        stream.reset()
        frames = []
        for t in range(len(signal)):
            start = time.perf_counter()
            frames.append(stream({"spectrum": signal[None, t : t + 1]})["enhanced"])  # empty at first
            seconds.append(time.perf_counter() - start)
        frames.append(stream.flush()["enhanced"])  # the last two
        signals_enhanced.append(np.concatenate(frames, 1))
    return np.concatenate(signals_enhanced), stream.plan.delay["enhanced"], seconds


if __name__ == "__main__":
    main()
