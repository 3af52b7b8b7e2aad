"""Sizes in a stream: polynomials of the number of frames.

The size of a value in the whole model and that in a chunk may differ by a constant, since a chunk has the frames
that are known early and none of those at the end. `CHUNK` is 0 in the whole and 1 in a chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Counter, Size

TIME, CHUNK = Counter(0, "frames", 1), Counter(1, "chunk", None)
"""The number of frames of a stream; 1 in a chunk and 0 in the whole."""

FRAMES = Size.symbol(TIME)

LARGEST_UNIT = 1 << 16
"""The largest multiple of frames that a stream takes per call, unless the strides of its nodes need more."""


def first_frames(count: int) -> Size:
    """Return how many frames `x[:, :count]` has: a shorter sequence has fewer."""
    return Size.symbol(Counter(-count, f"min(frames, {count})"))


def in_whole(number: Size) -> Size:
    """Return a size in the whole model."""
    return number.replaced(CHUNK, 0)


def in_chunk(number: Size, frames: int | None) -> int | None:
    """Return a size if every chunk has the same, else None."""
    if not number.symbols <= ({CHUNK} if frames is None else {TIME, CHUNK}):
        return None
    found = number.at({CHUNK: 1} if frames is None else {TIME: frames, CHUNK: 1})
    stays = found >= 0 or number.constant is not None  # -1 from sizes is none that a Reshape is to find
    return int(found) if stays and found.denominator == 1 else None


def of_longer(number: Size, frames: int) -> Size:
    """Return a size for a sequence that has so many frames more."""
    return number.replaced(TIME, FRAMES + frames) if frames else number


def linear(number: Size) -> tuple[Fraction, Fraction] | None:
    """Return a factor and an offset of which a size is frames * factor + offset; None if it has another form."""
    factor, offset = number.coefficient(TIME), number.coefficient()
    return (factor, offset) if number == FRAMES * factor + offset else None


@dataclass
class StreamValues(KnownValues):
    """What is known of values whose sizes depend on the number of frames.

    Attributes:
        unit: The number of frames is a multiple of it.
        shortest: The number of frames is at least this.
        wanted: The number of frames must be a multiple of it for all sizes to be integers.
        floors: Whether a sequence may be taken to have enough frames for no dividend to be negative.
        fewest: As many frames are enough for the divisions so far, if `floors`.
    """

    unit: int = 1
    shortest: int = 1
    wanted: int = 1
    floors: bool = False
    fewest: int = 1

    def denominator(self, number: Size) -> int:
        return math.lcm(*((c * self.unit ** m.count(TIME)).denominator for m, c in number.terms))

    def is_whole(self, number: Size) -> bool:
        """Return whether a size is an integer for every number of frames; if not, `wanted` gets its unit."""
        unit = super().denominator(number)
        possible = all(c.denominator == 1 or TIME in m for m, c in number.terms)
        if possible and self.unit % unit and unit <= LARGEST_UNIT:
            self.wanted = math.lcm(self.wanted, unit)
        return super().is_whole(number)

    def floor(self, number: Size) -> Size | None:
        """Round the constant part down, in the whole and in a chunk; the rest must be an integer."""
        first, more = number.coefficient(), number.coefficient(CHUNK)
        below, chunk = math.floor(first), math.floor(first + more)
        found = number - first + below + Size.symbol(CHUNK) * (chunk - below - more)
        return found if self.is_whole(found) else None

    def never_negative(self, number: Size) -> bool:
        return of_longer(in_whole(number), self.shortest - 1).never_negative

    def divides_down(self, quotient: Size) -> bool:
        in_sequence = of_longer(in_whole(quotient), self.shortest - 1)
        in_call = of_longer(quotient.replaced(CHUNK, 1), self.unit - 1)
        if in_sequence.at_least(0) and in_call.at_least(0):
            return True
        factor, offset = linear(quotient) or (0, 0)
        if not self.floors or factor <= 0:
            return False
        self.fewest = max(self.fewest, math.ceil(-offset / factor))
        return True

    def rows_up_to(self, end: int, length: Size) -> Size | None:
        return first_frames(end) if length == FRAMES else None
