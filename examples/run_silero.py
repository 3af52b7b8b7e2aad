"""Run a lowered silero-vad frame by frame, and compare it with the original.

README.md says where silero_vad.onnx is from, and has the command that makes vad.onnx: one graph for 16 kHz, without
If and LSTM.

python examples/run_silero.py silero_vad.onnx vad.onnx --in tract

It needs numpy, onnxruntime for the original, and one of tract, openvino and opencv-python-headless 5.
"""

import importlib
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guide
import numpy as np
import onnxruntime
import signals

RATE, NEW, CONTEXT = 16_000, 512, 64
"""A frame is 32 ms of new samples behind the last 64 of the one before."""

Step = Callable[[Any, Any], tuple[Any, Any]]
"""Takes a frame [1, 576] and the state [2, 1, 128]; returns the probability [1, 1] of speech and the next state."""


def main() -> None:
    """Print how far both are apart, and what a frame takes."""
    parser = guide.Parser(description="Find speech frame by frame.")
    parser.add_argument("original", type=Path, metavar="SILERO.onnx")
    parser.add_argument("static", type=Path, metavar="VAD.onnx", help="the lowered model, see README.md")
    parser.add_argument("--in", dest="runtime", choices=RUNTIMES, default="onnxruntime")
    parser.add_argument("--wav", type=Path, help="16 kHz, mono, 16 bits; default: 3 s of generated tones")
    args = parser.parse_args()

    samples = from_wav(args.wav) if args.wav else tones()
    wanted, _ = probabilities(in_onnxruntime(args.original, sr=np.asarray(RATE, np.int64)), samples)
    found, seconds = probabilities(RUNTIMES[args.runtime](args.static), samples)
    print(f"{len(found)} frames in {args.runtime}, speech in {np.sum(found > 0.5)}")
    print(f"largest difference of the probabilities {np.abs(found - wanted).max():.1e}")
    print(f"{1e6 * np.median(seconds):.0f} microseconds per frame, of {1e6 * NEW / RATE:.0f} that a frame lasts")


def probabilities(step: Step, samples: Any) -> tuple[Any, list[float]]:
    """Return the probability of speech in each frame, and the seconds of each call."""
    padded = np.pad(samples, (CONTEXT, -len(samples) % NEW)).astype(np.float32)
    state, found, seconds = np.zeros((2, 1, 128), np.float32), [], []
    for start in range(0, len(padded) - CONTEXT, NEW):
        begin = time.perf_counter()
        output, state = step(padded[None, start : start + CONTEXT + NEW], state)
        seconds.append(time.perf_counter() - begin)
        found.append(np.asarray(output).item())
    return np.asarray(found), seconds


def in_onnxruntime(path: Path, **others: Any) -> Step:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a frame is too little for more
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda frame, state: session.run(["output", "stateN"], {"input": frame, "state": state, **others})


def in_tract(path: Path) -> Step:
    runnable = importlib.import_module("tract").onnx().load(path).into_model().into_runnable()

    def step(frame: Any, state: Any) -> tuple[Any, Any]:
        output, after = runnable.run([frame, state])
        return output.to_numpy(), after.to_numpy()

    return step


def in_openvino(path: Path) -> Step:
    exact = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 is the default where the CPU has it
    model = importlib.import_module("openvino").Core().compile_model(path, "CPU", exact)

    def step(frame: Any, state: Any) -> tuple[Any, Any]:
        results = model({"input": frame, "state": state})
        return results["output"].copy(), results["stateN"].copy()

    return step


def in_opencv(path: Path) -> Step:
    net = importlib.import_module("cv2").dnn.readNetFromONNX(str(path))

    def step(frame: Any, state: Any) -> tuple[Any, Any]:
        net.setInput(np.ascontiguousarray(frame), "input")
        net.setInput(state, "state")
        output, after = net.forward(["output", "stateN"])
        return output, after.copy()

    return step


RUNTIMES: dict[str, Callable[[Path], Step]] = {
    "onnxruntime": in_onnxruntime,
    "tract": in_tract,
    "openvino": in_openvino,
    "opencv": in_opencv,
}


def tones() -> Any:
    """Voice-like tones and pauses in noise; no one speaks."""
    _, noisy = signals.noisy_signals(np.random.default_rng(2026), 1, 3 * RATE / signals.RATE, (0.0, 5.0))
    return noisy[0]


def from_wav(path: Path) -> Any:
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{path} is not 16 kHz, mono, 16 bits")
        return np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768


if __name__ == "__main__":
    main()
