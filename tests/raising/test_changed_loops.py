"""A loop that is almost a cell is never raised wrongly: it computes the same, or stays as it is."""

import random

import numpy as np
import pytest
from changed_loops import changed
from onnx import numpy_helper
from raised import is_raised
from running import run
from spelled_cells import spelled
from thinning import thinned

import rnn_lowering as rl


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", thinned(range(2000), 40))
def test_a_changed_loop(seed: int) -> None:
    rng = random.Random(seed)
    cell = spelled(seed)
    model = changed(cell.model, rng, rng.choice((1, 1, 2)))
    try:
        for feed in cell.feeds():
            run(model, feed, optimize=False)
    except Exception:  # onnxruntime's errors have no common class
        return
    is_raised(model, cell.feeds())


def test_a_loop_without_a_step_stays() -> None:
    """onnxruntime's LSTM returns any numbers as Y_c then."""
    model = spelled(4, op_type="LSTM", repeated="loop", sizes="known", states="zeros").model
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "none"))
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    loop.input[0] = "none"
    new, report = rl.lower(model, raise_loops=True, full=True)
    assert new == model
    assert "it has no step" in str(report.left)
