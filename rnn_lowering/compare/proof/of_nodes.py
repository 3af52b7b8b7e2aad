"""The proof of each lowered node and of each converted Loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.node_pairs import NodePair
from rnn_lowering.compare.proof.obligations import Claim, prove
from rnn_lowering.compare.proof.of_loops import LoopPair, loop_pairs
from rnn_lowering.compare.proof.polynomials import MOST_FUNCTIONS, Effort, UnprovenError
from rnn_lowering.compare.result import NOT_PROVEN, PROVEN, NodeProof
from rnn_lowering.errors import RnnLoweringError, counted
from rnn_lowering.model.scopes import ScopePath

_HALF_ROUNDINGS = {
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.DOUBLE: 2.0**-53,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}

_FUNCTIONS = 50
"""About so many are computed for each row in each step."""

_FUNCTIONS_OF_ROW = 20
"""About so many are computed for each row of a state."""

_MOST_WEIGHTS = 1 << 24


def proofs_of(
    nodes: Iterable[NodePair], original: ir.Model | None = None, lowered: ir.Model | None = None
) -> tuple[NodeProof, ...]:
    """Return the proof of each lowered node, or why there is none; and of each Loop or Scan that was converted,
    if the models are given."""
    effort, of_nodes, of_loops = Effort(), [], dict[ScopePath, NodeProof]()
    for loop in () if original is None or lowered is None else loop_pairs(original, lowered):
        of_loops[loop.path] = _proof(str(loop.ref), partial(_claim_of_loop, loop), effort)
    for node in nodes:
        around = next((of_loops[loop] for loop in of_loops if node.place[: len(loop)] == loop), None)
        if node.cut is None and around is not None:
            of_nodes.append(replace(around, node=str(node.spec.node)))
        else:
            of_nodes.append(_proof(str(node.spec.node), partial(_claim, node), effort))
    return (*of_nodes, *of_loops.values())


def _proof(name: str, claim: Callable[[], Claim], effort: Effort) -> NodeProof:
    if effort.left < 0:
        return NodeProof(name, NOT_PROVEN, "the nodes before it are too large")
    try:
        steps = prove(claim(), effort)
    except UnprovenError as error:
        return NodeProof(name, NOT_PROVEN, str(error))
    except MemoryError:
        return NodeProof(name, NOT_PROVEN, "too large")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RnnLoweringError) as error:
        return NodeProof(name, NOT_PROVEN, f"it does not run on symbols: {type(error).__name__}")
    return NodeProof(name, PROVEN if steps is None else f"{PROVEN} at {counted(steps, 'step')}")


def _claim_of_loop(loop: LoopPair) -> Claim:
    if loop.original is None or loop.lowered is None:
        raise UnprovenError(loop.reason)
    given = dict.fromkeys(size for shape in loop.shapes.values() for size in shape if isinstance(size, str))
    names = {size: f"size {n}" for n, size in enumerate(given)}  # none is that of a counter
    shapes = {
        name: [names[size] if isinstance(size, str) else size for size in shape]
        for name, shape in loop.shapes.items()
    }
    sizes = dict[str, int | None](dict.fromkeys(names.values()))
    return Claim([loop.original], loop.lowered, shapes, sizes, frozenset(), _HALF_ROUNDINGS[loop.dtype])


def _claim(node: NodePair) -> Claim:
    spec = node.spec
    if node.cut is None:
        raise UnprovenError("it has no part of the lowered model for itself")
    if node.below is not None:
        raise UnprovenError("it shares a loop with the layer below")
    steps, rows = (least if size is None else size for size, least in ((spec.seq_length, 5), (spec.batch_size, 3)))
    weights = sum(math.prod(tensor.shape.numpy()) for tensor in spec.stored.values())
    of_states = getattr(spec, "state_heads", 0) * getattr(spec, "key_size", 0)  # those of a LinearAttention
    functions = max(_FUNCTIONS, _FUNCTIONS_OF_ROW * of_states)
    if steps * rows * len(spec.directions) * functions > MOST_FUNCTIONS or weights > _MOST_WEIGHTS:
        raise UnprovenError("too large")
    shapes: dict[str, tuple[int | str, ...]] = {}
    for pair in (node, *node.beside):
        shapes |= _shapes(pair)
    lengths = {pair.feeds[s] for pair in (node, *node.beside) for s in pair.feeds if s == "sequence_lens"}
    models = [pair.whole() for pair in (*node.beside, node)]
    rounding = _HALF_ROUNDINGS[spec.dtype]
    sizes = {"T": spec.seq_length, "N": spec.batch_size}
    return Claim(models, node.cut, shapes, sizes, frozenset(lengths), rounding, spec.rounds)


def _shapes(node: NodePair) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the inputs of a node; "T" and "N" for the length and the batch size."""
    spec = node.spec
    arrays = node.fed(node.random_values(spec.seq_length or 1, spec.batch_size or 1))
    shapes = {}
    for symbol, array in arrays.items():
        axes = spec.axes(symbol) if symbol != "sequence_lens" else ("N",)
        shapes[node.feeds[symbol]] = tuple(axis or size for axis, size in zip(axes, np.shape(array), strict=True))
    return shapes
