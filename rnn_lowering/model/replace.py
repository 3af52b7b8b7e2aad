"""Replace recurrent nodes with their equivalents."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, leaf
from rnn_lowering.emit.draft import NODE, OPERATOR, Names
from rnn_lowering.emit.ops import Ops
from rnn_lowering.errors import boundary
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import (
    detach,
    is_used,
    operator_of,
    values_used,
    with_bodies,
)
from rnn_lowering.model.loop_sharing import Between, Group, groups_of, shared_loops
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.model.scopes import all_graphs, all_names, sort_nodes
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.forms import Emitted


def replace_nodes(model: ir.Model, plan: Sequence[NodePlan], *, widen: bool, dequantize: bool = False) -> list[str]:
    """Replace nodes of a model as planned, in place; return what the user should know.

    Args:
        model: The model.
        plan: The nodes and their forms.
        widen: Compute float16 and bfloat16 nodes in float32.
        dequantize: Make floats of weights that are stored as integers.
    """
    notes = []
    names = Names(all_names(model) if plan else ())
    shared: dict[ir.Graph, dict[Hashable, ir.Value]] = {}
    taken_over: dict[ir.Value, ir.Value] = {}
    groups = groups_of(plan)
    for group in groups:
        members, first = group.members, group.members[0]
        specs = [planned.spec.as_floats() if dequantize else planned.spec for planned in members]
        specs = [replace(s, inputs={name: taken_over.get(v, v) for name, v in s.inputs.items()}) for s in specs]
        op = emitter_of(members, specs[0], names, model.ir_version, widen, shared.setdefault(first.found.graph, {}))
        with boundary(first.found.ref):
            taken_over |= _replace_group(group, specs, op)
        floats = " and ".join(dict.fromkeys(op.floats))
        if floats:
            reason = f"DequantizeLinear of opset {first.opset} cannot express their scales"
            notes.append(f"{first.found.ref}: the integers of {floats} became floats: {reason}")
    if any(len(group.members) > 1 for group in groups):
        sort_nodes(model)
    _drop_functions(model, {planned.found.node.op_identifier() for planned in plan} & model.functions.keys())
    return [*shared_loops(groups), *notes]


def _drop_functions(model: ir.Model, replaced: Set[ir.OperatorIdentifier]) -> None:
    """Remove functions that have the names of operators and that nothing calls."""
    if replaced:
        called = {node.op_identifier() for graph in all_graphs(model) for node in graph}
        for identifier in replaced - called:
            del model.functions[identifier]


def emitted_for(planned: NodePlan, ir_version: int, *, widen: bool, dequantize: bool = False) -> Emitted:
    """Return what `replace_nodes` would emit for a node; the model stays as it is."""
    spec = planned.spec.as_floats() if dequantize else planned.spec
    op = emitter_of([planned], spec, Names(()), ir_version, widen, {})
    with boundary(planned.found.ref):
        outputs = op.outputs(list(planned.choice.lower(op, [spec], ())[0].values()))
    op.finish(outputs)
    emitted = [inner for node in op.nodes for inner in with_bodies(node)]
    for node in op.nodes:
        detach(node)  # the values of the model get no further users
    return Emitted(frozenset(node.op_type for node in emitted), op.most_axes)


def emitter_of(
    group: Sequence[NodePlan],
    spec: NodeSpec,
    names: Names,
    ir_version: int,
    widen: bool,
    shared: dict[Hashable, ir.Value],
) -> Ops:
    planned, nodes = group[0], [planned.found.node for planned in group]
    return Ops(
        planned.opset,
        names,
        prefix_of(nodes[0]),
        spec.computes_in(widen=widen),
        planned.choice.dialect,
        planned.choice.instead,
        planned.choice.finish,
        constant_nodes=ir_version < 4,
        shared=shared,
        origin={NODE: ", ".join(map(prefix_of, nodes)), OPERATOR: spec.op_type},
    )


def _replace_group(group: Group, specs: Sequence[NodeSpec], op: Ops) -> dict[ir.Value, ir.Value]:
    """Emit the equivalent of nodes that become one recurrence with `op`, and replace them in their graph by it;
    return the values that took over their outputs."""
    found, choice = group.members[0].found, group.members[0].choice
    graph, nodes = found.graph, [planned.found.node for planned in group.members]
    if group.between:
        specs = [*map(_without_inner_Y, specs, group.between), specs[-1]]
    added = [[_constant(value, found.opset) for value in between.added] for between in group.between]
    outputs = zip(specs, choice.lower(op, specs, added), strict=True)
    emitted = {spec.outputs[symbol]: tensor for spec, found in outputs for symbol, tensor in found.items()}
    taken_over = dict(zip(emitted, op.outputs(list(emitted.values())), strict=True))
    given = taken_over | {
        old: op.value(choice.outputs_apart(op, op.given(value, emitted[old].dtype, emitted[old].shape)))
        for old, value in taken_over.items()
        if choice.outputs_apart and old.is_graph_output() and old.uses()
    }
    op.finish([*taken_over.values(), *given.values()])
    for old, value in taken_over.items():
        for reader, index in tuple(old.uses()):
            reader.replace_input_with(index, value)
        take_over(old, given[old])
        given[old].type, given[old].shape = old.type or ir.TensorType(emitted[old].dtype), old.shape
    for value in op.initializers:
        graph.register_initializer(value)
    graph.insert_before(nodes[-1], op.nodes)
    inputs = [value for node in nodes for value in node.inputs if value is not None]
    below = [*group.between[::-1], *(Between() for _ in nodes[len(group.between) :])]
    for node, between in zip(reversed(nodes), below, strict=True):
        graph.remove(node, safe=True)
        _drop_moves(between)
    drop_unused(inputs, only_foldable=True)
    return taken_over


def _constant(value: ir.Value, opset: int) -> Constant:
    """Return the numbers of a constant of the model."""
    tensor = constant_of(value, opset)
    assert tensor is not None
    return leaf(tensor, value, "added").reshaped((tensor.size,))


def _without_inner_Y(spec: NodeSpec, between: Between) -> NodeSpec:
    """Return a layer without an output Y that only the layer above uses."""
    inner = between.is_all_of(spec.outputs["Y"])
    return replace(spec, outputs={s: v for s, v in spec.outputs.items() if s != "Y" or not inner})


def _drop_moves(between: Between) -> None:
    """Remove the nodes between two layers that nothing uses any more."""
    for node, place in between.moves:
        if node.graph is None or any(map(is_used, node.outputs)):
            return
        others = [v for n, v in enumerate(node.inputs) if v is not None and n != place]
        node.graph.remove(node, safe=True)
        drop_unused(others, only_foldable=True)


def prefix_of(node: ir.Node) -> str:
    """Return the prefix for names of nodes and values that replace a node."""
    return node.name or f"{node.op_type}_{next((v.name for v in node.outputs if v.name), 'unused')}"


def drop_unused(values: Iterable[ir.Value | None], *, only_foldable: bool = False) -> None:
    """Remove what only a removed node used, and what only that used.

    Args:
        values: Its inputs.
        only_foldable: Whether to remove only nodes of foldable operators.
    """
    pending = [value for value in values if value is not None]
    while pending:
        value = pending.pop()
        node = value.producer()
        if is_used(value) or value.is_graph_input():
            continue
        if node is None:
            if value.graph is not None and value.name is not None:
                value.graph.initializers.pop(value.name, None)
            continue
        removable = not only_foldable or operator_of(node).foldable
        used = any(map(is_used, node.outputs))
        if node.graph is not None and removable and not used:
            pending += values_used(node)
            detach(node)
            node.graph.remove(node, safe=True)
