"""`--stream` and `stream=`: from a file to a file, with a proof, a report and nothing written where it fails."""

import json
import re
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from commands import Command, saved
from running import recurrent_left
from stream_models import plan_of, random
from stream_nets import enhancer
from texts import parse

import rnn_lowering as rl
from rnn_lowering.streaming.editor import Editor

TEXT = """g (float[time, batch, 3] X) => (float[t, d, n, h] Y)
    <float[1,12,3] W = {}, float[1,12,4] R = {}, float[1,24] B = {}> {
    [only] Y = GRU <hidden_size = 4> (X, W, R, B) }"""
GRU = parse(TEXT)
BOTH = parse(TEXT.replace("[1,", "[2,").replace("= 4>", '= 4, direction = "bidirectional">'))

ABSENT = {"lengths": [], "shortest": 1, "max_frames": None}
"""What fields of the metadata mean that are not there."""


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return saved(tmp_path / "in.onnx", GRU), tmp_path / "out.onnx"


def told(model: onnx.ModelProto) -> dict[str, Any]:
    """The metadata of a stream, with what they leave out."""
    plan = plan_of(model)
    return ABSENT | plan | {"states": [{"grows": None, **state} for state in plan["states"]]}


def test_the_command_tells_states_loop_and_chunks(paths: tuple[Path, Path], rnn_lower: Command) -> None:
    shown = rnn_lower(*paths, "--stream", "time=1", "--to", "unroll", "--set-dim", "batch=2", "-v").out
    assert "past_only_h  present_only_h  only  1,2,4  float32  zeros" in shown
    assert '        "past_only_h": outputs["present_only_h"],' in shown
    assert "for each chunk of 1 frame (axis 0 of X):" in shown
    assert re.search(r"verified \(onnxruntime, in chunks of 1 frame, sequences of up to \d+ frames\): 4 ", shown)
    made = onnx.load(paths[1])
    assert recurrent_left(made) == []
    assert plan_of(made)["states"][0]["shape"] == [1, 2, 4]
    assert rl.Stream(paths[1])({"X": random((1, 2, 3))})["Y"].shape == (1, 1, 2, 4)


@pytest.mark.parametrize("target", ["tvm", "ncnn"])
def test_the_code_of_a_stream_is_a_program(target: str, paths: tuple[Path, Path], rnn_lower: Command) -> None:
    """It runs the chunks, and gives each call the states of the one before."""
    outcome = rnn_lower(*paths, "--stream", "time=1", "--target", target, "--set-dim", "batch=1")
    lines = outcome.lines[outcome.lines.index(f"written to {paths[1]}") + 1 :]
    head = next(n for n, line in enumerate(lines) if line.startswith(f"run it in {target} (pip install "))
    program = "\n".join(lines[head + 1 :])
    compile(program, "program", "exec")
    assert "        'past_only_h': np.asarray(results[-1]['present_only_h'], 'float32')," in program
    assert ("batch_index=" in program) == (target == "ncnn")


def test_the_class_that_runs_a_stream_is_named(paths: tuple[Path, Path], rnn_lower: Command) -> None:
    """Where it is for onnxruntime; its line is Python."""
    line = next(line for line in rnn_lower(*paths, "--stream", "time=1").lines if line.startswith("run it: "))
    code, _, rest = line.removeprefix("run it: ").partition(" for each chunk")
    assert rest == "; in another host:"
    names = {"rnn_lowering": rl, "X": random((1, 2, 3))}
    begin, call = code.split("; ")
    exec(begin, names)
    assert eval(call, names)["Y"].shape == (1, 1, 2, 4)
    assert "rnn_lowering.Stream" not in rnn_lower(*paths, "--stream", "time=1", "--target", "tract", "--force").out


def test_recurrent_nodes_may_stay(paths: tuple[Path, Path], rnn_lower: Command) -> None:
    outcome = rnn_lower(*paths, "--stream", "X:0", "--to", "keep")
    assert outcome.code == 0
    assert "left as it is: GRU node 'only' in main graph: kept" in outcome.out
    assert "written to" in outcome.out
    assert recurrent_left(onnx.load(paths[1])) == ["GRU only"]


def test_the_report_has_the_states(paths: tuple[Path, Path], rnn_lower: Command, tmp_path: Path) -> None:
    for ending in ("json", "html"):
        report = tmp_path / f"report.{ending}"
        assert rnn_lower(*paths, "--stream", "time", "--report", report, "-q", "--force").code == 0
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["stream"] == told(onnx.load(paths[1]))
    assert data["verification"]["method"].startswith("onnxruntime, in chunks of 1, of 5 and of")
    page = (tmp_path / "report.html").read_text()
    assert "<td>present_only_h</td>" in page
    assert "for each chunk (axis 0 of X):" in page


def test_the_list_shows_what_a_stream_would_become(paths: tuple[Path, Path], rnn_lower: Command) -> None:
    outcome = rnn_lower(paths[0], "--list", "--stream", "time=1")
    assert outcome.code == 4
    assert "unroll" in outcome.out
    assert not paths[1].exists()


NO_AXIS = """no time axis is given; the model's inputs: X [time, batch, 3]; name the time \
dimension, or INPUT:AXIS, such as X:0\n"""
NOT_VALID = """the model is not valid at these sizes: Add node '-> with_intra': Incompatible \
dimensions; give sizes that the model supports\n"""
REFUSED: dict[str, tuple[onnx.ModelProto, str, int, str]] = {
    "an unknown axis": (
        GRU,
        "OUT --stream seq",
        1,
        "no axis is called 'seq'; the model's inputs: X [time, batch, 3]",
    ),
    "an unknown axis behind the batch": (enhancer()[0], "OUT --stream seq", 1, "INPUT:AXIS, such as spectra:2"),
    "a size of the time axis": (
        GRU,
        "OUT --stream time=1 --set-dim time=16",
        1,
        "'time' is the time axis of the stream, and another option fixes its size; drop --set-dim time=16, since "
        "the stream says how many frames a call has\n",
    ),
    "a shape with a size of the time axis": (
        GRU,
        "OUT --set-shape X:16,1,3 --stream time=1",
        1,
        "'time' is the time axis of the stream, and another option fixes its size; drop the shape or value that "
        "fixes it, and fix other sizes by name (--set-dim)\n",
    ),
    "two numbers": (
        GRU,
        "OUT --stream time=1 --stream X:0=2",
        1,
        "input 'X' has 1 and 2 frames in a call; give one number",
    ),
    "no value": (GRU, "OUT --stream", 2, NO_AXIS),
    "sizes that are one fault, not all that follow": (
        enhancer()[0],
        "OUT --stream spectra:2 --set-dim time=0",
        1,
        NOT_VALID,
    ),
    "both directions": (BOTH, "OUT --stream time", 1, "GRU node 'only' in main graph: direction is bidirectional"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_line_and_nothing_is_written(
    paths: tuple[Path, Path], rnn_lower: Command, name: str
) -> None:
    proto, arguments, code, message = REFUSED[name]
    onnx.save(proto, paths[0])
    outcome = rnn_lower(paths[0], *[paths[1] if each == "OUT" else each for each in arguments.split()])
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert outcome.err == f"rnn-lower: error: {message}" if message.endswith("\n") else message in outcome.err
    assert not paths[1].exists()


@pytest.mark.parametrize("options", [("--stream",), ("--list", "--stream")])
def test_without_an_axis_and_a_file_the_axes_are_listed(
    options: tuple[str, ...], paths: tuple[Path, Path], rnn_lower: Command
) -> None:
    outcome = rnn_lower(paths[0], *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{paths[0]}: {NO_AXIS.partition('; ')[2]}"


@pytest.mark.few(2)
@pytest.mark.parametrize("options", ["--list", "--list -q", "OUT", "OUT -q"])
def test_an_axis_along_which_nothing_is_carried_is_warned_of(
    paths: tuple[Path, Path], rnn_lower: Command, options: str
) -> None:
    given = [paths[1] if each == "OUT" else each for each in options.split()]
    outcome = rnn_lower(paths[0], *given, "--stream", "batch=1")
    said = (
        "rnn-lower: warning: no state is carried from chunk to chunk along axis 1 of 'X' (batch); "
        "GRU node 'only' in main graph runs along 'time'\n"
    )
    assert (outcome.code, outcome.err) == (4 if "--list" in options else 0, "" if "-q" in options else said)


def test_many_unrolled_steps_are_warned_of_before_they_are_compared(
    paths: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    rnn_lower: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "[only] Y = GRU <hidden_size = 4> (X, W, R, B)"
    more = " ".join(line.replace("[only] Y", f"a{n}") for n in range(3))
    sizes = "float[t, d, n, h]"
    text = TEXT.replace(line, more).replace(f"{sizes} Y", ", ".join(f"{sizes} a{n}" for n in range(3)))
    onnx.save(parse(text.replace("batch", "1")), paths[0])
    said = []

    def run(*_: object, **__: object) -> None:
        said.append(capsys.readouterr().err)
        raise rl.UnsupportedError("stopped")

    monkeypatch.setattr("rnn_lowering.file_lowering.open_comparison", run)
    assert rnn_lower(*paths, "--to", "unroll", "--set-dim", "time=200").code == 1
    assert said == [
        "rnn-lower: warning: 600 steps are unrolled in total: compilers may take minutes to load them\n"
    ]


def test_a_stream_that_is_wrong_is_not_written(
    paths: tuple[Path, Path], rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the past state were given out instead of the next one."""
    add_present = Editor.add_present

    def wrong(self: Editor, past: ir.Value, _: ir.Value, *rest: Any) -> None:
        add_present(self, past, past, *rest)

    monkeypatch.setattr(Editor, "add_present", wrong)
    outcome = rnn_lower(*paths, "--stream", "time")
    assert outcome.code == 3
    assert "from frame 1 on; the first node that differs: GRU node 'only'" in outcome.err
    assert not paths[1].exists()


def test_lower_takes_the_same() -> None:
    lowered, report = rl.lower(GRU, "loop", stream={"time": None}, full=True)
    assert report.stream is not None
    assert report.stream.to_dict() == told(lowered)
    assert recurrent_left(lowered) == []


def test_a_refused_form_leaves_the_model_as_it_was() -> None:
    held = ir.from_proto(GRU)
    before = ir.to_proto(held).SerializeToString(deterministic=True)
    with pytest.raises(rl.UnsupportedError):
        rl.lower(held, "unroll", stream="time")
    assert ir.to_proto(held).SerializeToString(deterministic=True) == before
