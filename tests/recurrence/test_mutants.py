"""Faults planted in the package: the case that is named beside each of them notices it (see support/faults.py)."""

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from case_list import BY_NAME
from cases import expected, feed, model
from faults import FAULTS, gru, lstm
from forms import runs
from planting import Fault, Planting
from running import assert_close, run
from texts import FORMS
from thinning import exhaustive

import rnn_lowering as rl
from rnn_lowering.recurrence import cells


@pytest.mark.parametrize(
    ("case", "opset", "fault"),
    [
        pytest.param(*noticed_by, fault, id=name)
        for noticed_by, row in FAULTS.items()
        for name, fault in row.items()
    ],
)
def test_a_fault_is_noticed(case: str, opset: int, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Planting(monkeypatch)
    fault(at)
    assert is_wrong(case, opset, at.lower)


@pytest.mark.few(6)
@pytest.mark.parametrize("written", [True, exhaustive(False)])
@pytest.mark.parametrize(("case", "opset"), FAULTS)
def test_nothing_is_noticed_without_a_fault(
    case: str, opset: int, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the package, and of it with the equations into which some faults are written."""
    if written:
        monkeypatch.setitem(cells.STEPS, "LSTM", lstm(""))
        monkeypatch.setitem(cells.STEPS, "GRU", gru(clipped=False))
    assert not is_wrong(case, opset, rl.lower)


def is_wrong(name: str, opset: int, lower: Callable[..., Any]) -> bool:
    """Return whether a lowered case is computed wrongly in one of its forms, portable or for onnxruntime."""
    case = BY_NAME[name]
    for form, target in product(FORMS, ("portable", "onnxruntime")):
        if not runs(case, form, opset) or (target == "onnxruntime" and form == "unroll"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lowered = lower(model(case, opset), form, target=target)
        try:
            assert_close(run(lowered, feed(case)), expected(case), case.dtype)
        except AssertionError:
            return True
    return False
