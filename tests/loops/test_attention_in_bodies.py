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
from graphs import MS, Graph
from loop_models import operators, run

import rnn_lowering as rl

STEPS = 3


def repeated(single: onnx.ModelProto, operator: str, data: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A Loop or Scan of a model of one node: past_state is its state, and each step takes a row of the other inputs
    and returns a row of output."""
    scan, inner, graph = operator == "Scan", Graph(), Graph()
    values = {v.name: v for v in (*single.graph.input, *single.graph.output)}
    shapes = {name: [d.dim_value for d in v.type.tensor_type.shape.dim] for name, v in values.items()}
    if not scan:
        inner.input("i", [], np.int64)
        inner.input("going", [], np.bool_)
        inner.output(inner.node("Identity", "going", outputs=["still"]), [], np.bool_)
    inner.inputs.append(values["past_state"])
    inner.outputs += [values["present_state"], values["output"]]
    graph.input("past", shapes["past_state"])
    for row in data:
        graph.input(f"{row}s", [STEPS, *data[row]])
        if scan:
            inner.inputs.append(values[row])
        else:
            inner.node("Gather", f"{row}s", "i", outputs=[row])
    inner.nodes += single.graph.node
    inner.tensors += single.graph.initializer
    body = inner.model().graph
    given = (
        ["past", *(f"{row}s" for row in data)] if scan else [graph.constant(STEPS), graph.constant(True), "past"]
    )
    more: dict[str, Any] = {"num_scan_inputs": len(data)} if scan else {}
    graph.several(operator, *given, outputs=["last", "outputs"], name="repeat", body=body, **more)
    graph.output("last", shapes["past_state"])
    graph.output("outputs", [STEPS, *shapes["output"]])
    (opset,) = (held.version for held in single.opset_import if not held.domain)
    return graph.model(opset, [MS], ir_version=10)


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


@pytest.mark.few(1)
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
    options += [(form, {"lower_loops": True}) for form in ("unroll", "scan", "loop")]
    form: Any
    for form, keywords in options:
        lowered = rl.lower(model, form, **keywords)
        assert not operators(lowered) & {"LinearAttention", "CausalConvWithState"}
        last, stacked = run(lowered, given)
        np.testing.assert_allclose(last, state, rtol=1e-4, atol=1e-5, err_msg=form)
        np.testing.assert_allclose(stacked, np.stack(outputs), rtol=1e-4, atol=1e-5, err_msg=form)
