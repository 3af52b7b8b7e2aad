"""Time nodes that stay native beside lowered ones, in the runtimes whose targets have a rule for native nodes.

The tables are those of `Speed` in rnn_lowering/targets/native.py: the time of the lowered nodes, divided by that of
the nodes themselves. Then the result with `native=True` is timed beside the runtime's own node.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import rnn_lowering as rl
from benchmarks.models import GATES
from benchmarks.runtime import geometric_mean
from benchmarks.runtimes import NATIVE, timed

from clients.driving import Job  # isort: skip  # in a folder that benchmarks.runtimes adds to the path
from clients.environments import why_absent  # isort: skip
from running import run  # isort: skip

RUNTIMES = ("tract", "openvino", "mnn")
KINDS = ("RNN", "GRU 0", "GRU 1", "LSTM")
HIDDEN = (16, 32, 64, 128, 256)
SIZES = ((10, 1), (100, 1), (10, 8), (100, 8))
OPSET = 17


@dataclass(frozen=True)
class Nodes:
    """Nodes that may share a loop.

    Attributes:
        kind: One of `KINDS`; the number is linear_before_reset.
        T, N, H: Sizes; I is H.
        count: How many nodes.
        stacked: Whether they are layers; otherwise each has some of the features as its X.
        both: Whether they are bidirectional.
        open_T: Whether T is open.
    """

    kind: str
    T: int
    N: int
    H: int
    count: int = 1
    stacked: bool = True
    both: bool = False
    open_T: bool = False  # noqa: N815

    def __str__(self) -> str:
        more = f", {self.count} {'layers' if self.stacked else 'side by side'}" if self.count > 1 else ""
        return f"{self.kind}{', both' if self.both else ''}{', open T' if self.open_T else ''}{more}"

    def job(self) -> Job:
        """The model, with Y and Y_h of the last node or of all, and its input."""
        rng, nodes, tensors, outputs = np.random.default_rng(0), [], [], []
        op, dirs, width = self.kind.split()[0], 2 if self.both else 1, self.H * (1 if self.stacked else self.count)
        T: Any = "T" if self.open_T else self.T
        if not self.stacked:
            nodes.append(helper.make_node("Split", ["X"], [f"x{n}" for n in range(self.count)], axis=2))
            nodes[-1].attribute.extend([helper.make_attribute("num_outputs", self.count)] if OPSET >= 18 else [])
        tensors.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
        x = "X"
        for n in range(self.count):
            rows = GATES[op] * self.H
            shapes = {"W": (dirs, rows, self.H), "R": (dirs, rows, self.H), "B": (dirs, 2 * rows)}
            made = {f"{s}{n}": (rng.uniform(-1, 1, shape) * self.H**-0.5) for s, shape in shapes.items()}
            tensors += [numpy_helper.from_array(array.astype(np.float32), name) for name, array in made.items()]
            own: dict[str, Any] = {"direction": "bidirectional"} if self.both else {}
            own |= {"linear_before_reset": int(self.kind[-1])} if op == "GRU" else {}
            given = [x if self.stacked else f"x{n}", *made]
            last = not self.stacked or n == self.count - 1
            names = [f"Y{n}", f"Y_h{n}"]
            nodes.append(helper.make_node(op, given, names, f"rnn{n}", hidden_size=self.H, **own))
            if last:
                outputs += [helper.make_tensor_value_info(names[0], 1, [T, dirs, self.N, self.H])]
                outputs += [helper.make_tensor_value_info(names[1], 1, [dirs, self.N, self.H])]
            else:
                nodes.append(helper.make_node("Squeeze", [names[0], "axis"], [f"z{n}"]))
                x = f"z{n}"
        inputs = [helper.make_tensor_value_info("X", 1, [T, self.N, width])]
        graph = helper.make_graph(nodes, "benchmark", inputs, outputs, tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        feed = {"X": np.random.default_rng(1).standard_normal((self.T, self.N, width)).astype(np.float32)}
        return onnx.shape_inference.infer_shapes(model), feed


def every(runtime: str) -> Iterator[Nodes]:
    """What is measured in a runtime."""
    for kind in KINDS:
        for T, N in SIZES:
            yield from (Nodes(kind, T, N, H) for H in HIDDEN)
        yield from (Nodes(kind, 1, 1, H) for H in (32, 128))
        yield from (Nodes(kind, 50, N, H, both=True) for N in (1, 8) for H in (8, 32, 64, 128))
        for count in (2, 4):
            yield from (Nodes(kind, 50, 1, H, count) for H in (8, 32, 64) if H * count <= 128)
        yield from (Nodes(kind, 50, 1, H, 4, stacked=False) for H in (8, 32))
        if runtime != "tract":  # whose sizes come with the feed
            yield from (Nodes(kind, 100, N, H, open_T=True) for N in (1, 8) for H in (16, 32, 64, 128, 256))


def ratio(runtime: Any, nodes: Nodes, seconds: float) -> tuple[float, float] | str:
    """The time of the lowered nodes, and of the result with `native=True`, divided by that of the nodes themselves;
    what is wrong where that is not possible."""
    model, feed = nodes.job()
    lowered = rl.lower(model, target=runtime)
    kept = rl.lower(model, target=runtime, native=True)
    jobs = {NATIVE: (model, feed), "lowered": (lowered, feed)}
    if [node.op_type for node in kept.graph.node] not in (
        [node.op_type for node in model.graph.node],
        [node.op_type for node in lowered.graph.node],
    ):
        jobs["kept"] = (kept, feed)
    times = timed(runtime, jobs, run(model, feed), seconds)
    own, other = times[NATIVE].call, times["lowered"].call
    if own is None or other is None:
        return f"{times[NATIVE].outcome}, lowered {times['lowered'].outcome}"
    stays = any(node.op_type in GATES for node in kept.graph.node)
    both = times["kept"].call if "kept" in times else own if stays else other
    return other / own, (both or other) / own


def report(seconds: float = 0.3, runtimes: Sequence[str] = RUNTIMES) -> dict[str, Any]:
    """Print a line for each kind of nodes and T and N, with the ratio by H; return the figures."""
    results: dict[str, Any] = {}
    for runtime in runtimes:
        if reason := why_absent(runtime):
            print(f"\n{reason}")
            continue
        print(f"\n{runtime}: time lowered / native, by H\n")
        found: dict[tuple[str, int, int], dict[int, Any]] = {}
        kept = []
        for nodes in every(runtime):
            row = found.setdefault((str(nodes), nodes.T, nodes.N), {})
            got = ratio(runtime, nodes, seconds)
            row[nodes.H] = got if isinstance(got, str) else round(got[0], 2)
            kept += [] if isinstance(got, str) else [got[1]]
            print(f"{nodes} {nodes.T} {nodes.N}: {nodes.H}: {row[nodes.H]}", flush=True)
        for (name, T, N), row in found.items():
            print(f"| {name} | {T} | {N} | {row} |")
        print(f"{runtime}: native=True / native: geometric mean {geometric_mean(kept):.2f}")
        results[runtime] = {" ".join(map(str, key)): row for key, row in found.items()}
    return results
