"""Nodes and constants of the (sub)graphs that are being built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, literal, zeros_of
from rnn_lowering.emit.dequantized import Dequantized, dequantize
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.names import Names, Place
from rnn_lowering.emit.provenance import STEP, add_weights, set_symbol
from rnn_lowering.emit.rewrite import with_gemms
from rnn_lowering.emit.scope import Scope
from rnn_lowering.emit.tensors import Tensor, static
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims

_FLOAT = ir.DataType.FLOAT


class Emitter(ABC):
    """Emits nodes into the innermost open scope: the graph of the recurrent node, or a body that is being built.

    Args:
        opset: Version of the default domain whose operators are emitted.
        names: The name generator of the model.
        prefix: What the names of emitted values start with: the original node's name; see `Place`.
        dtype: Element type of the recurrence.
        dialect: Which of several equivalent sets of operators the runtime prefers.
        constants_as: "initializer", or "node" where initializers would have to be inputs too (IR version 3).
        shared: The constants that earlier nodes added to the same graph, by `Constant.key`; new ones are added.
        origin: The metadata of every node that is emitted outside of unrolled steps; see `provenance`.

    Attributes:
        folded: The names of constants that could not stay integers.
    """

    def __init__(
        self,
        opset: int,
        names: Names,
        prefix: str,
        dtype: ir.DataType,
        dialect: Dialect,
        constants_as: str = "initializer",
        shared: dict[Hashable, ir.Value] | None = None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.opset = opset
        self.dtype = dtype
        self.dialect = dialect
        self.folded: list[str] = []
        self._place = Place.of(names, prefix)
        self._origin = origin or {}
        self._scopes = [Scope(constants_as, cache={} if shared is None else shared)]

    # The arithmetic of tensors

    @abstractmethod
    def add(self, a: Tensor, b: Tensor) -> Tensor: ...

    @abstractmethod
    def sub(self, a: Tensor, b: Tensor) -> Tensor: ...

    @abstractmethod
    def mul(self, a: Tensor, b: Tensor) -> Tensor: ...

    @abstractmethod
    def matmul(self, a: Tensor, b: Tensor) -> Tensor: ...

    # Scopes, names and emission

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the open scope, in order."""
        return self._scopes[-1].nodes

    @property
    def initializers(self) -> list[ir.Value]:
        """The initializers that the open scope needs."""
        return self._scopes[-1].initializers

    @contextmanager
    def under(self, part: str) -> Iterator[None]:
        """Add `part` to the prefix of the names of what is emitted in the block."""
        before = self._place
        self._place = before.inside(part)
        yield
        self._place = before

    @contextmanager
    def step(self, t: int, *, described: bool) -> Iterator[None]:
        """Emit step number `t` of an unrolled recurrence in the block; its nodes have metadata if `described`."""
        before = self._place, self._origin
        self._place = self._place.at(t)
        self._origin = {STEP: self._place.step} if described else {}
        yield
        self._place, self._origin = before

    @contextmanager
    def body(self) -> Iterator[None]:
        """Emit into a new scope, the body of a Scan or Loop, with constants of its own."""
        self._scopes.append(Scope(self._scopes[0].constants_as))
        yield
        self._scopes.pop()

    def body_input(self, hint: str, dtype: ir.DataType, shape: Dims) -> Tensor:
        """Return a new input of the open body, with its type and shape declared."""
        value = ir.Value(
            name=self._place.name(hint),
            type=ir.TensorType(dtype),
            shape=ir.Shape(shape),
        )
        return Tensor(value, dtype, shape, self)

    def body_graph(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ir.Graph:
        """Return the open scope as a graph."""
        values = self.outputs(outputs)
        for value, tensor in zip(values, outputs, strict=True):
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
        self._scopes[-1].prune(values)
        nodes = with_gemms(self.nodes, values, self._place.names.unique) if self.dialect.gemm else self.nodes
        return ir.Graph(
            [self.value(t) for t in inputs],
            values,
            nodes=nodes,
            initializers=self.initializers,
            name=self._place.name("body"),
        )

    def outputs(self, tensors: Sequence[Tensor]) -> list[ir.Value]:
        """Return a value for each tensor: all are different, and each is computed by a node of the open scope.
        Where a tensor's own value is not so, it is the value of an Identity.

        The value of an output gets the name of the output, so it can be neither an input nor a constant that others
        share. And onnxruntime's Scan computes wrongly when a body lists one value twice.
        """
        found: dict[ir.Value, None] = {}
        for tensor in tensors:
            value = self.value(tensor)
            if value in found or not self._emitted_here(value):
                value = self.value(self.identity(tensor))
            found[value] = None
        return list(found)

    def _emitted_here(self, value: ir.Value) -> bool:
        """Whether a node of the open scope computes a value; a Constant node does not count, it may be shared."""
        producer = value.producer()
        if producer is None or producer.op_type == "Constant":
            return False
        return any(node is producer for node in reversed(self.nodes))

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        shapes: Sequence[Dims],
        dtypes: Sequence[ir.DataType] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Append a node to the open scope.

        Args:
            shapes: One for each output.
            dtypes: One for each output; without them all are of the type of the recurrence.
        """
        node = ir.Node(
            "",
            op_type,
            [None if t is None else self.value(t) for t in inputs],
            [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()],
            num_outputs=len(shapes),
            name=self._place.name(op_type),
            metadata_props=dict(self._origin),
        )
        if node.metadata_props:
            add_weights(node, (t.value.symbol for t in inputs if t is not None and isinstance(t.value, Constant)))
        for n, value in enumerate(node.outputs):
            value.name = self._place.names.unique(f"{node.name}.{n}") if len(shapes) > 1 else node.name
        self.nodes.append(node)
        types = dtypes or [self.dtype] * len(shapes)
        return [Tensor(v, d, s, self) for v, d, s in zip(node.outputs, types, shapes, strict=True)]

    def identity(self, x: Tensor) -> Tensor:
        if "Identity" in self.dialect.unsupported:
            return self.emit("Transpose", [x], [x.shape], [x.dtype], perm=list(range(x.rank)))[0]
        return self.emit("Identity", [x], [x.shape], [x.dtype])[0]

    def prune(self) -> None:
        """Remove nodes and constants of the open scope whose results nothing uses."""
        self._scopes[-1].prune()

    def name(self, **symbols: Tensor) -> None:
        """Give emitted values the symbols of the operator specification: `op.name(Ht=H)`."""
        for symbol, tensor in symbols.items():
            node = tensor.value.producer() if isinstance(tensor.value, ir.Value) else None
            if isinstance(tensor.value, ir.Value) and node is not None and node.graph is None:
                tensor.value.name = self._place.name(symbol)
                if node.metadata_props:
                    set_symbol(tensor.value, symbol)

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """Write types and shapes of values into the model, where all dimensions are known."""
        for tensor in tensors:
            if isinstance(tensor.value, ir.Value) and None not in tensor.shape:
                tensor.value.type, tensor.value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)

    def value(self, tensor: Tensor) -> ir.Value:
        """Return the graph value of a tensor; a constant is added to the open scope."""
        if isinstance(tensor.value, ir.Value):
            return tensor.value
        constant = tensor.value
        if constant is None:
            constant = zeros_of(tensor.dtype, static(tensor.shape))
        if isinstance(constant, Dequantized):
            return self._dequantized(constant)
        return self._written(self._scopes[-1], constant)

    def _written(self, scope: Scope, constant: Constant) -> ir.Value:
        key = constant.key()
        if key not in scope.cache:
            scope.cache[key] = self._write_constant(scope, constant)
            scope.added.append(key)
        return scope.cache[key]

    def _dequantized(self, constant: Dequantized) -> ir.Value:
        """Return the value of integers that are dequantized, outside of all bodies so that it happens once, not in
        every step; or of an ordinary constant where DequantizeLinear cannot express it."""
        beside = self.dialect.dequantize_inside
        inner, outer = self._scopes[-1], self._scopes[-1 if beside else 0]
        if constant in outer.cache or constant in inner.cache:
            return outer.cache.get(constant) or inner.cache[constant]
        stored = constant.stored(self.opset)
        if stored is None:
            self.folded.append(constant.name)
            return self._written(inner, constant)
        scopes, self._scopes = self._scopes, [*self._scopes[: self._scopes.index(outer)], outer]
        outer.cache[constant] = self.value(dequantize(self, constant, stored, beside=beside))
        outer.added.append(constant)
        self._scopes = scopes
        return outer.cache[constant]

    def _write_constant(self, scope: Scope, constant: Constant) -> ir.Value:
        if scope.constants_as == "node":
            return self._constant_node(constant)
        name = self._place.constant(constant.name)
        value = ir.Value(
            name=name,
            type=ir.TensorType(constant.dtype),
            shape=ir.Shape(constant.shape),
            const_value=constant.tensor(name),
        )
        scope.initializers.append(value)
        return value

    @since(1)
    def _constant_node(self, constant: Constant) -> ir.Value:
        if constant.dtype.is_floating_point():
            return self._constant_node_9(constant)
        source = self.given(self._constant_node_9(constant.cast(_FLOAT)), _FLOAT, constant.shape)
        (cast,) = self.emit("Cast", [source], [constant.shape], [constant.dtype], to=int(constant.dtype))
        return self.value(cast)

    @_constant_node.since(9)
    def _constant_node_9(self, constant: Constant) -> ir.Value:
        name = self._place.constant(constant.name)
        tensor = ir.AttrTensor("value", constant.tensor(name))
        node = ir.Node("", "Constant", [], [tensor], name=self._place.constant(f"{constant.name}_node"))
        node.outputs[0].name = name
        self.nodes.append(node)
        return node.outputs[0]

    # Constants

    def constant(self, number: float | Sequence[int], dtype: ir.DataType | None = None) -> Tensor:
        """Return a number, or integers as a 1-D tensor, as a constant.

        Args:
            dtype: Its type; by default that of the recurrence for a float, int64 for integers.
        """
        dtype = dtype or (self.dtype if isinstance(number, float) else ir.DataType.INT64)
        return self.known(literal(number, dtype))

    def known(self, constant: Constant) -> Tensor:
        return Tensor(constant, constant.dtype, constant.shape, self)

    def given(self, value: ir.Value, dtype: ir.DataType, shape: Dims) -> Tensor:
        """Return a value that is in the graph already as a tensor."""
        return Tensor(value, dtype, shape, self)

    def zero(self, shape: Dims) -> Tensor:
        """Return a symbolic zero: there is no node and no constant for it until something needs its numbers."""
        return Tensor(None, self.dtype, shape, self)
