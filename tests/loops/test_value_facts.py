"""What branches and steps have in common is known, and no more."""

from typing import Any

import onnx_ir as ir
import pytest

from rnn_lowering.facts.known import Known
from rnn_lowering.loops.value_facts import common_kind

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


@pytest.mark.parametrize(
    ("shapes", "common"),
    [
        (((2, 3), (2, 3)), (2, 3)),
        (((2, 3), (4, 3)), (None, 3)),
        (((2,), (2, 3)), None),
        (((2, 3), None), None),
    ],
    ids=str,
)
def test_the_shape_in_common(shapes: tuple[Any, Any], common: Any) -> None:
    assert common_kind([Known(FLOAT, shape) for shape in shapes]) == Known(FLOAT, common)


def test_types_that_differ_have_nothing_in_common() -> None:
    assert common_kind([Known.at(FLOAT, (2,)), Known.at(INT64, (2,))]) is None
    assert common_kind([Known.at(FLOAT, (2,)), None]) is None
