"""Nets of which one size is frozen: opened from two exports, they are right at other sizes, or refused."""

import numpy as np
import onnx
import pytest
from frozen_nets import MUST_OPEN, NETS, axes_of_t, feeds
from running import run

import rnn_lowering as rl

PAIRS = {(24, 37): (8, 13, 50, 200), (11, 160): (8, 24, 37, 50, 200)}
"""By sizes of two exports, sizes at which the opened net is judged."""


def opened(name: str, *sizes: int) -> onnx.ModelProto:
    build = NETS[name]
    first, *also = map(build, sizes)
    return rl.lower(first, "keep", open_dims=axes_of_t(build, *sizes[:2]), also=also)


@pytest.mark.few(46)
@pytest.mark.parametrize("sizes", PAIRS)
@pytest.mark.parametrize("name", NETS)
def test_right_at_other_sizes_or_refused(name: str, sizes: tuple[int, int]) -> None:
    try:
        new = opened(name, *sizes)
    except rl.UnsupportedError:
        assert name not in MUST_OPEN or (name, sizes) in TABLES
        return
    onnx.checker.check_model(new, full_check=True)
    for size in PAIRS[sizes]:
        truth = NETS[name](size)
        given = feeds(truth, size)
        expected, got = run(truth, given), run(new, given)
        for output, array in expected.items():
            assert got[output].shape == array.shape
            np.testing.assert_allclose(got[output], array, 1e-4, 1e-4, err_msg=f"{output} at {size}")


TABLES = {("positions_behind_two_convs", (11, 160))}
"""What has too few rows at the smaller size."""


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize("name", [*[*NETS][:15], "banded", "clipped_distances"])
def test_what_one_file_was_guessed_from_is_opened_from_sizes_that_decide_badly(name: str) -> None:
    new = opened(name, 5, 7)
    for size in (8, 13, 2):
        truth = NETS[name](size)
        given = feeds(truth, size)
        for output, array in run(truth, given).items():
            np.testing.assert_allclose(run(new, given)[output], array, 1e-4, 1e-4)
