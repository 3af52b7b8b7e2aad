"""Open sizes of inputs that a model takes together only: 8 samples for each frame, where it joins the two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, zip_longest

import onnx
import onnx_ir as ir

from rnn_lowering.compare.sizes import ShapesByName, dims_of
from rnn_lowering.facts.infer import follow
from rnn_lowering.facts.known import KnownValues, add_initializers
from rnn_lowering.facts.operators import bodies_of, operator_of
from rnn_lowering.facts.size import ONE, Size, Symbol, size
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.model.trial_sizes import is_small

MeetingSizes = Mapping[str, Size]
"""By the name of an open size of an input, what it must be in terms of others."""


def meeting_sizes(model: onnx.ModelProto) -> MeetingSizes:
    """Return, by the name of an open size of an input, what it must be where a node joins it with others.

    Examples:
        >>> meeting_sizes(vocoder)  # which joins frames that are repeated 8 times with samples
        {'samples': 8*frames}
    """
    source = from_proto(model)
    shapes = {
        value.name: tuple(size(d) if isinstance(d, int) else Size.symbol(d.value or "") for d in value.shape)
        for value in source.graph.inputs
        if value.name and value.shape is not None and not value.shape.has_unknown_dim()
    }
    known = KnownValues.start(source, shapes)
    add_initializers(known, source.graph)
    found: dict[str, Size] = {}
    for node in source.graph:
        for one, other in _joined(known, node):
            found = {**dict(_solved(one - other)), **found}
        if not bodies_of(node):
            follow(known, node, lambda node: all(is_small(known, value) for value in node.outputs))
            _add_windows(known, node)
    return found


def met(
    inputs: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]], meeting: MeetingSizes
) -> ShapesByName:
    """Return the shapes of inputs, in which the sizes that follow from others do, where ranks are declared."""
    dims = {v.name: [dim.dim_param for dim in dims_of(v)] or [""] * len(shapes[v.name]) for v in inputs}
    named: dict[Symbol, int] = {
        n: size for name in dims for n, size in zip(dims[name], shapes[name], strict=True) if n
    }
    free = named.keys() - meeting.keys()
    chosen = {name: max(int(number.at(named)), 1) for name, number in meeting.items() if number.symbols <= free}
    return {name: [chosen.get(n, size) for n, size in zip(dims[name], shapes[name], strict=True)] for name in dims}


def _joined(known: KnownValues, node: ir.Node) -> Iterator[tuple[Size, Size]]:
    """Yield sizes that must be equal for a node to join its inputs, or to broadcast them."""
    shapes = [known.shapes[value] for value in node.inputs if value is not None and value in known.shapes]
    is_concat = node.op_type == "Concat" and not node.domain
    if not shapes or not (is_concat or operator_of(node).elementwise):
        return
    rows = [*zip_longest(*(shape[::-1] for shape in shapes), fillvalue=ONE)][::-1]
    joined = node.attributes.get_int("axis", 0) % max(len(rows), 1) if is_concat else None
    for sizes in (row for axis, row in enumerate(rows) if axis != joined):
        yield from pairwise([each for each in dict.fromkeys(sizes) if each != ONE])


def _solved(difference: Size) -> Iterator[tuple[str, Size]]:
    """Yield which size makes a difference none, and is a whole number at all other sizes."""
    names = [symbol for symbol in difference.symbols if isinstance(symbol, str)]
    for name in names if len(names) == len(difference.symbols) else ():
        factor = difference.coefficient(name)
        rest = Size.symbol(name) - difference * (1 / factor) if factor else size(0)
        if rest.symbols and name not in rest.symbols and rest.is_integral:
            yield name, rest


def _add_windows(known: KnownValues, node: ir.Node) -> None:
    """Add the sizes behind the windows of a convolution, as if these took each row of its input."""
    if node.op_type not in _CONVOLUTIONS or node.domain or "auto_pad" in node.attributes:
        return
    given, weights, behind = map(known.shape, (*node.inputs[:2], node.outputs[0]))
    if not len(given) == len(weights) == len(behind):
        return
    rank = len(given) - 2
    kernels = [int(dim.constant or 0) for dim in weights[2:]]
    strides, dilations, more = (node.attributes.get_ints(name, [usual] * rank) for name, usual in _WINDOWS.items())
    pads = node.attributes.get_ints("pads", [0] * 2 * rank)
    ends = zip(pads[:rank], pads[rank:], strict=True)
    spans = [(n - 1) * step + 1 - sum(cut) for n, step, cut in zip(kernels, dilations, ends, strict=True)]
    axes = zip(given[2:], spans, strides, more, strict=True)
    if node.op_type == "Conv":
        found = [(dim - span) * Fraction(1, stride) + 1 for dim, span, stride, _ in axes]
    else:
        found = [(dim - 1) * stride + span + most for dim, span, stride, most in axes]
    known.set_shape(node.outputs[0], [None, None, *found])


_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WINDOWS = {"strides": 1, "dilations": 1, "output_padding": 0}
"""What describes the windows of an axis, where it is not written."""
