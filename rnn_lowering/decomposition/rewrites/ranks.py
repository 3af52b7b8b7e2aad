"""Nodes whose operands get the axes that a runtime takes.

OpenCV runs a Resize in rank 4 only, and these norms behind a Conv, whose layout they read; ncnn runs all in rank 4.
A linear Resize of a height of 1 reads other memory in OpenCV; of a width of 1 it is right. It multiplies matrices
of two and more axes of batches right only where both have the same; neither it nor MNN multiplies vectors. Of two
Reshapes in a row it makes one, in which a 0 means a size of what the first one reads. MNN returns an output that
nodes read too in another shape, or not at all. pnnx adds constant vectors to a Gemm only, and leaves out alpha
without them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, input_at, parameter
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.types import array_of

_AXES_OF_INPUTS = 13
"""The first opset of an Unsqueeze whose axes are an input."""

_NORMS = ("GroupNormalization", "InstanceNormalization")

_SCALES = 2
"""The input of scales of a Resize; that of sizes is the next."""


def run_in_rank_4(model: ir.Model) -> int:
    """Write each Resize and norm of three axes in rank 4, with one of size 1, in place; return their number."""
    opset = default_opset(model.opset_imports)
    found = [node for scope, node in standard_nodes(model, "Resize", *_NORMS) if scope.opset >= _AXES_OF_INPUTS]
    if not found:
        return 0
    known, inserter = inferred_values(model), Inserter(model)
    count = 0
    for node in found:
        x = node.inputs[0]
        shape = None if x is None else known.get(x, x).shape
        others = _others(node, opset, inserter) if shape is not None and len(shape) == 3 else None
        if x is not None and others is not None:
            _rewrite(node, x, others, inserter)
            count += 1
    return count


def _others(node: ir.Node, opset: int, inserter: Inserter) -> Sequence[ir.Value | None] | None:
    """Return the other inputs of a node in rank 4; None if it cannot be written so."""
    if node.op_type in _NORMS:
        return node.inputs[1:]
    place = next((n for n, value in enumerate(node.inputs) if n >= _SCALES and value is not None), None)
    given = None if place is None else node.inputs[place]
    constant = None if given is None else constant_of(given, opset)
    if place is None or constant is None or constant.size != 3 or node.inputs[1] is not None:
        return None
    if "axes" in node.attributes:
        return None
    numbers = array_of(constant)
    return [*[None] * (place - 1), inserter.constant(node, np.append(numbers, 1), numbers.dtype)]


def _rewrite(node: ir.Node, x: ir.Value, others: Sequence[ir.Value | None], inserter: Inserter) -> None:
    axis = inserter.constant(node, [3 if node.op_type == "Resize" else 2])
    longer = inserter.before(node, "Unsqueeze", [x, axis])
    result = inserter.before(node, node.op_type, [longer, *others], dict(node.attributes))
    take_over(node.outputs[0], inserter.before(node, "Squeeze", [result, axis]))
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)


def add_biases(model: ir.Model) -> int:
    """Write each Gemm with factors, or with a bias that is no constant vector, in steps, in place; return their
    number."""
    opset = default_opset(model.opset_imports)
    found = [node for scope, node in standard_nodes(model, "Gemm") if scope.opset >= _OPTIONAL_BIAS]
    known, inserter = inferred_values(model) if found else {}, Inserter(model)
    return sum(_add_bias(node, opset, known, inserter) for node in found)


_OPTIONAL_BIAS = 11
"""The first opset of a Gemm that needs no bias."""


def _add_bias(node: ir.Node, opset: int, known: Inferred, inserter: Inserter) -> bool:
    bias, result = input_at(node, 2), known.get(node.outputs[0], node.outputs[0])
    if result.shape is None or result.dtype is None:
        return False
    constant, attributes = None if bias is None else constant_of(bias, opset), dict(node.attributes)
    factors = [attributes.pop(name).as_float() if name in attributes else 1.0 for name in ("alpha", "beta")]
    is_vector = bias is None or (constant is not None and list(constant.shape) == [result.shape[1]])
    if is_vector and factors[: 1 if bias is None else 2] in ([1], [1, 1]):
        return False
    terms = [inserter.before(node, "Gemm", node.inputs[:2], attributes), *([] if bias is None else [bias])]
    for n, factor in enumerate(factors[: len(terms)]):
        if factor != 1:
            number = inserter.constant(node, factor, result.dtype.numpy(), "factor")
            terms[n] = inserter.before(node, "Mul", [terms[n], number])
    take_over(node.outputs[0], inserter.before(node, "Add", terms) if len(terms) > 1 else terms[0])
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
    return True


def part_reshapes(model: ir.Model) -> int:
    """Put an Identity between each Reshape that keeps a size (0) and the one it reads; return their number."""
    inserter, count = Inserter(model), 0
    for scope, node in list(standard_nodes(model, "Reshape")):
        x, shape = node.inputs[0], parameter(node, "shape", scope.opset)
        before = None if x is None else x.producer()
        numbers = constant_of(shape, scope.opset) if isinstance(shape, ir.Value) else None
        if (
            before is not None
            and before.op_type == "Reshape"
            and numbers is not None
            and 0 in array_of(numbers)
            and not node.attributes.get_int("allowzero", 0)
        ):
            node.replace_input_with(0, inserter.before(node, "Identity", [x]))
            count += 1
    return count


def part_outputs(model: ir.Model) -> int:
    """Give each output that nodes read too a Transpose that moves nothing, in place; return their number."""
    outputs = dict.fromkeys(model.graph.outputs)
    read = [value for value in outputs if value.producer() is not None and value.uses()]
    known, inserter, count = inferred_values(model) if read else {}, Inserter(model), 0
    for value in read:
        shape, uses = known.get(value, value).shape, list(value.uses())
        if shape is not None and len(shape):
            inserter.behind(value, "Transpose", [], {"perm": [*range(len(shape))]}, suffix="read")
            for use in uses:
                use.node.replace_input_with(use.idx, value)
            count += 1
    return count


_MOST_BATCHES = 1
"""So many axes of batches are broadcast right."""


def write_vectors(model: ir.Model) -> int:
    """Give each vector that a MatMul takes a second axis, in place; return the number of nodes."""
    inserter, count = Inserter(model), 0
    for node, shapes in _products(model):
        if 1 in map(len, shapes):
            _with_matrices(node, shapes, inserter)
            count += 1
    return count


def write_batches(model: ir.Model) -> int:
    """Give both matrices of each MatMul of several axes of batches the same ones, in place; return the number of
    nodes."""
    inserter, count = Inserter(model), 0
    for node, shapes in _products(model):
        batch = _unlike_batches(shapes)
        if batch is None:
            continue
        for place, shape in enumerate(shapes):
            if shape[:-2] != batch:
                whole = inserter.constant(node, [*batch, *shape[-2:]])
                node.replace_input_with(place, inserter.before(node, "Expand", [node.inputs[place], whole]))
        count += 1
    return count


def _products(model: ir.Model) -> list[tuple[ir.Node, list[tuple[int, ...]]]]:
    """Return each MatMul and the shapes of its operands, where they are known."""
    nodes = [node for scope, node in standard_nodes(model, "MatMul") if scope.opset >= _AXES_OF_INPUTS]
    known = inferred_values(model) if nodes else {}
    shapes = [(node, _shapes_of_operands(node, known)) for node in nodes]
    return [(node, both) for node, both in shapes if both is not None]


def _shapes_of_operands(node: ir.Node, known: Inferred) -> list[tuple[int, ...]] | None:
    """Return the shapes of both operands; None if one is not known."""
    found = [None if value is None else known.get(value, value).shape for value in node.inputs]
    shapes = [() if shape is None else tuple(shape) for shape in found]
    fixed = [tuple(size for size in shape if isinstance(size, int)) for shape in shapes]
    return fixed if fixed == shapes and all(shapes) else None


def _unlike_batches(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the batches of the product where operands have others, and where that matters."""
    a, b = (shape[:-2] for shape in shapes)
    if a == b or not (a and b) or max(len(a), len(b)) <= _MOST_BATCHES:
        return None
    return np.broadcast_shapes(a, b)


def _with_matrices(node: ir.Node, shapes: Sequence[tuple[int, ...]], inserter: Inserter) -> None:
    """Compute with a vector as a matrix."""
    given, lost = list(node.inputs), []
    for place, shape in enumerate(shapes):
        if len(shape) == 1:
            axis = inserter.constant(node, [-1 if place else 0])
            given[place] = inserter.before(node, "Unsqueeze", [given[place], axis])
            lost.append(-1 if place else -2)
    result = inserter.before(node, "MatMul", given)
    take_over(node.outputs[0], inserter.before(node, "Squeeze", [result, inserter.constant(node, lost)]))
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
