"""Generate tokens with a GPT of two layers: a prompt at once, then token after token, without a second model.

    python examples/stream_gpt.py [GPT.onnx [STEP.onnx]]

The model has random weights and takes whole sequences, as an exporter writes it: its causal mask and its positions
follow from the length. As a stream, its past keys and values are states, so a new token costs one row and not the
whole sequence again. The script compares both, and writes the models to the files that you name.
"""

import sys
import time
from pathlib import Path
from typing import Any

import guide  # noqa: F401  (says what is missing)
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import rnn_lowering as rl

LAYERS, WIDTH, HEADS, WORDS, LONGEST = 2, 64, 4, 50, 512
PROMPT, MORE = 100, 100


class Net:
    """A graph that grows, with random weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, array: Any) -> str:
        name = f"constant_{len(self.tensors)}"
        held = np.asarray(array)
        held = held.astype(np.float32) if held.dtype.kind == "f" else held
        self.tensors.append(numpy_helper.from_array(held, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) * shape[0] ** -0.5)

    def node(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def normalized(self, x: str) -> str:
        return self.node("LayerNormalization", x, self.constant(np.ones(WIDTH)), axis=-1)

    def heads(self, x: str) -> str:
        """Return a projection of x as [batch, heads, time, size]."""
        projected = self.node("MatMul", x, self.weight(WIDTH, WIDTH))
        parts = self.node("Reshape", projected, self.constant(np.array([0, 0, HEADS, WIDTH // HEADS])))
        return self.node("Transpose", parts, perm=[0, 2, 1, 3])

    def attention(self, x: str, kept: str) -> str:
        q, k, v = (self.heads(x) for _ in range(3))
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        scaled = self.node("Mul", scores, self.constant((WIDTH // HEADS) ** -0.5))
        masked = self.node("Where", kept, scaled, self.constant(float(np.finfo(np.float32).min)))
        weighed = self.node("MatMul", self.node("Softmax", masked, axis=-1), v)
        joined = self.node("Transpose", weighed, perm=[0, 2, 1, 3])
        return self.node(
            "MatMul", self.node("Reshape", joined, self.constant([0, 0, WIDTH])), self.weight(WIDTH, WIDTH)
        )

    def layer(self, x: str, kept: str) -> str:
        x = self.node("Add", x, self.attention(self.normalized(x), kept))
        wide = self.node("Gelu", self.node("MatMul", self.normalized(x), self.weight(WIDTH, 4 * WIDTH)))
        return self.node("Add", x, self.node("MatMul", wide, self.weight(4 * WIDTH, WIDTH)))


def gpt() -> onnx.ModelProto:
    """Return a model from "tokens" [1, time] to "logits" [1, time, WORDS]."""
    net = Net()
    length = net.node("Gather", net.node("Shape", "tokens"), net.constant(1))
    numbers = net.node("Range", net.constant(0), length, net.constant(1))
    rows, columns = (net.node("Unsqueeze", numbers, net.constant([axis])) for axis in (1, 0))
    kept = net.node("LessOrEqual", columns, rows)
    positions = net.node("Gather", net.weight(LONGEST, WIDTH), numbers)
    x = net.node("Add", net.node("Gather", net.weight(WORDS, WIDTH), "tokens"), positions)
    for _ in range(LAYERS):
        x = net.layer(x, kept)
    net.node("MatMul", net.normalized(x), net.weight(WIDTH, WORDS), name="logits")
    values: list[onnx.ValueInfoProto] = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "time"]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "time", WORDS]),
    ]
    graph = helper.make_graph(net.nodes, "gpt", values[:1], values[1:], net.tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def session(model: onnx.ModelProto) -> Any:
    """Return a session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def main(arguments: list[str]) -> None:
    """Generate tokens by the stream, and the same ones by the whole model."""
    original = gpt()
    step = rl.lower(original, stream="time")
    for path, model in zip(arguments, (original, step), strict=False):
        Path(path).write_bytes(model.SerializeToString())
    stream, whole = rl.Stream(session(step)), session(original)
    tokens = np.random.default_rng(1).integers(0, WORDS, (1, PROMPT))
    rows = [stream({"tokens": tokens})["logits"]]
    times: list[tuple[float, float]] = []
    for _ in range(MORE):
        tokens = np.concatenate([tokens, rows[-1][:, -1:].argmax(-1)], axis=1)
        start = time.perf_counter()
        rows.append(stream({"tokens": tokens[:, -1:]})["logits"])
        middle = time.perf_counter()
        (expected,) = whole.run(["logits"], {"tokens": tokens})
        times.append((middle - start, time.perf_counter() - middle))
    difference = np.abs(np.concatenate(rows, axis=1) - expected).max()
    shapes = {name: [*state.shape] for name, state in stream.states.items()}
    print(f"a prompt of {PROMPT} tokens, then {MORE} more: largest difference {difference:.1e}")
    print(f"states: {', '.join(f'{name} {shape}' for name, shape in shapes.items())}")
    one, again = np.median(times, axis=0) * 1e6
    print(f"{one:.0f} microseconds per token, {again:.0f} with the whole sequence again (medians)")


if __name__ == "__main__":
    main(sys.argv[1:])
