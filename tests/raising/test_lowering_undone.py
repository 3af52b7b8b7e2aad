"""What `--to scan`, `--to loop` and every target made of a node becomes the node again."""

from typing import Any

import pytest
from case_list import CASES
from cases import Case, expected, feed, model
from raised import cells, loops
from running import assert_close, run
from thinning import thinned

import rnn_lowering as rl

OPSET = 17
FORMS = [
    ("scan", "portable"),
    ("loop", "portable"),
    ("scan", "onnxruntime"),
    ("loop", "onnxruntime"),
    ("scan", "tract"),
    ("scan", "openvino"),
    ("loop", "openvino"),
    ("loop", "mnn"),
    ("loop", "opencv"),
    ("scan", "iree"),
]
"""A form and the target that it is for."""


def becomes_a_node(case: Case, target: str) -> bool:
    """Whether the lowered case is one cell with constant weights, in a loop that has its operators."""
    names = {name.lower() for name in case.attributes.get("activations", ())}
    plain = {"sigmoid", "tanh", "relu"} if target != "portable" else names - {"affine", "thresholdedrelu"}
    return (
        case.attributes.get("direction") != "bidirectional"
        and case.weights in ("initializer", "constant", "node")
        and case.scope == "main"
        and case.x not in ("unknown", "unranked", "known")
        and names <= plain
        and case.attributes.get("clip") != 0
        and target != "onnxruntime"  # it gets two stacked outputs that are only added or multiplied
        and not (case.op_type == "LSTM" and "sequence_lens" in case.optional)  # c is stacked
        and case.T > 1
        and not case.fill
    )


def _by_turns() -> list[Any]:
    """Each case with one of the forms."""
    return [(case, FORMS[n % len(FORMS)]) for n, case in enumerate(WANTED)]


WANTED = [
    case
    for case in CASES
    if OPSET in case.opsets and case.native and not case.disputed and case.dtype == "float32" and case.T * case.N
]
"""Those that onnxruntime runs: it ends the process if a GRU has no step or no sequence."""


@pytest.mark.few(4)
@pytest.mark.parametrize(("case", "form"), thinned(_by_turns(), 8), ids=str)
def test_a_lowered_node_becomes_a_node(case: Case, form: tuple[Any, str]) -> None:
    """One that does not is as it was."""
    to, target = form
    try:
        lowered = rl.lower(model(case, OPSET), to, target=target)  # type: ignore[call-overload]
    except rl.UnsupportedError:
        pytest.skip("the target has no such form of it")
    raised = rl.lower(lowered, raise_loops=True)
    if not loops(lowered) or not cells(raised):
        assert not loops(lowered) or not becomes_a_node(case, target), case
        return
    assert {*cells(raised)} == {case.op_type}
    assert not loops(raised) or not becomes_a_node(case, target)
    assert_close(run(raised, feed(case)), expected(case), "float32")
