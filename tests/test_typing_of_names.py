"""The types of public functions: a type checker knows the names of forms and targets, and what is returned."""

from pathlib import Path
from typing import get_args

import pytest

import rnn_lowering as rl
from rnn_lowering.targets.names import FormName, TargetName

WRONG = """
import rnn_lowering as rl

rl.lower("m.onnx", to="unrol")
rl.lower("m.onnx", "unrol")
rl.lower_file("m.onnx", "o.onnx", target="tmv")
rl.Lowering(compute="float23")
rl.LowerRecurrentPass(to="lop")
"""

RIGHT = """
import onnx, onnx_ir
import rnn_lowering as rl

model: onnx.ModelProto = rl.lower("m.onnx", to="unroll", target="tvm")
same: onnx.ModelProto = rl.lower(model, "loop", target="trt")
work: onnx_ir.Model = rl.lower(onnx_ir.load("m.onnx"), "scan")
lowered, report = rl.lower("m.onnx", full=True)
for each in ("m.onnx", model, work):
    rl.inspect(each), rl.verify(each, each), rl.Stream(each), rl.preview(each)
"""


@pytest.mark.exhaustive
def test_a_type_checker_sees_wrong_names(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    for name, text in (("wrong", WRONG), ("right", RIGHT)):
        (tmp_path / f"{name}.py").write_text(text)
    files = [str(tmp_path / f"{name}.py") for name in ("wrong", "right")]
    out, err, _ = api.run([*files, "--strict", "--follow-imports=silent", "--disable-error-code=import-untyped"])
    errors = [line for line in out.splitlines() if ": error: " in line]
    assert [line.partition("wrong.py:")[2].partition(":")[0] for line in errors] == ["4", "5", "6", "7", "8"], (
        out + err
    )


def test_the_names_that_a_type_checker_knows() -> None:
    others = {other for target in rl.TARGETS.values() for other in target.other_names}
    assert {*get_args(TargetName)} == {*rl.TARGETS} | others
    for name in get_args(TargetName):
        assert rl.Lowering(target=name).target in rl.TARGETS
    for name in get_args(FormName):
        assert rl.Lowering(to=name).to == name
