"""`--run-in-target`: the result runs in the runtime of its target, found here or in another Python, and outputs are
compared; whatever the runtime does, nothing is written that does not run there, and nothing of it is printed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from commands import Command, files, saved, without_recurrent_nodes
from paths import SRC
from quantized_lstm import Model
from stream_models import net, random, recurrent
from stream_nets import keyword_spotter, language_model
from texts import parse

import rnn_lowering as rl
from rnn_lowering.compare import in_target
from rnn_lowering.targets.calls import CALLS
from rnn_lowering.targets.installed import PACKAGES

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a runtime is run where processes fork")

VERSION = "4.13.0"
IN_TARGET = ("--target", "opencv", "--run-in-target")
PACKAGED = [path for path in sys.path if path.endswith("site-packages")]


def install(folder: Path) -> Path:
    """Put the fake runtime into a folder of modules."""
    shutil.copy(Path(__file__).parents[1] / "support" / "fake_cv2.py", folder / "cv2.py")
    info = folder / f"opencv_python_headless-{VERSION}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: opencv-python-headless\nVersion: {VERSION}\n")
    return folder


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a net with the sizes of the model of the documents, that is lowered and compared in no time."""
    text = """g (float[seq, 1, 80] X) => (float[seq, 1, 80] Y) {
        h = GRU <hidden_size = 4> (X, W, R, B)  s = Squeeze (h, [1])  Y = MatMul (s, M) }"""
    model = net(text, recurrent("GRU", 80, 4) | {"M": random((4, 80), 5)})
    return saved(tmp_path_factory.mktemp("small") / "model.onnx", model)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers_here: None) -> Path:
    """The fake runtime in this Python; the folder of its modules."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(install(folder)))
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Another Python that has the fake runtime."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (modules,) = environment.glob("lib/python*/site-packages")
    install(modules)
    (modules / "others.pth").write_text("\n".join(PACKAGED))
    return environment / "bin" / "python"


def test_it_runs_at_two_lengths_and_is_compared(
    small: Path, here: Path, tmp_path: Path, rnn_lower: Command
) -> None:
    done = rnn_lower(small, tmp_path / "out.onnx", *IN_TARGET)
    assert done.code == 0, done.err
    there = r"; verified \(opencv 4\.13\.0\): 2 runs, largest difference \S+ \(X \[7, 1, 80\], \[70, 1, 80\]\); "
    assert re.search(rf"verified \(onnxruntime\): 3 runs.*{there}measured with 5\.0\.0\.93$", done.lines[-3])
    assert done.lines[-2] == f"written to {tmp_path / 'out.onnx'}"


def test_fixed_sizes_run_once(small: Path, here: Path) -> None:
    found = rl.verify(small, rl.lower(small, target="opencv", dims={"seq": 5}), target="opencv", runs=1)
    assert found.in_target is not None
    assert found.in_target.runs == 1


def test_names_with_braces_stand_in_the_error(
    here: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["{T}"]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Tanh", ["x"], ["y"])], "g", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    source = saved(tmp_path / "in.onnx", onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8))
    monkeypatch.setenv("DEED", "rejects")
    refused = rnn_lower(source, tmp_path / "out.onnx", *IN_TARGET)
    assert refused.code == 3
    assert "with a number for each ?: --set-dim '{T}='?" in refused.err


def test_integers_that_differ_get_no_tolerance(
    here: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (int64[a] y) <int64[1] k = {3}>
        { v, y = TopK (x, k) }"""
    source = saved(tmp_path / "in.onnx", onnx.parser.parse_model(text))
    monkeypatch.setenv("DEED", "orders otherwise")
    refused = rnn_lower(source, tmp_path / "out.onnx", *IN_TARGET)
    assert refused.code == 3
    assert "do they follow from numbers that are equal? --test-input NAME=FILE.npy gives others" in refused.err
    assert "--atol" not in refused.err


def test_an_input_that_decides_a_branch_may_be_fixed(
    here: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, int64 rate) => (float[4] y)
        <int64 quick = {16000}> { fast = Equal (rate, quick)
        y = If (fast) <then_branch = a () => (float[4] u) { u = Tanh (x) },
                       else_branch = b () => (float[4] v) { v = Sigmoid (x) }> }"""
    source = saved(tmp_path / "in.onnx", onnx.parser.parse_model(text))
    monkeypatch.setenv("DEED", "rejects")
    refused = rnn_lower(source, tmp_path / "out.onnx", *IN_TARGET)
    assert refused.code == 3
    assert "an input that decides a branch may be a constant: --set-input rate=?; " in refused.err


def test_sizes_run_in_another_order_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[atoms, 4] atoms, float[edges, 4] edges) => (float[atoms, 4] y)
        { axis = Constant <value = int64[1] {0}> () sum = ReduceSum (edges, axis) y = Add (atoms, sum) }"""
    model = onnx.parser.parse_model(text)
    monkeypatch.setenv("DEED", "is wrong with more edges")
    found = rl.verify(model, model, target="opencv")
    assert found.in_target is not None
    assert found.in_target.status == "failed", found


def test_what_is_rounded_to_integers_is_never_nan(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Log of negative numbers in front: each runtime makes another integer of its NaN."""
    quantized = Model(outputs=("Y",)).proto()
    quantized.graph.node.insert(0, onnx.helper.make_node("Log", ["level"], ["X"]))
    quantized.graph.input[0].name = "level"
    monkeypatch.setenv("DEED", "has other integers for NaN")
    found = rl.verify(quantized, rl.lower(quantized), target="opencv")
    assert found.in_target, found
    assert found.in_target.reason.count("compared with") == 0


def test_without_the_option_a_line_before_the_code_offers_it(
    small: Path, here: Path, tmp_path: Path, rnn_lower: Command
) -> None:
    done = rnn_lower(small, tmp_path / "out.onnx", "--target", "opencv")
    assert done.lines[-2] == "opencv is installed: --run-in-target runs the result in it"
    assert done.lines[-1].startswith("run it in opencv: ")
    assert "opencv" not in done.lines[-4]
    shutil.rmtree(here)
    assert "is installed" not in rnn_lower(small, tmp_path / "out.onnx", "--target", "opencv", "--force").out


def test_the_runtime_is_not_installed(tmp_path: Path, rnn_lower: Command) -> None:
    """That is said before the model is read."""
    done = rnn_lower(tmp_path / "absent.onnx", tmp_path / "out.onnx", *IN_TARGET)
    assert done.code == 1
    assert "opencv is not installed in " in done.err
    assert "pip install opencv-python-headless==5.0.0.93, or name a Python that has it: --target-python" in done.err
    assert "or RNN_LOWERING_OPENCV_PYTHON" in done.err
    assert files(tmp_path) == {}


def test_another_python(
    small: Path, elsewhere: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SRC))  # of which another Python gets nothing
    given = rnn_lower(small, tmp_path / "given.onnx", *IN_TARGET, "--verify", 1, "--target-python", elsewhere)
    assert "verified (opencv 4.13.0): 2 runs" in given.out, given.err
    monkeypatch.chdir(elsewhere.parent.parent)
    found = rl.verify(small, small, target="opencv", target_python="bin/python", runs=1)
    assert found.in_target, found
    monkeypatch.setenv("RNN_LOWERING_OPENCV_PYTHON", str(elsewhere))
    assert (
        "verified (opencv 4.13.0): 2 runs"
        in rnn_lower(small, tmp_path / "named.onnx", *IN_TARGET, "--verify", 1).out
    )
    rows = {line.split()[0]: line.split() for line in rnn_lower("--targets").lines}
    assert "4.13.0" in rows["opencv"]
    assert "4.13.0" not in rows["tract"]


def test_another_python_does_not_get_the_modules_of_this_one(small: Path, here: Path, tmp_path: Path) -> None:
    environment = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    with pytest.raises(rl.UnsupportedError, match="it has no cv2 and no numpy"):
        rl.verify(small, small, target="opencv", target_python=environment / "bin" / "python")


@pytest.mark.parametrize("python", ["absent", "folder", "program", "old"])
def test_a_python_that_does_not_run(small: Path, python: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    says = '{"python": [3, 9], "missing": [], "version": "1"}'
    for name, lines in {"program": "echo hello", "old": f"echo '{says}'"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    hint = "is Python 3.9; give one of 3.10" if python == "old" else "does not run as Python: .*; give the path of"
    with pytest.raises(rl.OptionError, match=hint):
        rl.verify(small, small, target="opencv", target_python=tmp_path / python)


def test_where_processes_do_not_fork(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(rl.UnsupportedError, match="Linux and macOS only; drop run_in_target"):
        rl.verify(small, small, target="onnxruntime")


Deed = tuple[str, str]
DEEDS: dict[str, Deed] = {
    "is wrong": (
        r"output 'Y': largest difference 0\.01, ",
        r"if this difference is acceptable, accept it \(--atol 2e-02\); otherwise please report it",
    ),
    "is wrong at one length": (
        r"output 'Y': float32\[70, 1, 80\] became float32\[1, 1, 80\]",
        "are these sizes too small for the model",
    ),
    "rejects": (
        r"with X \[7, 1, 80\] it does not load or run: RuntimeError: cannot read the net "
        r"\(loading \.\.\. / Unknown layer \\x1b\[31mred\\x1b\[0m\); ",
        r"fixed sizes may help, with a number for each \?: --set-dim seq=\?; "
        r"docs/runtimes.md of the repository says under opencv",
    ),
    "aborts": (
        r"with X \[7, 1, 80\] its process ends: signal 6: assertion failed: axis < rank; ",
        "docs/runtimes.md",
    ),
    "takes all memory": (r"MemoryError: .* \(raise the limit of memory: --max-bytes\)", "docs/runtimes.md"),
    "is broken": (
        "its driver does not start: ImportError: libGL.so.1: cannot open shared object",
        "docs/runtimes.md",
    ),
}


ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")


@pytest.mark.few(4)
@pytest.mark.parametrize("deed", [pytest.param(d, marks=ON_LINUX if "memory" in d else ()) for d in DEEDS])
def test_what_does_not_run_there_is_not_written(
    small: Path, deed: str, here: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEED", deed)
    kept = tmp_path / "kept.onnx"
    done = rnn_lower(small, tmp_path / "out.onnx", *IN_TARGET, "--verify", 1, "--keep-failed", kept)
    assert done.code == 3, done
    assert done.out == ""
    assert done.err.count("\n") == 1
    reason, hint = DEEDS[deed]
    assert re.search(rf"error: verification failed \(opencv 4\.13\.0\): .*{reason}", done.err), done.err
    assert re.search(hint, done.err), done.err
    assert "the model is kept as" not in done.err
    assert "it is kept as" in done.err
    assert not (tmp_path / "out.onnx").exists()
    assert rl.verify(small, kept, runs=1)


def test_what_hangs_is_ended(
    small: Path, here: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    monkeypatch.setenv("DEED", "hangs")
    done = rnn_lower(small, tmp_path / "out.onnx", *IN_TARGET, "--set-dim", "seq=3", "--verify-timeout", "5")
    assert done.code == 3
    assert "with X [3, 1, 80] it is not done after 5 s (raise the limit: --verify-timeout)" in done.err
    assert "it is not written" in done.err or "the model is not written; --keep-failed FILE keeps it" in done.err
    assert not is_running(int((tmp_path / "started").read_text()))


def test_what_never_starts_is_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_target, "_TO_START", 1.0)
    monkeypatch.setenv("DEED", "never starts")
    model = parse("g (float[2] a) => (float[2] b) { b = Relu (a) }")
    found = rl.verify(model, model, target="opencv", timeout=1)
    assert str(found) == (
        "verification failed (opencv 4.13.0): its driver does not start: not done after 1 s; measured with 5.0.0.93"
    )


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "(zombie)" not in status.read_text()


@pytest.mark.few(1)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks for processes in /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(small: Path, end: signal.Signals, here: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    path = os.pathsep.join([str(SRC), str(here)])
    command = subprocess.Popen(
        [sys.executable, "-m", "rnn_lowering", small, tmp_path / "out.onnx", *IN_TARGET],
        env={**os.environ, "DEED": "hangs", "STARTED": str(started), "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's job in the background ignores it
    )
    wait_until(lambda: started.exists() and started.read_text() != "")
    command.send_signal(end)
    command.wait(30)
    wait_until(lambda: not is_running(int(started.read_text())))
    assert not (tmp_path / "out.onnx").exists()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_what_a_runtime_prints_is_kept_back(
    small: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """64 MB do not reach the terminal, a file or the memory."""
    monkeypatch.setenv("DEED", "prints much")
    report = rl.lower_file(small, tmp_path / "out.onnx", target="opencv", run_in_target=True, verify=1)
    assert report.verification
    assert capfd.readouterr() == ("", "")


def test_what_is_not_lowered_runs_too(
    here: Path, tmp_path: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "in.onnx", without_recurrent_nodes())
    done = rnn_lower(source, tmp_path / "out.onnx", *IN_TARGET)
    assert done.lines[-2].startswith("verified (opencv 4.13.0): 2 runs")
    monkeypatch.setenv("DEED", "rejects")
    assert rnn_lower(source, tmp_path / "other.onnx", *IN_TARGET).code == 3
    assert not (tmp_path / "other.onnx").exists()


def test_integers_of_another_type_are_the_same_numbers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEED", "has no int64")
    model = parse("g (float[n, 4] a) => (int64[n, 1] b) { b = ArgMax <axis = 1> (a) }")
    assert rl.verify(model, model, target="opencv")


def test_names_and_data_files(here: Path, tmp_path: Path) -> None:
    """A name that NumPy takes as an argument of its own, and weights in another file."""
    text = "g (float[n, 64] file) => (float[n, 64] allow_pickle) { allow_pickle = MatMul (file, W) }"
    model = net(text, {"W": random((64, 64), 1)})
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    report = rl.lower_file(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target="opencv", run_in_target=True, external_data="always"
    )
    assert report.verification is not None
    assert report.verification.in_target, report.verification


def test_the_reports_have_it(small: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_lowering.report.page.MOST_NODES", 0)  # no plots, which are not looked at
    for name, deed in (("right", ""), ("wrong", "is wrong")):
        monkeypatch.setenv("DEED", deed)
        for kind in ("json", "html"):
            options: dict[str, Any] = {"target": "opencv", "run_in_target": True, "overwrite": True, "verify": 1}
            try:
                rl.lower_file(small, tmp_path / "out.onnx", report=tmp_path / f"{name}.{kind}", **options)
            except rl.VerificationError:
                assert deed
    right, wrong = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("right", "wrong"))
    assert right["verification"]["in_target"]["method"] == "opencv 4.13.0"
    assert (right["written"], wrong["written"]) == (True, False)
    assert [data["verification"]["in_target"]["status"] for data in (right, wrong)] == ["verified", "failed"]
    assert "verified (opencv 4.13.0): 2 runs" in (tmp_path / "right.html").read_text()
    assert "verification failed (opencv 4.13.0): output" in (tmp_path / "wrong.html").read_text()


@pytest.mark.exhaustive
def test_verify_says_the_same_without_a_file(small: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = rl.lower(small, target="opencv")
    assert rl.verify(small, lowered, target="opencv", runs=1)
    monkeypatch.setenv("DEED", "is wrong")
    found = rl.verify(small, lowered, target="opencv", runs=1)
    assert not found
    assert found.status == "failed"
    assert found.in_target is not None
    assert str(found) == str(found.in_target)


def test_wrong_options(small: Path, tmp_path: Path, rnn_lower: Command) -> None:
    options = [
        (("--run-in-target",), 2, "--run-in-target needs a runtime; add --target NAME"),
        (("--run-in-target", "--target", "coreml"), 1, "no driver runs models in coreml"),
        (("--run-in-target", "--target", "tract", "--verify", "0"), 2, "drop --verify 0"),
        (("--target", "tract", "--target-python", "python"), 2, "--target-python needs a run; add --run-in-target"),
    ]
    for given, code, reason in options:
        done = rnn_lower(small, tmp_path / "out.onnx", *given)
        assert (done.code, reason in done.err) == (code, True), done
    with pytest.raises(rl.OptionError, match=r"portable is no runtime, .*; add target: one of onnxruntime, "):
        rl.lower_file(small, tmp_path / "out.onnx", run_in_target=True)
    with pytest.raises(rl.OptionError, match=r"no target is named; name it: target=\.\.\."):
        rl.verify(small, small, run_in_target=True)
    source = saved(tmp_path / "in.onnx", without_recurrent_nodes())
    with pytest.raises(rl.OptionError, match=r"but nothing runs there; add run_in_target=True"):
        rl.lower_file(source, tmp_path / "o.onnx", target="tract", target_python="python")
    with pytest.raises(rl.OptionError, match=r"only a stream can be calibrated; add stream="):
        rl.lower_file(source, tmp_path / "o.onnx", calibrate=[])
    with pytest.raises(rl.OptionError, match=r"a quantized stream .* drop run_in_target=True or calibrate"):
        rl.lower_file(source, tmp_path / "o.onnx", target="tract", stream="n=1", calibrate=[], run_in_target=True)


RAGGED = net(
    """g (float[time, batch, 3] X, int32[batch] lens) => (float[time, batch, 4] Y) {
        y = GRU <hidden_size = 4> (X, W, R, B, lens)  Y = Squeeze (y, [1]) }""",
    recurrent("GRU", 3, 4),
)
RATES = net(
    """g (float[1, 1, samples] mic, float[1, features, 4] feat) => (float[1, n, 5] y) {
        p = Pad (mic, [0, 0, 4, 0, 0, 4])  c = Conv <strides = [4]> (p, C)
        t = Transpose <perm = [0, 2, 1]> (c)  j = Concat <axis = 2> (t, feat)
        x = Transpose <perm = [1, 0, 2]> (j)  h = LSTM <hidden_size = 5> (x, W, R)
        s = Squeeze (h, [1])  y = Transpose <perm = [1, 0, 2]> (s) }""",
    {"C": random([3, 1, 12], 2, 0.3), "W": random([1, 20, 7], 3, 0.4), "R": random([1, 20, 5], 4, 0.4)},
)
STREAMS: dict[str, tuple[onnx.ModelProto, dict[str, Any], str]] = {
    "any number of frames": (keyword_spotter()[0], {"stream": "time"}, "1 frame and of 5 frames"),
    "two frames, states in and out": (language_model()[0], {"stream": "time=2"}, "2 frames"),
    "lengths that count down": (RAGGED, {"stream": "time=1"}, "1 frame"),
    "two rates, late": (RATES, {"stream": {"samples": 8, "features": 2}, "delay": True}, "2 frames"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_runs_call_by_call(name: str) -> None:
    model, options, calls = STREAMS[name]
    stream = rl.lower(model, **options)
    found = rl.verify_stream(model, stream, target="onnxruntime", check=rl.Check(runs=1))
    assert str(found.in_target).startswith(f"verified (onnxruntime {version()}, in chunks of {calls}): 2 runs, "), (
        found
    )


def version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def test_a_stream_that_is_wrong_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = keyword_spotter()[0]
    stream = rl.lower(model, stream="time=1", target="opencv")
    assert rl.verify_stream(model, stream, target="opencv", check=rl.Check(runs=1))
    monkeypatch.setenv("DEED", "is wrong")
    found = rl.verify_stream(model, stream, target="opencv", check=rl.Check(runs=1))
    assert not found
    assert "verification failed (opencv 4.13.0, in chunks of 1 frame): output 'scores'" in str(found)


def test_a_model_that_onnxruntime_cannot_run_is_compared_with_its_result(here: Path) -> None:
    text = """g (float[T,1,2] X) => (float[T,1,1,4] Y) <float[1,4,2] W = {}, float[1,4,4] R = {}>
        { Y = RNN <hidden_size = 4, layout = 1> (X, W, R) }"""
    model = parse(text)
    found = rl.verify(model, rl.lower(model, target="opencv"), target="opencv")
    assert "compared with the result in onnxruntime, which cannot run the original" in str(found.in_target)


def test_the_commands_install_what_the_tests_run() -> None:
    """Versions and packages are those of tests/clients; each has a driver."""
    assert PACKAGES.keys() == CALLS.keys()
    for target, package in PACKAGES.items():
        assert target in rl.TARGETS
        assert (SRC / "rnn_lowering" / "targets" / "drivers" / f"run_{target.replace('-', '_')}.py").exists()
        listed = Path(__file__).parents[1] / "clients" / f"{target}.txt"
        if target == "onnxruntime":  # the tests' own
            assert package.measured == rl.TARGETS[target].version
            continue
        lines = listed.read_text().splitlines()
        pinned = {f"{name}=={number}" for name, number in package.pins.items()}
        assert pinned <= {*lines}, target
        words = re.findall(r"(?<=\s)(?!pip|install|&&|-)([A-Za-z][\w-]*)(?=[\s=]|$)", package.install.split("#")[0])
        assert {word.lower() for word in words} <= {re.split("[=<>]", line)[0].lower() for line in lines}, target
