"""LinearAttention and CausalConvWithState in the body of a Loop or Scan: both are lowered in one call."""

from collections.abc import Callable
from typing import Any

import causal_conv
import numpy as np
import onnx
import pytest
from attention import STANDARD, Attention
from cases import Arrays
from causal_conv import ConvCase
from graphs import MS
from loop_models import operators, run
from onnx import helper, numpy_helper

import rnn_lowering as rl

STEPS = 3


def repeated(single: onnx.ModelProto, operator: str, data: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A Loop or Scan of a model of one node: past_state is its state, and each step takes a row of the other inputs
    and returns a row of output."""
    floats = onnx.TensorProto.FLOAT
    graph, scan = single.graph, operator == "Scan"
    nodes, values = [], list(graph.input)
    state = next(value for value in values if value.name == "past_state")
    rows = [value for value in values if value.name in data]
    present, output = (next(v for v in graph.output if v.name == name) for name in ("present_state", "output"))
    if not scan:
        nodes += [helper.make_node("Gather", [f"{row.name}s", "i"], [row.name]) for row in rows]
        nodes += [helper.make_node("Identity", ["going"], ["still"])]
    number = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
    going, still = (helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("going", "still"))
    inputs = [state, *rows] if scan else [number, going, state]
    outputs = [present, output] if scan else [still, present, output]
    body = helper.make_graph([*nodes, *graph.node], "body", inputs, outputs, list(graph.initializer))
    given = ["past", *(f"{row.name}s" for row in rows)] if scan else ["M", "yes", "past"]
    attributes: dict[str, Any] = {"num_scan_inputs": len(rows)} if scan else {}
    node = helper.make_node(operator, given, ["last", "outputs"], "repeat", body=body, **attributes)
    shape = [d.dim_value for d in state.type.tensor_type.shape.dim]
    stacked = [STEPS, *(d.dim_value for d in output.type.tensor_type.shape.dim)]
    made = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("past", floats, shape)]
        + [helper.make_tensor_value_info(f"{n}s", floats, [STEPS, *data[n]]) for n in (row.name for row in rows)],
        [helper.make_tensor_value_info(n, floats, s) for n, s in (("last", shape), ("outputs", stacked))],
        [numpy_helper.from_array(np.asarray(STEPS), "M"), numpy_helper.from_array(np.asarray(True), "yes")],
    )
    return helper.make_model(made, opset_imports=list(single.opset_import), ir_version=10)


ATTENTIONS = {
    "contrib": Attention(B=1, T=4),
    "standard": Attention("delta", STANDARD, B=1, T=4),
    "one token": Attention("gated", B=1, T=1),
}
CONVS = {"standard": ConvCase(length=4), "contrib": ConvCase(MS, length=4), "one frame": ConvCase(length=1)}
CASES: dict[str, tuple[onnx.ModelProto, dict[str, tuple[int, ...]], Arrays, Callable[[Arrays], Arrays]]] = {}
for name, attention in ATTENTIONS.items():
    shapes = {n: s for n, s in attention.shapes().items() if n != "past_state"}
    CASES[f"LinearAttention, {name}"] = attention.model(), shapes, attention.feed(), attention.expected
for name, conv in CONVS.items():
    conv_feed = causal_conv.feed(conv)
    CASES[f"CausalConvWithState, {name}"] = (
        causal_conv.model(conv),
        {"input": conv.shapes["input"]},
        conv_feed,
        lambda given, case=conv: causal_conv.expected(case, given),  # type: ignore[misc]
    )


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
@pytest.mark.parametrize("name", CASES)
def test_a_node_in_a_body(name: str, operator: str) -> None:
    single, data, feed, oracle = CASES[name]
    model = repeated(single, operator, data)
    rng = np.random.default_rng(1)
    rows = {n: np.stack([feed[n], *(feed[n] * rng.uniform(0.5, 1) for _ in range(STEPS - 1))]) for n in data}
    state, outputs = feed["past_state"], []
    for step in range(STEPS):
        wanted = oracle({**feed, "past_state": state, **{n: rows[n][step] for n in data}})
        state = wanted["present_state"]
        outputs.append(wanted["output"])
    given = {"past": feed["past_state"]} | {f"{n}s": array.astype(np.float32) for n, array in rows.items()}
    options: list[tuple[str, dict[str, Any]]] = [("auto", {}), ("auto", {"target": "tvm"})]
    options += [(form, {"loops": True}) for form in ("unroll", "scan", "loop")]
    for form, keywords in options:
        lowered = rl.lower(model, form, **keywords)
        assert not operators(lowered) & {"LinearAttention", "CausalConvWithState"}
        last, stacked = run(lowered, given)
        np.testing.assert_allclose(last, state, rtol=1e-4, atol=1e-5, err_msg=form)
        np.testing.assert_allclose(stacked, np.stack(outputs), rtol=1e-4, atol=1e-5, err_msg=form)
