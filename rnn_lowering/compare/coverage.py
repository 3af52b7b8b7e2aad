"""What a comparison cannot show: zero weights, constant and random outputs, and branches that no run took.

The condition of each If becomes an output, also in bodies and functions. It has two numbers: how often the
condition was true, and how often it was false. A Loop or Scan returns the sums over its steps; in a branch that
does not run, both are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from rnn_lowering.facts.operators import DEFAULT_DOMAIN, operator_of
from rnn_lowering.model.protobuf import GraphMessage, bodies_in, nodes_in
from rnn_lowering.types import Array, array_of

_BRANCHES = {"then_branch": 0, "else_branch": 1}
"""The number of its condition that says how often a branch ran."""

_AXES_ARE_INPUTS = 13
"""First opset of ReduceSum with its axes as an input."""

_MOST = 1000
"""Maximum branches with a condition that is an output."""

_Function = tuple[str, str]
"""The domain and the name of a function."""

_OLDEST_OPSET = 9
"""The first opset whose Scan has no batch axis."""


def zero_weights(weights: Iterable[tuple[str, object, ir.TensorProtocol | None]]) -> list[str]:
    """Return a note for each weight that is all zeros.

    Args:
        weights: The symbol of each, its node, and its tensor; None if it is not constant.
    """
    return [
        f"{symbol} of {node} is all zeros, which hides errors in what it multiplies"
        for symbol, node, tensor in weights
        if tensor is not None and tensor.size and not array_of(tensor).any()
    ]


def constant_outputs(runs: Iterable[Mapping[str, Array]]) -> list[str]:
    """Return a note for each output that is constant over all runs.

    Args:
        runs: The outputs of each run by name.
    """
    ranges: dict[str, tuple[float, float]] = {}
    sizes: dict[str, int] = {}
    for run in runs:
        for name, array in run.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            low, high = ranges.get(name, (float("nan"), float("nan")))
            bounds = np.array([low, high, float(np.fmin.reduce(array, None)), float(np.fmax.reduce(array, None))])
            ranges[name] = float(np.fmin.reduce(bounds)), float(np.fmax.reduce(bounds))
            sizes[name] = sizes.get(name, 0) + array.size
    return [
        f"output '{name}' is {low:g} throughout: comparing it proves little"
        for name, (low, high) in ranges.items()
        if (low == high or low != low) and sizes[name] > 1
    ]


def undetermined_outputs(model: onnx.ModelProto) -> dict[str, str]:
    """Return the outputs that depend on random numbers, with the operator that draws them."""
    drawn_by = _RandomOperators(model)
    reached: dict[str, str] = {}
    before = -1
    while len(reached) > before:  # the nodes may be in any order
        before = len(reached)
        for node in model.graph.node:
            read = (name for inner in (node, *_inner(node)) for name in inner.input)
            source = next((reached[name] for name in read if name in reached), "") or drawn_by(node)
            reached |= {name: source for name in node.output if name and source}
    return {value.name: reached[value.name] for value in model.graph.output if value.name in reached}


def _inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in the bodies of a node."""
    for body in bodies_in(node):
        yield from nodes_in(body)


class _RandomOperators:
    """Finds the operator that draws random numbers in a node, its bodies or its function; "" for none.

    Each function is searched once, even if it calls itself or is called many times.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._found: dict[tuple[str, str], str] = {}
        self._off = {
            tensor.name
            for tensor in model.graph.initializer
            if tensor.data_type == onnx.TensorProto.BOOL
            and (tensor.external_data or not numpy_helper.to_array(tensor).any())
        }

    def __call__(self, node: onnx.NodeProto) -> str:
        return next(filter(None, map(self._of_one, (node, *_inner(node)))), "")

    def _of_one(self, node: onnx.NodeProto) -> str:
        if operator_of(node).random:
            return node.op_type
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] and node.input[2] not in self._off:
            return "Dropout in training mode"
        function = node.domain, node.op_type
        if function in self._functions and function not in self._found:
            self._found[function] = ""  # until its nodes are searched
            self._found[function] = next(filter(None, map(self, self._functions[function].node)), "")
        return self._found.get(function, "")


# Branches that no run took.


class Branch(NamedTuple):
    """A branch that computes something.

    Attributes:
        text: What to call it.
        output: The output that has its condition; "" if none has.
        number: Which of the numbers of the condition counts its runs.
    """

    text: str
    output: str
    number: int


def observe(proto: onnx.ModelProto) -> tuple[Branch, ...]:
    """Add the conditions of all Ifs to the outputs of a model, in place; return the branches.

    Branches with a constant condition are left out. In a model before opset 9, a condition gets no output.
    """
    graphs: list[GraphMessage] = [proto.graph, *proto.functions]
    if not any(node.op_type == "If" for graph in graphs for node in nodes_in(graph)):
        return ()
    taken = {name for graph in graphs for node in nodes_in(graph) for name in (*node.input, *node.output)}
    names = (name for n in count() if (name := f"condition_{n}") not in taken)
    observer = _Observer(names, {(f.domain, f.name): f for f in proto.functions})
    observer.opset = _opset_of(proto)
    if observer.opset >= _OLDEST_OPSET:
        proto.graph.output.extend(map(_output, observer.outputs(proto.graph, frozenset())))
    else:
        observer.branches += (branch for node in nodes_in(proto.graph) for branch in _branches_of(node))
    return tuple(observer.branches)


def untaken_branches(branches: Sequence[Branch], runs: Iterable[Mapping[str, Array]]) -> str:
    """Return a note on the branches that perhaps no run has taken; "" if there are none.

    Args:
        branches: Those of the model, as `observe` returned them.
        runs: The outputs of each run, by name.
    """
    outputs = list(runs)
    missed = list(
        dict.fromkeys(
            branch.text
            for branch in branches
            if not any(run[branch.output][branch.number] for run in outputs if branch.output in run)
        )
    )
    if not missed:
        return ""
    return f"the runs may have missed {', '.join(missed[:3])}{', ...' if len(missed) > 3 else ''}"


class _Observer:
    """Adds outputs with these names to graphs; collects their branches."""

    def __init__(self, names: Iterator[str], functions: Mapping[_Function, onnx.FunctionProto]) -> None:
        self.names, self.functions, self.opset = names, functions, 0
        self.branches: list[Branch] = []
        self._called: dict[_Function, tuple[int, list[str], list[Branch]]] = {}

    def outputs(self, graph: GraphMessage, outer: frozenset[str]) -> list[str]:
        """Return the values of a graph that have the conditions of the Ifs in it.

        Args:
            graph: The graph, which gets nodes for them.
            outer: The constants of the graphs around it.
        """
        fixed = outer
        if isinstance(graph, onnx.GraphProto):
            fixed |= {t.name for t in graph.initializer} - {value.name for value in graph.input}
        fixed |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
        conditions = []
        for node in list(graph.node):
            if _is_if(node):
                if node.input[0] not in fixed:
                    conditions.append(self._counted(graph, node.input[0]))
                    self.branches += _branches_of(node, conditions[-1])
                conditions += self._of_branches(node, fixed)
            elif node.op_type in _RESULTS_BEFORE_ROWS and node.domain in DEFAULT_DOMAIN:
                conditions += [self._summed(graph, name) for name in self._of_body(node, fixed)]
            elif (node.domain, node.op_type) in self.functions:
                conditions += self._of_call((node.domain, node.op_type), node)
        return conditions

    def _of_branches(self, node: onnx.NodeProto, fixed: frozenset[str]) -> list[str]:
        bodies = list(bodies_in(node))
        counts = [len(body.output) for body in bodies]
        inner = [self.outputs(body, fixed) for body in bodies]
        for body, own in zip(bodies, inner, strict=True):
            for name in (name for names in inner for name in names):
                if name not in own:
                    none = helper.make_tensor("", TensorProto.FLOAT, [2], [0, 0])
                    body.node.append(helper.make_node("Constant", [], [name], value=none))
                body.output.append(_output(name))
        return self._returned(node, min(counts, default=0), [name for names in inner for name in names])

    def _of_body(self, node: onnx.NodeProto, fixed: frozenset[str]) -> list[str]:
        inner, count = list[str](), 0
        for body in bodies_in(node):
            count = len(body.output) - _RESULTS_BEFORE_ROWS[node.op_type]
            inner = self.outputs(body, fixed)
            body.output.extend(map(_output, inner))
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions") and attribute.ints:
                attribute.ints.extend([0] * len(inner))
        return self._returned(node, count, inner)

    def _of_call(self, name: _Function, node: onnx.NodeProto) -> list[str]:
        if name not in self._called:
            self._called[name] = 0, [], []  # it may call itself
            function, around, opset, self.branches = self.functions[name], self.branches, self.opset, []
            self.opset = _opset_of(function)
            count, inner = len(function.output), self.outputs(function, frozenset())
            function.output.extend(inner)
            where = f" in function '{function.name}'"
            own = [b if " in function " in b.text else b._replace(text=f"{b.text}{where}") for b in self.branches]
            self._called[name], self.branches, self.opset = (count, inner, own), around, opset
        count, inner, branches = self._called[name]
        if len(self.branches) + len(branches) > _MOST:  # calls of functions that call others multiply
            self.branches += dict.fromkeys(b._replace(output="") for b in branches)
            return []
        self.branches += branches
        return self._returned(node, count, inner)

    def _returned(self, node: onnx.NodeProto, count: int, inner: list[str]) -> list[str]:
        """Return conditions in the bodies of a node, which return `count` other values, from the node too; return
        their names outside."""
        if not inner:
            return []
        node.output.extend(next(self.names) for _ in range(count - len(node.output)))
        outside = {name: next(self.names) for name in inner}
        node.output.extend(outside.values())
        self._rename(outside)
        return [*outside.values()]

    def _rename(self, outputs: Mapping[str, str]) -> None:
        self.branches = [b._replace(output=outputs.get(b.output, b.output)) for b in self.branches]

    def _add(self, graph: GraphMessage, op_type: str, inputs: list[str], **attributes: Any) -> str:
        name = next(self.names)
        graph.node.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def _integers(self, graph: GraphMessage, number: int) -> str:
        return self._add(graph, "Constant", [], value=helper.make_tensor("", TensorProto.INT64, [1], [number]))

    def _counted(self, graph: GraphMessage, condition: str) -> str:
        """Return how often a condition is true, and how often it is false, in one step."""
        true = self._add(graph, "Reshape", [condition, self._integers(graph, 1)])
        both = [true, self._add(graph, "Not", [true])]
        floats = [self._add(graph, "Cast", [each], to=TensorProto.FLOAT) for each in both]
        return self._add(graph, "Concat", floats, axis=0)

    def _summed(self, graph: GraphMessage, name: str) -> str:
        """Return the sum of the numbers of all steps."""
        if self.opset < _AXES_ARE_INPUTS:
            total = self._add(graph, "ReduceSum", [name], axes=[0], keepdims=0)
        else:
            total = self._add(graph, "ReduceSum", [name, self._integers(graph, 0)], keepdims=0)
        self._rename({name: total})
        return total


_RESULTS_BEFORE_ROWS = {"Loop": 1, "Scan": 0}
"""By operator the number of results of its body that it does not return."""


def _output(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def _opset_of(holder: onnx.ModelProto | onnx.FunctionProto) -> int:
    return next((entry.version for entry in holder.opset_import if entry.domain in DEFAULT_DOMAIN), 0)


def _is_if(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and node.domain in DEFAULT_DOMAIN and len(node.input) == 1


def _branches_of(node: onnx.NodeProto, condition: str = "") -> Iterator[Branch]:
    """Yield the branches of an If that compute something."""
    for attribute in node.attribute if _is_if(node) else ():
        if attribute.name in _BRANCHES and any(map(_computes, attribute.g.node)):
            text = f"{attribute.name} of If node '{node.name or node.output[0]}'"
            yield Branch(text, condition, _BRANCHES[attribute.name])


def _computes(node: onnx.NodeProto) -> bool:
    return not (operator_of(node).keeps_order or node.op_type in ("Cast", "Constant"))
