"""Norms of numbers that are close together, as a runtime computes them right.

OpenCV takes the mean of squares less the square of the mean for the variance: of numbers near 1 that differ by
0.003 a LayerNormalization is off by 0.3 percent, also one that is written out, of which it makes its own. Numbers
less their mean are normalized right. Where numbers are divided by a sum, it looks for a Softmax or a norm, and
fails if that is along several axes. MNN divides by 1 in place of an open size of the first axis. Of a norm in
steps both make a LayerNormalization: OpenCV rejects one whose factors are no vector, MNN takes them along its axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.constants import integers_at
from rnn_lowering.facts.operators import reached
from rnn_lowering.types import array_of

_NORMS = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")


def centre_norms(model: AdaptedModel) -> int:
    """Subtract their mean from the numbers of each norm, in place; return the number of norms."""
    count = 0
    for node in model.nodes(*_NORMS):
        x = node.inputs[0]
        centred = None if x is None or _is_centred(x) else _centred(node, x, model)
        if centred is not None:
            node.replace_input_with(0, centred)
            count += 1
    return count + sum(_centre_written(mean, model) for mean in _means_of_written(model))


def _is_centred(value: ir.Value | None) -> bool:
    """Whether a value is something less its mean, perhaps with other axes."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in ("Reshape", "Unsqueeze"):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node is not None and _mean_of(node) is not None


def _mean_of(node: ir.Node) -> ir.Node | None:
    """Return the ReduceMean of a value that a Sub takes from the same value."""
    mean = node.inputs[1].producer() if node.op_type == "Sub" and node.inputs[1] is not None else None
    is_mean = mean is not None and mean.op_type == "ReduceMean" and mean.inputs[0] is node.inputs[0]
    return mean if is_mean else None


def _centred(node: ir.Node, x: ir.Value, model: AdaptedModel) -> ir.Value | None:
    """Return what a norm reads less its mean; None if its axes are not known."""
    shape = model.shape_of(x)
    if shape is None:
        return None
    if node.op_type == "GroupNormalization":
        whole = [size if isinstance(size, int) else -1 for size in shape]
        if whole.count(-1) > 1:
            return None
        groups = model.before(node, "Reshape", [x], shape=[0, node.attributes.get_int("num_groups"), -1])
        return model.before(node, "Reshape", [_less_mean(node, groups, [2], model)], shape=whole)
    rank, layer = len(shape), node.op_type == "LayerNormalization"
    first = node.attributes.get_int("axis", -1) % rank if layer else len("NC")
    return _less_mean(node, x, range(first, rank), model)


def _less_mean(node: ir.Node, x: ir.Value, axes: Sequence[int], model: AdaptedModel) -> ir.Value:
    mean = model.before(node, "ReduceMean", [x], axes=[*axes], keepdims=1)
    return model.before(node, "Sub", [x, mean])


# Norms that are written out


def _means_of_written(model: AdaptedModel) -> Iterator[ir.Node]:
    """Yield the mean of each norm that squares what is left."""
    means = [mean for node in model.nodes("Pow") if (mean := _mean_of_square(node, model)) is not None]
    yield from (mean for mean in dict.fromkeys(means) if not _is_centred(mean.inputs[0]))


def _mean_of_square(node: ir.Node, model: AdaptedModel) -> ir.Node | None:
    exponent, source = model.constant_of(node.inputs[1]), None
    if exponent is not None and (array_of(exponent) == 2).all() and node.inputs[0] is not None:
        source = node.inputs[0].producer()
    return None if source is None else _mean_of(source)


def _centre_written(mean: ir.Node, model: AdaptedModel) -> bool:
    """Let a mean and what it is taken from read the numbers less their mean."""
    x, axes = mean.inputs[0], integers_at(mean, "axes", model.opset)
    if x is None or not axes or not mean.attributes.get_int("keepdims", 1):
        return False
    readers = [use.node for use in mean.outputs[0].uses() if _mean_of(use.node) is mean]
    centred = _less_mean(mean, x, axes, model)
    for node in (mean, *readers):
        node.replace_input_with(0, centred)
    return True


def part_divisors(model: AdaptedModel) -> int:
    """Put an Identity between each Div and the sum along several axes that it divides by; return their number."""
    nodes = [node for node in model.nodes("Div") if _divides_by_sum(node, model)]
    for node in nodes:
        node.replace_input_with(1, model.before(node, "Identity", [node.inputs[1]]))
    return len(nodes)


def _divides_by_sum(node: ir.Node, model: AdaptedModel) -> bool:
    before = None if node.inputs[1] is None else node.inputs[1].producer()
    if before is None or before.op_type not in ("ReduceSum", "ReduceL2"):
        return False
    axes = integers_at(before, "axes", model.opset)
    return axes is None or len(axes) != 1


# Norms that an exporter wrote in steps


def part_norms(model: AdaptedModel) -> int:
    """Put an Identity between the quotient of each norm and its factors, unless these are a vector behind it, with
    a vector of terms behind that; return their number."""
    scaled = [node for node in model.nodes("Mul") if any(map(_is_quotient, node.inputs))]
    found = [node for node in scaled if not _by_vectors(node, model)]
    for node in found:
        slot = 0 if _is_quotient(node.inputs[0]) else 1
        node.replace_input_with(slot, model.before(node, "Identity", [node.inputs[slot]]))
    return len(found)


def _is_quotient(value: ir.Value | None) -> bool:
    """Whether a value is divided by a root."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Div" or node.inputs[1] is None:
        return False
    root = node.inputs[1].producer()
    return root is not None and root.op_type == "Sqrt"


def _by_vectors(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether a Mul has a vector behind the quotient, and an Add of its result has another, as far as is known."""
    readers = [use.node for use in node.outputs[0].uses()]
    sums = [reader for reader in readers if reader.op_type == "Add"]
    vectors = [_is_vector(each.inputs[1], model) for each in (node, *sums)]
    return all(vectors) and all(each.inputs[0] is node.outputs[0] for each in sums)


def _is_vector(value: ir.Value | None, model: AdaptedModel) -> bool:
    numbers = model.constant_of(value)
    return numbers is not None and len(numbers.shape) == 1 and numbers.size > 1


def square_by_products(model: AdaptedModel) -> int:
    """Write, in place, each square of a difference as a product where the norm that it belongs to has factors of
    other axes than it goes along; return their number."""
    nodes = [node for node in model.nodes("Pow") if _has_other_factors(node, model)]
    for node in nodes:
        x = node.inputs[0]
        model.replace(node, model.before(node, "Mul", [x, x]), node.inputs[1:])
    return len(nodes)


_SQUARE = 2


def _has_other_factors(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether a Pow is the square of what a norm divides, and its factors are not of all its last axes."""
    x, numbers = node.inputs[0], model.constant_of(node.inputs[1])
    source, shape = None if x is None else x.producer(), model.shape_of(x)
    if x is None or source is None or source.op_type != "Sub" or shape is None or numbers is None:
        return False
    if numbers.size != 1 or array_of(numbers).item() != _SQUARE:
        return False
    means = [use.node for use in node.outputs[0].uses() if use.node.op_type == "ReduceMean"]
    axes = [sorted(axis % len(shape) for axis in integers_at(each, "axes", model.opset) or ()) for each in means]
    quotients = [use.node.outputs[0] for use in x.uses() if use.node.op_type in ("Div", "Mul")]
    scaled = [use.node for value in quotients for use in value.uses() if use.node.op_type == "Mul"]
    factors = [value for each in scaled for value in each.inputs if value not in quotients]
    return any(not _are_of(model.shape_of(value), shape, along) for value in factors for along in axes)


def _are_of(factors: ir.Shape | None, shape: ir.Shape, axes: Sequence[int]) -> bool:
    """Whether factors have the sizes of some last axes of a shape, and no others."""
    count, sizes = len(axes), [] if factors is None else list(factors)
    last = list(axes) == [*range(len(shape) - count, len(shape))]
    others, own = sizes[: len(sizes) - count], sizes[len(sizes) - count :]
    return last and len(sizes) <= len(shape) and own == list(shape)[-count:] and {*others} <= {1}


_SIZES = ("Shape", "Size")


def multiply_by_sizes(model: AdaptedModel) -> int:
    """Multiply, in place, by the reciprocal of what each Div of floats divides by, if that follows from open sizes;
    return their number."""
    nodes = [node for node in model.nodes("Div") if _divides_by_sizes(node, model)]
    for node in nodes:
        x, sizes = node.inputs
        model.replace(node, model.before(node, "Mul", [x, model.before(node, "Reciprocal", [sizes])]))
    return len(nodes)


def _divides_by_sizes(node: ir.Node, model: AdaptedModel) -> bool:
    def sources(value: ir.Value) -> Sequence[ir.Value | None]:
        source = value.producer()
        ends = source is None or source.op_type in _SIZES or model.constant_of(value) is not None
        return () if source is None or ends else source.inputs

    dtype = model.dtype_of(node.inputs[1])
    computed = [value for value in reached(node.inputs[1:], sources) if model.constant_of(value) is None]
    of_sizes = bool(computed) and all(value.producer() is not None for value in computed)
    return of_sizes and dtype is not None and dtype.is_floating_point()
