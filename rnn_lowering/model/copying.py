"""Copies of models that share only tensor data, and changes that are undone on failure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import onnx
import onnx_ir as ir

from rnn_lowering.errors import InvalidNodeError, UnsupportedError, deepest_cause
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, default_opset
from rnn_lowering.model.scopes import all_graphs, scopes
from rnn_lowering.nodes.node_spec import node_ref

T = TypeVar("T")


def clone(model: ir.Model) -> ir.Model:
    """Return a copy that shares only the data of the tensors; the default domain is imported as "".

    Raises:
        InvalidNodeError: A node has an input that nothing defines.
        UnsupportedError: The model cannot be copied for another reason.
    """
    try:
        copied = _copied(model.clone)
    except UnsupportedError as error:
        raise _undefined_input(model) or error from error.__cause__
    own_tensors(copied)
    for graph in all_graphs(copied):
        for value in _values(graph):
            value.type = _own_type(value.type)  # setting a value's dtype changes its type, shared or not
    for imports in (copied.opset_imports, *(function.opset_imports for function in copied.functions.values())):
        if any(name in imports for name in DEFAULT_DOMAIN):
            imports[""] = default_opset(imports)
            imports.pop(DEFAULT_DOMAIN[1], None)
    return copied


def clone_graph(graph: ir.Graph) -> ir.Graph:
    """Return a copy that shares the tensors.

    Raises:
        UnsupportedError: A node has an input that nothing before it defines.
    """
    return _copied(graph.clone)


def _copied(make: Callable[[], T]) -> T:
    try:
        return make()
    except Exception as error:  # it shows the graph, so that damaged tensors raise whatever they raise
        cause = deepest_cause(error)
        if isinstance(cause, RecursionError | MemoryError):
            raise cause from None
        raise UnsupportedError(
            f"the model is inconsistent: {' '.join(str(cause).split())}", hint="check it with onnx.checker"
        ) from error


def _undefined_input(model: ir.Model) -> InvalidNodeError | None:
    """Return the error of the first node with an input that nothing defines; None if there is none."""
    for scope in scopes(model):
        for node in scope.graph:
            for value in node.inputs:
                if value is not None and value.producer() is None and value.graph is None:
                    reason = f"its input '{value.name}' is no output of a node, no input and no initializer"
                    hint = "was the model cut? Export it again, or make that an input"
                    return InvalidNodeError(reason, hint=hint, node=node_ref(node, scope.text))
    return None


def own_tensors(model: ir.Model) -> None:
    """Give every initializer and Constant node its own tensor object, in place; the data stays shared. Renaming a
    value renames its tensor, which otherwise belongs to the caller's message or to another model as well.
    """
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _own(value.const_value)
        for node in graph:
            attribute = node.attributes.get("value") if node.op_type == "Constant" else None
            if attribute is not None and not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
                node.attributes["value"] = ir.AttrTensor("value", _own(attribute.as_tensor()), attribute.doc_string)


def _own_type(given: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(given, ir.TensorType):
        return ir.TensorType(given.dtype, denotation=given.denotation)
    return copy.deepcopy(given)


class _BorrowedTensor(ir.serde.TensorProtoTensor):
    """A tensor in the caller's message that can be renamed without changing the message."""

    def __init__(self, proto: onnx.TensorProto, name: str | None) -> None:
        super().__init__(proto)
        self.metadata_props.clear()  # the message has them: onnx_ir would write them twice
        self._own_name = name or ""

    @property
    def name(self) -> str:
        return self._own_name

    @name.setter
    def name(self, name: str | None) -> None:
        self._own_name = name or ""

    @property
    def raw(self) -> onnx.TensorProto:
        if self._own_name == self._proto.name:
            return self._proto
        renamed = onnx.TensorProto()
        renamed.CopyFrom(self._proto)
        renamed.name = self._own_name
        return renamed

    def borrow(self) -> _BorrowedTensor:
        """Return the same tensor with a name of its own."""
        return _BorrowedTensor(self._proto, self._own_name)


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, _BorrowedTensor):
        return tensor.borrow()
    if isinstance(tensor, ir.serde.TensorProtoTensor):
        return _BorrowedTensor(tensor.raw, tensor.name)
    return copy.copy(tensor)


@contextmanager
def order_restored(model: ir.Model, *, on_success: bool = True) -> Iterator[None]:
    """Restore the order of the nodes of a model after the block, or only when it fails. Nothing else may be changed
    in the block: a model that is to be copied is sorted, all else is done to the copies."""
    before = [(graph, list(graph)) for graph in all_graphs(model)]

    def restore() -> None:
        for graph, nodes in before:
            if list(graph) != nodes:
                graph.extend(nodes)  # moves each node to the end, so that they are in this order

    try:
        yield
    except BaseException:
        restore()
        raise
    if on_success:
        restore()


@contextmanager
def changed(model: ir.Model, work: ir.Model, original: ir.Model) -> Iterator[None]:
    """If the block succeeds, a model has the graph, functions, IR version and metadata of `work`, which the block
    changes; otherwise those of `original`. Each of them may be the model itself."""
    try:
        yield
    except BaseException:
        _take_over(model, original)
        raise
    _take_over(model, work)


def _take_over(model: ir.Model, other: ir.Model) -> None:
    if other is model:
        return
    replace_content(model, other.graph, other.functions)
    model.ir_version = other.ir_version
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)


def replace_content(model: ir.Model, graph: ir.Graph, functions: dict[ir.OperatorIdentifier, ir.Function]) -> None:
    """Replace the graph and the functions of a model."""
    if model.graph is not graph:
        model.graph = graph
    if model.functions != functions:
        model.functions.clear()
        model.functions.update(functions)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        yield from node.outputs
