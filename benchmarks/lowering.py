"""Time lowering, making streams and the start of the command, and count the operators of a step."""

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import compose, helper, numpy_helper

import rnn_lowering as rl
from benchmarks.loops import twenty_nodes
from benchmarks.models import GATES, Row
from benchmarks.runtime import lowered
from rnn_lowering.model.scopes import repeating_nodes

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


def chain(count: int, H: int = 8) -> onnx.ModelProto:
    """A model of `count` stacked LSTM nodes."""
    rng = np.random.default_rng(0)
    tensors = [numpy_helper.from_array(np.array([1]), "one")]
    nodes, x = [], "X"
    for n in range(count):
        shapes = {f"W{n}": (1, 4 * H, H), f"R{n}": (1, 4 * H, H), f"B{n}": (1, 8 * H)}
        tensors += [
            numpy_helper.from_array(rng.uniform(-0.3, 0.3, s).astype(np.float32), k) for k, s in shapes.items()
        ]
        nodes.append(helper.make_node("LSTM", [x, *shapes], [f"Y{n}"], f"lstm{n}", hidden_size=H))
        nodes.append(helper.make_node("Squeeze", [f"Y{n}", "one"], [f"S{n}"]))
        x = f"S{n}"
    values = [helper.make_tensor_value_info(name, 1, ["T", "N", H]) for name in ("X", x)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def report() -> dict[str, Any]:
    """Print the measurements; return them as data."""
    result: dict[str, Any] = {"nodes": {}, "steps": {}, "operators_per_step": {}}
    lowered(Row("LSTM", "forward", 2, 1, 8, 8), "unroll")  # imports
    for count in (250, 500, 1000):
        result["nodes"][count] = _timed(f"{count} recurrent nodes", partial(rl.lower, chain(count)))
    for T in (250, 500, 1000):
        model = Row("LSTM", "bidirectional", T, 1, 8, 8).model(17)
        label = f"{T} bidirectional LSTM steps written out"
        result["steps"][T] = _timed(label, partial(rl.lower, model, "unroll", max_unroll=T))
    result["loops"] = exported_loops()
    result["streams"] = streams()
    for op_type in GATES:
        result["operators_per_step"][op_type] = counts = operators_per_step(op_type)
        print(f"{op_type} operators per step: " + ", ".join(f"{kind} {n:g}" for kind, n in counts.items()))
    result["import"] = _timed("python -c 'import rnn_lowering'", lambda: _python("-c", "import rnn_lowering"))
    result["help"] = _timed("rnn-lower --help", lambda: _python("-m", "rnn_lowering", "--help"))
    return result


def exported_loops() -> dict[str, float]:
    """Measure how long it takes to unroll an exported Loop, its bytes, and the search for Loops in other models."""
    model, without = twenty_nodes(), ir.from_proto(chain(1000))
    made: list[onnx.ModelProto] = []
    label = "1000 steps of an exported Loop of 20 nodes written out"
    seconds = _timed(label, lambda: made.append(rl.lower(model, "unroll", lower_loops=True, max_unroll=1000)))
    size = made[0].ByteSize() / len(made[0].graph.node)
    print(f"{size:.0f} bytes for each node of a step")
    looking = _timed("Loops looked for in 1000 recurrent nodes", lambda: list(repeating_nodes(without)))
    return {"unrolled": seconds, "bytes": size, "none": looking}


def streams() -> dict[str, float]:
    """Measure how long the command takes to make streams of a net like GTCRN and of two in a row, compared with the
    originals."""
    from gtcrn import gtcrn

    model, _ = gtcrn()
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "net.onnx"), Path(folder, "stream.onnx")
        for net in (model, _twice(model)):
            onnx.save(net, source)
            count = len(net.graph.node)
            for axis in ("time=1", "time"):
                command = ("-m", "rnn_lowering", str(source), str(made), "--stream", axis, "--force")
                label = f"--stream {axis}, {count} nodes, compared"
                result[f"{count} {axis}"] = _timed(label, partial(_python, *command))
    return result


def _twice(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model behind itself: its output is its input."""
    first, second = (compose.add_prefix(model, prefix) for prefix in ("first_", "second_"))
    (given,), (made,) = model.graph.input, model.graph.output
    both = compose.merge_models(first, second, io_map=[(f"first_{made.name}", f"second_{given.name}")])
    for value in (*both.graph.input, *both.graph.output):
        value.type.CopyFrom(given.type)
    return both


def operators_per_step(op_type: str) -> dict[str, float]:
    """Count the nodes of a body, and those that one more written-out step adds."""

    def nodes(kind: str, T: int) -> int:
        graph = lowered(Row(op_type, "forward", T, 1, 8, 256), kind).graph
        bodies = [len(a.g.node) for n in graph.node for a in n.attribute if a.HasField("g")]
        return bodies[0] if bodies else len(graph.node)

    counts: dict[str, float] = {kind: nodes(kind, 9) for kind in ("portable", "loop", "onnxruntime")}
    return counts | {"unroll": nodes("unroll", 9) - nodes("unroll", 8)}


def _timed(label: str, action: Any) -> float:
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    print(f"{label}: {seconds:.2f} s", flush=True)
    return seconds


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
