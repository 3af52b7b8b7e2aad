"""What the command prints and writes, and what `--list` shows without writing."""

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Case, feed, model
from chains import Link, chain
from commands import (
    DISPUTED,
    STATIC,
    SYMBOLIC,
    THREE,
    Command,
    Outcome,
    assert_refused,
    cells,
    files,
    saved,
    table,
    without_recurrent_nodes,
)
from running import assert_close, operators, recurrent_left, run
from texts import parse

import rnn_lowering as rl
from rnn_lowering.report.use import SECTIONS
from rnn_lowering.targets.calls import CALLS


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return saved(tmp_path / "in.onnx", chain(*THREE))


@pytest.mark.parametrize("to", ["scan", "auto", "unroll"])
def test_a_form_that_is_not_the_requested_one_is_told(
    to: str, three: Path, rnn_lower: Command, tmp_path: Path
) -> None:
    outcome = rnn_lower(three, tmp_path / "out.onnx", "--verify", "0", "--to", to, "--set-dim", "seq=1")
    assert "lowered 1 GRU node: unroll" in outcome.lines
    assert ("unroll in place of scan: sequence length 1 needs no loop" in outcome.lines) == (to == "scan")


@pytest.mark.parametrize(
    ("target", "line", "on_page"),
    [
        (
            "coreml",
            "run it in coreml: docs/runtimes.md#by-hand-core-ml of the repository has the code",
            "The code for coreml is in docs/runtimes.md#by-hand-core-ml of the repository.",
        ),
        (
            "onnx2c",
            "run it in onnx2c as its own documentation says: no test does",
            "no test does. Its operators are those in kraiskil/onnx2c: src/graph.cc (2026-04-15).",
        ),
    ],
)
def test_the_next_step_of_a_target_without_code(
    target: str, line: str, on_page: str, rnn_lower: Command, tmp_path: Path
) -> None:
    """A page of the documents has it, unless no test runs that target."""
    file = saved(tmp_path / "in.onnx", model(Case("next_step", "LSTM", x="static"), 17))
    outcome = rnn_lower(
        file, tmp_path / "out.onnx", "--target", target, "--verify", "0", "--report", tmp_path / "p.html"
    )
    told = outcome.lines.index(f"report: {tmp_path / 'p.html'}")
    assert outcome.lines[told + 1 :] == [line]
    assert on_page in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_each_target_has_code_or_a_section_or_a_list() -> None:
    known = {name for name, target in rl.TARGETS.items() if target.documented} | {"portable", *CALLS}
    assert {*rl.TARGETS} - known == {*SECTIONS}


def test_a_runtime_reads_no_text(rnn_lower: Command, tmp_path: Path) -> None:
    file, page = saved(tmp_path / "in.onnx", model(Case("as_json", "LSTM"), 17)), tmp_path / "p.html"
    outcome = rnn_lower(file, tmp_path / "out.json", "--verify", "0", "--report", page)
    way_out = "convert it to .onnx first, with onnx.load and onnx.save"
    assert outcome.lines[-1] == f"run it: {way_out}"
    text = page.read_text(encoding="utf-8")
    assert f"To run it, {way_out}." in text
    assert "InferenceSession" not in text


@pytest.mark.parametrize(
    ("case", "options", "told"),
    [
        ("symbolic", "", "Scan: --to unroll --set-dim seq=?"),
        ("unknown", "", "Scan: --to unroll and a length (--set-dim, --set-shape)"),
        ("symbolic", "--set-dim batch=1", "Scan: --to unroll --set-dim seq=?"),
        ("symbolic", "--to scan", ""),
        ("symbolic", "--target openvino", ""),
        ("symbolic", "--stream seq", ""),
        ("static", "", "Scan: --to unroll"),
        ("static", "--to unroll", ""),
    ],
)
def test_where_no_runtime_is_named_a_way_without_loops_is(
    case: Any, options: str, told: str, rnn_lower: Command, tmp_path: Path
) -> None:
    """It writes no Scan or Loop."""
    source, target = saved(tmp_path / "in.onnx", model(Case("any", "LSTM", x=case), 17)), tmp_path / "out.onnx"
    lines = rnn_lower(source, target, "--verify", "0", *options.split()).lines
    found = [line for line in lines if line.startswith("for a runtime without ")]
    assert found == [f"for a runtime without {told}, or name it with --target"] * bool(told)
    if told:
        sizes = {"symbolic": ["--set-dim", "seq=4"], "unknown": ["--set-shape", "X:4,3,2"]}
        way = ("--to", "unroll", *options.split(), *sizes.get(case, []))
        assert rnn_lower(source, target, "--verify", "0", "--force", *way).code == 0
        assert not {"Scan", "Loop"} & operators(onnx.load(target))


def test_the_data_file_is_named_too(rnn_lower: Command, tmp_path: Path) -> None:
    file = saved(tmp_path / "in.onnx", model(Case("with_data", "LSTM", H=16), 17))
    options = ("--verify", "0", "--external-data", "always", "--report", tmp_path / "r.json")
    outcome = rnn_lower(file, tmp_path / "out.onnx", *options)
    assert f"written to {tmp_path / 'out.onnx'} and {tmp_path / 'out.onnx.data'}" in outcome.lines
    assert (tmp_path / "out.onnx.data").exists()
    assert json.loads((tmp_path / "r.json").read_text())["files"]["after"]["data"] == ["out.onnx.data"]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["mnn", "ncnn"])
def test_the_next_step_where_the_code_is_long(target: str, rnn_lower: Command, tmp_path: Path) -> None:
    """It is printed, and on the page."""
    file = saved(tmp_path / "in.onnx", model(Case("next_step", "LSTM", x="static"), 17))
    outcome = rnn_lower(
        file, tmp_path / "out.onnx", "--target", target, "--verify", "0", "--report", tmp_path / "p.html"
    )
    told = outcome.lines[outcome.lines.index(f"report: {tmp_path / 'p.html'}") + 1 :]
    (head,) = (n for n, line in enumerate(told) if re.fullmatch(rf"run it in {target} \(pip install .*\):", line))
    before, program = told[:head], told[head + 1 :]
    if target == "ncnn":
        assert before[0] == "convert it first, in a shell:"
        assert f"/pnnx {tmp_path / 'out.onnx'} inputshape=" in before.pop()
    assert len(before) == (target == "ncnn")
    compile("\n".join(program), "told", "exec")
    assert f"import {'MNN' if target == 'mnn' else 'ncnn'}" in "\n".join(program)
    page = html.unescape((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert all(line.replace(str(tmp_path / "out.onnx"), "out.onnx") in page for line in program)


CUT = """g (float[T,1,3] X) => (float[S,1,1,2] Y)
    <float[1,8,3] W = {}, float[1,8,2] R = {}, int64[1] one = {1}, int64[1] end = {1000000000}, int64[1] d = {0}>
    { Z = Slice (X, one, end, d)  Y = LSTM <hidden_size = 2> (Z, W, R) }"""


def test_what_was_adapted_is_told_with_v(rnn_lower: Command, tmp_path: Path) -> None:
    """And counted without."""
    file = saved(tmp_path / "in.onnx", parse(CUT))
    call = [file, tmp_path / "out.onnx", "--target", "openvino", "--to", "loop", "--verify", "0", "--force"]
    what = "openvino takes the end of a Slice for a size: left 1 of them open"
    brief, verbose = rnn_lower(*call).lines, rnn_lower(*call, "-v").lines
    assert "1 change for openvino, no action needed (-v lists them)" in brief
    assert (brief.count(what), verbose.count(what)) == (0, 1)
    _, report = rl.lower(parse(CUT), "loop", target="openvino", full=True)
    assert what in report.notes
    assert "1 change for openvino, no action needed (in notes)" in str(report)


def test_success(three: Path, rnn_lower: Command, tmp_path: Path) -> None:
    target, before = tmp_path / "out.onnx", three.read_bytes()
    brief = rnn_lower(three, target)
    assert (brief.code, brief.err) == (0, "")
    assert [line.partition(":")[0] for line in brief.lines] == [
        "lowered 1 LSTM node",
        "lowered 1 GRU node",
        "lowered 1 RNN node",
        "3 of 3 nodes proven for every length and input, up to rounding; verified (onnxruntime)",
        f"written to {target}",
        "for a runtime without Scan",
        "run it",
    ]
    outcome = rnn_lower(three, target, "-v", "--force")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines[-len(brief.lines) :] == brief.lines
    rows = [cells(line) for line in outcome.lines]
    assert rows[0] == ["node", "operator", "direction", "T", "N", "I", "H", "form"]
    assert rows[1] == ["/encoder/lstm", "LSTM-14", "forward", "?", "?", "3", "4", "scan"]
    assert rows[2] == ["/decoder/gru", "GRU-14", "bidirectional", "?", "?", "4", "4", "scan"]
    assert rows[3] == ["/decoder/rnn", "RNN-14", "forward", "?", "?", "8", "4", "scan"]
    assert ["operator", "before", "after"] in rows
    assert ["LSTM", "1", "0"] in rows
    assert ["Scan", "0", "3"] in rows  # both directions share one
    assert not any(row[0] == "Reshape" for row in rows)  # as often as before
    assert re.search(
        r"^(?:.* proven .*; )?verified.*onnxruntime.*: 3 runs, largest difference \S+( \(.*\))?$",
        outcome.out,
        re.MULTILINE,
    )
    assert recurrent_left(onnx.load(target)) == []
    assert files(tmp_path).keys() == {"in.onnx", "out.onnx"}
    assert three.read_bytes() == before


@pytest.mark.parametrize(
    ("case", "opset", "to", "form"),
    [
        *[(STATIC, 17, ["--to", to], to) for to in ("scan", "loop", "unroll")],
        (STATIC, 17, [], "scan"),
        (STATIC, 8, [], "loop"),
        (Case("cli_one_step", "LSTM", T=1), 17, ["--to", "auto"], "unroll"),
        (SYMBOLIC, 17, ["--to", "auto"], "scan"),
    ],
)
def test_form(rnn_lower: Command, tmp_path: Path, case: Case, opset: int, to: list[str], form: str) -> None:
    source, target = saved(tmp_path / "in.onnx", model(case, opset)), tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, *to, "--verify", "0", "-v")
    assert outcome.code == 0
    assert cells(outcome.lines[1])[-1] == form
    lowered = onnx.load(target)
    assert ("Scan" in operators(lowered), "Loop" in operators(lowered)) == (form == "scan", form == "loop")
    assert_close(run(lowered, feed(case)), run(onnx.load(source), feed(case)))


LEFT = ("?", "left as it is", "not selected")
SCAN = ("?", "scan", "first choice for target portable")
UNKNOWN = ("?", "refused", "the sequence length is not known, so the steps cannot be unrolled")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ("", [SCAN] * 3),
        ("--to loop", [("?", "loop", "requested")] * 3),
        ("--to unroll", [UNKNOWN] * 3),
        ("--to unroll --set-dim seq=9", [("9", "unroll", "requested")] * 3),
        ("--set-dim seq=1", [("1", "unroll", "sequence length 1 needs no loop")] * 3),
        ("--to unroll --set-shape X:5,2,3", [("5", "unroll", "requested")] * 3),
        (
            "--to unroll --set-dim seq=9 --max-unroll 8",
            [("9", "refused", "9 steps are more than the limit of 8 for unrolling")] * 3,
        ),
        ("--only LSTM --only RNN", [SCAN, LEFT, SCAN]),
        ("--only /decoder/?ru", [LEFT, SCAN, LEFT]),
        ("--except GRU --except */lstm", [LEFT, LEFT, SCAN]),
        ("--only LSTM --only GRU --except /decoder/*", [SCAN, LEFT, LEFT]),
        ("--to unroll --only /decoder/*", [LEFT, UNKNOWN, UNKNOWN]),
    ],
)
def test_the_list_shows_what_is_done(
    three: Path, rnn_lower: Command, tmp_path: Path, options: str, rows: list[tuple[str, str, str]]
) -> None:
    outcome = rnn_lower(three, tmp_path / "out.onnx", "--list", *options.split())
    refused = "refused" in {form for _, form, _ in rows}
    assert (outcome.code, outcome.err) == (1 if refused else 4, "")
    assert listed(outcome) == rows
    hints = [line for line in outcome.lines if line.startswith("to lower refused nodes: ")]
    assert bool(hints) == refused
    assert files(tmp_path).keys() == {"in.onnx"}
    done = rnn_lower(three, tmp_path / "out.onnx", "--verify", "0", "-v", *options.split())
    assert done.code == (1 if hints else 0)
    if not hints:
        given = [form for _, form, _ in rows if form != LEFT[1]]
        _, *rest = table(done, "node")
        assert [row[-1] for row in rest[: len(given)]] == given
        assert len(rest) == len(given)
        kept = [link for link, (_, form, _) in zip(THREE, rows, strict=True) if form == LEFT[1]]
        assert recurrent_left(onnx.load(tmp_path / "out.onnx")) == [f"{link.op_type} {link.name}" for link in kept]
        assert done.out.count("left as it is: ") == len(kept)
        for link in kept:
            assert f"{link.op_type} node '{link.name}' in main graph: not selected" in done.out


def listed(outcome: Outcome) -> list[tuple[str, str, str]]:
    """T, form and reason of every node of a list."""
    titles, *rows = table(outcome, "node")
    assert [titles[n] for n in (0, 4, 10, 11)] == ["node", "T", "form", "why"]
    return [(row[4], row[10], row[11]) for row in rows]


def test_list(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE, dims=(6, "batch")))
    lines = rnn_lower(source, "--list").lines
    assert len(lines) == 1 + len(THREE) + 3
    assert lines[-2] == "inputs: X [6, batch, 3]"
    assert lines[-1].startswith("outputs: ")
    for part in ("/decoder/gru", "GRU-14", "main graph", "bidirectional", "?", "4", "float", "Sigmoid, Tanh"):
        assert part in lines[2]
    assert " ".join(cells(lines[1])[:10]) == "/encoder/lstm LSTM-14 main graph forward 6 ? 3 4 float"


BAD = Link("LSTM", "bad", {"activations": ["Foo", "Tanh", "Tanh"]})
LISTS: dict[str, tuple[onnx.ModelProto, str, int, list[tuple[str, str, str]] | None, str]] = {
    "bodies": (
        model(Case("cli_in_if", "GRU", scope="if"), 17),
        "",
        4,
        [("5", "scan", SCAN[2])] * 2,
        "main graph > if (If) else_branch",
    ),
    "no nodes": (without_recurrent_nodes(), "", 0, None, "no recurrent nodes"),
    "a form that the opset has not": (
        model(STATIC, 8),
        "--to scan",
        1,
        [(str(STATIC.T), "refused", "Scan needs opset 9, but the model has 8")],
        "use --to loop",
    ),
    "a wrong node that is left": (chain(THREE[0], BAD), "--except bad", 4, [SCAN, LEFT], "bad"),
    "an old opset": (
        model(Case("cli_old", "LSTM"), 6),
        "",
        4,
        [("5", "scan", SCAN[2])],
        "converted from opset 6 to 13",
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LISTS)
def test_list_of(rnn_lower: Command, tmp_path: Path, name: str) -> None:
    proto, options, code, rows, fact = LISTS[name]
    outcome = rnn_lower(saved(tmp_path / "in.onnx", proto), "--list", *options.split())
    assert (outcome.code, outcome.err) == (code, "")
    assert rows is None or listed(outcome) == rows
    assert fact in outcome.out


def test_list_refuses_what_the_lowering_refuses(three: Path, rnn_lower: Command) -> None:
    assert_refused(rnn_lower(three, "--list", "--set-dim", "time=3"), "'time'", "seq")
    assert_refused(rnn_lower(three, "--list", "--set-shape", "Z:3"), "'Z'")
    assert [form for _, form, _ in listed(rnn_lower(three, "--list", "--to", "unroll"))] == ["refused"] * 3


def test_report(three: Path, rnn_lower: Command, tmp_path: Path) -> None:
    """Its fields are tested with the report."""
    given = [three, tmp_path / "out.onnx", "--report", tmp_path / "report.json", "--except", "RNN", "--to", "loop"]
    outcome = rnn_lower(*given)
    assert outcome.code == 0
    written = outcome.lines.index(f"written to {tmp_path / 'out.onnx'}")
    assert outcome.lines[written + 1] == f"report: {tmp_path / 'report.json'}"
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["command"] == shlex.join(["rnn-lower", *map(str, given)])
    node = data["nodes"][1]
    assert (node["name"], node["operator"], node["version"]) == ("/decoder/gru", "GRU", 14)
    assert (node["scope"], node["dtype"], node["direction"]) == ("main graph", "float", "bidirectional")
    assert (node["form"], node["reason"], node["warnings"]) == ("loop", "requested", [])
    assert [node[f"{size}"] for size in ("seq_length", "batch_size", "input_size", "hidden_size")] == [
        None,
        None,
        4,
        4,
    ]
    assert data["left"] == ["RNN node '/decoder/rnn' in main graph: not selected"]
    before, after = data["operators"]["before"], data["operators"]["after"]
    assert before == {"GRU": 1, "LSTM": 1, "RNN": 1, "Relu": 1, "Reshape": 3, "Transpose": 3}
    assert (after["Loop"], after["RNN"], after["Relu"]) == (2, 1, 1)  # both directions share one
    assert not after.keys() & {"GRU", "LSTM"}
    assert data["verification"]["status"] == "verified"


def test_nothing_to_lower(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", without_recurrent_nodes()), tmp_path / "out.onnx"
    outcome = rnn_lower(source, target, "--report", tmp_path / "report.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "nothing to lower" in outcome.out
    assert str(target) in outcome.out
    assert target.read_bytes() == source.read_bytes()
    assert json.loads((tmp_path / "report.json").read_text())["nodes"] == []


def test_quiet_and_warnings(three: Path, rnn_lower: Command, tmp_path: Path) -> None:
    quiet, target = Outcome(0, "", ""), tmp_path / "out.onnx"
    disputed = saved(tmp_path / "disputed.onnx", model(DISPUTED, 17))
    assert rnn_lower(three, target, "--quiet") == quiet
    assert rnn_lower(three, tmp_path / "q.onnx", "-q", "--verify", "0", "--only", "GRU") == quiet
    assert rnn_lower(three, "--list", "-q") == Outcome(4, "", "")
    assert recurrent_left(onnx.load(target)) == []
    assert_refused(rnn_lower(three, target, "-q"), "exists")
    assert rnn_lower(disputed, target, "--verify", "0", "-q", "--force") == quiet
    outcome = rnn_lower(disputed, target, "--verify", "0", "--force", "--report", tmp_path / "report.json")
    assert outcome.code == 0
    (line,) = outcome.err.splitlines()
    assert line.startswith("rnn-lower: warning: RNN node 'recurrent' in main graph: ")
    assert "Affine" in line
    (warning,) = json.loads((tmp_path / "report.json").read_text())["nodes"][0]["warnings"]
    assert warning in line
