"""The conformance suite: its models are valid, its numbers are onnxruntime's where that is right, and programs are
judged."""

import json
import re
import shlex
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from running import runs_in_onnxruntime

from conformance import judging, scoreboard, suite
from conformance.__main__ import main
from conformance.features import features

NOT_IN_ONNXRUNTIME = {
    "layout 1": "Batchwise recurrent operations",
    "standard operator": "official support for domain ai.onnx is till opset",
}
"""Features that some onnxruntime rejects, by a part of their name, and what it says."""

WRONG_IN_ONNXRUNTIME = {"rnn_softplus_saturated"}
"""Softplus is infinite from 89 on."""

TOOL = """
import pathlib, sys
import numpy as np, onnx, onnxruntime
from onnx import numpy_helper
model, data, output, how = sys.argv[1:]
if how == "rejects": sys.exit(3)
if how == "crashes": import os; os.abort()
session = onnxruntime.InferenceSession(model)
feed = {}
for n, value in enumerate(session.get_inputs()):
    read = onnx.TensorProto.FromString(pathlib.Path(data, f"input_{n}.pb").read_bytes())
    feed[value.name] = numpy_helper.to_array(read)
for n, array in enumerate(session.run(None, feed)):
    if how == "wrong": array = array + 0.01
    pathlib.Path(output, f"output_{n}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conformance") / "suite"
    assert main(["write", str(path)]) == 0
    return path


def test_every_feature_is_what_onnxruntime_computes(folder: Path) -> None:
    """Models and numbers are read from the files."""
    stored = list(suite.stored(folder))
    assert len(stored) >= 150
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = (
        1  # with more, DynamicQuantizeLSTM quantizes parts of a batch with scales of their own
    )
    for feature in stored:
        model = onnx.load(feature.folder / "model.onnx")
        onnx.checker.check_model(model)
        reason = next((said for part, said in NOT_IN_ONNXRUNTIME.items() if part in feature.label), None)
        if reason is not None and not runs_in_onnxruntime(model):
            with pytest.raises(Exception, match=re.escape(reason)):
                ort.InferenceSession(model.SerializeToString(), options)
            continue
        session = ort.InferenceSession(model.SerializeToString(), options)
        names = [value.name for value in session.get_outputs()]
        got = dict(zip(names, session.run(None, feature.arrays("input")), strict=True))
        wanted = "wrong" if feature.name in WRONG_IN_ONNXRUNTIME else "right"
        assert judging.judge(feature, got) == wanted, feature.name


@pytest.mark.parametrize("how", ["right", "wrong", "rejects", "crashes"])
def test_a_command_is_judged(how: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(TOOL)
    chosen = [feature for feature in suite.stored(folder) if feature.name == "lstm_peepholes_forward"]
    command = shlex.join([sys.executable, str(tmp_path / "tool.py")]) + " {model} {data} {output} " + how
    assert judging.by_command(command, chosen) == {"lstm_peepholes_forward": how}


def test_an_old_folder_is_kept(folder: Path) -> None:
    before = (folder / suite.INDEX).read_bytes()
    with pytest.raises(FileExistsError):
        suite.write(folder)
    assert (folder / suite.INDEX).read_bytes() == before


def test_the_page_is_that_of_what_is_stored() -> None:
    labels = {feature.name: (feature.group, feature.label) for feature in features()}
    results = json.loads(scoreboard.RESULTS.read_text())
    assert scoreboard.tables(results, labels) in scoreboard.PAGE.read_text(encoding="utf-8")
    for entry in results.values():
        assert entry["native"].keys() == entry["lowered"].keys() == labels.keys()
