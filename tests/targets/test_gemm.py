"""What is rewritten in a finished body: MatMul and Add as one Gemm, where that computes the same."""

import onnx_ir as ir
import pytest

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import Names
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.runtimes.onnxruntime import gemms


def operators(rank: int, more: str = "", *, gemm: bool = True) -> list[str]:
    """The operators of a body of x @ w + x and what `more` asks for."""
    op = Ops(17, Names(()), "n", ir.DataType.FLOAT, Dialect(), finish=[gemms] if gemm else [])
    with op.body():
        shape = (1, 2, 2)[3 - rank :]
        x, w = op.body_input("x", ir.DataType.FLOAT, shape), op.body_input("w", ir.DataType.FLOAT, (2, 2))
        product = x @ w
        outputs: list[Tensor] = [x + product if more == "product second" else product + x]
        if more == "used twice":
            outputs.append(op.unary("Tanh", product))
        if more == "leaves the body":
            outputs.append(product)
        graph = op.body_graph([x, w], outputs)
    return [node.op_type for node in graph]


def test_a_product_and_its_sum() -> None:
    assert operators(2) == ["Gemm"]


def test_without_the_knob() -> None:
    assert operators(2, gemm=False) == ["MatMul", "Add"]


@pytest.mark.parametrize("more", ["used twice", "leaves the body", "product second"])
def test_where_a_gemm_would_not_do(more: str) -> None:
    assert "Gemm" not in operators(2, more)


def test_gemm_is_of_rank_2() -> None:
    assert operators(3) == ["MatMul", "Add"]
