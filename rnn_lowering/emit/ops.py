"""`Ops`: emit primitive operators at any opset into the current graph.

Callers say what an operator does; `Ops` knows how the opset writes it. On constants and symbolic zeros most
operators emit no node: they become expressions (`emit/constants`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from rnn_lowering.emit.constants import (
    Constant,
    Dequantized,
    QuantParameters,
    Zeros,
    elementwise,
    literal,
    zeros_of,
)
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import STEP, Draft, Names, Prefix, add_weights
from rnn_lowering.emit.tensor import Tensor, broadcast_shape, concat_shape, static
from rnn_lowering.emit.versions import since
from rnn_lowering.facts.parameters import TO_THE_END, inputs_and_attributes
from rnn_lowering.types import Dims

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


Rule: TypeAlias = Callable[..., Any]
"""Emits others in place of an operator: takes `Ops` and the operands; returns what they compute, or None to keep
the operator."""

Finish: TypeAlias = "Callable[[Ops, Sequence[ir.Value]], None]"
"""Changes the nodes of a finished scope, which is still open; takes `Ops` and the future outputs of the graph."""


_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
"""Runtimes merge those in a row, so that no tensor between them remains."""


class Ops:
    """Emits operators into the innermost open scope: the graph of the recurrent node, or a body being built.

    Args:
        opset: Version of the default domain whose operators are emitted.
        names: The name generator of the model.
        prefix: The start of the names of emitted values: the original node's name; see `Prefix`.
        dtype: Element type of the recurrence.
        dialect: The way loops are built for the runtime.
        instead: By operator, what emits others in its place.
        finish: Rewrites of each finished scope.
        constant_nodes: Constants are nodes: initializers would have to be inputs too (IR version 3).
        shared: The constants that earlier nodes added to the same graph, by `Constant.key`; new ones are added, and
            those that were removed from it since are forgotten.
        origin: The metadata of every node that is emitted outside of unrolled steps; see `names`.

    Attributes:
        floats: The names of constants that could not stay integers.
        most_axes: The most axes of a tensor that was computed, and not just given another shape.
    """

    def __init__(
        self,
        opset: int,
        names: Names,
        prefix: str,
        dtype: ir.DataType,
        dialect: Dialect,
        instead: Mapping[str, Rule] | None = None,
        finish: Sequence[Finish] = (),
        *,
        constant_nodes: bool = False,
        shared: dict[Hashable, ir.Value] | None = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.opset = opset
        self.dtype = dtype
        self.dialect = dialect
        self.floats: list[str] = []
        self.most_axes = 0
        self._instead = instead or {}
        self._finish = finish
        self._constant_nodes = constant_nodes
        self._prefix = Prefix.of(names, prefix)
        self._origin = origin or {}
        self._unsqueezed: dict[ir.Value, Tensor] = {}
        constants = {} if shared is None else shared
        for key in [key for key, value in constants.items() if value.graph is None]:
            del constants[key]
        self._drafts = [Draft(cache=constants)]

    def exists(self, op_type: str) -> bool:
        """Return whether the default domain has an operator at this opset."""
        return bool(onnx.defs.has(op_type, self.opset, ""))

    # Scopes, nodes and their names

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the open scope, in order."""
        return self._drafts[-1].nodes

    @property
    def initializers(self) -> list[ir.Value]:
        """The initializers that the open scope needs."""
        return self._drafts[-1].initializers

    @property
    def matrices(self) -> set[ir.Value]:
        """The products of rank 2 in the open scope."""
        return self._drafts[-1].matrices

    @property
    def in_body(self) -> bool:
        """Whether the open scope is a body."""
        return len(self._drafts) > 1

    @contextmanager
    def under(self, part: str) -> Iterator[None]:
        """Add `part` to the prefix of the names of what is emitted in the block."""
        before = self._prefix
        self._prefix = before.inside(part)
        yield
        self._prefix = before

    @contextmanager
    def step(self, t: int, *, described: bool) -> Iterator[None]:
        """Emit step number `t` of an unrolled recurrence in the block; its nodes have metadata if `described`."""
        before = self._prefix, self._origin
        self._prefix = self._prefix.at(t)
        self._origin = {STEP: self._prefix.step} if described else {}
        yield
        self._prefix, self._origin = before

    @contextmanager
    def body(self) -> Iterator[None]:
        """Emit into a new scope, the body of a Scan or Loop, with constants of its own."""
        self._drafts.append(Draft())
        yield
        self._drafts.pop()

    def body_input(self, hint: str, dtype: ir.DataType, shape: Dims) -> Tensor:
        """Return a new input of the open body, with its type and shape declared."""
        value = ir.Value(name=self._prefix.name(hint), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        return self.given(value, dtype, shape)

    def loop_inputs(self) -> tuple[Tensor, Tensor]:
        """Return the first two inputs of a Loop body: the iteration number and the condition, both of rank 0."""
        return self.body_input("i", _INT64, ()), self.body_input("going", ir.DataType.BOOL, ())

    def body_graph(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ir.Graph:
        """Return the open scope as a graph."""
        values = self.outputs(outputs)
        for value, tensor in zip(values, outputs, strict=True):
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
        return self.graph([self.value(t) for t in inputs], values)

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Graph:
        """Return the open scope as a graph, finished, with these values of it as outputs."""
        self.finish(outputs)
        name = self._prefix.name("body")
        return ir.Graph(inputs, outputs, nodes=self.nodes, initializers=self.initializers, name=name)

    def outputs(self, tensors: Sequence[Tensor]) -> list[ir.Value]:
        """Return a value for each tensor: all are different, and each is computed by a node of the open scope.
        Where a tensor's own value is not so, it is the value of an Identity.

        The value of an output gets the name of the output, so it can be neither an input nor a constant that others
        share. And onnxruntime's Scan computes wrongly when a body lists one value twice.
        """
        found: dict[ir.Value, None] = {}
        for tensor in tensors:
            value = self.value(tensor)
            if value in found or not self._drafts[-1].computes(value):
                value = self.value(self.unary("Identity", tensor))
            found[value] = None
        return list(found)

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        shape: Dims,
        dtype: ir.DataType | None = None,
        /,
        **attributes: Any,
    ) -> Tensor:
        """Append a node with one output to the open scope: of the type of its first input, unless `dtype` tells it.
        Attributes that the operator takes as inputs at this opset become constants."""
        return self.emit_all(op_type, inputs, [shape], [dtype or inputs[0].dtype], **attributes)[0]

    def emit_all(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        shapes: Sequence[Dims],
        dtypes: Sequence[ir.DataType],
        /,
        **attributes: Any,
    ) -> list[Tensor]:
        """Append a node with several outputs, as `emit` does."""
        if op_type not in _VIEWS:
            self.most_axes = max(self.most_axes, *map(len, shapes))
        given, attributes = inputs_and_attributes(op_type, self.opset, inputs, attributes, self.constant)
        values = [None if t is None else self.value(t) for t in given]
        converted = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        node = self.node(op_type, values, converted, len(shapes))
        if node.metadata_props:
            constants = (t.value for t in given if t is not None)
            add_weights(node, (c.symbol for c in constants if isinstance(c, Constant)))
        return [self.given(v, d, s) for v, d, s in zip(node.outputs, dtypes, shapes, strict=True)]

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr] = (),
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        """Append a node to the open scope as it is given, with names for it and its outputs."""
        name = self._prefix.name(op_type)
        node = ir.Node(
            domain, op_type, inputs, attributes, num_outputs=outputs, name=name, metadata_props=dict(self._origin)
        )
        self.name_outputs(node)
        self.nodes.append(node)
        return node

    def substitute(self, op_type: str, *operands: Any, **attributes: float) -> Any:
        """Emit the runtime's substitute for an operator; return None if there is none."""
        rule = self._instead.get(op_type)
        return None if rule is None else rule(self, *operands, **attributes)

    def abandon(self) -> None:
        """Disconnect all emitted nodes from their inputs, in every open scope, and forget their constants."""
        for draft in self._drafts:
            draft.abandon()

    def finish(self, outputs: Sequence[ir.Value]) -> None:
        """Remove unused nodes and constants of the open scope, then change it as the runtime needs it; `outputs`
        are the future ones of the graph."""
        self._drafts[-1].prune(outputs)
        for change in self._finish:
            change(self, outputs)

    def name_outputs(self, node: ir.Node) -> None:
        """Name the outputs of a node after it: one has its name, several have a number each."""
        for n, value in enumerate(node.outputs):
            value.name = self._prefix.names.unique(f"{node.name}.{n}") if len(node.outputs) > 1 else node.name

    def unique_name(self, hint: str) -> str:
        """Return a name for a node of the open scope."""
        return self._prefix.name(hint)

    def name(self, **symbols: Tensor) -> None:
        """Name emitted values as the operator specification does: `op.name(Ht=H)`."""
        for symbol, tensor in symbols.items():
            self._prefix.rename(tensor.value, symbol)

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """Declare types and shapes of values whose dimensions are all known."""
        for tensor in tensors:
            if isinstance(tensor.value, ir.Value) and None not in tensor.shape:
                tensor.value.type, tensor.value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)

    # Values and constants

    def given(self, value: ir.Value, dtype: ir.DataType, shape: Dims) -> Tensor:
        """Return an existing value of the graph as a tensor."""
        return Tensor(value, dtype, shape, self.binary)

    def from_constant(self, constant: Constant) -> Tensor:
        return Tensor(constant, constant.dtype, constant.shape, self.binary)

    def zero(self, shape: Dims) -> Tensor:
        """Return a symbolic zero, which becomes a constant only if something needs its numbers."""
        return Tensor(None, self.dtype, shape, self.binary)

    def constant(self, number: float | Sequence[int], dtype: ir.DataType | None = None) -> Tensor:
        """Return a number, or integers as a 1-D tensor, as a constant: of the recurrence's type or int64."""
        dtype = dtype or (self.dtype if isinstance(number, float) else _INT64)
        return self.from_constant(literal(number, dtype))

    def true(self) -> Tensor:
        """Return the condition of a Loop that runs all its iterations."""
        return self.from_constant(literal(True, ir.DataType.BOOL, "true"))

    def value(self, tensor: Tensor) -> ir.Value:
        """Return the graph value of a tensor; constants are added to the open scope."""
        if isinstance(tensor.value, ir.Value):
            return tensor.value
        constant = tensor.value
        if constant is None:
            constant = zeros_of(tensor.dtype, static(tensor.shape))
        if isinstance(constant, Dequantized):
            return self._dequantized(constant)
        return self._written(constant)

    def _written(self, constant: Constant) -> ir.Value:
        draft, key = self._drafts[-1], constant.key()
        if key not in draft.cache:
            if self._constant_nodes:
                draft.cache[key] = self._constant_node(constant)
            else:
                draft.cache[key] = draft.initializer(self._prefix.constant(constant.name), constant)
            draft.added.append(key)
        return draft.cache[key]

    @since(1)
    def _constant_node(self, constant: Constant) -> ir.Value:
        if constant.dtype.is_floating_point():
            return self._constant_node_9(constant)
        source = self.given(self._constant_node_9(constant.cast(_FLOAT)), _FLOAT, constant.shape)
        return self.value(self.cast(source, constant.dtype))

    @_constant_node.since(9)
    def _constant_node_9(self, constant: Constant) -> ir.Value:
        name = self._prefix.constant(constant.name)
        tensor = ir.AttrTensor("value", constant.tensor(name))
        node = ir.Node("", "Constant", [], [tensor], name=self._prefix.constant(f"{constant.name}_node"))
        node.outputs[0].name = name
        self.nodes.append(node)
        return node.outputs[0]

    def _dequantized(self, constant: Dequantized) -> ir.Value:
        """Return the value of integers that are dequantized, outside of all bodies so that it happens once, not in
        every step; or of an ordinary constant where DequantizeLinear cannot express it."""
        inner, outer = self._drafts[-1], self._drafts[-1 if self.dialect.dequantize_inside else 0]
        if constant in outer.cache or constant in inner.cache:
            return outer.cache.get(constant) or inner.cache[constant]
        stored = constant.stored(self.opset)
        if stored is None:
            self.floats.append(constant.name)
            return self._written(constant)
        drafts, self._drafts = self._drafts, [*self._drafts[: self._drafts.index(outer)], outer]
        outer.cache[constant] = self.value(self._dequantize(constant, stored))
        outer.added.append(constant)
        self._drafts = drafts
        return outer.cache[constant]

    def _dequantize(self, constant: Dequantized, stored: QuantParameters) -> Tensor:
        """Emit DequantizeLinear. With `dequantize_inside` a product that uses it may be fused with it; otherwise a
        Reshape is in between, which keeps onnxruntime from dequantizing for each user anew and from products that
        round the other operand (MatMulNBits)."""
        extra = () if self.dialect.dequantize_inside else (1,)
        shape, dtype = (*extra, *constant.shape), constant.scale.dtype
        inputs = [self.from_constant(part) for part in (constant.integers.reshaped(shape), *stored.parts(extra))]
        scaled = self.emit("DequantizeLinear", inputs, shape, dtype, **stored.attributes(len(extra)))
        found = self.cast(scaled, constant.dtype)
        return self.reshape(found, constant.shape) if extra else found

    # Arithmetic

    def binary(self, op_type: str, a: Tensor, b: Tensor) -> Tensor:
        """Emit Add, Sub, Mul, Div or MatMul, for + - * / @ of tensors."""
        is_product = op_type == "MatMul"
        shape = _product_shape(a.shape, b.shape) if is_product else broadcast_shape(a.shape, b.shape)
        if a.is_zero or b.is_zero:
            return self._with_zero(op_type, a, b, shape)
        if isinstance(a.value, Constant) and isinstance(b.value, Constant) and not is_product:
            return self.from_constant(elementwise(op_type, a.value, b.value))
        found: Tensor | None = self.substitute(op_type, a, b)
        if found is not None:
            return found
        result = self.emit(op_type, [a, b], shape)
        if not is_product:
            return Tensor(result.value, result.dtype, result.shape, self.binary, terms=(a, b))
        if result.rank == 2:
            self._drafts[-1].matrices.add(self.value(result))
        return result

    def _with_zero(self, op_type: str, a: Tensor, b: Tensor, shape: Dims) -> Tensor:
        if op_type in ("Mul", "MatMul"):
            return self.zero(shape)
        if b.is_zero:
            return a
        return self.neg(b) if op_type == "Sub" else b

    def neg(self, x: Tensor) -> Tensor:
        return x if x.is_zero else self.unary("Neg", x)

    def unary(self, op_type: str, x: Tensor, **attributes: float) -> Tensor:
        """Emit an element-wise operator of one input."""
        return self.substitute(op_type, x, **attributes) or self.emit(op_type, [x], x.shape, **attributes)

    def sum(self, x: Tensor, axis: int) -> Tensor:
        """Return the sums along an axis, which stays as one of size 1."""
        if x.shape[axis] == 1:
            return x
        shape = x.shape_with(axis, 1)
        if x.is_zero:
            return self.zero(shape)
        return self.substitute("ReduceSum", x, axis) or self.emit("ReduceSum", [x], shape, axes=[axis])

    def conv(self, x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
        """Convolve each channel of x [batch, channels, frames] with its row of weight [channels, 1, k], without
        padding, and add its bias [channels]."""
        found: Tensor | None = self.substitute("Conv", x, weight, bias, dilation)
        if found is not None:
            return found
        N, _, frames = x.shape
        C, _, k = weight.shape
        assert C is not None
        assert k is not None
        shape = (N, C, None if frames is None else frames - (k - 1) * dilation)
        inputs = [x, weight] if bias.is_zero else [x, weight, bias]
        sizes = {"group": C, "kernel_shape": [k], "dilations": [dilation]}
        return self.emit("Conv", inputs, shape, **sizes)

    def clip(self, x: Tensor, bound: float) -> Tensor:
        """Bound x to [-bound, bound]."""
        return self.substitute("Clip", x, bound) or self._clip(x, bound)

    @since(1)
    def _clip(self, x: Tensor, bound: float) -> Tensor:
        """Clip; float64 by Relu: onnxruntime has no float64 kernel of Clip before version 12
        (OperatorKernels.md)."""
        if self.dtype != ir.DataType.DOUBLE:
            return self._clip_12(x, bound)
        limit = self.constant(bound)
        over, under = self.unary("Relu", x - limit), self.unary("Relu", self.neg(x + limit))
        return x - over + under

    @_clip.since(12)
    def _clip_12(self, x: Tensor, bound: float) -> Tensor:
        return self.emit("Clip", [x], x.shape, min=-bound, max=bound)

    def cast(self, x: Tensor, dtype: ir.DataType) -> Tensor:
        if x.dtype == dtype:
            return x
        if x.is_zero:
            return replace(x, dtype=dtype)
        if isinstance(x.value, Constant):
            return self.from_constant(x.value.cast(dtype))
        return self.emit("Cast", [x], x.shape, dtype, to=int(dtype))

    # Conditions

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        if isinstance(a.value, Constant) and isinstance(b.value, Constant):
            return self.from_constant(elementwise("Less", a.value, b.value))
        return self._less(a, b)

    @since(1)
    def _less(self, a: Tensor, b: Tensor) -> Tensor:
        """Less-1 and Less-7 compare floats only: integers are cast."""
        if a.dtype.is_floating_point():
            return self._less_9(a, b)
        return self._less_9(self.cast(a, _FLOAT), self.cast(b, _FLOAT))

    @_less.since(9)
    def _less_9(self, a: Tensor, b: Tensor) -> Tensor:
        less = self.emit("Less", [a, b], broadcast_shape(a.shape, b.shape), ir.DataType.BOOL)
        self.declare([less])  # jaxonnxruntime casts declared values only
        return less

    def both(self, a: Tensor, b: Tensor) -> Tensor:
        return self.emit("And", [a, b], broadcast_shape(a.shape, b.shape))

    def above(self, x: Tensor, threshold: float) -> Tensor:
        """Return 1 where x > threshold, else 0, of the type of x."""
        return self.substitute("Less", x, threshold) or self.cast(self.less(self.constant(threshold), x), x.dtype)

    @since(1)
    def zero_unless(self, condition: Tensor, x: Tensor) -> Tensor:
        """Return x where the condition [1] is true, else 0; before opset 9 x must be finite."""
        return x * self.cast(condition, self.dtype)

    @zero_unless.since(9)
    def _zero_unless_9(self, condition: Tensor, x: Tensor) -> Tensor:
        return self.emit("Where", [condition, x, self.constant(0.0)], x.shape, x.dtype)

    @since(9)
    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return a where the condition is true, else b."""
        return self.emit("Where", [condition, a, b], broadcast_shape(condition.shape, a.shape, b.shape), a.dtype)

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest number of all, with the rank of x."""
        return self.emit("ReduceMax", [x], (1,) * x.rank)

    # Moving numbers

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        if isinstance(x.value, Constant):
            return self.from_constant(x.value.transposed(perm))
        shape = tuple(x.shape[axis] for axis in perm)
        return self.emit("Transpose", [x], shape, perm=list(perm))

    def transpose_last(self, x: Tensor) -> Tensor:
        """Swap the last two axes."""
        return self.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])

    def split(self, x: Tensor, sizes: Sequence[int], axis: int = -1) -> list[Tensor]:
        """Split x into parts of the given sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        axis %= x.rank
        shapes = [x.shape_with(axis, size) for size in sizes]
        if x.is_zero:
            return [self.zero(shape) for shape in shapes]
        if not isinstance(x.value, Constant):
            found: list[Tensor] | None = self.substitute("Split", x, sizes, axis)
            types = [x.dtype] * len(sizes)
            return found or self.emit_all("Split", [x], shapes, types, axis=axis, split=list(sizes))
        ends = accumulate(sizes)
        slices = [x.value.sliced(axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return [self.zero(part.shape) if isinstance(part, Zeros) else self.from_constant(part) for part in slices]

    def slice(self, x: Tensor, axis: int, start: int, end: int | None) -> Tensor:
        """Return x from `start` to before `end` along an axis; a negative one counts from the end, None is the
        end."""
        size = x.shape[axis]
        if size is not None:
            start, end = (n + size if n < 0 else n for n in (start, size if end is None else end))
            length: int | None = end - start
        elif start < 0:
            length = (end or 0) - start if end is None or end < 0 else None
        else:
            length = end - start if end is not None and end >= 0 else None
        if size is not None and length == size:
            return x
        bounds = {"starts": [start], "ends": [TO_THE_END if end is None else end], "axes": [axis]}
        return self.emit("Slice", [x], x.shape_with(axis, length), **bounds)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        axis %= parts[0].rank
        shape = concat_shape([p.shape for p in parts], axis)
        if all(p.is_zero for p in parts):
            return self.zero(shape)
        parts = [self.from_constant(zeros_of(p.dtype, static(p.shape))) if p.is_zero else p for p in parts]
        constants = [p.value for p in parts if isinstance(p.value, Constant)]
        if len(constants) == len(parts):
            return self.from_constant(constants[0].followed_by(constants[1:], axis))
        return self.emit("Concat", parts, shape, axis=axis)

    def unsqueeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Insert dimensions of 1 at the given (non-negative) axes of the result."""
        dims = list(x.shape)
        for axis in sorted(axes):
            dims.insert(axis, 1)
        found = self._reshaping("Unsqueeze", x, axes, tuple(dims))
        if isinstance(found.value, ir.Value) and list(axes) == [0]:
            self._unsqueezed[found.value] = x
        return found

    def squeeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Drop dimensions of 1."""
        return self._reshaping("Squeeze", x, axes, tuple(d for n, d in enumerate(x.shape) if n not in axes))

    def _reshaping(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Dims) -> Tensor:
        if x.is_zero:
            return self.zero(shape)
        if isinstance(x.value, Constant):
            return self.from_constant(x.value.reshaped(static(shape)))
        return self.emit(op_type, [x], shape, axes=list(axes))

    def without_first_axis(self, x: Tensor) -> Tensor:
        """Drop the first axis, of 1; where an Unsqueeze has just added it, return what was before: onnxruntime
        copies what either takes from or gives to the outside of a graph."""
        source = self._unsqueezed.get(x.value) if isinstance(x.value, ir.Value) else None
        return self.squeeze(x, [0]) if source is None else source

    def flatten(self, x: Tensor) -> Tensor:
        """Reshape [..., n] to [rows, n]."""
        rows = None if None in x.shape[:-1] else math.prod(static(x.shape[:-1]))
        found: Tensor | None = self.substitute("Flatten", x)
        return found or self.emit("Flatten", [x], (rows, x.shape[-1]), axis=x.rank - 1)

    def reshape(self, x: Tensor, shape: Dims, sizes: Sequence[Tensor] = ()) -> Tensor:
        """Reshape x.

        Args:
            x: A tensor.
            shape: The new shape; without `sizes`, an unknown size is that of x at the same axis.
            sizes: The new sizes, each an int64 [1]; 0 stands for that of x at the same axis, -1 for what is left.
        """
        if x.is_zero:
            return self.zero(shape)
        to = self.concat(sizes, axis=0) if sizes else self.constant([size or 0 for size in shape])
        return self.emit("Reshape", [x, to], shape)

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """Return x[index] along axis 0: x [rows, ...] -> [*index.shape, ...]."""
        shape = (*index.shape, *x.shape[1:])
        return self.substitute("Gather", x, index) or self.emit("Gather", [x, index], shape, axis=0)

    # Sizes that may be known at run time only

    def dim(self, x: Tensor, axis: int) -> Tensor:
        """Return the size of an axis as int64 [1]."""
        size = x.shape[axis]
        if size is not None:
            return self.constant([size])
        shape = self.emit("Shape", [x], (x.rank,), _INT64)
        return self.emit("Gather", [shape, self.constant([axis])], (1,), axis=0)


def _product_shape(a: Dims, b: Dims) -> Dims:
    """Return the shape of [..., m, k] @ [..., k, n]."""
    return (*broadcast_shape(a[:-2], b[:-2]), a[-2], b[-1])
