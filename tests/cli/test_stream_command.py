"""`--stream` and `stream=`: from a file to a file, with a proof, a report and nothing written where it fails."""

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from running import recurrent_left
from stream_models import net, plan_of, random, recurrent
from stream_nets import enhancer

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.streaming.editor import Editor

pytestmark = pytest.mark.usefixtures("workers_here")

GRU = net(
    "g (float[time, batch, 3] X) => (float[t, d, n, h] Y) { [only] Y = GRU <hidden_size = 4> (X, W, R, B) }",
    recurrent("GRU", 3, 4),
)
BOTH = net(
    """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
        [only] Y = GRU <hidden_size = 4, direction = "bidirectional"> (X, W, R, B) }""",
    recurrent("GRU", 3, 4, directions=2),
)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    onnx.save(GRU, tmp_path / "in.onnx")
    return str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")


def test_the_command_tells_states_loop_and_chunks(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*paths, "--stream", "time=1", "--target", "tvm", "--set-dim", "batch=2"]) == 0
    shown = capsys.readouterr().out
    assert "past_only_h  present_only_h  only  1,2,4  float32  zeros" in shown
    assert '        "past_only_h": outputs["present_only_h"],' in shown
    assert "for each chunk of 1 frame (axis 0 of X):" in shown
    assert "verified (onnxruntime, in chunks of 1 frame, sequences of up to 1009 frames): 4 runs" in shown
    made = onnx.load(paths[1])
    assert recurrent_left(made) == []
    assert plan_of(made)["states"][0]["shape"] == [1, 2, 4]
    assert rl.Stream(paths[1])({"X": random((1, 2, 3))})["Y"].shape == (1, 1, 2, 4)


def test_the_loop_for_ncnn_tells_of_its_batch_axes(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = "pnnx writes the batch axis of each blob into *_ncnn.py: ncnn.Mat(array, batch_index=...)"
    for target, said in (("ncnn", True), ("tvm", False)):
        assert main([*paths, "--stream", "time=1", "--target", target, "--set-dim", "batch=1", "--force"]) == 0
        assert (wanted in capsys.readouterr().out) is said


def test_recurrent_nodes_may_stay(paths: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*paths, "--stream", "X:0", "--to", "keep"]) == 0
    shown = capsys.readouterr().out
    assert "left as it is: GRU node 'only' in main graph: kept" in shown
    assert "written to" in shown
    assert recurrent_left(onnx.load(paths[1])) == ["GRU only"]


@pytest.mark.parametrize("ending", ["json", "html"])
def test_the_report_has_the_states(paths: tuple[str, str], tmp_path: Path, ending: str) -> None:
    report = tmp_path / f"report.{ending}"
    assert main([*paths, "--stream", "time", "--report", str(report), "-q"]) == 0
    text = report.read_text()
    if ending == "json":
        data = json.loads(text)
        assert data["stream"] == plan_of(onnx.load(paths[1]))
        assert data["verification"]["method"].startswith("onnxruntime, in chunks of 1, of 5 and of")
    else:
        assert "<td>present_only_h</td>" in text
        assert "for each chunk (axis 0 of X):" in text


def test_the_list_shows_what_a_stream_would_become(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([paths[0], "--list", "--stream", "time=1"]) == 4
    assert "unroll" in capsys.readouterr().out
    assert not Path(paths[1]).exists()


REFUSED = {
    "no axis is called 'seq'; the model's inputs: X [time, batch, 3]": ["--stream", "seq"],
    "have different numbers of frames": ["--stream", "time=1", "--stream", "X:0=2"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_axis_is_one_line_and_nothing_is_written(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str], message: str
) -> None:
    assert main([*paths, *REFUSED[message]]) == 1
    assert message in capsys.readouterr().err
    assert not Path(paths[1]).exists()


@pytest.mark.parametrize("text", ["time=0", "time=x", "time=-1", ""])
def test_a_wrong_number_of_frames_is_wrong_usage(paths: tuple[str, str], text: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*paths, "--stream", text])


@pytest.mark.parametrize("given", [["OUT"], ["--list"], []])
def test_without_a_value_it_names_the_axes_that_there_are(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    rest = [paths[1] if text == "OUT" else text for text in given]
    assert main([paths[0], *rest, "--stream"]) == 2
    assert capsys.readouterr().err == (
        "rnn-lower: error: no time axis is given; the model's inputs: X [time, batch, 3]; name a dimension, "
        "or INPUT:AXIS (see docs/streaming.md#my-net-is-refused-because)\n"
    )
    assert not Path(paths[1]).exists()


def test_sizes_that_a_model_cannot_have_are_one_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not all that follow from it."""
    onnx.save(enhancer()[0], tmp_path / "in.onnx")
    out = str(tmp_path / "out.onnx")
    assert main([str(tmp_path / "in.onnx"), out, "--stream", "spectra:2", "--set-dim", "time=0"]) == 1
    assert capsys.readouterr().err == (
        "rnn-lower: error: the model is not valid at these sizes: Add node '-> with_intra': Incompatible "
        "dimensions; give sizes that the model supports (see docs/getting-started.md#what-is-supported)\n"
    )


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_an_axis_along_which_nothing_is_carried_is_warned_of(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str], quiet: bool, listed: bool
) -> None:
    given = [paths[0], "--list"] if listed else [*paths]
    assert main([*given, "--stream", "batch=1", *(["-q"] if quiet else [])]) == (4 if listed else 0)
    said = (
        "rnn-lower: warning: no state is carried from chunk to chunk along axis 1 of 'X' (batch); "
        "GRU node 'only' in main graph runs along 'time'\n"
    )
    assert capsys.readouterr().err == ("" if quiet else said)


def test_many_unrolled_steps_are_warned_of_before_they_are_compared(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"a{n}" for n in range(3)]
    body = " ".join(f"{name} = GRU <hidden_size = 4> (X, W, R, B)" for name in names)
    onnx.save(
        net(
            f"g (float[time, 1, 3] X) => ({', '.join(f'float[t, d, n, h] {n}' for n in names)}) {{ {body} }}",
            recurrent("GRU", 3, 4),
        ),
        paths[0],
    )
    said = []

    def run(*_: object, **__: object) -> None:
        said.append(capsys.readouterr().err)
        raise rl.UnsupportedError("stopped")

    monkeypatch.setattr("rnn_lowering.api.open_comparison", run)
    assert main([*paths, "--to", "unroll", "--set-dim", "time=200"]) == 1
    assert said == [
        "rnn-lower: warning: 600 steps are unrolled in total: lowering and compiling will take minutes\n"
    ]


def test_a_bidirectional_node_is_refused(paths: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(BOTH, paths[0])
    assert main([*paths, "--stream", "time"]) == 1
    shown = capsys.readouterr().err
    assert "GRU node 'only' in main graph: direction is bidirectional" in shown
    assert not Path(paths[1]).exists()


def test_a_stream_that_is_wrong_is_not_written(
    paths: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the past state were given out instead of the next one."""
    add_output = Editor.add_output
    monkeypatch.setattr(
        Editor, "add_output", lambda self, name, _, past, path: add_output(self, name, past, past, path)
    )
    assert main([*paths, "--stream", "time"]) == 3
    shown = capsys.readouterr().err
    assert "from frame 1 on; the first node that differs: GRU node 'only'" in shown
    assert not Path(paths[1]).exists()


def test_lower_takes_the_same() -> None:
    lowered, report = rl.lower(GRU, "loop", stream={"time": None}, full=True)
    assert report.stream is not None
    assert report.stream.to_dict() == plan_of(lowered)
    assert recurrent_left(lowered) == []


def test_a_refused_form_leaves_the_model_as_it_was() -> None:
    held = ir.from_proto(GRU)
    before = ir.to_proto(held).SerializeToString(deterministic=True)
    with pytest.raises(rl.UnsupportedError):
        rl.lower(held, "unroll", stream="time")
    assert ir.to_proto(held).SerializeToString(deterministic=True) == before
