"""Computes nodes on arrays of polynomials (`polynomials`), or of numbers.

What is not known is absent: an operator that is not here, data from outside. Only what needs it is unknown then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.node_outputs import NodeModel
from rnn_lowering.facts.operators import (
    axes_by_rule,
    bounds_of,
    in_order,
    inputs_of,
    integers_of,
    is_of_default_domain,
    moved_inputs,
    operator_of,
    parameter,
    takes_all,
)
from rnn_lowering.limits import most_bytes
from rnn_lowering.loops.raising.operators import ARITHMETIC, FUNCTIONS, MOVES, STEPS, StepRule, moved
from rnn_lowering.loops.raising.polynomials import EXACT, REAL, NotRaised, Variables, checked_size
from rnn_lowering.types import Array, array_of

_MOST_INTEGERS = 1 << 12
"""Maximum elements of a tensor of integers that are not known."""

_CUTS = ("Concat", "Gather", "ReduceMean", "ReduceSum", "Slice", "Split", "Squeeze")
"""Operators that must not act along an open axis."""

_WITH_SIZES = ("Expand", "Reshape")
"""Operators whose other inputs are sizes."""

_PRODUCTS = ("Einsum", "Gemm", "MatMul")


class StepEvaluator:
    """Computes the values of a step.

    Args:
        variables: Gives variables.
        opset: The version of the default domain.
        shape: Returns shapes of values from outside, with numbers for open sizes; None for an unknown rank.
        open_axes: Returns their open axes. A number stands for the size of such an axis, and must not decide
            anything else: the axis is not cut, joined or summed, and its size is used in shapes only.
        dtype: Returns the element type of a value; None if it is unknown.
    """

    def __init__(
        self,
        variables: Variables,
        opset: int,
        shape: Callable[[ir.Value], Sequence[int] | None],
        open_axes: Callable[[ir.Value], Collection[int]],
        dtype: Callable[[ir.Value], ir.DataType | None],
    ) -> None:
        self.variables = variables
        self.opset = opset
        self.unknown: dict[str, None] = {}
        self.shape = shape
        self.dtype = dtype
        self._arrays: dict[ir.Value, Array | None] = {}
        self.open_axes = open_axes
        self._open: set[ir.Value] = set()
        self._parts: dict[ir.Value, Array] = {}
        self._stretched: set[ir.Value] = set()
        self._elements = 0

    def whole(self, value: ir.Value) -> bool:
        """Whether a value has integers."""
        dtype = self.dtype(value)
        return dtype is not None and dtype.is_integer()

    def bind(self, value: ir.Value, array: Array | None) -> None:
        """Let an array stand for a value; None if nothing is known of it."""
        self._set([value], [array])

    def _set(self, values: Sequence[ir.Value], arrays: Sequence[Array | None]) -> None:
        """Record arrays; NumPy returns an element itself in the place of an array of rank 0."""
        for value, array in zip(values, arrays, strict=False):
            self._arrays[value] = None if array is None else np.asarray(array)

    def find(self, value: ir.Value) -> Array | None:
        """Return a value as an array of polynomials or numbers; None if it is unknown."""
        for current in in_order(value, self._needed, self._arrays):
            node = current.producer()
            if node is None or node.op_type == "Constant":
                self._arrays[current] = self._constant(current)
            else:
                self._compute(node)
        return self._arrays[value]

    def _needed(self, value: ir.Value) -> list[ir.Value]:
        """Return the next value that is needed for one; none if another one that it needs is unknown."""
        node = value.producer()
        needed = [] if node is None or node.op_type in ("Constant", "Shape", "Size") else inputs_of(value)
        if any(v in self._arrays and self._arrays[v] is None for v in needed):
            return []
        return [v for v in needed if v not in self._arrays][:1]

    def numbers(self, value: ir.Value | None) -> Array | None:
        """Return a value whose numbers are known, whatever the open sizes are."""
        if value is None or value in self._open:
            return None
        array = self.find(value)
        return None if array is None or array.dtype == object or value in self._open else array

    def _constant(self, value: ir.Value) -> Array | None:
        if value.const_value is not None and value.const_value.nbytes > most_bytes():
            return None
        tensor = constant_of(value, self.opset)
        if tensor is None:
            return self._integers(value)
        return array_of(tensor) if tensor.dtype.numpy().kind in "biuf" else None

    def _integers(self, value: ir.Value) -> Array | None:
        """Return integers that are not known as elements: a mask may compare them."""
        shape = self.shape(value) if self.whole(value) else None
        if shape is None or int(np.prod(shape, dtype=object)) > _MOST_INTEGERS:
            return None
        return self.variables.elements(value, shape)

    def _compute(self, node: ir.Node) -> None:
        """Add the outputs of a node."""
        self._arrays.update({value: self._integers(value) for value in node.outputs})
        if not is_of_default_domain(node):
            self.unknown[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] = None
            return
        given = [None if v is None else self._arrays.get(v) for v in node.inputs]
        sizes = node.op_type in ("Shape", "Size")
        if not sizes and any(v is not None and a is None for v, a in zip(node.inputs, given, strict=True)):
            return
        symbolic = any(array is not None and array.dtype == object for array in given)
        with_open = [n for n, v in enumerate(node.inputs) if v in self._open]
        if symbolic and with_open and (node.op_type not in _WITH_SIZES or with_open[0] == 0):
            return  # only as a shape: a coefficient must be the same for all sizes
        if symbolic and not self._follows(node):
            self.unknown[node.op_type] = None
            return
        try:
            cuts = node.op_type in _CUTS and not self._leaves_open_axes(node)
            results = None if cuts else self._results(node, given, symbolic=symbolic)
        except NotRaised:
            raise
        except Exception:  # shapes that do not fit, attributes that are none, whatever onnx's inference raises
            results = None
        if results is None:
            if symbolic and node.op_type not in RULES:
                self.unknown[node.op_type] = None
            return
        self._set(node.outputs, results)
        self._count(self._arrays[value] for value in node.outputs)
        self._follow_open_sizes(node, with_open, symbolic=symbolic)

    def _follows(self, node: ir.Node) -> bool:
        """Whether the rule of a node knows all its attributes, and computes its types as the operator does."""
        names = _ATTRIBUTES.get(node.op_type, ())
        if any(name not in names or given.is_ref() for name, given in node.attributes.items()):
            return False
        if node.op_type in MOVES or node.op_type in ("Shape", "Size"):
            return True
        if node.op_type in _PRODUCTS and not self._stretched.isdisjoint(v for v in node.inputs if v is not None):
            return False  # it may sum along an axis of an open size
        dtypes = [self.dtype(v) for v in (*node.inputs, *node.outputs) if v is not None]
        if node.op_type == "Cast" or all(dtype in REAL for dtype in dtypes):
            return True
        return node.op_type in _OF_INTEGERS and all(dtype in EXACT for dtype in dtypes)

    def _follow_open_sizes(self, node: ir.Node, with_open: Sequence[int], *, symbolic: bool) -> None:
        """Note which numbers depend on open sizes, and which are the same along an axis of such a size."""
        given = [v for v in node.inputs if v is not None]
        parts = self._open_parts(node, with_open)
        if parts is not None:
            self._parts.update(zip(node.outputs, parts, strict=False))
            self._open.update(value for value, part in zip(node.outputs, parts, strict=False) if part.any())
            return
        if node.op_type in ("Shape", "Size"):
            self._open.update(node.outputs)
        if symbolic or node.op_type in ("Shape", "Size"):
            return
        stretched = not self._stretched.isdisjoint(given)
        filled = bool(with_open) and (
            node.op_type == "ConstantOfShape" or (node.op_type in _WITH_SIZES and with_open[0])
        )
        if with_open and not filled:
            self._open.update(node.outputs)
        elif filled or stretched:
            row = operator_of(node)
            keeps = filled or row.elementwise or row.keeps_axes
            (self._stretched if keeps else self._open).update(node.outputs)

    def _open_parts(self, node: ir.Node, with_open: Sequence[int]) -> Sequence[Array] | None:
        """Return which elements of sizes, or of sizes that are moved, depend on open sizes; None if unknown.

        What torch computes of the number of units does not, though the size of the batch is in the same shape.
        """
        if node.op_type == "Shape" and node.inputs[0] is not None:
            shape = self.shape(node.inputs[0])
            is_open = np.isin(np.arange(len(shape or ())), [*self.open_axes(node.inputs[0])])
            return None if shape is None else [_part_of_shape(node, is_open)]
        moves = node.inputs[: moved_inputs(node)]
        if node.op_type not in (*MOVES, "Cast") or not with_open or with_open[-1] >= len(moves):
            return None
        if any(node.inputs[n] not in self._parts for n in with_open):
            return None
        arrays = [(v, array) for v in moves if v is not None and (array := self._arrays[v]) is not None]
        parts = [self._parts.get(value, np.zeros(array.shape, bool)) for value, array in arrays]
        others = [None if v is None else self._arrays[v] for v in node.inputs[len(moves) :]]
        return parts if node.op_type == "Cast" else moved(self, node, [*parts, *others])

    def _leaves_open_axes(self, node: ir.Node) -> bool:
        """Whether a node that cuts, joins or sums does so along no open axis."""
        value = node.inputs[0]
        open_axes = () if value is None else self.open_axes(value)
        if value is None or not open_axes:
            return True
        if node.op_type == "Slice":
            bounds = bounds_of(*(self.integers(node, name) or [] for name in ("starts", "ends", "axes", "steps")))
            rank = len(self._open_shape(value))
            return {axis % rank for axis, *bound in bounds if not takes_all(*bound)}.isdisjoint(open_axes)
        axes = axes_by_rule(node, self.opset, self._open_shape, lambda name: self.integers(node, name) or [])
        return axes is not None and all(axes.inputs[0][axis] in axes.output for axis in open_axes)

    def _open_shape(self, value: ir.Value) -> list[None]:
        """Return a shape of which only the rank is known."""
        array = self._arrays[value]
        assert array is not None
        return [None] * array.ndim

    def _count(self, found: Iterable[Array | None]) -> None:
        self._elements += sum(array.size for array in found if array is not None and array.dtype == object)
        checked_size([-(-self._elements // 16)])

    def _results(self, node: ir.Node, given: Sequence[Array | None], *, symbolic: bool) -> Sequence[Array] | None:
        if node.op_type in ("Shape", "Size"):
            return self._size(node)
        rule = RULES.get(node.op_type)
        arrays = [array for array in given if array is not None]
        if symbolic and operator_of(node).elementwise:
            checked_size(np.broadcast_shapes(*(array.shape for array in arrays)))
        if rule is not None and symbolic:
            results = rule(self, node, given)
            return results if isinstance(results, list) or results is None else [results]
        if symbolic or not arrays:
            return None
        model = NodeModel.of(node, self.opset)
        return model.compute(given) if model.bytes_of_outputs(given) <= most_bytes() else None

    def _size(self, node: ir.Node) -> Sequence[Array] | None:
        value = node.inputs[0]
        if value is None:
            return None
        known = self._arrays.get(value)
        shape = self.shape(value) if known is None else known.shape
        if shape is None and value.producer() is not None:
            array = self.find(value)
            shape = None if array is None else array.shape
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.asarray(int(np.prod(shape)), np.int64)]
        return [_part_of_shape(node, np.asarray(shape, np.int64))]

    def summed(self, node: ir.Node, rank: int) -> Sequence[int]:
        """Return the axes of a value that a node sums."""
        axes = self.integers(node, "axes")
        none = () if node.attributes.get_int("noop_with_empty_axes", 0) else range(rank)
        return axes or none

    def integers(self, node: ir.Node, name: str) -> list[int] | None:
        """Return a parameter of a node that is a list of integers; None if it is absent."""
        held = parameter(node, name, self.opset)
        if held is None:
            return None
        numbers = held if isinstance(held, ir.Attr) else self._arrays.get(held)
        if numbers is None or (not isinstance(numbers, ir.Attr) and numbers.dtype == object):
            raise ValueError(name)
        return integers_of(numbers)


def _part_of_shape(node: ir.Node, sizes: Array) -> Array:
    """Return the part of the sizes of a value, or of what is known of each, that a Shape returns."""
    return sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", None)]


RULES: Mapping[str, StepRule] = {**MOVES, **ARITHMETIC, **FUNCTIONS, **STEPS}
"""By operator, what it computes of polynomials."""

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Cast": ("to", "saturate", "round_mode"),
    "Clip": ("max", "min"),
    "Concat": ("axis",),
    "Einsum": ("equation",),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    "Flatten": ("axis",),
    "Gather": ("axis",),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "GRU": ("hidden_size", "linear_before_reset"),
    "HardSigmoid": ("alpha", "beta"),
    **dict.fromkeys(("LSTM", "RNN"), ("hidden_size",)),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), ("axes", "keepdims", "noop_with_empty_axes")),
    "Reshape": ("allowzero",),
    "Shape": ("end", "start"),
    "Slice": ("axes", "ends", "starts"),
    "Split": ("axis", "num_outputs", "split"),
    "Squeeze": ("axes",),
    "Transpose": ("perm",),
    "Unsqueeze": ("axes",),
}
"""By operator, the attributes that its rule knows; with another attribute its result is unknown."""

_OF_INTEGERS = (
    *("Abs", "Add", "Cast", "Clip", "Einsum", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    *("MatMul", "Max", "Min", "Mul", "Neg", "ReduceSum", "Relu", "Sub", "Sum", "Where"),
)
"""Operators whose rule is right for integers, too."""
