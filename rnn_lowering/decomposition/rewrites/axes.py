"""Nodes whose operands get the axes and channels that a runtime takes.

Below opset 13 a Softmax is along several axes; OpenVINO, OpenCV and MNN compute it along one.

OpenCV runs a Resize in rank 4 only, and these norms behind a Conv, whose layout they read; ncnn runs all in rank 4.
A linear Resize of a height of 1 reads other memory in OpenCV; of a width of 1 it is right. It multiplies matrices
of two and more axes of batches right only where both have the same; neither it nor MNN multiplies vectors. pnnx
adds constant vectors to a Gemm only, and leaves out alpha without them.

onnxruntime-web 1.30 is wrong on WebGPU with a multiple of 3 input channels, but not of 4 nor 3 itself, and a
multiple of 4 output channels. With one more output channel, which is cut off, it is right. Measured with 1 to
10, 12, 13, 16, 33, 129 and 132 input channels, and 1 to 5, 8, 16 and 128 output channels: wrong are 6, 9, 33
and 129 with 4, 8, 16 and 128.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.operators import input_at, is_of_default_domain
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.types import Array, array_of

_FROM_THE_END = 11
"""The first opset of an Unsqueeze whose axes may be counted from the end."""

_EXPANDS = 8
"""The first opset of an Expand."""

_NORMS = ("GroupNormalization", "InstanceNormalization")

_ROWS = 3
"""The axes of nodes along one axis."""


def run_in_rank_4(model: AdaptedModel) -> int:
    """Write each Resize and norm of three axes in rank 4, with one of size 1, in place; return their number."""
    return _in_rank_4(model, "Resize", *_NORMS)


def resize_in_rank_4(model: AdaptedModel) -> int:
    """Write each Resize of three axes so; return their number."""
    return _in_rank_4(model, "Resize")


def _in_rank_4(model: AdaptedModel, *operators: str) -> int:
    count = 0
    for node in model.nodes(*operators):
        x = node.inputs[0]
        others = _others(node, model)
        if others is not None:
            axes = [3 if node.op_type == "Resize" else 2]
            longer = model.before(node, "Unsqueeze", [x], axes=axes)
            result = model.before(node, node.op_type, [longer, *others], **node.attributes)
            model.replace(node, model.before(node, "Squeeze", [result], axes=axes))
            count += 1
    return count


def _others(node: ir.Node, model: AdaptedModel) -> Sequence[ir.Value | None] | None:
    """Return the other inputs of a node of three axes in rank 4; None for any other node."""
    shape = model.shape_of(node.inputs[0])
    if node.op_type in _NORMS:
        return node.inputs[1:] if shape is not None and len(shape) == _ROWS else None
    reads_part = node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if "axes" in node.attributes or reads_part:
        return None
    others = list(node.inputs[1:])
    for slot, value in enumerate(others):
        constant, sizes = model.constant_of(value), model.shape_of(value)
        if constant is not None and constant.size == _ROWS:
            numbers = array_of(constant)
            others[slot] = model.constant(node, np.append(numbers, 1), numbers.dtype)
            return others
        if constant is None and sizes is not None and list(sizes) == [_ROWS]:
            dtype = model.dtype_of(value)
            one = None if dtype is None else model.constant(node, [1], dtype.numpy())
            others[slot] = model.before(node, "Concat", [value, one], axis=0)
            return others if one is not None else None
    return None


_OPTIONAL_BIAS = 11
"""The first opset of a Gemm that needs no bias."""


def add_biases(model: AdaptedModel) -> int:
    """Write each Gemm with factors, or with a bias that is no constant vector, in steps, in place; return their
    number."""
    return sum(
        _add_bias(node, model) for node in model.nodes("Gemm", since=_OPTIONAL_BIAS) if _has_terms(node, model)
    )


def add_biases_of_halves(model: AdaptedModel) -> int:
    """Write each Gemm of float16 with a bias in steps, in place; return their number."""
    nodes = [node for node in model.nodes("Gemm", since=_OPTIONAL_BIAS) if input_at(node, 2) is not None]
    return sum(_add_bias(n, model) for n in nodes if model.dtype_of(n.outputs[0]) == ir.DataType.FLOAT16)


def add_columns(model: AdaptedModel) -> int:
    """Set apart, in place, each sum of a product and a constant that has a number for each row; return their
    number."""
    gemms = [n for n in model.nodes("Gemm", since=_OPTIONAL_BIAS) if _is_column(model.shape_of(input_at(n, 2)))]
    count = sum(_add_bias(node, model) for node in gemms)
    for node in model.nodes("Add"):
        for slot, column in ((0, node.inputs[1]), (1, node.inputs[0])):
            value = node.inputs[slot]
            source = None if value is None else value.producer()
            is_product = source is not None and source.op_type in ("Gemm", "MatMul")
            if is_product and model.constant_of(column) is not None and _is_column(model.shape_of(column)):
                node.replace_input_with(slot, model.before(node, "Identity", [value]))
                count += 1
    return count


def _is_column(shape: ir.Shape | None) -> bool:
    return shape is not None and len(shape) >= len("MN") and shape[-2] != 1 == shape[-1]


def _factors(node: ir.Node) -> list[float]:
    return [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]


def _has_terms(node: ir.Node, model: AdaptedModel) -> bool:
    bias, shape = input_at(node, 2), model.shape_of(node.outputs[0])
    constant = model.constant_of(bias)
    is_vector = bias is None or (constant is not None and shape is not None and list(constant.shape) == [shape[1]])
    return not is_vector or _factors(node)[: 1 if bias is None else 2] not in ([1], [1, 1])


def _add_bias(node: ir.Node, model: AdaptedModel) -> bool:
    bias, dtype = input_at(node, 2), model.dtype_of(node.outputs[0])
    if model.shape_of(node.outputs[0]) is None or dtype is None:
        return False
    attributes = {name: held for name, held in node.attributes.items() if name not in ("alpha", "beta")}
    terms = [model.before(node, "Gemm", node.inputs[:2], **attributes), *([] if bias is None else [bias])]
    for n, factor in enumerate(_factors(node)[: len(terms)]):
        if factor != 1:
            terms[n] = model.before(node, "Mul", [terms[n], model.constant(node, factor, dtype.numpy(), "factor")])
    model.replace(node, model.before(node, "Add", terms) if len(terms) > 1 else terms[0])
    return True


_MOST_BATCHES = 1
"""So many axes of batches are broadcast right."""


def write_vectors(model: AdaptedModel, *, both: bool = False) -> int:
    """Give each vector that a MatMul or MatMulInteger takes a second axis, in place; return the number of nodes.

    Args:
        model: The model.
        both: A MatMul only where both operands are vectors.
    """
    vectors = []
    for node in model.nodes("MatMul", "MatMulInteger"):
        ranks = [None if (shape := model.shape_of(value)) is None else len(shape) for value in node.inputs[:2]]
        if None in ranks and model.opset < _FROM_THE_END:
            continue
        if ranks == [1, 1] or (1 in ranks and not (both and node.op_type == "MatMul")):
            vectors.append((node, ranks))
    for node, ranks in vectors:
        operands, lost = list(node.inputs), []
        last = 0 if None in ranks else max(2, *(rank or 0 for rank in ranks))  # 0: axes are counted from the end
        for place, rank in enumerate(ranks):
            if rank == 1:
                operands[place] = model.before(node, "Unsqueeze", [operands[place]], axes=[place])
                lost.append(last - 1 if place else last - 2)
        result = model.before(node, node.op_type, operands)
        model.replace(node, model.before(node, "Squeeze", [result], axes=lost))
    return len(vectors)


def write_batches(model: AdaptedModel) -> int:
    """Give both matrices of each MatMul of several axes of batches the same ones, in place; return the number of
    nodes."""
    count = 0
    for node, shapes in _products(model):
        batch = _unlike_batches(shapes)
        if batch is None:
            continue
        for place, shape in enumerate(shapes):
            if shape[:-2] != batch:
                whole = model.before(node, "Expand", [node.inputs[place]], shape=[*batch, *shape[-2:]])
                node.replace_input_with(place, whole)
        count += 1
    return count


def _products(model: AdaptedModel) -> list[tuple[ir.Node, list[tuple[int, ...]]]]:
    """Return each MatMul and the shapes of its operands, where they are known."""
    shapes = [(n, list(map(model.shape_of, n.inputs))) for n in model.nodes("MatMul", since=_EXPANDS)]
    fixed = [(node, [shape.numpy() for shape in both if shape and shape.is_static()]) for node, both in shapes]
    return [(node, both) for node, both in fixed if len(both) == len(node.inputs)]


def _unlike_batches(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the batches of the product where operands have others, and where that matters."""
    a, b = (shape[:-2] for shape in shapes)
    if a == b or not (a and b) or max(len(a), len(b)) <= _MOST_BATCHES:
        return None
    return np.broadcast_shapes(a, b)


_SLICE_OF_INPUTS = 10
"""The opset from which on the bounds of a Slice are inputs."""


def add_output_channels(model: AdaptedModel) -> int:
    """Add an output channel to such convolutions of constant weights, in place; return their number."""
    count = 0
    for node in list(model.graph) if model.opset >= _SLICE_OF_INPUTS else ():
        if node.op_type != "Conv" or not is_of_default_domain(node):
            continue
        constants = [model.constant_of(value) for value in node.inputs[1:]]
        if None not in constants and _is_wrong(node, constants[0]):
            _widen(node, [each.numpy() for each in constants if each is not None], model)
            count += 1
    return count


def _is_wrong(node: ir.Node, weights: ir.TensorProtocol | None) -> bool:
    assert weights is not None
    outputs, inputs = (int(size) for size in weights.shape.numpy()[:2])
    in_threes = inputs > 3 and inputs % 3 == 0 and inputs % 4 != 0
    return in_threes and outputs % 4 == 0 and node.attributes.get_int("group", 1) == 1


def _widen(node: ir.Node, constants: Sequence[Array], model: AdaptedModel) -> None:
    """Give a Conv a last output channel of zeros, and cut it off."""
    given, count, output = node.inputs[1:], len(constants[0]), node.outputs[0]
    for index, array in enumerate(constants, 1):
        wide = np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
        node.replace_input_with(index, model.constant(node, wide, array.dtype, "wide"))
    numbers = {"first": 0, "count": count, "axis": 1}
    bounds = [model.constant(node, [number], hint=hint) for hint, number in numbers.items()]
    model.behind(output, "Slice", bounds, suffix="wide")
    if output.shape is not None:
        output.shape = ir.Shape([count + 1 if axis == 1 else size for axis, size in enumerate(output.shape)])
    drop_unused(given)


# Rows of a Softmax

ROWS_OF = ("Softmax", "LogSoftmax", "Hardmax")

_OF_ONE_AXIS = 13
"""The first opset of a Softmax along one axis; before it, it is along that axis and all behind."""


def flatten_rows(model: AdaptedModel) -> int:
    """Write, in place, each Softmax along several axes as one of a matrix; return their number."""
    axes = {n: _first_of_several(n, model) for n in model.nodes(*ROWS_OF)}
    nodes = {node: axis for node, axis in axes.items() if axis is not None}
    shapes = {node: list(model.shape_of(node.inputs[0]) or ()) for node in nodes}
    for node, axis in nodes.items():
        x = node.inputs[0]
        matrix = model.before(node, "Flatten", [x], axis=axis)
        rows = model.before(node, node.op_type, [matrix], axis=1)
        known = [size if isinstance(size, int) else -1 for size in shapes[node]]
        sizes = model.constant(node, known) if known.count(-1) <= 1 else model.before(node, "Shape", [x])
        model.replace(node, model.before(node, "Reshape", [rows, sizes]))
    return len(nodes)


def _first_of_several(node: ir.Node, model: AdaptedModel) -> int | None:
    """Return the first axis of a Softmax along several; None for any other node."""
    shape = model.shape_of(node.inputs[0])
    if model.opset >= _OF_ONE_AXIS or not shape:
        return None
    axis = node.attributes.get_int("axis", 1) % len(shape)
    return axis if any(size != 1 for size in shape[axis + 1 :]) else None


# Numbers and slopes

_OF_TWO = ("Add", "Div", "Equal", "Greater", "Less", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum")


def write_numbers(model: AdaptedModel) -> int:
    """Leave, in place, each constant number that is the first operand of an element-wise node one axis, if another
    operand has as many as it; return the number of nodes."""
    count = 0
    for node in model.nodes(*_OF_TWO):
        number = model.constant_of(node.inputs[0])
        rank = 0 if number is None or number.size != 1 else len(number.shape)
        others = [len(model.shape_of(value) or ()) for value in node.inputs[1:]]
        if number is not None and rank > 1 and max(others, default=0) >= rank:
            node.replace_input_with(
                0, model.constant(node, array_of(number).reshape(1), number.dtype.numpy(), "number")
            )
            count += 1
    return count


_PAIR = 2

_PAIRS = {"Max": "Max", "Min": "Min", "Sum": "Add", "Mean": "Add"}
"""By operator of any number of operands the one that takes two of them."""


def pair_operands(model: AdaptedModel) -> int:
    """Write, in place, each Max, Min, Sum and Mean of more than two operands two by two; return their number."""
    nodes = [node for node in model.nodes(*_PAIRS) if len(node.inputs) > _PAIR]
    for node in nodes:
        value = node.inputs[0]
        assert value is not None
        for other in node.inputs[1:]:
            value = model.before(node, _PAIRS[node.op_type], [value, other])
        if node.op_type == "Mean":
            dtype = model.dtype_of(node.inputs[0]) or ir.DataType.FLOAT
            count = model.constant(node, len(node.inputs), dtype.numpy(), "count")
            value = model.before(node, "Div", [value, count])
        model.replace(node, value)
    return len(nodes)


def repeat_matrices(model: AdaptedModel) -> int:
    """Repeat, in place, the matrices of each MatMul of two computed tensors along the axes in which the other
    operand has a known number of them, if sizes are open; return the number of operands."""
    return sum(_repeat_matrices(node, slot, model) for node in model.nodes("MatMul") for slot in (0, 1))


def _repeat_matrices(node: ir.Node, slot: int, model: AdaptedModel) -> bool:
    shapes = [model.shape_of(value) for value in node.inputs]
    if None in shapes or any(model.constant_of(value) is not None for value in node.inputs):
        return False
    own, other = (list(shape or ())[:-2] for shape in (shapes[slot], shapes[1 - slot]))
    if len(own) != len(other) or all(isinstance(size, int) for size in other):
        return False
    counts = [b if a == 1 and isinstance(b, int) else 1 for a, b in zip(own, other, strict=True)]
    if max(counts, default=1) == 1:
        return False
    repeated = model.before(node, "Tile", [node.inputs[slot]], repeats=[*counts, 1, 1])
    node.replace_input_with(slot, repeated)
    return True


_BROADCASTS = 7
"""The first opset of a Mul that broadcasts its operands."""


def write_slopes(model: AdaptedModel) -> int:
    """Write, in place, each PRelu whose slopes are not those of channels, the second axis, as Relu(x) less the
    slopes times Relu(-x); return their number."""
    nodes = [node for node in model.nodes("PRelu", since=_BROADCASTS) if not _are_of_channels(node, model)]
    for node in nodes:
        x, slope = node.inputs
        positive = model.before(node, "Relu", [x])
        negative = model.before(node, "Relu", [model.before(node, "Neg", [x])])
        model.replace(node, model.before(node, "Sub", [positive, model.before(node, "Mul", [slope, negative])]))
    return len(nodes)


def _are_of_channels(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether the slopes of a PRelu are one number, or those of the second axis alone, as far as is known."""
    shape, slopes = (model.shape_of(value) for value in node.inputs)
    if shape is None or slopes is None:
        return True
    axes = [len(shape) - len(slopes) + n for n, size in enumerate(slopes) if size != 1]
    return axes in ([], [1])


def align_slopes(model: AdaptedModel) -> int:
    """Give, in place, each vector of slopes that a PRelu has for its last axis one more; return their number."""
    found = [node for node in model.nodes("PRelu", since=_BROADCASTS) if not _are_of_channels(node, model)]
    vectors = [node for node in found if len(model.shape_of(node.inputs[1]) or ()) == 1]
    for node in vectors:
        node.replace_input_with(1, model.before(node, "Unsqueeze", [node.inputs[1]], axes=[0]))
    return len(vectors)
