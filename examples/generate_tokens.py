"""Run a layer of linear attention as in Qwen3.5: a prompt at once, then token after token.

    python examples/generate_tokens.py [LAYER.onnx [STEP.onnx]]

The layer has random weights, and com.microsoft's CausalConvWithState and LinearAttention, which only onnxruntime
runs. The lowered stream has primitive operators, and its two states are inputs and outputs. The script prints the
largest difference of both, and writes the layer and the stream to the files that you name.
"""

import sys
from pathlib import Path
from typing import Any

import guide  # noqa: F401  (says what is missing)
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import rnn_lowering as rl

WIDTH, HEADS, SIZE, KERNEL = 32, 4, 8, 4
INNER = HEADS * SIZE


def layer() -> onnx.ModelProto:
    """Return a model from "hidden" [1, T, WIDTH] and two states to "output" and the next states."""
    rng = np.random.default_rng(0)
    shapes = {"W_qkv": (WIDTH, 3 * INNER), "W_gates": (WIDTH, 2 * HEADS), "W_out": (INNER, WIDTH)}
    weights = {name: rng.standard_normal(shape) * shape[0] ** -0.5 for name, shape in shapes.items()}
    weights["taps"] = rng.standard_normal((3 * INNER, 1, KERNEL)) * 0.5
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    tensors.append(numpy_helper.from_array(np.array([INNER] * 3), "thirds"))
    tensors.append(numpy_helper.from_array(np.array([HEADS] * 2), "halves"))

    def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(operator, inputs.split(), outputs.split(), operator + "_" + outputs, **attributes)

    heads: dict[str, Any] = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "update_rule": "gated_delta"}
    nodes = [
        node("MatMul", "hidden W_qkv", "qkv"),
        node("Transpose", "qkv", "channels", perm=[0, 2, 1]),
        helper.make_node(
            "CausalConvWithState",
            ["channels", "taps", "", "past_conv"],
            ["mixed", "present_conv"],
            "conv",
            domain="com.microsoft",
            activation="silu",
        ),
        node("Transpose", "mixed", "rows", perm=[0, 2, 1]),
        node("Split", "rows thirds", "q k v", axis=2),
        node("LpNormalization", "k", "unit_k", axis=-1, p=2),
        node("MatMul", "hidden W_gates", "gates"),
        node("Split", "gates halves", "a b", axis=2),
        node("Softplus", "a", "rate"),
        node("Neg", "rate", "decay"),
        node("Sigmoid", "b", "beta"),
        helper.make_node(
            "LinearAttention",
            ["q", "unit_k", "v", "past_state", "decay", "beta"],
            ["attended", "present_state"],
            "attention",
            domain="com.microsoft",
            **heads,
        ),
        node("MatMul", "attended W_out", "output"),
    ]
    states: dict[str, list[int | str]] = {"conv": [1, 3 * INNER, KERNEL - 1], "state": [1, HEADS, SIZE, SIZE]}
    declared = {f"{when}_{name}": shape for when in ("past", "present") for name, shape in states.items()}
    values: dict[str, list[int | str]] = {"hidden": [1, "T", WIDTH], "output": [1, "T", WIDTH], **declared}
    info = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values.items()}
    graph = helper.make_graph(
        nodes,
        "layer",
        [info[name] for name in ("hidden", "past_conv", "past_state")],
        [info[name] for name in ("output", "present_conv", "present_state")],
        tensors,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def main(arguments: list[str]) -> None:
    """Compare both models on a prompt of 100 tokens and 20 tokens behind it."""
    original = layer()
    lowered = rl.lower(original, stream="T")
    for path, model in zip(arguments, (original, lowered), strict=False):
        Path(path).write_bytes(model.SerializeToString())
    tokens = np.random.default_rng(1).standard_normal((1, 120, WIDTH)).astype(np.float32)
    first = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in original.graph.input[1:]}
    given = {"hidden": tokens, **{name: np.zeros(shape, np.float32) for name, shape in first.items()}}
    kernels = onnxruntime.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = kernels.run(["output"], given)
    stream = rl.Stream(lowered.SerializeToString())
    parts = [tokens[:, :100], *np.split(tokens[:, 100:], 20, axis=1)]
    got = np.concatenate([stream({"hidden": part})["output"] for part in parts], axis=1)
    operators = sorted({node.op_type for node in lowered.graph.node})
    print(f"a prompt of 100 tokens, then 20 more: largest difference {np.abs(got - expected).max():.1e}")
    print(f"operators: {', '.join(operators)}")


if __name__ == "__main__":
    main(sys.argv[1:])
