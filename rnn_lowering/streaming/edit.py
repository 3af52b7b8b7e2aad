"""Edits of a model that is to be called chunk by chunk: new inputs and outputs, also of branches of If."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set

import numpy as np
import onnx_ir as ir

from rnn_lowering.model.scopes import all_names, bodies_of
from rnn_lowering.streaming.frames import PastFrames, Trim
from rnn_lowering.streaming.inference import TO_THE_END
from rnn_lowering.types import Array

Path = Sequence[tuple[ir.Node, str]]

_BRANCHES = ("then_branch", "else_branch")


def plain(text: str) -> str:
    """Return a name of letters, digits and underscores only."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "unnamed"


class Editor:
    """Edits one model; names are unique in all its scopes."""

    def __init__(self, model: ir.Model, opset: int) -> None:
        self.model = model
        self.opset = opset
        self.taken = {*all_names(model), *(v.name or "" for v in model.graph.outputs)}
        self._numbers: dict[str, int] = {}

    def name(self, text: str) -> str:
        """Return a plain name like `text` that nothing has."""
        name = start = plain(text)
        number = self._numbers.get(start, 2)
        while name in self.taken:
            name, number = f"{start}_{number}", number + 1
        self._numbers[start] = number
        self.taken.add(name)
        return name

    def add_input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.model.graph.inputs.append(value)
        return value

    def add_output(self, name: str, inner: ir.Value, past: ir.Value, path: Path) -> ir.Value:
        """Give `inner`, a value in the branches `path`, out of them and out of the model; in other branches the
        state stays as it is."""
        value = inner
        for node, branch in reversed(path):
            for other in _BRANCHES:
                graph = node.attributes[other].as_graph()
                graph.outputs.append(self.copy(value if other == branch else past, graph))
            node.resize_outputs(len(node.outputs) + 1)
            value = node.outputs[-1]
            value.name, value.type = self.name(f"{name}_out"), past.type
        output = self.copy(value, self.model.graph)
        output.name, output.type, output.shape = name, past.type, past.shape
        self.model.graph.outputs.append(output)
        return output

    def copy(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        """The output of an Identity at the end of a graph."""
        (output,) = self.node("Identity", [value])
        node = output.producer()
        assert node is not None
        output.name, output.type = self.name(f"{value.name}_copy"), value.type
        graph.append(node)
        return output

    def node(
        self, op_type: str, inputs: Sequence[ir.Value], **attributes: int | Sequence[int]
    ) -> Sequence[ir.Value]:
        """Return the outputs of a new node, which is in no graph yet."""
        held = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        name = self.name(f"stream_{op_type}")
        node = ir.Node("", op_type, inputs, held, name=name)
        node.outputs[0].name = self.name(f"{name}_out")
        return node.outputs

    def constant(self, array: Array, graph: ir.Graph) -> ir.Value:
        """A constant of a graph."""
        name = self.name("stream_constant")
        tensor = ir.Tensor(array, name=name)
        if self.model.ir_version >= 4:
            value = ir.Value(
                name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
            )
            graph.register_initializer(value)
            return value
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=name)
        node.outputs[0].name = name
        graph.insert_before(graph[0], [node])
        return node.outputs[0]

    def replace(self, old: ir.Value, new: ir.Value, graph: ir.Graph) -> None:
        """Replace `old` with `new`, a value of the same graph, everywhere."""
        if old.is_graph_output():
            new = new if new.producer() is not None and not new.is_graph_output() else self.copy(new, graph)
            name = old.name
            new.type, new.shape = new.type or old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name, new.name = None, name
        else:
            old.replace_all_uses_with(new)

    def integers(self, numbers: Sequence[int], graph: ir.Graph) -> ir.Value:
        return self.constant(np.array(numbers, np.int64), graph)

    def sliced(
        self,
        value: ir.Value,
        graph: ir.Graph,
        axes: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int],
    ) -> ir.Value:
        """The output of a Slice, which is in no graph yet."""
        if self.opset < 10:
            return self.node("Slice", [value], axes=axes, starts=starts, ends=ends)[0]
        bounds = [self.integers(numbers, graph) for numbers in (starts, ends, axes, steps)]
        return self.node("Slice", [value, *bounds])[0]


def trim(editor: Editor, found: Trim) -> None:
    """Make a Slice over the frames cut the same from a chunk as from the whole."""
    node = found.node
    graph, value, old = _home(node), node.inputs[0], node.outputs[0]
    assert value is not None
    whole = set(found.starts) == {0} and set(found.ends) == {TO_THE_END} and set(found.steps) == {1}
    new = value
    if not whole:
        new = editor.sliced(value, graph, found.axes, found.starts, found.ends, found.steps)
        graph.insert_before(node, [_producer(new)])
    editor.replace(old, new, graph)
    graph.remove(node, safe=True)


def keep_past(editor: Editor, context: PastFrames, past: ir.Value | None) -> ir.Value | None:
    """Put the past frames before what a node reads; return the frames for the next chunk.

    Args:
        past: Those frames, an input of the model; None where the node needs none and only loses paddings.
    """
    node = context.node
    graph = _home(node)
    before = _without_padding(editor, context, graph) if node.op_type == "Pad" else context.source
    if past is None:
        joined = before
    else:
        (joined,) = editor.node("Concat", [past, before], axis=context.axis)
        graph.insert_before(node, [_producer(joined)])
    read = joined
    if context.drop:
        read = editor.sliced(joined, graph, [context.axis], [0], [-context.drop], [1])
        graph.insert_before(node, [_producer(read)])
    if node.op_type in ("Pad", "Concat"):
        editor.replace(node.outputs[0], read, graph)
    else:
        node.replace_input_with(0, read)
        node.attributes["pads"] = ir.AttrInt64s("pads", context.pads)
        node.attributes.pop("auto_pad", None)
    following = node
    present = None
    if past is not None:
        end = -context.overlap or TO_THE_END
        start = -(context.past + context.overlap)
        present = editor.sliced(joined, graph, [context.axis], [start], [end], [1])
        graph.insert_after(following, [_producer(present)])
    if node.op_type in ("Pad", "Concat"):
        graph.remove(node, safe=True)
    return present


def _without_padding(editor: Editor, context: PastFrames, graph: ir.Graph) -> ir.Value:
    """What a Pad reads, padded along the other axes as it was."""
    node = context.node
    if not any(context.pads):
        return context.source
    fill = node.inputs[2] if len(node.inputs) > 2 else None
    if editor.opset < 11:
        (value,) = editor.node("Pad", [context.source], pads=context.pads)
        kept = [a for name, a in node.attributes.items() if name in ("value", "mode")]
        _producer(value).attributes.update({a.name: a for a in kept})
    else:
        rest = [fill] if fill is not None else []
        (value,) = editor.node("Pad", [context.source, editor.integers(context.pads, graph), *rest])
    graph.insert_before(node, [_producer(value)])
    return value


def keep_where_empty(editor: Editor, node: ir.Node, output: ir.Value, past: ir.Value) -> ir.Value:
    """Keep the past state for rows of length 0, wherever the final state is read; return it."""
    graph, lengths = _home(node), node.inputs[4]
    assert lengths is not None
    batch_first = node.attributes.get_int("layout", 0) == 1
    axes = [1, 2] if batch_first else [0, 2]
    (empty,) = editor.node("Equal", [lengths, editor.constant(np.zeros(1, np.int32), graph)])
    if editor.opset < 13:
        (mask,) = editor.node("Unsqueeze", [empty], axes=axes)
    else:
        (mask,) = editor.node("Unsqueeze", [empty, editor.integers(axes, graph)])
    (kept,) = editor.node("Where", [mask, past, output])
    kept.type = output.type or past.type
    for read in list(output.uses()):
        if read.node is not kept.producer():
            read.node.replace_input_with(read.idx, kept)
    if output.is_graph_output():
        for n, value in enumerate(graph.outputs):
            if value is output:
                graph.outputs[n] = kept
        kept.shape = output.shape
        name = output.name
        output.name, kept.name = editor.name(f"{name}_raw"), name
    graph.insert_after(node, [_producer(value) for value in (empty, mask, kept)])
    return kept


def unused(model: ir.Model, others: Iterable[ir.Node] = ()) -> set[ir.Node | ir.Value]:
    """Return the nodes and initializers from which neither an output of a model nor any of the other nodes is
    computed."""
    used: set[ir.Node | ir.Value] = set()
    pending: list[ir.Node | ir.Value | None] = [*model.graph.outputs, *others]
    while pending:
        item = pending.pop()
        if item is None or item in used:
            continue
        used.add(item)
        if isinstance(item, ir.Value):
            pending.append(item.producer())
        else:
            pending += [*item.inputs, *(v for body in bodies_of(item) for v in body.outputs)]
    constants = [v for graph in model.graphs() for v in graph.initializers.values() if not v.is_graph_input()]
    found: set[ir.Node | ir.Value] = {*model.graph.all_nodes(), *constants}
    return found - used


def remove_unused(model: ir.Model, before: Set[ir.Node | ir.Value]) -> None:
    """Remove the nodes and initializers that an edit left without a use.

    Args:
        model: The edited model.
        before: Those that were unused before the edit: they stay, with all that they read.
    """
    for item in unused(model, (item for item in before if isinstance(item, ir.Node))) - before:
        if isinstance(item, ir.Value):
            if item.graph is not None:
                item.graph.initializers.pop(item.name or "")
            continue
        for n in range(len(item.inputs)):
            item.replace_input_with(n, None)
        if not any(v.is_graph_output() for v in item.outputs):  # else it ends a body of a node that is removed
            _home(item).remove(item)


def _home(node: ir.Node) -> ir.Graph:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
