"""The node cases of ONNX for RNN, GRU and LSTM, lowered, against the outputs stored with them."""

from typing import Any

import pytest
from running import assert_close, recurrent_left, run
from vectors import load_onnx_cases

import rnn_lowering as rl


@pytest.mark.parametrize("form", ["auto", "scan", "loop", "unroll"])
@pytest.mark.parametrize("case", load_onnx_cases())
def test_onnx_node_case(case: Any, form: str) -> None:
    lowered = rl.lower(case.model, form)
    assert recurrent_left(lowered) == []
    for inputs, outputs in case.data_sets:
        feed = dict(zip([v.name for v in case.model.graph.input], inputs, strict=True))
        expected = dict(zip([v.name for v in case.model.graph.output], outputs, strict=True))
        assert_close(run(lowered, feed), expected)


def test_onnx_has_the_cases() -> None:
    assert len(load_onnx_cases()) >= 18
