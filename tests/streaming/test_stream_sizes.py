"""What a stream knows of sizes that facts asks for: for which numbers of frames it holds."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from rnn_lowering.facts.size import Size
from rnn_lowering.streaming.sizes import CHUNK, FRAMES, StreamValues, first_frames, in_chunk, in_whole, linear

IN_CHUNK = Size.symbol(CHUNK)
HALF = Fraction(1, 2)


def known(**numbers: int | bool) -> StreamValues:
    return StreamValues({"": 17}, **numbers)  # type: ignore[arg-type]


def test_a_size_that_is_not_whole_wants_a_multiple_of_frames() -> None:
    values = known()
    assert not values.is_whole(FRAMES * Fraction(1, 4))
    assert values.wanted == 4
    assert known(unit=4).is_whole(FRAMES * Fraction(1, 4))
    assert not values.is_whole(FRAMES + HALF)
    assert values.wanted == 4, "no multiple makes it whole"


def test_a_number_is_rounded_in_the_whole_and_in_a_chunk() -> None:
    number = FRAMES - HALF + IN_CHUNK * HALF
    assert known().floor(number) == FRAMES - 1 + IN_CHUNK
    assert known().floor(FRAMES * HALF) is None
    assert known(unit=2).floor(FRAMES * HALF + HALF) == FRAMES * HALF


def test_the_shortest_sequence_is_a_bound() -> None:
    assert not known().never_negative(FRAMES - 3)
    assert known(shortest=3).never_negative(FRAMES - 3)
    assert not known(shortest=2).never_negative(FRAMES - 3)


def test_a_division_rounds_down_where_its_quotient_is_not_negative() -> None:
    quotient = FRAMES * HALF - 2
    assert not known(unit=2).divides_down(quotient)
    assert not known(shortest=4).divides_down(quotient), "a call may have one frame"
    assert known(unit=4, shortest=4).divides_down(quotient)
    enough = known(floors=True)
    assert enough.divides_down(quotient)
    assert enough.fewest == 4
    assert not enough.divides_down(2 - FRAMES)


def test_a_shorter_sequence_has_fewer_first_frames() -> None:
    assert known().rows_up_to(5, FRAMES) == first_frames(5) != first_frames(4)
    assert known().rows_up_to(5, FRAMES * 2) is None


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (in_whole, FRAMES * 2 - 1),
        (lambda number: in_chunk(number, 3), 6),
        (lambda number: in_chunk(number, None), None),
        (lambda number: linear(in_whole(number)), (2, -1)),
        (linear, None),
    ],
)
def test_the_parts_of_a_size(read: Callable[[Size], object], expected: object) -> None:
    assert read(FRAMES * 2 - 1 + IN_CHUNK) == expected
