"""What must hold so that a lowered node is proven, and `prove`, which checks it.

1. The node and what replaced it compute equal polynomials, output by output, at a few lengths and batch sizes.
2. Each element follows the length of one sequence (`sequences`).
3. Sizes, lengths and counters meet only each other and -1, 0 and 1 (`sizes`), and those sizes are larger than all
   moves of rows along an open axis (`axes`), so both do the same at all sizes.
4. After each step, each state of a loop is a state of the node, so they are equal at every length (`loops`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx

from rnn_lowering.compare.proof.axes import Moves, RunSizes, SizesMeetError
from rnn_lowering.compare.proof.equations import Specification
from rnn_lowering.compare.proof.loops import CONTROL
from rnn_lowering.compare.proof.machine import Machine
from rnn_lowering.compare.proof.operators import OPERATORS
from rnn_lowering.compare.proof.polynomials import Effort, UnprovenError
from rnn_lowering.compare.proof.sequences import marks_of, within
from rnn_lowering.compare.proof.sizes import LENGTH, counter, integers
from rnn_lowering.compare.proof.symbolic_rows import SymbolicRows
from rnn_lowering.types import Array

_MOST_SIZES = 3
"""So many may be open."""

_MOST_TRIED = 16
"""So many sizes are tried, if they meet or rows are moved farther than was thought."""

_MOST_LENGTHS = 256
"""So many at once are tried."""

_ROUNDINGS, _MOST_SLACK = 2.0**9, 2.0**-5
"""So many half roundings, but no more than that, may explain that a coefficient is another."""


@dataclass(frozen=True)
class LayersAhead:
    """Layers that share a loop, in which each is a step ahead of the one above: it takes rows of zeros at the end.

    Attributes:
        layers: Models of the layers, the lowest first, each from Y of the one below.
        names: X of the lowest, and Y of each that has one above.
        axis: The axis of their rows.
        backwards: Whether they begin with the last row.
    """

    layers: Sequence[onnx.ModelProto]
    names: Sequence[str]
    axis: int
    backwards: bool

    def name_states(self, specified: Specification, inputs: Mapping[str, Array]) -> None:
        """Let the specification take the steps of each layer that the loop takes."""
        known, steps = dict(inputs), inputs[self.names[0]].shape[self.axis]
        for n, (layer, name) in enumerate(zip(self.layers, self.names, strict=True)):
            known[name] = self._shorter(known[name]) if n else self._longer(specified, known[name])
            specified.axes.joined([steps], known[name].shape[self.axis])
            _run(specified, layer, known)

    def _longer(self, specified: Specification, x: Array) -> Array:
        shape = list(x.shape)
        shape[self.axis] = len(self.layers) - 1
        parts = [specified.rows.zeros(shape), x]
        return np.concatenate(parts if self.backwards else parts[::-1], self.axis)

    def _shorter(self, y: Array) -> Array:
        return np.delete(y, 0 if self.backwards else -1, self.axis)


@dataclass(frozen=True)
class Claim:
    """That a graph computes what nodes do.

    Attributes:
        nodes: Models of the nodes whose steps the graph may take, the claimed one last.
        lowered: The graph.
        shapes: The shape of each input.
        sizes: What the sizes are that shapes name; None if they are open.
        lengths: The inputs that are lengths of sequences.
        rounding: Half a rounding of 1 in the type of the node.
        rounds: Whether products of the node round their operands to 8 bits.
        ahead: The layers that share a loop with the node; None if it has its own.
    """

    nodes: Sequence[onnx.ModelProto]
    lowered: onnx.ModelProto
    shapes: Mapping[str, Sequence[int | str]]
    sizes: Mapping[str, int | None]
    lengths: frozenset[str]
    rounding: float
    rounds: bool = False
    ahead: LayersAhead | None = None

    @property
    def more_steps(self) -> int:
        """How many steps more than the others the lowest of the layers takes that share a loop."""
        return 0 if self.ahead is None else len(self.ahead.layers) - 1

    def kinds_of_size(self, name: str, far: int) -> tuple[int, ...]:
        """Return a size of an axis of each kind, if rows are moved so far; the last stands for all larger ones.

        At that, a row may be far from its ends and from the end of a shorter sequence, and that from them; at the
        others rows that are near these ends are the same ones.
        """
        ends = 2 if name == "T" and self.lengths else 1
        return (*range(1, 2 * ends * far + ends + 1), 2 * ends * far + 3 * ends)


@np.errstate(all="ignore")
def prove(claim: Claim, effort: Effort | None = None) -> int | None:
    """Check a claim; return how many steps the claimed node takes, None if that is open.

    Raises:
        UnprovenError: It is not proven, with the reason.
    """
    rows = SymbolicRows(effort or Effort(), min(claim.rounding * _ROUNDINGS, _MOST_SLACK))
    try:
        return _proved(claim, rows)
    finally:
        rows.algebra.end()


def _proved(claim: Claim, rows: SymbolicRows) -> int | None:
    """Check a claim; return how many steps the claimed node takes, None if that is open."""
    known = {name: size for name, size in claim.sizes.items() if size is not None}
    names = [name for name, size in claim.sizes.items() if size is None]
    taken, moves = _large_sizes(claim, rows, known, names)
    small = [claim.kinds_of_size(name, moves[name]) for name in names]
    for sizes in list(product(*small))[:-1]:
        _check_at(claim, rows, known | dict(zip(names, sizes, strict=True)), RunSizes({}, None))
    return taken


def _large_sizes(
    claim: Claim, rows: SymbolicRows, known: dict[str, int], names: Sequence[str]
) -> tuple[int | None, Moves]:
    """Compare the outputs at sizes that no constant has, and so large that rows in the middle stay in the middle;
    return how many steps the claimed node takes, and how far rows are moved."""
    if not names:
        return _check_at(claim, rows, known, RunSizes({}, None)), Moves()
    fixed = frozenset({0, 1, *_constant_sizes(claim)})
    moves = Moves(T=claim.more_steps)  # a first guess
    met, reason = frozenset[tuple[str, int]](), "sizes meet"
    while len(met) <= _MOST_TRIED:
        sizes = _clear_sizes(claim, names, fixed, moves, met)
        axes, met = RunSizes(sizes, fixed), met | set(sizes.items())
        try:
            taken, reason = _check_at(claim, rows, known | sizes, axes), ""
            moves = axes.farthest
            if axes.is_apart(moves) and all(
                sizes[name] >= claim.kinds_of_size(name, moves[name])[-1] for name in names
            ):
                return taken, moves
        except SizesMeetError as error:
            moves, reason = moves | axes.farthest, str(error)
        fixed |= axes.fixed or set()
    raise UnprovenError(reason)


def _clear_sizes(
    claim: Claim, names: Sequence[str], fixed: frozenset[int], moves: Moves, met: frozenset[tuple[str, int]]
) -> dict[str, int]:
    """Return the smallest sizes that are large enough, that no constant has, and that were not tried."""
    if len(names) > _MOST_SIZES:
        raise UnprovenError("too many sizes are open")
    most = 64 if len(names) < _MOST_SIZES else 20
    least = ((name, claim.kinds_of_size(name, moves[name])[-1]) for name in names)
    longer = {"T": claim.more_steps}
    kinds = (
        [
            n
            for n in range(size, most)
            if fixed.isdisjoint(range(n, n + 1 + longer.get(name, 0))) and (name, n) not in met
        ]
        for name, size in least
    )
    for numbers in sorted(product(*kinds), key=math.prod):
        axes = RunSizes(sizes := dict(zip(names, numbers, strict=True)), fixed)
        if axes.are_clear and axes.is_apart(moves):
            return sizes
    raise UnprovenError("too large")


def _constant_sizes(claim: Claim) -> Iterator[int]:
    """Yield sizes that are not open; a run notes the others."""
    yield from (size for shape in claim.shapes.values() for size in shape if isinstance(size, int))
    yield from filter(None, claim.sizes.values())
    for model in (*claim.nodes, claim.lowered):
        yield from (size for tensor in model.graph.initializer for size in tensor.dims)


def _lengths(claim: Claim, sizes: Mapping[str, int]) -> Iterator[Sequence[int]]:
    """Yield lengths of the sequences: each row has each length; all together, if the node rounds by all rows."""
    T, N = (sizes[size] if claim.lengths else 0 for size in ("T", "N"))
    if claim.rounds:
        if (T + 1) ** N > _MOST_LENGTHS:
            raise UnprovenError("its rows round by one range, and have too many lengths")
        yield from product([T, *range(T)], repeat=N)
    else:
        yield from ([(first + row) % (T + 1) for row in range(N)] for first in range(T, -1, -1))


def _check_at(claim: Claim, rows: SymbolicRows, sizes: Mapping[str, int], axes: RunSizes) -> int | None:
    """Compare the outputs at some sizes; return how many steps the claimed node takes, None if that is open."""
    taken = [_check_run(claim, rows, sizes, axes, lengths) for lengths in _lengths(claim, sizes)]
    return taken[0]


def _check_run(
    claim: Claim, rows: SymbolicRows, sizes: Mapping[str, int], axes: RunSizes, lengths: Sequence[int]
) -> int | None:
    """Compare the outputs at some sizes; return how many steps the claimed node takes, None if that is open."""
    rows.begin_run()
    inputs = {
        name: integers(
            [counter(x, f"{LENGTH}{n}", axes.of(sizes["T"])) for n, x in enumerate(lengths)], (len(lengths),)
        )
        if name in claim.lengths
        else rows.symbols([sizes[size] if isinstance(size, str) else size for size in shape], "input", name)
        for name, shape in claim.shapes.items()
    }
    specified = Specification(rows, axes, claim.rounding, rounds=claim.rounds)
    if claim.ahead is not None:
        claim.ahead.name_states(specified, inputs)
    outputs: list[Array] = []
    known = dict(inputs)
    for model in claim.nodes:
        outputs = _run(specified, model, known)
    rows.algebra.is_specified = False
    machine = Machine(rows, axes, claim.rounding, CONTROL, OPERATORS, marks_of)
    for name in claim.lengths if not claim.rounds else ():
        machine.marked(inputs[name], np.arange(1, len(lengths) + 1))
    where = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    for expected, got in zip(outputs, machine.run(claim.lowered.graph, inputs), strict=True):
        if expected.shape != got.shape:
            raise UnprovenError(f"the shapes differ at {where}")
        if not machine.equal(expected, got):
            raise UnprovenError(f"polynomials differ at {where}")
        if not within(specified.marks(expected), machine.marks(got)):
            raise UnprovenError("an output depends on the length of another sequence")
    return specified.taken


def _run(specified: Specification, model: onnx.ModelProto, known: dict[str, Array]) -> list[Array]:
    """Run a model on known values; return its outputs, which are then known by name too."""
    outputs = specified.run(model.graph, known)
    known.update(zip((v.name for v in model.graph.output), outputs, strict=True))
    return outputs
