"""Infer the sizes of a model's values from its inputs alone: declared sizes may be wrong.

onnx_ir's ShapeInferencePass gives up on one wrong declared shape: here they are set aside before inference.

ONNX infers no shape of a value that a Loop carries, since the body may change it. So a shape is assumed, that of
the initial value, and inference is run with it. If the body's output has another shape, the sizes that differ
become unknown, and inference is run again, until the assumptions for all loops hold. By induction they then hold at
every step. See https://onnx.ai/onnx/operators/onnx__Loop.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import default_opset, graphs_within, has_bodies, nodes_within
from rnn_lowering.model.copying import clone, refuse_undefined_inputs
from rnn_lowering.model.onnx_checks import (
    ANONYMOUS,
    accepts,
    infer_shapes,
    inferred_types,
    is_anonymous,
    is_misread,
    problem_of,
)
from rnn_lowering.model.protobuf import as_proto
from rnn_lowering.model.scopes import RecurrentNode
from rnn_lowering.model.trial_sizes import are_of_an_example
from rnn_lowering.nodes.connections import KnownInputs

VARIES = "rnn_lowering_varies"
"""Name of the dimensions that are known to differ between steps."""

STALE = "corrected declared shapes that contradict the inputs"

_MOST_ROUNDS = 24

_MOST_COPIED = 64
"""Maximum elements of a constant that is copied into a body."""

Inferred = Mapping[ir.Value, ir.Value]
"""For each computed value of a model a value whose type and shape follow from the model's inputs."""


def inferred_values(model: ir.Model, asked: Callable[[ir.Value], bool] = lambda value: True) -> Inferred:
    """Return, for each computed value of a model, a value whose type and shape follow from the model's inputs.

    Sizes that do not follow are unknown: None, anonymous, or `VARIES`. The model itself is not changed.

    Args:
        model: The model.
        asked: Which values are asked for; others may be left out.

    Raises:
        UnsupportedError: A node has an input that nothing defines.
    """
    if not has_bodies(model.graph):
        return _inferred_without_bodies(model, asked)
    twin = clone(model)
    pairs = dict(zip(computed_values(model), computed_values(twin), strict=True))
    _copy_constants_into_bodies(twin)
    carried = list(_carried(twin))
    assumed = _initial(twin, carried)
    for _ in range(_MOST_ROUNDS):
        widened: _AssumedShapes = {
            c: _common(_common(s, c.initial.shape), c.body_output.shape) for c, s in assumed.items()
        }
        if widened == assumed:
            return pairs
        assumed = widened
        _infer(twin, assumed)
    _infer(twin, {})
    return pairs


def _inferred_without_bodies(model: ir.Model, asked: Callable[[ir.Value], bool]) -> Inferred:
    """Return the `inferred_values` of a model that has no bodies, without a copy of it."""
    refuse_undefined_inputs(model)
    values = filter(asked, computed_values(model))
    pairs = {value: ir.Value(name=value.name, type=value.type) for value in values}
    for value, found, shape in inferred_types(model, pairs):
        pairs[value].shape = shape
        if found is not None and found.dtype != value.dtype:
            pairs[value].type = found
    return pairs


def _is_computed(value: ir.Value, model: ir.Model) -> bool:
    """Whether a value of the main graph or a body is neither an input of the model nor a constant."""
    return value.producer() is not None or (value.is_graph_input() and value.graph is not model.graph)


def computed_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values of a model and its subgraphs that are neither its inputs nor constants."""
    for graph in graphs_within(model.graph):
        if graph is not model.graph:
            yield from graph.inputs
        for node in graph:
            yield from node.outputs


@dataclass(frozen=True)
class _LoopValue:
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


_AssumedShapes = dict[_LoopValue, ir.Shape | None]


def _carried(model: ir.Model) -> Iterator[_LoopValue]:
    for graph in graphs_within(model.graph):
        for node in graph:
            body = _body(node) if node.op_type == "Loop" else None
            if body is not None:
                rows = zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs, strict=False)
                yield from (_LoopValue(i, *rest) for i, *rest in rows if i is not None)


def _initial(model: ir.Model, carried: list[_LoopValue]) -> _AssumedShapes:
    """Infer shapes on the assumption that states keep the shapes of their initial values; return the assumption.

    Initial values of inner and later loops get their shapes from the assumptions for other loops.
    """
    assumed: _AssumedShapes = {}
    for _ in range(_MOST_ROUNDS):
        _infer(model, assumed)
        new = {c: c.initial.shape for c in carried if c not in assumed and c.initial.shape is not None}
        if not new:
            return assumed
        assumed |= {c: ir.Shape(list(shape)) for c, shape in new.items()}
    _infer(model, assumed)
    return assumed


def _infer(model: ir.Model, assumed: _AssumedShapes) -> None:
    """Remove all shapes of computed values, and infer them on the assumptions."""
    for graph in graphs_within(model.graph):
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
    """Copy small outer constants into the bodies that use them: ONNX's inference does not look outside."""
    opset = model.opset_imports.get("", 1)
    for graph in [*graphs_within(model.graph)][1:]:
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


# Declared sizes beside inferred ones


def open_negative_sizes(graphs: Iterable[ir.Graph]) -> None:
    """Let each size that is negative be open, in place, where values of graphs declare it."""
    for graph in graphs:
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
                sizes = [None if isinstance(dim, int) and dim < 0 else dim for dim in value.shape]
                value.shape = with_sizes(value.shape, sizes)


def forget_sizes(model: ir.Model) -> None:
    """Let computed values declare their ranks only, in place: another size of an input changes any of theirs."""
    for value in computed_values(model):
        if value.shape is not None:
            value.shape = with_sizes(value.shape, [None] * len(value.shape))


def known_inputs(model: ir.Model, found: Iterable[RecurrentNode], *, inferred: bool = False) -> KnownInputs:
    """Return the inferred types and shapes of those inputs of nodes that are computed.

    What a model declares about computed values may be wrong: it counts only for sizes that inference does not find.

    Args:
        model: The model.
        found: The nodes.
        inferred: Whether its values declare just that, since inference has been run.

    Raises:
        UnsupportedError: A node has an input that nothing defines.
    """
    read = (value for entry in found if entry.function is None for value in entry.node.inputs)
    wanted = dict.fromkeys(value for value in read if value is not None and _is_computed(value, model))
    if not wanted:
        return {}
    if inferred:
        return {value: Known.at(value.dtype, value.shape) for value in wanted}
    known = inferred_values(model, lambda value: value.shape is not None or value in wanted)
    declared = declared_shapes(model, wanted, known)
    return {
        value: Known.at(value.dtype or known[value].dtype, merge_shapes(known[value].shape, declared[value]))
        for value in wanted
        if value in known
    }


def infer_anew(
    model: ir.Model,
    sizes: Mapping[str, int],
    *,
    numbers_count: bool = True,
    asked: Callable[[ir.Value], bool] = lambda value: True,
) -> Inferred:
    """Infer the shapes of computed values, in place; declared ones count as `fix_dimensions` says. Return what
    follows from the inputs alone.

    Args:
        model: The model, whose inputs have their sizes.
        sizes: Sizes by symbolic name.
        numbers_count: Whether declared numbers count if none contradicts what is inferred.
        asked: Which values get a shape.
    """
    known = inferred_values(model)
    declared = declared_shapes(model, known, known, sizes, numbers_count=numbers_count)
    for value, other in known.items():
        if not asked(value):
            continue
        value.type, value.shape = value.type or other.type, merge_shapes(other.shape, declared[value])
    return known


def declared_shapes(
    model: ir.Model,
    values: Iterable[ir.Value],
    inferred: Inferred,
    sizes: Mapping[str, int] = MappingProxyType({}),
    *,
    numbers_count: bool = True,
) -> dict[ir.Value, ir.Shape | None]:
    """Return the declared shapes of values, at sizes for names. Numbers are open if the model declares what it
    computed at one size of its inputs, so that another size follows from them."""
    keep = (
        numbers_count
        and not any(_contradicts(other.shape, _at_sizes(v.shape, sizes)) for v, other in inferred.items())
        and not are_of_an_example(model, inferred)
    )
    return {value: _at_sizes(value.shape, sizes, keep_numbers=keep) for value in values}


def _contradicts(inferred: ir.Shape | None, declared: ir.Shape | None) -> bool:
    """Whether a declared shape has another rank or size than the inferred one, or a number for an open size."""
    if inferred is None or declared is None:
        return False
    if len(inferred) != len(declared):
        return True
    pairs = zip(inferred, declared, strict=True)
    return any(isinstance(d, int) and i != d and not is_anonymous(i) for i, d in pairs)


def _at_sizes(shape: ir.Shape | None, sizes: Mapping[str, int], *, keep_numbers: bool = True) -> ir.Shape | None:
    """Return a shape with sizes for its names, and with or without the sizes that it had."""
    if shape is None or (keep_numbers and not sizes):
        return shape
    kept = (dim if keep_numbers or not isinstance(dim, int) else None for dim in shape)
    return with_sizes(shape, [None if dim is None else size_of_dim(dim, sizes) for dim in kept])


def merge_shapes(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return an inferred shape; a dimension with neither size nor name is the declared one."""
    if inferred is None:
        return declared
    comparable = declared is not None and len(declared) == len(inferred)
    other = declared if declared is not None and comparable else ir.Shape([None] * len(inferred))
    return with_sizes(other, [_merged_size(i, d) for i, d in zip(inferred, other, strict=True)])


def _merged_size(inferred: int | ir.SymbolicDim, declared: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
    if is_anonymous(inferred):
        return None if is_anonymous(declared) else declared
    return None if isinstance(inferred, ir.SymbolicDim) and inferred.value == VARIES else inferred


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Replace an output of a node by a value, which gets its name and what it declares."""
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name
    new.type = new.type or old.type
    new.shape = merge_shapes(new.shape, old.shape)
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)


def with_sizes(shape: ir.Shape, sizes: Sequence[int | ir.SymbolicDim | None]) -> ir.Shape:
    return ir.Shape(sizes, [shape.get_denotation(axis) for axis in range(len(shape))])


def size_of_dim(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    """Return a dimension, or the size for its name."""
    return sizes.get(dim.value or "", dim) if isinstance(dim, ir.SymbolicDim) else dim


def name_cut_axes(model: ir.Model) -> None:
    """Declare, in place, that an open axis which a Slice of opset 10 cuts has a size of its own: else onnxruntime
    takes it for the whole axis, puts values of both sizes into one buffer, and fails."""
    opset = default_opset(model.opset_imports)
    if not any(is_misread(node, opset) for node in nodes_within(model.graph)):
        return
    twin = clone(model)
    infer_shapes(twin)
    for value, found in zip(computed_values(model), computed_values(twin), strict=True):
        node = value.producer()
        if node is None or not is_misread(node, opset) or found.shape is None or value.is_graph_output():
            continue
        names = (f"{ANONYMOUS}{value.name}_{axis}" for axis in range(len(found.shape)))
        value.shape = ir.Shape([n if is_anonymous(d) else d for d, n in zip(found.shape, names, strict=True)])
        value.type = found.type


def ensure_valid(
    result: ir.Model, original: Callable[[], ir.Model], *, whole: bool = False, declares: bool = True
) -> tuple[list[str], onnx.ModelProto | None]:
    """Check a result with ONNX's checker and strict inference; return notes on replaced shapes, and the checked
    message.

    If they refuse it, what it declares of computed values is inferred anew, in place: an exporter may have traced
    other sizes, which ONNX does not notice if it cannot infer the outputs of a recurrent node.

    Args:
        result: The model.
        original: Returns the model that it was made from.
        whole: Return the message, with all tensors.
        declares: Whether other values than outputs may get a shape.

    Raises:
        UnsupportedError: It is not valid, and the original is.
    """
    message = as_proto(result) if whole else None
    if (message is not None and accepts(message)) or not problem_of(result):
        return [], message
    returned = set(result.graph.outputs)
    infer_anew(result, {}, asked=lambda value: declares or value in returned)
    message = as_proto(result) if whole else None
    problem = problem_of(result)
    if problem and (not problem_of(given := original()) or _checker_refuses_only(result, given)):
        raise UnsupportedError(
            f"the result is not valid: {problem}",
            hint="if onnxruntime runs the original at these sizes, this is a bug in rnn-lowering: please report it",
        )
    return [] if problem else [STALE], message


def _checker_refuses_only(result: ir.Model, original: ir.Model) -> bool:
    """Whether the checker accepts only the original, in which it looks into fewer functions."""
    return bool(problem_of(result, infer=False)) and not problem_of(original, infer=False)


def open_names(model: ir.Model) -> list[str]:
    """Return the names of the open sizes of the inputs."""
    dims = [dim for value in model.graph.inputs for dim in value.shape or ()]
    return list(dict.fromkeys(dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value))
