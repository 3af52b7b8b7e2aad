"""Time one frame of a stream of causal attention beside the whole sequence again.

The cache holds all frames but the last.
"""

from typing import Any

import numpy as np
import onnx

import rnn_lowering as rl
from benchmarks.timing import medians

FRAMES = (64, 256, 1024)
WIDTH, HEADS, WINDOW = 64, 4, 64

_MODEL = """<ir_version: 9, opset_import: ["": 18]> attention (float[1, time, 64] x) => (float[1, time, 64] y)
<int64 zero = {0}, int64 one = {1}, int64[1] rows = {1}, int64[1] columns = {0}, int64 window = {WINDOW},
 int64[4] heads = {0, 0, 4, 16}, int64[3] joined = {0, 0, 64}, float scale = {0.25}, float low = {-1e9}> {
    sizes = Shape (x)  count = Gather (sizes, one)  numbers = Range (zero, count, one)
    i = Unsqueeze (numbers, rows)  j = Unsqueeze (numbers, columns)
    apart = Sub (i, j)  causal = GreaterOrEqual (apart, zero)
    near = Less (apart, window)  both = And (causal, near)
    qx = MatMul (x, wq)  q4 = Reshape (qx, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q4)
    kx = MatMul (x, wk)  k4 = Reshape (kx, heads)  k = Transpose <perm = [0, 2, 3, 1]> (k4)
    vx = MatMul (x, wv)  v4 = Reshape (vx, heads)  v = Transpose <perm = [0, 2, 1, 3]> (v4)
    s = MatMul (q, k)  scaled = Mul (s, scale)  masked = Where (MASK, scaled, low)  w = Softmax (masked)
    o4 = MatMul (w, v)  o = Transpose <perm = [0, 2, 1, 3]> (o4)  all = Reshape (o, joined)  y = MatMul (all, wo)
}"""


def layer(mask: str) -> onnx.ModelProto:
    """Return a layer of attention; its mask is "causal" to all past frames or "both" to a window of them."""
    model = onnx.parser.parse_model(_MODEL.replace("MASK", mask).replace("{WINDOW}", f"{{{WINDOW}}}"))
    rng = np.random.default_rng(0)
    for name in ("wq", "wk", "wv", "wo"):
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * WIDTH**-0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def feed_of(stream: onnx.ModelProto, frames: int) -> dict[str, Any]:
    """Return the inputs of the last call of a sequence of so many frames."""
    rng = np.random.default_rng(frames)
    feed: dict[str, Any] = {"x": rng.standard_normal((1, 1, WIDTH)).astype(np.float32)}
    for state in rl.Stream(stream).plan.states:
        shape = [frames - 1 if axis == state.grows else size for axis, size in enumerate(state.shape)]
        sizes = [int(size) for size in shape]
        past = np.full(sizes, frames - 1) if state.state == "t" else rng.standard_normal(sizes)
        feed[state.input] = past.astype(state.dtype)
    return feed


def report(seconds: float = 1.0) -> list[dict[str, Any]]:
    """Print the table; return it as data."""
    columns = ("grows", "N rows", "window")
    print("\nOne frame of causal attention, microseconds (ratio to the whole sequence again):\n")
    print(f"| frames | the whole | {' | '.join(columns)} |")
    print("|---:" * (2 + len(columns)) + "|")
    results = []
    for frames in FRAMES:
        whole = layer("causal")
        x = np.random.default_rng(0).standard_normal((1, frames, WIDTH)).astype(np.float32)
        streams = [
            rl.lower(whole, stream="time=1"),
            rl.lower(whole, stream="time=1", max_frames=frames),
            rl.lower(layer("both"), stream="time=1"),
        ]
        feeds = [{"x": x}, *(feed_of(stream, frames) for stream in streams)]
        taken = medians([whole, *streams], feeds, seconds)
        cells = [f"{each * 1e6:.0f} ({each / taken[0]:.3f})" for each in taken[1:]]
        print(f"| {frames} | {taken[0] * 1e6:.0f} | {' | '.join(cells)} |", flush=True)
        results.append({"frames": frames, **dict(zip(("whole", *columns), taken, strict=True))})
    return results
