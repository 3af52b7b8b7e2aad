"""Faults planted in the package: a fixed subset of the cases must notice each of them (see support/faults.py).

Equations are judged on NumPy arrays; what is lowered with the other faults runs in onnxruntime.
"""

import warnings
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import onnx
import pytest
from case_list import BY_NAME
from cases import Arrays, Case, expected, feed, model
from equations import first_wrong
from faults import ACTIVATIONS, CELLS, OF_MODELS, gru_with_a_clipped_reset_product, lstm
from forms import runs
from planting import Planting
from running import assert_close, run
from texts import FORMS
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.recurrence import cells
from rnn_lowering.recurrence.activations import FORMULAS

SUBSET = [
    *[(f"{op}_plain", 13) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_initial_states_{d}", 13) for op in ("RNN", "GRU", "LSTM") for d in ("reverse", "bidirectional")],
    *[(f"{op}_lengths_bidirectional_nan", opset) for op in ("RNN", "GRU", "LSTM") for opset in (8, 13)],
    *[(f"{op}_clip_bidirectional", 13) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_layout_1_bidirectional", 14) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_layout_1_batch_is_length", 14) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_square_weights", 13) for op in ("RNN", "GRU")],
    *[(f"{op}_queues_run_across_directions", 13) for op in ("RNN", "GRU", "LSTM")],
    ("RNN_x_unknown", 9),
    ("RNN_x_unknown_reverse_states", 9),
    ("RNN_x_length", 8),
    ("RNN_T_0_length_states", 13),
    ("RNN_clip_0", 13),
    ("RNN_clip_float64", 9),
    ("RNN_clip_forward", 10),
    ("RNN_default_parameters_of_LeakyRelu", 13),
    ("RNN_default_parameters_of_HardSigmoid", 13),
    ("RNN_default_parameters_of_Elu", 13),
    ("RNN_default_parameters_of_Affine", 13),
    ("RNN_forward_uses_the_first_of_two_names", 13),
    ("RNN_ThresholdedRelu_is_0_at_alpha_float32", 13),
    ("RNN_ThresholdedRelu_is_0_at_alpha_float64", 13),
    ("RNN_ScaledTanh_float32", 13),
    ("RNN_Elu_float64", 13),
    ("RNN_HardSigmoid_float64_of_large_arguments", 13),
    ("RNN_Softplus_float64_of_large_arguments", 13),
    ("RNN_weights_overridable", 13),
    ("GRU_linear_before_reset_bidirectional", 13),
    ("GRU_linear_before_reset_clip", 13),
    ("GRU_linear_before_reset_2", 13),
    ("LSTM_alpha_is_a_queue", 13),
    ("LSTM_different_activations_float32", 13),
    ("LSTM_clip_not_of_C", 13),
    ("LSTM_peepholes_forward", 13),
    ("LSTM_input_forget_1", 13),
    ("LSTM_input_forget_2_peepholes", 13),
    ("LSTM_lengths_known", 13),
]


OF_EQUATIONS = {**CELLS, **ACTIVATIONS}


@pytest.mark.parametrize("name", OF_EQUATIONS)
def test_a_fault_in_an_equation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    OF_EQUATIONS[name](Planting(monkeypatch))
    assert first_wrong(cells, FORMULAS)


@pytest.mark.parametrize("name", thinned(list(OF_MODELS), 9))
def test_a_fault_in_a_lowering_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Planting(monkeypatch)
    OF_MODELS[name](at)
    mismatch, errors = first_mismatch(at.lower)
    assert mismatch, errors


def test_the_equations_of_the_package_pass() -> None:
    assert first_wrong(cells, FORMULAS) == ""


@pytest.mark.exhaustive
def test_the_package_passes() -> None:
    """As in test_forms, for the cases here."""
    assert first_mismatch(rl.lower) == ("", [])


def test_equations_that_faults_are_planted_in_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cells.CELLS, "LSTM", lstm(""))
    monkeypatch.setitem(cells.CELLS, "GRU", partial(gru_with_a_clipped_reset_product, clipped=False))
    assert first_wrong(cells, FORMULAS) == ""


_model, _expected = cache(model), cache(expected)


@cache
def _results(case: Case, lowered: bytes) -> Arrays:
    """Most faults change few of the lowered models."""
    return run(onnx.ModelProto.FromString(lowered), feed(case))


def first_mismatch(lower: Callable[..., Any]) -> tuple[str, list[str]]:
    """The first case that is computed wrongly, if any, and those that did not run before it."""
    errors = []
    for name, opset in SUBSET:
        case = BY_NAME[name]
        for form, target in product(FORMS, ("portable", "onnxruntime")):
            if not runs(case, form, opset) or (target == "onnxruntime" and form == "unroll"):
                continue
            label = f"{name} {form} {opset} for {target}"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results = _results(case, lower(_model(case, opset), form, target=target).SerializeToString())
            except Exception as error:
                errors.append(f"{label}: {error!r}")
                continue
            try:
                assert_close(results, _expected(case), case.dtype)
            except AssertionError:
                return label, errors
    return "", errors
