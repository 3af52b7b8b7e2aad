"""What onnxruntime 1.31.1 computes wrongly without an error, and the same model as it computes it rightly.

A body of a Loop or Scan that returns one of its own inputs or initializers, or one value twice, gives other numbers
than ONNX defines. An Identity in between mends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import count

import onnx

from rnn_lowering.verification.rounded import all_nodes

_REPEATING = ("Loop", "Scan")


def echoing_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Return the nodes whose bodies return what onnxruntime misreads: their first output -> what to call them."""
    return {
        _key(node): f"{node.op_type} node '{node.name or _key(node)}'" for node in _nodes(model) if _echoes(node)
    }


def told(nodes: Mapping[str, str]) -> str:
    """Say that `echoing_nodes` were repaired, if there are any."""
    if not nodes:
        return ""
    some = ", ".join(list(nodes.values())[:3]) + (", ..." if len(nodes) > 3 else "")
    return f"onnxruntime misreads a body that returns its own input: compared with an Identity there ({some})"


def with_identities(model: onnx.ModelProto, nodes: Collection[str]) -> onnx.ModelProto:
    """Return a model in which these nodes, by their first outputs, return Identities; itself where it has none."""
    if not any(_key(node) in nodes for node in _nodes(model) if _echoes(node)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    taken = {name for node in _nodes(copy) for name in (*node.input, *node.output)}
    names = (name for n in count() if (name := f"returned_{n}") not in taken)
    for node in _nodes(copy):
        if _key(node) in nodes:
            body = _body(node)
            misread = _misread(body)
            for value, name in zip([v for v in body.output if v.name in misread], names, strict=False):
                body.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
                value.name = name
    return copy


def _echoes(node: onnx.NodeProto) -> bool:
    return node.op_type in _REPEATING and bool(_misread(_body(node)))


def _misread(body: onnx.GraphProto) -> set[str]:
    returned = [value.name for value in body.output]
    given = {value.name for value in (*body.input, *body.initializer)}
    return {name for name in returned if name in given or returned.count(name) > 1}


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next((a.g for a in node.attribute if a.name == "body"), onnx.GraphProto())


def _key(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output), "")


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in (model.graph, *model.functions):
        yield from all_nodes(graph)
