"""An Einsum as MatMul, with Transpose, ReduceSum and Reshape around it; more than two operands one by one."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operands, integers
from rnn_lowering.targets.misread import labels_of

_PAIR = 2


def einsum(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Operands with each label once; ranks and sizes are known as far as they matter."""
    *parts, out = _terms(node, operands) or [""]
    if not parts or (opset < OLDEST_OPSET and (len(parts) > 1 or out)):
        return None
    inputs, body = [f"x{n}" for n in range(len(parts))], _EinsumBody()
    if len(parts) > _PAIR:
        body.two_by_two(inputs, parts, out)
    elif len(parts) == 1:
        body.ordered(*body.summed(inputs[0], parts[0], out), out)
    elif any(each.shape is None for each in operands):
        return None
    else:
        shapes = (zip(part, each.shape or (), strict=False) for part, each in zip(parts, operands, strict=True))
        sizes = _sizes(pair for shape in shapes for pair in shape)
        if sizes is None or not body.product([*zip(inputs, parts, strict=True)], out, sizes):
            return None
    return helper.make_function("", "", inputs, ["y"], body.ended(inputs[0]), [])


def _terms(node: ir.Node, operands: Operands) -> list[str] | None:
    """Return the labels of each operand and of the result, with labels for `...`; None if an operand has one twice,
    or axes are not known."""
    parts, out = labels_of(node)
    ends = [part.replace("...", "") for part in parts]
    shapes = [(end, each.shape) for part, end, each in zip(parts, ends, operands, strict=True) if "." in part]
    counts = {None if shape is None else len(shape) - len(end) for end, shape in shapes}
    if None in counts or len(counts) > 1:
        return None
    free = [letter for letter in string.ascii_letters if letter not in "".join(parts)]
    others = "".join(free[: next(iter(counts), 0) or 0])
    if out is None:
        joined = "".join(ends)
        out = "..." * bool(shapes) + "".join(sorted(x for x in joined if joined.count(x) == 1))
    terms = [part.replace("...", others) for part in (*parts, out)]
    return None if any(len({*part}) < len(part) for part in terms) else terms


def _sizes(dims: Iterable[tuple[str, int | None]]) -> dict[str, int | None] | None:
    """Return the size of each label, None if unknown; None if a label has several sizes, or none."""
    sizes: dict[str, int | None] = {}
    for label, size in dims:
        before = sizes.setdefault(label, size)
        if size == 0 or (size is not None and before not in (None, size)):
            return None
        sizes[label] = size if before is None else before
    return sizes


class _Labels(NamedTuple):
    """The labels of both operands and the result, of the left one, of both operands, and of the right one."""

    batch: list[str]
    rows: list[str]
    summed: list[str]
    columns: list[str]

    @classmethod
    def of(cls, a: str, b: str, out: str) -> _Labels:
        batch, summed = ([label for label in a if label in b and (label in out) == kept] for kept in (True, False))
        return cls(batch, [x for x in a if x not in b], summed, [x for x in b if x not in a])


class _EinsumBody:
    """The nodes of an Einsum; each value has the name of its node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def ended(self, given: str) -> list[onnx.NodeProto]:
        """Return the nodes, of which the last computes y; with none it is what is given."""
        if not self.nodes:
            self.add("Identity", [given])
        self.nodes[-1].output[0] = "y"
        return self.nodes

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def numbers(self, numbers: Sequence[int]) -> str:
        return self.add("Constant", [], value=numpy_helper.from_array(integers(numbers)))

    def two_by_two(self, inputs: Sequence[str], parts: Sequence[str], out: str) -> None:
        """Multiply the first two operands, with the labels that are used behind them, then that and the others."""
        first, second, *others = parts
        kept = "".join(dict.fromkeys(x for x in first + second if x in "".join((*others, out))))
        product = self.add("Einsum", inputs[:_PAIR], equation=f"{first},{second}->{kept}")
        self.add("Einsum", [product, *inputs[_PAIR:]], equation=f"{','.join([kept, *others])}->{out}")

    def summed(self, value: str, labels: str, kept: str) -> tuple[str, str]:
        """Sum a value along the axes that are not kept; return it and its labels."""
        axes = [axis for axis, label in enumerate(labels) if label not in kept]
        if axes:
            along = [] if len(axes) == len(labels) else [self.numbers(axes)]
            value = self.add("ReduceSum", [value, *along], keepdims=0)
        return value, "".join(label for label in labels if label in kept)

    def ordered(self, value: str, labels: Sequence[str], wanted: Sequence[str]) -> str:
        """Return a value with its axes in another order."""
        if [*labels] == [*wanted]:
            return value
        return self.add("Transpose", [value], perm=[labels.index(label) for label in wanted])

    def product(self, operands: Sequence[tuple[str, str]], out: str, sizes: Mapping[str, int | None]) -> bool:
        """Multiply two operands; return False if a shape is not known."""
        (_, first), (_, second) = operands
        (x, a), (z, b) = (
            self.summed(value, labels, other + out)
            for (value, labels), other in zip(operands, (second, first), strict=True)
        )
        if not out:
            self.summed(self.add("Mul", [x, self.ordered(z, b, a)]), a, out)
            return True
        by = _Labels.of(a, b, out)
        left = self.ordered(x, a, [*by.batch, *by.rows, *by.summed])
        right = self.ordered(z, b, [*by.batch, *by.summed, *by.columns])
        single = max(len(by.summed), len(by.columns)) <= 1 and (len(by.rows) <= 1 or not by.batch)
        product = self.of_axes(left, right, by) if single else self.of_matrices(left, right, by, sizes)
        if product is not None:
            self.ordered(product, [*by.batch, *by.rows, *by.columns], out)
        return product is not None

    def of_axes(self, left: str, right: str, by: _Labels) -> str:
        """Multiply operands with an axis at most for each group; MatMul takes all rows where no batch is."""
        first, behind = len(by.batch), len(by.batch) + max(len(by.rows), 1)
        left = self.widened(left, [*([] if by.rows else [first]), *([] if by.summed else [behind])])
        right = self.widened(right, [*([] if by.summed else [first]), *([] if by.columns else [first + 1])])
        made = [*([] if by.rows else [first]), *([] if by.columns else [behind])]
        product = self.add("MatMul", [left, right])
        return self.add("Squeeze", [product, self.numbers(made)]) if made else product

    def of_matrices(self, left: str, right: str, by: _Labels, sizes: Mapping[str, int | None]) -> str | None:
        """Multiply operands whose groups become an axis each; return None if their sizes are not known."""
        shapes = [_target_shape(sizes, by.batch, *axes) for axes in ((by.rows, by.summed), (by.summed, by.columns))]
        matrices = [
            self.add("Reshape", [value, self.numbers(shape)])
            for value, shape in zip((left, right), shapes, strict=True)
            if shape is not None
        ]
        if None in shapes:
            return None
        shape = _target_shape(sizes, by.batch, *([label] for label in (*by.rows, *by.columns)))
        product = self.add("MatMul", matrices)
        return self.add("Reshape", [product, self.whole(left, right, by) if shape is None else self.numbers(shape)])

    def whole(self, left: str, right: str, by: _Labels) -> str:
        """Return the sizes of the batch, the rows and the columns of two operands."""
        axes = [*range(len(by.batch) + len(by.rows))], [*range(-len(by.columns), 0)]
        sizes = [
            self.add("Gather", [self.add("Shape", [value]), self.numbers(each)], axis=0)
            for value, each in zip((left, right), axes, strict=True)
            if each
        ]
        return self.add("Concat", sizes, axis=0)

    def widened(self, value: str, axes: Sequence[int]) -> str:
        return self.add("Unsqueeze", [value, self.numbers(axes)]) if axes else value


def _target_shape(sizes: Mapping[str, int | None], batch: Sequence[str], *axes: Sequence[str]) -> list[int] | None:
    """Return the numbers of a Reshape to the axes of the batch, which stay, and to products of axes; None if more
    than one of these is unknown."""
    factors = [[sizes[label] for label in labels] for labels in axes]
    products = [-1 if None in each else math.prod(n for n in each if n is not None) for each in factors]
    return None if products.count(-1) > 1 else [0] * len(batch) + products
