"""The graphs and bodies that operators are emitted into: their nodes, names, constants and metadata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, Dequantized, QuantParameters, literal, zeros_of
from rnn_lowering.emit.dialect import Dialect, since
from rnn_lowering.emit.draft import STEP, Draft, Names, Prefix, add_weights
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.facts.operators import inputs_and_attributes
from rnn_lowering.types import Dims

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64

Rule: TypeAlias = Callable[..., Any]
"""Emits others in place of an operator: takes `Ops` and the operands; returns what they compute, or None to keep
the operator."""

Finish: TypeAlias = Callable[[Any, Sequence[ir.Value]], None]
"""Changes the nodes of a finished scope, which is still open; takes `Ops` and the future outputs of the graph."""


_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
"""Runtimes merge those in a row, so that no tensor between them remains."""

_MADE_AGAIN = ("Identity", "ConstantOfShape", "Expand", "Scan", "Loop", "If")
"""Operators of which equal nodes are emitted apart: copies, zeros that a runtime needs apart, and those with a body
of their own."""


class OpenScopes(ABC):
    """The graph of the recurrent node, and the bodies being built in it; nodes are emitted into the innermost one.

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
        constants = {} if shared is None else shared
        for key in [key for key, value in constants.items() if value.graph is None]:
            del constants[key]
        self._drafts = [Draft(cache=constants, made=None if dialect.equal_apart else {})]

    def exists(self, op_type: str) -> bool:
        """Return whether the default domain has an operator at this opset, for the type that is computed in."""
        if not onnx.defs.has(op_type, self.opset, ""):
            return False
        taken = onnx.defs.get_schema(op_type, self.opset, "").type_constraints[0].allowed_type_strs
        return f"tensor({self.dtype.name.lower()})" in taken

    @abstractmethod
    def binary(self, op_type: str, a: Tensor, b: Tensor) -> Tensor:
        """Emit Add, Sub, Mul, Div or MatMul, for + - * / @ of tensors."""

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
        self._drafts.append(Draft(made=None if self.dialect.equal_apart else {}))
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
        values: dict[ir.Value, None] = {}
        draft = self._drafts[-1]
        made, draft.made = draft.made, None  # copies are no equal nodes
        for tensor in tensors:
            value = self.value(tensor)
            if value in values or not draft.computes(value):
                copy = self.substitute("Identity", tensor) or self.emit("Identity", [tensor], tensor.shape)
                value = self.value(copy)
            values[value] = None
        draft.made = made
        return list(values)

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
        """Append a node with several outputs, as `emit` does; return those of an equal one in the open scope."""
        if op_type not in _VIEWS:
            self.most_axes = max(self.most_axes, *map(len, shapes))
        given, attributes = inputs_and_attributes(op_type, self.opset, inputs, attributes, self.constant)
        values = [None if t is None else self.value(t) for t in given]
        made = None if op_type in _MADE_AGAIN else self._drafts[-1].made
        key = None if made is None else (op_type, *values, repr(attributes), len(shapes))
        if made is not None and key in made:
            return made[key]
        converted = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        node = self.node(op_type, values, converted, len(shapes))
        if self._origin:
            constants = (t.value for t in given if t is not None)
            add_weights(node, (c.symbol for c in constants if isinstance(c, Constant)))
        results = [self.given(v, d, s) for v, d, s in zip(node.outputs, dtypes, shapes, strict=True)]
        if made is not None:
            made[key] = results
        return results

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr] = (),
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        """Append a node to the open scope as it is given, with names for it and its outputs."""
        name, metadata = self._prefix.name(op_type), dict(self._origin) or None
        values = [ir.Value(name=each) for each in self._names_of_outputs(name, outputs)]
        node = ir.Node(domain, op_type, inputs, attributes, outputs=values, name=name, metadata_props=metadata)
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
        self._drafts[-1].made = None  # a change may drop or move what was emitted
        for change in self._finish:
            change(self, outputs)

    def name_outputs(self, node: ir.Node) -> None:
        """Name the outputs of a node after it."""
        names = self._names_of_outputs(node.name or "", len(node.outputs))
        for value, name in zip(node.outputs, names, strict=True):
            value.name = name

    def _names_of_outputs(self, name: str, count: int) -> list[str]:
        """Return names for the outputs of a node: one has its name, several have a number each."""
        return [name] if count == 1 else [self._prefix.names.unique(f"{name}.{n}") for n in range(count)]

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
        return self.value(self.emit("Cast", [source], source.shape, constant.dtype, to=int(constant.dtype)))

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
        numbers = self.emit("DequantizeLinear", inputs, shape, dtype, **stored.attributes(len(extra)))
        if dtype != constant.dtype:
            numbers = self.emit("Cast", [numbers], shape, constant.dtype, to=int(constant.dtype))
        if not extra:
            return numbers
        return self.emit("Reshape", [numbers, self.constant(list(static(constant.shape)))], constant.shape)
