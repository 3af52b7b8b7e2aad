"""Faults of exporters that a file shows."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Case, model
from paths import MODELS

import rnn_lowering as rl
from rnn_lowering.cli.command import main

MARK = "pkg.torch.onnx.fx_node"
OF_GRU = "%gru : [num_users=2] = call_function[target=torch.ops.aten.gru.input](args = (%x, %zeros), kwargs = {})"
OTHER = "%gru : [num_users=2] = call_function[target=torch.ops.mine.gru.default](args = (%x,), kwargs = {})"


def written(
    op: str = "GRU", name: str = "node_gru__1", producer: str = "pytorch", made_from: str = OF_GRU, linear: int = 0
) -> onnx.ModelProto:
    """A model as an exporter wrote it; without `made_from` it has lost the metadata of its nodes."""
    net = model(Case("exported", op, {"linear_before_reset": linear} if op == "GRU" else {}), 18)
    net.producer_name = producer
    net.graph.node[-1].name = name
    if made_from:
        net.graph.node[-1].metadata_props.add(key=MARK, value=made_from)
    return net


def warned(net: onnx.ModelProto) -> bool:
    (spec,) = rl.inspect(net)
    return any("linear_before_reset" in text for text in spec.warnings)


@pytest.mark.parametrize("fields", [{}, {"made_from": ""}, {"made_from": "", "name": "node_GRU_82"}])
def test_a_gru_that_lost_its_attribute(fields: dict[str, Any]) -> None:
    """Also where it is kept."""
    assert warned(written(**fields))
    with pytest.warns(rl.RnnLoweringWarning, match=r"export it again with torch 2\.15, onnxscript 0\.7\.1"):
        rl.lower(written(**fields))
    with pytest.warns(rl.RnnLoweringWarning, match=r"linear_before_reset"):
        rl.lower(written(**fields), "keep")


def test_what_is_right() -> None:
    """The attribute is there, no torch.nn.GRU, LSTM, the older exporter, another exporter."""
    assert not warned(written(linear=1))
    assert not warned(written(made_from=OTHER))
    assert not warned(written(op="LSTM"))
    assert not warned(written(made_from="", name="/r/GRU"))
    assert not warned(written(made_from="", producer="tf2onnx"))


@pytest.mark.shared
@pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")
@pytest.mark.parametrize("folder", ["torch_dynamo", "torch_legacy"])
def test_stored_models_are_right(folder: str) -> None:
    """Both exporters of torch 2.13, the newer one with onnxscript 0.7.2."""
    paths = sorted((MODELS / "exported" / folder).glob("*gru*.onnx"))
    assert paths
    for path in paths:
        assert not any("linear_before_reset" in text for spec in rl.inspect(path) for text in spec.warnings), path


def test_the_list_and_the_report_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(written(), tmp_path / "model.onnx")
    assert main([str(tmp_path / "model.onnx"), "--list"]) == 4
    assert "warning: GRU node 'node_gru__1'" in capsys.readouterr().out
    arguments = [str(tmp_path / "model.onnx"), str(tmp_path / "out.onnx"), "--report", str(tmp_path / "out.json")]
    assert main(arguments) == 0
    assert "warning: GRU node 'node_gru__1'" in capsys.readouterr().err
    assert "linear_before_reset" in (tmp_path / "out.json").read_text()
