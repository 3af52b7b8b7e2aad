"""The mask of an attention: which keys it keeps for each query, as a function of their distance.

`mask_of` reads the masks and biases of scores (`Term`), derives that they depend on the distance alone, and
evaluates them once, up to the distance beyond which they are constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.operators import in_order, inputs_of
from rnn_lowering.facts.size import Size, Symbol, size
from rnn_lowering.streaming.attention.distances import Distances, Positions, as_distances
from rnn_lowering.streaming.attention.positions import Numbers, UnknownError
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.frames import Pairs, Term
from rnn_lowering.streaming.sizes import CHUNK, TIME, least_of
from rnn_lowering.types import Array

REMOVES = -1e4
"""What is added to a score removes its key from this number down: exp() of the difference is 0."""

_STRONG = -1e8
"""What removes a key also if a bias grows with the distance."""

_MOST_NUMBERS = 1 << 22
"""Maximum numbers of a mask that is evaluated."""


@dataclass(frozen=True)
class Bias:
    """What a term adds to the scores of the keys that are kept.

    Attributes:
        term: The term.
        value: What it adds.
        constant: Whether it is the same beyond `reach`.
        reach: A distance in frames.
    """

    term: Term
    value: ir.Value
    constant: bool
    reach: int


@dataclass(frozen=True)
class Mask:
    """Which keys are kept: frame j for the query of frame i, by the distance i - j.

    Attributes:
        back: How many frames before its own a query sees at most; None: all.
        ahead: How many frames behind its own it sees.
        cell: The mask also depends on the position in a chunk of this many frames, of which whole ones are given.
        kept: A matrix of rows i and columns j that shows all distances up to `back` and `ahead`.
        biases: What is added to the scores of the keys that are kept.
        rows: The number of frames for which it is known; None: any.
    """

    back: int | None
    ahead: int
    cell: int
    kept: Array = field(compare=False)
    biases: tuple[Bias, ...] = ()
    rows: int | None = None

    @property
    def later(self) -> int:
        """How many frames behind its own a query sees, in its chunk or behind it."""
        return self.ahead if self.cell == 1 else self.cell - 1

    def keeps(self, rows: Array, columns: Array) -> Array:
        """Return which keys it keeps, by the frames of the queries and of the keys, also beyond those of `kept`."""
        first, last = np.minimum(rows, columns) // self.cell * self.cell, len(self.kept) - 1
        return np.asarray(self.kept[np.minimum(rows - first, last), np.minimum(columns - first, last)])

    @property
    def is_contiguous(self) -> bool:
        """Whether each key between the first and the last one is kept."""
        i, j = np.indices(self.kept.shape)
        if self.cell > 1:
            apart = i // self.cell - j // self.cell
            last = math.inf if self.back is None else self.back // self.cell
            return bool((self.kept == ((apart >= 0) & (apart <= last))).all())
        last = math.inf if self.back is None else self.back
        return bool((self.kept == ((i - j >= -self.ahead) & (i - j <= last))).all())


def mask_of(flow: Flow, node: ir.Node, pairs: Pairs) -> Mask:
    """Return the mask of scores that a Softmax reads.

    Raises:
        UnsupportedError: It depends on more than the distance, or keeps all later frames.
    """
    positions = Positions(flow.known)
    by_term = [(term, _distances(flow, positions, term, pairs)) for term in pairs.terms]
    varying = [(term, known) for term, known in by_term if known is not None]
    if not varying:
        raise _sees_all(flow, node)
    cell = math.lcm(*(known.cell for _, known in varying))
    rows = least_of(*(known.rows for _, known in varying))
    count = _count_shown(flow, node, max(known.reach for _, known in varying), cell, rows)
    removed, biases = np.zeros((count, count), bool), list[Bias]()
    beyond = [False, False]
    for term, known in varying:
        hidden = _removed(flow, term, pairs, count)
        if not np.array_equal(hidden[cell:, cell:], hidden[:-cell, :-cell]):
            raise _of_position(flow, term)
        removed |= hidden
        ends = (hidden[:cell, -1].all(), hidden[-cell:, 0].all())
        beyond = [b or (bool(end) and t.is_constant) for b, end, t in zip(beyond, ends, known.tails, strict=True)]
    for term, own_distances in by_term:
        biases += _bias(flow, term, pairs, own_distances, ~removed)
    mask = _checked(flow, node, ~removed, beyond, cell, tuple(biases), rows)
    open_ended = [term for term, known in varying if term.removes is not None and not known.tails[1].is_constant]
    if mask.back is None and open_ended:
        raise _not_constant(flow, open_ended[0])
    _check_sums(flow, node, pairs, dict(varying), removed)
    return mask


def masked_again(flow: Flow, pairs: Pairs, mask: Mask, term: Term) -> Mask:
    """Return the mask of scores whose weights are masked again, as by `masked_fill(mask, 0)` behind the Softmax.

    Raises:
        UnsupportedError: That changes the weight of a key that the scores keep. All other weights are 0 already.
    """
    distances = _distances(flow, Positions(flow.known), term, pairs)
    reach, cell = (0, mask.cell) if distances is None else (distances.reach, math.lcm(distances.cell, mask.cell))
    rows = least_of(mask.rows, None if distances is None else distances.rows)
    count = _count_shown(flow, term.node, max(reach, len(mask.kept)), cell, rows)
    changed = _changed_weights(flow, term, _matrix_of(flow, term, pairs, count))
    if distances is not None and (changed[cell:, cell:] != changed[:-cell, :-cell]).any():
        raise _of_position(flow, term)
    # a factor of later keys may grow to infinity, and 0 times that is NaN
    tails = () if distances is None else distances.tails[1:] if term.removes is not None else distances.tails
    known = all(tail.is_constant for tail in tails)
    if not known or (changed & mask.keeps(*np.indices((count, count)))).any():
        raise flow.refuse(
            term.node,
            "changes weights of keys that the mask of the scores keeps",
            "mask the scores alone, before the Softmax",
        )
    return replace(mask, rows=rows)


def _changed_weights(flow: Flow, term: Term, numbers: Array) -> Array:
    """Return for which pairs a term changes a weight of any row or head: sets it to 0, or multiplies it."""
    if not np.isfinite(numbers.astype(np.float64)).all():
        raise flow.refuse(term.node, "multiplies weights by numbers that are not finite", "multiply by 0 or 1")
    changed = _removing(term, numbers) if term.removes is not None else np.not_equal(numbers, 1)
    return np.asarray(changed.reshape(-1, *numbers.shape[-2:]).any(0))


def _check_sums(flow: Flow, node: ir.Node, pairs: Pairs, varying: Mapping[Term, Distances], removed: Array) -> None:
    """Refuse biases that could bring a removed key back, or remove the own frame of a query."""
    total, grows = np.zeros(removed.shape), False
    for term in varying:
        matrices = _matrix_of(flow, term, pairs, len(removed)).astype(np.float64).reshape(-1, *removed.shape)
        highest = matrices.max(0) if term.factor > 0 else matrices.min(0)
        if term.removes is not None:
            number = term.fill(flow.known)
            fill = -np.inf if number is None else number * term.factor
            total, grows = np.where(_removed(flow, term, pairs, len(removed)), fill, total), False
        else:
            total = total + highest * term.factor
            grows = grows or not varying[term].tails[0].is_constant
    least = _STRONG if grows else REMOVES / 2
    if np.isnan(total).any() or (total[removed] > least).any() or (total.diagonal() < REMOVES / 2).any():
        raise flow.refuse(
            node, "has a bias as large as its mask, so a key may not be removed", "mask with -inf, after the bias"
        )


def _count_shown(flow: Flow, node: ir.Node, reach: int, cell: int, rows: int | None) -> int:
    """Return how many frames show a function of the distance that does not change beyond its reach."""
    count = -(-(2 * (reach + cell) + 8) // cell) * cell
    count = count if rows is None else min(count, rows)
    _check_size(flow, node, count)
    return count


def _check_size(flow: Flow, node: ir.Node, count: int) -> None:
    if count * count > _MOST_NUMBERS:
        most = math.isqrt(_MOST_NUMBERS) // 2
        raise flow.refuse(
            node, f"its mask changes at a distance of more than {most} frames", "use a shorter window"
        )


def _checked(
    flow: Flow,
    node: ir.Node,
    kept: Array,
    beyond: Sequence[bool],
    cell: int,
    biases: tuple[Bias, ...],
    rows: int | None,
) -> Mask:
    """Return a mask that keeps the own frame of each query and removes later ones from some distance on."""
    if not beyond[0]:
        raise _sees_all(flow, node)
    if not kept.diagonal().all():
        first = int(np.argmin(kept.diagonal()))
        if kept[first].any():
            raise flow.refuse(node, f"its mask hides frame {first} from itself", "keep the diagonal of the mask")
        raise flow.refuse(node, f"its mask keeps no frame for frame {first}", "keep the diagonal of the mask")
    i, j = np.nonzero(kept)
    ahead, back = int((j - i).max()), None if not beyond[1] else int((i - j).max())
    if cell == 1:
        return Mask(back, ahead, 1, kept, biases, rows)
    if (j // cell > i // cell).any():
        raise flow.refuse(
            node, f"sees frames behind its chunk of {cell}", "let each frame see the end of its own chunk at most"
        )
    back = None if back is None else int((i // cell - j // cell).max()) * cell
    return Mask(back, 0, cell, kept, biases, rows)


def _sees_all(flow: Flow, node: ir.Node) -> UnsupportedError:
    return flow.refuse(
        node,
        "weighs each frame by all of them, also later ones",
        "mask later frames with -inf or at most -1e4; train with a causal mask",
    )


def _of_position(flow: Flow, term: Term) -> UnsupportedError:
    return flow.refuse(
        term.node,
        f"its mask or bias '{input_of(term.node, term.slot).name}' depends on the position itself, not on the "
        "distance",
        "use a mask or a bias of i - j",
    )


def _not_constant(flow: Flow, term: Term) -> UnsupportedError:
    name = input_of(term.node, term.slot).name
    return flow.refuse(
        term.node, f"its mask or bias '{name}' may remove keys at any distance", "use a mask or a bias of i - j"
    )


def _distances(flow: Flow, positions: Positions, term: Term, pairs: Pairs) -> Distances | None:
    """Return what is known of a term by the distance i - j; None if it is the same for all pairs."""
    value = input_of(term.node, term.slot)
    try:
        distances = as_distances(positions.of(value))
    except UnknownError as error:
        raise flow.refuse(
            term.node, f"its mask or bias '{value.name}' {error}", "use a mask or a bias of i - j"
        ) from error
    if isinstance(distances, Numbers):
        least = min(distances.low * term.factor, distances.high * term.factor)
        kept = least > REMOVES if term.removes is None else distances.uniform == float(not term.removes)
        if not kept:
            raise flow.refuse(term.node, "removes keys at all distances", "use a mask or a bias of i - j")
        return None
    offset = len(flow.shape(term.node.outputs[0], term.node)) - len(flow.shape(value, term.node))
    axes = tuple(axis + offset for axis in distances.axes)
    if axes != tuple(sorted(term.axes)):
        raise flow.refuse(
            term.node, f"its mask '{value.name}' has frames on other axes", "use a mask or a bias of i - j"
        )
    rows, columns = pairs.axes_of(term)
    return distances if rows < columns else replace(distances, tails=(distances.tails[1], distances.tails[0]))


def _matrix_of(flow: Flow, term: Term, pairs: Pairs, count: int) -> Array:
    """Return the numbers of a term for so many of its own frames: its other axes, the queries, the keys."""
    value, output = input_of(term.node, term.slot), term.node.outputs[0]
    rank, rate = len(flow.shape(output, term.node)), pairs.frames.rate
    calls = max(-(-(count - pairs.frames.extra) // rate.numerator), 1)  # all sizes are whole after each
    array = _evaluated(flow, term, value, calls * rate.denominator)
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    moved = np.moveaxis(array, pairs.axes_of(term), (-2, -1))[..., :count, :count]
    if not {*moved.shape[-2:]} <= {1, count}:  # a table has fewer rows
        raise _not_computed(flow, term, value)
    return np.broadcast_to(moved, (*moved.shape[:-2], count, count))


def _removed(flow: Flow, term: Term, pairs: Pairs, count: int) -> Array:
    """Return for which pairs a term removes the key."""
    matrix = _matrix_of(flow, term, pairs, count)
    removed = _removing(term, matrix)
    first = removed.reshape(-1, count, count)[0]
    if not (removed == first).all():
        raise flow.refuse(
            term.node, "its mask differs from head to head or from row to row", "use one mask for all of them"
        )
    return np.asarray(first)


def _removing(term: Term, numbers: Array) -> Array:
    if term.removes is not None:
        return np.asarray(numbers.astype(bool) == term.removes)
    return numbers.astype(np.float64) * term.factor <= REMOVES


def _bias(flow: Flow, term: Term, pairs: Pairs, found: Distances | None, kept: Array) -> list[Bias]:
    """Return the bias of a term; none if it only removes keys."""
    if term.removes is not None or found is None:
        return []
    matrix = _matrix_of(flow, term, pairs, len(kept)).astype(np.float64)
    kept_numbers = np.where(kept & ~_removing(term, matrix), matrix, 0.0)
    if np.isnan(matrix).any() or np.isposinf(matrix * term.factor).any():
        raise flow.refuse(term.node, "adds numbers that are not finite", "mask with -inf, after the bias")
    constant = found.tails[1].is_constant
    if constant and not kept_numbers.any():
        return []
    if found.cell > 1:
        raise flow.refuse(
            term.node, "adds a bias that depends on the position in its chunk", "use a mask or a bias of i - j"
        )
    return [Bias(term, input_of(term.node, term.slot), constant, found.reach)]


def by_distance(flow: Flow, bias: Bias, pairs: Pairs, ahead: int, back: int) -> Array:
    """Return what a bias adds at the distances from -ahead to back: its other axes, then these."""
    _check_size(flow, bias.term.node, ahead + back + 1)
    matrix = _matrix_of(flow, bias.term, pairs, ahead + back + 1)
    removed = _removing(bias.term, matrix)
    if not bias.constant:  # the mask does not show which past keys it removes far away
        past = np.asarray(np.tri(*matrix.shape[-2:]) > 0)
        if np.isinf(matrix[..., past]).any():
            raise _not_constant(flow, bias.term)
        removed = np.asarray(removed & ~past)
    matrix = np.where(removed, np.zeros((), matrix.dtype), matrix)
    later, earlier = matrix[..., 0, ahead:0:-1], matrix[..., back, back::-1]
    return np.concatenate([later, earlier], -1) if ahead else earlier


def _evaluated(flow: Flow, term: Term, value: ir.Value, count: int) -> Array:
    """Return the numbers of a value that is computed from positions, for so many frames of the stream."""
    done: dict[ir.Value, Array] = {}

    def needed(current: ir.Value) -> list[ir.Value]:
        return [] if current in flow.known.contents else inputs_of(current)

    for current in in_order(value, needed, done):
        held = _held(flow, term, current, count)
        done[current] = held if held is not None else _computed(flow, term, current, done)
    return done[value]


def _held(flow: Flow, term: Term, value: ir.Value, count: int) -> Array | None:
    """Return constants and sizes; None for other values."""
    known: KnownValues = flow.known
    array = known.contents.get(value)
    if array is None:
        return None
    if array.dtype == object:
        numbers = [_at(size(n), count) for n in array.reshape(-1).tolist()]
        array = np.array([int(n) for n in numbers], known.types[value].numpy()).reshape(array.shape)
    shape = [int(_at(dim, count)) for dim in known.shapes.get(value, ())]
    if math.prod(shape) > _MOST_NUMBERS:
        raise _not_computed(flow, term, value)
    return np.broadcast_to(array, shape) if shape else array.reshape(())


def _at(number: Size, count: int) -> float:
    """Return a size at a number of frames; open sizes, which only repeat the mask, are 1."""
    symbols: Mapping[Symbol, int] = dict.fromkeys(number.symbols, 1)
    return float(number.at({**symbols, TIME: count, CHUNK: 0}))


def _computed(flow: Flow, term: Term, value: ir.Value, done: Mapping[ir.Value, Array]) -> Array:
    node = value.producer()
    results = (
        [] if node is None else compute_node(node, {v: done[v] for v in node.inputs if v is not None}, flow.opset)
    )
    if not results or results[0].size > _MOST_NUMBERS:
        raise _not_computed(flow, term, value)
    return results[0]


def _not_computed(flow: Flow, term: Term, value: ir.Value) -> UnsupportedError:
    return flow.refuse(
        term.node, f"its mask or bias '{value.name}' cannot be computed", "use a mask or a bias of i - j"
    )
