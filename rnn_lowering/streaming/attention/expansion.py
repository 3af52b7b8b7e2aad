"""Operators of attention, which become the nodes that they stand for before the frames are followed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.contrib_schemas import DOMAIN
from rnn_lowering.facts.operators import TO_THE_END, default_opset, input_at, inputs_and_attributes, is_used
from rnn_lowering.model.onnx_checks import infer_shapes
from rnn_lowering.model.scopes import ORIGIN, all_names, origin_of
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.types import Array


class InPlaceOf:
    """Emits nodes before a node, which errors name instead.

    Args:
        node: The node.
        names: The names of the model.
        opset: The opset of the model.
    """

    def __init__(self, node: ir.Node, names: Names, opset: int) -> None:
        self.node, self.names, self.opset = node, names, opset
        self.label = node.name or node.op_type.lower()
        self.origin = origin_of(node)
        assert isinstance(node.graph, ir.Graph)
        self.graph = node.graph

    def __call__(
        self, op_type: str, *inputs: ir.Value, name: str = "", **attributes: int | float | Sequence[int]
    ) -> ir.Value:
        """Emit a node and return its output. Attributes that the operator takes as inputs become constants."""
        return self.several(1, op_type, *inputs, name=name, **attributes)[0]

    def several(
        self, count: int, op_type: str, *inputs: ir.Value, name: str = "", **attributes: int | float | Sequence[int]
    ) -> Sequence[ir.Value]:
        """Emit a node and return its outputs, so many."""
        all_inputs, rest = inputs_and_attributes(
            op_type, self.opset, inputs, attributes, lambda numbers: self.constant(np.array(numbers, np.int64))
        )
        made = [ir.convenience.convert_attribute(*each) for each in rest.items()]
        label = name or self.names.unique(f"{self.label}_{op_type}")
        node = ir.Node("", op_type, all_inputs, made, num_outputs=count, name=label)
        for output in node.outputs:
            output.name = self.names.unique(f"{label}_out")
        node.meta[ORIGIN] = self.origin
        self.graph.insert_before(self.node, [node])
        return node.outputs

    def constant(self, array: Array) -> ir.Value:
        name = self.names.unique(f"{self.label}_constant")
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(array, name=name))], name=name)
        node.outputs[0].name = name
        self.graph.insert_before(self.node, [node])
        return node.outputs[0]

    def numbers(self, *numbers: int) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    def replace(self, new: ir.Value) -> None:
        """Let the readers of the node read `new`, and remove the node."""
        self.give(self.node.outputs[0], new)
        self.graph.remove(self.node, safe=True)

    def give(self, old: ir.Value, new: ir.Value) -> None:
        """Let the readers of an output of the node read `new`."""
        here = new.producer() is not None and new.graph is old.graph
        if old.is_graph_output() and (new.is_graph_output() or not here):
            new = self("Identity", new)
        new.type, new.shape = new.type or old.type, new.shape or old.shape
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            old.name, new.name = None, name


def expand_attention(model: ir.Model) -> None:
    """Put products in the place of Attention and MultiHeadAttention, of ONNX and of Microsoft, also in branches.

    A node stays if its caches have rows, its scores are an output, its Softmax has another type, its inputs are
    packed, or sizes or the type of a mask are not known.
    """
    keys = {node: (node.domain, node.op_type) for node in model.graph.all_nodes()}
    nodes = {node: _ATTENTION[key] for node, key in keys.items() if key in _ATTENTION}
    found: Collection[ir.Node] = nodes
    while found:
        infer_shapes(model)  # a layer behind another one needs its sizes
        found = [node for node, (is_plain, _) in nodes.items() if is_plain(node)]
        names, opset = Names(all_names(model)), default_opset(model.opset_imports)
        for node in found:
            _, expand = nodes.pop(node)
            expand(InPlaceOf(node, names, opset), node)


# Attention of ONNX


_MASK = 3
"""The input behind Q, K and V; those behind it are caches and lengths."""

_CACHES = 2
"""past_key and past_value, behind the mask; present_key and present_value, behind Y."""

_ATTRIBUTES = {
    *("is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode", "right_window_size"),
    *("scale", "softcap", "softmax_precision"),
}

_HEADS_RANK = 4


def _is_plain(node: ir.Node) -> bool:
    given = [value for value in node.inputs[:3] if value is not None and value.shape is not None]
    if len(given) < 3 or not all(_is_empty(value) for value in node.inputs[_MASK + 1 :]):
        return False
    if any(is_used(value) for value in node.outputs[1 + _CACHES :]) or set(node.attributes) - _ATTRIBUTES:
        return False
    dtype, mask = given[0].dtype, input_at(node, _MASK)
    if dtype is None or node.attributes.get_int("softmax_precision", int(dtype)) != int(dtype):
        return False
    if mask is not None and mask.shape is not None and len(mask.shape) and mask.shape[-1] == 1:
        return False  # it keeps the first key only: missing columns are removed
    return _heads(node) is not None and (mask is None or mask.dtype is not None)


def _is_empty(value: ir.Value | None) -> bool:
    """Whether an input is left out, or a cache without rows."""
    return value is None or (value.shape is not None and len(value.shape) == _HEADS_RANK and value.shape[2] == 0)


def _heads(node: ir.Node) -> tuple[int, int, int] | None:
    """Return the heads of the queries and of the keys, and the size of a head; None if one is not known."""
    query, key = (value.shape for value in node.inputs[:2] if value is not None)
    if query is None or key is None or len(query) != len(key):
        return None
    counts: list[object]
    if len(query) == _HEADS_RANK:
        counts = [query[1], key[1], query[3]]
    else:
        heads = [node.attributes.get_int(name, None) for name in ("q_num_heads", "kv_num_heads")]
        size = query[2]
        counts = [*heads, size // heads[0] if isinstance(size, int) and heads[0] else None]
    numbers = [number for number in counts if isinstance(number, int) and number > 0]
    if len(numbers) < 3 or numbers[0] % numbers[1]:
        return None
    return numbers[0], numbers[1], numbers[2]


def _expand(emit: InPlaceOf, node: ir.Node) -> None:
    heads = _heads(node)
    query, key, value = (input_of(node, slot) for slot in range(3))
    assert heads is not None
    flat = len(query.shape or ()) < _HEADS_RANK
    if flat:
        query = _split_heads(emit, query, heads[0])
        key, value = (_split_heads(emit, each, heads[1]) for each in (key, value))
    for old, present in zip(node.outputs[1 : 1 + _CACHES], (key, value), strict=False):
        emit.give(old, present)  # no rows come before them
    if heads[0] != heads[1]:
        key, value = (_repeated(emit, each, heads[0], heads[0] // heads[1]) for each in (key, value))
    dtype = input_of(node).dtype or ir.DataType.FLOAT
    scale = node.attributes.get_float("scale", heads[2] ** -0.5) or 0.0
    if scale > 0:  # ONNX takes the root in float32 and scales queries and keys by it, also in float64
        scale = float(np.sqrt(np.float32(scale))) ** 2
    scores = _capped(emit, _scaled_scores(emit, query, key, scale, dtype), node, dtype)
    if (mask := input_at(node, _MASK)) is not None:
        is_bool = mask.dtype == ir.DataType.BOOL
        scores = emit("Where", mask, scores, _removed(emit, dtype)) if is_bool else emit("Add", scores, mask)
    if node.attributes.get_int("is_causal", 0):
        scores = _causal(emit, scores, query, key, dtype)
    scores = _windowed(emit, scores, node, (query, key), dtype)
    output = _weighed(emit, scores, value)
    emit.replace(_joined_heads(emit, output) if flat else output)


def _scaled_scores(emit: InPlaceOf, query: ir.Value, key: ir.Value, scale: float, dtype: ir.DataType) -> ir.Value:
    """Return the scores of queries and keys [batch, heads, frames, size]."""
    products = emit("MatMul", query, emit("Transpose", key, perm=[0, 1, 3, 2]))
    return emit("Mul", products, emit.constant(np.array(scale).astype(dtype.numpy())))


def _weighed(emit: InPlaceOf, scores: ir.Value, value: ir.Value) -> ir.Value:
    """Return the values weighed by scores; the Softmax has the name of the node."""
    return emit("MatMul", emit("Softmax", scores, name=emit.node.name or "", axis=-1), value)


def _causal(emit: InPlaceOf, scores: ir.Value, query: ir.Value, key: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return scores from which later keys are removed."""
    rows, columns = (_positions(emit, each, axis) for each, axis in ((query, 1), (key, 0)))
    return emit("Where", emit("LessOrEqual", columns, rows), scores, _removed(emit, dtype))


def _capped(emit: InPlaceOf, scores: ir.Value, node: ir.Node, dtype: ir.DataType) -> ir.Value:
    """Return scores that are bent by tanh, if the node has a cap."""
    cap = node.attributes.get_float("softcap", 0.0) or 0.0
    if not cap:
        return scores
    number = emit.constant(np.array(cap).astype(dtype.numpy()))
    return emit("Mul", emit("Tanh", emit("Div", scores, number)), number)


def _windowed(
    emit: InPlaceOf, scores: ir.Value, node: ir.Node, read: tuple[ir.Value, ir.Value], dtype: ir.DataType
) -> ir.Value:
    """Return the scores without keys outside the window of a query; -1 is no limit."""
    sizes = [node.attributes.get_int(f"{side}_window_size", -1) for side in ("left", "right")]
    for n, most in enumerate(sizes):
        if most is not None and most >= 0:
            rows, columns = (_positions(emit, each, axis) for each, axis in zip(read, (1, 0), strict=True))
            apart = emit("Sub", rows, columns) if n == 0 else emit("Sub", columns, rows)
            kept = emit("LessOrEqual", apart, emit.constant(np.array(most, np.int64)))
            scores = emit("Where", kept, scores, _removed(emit, dtype))
    return scores


def _removed(emit: InPlaceOf, dtype: ir.DataType) -> ir.Value:
    return emit.constant(np.array(-np.inf).astype(dtype.numpy()))


def _joined_heads(emit: InPlaceOf, value: ir.Value) -> ir.Value:
    """Return [batch, frames, heads * size] of [batch, heads, frames, size]."""
    return emit("Reshape", emit("Transpose", value, perm=[0, 2, 1, 3]), emit.numbers(0, 0, -1))


def _split_heads(emit: InPlaceOf, value: ir.Value, heads: int) -> ir.Value:
    """Return [batch, heads, frames, size] of [batch, frames, heads * size]."""
    return emit("Transpose", emit("Reshape", value, emit.numbers(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def _repeated(emit: InPlaceOf, value: ir.Value, heads: int, times: int) -> ir.Value:
    """Return keys or values with each head as often as queries share it."""
    apart = emit("Expand", emit("Unsqueeze", value, emit.numbers(2)), emit.numbers(1, 1, times, 1, 1))
    size = emit("Shape", value, start=2)
    return emit("Reshape", apart, emit("Concat", emit.numbers(0, heads), size, axis=0))


def _positions(emit: InPlaceOf, value: ir.Value, axis: int) -> ir.Value:
    count = emit("Squeeze", emit("Shape", value, start=2, end=3))
    zero, one = (emit.constant(np.array(n, np.int64)) for n in (0, 1))
    return emit("Unsqueeze", emit("Range", zero, count, one), emit.numbers(axis))


# MultiHeadAttention and Attention of com.microsoft, which onnxruntime's optimizers write. `unidirectional` removes
# later keys with the lowest number, not with `mask_filter_value`.


_OPERATORS = {"Attention": (0, 1, 2), "MultiHeadAttention": (0, 1, 2, 3, 5)}
"""By operator, the inputs that are followed: not lengths, caches and masks of keys."""

_ATTRIBUTES_OF_MICROSOFT = {"num_heads", "scale", "unidirectional"}

_BIAS_OF_SCORES = 5


def _is_plain_of_microsoft(node: ir.Node) -> bool:
    followed = _OPERATORS[node.op_type]
    given = [n for n, value in enumerate(node.inputs) if value is not None]
    if set(given) - set(followed) or any(value.name for value in node.outputs[1:]):
        return False
    if set(node.attributes) - _ATTRIBUTES_OF_MICROSOFT or not node.attributes.get_int("num_heads", 0):
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


def _expand_of_microsoft(emit: InPlaceOf, node: ir.Node) -> None:
    width = _width(node)
    heads = node.attributes.get_int("num_heads", 0) or 1
    dtype = input_of(node).dtype
    assert width is not None
    assert dtype is not None
    parts = (_projected if node.op_type == "Attention" else _given)(emit, node, width)
    query, key, value = (_split_heads(emit, part, heads) for part in parts)
    scale = node.attributes.get_float("scale", 0.0) or (width // heads) ** -0.5
    scores = _scaled_scores(emit, query, key, scale, dtype)
    bias = input_at(node, _BIAS_OF_SCORES)
    if bias is not None:
        scores = emit("Add", scores, bias)
    if node.attributes.get_int("unidirectional", 0):
        scores = _causal(emit, scores, query, key, dtype)
    emit.replace(_joined_heads(emit, _weighed(emit, scores, value)))


def _projected(emit: InPlaceOf, node: ir.Node, width: int) -> list[ir.Value]:
    """Return queries, keys and values, which one product computes."""
    product, bias = emit("MatMul", input_of(node), input_of(node, 1)), input_at(node, 2)
    product = product if bias is None else emit("Add", product, bias)
    return [_part(emit, product, n, width) for n in range(3)]


def _given(emit: InPlaceOf, node: ir.Node, width: int) -> list[ir.Value]:
    """Return queries, keys and values, with their biases."""
    parts = [value for value in node.inputs[:3] if value is not None]
    bias = input_at(node, 3)
    if bias is None:
        return parts
    return [emit("Add", part, _part(emit, bias, n, width)) for n, part in enumerate(parts)]


def _part(emit: InPlaceOf, value: ir.Value, number: int, width: int) -> ir.Value:
    """Return one of three parts along the last axis: the last one may have another size."""
    end = TO_THE_END if number == 2 else (number + 1) * width
    return emit("Slice", value, starts=[number * width], ends=[end], axes=[-1])


_ATTENTION: Mapping[tuple[str, str], tuple[Callable[[ir.Node], bool], Callable[[InPlaceOf, ir.Node], None]]] = {
    ("", "Attention"): (_is_plain, _expand),
    **{(DOMAIN, name): (_is_plain_of_microsoft, _expand_of_microsoft) for name in _OPERATORS},
}
"""By domain and operator, whether a node can be expanded, and what expands it."""
