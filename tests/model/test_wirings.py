"""Outputs of recurrent nodes that are inputs of others, as in every encoder with a decoder: each to each."""

from itertools import product

import pytest
from running import assert_close, run
from texts import FORMS, lowered
from thinning import by_turns, thinned
from wirings import Member, Wiring, every_input, every_output

PLACES = ("main", "if", "loop", "function")
DIRECT = (("LSTM", "Y_h"), ("LSTM", "Y_c"), ("GRU", "Y_h"), ("RNN", "Y_h"))
TAKEN = ("X", "W", "R", "initial_h", "initial_c")


def check(wiring: Wiring, form: str) -> None:
    new = lowered(wiring.model, form)
    actual = run(new, wiring.feed)
    assert_close(actual, run(wiring.model, wiring.feed), label=form)
    assert_close(actual, wiring.expected, label=form)


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "symbol", "form"), by_turns(list(every_input()), FORMS))
def test_each_output_is_each_input(target: str, symbol: str, form: str) -> None:
    for source, output in every_output():
        check(Wiring([Member(source), Member(target, {symbol: (0, output)})]), form)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("target", "symbol", "places"), by_turns(list(every_input()), list(product(PLACES, PLACES))[1:])
)
def test_through_bodies_and_functions(target: str, symbol: str, places: tuple[str, str]) -> None:
    for n, (source, output) in enumerate(DIRECT):
        wiring = Wiring([Member(source), Member(target, {symbol: (0, output)})], places)
        check(wiring, FORMS[n % len(FORMS)])


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("first", "second"), thinned(list(product(TAKEN, TAKEN)), 3))
def test_three_nodes_in_a_row(first: str, second: str, form: str) -> None:
    middle = Member("LSTM", {first: (0, "Y_h")})
    for output in ("Y_h", "Y_c"):
        check(Wiring([Member("GRU"), middle, Member("LSTM", {second: (1, output)})]), form)


@pytest.mark.parametrize("form", FORMS)
def test_both_states_of_an_encoder_start_two_decoders(form: str) -> None:
    states = {"initial_h": (0, "Y_h"), "initial_c": (0, "Y_c")}
    check(Wiring([Member("LSTM"), Member("LSTM", states), Member("LSTM", states)]), form)
    check(Wiring([Member("LSTM"), Member("LSTM", states), Member("LSTM", states)], ("if", "main", "loop")), form)
