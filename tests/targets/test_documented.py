"""Documented targets: what is emitted for a node is in the runtime's list, or the model is refused with a hint.
What is composed of listed operators computes the same."""

import dataclasses
import re
from datetime import date
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from case_list import CASES
from cases import FUNCTIONS, Case, expected, feed, model
from clients.trials import cases
from forms import fitting
from paths import ROOT
from running import assert_close, operators, run

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.flags import for_command

DOCUMENTED = [name for name, target in rl.TARGETS.items() if target.documented is not None]
OPSET = 17

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


def listed(target: str) -> frozenset[str]:
    known = rl.TARGETS[target].documented
    assert known is not None
    return known.operators


def emitted(lowered: ir.Model, original: onnx.ModelProto) -> set[str]:
    """The operators of the nodes that the original does not have, those of bodies included."""
    kept = {_identity(node) for node in ir.from_proto(original).graph.all_nodes()}
    return {node.op_type for node in lowered.graph.all_nodes() if _identity(node) not in kept}


def _identity(node: ir.Node) -> tuple[str, ...]:
    return node.op_type, *(value.name or "" for value in node.outputs)


def lowered(case: Case, target: Any, opset: int = OPSET) -> ir.Model | None:
    """Return the lowered model, of which all that was emitted is listed; None where it is refused with a hint."""
    original = model(case, opset if opset in case.opsets else case.opsets[-1])
    read = ir.from_proto(original)
    refusal = ""
    try:
        rl.lower(read, target=target)
    except rl.UnsupportedError as error:
        refusal = error.hint or f"no hint: {error}"
    assert not refusal.startswith("no hint"), case.name
    if refusal:
        return None
    found = emitted(read, original)
    assert found, case.name
    assert found <= listed(target), case.name
    return read


@pytest.mark.few(1)
@pytest.mark.parametrize("target", DOCUMENTED)
@pytest.mark.parametrize("every", [160, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_listed_operators_or_a_hint(target: str, every: int) -> None:
    """A share of the repository's cases, as the target supports them and as they are."""
    found = [lowered(fitting(case, target), target) for case in CASES[::every]]
    assert sum(model is not None for model in found) > len(found) / 2
    for case in CASES[:: every * 4]:
        lowered(case, target)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", DOCUMENTED)
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_small_models_of_the_clients(target: str, every: int) -> None:
    """Each is lowered, and computes what the operator specification does."""
    for case in list(cases().values())[::every]:
        fit = fitting(case, target)
        found = lowered(fit, target)
        assert found is not None, case.name
        assert_close(run(ir.to_proto(found), feed(fit)), expected(fit), label=case.name)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["candle", "tidl", "stedgeai", "rten", "onnx2c"])
def test_composed_operators(target: str) -> None:
    """Activations from far below to far above zero and at thresholds; an Identity and parts at an old opset."""
    chosen = [
        Case("composed", "RNN", _activation(name), T=3, N=1, x_scale=scale)
        for name in FUNCTIONS
        for scale in (1.0, 1e4)
    ]
    chosen += [Case("clip", op, {"clip": 0.3}, N=1, x_scale=1e6) for op in ("GRU", "LSTM")]
    chosen += [Case("nothing", "LSTM", T=0, N=1, optional=("initial_h",), states_from="initializer")]
    opsets = [opset for opset in (9, OPSET) if opset >= (rl.TARGETS[target].oldest_opset or 0)]
    for case, opset in ((case, opset) for case in chosen for opset in opsets):
        found = lowered(case, target, opset)
        if found is not None:
            assert_close(run(ir.to_proto(found), feed(case)), expected(case), label=case.name)


def _activation(name: str) -> dict[str, object]:
    return {"activations": [name], "activation_alpha": [0.5], "activation_beta": [0.25]}


REFUSED = {
    "unsized": (
        "onnx2c",
        Case("c", "GRU", x="symbolic"),
        "onnx2c needs a known .*; fix .*--set-dim seq=. --set-dim batch=.",
    ),
    "lengths": ("tidl", Case("c", "RNN", N=1, optional=("sequence_lens",)), r"--set-input sequence_lens=\?"),
    "batch": ("tidl", Case("c", "RNN", N=2), "only batch size 1, not 2; export"),
    "opset": ("candle", Case("c", "RNN"), "opset 13 or later, but the model has 12"),
    "type": ("rten", Case("c", "RNN", dtype="float16"), "rten has no float16"),
    "cast": ("onnx2c", Case("c", "RNN", optional=("sequence_lens",)), "constant sequence_lens; .*--set-input"),
    "operator": (
        "tidl",
        Case("c", "RNN", _activation("Affine"), N=1, ir3=True),
        "is not known to support Constant .*edgeai-tidl-tools",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_hint(name: str) -> None:
    target: Any
    target, case, message = REFUSED[name]
    opset = {"opset": 12, "operator": 8}.get(name, OPSET)
    with for_command(), pytest.raises(rl.UnsupportedError, match=message):
        rl.lower(model(case, opset), target=target)


INTEGERS = """<ir_version: 8, opset_import: ["" : 17]> g (float[3, 1, 2] X) => (float[3, 1, 1, 2] Y)
    <int8[1, 2, 2] Q = {1, 2, 3, 4}, float scale = {0.5}, float[1, 2, 2] R = {0.1, 0.2, 0.3, 0.4}>
    { W = DequantizeLinear(Q, scale) Y = RNN<hidden_size: int = 2>(X, W, R) }"""


def test_weights_that_are_stored_as_integers() -> None:
    """burn's list has no DequantizeLinear, that of rten has."""
    stored = onnx.parser.parse_model(INTEGERS)
    with pytest.raises(rl.UnsupportedError, match=r"burn .* DequantizeLinear .*dequantize=True"):
        rl.lower(stored, target="burn")
    assert "DequantizeLinear" not in operators(rl.lower(stored, target="burn", dequantize=True))
    assert "DequantizeLinear" in operators(rl.lower(stored, target="rten"))


def test_an_operator_without_a_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is an option that lowers the model without the list."""
    known = rl.TARGETS["candle"].documented
    assert known is not None
    fewer = dataclasses.replace(known, named=known.named.replace(" Tanh ", " "))
    monkeypatch.setitem(rl.TARGETS, "candle", dataclasses.replace(rl.TARGETS["candle"], documented=fewer))
    before = model(Case("formula", "GRU"), OPSET)
    with pytest.raises(rl.UnsupportedError, match=r"not known to support Tanh .*target=.portable., to=.unroll.$"):
        rl.lower(before, target="candle")
    assert before == model(Case("formula", "GRU"), OPSET)


def test_a_longer_sequence_gets_a_loop_that_is_listed() -> None:
    for target, loop in {"tensorrt": "Scan", "rten": "Loop"}.items():
        found = lowered(Case("long", "GRU", T=600), target)
        assert found is not None
        assert loop in {node.op_type for node in found.graph}


def test_every_row_has_a_source_and_a_date() -> None:
    assert len(DOCUMENTED) == 7
    for name in DOCUMENTED:
        known = rl.TARGETS[name].documented
        assert known is not None
        for day in filter(None, (known.date, known.run)):
            date.fromisoformat(day)
        assert "/" in known.source
        assert all(onnx.defs.has(operator) for operator in known.named.split())
        assert {operator for operator, _ in known.left_out} <= set(known.named.split())


def test_the_report_tells_that_it_was_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(Case("note", "RNN", N=1), OPSET), tmp_path / "in.onnx")
    assert main([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--target", "tidl", "--verify", "0"]) == 0
    assert "tidl was not run: its operators come from TexasInstruments/edgeai-tidl-tools" in capsys.readouterr().out


def test_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """rten and onnx2c were run, and their Softplus was infinite."""
    onnx.save(model(Case("note", "RNN", _activation("Softplus")), OPSET), tmp_path / "in.onnx")
    paths = [str(tmp_path / name) for name in ("in.onnx", "out.onnx")]
    for target in ("rten", "onnx2c"):
        assert rl.TARGETS[target].evidence == "tried"
        assert main([*paths, "--target", target, "--verify", "0", "--force"]) == 0
        assert "was not run" not in capsys.readouterr().out
        assert "Softplus" not in operators(onnx.load(tmp_path / "out.onnx"))


def test_the_list_of_targets_and_the_page_say_which_were_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of these were run once, and no test runs any."""
    with pytest.raises(SystemExit):
        main(["--targets"])
    printed = capsys.readouterr().out
    evidence = dict(re.findall(r"^ (\S+) +(\w+)", printed, re.MULTILINE))
    tried = [name for name in DOCUMENTED if evidence[name] == "tried"]
    assert {evidence[name] for name in {*DOCUMENTED} - {*tried}} == {"documented"}
    text = (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8").partition("## By a list of operators")[2]
    (said,) = re.findall(r"On \S+ we built (\w+) and (\w+) ", text)
    assert sorted(said) == sorted(tried)
    assert "tried: lowered models were run in it once" in printed
