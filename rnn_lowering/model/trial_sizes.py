"""Which declared sizes are only those of an exporter's example: at a trial size of the inputs, others follow."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import onnx_ir as ir

from rnn_lowering.facts.infer import follow
from rnn_lowering.facts.known import Known, KnownValues, add_tensor
from rnn_lowering.facts.operators import bodies_of, inputs_of, reached
from rnn_lowering.facts.size import size
from rnn_lowering.model.onnx_checks import is_anonymous
from rnn_lowering.nodes.kinds import is_recurrent

TRIAL = 960
"""A size of inputs that most models accept: large, and a multiple of many."""

_LARGEST = 1 << 13
"""Maximum elements of a value whose numbers are known."""


def are_of_an_example(model: ir.Model, inferred: Mapping[ir.Value, ir.Value]) -> bool:
    """Whether a recurrent node reads a value that declares a size which ONNX does not infer, and which is another
    one at a trial size of all open axes.

    Args:
        model: The model.
        inferred: What ONNX infers of computed values.
    """
    declared = (value for value, found in inferred.items() if _declares_more(value, found))
    doubtful = [value for value in declared if any(is_recurrent(node) for node, _ in value.uses())]
    if not doubtful:
        return False
    known = _known_at_trial(model, doubtful, inferred)
    pairs = ((value.shape or (), known.of(value)) for value in doubtful)
    rows = (zip(declared, found.dims, strict=False) for declared, found in pairs if found is not None)
    return any(isinstance(d, int) and n is not None and n != d for row in rows for d, n in row)


def _declares_more(value: ir.Value, inferred: ir.Value) -> bool:
    """Whether a value declares a number where nothing is inferred."""
    dims_inferred = inferred.shape
    dims = [None] * len(value.shape or ()) if dims_inferred is None else dims_inferred
    return any(
        isinstance(d, int) and (i is None or is_anonymous(i)) for d, i in zip(value.shape or (), dims, strict=False)
    )


def _known_at_trial(
    model: ir.Model, wanted: Collection[ir.Value], inferred: Mapping[ir.Value, ir.Value]
) -> KnownValues:
    """Return what is known of values, and of those that they need, at trial sizes of the inputs."""
    inputs = [value for value in model.graph.inputs if value.shape is not None]
    sizes = {v.name: [size(d if isinstance(d, int) else TRIAL) for d in v.shape or ()] for v in inputs if v.name}
    known = KnownValues.start(model, {name: tuple(dims) for name, dims in sizes.items()})
    needed = list(reached(wanted, inputs_of))
    for value in needed:
        if value.const_value is not None and not value.is_graph_input():
            add_tensor(known, value, value.const_value, _LARGEST)
    nodes = {value.producer() for value in needed}
    for node in model.graph:
        if node in nodes:
            _follow(known, node, inferred)
    return known


def _follow(known: KnownValues, node: ir.Node, inferred: Mapping[ir.Value, ir.Value]) -> None:
    """Add what follows of the outputs of a node; of one with bodies, the sizes that ONNX infers."""
    if bodies_of(node):
        for value in node.outputs:
            known.declare(value, Known.at(value.dtype, inferred[value].shape if value in inferred else None))
    else:
        follow(known, node, lambda node: all(is_small(known, value) for value in node.outputs))


def is_small(known: KnownValues, value: ir.Value) -> bool:
    """Whether a value has so few elements that its numbers are followed, as far as is known."""
    shape = known.static_shape(value)
    return shape is None or math.prod(shape) <= _LARGEST
