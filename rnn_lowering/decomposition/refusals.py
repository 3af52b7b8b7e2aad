"""What runtimes reject or compute wrongly in a whole model, where no rewrite helps."""

from __future__ import annotations

from collections.abc import Container, Iterator

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.model.model_sizes import Inferred, inferred_values
from rnn_lowering.model.scopes import nodes_in_scopes, origin_of
from rnn_lowering.nodes.kinds import is_recurrent, node_ref
from rnn_lowering.targets.target import Target


def refuse_no_elements(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
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


MOST_AXES = 4


def refuse_axes(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each input and computed value of more than 4 axes, and each input without an axis."""
    known = inferred_values(model)
    for value in model.graph.inputs:
        uses = list(value.uses())
        rank = None if value.shape is None else len(value.shape)
        if rank is not None and uses and (rank == 0 or rank > MOST_AXES):
            reason = f"{target.name} takes inputs of 1 to {MOST_AXES} axes, but '{value.name}' has {rank}"
            yield UnsupportedError(
                reason,
                hint="export the model with fewer axes, or use another runtime",
                node=node_ref(uses[0].node),
            )
    for scope, node in nodes_in_scopes(model):
        shapes = [known.get(value, value).shape for value in node.outputs]
        rank = max((len(shape) for shape in shapes if shape is not None), default=0)
        if rank > MOST_AXES:
            reason = f"{target.name} has tensors of at most {MOST_AXES} axes, but this one has {rank}"
            yield UnsupportedError(
                reason,
                hint="export the model with fewer axes, or use another runtime",
                node=origin_of(node, scope.text),
            )


def refuse_integers(model: ir.Model, target: Target, replaced: Container[ir.Node]) -> Iterator[UnsupportedError]:
    """Yield an error for each node that computes with integers or booleans which follow from inputs, changes the
    type of floats, or returns integers: moved ones are right, as indices of a table. Replaced nodes stay out."""
    known, followed = inferred_values(model), set(model.graph.inputs)

    def is_integer(value: ir.Value | None) -> bool:
        dtype = None if value is None else known.get(value, value).dtype
        return value in followed and dtype is not None and not dtype.is_floating_point()

    for scope, node in nodes_in_scopes(model):
        row = operator_of(node)
        if node.op_type not in _OF_SIZES and not followed.isdisjoint(node.inputs):
            followed.update(node.outputs)
        computes = any(map(is_integer, (*node.inputs[: row.data], *node.outputs)))
        computes = computes or (node.op_type == "Cast" and node.outputs[0] in followed and _converts(node, known))
        returns = any(value.is_graph_output() and is_integer(value) for value in node.outputs)
        if is_recurrent(node) or node in replaced or not (returns or (computes and not row.moves)):
            continue
        reason = f"{target.name} computes with floats only, and takes integers as indices of a table"
        yield UnsupportedError(
            reason, hint="end the model before it, or use another runtime", node=origin_of(node, scope.text)
        )


def refuse_sequences(model: ir.Model, target: Target, replaced: Container[ir.Node]) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a sequence that is not replaced."""
    for scope, node in nodes_in_scopes(model):
        if "Sequence" in node.op_type and node.op_type != "ReverseSequence" and node not in replaced:
            reason = f"{target.name} has no sequences of tensors"
            yield UnsupportedError(
                reason,
                hint="export the model with Split or Slice in place of a sequence, or use another runtime",
                node=node_ref(node, scope.text),
            )


def _converts(cast: ir.Node, known: Inferred) -> bool:
    """Whether a Cast changes the type of what it reads."""
    value = cast.inputs[0]
    return value is not None and known.get(value, value).dtype != cast.attributes.get_int("to", 0)


_OF_SIZES = ("Shape", "Size")
