"""OpenCV's dnn (`pip install opencv-python-headless`): no Scan, no RNN; of a GRU and an LSTM it ignores attributes.

It has two parsers. If the newer one rejects anything in a model, the older one loads all of it, which rejects most
recurrent nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.targets.misread import (
    Misreading,
    adds_a_window,
    by_operator,
    labels_of,
    of_large_numbers,
    of_multiplied_places,
    of_rounded_sizes,
    opset_of,
    pads,
    sums_all_of_one,
    sums_lone_labels,
)
from rnn_lowering.targets.native import OTHER_ACTIVATIONS, RESET_BEFORE, Excluded, NativeRule, Speed, features
from rnn_lowering.targets.target import AttentionTraits, KnownValue, LoopTraits, ModelTraits, Target

_FLAT = 20.0
"""From here on tanh is 1 in every element type."""


def _bounded_tanh(op: Ops, x: Tensor) -> Tensor:
    """Clip before Tanh, which is NaN between 45 and 88 in OpenCV 5.0."""
    return op.emit("Tanh", [op.clip(x, _FLAT)], x.shape)


def _gather_by_rank_1(op: Ops, x: Tensor, index: Tensor) -> Tensor | None:
    """Gather a row by an index of rank 1: OpenCV turns scalars into tensors of rank 1."""
    return op.squeeze(op.take(x, op.reshape(index, (1,))), [0]) if index.rank == 0 else None


_BOTH_GATES = ("Sigmoid", "Tanh")
"""The functions that an LSTM of one direction may have anywhere."""

RULE = NativeRule(
    "5.0.0",
    "2026-11-28",
    features(
        "GRU, LSTM, forward, bidirectional, Sigmoid, Tanh, linear_before_reset, linear_before_reset 0,"
        "initial state, constant initial state, no initial_h, initial_c of zeros or none, no B, no empty P,"
        "Y_c beside others, named outputs, written hidden_size, a shared X, I = 1, T = 1, N above 1,"
        "no activations, open T, open N, float, in If, opset 7 to 21, opset 22, flipped X and Y,"
        "transposed X and Y, computed weights, unnamed sizes"
    ),
    (
        Excluded(("RNN",), "rejects every RNN"),
        *(Excluded((name,), f"ignores {name}") for name in ("clip", "sequence_lens", "input_forget")),
        # Beside a node that only the older parser has, without an error.
        Excluded(RESET_BEFORE, "ignores linear_before_reset 0 in its older parser"),
        Excluded(("P",), "rejects P, or computes it wrongly"),
        *(
            Excluded((*operator, name), "rejects activations")
            for name in OTHER_ACTIVATIONS
            for operator in ([("GRU",), ("bidirectional",)] if name in _BOTH_GATES else [()])
        ),
        Excluded(("GRU", "N above 1", "no initial_h"), "rejects a batch of a GRU without initial_h"),
        Excluded(("LSTM", "initial state", "no B"), "rejects an LSTM with an initial state and no B"),
        Excluded(("initial_h without initial_c",), "rejects initial_h without initial_c"),
        Excluded(("initial_c without initial_h",), "rejects initial_c without initial_h"),
        # It then takes its older parser for the whole model.
        Excluded(("LSTM", "unnamed sizes"), "rejects most LSTMs if a size of the model has no name"),
    ),
    (
        Speed(("GRU",), 1, 1, {16: 1.15, 32: 0.9, 64: 0.6}),
        Speed(("GRU",), 10, 1, {16: 2.36, 32: 1.5, 48: 0.92, 64: 0.87, 128: 0.35}),
        Speed(("GRU",), 100, 1, {16: 3.6, 32: 2.4, 48: 1.8, 64: 1.34, 128: 0.4}),
        Speed(("GRU",), 10, 8, {8: 1.7, 16: 0.88, 32: 0.37}),
        Speed(("GRU",), 50, 8, {16: 1.32, 32: 0.63, 64: 0.22, 128: 0.27}),
        Speed(("GRU",), 50, 1, {16: 2.0, 32: 1.5, 64: 0.95}, nodes=2),
        Speed(("GRU",), 50, 1, {4: 1.7, 8: 1.76, 16: 1.43}, nodes=4),
        Speed(("GRU", "bidirectional"), 50, 1, {16: 1.63, 32: 1.15, 64: 0.85}),
        Speed(("GRU", "bidirectional"), 50, 8, {8: 1.5, 16: 1.0, 32: 0.2}),
        Speed(("GRU", "open T"), 100, 1, {16: 5.4, 32: 3.5, 64: 1.64, 128: 0.27}),
        Speed(("GRU", "open T"), 50, 8, {16: 2.0, 32: 0.84, 64: 0.12}),
        Speed(("GRU", "open T", "bidirectional"), 50, 1, {8: 3.5, 32: 1.5, 64: 0.24}),
        Speed(("LSTM",), 1, 1, {8: 0.88, 16: 0.76, 32: 0.54, 128: 0.13}),
        Speed(("LSTM",), 10, 1, {8: 1.66, 16: 1.31, 20: 1.18, 24: 1.03, 32: 0.8, 64: 0.38, 128: 0.24, 256: 0.1}),
        Speed(("LSTM",), 100, 1, {8: 2.0, 16: 1.54, 20: 1.18, 24: 1.2, 32: 0.96, 64: 0.31, 128: 0.36, 256: 0.34}),
        Speed(("LSTM",), 10, 8, {4: 1.06, 8: 0.75, 16: 0.42, 32: 0.21}),
        Speed(("LSTM",), 50, 8, {16: 0.49, 32: 0.11, 64: 0.08, 128: 0.11}),
        Speed(("LSTM",), 50, 1, {8: 1.03, 16: 0.91, 32: 0.64, 64: 0.42}, nodes=2),
        Speed(("LSTM",), 50, 1, {4: 0.82, 8: 0.7, 16: 0.7, 32: 0.59}, nodes=4),
        Speed(("LSTM", "bidirectional"), 50, 1, {4: 1.18, 8: 1.03, 16: 0.86, 32: 0.64, 64: 0.42, 128: 0.34}),
        Speed(("LSTM", "open T"), 10, 1, {16: 1.9, 32: 1.3}),
        Speed(("LSTM", "open T"), 100, 1, {16: 2.2, 32: 1.26, 48: 0.7, 64: 0.38, 128: 0.14}),
        Speed(("LSTM", "open T"), 50, 8, {4: 1.67, 8: 1.18, 16: 0.57}),
        Speed(("LSTM", "open T", "bidirectional"), 50, 1, {8: 1.5, 16: 1.18, 32: 0.73}),
    ),
)
"""Measured with 900 random nodes in it. Where runs disagreed, as from H = 64 on, the lowest ratio stands."""


def _large(node: ir.Node, known: KnownValue, opset: int) -> str:
    return of_large_numbers(node)


def _softplus(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "as infinity from 89 on"


def _scatter(node: ir.Node, known: KnownValue, opset: int) -> str:
    """Whether an axis of the updates is longer than that of the data."""
    data, indices = (None if value is None else known(value).shape for value in node.inputs[:2])
    sizes = [] if data is None or indices is None else zip(data, indices, strict=False)
    longer = any(isinstance(a, int) and isinstance(b, int) and b > a for a, b in sizes)
    return "with at most as many updates as rows" if longer else ""


def _average_pool(node: ir.Node, known: KnownValue, opset: int) -> str:
    counts = all(node.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad"))
    return (
        "with ceil_mode as if what is beyond the pads were counted"
        if counts and pads(node)
        else adds_a_window(node, known)
    )


def _resize(node: ir.Node, known: KnownValue, opset: int) -> str:
    return of_multiplied_places(node) or of_rounded_sizes(node, known)


def _max_pool(node: ir.Node, known: KnownValue, opset: int) -> str:
    return adds_a_window(node, known)


def _trilu(node: ir.Node, known: KnownValue, opset: int) -> str:
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    rows, columns = (None, None) if shape is None else shape[-2:]
    if not node.attributes.get_int("upper", 1) or (isinstance(rows, int) and rows == columns):
        return ""
    fits = isinstance(rows, int) and isinstance(columns, int) and rows <= columns
    return "" if fits else "with at most as many rows as columns"


def _einsum(node: ir.Node, known: KnownValue, opset: int) -> str:
    """It keeps the sizes of the first run; an operand with a label twice stays."""
    shapes = [None if value is None else known(value).shape for value in node.inputs]
    is_open = any(shape is None or not shape.is_static() for shape in shapes)
    once = all(len({*part} - {"."}) == len(part.replace(".", "")) for part in labels_of(node)[0])
    if is_open and once:
        return "at the sizes of its first run only"
    return sums_all_of_one(node) or sums_lone_labels(node)


def _rounded(node: ir.Node, known: KnownValue, opset: int) -> str:
    dtype = _dtype(node, known)
    return "of integers rounded down" if dtype is not None and dtype.is_integer() else ""


def _in_parts(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "in parts only"


def _equal(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "of numbers only" if _dtype(node, known) == ir.DataType.BOOL else ""


def _of_floats(node: ir.Node, known: KnownValue, opset: int) -> str:
    dtype = _dtype(node, known)
    return "of floats only" if dtype is not None and dtype.is_integer() else ""


def _neg(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "of other types than int32" if _dtype(node, known) == ir.DataType.INT32 else ""


def _bit_shift(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "of other types than uint64" if _dtype(node, known) == ir.DataType.UINT64 else ""


def _dtype(node: ir.Node, known: KnownValue) -> ir.DataType | None:
    return None if node.inputs[0] is None else known(node.inputs[0]).dtype


_MISREAD: Mapping[str, Misreading] = {
    "Abs": _of_floats,
    "Neg": _neg,
    "BitShift": _bit_shift,
    "Relu": _of_floats,
    "Sign": _of_floats,
    "Einsum": _einsum,
    "Equal": _equal,
    "ScatterElements": _scatter,
    "GlobalLpPool": _in_parts,
    "LogSoftmax": _large,
    "ReduceMean": _rounded,
    "ReduceLogSumExp": _large,
    "Softplus": _softplus,
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "Resize": _resize,
    "Trilu": _trilu,
}


def _misread(node: ir.Node, known: KnownValue) -> str:
    """Return how OpenCV computes a node wrongly, or rejects it; or "". It makes float32 of constants of doubles."""
    found = by_operator(_MISREAD)(node, known)
    if found or operator_of(node).moves or node.op_type in ("Cast", "Constant", "Identity"):
        return found
    of_doubles = [v for v in node.inputs if v is not None and known(v).dtype == ir.DataType.DOUBLE]
    lost = node.op_type in _PRODUCTS or any(constant_of(v, opset_of(node)) is not None for v in of_doubles)
    return "in float32 only" if of_doubles and lost else ""


_PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")


OPENCV = Target(
    "opencv",
    "5.0.0",
    ("unroll", "loop"),
    other_names=("cv2",),
    attention=AttentionTraits(("unroll", "loop", "chunked")),
    loops=LoopTraits(exported_forms=("unroll",)),
    unsupported=("Softplus",),
    # In a Loop it makes one state of two that start from one value.
    dialect=Dialect(matrix_product=True, matrix_steps=True, states_apart=True, join_up_to=128, stack_up_to=128),
    instead=(("Tanh", _bounded_tanh), ("Gather", _gather_by_rank_1)),
    integer_products=False,
    native=RULE,
    model=ModelTraits(
        # It crashes on an unused constant of booleans. Between DequantizeLinear and QuantizeLinear it computes Sub
        # as Add, and drops a Sigmoid after an Add.
        adaptations=(
            "only operators of ONNX",
            "bounded choices",
            *("parts of sequences", "spelled modes"),
            "no sequences",
            "channels of signals",
            "exact Gelu",
            "no empty operands",
            "no written beta",
            "typed fills",
            "constants as tensors",
            "stored indices",
            "zero points as scales",
            "centred norms",
            *("rounded products", "rank 4"),
            "spelled same pads",
            "equal batches",
            "no vectors",
            "rows of a Softmax",
            "parted Reshapes",
            "parted pairs",
            "parted norms",
            "whole pools as reductions",
            "parted reductions",
            "numbers with axes",
            "bounded Tanh",
            "logarithms of Sigmoid",
            "bounded integers",
            "indices of GatherND",
            *("uncounted edges", "tenth numbers", "parted divisors", "whole windows"),
            *(
                "constant convolutions",
                "pads apart",
                "slopes as products",
                "axes from the start",
                "rows of indices",
                "rows for updates",
            ),
            "no unused constants",
            "rounding of floats",
            "no products of integers",
            "inputs with elements",
        ),
        folds=True,
        misreads=_misread,
    ),
)
