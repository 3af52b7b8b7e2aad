"""What is special to LiteRT: onnx2tf takes a minute to convert a large net."""

from pathlib import Path

import pytest
from paths import MODELS

from clients.driving import drive, judge
from clients.trials import lowered, real_original, real_truth

GTCRN = "github/Xiaobin-Rong__gtcrn/gtcrn_simple_v4.onnx"


@pytest.mark.shared
@pytest.mark.environments("litert")
@pytest.mark.skipif(not (MODELS / GTCRN).exists(), reason="the stored models are not there")
def test_gtcrn_computes_a_frame(tmp_path: Path) -> None:
    job = lowered(real_original(GTCRN, "auto0"), "litert")
    got = drive("litert", {"a frame": job}, tmp_path, seconds=400)["a frame"]
    assert judge(got, real_truth(GTCRN, "auto0")) == ("right", "")
