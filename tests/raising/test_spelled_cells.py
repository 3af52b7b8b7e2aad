"""A cell becomes a node in whatever order, with whatever names, splits and transposes a Loop or Scan has it."""

import pytest
from odd_cells import CELLS, EITHER, TRAPS, Odd, odd
from raised import cells, is_raised, loops, raised
from spelled_cells import CHOICES, GATES, Spelled, spelled
from thinning import exhaustive, thinned

ONE_OF_EACH = [(name, value) for name, values in CHOICES.items() for value in dict.fromkeys(values)]

OPERATORS = {"reset": ["GRU"], "update": ["GRU"], "forget": ["LSTM"], "peepholes": ["LSTM"]}
EACH = [
    (choice, value, op_type) if n % len(OPERATORS.get(choice, GATES)) == m else exhaustive((choice, value, op_type))
    for n, (choice, value) in enumerate(ONE_OF_EACH)
    for m, op_type in enumerate(OPERATORS.get(choice, GATES))
]
"""Each value with each operator that has the choice; the default run takes the operators by turns."""


def check(cell: Spelled) -> None:
    """One that is too odd for the engine is right, or stays."""
    chosen = cell.chosen
    scaled = cell.op_type == "LSTM" and chosen["functions"] in ("scaled", "other")
    cut_backwards = (
        chosen["repeated"] == "slices" and chosen["direction"] != "forward" and chosen["sizes"] != "known"
    )
    new = raised(cell.model, cell.feeds())
    if not (chosen["outputs"] == "head" or scaled or cut_backwards):
        assert (loops(new), cells(new)) == ([], [cell.op_type]), cell.chosen


@pytest.mark.few(3)
@pytest.mark.parametrize(("choice", "value", "op_type"), EACH)
def test_each_spelling(choice: str, value: str, op_type: str) -> None:
    check(spelled(ONE_OF_EACH.index((choice, value)), **{"op_type": op_type, choice: value}))


@pytest.mark.parametrize(("op_type", "seed"), [("GRU", 0), ("LSTM", 2)])
def test_a_scaled_tanh(op_type: str, seed: int) -> None:
    cell = spelled(seed, op_type=op_type, functions="scaled")
    assert cells(raised(cell.model, cell.feeds())) == [op_type]


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", thinned(range(1000, 1300), 20))
def test_random_spellings(seed: int) -> None:
    check(spelled(seed))


@pytest.mark.few(4)
@pytest.mark.parametrize("step", odd(CELLS), ids=str)
def test_a_cell_that_looks_odd(step: Odd) -> None:
    assert cells(raised(step.model, [step.feed()])) == [step.op_type]


@pytest.mark.few(18)
@pytest.mark.parametrize("step", odd(TRAPS), ids=str)
def test_a_trap(step: Odd) -> None:
    assert not is_raised(step.model, [step.feed()])


@pytest.mark.few(12)
@pytest.mark.parametrize("step", odd(EITHER), ids=str)
def test_what_may_be_raised_is_right(step: Odd) -> None:
    is_raised(step.model, [step.feed()])
