"""Callers' mistakes: every argument of what is public is accepted, or has one error of the project."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from paths import EXAMPLES
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.arguments import parser
from rnn_lowering.compare.options import CheckOptions
from rnn_lowering.files.options import Files
from rnn_lowering.options import LoweringOptions

MODEL = """
main (float[t,n,3] X) => (float[s,d,n,4] Y) <float[1,16,3] W = {}, float[1,16,4] R = {}> {
    Y = LSTM <hidden_size=4> (X, W, R)
}
"""
FRAMES = np.zeros((5, 2, 3), np.float32)

WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "-1": -1,
    "0.001": 1e-3,
    "nan": float("nan"),
    "inf": float("inf"),
    "1e300": 1e300,
    "10**30": 10**30,
    "complex": 1j,
    "numpy bool": np.bool_(True),
    "numpy float": np.float32(0.5),
    "empty text": "",
    "text": "6",
    "NUL": "a\0b",
    "surrogate": "\udcff",
    "bytes": b"6",
    "object": object(),
    "class": rl.Lowering,
    "function": lambda *_: True,
    "module": rl,
    "path": Path("none"),
    "array": np.zeros(3, np.float32),
    "object array": np.array([None, "6"]),
    "masked array": np.ma.masked_array(FRAMES, FRAMES == 0),
    "set": {"t"},
    "list": [1],
    "empty list": [],
    "list of None": [None],
    "list of text": ["t"],
    "nested list": [[1, 2], [3]],
    "tuple": (1e-3, 1e-5),
    "generator": (n for n in (1, 2)),
    "pairs": [("t", 6)],
    "mapping": {"X": FRAMES},
    "mapping in a list": [{"X": FRAMES}],
    "lists as arrays": [{"X": FRAMES.tolist()}],
    "a list of a list": [[FRAMES]],
    "a masked array as an array": [{"X": np.ma.masked_array(FRAMES, FRAMES == 0)}],
    "a ragged list as an array": [{"X": [[1.0], [2.0, 3.0]]}],
    "text as an array": [{"X": "6"}],
    "None as an array": [{"X": None}],
    "an object array": [{"X": np.full((5, 2, 3), None)}],
    "another type": [{"X": FRAMES.astype(np.float64)}],
    "another rank": [{"X": np.zeros(3, np.float32)}],
    "an unknown name": [{"Z": FRAMES}],
    "a name that is no text": [{1: FRAMES}],
    "a feed that is None": [None],
    "size as text": {"t": "6"},
    "size as float": {"t": 6.0},
    "size as truth value": {"t": True},
    "size as None": {"t": None},
    "size as list": {"t": [6]},
    "negative size": {"t": -6},
    "huge size": {"t": 10**30},
    "numpy size": {"t": np.int64(6)},
    "size of a number": {1: 6},
    "size of an unknown name": {"q": 6},
    "shape": {"X": [5, 2, 3]},
    "shape as text": {"X": "5,2,3"},
    "shape as number": {"X": 5},
    "shape as None": {"X": None},
    "shape of text": {"X": [5, 2, "3"]},
    "shape of None": {"X": [None, 2, 3]},
    "shape of floats": {"X": [5.0, 2.0, 3.0]},
    "shape of negative sizes": {"X": [-1, 2, 3]},
    "shape of huge sizes": {"X": [10**30, 2, 3]},
    "shape of another rank": {"X": [5, 2]},
    "shape as array": {"X": np.array([5, 2, 3])},
    "shape of an unknown name": {"Z": [5, 2, 3]},
    "value as text": {"X": "many"},
    "value as object": {"X": object()},
    "value as nested lists": {"X": [[1.0], [2.0, 3.0]]},
    "value as masked array": {"X": np.ma.masked_array(FRAMES, FRAMES == 0)},
    "report of text": "report.txt",
    "graph": parse(MODEL).graph,
    "empty model": onnx.ModelProto(),
    "serialized model": parse(MODEL).SerializeToString(),
    "ir graph": ir.from_proto(parse(MODEL)).graph,
    "lowering": rl.Lowering(),
    "check": rl.Check(),
    "tolerance": rl.Tolerance(),
}


COMPARED = {"original", "lowered", "stepped", "feeds", "shapes", "test_shapes", "timeout", "verify_timeout", "rtol"}
"""Arguments that matter when something is compared."""


def runs(given: dict[str, Any]) -> int:
    return int(not COMPARED.isdisjoint(given))


def lower_file(folder: Path, **given: Any) -> object:
    source = folder / "in.onnx"
    onnx.save(parse(MODEL), source)
    valid = {"source": source, "destination": folder / "out.onnx", "overwrite": True, "verify": runs(given)}
    arguments: dict[str, Any] = {**valid, **given}
    return rl.lower_file(**arguments)


@cache
def lowered(stream: str | None = None) -> onnx.ModelProto:
    return rl.lower(parse(MODEL), stream=stream)


def both(folder: Path, **given: Any) -> object:
    valid: dict[str, Any] = {"original": parse(MODEL), "lowered": lowered(), "runs": runs(given)}
    arguments: dict[str, Any] = {**valid, **given}
    return rl.verify(**arguments)


def chunks(folder: Path, **given: Any) -> object:
    valid: dict[str, Any] = {
        "original": parse(MODEL),
        "stepped": lowered("t"),
        "check": rl.Check(runs=runs(given)),
    }
    arguments: dict[str, Any] = {**valid, **given}
    return rl.verify_stream(**arguments)


def quantized(_: Path, **given: Any) -> object:
    arguments: dict[str, Any] = {"model": lowered("t=1"), "sequences": [{"X": FRAMES}], **given}
    return rl.quantize_stream(**arguments)


def pass_of(made: Callable[..., ir.passes.InPlacePass], **given: Any) -> object:
    model = given.pop("model_or_result", ir.from_proto(parse(MODEL)))
    return made(**given)(model)


ENTRIES: dict[str, Callable[..., object]] = {
    "lower": lambda _, **given: rl.lower(**{"model": parse(MODEL)} | given),
    "lower_file": lower_file,
    "inspect": lambda _, **given: rl.inspect(**given),
    "preview": lambda _, **given: rl.preview(**{"model": parse(MODEL)} | given),
    "verify": both,
    "verify_stream": chunks,
    "Lowering": lambda _, **given: rl.lower(parse(MODEL), rl.Lowering(**given)),
    "Check": lambda folder, **given: both(folder, check=rl.Check(**{"runs": runs(given)} | given), runs=None),
    "Tolerance": lambda folder, **given: both(folder, tolerance=rl.Tolerance(**given), runs=runs(given)),
    "LowerRecurrentPass": lambda _, **given: pass_of(rl.LowerRecurrentPass, **given),
    "quantize_stream": quantized,
    "StreamPass": lambda _, **given: pass_of(rl.StreamPass, **{"stream": "t"} | given),
}
"""Public callables, each with valid arguments beside those that are tried."""

KEYWORDS = {
    "lower": LoweringOptions,
    "preview": LoweringOptions,
    "LowerRecurrentPass": LoweringOptions,
    "lower_file": LoweringOptions,
    "verify": CheckOptions,
}
MODELS = {"LowerRecurrentPass": ("model_or_result",), "StreamPass": ("model_or_result",)}
DATA = {"FileReport", "Quantization", "Report", "StreamPlan", "Verification"}
"""What public functions return, and the table of targets: nobody makes them."""


def parameters(entry: str) -> list[str]:
    named = [
        name for name, p in inspect.signature(getattr(rl, entry)).parameters.items() if p.kind is not p.VAR_KEYWORD
    ]
    return [*named, *MODELS.get(entry, ()), *getattr(KEYWORDS.get(entry), "__annotations__", ())]


ALL = [(entry, name) for entry in ENTRIES for name in parameters(entry)]


def outcome(entry: str, name: str, value: Any, folder: Path) -> str:
    """Return what is wrong with what a call does; "" for a result or an error of the project."""
    try:
        ENTRIES[entry](folder, **{name: value})
    except rl.InternalError as error:
        return str(error)
    except rl.RnnLoweringError as error:
        return "" if len(str(error)) < 700 else f"a message of {len(str(error))} characters"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def tried(entry: str, name: str, every: int) -> list[str]:
    """One in so many wrong values, by turns; of an option that comes to `Lowering` or `Check` as a keyword at most
    one in four."""
    if name in getattr(KEYWORDS.get(entry), "__annotations__", ()):
        every = max(every, 4)
    return [*WRONG][len(entry + name) % every :: every]


@pytest.mark.parametrize(("entry", "name"), ALL, ids=[".".join(pair) for pair in ALL])
@pytest.mark.parametrize("every", thinned([8, 1], 2))
@pytest.mark.every_pair
@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_a_wrong_argument_has_one_error_of_the_project(
    entry: str, name: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {what: outcome(entry, name, WRONG[what], tmp_path) for what in tried(entry, name, every)}
    assert not {what: text for what, text in found.items() if text}


def test_every_public_callable_is_tried() -> None:
    public = {name for name in rl.__all__ if callable(getattr(rl, name))}
    errors = {name for name in public if name.endswith(("Error", "Warning"))}
    assert public - errors - DATA - {"Calibration", "Stream"} == ENTRIES.keys()


LONGER = {"runs": "verify", "shapes": "test_shapes", "timeout": "verify_timeout"}
"""Attributes of `Check` that have another name in `lower_file`."""


@pytest.mark.parametrize(("kind", "keywords"), [(rl.Lowering, LoweringOptions), (rl.Check, CheckOptions)])
def test_every_option_is_a_keyword_and_an_argument(kind: Any, keywords: Any) -> None:
    """What is typed for callers agrees with the fields, from which all else follows."""
    declared = {field.name: field for field in dataclasses.fields(kind)}
    assert keywords.__annotations__.keys() == declared.keys()
    of_file = inspect.signature(rl.lower_file).parameters
    shown = parser().format_help()
    for name, field in declared.items():
        typed = [keywords.__annotations__[name].__forward_arg__]
        if kind is rl.Check and name != "max_bytes":
            typed.append(of_file[LONGER.get(name, name)].annotation)
        assert {each.removesuffix(" | None") for each in typed} == {str(field.type).removesuffix(" | None")}, name
        assert not field.metadata["option"].help or field.metadata["option"].flag in shown


def cancel(*_: object) -> bool:
    raise LookupError("of the caller")


def test_an_original_of_another_stream() -> None:
    text = MODEL.replace("float[t,n,3] X", "float X").replace("(X, W, R)", "(x, W, R)")
    other = parse(
        text.replace("    Y =", "    s = Constant <value_ints=[5,2,3]> ()\n    x = Expand (X, s)\n    Y =")
    )
    for original in (other, parse(MODEL.replace("X", "Z"))):
        with pytest.raises(rl.OptionError, match="no input 'X' with an axis 0"):
            rl.verify_stream(original, rl.lower(parse(MODEL), stream="t"))


@pytest.mark.parametrize("wanted", [{"only": cancel}, {"except_": cancel}], ids=["only", "except"])
def test_what_a_selection_raises_reaches_the_caller(wanted: Any) -> None:
    for model in (parse(MODEL), ir.from_proto(parse(MODEL))):
        with pytest.raises(LookupError, match="of the caller"):
            rl.lower(model, **wanted)
        with pytest.raises(LookupError, match="of the caller"):
            rl.preview(model, **wanted)


def test_what_a_callback_raises_in_a_stream_reaches_the_caller(tmp_path: Path) -> None:
    def stop(phase: str, *_: object) -> None:
        if "stream" in phase:
            raise LookupError("of the caller")

    with pytest.raises(LookupError, match="of the caller"):
        lower_file(tmp_path, stream="t", progress=stop, verify=1)
    with pytest.raises(LookupError, match="of the caller"):
        chunks(tmp_path, progress=stop, check=rl.Check(runs=1))


def test_the_files_of_a_run_are_declared_once() -> None:
    """Keywords of lower_file and arguments of the command have the names and defaults of the fields of Files."""
    keywords, shown = inspect.signature(rl.lower_file).parameters, parser().format_help()
    for field in dataclasses.fields(Files):
        assert keywords[field.name].default == field.default
        assert field.metadata["option"].flag in shown


def test_an_unknown_keyword_names_the_function(tmp_path: Path) -> None:
    """The error names what was called, and keywords that are like the unknown one."""
    model = parse(MODEL)
    calls: list[tuple[Any, dict[str, Any], str]] = [
        (
            partial(rl.lower, model),
            {"inputs": {}},
            r"^lower\(\) .*'inputs'; did you mean set_inputs or input_shapes\?$",
        ),
        (partial(rl.lower, model), {"ful": True}, r"^lower\(\) .*'ful'; did you mean full\?$"),
        (partial(rl.preview, model), {"dim": {}}, r"^preview\(\) .*'dim'; did you mean dims\?$"),
        (partial(rl.verify, model, model), {"run": 1}, r"^verify\(\) .*'run'; did you mean runs\?$"),
        (
            partial(rl.lower_file, tmp_path, tmp_path),
            {"overwrites": 1},
            r"^lower_file\(\) .*; did you mean overwrite\?$",
        ),
        (partial(rl.lower, model), {"set_dim": {}}, r"^lower\(\) .*'set_dim'; did you mean dims\?$"),
        (
            partial(rl.lower, model),
            {"verify": 0},
            r"'verify'; rl.lower_file has it, since it compares and writes files$",
        ),
        (partial(rl.preview, model), {"overwrite": True}, r"'overwrite'; rl.lower_file has it"),
        (partial(rl.lower, model), {"no_join": 1}, r"'no_join'; did you mean join=False\?$"),
        (partial(rl.lower, model), {"set_dims": {}}, r"'set_dims'; did you mean dims\?$"),
        (partial(rl.lower_file, tmp_path, tmp_path), {"force": 1}, r"'force'; did you mean overwrite\?$"),
        (partial(rl.lower, model), {"form": "scan"}, r"'form'; did you mean to\?$"),
        (partial(rl.verify, model, model), {"verify": 1}, r"'verify'; did you mean runs\?$"),
        (partial(rl.verify, model, model), {"rtol": 1}, r"did you mean tolerance=rl.Tolerance\(rtol=...\)\?$"),
        (partial(rl.lower_file, tmp_path, tmp_path), {"runs": 1}, r"'runs'; did you mean verify\?$"),
        (partial(rl.lower_file, tmp_path, tmp_path), {"atol": 1}, r"mean tolerance=rl.Tolerance\(atol=...\)"),
        (rl.LowerRecurrentPass, {"zzz": 1}, r"^LowerRecurrentPass\(\) .*'zzz'$"),
    ]
    for function, keywords, text in calls:
        with pytest.raises(rl.OptionError, match=text):
            function(**keywords)


def test_bits_need_a_calibration(tmp_path: Path) -> None:
    with pytest.raises(rl.OptionError, match=r"needs a calibration; add calibrate=\"FILE\", or drop bits$"):
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", stream="seq=1", bits="w8a16")


MISSPELLED: list[tuple[dict[str, Any], str]] = [
    ({"target": "trac"}, "tract"),
    ({"target": "tmv"}, "tvm"),
    ({"to": "unrol"}, "unroll"),
    ({"compute": "float23"}, "float32"),
    ({"stream": "sek=1"}, "seq"),
    ({"dims": {"Seq": 16}}, "seq"),
    ({"input_shapes": {"x": [16, 1, 80]}}, "X"),
    ({"set_inputs": {"x": 1}}, "X"),
]


@pytest.mark.parametrize(("options", "meant"), MISSPELLED)
def test_a_name_that_is_nearly_right(options: dict[str, Any], meant: str) -> None:
    with pytest.raises(rl.RnnLoweringError) as caught:
        rl.lower(EXAMPLES / "model.onnx", **options)
    assert caught.value.hint.endswith(f"; did you mean {meant}?")


def test_a_name_like_no_other() -> None:
    wrong: list[dict[str, Any]] = [{"target": "qqqq"}, {"to": "qqqq"}, {"dims": {"qqqq": 1}}, {"stream": "qqqq"}]
    for options in wrong:
        with pytest.raises(rl.RnnLoweringError) as caught:
            rl.lower(EXAMPLES / "model.onnx", **options)
        assert "did you mean" not in str(caught.value)
