"""Measure what lowering and comparing cost: whole processes of the command, beside loading in onnxruntime.

For each model it prints the seconds of the processors and on the clock. The models of 1,000 to 20,000 other nodes
show what one more node costs.
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

STEPS = (256, 1024)
"""Numbers of steps that are written out."""

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


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "the denoiser": (lambda: onnx.load(Path(__file__).parents[1] / "examples" / "denoiser.onnx"), ()),
    "200 small LSTMs": (partial(chain, 200), ()),
    **{f"{n:,} other nodes": (partial(others, n, constants=False), ()) for n in SIZES},
    **{f"{n:,} with constants": (partial(others, n, constants=True), ()) for n in SIZES},
    **{
        f"{T:,} steps written out": (
            partial(Row("LSTM", "forward", T, 1, 32, 32).model, 17),
            ("--to", "unroll", "--max-unroll", str(T)),
        )
        for T in STEPS
    },
}


def report() -> dict[str, Any]:
    """Print the table and what one more node costs; return the seconds of the processors by model."""
    print(f"{'seconds of the processors (clock)':<34}{'load':>16}{'lower':>16}{'and compare':>16}")
    result = {name: _row(name, make(), options) for name, (make, options) in MODELS.items()}
    least, most = SIZES[0], SIZES[-1]
    for kind in ("other nodes", "with constants"):
        ends = (result[f"{n:,} {kind}"] for n in (least, most))
        slopes = [1e6 * (late - early) / (most - least) for early, late in zip(*ends, strict=True)]
        print(f"one more of {kind}: " + ", ".join(f"{slope:.0f} us" for slope in slopes))
    return result


def _row(name: str, model: onnx.ModelProto, options: tuple[str, ...]) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="rnn-lower-benchmark-") as folder:
        source, made = (str(Path(folder, file)) for file in ("model.onnx", "lowered.onnx"))
        onnx.save(model, source)
        lower = [sys.executable, "-m", "rnn_lowering", source, made, "--force", "--quiet", *options]
        load = [sys.executable, "-c", _LOAD, source]
        used = [measure(command) for command in (load, [*lower, "--verify", "0"], lower)]
    print(f"{name:<34}" + "".join(map(_cell, used)), flush=True)
    return [usage.busy for usage in used]


def _cell(usage: Usage) -> str:
    return f"{f'{usage.busy:.2f} ({usage.seconds:.2f})':>16}"
