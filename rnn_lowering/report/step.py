"""One step of an emitted node as a graph, in the symbols of the operator specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx
import onnx

from rnn_lowering.emit.draft import STEP, SYMBOLS, WEIGHTS

_Labels = dict[str, str]

_WEIGHTS = ("W", "R", "B", "P")
_STATES = ("H", "C")
"""Symbols of the states that a step carries, in their order."""


def step_graph(lowered: onnx.GraphProto, names: Mapping[str, str]) -> nx.DiGraph:
    """Return one step of a lowered node as a graph.

    Each vertex has a `label` and a `kind`: "operator", "value", or "port", an input or output of the step.

    Args:
        lowered: The graph of the lowered node.
        names: Name of a value -> its symbol in the operator specification, for the inputs and outputs of the node.
    """
    step = _step(lowered)
    computed = {name for node in step.nodes for name in node.output}
    symbols = {name: _in_step(s) for node in step.nodes for name, s in _symbols(node).items()}
    origins = _Origins(lowered, step.inputs, names)
    ports = {v: symbols.get(v) or names.get(v) or label for v, label in step.outputs.items()}
    graph = nx.DiGraph()
    for n, node in enumerate(step.nodes):
        input_labels = {v: origins.symbol(v) for v in node.input if v not in computed}
        weights = dict.fromkeys(s for s in (*_weights(node), *input_labels.values()) if s in _WEIGHTS)
        ports |= {v: symbol for v, symbol in input_labels.items() if symbol and symbol not in _WEIGHTS}
        graph.add_node(n, label=" ".join([node.op_type, *weights]), kind="operator")
        graph.add_edges_from((v, n) for v in node.input if v in computed or v in ports)
        graph.add_edges_from((n, v) for v in node.output)
    for v in [v for v in graph if isinstance(v, str)]:
        graph.nodes[v].update(label=ports.get(v) or symbols.get(v, ""), kind="port" if v in ports else "value")
        if not graph.nodes[v]["label"]:
            graph.add_edges_from([(before, after) for before in graph.pred[v] for after in graph.succ[v]])
            graph.remove_node(v)
    return graph.subgraph(max(nx.weakly_connected_components(graph), key=len)).copy()


@dataclass(frozen=True)
class _DrawnStep:
    """The nodes of one step, and the labels of its inputs and outputs by name."""

    nodes: list[onnx.NodeProto]
    inputs: _Labels
    outputs: _Labels


def _step(lowered: onnx.GraphProto) -> _DrawnStep:
    loops = [node for node in lowered.node if node.op_type in ("Scan", "Loop")]
    if not loops:
        return _unrolled_step(lowered)
    loop, body = max(((node, _body(node)) for node in loops), key=lambda pair: len(pair[1].node))
    inputs, outputs = ([value.name for value in values] for values in (body.input, body.output))
    if loop.op_type == "Loop":
        number, inputs, outputs, rows = inputs[:1], inputs[2:], outputs[1:], 0
    else:
        number, rows = [], next(a.i for a in loop.attribute if a.name == "num_scan_inputs")
    states = len(inputs) - rows
    input_labels = dict.fromkeys(number, "i") | dict(
        zip(inputs, (f"{s}ₜ₋₁" for s in _STATES[:states]), strict=False)
    )
    input_labels |= dict.fromkeys(inputs[states:], "XWₜ")
    output_labels = dict(zip(outputs, [*(f"{s}ₜ" for s in _STATES[:states]), "Yₜ"], strict=False))
    return _DrawnStep([node for node in body.node if node.op_type != "Constant"], input_labels, output_labels)


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    bodies: list[onnx.GraphProto] = [a.g for a in node.attribute if a.name == "body"]
    return bodies[0]


def _unrolled_step(lowered: onnx.GraphProto) -> _DrawnStep:
    """Return the last step of an unrolled node that has metadata; all nodes if there is only one step."""
    steps: dict[str, list[onnx.NodeProto]] = {}
    for node in lowered.node:
        if step := _metadata(node).get(STEP):
            steps.setdefault(step, []).append(node)
    most = max(map(len, steps.values()), default=0)
    fullest = [nodes for nodes in steps.values() if len(nodes) == most] or [list(lowered.node)]
    nodes = fullest[-1]
    inside = {node.name for node in nodes}
    used = {name for node in lowered.node if node.name not in inside for name in node.input}
    used |= {value.name for value in lowered.output}
    symbols = {name: symbol for node in nodes for name, symbol in _symbols(node).items()}
    output_labels = sorted(
        (n for node in nodes for n in node.output if n in used), key=lambda n: symbols.get(n, "")
    )
    return _DrawnStep(nodes, {}, dict(zip(output_labels, ["Hₜ", "Cₜ", *[""] * len(output_labels)], strict=False)))


class _Origins:
    """The values that the inputs of a step are computed from."""

    def __init__(self, lowered: onnx.GraphProto, input_labels: _Labels, names: Mapping[str, str]) -> None:
        self._producers = {name: node for node in lowered.node for name in node.output}
        self._known = dict(names) | input_labels

    def symbol(self, name: str) -> str:
        """Return the symbol of the value that a value is computed from; "" if it has none."""
        while True:
            producer = self._producers.get(name)
            symbol = _symbols(producer).get(name, "") if producer is not None else ""
            known = self._known.get(name) or _BEFORE.get(symbol, "")
            if known or producer is None or not producer.input:
                return known
            name = producer.input[1 if producer.op_type == "Concat" else 0]


_BEFORE = {"Ht": "Hₜ₋₁", "Ct": "Cₜ₋₁", "XW": "XWₜ"}
"""Symbol of a value that is computed before the step -> its label in the step."""


def _metadata(node: onnx.NodeProto) -> _Labels:
    return {entry.key: entry.value for entry in node.metadata_props}


def _symbols(node: onnx.NodeProto) -> _Labels:
    """Return the symbols of a node's outputs by their names."""
    return {n: s for n, s in zip(node.output, _metadata(node).get(SYMBOLS, "").split(","), strict=False) if s}


def _weights(node: onnx.NodeProto) -> list[str]:
    return _metadata(node).get(WEIGHTS, "").split(",")


def _in_step(symbol: str) -> str:
    """Return the label of a symbol such as Ht or it; "" for a symbol that has no time index."""
    return f"{symbol[0]}ₜ" if len(symbol) == 2 and symbol[1] == "t" else ""
