"""Finding outputs of a model that depend on random numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
from onnx import numpy_helper

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}


def undetermined_outputs(model: onnx.ModelProto) -> dict[str, str]:
    """Return the outputs that random numbers reach: name -> the operator that draws them."""
    bodies = {(f.domain, f.name): f for f in model.functions}
    off = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.BOOL and not _any(t)}
    reached: dict[str, str] = {}
    before = -1
    while len(reached) > before:  # until nothing more is reached: a model need not be sorted
        before = len(reached)
        for node in model.graph.node:
            source = next((reached[name] for name in _read_by(node) if name in reached), "")
            source = source or _draws(node, bodies, off)
            reached |= {name: source for name in node.output if name and source}
    return {value.name: reached[value.name] for value in model.graph.output if value.name in reached}


def _any(tensor: onnx.TensorProto) -> bool:
    return not tensor.external_data and bool(numpy_helper.to_array(tensor).any())


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its bodies read."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read_by(inner)


def _draws(node: onnx.NodeProto, bodies: dict[tuple[str, str], onnx.FunctionProto], off: Collection[str]) -> str:
    """Return the operator that draws random numbers in a node, its bodies or its function; "" for none."""
    if node.op_type in _RANDOM:
        return node.op_type
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] and node.input[2] not in off:
        return "Dropout in training mode"
    body = bodies.get((node.domain, node.op_type))
    inner = [n for attribute in node.attribute for n in attribute.g.node]
    return next(filter(None, (_draws(n, bodies, off) for n in (*inner, *(body.node if body else ())))), "")
