"""The Python interface: what goes in, what comes out, and what stays as it was."""

import importlib
import json
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from cases import Case, feed, model
from chains import Link, chain
from one_process import run_workers_here
from onnx_ir.passes import common
from paths import EXAMPLES, ROOT, SRC
from running import assert_close, operators, recurrent_left, run
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.passes.report import Report

FORMS = ("auto", "scan", "loop", "unroll")
LSTM = Case("api_lstm", "LSTM", {"direction": "bidirectional"}, optional=("B", "P", "sequence_lens"))
THREE = (Link("LSTM", "first"), Link("GRU", "second", {"direction": "reverse"}), Link("RNN", "third"))
BAD = Link("LSTM", "bad", {"activations": ["Foo", "Tanh", "Tanh"]})


def serialized(ir_model: ir.Model) -> bytes:
    return bytes(ir.to_proto(ir_model).SerializeToString(deterministic=True))


def plain() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17], producer_name: "a test">
        plain (float[n, 3] a) => (float[n, 3] b) { b = Relu (a) }"""
    )


# lower


@pytest.mark.parametrize("to", FORMS)
def test_a_message_gives_a_new_one_and_a_model_is_changed_in_place(to: Any) -> None:
    original = model(LSTM, 17)
    before, ir_model = original.SerializeToString(), ir.from_proto(original)
    lowered = rl.lower(original, to)
    assert isinstance(lowered, onnx.ModelProto)
    assert original.SerializeToString() == before
    assert rl.lower(ir_model, to) is ir_model
    for made in (lowered, ir.to_proto(ir_model)):
        assert not operators(made) & {"LSTM", "ReverseSequence", "CastLike"}
        assert_close(run(made, feed(LSTM)), run(original, feed(LSTM)))


def test_without_recurrent_nodes_the_result_equals_the_input() -> None:
    original = plain()
    lowered = rl.lower(original)
    assert lowered == original
    assert lowered is not original
    ir_model = ir.from_proto(original)
    before = serialized(ir_model)
    assert rl.lower(ir_model) is ir_model
    assert serialized(ir_model) == before


@pytest.mark.parametrize("to", FORMS)
def test_lowering_is_reproducible_and_twice_changes_nothing(to: Any) -> None:
    original = chain(*THREE, dims=(6, 2))
    lowered, again = (rl.lower(original, to).SerializeToString(deterministic=True) for _ in range(2))
    assert lowered == again
    form: Any
    for form in ("auto", to):
        twice = rl.lower(onnx.ModelProto.FromString(lowered), form)
        assert twice.SerializeToString(deterministic=True) == lowered


def test_a_half_lowered_model_can_be_lowered_further() -> None:
    original = chain(*THREE, dims=(6, 2))
    lowered = original
    to: Any
    for link, to in zip(THREE, ("unroll", "loop", "scan"), strict=True):
        lowered = rl.lower(lowered, to, only=[link.name])
    onnx.checker.check_model(lowered, full_check=True)
    assert recurrent_left(lowered) == []
    inputs = {"X": feed(Case("api_x", "LSTM", T=6, N=2, I=3))["X"]}
    assert_close(run(lowered, inputs), run(original, inputs))


@pytest.mark.parametrize("other", [None, b"", onnx.GraphProto(), 3])
def test_another_type_is_an_error(other: Any) -> None:
    with pytest.raises(TypeError, match=type(other).__name__):
        rl.lower(other)


@pytest.mark.parametrize("to", ["while", "Scan", "", "SCAN"])
def test_an_unknown_form_is_refused(to: Any) -> None:
    for call in (lambda: rl.lower(plain(), to), lambda: rl.LowerRecurrentPass(to)):
        with pytest.raises(rl.UnsupportedError, match=f"'{to}'.*auto, scan, loop, unroll"):
            call()


# Warnings


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was() -> None:
    disputed = Link("RNN", "disputed", {"activations": ["Affine"]})
    ir_model = ir.from_proto(chain(*THREE, disputed))
    before = serialized(ir_model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rl.RnnLoweringWarning)
        with pytest.raises(rl.RnnLoweringWarning, match="RNN node 'disputed' in main graph"):
            rl.lower(ir_model)
    assert serialized(ir_model) == before


DISPUTED = chain(Link("RNN", "disputed", {"activations": ["Affine"]}))


@pytest.mark.parametrize(
    "call",
    [
        lambda path: rl.lower(DISPUTED),
        lambda path: rl.lower(ir.from_proto(DISPUTED)),
        lambda path: rl.lower_file(path / "in.onnx", path / "out.onnx", verify=0),
        lambda path: rl.LowerRecurrentPass()(ir.from_proto(DISPUTED)),
        lambda path: ir.passes.Sequential(rl.LowerRecurrentPass())(ir.from_proto(DISPUTED)),
    ],
    ids=["message", "model", "file", "pass", "passes"],
)
def test_a_warning_names_the_callers_line(call: Callable[[Path], Any], tmp_path: Path) -> None:
    onnx.save(DISPUTED, tmp_path / "in.onnx")
    with pytest.warns(rl.RnnLoweringWarning, match="Affine") as caught:
        call(tmp_path)
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, call.__code__.co_firstlineno)]


def test_a_warning_of_both_directions_comes_once() -> None:
    both = chain(Link("RNN", "both", {"direction": "bidirectional", "activations": ["Affine", "Affine"]}))
    with pytest.warns(rl.RnnLoweringWarning) as caught:
        _, report = rl.lower(both, full=True)
    assert len(caught) == 1
    (node,), (spec,) = report.nodes, rl.inspect(both)
    assert len(node.warnings) == len(spec.warnings) == 1


# Which nodes


def _left(model: onnx.ModelProto) -> list[str]:
    return [name.partition(" ")[2] for name in recurrent_left(model)]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"only": "LSTM"}, ["second", "third"]),
        ({"only": "f*"}, ["second", "third"]),
        ({"only": ["LSTM", "third"]}, ["second"]),
        ({"only": (name for name in ("LSTM", "third"))}, ["second"]),
        ({"only": lambda node: node.name != "second"}, ["second"]),
        ({"except_": "GRU"}, ["second"]),
        ({"except_": {"third", "LSTM"}}, ["first", "third"]),
        ({"except_": lambda node: node.op_type == "RNN"}, ["third"]),
        ({"only": ("s*",)}, ["first", "third"]),
        ({"only": "*", "except_": ["f*"]}, ["first"]),
        ({"only": lambda node: False}, ["first", "second", "third"]),
    ],
)
def test_which_nodes(options: Any, left: list[str]) -> None:
    lowering = rl.Lowering(**options)
    assert _left(rl.lower(chain(*THREE), lowering)) == left
    assert [p.node.name for p in rl.preview(chain(*THREE), lowering) if p.form == "left as it is"] == left


@pytest.mark.parametrize("option", ["only", "except_"])
@pytest.mark.parametrize("given", ["LSTMs", ["first", "fourth"], "lstm"], ids=str)
def test_a_pattern_that_matches_nothing(option: str, given: Any) -> None:
    options: Any = {option: given}
    names = "there are LSTM 'first', GRU 'second', RNN 'third'"
    calls: tuple[Callable[..., Any], ...] = rl.lower, rl.preview
    for call, to in product(calls, ("auto", "keep")):
        with pytest.raises(rl.OptionError, match=names):
            call(chain(*THREE), to, **options)


@pytest.mark.parametrize(("pattern", "left"), [("-> Y", 1), ("-> *", 1), ("LSTM", 1), ("-> Z", None)])
def test_a_node_without_a_name_goes_by_its_first_output(pattern: str, left: int | None) -> None:
    unnamed = chain(*THREE[:2])
    unnamed.graph.node[0].ClearField("name")
    first = unnamed.graph.node[0].output[0]
    pattern = pattern.replace("Y", first)
    if left is None:
        with pytest.raises(rl.OptionError, match=f"there are LSTM '-> {first}', GRU 'second'"):
            rl.lower(unnamed, only=pattern)
        return
    assert _left(rl.lower(unnamed, only=pattern)) == ["second"]
    assert recurrent_left(rl.lower(unnamed, except_=pattern)) == ["LSTM "]


def test_a_node_that_is_kept_says_so() -> None:
    """In the report and in the preview."""
    _, report = rl.lower(chain(*THREE), "keep", full=True)
    assert report.left[0] == "LSTM node 'first' in main graph: kept"
    assert {each.reason for each in rl.preview(chain(*THREE), "keep")} == {"kept"}


@pytest.mark.parametrize("given", [3, [3], [None], [["LSTM"]]], ids=str)
def test_a_pattern_that_is_no_text(given: Any) -> None:
    with pytest.raises(rl.OptionError, match="only cannot be"):
        rl.Lowering(only=given)


def test_without_recurrent_nodes_any_pattern_will_do() -> None:
    lowered = rl.lower(chain(*THREE))
    assert rl.lower(lowered, only="LSTM") == lowered


# The pass


def test_pass() -> None:
    ir_model = ir.from_proto(chain(*THREE))
    lowering = rl.LowerRecurrentPass("loop", except_=["third"])
    result = lowering(ir_model)
    report: Report = result.report
    assert isinstance(lowering, ir.passes.InPlacePass)
    assert result.modified
    assert result.model is ir_model
    assert [(n.name, n.operator, n.form) for n in report.nodes] == [
        ("first", "LSTM", "loop"),
        ("second", "GRU", "loop"),
    ]
    assert report.nodes[1].direction == "reverse"
    assert report.left == ["RNN node 'third' in main graph: not selected"]


def test_a_pass_can_be_used_again() -> None:
    lowering: Any = rl.LowerRecurrentPass()
    for original in (plain(), chain(*THREE)):
        untouched, ir_model = ir.from_proto(original), ir.from_proto(original)
        result: Any = rl.LowerRecurrentPass(except_="*")(ir_model)
        assert (result.modified, result.report.nodes) == (False, [])
        assert len(result.report.left) == len(rl.inspect(original))
        assert serialized(ir_model) == serialized(untouched)
    models = [ir.from_proto(chain(*THREE)) for _ in range(2)]
    reports = [lowering(ir_model).report for ir_model in models]
    assert [len(report.nodes) for report in reports] == [3, 3]
    assert serialized(models[0]) == serialized(models[1])
    assert not lowering(models[0]).modified


PASSES: dict[str, ir.passes.PassBase] = {
    "in a row": ir.passes.Sequential(
        common.CheckerPass(full_check=True),
        common.ShapeInferencePass(),
        rl.LowerRecurrentPass("loop"),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.DeduplicateInitializersPass(),
        common.LiftConstantsToInitializersPass(),
        common.CheckerPass(full_check=True),
    ),
    "again and again": ir.passes.PassManager(
        [common.RemoveUnusedNodesPass(), common.TopologicalSortPass(), rl.LowerRecurrentPass("scan")],
        steps=3,
        early_stop=True,
    ),
    "functional": ir.passes.functionalize(rl.LowerRecurrentPass("unroll")),
}


@pytest.mark.parametrize("name", PASSES)
def test_pass_composes(name: str) -> None:
    original = chain(*THREE, dims=(6, 2))
    given = ir.from_proto(original)
    before = serialized(given)
    result = PASSES[name](given)
    assert result.modified
    assert (result.model is given) == (name != "functional")
    assert (serialized(given) == before) == (name == "functional")
    lowered = ir.to_proto(result.model)
    assert recurrent_left(lowered) == []
    inputs = {"X": feed(Case("api_x", "LSTM", T=6, N=2, I=3))["X"]}
    assert_close(run(lowered, inputs), run(original, inputs))


# inspect


KINDS: dict[str, Callable[[Path], Any]] = {"message": onnx.load, "model": ir.load, "path": Path, "text": str}


@pytest.mark.parametrize("kind", KINDS)
def test_inspect(kind: str, tmp_path: Path) -> None:
    attributes = {"direction": "bidirectional", "linear_before_reset": 1, "clip": 0.5}
    onnx.save(chain(THREE[0], Link("GRU", "gru", attributes), THREE[2]), tmp_path / "model.onnx")
    first, second, third = rl.inspect(KINDS[kind](tmp_path / "model.onnx"))
    assert [spec.op_type for spec in (first, second, third)] == ["LSTM", "GRU", "RNN"]
    assert isinstance(first, RecurrentSpec)
    assert isinstance(second, RecurrentSpec)
    assert (second.node.name, second.node.operator, second.node.scope) == ("gru", "GRU", "main graph")
    assert second.version == 14
    assert second.dtype == ir.DataType.FLOAT
    assert second.directions == ("forward", "reverse")
    assert (second.hidden_size, second.input_size) == (4, 4)
    assert (second.seq_length, second.batch_size) == (None, None)
    assert (second.layout, second.clip, second.linear_before_reset) == (0, 0.5, True)
    assert [[str(a) for a in names] for names in second.activations] == [["Sigmoid", "Tanh"]] * 2
    assert set(second.inputs) == {"X", "W", "R", "B"}
    assert set(second.outputs) == {"Y"}
    assert set(second.constants) == {"W", "R", "B"}
    assert (first.input_forget, first.clip, first.warnings) == (False, None, ())


def test_inspect_finds_every_scope() -> None:
    assert rl.inspect(plain()) == []
    in_if = rl.inspect(model(Case("api_if", "LSTM", scope="if"), 17))
    assert len(in_if) == 2
    assert len({spec.node.scope for spec in in_if}) == 2


def test_inspect_knows_what_a_lowering_knows() -> None:
    original = chain(*THREE, dims=(6, 2))
    result: Any = rl.LowerRecurrentPass()(ir.from_proto(original))
    for spec, node in zip(rl.inspect(original), result.report.nodes, strict=True):
        known = (spec.seq_length, spec.batch_size, spec.input_size, spec.hidden_size)
        assert known == (node.seq_length, node.batch_size, node.input_size, node.hidden_size)


def test_inspect_reads_functions() -> None:
    attributes = {"direction": "reverse", "clip": 0.5}
    (spec,) = rl.inspect(model(Case("api_function", "LSTM", attributes, scope="function"), 17))
    assert isinstance(spec, RecurrentSpec)
    assert (spec.directions, spec.clip, spec.hidden_size) == (("reverse",), 0.5, 4)


def test_inspect_refuses(tmp_path: Path) -> None:
    with pytest.raises(rl.InvalidNodeError, match="LSTM node 'bad' in main graph"):
        rl.inspect(chain(*THREE, BAD))
    with pytest.raises(rl.ModelFileError, match=r"missing\.onnx"):
        rl.inspect(tmp_path / "missing.onnx")


# lower_file


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_workers_here(monkeypatch)
    onnx.save(chain(*THREE), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


@pytest.mark.few(1)
@pytest.mark.parametrize("as_text", [False, True])
def test_lower_file(source: Path, as_text: bool) -> None:
    before, target = source.read_bytes(), source.with_name("out.onnx")
    given, wanted = (str(source), str(target)) if as_text else (source, target)
    report = rl.lower_file(given, wanted, "loop", except_=["third"], verify=2)
    assert [(n.name, n.form, n.reason) for n in report.nodes] == [
        ("first", "loop", "requested"),
        ("second", "loop", "requested"),
    ]
    assert report.left == ["RNN node 'third' in main graph: not selected"]
    assert (report.operators_before["LSTM"], report.operators_after.get("LSTM", 0)) == (1, 0)
    assert report.operators_after["Loop"] == 2
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    assert report.to_dict()["command"] == ""
    assert report.verification is not None
    assert (report.verification.status, report.verification.runs) == ("verified", 2)
    assert source.read_bytes() == before
    assert recurrent_left(onnx.load(target)) == ["RNN third"]
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.onnx", "out.onnx"]


def test_lower_file_writes_what_lower_returns(source: Path) -> None:
    target = source.with_name("out.onnx")
    rl.lower_file(source, target, verify=0)
    assert onnx.load(target) == rl.lower(onnx.load(source))


def test_a_failed_verification_has_a_report(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rnn_lowering.recurrence import cells

    good = cells.STEPS["GRU"]
    monkeypatch.setitem(cells.STEPS, "GRU", lambda op, k, state, x: [s + s for s in good(op, k, state, x)])
    with pytest.raises(rl.VerificationError, match="output 'out'") as caught:
        rl.lower_file(source, source.with_name("out.onnx"), report=source.with_name("report.json"))
    assert not source.with_name("out.onnx").exists()
    report = caught.value.report
    assert isinstance(report, rl.FileReport)
    assert report.verification is not None
    assert report.verification.status == "failed"
    assert json.loads(source.with_name("report.json").read_text()) == json.loads(report.to_json())


# Names


def test_public_names() -> None:
    for name in rl.__all__:
        assert getattr(rl, name).__doc__
    assert dir(rl) == sorted(rl.__all__)
    with pytest.raises(AttributeError, match="'lower_all'"):
        rl.lower_all  # noqa: B018


def test_errors_have_one_base() -> None:
    for error in (rl.InvalidNodeError, rl.UnsupportedError, rl.VerificationError, rl.ModelFileError):
        assert issubclass(error, rl.RnnLoweringError)
    assert not issubclass(rl.InvalidNodeError, rl.UnsupportedError)
    assert issubclass(rl.RnnLoweringWarning, UserWarning)


def in_child(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(SRC)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_lazy() -> None:
    code = "import sys, rnn_lowering; print({'onnx', 'numpy', 'onnx_ir', 'onnxruntime', 'rich'} & set(sys.modules))"
    assert in_child(code).strip() == "set()"


def test_a_host_of_streams_needs_neither_onnx_nor_onnx_ir() -> None:
    code = "import sys, rnn_lowering as rl; rl.Stream; print({'onnx', 'onnx_ir'} & set(sys.modules))"
    assert in_child(code).strip() == "set()"


def test_comparing_a_small_model_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    """Its logarithm refuses the first numbers, but not the sizes: none are looked for that it takes together."""
    command = ["rnn-lower", str(EXAMPLES / "denoiser.onnx"), str(tmp_path / "lowered.onnx"), "--quiet"]
    code = f"import sys, numpy; sys.argv = {command}; before = set(sys.modules)"  # NumPy 1 has all its parts then
    code += "; from rnn_lowering.__main__ import main; print(main())"
    code += "; print({'numpy.ma', 'onnx.reference'} & set(sys.modules) - before)"
    assert in_child(code).split() == ["0", "set()"]
    assert (tmp_path / "lowered.onnx").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "first", thinned(["lower", "verify", "LowerRecurrentPass", "VerificationError", "Tolerance"], 3)
)
def test_public_names_in_any_order(first: str) -> None:
    code = f"""
import rnn_lowering as rl
rl.{first}
functions = [rl.lower, rl.lower_file, rl.verify, rl.inspect, rl.LowerRecurrentPass]
assert all(callable(f) for f in functions), functions
from rnn_lowering import verify, inspect
assert callable(verify) and callable(inspect)
"""
    in_child(code)


def test_typed() -> None:
    assert files(rl).joinpath("py.typed").is_file()


def test_the_log_tells_what_was_decided(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rnn_lowering"):
        rl.lower(chain(*THREE), "loop", except_="third")
    told = [record.getMessage() for record in caplog.records if record.name == "rnn_lowering"]
    assert sum("becomes loop: requested" in line for line in told) == 2
    assert [line for line in told if "not selected" in line and "third" in line]


# Olive


@pytest.mark.parametrize(
    ("extra", "module", "library"),
    [("olive", "rnn_lowering.olive", "olive"), ("html", "rnn_lowering.report.page", "networkx")],
)
def test_a_hint_installs_what_the_extra_has(
    extra: str, module: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of the libraries: the package itself is not on PyPI."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(rl.RnnLoweringError, match=library) as refused:
        importlib.import_module(module)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (wanted,) = re.findall(rf"^{extra} = \[(.*)\]$", project, re.MULTILINE)
    assert refused.value.hint.split() == ["pip", "install", *re.findall(r'"([\w-]+)', wanted)]


def test_the_surgeon_lowers_protos_and_models_of_onnx_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the base class of Olive's surgeons as it is called, where Olive is not installed."""
    name = "olive.passes.onnx.graph_surgeries"
    fake = types.ModuleType(name)
    fake.__dict__["Surgeon"] = type("Surgeon", (), {})
    for parent in ("olive", "olive.passes", "olive.passes.onnx"):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.delitem(sys.modules, "rnn_lowering.olive", raising=False)
    surgeon = importlib.import_module("rnn_lowering.olive").LowerRecurrent("unroll", dims={"seq": 3, "batch": 1})
    original = chain(Link("LSTM", "lstm"))
    assert surgeon(original) == rl.lower(original, "unroll", dims={"seq": 3, "batch": 1})
    model = ir.from_proto(original)
    assert surgeon.call_ir(model) is model
    assert recurrent_left(ir.to_proto(model)) == []
    monkeypatch.delitem(sys.modules, "rnn_lowering.olive")


def test_no_comparison_is_spelled_in_two_ways(source: Path) -> None:
    for nothing in (0, False):
        done = rl.lower_file(source, source.with_name("unchecked.onnx"), verify=nothing, overwrite=True)
        assert done.verification.status == "not compared"
    with pytest.raises(rl.OptionError, match="verify cannot be True; give a whole number, 0 or more"):
        rl.lower_file(source, source.with_name("unchecked.onnx"), verify=True, overwrite=True)


def test_an_address_is_no_file(source: Path) -> None:
    address = "https://example.org/a.onnx"
    calls: list[Callable[[], object]] = [
        lambda: rl.lower(address),
        lambda: rl.inspect(address),
        lambda: rl.lower_file(address, "out.onnx"),
        lambda: rl.lower_file(source, address),
        lambda: rl.verify(source, address),
    ]
    for call in calls:
        with pytest.raises(rl.OptionError, match=f"'{address}' is an address, not a file"):
            call()


def test_a_node_is_not_both_lowered_and_left(source: Path) -> None:
    for given in ({"only": "LSTM", "except_": "LSTM"}, {"only": ["a", "b*"], "except_": ("b*",)}):
        with pytest.raises(rl.OptionError, match="is to be lowered, and not to be"):
            rl.lower(source, **given)


def test_what_an_interpreter_shows_is_short(tmp_path: Path) -> None:
    """A line for each node or result, and the options that are not the default."""
    path = ROOT / "examples" / "model.onnx"
    new, report = rl.lower(path, full=True)
    check = rl.verify(path, new, runs=1)
    of_file = rl.lower_file(path, tmp_path / "out.onnx", verify=0)
    assert repr(rl.inspect(path)[0]).startswith("<RecurrentSpec: LSTM node '/lstm/LSTM' in main graph: version 14")
    assert repr(rl.preview(path)[1]).startswith("<Preview: GRU node '/gru/GRU' in main graph: scan (")
    assert repr(report) == "<Report: lowered 1 LSTM node: scan; lowered 1 GRU node: scan>"
    assert repr(rl.LowerRecurrentPass()(ir.load(path))).startswith("<LoweringResult: lowered 1 LSTM node: scan; ")
    assert repr(check) == f"<Verification: {check}>"
    done = "lowered 1 LSTM node: scan; lowered 1 GRU node: scan"
    unlike = "not compared with the original: no run was asked for"
    assert repr(of_file) == f"<FileReport: {done}; {unlike}; written to {tmp_path / 'out.onnx'}>"
    assert repr(Report()) == "<Report>"
    assert repr(rl.Lowering()) == "Lowering()"
    assert repr(rl.Lowering("unroll", dims={"seq": 3})) == "Lowering(to='unroll', dims={'seq': 3})"
    tolerance = rl.Tolerance(rtol=1e-3)
    assert repr(rl.Check(tolerance=tolerance, runs=1)) == "Check(runs=1, tolerance=Tolerance(rtol=0.001))"
