"""What is written: nothing that exists is lost, model and data are one, an end at any moment leaves nothing."""

import errno
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from model_files import layers, results_of, state, write
from onnx import numpy_helper
from paths import SRC
from running import assert_close, recurrent_left, run
from texts import random_feed
from thinning import by_turns, exhaustive, thinned

import rnn_lowering as rl
from rnn_lowering.files.data_folders import external_entries

UNIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and FIFOs differ")
IN, OUT = "in.onnx", "out.onnx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with its data in `w.bin`, and files that have nothing to do with it."""
    write(tmp_path / IN, "w.bin")
    for name in ("notes.txt", "notes.json", "out.onnx.data", "kept.onnx.data"):
        (tmp_path / name).write_text(f"precious {name}")
    return tmp_path


def attempt(folder: Path, out: str = OUT, source: str = IN, **options: Any) -> str:
    """Lower files of a folder, by their names, without a verification; return the text of the error, or ""."""
    for name in {"report", "keep_failed"} & options.keys():
        options[name] = folder / options[name]
    try:
        rl.lower_file(folder / source, folder / out, **{"verify": 0, **options})
    except rl.RnnLoweringError as error:
        return str(error)
    return ""


# No output is an input, no two are one, and what exists is replaced on request only


NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "output is the input": ({"out": IN}, "same file"),
    "output is the input by another spelling": ({"out": f"sub/../{IN}"}, "same file"),
    "output is the input through a link to its folder": ({"out": f"here/{IN}"}, "same file"),
    "output is a hard link to the input": ({"out": "hard.onnx"}, "same file"),
    "output is a link to the input": ({"out": "soft.onnx"}, "same file"),
    "output is the input's data": ({"out": "w.bin"}, "same file"),
    "output is the input's data, with none of its own": ({"out": "w.bin", "external_data": "never"}, "same file"),
    "output is the input's data, with other data": ({"out": "w.bin", "external_data": "d.bin"}, "same file"),
    "output is a link to the input's data": ({"out": "soft.bin"}, "it is a symbolic link"),
    "data is the input": ({"external_data": IN}, "same file"),
    "data is the input's data": ({"external_data": "w.bin"}, "same file"),
    "data is the input's data by another spelling": ({"external_data": "./w.bin"}, "cannot write external data"),
    "data is the input's data through a link": ({"out": "here/new.onnx", "external_data": "w.bin"}, "same file"),
    "data is a link to the input's data": ({"external_data": "soft.bin"}, "same file"),
    "data is a hard link to the input's data": ({"external_data": "hard.bin"}, "same file"),
    "kept is the input": ({"keep_failed": IN}, "same file"),
    "kept is the input's data": ({"keep_failed": "w.bin"}, "same file"),
    "kept's data is the input's": ({"keep_failed": "w", "source": "w.onnx"}, "same file"),
    "report is the input's data": ({"report": "w.json", "source": "v.onnx"}, "same file"),
    "report is the input": ({"report": "in.json", "source": "in.json"}, "same file"),
    "kept is the output": ({"keep_failed": OUT}, "is used for both"),
    "kept is the output in another case": ({"keep_failed": "OUT.onnx"}, "is used for both"),
    "kept is the output through a link": ({"keep_failed": f"here/{OUT}"}, "is used for both"),
    "kept is the data": ({"keep_failed": "d.bin", "external_data": "d.bin"}, "is used for both"),
    "kept's data is the data": ({"keep_failed": "k", "external_data": "k.data"}, "is used for both"),
    "kept's data is the output": ({"keep_failed": "k", "out": "k.data"}, "is used for both"),
    "report is the output": ({"report": "a.json", "out": "a.json"}, "is used for both"),
    "report is the data": ({"report": "a.json", "external_data": "a.json"}, "is used for both"),
    "report is kept": ({"report": "a.json", "keep_failed": "a.json"}, "is used for both"),
    "report is neither JSON nor HTML": ({"report": "report.txt"}, r"neither .json nor .html"),
    "report has no ending": ({"report": "report"}, r"neither .json nor .html"),
    "report is in no folder": ({"report": "none/page.html"}, "folder does not exist"),
    "input is a folder": ({"source": "sub"}, "cannot read"),
    "output is a folder": ({"out": "sub"}, "it is a folder"),
    "output is in no folder": ({"out": "none/out.onnx"}, "folder does not exist"),
    "output is in a file": ({"out": "notes.txt/out.onnx"}, "cannot write"),
    "output is in a device": ({"out": "/dev/full/out.onnx"}, "cannot write"),
    "output has too long a name": ({"out": "n" * 300}, "cannot write"),
    "output has a name with a null": ({"out": "a\0b.onnx"}, "cannot write"),
}


@pytest.mark.few(48)
@pytest.mark.parametrize("case", NEVER)
@pytest.mark.parametrize("overwrite", [False, True], ids=["kept", "forced"])
def test_what_is_never_written(folder: Path, case: str, overwrite: bool) -> None:
    (folder / "sub").mkdir()
    (folder / "here").symlink_to(".")
    (folder / "hard.onnx").hardlink_to(folder / IN)
    (folder / "soft.onnx").symlink_to(IN)
    (folder / "soft.bin").symlink_to("w.bin")
    (folder / "hard.bin").hardlink_to(folder / "w.bin")
    write(folder / "w.onnx", "w.data")
    write(folder / "v.onnx", "w.json")
    onnx.save(layers(), folder / "in.json")
    before = state(folder)
    options, fact = NEVER[case]
    said = attempt(folder, **options, overwrite=overwrite)
    assert fact in said or (not overwrite and "exists" in said)
    assert state(folder) == before


EXISTS: dict[str, dict[str, Any]] = {
    "output": {"out": "notes.json", "external_data": "never"},
    "named data": {"external_data": "notes.txt"},
    "default data": {},
    "kept": {"keep_failed": "notes.json", "external_data": "never"},
    "kept's data": {"keep_failed": "kept.onnx", "external_data": "new.bin"},
    "report": {"report": "notes.json", "external_data": "never"},
}


@pytest.mark.parametrize("case", EXISTS)
def test_what_exists_is_replaced_on_request(folder: Path, case: str) -> None:
    before = state(folder)
    assert "exists; use overwrite=True" in attempt(folder, **EXISTS[case])
    assert state(folder) == before
    assert attempt(folder, **EXISTS[case], overwrite=True) == ""
    after = state(folder)
    replaced = {name for name, contents in before.items() if after[name] != contents}
    assert replaced == {"output": {"notes.json"}, "report": {"notes.json"}}.get(case, set())
    new = {re.sub("[0-9a-f]{8}", "*", name) for name in after.keys() - before.keys()}
    data = {"named data": {"notes.*.txt"}, "default data": {"out.onnx.*.data"}, "kept's data": {"new.bin"}}
    assert new == {*data.get(case, set()), OUT} - ({OUT} if case == "output" else set())


def make(kind: str, path: Path) -> None:
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        listening = socket.socket(socket.AF_UNIX)
        here = os.open(path.parent, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{here}/{path.name}")  # a name of its own is too long
        os.close(here)
        listening.close()
    elif kind == "device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            pytest.skip("only an administrator makes devices")
    else:
        path.symlink_to({"link": "notes.txt", "dangling link": "none"}[kind])


ROLES: dict[str, dict[str, Any]] = {
    "output": {"out": "x.json", "external_data": "never"},
    "data": {"external_data": "x.json"},
    "kept": {"keep_failed": "x.json", "external_data": "never"},
    "report": {"report": "x.json", "external_data": "never"},
}


@pytest.mark.few(32)
@UNIX
@pytest.mark.parametrize("kind", ["FIFO", "folder", "socket", "device", "link", "dangling link"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("overwrite", [False, True], ids=["kept", "forced"])
def test_what_is_no_file_is_never_replaced(folder: Path, kind: str, role: str, overwrite: bool) -> None:
    make(kind, folder / "x.json")
    before = state(folder)
    word = "symbolic link" if "link" in kind else kind
    assert f"x.json': it is a {word}" in attempt(folder, **ROLES[role], overwrite=overwrite)
    assert state(folder) == before
    assert not (folder / "none").exists()


@pytest.mark.parametrize("name", ["out.tflite", "out.ort", "out.pt", "out.engine", "out.data", "out.onnxtxt"])
@pytest.mark.parametrize("role", ["out", "keep_failed"])
def test_a_name_of_another_format_is_refused(folder: Path, name: str, role: str) -> None:
    before = state(folder)
    error = attempt(folder, **{role: name}, external_data="never")
    assert name in error
    assert "end the name in .onnx" in error
    assert state(folder) == before


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["out", "out.pb", "out.json", "out.textproto", "out.pbtxt", "out.onnx.tmp", "out.ONNX"]
)
def test_names_of_models(folder: Path, name: str) -> None:
    assert attempt(folder, out=name, external_data="never", verify=1, require_verified=True) == ""
    assert rl.inspect(folder / name) == []


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # administrators may write anywhere
    before = state(folder)
    assert "its folder is read-only" in attempt(folder)
    assert state(folder) == before


def test_a_place_that_is_taken_meanwhile_is_kept(folder: Path) -> None:
    def progress(*_: object) -> None:
        (folder / OUT).write_text("of somebody else")

    assert "exists" in attempt(folder, external_data="new.bin", progress=progress)
    assert (folder / OUT).read_text() == "of somebody else"
    assert not (folder / "new.bin").exists()


# A model and its data are one


def double(path: Path) -> Path:
    """Write a model with other weights, and other results."""
    model = layers()
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(0.5), tensor.name))
    onnx.save(model, path, save_as_external_data=True, location="v.bin", size_threshold=0)
    return path


@pytest.fixture
def replaceable(tmp_path: Path) -> tuple[Path, Path]:
    """A model to lower, and a result of another one in the place where its result goes."""
    (tmp_path / "out").mkdir()
    source, out = double(tmp_path / IN), tmp_path / "out" / OUT
    rl.lower_file(write(tmp_path / "other" / IN), out, verify=0)
    return source, out


def results(model: onnx.ModelProto) -> Arrays:
    return run(model, random_feed(layers()))


def is_new(source: Path, out: Path) -> bool:
    """Whether the result is that of `source`, else it must be the earlier one, whole."""
    assert recurrent_left(onnx.load(out)) == []
    found = results_of(out)
    new, old = results(onnx.load(source)), results(layers())
    is_new = np.allclose(found["Y"], new["Y"], atol=1e-4)
    assert_close(found, new if is_new else old)
    return is_new


STEPS = ("replace", "link", "unlink", "mkdir", "rmdir")


def stepping(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` before each step that changes what a folder holds, with its number."""
    done = 0

    def before(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            act(done)
            return step(*arguments, **options)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, before(getattr(os, name)))


POLICIES = ["auto", "never", "named.bin", "always"]


@pytest.mark.few(3)
@pytest.mark.parametrize("policy", thinned(list(POLICIES), 2))
@pytest.mark.parametrize("named", [False, True], ids=["fresh", "taken"])
def test_a_failure_at_any_step(replaceable: tuple[Path, Path], policy: str, named: bool) -> None:
    source, out = replaceable
    if named:
        out.with_name("named.bin").write_text("of the last time")
    before, outcomes, step = state(out.parent), set(), 0
    while step < 40:
        step += 1

        def fail(number: int, at: int = step) -> None:
            if number == at:
                raise OSError(errno.EIO, "this step failed")

        with pytest.MonkeyPatch.context() as patch:
            stepping(patch, fail)
            try:
                rl.lower_file(source, out, verify=0, external_data=policy, overwrite=True)
                failed = False
            except rl.ModelFileError:
                failed = True
        outcomes.add(failed)
        hidden = [name for name in state(out.parent) if ".rnn-lower-" in name]
        assert len(hidden) <= 1  # where the very step that removes it fails
        if failed and not hidden:
            assert state(out.parent) == before, step
        assert failed != is_new(source, out), step
        if not failed:
            break
    assert outcomes == {True, False}


def kill(at: int, number: int) -> None:
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.few(1)
@UNIX
@pytest.mark.parametrize("policy", thinned(list(POLICIES), 2))
def test_a_kill_at_any_step(replaceable: tuple[Path, Path], policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = replaceable
    ended, step = False, 0
    seen = set()
    while not ended:
        step += 1
        child = os.fork()
        if child == 0:
            stepping(monkeypatch, partial(kill, step))
            try:
                rl.lower_file(source, out, verify=0, external_data=policy, overwrite=True)
            finally:
                os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        seen.add(is_new(source, out))
    assert step > 3
    assert seen == {True, False}
    assert is_new(source, out)


@pytest.mark.parametrize(("policy", "stem"), [("auto", "out.onnx"), ("d.data", "d")])
def test_old_data_goes_when_new_data_has_come(replaceable: tuple[Path, Path], policy: str, stem: str) -> None:
    source, out = replaceable
    rl.lower_file(source, out, verify=0, external_data=policy, overwrite=True)
    for _ in range(3):
        before = state(out.parent)
        rl.lower_file(source, out, verify=0, external_data=policy, overwrite=True)
        assert is_new(source, out)
        (data,) = set(state(out.parent)) - {OUT}
        assert re.fullmatch(rf"{stem}(\.[0-9a-f]{{8}})?\.data", data)
        assert data not in before


@pytest.mark.few(2)
@pytest.mark.parametrize("keeps", ["", "another name", "an input", "no reference"])
def test_data_that_is_left_behind_goes(replaceable: tuple[Path, Path], keeps: str) -> None:
    source, out = replaceable
    data = out.with_name(f"{OUT}.data")
    if keeps == "another name":
        rl.lower_file(source, out, verify=0, external_data="d.bin", overwrite=True)
        assert not data.exists()
        data = out.with_name("d.bin")
    elif keeps == "an input":
        rl.lower_file(source, out.with_name("second.onnx"), verify=0, external_data="never")
        source = out.with_name("copy.onnx")
        source.write_bytes(out.read_bytes())
    elif keeps == "no reference":
        onnx.save(layers(), out)
    rl.lower_file(source, out, verify=0, external_data="never", overwrite=True)
    assert data.exists() == bool(keeps)


def test_a_report_that_cannot_take_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure before the model is in its place leaves the report's place alone, too."""
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(target).name == OUT:
            raise OSError(errno.EIO, "this step failed")
        replace(source, target)

    before = state(folder)
    monkeypatch.setattr(os, "replace", refuse)
    assert "this step failed" in attempt(folder, report="new.json", external_data="new.bin")
    assert state(folder) == before


# An end at any moment


ENDS = """
import os, signal, sys
sys.argv[1:3], moment, number = [], sys.argv[1], int(sys.argv[2])
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)

def now():
    os.kill(os.getpid(), number)

def before(module, name, skip=0):
    step, calls = getattr(module, name), []
    def call(*arguments, **options):
        calls.append(1)
        if len(calls) == skip + 1:
            now()
        return step(*arguments, **options)
    setattr(module, name, call)

def after(module, name):
    step = getattr(module, name)
    def call(*arguments, **options):
        found = step(*arguments, **options)
        now()
        return found
    setattr(module, name, call)

if moment == "import":
    class Finder:
        def find_spec(self, name, *_):
            if name == "onnx_ir":
                now()
    sys.meta_path.insert(0, Finder())
else:
    from pathlib import Path
    import subprocess
    from rnn_lowering.libraries import load_late
    load_late()
    from rnn_lowering import file_lowering
    from rnn_lowering.cli import console
    place, name, when = {
        "read": (file_lowering, "parse_file", before),
        "write": (file_lowering, "save", before),
        "written": (file_lowering, "save", after),
        "folder made": (Path, "mkdir", after),
        "start of the worker": (subprocess.Popen, "__init__", before),
        "worker runs": (subprocess.Popen, "__init__", after),
        "replace": (os, "replace", before),
        "replaced": (os, "replace", after),
        "print": (console, "print_report", before),
    }[moment]
    when(place, name)
from rnn_lowering.__main__ import main
sys.exit(main())
"""

MOMENTS = {
    "import": False,
    "read": False,
    "write": False,
    "written": False,
    "folder made": False,
    "start of the worker": False,
    "worker runs": False,
    "replace": True,  # what has begun is finished
    "replaced": True,
    "print": True,
}


def command(*arguments: object, code: str = "", **options: Any) -> subprocess.Popen[str]:
    start = ["-c", code] if code else ["-m", "rnn_lowering"]
    environment = {**os.environ, "PYTHONPATH": str(SRC), **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, *start, *map(str, arguments)],
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        **options,
    )


def workers(scratch: Path) -> list[str]:
    """The processes that know this folder for temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(scratch).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def assert_nothing_left(tmp_path: Path, scratch: Path, expected: set[str]) -> None:
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert [path.name for path in scratch.iterdir() if path.name != ".ses"] == []  # that one is onnxruntime's
    limit = time.monotonic() + 5
    while (alive := workers(scratch)) and time.monotonic() < limit:
        time.sleep(0.02)
    assert alive == []


@pytest.mark.few(1)
@UNIX
@pytest.mark.parametrize(
    ("moment", "name"),
    thinned(
        [*((moment, "SIGTERM") for moment in MOMENTS)]
        + [(moment, name) for name in ("SIGHUP", "SIGINT") for moment in ("import", "written", "worker runs")],
        5,
    ),
)
def test_a_signal_leaves_nothing(tmp_path: Path, moment: str, name: str) -> None:
    number, scratch = getattr(signal, name), tmp_path / "scratch"
    scratch.mkdir()
    source = write(tmp_path / IN, "w.bin")
    policy = "never" if "replace" in moment else "auto"  # onnx_ir replaces a file of its own
    options = ["--external-data", policy, "--report", tmp_path / "report.json", "--keep-failed", tmp_path / "kept"]
    arguments = (moment, number.value, source, tmp_path / OUT, "-v", *options)
    with command(*arguments, code=ENDS, stdout=subprocess.PIPE, env={"TMPDIR": str(scratch)}) as process:
        printed, said = process.communicate(timeout=60)
    fact = f"'{tmp_path / OUT}' is written" if MOMENTS[moment] else "nothing was written"
    assert (process.returncode, printed, said) == (128 + number, "", f"rnn-lower: interrupted; {fact}\n")
    later = [] if policy == "never" else [f"{OUT}.data", "report.json"]
    written = {OUT, *later} if MOMENTS[moment] else set()
    assert_nothing_left(tmp_path, scratch, {IN, "w.bin", "scratch", *written})


@UNIX
def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = write(tmp_path / IN, "w.bin")
    arguments = ("worker runs", signal.SIGKILL.value, source, tmp_path / OUT)
    with command(*arguments, code=ENDS, stdout=subprocess.DEVNULL, env={"TMPDIR": str(scratch)}) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    limit = time.monotonic() + 10
    while workers(scratch) and time.monotonic() < limit:
        time.sleep(0.02)
    assert workers(scratch) == []


@UNIX
def test_nohup_is_respected(tmp_path: Path) -> None:
    source = write(tmp_path / IN, "w.bin")
    ignoring = ENDS.replace("signal.SIG_DFL", "signal.SIG_IGN")
    arguments = ("written", signal.SIGHUP.value, source, tmp_path / OUT, "--verify", "0")
    with command(*arguments, code=ignoring, stdout=subprocess.PIPE) as process:
        assert "written to" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


def broken() -> int:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


STREAMS: dict[str, tuple[Callable[[], int], str]] = {
    "a full disk": (lambda: os.open("/dev/full", os.O_WRONLY), os.strerror(errno.ENOSPC)),
    "a reader that is gone": (broken, os.strerror(errno.EPIPE)),
    "closed": (lambda: -1, os.strerror(errno.EBADF)),
}


@pytest.mark.few(1)
@UNIX
@pytest.mark.parametrize(("kind", "task"), by_turns(list(STREAMS), ["lower", "list", "help", "quiet"]))
def test_stdout_that_cannot_be_written(tmp_path: Path, kind: str, task: str) -> None:
    opened, reason = STREAMS[kind]
    source, out = write(tmp_path / IN, "w.bin"), tmp_path / OUT
    arguments: dict[str, list[object]] = {
        "lower": [source, out, "--verify", "0"],
        "list": [source, "--list"],
        "help": ["--help"],
        "quiet": [source, out, "--verify", "0", "-q"],
    }
    stdout = opened()
    options = {"stdout": stdout} if stdout >= 0 else {"preexec_fn": lambda: os.close(1)}
    with command(*arguments[task], **options) as process:
        _, said = process.communicate(timeout=60)
    if stdout >= 0:
        os.close(stdout)
    fact = f"; '{out}' is written" if task == "lower" else ""
    error = "" if task == "quiet" else f"rnn-lower: error: cannot print: {reason}{fact}\n"
    assert (process.returncode, said) == (0 if task == "quiet" else 1, error)
    assert out.exists() == (task in ("lower", "quiet"))


# An input that can be read once


@pytest.mark.few(1)
@UNIX
@pytest.mark.parametrize("way", ["pipe", "FIFO", exhaustive("file")])
def test_an_input_that_is_piped(tmp_path: Path, way: str) -> None:
    source, out, scratch = tmp_path / IN, tmp_path / "out.onnx", tmp_path / "scratch"
    scratch.mkdir()
    onnx.save(layers(), source)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    name = fifo if way == "FIFO" else "/dev/stdin"
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "env": {"TMPDIR": str(scratch)}}
    with (
        source.open("rb") as file,
        command(name, out, stdin=file if way == "file" else subprocess.PIPE, **options) as process,
    ):
        if way == "pipe":
            assert process.stdin is not None
            os.write(process.stdin.fileno(), source.read_bytes())
            process.stdin.close()
            process.stdin = None
        elif way == "FIFO":
            fifo.write_bytes(source.read_bytes())
        printed, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert "verified (onnxruntime)" in printed
    assert_close(results_of(out), results(layers()))
    assert [path.name for path in scratch.iterdir() if path.name != ".ses"] == []


@UNIX
def test_a_piped_input_with_data_elsewhere_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    child = os.fork()
    if child == 0:
        (folder / "fifo").write_bytes((folder / IN).read_bytes())
        os._exit(0)
    assert "a model from a pipe has no folder" in attempt(folder, source="fifo", out="new.onnx")
    os.waitpid(child, 0)


@UNIX
def test_a_device_is_no_input(folder: Path) -> None:
    assert "it is a device" in attempt(folder, source="/dev/zero", out="new.onnx")


# Several processes

RACE = """
import random, sys, time
from rnn_lowering.libraries import load_late
load_late()
import rnn_lowering as rl
source, out, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
def wait(*_):
    time.sleep(random.random() / 50)
for _ in range(rounds):
    rl.lower_file(source, out, verify=0, external_data="always", overwrite=True, progress=wait)
"""
"""Lowers the model again and again; between choosing its name and giving it its place others do."""


@UNIX
@pytest.mark.parametrize(("processes", "rounds"), [(2, 3), exhaustive((6, 60))])
def test_processes_that_replace_the_same_model(tmp_path: Path, processes: int, rounds: int) -> None:
    source, out = write(tmp_path / IN), tmp_path / "out" / OUT
    out.parent.mkdir()
    arguments = [sys.executable, "-c", RACE, str(source), str(out), str(rounds)]
    racing = [subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(processes)]
    assert [process.communicate()[1] for process in racing] == [""] * processes
    (data,) = set(state(out.parent)) - {OUT}
    assert set(external_names(out)) == {data}
    assert_close(results_of(out), results(layers()))


def external_names(path: Path) -> list[str]:
    return [entry.value for _, entry in external_entries(onnx.load(path, load_external_data=False))]
