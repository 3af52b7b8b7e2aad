"""Run a model with recurrent nodes in TVM: fix its sizes, lower, compile, and compare with onnxruntime.

pip install apache-tvm==0.27.0.post1
python examples/run_in_tvm.py examples/denoiser.onnx --set-shape magnitude:1,4,129
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guide
import numpy as np
import onnx
import onnxruntime
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

import rnn_lowering as rl

Arrays = dict[str, Any]


def main() -> None:
    """Print the times and the largest difference."""
    args = _parser().parse_args()
    original = onnx.load(args.model)
    start = time.perf_counter()
    lowered = rl.lower(original, target="tvm", dims=dict(args.set_dim), input_shapes=dict(args.set_shape))
    print(f"lowered in {time.perf_counter() - start:.1f} s: {len(lowered.graph.node)} nodes")
    feed = dict(np.load(args.test_input)) if args.test_input else random_feed(lowered)

    start = time.perf_counter()
    run = compiled(lowered, feed)
    print(f"TVM compiles in {time.perf_counter() - start:.1f} s")

    session = onnxruntime.InferenceSession(args.model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    expected = session.run(names, feed)
    results = run()
    difference = max(float(np.abs(a - b).max()) for a, b in zip(results, expected, strict=True))
    in_tvm, native = milliseconds(run, args.runs), milliseconds(lambda: session.run(names, feed), args.runs)
    print(f"one call takes {in_tvm:.2f} ms in TVM, {native:.2f} ms in onnxruntime with the recurrent nodes")
    print(f"largest difference {difference:.1e}")
    if not difference <= args.atol:
        raise SystemExit(f"that is more than {args.atol:g}")


def compiled(model: onnx.ModelProto, feed: Arrays) -> Callable[[], list[Any]]:
    """Compile a model for this machine; return what computes its outputs from the feed."""
    used = {name for node in model.graph.node for name in node.input}
    for value in [value for value in model.graph.input if value.name not in used]:
        model.graph.input.remove(value)
    names = [value.name for value in model.graph.input]
    shapes = {name: list(feed[name].shape) for name in names}
    module = from_onnx(model, shapes, {name: feed[name].dtype.name for name in names})
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "fast-math-reassoc": True})
    machine = relax.VirtualMachine(tvm.compile(relax.get_pipeline("zero")(module), target=target), tvm.cpu())
    inputs = [tvm.runtime.tensor(feed[name]) for name in names]

    def run() -> list[Any]:
        results = machine["main"](*inputs)
        return [tensor.numpy() for tensor in ([results] if hasattr(results, "numpy") else results)]

    return run


def random_feed(model: onnx.ModelProto) -> Arrays:
    """Random numbers of the declared sizes; 1 for what is no floating-point number."""
    rng = np.random.default_rng(2026)
    feed: Arrays = {}
    initializers = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in initializers:
            held = value.type.tensor_type
            shape = [size.dim_value for size in held.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(held.elem_type)
            floating = np.issubdtype(dtype, np.floating)
            feed[value.name] = np.asarray(rng.normal(0, 0.5, shape) if floating else np.ones(shape), dtype)
    return feed


def milliseconds(run: Callable[[], Any], runs: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def _parser() -> argparse.ArgumentParser:
    parser = guide.Parser(description="Lower a model, run it in TVM and compare it with onnxruntime.")
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--set-dim", type=_dim, action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--set-shape", type=_shape, action="append", default=[], metavar="NAME:D0,D1,...")
    parser.add_argument("--test-input", type=Path, metavar="FILE.npz", help="inputs by name (default: random)")
    parser.add_argument("--runs", type=int, default=50, help="number of calls to time (default: 50)")
    parser.add_argument("--atol", type=float, default=1e-4, help="largest allowed difference (default: 1e-4)")
    return parser


def _dim(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    return name, int(size)


def _shape(text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.rpartition(":")
    return name, [int(size) for size in sizes.split(",") if size]


if __name__ == "__main__":
    main()
