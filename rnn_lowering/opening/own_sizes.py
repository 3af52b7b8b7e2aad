"""The sizes behind operators that cut, pad, split, resize or slide along an open axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import onnx_ir as ir

from rnn_lowering.facts.infer import slice_bounds
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Size
from rnn_lowering.opening.questions import Cut, Opened, Questions
from rnn_lowering.opening.windows import WINDOWED, sliding_window


@dataclass(frozen=True)
class OwnSizes:
    """Sets sizes that ONNX's inference does not know, or knows for the exported numbers only.

    Attributes:
        known: What is known of the values.
        questions: The numbers whose meaning is not known yet.
        tell: Lets a node have other numbers, and follows it again.
    """

    known: KnownValues
    questions: Questions
    tell: Callable[[Opened], NoReturn]

    def set(self, node: ir.Node) -> None:
        """Set the sizes of the outputs of a node, if it is such an operator."""
        rule = self._rules.get(node.op_type)
        if rule is not None and not node.domain and self.known.shape(node.inputs[0]):
            rule(self, node)

    def _slice(self, node: ir.Node) -> None:
        """Set the sizes of a Slice of an open axis from its numbers, until one is known to be a size."""
        shape = self.known.shape(node.inputs[0])
        bounds = slice_bounds(self.known, node, len(shape))
        if bounds is None or not any(shape[axis].symbols or bounds[axis][1].symbols for axis in bounds):
            return
        dims: list[Size | None] = [None if axis in bounds else dim for axis, dim in enumerate(shape)]
        starts, ends = (self.known.parameter(node, name) or [] for name in ("starts", "ends"))
        for n, (axis, each) in enumerate(bounds.items()):
            if not self.questions.is_free(shape[axis]) or each[1].symbols:
                dims[axis] = self.questions.cut(node, axis, shape[axis], each, Cut(node, starts, ends, n))
        self.known.set_shape(node.outputs[0], dims)

    def _pad(self, node: ir.Node) -> None:
        """Set the sizes of a padded open axis."""
        shape = self.known.shape(node.inputs[0])
        amounts, axes = self.known.parameter(node, "pads"), self.known.parameter(node, "axes")
        if not amounts or axes is None or any(axis.constant is None for axis in axes):
            return
        dims: list[Size | None] = [None] * len(shape)
        for n, axis in enumerate([int(axis.constant or 0) % len(shape) for axis in axes] or range(len(shape))):
            if not self.questions.is_free(shape[axis]):
                places = n, n + len(amounts) // 2
                dims[axis] = self.questions.padded(node, axis, shape[axis], amounts, places)
        self.known.set_shape(node.outputs[0], dims)

    def _split(self, node: ir.Node) -> None:
        """Set the sizes of the parts of an open axis."""
        shape, numbers = self.known.shape(node.inputs[0]), self.known.parameter(node, "split")
        axis = (node.attributes.get_int("axis", 0) or 0) % len(shape)
        if not numbers or self.questions.is_free(shape[axis]):
            return
        for value, part in zip(node.outputs, self.questions.parts(node, axis, shape[axis], numbers), strict=True):
            self.known.set_shape(value, [part if n == axis else None for n in range(len(shape))])

    def _resize(self, node: ir.Node) -> None:
        """Set the sizes of an open axis that is resized. The batch is not, where its size stays."""
        shape, numbers = self.known.shape(node.inputs[0]), self.known.parameter(node, "sizes")
        scales = self.known.parameter(node, "scales")
        dims: list[Size | None] = [None] * len(shape)
        for axis, dim in enumerate(shape):
            if self.questions.is_free(dim):
                continue
            if scales and len(scales) == len(shape):
                dims[axis] = self.questions.scaled(node, axis, dim, scales)
            elif numbers and len(numbers) == len(shape):
                if not axis and numbers[0].constant == dim.at(self.questions.exported):
                    self.tell(Opened(node, "sizes", (dim, *numbers[1:])))
                dims[axis] = self.questions.resized(node, axis, numbers) if axis else None
        if any(dims):
            self.known.set_shape(node.outputs[0], dims)

    def _windows(self, node: ir.Node) -> None:
        """Set the sizes behind a convolution or a pool whose window moves along an open axis."""
        before, weights = (self.known.shape(value) for value in (*node.inputs, None)[:2])
        dims: list[Size | None] = [None] * len(before)
        for axis, dim in enumerate(before[2:], 2):
            window = sliding_window(node, axis, weights if node.op_type == "Conv" else ()) if dim.symbols else None
            if window is not None:
                dims[axis] = dim + window.before + window.after + 1 - window.span
        if any(dims):
            self.known.set_shape(node.outputs[0], dims)

    _rules: ClassVar = {
        "Slice": _slice,
        "Pad": _pad,
        "Split": _split,
        **dict.fromkeys(("Resize", "Upsample"), _resize),
        **dict.fromkeys(WINDOWED, _windows),
    }
