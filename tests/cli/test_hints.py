"""Hints lead somewhere: whoever pastes the options of a hint into the command gets a lowered model, or in the end a
message whose hint has no option, and never the same message twice."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter
import pytest
from case_list import BY_NAME
from cases import Case, model
from hints import alternatives, follow
from paths import EXAMPLES, PACKAGE
from running import operators, recurrent_left
from stored_models import Entry, load, parameters
from thinning import exhaustive

import rnn_lowering as rl
from rnn_lowering.cli.arguments import parser
from rnn_lowering.flags import KEYWORDS

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")

SMALL = 200_000


FEW = ("tvm", "ncnn", "iree", "tidl")
"""Targets that refuse most: they need sizes, constant lengths or one row."""


def picks() -> list[Any]:
    """The stored models with two targets that refuse much and a few others, by turns, and large ones with a single
    target; in the default run every 20th small one."""
    found = []
    others = [target for target in rl.TARGETS if target not in FEW]
    for n, p in enumerate([*parameters("runs"), *parameters("refused")]):
        (entry,) = p.values
        small = entry.get("bytes", 0) <= SMALL
        targets = [FEW[n % 4], FEW[(n + 1) % 4], *others[n % 8 :: 8]] if small else [FEW[n % 4]]
        each = pytest.param(entry, targets, id=p.id, marks=p.marks)
        found.append(each if small and n % 20 == 0 else exhaustive(each))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(("entry", "targets"), picks())
def test_of_stored_models(entry: Entry, targets: Sequence[str]) -> None:
    original = load(entry)
    assert [text for target in targets for text in follow(original, target).nowhere] == []


SIZED = ("LSTM_x_symbolic", "GRU_x_unknown", "RNN_x_unranked", "LSTM_lengths_forward_x_unranked")
LENGTHS = ("GRU_lengths_cast", "LSTM_lengths_N_1", "LSTM_lengths_bidirectional_x_symbolic")


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [*SIZED, *LENGTHS])
def test_of_small_models(name: str) -> None:
    """They have open sizes, or lengths that are known at run time only."""
    original = model(BY_NAME[name], 17)
    found = {target: follow(original, target) for target in ("ncnn", "tvm", "iree", "mnn", "tidl", "tensorrt")}
    assert [text for each in found.values() for text in each.nowhere] == []
    assert found["ncnn"].followed
    assert found["tidl"].followed


@pytest.mark.few(3)
@pytest.mark.parametrize("target", ["tvm", "ncnn", "tinygrad", "qnn", "iree"])
def test_no_size_that_is_not_needed(target: Any) -> None:
    """All sizes are open. With those of the hint, and no others, the model is lowered."""
    original = onnx.load(EXAMPLES / "denoiser.onnx")
    with pytest.raises(rl.UnknownSizeError) as caught:
        rl.lower(original, target=target)
    asked = re.findall(r'"(\w+)": \?', caught.value.hint)
    both = "T" in rl.TARGETS[target].sizes
    assert sorted(asked) == (["batch", "time"] if both else ["time"])
    assert recurrent_left(rl.lower(original, target=target, dims=dict.fromkeys(asked, 2))) == []


def test_sizes_that_the_numbers_of_an_input_decide() -> None:
    """X is X_flat in the shape X_shape: the shapes of these two do not tell its length."""
    original = model(BY_NAME["RNN_x_unranked"], 17)
    with pytest.raises(rl.UnsupportedError, match=r'input_shapes={"X_flat".*set_inputs={"X_shape".*FILE.npy'):
        rl.lower(original, target="tvm")
    options: Any = {"input_shapes": {"X_flat": [30]}, "set_inputs": {"X_shape": [5, 3, 2]}}
    assert recurrent_left(rl.lower(original, target="tvm", **options)) == []


@pytest.mark.parametrize("to", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("target", ["tract", "mnn", "portable", "tinygrad"])
def test_of_forms(to: str, target: str) -> None:
    for case, opset in ((Case("long", "RNN", T=600), 17), (Case("old", "GRU", x="symbolic"), 8)):
        assert follow(model(case, opset), target, ("--to", to)).nowhere == []


def test_options_of_a_hint() -> None:
    text = (
        "fix the sizes of the inputs, with a number for each ?: --set-shape 'an input:'1,? --set-dim seq=?, "
        "or use --to scan or --to loop"
    )
    assert list(alternatives(text)) == [
        ["--set-shape", "an input:1,?", "--set-dim", "seq=?"],
        ["--to", "scan"],
        ["--to", "loop"],
    ]
    assert list(alternatives("convert the weights to floats (--dequantize)")) == [["--dequantize"]]
    assert list(alternatives("raise the limit (--max-unroll 600)")) == [["--max-unroll", "600"]]
    assert list(alternatives("check it with onnx.checker")) == []
    assert list(alternatives("export the model without it, or drop --target")) == []


def test_a_circle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hints._refusal", lambda model, given: ("no", "use --to scan"))
    assert follow(model(Case("any", "RNN"), 17), "tvm").nowhere


@pytest.mark.parametrize(
    ("direction", "T", "told"), [("forward", 33, True), ("forward", 32, False), ("reverse", 33, False)]
)
def test_a_stream_instead_of_many_steps(direction: str, T: int, told: bool) -> None:
    original = model(Case("long", "GRU", {"direction": direction}, T=T, outputs=("Y",)), 17)
    new, report = rl.lower(original, target="tvm", full=True)
    option = 'stream="AXIS=1" (AXIS: the time dimension)'
    note = f"{T} steps are unrolled, which compilers load slowly; a stream has only one step: {option}"
    assert (note in report.notes) == told
    if told:
        stream, followed = rl.lower(original, target="tvm", stream={"X:0": 1}, full=True)
        assert followed.notes == []
        assert len(stream.graph.node) * 10 < len(new.graph.node)
    assert rl.lower(original, "scan", full=True)[1].notes == []


HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[N,T,2] X, float[N,2] a) => (float[N,2] p) '
CONSTANTS = "<int64 zero = {0}, int64 one = {1}, bool yes = {1}, float most = {9}>"
LOOP = """p = Loop (M, %s, a) <body = d (int64 i, bool c, float[N,2] s) => (bool c1, float[N,2] s1)
    { r = Gather <axis = 1> (X, i) s1 = Add (s, r) %s }> }"""
STEADY, DATA = LOOP % ("yes", "c1 = Identity (c)"), "u = ReduceSum <keepdims = 0> (s1) c1 = Less (u, most)"
OF_T = "{ sizes = Shape (X) M = Gather (sizes, one) "
OF_BOTH = "{ sizes = Shape (X) n = Gather (sizes, zero) t = Gather (sizes, one) M = Add (n, t) "
OF_DATA = "{ sum = ReduceSum <keepdims = 0> (a) M = Cast <to = 7> (sum) "
TRIPS = {
    "one size of two": (OF_T + STEADY, ["T"]),
    "both sizes": (OF_BOTH + STEADY, ["N", "T"]),
    "a number of the data": (OF_DATA + STEADY, []),
    "a condition on data": (OF_T + LOOP % ("yes", DATA), []),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TRIPS)
def test_sizes_that_decide_the_number_of_steps(name: str) -> None:
    """The hint names those that suffice, and none where none helps."""
    text, sizes = TRIPS[name]
    original = onnx.parser.parse_model(HEAD + CONSTANTS + text)
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(original, "unroll")
    assert re.findall(r'"(\w+)": \?', caught.value.hint) == sizes
    followed = follow(original, "portable", ("--to", "unroll"))
    assert followed.nowhere == []
    if sizes:
        assert "Loop" not in operators(rl.lower(original, "unroll", dims=dict.fromkeys(sizes, 3)))


def test_no_converter_where_it_cannot_go() -> None:
    """onnx.version_converter goes up only: across opsets 15 and 14 it has no way down."""
    original = model(Case("new", "GRU"), 18)
    for target in ("executorch", "onnx2torch"):
        with pytest.raises(rl.UnsupportedError, match=r"export it at opset 17 .*opset_version=17") as caught:
            rl.lower(original, target=target, keep_rest=True)
        assert "version_converter" not in caught.value.hint
    old = model(Case("old", "GRU"), 8)
    with pytest.raises(rl.UnsupportedError, match=r"convert it to opset 9 \(onnx.version_converter\)"):
        rl.lower(old, target="executorch")
    converted = onnx.version_converter.convert_version(old, 9)
    assert recurrent_left(rl.lower(converted, target="executorch")) == []


def flags_in(path: Path) -> set[str]:
    """Return the flags in the texts of a module."""
    source = path.read_text("utf-8")
    tree = ast.parse(source if "--" in source else "")
    texts = (each.value for each in ast.walk(tree) if isinstance(each, ast.Constant))
    found = {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", str(text))}
    return found - {"--help", "--name", "--no-deps"}  # of docstrings, and of pip


def modules() -> list[Path]:
    """Return the modules that write messages, without the command's; drivers and calls use flags of others."""
    others, folders = ("flags.py", "options.py", "calls.py"), ("cli", "drivers")
    paths = PACKAGE.rglob("*.py")
    return [path for path in paths if path.parent.name not in folders and path.name not in others]


def test_every_option_in_a_message_exists() -> None:
    """Whatever the package says, its flags are those of the command and have a spelling in Python."""
    known = {flag for action in parser()._actions for flag in action.option_strings}
    said = set().union(*map(flags_in, modules()))
    assert said <= known
    assert said <= {*KEYWORDS}
