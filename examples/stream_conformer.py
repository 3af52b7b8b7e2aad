"""Encode features chunk by chunk with the encoder of a conformer transducer, and compare it with whole sequences.

rnn-lower examples/conformer.onnx conformer_step.onnx --stream time=2
python examples/stream_conformer.py examples/conformer.onnx conformer_step.onnx

It needs numpy, onnxruntime and rnn_lowering.
"""

import time
from pathlib import Path
from typing import Any

import guide
import numpy as np
import onnxruntime

import rnn_lowering as rl

BANDS, FRAMES, BATCH = 40, 600, 2


def session(path: Path) -> Any:
    """Return a session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Print the largest difference, the states, and what a call takes."""
    parser = guide.Parser(description="Encode random features at once and chunk by chunk.")
    parser.add_argument("whole", type=Path, metavar="CONFORMER.onnx")
    parser.add_argument("step", type=Path, metavar="STEP.onnx", help="made with --stream time=2")
    paths = parser.parse_args()

    features = np.random.default_rng(1).standard_normal((BATCH, FRAMES, BANDS)).astype(np.float32)
    (expected,) = session(paths.whole).run(["encoded"], {"features": features})
    stream = rl.Stream(session(paths.step))
    count = stream.plan.frames or 2
    parts, seconds = [], []
    for start in range(0, FRAMES, count):
        begin = time.perf_counter()
        parts.append(stream({"features": features[:, start : start + count]})["encoded"])
        seconds.append(time.perf_counter() - begin)
    difference = np.abs(np.concatenate(parts, 1) - np.asarray(expected)).max()
    print(f"{FRAMES} frames in calls of {count}: largest difference {difference:.1e}")
    print(f"states: {', '.join(f'{name} {[*state.shape]}' for name, state in stream.states.items())}")
    print(f"{1e6 * np.median(seconds):.0f} microseconds per call of {count} frames")


if __name__ == "__main__":
    main()
