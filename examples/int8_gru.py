"""Make the denoiser a stream, quantize it to int8, as for an NPU, and compare sizes and signals.

python examples/int8_gru.py examples/denoiser_forward.onnx int8.onnx

It needs numpy, onnxruntime and rnn_lowering.
"""

import logging
import tempfile
from pathlib import Path

import guide
import numpy as np
import onnxruntime
import signals
from onnxruntime.quantization import QuantType, quantize_static
from stream_denoiser import COUNT, SECONDS, SEED, SNR, frame_by_frame

import rnn_lowering as rl


def main() -> None:
    """Print the size of each model, and the signal-to-noise ratio behind it."""
    parser = guide.Parser(description="Quantize a denoiser with recurrent nodes to int8.")
    parser.add_argument("model", type=Path, metavar="DENOISER.onnx")
    parser.add_argument("int8", type=Path, metavar="INT8.onnx", help="to be written")
    parser.add_argument("--state-bits", type=int, choices=(8, 16), default=8)
    args = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer advises to run its own preprocessing

    clean, noisy = signals.noisy_signals(np.random.default_rng(SEED), COUNT, SECONDS, SNR)
    spectra = signals.to_spectra(noisy)
    session = onnxruntime.InferenceSession(args.model, providers=["CPUExecutionProvider"])
    masks = {"float, whole signals": np.asarray(session.run(["mask"], {"magnitude": np.abs(spectra)})[0])}
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder, "step.onnx")
        rl.lower_file(args.model, step, stream="time=1", dims={"batch": 1})
        quantize(step, args.int8, args.state_bits)
        for label, path in {"float, frame by frame": step, "int8, frame by frame": args.int8}.items():
            masks[label], _ = frame_by_frame(path, np.abs(spectra))
            print(f"{label:22} {path.stat().st_size:9,} bytes")
    print(f"{'noisy':22} SNR {signals.mean_snr(clean, noisy):6.2f} dB")
    for label, mask in masks.items():
        after = signals.mean_snr(clean, signals.to_signals(spectra * mask, noisy.shape[1]))
        print(f"{label:22} SNR {after:6.2f} dB, mean difference of the masks {difference(mask, masks):.1e}")


def quantize(step: Path, int8: Path, state_bits: int) -> None:
    """Write a stream in int8, with ranges from signals that the comparison does not use."""
    _, noisy = signals.noisy_signals(np.random.default_rng(SEED + 1), COUNT, SECONDS, SNR)
    sequences = [{"magnitude": np.abs(spectra)[None]} for spectra in signals.to_spectra(noisy)]
    calibration = rl.Calibration(step, sequences, state_bits=state_bits)
    quantize_static(
        step,
        int8,
        calibration,
        per_channel=True,
        activation_type=QuantType.QUInt8,  # onnxruntime's products of int8 saturate on processors without VNNI
        weight_type=QuantType.QUInt8,
        nodes_to_exclude=["/Add", "/Log"],  # the logarithm of magnitudes needs more than 8 bits
        extra_options=calibration.extra_options,
    )


def difference(mask: np.ndarray, masks: dict[str, np.ndarray]) -> float:
    return float(np.abs(mask - masks["float, whole signals"]).mean())


if __name__ == "__main__":
    main()
