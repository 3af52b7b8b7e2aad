"""Comparisons of two sizes whose result follows from the least number of frames of a sequence.

A convolution of kernel 3 without padding needs 3 frames. Behind it, Max(T - 2, 0) is T - 2, and 0 < T - 2 is true.
A chunk may be shorter, so the readers of such a node read the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.numbers import depends_on_time
from rnn_lowering.facts.size import Size
from rnn_lowering.streaming.editor import Editor, home
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.types import Array

_TRUE: Mapping[str, Callable[[Size], Size]] = {
    "Greater": lambda rest: rest - 1,
    "GreaterOrEqual": lambda rest: rest,
    "Less": lambda rest: -rest - 1,
    "LessOrEqual": lambda rest: -rest,
}
"""What is never negative if a comparison is true, of the first number minus the second."""

_FALSE = {"Greater": "LessOrEqual", "GreaterOrEqual": "Less", "Less": "GreaterOrEqual", "LessOrEqual": "Greater"}
"""The comparison that is true where another is false."""


def settle_comparison(flow: Flow, node: ir.Node) -> bool:
    """Return whether a comparison of single sizes has the same result in each sequence that the model takes; note
    that its readers read the result."""
    values, known = [v for v in node.inputs if v is not None], flow.known
    if node.domain or node.op_type not in ("Max", "Min", *_TRUE):
        return False
    numbers = [found[0] for v in values if (found := known.numbers(v)) is not None and len(found) == 1]
    integers = all(v in known.types and known.types[v].is_integer() for v in values)
    if not integers or len(numbers) < len(values) or not any(depends_on_time(known, v) for v in values):
        return False
    result = _truth(flow, node, numbers) if node.op_type in _TRUE else _extreme(flow, node, values, numbers)
    if result is None:
        return False
    output = node.outputs[0]
    if isinstance(result, ir.Value):
        known.contents[output], known.shapes[output] = known.contents[result], known.shapes[result]
    else:
        known.contents[output] = result
    flow.change(node, _replace_by, result)
    return True


def _truth(flow: Flow, node: ir.Node, numbers: Sequence[Size]) -> Array | None:
    """Return the result of a comparison as an array like the output; None if it is not always the same."""
    rest, shape = numbers[0] - numbers[1], flow.known.static_shape(node.outputs[0])
    yes, no = (_never_negative(flow, _TRUE[name](rest)) for name in (node.op_type, _FALSE[node.op_type]))
    return np.full(shape, yes) if shape is not None and (yes or no) else None


def _extreme(flow: Flow, node: ir.Node, values: Sequence[ir.Value], numbers: Sequence[Size]) -> ir.Value | None:
    """Return the input that a Max or Min always returns; None if there is none of the shape of the output."""
    sign = 1 if node.op_type == "Max" else -1
    for value, number in zip(values, numbers, strict=True):
        alike = flow.known.shapes.get(value) == flow.known.shapes.get(node.outputs[0])
        if alike and all(_never_negative(flow, (number - other) * sign) for other in numbers):
            return value
    return None


def _never_negative(flow: Flow, number: Size) -> bool:
    return number.whole().of_longer(flow.shortest - 1).never_negative


def _replace_by(editor: Editor, node: ir.Node, result: ir.Value | Array) -> None:
    graph = home(node)
    value = result if isinstance(result, ir.Value) else editor.constant(result, graph)
    editor.replace(node.outputs[0], value, graph)
    graph.remove(node, safe=True)
