"""Fold constants, which makes more sizes known and removes Ifs with constant conditions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lowering.limits import most_bytes
from rnn_lowering.model.copying import clone
from rnn_lowering.model.onnx_checks import is_sound
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.model.sizes.model_sizes import Inferred, computed_values, inferred_values, merged
from rnn_lowering.spec.constant_values import constant_of
from rnn_lowering.types import in_memory

_MOST_PASSES = 4
_SHARE = 16
"""The share of the limit that one folded tensor may have, since it is written to the file."""


def folded(model: ir.Model, *, decide: bool = False, inferred: Inferred | None = None) -> ir.Model | None:
    """Return a copy with folded constants; None if no further size or length of a recurrent node is known then.

    Only shapes that follow from the model's inputs are used: declared shapes of computed values may be wrong.

    Args:
        model: The model.
        decide: Also return a copy that has fewer Ifs, since their conditions are constant.
        inferred: What follows from the model's inputs, where that is known.
    """
    best, trial = None, _inferred(model, inferred)
    unknown = _count_unknown(trial, decide)
    for _ in range(_MOST_PASSES):
        if not unknown or not is_sound(trial) or not _fold(trial):
            break
        _infer(trial)
        if _count_unknown(trial, decide) >= unknown:
            break
        best, unknown = trial, _count_unknown(trial, decide)
        if unknown:
            trial = clone(trial)
    if best is not None:
        _declare_again(best, model)
    return best


def with_constants(model: ir.Model, *, sizes: bool = False) -> ir.Model | None:
    """Return a copy in which constants are folded; None where no node computes something from constants only, or
    with `sizes` from sizes. Declared shapes count as in `folded`."""
    if not any(_is_constant(node) or (sizes and node.op_type == "Shape") for node in model.graph.all_nodes()):
        return None
    trial = _inferred(model)
    if not is_sound(trial) or not _fold(trial):
        return None
    _infer(trial)
    _declare_again(trial, model)
    return trial


def _is_constant(node: ir.Node) -> bool:
    given = [value for value in node.inputs if value is not None]
    return node.op_type != "DequantizeLinear" and bool(given) and all(map(_is_held, given))


def _is_held(value: ir.Value) -> bool:
    node = value.producer()
    return node.op_type == "Constant" if node else value.is_initializer() and not value.is_graph_input()


def _inferred(model: ir.Model, inferred: Inferred | None = None) -> ir.Model:
    """Return a copy in which computed values have only the shapes that follow from the model's inputs."""
    copy, known = clone(model), inferred_values(model) if inferred is None else inferred
    _declare(zip(computed_values(copy), (known[value] for value in computed_values(model)), strict=True))
    return copy


def _infer(model: ir.Model) -> None:
    """Keep only those shapes of computed values that follow from the model's inputs, in place."""
    _declare(inferred_values(model).items())


def _declare(values: Iterable[tuple[ir.Value, ir.Value]]) -> None:
    for value, known in values:
        value.type, value.shape = value.type or known.type, merged(known.shape, None)


def _fold(model: ir.Model) -> bool:
    """Fold constants, in place; return False if the folder fails on the model."""
    from onnxscript.optimizer import fold_constants

    try:
        fold_constants(model, onnx_shape_inference=True, should_fold=_should_fold)
    except Exception:  # a node that the folder cannot evaluate, whatever it raises
        return False
    _hold_in_nodes(model.functions.values())
    RemoveUnusedNodesPass()(model)
    return True


def _hold_in_nodes(functions: Iterable[ir.Function]) -> None:
    """Replace initializers in functions with Constant nodes: functions cannot have initializers, but a branch of an
    If may bring some."""
    for function in functions:
        graph = function.graph
        for name, value in list(graph.initializers.items()):
            del graph.initializers[name]
            tensor = value.const_value
            tensor = in_memory(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor
            node = ir.node("Constant", [], {"value": tensor}, num_outputs=1, name="")
            held = node.outputs[0]
            held.name, held.type, held.shape = name, value.type, value.shape
            value.replace_all_uses_with(held, replace_graph_outputs=True)
            graph.insert_before(graph[0], node)


def _should_fold(node: ir.Node) -> bool | None:
    """Return whether to fold a node, None for the folder's own decision.

    ConstantOfShape is folded too, which the folder does not do by itself; stored integers stay integers; nothing
    large is computed, nor anything whose size is not known before.
    """
    if node.op_type == "DequantizeLinear" or any(_bytes(value) * _SHARE > most_bytes() for value in node.outputs):
        return False
    return True if node.op_type == "ConstantOfShape" else None


def _bytes(value: ir.Value) -> float:
    if value.shape is None or not value.shape.is_static():
        return math.inf
    return math.prod(value.shape.numpy()) * (8 if value.dtype is None else value.dtype.itemsize)


def _count_unknown(model: ir.Model, decide: bool) -> int:
    """Count recurrent nodes with an X of unknown sizes, those with open lengths, with `decide` also Ifs."""
    unknown = sum(node.op_type == "If" for node in model.graph.all_nodes()) if decide else 0
    for entry in recurrent_nodes(model):
        X, lengths = (entry.node.inputs[n] if n < len(entry.node.inputs) else None for n in (0, 4))
        if X is not None:
            unknown += X.shape is None or not all(isinstance(size, int) for size in X.shape[:2])
        unknown += lengths is not None and constant_of(lengths, entry.opset) is None
    return unknown


def _declare_again(model: ir.Model, before: ir.Model) -> None:
    """Restore declared sizes where inference finds none; values are matched by name, if unique."""
    names = Counter(value.name for value in computed_values(before))
    declared = {value.name: value.shape for value in computed_values(before) if names[value.name] == 1}
    for value in computed_values(model):
        value.shape = merged(value.shape, declared.get(value.name))
