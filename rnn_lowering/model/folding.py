"""Fold a model: what is known becomes a constant, a decided If its branch.

The numbers are those of `facts/`: constants, sizes, and what follows from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.infer import follow
from rnn_lowering.facts.known import KnownValues, add_tensor
from rnn_lowering.facts.operators import (
    bodies_of,
    captured_values,
    default_opset,
    graphs_within,
    input_at,
    is_of_default_domain,
    is_used,
    nodes_within,
    operator_of,
)
from rnn_lowering.facts.size import size as exact_size
from rnn_lowering.limits import most_bytes
from rnn_lowering.model.copying import clone
from rnn_lowering.model.model_sizes import (
    Inferred,
    computed_values,
    declared_shapes,
    inferred_values,
    merge_shapes,
    take_over,
)
from rnn_lowering.model.onnx_checks import is_sound
from rnn_lowering.model.scopes import recurrent_nodes, repeating_nodes
from rnn_lowering.types import in_memory

_MOST_PASSES = 4

_LARGEST_READ = 1 << 13
"""Maximum elements of a constant whose numbers are read."""

_SHARE = 16
"""The share of the memory limit that a folded tensor may have, since it is written to the file."""


_MULTIPLIED = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)
"""The types in which every runtime computes the same products, but for the last bits of floats."""


def fold(model: ir.Model) -> None:
    """Fold constants in a model and its functions, in place.

    Args:
        model: The model. Its values declare only types and shapes that follow from its inputs.
    """
    _Folder(model.opset_imports, model.graph).fold(model.graph)
    for function in model.functions.values():
        _Folder(function.opset_imports, function.graph, is_function=True).fold(function.graph)
    RemoveUnusedNodesPass()(model)


class _Folder:
    """Folds a graph and the bodies in it.

    Args:
        opsets: The version of each domain.
        root: The graph.
        is_function: Whether it is that of a function, which cannot have initializers.
    """

    def __init__(self, opsets: Mapping[str, int], root: ir.Graph, *, is_function: bool = False) -> None:
        self._known = KnownValues({**opsets, "": default_opset(opsets)}, any_size=True)
        self._is_function = is_function
        self._names = Counter(value.name for graph in graphs_within(root) for value in _own_values(graph))

    def fold(self, graph: ir.Graph) -> None:
        """Fold the nodes of a graph, in order."""
        self._record([*graph.inputs, *graph.initializers.values()])
        for node in list(graph):
            self._fold_node(graph, node)

    def _fold_node(self, graph: ir.Graph, node: ir.Node) -> None:
        self._record(node.outputs)
        condition = self._known.constant(node.inputs[0]) if node.op_type == "If" and node.domain == "" else None
        if condition is not None and condition.size == 1:
            self._take_branch(graph, node, "then_branch" if condition.all() else "else_branch")
            return
        bodies = bodies_of(node)
        for body in bodies:
            self.fold(body)
        if bodies or node.op_type == "Constant" or not is_of_default_domain(node):
            return
        follow(self._known, node, self._is_computed)
        used = list(filter(is_used, node.outputs))
        if all(map(self._is_written, used)):
            for value in used:
                self._replace(graph, node, value)
        elif (source := self._unchanged(node)) is not None and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)

    def _is_computed(self, node: ir.Node) -> bool:
        """Whether the numbers of a node's outputs are. Stored integers stay integers: nothing is dequantized."""
        return operator_of(node).exact or operator_of(node).elementwise or self._is_product(node)

    def _is_product(self, node: ir.Node) -> bool:
        """Whether a node multiplies numbers, as a step does a constant initial state by weights."""
        spelled = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        exact = self._known.types.get(node.outputs[0]) in _MULTIPLIED
        return node.op_type in ("Conv", "Gemm", "MatMul") and spelled and exact

    def _unchanged(self, node: ir.Node) -> ir.Value | None:
        """Return the input of a Cast to the type that it has, or of an Expand or Reshape to its shape; None for any
        other node."""
        value = node.inputs[0] if node.op_type in ("Cast", "Expand", "Reshape") and node.inputs else None
        if value is None:
            return None
        ask = self._known.types.get if node.op_type == "Cast" else self._known.static_shape
        before = ask(value)
        return value if before is not None and before == ask(node.outputs[0]) else None

    def _is_written(self, value: ir.Value) -> bool:
        """Whether the numbers of a value are known, and few enough for the file."""
        array = self._known.constant(value)
        plain = self._known.types.get(value) not in (None, ir.DataType.STRING)
        return array is not None and plain and array.nbytes * _SHARE <= most_bytes()

    def _replace(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
        """Replace an output of a node by its numbers. An output of the graph stays that of a node: onnx2torch and
        others lose one that is an initializer."""
        array = self._known.constant(value)
        assert array is not None
        is_output = value.is_graph_output() and not self._is_function
        name = self._unique_name(value.name or "") if is_output else value.name
        tensor = ir.tensor(array.copy(), dtype=self._known.types[value], name=name)
        new = ir.Value(name=name, const_value=tensor)
        new.type, new.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        new = self._placed(graph, node, new)
        self._record([new])
        self._known.contents[new] = array
        for reader, index in tuple(value.uses()):
            reader.replace_input_with(index, new)
        take_over(value, _copied(graph, node, new) if is_output else new)

    def _placed(self, graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
        """Return an initializer as one of a graph; in a function, as the output of a Constant."""
        if not self._is_function:
            graph.register_initializer(value)
            return value
        tensor = value.const_value
        tensor = in_memory(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor
        constant = ir.node("Constant", [], {"value": tensor}, num_outputs=1)
        new = constant.outputs[0]
        new.type, new.shape = value.type, value.shape
        graph.insert_before(before, constant)
        take_over(value, new)
        return new

    # Branches

    def _take_branch(self, graph: ir.Graph, node: ir.Node, name: str) -> None:
        """Put the nodes of a branch in the place of an If."""
        branch = node.attributes[name].as_graph()
        nodes, outputs = list(branch), list(branch.outputs)
        branch.outputs.clear()
        initializers = [branch.initializers.pop(name) for name in list(branch.initializers)]
        self._make_unique([*initializers, *(value for each in nodes for value in each.outputs)])
        placed = {value: self._placed(graph, node, value) for value in initializers}
        self._record(placed.values())
        branch.remove(nodes)
        graph.insert_before(node, nodes)
        for old, value in zip(node.outputs, outputs, strict=True):
            if old.name:
                take_over(old, self._movable(node, placed.get(value, value), nodes))
        graph.remove(node, safe=True)
        for inner in nodes:
            self._fold_node(graph, inner)

    @staticmethod
    def _movable(node: ir.Node, value: ir.Value, moved: Collection[ir.Node]) -> ir.Value:
        """Return a value that can take the name of an output of an If: not one from outside, nor another output."""
        if value.producer() in moved and not value.is_graph_output():
            return value
        assert node.graph is not None
        return _copied(node.graph, node, value)

    def _make_unique(self, values: Sequence[ir.Value]) -> None:
        """Rename values that come into a graph where their names may be taken: other branches may have them too."""
        for value in values:
            if value.name and self._names[value.name] > 1:
                self._names[value.name] -= 1
                value.name = self._unique_name(value.name)

    def _unique_name(self, name: str) -> str:
        """Return a name that no value has, with a number behind it."""
        number = 1
        while self._names[f"{name}_{number}"]:
            number += 1
        self._names[f"{name}_{number}"] += 1
        return f"{name}_{number}"

    def _record(self, values: Iterable[ir.Value]) -> None:
        """Record types, shapes and constants; each size that is no number is a size of its own."""
        for value in values:
            tensor = None if value.is_graph_input() else self._tensor(value)
            if tensor is not None:
                add_tensor(self._known, value, tensor, _LARGEST_READ)
                continue
            if isinstance(value.type, ir.TensorType):
                self._known.types[value] = value.type.dtype
            if value.shape is not None:
                sizes = (
                    exact_size(n) if isinstance(n, int) and n >= 0 else self._known.unknown() for n in value.shape
                )
                self._known.shapes[value] = tuple(sizes)

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the tensor of an initializer or a Constant."""
        node = value.producer()
        if node is None:
            return value.const_value
        return constant_of(value, self._known.opset) if node.op_type == "Constant" else None


def _copied(graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    """Return the output of an Identity of a value, in place of what a node computes."""
    identity = ir.node("Identity", [value])
    identity.meta.update(before.meta)
    graph.insert_before(before, identity)
    return identity.outputs[0]


def _own_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


# Copies that are folded


def folded(model: ir.Model, *, decide: bool = False, inferred: Inferred | None = None) -> ir.Model | None:
    """Return a copy with folded constants; None if no more is known then: no size or length of a recurrent node,
    and no size of what a Loop or Scan reads.

    Only shapes that follow from the model's inputs are used: declared shapes of computed values may be wrong.

    Args:
        model: The model.
        decide: Also return a copy that has fewer Ifs, since their conditions are constant.
        inferred: Types and shapes that follow from the model's inputs, if known.
    """
    known = inferred_values(model) if inferred is None else inferred
    best, unknown = None, _count_unknown(model, decide, known)
    for _ in range(_MOST_PASSES if unknown else 0):
        trial = _inferred(model, known) if best is None else clone(best)
        if not is_sound(trial):
            break
        fold(trial)
        _infer(trial)
        before, unknown = unknown, _count_unknown(trial, decide)
        if unknown >= before:
            break
        best = trial
        if not unknown:
            break
    if best is not None:
        _declare_again(best, model, known)
    return best


def with_constants(model: ir.Model, *, sizes: bool = False) -> ir.Model | None:
    """Return a copy in which constants are folded; None if no node computes something from constants only, or
    with `sizes` from sizes. Declared shapes count as in `folded`."""
    if not any(_is_constant(node) or (sizes and node.op_type == "Shape") for node in nodes_within(model.graph)):
        return None
    known = inferred_values(model)
    trial = _inferred(model, known)
    if not is_sound(trial):
        return None
    fold(trial)
    _infer(trial)
    _declare_again(trial, model, known)
    return trial


def _is_constant(node: ir.Node) -> bool:
    given = [value for value in node.inputs if value is not None]
    return node.op_type != "DequantizeLinear" and bool(given) and all(map(_is_constant_value, given))


def _is_constant_value(value: ir.Value) -> bool:
    node = value.producer()
    return node.op_type == "Constant" if node else value.is_initializer() and not value.is_graph_input()


def _inferred(model: ir.Model, known: Inferred) -> ir.Model:
    """Return a copy in which computed values have only the shapes that follow from the model's inputs."""
    copy = clone(model)
    _declare(zip(computed_values(copy), (known[value] for value in computed_values(model)), strict=True))
    return copy


def _infer(model: ir.Model) -> None:
    """Keep only those shapes of computed values that follow from the model's inputs, in place."""
    _declare(inferred_values(model).items())


def _declare(values: Iterable[tuple[ir.Value, ir.Value]]) -> None:
    for value, known in values:
        value.type, value.shape = value.type or known.type, merge_shapes(known.shape, None)


def _count_unknown(model: ir.Model, decide: bool, known: Inferred = MappingProxyType({})) -> int:
    """Count recurrent nodes with an X of unknown sizes, those with open lengths, and what Loops and Scans read of
    unknown sizes; with `decide` also Ifs.

    A value that is not `known` has the shape that it declares.
    """
    unknown = sum(node.op_type == "If" for node in nodes_within(model.graph)) if decide else 0
    for entry in recurrent_nodes(model):
        X, lengths = (input_at(entry.node, n) for n in (0, 4))
        if X is not None:
            shape = known.get(X, X).shape
            unknown += shape is None or not all(isinstance(size, int) for size in shape[:2])
        unknown += lengths is not None and constant_of(lengths, entry.opset) is None
    for _, node in repeating_nodes(model):
        given = [value for value in node.inputs if value is not None]
        shapes = [known.get(value, value).shape for value in dict.fromkeys([*given, *captured_values(node)])]
        unknown += sum(shape is None or not shape.is_static() for shape in shapes)
    return unknown


def _declare_again(model: ir.Model, before: ir.Model, inferred: Inferred) -> None:
    """Restore declared sizes that inference does not find; values are matched by name, if unique."""
    names = Counter(value.name for value in computed_values(before))
    shapes = declared_shapes(before, computed_values(before), inferred)
    declared = {value.name: shape for value, shape in shapes.items() if names[value.name] == 1}
    for value in computed_values(model):
        value.shape = merge_shapes(value.shape, declared.get(value.name))
