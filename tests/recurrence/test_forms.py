"""Every case in every form: what a lowered model computes, and what it consists of."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import pytest
from case_list import BY_NAME, CASES, RANDOM
from cases import ALL_OPTIONAL, Arrays, Case, expected, feed, model
from forms import emitted_opset, exists, has_no_steps_to_repeat, runs
from onnx.reference import ReferenceEvaluator
from running import NEWEST_OPSET, assert_close, operators, recurrent_left, run
from texts import FORMS
from thinning import exhaustive

import rnn_lowering as rl

OPSETS = [1, 3, 6, 7, 8, 9, 10, 11, 13, 14, 15, 18, 21, 22, 26, 27, 28]
CORE = [
    *[
        f"{op}_{name}"
        for op in ("RNN", "GRU", "LSTM")
        for name in ("plain", "lengths_bidirectional_nan", "T_0_static")
    ],
    *[f"{op}_clip_bidirectional" for op in ("RNN", "GRU", "LSTM")],
    "RNN_x_unknown",
    "RNN_hidden_size_from_R_node_ir3",
    "RNN_lengths_float64",
    "RNN_ThresholdedRelu_float64_of_large_arguments",
    "GRU_linear_before_reset_bidirectional",
    "GRU_x_unranked_reverse_states",
    "GRU_T_0_length",
    "GRU_weights_node_float16",
    "LSTM_clip_float64",
    "LSTM_different_activations_float64",
    "LSTM_input_forget_1_peepholes",
    "LSTM_ir3",
    "LSTM_layout_1_bidirectional",
    "LSTM_lengths_float16",
    "LSTM_lengths_known",
    "LSTM_lengths_reverse_x_unknown",
    "LSTM_x_transposed_float16",
    "LSTM_in_if_ir3",
]
AGREEMENT = {"float32": (2e-5, 2e-6), "float64": (1e-12, 1e-13), "float16": (2e-3, 1e-3)}
"""rtol, atol between two forms of one node."""

LOOPS = {"Scan", "Loop", "If", "ReverseSequence"}
SIZES_AT_RUN_TIME = {"Shape", "Range", "ConstantOfShape", "NonZero", "Size"}

KNOWN_BUGS: list[tuple[str, Callable[[Case, int], bool]]] = []
"""What the package does wrong, and at which cases and opsets."""


def runs_natively(case: Case, opset: int) -> bool:
    """Whether onnxruntime's own operator supports the case, without ending the process."""
    return (
        case.native
        and case.hidden_size
        and case.dtype in ("float32", "float16")
        and case.attributes.get("layout", 0) == 0
        and 7 <= opset <= NEWEST_OPSET
        and 0 not in (case.T, case.N, case.I)
    )


EMISSION_CHANGES = (6, 7, 8, 9, 10, 11, 13)
"""Opsets, of those that are tested, from which on something is emitted in another way."""


def picks() -> list[Any]:
    """Every case in each form at one opset by turns, and the core cases at the oldest, at the newest and wherever
    the emission changes. The default run has each case in one form, but a sixth of the random ones, and a twelfth
    of the core cases in each form."""
    found = []
    for index, case in enumerate(CASES):
        core, random = case.name in CORE, index >= len(CASES) - len(RANDOM)
        for number, form in enumerate(FORMS):
            possible = [o for o in OPSETS if o in case.opsets and runs(case, form, o)]
            in_turn = possible[(index + 5 * number) % len(possible)] if possible else 0
            for opset in possible:
                if opset == in_turn or (core and opset in (*EMISSION_CHANGES, possible[0], possible[-1])):
                    third = opset in EMISSION_CHANGES and (index + number + EMISSION_CHANGES.index(opset)) % 12 == 0
                    single = number == index % len(FORMS) and not (random and index // len(FORMS) % 6)
                    found.append(_parameter(case, form, opset, third if core else single))
    return found


def _parameter(case: Case, form: str, opset: int, always: bool) -> Any:
    bugs = [reason for reason, concerns in KNOWN_BUGS if concerns(case, opset)]
    marks = [pytest.mark.xfail(reason=reason, strict=True) for reason in bugs]
    parameter = pytest.param(case, form, opset, id=f"{case.name}-{form}-{opset}", marks=marks)
    return parameter if always else exhaustive(parameter)


def lower(case: Case, form: str, opset: int) -> onnx.ModelProto:
    """Lower the model of a case, minding the warning that it may give."""
    return _lower(case, form, model(case, opset))


def _lower(case: Case, form: Any, original: onnx.ModelProto) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not case.disputed:
            return rl.lower(original, form)
        with pytest.warns(rl.RnnLoweringWarning, match="parameters of"):
            return rl.lower(original, form)


@lru_cache(maxsize=64)
def _expected(case: Case) -> Arrays:
    return expected(case)


@pytest.mark.few(64)
@pytest.mark.parametrize(("case", "form", "opset"), picks())
def test_lowered(case: Case, form: str, opset: int, caplog: pytest.LogCaptureFixture) -> None:
    original = model(case, opset)
    onnx.checker.check_model(original, full_check=True)
    lowered = _lower(case, form, original)
    assert not caplog.records
    assert original == model(case, opset)
    check_structure(lowered, original, case, form)
    results = run(lowered, feed(case))
    assert_close(results, _expected(case), case.dtype, "the operator specification")
    assert all(array.dtype.name == case.dtype for array in results.values())
    if runs_natively(case, opset):
        assert_close(results, run(original, feed(case)), case.dtype, "onnxruntime's own operator")


def fused_picks() -> list[Any]:
    """Every case of float32 in one of the loops that onnxruntime's own dialect is for, at an opset that has it; a
    tenth of the cases in the default run."""
    found = []
    for index, case in enumerate(c for c in CASES if c.dtype == "float32"):
        form = ("scan", "loop")[index % 2]
        possible = [o for o in OPSETS if o in case.opsets and runs(case, form, o) and emitted_opset(o) >= 10]
        if possible and not has_no_steps_to_repeat(case):
            found.append(_parameter(case, form, possible[index % len(possible)], index % 10 == 0))
    return found


@pytest.mark.few(5)
@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize(("case", "form", "opset"), fused_picks())
def test_dialect_of_onnxruntime(case: Case, form: Any, opset: int) -> None:
    original = model(case, opset)
    lowered = rl.lower(original, form, target="onnxruntime")
    check_structure(lowered, original, case, form)
    assert_close(run(lowered, feed(case)), _expected(case), case.dtype)


def check_structure(lowered: onnx.ModelProto, original: onnx.ModelProto, case: Case, form: str) -> None:
    onnx.checker.check_model(lowered, full_check=True)
    assert recurrent_left(lowered) == []
    opset = original.opset_import[0].version
    assert lowered.opset_import[0].version == emitted_opset(opset)
    assert [v.name for v in lowered.graph.output] == [v.name for v in original.graph.output]
    assert {v.name for v in lowered.graph.input} >= set(feed(case))
    if opset >= 7:
        assert lowered.ir_version == original.ir_version
    used = operators(lowered) - ({"If"} if case.scope == "if" else set())
    if form == "unroll" or (has_no_steps_to_repeat(case) and exists(case, "unroll", opset)):
        assert not used & LOOPS
        if case.knows_batch:
            assert not used & SIZES_AT_RUN_TIME
    elif not has_no_steps_to_repeat(case):
        assert form.capitalize() in used
        assert form == "loop" or "Loop" not in used
    assert "ReverseSequence" not in used


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [*RANDOM, *map(BY_NAME.__getitem__, CORE)], ids=lambda c: c.name)
def test_forms_agree(case: Case) -> None:
    """Far closer to each other than to the oracle."""
    possible = [o for o in OPSETS if o in case.opsets]
    opset = possible[len(case.name) % len(possible)]
    if any(concerns(case, opset) for _, concerns in KNOWN_BUGS):
        pytest.skip("a known bug")
    results = {form: run(lower(case, form, opset), feed(case)) for form in FORMS if runs(case, form, opset)}
    first, *others = results
    for other in others:
        tolerance = {case.dtype: AGREEMENT[case.dtype]}
        assert_close(results[other], results[first], case.dtype, f"{other} and {first}", tolerance)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", CORE)
@pytest.mark.parametrize("opset", [7, 9, 28])
def test_auto_lowers_every_case(name: str, opset: int) -> None:
    case = BY_NAME[name]
    if opset not in case.opsets:
        pytest.skip(f"opset {opset} cannot express it")
    if case.T == 0 and not case.knows_length:
        pytest.skip("a Scan cannot run without a step")
    if any(concerns(case, opset) for _, concerns in KNOWN_BUGS):
        pytest.skip("a known bug")
    assert_close(run(lower(case, "auto", opset), feed(case)), expected(case), case.dtype)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [n for n in CORE if BY_NAME[n].knows_length])
@pytest.mark.parametrize("opset", [27, 28])
def test_unrolled_in_the_reference_evaluator(name: str, opset: int) -> None:
    case = BY_NAME[name]
    evaluator = ReferenceEvaluator(lower(case, "unroll", opset))
    results = dict(zip(case.results, evaluator.run(None, feed(case)), strict=True))
    assert_close(results, expected(case), case.dtype)


@pytest.mark.parametrize("case", [c for c in CASES if c.dtype == "bfloat16"], ids=lambda c: c.name)
@pytest.mark.parametrize("opset", [22, 26, 28])
def test_bfloat16_in_the_reference_evaluator(case: Case, opset: int) -> None:
    for form in FORMS:
        check_structure(lower(case, form, opset), model(case, opset), case, form)
    evaluator = ReferenceEvaluator(lower(case, "unroll", opset))
    results = dict(zip(case.results, evaluator.run(None, feed(case)), strict=True))
    assert_close(results, expected(case), case.dtype)


@pytest.mark.few(8)
@pytest.mark.parametrize("opset", [7, 8, 9, 13])
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.name.startswith(("LSTM_x_", "LSTM_lengths_forward_x_", "LSTM_lengths_T_1_batch"))],
    ids=lambda c: c.name,
)
def test_a_form_that_does_not_exist_is_refused(case: Case, opset: int) -> None:
    straight = has_no_steps_to_repeat(case) and exists(case, "unroll", opset)
    for form in FORMS if not straight else ():
        if exists(case, form, opset):
            continue
        with pytest.raises(rl.UnsupportedError, match=r"Scan needs opset 9|not known|unknown batch"):
            lower(case, form, opset)


INVALID: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
    *[(op, 13, {"clip": clip}, {}) for op in ("GRU", "LSTM") for clip in (0.0, -1.0, float("nan"))],
    *[(op, 13, {"activations": ["Swish"] * count}, {}) for op, count in {"RNN": 1, "GRU": 2, "LSTM": 3}.items()],
    *[(op, 13, {"activations": ["Tanh"] * 5}, {}) for op in ("RNN", "GRU", "LSTM")],
    ("RNN", 13, {"activations": ["Tanh"] * 3}, {}),
    ("RNN", 13, {"activations": ["Tanh"], "direction": "bidirectional"}, {}),
    *[(op, 13, {"direction": "Forward"}, {}) for op in ("RNN", "GRU", "LSTM")],
    ("GRU", 13, {"direction": "foward"}, {}),
    *[(op, 13, {"direction": "backward"}, {}) for op in ("RNN", "GRU", "LSTM")],
    *[(op, 13, {"hidden_size": 5}, {"hidden_size": False}) for op in ("RNN", "GRU", "LSTM")],
    *[(op, 13, {"layout": 0}, {}) for op in ("RNN", "GRU", "LSTM")],
    *[(op, 14, {"layout": 2}, {}) for op in ("RNN", "GRU", "LSTM")],
    *[(op, 7, {"output_sequence": 1}, {}) for op in ("RNN", "GRU", "LSTM")],
    ("LSTM", 13, {"linear_before_reset": 1}, {}),
    ("GRU", 13, {"input_forget": 1}, {}),
    *[
        (op, 13, {}, {"lengths": lengths, "lengths_from": "initializer", "optional": ALL_OPTIONAL})
        for op in ("RNN", "GRU", "LSTM")
        for lengths in ((5, 6, 1), (5, -1, 1), (5, 5))
    ],
]


@pytest.mark.parametrize("form", ["auto", "loop", "unroll"])
@pytest.mark.parametrize(("op_type", "opset", "attributes", "fields"), INVALID)
def test_an_invalid_node_is_refused(
    op_type: str, opset: int, attributes: dict[str, Any], fields: dict[str, Any], form: Any
) -> None:
    with pytest.raises(rl.InvalidNodeError, match="node 'recurrent' in main graph"):
        rl.lower(model(Case("invalid", op_type, attributes, **fields), opset), form)


@pytest.mark.every_pair
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_a_length_above_the_steps_counts_as_all(form: Any, target: Any) -> None:
    case = BY_NAME["LSTM_lengths_bidirectional_nan"]
    lowered = rl.lower(model(case, 13), form, target=target)
    inputs = feed(case) | {"X": np.nan_to_num(feed(case)["X"])}
    full = np.full_like(inputs["sequence_lens"], case.T)
    beyond, counted = (run(lowered, inputs | {"sequence_lens": full + more}) for more in (3, 0))
    assert_close(beyond, counted, case.dtype)
