"""Edits of a model that is to be called chunk by chunk: new inputs and outputs, also of branches of If."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from fractions import Fraction
from shlex import quote

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.emit.names import Names
from rnn_lowering.emit.versions import placed
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.inference.polynomials import Size
from rnn_lowering.model.scopes import all_names, bodies_of
from rnn_lowering.spec.node_spec import node_ref
from rnn_lowering.streaming.host.metadata import Dim, State, initial_of
from rnn_lowering.streaming.time_inputs import TimeInputs
from rnn_lowering.types import Array

Path = Sequence[tuple[ir.Node, str]]

_BRANCHES = ("then_branch", "else_branch")


def plain(text: str) -> str:
    """Return a name of letters, digits and underscores only."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "unnamed"


def label_of(node: ir.Node) -> str:
    """Return the name of a node, or of its first output."""
    return node.name or next((v.name for v in node.outputs if v.name), "")


def dim_of(dim: Size, axis: int, name: str | None) -> Dim:
    """The size of an axis of a state: a number, the name of an open axis, or "2*name".

    Raises:
        UnsupportedError: The size has another form.
    """
    if dim.constant is not None:
        return int(dim.constant)
    names = [symbol for symbol in dim.symbols if isinstance(symbol, str)]
    times = dim.coefficient(*names)
    if len(names) == 1 and dim == Size.symbol(names[0]) * times and times.denominator == 1:
        return names[0] if times == 1 else f"{times}*{names[0]}"
    options = " or ".join(f"--set-dim {quote(f'{name}=')}?" for name in sorted(names))
    raise UnsupportedError(
        f"axis {axis} of '{name}' has {dim} elements: a state cannot have that size",
        hint=f"fix a size: {options}" if names else "",
    )


class NodeEdit(ABC):
    """A change of a node for a stream, with the state that the change adds."""

    node: ir.Node
    carries: bool = True
    """Whether it has one of its own."""

    @abstractmethod
    def apply(self, editor: Editor) -> None:
        """Edit the node."""


class Editor:
    """Edits one model; names are unique in all its scopes.

    Attributes:
        time: The axes of the frames.
        count_type: The integers in which frames are counted at run time.
        states: The states added so far.
        made: Values that several edits share.
    """

    def __init__(
        self,
        model: ir.Model,
        opset: int,
        time: TimeInputs | None = None,
        count_type: ir.DataType = ir.DataType.INT64,
    ) -> None:
        self.model = model
        self.opset = opset
        self.time = time
        self.count_type = count_type
        self.made: dict[Hashable, ir.Value] = {}
        self._start: ir.Node | None = None
        self._names = Names({*all_names(model), *(v.name or "" for v in model.graph.outputs)})
        self.states: list[State] = []

    def own_frames(self, rate: Fraction) -> int | None:
        """Return the number of frames per call at this rate, or None if calls differ."""
        frames = None if self.time is None else self.time.frames
        return None if frames is None else int(frames * rate)

    def add_past(self, node: ir.Node, kind: str, dtype: ir.DataType, dims: Sequence[Dim]) -> ir.Value:
        """Add an input that takes a state of a node."""
        return self.add_input(self.name(f"past_{plain(label_of(node))}_{kind}"), dtype, dims)

    def add_present(
        self, node: ir.Node, kind: str, past: ir.Value, inner: ir.Value, path: Path, initial: Array | None = None
    ) -> None:
        """Return `inner`, a value in the branches `path`, as the next value of the state `past`.

        Args:
            initial: What the first call receives, an array that broadcasts to the state; None for zeros.
        """
        present = self.add_output(self.name(f"present_{plain(label_of(node))}_{kind}"), inner, past, path)
        self.add_state(past, present, node, kind, initial)

    def put_behind(self, value: ir.Value, new: ir.Value, nodes: Sequence[ir.Value]) -> None:
        """Redirect the readers of `value` to `new`, which the nodes of `nodes` compute from `value`."""
        node = producer(value)
        graph, own = home(node), {producer(v) for v in nodes}
        for read in list(value.uses()):
            if read.node not in own:
                read.node.replace_input_with(read.idx, new)
        if value.is_graph_output():
            for n, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[n] = new
            new.shape, name = value.shape, value.name
            value.name, new.name = self.name(f"{name}_raw"), name
        new.type = value.type or new.type
        graph.insert_after(node, [producer(v) for v in nodes])

    def add_state(
        self,
        past: ir.Value,
        present: ir.Value,
        node: ir.Node,
        kind: str,
        initial: Array | None,
        dims: Sequence[Dim] | None = None,
    ) -> None:
        """Add a state to the metadata."""
        dtype = past.dtype or ir.DataType.FLOAT
        if dims is None:
            dims = [d if isinstance(d, int) else d.value or "" for d in past.shape or ()]
        self.states.append(
            State(
                past.name or "",
                present.name or "",
                node_ref(node, "").name,
                kind,
                tuple(dims),
                dtype.numpy().name,
                initial_of(initial),
            )
        )

    def name(self, text: str) -> str:
        """Return an unused plain name like `text`."""
        return self._names.unique(plain(text), first=2)

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
        """Return the output of an Identity at the end of a graph."""
        (output,) = self.node("Identity", [value])
        node = output.producer()
        assert node is not None
        output.name, output.type = self.name(f"{value.name}_copy"), value.type
        graph.append(node)
        return output

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        graph: ir.Graph | None = None,
        **attributes: int | Sequence[int] | ir.Value,
    ) -> Sequence[ir.Value]:
        """Return the outputs of a new node, which is in no graph yet. Attributes that the operator takes as inputs
        at this opset become constants of `graph`, or of the main graph; or are a value."""
        if not onnx.defs.has(op_type, self.opset):
            raise UnsupportedError(
                f"a stream of this model needs {op_type}, which opset {self.opset} lacks",
                hint="convert the model to a newer opset first: onnx.version_converter",
            )
        owner = self.model.graph if graph is None else graph
        given, kept = placed(op_type, self.opset, inputs, attributes, self._constant_of(owner))
        held = [ir.convenience.convert_attribute(name, value) for name, value in kept.items()]
        name = self.name(f"stream_{op_type}")
        node = ir.Node("", op_type, given, held, name=name)
        node.outputs[0].name = self.name(f"{name}_out")
        return node.outputs

    def _constant_of(self, graph: ir.Graph) -> Callable[[Sequence[int] | ir.Value], ir.Value]:
        return lambda held: held if isinstance(held, ir.Value) else self.integers(held, graph)

    def constant(self, array: Array, graph: ir.Graph) -> ir.Value:
        """Return a constant of a graph."""
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

    def at_start(self, nodes: Sequence[ir.Node]) -> None:
        """Insert nodes at the start of the main graph, after nodes inserted earlier."""
        graph = self.model.graph
        if self._start is None:
            graph.insert_before(graph[0], nodes)
        else:
            graph.insert_after(self._start, nodes)
        self._start = nodes[-1]

    def again(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """Return the output of a copy of a node with `value` as first input; the copy is in no graph yet."""
        name = self.name(f"stream_{node.op_type}")
        other = ir.Node("", node.op_type, [value, *node.inputs[1:]], list(node.attributes.values()), name=name)
        other.outputs[0].name = self.name(f"{name}_out")
        return other.outputs[0]

    def integers(self, numbers: Sequence[int], graph: ir.Graph) -> ir.Value:
        return self.constant(np.array(numbers, np.int64), graph)

    def counts(self, numbers: Sequence[int], graph: ir.Graph | None = None) -> ir.Value:
        """Return numbers of frames as a constant of a graph, or of the main graph."""
        return self.constant(np.array(numbers, self.count_type.numpy()), graph or self.model.graph)

    def sliced(
        self,
        value: ir.Value,
        graph: ir.Graph,
        axes: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int] = (),
    ) -> ir.Value:
        """Return the output of a Slice that is in no graph yet."""
        bounds = {"starts": starts, "ends": ends, "axes": axes} | ({"steps": steps} if set(steps) - {1} else {})
        return self.node("Slice", [value], graph, **bounds)[0]


def keep_where_empty(editor: Editor, node: ir.Node, output: ir.Value, past: ir.Value) -> ir.Value:
    """Keep the past state in rows of length 0, for all readers of the final state, and return the result."""
    graph, lengths = home(node), node.inputs[4]
    assert lengths is not None
    batch_first = node.attributes.get_int("layout", 0) == 1
    axes = [1, 2] if batch_first else [0, 2]
    (empty,) = editor.node("Equal", [lengths, editor.constant(np.zeros(1, np.int32), graph)])
    (mask,) = editor.node("Unsqueeze", [empty], graph, axes=axes)
    (kept,) = editor.node("Where", [mask, past, output])
    kept.type = past.type
    editor.put_behind(output, kept, [empty, mask, kept])
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
        before: Nodes and initializers unused before the edit. They stay, with all their inputs.
    """
    for item in unused(model, (item for item in before if isinstance(item, ir.Node))) - before:
        if isinstance(item, ir.Value):
            if item.graph is not None:
                item.graph.initializers.pop(item.name or "")
            continue
        for n in range(len(item.inputs)):
            item.replace_input_with(n, None)
        if not any(v.is_graph_output() for v in item.outputs):  # else it ends a body of a node that is removed
            home(item).remove(item)


def home(node: ir.Node) -> ir.Graph:
    """Return the graph of a node."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


def producer(value: ir.Value) -> ir.Node:
    """Return the node that computes a value."""
    node = value.producer()
    assert node is not None
    return node
