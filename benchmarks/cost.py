"""Measure what lowering and comparing cost: whole processes of the command, beside those of onnx and onnxruntime.

For each model it prints the seconds of the processors and on the clock, and the most memory of all processes of a
comparison together. The models of 1,000 to 20,000 other nodes show what one more node costs.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.lowering import chain
from benchmarks.models import Row
from benchmarks.verification import Usage, measure

SIZES = (1_000, 5_000, 20_000)
"""Numbers of nodes that are not recurrent."""

STEPS = (256, 1024, 4096)
"""Numbers of steps that are written out."""

_ONNX = """
import onnx, sys
model = onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1]))
onnx.checker.check_model(model)
onnx.save(model, sys.argv[2])
"""

_COPY = """
import onnx, onnx_ir, sys
copied = onnx_ir.to_proto(onnx_ir.from_proto(onnx.load(sys.argv[1])))
onnx.save(onnx.shape_inference.infer_shapes(copied), sys.argv[2])
"""

_LOAD = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"


def others(count: int, *, constants: bool, H: int = 8) -> onnx.ModelProto:
    """A model of so many nodes in a row before a GRU; each with a constant of its own, or all with one."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(-0.3, 0.3, (1, 3 * H, H)).astype(np.float32) for name in "WR"}
    added = {f"c{n}": rng.uniform(-0.01, 0.01, H).astype(np.float32) for n in range(count if constants else 1)}
    tensors = [numpy_helper.from_array(array, name) for name, array in {**arrays, **added}.items()]
    names = [f"c{n}" if constants else "c0" for n in range(count)]
    nodes = [helper.make_node("Add", [f"x{n}", name], [f"x{n + 1}"], f"add{n}") for n, name in enumerate(names)]
    nodes.append(helper.make_node("GRU", [f"x{count}", "W", "R"], ["Y"], "gru", hidden_size=H))
    given = helper.make_tensor_value_info("x0", 1, ["T", "N", H])
    made = helper.make_tensor_value_info("Y", 1, ["T", 1, "N", H])
    graph = helper.make_graph(nodes, "others", [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def bidirectional(layers: int, *, H: int = 512, T: int = 16) -> onnx.ModelProto:
    """A model of bidirectional LSTMs in a row, with 68 MB of weights if there are three."""
    rng, nodes, width = np.random.default_rng(0), [], H
    tensors = [numpy_helper.from_array(np.array([0, 0, -1]), "joined")]
    for n in range(layers):
        shapes = {f"W{n}": (2, 4 * H, width), f"R{n}": (2, 4 * H, H), f"B{n}": (2, 8 * H)}
        drawn = {name: rng.uniform(-1, 1, shape) * H**-0.5 for name, shape in shapes.items()}
        tensors += [numpy_helper.from_array(array.astype(np.float32), name) for name, array in drawn.items()]
        outputs = [f"Y{n}"]
        names = [f"x{n}", *shapes]
        nodes.append(helper.make_node("LSTM", names, outputs, hidden_size=H, direction="bidirectional"))
        nodes.append(helper.make_node("Transpose", outputs, [f"t{n}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{n}", "joined"], [f"x{n + 1}"]))
        width = 2 * H
    given = helper.make_tensor_value_info("x0", 1, [T, 1, H])
    made = helper.make_tensor_value_info(f"x{layers}", 1, [T, 1, width])
    graph = helper.make_graph(nodes, "bidirectional", [given], [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "the denoiser": (lambda: onnx.load(Path(__file__).parents[1] / "examples" / "denoiser.onnx"), ()),
    "200 small LSTMs": (partial(chain, 200), ()),
    **{f"{n:,} other nodes": (partial(others, n, constants=False), ()) for n in SIZES},
    **{f"{n:,} with constants": (partial(others, n, constants=True), ()) for n in SIZES},
    "3 bidirectional layers, H = 512": (partial(bidirectional, 3), ()),
    **{
        f"{T:,} steps written out": (
            partial(Row("LSTM", "forward", T, 1, 32, 32).model, 17),
            ("--to", "unroll", "--max-unroll", str(T)),
        )
        for T in STEPS
    },
}

COLUMNS = ("onnx", "copy", "lower", "and compare", "load", "load result")
"""What is measured of each model: all that onnx does with it, one copy by onnx_ir and one inference, the command,
and how onnxruntime loads it and the result."""


def report() -> dict[str, Any]:
    """Print the table, what one more node costs, and the range of ratios; return the figures by model."""
    print(f"{'seconds of the processors (clock)':<34}" + "".join(f"{c:>16}" for c in COLUMNS) + f"{'memory':>12}")
    result = {name: _row(name, make(), options) for name, (make, options) in MODELS.items()}
    least, most = SIZES[0], SIZES[-1]
    for kind in ("other nodes", "with constants"):
        ends = (result[f"{n:,} {kind}"]["seconds"] for n in (least, most))
        slopes = [1e6 * (late - early) / (most - least) for early, late in zip(*ends, strict=True)]
        each = zip(COLUMNS, slopes, strict=True)
        print(f"one more of {kind}: " + ", ".join(f"{column} {slope:.0f} us" for column, slope in each))
    for n, what in ((2, "lowering"), (3, "lowering and comparing")):
        ratios = sorted(row["seconds"][n] / row["seconds"][-1] for row in result.values())
        print(f"{what}, in times of loading the result in onnxruntime: {ratios[0]:.1f} to {ratios[-1]:.1f}")
    return result


def _row(name: str, model: onnx.ModelProto, options: tuple[str, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rnn-lower-benchmark-") as folder:
        source, made = (str(Path(folder, file)) for file in ("model.onnx", "lowered.onnx"))
        onnx.save(model, source)
        command = [sys.executable, "-m", "rnn_lowering", source, made, "--force", "--quiet", *options]
        with_onnx, copied = ([sys.executable, "-c", code, source, made] for code in (_ONNX, _COPY))
        loads = [[sys.executable, "-c", _LOAD, file] for file in (source, made)]
        used = [measure(each) for each in (with_onnx, copied, [*command, "--verify", "0"], command, *loads)]
    memory = used[3].total
    print(f"{name:<34}" + "".join(map(_cell, used)) + f"{memory / 2**20:>8.0f} MiB", flush=True)
    return {"seconds": [u.busy for u in used], "clock": [u.seconds for u in used], "memory": memory}


def _cell(usage: Usage) -> str:
    return f"{f'{usage.busy:.2f} ({usage.seconds:.2f})':>16}"
