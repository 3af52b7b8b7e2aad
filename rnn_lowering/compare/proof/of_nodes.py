"""The proof of each lowered node."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.node_pairs import NodePair
from rnn_lowering.compare.proof.obligations import Claim, prove
from rnn_lowering.compare.proof.polynomials import MOST_FUNCTIONS, Effort, UnprovenError
from rnn_lowering.compare.result import NOT_PROVEN, PROVEN, NodeProof
from rnn_lowering.errors import RnnLoweringError, counted
from rnn_lowering.nodes.rnn import RecurrentSpec

_HALF_ROUNDINGS = {
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.DOUBLE: 2.0**-53,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}

_FUNCTIONS = 50
"""About so many are computed for each row in each step."""

_MOST_WEIGHTS = 1 << 24


def proofs_of(nodes: Iterable[NodePair]) -> tuple[NodeProof, ...]:
    """Return the proof of each lowered node, or why there is none."""
    effort = Effort()
    return tuple(_proof(node, effort) for node in nodes)


def _proof(node: NodePair, effort: Effort) -> NodeProof:
    name = str(node.spec.node)
    if effort.left < 0:
        return NodeProof(name, NOT_PROVEN, "the nodes before it are too large")
    try:
        prove(_claim(node), effort)
    except UnprovenError as error:
        return NodeProof(name, NOT_PROVEN, str(error))
    except MemoryError:
        return NodeProof(name, NOT_PROVEN, "too large")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RnnLoweringError) as error:
        return NodeProof(name, NOT_PROVEN, f"it does not run on symbols: {type(error).__name__}")
    T = node.spec.seq_length
    return NodeProof(name, PROVEN if T is None else f"{PROVEN} at {counted(T, 'step')}")


def _claim(node: NodePair) -> Claim:
    spec = node.spec
    if node.cut is None:
        raise UnprovenError("it has no part of the lowered model for itself")
    if not isinstance(spec, RecurrentSpec) or spec.rounds:
        raise UnprovenError(f"{spec.node.operator} has no equations")
    if node.below is not None:
        raise UnprovenError("it shares a loop with the layer below")
    steps, rows = (least if size is None else size for size, least in ((spec.seq_length, 5), (spec.batch_size, 3)))
    gates = len(spec.directions) * len(spec.cell.gates) * spec.hidden_size
    weights = gates * ((spec.input_size or 0) + spec.hidden_size)
    if steps * rows * len(spec.directions) * _FUNCTIONS > MOST_FUNCTIONS or weights > _MOST_WEIGHTS:
        raise UnprovenError("too large")
    shapes: dict[str, tuple[int | str, ...]] = {}
    for pair in (node, *node.beside):
        shapes |= _shapes(pair)
    lengths = {pair.feeds[s] for pair in (node, *node.beside) for s in pair.feeds if s == "sequence_lens"}
    models = [pair.whole() for pair in (*node.beside, node)]
    rounding = _HALF_ROUNDINGS[spec.dtype]
    return Claim(models, node.cut, shapes, spec.seq_length, spec.batch_size, frozenset(lengths), rounding)


def _shapes(node: NodePair) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the inputs of a node; "T" and "N" for the length and the batch size."""
    spec = node.spec
    arrays = node.fed(node.random_values(spec.seq_length or 1, spec.batch_size or 1))
    shapes = {}
    for symbol, array in arrays.items():
        axes = spec.axes(symbol) if symbol != "sequence_lens" else ("N",)
        shapes[node.feeds[symbol]] = tuple(axis or size for axis, size in zip(axes, np.shape(array), strict=True))
    return shapes
