"""The JSON report: its fields are those that docs/report.md describes, always all of them, of the documented
types."""

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Case, model
from chains import Link, chain
from commands import saved
from one_process import run_workers_here
from paths import ROOT
from texts import parse

import rnn_lowering as rl
from rnn_lowering.recurrence import cells
from rnn_lowering.report.use import Port, host_code, host_loop

DOCUMENT = ROOT / "docs" / "report.md"
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}
OPEN = {"operators.before", "operators.after"}
OPEN |= {f"stream.{name}" for name in ("inputs", "outputs", "rates", "delay", "short")} | {"quantization.snr"}
"""Objects whose keys are names."""

RAGGED = Case("report", "LSTM", x="symbolic", H=2, optional=("B", "sequence_lens"))
AFFINE = Link("RNN", "affine", {"activations": ["Affine"], "activation_alpha": [0.5]})

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


def documented() -> dict[str, list[str]]:
    """The types of each field of the document; `files.*` stands for both files."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {
        field.replace("files.*", f"files.{file}"): types.strip().split(" or ")
        for field, types in rows
        for file in ("before", "after")
    }


def emitted(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a report with its value: `[]` for entries of a list that are no objects, `*` for operators."""
    if path and not (path.endswith("[]") and isinstance(data, dict)):
        yield path, data
    if isinstance(data, dict):
        for key, value in data.items():
            name = "*" if path in OPEN else key
            yield from emitted(value, f"{path}.{name}" if path else name)
    elif isinstance(data, list):
        for value in data:
            yield from emitted(value, f"{path}[]")


def without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lowered RNN nodes compute NaN."""
    good = cells.STEPS["RNN"]

    def rnn(op: Any, k: Any, state: Any, x: Any) -> Any:
        return [s * op.constant(np.nan) for s in good(op, k, state, x)]

    monkeypatch.setitem(cells.STEPS, "RNN", rnn)


REPEATED = parse("""g (float[2] a) => (float[2] b) <bool yes = {1}, int64 M = {3}> {
    b = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        s1 = Add (s, s) c1 = Identity (c) }> }""")

FRAMES = np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)
GRID = np.random.default_rng(0).standard_normal((1, 5, 2, 2)).astype(np.float32)
SCENARIOS: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
    "verified": (model(RAGGED, 17), {"verify": 3}),
    "a stream": (chain(Link("LSTM", "stepped")), {"stream": "seq"}),
    "a stream in integers": (
        chain(Link("LSTM", "stepped")),
        {"stream": "seq=1", "dims": {"batch": 1}, "calibrate": [{"X": FRAMES}], "bits": "w8a16"},
    ),
    "a stream in integers and floats": (
        parse(
            """g (float[1,time,2,2] x) => (float[1,time,2,2] y)
            <float[2,2] K = {1,2,3,-1}, float[2,2] S = {1,1,2,2}> {
            h = MatMul (x, K) y = LayerNormalization <axis = 2> (h, S, S) }"""
        ),
        {"stream": "time=1", "calibrate": [{"x": GRID}]},
    ),
    "a stream that is late": (
        parse("g (float[1,2,time] x) => (float[1,2,t] y) <float[2,2,3] K = {}> { y = Conv (x, K) }"),
        {"stream": "time", "delay": True},
    ),
    "a stream of ragged rows": (
        parse(
            """g (float[time,2,3] x, int32[2] lens) => (float[time,1,2,4] y)
            <float[1,4,3] W = {}, float[1,4,4] R = {}> { y = RNN <hidden_size = 4> (x, W, R, "", lens) }"""
        ),
        {"stream": "time"},
    ),
    "node by node": (
        model(Case("report_layout", "GRU", {"layout": 1}, optional=("sequence_lens",)), 17),
        {"verify": 3},
    ),
    "warned, one left": (chain(AFFINE, Link("GRU", "kept")), {"only": ["RNN"]}),
    "brought to another opset, with a data file": (model(Case("report_old", "LSTM", H=16), 6), {}),
    "failed": (chain(Link("RNN", "wrong")), {"keep_failed": "kept.onnx"}),
    "not verified": (chain(Link("RNN", "unchecked")), {"verify": 0}),
    "set": (parse("g (float[n] a, float[1] s) => (float[n] b) { b = Mul (a, s) }"), {"set_inputs": {"s": 2.0}}),
    "an unrolled Loop": (REPEATED, {"to": "unroll", "lower_loops": True}),
    "a Scan of a Loop": (REPEATED, {"to": "scan", "lower_loops": True}),
    "not supported": (
        parse("g (float[2,2] a) => (float b) { b = Det (a) }"),
        {"target": "tract"},
    ),
    "replaced": (
        parse("g (float[3,1] a, int64[1] n) => (float[3,1] b) { b = ReverseSequence (a, n) }"),
        {"target": "tract"},
    ),
    "in its target": (chain(AFFINE), {"target": "onnxruntime", "run_in_target": True}),
    "nothing to lower": (parse("g (float[n] a) => (float[n] b) { b = Relu (a) }"), {}),
}


Reports = dict[str, tuple[Path, dict[str, Any]]]
"""By scenario the folder, and what the report there says."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    made = {}
    for name in SCENARIOS:
        folder = tmp_path_factory.mktemp("report")
        with pytest.MonkeyPatch.context() as patch:
            run_workers_here(patch)
            made[name] = folder, report(folder, name, patch)
    return made


def report(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    proto, options = SCENARIOS[name]
    with_data = "data file" in name
    own = deepcopy(proto)  # saving moves its numbers to the data file
    onnx.save_model(own, folder / "in.onnx", save_as_external_data=with_data, location="w.bin", size_threshold=0)
    if name == "failed":
        without_numbers(monkeypatch)
        options = {**options, "keep_failed": folder / options["keep_failed"]}
    try:
        rl.lower_file(
            folder / "in.onnx", folder / "out.onnx", report=folder / "report.json", **{"verify": 1, **options}
        )
    except rl.VerificationError:
        assert name == "failed"
    data: dict[str, Any] = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    return data


def test_every_field_is_documented(reports: Reports) -> None:
    fields = documented()
    for _, data in reports.values():
        for field, value in emitted(data):
            assert field in fields
            assert any(TYPES[kind](value) for kind in fields[field]), (field, value)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_documented_field_is_there(name: str, reports: Reports) -> None:
    fields, (_, data) = documented(), reports[name]
    assert data.keys() == {field for field in fields if re.fullmatch(r"\w+", field)}
    for path, value in emitted(data):
        for one, place in [(v, f"{path}[]") for v in value] if isinstance(value, list) else [(value, path)]:
            wanted = {f[len(place) + 1 :] for f in fields if re.fullmatch(rf"{re.escape(place)}\.\w+", f)}
            assert one is None or not wanted or one.keys() == wanted, place


def test_the_scenarios_emit_every_field_and_type(reports: Reports) -> None:
    found: dict[str, list[Any]] = {}
    for _, data in reports.values():
        for field, value in emitted(data):
            found.setdefault(field, []).append(value)
    assert found.keys() == documented().keys()
    for field in ("nodes[].seq_length", "verification.each_run[].inputs[].lengths"):
        assert any(value is None for value in found[field]), field
        assert any(value is not None for value in found[field]), field
    assert set(found["verification.status"]) == {"verified", "failed", "unchanged", "not compared"}
    assert set(found["schema"]) == {1}
    assert set(found["version"]) == {rl.__version__}


def test_nothing_to_lower_is_nothing_to_compare(reports: Reports) -> None:
    verification = reports["nothing to lower"][1]["verification"]
    assert (verification["status"], verification["runs"]) == ("unchanged", 0)
    assert verification["reason"] == "nothing was lowered: the result is the original"


def test_the_files(reports: Reports) -> None:
    folder, files = reports["verified"][0], reports["verified"][1]["files"]
    for when, name in (("before", "in.onnx"), ("after", "out.onnx")):
        assert files[when]["name"] == name
        assert files[when]["bytes"] == (folder / name).stat().st_size
        assert files[when]["opset"] == 17
        assert files[when]["inputs"] == [
            {"name": "X", "dtype": "float32", "shape": ["seq", "batch", 2]},
            {"name": "sequence_lens", "dtype": "int32", "shape": ["batch"]},
        ]
        assert [port["name"] for port in files[when]["outputs"]] == ["Y", "Y_h", "Y_c"]


def test_the_files_with_external_data(tmp_path: Path) -> None:
    proto = model(replace(RAGGED, H=16), 17)
    onnx.save_model(proto, tmp_path / "in.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    done = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0)
    for file, data in ((done.original, "w.bin"), (done.lowered, "out.onnx.data")):
        assert file.bytes == (tmp_path / file.name).stat().st_size + (tmp_path / data).stat().st_size


def test_each_run(reports: Reports) -> None:
    check = reports["verified"][1]["verification"]
    assert len(check["each_run"]) == check["runs"] == 3
    shapes = set()
    for run in check["each_run"]:
        x, lengths = run["inputs"]
        assert (x["name"], x["lengths"], lengths["name"]) == ("X", None, "sequence_lens")
        T, N, _ = x["shape"]
        least, greatest = lengths["lengths"]
        assert lengths["shape"] == [N]
        assert 1 <= least <= greatest == T
        shapes.add((T, N))
        assert [output["name"] for output in run["outputs"]] == ["Y", "Y_h", "Y_c"]
    assert len(shapes) == 3
    for n, output in enumerate(check["outputs"]):
        assert output["max_abs"] == max(run["outputs"][n]["max_abs"] for run in check["each_run"])
    assert [node["name"][:3] for node in check["nodes"]] == ["Y o", "Y_h", "Y_c"]
    assert all(node["passed"] and 0 <= node["max_abs"] < 1e-5 for node in check["nodes"])


def test_each_run_node_by_node(reports: Reports) -> None:
    check = reports["node by node"][1]["verification"]
    assert check["method"] == "each node against float64 NumPy"
    assert check["nodes"] == check["outputs"]
    assert len(check["each_run"]) == 3
    x, lengths = check["each_run"][0]["inputs"]
    assert x["name"] == "X of GRU node 'recurrent' in main graph"
    assert lengths["lengths"] == [0, x["shape"][1]]  # layout 1: [batch, seq, input]


def test_what_is_infinite_is_null(reports: Reports) -> None:
    folder, data = reports["failed"]
    assert data["verification"]["status"] == "failed"
    (output,) = data["verification"]["outputs"]
    assert (output["max_abs"], output["passed"]) == (None, False)
    assert "NaN" in output["reason"]
    assert data["files"]["after"]["name"] == "out.onnx"
    assert not (folder / "out.onnx").exists()
    assert data["written"] is False
    assert (folder / data["kept"]).exists()
    assert reports["verified"][1]["written"] is True
    assert reports["verified"][1]["kept"] == ""


def test_a_stream_without_states_has_no_dictionary_of_them() -> None:
    original = parse("g (float[T,2] X) => (float[T,2] Y) { Y = Tanh (X) }")
    with pytest.warns(rl.RnnLoweringWarning, match="no state is carried"):
        plan = rl.lower(original, stream="T=1", full=True)[1].stream
    assert plan is not None
    inputs, outputs = [Port("X", "float32", (1, 2))], [Port("Y", "float32", (1, 2))]
    code = "\n".join(host_code(plan, inputs, outputs) or ())
    assert "states" not in host_loop(plan, "tract") + code
    found: dict[str, Any] = {"run": lambda feed: [np.tanh(feed["X"])], "np": np}
    exec(code, found)
    assert found["outputs"]["Y"].shape == (1, 2)


def test_what_onnxruntime_has_no_kernel_for_is_not_run_in_it(tmp_path: Path) -> None:
    nodes = "{ Z = my.Foo (X), Y = RNN <hidden_size = 4> (Z, W, R) }"
    weights = "<float[1,4,3] W = {}, float[1,4,4] R = {}>"
    original = parse(f"g (float[seq,2,3] X) => (float[seq,1,2,4] Y) {weights} {nodes}", domains=', "my": 1')
    report = rl.lower_file(saved(tmp_path / "in.onnx", original), tmp_path / "out.onnx", verify=1)
    assert report.verification.status == "verified"
    assert "run it" not in str(report)
