"""Refuses nodes with tensors that a runtime rejects: empty, of many axes, sequences, integers, unlike branches.

tract knows sizes as long as they are int64. Keras' exporter computes with them in int32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import zip_longest

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.decomposition.rewrites.spelled import is_of_sizes
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import bodies_of, is_of_default_domain, operator_of
from rnn_lowering.flags import set_dims
from rnn_lowering.model.model_sizes import open_names, take_over
from rnn_lowering.model.onnx_checks import ANONYMOUS
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import nodes_in_scopes, origin_of
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import array_of

_ARITHMETIC = {
    **dict.fromkeys(("Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "ReduceProd", "Identity"), 1),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), 2),
    "Concat": None,
}
"""By operator of sizes how many of its inputs have their type; None for all."""


def widen_sizes(model: AdaptedModel) -> int:
    """Compute, in place, with int64 what is computed of sizes in int32 and becomes other numbers; return the number
    of such ends."""
    wide, count = dict[ir.Value, ir.Value](), 0
    for node in list(model.graph):
        if not is_of_default_domain(node) or not node.inputs or node.inputs[0] is None:
            continue
        to, source = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0, node.inputs[0]
        if to == ir.DataType.INT32 and is_of_sizes(source, model, ("Shape", "Size")):
            wide[node.outputs[0]] = source
        elif to and source in wide:
            _read_wide(node, wide[source], model)
            count += 1
        elif (widened := _widened(node, wide, model)) is not None:
            wide[node.outputs[0]] = widened
    drop_unused(reversed(wide))
    return count


def _read_wide(cast: ir.Node, value: ir.Value, model: AdaptedModel) -> None:
    """Let a Cast of int32 read the same numbers as int64, or be an Identity of them."""
    cast.replace_input_with(0, value)
    if cast.attributes.get_int("to", 0) == ir.DataType.INT64:
        cast.op_type = "Identity"
        cast.attributes.clear()


def _widened(node: ir.Node, wide: Mapping[ir.Value, ir.Value], model: AdaptedModel) -> ir.Value | None:
    """Return what a node computes of sizes, in int64; None if an operand is neither of sizes nor constant."""
    inputs, count = list(node.inputs), _ARITHMETIC.get(node.op_type)
    if node.op_type not in _ARITHMETIC or not any(value in wide for value in inputs):
        return None
    for slot, value in enumerate(inputs[:count]):
        constant = model.constant_of(value)
        if value is not None and value in wide:
            inputs[slot] = wide[value]
        elif constant is None:
            return None
        else:
            inputs[slot] = model.constant(node, array_of(constant))
    if node.op_type == "ReduceProd":
        return _product(node, inputs[0], model)
    return model.before(node, node.op_type, inputs, **dict(node.attributes))


def _product(node: ir.Node, sizes: ir.Value | None, model: AdaptedModel) -> ir.Value | None:
    """Return the product of a known number of sizes, for a ReduceProd; None if it is not known."""
    shape = model.shape_of(node.inputs[0])
    if sizes is None or shape is None or len(shape) != 1 or not isinstance(shape[0], int) or not shape[0]:
        return None
    at = [[n] if node.attributes.get_int("keepdims", 1) else n for n in range(shape[0])]
    parts = [model.before(node, "Gather", [sizes, model.constant(node, place)], axis=0) for place in at]
    return reduce(lambda product, part: model.before(node, "Mul", [product, part]), parts)


# Branches

_OF_ANY = frozenset(
    [
        "Cast",
        "Constant",
        "ConstantOfShape",
        "Identity",
        "LogSoftmax",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Shape",
        "Softmax",
        "Transpose",
        "Unsqueeze",
    ]
)
"""Operators that fail for no numbers."""

_PRODUCTS = ("Gemm", "MatMul")


def choose_branches(model: AdaptedModel) -> int:
    """Compute both branches and choose, in place, in each graph of several If, where that cannot fail; return their
    number."""
    nodes = model.nodes("If", in_functions=False)
    crowded = {graph for graph, count in Counter(node.graph for node in nodes).items() if count > 1}
    found = [node for node in nodes if node.graph in crowded and _can_choose(node, model)]
    for node in found:
        _choose(node, model)
    return len(found)


def _branches(node: ir.Node) -> list[ir.Graph]:
    return [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]


def _can_choose(node: ir.Node, model: AdaptedModel) -> bool:
    """Whether both branches give numbers of the same sizes, and compute them whatever the condition is."""
    branches, condition = _branches(node), model.shape_of(node.inputs[0])
    outputs = list(zip(*(branch.outputs for branch in branches), strict=True))
    shapes = [[model.shape_of(value) for value in pair] for pair in outputs]
    alike = all(_meet(pair, model) and len(pair[0] or ()) == len(pair[1] or ()) for pair in shapes)
    known = condition is not None and all(len(condition) <= len(pair[0] or ()) for pair in shapes)
    numbers = all(dtype is not None and dtype != ir.DataType.BOOL for dtype in map(model.dtype_of, node.outputs))
    return alike and known and numbers and all(_cannot_fail(each, model) for branch in branches for each in branch)


def _meet(shapes: Sequence[ir.Shape | None], model: AdaptedModel) -> bool:
    """Whether shapes are known to be equal where none is 1."""
    known = [list(shape) for shape in shapes if shape is not None]
    axes = zip_longest(*map(reversed, known), fillvalue=1)
    sizes = [{size if isinstance(size, int) else size.value for size in axis if size != 1} for axis in axes]
    named = all(name is not None and not str(name).startswith(ANONYMOUS) for axis in sizes for name in axis)
    return len(known) == len(shapes) and named and all(len(axis) <= 1 for axis in sizes)


def _cannot_fail(node: ir.Node, model: AdaptedModel) -> bool:
    if not is_of_default_domain(node):
        return False
    if node.op_type in _PRODUCTS:
        shape, weights = model.shape_of(node.inputs[0]), model.constant_of(node.inputs[1])
        plain = not node.attributes.get_int("transA", 0)
        return plain and weights is not None and shape is not None and len(shape) > 1 and isinstance(shape[-1], int)
    dtype = model.dtype_of(node.outputs[0])
    divides = node.op_type in ("Div", "Mod") and (dtype is None or dtype.is_integer())
    computes = operator_of(node).elementwise and not divides and _meet([*map(model.shape_of, node.inputs)], model)
    return computes or node.op_type in _OF_ANY


def _choose(node: ir.Node, model: AdaptedModel) -> None:
    graph, results = node.graph, list[list[ir.Value]]()
    assert isinstance(graph, ir.Graph)
    for branch in _branches(node):
        results.append(list(branch.outputs))
        branch.outputs.clear()
        nodes, constants = list(branch), [branch.initializers.pop(name) for name in list(branch.initializers)]
        branch.remove(nodes)
        for value in (*constants, *(output for each in nodes for output in each.outputs)):
            value.name = model.unique(value.name or "value")
        for value in constants:
            graph.register_initializer(value)
        graph.insert_before(node, nodes)
    for old, *pair in zip(node.outputs, *results, strict=True):
        take_over(old, model.before(node, "Where", [node.inputs[0], *pair]))
    graph.remove(node, safe=True)


def refuse_no_elements(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node with an input or output of the model that has no elements."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        node = value.producer() or next((use.node for use in value.uses()), None)
        if node is not None and value.shape is not None and 0 in value.shape:
            kind = "output" if value.is_graph_output() else "input"
            shape = f"[{', '.join(map(str, value.shape))}]"
            reason = f"{target.name} takes no {kind} without elements, such as '{value.name}' {shape}"
            yield UnsupportedError(
                reason, hint=f"remove this {kind} from the model, or drop --target", node=origin_of(node)
            )


_MOST_AXES = 4


def refuse_axes(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each input and computed value of more than 4 axes, and each input without an axis."""
    for value in model.graph.inputs:
        uses = list(value.uses())
        rank = None if value.shape is None else len(value.shape)
        if rank is not None and uses and (rank == 0 or rank > _MOST_AXES):
            reason = f"{target.name} takes inputs of 1 to {_MOST_AXES} axes, but '{value.name}' has {rank}"
            yield UnsupportedError(
                reason,
                hint="export the model with fewer axes, or use another runtime",
                node=node_ref(uses[0].node),
            )
    for scope, node in nodes_in_scopes(model.model):
        shapes = map(model.shape_of, node.outputs)
        rank = max((len(shape) for shape in shapes if shape is not None), default=0)
        if rank > _MOST_AXES:
            reason = f"{target.name} has tensors of at most {_MOST_AXES} axes, but this one has {rank}"
            yield UnsupportedError(
                reason,
                hint="export the model with fewer axes, or use another runtime",
                node=origin_of(node, scope.text),
            )


def refuse_unlike_branches(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each If whose branches return values of other ranks; at known sizes of all inputs one
    branch goes."""
    if all(value.shape is not None and value.shape.is_static() for value in model.graph.inputs):
        return
    sizes = set_dims(open_names(model.model)) or "--set-shape NAME:?"
    for scope, node in nodes_in_scopes(model.model):
        branches = [body.outputs for body in bodies_of(node)] if node.op_type == "If" else []
        for pair in zip(*branches, strict=False):
            shapes = [model.shape_of(value) for value in pair]
            ranks = {len(shape) for shape in shapes if shape is not None}
            if len(ranks) > 1:
                yield UnsupportedError(
                    f"{target.name} takes no branches that return other numbers of axes",
                    hint=f"fix the sizes of the inputs, with a number for each ?, so that one goes: {sizes}, "
                    "or use another runtime",
                    node=origin_of(node, scope.text),
                )


_OF_SIZES = ("Shape", "Size")


def refuse_integers(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that computes with integers or booleans which follow from inputs, changes the
    type of floats, or returns integers: moved ones are right, as indices of a table. Replaced nodes stay out."""
    followed = set(model.graph.inputs)

    def is_integer(value: ir.Value | None) -> bool:
        dtype = model.dtype_of(value)
        return value in followed and dtype is not None and not dtype.is_floating_point()

    for scope, node in nodes_in_scopes(model.model):
        row = operator_of(node)
        if node.op_type not in _OF_SIZES and not followed.isdisjoint(node.inputs):
            followed.update(node.outputs)
        computes = any(map(is_integer, (*node.inputs[: row.data], *node.outputs)))
        computes = computes or (node.op_type == "Cast" and node.outputs[0] in followed and _converts(node, model))
        returns = any(value.is_graph_output() and is_integer(value) for value in node.outputs)
        if is_recurrent(node) or node in model.replaced or not (returns or (computes and not row.moves)):
            continue
        reason = f"{target.name} computes with floats only, and takes integers as indices of a table"
        yield UnsupportedError(
            reason, hint="end the model before it, or use another runtime", node=origin_of(node, scope.text)
        )


def refuse_sequences(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a sequence that is not replaced."""
    for scope, node in nodes_in_scopes(model.model):
        if "Sequence" in node.op_type and node.op_type != "ReverseSequence" and node not in model.replaced:
            reason = f"{target.name} has no sequences of tensors"
            yield UnsupportedError(
                reason,
                hint="export the model with Split or Slice in place of a sequence, or use another runtime",
                node=node_ref(node, scope.text),
            )


def _converts(cast: ir.Node, model: AdaptedModel) -> bool:
    """Whether a Cast changes the type of what it reads."""
    value = cast.inputs[0]
    return value is not None and model.dtype_of(value) != cast.attributes.get_int("to", 0)
