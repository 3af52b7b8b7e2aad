"""How runtimes compute nodes wrongly without an error: what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.targets.target import KnownValue, Misreads

Misreading = Callable[[ir.Node, KnownValue, int], str]
"""Takes a node, what is known of values and the opset; returns how it is computed wrongly, which are run only, or
""."""

AXES_OF_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
"""Reductions that are composed of others."""

_OF_ONE_AXIS = 13
"""The first opset at which a LogSoftmax is of one axis, and has a function."""


def opset_of(node: ir.Node) -> int:
    """Return the version of ONNX's operators in the graph of a node."""
    return default_opset(node.graph.opset_imports if isinstance(node.graph, ir.Graph) else {})


def by_operator(found: Mapping[str, Misreading]) -> Misreads:
    """Return what a runtime misreads, of what each operator is asked for."""

    def misreads(node: ir.Node, known: KnownValue) -> str:
        return found[node.op_type](node, known, opset_of(node)) if node.op_type in found else ""

    return misreads


def reduces(node: ir.Node) -> bool:
    """Return whether a scatter adds, multiplies or compares what it writes."""
    return node.attributes.get_string("reduction", "none") != "none"


def pads(node: ir.Node) -> bool:
    """Return whether a pool pads its input."""
    by_itself = node.attributes.get_string("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return by_itself or any(node.attributes.get_ints("pads", ()))


def aligns_corners(node: ir.Node) -> bool:
    """Return whether a Resize puts the first and last elements of its result on those of its input."""
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "align_corners"


def rounds_up(node: ir.Node) -> bool:
    """Return whether a Resize of the nearest takes the element behind a place that is half way, or anywhere."""
    is_nearest = node.attributes.get_string("mode", "nearest") == "nearest"
    return is_nearest and node.attributes.get_string("nearest_mode", "").endswith("ceil")


_HALF = 0.5


def rounds(node: ir.Node, shape: ir.Shape | None, scales: Sequence[float]) -> bool:
    """Return whether a scale of a Resize gives no whole size, or may where a size is open, and it matters."""
    modes = ("mode", "nearest"), ("coordinate_transformation_mode", "half_pixel"), ("nearest_mode", "")
    is_cut = [node.attributes.get_string(*mode) for mode in modes] == ["nearest", "asymmetric", "floor"]
    sizes: Sequence[object] = [None] * len(scales) if shape is None else list(shape)
    return any(
        not float(scale * size if isinstance(size, int) else scale).is_integer()
        for scale, size in zip(scales, sizes, strict=True)
        if not (is_cut and scale == _HALF)  # every second row, whatever the size is
    )


_SCALES = 2
"""The input of scales of a Resize, from opset 11 on."""

_PLACES = 11
"""The first opset of a Resize that says how places correspond; before it they are multiplied by the scales."""


def of_multiplied_places(node: ir.Node) -> str:
    """Return how a runtime computes a linear Resize of opset 10, or ""."""
    is_old = opset_of(node) < _PLACES and node.attributes.get_string("mode", "nearest") == "linear"
    return "as from opset 11 on" if is_old else ""


def rounds_a_size(node: ir.Node, known: KnownValue) -> bool:
    """Return whether a Resize rounds a size, or may."""
    opset = opset_of(node)
    slot = 1 if opset < _PLACES else _SCALES
    scales = constant_of(node.inputs[slot], opset) if len(node.inputs) > slot else None
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    if scales is None or not scales.size or (shape is not None and len(shape) != scales.size):
        return False
    return rounds(node, shape, scales.numpy().tolist())


def of_rounded_sizes(node: ir.Node, known: KnownValue) -> str:
    """Return how a runtime computes a Resize by the scales of rounded sizes, or ""."""
    is_wrong = not aligns_corners(node) and rounds_a_size(node, known)
    return "wrongly where a size is rounded" if is_wrong else ""


class Windows(NamedTuple):
    """The windows of a pool along an axis: how many elements a window spans, and how far apart two are."""

    size: object
    span: int
    stride: int
    begin: int
    end: int

    @property
    def adds(self) -> bool:
        """Whether rounding up adds a window that begins in the input, of known size."""
        return self._rest > 0 and not begins_behind(self)

    @property
    def _rest(self) -> int:
        assert isinstance(self.size, int)
        return (self.size + self.begin + self.end - self.span) % self.stride

    @property
    def next(self) -> int:
        """Where the next window begins behind the whole ones."""
        assert isinstance(self.size, int)
        room = self.size + self.begin + self.end - self.span
        return (room // self.stride + 1) * self.stride - self.begin if self._rest else -1


def windows_of(node: ir.Node, shape: ir.Shape | None) -> list[Windows] | None:
    """Return the windows of a pool that is rounded up along each axis of space; None for any other pool."""
    kernel = node.attributes.get_ints("kernel_shape", ())
    rank = len(kernel)
    if shape is None or len(shape) != rank + 2 or not node.attributes.get_int("ceil_mode", 0):
        return None
    strides, dilations = (node.attributes.get_ints(name, (1,) * rank) for name in ("strides", "dilations"))
    ends = node.attributes.get_ints("pads", (0,) * 2 * rank)
    return [
        Windows(shape[n + 2], (k - 1) * dilations[n] + 1, strides[n], ends[n], ends[n + rank])
        for n, k in enumerate(kernel)
    ]


def begins_behind(windows: Windows) -> bool:
    """Return whether rounding up adds a window that begins behind the input, or may where its size is open."""
    if windows.stride + windows.end <= windows.span:
        return False
    return not isinstance(windows.size, int) or windows.next >= windows.size


def adds_a_window(node: ir.Node, known: KnownValue) -> str:
    """Return how a runtime computes a pool with a window behind the input, or ""."""
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    found = any(map(begins_behind, windows_of(node, shape) or ()))
    return "with a window behind the input where it is rounded up" if found else ""


_PAIR = 2


def einsum_of_several(node: ir.Node, known: KnownValue, opset: int) -> str:
    """A `Misreading`: an Einsum of more operands than two."""
    return "of two operands only" if len(node.inputs) > _PAIR else ""


def sums_lone_labels(node: ir.Node) -> str:
    """Return how a runtime computes an Einsum of several operands one of which has an axis that is summed alone."""
    terms, out = labels_of(node)
    joined = "".join(terms)
    lone = {label for label in joined if joined.count(label) == 1 and label.isalpha()} - {*(out or joined)}
    return "with axes of two operands or of its result only" if len(terms) > 1 and lone else ""


def sums_all_of_one(node: ir.Node) -> str:
    """Return how a runtime computes an Einsum of one operand that sums along all axes, or ""."""
    terms, out = labels_of(node)
    is_sum = len(terms) == 1 and out == "" and len({*terms[0]}) == len(terms[0])
    return "with axes in its result only" if is_sum else ""


def labels_of(node: ir.Node) -> tuple[list[str], str | None]:
    """Return the labels of each operand of an Einsum, and those of its result; None if they are not written."""
    equation = node.attributes.get_string("equation", "") or ""
    terms, arrow, out = equation.replace(" ", "").partition("->")
    return terms.split(","), out if arrow else None


def of_large_numbers(node: ir.Node) -> str:
    """Return how a runtime computes logarithms that exponentials are inside of, or "": by these, not by their
    differences from the largest."""
    if node.op_type == "ReduceLogSumExp":
        return "as infinity from 89 on"
    is_function = node.op_type == "LogSoftmax" and opset_of(node) >= _OF_ONE_AXIS
    return "as minus infinity from -104 on" if is_function else ""
