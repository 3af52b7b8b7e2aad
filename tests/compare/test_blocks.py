"""Large arrays are compared in blocks: with the result of the whole, and without memory for the whole."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Case, model
from one_process import run_workers_here
from stream_models import net, random

import rnn_lowering as rl
from rnn_lowering.compare import judgement
from rnn_lowering.compare.judgement import compare
from rnn_lowering.compare.node_by_node import NodeComparison
from rnn_lowering.compare.runs.runner import Runner
from rnn_lowering.compare.runs.worker import StoredArrays, write_arrays
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.recurrence import cells

MIB = 1 << 20
RNG = np.random.default_rng(0)
NUMBERS = RNG.standard_normal((7, 30)).astype(np.float32)


def changed(index: int, value: Any, array: Any = NUMBERS) -> Any:
    copy = array.copy()
    copy.reshape(-1)[index] = value
    return copy


PAIRS = {
    "equal": (NUMBERS, NUMBERS),
    "last": (NUMBERS, changed(-1, 3.0)),
    "first": (changed(0, 100.0), changed(0, 101.0)),
    "within rtol": (changed(50, 100.0), changed(50, 100.001)),
    "small throughout": (NUMBERS * np.float32(1e-4), changed(100, 5e-4, NUMBERS * np.float32(1e-4))),
    "small but for one": (changed(200, 1.0, NUMBERS * np.float32(1e-4)), NUMBERS * np.float32(1e-4)),
    "nan": (NUMBERS, changed(199, np.nan)),
    "both nan": (changed(199, np.nan), changed(199, np.nan)),
    "infinite": (NUMBERS, changed(0, np.inf)),
    "integers": (np.arange(100), changed(77, 0, np.arange(100))),
    "empty": (NUMBERS[:0], NUMBERS[:0]),
    "scalar": (np.float32(1), np.float32(2)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("given", [rl.Tolerance(), rl.Tolerance(1e-3), rl.Tolerance(atol=1.0)], ids=str)
def test_blocks_have_the_result_of_the_whole(
    name: str, given: rl.Tolerance, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = map(np.asarray, PAIRS[name])
    whole = compare(before, after, given)
    monkeypatch.setattr(judgement, "BLOCK", 8)
    assert compare(before, after, given) == whole


def test_the_memory_of_a_comparison(tmp_path: Path) -> None:
    array = np.zeros(64 * MIB // 4, np.float32)
    array[-1] = 1
    for name in ("before", "after"):
        write_arrays(tmp_path / name, {"Y": array})
    before, after = (StoredArrays(tmp_path / name) for name in ("before", "after"))
    tracemalloc.start()
    result = compare(before["Y"], after["Y"], rl.Tolerance())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result == (0.0, "")
    assert peak < 64 * MIB


@pytest.mark.exhaustive
def test_the_memory_of_one_large_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The float64 of a large weight is never held as a whole."""
    run_workers_here(monkeypatch)
    weights = {"W": random((1, 4 * 1536, 4)), "R": random((1, 4 * 1536, 1536), 1, 0.02)}
    model = net(
        "g (float[2, 1, 4] X) => (float[2, 1, 1, 1536] Y) { Y = LSTM <hidden_size = 1536> (X, W, R) }", weights
    )
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True)
    rl.lower_file(tmp_path / "model.onnx", tmp_path / "lowered.onnx", verify=0)
    tracemalloc.start()
    check = rl.verify(tmp_path / "model.onnx", tmp_path / "lowered.onnx", runs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert check.nodes
    assert check
    assert peak < weights["R"].nbytes


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_nodes_are_judged_a_few_rows_at_a_time(layout: int, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole batch is judged, whatever the number of rows at a time."""
    run_workers_here(monkeypatch)
    optional = ("B", "sequence_lens", "initial_h", "initial_c", "P")
    original = model(Case("rows", "LSTM", {"layout": layout}, x="batch", optional=optional), 17)
    if wrong:
        lstm = cells.STEPS["LSTM"]
        monkeypatch.setitem(cells.STEPS, "LSTM", lambda *args: [s * args[0].constant(1.01) for s in lstm(*args)])
    lowered = rl.lower(original)
    found = []
    for block in (1 << 23, 1):
        monkeypatch.setattr(judgement, "_ELEMENTS_AT_ONCE", block)
        with Runner() as runner:
            files = [ModelSource(runner.folder / f"{n}.onnx", proto) for n, proto in enumerate((original, lowered))]
            comparison = NodeComparison(files[0], files[1], runner, rl.Check(), None)
            found.append(comparison.result("asked for").nodes)
    whole, by_row = found
    assert [(c.name, c.passed) for c in whole] == [(c.name, c.passed) for c in by_row]
    assert all(c.passed != wrong for c in whole)
    assert [c.max_abs for c in whole] == pytest.approx([c.max_abs for c in by_row], rel=1e-6)
