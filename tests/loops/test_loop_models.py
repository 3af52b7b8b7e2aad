"""Loops and Scans of real exporters: right in each form, or refused as the manifest allows."""

from typing import Any

import onnx
import pytest
from loop_models import LOOPS, Entry, as_meant, assert_same, entries, feeds, fits, operators, run

import rnn_lowering as rl


def attempt(
    model: onnx.ModelProto, form: str, **fix: Any
) -> tuple[onnx.ModelProto | None, rl.UnsupportedError | None]:
    try:
        return rl.lower(model, form, loops=True, **fix), None
    except rl.UnsupportedError as error:
        return None, error


@pytest.mark.parametrize("form", ["unroll", "loop", "scan"])
@pytest.mark.parametrize("entry", entries())
def test_a_model_of_an_exporter(entry: Entry, form: str) -> None:
    model = onnx.load(LOOPS / entry["file"])
    fixed = entry["fix"].get("set_inputs", {})
    runs = [feed for feed in feeds(entry) if all(feed[name] == value for name, value in fixed.items())]
    allowed = entry["possible"].get(form, "possible")
    lowered, refusal = attempt(model, form, **entry["fix"])
    if refusal is not None:
        assert allowed != "possible", str(refusal)
        assert refusal.node is not None
        assert refusal.hint
    if lowered is None:
        return
    assert allowed != "refuse"
    onnx.checker.check_model(lowered, full_check=True)
    assert not operators(lowered) & ({"Loop", "Scan"} - {form.title()})
    for feed in runs:
        if not fits(lowered, feed):
            shapes = {name: array.shape for name, array in feed.items()}
            lowered = rl.lower(model, form, loops=True, input_shapes=shapes)
        assert_same(run(lowered, feed), run(as_meant(model), feed))
