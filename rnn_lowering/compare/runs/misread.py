"""Loops and Scans that onnxruntime misreads, and their repair for a comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from itertools import count

import onnx

from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.model.scopes import REPEATING


def misread_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Return descriptions of the Loops and Scans that onnxruntime misreads, by first output."""
    misread = filter(_is_misread, nodes_of(model))
    return {_key(node): f"{node.op_type} node '{node.name or _key(node)}'" for node in misread}


def repairs_note(nodes: Mapping[str, str]) -> str:
    """Return a note on the workarounds for `misread_nodes`; "" if there are none."""
    if not nodes:
        return ""
    some = ", ".join(list(nodes.values())[:3]) + (", ..." if len(nodes) > 3 else "")
    return (
        "onnxruntime misreads a body that returns its own input, or an output without a name: an "
        f"Identity or a name was added for the comparison ({some})"
    )


def with_identities(model: onnx.ModelProto, nodes: Collection[str]) -> onnx.ModelProto:
    """Return a model in which the bodies of these nodes return Identities, and all their outputs have names; the
    same model if it has none of the nodes."""
    if not any(_key(node) in nodes for node in nodes_of(model) if _is_misread(node)):
        return model
    copy = deepcopy(model)
    taken = {name for node in nodes_of(copy) for name in (*node.input, *node.output)}
    names = (name for n in count() if (name := f"returned_{n}") not in taken)
    for node in nodes_of(copy):
        if _key(node) in nodes:
            node.output[:] = [name or next(names) for name in node.output]
            body = _body(node)
            misread = _misread_outputs(body)
            for value, name in zip([v for v in body.output if v.name in misread], names, strict=False):
                body.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
                value.name = name
    return copy


def _is_misread(node: onnx.NodeProto) -> bool:
    unnamed = "" in node.output  # onnxruntime crashes when it runs such a Loop
    return node.op_type in REPEATING and (unnamed or bool(_misread_outputs(_body(node))))


def _misread_outputs(body: onnx.GraphProto) -> set[str]:
    returned = [value.name for value in body.output]
    given = {value.name for value in (*body.input, *body.initializer)}
    return {name for name in returned if name in given or returned.count(name) > 1}


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(bodies_in(node), onnx.GraphProto())


def _key(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output), "")


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in (model.graph, *model.functions):
        yield from nodes_in(graph)
