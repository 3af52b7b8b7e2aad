"""Types and shapes that follow from a model's inputs alone, those that a Loop carries between steps included.

ONNX infers nothing of what a Loop carries, since a body may change its shape. So a shape is assumed and tested: it
starts as that of the initial value; where the body gives another, the sizes that differ become unknown, until the
assumptions of all loops hold together. By induction they then hold at every step.
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
_MOST_HELD = 64


@dataclass(frozen=True)
class _Carried:
    """A value that a Loop carries: before the loop, at the start and at the end of a step, and after the loop."""

    initial: ir.Value
    entering: ir.Value
    leaving: ir.Value
    result: ir.Value


_Assumed = dict[_Carried, ir.Shape | None]


def inferred_values(model: ir.Model) -> Mapping[ir.Value, ir.Value]:
    """Return, for each computed value of a model, one whose type and shape follow from the inputs.

    Sizes that do not follow are unknown: None, anonymous, or `VARIES`. The model stays as it is.

    Raises:
        UnsupportedError: A node takes a value that nothing defines.
    """
    twin = clone(model)
    pairs = dict(zip(computed_values(model), computed_values(twin), strict=True))
    _hold_constants(twin)
    carried = list(_carried(twin))
    assumed = _initial(twin, carried)
    for _ in range(_MOST_ROUNDS):
        widened: _Assumed = {c: _common(_common(s, c.initial.shape), c.leaving.shape) for c, s in assumed.items()}
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
    """Infer with the shapes of initial values assumed: those of inner and later loops follow from the others'."""
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
    """Forget all shapes of computed values; infer them with what is assumed."""
    for graph in model.graphs():
        for node in graph:
            for value in (*node.outputs, *_given_to_body(node)):
                value.shape = None
    for c, shape in assumed.items():
        c.entering.shape = c.result.shape = shape
    infer_shapes(model)
    for c, shape in assumed.items():
        c.entering.shape = c.result.shape = shape


def _common(first: ir.Shape | None, second: ir.Shape | None) -> ir.Shape | None:
    """Return what two shapes agree on."""
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


def _given_to_body(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the inputs of a body whose shapes follow from those of the node's inputs."""
    body = _body(node) if node.op_type in ("Loop", "Scan") else None
    return () if body is None else tuple(body.inputs[2 if node.op_type == "Loop" else 0 :])


def _body(node: ir.Node) -> ir.Graph | None:
    attribute = node.attributes.get("body")
    if node.domain or attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return None
    return attribute.as_graph()


def _hold_constants(model: ir.Model) -> None:
    """Give bodies copies of the small constants that they capture: ONNX infers from the numbers in a body only."""
    opset = model.opset_imports.get("", 1)
    for graph in model.graph.subgraphs():
        held: dict[ir.Value, ir.Value] = {}
        for node in list(graph):
            for n, value in enumerate(node.inputs):
                if value is None or value.graph is graph:
                    continue
                tensor = _small_constant(value, opset)
                if tensor is None:
                    continue
                if value not in held:
                    held[value] = ir.Value(name=f"rnn_lowering_held_{value.name}")
                    constant = ir.node("Constant", [], {"value": tensor}, outputs=[held[value]])
                    graph.insert_before(graph[0], constant)
                node.replace_input_with(n, held[value])


def _small_constant(value: ir.Value, opset: int) -> ir.TensorProtocol | None:
    node = value.producer()
    if not value.is_initializer() and (node is None or node.op_type != "Constant"):
        return None
    tensor = constant_of(value, opset)
    return tensor if tensor is not None and tensor.dtype.is_integer() and tensor.size <= _MOST_HELD else None
