"""A file is parsed once, and nodes are searched once in each model, whatever is done with them afterwards."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from chains import Link, chain
from texts import parse

import rnn_lowering as rl
from rnn_lowering.child import Child
from rnn_lowering.cli import command  # noqa: F401  # every module is to be counted
from rnn_lowering.compare import sizes
from rnn_lowering.compare.runs import of_original, runner
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model import scopes
from rnn_lowering.report import page  # noqa: F401

MODEL = chain(Link("LSTM", "first"), Link("GRU", "second"))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is parsed in this process, by name; what runs models parses them for itself."""
    counts: Counter[str] = Counter()
    load = onnx.load

    def counting(path: Any, *args: Any, **options: Any) -> onnx.ModelProto:
        model = load(path, *args, **options)
        counts[Path(path).name] += 1
        return model

    monkeypatch.setattr(onnx, "load", counting)
    monkeypatch.setattr(onnx, "load_model", counting)
    return counts


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many recurrent nodes each search found."""
    counts: list[int] = []
    search = scopes.recurrent_nodes

    def counting(model: Any) -> Any:
        found = list(search(model))
        counts.append(len(found))
        return iter(found)

    for module in list(sys.modules.values()):
        if getattr(module, "recurrent_nodes", None) is search:
            monkeypatch.setattr(module, "recurrent_nodes", counting)
    return counts


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "lowered"),
    [({"verify": 0}, 0), ({}, 1), ({"report": "done.json"}, 1), ({"report": "page.html"}, 1)],
    ids=["unverified", "verified", "json", "html"],
)
def test_a_file_is_parsed_once(tmp_path: Path, parsed: Counter[str], options: dict[str, Any], lowered: int) -> None:
    onnx.save(MODEL, tmp_path / "in.onnx")
    given = {name: tmp_path / value if name == "report" else value for name, value in options.items()}
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", **given)
    assert (parsed["in.onnx"], parsed["out.onnx"]) == (1, lowered)


@pytest.mark.few(2)
@pytest.mark.parametrize(("verify", "report", "made"), [(0, None, 1), (1, None, 1), (0, "page.html", 2)])
def test_a_file_becomes_a_model_when_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: int, report: str | None, made: int
) -> None:
    """The one that is lowered, and for a page the original, to be drawn."""
    models: list[Path] = []
    new_model = ModelSource.new_model

    def counting(source: ModelSource) -> ir.Model:
        models.append(source.path)
        return new_model(source)

    monkeypatch.setattr(ModelSource, "new_model", counting)
    onnx.save(MODEL, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=verify, report=report and tmp_path / report)
    assert len(models) == made


@pytest.mark.few(1)
@pytest.mark.parametrize("report", [None, "done.json", "page.html"])
def test_nodes_are_searched_once_in_each_model(tmp_path: Path, searched: list[int], report: str | None) -> None:
    """By what lowers, and by what verifies: it does not believe what lowers."""
    onnx.save(MODEL, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", report=report and tmp_path / report)
    assert sorted(searched) == [2, 2]


def test_a_comparison_asks_once_what_a_model_does_with_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[onnx.GraphProto] = []
    uses_of = sizes.uses_of

    def counting(graph: onnx.GraphProto) -> sizes.Uses:
        asked.append(graph)
        return uses_of(graph)

    monkeypatch.setattr(of_original, "uses_of", counting)
    onnx.save(MODEL, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert len(asked) == 1


def test_a_page_is_made_by_the_process_of_the_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []

    class Counted(Child):
        def __init__(self, module: str) -> None:
            started.append(self)
            super().__init__(module)

    monkeypatch.setattr(runner, "Child", Counted)
    onnx.save(MODEL, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", report=tmp_path / "page.html", verify=1)
    assert "Absolute error of Y" in (tmp_path / "page.html").read_text()
    assert len(started) == 1


def test_models_in_memory_are_not_parsed(parsed: Counter[str]) -> None:
    assert rl.verify(MODEL, rl.lower(MODEL), runs=1)
    assert not parsed


OPEN = """
main (float[batch,time,3] X) => (float[batch,time,4] Z)
<float[1,16,3] W = {}, float[1,16,4] R = {}, int64[1] one = {1}> {
    x = Transpose <perm=[1,0,2]> (X)
    [first] Y, last = LSTM <hidden_size=4> (x, W, R)
    y = Squeeze (Y, one)
    Z = Transpose <perm=[1,0,2]> (y)
}
"""


@pytest.mark.parametrize("options", [{"target": "tvm", "dims": {"batch": 2, "time": 6}}, {"to": "loop"}], ids=str)
def test_a_model_is_prepared_once(tmp_path: Path, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what lowers; the comparison gets it."""
    done: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            done[name] += 1
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, counted)

    count(ir.Model, "clone")
    count(onnx.checker, "check_model")
    count(onnx.shape_inference, "infer_shapes")
    onnx.save(parse(OPEN), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", **options)
    assert report.verification
    assert report.verification.nodes
    assert done.keys() >= {"check_model", "infer_shapes"}
    assert max(done.values()) <= 4, done
