"""The verification of every stored model: it states its method, and nothing is verified that was not compared."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from one_process import run_workers_here
from paths import MODELS
from stored_models import Entry, load, parameters
from thinning import exhaustive

import rnn_lowering as rl
from rnn_lowering.passes.report import NodeReport
from rnn_lowering.recurrence import cells

WHOLE = ("onnxruntime", "onnxruntime, differences judged by float64 NumPy")
NODES = "each node against float64 NumPy"

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")

SMALL = 100_000
STORED = [*parameters("runs"), *parameters("refused"), *parameters("plain")]
FEW = [n for n, p in enumerate(STORED) if p.values[0].get("bytes", 0) <= SMALL][::12]
models = pytest.mark.parametrize("entry", [p if n in FEW else exhaustive(p) for n, p in enumerate(STORED)])


@pytest.mark.few(1)
@models
def test_the_method_is_said(entry: Entry, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    try:
        report = rl.lower_file(MODELS / entry["file"], target)
    except (rl.InvalidNodeError, rl.UnsupportedError):
        assert not entry["ort"]["runs"]
        assert not target.exists()
        return
    check = report.verification
    assert check is not None
    if not report.nodes:
        assert check.status == "unchanged"
        return
    if check.status == "verified":
        assert_compared(check, load(entry), report.nodes)
    else:
        assert check.status == "not verified"
        assert check.reason
        assert not check.outputs
    assert (check.method in WHOLE) == entry["ort"]["runs"], check.reason


def assert_compared(check: rl.Verification, original: onnx.ModelProto, lowered: list[NodeReport]) -> None:
    """Check that the data of a verification show what its status claims."""
    assert check.runs == len(check.each_run)
    assert check.runs >= 3 or check.method == NODES
    assert all(output.passed for output in (*check.outputs, *check.nodes))
    names = [output.name for output in check.outputs]
    for run in check.each_run:
        assert [output.name for output in run.outputs] == names
        assert all(output.passed for output in run.outputs)
    if check.method in WHOLE:
        assert names == [output.name for output in original.graph.output]
        initializers = {tensor.name for tensor in original.graph.initializer}
        needed = {value.name for value in original.graph.input} - initializers
        assert all({given.name for given in run.inputs} >= needed for run in check.each_run)
    else:
        assert check.method == NODES
        assert names == [node.name for node in check.nodes]
    ends = {f"of {node.operator} node '{node.name}' in {node.scope}" for node in lowered}
    checked = {node.name.partition(" ")[2] for node in check.nodes}
    assert checked == ends, check.reason


@pytest.mark.few(3)
@models
def test_a_wrong_lowering_is_not_verified(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if entry["ort"].get("with_optimisations") == "ok":  # of the others some take their process down
        run_workers_here(monkeypatch)
    for op_type, cell in cells.STEPS.items():
        monkeypatch.setitem(cells.STEPS, op_type, wrong(cell))
    try:
        report = rl.lower_file(MODELS / entry["file"], tmp_path / "out.onnx", verify=1)
    except rl.RnnLoweringError:
        assert not (tmp_path / "out.onnx").exists()
        return
    check = report.verification
    assert not report.nodes or (check is not None and check.status == "not verified")


def wrong(cell: Any) -> Any:
    """A cell whose states are half as large again."""

    def scaled(op: Any, k: Any, state: Any, x: Any) -> Any:
        return [s * op.constant(1.5) for s in cell(op, k, state, x)]

    return scaled
