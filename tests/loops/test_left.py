"""A Loop or Scan that stays is named: by the report, by `--list`, and in an error where the target runs none."""

from pathlib import Path
from typing import Any

import pytest
from commands import Command, saved
from onnx import parser

import rnn_lowering as rl

LEAKY = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,3] X, float[3] s0, int64 M) => (float[3] sn, float[T,3] Y) <bool yes = {1}> {
    %s sn, Y = Loop (M, yes, s0) <body = b (int64 i, bool c, float[3] s) => (bool c1, float[3] s1, float[3] o) {
        x = Gather <axis = 0> (X, i)
        s1 = Add (s, x)
        o = Identity (s1)
        c1 = Identity (c)
    }>
}"""

NAMED, UNNAMED = (parser.parse_model(LEAKY % name) for name in ("[sum]", ""))


@pytest.mark.parametrize("form", ["auto", "unroll", "scan"])
def test_the_report_names_what_stays(form: str) -> None:
    new, report = rl.lower(NAMED, form, full=True)
    assert new == NAMED
    (left,) = report.left
    assert left.startswith("Loop node 'sum' in main graph: ")


def test_a_target_without_loops_refuses_by_name() -> None:
    for model, name in ((NAMED, "sum"), (UNNAMED, "-> sn")):
        with pytest.raises(rl.UnsupportedError, match=f"^Loop node '{name}' in main graph: ") as caught:
            rl.lower(model, target="tvm")
        assert caught.value.hint


def test_the_command_names_what_stays(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", UNNAMED), tmp_path / "out.onnx"
    listed = rnn_lower(source, "--list")
    assert listed.code == 0  # exit code 4 is for RNN, GRU and LSTM
    assert "Loop node '-> sn' in main graph" in listed.out
    lowered = rnn_lower(source, target, "--to", "unroll", "--no-verify")
    assert lowered.code == 0
    assert "left as it is: Loop node '-> sn' in main graph" in lowered.out
    refused = rnn_lower(source, target, "--target", "tvm", "--force")
    assert (refused.code, refused.out) == (1, "")
    assert "Loop node '-> sn' in main graph" in refused.err


def test_operators_in_bodies_are_those_that_a_document_names() -> None:
    """Of rten, which runs Loop but no Celu; candle runs neither Loop nor Celu."""
    text = LEAKY.replace("s1 = Add (s, x)", "y = %s (x) s1 = Add (s, y)") % ("[sum]", "%s")
    bad, good = (parser.parse_model(text % operator) for operator in ("Celu", "Tanh"))
    cases: list[tuple[str, dict[str, Any]]] = [
        ("rten", {}),
        ("rten", {"loops": True}),
        ("candle", {"set_inputs": {"M": 3}, "dims": {"T": 3}}),
    ]
    for target, options in cases:
        with pytest.raises(rl.UnsupportedError, match=f"{target} is not known to support Celu ") as caught:
            rl.lower(bad, target=target, **options)
        assert str(caught.value).startswith("Loop node 'sum' in main graph: ")
        rl.lower(good, target=target, **options)
    (preview,) = rl.preview(bad, target="rten")
    assert preview.form == "refused"
    open_sizes = parser.parse_model((text % "Celu").replace("[T,3]", "[T,K]").replace("float[3]", "float[K]"))
    with pytest.raises(rl.UnsupportedError, match="rten is not known to support Celu "):  # though it has no step
        rl.lower(open_sizes, target="rten", loops=True, set_inputs={"M": 0})
