"""MNN (`pip install MNN`): no Scan; its own recurrent operators are wrong with most attributes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import zip_longest

import onnx_ir as ir

from rnn_lowering.emit.composites import as_transpose, by_columns, max_of_outputs
from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.constants import constant_of, integers_at
from rnn_lowering.facts.operators import inputs_of, is_of_default_domain, operator_of, reached
from rnn_lowering.targets.misread import (
    AXES_OF_COMPOSED,
    Misreading,
    adds_a_window,
    by_operator,
    einsum_of_several,
    labels_of,
    of_multiplied_places,
    reduces,
    rounds_up,
    sums_lone_labels,
)
from rnn_lowering.targets.native import (
    COMMON,
    OTHER_ACTIVATIONS,
    RESET_AFTER,
    Excluded,
    NativeRule,
    Speed,
    features,
)
from rnn_lowering.targets.target import AttentionTraits, KnownValue, LoopTraits, ModelTraits, Target
from rnn_lowering.types import Dims


def _zeros_of_float32(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    """Emit ConstantOfShape in float32 and cast it: in float16 it stays unset."""
    value = zeros_of(ir.DataType.FLOAT, (1,)).tensor("")
    made = op.emit("ConstantOfShape", [shape], dims, ir.DataType.FLOAT, value=value)
    return op.cast(made, op.dtype)


def _conv_of_images(op: Ops, x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Emit a Conv of one row of pixels: an output that a Conv of rank 3 computes has a fourth axis in MNN."""
    (N, C, frames), k = x.shape, weight.shape[-1]
    rows, weights = op.unsqueeze(x, [2]), op.unsqueeze(weight, [2])
    shape = (N, C, 1, None if frames is None or k is None else frames - (k - 1) * dilation)
    inputs = [rows, weights] if bias.is_zero else [rows, weights, bias]
    sizes = {"group": C, "kernel_shape": [1, k], "dilations": [1, dilation]}
    return op.squeeze(op.emit("Conv", inputs, shape, **sizes), [2])


_MNN_RULE = NativeRule(
    "3.6.1",
    "2026-11-23",
    features(
        "RNN, GRU, LSTM, forward, bidirectional, linear_before_reset, initial state, constant initial state,"
        "no initial_h, initial_c without initial_h, initial_c of zeros or none, Y_c beside others,"
        "named outputs, written hidden_size, a shared X, I = 1, T = 1, N above 1, no activations, open T,"
        "open N, float, opset 7 to 21, opset 22, flipped X and Y, transposed X and Y"
    )
    | COMMON,
    (
        Excluded(("flipped X and Y", "open T"), "computes reverse wrongly, and flips an open T wrongly"),
        *(Excluded((name,), f"ignores {name}") for name in ("clip", "input_forget", "P", "sequence_lens")),
        *(Excluded((name,), "ignores activations") for name in OTHER_ACTIVATIONS),
        Excluded(("linear_before_reset 0",), "computes linear_before_reset 0 wrongly"),
        Excluded(("GRU", "open T"), "computes a GRU wrongly if T is open"),
        Excluded(("LSTM", "open T", "initial state"), "crashes with an initial state of an LSTM if T is open"),
        Excluded(("T = 1", "initial_c without initial_h"), "crashes with initial_c and no initial_h if T is 1"),
        Excluded(("computed weights",), "rejects weights that are no constants"),
    ),
    (
        Speed(("LSTM",), 100, 1, {16: 0.18, 32: 0.23, 64: 0.71, 128: 0.78, 256: 0.86}),
        Speed(("LSTM",), 10, 8, {16: 0.29, 32: 0.39, 64: 0.63, 128: 1.16, 256: 1.41}),
        Speed(RESET_AFTER, 100, 1, {16: 0.47, 32: 0.23, 64: 0.48, 128: 0.81, 256: 0.84}),
        Speed(RESET_AFTER, 10, 8, {16: 0.27, 32: 0.37, 64: 0.59, 128: 1.09, 256: 1.31}),
        Speed(("LSTM",), 1, 1, {32: 0.95}),
        Speed(RESET_AFTER, 1, 1, {32: 0.95}),
        Speed(("RNN",), 1, 1, {32: 1.01, 128: 1.0}),
        Speed(("RNN",), 10, 1, {16: 1.15, 32: 1.18, 64: 1.27, 128: 2.87, 256: 1.75}),
        Speed(("RNN",), 100, 8, {16: 2.07, 32: 1.84, 64: 1.64, 128: 1.83, 256: 1.92}),
        Speed(("RNN",), 50, 1, {8: 1.02, 32: 1.12, 64: 1.84}, nodes=2),
        Speed(("RNN",), 50, 1, {8: 0.5, 32: 0.6}, nodes=4),
        Speed(("RNN", "bidirectional"), 50, 1, {8: 2.08, 32: 1.24, 64: 1.07, 128: 2.13}),
        Speed(("RNN", "bidirectional"), 50, 8, {8: 1.21, 32: 1.51, 64: 2.85, 128: 2.32}),
        Speed(("RNN", "open T"), 100, 1, {16: 2.0, 32: 3.01, 64: 2.79, 128: 3.76, 256: 3.15}),
        Speed(("RNN", "open T"), 100, 8, {16: 2.9, 32: 3.04, 64: 3.28, 128: 1.84, 256: 1.61}),
        Speed(("LSTM", "open T"), 100, 1, {32: 0.75, 128: 1.0}),  # runs gave 0.7 to 0.8, and 0.8 to 1.2
    ),
)
"""Measured with 897 random nodes in it. An output without a name makes others wrong, so each gets one."""


def _wrong(how: str) -> Misreading:
    """Each node of an operator is computed so."""
    return lambda node, known, opset: how


def _gelu(node: ir.Node, known: KnownValue, opset: int) -> str:
    exact = node.attributes.get_string("approximate", "none") == "none"
    return "by its approximation with Tanh" if exact else ""


def _scatter(node: ir.Node, known: KnownValue, opset: int) -> str:
    """Of a ScatterND it writes the first number of each row that several indices choose."""
    if reduces(node):
        return "without its reduction"
    data, indices = (None if value is None else known(value).shape for value in node.inputs[:2])
    depth = (indices[-1] if indices else None) if node.op_type == "ScatterND" else 1
    is_wrong = depth != 1 and (data is None or not isinstance(depth, int) or depth < len(data))
    return "by indices of one axis, or of all" if is_wrong else ""


def _resize(node: ir.Node, known: KnownValue, opset: int) -> str:
    if node.attributes.get_string("mode", "nearest") == "cubic":
        return "wrongly if it is cubic"
    return "with places that are rounded down" if rounds_up(node) else of_multiplied_places(node)


def _einsum(node: ir.Node, known: KnownValue, opset: int) -> str:
    labels, out = labels_of(node)
    if any(len({*part} - {"."}) < len(part.replace(".", "")) for part in labels):
        return "with each label of an operand once only"
    several = einsum_of_several(node, known, opset) or sums_lone_labels(node)
    return several or ("" if out else "with a written result of some axes only")


def _largest(node: ir.Node, known: KnownValue, opset: int) -> str:
    """It compares the bits of integers as those of floats."""
    dtype = None if node.inputs[0] is None else known(node.inputs[0]).dtype
    return "of floats only" if dtype is not None and dtype.is_integer() else ""


def _unique(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "without sorting" if node.attributes.get_int("sorted", 1) else ""


def _compress(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "by conditions that are computed only" if constant_of(node.inputs[1], opset) is not None else ""


def _log_softmax(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "" if "axis" in node.attributes else "only if its axis is written"


_AXES_OF_VOLUMES = 5
"""The axes of a tensor with three of space."""


def _of_planes(node: ir.Node, known: KnownValue, opset: int) -> str:
    shape = known(node.inputs[0]).shape if node.inputs[0] is not None else None
    if node.op_type == "MaxPool" and max(node.attributes.get_ints("dilations", (1,))) > 1:
        return "without its dilations"
    if shape is not None and len(shape) >= _AXES_OF_VOLUMES:
        return "wrongly along three axes"
    return adds_a_window(node, known)


def _cast(node: ir.Node, known: KnownValue, opset: int) -> str:
    to, dtype = node.attributes.get_int("to", 0), None if node.inputs[0] is None else known(node.inputs[0]).dtype
    if to == ir.DataType.BOOL and dtype != ir.DataType.BOOL:
        return "as an integer that is kept"
    if to != ir.DataType.UINT8:
        return ""
    sources = reached(node.inputs, lambda value: inputs_of(value) if _passes(value.producer()) else ())
    if any(value.is_graph_input() for value in sources):
        return "only behind other nodes, and crashes at inputs"
    moved = reached(node.outputs, _moved)
    readers = {use.node for value in moved for use in value.uses()}
    return "" if all(map(_moves_or_casts, readers)) else "only where no node computes in uint8"


def _passes(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in ("Cast", "Identity") and is_of_default_domain(node)


def _moves_or_casts(node: ir.Node) -> bool:
    is_cast = _passes(node) and node.attributes.get_int("to", 0) != ir.DataType.BOOL  # which becomes a comparison
    return operator_of(node).moves or is_cast


def _moved(value: ir.Value) -> list[ir.Value]:
    """Return what nodes make of a value that move its elements."""
    return [output for use in value.uses() if operator_of(use.node).moves for output in use.node.outputs]


def _equal(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "as if 0 and -0 were two numbers" if _has_floats(node, known) else ""


def _comparison(node: ir.Node, known: KnownValue, opset: int) -> str:
    first, second = (None if value is None else known(value).shape for value in node.inputs)
    if first is None or second is None:
        return ""
    pairs = [*zip_longest(reversed(list(first)), reversed(list(second)), fillvalue=1)]
    both = all(any(pair[at] == 1 != pair[1 - at] for pair in pairs) for at in (0, 1))
    return "wrongly where both operands are repeated" if both else ""


def _mod(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "with the sign of the divisor" if _has_floats(node, known) else ""


def _has_floats(node: ir.Node, known: KnownValue) -> bool:
    dtype = None if node.inputs[0] is None else known(node.inputs[0]).dtype
    return dtype is not None and dtype.is_floating_point()


_MANY_AXES = 4
"""From so many axes of a tensor on it flips and pads wrongly."""


_OF_INPUTS = 11
"""The first opset of a Pad whose number is an input."""


def _pad(node: ir.Node, known: KnownValue, opset: int) -> str:
    if node.attributes.get_string("mode", "constant") == "wrap":
        return "in other modes only"
    if opset < _OF_INPUTS and node.attributes.get_float("value", 0.0) != 0:
        return "with zeros only"
    pads = integers_at(node, "pads", opset)
    if not _has_many_axes(node, known) or not pads:
        return ""
    half = len(pads) // 2
    apart = max(pads) > 0 if half > _MANY_AXES else max(pads[0], pads[half]) > 0
    return "wrongly along the first of many axes" if apart else ""


def _slice(node: ir.Node, known: KnownValue, opset: int) -> str:
    steps = integers_at(node, "steps", opset) or [1]
    return "wrongly with a negative step in many axes" if min(steps) < 0 and _has_many_axes(node, known) else ""


def _has_many_axes(node: ir.Node, known: KnownValue) -> bool:
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    return shape is not None and len(shape) >= _MANY_AXES


def _where(node: ir.Node, known: KnownValue, opset: int) -> str:
    """A scalar is repeated right, and a condition where nothing else is."""
    found = [None if value is None else known(value).shape for value in node.inputs]
    shapes = [list(shape) for shape in found if shape is not None]
    if len(shapes) < len(found):
        return ""
    aligned = [*zip_longest(*map(reversed, shapes), fillvalue=1)]
    larger = [any(size != 1 and getattr(size, "value", size) is not None for size in sizes) for sizes in aligned]
    repeats = [any(sizes[n] == 1 and more for sizes, more in zip(aligned, larger, strict=True)) for n in (1, 2)]
    is_repeated = any(repeat and shape for repeat, shape in zip(repeats, shapes[1:], strict=True))
    return "wrongly where operands are repeated" if is_repeated else ""


_MISREAD: Mapping[str, Misreading] = {
    "ReverseSequence": _wrong("wrongly behind a Conv"),  # keeps what follows a Conv in another order of axes
    "Gelu": _gelu,
    **dict.fromkeys(AXES_OF_COMPOSED, _wrong("along all axes, or without the axes of size 1")),
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "Einsum": _einsum,
    "Resize": _resize,
    "LogSoftmax": _log_softmax,
    **dict.fromkeys(("AveragePool", "Conv", "ConvTranspose", "MaxPool"), _of_planes),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _of_planes),
    "Cast": _cast,
    "DequantizeLinear": _wrong("wrongly, or crashes"),
    "Equal": _equal,
    **dict.fromkeys(("ArgMax", "ArgMin"), _largest),
    "Unique": _unique,
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _comparison),
    "Mod": _mod,
    "Pad": _pad,
    "Slice": _slice,
    "Where": _where,
    "Softplus": _wrong("as 87 from there on"),
    "Compress": _compress,
    "LpPool": _wrong("with another power, or crashes"),
}

MNN = Target(
    "mnn",
    "3.6.1",
    ("unroll", "loop"),
    attention=AttentionTraits(("unroll", "loop", "chunked")),
    unsupported=("Softplus",),
    integer_products=False,
    model=ModelTraits(
        # QuantizeLinear is computed by the range of the data, whatever the scale is; DequantizeLinear with many
        # scales is 0, and with one it is wrong as the weight of a Conv, and of computed integers.
        adaptations=(
            "only operators of ONNX",
            "bounded choices",
            *("rounding of floats", "no products of integers", "tables of floats", "differences of floats"),
            *("inputs with elements", "parts of sequences", "typed fills", "constants as tensors"),
            *(
                "no vectors",
                "crops as Slice",
                "starts in rows",
                "spelled strides",
                "spelled epsilons",
                "spelled modes",
                "ended convolutions",
                "parted outputs",
            ),
            *(
                "plain scatters",
                "exact Gelu",
                "Resize of rank 4",
                "norms apart",
                "squares as products",
                "logarithms of Sigmoid",
            ),
            *("pairs of operands", "repeated matrices"),
            *("numbers of one axis", "slopes as products", "axes from the start", "spelled lower pads"),
            *("rows of a Softmax", "squeezed bounds", "factors of sizes"),
            *(
                "columns apart",
                "transposed apart",
                "whole windows",
                "flips of rows",
                "pads of batches",
                "pads of all axes",
                "counted pads",
                "pads of one end",
                "typed exponents",
                "pools of planes",
                "whole pools as reductions",
                "convolutions of planes",
                "gathered windows",
                "groups of planes",
                "cubic products",
                "upward products",
            ),
            "indices of ScatterElements, GatherElements, GatherND, ScatterND",
        ),
        folds=True,
        # It loses an output that a Relu reads. An output of Reshape, Squeeze or Unsqueeze loses its shape if
        # an activation, Abs, Neg, Exp or Clip reads it.
        outputs_apart=as_transpose,
        misreads=by_operator(_MISREAD),
    ),
    loops=LoopTraits(loop_from=128),
    # It computes a Slice with step -1 of unknown length wrongly.
    dialect=Dialect(reverse_in_loop=True, join_up_to=128, stack_up_to=128),
    # Products of a batch are 1.3 to 60 times faster by columns; those of one row are not.
    instead=(
        ("MatMul", partial(by_columns, least=1, batch=2)),
        ("ConstantOfShape", _zeros_of_float32),
        ("Conv", _conv_of_images),
    ),
    # It fuses Relu with Add, Sub, Mul, Div, Max, Min or Softsign before it, and loses what these compute ("Can't
    # find output"): the cell state of Keras' LSTM(activation="relu").
    finish=(max_of_outputs,),
    native=_MNN_RULE,
)
