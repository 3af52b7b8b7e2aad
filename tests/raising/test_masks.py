"""A mask that is a length becomes sequence_lens; any other leaves the Loop or Scan as it is."""

from typing import Any

import onnx
import pytest
from masked_cells import COMPARED, COMPARED_OTHERWISE, COUNTERS, EITHER, LENGTHS, NONE, Masked, compared, masked
from raised import is_raised, raised
from thinning import exhaustive

import rnn_lowering as rl

BOTH = ("T", "5")
"""An open number of rows, and a known one."""


def thinly(table: str) -> list[Any]:
    """The cells of a table; those of a known number of rows are exhaustive."""
    return [*masked(table, "T"), *map(exhaustive, masked(table))]


def lens_of(new: onnx.ModelProto) -> list[str]:
    """What the nodes have as sequence_lens."""
    return [node.input[4] for node in new.graph.node if node.op_type in ("RNN", "GRU", "LSTM")]


@pytest.mark.few(2)
@pytest.mark.parametrize("cell", [*(c for T in BOTH for c in masked(LENGTHS, T)), *compared(COMPARED)], ids=str)
def test_a_mask_that_is_a_length(cell: Masked) -> None:
    """Also for lengths of 0 and below, and above the number of rows, which onnxruntime rejects."""
    lens = lens_of(raised(cell.model, cell.feeds()))
    assert lens
    assert all(lens)


@pytest.mark.few(6)
@pytest.mark.parametrize("cell", [*thinly(NONE), *compared(COMPARED_OTHERWISE)], ids=str)
def test_a_mask_that_is_none(cell: Masked) -> None:
    assert not is_raised(cell.model, cell.feeds())


@pytest.mark.few(7)
@pytest.mark.parametrize("cell", thinly(EITHER), ids=str)
def test_what_may_be_a_length_is_right(cell: Masked) -> None:
    is_raised(cell.model, cell.feeds())


def test_each_way_to_count_is_right_or_stays() -> None:
    """The last one is a list of constants that go down."""
    down = [cell for cell in masked(NONE) if cell.name == "frames from the end on"]
    first, *_, last = (is_raised(cell.model, cell.feeds()) for cell in (*masked(COUNTERS, "T"), *down))
    assert (first, last) == (True, False)


def test_a_length_for_all_sequences_is_expanded() -> None:
    """A length [1] beside a batch of 2: the operators need one for each."""
    (cell,) = [cell for cell in masked(LENGTHS, "T") if cell.name == "Where, of rows that Range makes"]
    model = cell.model
    lens = next(v for v in model.graph.input if v.name == "lens")
    lens.type.tensor_type.shape.dim[0].dim_param = "L"
    feeds = [feed | {"lens": feed["lens"][:1]} for feed in cell.feeds()]
    assert is_raised(model, feeds)


def test_the_reason_is_said() -> None:
    (cell,) = [cell for cell in masked(NONE) if cell.name == "any frames"]
    _, report = rl.lower(cell.model, raise_loops=True, full=True)
    assert "its mask is not known to be t < lens" in str(report.left)
