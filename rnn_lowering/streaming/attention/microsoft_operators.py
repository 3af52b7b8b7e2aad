"""MultiHeadAttention and Attention of com.microsoft as the nodes that they stand for, which a stream follows.

onnxruntime's optimizers write them. `unidirectional` removes later keys with the lowest number, not with
`mask_filter_value`.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.facts.parameters import TO_THE_END
from rnn_lowering.facts.schemas import DOMAIN
from rnn_lowering.model.onnx_checks import infer_shapes
from rnn_lowering.model.scopes import all_names
from rnn_lowering.streaming.attention.operators import causal, joined_heads, scaled_scores, split_heads
from rnn_lowering.streaming.operators.in_place_of import InPlaceOf

_OPERATORS = {"Attention": (0, 1, 2), "MultiHeadAttention": (0, 1, 2, 3, 5)}
"""By operator, the inputs that are followed: not lengths, caches and masks of keys."""

_ATTRIBUTES = {"num_heads", "scale", "unidirectional"}

_BIAS_OF_SCORES = 5


def expand_microsoft_attention(model: ir.Model) -> None:
    """Put the products of these operators in their place. A node with caches, several outputs, packed inputs or
    sizes that are not known stays."""
    first = True
    while nodes := [n for n in model.graph.all_nodes() if n.domain == DOMAIN and n.op_type in _OPERATORS]:
        if first:
            infer_shapes(model)
        first, names = False, Names(all_names(model))
        opset = default_opset(model.opset_imports)
        plain = [node for node in nodes if _is_plain(node)]
        if not plain:
            return
        for node in plain:
            _expand(node, names, opset)
        infer_shapes(model)  # a layer behind another one needs its sizes


def _is_plain(node: ir.Node) -> bool:
    followed = _OPERATORS[node.op_type]
    given = [n for n, value in enumerate(node.inputs) if value is not None]
    if set(given) - set(followed) or any(value.name for value in node.outputs[1:]):
        return False
    if set(node.attributes) - _ATTRIBUTES or not node.attributes.get_int("num_heads", 0):
        return False
    ranks = (3, 2) if node.op_type == "Attention" else (3, 3, 3)
    shapes = [None if v is None else v.shape for v in node.inputs[: len(ranks)]]
    fits = all(shape is not None and len(shape) == rank for shape, rank in zip(shapes, ranks, strict=False))
    known = len(shapes) == len(ranks) and fits and node.inputs[0] is not None and node.inputs[0].dtype is not None
    return known and _width(node) is not None


def _width(node: ir.Node) -> int | None:
    """Return the size of the queries of all heads; None if it is not known, or no multiple of the heads."""
    value = node.inputs[1 if node.op_type == "Attention" else 0]
    heads = node.attributes.get_int("num_heads", 0) or 1
    size = None if value is None or value.shape is None else value.shape[-1]
    parts = 3 if node.op_type == "Attention" else 1
    return size // parts if isinstance(size, int) and size % (parts * heads) == 0 else None


def _expand(node: ir.Node, names: Names, opset: int) -> None:
    emit, width = InPlaceOf(node, names, opset), _width(node)
    heads = node.attributes.get_int("num_heads", 0) or 1
    assert width is not None
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    assert dtype is not None
    parts = (_projected if node.op_type == "Attention" else _given)(emit, node, width)
    query, key, value = (split_heads(emit, part, heads) for part in parts)
    scale = node.attributes.get_float("scale", 0.0) or (width // heads) ** -0.5
    scores = scaled_scores(emit, query, key, scale, dtype)
    bias = node.inputs[_BIAS_OF_SCORES] if len(node.inputs) > _BIAS_OF_SCORES else None
    if bias is not None:
        scores = emit("Add", scores, bias)
    if node.attributes.get_int("unidirectional", 0):
        scores = causal(emit, scores, query, key, dtype)
    weights = emit("Softmax", scores, name=node.name or "", axis=-1)
    emit.replace(joined_heads(emit, emit("MatMul", weights, value)))


def _projected(emit: InPlaceOf, node: ir.Node, width: int) -> list[ir.Value]:
    """Return queries, keys and values, which one product computes."""
    data, weights, *rest = node.inputs
    assert data is not None
    assert weights is not None
    product = emit("MatMul", data, weights)
    product = emit("Add", product, rest[0]) if rest and rest[0] is not None else product
    return [_part(emit, product, n, width) for n in range(3)]


def _given(emit: InPlaceOf, node: ir.Node, width: int) -> list[ir.Value]:
    """Return queries, keys and values, with their biases."""
    parts = [value for value in node.inputs[:3] if value is not None]
    bias = node.inputs[3] if len(node.inputs) > 3 else None
    if bias is None:
        return parts
    return [emit("Add", part, _part(emit, bias, n, width)) for n, part in enumerate(parts)]


def _part(emit: InPlaceOf, value: ir.Value, number: int, width: int) -> ir.Value:
    """Return one of three parts along the last axis: the last one may have another size."""
    end = TO_THE_END if number == 2 else (number + 1) * width
    return emit("Slice", value, starts=[number * width], ends=[end], axes=[-1])
