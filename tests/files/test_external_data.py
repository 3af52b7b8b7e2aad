"""Model files: external data in and out, files that cannot be read or written, data paths that leave the folder."""

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_files import LAYERS, layers, relocate, results_of, state, write
from onnx import TensorProto, helper, numpy_helper
from paths import ROOT
from running import assert_close, recurrent_left, run
from texts import FORMS, graphs, parse, random_feed
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.files import external_data

INLINE_BYTES = 256


def external(path: Path) -> dict[str, dict[str, str]]:
    """The external tensors of a file, in any scope, with what they say of their data."""
    tensors = [t for graph in graphs(onnx.load(path, load_external_data=False)) for t in graph.initializer]
    outside = [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]
    return {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in outside}


def locations(path: Path) -> set[str]:
    return {entries["location"] for entries in external(path).values()}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """A model with external data in a folder of its own, which must be as it was afterwards."""
    path = write(tmp_path / "source" / "in.onnx")
    before = state(path.parent)
    yield path
    assert {name: h for name, h in state(path.parent).items() if name in before} == before


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.onnx"


def assert_right(path: Path) -> None:
    assert recurrent_left(onnx.load(path, load_external_data=False)) == []
    assert_close(results_of(path), run(layers(), random_feed(layers())))


def assert_verified(report: rl.FileReport, path: Path) -> None:
    assert report.verification
    assert_right(path)


# Where tensors go


POLICIES = [
    ("auto", True, "out.onnx.data"),
    ("auto", False, None),
    ("always", True, "out.onnx.data"),
    ("always", False, "out.onnx.data"),
    ("never", True, None),
    ("never", False, None),
    ("big.bin", True, "big.bin"),
    ("big.bin", False, "big.bin"),
    ("weights.bin", True, "weights.bin"),
]


@pytest.mark.few(14)
@pytest.mark.parametrize(("policy", "has_data", "data"), POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_where_tensors_go(
    policy: str, has_data: bool, data: str | None, form: Any, source: Path, out: Path, tmp_path: Path
) -> None:
    """The output is complete in itself: it is right in another place, without the input."""
    given = source
    if not has_data:
        given = tmp_path / "inline.onnx"
        onnx.save(layers(), given)
    rl.lower_file(given, out, form, verify=0, external_data=policy)
    assert set(state(out.parent)) == {"out.onnx", *([data] if data else [])}
    assert locations(out) == ({data} if data else set())
    out.parent.rename(tmp_path / "moved")
    hidden = source.parent.rename(tmp_path / "hidden")
    assert_right(tmp_path / "moved" / "out.onnx")
    hidden.rename(source.parent)


def test_no_data_file_is_written_where_all_tensors_are_small(tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(
        parse("""g (float[3, 1, 2] X) => (float[3, 1, 1, 1] Y)
            <float[1, 1, 2] W = {0.5, 0.25}, float[1, 1, 1] R = {0.5}> { Y = RNN <hidden_size = 1> (X, W, R) }"""),
        source,
    )
    for _ in range(2):
        rl.lower_file(source, out, external_data="always", overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"in.onnx", "out.onnx"}


@pytest.mark.parametrize("form", FORMS)
def test_large_tensors_are_outside_in_bodies_too_and_small_ones_inside(form: Any, source: Path, out: Path) -> None:
    rl.lower_file(source, out, form, verify=0)
    outside, (main, *bodies) = external(out), graphs(onnx.load(out))
    sizes = {tensor.name: len(tensor.raw_data) for graph in (main, *bodies) for tensor in graph.initializer}
    assert {name for name, size in sizes.items() if size > INLINE_BYTES} == set(outside)
    assert {"one", "odd"} <= sizes.keys() - outside.keys()
    inside = {tensor.name for graph in bodies for tensor in graph.initializer} & outside.keys()
    assert len(inside) == (0 if form == "unroll" else 3)  # R of the LSTM, two parts of R of the GRU
    spans = [(int(entries["offset"]), int(entries["length"])) for entries in outside.values()]
    assert all(first[0] + first[1] <= second[0] for first, second in pairwise(sorted(spans)))
    assert max(map(sum, spans)) <= out.with_name("out.onnx.data").stat().st_size


def test_a_model_without_recurrent_nodes_takes_its_data_along(out: Path, tmp_path: Path) -> None:
    text = LAYERS.replace("LSTM <hidden_size=16> (X, W, R, B)", "Identity(V)").replace("float[6,1,2,16] Y", "Y")
    plain = parse(text[: text.index("    y =")].replace(", float[6,1,2,16] Z", "") + "}")
    (tmp_path / "source").mkdir()
    onnx.save(plain, tmp_path / "source" / "in.onnx", save_as_external_data=True, location="d", size_threshold=0)
    rl.lower_file(tmp_path / "source" / "in.onnx", out)
    assert locations(out) == {"out.onnx.data"}
    loaded = onnx.load(out)
    assert sorted(t.name for t in loaded.graph.initializer) == sorted(t.name for t in plain.graph.initializer)


def test_beside_the_input(source: Path) -> None:
    out = source.with_name("out.onnx")
    assert_verified(rl.lower_file(source, out, verify=2), out)
    assert set(state(source.parent)) == {"in.onnx", "weights.bin", "out.onnx", "out.onnx.data"}


def test_a_node_whose_constant_is_external(tmp_path: Path, out: Path) -> None:
    text = LAYERS.replace(", float[1,64,16] R = {}", "")
    constants = "R = Constant <value = float[1,64,16] {}> () other = Constant <value = float[20,20] {}> ()"
    model = parse(text.replace("    [lstm]", f"    {constants} [lstm]"))
    path = tmp_path / "in.onnx"
    onnx.save(model, path, save_as_external_data=True, location="all.bin", size_threshold=0, convert_attribute=True)
    rl.lower_file(path, out, verify=0)
    feed = random_feed(model)
    assert_close(run(onnx.load(out), feed), run(onnx.load(path), feed))


NAMES = ["", ".", "..", "a/b", "/tmp/x", "sub/", "out.onnx", "a\0b", "n" * 300]


@pytest.mark.parametrize("name", NAMES, ids=lambda p: ascii(p)[:30])
def test_a_name_that_is_no_file_beside_the_output_is_refused(name: str, source: Path, out: Path) -> None:
    with pytest.raises(rl.RnnLoweringError):
        rl.lower_file(source, out, verify=0, external_data=name)
    assert state(out.parent) == {}
    assert set(state(source.parent)) == {"in.onnx", "weights.bin"}


@pytest.mark.few(2)
@pytest.mark.parametrize("beside", [False, True], ids=["elsewhere", "beside"])
@pytest.mark.parametrize("policy", ["auto", "never"])
def test_links_to_model_and_data(policy: str, beside: bool, tmp_path: Path, out: Path) -> None:
    """As in the cache of Hugging Face: snapshots/main/model.onnx -> ../../blobs/<hash>, and its data so, too."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in sorted(write(tmp_path / "made" / "model.onnx", "model.onnx_data").parent.iterdir()):
        blob = path.rename(blobs / hashlib.sha256(path.name.encode()).hexdigest())
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    before, target = state(tmp_path / "hub"), snapshot / "out.onnx" if beside else out
    assert_verified(rl.lower_file(snapshot / "model.onnx", target, verify=1, external_data=policy), target)
    assert {name: h for name, h in state(tmp_path / "hub").items() if name in before} == before


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_links_in_shared_memory(out: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        test_links_to_model_and_data("auto", False, Path(folder), out)


# Files that cannot be read


def folder_instead(data: Path) -> None:
    data.unlink()
    data.mkdir()


def loop_of_links(data: Path) -> None:
    data.unlink()
    data.symlink_to(data.name)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "cut in half": lambda data: os.truncate(data, data.stat().st_size // 2),
    "empty": lambda data: os.truncate(data, 0),
    "a folder": folder_instead,
    "a loop of links": loop_of_links,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("policy", ["auto", "never"])
def test_data_that_is_missing_or_short(damage: str, policy: str, tmp_path: Path, out: Path) -> None:
    path = write(tmp_path / "source" / "in.onnx")
    DAMAGES[damage](path.with_name("weights.bin"))
    words = "" if "loop" in damage else "(missing|too short)"
    for call in (lambda: rl.lower_file(path, out, verify=0, external_data=policy), lambda: rl.inspect(path)):
        with pytest.raises(rl.ModelFileError, match=rf"weights\.bin.*{words}"):
            call()
    assert state(out.parent) == {}


@pytest.mark.parametrize(
    "entry", [{"offset": 10**9}, {"length": 7}, {"length": 0}, {"offset": 10**20}, {"length": 10**20}], ids=str
)
def test_offsets_and_lengths_that_cannot_be(entry: dict[str, int], tmp_path: Path, out: Path) -> None:
    path = write(tmp_path / "source" / "in.onnx")
    relocate(path, "weights.bin", **entry)
    try:
        rl.lower_file(path, out, verify=0)
    except rl.ModelFileError:
        assert state(out.parent) == {}
        return
    assert entry == {"length": 0}  # read as: not given
    assert_right(out)


@pytest.mark.few(12)
@pytest.mark.parametrize("value", ["-1", "x", "", "1.5", "\u0663", " 7"])
@pytest.mark.parametrize("key", ["offset", "length", "location", "unknown"])
@pytest.mark.filterwarnings("ignore:Ignoring unknown external data")
def test_entries_that_cannot_be(key: str, value: str, tmp_path: Path, out: Path) -> None:
    path = write(tmp_path / "source" / "in.onnx")
    model = onnx.load(path, load_external_data=False)
    (entry,) = [e for e in model.graph.initializer[0].external_data if e.key == key] or [
        model.graph.initializer[0].external_data.add(key=key)
    ]
    entry.value = value
    path.write_bytes(model.SerializeToString())
    said = ""
    try:
        rl.lower_file(path, out, verify=0)
    except rl.RnnLoweringError as error:
        said = str(error)
        assert state(out.parent) == {}
    assert "lambda" not in said


def test_models_in_memory(source: Path) -> None:
    """Those of onnx_ir read their data themselves; a message without its data is refused."""
    lowered = ir.to_proto(rl.lower(ir.load(source)))
    assert_close(run(lowered, random_feed(layers())), run(layers(), random_feed(layers())))
    with pytest.raises(rl.RnnLoweringError, match=r"weights\.bin"):
        rl.lower(onnx.load(source, load_external_data=False))


# Files that cannot be written


@pytest.fixture
def existing(out: Path) -> Iterator[Path]:
    """An earlier output with data, which must be kept."""
    out.write_bytes(b"earlier model")
    out.with_name("out.onnx.data").write_bytes(b"earlier data")
    before = state(out.parent)
    yield out
    assert state(out.parent) == before


@pytest.mark.every_pair
@pytest.mark.parametrize("policy", ["auto", "never"])
@pytest.mark.parametrize(
    ("module", "name", "error"),
    [(onnx, "save", errno.ENOSPC), (os, "replace", errno.EACCES)],
    ids=["full", "no"],
)
def test_an_error_of_the_writer(
    module: Any, name: str, error: int, policy: str, source: Path, existing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(rl.ModelFileError, match=os.strerror(error)):
        rl.lower_file(source, existing, overwrite=True, verify=0, external_data=policy)


CHILD = """
import resource, sys
from rnn_lowering.libraries import load_late
load_late()
import rnn_lowering as rl
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    rl.lower_file(sys.argv[1], sys.argv[2], overwrite=True, verify=0)
except rl.ModelFileError as error:
    sys.exit(f"refused: {error}")
"""


def test_files_that_may_not_grow(source: Path, existing: Path) -> None:
    # -B: bytecode would be cut off, too, and break later imports
    command = [sys.executable, "-B", "-c", CHILD, str(source), str(existing)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "refused: cannot write" in done.stderr


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
def test_an_interrupted_write(error: type[BaseException], source: Path, existing: Path) -> None:
    def progress(_: str, done: int, total: int) -> None:
        if done == 2:
            raise error

    with pytest.raises((error, rl.RnnLoweringError)):
        rl.lower_file(source, existing, overwrite=True, verify=0, progress=progress)


# Data that leave the folder


OUTSIDE = ["../weights.bin", "sub/../../weights.bin", "{absolute}"]
"""They lead to the data."""
STRANGE = [
    "./../weights.bin",
    "sub/./.././../weights.bin",
    "..",
    "//{absolute}",
    "..\\weights.bin",
    "C:\\weights.bin",
    "C:/weights.bin",
    "\\\\server\\share\\weights.bin",
    "//server/share/weights.bin",
    "file:///{absolute}",
    "~/weights.bin",
    "$HOME/weights.bin",
    "weights.bin\0.txt",
    "\0",
    "w" * 5000,
    "/".join("w" * 3000),
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
]


@pytest.mark.few(10)
@pytest.mark.parametrize("location", [*OUTSIDE, *STRANGE], ids=lambda p: ascii(p)[:30])
def test_data_outside_the_folder_need_trust(location: str, tmp_path: Path, out: Path) -> None:
    path = write(tmp_path / "source" / "in.onnx")
    path.with_name("weights.bin").rename(tmp_path / "weights.bin")
    (path.parent / "sub").mkdir()
    relocate(path, location.format(absolute=tmp_path / "weights.bin"))
    for call in (lambda: rl.lower_file(path, out, verify=0), lambda: rl.inspect(path)):
        with pytest.raises(rl.ModelFileError):
            call()
    assert state(out.parent) == {}
    if location in OUTSIDE:
        rl.lower_file(path, out, verify=0, trust_external_data=True)
        assert locations(out) == {"out.onnx.data"}
        assert_right(out)


LEAVING_LINKS = {
    "a link": {"weights.bin": "../outside.bin"},
    "an absolute link": {"weights.bin": "{folder}/outside.bin"},
    "a chain of links": {"weights.bin": "second", "second": "../outside.bin"},
    "a link to a folder": {"there": ".."},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", LEAVING_LINKS)
def test_links_that_leave_the_folder_need_trust(kind: str, tmp_path: Path, out: Path) -> None:
    path = write(tmp_path / "source" / "in.onnx")
    path.with_name("weights.bin").rename(tmp_path / "outside.bin")
    for name, target in LEAVING_LINKS[kind].items():
        path.with_name(name).symlink_to(target.format(folder=tmp_path))
    if kind == "a link to a folder":
        relocate(path, "there/outside.bin")
    (tmp_path / "link.onnx").symlink_to(path)
    plain = tmp_path / "plain.onnx"
    onnx.save(layers(), plain)
    for call in (
        lambda: rl.lower_file(path, out, verify=0),
        lambda: rl.inspect(path),
        lambda: rl.verify(path, plain, runs=1),
        lambda: rl.verify(plain, path, runs=1),
    ):
        with pytest.raises(rl.ModelFileError, match="outside the model's folder"):
            call()
    assert state(out.parent) == {}
    assert_verified(rl.lower_file(path, out, verify=1, trust_external_data=True), out)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "location", ["sub/../weights.bin", "./weights.bin", "sub/deep/weights.bin", "there/weights.bin"]
)
def test_what_stays_in_the_folder_needs_none(location: str, tmp_path: Path, out: Path) -> None:
    path = write(tmp_path / "source" / "in.onnx")
    (path.parent / "sub" / "deep").mkdir(parents=True)
    path.with_name("there").symlink_to(".")
    if "deep" in location:
        path.with_name("weights.bin").rename(path.parent / location)
    relocate(path, location)
    assert_verified(rl.lower_file(path, out, verify=1), out)


# Memory


def peak_memory(gib: float, *options: str) -> float:
    """The MiB that the benchmark measures."""
    command = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), "--gib", str(gib), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("peak memory"))
    return float(line.split()[2])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "where", thinned([pytest.param([], id="external"), pytest.param(["--inline"], id="inline")], 2)
)
def test_memory_does_not_grow_with_the_model(where: list[str]) -> None:
    assert peak_memory(0.2, *where) - peak_memory(0.05, *where) < 150 / 3


# What operators read when a model is loaded stays in it


@pytest.mark.few(2)
@pytest.mark.parametrize("steps", [32, 33, 64, 1000])
@pytest.mark.parametrize("outside", [False, True], ids=["inline", "external"])
def test_sizes_of_many_steps_stay_in_the_model(steps: int, outside: bool, out: Path, tmp_path: Path) -> None:
    model = parse(
        f"""g (float[{steps}, 1, 2] X) => (float[{steps}, 1, 1, 16] Y)
        <float[1, 16, 2] W = {{}}, float[1, 16, 16] R = {{}}> {{ Y = RNN <hidden_size = 16> (X, W, R) }}"""
    )
    feed = random_feed(model)
    expected = run(model, feed)
    source = tmp_path / "in.onnx"
    onnx.save(model, source, save_as_external_data=outside, location="in.onnx.data", size_threshold=0)
    policy = "auto" if outside else "always"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rl.RnnLoweringWarning)  # many steps
        rl.lower_file(source, out, "unroll", external_data=policy, max_unroll=steps, verify=0)
    assert external(out)
    assert_close(run(out, feed), expected)


SIZES = f"{{{', '.join(['1'] * 40)}}}"

PARAMETERS = {
    "Split": ("int64[40] s = SIZES", f"{', '.join(f'v{n}' for n in range(40))} = Split (y, s)"),
    "SplitToSequence": (
        "int64[40] s = SIZES, int64 one = {1}",
        "q = SplitToSequence (y, s)  v0 = SequenceAt (q, one)",
    ),
    "a Split behind an Identity": (
        "int64[40] s = SIZES",
        f"t = Identity (s)  {', '.join(f'v{n}' for n in range(40))} = Split (y, t)",
    ),
    "a Split in a branch": (
        "int64[40] s = SIZES, bool yes = {1}",
        f"""v0 = If (yes) <then_branch = t () => (v) {{ {", ".join(f"b{n}" for n in range(40))} = Split (y, s)
            v = Neg (b0) }}, else_branch = e () => (w) {{ w = Neg (y) }}>""",
    ),
    "a Split in a body": (
        "int64 trips = {2}, bool yes = {1}",
        f"""v0 = Loop (trips, yes, y) <body = b (int64 i, bool c, float[a, b, d] u) => (bool c2, float[a, b, d] z)
            <int64[40] s = SIZES> {{ c2 = Identity (c)
            {", ".join(f"b{n}" for n in range(40))} = Split <axis = 0> (u, s)
            z = Concat <axis = 0> ({", ".join(f"b{n}" for n in reversed(range(40)))}) }}>""",
    ),
    "a Split in a function": ("int64[40] s = SIZES", "v0 = local.first (y, s)"),
    "Reshape": ("int64[2] s = {-1, 4}", "v0 = Reshape (y, s)"),
    "Slice": ("int32[1] a = {1}, int32[1] b = {9}", "v0 = Slice (y, a, b)"),
    "Pad": ("int64[6] s = {0, 0, 1, 0, 0, 2}", "v0 = Pad (y, s)"),
    "Tile": ("int64[3] s = {2, 1, 1}", "v0 = Tile (y, s)"),
    "Expand": ("int64[3] s = {40, 3, 4}", "v0 = Expand (y, s)"),
    "Resize": ("float[3] s = {2, 1, 1}", "v0 = Resize (y, , s)"),
    "TopK": ("int64[1] s = {3}", "v0, unused = TopK (y, s)"),
    "ConstantOfShape": ("int64[1] s = {4}", "z = ConstantOfShape (s)  v0 = Sub (y, z)"),
    "Range": ("float a = {0}, float b = {4}, float c = {1}", "z = Range (a, b, c)  v0 = Sub (y, z)"),
    "ReduceSum": ("int64[1] s = {1}", "v0 = ReduceSum (y, s)"),
}
FIRST = f"""<domain: "local", opset_import: ["": 17]> first (y, s) => (b0)
    {{ {", ".join(f"b{n}" for n in range(40))} = Split (y, s) }}"""


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("outside", [False, True], ids=["inline", "external"])
def test_parameters_stay_in_the_model(name: str, outside: bool, out: Path, tmp_path: Path) -> None:
    """onnxruntime does not load an original whose parameters are in a data file; it is compared all the same."""
    tensors, nodes = (text.replace("SIZES", SIZES) for text in PARAMETERS[name])
    model = parse(
        f"""main (float[40, 1, 4] X) => (v0) <float[1, 16, 4] W = {{}}, float[1, 16, 4] R = {{}},
        int64[1] axis = {{1}}, {tensors}> {{ Y = LSTM <hidden_size = 4> (X, W, R)  y = Squeeze (Y, axis)  {nodes} }}
        {FIRST}""",
        domains=', "local": 1',
    )
    for tensor in (t for graph in graphs(model) for t in graph.initializer):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    feed = random_feed(model)
    expected = run(model, feed)
    source = tmp_path / "in.onnx"
    onnx.save(model, source, save_as_external_data=outside, location="in.onnx.data", size_threshold=0)
    report = rl.lower_file(source, out, external_data="always", verify=1)
    assert report.verification is not None
    assert report.verification.whole, report.verification.reason
    assert_close(run(out, feed), expected)


def test_texts_stay_in_the_model(out: Path, tmp_path: Path) -> None:
    """onnxruntime reads none from a data file."""
    words: list[Any] = [b"a word of some length"] * 40
    graph = helper.make_graph(
        [helper.make_node("Identity", ["words"], ["Y"])],
        "main",
        [],
        [helper.make_tensor_value_info("Y", TensorProto.STRING, [40])],
        [helper.make_tensor("words", TensorProto.STRING, [40], words)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", out, external_data="always")
    assert run(out, {})["Y"][0] == words[0].decode()


def test_a_model_that_does_not_load_is_no_matter_of_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its sizes were in the data file."""
    monkeypatch.setattr(external_data, "is_parameter", lambda *_: False)
    model = parse(
        """g (float[40, 1, 2] X) => (float[40, 1, 1, 16] Y)
        <float[1, 16, 2] W = {}, float[1, 16, 16] R = {}> { Y = RNN <hidden_size = 16> (X, W, R) }"""
    )
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.raises(rl.VerificationError, match="cannot run the lowered model") as caught:
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", "unroll", external_data="always", verify=1)
    assert "tolerance" not in caught.value.hint
    assert "report it" in caught.value.hint
    assert not (tmp_path / "out.onnx").exists()


def test_parameters_that_do_not_fit_into_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller ones stay in the model."""
    monkeypatch.setattr(external_data, "_INLINE_LIMIT", 1000)
    sizes = {"few": 33, "more": 80, "most": 120}
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"Y_{name}"]) for name in sizes],
        "main",
        [],
        [helper.make_tensor_value_info(f"Y_{name}", TensorProto.INT64, [size]) for name, size in sizes.items()],
        [numpy_helper.from_array(np.arange(size), name) for name, size in sizes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", external_data="always")
    assert external(tmp_path / "out.onnx").keys() == {"most"}
    assert_close(run(tmp_path / "out.onnx", {}), run(model, {}))
