"""No file is open or mapped, here or in a child, when it is replaced or removed: Windows would refuse that.

Linux shows it: descriptors and maps of this process and its descendants are looked at before each such step.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_files import layers, write
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.compare import verify
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.files import one_file

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc shows what is open"),
    pytest.mark.usefixtures("own_processes"),
]


STREAMED = """
main (float[time,2,16] X) => (float[time,1,2,16] Y) <float[1,64,16] W = {}, float[1,64,16] R = {}> {
    Y = LSTM <hidden_size=16> (X, W, R)
}
"""


def family() -> Iterator[int]:
    """Yield this process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    yield from ours


def held(path: str) -> list[str]:
    """Return where a file, or one below a folder, is open or mapped."""
    found = []
    for process in family():
        folder = Path("/proc", str(process))
        try:
            open_files = [link for number in os.listdir(folder / "fd") if (link := _target(folder / "fd" / number))]
            mapped = re.findall(r" (/.*)$", (folder / "maps").read_text(), re.MULTILINE)
        except OSError:
            continue
        who = "a child" if process != os.getpid() else "this process"
        for how, files in (("open", open_files), ("mapped", mapped)):
            names = {file.removesuffix(" (deleted)") for file in files}
            found += [f"{name} {how} in {who}" for name in names if name == path or name.startswith(f"{path}/")]
    return found


def _target(file: Path) -> str:
    """Return what a descriptor leads to; "" where it is closed by now, as that of the listing is."""
    try:
        return os.readlink(file)
    except OSError:
        return ""


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Every step that replaces or removes what is held; at the end there was at least one step."""
    found: list[str] = []
    steps = 0

    def watched(module: Any, name: str) -> None:
        step: Callable[..., Any] = getattr(module, name)

        def call(*paths: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            given = [os.path.abspath(p) for p in paths if isinstance(p, str | os.PathLike) and os.path.lexists(p)]
            found.extend(f"{name}: {text}" for path in given for text in held(path))
            return step(*paths, **options)

        monkeypatch.setattr(module, name, call)

    for name in ("replace", "rename", "unlink", "remove", "rmdir"):
        watched(os, name)
    watched(shutil, "rmtree")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    yield found
    assert steps > 1


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are read as large ones are: mapped."""
    monkeypatch.setattr(one_file, "LARGE", 1)
    monkeypatch.setattr(verify, "LARGE", 1)
    monkeypatch.setattr(one_file, "TENSOR_BYTES", 1000)
    monkeypatch.setattr(one_file, "SHARE", 0)


WAYS: dict[str, dict[str, Any]] = {
    "as in the input": {},
    "one file": {"external_data": "never"},
    "a data file": {"external_data": "always"},
    "a named data file": {"external_data": "w.data"},
    "without a comparison": {"verify": 0},
    "a page": {"report": "report.html"},
    "JSON": {"report": "report.json"},
    "sizes": {"target": "tvm"},
    "given inputs": {"feeds": [{"X": np.ones((6, 2, 16), np.float32)}]},
}


SMALL = ("as in the input", "a page")
"""Ways in which models are read whole too; in the others they are mapped."""

SOURCES = ("data beside it", "one file")
PICKS = [(way, "large", source) for way in WAYS for source in SOURCES]
PICKS += [(way, "small", source) for way in SMALL for source in SOURCES]


@pytest.mark.few(1)
@pytest.mark.parametrize(("way", "size", "source"), thinned(PICKS, 5))
def test_a_lowering(way: str, size: str, source: str, tmp_path: Path, faults: list[str], request: Any) -> None:
    if size == "large":
        request.getfixturevalue("everything_is_large")
    model, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(layers(), model) if source == "one file" else write(model)
    options = {"verify": 1} | WAYS[way]
    if "report" in options:
        options["report"] = tmp_path / options["report"]
    rl.lower_file(model, out, verify=0)
    rl.lower_file(model, out, **options, overwrite=True)
    assert faults == []


def test_a_comparison_that_fails(tmp_path: Path, faults: list[str], everything_is_large: None) -> None:
    model, kept, out = write(tmp_path / "in.onnx"), tmp_path / "kept.onnx", tmp_path / "out.onnx"
    rl.lower_file(model, kept, verify=0)
    with pytest.raises(rl.VerificationError) as caught:
        rl.lower_file(model, out, tolerance=Tolerance(0, 0), keep_failed=kept, overwrite=True, verify=1)
    assert "it is kept" in str(caught.value)
    del caught
    assert faults == []


def test_a_stream(tmp_path: Path, faults: list[str]) -> None:
    onnx.save(parse(STREAMED), tmp_path / "in.onnx")
    for runs in (0, 1):
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", stream="time", verify=runs, overwrite=True)
    assert faults == []


def test_models_of_the_caller(tmp_path: Path, faults: list[str]) -> None:
    assert rl.verify(layers(), rl.lower(layers()), runs=1)
    path = write(tmp_path / "in.onnx")
    assert rl.verify(path, rl.lower(layers()), runs=1)
    assert faults == []


def test_what_is_held_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "held.bin"
    path.write_bytes(bytes(4096))
    assert held(str(path)) == []
    with path.open("rb"):
        assert held(str(tmp_path)) == [f"{path} open in this process"]
    array = np.memmap(path, mode="r")
    assert f"{path} mapped in this process" in held(str(path))
    del array
