"""Every kind of recurrent nodes has all that it needs."""

import pytest

from rnn_lowering.compare.float64.node_reference import NodeReference
from rnn_lowering.nodes.kinds import KINDS, Kind, imported
from rnn_lowering.nodes.spec import NodeSpec


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.spec)
def test_what_a_row_names_is_there(kind: Kind) -> None:
    assert issubclass(kind.spec_type, NodeSpec)
    assert issubclass(imported(kind.reference), NodeReference)
    assert callable(imported(kind.equivalent))


def test_no_operator_is_of_two_kinds() -> None:
    operators = [operator for kind in KINDS for operator in kind.operators]
    assert len(operators) == len(set(operators))
