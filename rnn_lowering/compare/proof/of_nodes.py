"""The proof of each lowered node and of each converted Loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from threading import Event

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare.node_pairs import NodePair
from rnn_lowering.compare.proof.machine import HALF_ROUNDINGS
from rnn_lowering.compare.proof.obligations import Claim, LayersAhead, prove
from rnn_lowering.compare.proof.of_loops import LoopPair, loop_pairs
from rnn_lowering.compare.proof.polynomials import MOST_FUNCTIONS, Effort, UnprovenError
from rnn_lowering.compare.result import NOT_PROVEN, PROVEN, NodeProof
from rnn_lowering.errors import RnnLoweringError, counted
from rnn_lowering.libraries import without_collector
from rnn_lowering.model.scopes import NodePlace, ScopePath

_FUNCTIONS = 50
"""About so many are computed for each row in each step."""

_FUNCTIONS_OF_ROW = 20
"""About so many are computed for each row of a state."""

_MOST_WEIGHTS = 1 << 24


@without_collector()
def proofs_of(
    nodes: Iterable[NodePair],
    original: ir.Model | None = None,
    lowered: ir.Model | None = None,
    given_up: Event | None = None,
) -> tuple[NodeProof, ...]:
    """Return the proof of each lowered node, or why there is none; and of each Loop or Scan that was converted,
    if the models are given. It ends early if the proofs are given up."""
    nodes = list(nodes)
    stacks = _stacks(nodes)
    effort, of_nodes, of_loops = Effort(given_up), [], dict[ScopePath, NodeProof]()
    for loop in () if original is None or lowered is None else loop_pairs(original, lowered):
        of_loops[loop.path] = _proof(str(loop.ref), partial(_claim_of_loop, loop), effort)
    for node in nodes:
        around = next((of_loops[loop] for loop in of_loops if node.place[: len(loop)] == loop), None)
        if node.cut is None and around is not None:
            of_nodes.append(replace(around, node=str(node.spec.node)))
        else:
            of_nodes.append(_proof(str(node.spec.node), partial(_claim, node, stacks[node.place]), effort))
    return (*of_nodes, *of_loops.values())


def _proof(name: str, claim: Callable[[], Claim], effort: Effort) -> NodeProof:
    if effort.is_spent:
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
    rounding = min((half for dtype, half in HALF_ROUNDINGS.items() if dtype in loop.types), default=2.0**-24)
    return Claim([loop.original], loop.lowered, shapes, sizes, frozenset(), rounding)


def _stacks(nodes: Iterable[NodePair]) -> dict[NodePlace, list[NodePair]]:
    """Return each node and the layers that share its loop, the lowest first, by the places of all of them."""
    found = dict[NodePlace, list[NodePair]]()
    for top in nodes:
        stack = [top, *top.layers_below()][::-1]
        found |= {layer.place: max(found.get(layer.place, []), stack, key=len) for layer in stack}
    return found


def _claim(node: NodePair, stack: Sequence[NodePair]) -> Claim:
    spec = node.spec
    if node.cut is None:
        raise UnprovenError("it has no part of the lowered model for itself")
    _check_outputs(stack)
    steps, rows = (least if size is None else size for size, least in ((spec.seq_length, 5), (spec.batch_size, 3)))
    weights = sum(math.prod(tensor.shape.numpy()) for tensor in spec.stored.values())
    of_states = getattr(spec, "state_heads", 0) * getattr(spec, "key_size", 0)  # those of a LinearAttention
    functions = max(_FUNCTIONS, _FUNCTIONS_OF_ROW * of_states)
    if steps * rows * len(spec.directions) * functions > MOST_FUNCTIONS or weights > _MOST_WEIGHTS:
        raise UnprovenError("too large")
    pairs = {pair.place: pair for pair in (*node.beside, *stack)}.values()
    shapes = {name: shape for pair in pairs for name, shape in _shapes(pair).items()}
    lengths = {pair.feeds[s] for pair in pairs for s in pair.feeds if s == "sequence_lens"}
    places = [layer.place for layer in stack]
    layers = [layer.layer() for layer in stack]
    models = [pair.whole() for pair in node.beside if pair.place not in places]
    models += [*layers[: places.index(node.place)], node.layer()]
    rounding = HALF_ROUNDINGS[spec.dtype]
    sizes = {"T": spec.seq_length, "N": spec.batch_size}
    ahead = _ahead(stack, layers) if len(stack) > 1 else None
    return Claim(models, node.cut, shapes, sizes, frozenset(lengths), rounding, spec.rounds, ahead)


def _check_outputs(stack: Sequence[NodePair]) -> None:
    """Raise if something reads what the lowered model has no more, other than the layer above in the same loop."""
    for layer, above in zip_longest(stack, stack[1:]):
        for value in layer.lost:
            reader = None if above is None else next(iter(above.between), above.entry.node)
            if value.is_graph_output() or any(use.node is not reader for use in value.uses()):
                raise UnprovenError(f"the lowered model has no '{value.name}'")


def _ahead(stack: Sequence[NodePair], layers: Sequence[onnx.ModelProto]) -> LayersAhead:
    """Return layers of a loop, in which each is a step ahead of the one above."""
    lowest = stack[0].spec
    if lowest.rounds or any("sequence_lens" in layer.spec.inputs for layer in stack):
        raise UnprovenError("it shares a loop with the layer below")
    names = [stack[0].feeds[lowest.data], *(layer.spec.outputs["Y"].name or "" for layer in stack[:-1])]
    axis = lowest.axes(lowest.data).index("T")
    return LayersAhead(layers, names, axis, lowest.directions == ("reverse",))


def _shapes(node: NodePair) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the inputs of a node; "T" and "N" for the length and the batch size."""
    spec = node.spec
    arrays = node.fed(node.random_values(spec.seq_length or 1, spec.batch_size or 1))
    if node.below is not None:
        arrays = {symbol: array for symbol, array in arrays.items() if symbol != spec.data}
    shapes = {}
    for symbol, array in arrays.items():
        axes = spec.axes(symbol) if symbol != "sequence_lens" else ("N",)
        shapes[node.feeds[symbol]] = tuple(axis or size for axis, size in zip(axes, np.shape(array), strict=True))
    return shapes
