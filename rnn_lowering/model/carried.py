"""Types and shapes that follow from a model's inputs alone, also of the values that a Loop carries between steps.

ONNX infers no shape of a value that a Loop carries, since the body may change it. So a shape is assumed, that of
the initial value, and inference is run with it. Where the body's output has another shape, the sizes that differ
become unknown, and inference is run again, until the assumptions for all loops hold. By induction they then hold at
every step. See https://onnx.ai/onnx/operators/onnx__Loop.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.model.copying import clone
from rnn_lowering.model.onnx_inference import infer_shapes, is_anonymous
from rnn_lowering.spec.constants import constant_of

VARIES = "rnn_lowering_varies"
"""Name of the dimensions that are known to differ between steps."""

_MOST_ROUNDS = 24
_MOST_COPIED = 64
"""The most elements of a constant that is copied into a body."""


@dataclass(frozen=True)
class _Carried:
    """A value that a Loop carries.

    Attributes:
        initial: Its value before the loop, an input of the node.
        body_input, body_output: Its values at the start and at the end of a step.
        result: Its value after the loop, an output of the node.
    """

    initial: ir.Value
    body_input: ir.Value
    body_output: ir.Value
    result: ir.Value


_Assumed = dict[_Carried, ir.Shape | None]


def inferred_values(model: ir.Model) -> Mapping[ir.Value, ir.Value]:
    """Return, for each computed value of a model, a value whose type and shape follow from the model's inputs.

    Sizes that do not follow are unknown: None, anonymous, or `VARIES`. The model itself is not changed.

    Raises:
        UnsupportedError: A node has an input that nothing defines.
    """
    twin = clone(model)
    pairs = dict(zip(computed_values(model), computed_values(twin), strict=True))
    _copy_constants_into_bodies(twin)
    carried = list(_carried(twin))
    assumed = _initial(twin, carried)
    for _ in range(_MOST_ROUNDS):
        widened: _Assumed = {
            c: _common(_common(s, c.initial.shape), c.body_output.shape) for c, s in assumed.items()
        }
        if widened == assumed:
            return pairs
        assumed = widened
        _infer(twin, assumed)
    _infer(twin, {})
    return pairs


def computed_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values of a model and its subgraphs that are neither its inputs nor constants."""
    for graph in model.graphs():
        if graph is not model.graph:
            yield from graph.inputs
        for node in graph:
            yield from node.outputs


def _initial(model: ir.Model, carried: list[_Carried]) -> _Assumed:
    """Infer shapes, assuming those of initial values; return what is assumed.

    Initial values of inner and later loops get their shapes from the assumptions for other loops.
    """
    assumed: _Assumed = {}
    for _ in range(_MOST_ROUNDS):
        _infer(model, assumed)
        new = {c: c.initial.shape for c in carried if c not in assumed and c.initial.shape is not None}
        if not new:
            return assumed
        assumed |= {c: ir.Shape(list(shape)) for c, shape in new.items()}
    _infer(model, assumed)
    return assumed


def _infer(model: ir.Model, assumed: _Assumed) -> None:
    """Remove all shapes of computed values and infer them with what is assumed."""
    for graph in model.graphs():
        for node in graph:
            for value in (*node.outputs, *_inputs_of_body(node)):
                value.shape = None
    for c, shape in assumed.items():
        c.body_input.shape = c.result.shape = shape
    infer_shapes(model)
    for c, shape in assumed.items():
        c.body_input.shape = c.result.shape = shape


def _common(first: ir.Shape | None, second: ir.Shape | None) -> ir.Shape | None:
    """Return the shape that two shapes have in common: sizes on which they differ are unknown."""
    if first is None or second is None or len(first) != len(second):
        return None
    return ir.Shape([_common_size(a, b) for a, b in zip(first, second, strict=True)])


def _common_size(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> int | ir.SymbolicDim | str | None:
    if isinstance(a, int) and isinstance(b, int):
        return a if a == b else VARIES
    if VARIES in (getattr(a, "value", None), getattr(b, "value", None)):
        return VARIES
    return a if a == b and not is_anonymous(a) else None


def _carried(model: ir.Model) -> Iterator[_Carried]:
    for graph in model.graphs():
        for node in graph:
            body = _body(node) if node.op_type == "Loop" else None
            if body is not None:
                rows = zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs, strict=False)
                yield from (_Carried(i, *rest) for i, *rest in rows if i is not None)


def _inputs_of_body(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the inputs of a body whose shapes follow from those of the node's inputs."""
    body = _body(node) if node.op_type in ("Loop", "Scan") else None
    return () if body is None else tuple(body.inputs[2 if node.op_type == "Loop" else 0 :])


def _body(node: ir.Node) -> ir.Graph | None:
    attribute = node.attributes.get("body")
    if node.domain or attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return None
    return attribute.as_graph()


def _copy_constants_into_bodies(model: ir.Model) -> None:
    """Give bodies copies of the small constants that they use from outside: ONNX's inference does not see those."""
    opset = model.opset_imports.get("", 1)
    for graph in model.graph.subgraphs():
        copies: dict[ir.Value, ir.Value] = {}
        for node in list(graph):
            for n, value in enumerate(node.inputs):
                if value is None or value.graph is graph:
                    continue
                tensor = _small_constant(value, opset)
                if tensor is None:
                    continue
                if value not in copies:
                    copies[value] = ir.Value(name=f"rnn_lowering_copy_{value.name}")
                    constant = ir.node("Constant", [], {"value": tensor}, outputs=[copies[value]])
                    graph.insert_before(graph[0], constant)
                node.replace_input_with(n, copies[value])


def _small_constant(value: ir.Value, opset: int) -> ir.TensorProtocol | None:
    node = value.producer()
    if not value.is_initializer() and (node is None or node.op_type != "Constant"):
        return None
    tensor = constant_of(value, opset)
    return tensor if tensor is not None and tensor.dtype.is_integer() and tensor.size <= _MOST_COPIED else None
