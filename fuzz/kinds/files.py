"""The command on hostile and odd files, with outputs that exist, are links or cannot be written, and any options.

A fault is a traceback, a bug that the command reports of itself, a file that is replaced, lost or written unasked,
or a written model that is not valid, or computes something else.
"""

import contextlib
import io
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fuzz.case import Case, Outcome, agreed, fault, reason
from fuzz.compare import judged_pair
from fuzz.nets import attention, joined
from fuzz.nets.files import SITUATIONS
from fuzz.sizes import feeds
from rnn_lowering.cli.command import main

CASES = 80
OUTPUTS = (
    *("out.onnx",) * 25,
    *("in.onnx", "existing.onnx", "sub/out.onnx", "absent/out.onnx", "folder", "link.out", "dangling.out"),
    *("hard.onnx", "fifo.out", "/dev/null", "/dev/full", "/proc/out.onnx", "existing.onnx", "data.bin", "out"),
    *("out.onnx.data", "-", "", ".", "..", "./in.onnx", "sub/../in.onnx", "a b.onnx", "\u00e9.onnx", "out.onnx/"),
    *("x" * 300, "--", "in.onnx.", "OUT.onnx", "out.json", "out.textproto", "out.onnxtxt", "locked/out.onnx"),
)
FOREIGN = (
    *("please report", "bug in rnn-lowering", "InternalError", "<lambda>", "NoneType", "positional argument"),
    *("object has no attribute", "not subscriptable", "unhashable", "list index", "bad allocation"),
)
"""What no message of the command says, unless it does not know what happened."""

DECLARED = ("lies", "some_fields", "some_bytes")
"""Situations in which a model may declare other types and shapes than it has."""

CODES = {0, 1, 2, 3, 4, 5}


def generate(rng: random.Random) -> Case:
    """Make a small model, a situation and a command."""
    if rng.random() < 0.25:
        model = attention.net_of(rng.randrange(2**31), exact=True).model()
    else:
        net = joined.net_of(rng, (9, 13, 17, 21))
        model = joined.in_a_body(net) if rng.random() < 0.2 else net.model(net.opset, ir_version=8)
    situation = rng.choice(("plain",) * 6 + (*SITUATIONS,))
    usual = rng.random() < 0.5 and situation != "plain"
    out = "out.onnx" if usual else rng.choice(OUTPUTS)
    arguments = [rng.choice(("in.onnx",) * 60 + ("fifo.in", "folder", "absent.onnx", "/dev/null", "", "link.in"))]
    arguments += [out] if rng.random() < 0.95 else []
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        arguments += _option(rng)
    if "--verify" not in arguments:
        arguments += ["--verify", rng.choice(("0", "0", "0", "1"))]
    if "--verify-timeout" not in arguments:
        arguments += ["--verify-timeout", "10"]
    how = "process" if rng.random() < 0.04 else "here"
    options = {"situation": situation, "arguments": arguments, "seed": rng.randrange(2**31), "how": how}
    return Case(model, options)


REPORTS = ("existing.json", "in.onnx", "out.onnx", "folder", "/dev/null", "link.out", "r")
GOOD_OPTIONS = (
    *(
        ("--force",),
        ("--force",),
        ("--list",),
        ("-q",),
        ("-vv",),
        ("--lower-loops",),
        ("--no-join",),
        ("--dequantize",),
    ),
    *(("--keep-rest",), ("--trust-external-data",), ("--require-verified",), ("--compute", "float32")),
    *(("--to", "scan", "loop", "auto", "chunked"), ("--target", "onnxruntime", "tract", "mnn", "openvino")),
    *(
        ("--report", "new.json", "new.html"),
        ("--keep-failed", "kept.onnx"),
        ("--external-data", "always", "w.data"),
    ),
    *(("--stream", "x:0", "x:1", "x:0=1"), ("--delay",), ("--set-dim", "T=3", "N=1"), ("--test-shape", "x:3,2,4")),
    *(("--test-input", "x=x.npy"), ("--set-input", "go=1"), ("--max-bytes", "9G"), ("--only", "LSTM", "*")),
    *(("--except", "GRU"), ("--rtol", "1e-3"), ("--seed", "7"), ("--external-data", "always")),
)
"""Options, with arguments to choose from."""

ODD_OPTIONS = (
    *(("--to", "unroll", "keep", "no", ""), ("--target", "qnn", "iree", "no", ""), ("--report", *REPORTS)),
    *(("--keep-failed", *REPORTS), ("--external-data", "auto", "never", "in.onnx", "out.onnx", "../w.data", "")),
    *(("--stream", "T", "T=4", "no", "", "x:9", "T=0", "=1", "X:"), ("--stream",), ("--verify", "-1", "x", "2")),
    *(
        ("--set-dim", "T=0", "T=-1", "T", "B=2", "Z=4", "T=99999999999", "=", "x:0=3"),
        ("--max-bytes", "1", "0", "x"),
    ),
    *(("--set-shape", "x:3,1,4", "x:", "y:1", "x:0,0,0", "x:a,b,c", "x:99999999,9,9"), ("--only", "no", "", "[")),
    *(
        ("--test-shape", "x:1", "no:1"),
        ("--test-input", "x=text.npy", "x=in.onnx", "x=absent.npy", "no=x.npy", "x"),
    ),
    *(
        ("--set-input", "x=x.npy", "x=0", "go=x.npy", "lens_0=3", "no=1", "x=nan", "x=1e99"),
        ("--except", "*", "no"),
    ),
    *(("--max-unroll", "0", "1", "9999999999", "-1"), ("--seed", "-1", "x", "99999999999999999999")),
    *(("--rtol", "0", "nan", "-1", "inf"), ("--verify-timeout", "0", "nan", "1e-9")),
)


def _option(rng: random.Random) -> list[str]:
    name, *choices = rng.choice(GOOD_OPTIONS if rng.random() < 0.85 else ODD_OPTIONS)
    return [name, rng.choice(choices)] if choices else [name]


Files = dict[str, tuple[Any, ...]]


def judge(case: Case) -> Outcome:
    """Run the command in a folder of its own, and look at what has become of it."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz_files_"))
    try:
        return _judged(case, folder)
    finally:
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def _judged(case: Case, folder: Path) -> Outcome:
    work = folder / "work"
    work.mkdir()
    _prepare(case, work)
    before = _files(folder)
    with _written(work):
        code, said, error = _run(case, work)
    after = _files(folder)
    shown = f"{case.options['situation']} {case.options['arguments']}"
    if error:
        return fault(error.partition(":")[0], f"{shown}: {error}")
    last = said.strip().splitlines()[-1] if said.strip() else ""
    traced = () if "-vv" in case.options["arguments"] else ("Traceback",)
    lies = case.options["situation"] in DECLARED and "unless the model declares" in said
    if any(text in said for text in (*FOREIGN, *traced)) and not lies:
        return fault(f"reports itself: {reason(last)}", f"{shown}: {said[-900:]}")
    if code not in CODES:
        return fault(f"exit code {code}", f"{shown}: {said[-500:]}")
    wrong = _changes(case, before, after, code)
    if wrong:
        return fault(wrong.partition(":")[0], f"{shown}: {wrong}: {said[-300:]}")
    if code:
        return Outcome("refused", reason(last.removeprefix("rnn-lower: error: ")), last[:500], 1)
    return _result(case, work, shown)


def _prepare(case: Case, work: Path) -> None:
    rng = random.Random(case.options["seed"])
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    (work / "in.onnx").write_bytes(SITUATIONS[case.options["situation"]](model, rng, work))
    small = np.zeros((3, 1, 4), np.float32)
    np.save(work / "x.npy", small)
    for name, text in {"existing.onnx": "precious", "existing.json": "{}", "text.npy": "no array"}.items():
        (work / name).write_text(text)
    for name in ("sub", "folder"):
        (work / name).mkdir(exist_ok=True)
    (work / "folder" / "kept.txt").write_text("kept")
    (work.parent / "secret.bin").write_bytes(bytes(4096))
    for name, target in {"link.out": "existing.onnx", "dangling.out": "nowhere", "link.in": "in.onnx"}.items():
        (work / name).symlink_to(target)
    os.link(work / "in.onnx", work / "hard.onnx")
    for name in ("fifo.in", "fifo.out"):
        os.mkfifo(work / name)


def _files(folder: Path) -> Files:
    """Return what each path is, with its content."""
    found: Files = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        kind = stat.S_IFMT(info.st_mode)
        content = path.read_bytes() if stat.S_ISREG(kind) else str(path.readlink()) if stat.S_ISLNK(kind) else ""
        found[str(path.relative_to(folder))] = (kind, content)
    return found


@contextlib.contextmanager
def _written(work: Path) -> Iterator[None]:
    """Let the model come through a FIFO too, once it is read."""

    def write() -> None:
        with contextlib.suppress(OSError), open(work / "fifo.in", "wb") as pipe:
            pipe.write((work / "in.onnx").read_bytes())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        reader = os.open(work / "fifo.in", os.O_RDONLY | os.O_NONBLOCK)  # so that the writer ends
        writer.join(5)
        os.close(reader)


def _run(case: Case, work: Path) -> tuple[int, str, str]:
    """Return the exit code, what was printed, and an exception that came out."""
    arguments = case.options["arguments"]
    if case.options["how"] == "process":
        with open(work / "in.onnx", "rb") as given:
            taken = ["/dev/stdin" if a == "in.onnx" and not n else a for n, a in enumerate(arguments)]
            command = [sys.executable, "-m", "rnn_lowering", *taken]
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
            done = subprocess.run(
                command, stdin=given, capture_output=True, cwd=work, env=environment, timeout=100, check=False
            )
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace"), ""
    here, out = os.getcwd(), io.StringIO()
    os.chdir(work)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(list(arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return 1, out.getvalue(), f"{type(error).__name__} in {Path(last.filename).name}: {error}"
    finally:
        os.chdir(here)
    return code, out.getvalue(), ""


def _changes(case: Case, before: Files, after: Files, code: int) -> str:
    """Return what was written, replaced or lost that should not be."""
    arguments = case.options["arguments"]
    asked = {arguments[1]} if len(arguments) > 1 else set()
    files = ("--report", "--keep-failed", "--external-data")
    asked |= {value for name, value in pairwise(arguments) if name in files}
    paths = {os.path.normpath(os.path.join("work", name)) for name in asked if name}
    paths |= {f"{path}{end}" for path in paths for end in (".data",)}
    for path, held in before.items():
        if path not in after:
            return f"{path} is lost"
        if after[path] != held:
            mine = path in paths and "--force" in arguments
            given = os.path.normpath(os.path.join("work", arguments[0]))
            if not mine or path in (given, "work/in.onnx"):
                return f"{path} is replaced"
    new = after.keys() - before.keys()
    numbered = {p for p in new if any(p.startswith(path.removesuffix(".data")) and ".data" in p for path in paths)}
    if unasked := sorted(new - paths - numbered):
        return f"{unasked} are written unasked"
    out = os.path.normpath(os.path.join("work", arguments[1])) if len(arguments) > 1 else ""
    if code not in (0,) and out in new and out not in {os.path.normpath(f"work/{a}") for a in arguments[2:]}:
        return f"{out} is written with exit code {code}"
    return ""


def _result(case: Case, work: Path, shown: str) -> Outcome:
    """Look at a written model, and compare it if only sizes and forms were asked for."""
    arguments = case.options["arguments"]
    if "--list" in arguments or len(arguments) < 2 or arguments[-1] == "--stream":
        return agreed(1)
    path = work / arguments[1]
    try:
        written = onnx.load(path)
    except Exception as error:
        return fault("the result cannot be read", f"{shown}: {error}")
    meant = {"--stream", "--set-input", "--set-shape", "--set-dim", "--compute", "--dequantize", "--rtol"}
    if meant & {*arguments}:
        return agreed(1)
    try:
        original = onnx.load(work / "in.onnx")
        onnx.checker.check_model(original)
        given = [feeds(original, {"T": 3, "N": 2, "B": 2}, 0)]
    except Exception:
        return agreed(1)
    for feed in given:
        for name, array in feed.items():
            if array.dtype == np.int32:
                feed[name] = array % 2
        if sum(array.nbytes for array in feed.values()) > 1 << 24:
            return agreed(1)
    found = judged_pair(original, written, given)
    if found.kind == "fault":
        return fault(found.what, f"{shown}: {found.detail}")
    return agreed(found.comparisons + 1)
