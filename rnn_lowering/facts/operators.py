"""What ONNX's operators do: `OPERATORS` has a row for each. Before it, the inputs and bodies of a node."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import onnx
import onnx_ir as ir

from rnn_lowering.facts import axes as rules
from rnn_lowering.facts.axes import Axes, AxisRule, NodeShapes
from rnn_lowering.facts.size import PartialShape
from rnn_lowering.types import Array


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs in the attributes of a node."""
    attributes = node.attributes.data  # the length of a UserDict takes longer
    return [graph for attribute in attributes.values() for graph in graphs_of(attribute)] if attributes else []


def with_attributes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of a graph that have attributes: no others have bodies, and most have none."""
    return [node for node in graph if node.attributes.data]


def has_bodies(graph: ir.Graph) -> bool:
    """Whether a node of a graph has bodies."""
    return any(map(bodies_of, with_attributes(graph)))


def graphs_of(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    """Return the graphs in an attribute; none if it has another type or is a reference."""
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else ()


def with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a node and the nodes in its bodies."""
    yield node
    for body in bodies_of(node):
        yield from nodes_within(body)


def nodes_within(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph, each followed by those in its bodies."""
    for node in graph:
        if node.attributes.data:
            yield from with_bodies(node)
        else:
            yield node


def graphs_within(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph and the bodies in it. `ir.Graph.subgraphs` takes three times as long."""
    yield graph
    for node in with_attributes(graph):
        for body in bodies_of(node):
            yield from graphs_within(body)


def detach(node: ir.Node) -> None:
    """Let a node that is dropped use nothing, nor the nodes in its bodies."""
    for inner in with_bodies(node):
        for index in range(len(inner.inputs)):
            inner.replace_input_with(index, None)


def input_at(node: ir.Node, slot: int) -> ir.Value | None:
    """Return an input of a node; None if it is absent."""
    return node.inputs[slot] if slot < len(node.inputs) else None


def inputs_of(value: ir.Value) -> list[ir.Value]:
    """Return the inputs of the node that computes a value; none without one."""
    node = value.producer()
    return [] if node is None else [v for v in node.inputs if v is not None]


def values_used(node: ir.Node) -> list[ir.Value]:
    """Return what a node and the nodes in its bodies use, and what its bodies return."""
    used = [value for value in node.inputs if value is not None]
    return list(dict.fromkeys([*used, *_used_in(_graphs_in(node))]))


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Return what the bodies of a node use of the graphs around them."""
    graphs = _graphs_in(node)
    return list(dict.fromkeys(value for value in _used_in(graphs) if value.graph not in graphs))


def _graphs_in(node: ir.Node) -> list[ir.Graph]:
    """Return the bodies of a node, each with the bodies in it."""
    return [graph for body in bodies_of(node) for graph in graphs_within(body)]


def _used_in(graphs: Sequence[ir.Graph]) -> Iterator[ir.Value]:
    """Yield what the nodes of graphs use, and what the graphs return."""
    yield from (value for graph in graphs for node in graph for value in node.inputs if value is not None)
    yield from (value for graph in graphs for value in graph.outputs)


def is_used(value: ir.Value) -> bool:
    """Whether a node or the caller reads a value."""
    return bool(value.uses()) or value.is_graph_output()


# Two walks through a graph of any depth


T = TypeVar("T", bound=Hashable)


def reached(starts: Iterable[T | None], following: Callable[[T], Iterable[T | None]]) -> Iterator[T]:
    """Yield all that can be reached, each once; None leads nowhere.

    Args:
        starts: Where the walk starts.
        following: Returns what comes next; it is asked once the caller goes on.
    """
    pending = [item for item in dict.fromkeys(starts) if item is not None]
    seen = set(pending)
    while pending:
        item = pending.pop()
        yield item
        new = [other for other in dict.fromkeys(following(item)) if other is not None and other not in seen]
        seen.update(new)
        pending += new


def in_order(value: T, needed: Callable[[T], Iterable[T | None]], done: Container[T]) -> Iterator[T]:
    """Yield what a value needs, and then the value, but nothing that is done.

    Args:
        value: The value.
        needed: Returns what comes before something.
        done: What the caller has done with: what was yielded must be in it when the caller goes on.
    """
    pending = [value]
    while pending:
        last = pending[-1]
        missing = [] if last in done else [v for v in needed(last) if v is not None and v not in done]
        pending += missing
        if not missing:
            pending.pop()
            if last not in done:
                yield last


# Parameters such as `axes`, `starts`, `pads` or `split`: attributes in some opsets, inputs in others. The schema
# of the operator tells which.


V = TypeVar("V")


TO_THE_END = 2**31 - 1
"""An end of a Slice behind every axis; not the largest int64, which some runtimes get wrong."""


BEFORE_THE_START = -(2**31)
"""An end of a backwards Slice; not the smallest int64, which some runtimes get wrong."""


@cache
def input_slots(op_type: str, opset: int) -> Mapping[str, int]:
    """Return the inputs of an operator of the default domain, by the names that its schema gives them."""
    schema = onnx.defs.get_schema(op_type, opset, "")
    return {formal.name: slot for slot, formal in enumerate(schema.inputs) if formal.name not in schema.attributes}


def parameter(node: ir.Node, name: str, opset: int) -> ir.Attr | ir.Value | None:
    """Return what holds a parameter of a node of the default domain: an attribute or an input; None for neither."""
    slot = input_slots(node.op_type, opset).get(name)
    if slot is not None:
        return input_at(node, slot)
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute


def integers_of(held: ir.Attr | Array) -> list[int]:
    """Return the integers of a parameter, of its attribute or of the array of its input."""
    if isinstance(held, ir.Attr):
        return [held.as_int()] if held.type == ir.AttributeType.INT else list(held.as_ints())
    return [int(n) for n in held.ravel()]


def bounds_of(
    starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] = (), steps: Sequence[int] = ()
) -> list[tuple[int, int, int, int]]:
    """Return the axis, start, end and step of each axis that a Slice names.

    Raises:
        ValueError: Their numbers differ.
    """
    return list(zip(axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True))


def takes_all(start: int, end: int, step: int) -> bool:
    """Whether a Slice takes all of an axis, whatever its size is."""
    return (start, step) == (0, 1) and end >= TO_THE_END


def inputs_and_attributes(
    op_type: str,
    opset: int,
    inputs: Sequence[V | None],
    parameters: Mapping[str, Any],
    constant: Callable[[Any], V],
) -> tuple[list[V | None], dict[str, Any]]:
    """Return the inputs and the attributes of a node.

    Args:
        op_type: An operator of the default domain.
        opset: The opset.
        inputs: The first inputs.
        parameters: Parameters by name: attributes, or inputs that follow the first ones.
        constant: Makes a parameter an input.
    """
    if not parameters:
        return [*inputs], {}
    slots = input_slots(op_type, opset)
    constants = {slots[name]: constant(value) for name, value in parameters.items() if name in slots}
    followed = [constants.get(slot) for slot in range(len(inputs), max(constants, default=-1) + 1)]
    return [*inputs, *followed], {name: value for name, value in parameters.items() if name not in slots}


# What the operators of ONNX do: `OPERATORS` has a row for each. It says how an operator uses axes, whether it
# acts on each element or only moves elements, and which inputs are sizes. Other modules ask `operator_of(node)`.


DEFAULT_DOMAIN = ("", "ai.onnx")
"""The two names of ONNX's own domain. In the intermediate form a node has the first, an opset import either."""


def default_opset(imports: Mapping[str, int]) -> int:
    """Return the version of the default domain among opset imports."""
    return next((imports[name] for name in DEFAULT_DOMAIN if name in imports), 1)


@dataclass(frozen=True)
class Operator:
    """What an operator does. The defaults claim nothing.

    Attributes:
        axes: Returns how a node uses its axes (`facts/axes`).
        elementwise: It acts on each element by itself, of inputs that broadcast.
        boolean: It is element-wise and returns booleans of inputs of another type.
        same_shape: The first output has the shape of the first input.
        moves: The outputs have elements of the first input, or of all inputs (Concat), and no others.
        keeps_order: It moves all elements, in their order.
        keeps_axes: It moves all elements; axes change places, or have size 1 and come or go.
        data: The number of first inputs that are data. Those behind it are sizes, axes, positions and the like.
        sized: What is behind the data are the sizes of the output, or the positions of a cut.
        exact: Every runtime computes the same integers, and rounds real numbers once.
        may_fail: It may fail on some values of valid type and shape (integer division and strings do not count).
        random: The results differ each time.
        foldable: Exporters write it between a constant and a recurrent node.
    """

    axes: AxisRule | None = None
    elementwise: bool = False
    boolean: bool = False
    same_shape: bool = False
    moves: bool = False
    keeps_order: bool = False
    keeps_axes: bool = False
    data: int | None = None
    sized: bool = False
    exact: bool = False
    may_fail: bool = True
    random: bool = False
    foldable: bool = False


def _each_of(names: str, row: Operator) -> dict[str, Operator]:
    return dict.fromkeys(names.split(), row)


_FUNCTION = Operator(rules.broadcast, elementwise=True, may_fail=False)
_ARITHMETIC = Operator(rules.broadcast, elementwise=True, exact=True, may_fail=False)
_TEST = Operator(rules.broadcast, elementwise=True, boolean=True, exact=True, may_fail=False)
_MOVES = Operator(moves=True, exact=True, may_fail=False, foldable=True)
_RESHAPES = replace(_MOVES, keeps_order=True)
_REDUCTION = Operator(rules.reduction, data=1)
_EXACT_REDUCTION = Operator(rules.reduction, data=1, exact=True)
_CHANNELS = Operator(rules.first_only(rules.all_from(1, keeps=True)), same_shape=True)
_SOFTMAX = Operator(rules.softmax, same_shape=True)
_NORMALIZATION = Operator(rules.normalization, same_shape=True)
_RANDOM = Operator(random=True)
_RANDOM_LIKE = Operator(random=True, same_shape=True)
_WRITE = Operator(same_shape=True, exact=True)

OPERATORS: Mapping[str, Operator] = {
    # Element-wise
    **_each_of(
        "Acos Acosh Asin Asinh Atan Atanh BitCast BitShift Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish "
        "LeakyRelu Log Mean Mish PRelu Pow Reciprocal Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt SwiGLU "
        "Swish Tan Tanh ThresholdedRelu",
        _FUNCTION,
    ),
    **_each_of(
        "Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Clip Div Floor Max Min Mod Mul Neg Not Or "
        "Relu Round Sign Sub Sum Where Xor",
        _ARITHMETIC,
    ),
    **_each_of("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual", _TEST),
    "Cast": Operator(rules.broadcast, elementwise=True, exact=True, may_fail=False, foldable=True),
    "CastLike": Operator(rules.first_only(rules.alone), same_shape=True, exact=True),
    # Moving elements
    "Concat": replace(_MOVES, axes=rules.joining),
    "Expand": replace(_MOVES, axes=rules.repeated, data=1, sized=True),
    "Flatten": replace(_RESHAPES, foldable=False),
    "Gather": replace(_MOVES, axes=rules.gather, may_fail=True),
    "GatherElements": Operator(rules.gather_elements, moves=True, exact=True),
    "GatherND": Operator(moves=True, exact=True),
    "Identity": replace(_RESHAPES, axes=rules.broadcast, elementwise=True, keeps_axes=True),
    "Reshape": replace(_RESHAPES, axes=rules.reshaped, data=1, sized=True),
    "Slice": replace(_MOVES, axes=rules.sliced, data=1, sized=True),
    "Split": replace(_MOVES, axes=rules.along_axis(0), data=1),
    "Squeeze": replace(_RESHAPES, axes=rules.squeezed, keeps_axes=True, data=1),
    "Tile": Operator(rules.repeated, moves=True, data=1, sized=True, exact=True),
    "Transpose": replace(_MOVES, axes=rules.transposition, keeps_axes=True),
    "Unsqueeze": replace(_RESHAPES, axes=rules.unsqueezed, keeps_axes=True, data=1),
    # Reading, writing and making elements
    "CenterCropPad": Operator(data=1, sized=True, exact=True),
    "Col2Im": Operator(data=1),
    "Constant": Operator(exact=True, foldable=True),
    "ConstantOfShape": Operator(data=0, exact=True, foldable=True),
    **_each_of("Compress DepthToSpace NonZero SpaceToDepth", Operator(exact=True)),
    "EyeLike": Operator(same_shape=True, exact=True),
    "OneHot": Operator(rules.one_hot, data=1, exact=True),
    "Pad": Operator(data=1, exact=True),
    "Range": Operator(data=0, exact=True),
    "ReverseSequence": Operator(same_shape=True, exact=True),
    **_each_of("Scatter TensorScatter", _WRITE),
    "ScatterElements": replace(_WRITE, axes=rules.written),
    "ScatterND": replace(_WRITE, axes=rules.written_at),
    "Shape": Operator(exact=True, may_fail=False, foldable=True),
    "Size": Operator(exact=True, may_fail=False),
    "TopK": Operator(rules.along_axis(-1), data=1, exact=True),
    "Trilu": Operator(same_shape=True, data=1, exact=True),
    # Along axes
    **_each_of("ArgMax ArgMin", Operator(rules.arg_reduction, exact=True)),
    **_each_of("ReduceMax ReduceMin ReduceProd ReduceSum", _EXACT_REDUCTION),
    **_each_of("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSumSquare", _REDUCTION),
    **_each_of("Hardmax LogSoftmax Softmax", _SOFTMAX),
    **_each_of("LayerNormalization RMSNormalization", _NORMALIZATION),
    **_each_of("GroupNormalization InstanceNormalization", _CHANNELS),
    **_each_of("AveragePool LpPool MaxPool", Operator(rules.all_from(1))),
    **_each_of("Conv ConvTranspose", Operator(rules.first_only(rules.all_from(1)))),
    "ConvInteger": Operator(rules.first_only(rules.all_from(1)), exact=True),
    "QLinearConv": Operator(rules.first_only(rules.all_from(1))),
    **_each_of("GlobalAveragePool GlobalLpPool GlobalMaxPool", Operator(rules.all_from(2))),
    "DequantizeLinear": Operator(rules.quantization, same_shape=True, foldable=True),
    "QuantizeLinear": Operator(rules.quantization, same_shape=True),
    "BatchNormalization": Operator(rules.first_only(rules.batch_normalization), same_shape=True),
    "CumProd": Operator(rules.cumulation, same_shape=True, data=1),
    "CumSum": Operator(rules.cumulation, same_shape=True, data=1, exact=True),
    "DFT": Operator(rules.transform, data=1),
    "Dropout": Operator(rules.alone, same_shape=True),
    "Einsum": Operator(rules.einsum),
    "Gemm": Operator(rules.gemm),
    "LRN": Operator(rules.along_channels, same_shape=True),
    "LpNormalization": Operator(rules.along_axis(-1, keeps=True), same_shape=True),
    "MatMul": Operator(rules.matmul, may_fail=False),
    "MatMulInteger": Operator(rules.integer_product(0, 1, [2], [3]), exact=True),
    "MeanVarianceNormalization": Operator(rules.mean_variance, same_shape=True),
    "QLinearMatMul": Operator(rules.integer_product(0, 3, [1, 2, 6, 7], [4, 5])),
    "Resize": Operator(rules.resized, data=1, sized=True),
    "Upsample": Operator(rules.resized, data=1, sized=True),
    # Random
    **_each_of("Bernoulli RandomNormalLike RandomUniformLike", _RANDOM_LIKE),
    **_each_of("Multinomial RandomNormal RandomUniform", _RANDOM),
}
"""By the operator's name, of the default domain."""

OF_MICROSOFT: Mapping[str, Operator] = {
    **_each_of("BiasGelu FastGelu Gelu QuickGelu", Operator(rules.broadcast, same_shape=True)),
    "FusedMatMul": Operator(rules.fused_matmul),
}
"""By the operator's name, of com.microsoft. A bias is broadcast to the first input."""

_UNKNOWN = Operator()


def operator_of(node: ir.Node | onnx.NodeProto) -> Operator:
    """Return what the operator of a node does."""
    return operator_named(node.domain, node.op_type)


def operator_named(domain: str, name: str) -> Operator:
    """Return what an operator does."""
    if domain == "com.microsoft":
        return OF_MICROSOFT.get(name, _UNKNOWN)
    return OPERATORS.get(name, _UNKNOWN) if domain in DEFAULT_DOMAIN else _UNKNOWN


def axes_by_rule(
    node: ir.Node, opset: int, shape: Callable[[ir.Value], PartialShape], numbers: Callable[[str], list[int] | None]
) -> Axes | None:
    """Return how a node uses its axes; None if that is unknown, or the node is invalid.

    Args:
        node, opset, shape, numbers: As in `NodeShapes`. A shape that is not known raises a LookupError.
    """
    rule = operator_of(node).axes
    try:
        return rule and rule(NodeShapes(node, opset, shape, numbers))
    except (LookupError, ValueError, ArithmeticError, TypeError):
        return None


def may_differ(node: ir.Node) -> bool:
    """Whether a node may return something else each time; Dropout does so in training."""
    return operator_of(node).random or (node.op_type == "Dropout" and node.domain in DEFAULT_DOMAIN)


def keeps_numbers(node: ir.Node) -> bool:
    """Whether a node returns the numbers of its input, in another shape or type."""
    return operator_of(node).keeps_order or (node.op_type == "Cast" and node.domain in DEFAULT_DOMAIN)


def moved_inputs(node: ir.Node | onnx.NodeProto) -> int:
    """Return the number of data inputs of a node that moves elements: all for Concat, one for the others."""
    return len(node.inputs if isinstance(node, ir.Node) else node.input) if node.op_type == "Concat" else 1


def is_of_default_domain(node: ir.Node) -> bool:
    """Whether a node's operator is ONNX's own and no attribute refers to an attribute of a function."""
    return node.domain == "" and not any(attribute.is_ref() for attribute in node.attributes.values())
