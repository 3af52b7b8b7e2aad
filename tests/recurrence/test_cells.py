"""The equations on NumPy arrays, in microseconds: cells, activation functions and the order of steps compute what
the oracle does."""

import pytest
from equations import Equation, activations, differs, equations
from numpy_ops import repeat

from rnn_lowering.recurrence import cells
from rnn_lowering.recurrence.activations import FORMULAS
from rnn_lowering.recurrence.repetition import unroll


@pytest.mark.parametrize("repeat", [repeat, unroll])
@pytest.mark.parametrize("equation", equations(), ids=str)
def test_a_cell(equation: Equation, repeat: object) -> None:
    assert not differs(equation, cells, FORMULAS, repeat=repeat)


@pytest.mark.parametrize("composed", [False, True])
@pytest.mark.parametrize("equation", activations(), ids=lambda e: e.functions[0][0])
def test_an_activation_function(equation: Equation, composed: bool) -> None:
    assert not differs(equation, cells, FORMULAS, composed=composed)
