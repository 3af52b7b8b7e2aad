"""Models of recurrent nodes whose outputs are inputs of others: states, weights, biases or lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import FORMALS, RESULTS, Arrays
from graphs import Graph, value
from onnx import TensorProto, helper, numpy_helper
from oracle import GATES, evaluate

HIDDEN = 2
SIZE = 3
"""seq_length, and the batch size where no wire needs another."""

Wires = Mapping[str, tuple[int, str]]
"""The inputs of a node that are outputs of earlier ones: (number of the node, symbol) by symbol."""


@dataclass(frozen=True)
class Member:
    """A recurrent node of a wiring."""

    op_type: str
    wires: Wires = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return GATES[self.op_type] * HIDDEN


def every_output() -> list[tuple[str, str]]:
    """Every recurrent operator with each of its outputs."""
    return [(op, output) for op in GATES for output in RESULTS[op]]


def every_input() -> list[tuple[str, str]]:
    """Every recurrent operator with each of its inputs."""
    return [(op, symbol) for op in GATES for symbol in FORMALS[op]]


class Wiring:
    """A model of recurrent nodes, what it is fed, and what its outputs are in float64.

    Args:
        members: The nodes.
        places: Where each is: "main", or in a body or function that holds it alone: "if", "loop" or "function".
    """

    def __init__(self, members: Sequence[Member], places: Sequence[str] = ()) -> None:
        self._values: Arrays = {}
        self._rng = np.random.default_rng(len(members))
        self._functions: list[onnx.FunctionProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: Arrays = {"yes": np.array(True), "once": np.array(1)}
        self.feed: Arrays = {}
        for n, (member, N) in enumerate(zip(members, _batch_sizes(members), strict=True)):
            node = self._recurrent(n, member, N)
            self._nodes.append(self._placed(node, places[n] if places else "main"))
        made = (name for node in self._nodes if not node.name.startswith("give") for name in node.output)
        self.expected = {name: self._values[name] for name in made}
        self.model = self._model()

    def _recurrent(self, n: int, member: Member, N: int) -> onnx.NodeProto:
        """Return a node after those that bring its inputs."""
        X_from = member.wires.get("X", (0, "Y"))[1]
        shapes: dict[str, tuple[int, ...]] = {
            "X": (SIZE if X_from == "Y" else 1, N, HIDDEN),
            "W": (1, member.rows, HIDDEN),
            "R": (1, member.rows, HIDDEN),
            "B": (1, 2 * member.rows),
            "sequence_lens": (N,),
            "P": (1, 3 * HIDDEN),
            **dict.fromkeys(("initial_h", "initial_c"), (1, N, HIDDEN)),
        }
        names = []
        for symbol in FORMALS[member.op_type]:
            name = f"{symbol}_{n}"
            if symbol in member.wires:
                name = self._wired("{1}_{0}".format(*member.wires[symbol]), name, shapes[symbol])
            elif symbol in ("X", "W", "R", "B", "initial_h"):
                self._values[name] = self._rng.normal(0, 0.7, shapes[symbol]).astype(np.float32)
                (self.feed if symbol == "X" else self._initializers)[name] = self._values[name]
            else:
                name = ""
            names.append(name)
        given = {s: self._values[name] for s, name in zip(FORMALS[member.op_type], names, strict=True) if name}
        results = evaluate(member.op_type, {"hidden_size": HIDDEN}, given)
        self._values |= {f"{symbol}_{n}": array for symbol, array in results.items()}
        outputs = [f"{symbol}_{n}" for symbol in RESULTS[member.op_type]]
        return helper.make_node(member.op_type, names, outputs, f"member_{n}", hidden_size=HIDDEN)

    def _wired(self, source: str, name: str, shape: tuple[int, ...]) -> str:
        """Return a value of an earlier node as an input: itself where its shape fits, else some of its numbers."""
        array = self._values[source]
        if array.shape == shape:
            return source
        taken = np.arange(np.prod(shape)).reshape(shape) % array.size
        self._initializers |= {f"{name}_taken": taken, f"{name}_flat": np.array([-1])}
        self._node("Reshape", [source, f"{name}_flat"], f"{name}_reshaped")
        brought = f"{name}_numbers" if name.startswith("sequence_lens") else name
        self._node("Gather", [f"{name}_reshaped", f"{name}_taken"], brought)
        self._values[name] = array.ravel()[taken]
        if brought != name:
            self._node("Ceil", [brought], f"{name}_ceil")
            self._node("Abs", [f"{name}_ceil"], f"{name}_abs")
            self._node("Cast", [f"{name}_abs"], name, to=TensorProto.INT32)
            self._values[name] = np.abs(np.ceil(self._values[name])).astype(np.int32)
        return name

    def _node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self._nodes.append(helper.make_node(op_type, inputs, [output], f"give_{output}", **attributes))

    def _placed(self, node: onnx.NodeProto, place: str) -> onnx.NodeProto:
        """Return a node, or one that holds it in a body or function and has the same outputs."""
        if place == "main":
            return node
        outputs, infos = list(node.output), [self._info(name) for name in node.output]
        if place == "function":
            inputs = [name for name in node.input if name]
            imports = [helper.make_opsetid("", 17)]
            self._functions.append(helper.make_function("test", f"F_{node.name}", inputs, outputs, [node], imports))
            return helper.make_node(f"F_{node.name}", inputs, outputs, domain="test")
        inner = [onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in infos]
        for k, info in enumerate(inner):
            info.name = node.output[k] = f"inner_{info.name}"
        zeros = {f"zero_{name}": np.zeros(self._values[name].shape, np.float32) for name in outputs}
        if place == "if":
            other = [numpy_helper.from_array(array, name) for name, array in zeros.items()]
            same = [helper.make_node("Identity", [name], [f"no_{name}"]) for name in zeros]
            named = [self._info(name, f"no_zero_{name}") for name in outputs]
            branches = {
                "then_branch": helper.make_graph([node], "then", [], inner),
                "else_branch": helper.make_graph(same, "else", [], named, other),
            }
            return helper.make_node("If", ["yes"], outputs, **branches)
        self._initializers |= zeros
        flags = [value(f"{s}_{node.name}", [], np.bool_) for s in ("on", "still")]
        count = value(f"count_{node.name}", [], np.int64)
        carried = [self._info(name, f"before_{name}") for name in outputs]
        go_on = helper.make_node("Identity", [flags[0].name], [flags[1].name])
        body = helper.make_graph([node, go_on], "body", [count, flags[0], *carried], [flags[1], *inner])
        return helper.make_node("Loop", ["once", "yes", *zeros], outputs, body=body)

    def _info(self, name: str, declared: str = "") -> onnx.ValueInfoProto:
        return value(declared or name, self._values[name].shape)

    def _model(self) -> onnx.ModelProto:
        tensors = [numpy_helper.from_array(array, name) for name, array in self._initializers.items()]
        inputs, outputs = ([self._info(name) for name in names] for names in (self.feed, self.expected))
        return Graph(self._nodes, tensors, inputs, outputs).model(17, ["test"], self._functions)


def _batch_sizes(members: Sequence[Member]) -> list[int]:
    """Return batch sizes at which final states have the shapes of the inputs of rank 3 that they are."""
    sizes = [SIZE] * len(members)
    for n, member in reversed(list(enumerate(members))):
        for symbol, (source, output) in member.wires.items():
            if symbol in ("W", "R"):
                sizes[source] = member.rows
            elif symbol in ("X", "initial_h", "initial_c") and output != "Y":
                sizes[source] = sizes[n]
    return sizes
