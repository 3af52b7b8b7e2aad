"""Copies of models that share only tensor data, models that take over a copy, and functions that are inlined."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

import onnx
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NAME, InvalidNodeError, UnsupportedError, deepest_cause, printable
from rnn_lowering.facts.operators import (
    DEFAULT_DOMAIN,
    default_opset,
    graphs_within,
    is_used,
    nodes_within,
    with_attributes,
)
from rnn_lowering.model.growth import MOST_CALLED
from rnn_lowering.model.scopes import RecurrentNode, all_graphs, names_in, nodes_in_scopes, recurrent_nodes
from rnn_lowering.nodes.spec import node_ref

T = TypeVar("T")


def clone(model: ir.Model) -> ir.Model:
    """Return a copy that shares only the data of the tensors; the default domain is imported as "".

    Raises:
        InvalidNodeError: A node has an input that nothing defines.
        UnsupportedError: The model cannot be copied for another reason.
    """
    try:
        copied = _copied(model.clone)
    except UnsupportedError:
        refuse_undefined_inputs(model)
        raise
    graphs = [*all_graphs(copied)]
    own_tensors(graphs)
    for graph in graphs:
        for value in _values(graph):
            value.type = _own_type(value.type)  # setting a value's dtype changes its type, shared or not
    for imports in (copied.opset_imports, *(function.opset_imports for function in copied.functions.values())):
        if any(name in imports for name in DEFAULT_DOMAIN):
            imports[""] = default_opset(imports)
            imports.pop(DEFAULT_DOMAIN[1], None)
    return copied


def clone_around(model: ir.Model, nodes: Collection[ir.Node]) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """Return a copy of some sorted nodes of a main graph without bodies, and the copy of each value.

    It has what computes their inputs too; of the first input, and of what a Shape reads, only constants and what is
    between the nodes. Other values that are read are its inputs; what is read of their outputs are its outputs.
    """
    behind, fixed, kept = set(nodes), set[ir.Node](), set(nodes)
    for node in model.graph:
        sources = [v.producer() for v in node.inputs if v is not None and not _is_constant(v)]
        if not behind.isdisjoint(sources):
            behind.add(node)
        elif fixed.issuperset(sources):
            fixed.add(node)
    for node in filter(kept.__contains__, reversed(model.graph)):
        for slot, value in enumerate(node.inputs):
            source = None if value is None else value.producer()
            is_cut = slot == 0 and (node in nodes or node.op_type in ("Shape", "Size"))
            if source is not None and not (is_cut and source not in behind and source not in fixed):
                kept.add(source)
    return _copy_of_part(model, [node for node in model.graph if node in kept], nodes)


def _copy_of_part(
    model: ir.Model, kept: Sequence[ir.Node], nodes: Collection[ir.Node]
) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """Return a model of some nodes of a graph, and the copy of each value; outputs of `nodes` are its outputs."""
    made = {value for node in kept for value in node.outputs}
    given = dict.fromkeys(v for node in kept for v in node.inputs if v is not None and v not in made)
    inputs = [value for value in given if not _is_constant(value)]
    constants = [value for value in given if _is_constant(value)]
    outputs = [value for node in kept if node in nodes for value in node.outputs if is_used(value)]
    view = ir.GraphView(inputs, outputs, nodes=kept, initializers=constants, opset_imports=model.opset_imports)
    copied = ir.Model(clone_graph(view), ir_version=model.ir_version)
    computed = ([v for node in each for v in node.outputs] for each in (kept, copied.graph))
    return copied, dict(zip(inputs, copied.graph.inputs, strict=True)) | dict(zip(*computed, strict=True))


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def clone_graph(graph: ir.Graph | ir.GraphView) -> ir.Graph:
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


def refuse_undefined_inputs(model: ir.Model) -> None:
    """Refuse a model in which a node has an input that nothing defines.

    Raises:
        InvalidNodeError: The first such node.
    """
    for scope, node in nodes_in_scopes(model):
        for value in node.inputs:
            if value is not None and value.producer() is None and value.graph is None:
                reason = f"its input '{value.name}' is no output of a node, no input and no initializer"
                hint = "was the model cut? Export it again, or make that an input"
                raise InvalidNodeError(reason, hint=hint, node=node_ref(node, scope.text))


def own_tensors(graphs: Iterable[ir.Graph]) -> None:
    """Give every initializer and Constant node its own tensor object, in place; the data stays shared. Renaming a
    value renames its tensor, which otherwise belongs to the caller's message or to another model as well.
    """
    for graph in graphs:
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _own(value.const_value)
        for node in with_attributes(graph):
            attribute = node.attributes.get("value") if node.op_type == "Constant" else None
            if attribute is not None and not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
                node.attributes["value"] = ir.AttrTensor("value", _own(attribute.as_tensor()), attribute.doc_string)


def _own_type(given: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(given, ir.TensorType):
        return ir.TensorType(given.dtype, denotation=given.denotation)
    return copy.deepcopy(given)


_BITS = {int(t): t.bitwidth for t in ir.DataType if t not in (ir.DataType.UNDEFINED, ir.DataType.STRING)}
"""Of each type of numbers."""


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
    def size(self) -> int:
        return math.prod(self._proto.dims)  # without an object for the shape

    @property
    def nbytes(self) -> int:
        return -(-self.size * _BITS[self._proto.data_type] // 8)

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


def take_over(model: ir.Model, other: ir.Model) -> None:
    """Give a model the graph, functions, IR version and metadata of another, which may be the model itself."""
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


# Inline functions, in time linear in the number of resulting nodes. 1. The functions to inline and those that
# call them are found, callees first (`_with_callers`). 2. The resulting nodes are counted before any is made:
# nested calls can double them at each level. 3. Each call, first in these functions and then in the main graph,
# is replaced by a copy of the function's body, in which all calls have been replaced already. If a function
# returns its input, onnx_ir's InlinePass renames an input of the graph, and onnx.inliner leaves the output of the
# call undefined.


_Functions = Mapping[ir.OperatorIdentifier, ir.Function]

_HINT = "inline them first (onnx.inliner.inline_local_functions)"


def inline_functions(model: ir.Model, wanted: Callable[[RecurrentNode], bool], most: int) -> list[str]:
    """Inline, in place, the functions that hold a wanted node, and those that call them; return notes for the user.
    Referenced attributes, types and shapes of a function's values are known only at its calls.

    Args:
        model: The model; after an error it is in an undefined state.
        wanted: Which recurrent nodes are wanted.
        most: Maximum nodes of the result.

    Raises:
        UnsupportedError: A function calls itself, the result has too many nodes, or a call does not match its
            function.
    """
    holders = {e.function.identifier() for e in recurrent_nodes(model) if e.function is not None and wanted(e)}
    return inline_holders(model, holders, most)


def refuse_many_calls(model: ir.Model, most: int) -> None:
    """Refuse a model whose calls of functions make too many nodes: every runtime inlines them.

    Raises:
        UnsupportedError: They do.
    """
    if not model.functions:
        return
    with suppress(CycleError):  # refused where it matters
        functions = {identifier: model.functions[identifier] for identifier in _order(model)}
        _check_size(model, functions, most, "the calls of functions", plain=0, least=MOST_CALLED)


def inline_holders(model: ir.Model, holders: Collection[ir.OperatorIdentifier], most: int) -> list[str]:
    """Inline these functions and those that call them, in place; otherwise as `inline_functions`."""
    inlined = _with_callers(model, holders) if holders else {}
    if not inlined:
        return []
    _check_size(model, inlined, most, "inlining functions with recurrent nodes")
    for function in inlined.values():
        _inline_calls(function.graph, inlined, function.opset_imports)
    _inline_calls(model.graph, inlined, model.opset_imports)
    for identifier in inlined:
        del model.functions[identifier]
    return [f"inlined function {domain}::{name}" for domain, name, _ in sorted(inlined)]


def _with_callers(model: ir.Model, holders: Collection[ir.OperatorIdentifier]) -> _Functions:
    """Return the given functions and all that call them, at any depth, callees first."""
    try:
        order = _order(model)
    except CycleError as error:
        circle = " -> ".join(_name(identifier) for identifier in error.args[1])
        raise UnsupportedError(f"functions call themselves: {printable(circle, 3 * NAME)}") from error
    inlined: dict[ir.OperatorIdentifier, ir.Function] = {}
    for identifier in order:
        called = {node.op_identifier() for node in nodes_within(model.functions[identifier].graph)}
        if identifier in holders or not inlined.keys().isdisjoint(called):
            inlined[identifier] = model.functions[identifier]
    return inlined


def _order(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Return the functions, callees first.

    Raises:
        CycleError: They call themselves.
    """
    calls = {i: {n.op_identifier() for n in nodes_within(f.graph)} for i, f in model.functions.items()}
    return list(TopologicalSorter({i: called & calls.keys() for i, called in calls.items()}).static_order())


def _check_size(
    model: ir.Model, inlined: _Functions, most: int, what: str, *, plain: int = 1, least: int = 0
) -> None:
    """Refuse a model of more than `most` nodes, and more than `least`; one that is no call counts as `plain`."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for identifier, function in inlined.items():
        sizes[identifier] = _nodes_when_inlined(function.graph, sizes)
    total = max(_nodes_when_inlined(model.graph, sizes, plain), *sizes.values(), 0)
    if total > max(most, least):
        worst = max(inlined, key=lambda identifier: sizes[identifier])
        number = f"{total:,}" if total < 10**18 else "more than 10^18"
        raise UnsupportedError(
            f"{what} would make {number} nodes, more than {most:,}; function {_name(worst)} is the largest",
            hint=f"raise the limit (--max-nodes {total if total < 10**9 else 'N'}) if this is intended",
        )


def _nodes_when_inlined(graph: ir.Graph, sizes: Mapping[ir.OperatorIdentifier, int], plain: int = 1) -> int:
    return sum(sizes.get(node.op_identifier(), plain) for node in nodes_within(graph))


def _inline_calls(graph: ir.Graph, inlined: _Functions, imports: dict[str, int]) -> None:
    """Inline every call of these functions in a graph and its subgraphs; `imports` are the graph's opsets."""
    names = None
    for scope in [*graphs_within(graph)]:
        for node in list(scope):
            function = inlined.get(node.op_identifier())
            if function is not None:
                names = names or Names(names_in(graphs_within(graph)))
                _join_imports(imports, function)
                _replace_call(node, function, names)


def _join_imports(imports: dict[str, int], function: ir.Function) -> None:
    """Add what a function imports.

    Raises:
        UnsupportedError: It imports another version of a domain.
    """
    for domain, version in function.opset_imports.items():
        has = default_opset(imports) if domain in DEFAULT_DOMAIN else imports.setdefault(domain, version)
        if has != version:
            raise UnsupportedError(
                f"function {_name(function.identifier())} imports version {version} of domain "
                f"'{domain or 'ai.onnx'}', but its caller imports version {has}",
                hint="inline it first (onnx.inliner.inline_local_functions with convert_version=True)",
            )


def _replace_call(call: ir.Node, function: ir.Function, names: Names) -> None:
    """Replace a call by a copy of the function's body; `names` are those that are used around it."""
    attributes = _arguments(call, function)
    body = clone_graph(function.graph)
    nodes, inputs, outputs = list(body), list(body.inputs), list(body.outputs)
    for node in nodes_within(body):
        _resolve(node, attributes)
        node.metadata_props.update({**call.metadata_props, **node.metadata_props})
    _rename(body, names)
    body.inputs.clear()
    body.outputs.clear()
    body.remove(nodes)
    given = dict(zip(inputs, [*call.inputs, *[None] * len(inputs)], strict=False))
    for formal, actual in given.items():
        if actual is not None:
            formal.replace_all_uses_with(actual, replace_graph_outputs=True)
            continue
        for user, slot in list(formal.uses()):
            user.replace_input_with(slot, None)
    results: list[ir.Value] = []
    for output in outputs[: len(call.outputs)]:
        value = given.get(output, output)
        if value is None:
            raise _mismatch(call, "uses an output that is an omitted input")
        if output in given or value in results:  # the body does not compute it, or returns it twice
            nodes.append(ir.Node("", "Identity", [value], name=names.unique("Identity")))
            value = nodes[-1].outputs[0]
        results.append(value)
    assert call.graph is not None
    call.graph.insert_before(call, nodes)
    for old, new in zip(call.outputs, results, strict=False):
        _take_over(old, new)
    call.graph.remove(call, safe=True)


def _arguments(call: ir.Node, function: ir.Function) -> dict[str, ir.Attr]:
    """Return the attributes of a call, and the defaults of the function for those that it does not give."""
    if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
        raise _mismatch(call, "has more inputs or outputs than the function")
    attributes = {a.name: a for a in function.attributes.values() if a.value is not None}
    attributes |= call.attributes
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes.values()):
        raise _mismatch(call, "has a graph as an attribute")
    return attributes


def _mismatch(call: ir.Node, fact: str) -> UnsupportedError:
    name = printable(call.name or "", NAME)
    return UnsupportedError(f"the call '{name}' of function {_name(call.op_identifier())} {fact}", hint=_HINT)


def _resolve(node: ir.Node, attributes: Mapping[str, ir.Attr]) -> None:
    """Resolve references to the function's attributes; those that the call omits are removed."""
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            actual = attributes.get(attribute.ref_attr_name or "")
            if actual is None:
                del node.attributes[name]
            elif actual.is_ref():
                node.attributes[name] = ir.RefAttr(name, actual.ref_attr_name or "", actual.type)
            else:
                node.attributes[name] = ir.Attr(name, actual.type, actual.value)


def _rename(body: ir.Graph, names: Names) -> None:
    """Rename nodes and values so that they do not clash with names around the call."""
    inputs = set(body.inputs)
    for scope in [*graphs_within(body)]:
        for value in (*scope.inputs, *scope.initializers.values()):
            if value not in inputs:
                value.name = names.unique(value.name or "value")
        for node in scope:
            node.name = names.unique(node.name or "node")
            for value in node.outputs:
                value.name = names.unique(value.name) if value.name else value.name


def _take_over(old: ir.Value, new: ir.Value) -> None:
    """Replace a call's output with a value that takes its name and its declared type and shape."""
    name = old.name
    new.type = old.type or new.type
    new.shape = new.shape if old.shape is None else old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if name:
        old.name = None
        new.name = name


def _name(identifier: ir.OperatorIdentifier) -> str:
    domain, name, overload = identifier
    return printable(f"{domain}::{name}" + (f":{overload}" if overload else ""), NAME)
