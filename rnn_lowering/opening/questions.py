"""Numbers that may follow an open size or not: the size that they give is unknown until another axis must equal it.

`x[:, 4:]` of 16 frames may leave out 4 of any number, or keep the last 12. A sum with `x[:, :-4]` says the first, a
sum with a table of 12 rows the second. If nothing says it, the number is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import count

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.operators import BEFORE_THE_START, TO_THE_END
from rnn_lowering.facts.size import Shape, Size, Symbol, size
from rnn_lowering.nodes.kinds import node_ref

_HINT = "export the model with this axis dynamic, or at a size that no other axis has"

Numbers = Sequence[Size]

SCOPE = "rnn_lowering/scope"
"""The key of a node's scope."""


def ref(node: ir.Node) -> NodeRef:
    """Return what to call a node."""
    return node_ref(node, str(node.meta.get(SCOPE, "main graph")))


def refuse(node: ir.Node, fact: str, hint: str = _HINT) -> UnsupportedError:
    """Return the error that refuses a node."""
    return UnsupportedError(fact, hint=hint, node=ref(node))


@dataclass(frozen=True)
class Opened:
    """A parameter of a node whose numbers were sizes, and what they are now."""

    node: ir.Node
    name: str
    numbers: tuple[Size, ...]


@dataclass(frozen=True)
class Question:
    """A size that follows from what a number means.

    Attributes:
        node: The node that has the number.
        axis: The axis of its output that has the size.
        fact: Why the node is refused if nothing tells the size.
        answer: Returns the numbers for a size; None if no number gives it.
    """

    node: ir.Node
    axis: int
    fact: str
    answer: Callable[[Size], Opened | None]


@dataclass
class Questions:
    """The questions of a model.

    Attributes:
        exported: By symbol, the size that the model was exported with, those of questions too.
        free: The symbols of axes that were open before.
        asked: The questions by the symbol of their size.
        answered: The nodes and axes whose numbers stay as they are written.
    """

    exported: dict[Symbol, int]
    free: frozenset[str] = frozenset()
    asked: dict[Symbol, Question] = field(default_factory=dict)
    answered: set[tuple[ir.Node, int]] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=count)

    def ask(self, question: Question, was: Size | int) -> Size:
        """Return a size that is unknown until `solved` finds it; it was this one."""
        symbol = f"?{next(self._numbers)}"
        self.asked[symbol] = question
        self.exported[symbol] = int(size(was).at(self.exported))
        return Size.symbol(symbol)

    def is_free(self, length: Size) -> bool:
        """Whether a size is a number, or follows from axes that were open before; then numbers stay as written."""
        return length.symbols <= self.free

    def forget(self, nodes: Container[ir.Node]) -> None:
        """Drop the questions of nodes that are followed again."""
        self.asked = {symbol: each for symbol, each in self.asked.items() if each.node not in nodes}

    def among(self, sizes: Sequence[Size]) -> list[Question]:
        """Return the questions that sizes follow from."""
        return [self.asked[symbol] for each in sizes for symbol in each.symbols if symbol in self.asked]

    def solved(self, first: Size, other: Size) -> Opened | None:
        """Return the numbers for which two sizes are equal; None if that does not tell them.

        Raises:
            UnsupportedError: No number does.
        """
        rest = first - other
        unknown = [symbol for symbol in rest.symbols if symbol in self.asked]
        if len(unknown) != 1:
            return None
        factor = rest.coefficient(*unknown)
        found = (Size.symbol(unknown[0]) * factor - rest).divided(factor) if factor else None
        if found is None or unknown[0] in found.symbols:
            return None
        question = self.asked[unknown[0]]
        opened = question.answer(found)
        if opened is None:
            raise refuse(question.node, question.fact)
        self.answered.add((question.node, question.axis))
        return opened

    # Operators

    def cut(self, node: ir.Node, axis: int, length: Size, bounds: tuple[Size, Size, Size], given: Cut) -> Size:
        """Return how much a Slice takes of an axis.

        A negative number counts from the end, as written. A positive one that is not 0 may do so too.
        """
        first, last, step = bounds
        begin, end = first.constant, last.constant
        if last.symbols and begin == 0 and step == size(1):
            return last  # of a longer constant: it fails where that ends
        if step == size(-1) and (begin == -1 or first.at_least(TO_THE_END)) and last.at_most(BEFORE_THE_START):
            return length
        if begin is None or end is None or step != size(1):
            raise refuse(node, "cuts an open axis in a way that is not followed")
        to_the_end = end < 0 or end >= TO_THE_END
        after = int(end) if end < 0 else 0
        if begin < 0 and to_the_end:
            return size(after - begin)
        if begin >= 0 and to_the_end and (begin == 0 or (node, axis) in self.answered):
            return length + after - begin
        if begin == 0 and ((node, axis) in self.answered or end == length.at(self.exported)):
            return last
        whole = int(length.at(self.exported))
        if to_the_end:
            fact = f"starts at {begin} of an axis of {whole}: does it count from the end?"
            question = Question(
                node, axis, fact, lambda found: given.start(first, length + after - found, found - after)
            )
            return self.ask(question, length + after - begin)
        fact = f"ends at {end} of an axis of {whole}: does it count from the end?"
        if begin:
            raise refuse(node, fact)
        return self.ask(Question(node, axis, fact, lambda found: given.end(last, found, found - length)), last)

    def padded(self, node: ir.Node, axis: int, length: Size, amounts: Numbers, places: tuple[int, int]) -> Size:
        """Return the size of an axis behind a Pad.

        Args:
            node: The Pad.
            axis: The axis.
            length: Its size before.
            amounts: All numbers of the Pad.
            places: Which of them are those of the axis.
        """
        both = amounts[places[0]] + amounts[places[1]]
        if both == size(0) or (node, axis) in self.answered or both.symbols:
            return length + both

        def answer(found: Size) -> Opened | None:
            total = found - length
            if total == both:
                return Opened(node, "pads", tuple(amounts))
            one = [place for place in places if amounts[place] != size(0)]
            return Opened(node, "pads", _with(amounts, one[0], total)) if len(one) == 1 else None

        fact = f"pads an axis of {length.at(self.exported)} by {both}: at other sizes too?"
        return self.ask(Question(node, axis, fact, answer), length + both)

    def parts(self, node: ir.Node, axis: int, length: Size, numbers: Numbers) -> Numbers:
        """Return the sizes of the parts of a Split."""
        if (node, axis) in self.answered:
            return numbers
        texts = ", ".join(map(str, numbers))
        fact = f"splits an axis of {length.at(self.exported)} into {texts}: which number is a size is not known"
        if len(numbers) != 2:
            raise refuse(node, fact)
        question = Question(node, axis, fact, lambda found: Opened(node, "split", (found, length - found)))
        first = self.ask(question, numbers[0])
        return first, length - first

    def resized(self, node: ir.Node, axis: int, numbers: Numbers) -> Size:
        """Return the size of an axis behind a Resize to sizes."""
        if (node, axis) in self.answered:
            return numbers[axis]
        fact = f"resizes an open axis to {numbers[axis]}: at other sizes too?"
        question = Question(node, axis, fact, lambda found: Opened(node, "sizes", _with(numbers, axis, found)))
        return self.ask(question, numbers[axis])

    def scaled(self, node: ir.Node, axis: int, length: Size, scales: Numbers) -> Size:
        """Return the size of an axis behind a Resize by scales: one may have been computed from a size."""
        grown = length * scales[axis]
        if scales[axis] == size(1) or (node, axis) in self.answered:
            return grown
        fact = f"resizes an axis of {length.at(self.exported)} by {scales[axis]}: at other sizes too?"
        as_written = Opened(node, "scales", tuple(scales))
        question = Question(node, axis, fact, lambda found: as_written if found == grown else None)
        return self.ask(question, grown)

    def reshaped(self, node: ir.Node, readings: Sequence[Shape], written: Sequence[Numbers], fact: str) -> Shape:
        """Return the shape of a Reshape that can be read in several ways.

        Args:
            node: The Reshape.
            readings: The shapes.
            written: The numbers of the Reshape for each.
            fact: Why it is refused if nothing tells the reading.
        """

        def answered(axis: int) -> Callable[[Size], Opened | None]:
            def answer(found: Size) -> Opened | None:
                left = [n for n, reading in enumerate(readings) if reading[axis] == found]
                return Opened(node, "shape", tuple(written[left[0]])) if len(left) == 1 else None

            return answer

        shape = []
        for axis, dims in enumerate(zip(*readings, strict=True)):
            if len(set(dims)) > 1:
                shape.append(self.ask(Question(node, axis, fact, answered(axis)), dims[0]))
            else:
                shape.append(dims[0])
        return tuple(shape)


@dataclass(frozen=True)
class Cut:
    """The numbers of a Slice, and which of them belong to an axis."""

    node: ir.Node
    starts: Numbers
    ends: Numbers
    place: int

    def start(self, was: Size, found: Size, from_end: Size) -> Opened | None:
        """Return the starts for a start that is known: as written, or so many before the end."""
        if found == was:
            return Opened(self.node, "starts", tuple(self.starts))
        return self._opened("starts", self.starts, -from_end) if from_end.constant is not None else None

    def end(self, was: Size, found: Size, from_end: Size) -> Opened | None:
        """Return the ends for an end that is known."""
        if found == was:
            return Opened(self.node, "ends", tuple(self.ends))
        return self._opened("ends", self.ends, from_end) if (from_end.constant or 0) < 0 else None

    def _opened(self, name: str, numbers: Numbers, number: Size) -> Opened:
        return Opened(self.node, name, _with(numbers, self.place, number))


def _with(numbers: Numbers, place: int, number: Size) -> tuple[Size, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])
