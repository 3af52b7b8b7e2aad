"""`Editor`: adds nodes, inputs and outputs to a model that is called chunk by chunk, also in branches of If.

`Ops` of emit/ builds new graphs, from operands whose types and ranks it knows. Here nodes come between those of a
finished graph, in several graphs at a time, and read values whose sizes are polynomials.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.operators import inputs_and_attributes
from rnn_lowering.facts.size import Size
from rnn_lowering.flags import set_dim
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import add_constant, all_names, constant_nodes, origin_of
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.streaming.metadata import MOST_ELEMENTS, Dim, State, initial_of
from rnn_lowering.streaming.sizes import TimeInputs
from rnn_lowering.types import Array, ArrayLike

_BRANCHES = ("then_branch", "else_branch")

_CHOSEN_AS = {
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT64: ir.DataType.INT64,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}
"""Types for which onnxruntime has no Where -> a type in which it computes the same."""


@dataclass(frozen=True)
class NodeEdit:
    """A change of a node for a stream.

    Attributes:
        node: The node.
        make: Makes the change.
        carries: Whether it adds a state.
    """

    node: ir.Node
    make: Callable[[Editor], None]
    carries: bool = False


@dataclass(frozen=True)
class _Carried:
    """What an input keeps from call to call.

    Attributes:
        node: The node whose state it is; None for the model.
        kind: As in `State`.
        dims: Its dimensions.
        grows: The axis whose size grows with each call; None if all stay.
    """

    node: ir.Node | None
    kind: str
    dims: Sequence[Dim]
    grows: int | None = None


class Editor:
    """Edits one model; names are unique in all its scopes.

    Attributes:
        known: Types and shapes of the values before the first edit.
        time: The axes of the frames.
        count_type: The integers in which frames are counted at run time.
        start: Emits nodes at the start of the main graph.
        states: The states added so far.
        made: Values that several edits share, by what they are.
    """

    def __init__(
        self, model: ir.Model, known: KnownValues, time: TimeInputs, count_type: ir.DataType = ir.DataType.INT64
    ) -> None:
        self.model = model
        self.known = known
        self.opset = known.opset
        self.time = time
        self.count_type = count_type
        self.made: dict[Hashable, ir.Value] = {}
        self._carried: dict[ir.Value, _Carried] = {}
        self.start = Emitter(self, model.graph)
        self._names = Names({*all_names(model), *(v.name or "" for v in model.graph.outputs)})
        self.states: list[State] = []
        self._positions = {value: n for n, value in enumerate(model.graph.outputs)}  # an edit may replace one
        self._paths = dict(_branch_paths(model.graph, ()))

    def own_frames(self, rate: Fraction) -> int | None:
        """Return the number of frames per call at this rate, or None if calls differ."""
        return None if self.time.frames is None else int(self.time.frames * rate)

    def dim(self, value: ir.Value, axis: int) -> Dim:
        """Return the size of an axis of a value, as a size of a state."""
        return dim_of(self.known.shapes[value][axis], axis, value.name)

    def dims(self, value: ir.Value, rows: Mapping[int, int] = MappingProxyType({})) -> list[Dim]:
        """Return the dimensions of a state like a value, but with this many rows along an axis."""
        axes = range(len(self.known.shapes[value]))
        return [rows[axis] if axis in rows else self.dim(value, axis) for axis in axes]

    def add_past(
        self, node: ir.Node | None, kind: str, dtype: ir.DataType, dims: Sequence[Dim], grows: int | None = None
    ) -> ir.Value:
        """Add an input that takes a state of a node, or of the model without one.

        Args:
            grows: The axis whose size grows with each call; None if all stay.
        """
        name = self.name(f"past_{_label_of_state(node)}_{kind}")
        open_dims = [f"{name}_frames" if axis == grows else dim for axis, dim in enumerate(dims)]
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(open_dims))
        self.model.graph.inputs.append(value)
        self._carried[value] = _Carried(node, kind, dims, grows)
        return value

    def take_past(self, node: ir.Node, kind: str, past: ir.Value, dims: Sequence[Dim]) -> None:
        """Let an input of the model take a state of a node."""
        self._carried[past] = _Carried(node, kind, dims)

    def add_present(self, past: ir.Value, inner: ir.Value, initial: ArrayLike | None = None) -> None:
        """Return `inner`, a value in the graph of the node, as the next value of the state `past`.

        Args:
            initial: What the first call receives, a number or what broadcasts to the state; None for zeros.
        """
        carried = self._carried[past]
        graph = self.model.graph if carried.node is None else home(carried.node)
        name = self.name(f"present_{_label_of_state(carried.node)}_{carried.kind}")
        present = self._add_output(name, inner, past, graph)
        if carried.grows is not None:
            dims = [None if axis == carried.grows else dim for axis, dim in enumerate(past.shape or ())]
            present.shape = ir.Shape(dims)
        self._add_state(past, present, carried, initial)

    def _add_state(self, past: ir.Value, present: ir.Value, carried: _Carried, initial: ArrayLike | None) -> None:
        """Add a state to the metadata."""
        node, shape = carried.node, tuple(carried.dims)
        least = math.prod(d for d in shape if isinstance(d, int))
        if least > MOST_ELEMENTS:
            raise UnsupportedError(
                f"its state '{past.name}' would have {least} numbers, over the limit of {MOST_ELEMENTS}",
                hint="use a shorter padding, cut or dilation over time",
                node=None if node is None else self.ref(node),
            )
        dtype = (past.dtype or ir.DataType.FLOAT).numpy().name
        names = past.name or "", present.name or "", "" if node is None else node_ref(node, "").name
        first = None if initial is None else np.reshape(initial, np.shape(initial) or (1,) * len(shape))
        self.states.append(State(*names, carried.kind, shape, dtype, initial_of(first), carried.grows))

    def add_pair(
        self, node: ir.Node, kind: str, past: ir.Value, output: ir.Value, dims: Sequence[Dim], initial: Array | None
    ) -> None:
        """Add a state that the model has already: `output` returns the next value of `past`. Nodes may share it."""
        for n, state in enumerate(self.states):
            if state.input == past.name:
                nodes = dict.fromkeys([*state.node.split(", "), node_ref(node, "").name])
                self.states[n] = replace(state, node=", ".join(nodes))
                return
        present = self.model.graph.outputs[self._positions[output]]
        self._add_state(past, present, _Carried(node, kind, dims), initial)

    def once(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """Return the value that several edits share, made at the first time."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def ref(self, node: ir.Node) -> NodeRef:
        """Return a node for an error."""
        scope = "main graph" if home(node) is self.model.graph else f"branch '{home(node).name}'"
        return origin_of(node, scope)

    def name(self, text: str) -> str:
        """Return an unused plain name like `text`."""
        return self._names.unique(_plain(text), first=2)

    def _add_output(self, name: str, inner: ir.Value, past: ir.Value, graph: ir.Graph) -> ir.Value:
        """Make `inner`, a value of a graph, an output of the model; other branches return `past`."""
        value = inner
        for node, branch in reversed(self._paths[graph]):
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
        node = self.node("Identity", [value], graph)
        (output,) = node.outputs
        output.name, output.type = self.name(f"{value.name}_copy"), value.type
        graph.append(node)
        return output

    def before(self, node: ir.Node) -> Emitter:
        """Return an emitter of nodes before a node."""
        return Emitter(self, home(node), before=node)

    def after(self, node: ir.Node) -> Emitter:
        """Return an emitter of nodes after a node."""
        return Emitter(self, home(node), after=node)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        graph: ir.Graph,
        **attributes: int | Sequence[int] | ir.Value,
    ) -> ir.Node:
        """Return a new node, which is in no graph yet; its constants are put into `graph`."""
        if not onnx.defs.has(op_type, self.opset):
            raise UnsupportedError(
                f"a stream of this model needs {op_type}, which opset {self.opset} lacks",
                hint="convert the model to a newer opset first: onnx.version_converter",
            )

        def constant(numbers: Sequence[int] | ir.Value) -> ir.Value:
            return numbers if isinstance(numbers, ir.Value) else self.constant(np.array(numbers, np.int64), graph)

        all_inputs, rest = inputs_and_attributes(op_type, self.opset, inputs, attributes, constant)
        return self._new(op_type, all_inputs, [ir.convenience.convert_attribute(*each) for each in rest.items()])

    def again(self, node: ir.Node, value: ir.Value) -> ir.Node:
        """Return a copy of a node with `value` as first input; it is in no graph yet."""
        return self._new(node.op_type, [value, *node.inputs[1:]], list(node.attributes.values()))

    def _new(self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr]) -> ir.Node:
        name = self.name(f"stream_{op_type}")
        node = ir.Node("", op_type, inputs, attributes, name=name)
        node.outputs[0].name = self.name(f"{name}_out")
        return node

    def constant(self, array: Array, graph: ir.Graph) -> ir.Value:
        """Return a constant of a graph."""
        name = self.name("stream_constant")
        tensor = ir.Tensor(array, name=name)
        if self.model.ir_version >= 4:
            return add_constant(graph, name, tensor)
        *floats, last = nodes = constant_nodes(tensor, self.opset)
        for node in floats:
            node.name = node.outputs[0].name = self.name(f"{name}_float")
        last.name = last.outputs[0].name = name
        graph.insert_before(graph[0], nodes)
        return last.outputs[0]

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

    def replace_node(self, node: ir.Node, new: ir.Value) -> None:
        """Let the readers of a node read another value of its graph, and remove the node."""
        graph = home(node)
        self.replace(node.outputs[0], new, graph)
        graph.remove(node, safe=True)

    def replace_by_input(self, node: ir.Node, slot: int = 0) -> None:
        """Let the readers of a node read its input."""
        self.replace_node(node, input_of(node, slot))


class Emitter:
    """Emits nodes at one place of a graph, in order.

    Args:
        editor: The editor, which names the nodes.
        graph: The graph.
        before: The node before which they come.
        after: The node after which they come. Without either they come at the start of the graph.

    Attributes:
        nodes: The nodes emitted so far.
    """

    def __init__(
        self, editor: Editor, graph: ir.Graph, before: ir.Node | None = None, after: ir.Node | None = None
    ) -> None:
        self.editor, self.graph = editor, graph
        self._before, self._after = before, after
        self.nodes: list[ir.Node] = []

    def __call__(self, op_type: str, *inputs: ir.Value, **attributes: int | Sequence[int] | ir.Value) -> ir.Value:
        """Emit a node and return its output. Attributes that the operator takes as inputs at this opset become
        constants of the graph, or are values already."""
        return self.put(self.editor.node(op_type, inputs, self.graph, **attributes))

    def put(self, node: ir.Node) -> ir.Value:
        """Insert a node and return its first output."""
        last = self.nodes[-1] if self.nodes and self._before is None else self._after
        if last is not None:
            self.graph.insert_after(last, [node])
        elif self._before is not None or len(self.graph):
            self.graph.insert_before(self._before or self.graph[0], [node])
        else:
            self.graph.append(node)
        self.nodes.append(node)
        return node.outputs[0]

    def chosen(self, condition: ir.Value, one: ir.Value, other: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return `one` where a condition is true, else `other`. onnxruntime has no Where of some types."""
        if dtype == ir.DataType.BOOL:
            return self("Or", self("And", condition, one), self("And", self("Not", condition), other))
        wider = _CHOSEN_AS.get(dtype)
        if wider is None:
            return self("Where", condition, one, other)
        one, other = (self("Cast", value, to=int(wider)) for value in (one, other))
        return self("Cast", self("Where", condition, one, other), to=int(dtype))

    def clipped(self, numbers: ir.Value, most: ir.Value) -> ir.Value:
        """Clip numbers of frames to 0 and a maximum."""
        zero = self.counts([0])
        numbers = self("Where", self("Less", numbers, zero), zero, numbers)
        return self("Where", self("Less", most, numbers), most, numbers)

    def constant(self, numbers: ArrayLike, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        return self.editor.constant(np.asarray(numbers, dtype.numpy()), self.graph)

    def counts(self, numbers: Sequence[int]) -> ir.Value:
        """Return numbers of frames as a constant."""
        return self.constant(numbers, self.editor.count_type)

    def indices(self, number: ir.Value) -> ir.Value:
        """Return the indices from 0 up to a number of frames."""
        first, step = (self.constant(n, self.editor.count_type) for n in (0, 1))
        return self("Range", first, self("Squeeze", number, axes=[0]), step)

    def size_of(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis as an int64 [1]."""
        return self("Gather", self("Shape", value), self.constant([axis]), axis=0)

    def along(self, values: ir.Value, axis: int, rank: int) -> ir.Value:
        """Return values of rank 1 along one of so many axes."""
        return self("Reshape", values, self.constant([-1 if n == axis else 1 for n in range(rank)]))

    def as_counts(self, numbers: ir.Value) -> ir.Value:
        """Return numbers of frames, computed as int64, in the type in which frames are counted."""
        dtype = self.editor.count_type
        return numbers if dtype == ir.DataType.INT64 else self("Cast", numbers, to=int(dtype))

    def sliced(
        self,
        value: ir.Value,
        axes: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int] = (),
    ) -> ir.Value:
        bounds = {"starts": starts, "ends": ends, "axes": axes} | ({"steps": steps} if set(steps) - {1} else {})
        return self("Slice", value, **bounds)

    def instead_of(self, value: ir.Value, new: ir.Value) -> None:
        """Redirect the readers of `value`, other than the emitted nodes, to `new`, which these compute from it."""
        for read in list(value.uses()):
            if read.node not in self.nodes:
                read.node.replace_input_with(read.idx, new)
        if value.is_graph_output():
            for n, output in enumerate(self.graph.outputs):
                if output is value:
                    self.graph.outputs[n] = new
            new.shape, name = value.shape, value.name
            value.name, new.name = self.editor.name(f"{name}_raw"), name
        new.type = value.type or new.type


def dim_of(dim: Size, axis: int, name: str | None) -> Dim:
    """Return the size of an axis of a state: a number, the name of an open axis, or "2*name".

    Raises:
        UnsupportedError: The size has another form.
    """
    if dim.constant is not None:
        return int(dim.constant)
    names = [symbol for symbol in dim.symbols if isinstance(symbol, str)]
    times = dim.coefficient(*names)
    if len(names) == 1 and dim == Size.symbol(names[0]) * times and times.denominator == 1:
        return names[0] if times == 1 else f"{times}*{names[0]}"
    if any(isinstance(symbol, int) for symbol in dim.symbols):
        raise UnsupportedError(
            f"the size of axis {axis} of '{name}' is not known: a state cannot have that size",
            hint="fix the sizes of the inputs: --set-dim, --set-shape; axes of equal sizes need the same name",
        )
    options = " or ".join(map(set_dim, sorted(names)))
    raise UnsupportedError(
        f"axis {axis} of '{name}' has {dim} elements: a state cannot have that size",
        hint=f"fix a size: {options}" if names else "",
    )


def _branch_paths(
    graph: ir.Graph, path: tuple[tuple[ir.Node, str], ...]
) -> Iterator[tuple[ir.Graph, tuple[tuple[ir.Node, str], ...]]]:
    """Yield a graph and the branches in it, each with the If nodes around it and their branches."""
    yield graph, path
    for node in graph:
        if node.op_type == "If" and node.domain == "":
            for name in _BRANCHES:
                yield from _branch_paths(node.attributes[name].as_graph(), (*path, (node, name)))


def _label_of_state(node: ir.Node | None) -> str:
    return "frames" if node is None else _plain(label_of(node))


def _plain(text: str) -> str:
    """Return a name of letters, digits and underscores only."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "unnamed"


def label_of(node: ir.Node) -> str:
    """Return the name of a node, or of its first output."""
    return node.name or next((v.name for v in node.outputs if v.name), "")


def remove_unused(model: ir.Model) -> None:
    """Remove the nodes and initializers on which no output of a model depends."""
    constants = [value for graph in model.graphs() for value in graph.initializers.values()]
    drop_unused([*constants, *(value for node in model.graph.all_nodes() for value in node.outputs)])


def home(node: ir.Node) -> ir.Graph:
    """Return the graph of a node."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


def input_of(node: ir.Node, slot: int = 0) -> ir.Value:
    """Return an input that a node must have."""
    value = node.inputs[slot]
    assert value is not None
    return value


def producer(value: ir.Value) -> ir.Node:
    """Return the node that computes a value."""
    node = value.producer()
    assert node is not None
    return node
