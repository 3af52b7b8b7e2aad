"""Loops and Scans as exporters write them, and stranger ones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from graphs import value
from onnx import helper

from fuzz.nets.net import FAR, Net

SIZE = 2
"""The features of a row."""


@dataclass
class State:
    """A state of a loop.

    Attributes:
        kind: "row" of [SIZE], "count", "const" for one that never changes, "grown", "written", "list" or "flag".
        first: Its initial value, outside.
        name: In the body.
        new: What the body returns.
        step: Of a counter.
    """

    kind: str
    first: str
    name: str
    new: str = ""
    step: int = 1


@dataclass
class Outside:
    """The graph around loops.

    Attributes:
        net: The graph.
        rows: Values of [T, SIZE]; others are of [SIZE].
        frames: The size of T: a number or a name.
    """

    net: Net
    frames: int | str
    rows: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    number: int = 0

    def fresh(self, name: str) -> str:
        self.number += 1
        return f"{name}{self.number}"


def loops(rng: random.Random, opset: int, dtype: str, frames: int | str) -> tuple[Outside, onnx.ModelProto]:
    """Make a model of one to three loops in a row, with what exporters put between them."""
    net = Net(rng, opset, dtype)
    o = Outside(net, frames)
    o.rows.append(net.floating("x", [frames, SIZE]))
    o.vectors.append(net.floating("a", [SIZE]))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        if opset >= 9 and rng.random() < 0.3:
            scan(o)
        else:
            loop(o)
        if rng.random() < 0.3:
            between(o)
    chosen = [name for name in o.made[:-1] if rng.random() < 0.7] + o.made[-1:]
    for name in dict.fromkeys(chosen):
        net.outputs_of(name, dtype=_type_of(net, name))
    return o, net.whole()


def _type_of(net: Net, name: str) -> Any:
    return np.dtype(np.int64) if name.startswith("int64_") else np.dtype(np.int32) if "int32_" in name else None


def between(o: Outside) -> None:
    """Rows become other rows, or a vector."""
    g, rng = o.net, o.net.rng
    if rng.random() < 0.5 and o.rows:
        name = g.node(rng.choice(("Tanh", "Neg", "Sigmoid")), rng.choice(o.rows))
        o.rows.append(name)
    else:
        name = g.node("Tanh", g.node("MatMul", rng.choice(o.vectors), g.weights(SIZE, SIZE)))
        o.vectors.append(name)
    o.made.append(name)


def scan(o: Outside) -> None:
    """A Scan of rows, forwards or backwards, with up to two states."""
    g, rng, tag = o.net, o.net.rng, o.fresh("s")
    body = Net(rng, g.opset, g.dtype, f"{tag}_")
    states = [_state(o, body, f"{tag}_h{n}", "row") for n in range(rng.choice((0, 1, 1, 2)))]
    taken = [rng.choice(o.rows) for _ in range(rng.choice((1, 1, 2)))]
    rows = [body.floating(f"{tag}_x{n}", [SIZE]) for n in range(len(taken))]
    values = [*rows, *(state.name for state in states)]
    _steps(o, body, values, len(rows) + rng.randint(1, 3), tag)
    stacked = _returned(o, body, states, values, tag, at_least=0 if states else 1)
    for output in [*(state.new for state in states), *stacked]:
        body.output(output, [SIZE], body.floats)
    more: dict[str, Any] = {"num_scan_inputs": len(taken)}
    if rng.random() < 0.3:
        more["scan_input_directions"] = [rng.choice((0, 1)) for _ in taken]
    if stacked and rng.random() < 0.2:
        more["scan_output_directions"] = [rng.choice((0, 1)) for _ in stacked]
    given = list(taken)
    if rng.random() < 0.2:
        given = [g.turned(name, 1, 0) for name in taken]
        more["scan_input_axes"] = [1 for _ in taken]
    graph = helper.make_graph(body.nodes, "body", body.inputs, body.outputs, body.tensors)
    names = g.several(
        "Scan", *(s.first for s in states), *given, outputs=len(states) + len(stacked), body=graph, **more
    )
    o.vectors += names[: len(states)]
    o.rows += names[len(states) :]
    o.made += names


def loop(o: Outside) -> None:
    """A Loop with any states, which reads rows by a counter, and ends by a count, a condition or both."""
    g, rng, tag = o.net, o.net.rng, o.fresh("l")
    body = Net(rng, g.opset, g.dtype, f"{tag}_")
    i, on = body.input(f"{tag}_i", [], np.int64), body.input(f"{tag}_on", [], np.bool_)
    trips = rng.choice(("length",) * 5 + ("number", "number", "input"))
    kinds = [rng.choice(("row", "row", "count", "const")) for _ in range(rng.randint(0, 3))]
    kinds += ["row"] if g.opset < 11 and not kinds else []  # Loop of version 1 has a state
    kinds += [kind for kind, often in (("grown", 0.06), ("written", 0.06), ("list", 0.06)) if rng.random() < often]
    states = [_state(o, body, f"{tag}_v{n}", kind) for n, kind in enumerate(kinds) if _known(g, kind, trips)]
    values = [state.name for state in states if state.kind == "row"]
    length, rows = _length(o), rng.choice(o.rows)
    counts = [state for state in states if state.kind == "count"]
    index = _index(o, body, i, counts, length, tag) if trips == "length" else _around(o, body, i, length, tag)
    if index:
        held = next((s.name for s in states if s.kind == "const" and rng.random() < 0.6), rows)
        values.append(_row(o, body, held, index, tag))
    if not values:
        values.append(rng.choice(o.vectors))
    _steps(o, body, values, len(values) + rng.randint(1, 3), tag)
    stacked = _returned(o, body, states, values, tag, at_least=1 if not any(s.kind == "row" for s in states) else 0)
    for state in states:
        _changed(o, body, state, values[-1], i, tag)
    if rng.random() < 0.15:
        stacked.append(body.node("Identity", i, name=f"int64_{tag}"))
    condition = _condition(o, body, i, on, counts, length, tag)
    outputs = [condition, *(state.new for state in states), *stacked]
    body.output(condition, [], np.bool_)
    for state in states:
        body.outputs.append(_info(o, state, state.new))
    for name in stacked:
        integer = name.startswith("int64_")
        shape: Any = [] if integer else [SIZE] if rng.random() < 0.7 else None
        body.output(name, shape, np.int64 if integer else body.floats)
    trips, first = _trips(o, trips, length)
    graph = helper.make_graph(body.nodes, "body", body.inputs, body.outputs, body.tensors)
    names = [o.fresh(_prefix(state) + "fin") for state in states]
    names += [o.fresh(("int64_" if name.startswith("int64_") else "") + "stack") for name in stacked]
    assert len(outputs) == len(names) + 1
    g.several("Loop", trips, first, *(s.first for s in states), outputs=names, name=o.fresh("loop"), body=graph)
    for state, name in zip(states, names, strict=False):
        _after(o, state, name)
    for name in names[len(states) :]:
        o.made.append(name)
        if not name.startswith("int64_"):
            o.made.append(g.node("Neg", name, name=o.fresh("negated")))


def _prefix(state: State) -> str:
    return f"{state.first.split('_')[0]}_" if state.kind == "count" and "int" in state.first else ""


def _known(g: Net, kind: str, trips: str) -> bool:
    """Whether an opset has a kind of state; onnxruntime does not join an empty list."""
    since = {"list": 13, "written": 11}
    return g.opset >= since.get(kind, 1) and (kind != "list" or trips == "length")


def _state(o: Outside, body: Net, name: str, kind: str) -> State:
    """Make a state with its initial value, and an input of the body."""
    g, rng = o.net, o.net.rng
    if kind == "count":
        dtype = rng.choice((np.int64, np.int64, np.int32))
        start, step = rng.choice(((0, 1), (0, 1), (1, 1), (5, -1), (0, 2)))
        first = g.constant(start, dtype, name=f"{np.dtype(dtype).name}_{name}")
        body.input(name, [], dtype)
        return State(kind, first, name, step=step)
    if kind == "const":
        first = rng.choice(o.rows)
        body.input(name, None if rng.random() < 0.3 else [o.frames, SIZE], body.floats)
        return State(kind, first, name)
    if kind in ("grown", "written"):
        shape = [1, SIZE] if kind == "grown" else [12, SIZE]
        first = g.constant(np.full(shape, 0.25))
        body.input(name, None if kind == "grown" else shape, body.floats)
        return State(kind, first, name)
    if kind == "list":
        first = g.node("SequenceEmpty", name=o.fresh("empty"), dtype=g.kind)
        body.inputs.append(helper.make_tensor_sequence_value_info(name, g.kind, None))
        return State(kind, first, name)
    first = rng.choice([*o.vectors, g.constant(np.zeros(SIZE)), g.constant(g.numbers(SIZE))])
    body.input(name, rng.choice(([SIZE], [SIZE], None)), body.floats)
    return State(kind, first, name)


def _info(o: Outside, state: State, name: str) -> onnx.ValueInfoProto:
    if state.kind == "list":
        return helper.make_tensor_sequence_value_info(name, o.net.kind, None)
    if state.kind == "count":
        return value(name, [], np.int64 if state.first.startswith("int64") else np.int32)
    shape: Any = [SIZE] if state.kind == "row" and o.net.rng.random() < 0.7 else None
    return value(name, shape, o.net.floats)


def _length(o: Outside) -> str:
    """The number of rows, a scalar."""
    g = o.net
    return g.node("Gather", g.node("Shape", "x"), np.array(0), axis=0, name=o.fresh("length"))


def _index(o: Outside, body: Net, i: str, counts: list[State], length: str, tag: str) -> str:
    """The number of the row that a step reads."""
    rng, kind = o.net.rng, o.net.rng.choice(("i", "i", "i", "back", "count", "none", "next"))
    if kind == "count":
        fit = [state for state in counts if state.step == 1 and o.net.tensors]
        return fit[0].name if fit else i
    if kind == "back":
        last = body.node("Sub", length, np.array(1), name=f"{tag}_last")
        return body.node("Sub", last, i, name=f"{tag}_back")
    if kind == "next" and isinstance(o.frames, int):
        return body.node("Mod", i, np.array(o.frames), name=f"{tag}_mod") if o.net.opset >= 10 else i
    return "" if kind == "none" and rng.random() < 0.5 else i


def _around(o: Outside, body: Net, i: str, length: str, tag: str) -> str:
    """The number of a row that exists in each of many steps."""
    return body.node("Mod", i, length, name=f"{tag}_mod") if o.net.opset >= 10 else ""


def _row(o: Outside, body: Net, rows: str, index: str, tag: str) -> str:
    """A row, as exporters take it."""
    kind = o.net.rng.choice(("Gather", "Gather", "Slice", "everything", "vector"))
    if kind == "Slice" and o.net.opset >= 10 and index == f"{tag}_i":
        start = body.unsqueeze(index, 0)
        end = body.node("Add", start, [1], name=f"{tag}_end")
        return body.squeeze(body.node("Slice", rows, start, end, [0], name=f"{tag}_cut"), 0)
    if kind == "everything" and o.net.opset >= 10:
        rows = body.node("Slice", rows, [0], [FAR], [0], name=f"{tag}_all")
    if kind == "vector":
        found = body.node("Gather", rows, body.unsqueeze(index, 0), axis=0, name=f"{tag}_rows")
        return body.squeeze(found, 0)
    return body.node("Gather", rows, index, axis=0, name=f"{tag}_row")


def _steps(o: Outside, body: Net, values: list[str], count: int, tag: str) -> None:
    """Calculate with rows and states until there are so many values."""
    g, rng = o.net, o.net.rng
    while len(values) < count:
        name, a, b = f"{tag}_m{len(values)}", values[-1], rng.choice(values)
        kind = rng.choice(("mix", "mix", "add", "mul", "tanh", "outer", "branch", "cell", "where", "nested"))
        holder = body if rng.random() < 0.5 else g  # weights inside, or captured
        if kind == "mix":
            weighed = body.node("MatMul", a, holder.weights(SIZE, SIZE) if holder is g else _inner(body, tag))
            values.append(body.node("Tanh", body.node("Add", weighed, b, name=f"{name}_s"), name=name))
        elif kind in ("add", "mul"):
            made = body.node(kind.title(), a, b, name=f"{name}_p")
            values.append(body.node("Tanh", made, name=name))
        elif kind == "outer":
            values.append(
                body.node("Add", body.node("Tanh", a, name=f"{name}_t"), rng.choice(o.vectors), name=name)
            )
        elif kind == "branch":
            values.append(_branch(o, body, a, b, name))
        elif kind == "cell" and g.opset >= 7 and g.dtype == "float32":
            values.append(_cell(o, body, a, name))
        elif kind == "where" and g.opset >= 9:
            low = body.node("Less", a, b, name=f"{name}_l")
            values.append(body.node("Where", low, a, body.node("Neg", b, name=f"{name}_n"), name=name))
        elif kind == "nested" and rng.random() < 0.4:
            values.append(_nested(o, body, a, b, name))
        else:
            values.append(body.node("Tanh", a, name=name))


def _inner(body: Net, tag: str) -> str:
    """A weight in the body: an initializer or a Constant."""
    array = body.numbers(SIZE, SIZE)
    if body.rng.random() < 0.5:
        return body.constant(array, name=f"{tag}_w{len(body.tensors)}")
    return body.node("Constant", name=f"{tag}_k{len(body.nodes)}", value=onnx.numpy_helper.from_array(array))


def _branch(o: Outside, body: Net, a: str, b: str, name: str) -> str:
    """An If on data."""
    total = body.reduced("Sum", a, 0, keepdims=0)
    condition = body.node("Less", total, np.array(0.1), name=f"{name}_c")
    shape: Any = [SIZE] if o.net.rng.random() < 0.7 else None
    branches = {}
    for branch, op_type in (("then_branch", "Add"), ("else_branch", "Sub")):
        out = f"{name}_{branch}"
        node = helper.make_node(op_type, [a, b], [f"{out}_p"])
        last = helper.make_node("Tanh", [f"{out}_p"], [out])
        branches[branch] = helper.make_graph([node, last], branch, [], [value(out, shape, body.floats)])
    return body.node("If", condition, name=name, **branches)


def _cell(o: Outside, body: Net, a: str, name: str) -> str:
    """A recurrent node in the step."""
    op_type = o.net.rng.choice(("GRU", "LSTM", "RNN"))
    row = body.unsqueeze(a, 0, 1)
    weights = o.net.recurrent(op_type, SIZE, SIZE)
    y = body.node(op_type, row, *weights, name=f"{name}_{op_type}", hidden_size=SIZE)
    return body.node("Squeeze", y, [0, 1, 2], name=name) if o.net.opset >= 13 else _flat(body, y, name)


def _flat(body: Net, y: str, name: str) -> str:
    return body.node("Squeeze", y, name=name, axes=[0, 1, 2])


def _nested(o: Outside, body: Net, a: str, b: str, name: str) -> str:
    """A Loop of three steps in the step."""
    inner = Net(o.net.rng, o.net.opset, o.net.dtype, f"{name}_")
    inner.input(f"{name}_j", [], np.int64)
    on = inner.input(f"{name}_jon", [], np.bool_)
    state = inner.floating(f"{name}_js", [SIZE])
    added = inner.node("Add", inner.node("Tanh", state, name=f"{name}_jt"), b, name=f"{name}_ja")
    still = inner.node("Identity", on, name=f"{name}_jstill")
    inner.output(still, [], np.bool_)
    inner.output(added, [SIZE], inner.floats)
    graph = helper.make_graph(inner.nodes, "inner", inner.inputs, inner.outputs, inner.tensors)
    trips, yes = o.net.constant(np.array(3)), o.net.constant(np.array(True))
    made = body.node("Loop", trips, yes, a, name=f"{name}_loop", body=graph)
    return body.node("Tanh", made, name=name)


def _returned(
    o: Outside, body: Net, states: Sequence[State], values: list[str], tag: str, at_least: int
) -> list[str]:
    """Choose the new rows of states, and the stacked outputs."""
    rng = o.net.rng
    rows = [state for state in states if state.kind == "row"]
    for n, state in enumerate(rows):
        kind = rng.choice(("last", "last", "any", "swap"))
        source = values[-1] if kind == "last" else rng.choice(values) if kind == "any" else rows[n - 1].name
        state.new = body.node("Identity", source, name=f"{tag}_new{n}")
    count = max(at_least, rng.choice((0, 1, 1, 2)))
    return [body.node("Identity", rng.choice(values), name=f"{tag}_out{n}") for n in range(count)]


def _changed(o: Outside, body: Net, state: State, row: str, i: str, tag: str) -> None:
    """What the body returns for a state that is no row."""
    name = f"{state.name}_new"
    if state.kind == "count":
        dtype = np.int64 if state.first.startswith("int64") else np.int32
        step = body.constant(state.step, dtype, name=f"{name}_step")
        state.new = body.node("Add", state.name, step, name=name)
    elif state.kind == "const":
        state.new = body.node("Identity", state.name, name=name)
    elif state.kind == "grown":
        state.new = body.node("Concat", state.name, body.unsqueeze(row, 0), axis=0, name=name)
    elif state.kind == "written":
        place = body.unsqueeze(i, 0, 1)
        state.new = body.node("ScatterND", state.name, place, body.unsqueeze(row, 0), name=name)
    elif state.kind == "list":
        state.new = body.node("SequenceInsert", state.name, row, name=name)


def _condition(o: Outside, body: Net, i: str, on: str, counts: list[State], length: str, tag: str) -> str:
    """What decides whether there is another step: nothing, a number of steps, or a counter."""
    g, rng = o.net, o.net.rng
    kind = rng.choice(("on", "on", "true", "steps", "count", "both"))
    name = f"{tag}_go"
    if kind == "true":
        return body.node("Identity", _outer_true(o), name=name)
    if kind == "steps" and g.opset >= 9:
        bound = rng.choice((length, g.constant(np.array(rng.choice((2, 3, 6))))))
        return body.node("Less", i, bound, name=name)
    if kind in ("count", "both") and counts and g.opset >= 9:
        state = counts[0]
        dtype = np.int64 if state.first.startswith("int64") else np.int32
        bound = body.constant(4 if state.step > 0 else 1, dtype, name=f"{name}_b")
        low, high = (state.new, bound) if state.step > 0 else (bound, state.new)
        less = body.node("Less", low, high, name=f"{name}_c" if kind == "both" else name)
        return body.node("And", less, on, name=name) if kind == "both" else less
    return body.node("Identity", on, name=name)


def _outer_true(o: Outside) -> str:
    return o.net.constant(np.array(True))


def _trips(o: Outside, kind: str, length: str) -> tuple[str, str]:
    """The number of steps, and the first condition."""
    g, rng, trips = o.net, o.net.rng, length
    if kind == "number":
        trips = g.constant(np.array(rng.choice((0, 1, 3, 5))), name=o.fresh("trips"))
    elif kind == "input" and not any(v.name == "M" for v in g.inputs):
        trips = g.input("M", [], np.int64)
    first = g.constant(np.array(rng.random() < 0.95), name=o.fresh("first"))
    if rng.random() < 0.2 and g.opset >= 9:
        first = g.node("Less", np.array(0), length, name=o.fresh("first"))
    return trips, first


def _after(o: Outside, state: State, name: str) -> None:
    """Use what a loop returns for a state."""
    g = o.net
    if state.kind == "row":
        o.vectors.append(name)
        o.made.append(name)
    elif state.kind == "list":
        joined = g.node("ConcatFromSequence", name, name=o.fresh("joined"), axis=0, new_axis=1)
        o.made.append(joined)
    elif state.kind != "const" or g.rng.random() < 0.3:
        o.made.append(name)
