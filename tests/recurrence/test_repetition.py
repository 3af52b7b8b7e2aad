"""A form repeats any recurrence: here one whose states are a matrix and a vector for each row of the batch."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Array
from running import run

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import Names
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.forms import Recurrence, Tensors, loop, scan, unroll
from rnn_lowering.targets.runtimes.onnxruntime import gemms

T, N, K, V = 5, 2, 3, 4
DIALECTS = {
    "plain": Dialect(),
    "matrices": Dialect(matrix_steps=True),
    "stacked outside": Dialect(stack_outside=True),
    "states apart": Dialect(states_apart=True, reverse_in_loop=True),
}
FINISH = {"stacked outside": [gemms]}


def attention(op: Ops, keys: Tensor, values: Tensor, reverse: bool) -> Recurrence:
    """S = S / 2 + kᵀ v, y = k S, h = h / 4 + y."""

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        (S, h), (k, v) = states, rows
        rank = k.rank
        S = S * op.constant(0.5) + op.unsqueeze(k, [rank]) * op.unsqueeze(v, [rank - 1])
        y = op.squeeze(op.unsqueeze(k, [rank - 1]) @ S, [rank - 1])
        h = h * op.constant(0.25) + y
        return [S, h], [y, h]

    batch = keys.shape[1]
    return Recurrence([op.zero((1, batch, K, V)), op.zero((1, batch, V))], [keys, values], step, reverse)


def expected(k: Array, v: Array, reverse: bool) -> list[Array]:
    S, h = np.zeros((N, K, V)), np.zeros((N, V))
    ys, hs = np.zeros((T, 1, N, V)), np.zeros((T, 1, N, V))
    for t in reversed(range(T)) if reverse else range(T):
        S = S / 2 + k[t][:, :, None] * v[t][:, None]
        ys[t] = (k[t][:, None] @ S)[:, 0]
        h = h / 4 + ys[t, 0]
        hs[t] = h
    return [S[None], h[None], ys, hs]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("repeat", [scan, loop, unroll], ids=["scan", "loop", "unroll"])
def test_states_of_any_rank(repeat: Any, dialect: str, known: bool, reverse: bool) -> None:
    length, batch = T if known or repeat is unroll else None, N if known else None
    op = Ops(17, Names(()), "n", ir.DataType.FLOAT, DIALECTS[dialect], finish=FINISH.get(dialect, ()))
    shapes = {"k": (length, batch, K), "v": (length, batch, V)}
    inputs = {n: ir.Value(name=n, type=ir.TensorType(op.dtype), shape=ir.Shape(s)) for n, s in shapes.items()}
    keys, values = (op.given(inputs[name], op.dtype, shape) for name, shape in shapes.items())
    final, ys = repeat(op, attention(op, keys, values, reverse))
    outputs = op.outputs([*final, *ys])
    for value, tensor in zip(outputs, [*final, *ys], strict=True):
        value.type, value.shape = ir.TensorType(op.dtype), ir.Shape(tensor.shape)
    made: dict[str, Any] = {"nodes": op.nodes, "initializers": op.initializers, "opset_imports": {"": 17}}
    graph = ir.Graph([*inputs.values()], outputs, name="repetition", **made)
    model = ir.to_proto(ir.Model(graph, ir_version=8))
    onnx.checker.check_model(model)
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(T, N, n)).astype(np.float32) for n in (K, V))
    for got, want in zip(run(model, {"k": k, "v": v}).values(), expected(k, v, reverse), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
