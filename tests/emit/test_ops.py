"""The emission of each primitive operator at each opset computes what NumPy does: in onnx's reference evaluator."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Array
from onnx.reference import ReferenceEvaluator
from running import run

from rnn_lowering.emit import composites
from rnn_lowering.emit.composites import COMPOSED, can_flip, count, flip, zeros
from rnn_lowering.emit.constants import Literal, literal
from rnn_lowering.emit.dialect import Dialect, Versioned
from rnn_lowering.emit.draft import Names
from rnn_lowering.emit.open_scopes import OpenScopes
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence import weights

OPSETS = (7, 8, 9, 10, 11, 12, 13, 17, 18, 21, 24)
DTYPES = {"float32": ir.DataType.FLOAT, "float64": ir.DataType.DOUBLE}
A = np.arange(24, dtype=np.float32).reshape(4, 2, 3) - 7.25
B = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
FLAT = A.reshape(8, 3)
COUNT = np.array([5], np.int64)

Emission = Callable[..., "Tensor | Sequence[Tensor]"]


def emitted(
    emission: Emission,
    arrays: Sequence[Array],
    opset: int,
    *,
    known: bool = False,
    sized: bool = True,
    unsupported: Sequence[str] = (),
) -> tuple[list[Array], onnx.ModelProto]:
    """What `emission(op, *tensors)` computes, and the model.

    Args:
        known: The arrays are constants; else they are inputs of the model.
        sized: The sizes of inputs are known.
    """
    dtype = DTYPES.get(arrays[0].dtype.name, ir.DataType.FLOAT)
    op = Ops(opset, Names(()), "n", dtype, Dialect(), {name: COMPOSED[name] for name in unsupported})
    inputs, tensors = [], []
    for n, array in enumerate(arrays):
        element, shape = ir.DataType.from_numpy(array.dtype), array.shape
        value = ir.Value(name=f"in{n}", type=ir.TensorType(element), shape=ir.Shape(shape))
        inputs.append(value)
        tensors.append(op.given(value, element, shape if sized else (None,) * array.ndim))
    if known:
        tensors = [op.from_constant(literal(array, ir.DataType.from_numpy(array.dtype))) for array in arrays]
    found = emission(op, *tensors)
    outputs = op.outputs([found] if isinstance(found, Tensor) else list(found))
    graph = ir.Graph(
        [] if known else inputs,
        outputs,
        nodes=op.nodes,
        initializers=op.initializers,
        opset_imports={"": opset},
        name="emitted",
    )
    for value, tensor in zip(outputs, [found] if isinstance(found, Tensor) else found, strict=True):
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
    model = ir.to_proto(ir.Model(graph, ir_version=8))
    onnx.checker.check_model(model)
    feed = {} if known else {f"in{n}": array for n, array in enumerate(arrays)}
    if opset < 9 and any(node.op_type == "Loop" for node in model.graph.node):
        return list(run(model, feed).values()), model  # the evaluator stacks numbers as [n, 1]
    return list(ReferenceEvaluator(model).run(None, feed)), model


CASES: dict[str, tuple[Emission, list[Array], Any]] = {
    "add": (lambda op, a, b: a + b, [A, B], A + B),
    "sub": (lambda op, a, b: a - b, [A, B], A - B),
    "mul": (lambda op, a, b: a * b, [A, B], A * B),
    "div": (lambda op, a, b: a / b, [A, B], A / B),
    "zero minus": (lambda op, b: op.zero(b.shape) - b, [B], -B),
    "less": (lambda op, a, b: op.less(a, b), [A, B], A < B),
    "less of integers": (lambda op, a: op.less(op.constant([3]), a), [np.arange(6)], np.arange(6) > 3),
    "above": (lambda op, a: op.above(a, 1.75), [A], (A > 1.75).astype(np.float32)),
    "clip": (lambda op, a: op.clip(a, 2.5), [A], np.clip(A, -2.5, 2.5)),
    "clip float64": (lambda op, a: op.clip(a, 2.5), [A.astype(float)], np.clip(A.astype(float), -2.5, 2.5)),
    "zero_unless": (
        lambda op, a: [op.zero_unless(op.less(op.constant([n]), op.constant([1])), a) for n in (0, 1)],
        [A],
        [A, 0 * A],
    ),
    "cast": (lambda op, a: op.cast(a, ir.DataType.INT64), [A], A.astype(np.int64)),
    "transpose": (lambda op, a: op.transpose(a, [1, 0, 2]), [A], A.transpose(1, 0, 2)),
    "transpose_last": (lambda op, a: op.transpose_last(a), [A], A.transpose(0, 2, 1)),
    "split": (lambda op, a: op.split(a, [1, 2]), [A], [A[..., :1], A[..., 1:]]),
    "split of axis 0": (lambda op, a: op.split(a, [1, 2, 1], 0), [A], [A[:1], A[1:3], A[3:]]),
    "concat": (lambda op, a: op.concat([a, a, op.zero((1, 2, 3))], 0), [A], np.concatenate([A, A, 0 * A[:1]])),
    "unsqueeze": (lambda op, a: op.unsqueeze(a, [0, 2]), [B], B[None, :, None]),
    "squeeze": (lambda op, a: op.squeeze(a, [0]), [B[None]], B),
    "flip": (lambda op, a: flip(op, a), [A], A[::-1]),
    "count": (count, [COUNT], np.arange(5)),
    "zeros": (lambda op, n: zeros(op, [n, op.constant([3])]), [COUNT], np.zeros((5, 3))),
    "dim": (lambda op, a: op.dim(a, 1), [A], [np.array([2])]),
}
NOT_FOLDED = ("above", "clip", "clip float64", "zero_unless", "zero minus")
"""Emitted of constants too: nothing in a recurrence does that to a constant alone."""
EMITTED_ONLY: dict[str, tuple[Emission, list[Array], Any]] = {
    "matmul": (lambda op, a, b: a @ op.transpose(b, [1, 0]), [A, B], A @ B.T),
    "flatten": (lambda op, a: op.flatten(a), [A], FLAT),
    "take": (lambda op, a: op.take(a, op.constant([2, 0])), [A], A[[2, 0]]),
    "reshape": (lambda op, a: op.reshape(a, (3, 8)), [A], A.reshape(3, 8)),
    "reshape that keeps a size": (lambda op, a: op.reshape(a, (None, 6)), [A], A.reshape(4, 6)),
    "reshape to sizes": (
        lambda op, a: op.reshape(a, (3, None), [op.constant([n]) for n in (3, 8)]),
        [A],
        A.reshape(3, 8),
    ),
    "unary": (lambda op, a: op.unary("LeakyRelu", a, alpha=0.5), [A], np.where(A < 0, A / 2, A)),
}


def agrees(found: list[Array], expected: Any) -> None:
    wanted = expected if isinstance(expected, list) else [expected]
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.every_pair
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", [*CASES, *EMITTED_ONLY])
def test_an_operator(name: str, opset: int) -> None:
    emission, arrays, expected = (CASES | EMITTED_ONLY)[name]
    agrees(emitted(emission, arrays, opset)[0], expected)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", ["flip", "dim"])
def test_of_sizes_that_are_not_known(name: str, opset: int) -> None:
    emission, arrays, expected = CASES[name]
    if name == "flip" and opset < 10:
        assert not can_flip(opset, None)
        return
    agrees(emitted(emission, arrays, opset, sized=False)[0], expected)


@pytest.mark.parametrize("opset", [7, 12, 13])
@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_FOLDED])
def test_constants_are_folded(name: str, opset: int) -> None:
    emission, arrays, expected = CASES[name]
    found, model = emitted(emission, arrays, opset, known=True)
    agrees(found, expected)
    assert {node.op_type for node in model.graph.node} == {"Identity"}


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize(("name", "lacks"), [("clip", "Clip"), ("above", "Less")])
def test_composed_operators(name: str, lacks: str, opset: int) -> None:
    emission, arrays, expected = CASES[name]
    found, model = emitted(emission, arrays, opset, unsupported=[lacks])
    agrees(found, expected)
    assert lacks not in {node.op_type for node in model.graph.node}


def test_rows_are_picked_by_products() -> None:
    index = np.array([[5, 0], [1, 7]])
    found, model = emitted(
        lambda op, x: op.take(x, op.from_constant(literal(index, ir.DataType.INT64))),
        [FLAT],
        13,
        unsupported=["Gather"],
    )
    agrees(found, FLAT[index])
    assert "Gather" not in {node.op_type for node in model.graph.node}


# Versions


def versioned() -> Iterator[tuple[str, Versioned[Any, Any, Any]]]:
    for name, value in (vars(OpenScopes) | vars(Ops) | vars(composites) | vars(weights)).items():
        if isinstance(value, Versioned):
            yield name, value


def test_every_opset_has_its_variants() -> None:
    found = dict(versioned())
    assert len(found) >= 9
    for name, function in found.items():
        versions = [first for first, _ in function.variants]
        assert versions == sorted(set(versions))
        assert versions[0] == {"at_least": 8, "where": 9, "integer_product": 11}.get(name, 1)


# Constants


def test_equal_expressions_are_equal() -> None:
    source = literal(A, ir.DataType.FLOAT)
    one, two = (literal(A, ir.DataType.FLOAT).transposed([1, 0, 2]).sliced(0, 0, 1) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != source.transposed([1, 0, 2]).sliced(0, 1, 2)


def test_small_constants_are_equal_by_their_numbers() -> None:
    small = literal([1.0, 2.0], ir.DataType.FLOAT)
    assert small.flipped().flipped().key() == small.key()
    assert small.flipped().key() != small.key()
    assert isinstance(small.flipped().key(), Literal)


def test_constants_evaluate() -> None:
    source = literal(A, ir.DataType.FLOAT)
    np.testing.assert_array_equal(source.transposed([2, 0, 1]).read(), A.transpose(2, 0, 1))
    np.testing.assert_array_equal(source.followed_by([source.sliced(0, 1, 3)], 0).read(), [*A, *A[1:3]])
    for constant in (source.transposed([2, 0, 1]), source.followed_by([source], 1), source.reshaped((24,))):
        assert constant.read().shape == constant.shape
        assert constant.tensor("t").numpy().tobytes() == np.ascontiguousarray(constant.read()).tobytes()
