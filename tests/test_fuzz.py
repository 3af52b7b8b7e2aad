"""`python -m fuzz`: each kind finds nothing in so many cases; what a search finds is made small and kept."""

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from one_process import Kept
from onnx import TensorProto, helper, numpy_helper
from running import nodes
from thinning import exhaustive

import fuzz
import rnn_lowering as rl
from fuzz import campaign, kinds
from fuzz.__main__ import main, smaller
from fuzz.campaign import Counts, Found, search
from fuzz.case import agreed
from fuzz.planting import planted
from fuzz.script import script
from fuzz.worker import case_of, judged, kind_of

FAKES = "support.fuzz_fakes"
SEED = 0
FIRST = {"attention": 5}
"""Cases of a kind in the default run: the first that have a comparison among them; 3 of the others."""


def parts() -> list[Any]:
    """Of each kind the first cases, and the others, which repeat what these guarantee."""
    found = []
    for kind in kinds.NAMES:
        first, cases = FIRST.get(kind, 3), kind_of(kind).CASES
        found.append((kind, 0, min(first, cases)))
        if cases > first:
            found.append(exhaustive((kind, first, cases - first)))
    return found


@pytest.fixture(autouse=True)
def kept_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process judges all kinds, since starting Python takes as long as some cases."""
    monkeypatch.setattr(campaign, "Child", Kept)


@pytest.mark.few(3)
@pytest.mark.long
@pytest.mark.parametrize(("kind", "first", "cases"), parts())
def test_nothing_is_found(kind: str, first: int, cases: int) -> None:
    counts = Counts()
    found = list(search(kind, SEED, counts, lambda counts: counts.cases < cases, first))
    assert {f"{f.number}: {f.outcome.what}": f.outcome.detail for f in found} == {}, counts.text()
    assert counts.comparisons > cases // 10
    assert counts.outcomes["invalid"] <= cases // 4, counts.text()


@pytest.mark.parametrize("name", [".github/workflows/nightly.yml", "docs/architecture.md"])
def test_each_kind_runs_at_night_and_is_documented(name: str) -> None:
    text = (fuzz.ROOT / name).read_text(encoding="utf-8")
    assert [kind for kind in kinds.NAMES if not re.search(rf"\b{kind}\b", text)] == []


@pytest.mark.parametrize("kind", kinds.NAMES)
def test_a_case_follows_from_its_number(kind: str) -> None:
    first, second = (kind_of(kind).generate(random.Random("0/3")) for _ in range(2))
    assert first == second


@pytest.fixture(scope="module")
def fakes() -> tuple[Counts, list[Found]]:
    """What a search finds whose judge fails at Tanh, and whose process ends at Exp."""
    counts = Counts()
    return counts, list(search(FAKES, SEED, counts, lambda counts: counts.cases < 8))


def of(fakes: tuple[Counts, list[Found]], op_type: str) -> Found:
    return next(f for f in fakes[1] if op_type in {node.op_type for node in f.case.model.graph.node})


def test_a_crash_is_found_and_the_search_goes_on(fakes: tuple[Counts, list[Found]]) -> None:
    counts, found = fakes
    assert counts.cases == 8
    assert counts.faults == {"tanh": 3, "the process died (exit 3)": 2}
    assert all(f.case.model.graph.node for f in found)


@pytest.mark.parametrize("op_type", ["Tanh", exhaustive("Exp")])
def test_what_is_found_is_reduced(fakes: tuple[Counts, list[Found]], op_type: str) -> None:
    small = smaller(of(fakes, op_type))
    assert [node.op_type for node in small.case.model.graph.node] == [op_type]
    assert len(small.case.model.graph.output) == 1
    assert small.outcome.what == of(fakes, op_type).outcome.what


def test_a_script_builds_the_model() -> None:
    """Those of the kinds have bodies, functions and all types."""
    for kind in (FAKES, *kinds.NAMES):
        for number in range(6):
            case = kind_of(kind).generate(random.Random(f"0/{number}"))
            held = {"__name__": "script"}
            exec(script(Found(kind, SEED, number, case, agreed(0))), held)
            assert (held["MODEL"], held["OPTIONS"]) == (case.model, case.options)


def test_a_script_judges_the_model(fakes: tuple[Counts, list[Found]], tmp_path: Path) -> None:
    each = of(fakes, "Tanh")
    path = tmp_path / "found.py"
    path.write_text(script(each), encoding="utf-8")
    root = Path(kinds.__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'tests'}"}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment)
    assert "what='tanh'" in done.stdout, done.stderr


def test_without_the_test_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(SystemExit):
        main(["streams", "--cases", "1"])
    assert 'the search needs pytest: pip install -e ".[test]"' in capsys.readouterr().err


def test_the_command_says_what_was_searched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["streams", "--seed", "0", "--cases", "3", "--found", str(tmp_path)]) == 0
    assert "streams, seed 0: 3 models, " in capsys.readouterr().out


def other_tanh(model: onnx.ModelProto) -> None:
    for node in nodes(model):
        if node.op_type == "Tanh":
            node.op_type = "Identity"


def other_states(model: onnx.ModelProto) -> None:
    for entry in model.metadata_props:
        entry.value = entry.value.replace('"initial": "zeros"', '"initial": 0.5')


def half_states(model: onnx.ModelProto) -> None:
    """Let float32 states be rounded to float16 in each call."""
    made = {name for node in model.graph.node for name in node.output}
    for value in model.graph.output:
        if value.name in made and value.type.tensor_type.elem_type == TensorProto.FLOAT:
            exact, half = f"{value.name}/exact", f"{value.name}/half"
            for node in model.graph.node:
                node.input[:] = [exact if name == value.name else name for name in node.input]
                node.output[:] = [exact if name == value.name else name for name in node.output]
            rounded = helper.make_node("Cast", [exact], [half], to=TensorProto.FLOAT16)
            model.graph.node.extend([rounded, helper.make_node("Cast", [half], [value.name], to=TensorProto.FLOAT)])


# A state overflows, a sum cancels, or a sequence is long, in float16; in the last, a state overflows in float32.
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "seed", "number"),
    [("attention", 101, 1901), ("attention", 101, 4807), ("attention", 101, 3567), ("joined", 102, 2062)],
)
def test_what_a_type_cannot_hold_is_no_fault_but_a_planted_one_is(
    kind: str, seed: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(kind_of(kind), seed, number)
    assert judged(kind_of(kind), case).kind == "agreed"
    lowered = rl.lower(case.model, **case.options["lowering"])
    found = Counter[str]()
    for fault in range(8):
        wrong, _ = planted(lowered, fault)
        monkeypatch.setattr(rl, "lower", lambda *_, wrong=wrong, **__: wrong)
        found[judged(kind_of(kind), case).kind] += 1
    assert found["fault"] >= 4


def kinds_found(kind: str, cases: int) -> Counter[str]:
    """What becomes of the first cases of a kind, in this process."""
    return Counter(judged(kind_of(kind), case_of(kind_of(kind), SEED, number)).kind for number in range(cases))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(("lowering", other_tanh), ("loops", other_tanh)),
        *(("streams", other_states), ("exported", other_tanh), ("halves", half_states)),
    ],
)
@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_a_planted_fault_is_found(
    kind: str, fault: Callable[[onnx.ModelProto], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = rl.lower

    def wrong(model: onnx.ModelProto, *args: Any, **options: Any) -> Any:
        lowered = lower(model, *args, **options)
        fault(lowered)
        return lowered

    monkeypatch.setattr(rl, "lower", wrong)
    assert kinds_found(kind, 20)["fault"] > 2


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.exhaustive
def test_another_ratio_than_the_claimed_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    quantize = rl.quantize_stream

    def wrong(*args: Any, **options: Any) -> Any:
        model, made = quantize(*args, **options)
        return model, replace(made, snr={name: ratio + 3 for name, ratio in made.snr.items()})

    monkeypatch.setattr(rl, "quantize_stream", wrong)
    assert kinds_found("calibration", 5)["fault"] > 1


@pytest.mark.exhaustive
def test_sizes_in_a_data_file_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Onnxruntime does not load them; a model that is read as a whole is right."""
    lower_file = rl.lower_file

    def wrong(source: Path, path: Path, *args: Any, **options: Any) -> Any:
        report = lower_file(source, path, *args, **options)
        for data in {*path.parent.iterdir()} - {path}:
            model = onnx.load(path)
            data.unlink()
            onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
        return report

    monkeypatch.setattr(rl, "lower_file", wrong)
    assert kinds_found("data_files", 10)["fault"] > 1


@pytest.mark.exhaustive
def test_a_number_that_follows_the_wrong_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that was T follows the batch."""
    lower = rl.lower

    def wrong(*args: Any, **options: Any) -> onnx.ModelProto:
        model: onnx.ModelProto = lower(*args, **options)
        producers = {name: node for node in model.graph.node for name in node.output}
        for node in model.graph.node:
            if node.op_type == "Gather" and producers.get(node.input[0], node).op_type == "Shape":
                producers[node.input[1]].attribute[0].t.CopyFrom(numpy_helper.from_array(np.array([0])))
        return model

    monkeypatch.setattr(rl, "lower", wrong)
    assert kinds_found("open", 30)["fault"] > 2
