"""Every kind of recurrent nodes has all that it needs."""

from rnn_lowering.compare.references.every_kind import REFERENCES
from rnn_lowering.nodes.kinds import KINDS
from rnn_lowering.recurrence.equivalents import EQUIVALENTS


def test_every_kind_is_in_every_table() -> None:
    assert set(KINDS) == set(EQUIVALENTS) == set(REFERENCES)


def test_no_operator_is_of_two_kinds() -> None:
    operators = [operator for kind in KINDS for operator in kind.operators]
    assert len(operators) == len(set(operators))
