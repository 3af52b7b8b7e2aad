"""Sizes that an exporter computes from the number of frames are read from the values that have them.

torch.export writes the size behind two convolutions as (T // 2 - 5) // 2. The chunks of a stream have other sizes,
so nodes read the size of the value instead, as torch's older exporter writes it. Both are equal in each whole
sequence of enough frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import SizingError, add_initializers
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import bodies_of, reached, values_used
from rnn_lowering.facts.size import Size
from rnn_lowering.model.scopes import add_constant, all_names, origin_of, sort_nodes
from rnn_lowering.streaming.sizes import LARGEST_UNIT, StreamValues, TimeInputs

_WINDOWS = ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")

_INITIALIZERS_ALONE = 4
"""The first version of the format in which an initializer need not be an input."""


@dataclass(frozen=True)
class AnchoredSizes:
    """For which sequences the sizes are equal.

    Attributes:
        node: A node whose output has such a size.
        unit: The number of frames is a multiple of it.
        fewest: The least number of frames.
    """

    node: NodeRef
    unit: int
    fewest: int


@dataclass(frozen=True)
class _Axis:
    """An axis of the output of a node, whose size nodes can read."""

    node: ir.Node
    axis: int


def anchor_sizes(model: ir.Model, time: TimeInputs) -> AnchoredSizes | None:
    """Let nodes read sizes behind a division of the number of frames from a value that has them.

    Only a size that is equal to that of an axis behind a convolution or pooling is read there; other numbers stay.
    Returns None if all stay.
    """
    divides = any(node.op_type == "Div" and not node.domain for node in model.graph)
    if not divides or model.ir_version < _INITIALIZERS_ALONE:
        return None
    known, divided = _all_sizes(model, time)
    axes: dict[Size, _Axis] = {}
    for node in filter(_has_windows, model.graph):
        for axis, dim in enumerate(known.shapes.get(node.outputs[0], ())):
            if dim.varies:
                axes.setdefault(dim, _Axis(node, axis))
    names, used = Names(all_names(model)), list[_Axis]()
    for value, number in divided.items():
        source = axes.get(number)
        if source and _read_from(model.graph, names, value, known.contents[value].ndim, source):
            used.append(source)
    if not used:
        return None
    sort_nodes(model)
    return AnchoredSizes(origin_of(used[0].node), known.unit, known.fewest)


def _all_sizes(model: ir.Model, time: TimeInputs) -> tuple[StreamValues, dict[ir.Value, Size]]:
    """Return what is known of the values of a model with enough frames in a call, and its divided numbers."""
    unit = 1
    while True:
        known = StreamValues.start(model, time.sizes())
        known.unit, known.floors = unit, True
        divided = _divided_numbers(known, model.graph)
        wanted = math.lcm(unit, known.wanted)
        if wanted == unit or wanted > LARGEST_UNIT:
            return known, divided
        unit = wanted


def _has_windows(node: ir.Node) -> bool:
    return node.op_type in _WINDOWS and not node.domain


def _divided_numbers(known: StreamValues, graph: ir.Graph) -> dict[ir.Value, Size]:
    """Infer all sizes of a graph; return the integers that depend on a division of the number of frames."""
    add_initializers(known, graph)
    divided: dict[ir.Value, Size] = {}
    for node in graph:
        if bodies_of(node):
            continue
        known.shortest = known.fewest
        with suppress(UnfollowedError, SizingError):
            infer(known, node)
            if _has_windows(node):
                _set_sizes(known, node)
            evaluate(known, node)
        if node.op_type == "Div" or not divided.keys().isdisjoint(node.inputs):
            for value in node.outputs:
                numbers = known.numbers(value) if known.types.get(value) == ir.DataType.INT64 else None
                if numbers is not None and len(numbers) == 1 and numbers[0].varies:
                    divided[value] = numbers[0]
    return divided


def _set_sizes(known: StreamValues, node: ir.Node) -> None:
    """Set the sizes behind a convolution or pooling along its windows, where ONNX's inference knows none."""
    shapes = [None if v is None else known.shapes.get(v) for v in (*node.inputs, *node.outputs)]
    before, after = shapes[0], shapes[-1]
    weights = shapes[1] if node.op_type.startswith("Conv") and len(node.inputs) > 1 else None
    kernel = node.attributes.get_ints("kernel_shape", ()) or [int(d.constant or 0) for d in (weights or ())[2:]]
    if before is None or after is None or len(kernel) != len(before) - 2 or not _is_plain(node):
        return
    dims: list[Size | None] = [None, None]
    for n, length in enumerate(before[2:]):
        stride, span = _of_axis(node, "strides", n, 1), (kernel[n] - 1) * _of_axis(node, "dilations", n, 1) + 1
        padding = _of_axis(node, "pads", n, 0) + _of_axis(node, "pads", n + len(kernel), 0)
        if node.op_type == "ConvTranspose":
            dims.append((length - 1) * stride + span + _of_axis(node, "output_padding", n, 0) - padding)
            continue
        windows = (length + padding - span).divided(stride)
        windows = None if windows is None else known.floor(windows)
        dims.append(None if windows is None else windows + 1)
    known.set_shape(node.outputs[0], dims)


def _is_plain(node: ir.Node) -> bool:
    """Whether the sizes behind a node follow from its kernel, strides, dilations and paddings."""
    automatic = (node.attributes.get_string("auto_pad", "NOTSET") or "NOTSET") != "NOTSET"
    return not (
        automatic or (node.attributes.get_int("ceil_mode", 0) or 0) > 0 or "output_shape" in node.attributes
    )


def _of_axis(node: ir.Node, name: str, n: int, default: int) -> int:
    numbers: Sequence[int] = node.attributes.get_ints(name, ()) or ()
    return numbers[n] if numbers else default


def _read_from(graph: ir.Graph, names: Names, value: ir.Value, rank: int, source: _Axis) -> bool:
    """Let the nodes that read a size read that of an axis, but for those on which the axis depends.

    Args:
        rank: The rank of the size: 0, or 1 for one number.

    Returns:
        Whether any node does so now.
    """
    before = {*reached([source.node], lambda node: [v.producer() for v in values_used(node)])}
    uses = [(node, slot) for node, slot in value.uses() if node not in before and node.graph is graph]
    if not uses or value.is_graph_output():
        return False
    name = names.unique(f"{value.name}_axis")
    tensor = ir.tensor([source.axis] if rank else source.axis, ir.DataType.INT64, name=name)
    axis = add_constant(graph, name, tensor)
    shape = ir.node("Shape", source.node.outputs[:1])
    size = ir.node("Gather", [shape.outputs[0], axis], {"axis": 0})
    for node, kind in ((shape, "shape"), (size, "size")):
        node.name = names.unique(f"{value.name}_{kind}")
        node.outputs[0].name = names.unique(f"{value.name}_{kind}_output")
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    graph.insert_after(source.node, [shape, size])
    for node, slot in uses:
        node.replace_input_with(slot, size.outputs[0])
    return True
