"""Errors: public, whole in another process, and in the words of who reads them."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from paths import EXAMPLES

import rnn_lowering as rl
from rnn_lowering.cli.arguments import parser
from rnn_lowering.cli.texts import TEXTS
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.errors import NodeRef, RnnLoweringError
from rnn_lowering.files.options import Files
from rnn_lowering.flags import KEYWORDS, for_command, spelled
from rnn_lowering.options import Lowering

NODE = NodeRef("node\n", "LSTM", "main graph")


def subclasses(kind: type[RnnLoweringError]) -> list[type[RnnLoweringError]]:
    return [kind, *(each for sub in kind.__subclasses__() for each in subclasses(sub))]


def an_error(kind: type[RnnLoweringError]) -> RnnLoweringError:
    """An error of a class, with everything that it may carry."""
    more: dict[type, dict[str, Any]] = {
        rl.UnknownSizeError: {"sizes": ("T", "N"), "node": NODE},
        rl.UnknownTripsError: {"value": ir.Value(name="count"), "node": NODE},
    }
    if issubclass(kind, rl.VerificationError):
        report = rl.lower(onnx.load(EXAMPLES / "model.onnx"), full=True)[1]
        return kind("differs", hint="report it", report=report)
    return kind("is wrong\x1b", hint="try another", **more.get(kind, {"node": NODE}))


def raised(kind: type[RnnLoweringError]) -> None:
    raise an_error(kind)


def lowered(**options: Any) -> None:
    rl.lower(EXAMPLES / "model.onnx", **options)


def facts(error: RnnLoweringError) -> dict[str, Any]:
    return {"text": str(error), **{name: value for name, value in vars(error).items() if name != "value"}}


def test_every_error_is_public() -> None:
    every = {*subclasses(RnnLoweringError), rl.RnnLoweringWarning}
    assert {kind.__name__ for kind in every} <= {*rl.__all__}
    assert all(getattr(rl, kind.__name__) is kind for kind in every)


def test_every_error_passes_a_pool_of_processes() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for kind in subclasses(RnnLoweringError):
            error = pool.submit(raised, kind).exception()
            assert type(error) is kind
            assert facts(error) == facts(an_error(kind))
        wrong = pool.submit(lowered, to="unroll").exception()
        assert isinstance(wrong, rl.UnknownSizeError)
        assert (wrong.sizes, wrong.node) == (("T",), NodeRef("/lstm/LSTM", "LSTM", "main graph"))
        assert wrong.page == "getting-started.md#sizes-and-inputs"
        assert isinstance(pool.submit(lowered, to="loop").exception(), type(None))


def test_a_warning_is_pickled() -> None:
    assert str(pickle.loads(pickle.dumps(rl.RnnLoweringWarning("long")))) == "long"


# Flags and keywords


def test_the_keyword_of_each_flag() -> None:
    """It is in Python what its name says: an attribute of an option object, or an argument of lower_file."""
    found = {}
    for kind in (Lowering, Check, Tolerance, Files):
        for field in fields(kind):
            if field.metadata["option"].help:
                keyword = f"rl.{kind.__name__}({field.name}=...)" if kind in (Check, Tolerance) else field.name
                found[field.metadata["option"].flag] = keyword
    of_lower_file = ("verify", "seed", "run_in_target", "target_python")
    found |= {f"--{keyword.replace('_', '-')}": keyword for keyword in of_lower_file}
    assert {flag: keyword for flag, (keyword, text) in KEYWORDS.items() if text != "no value"} == found
    assert {text for _, text in KEYWORDS.values()} - {*TEXTS} == {"no value"}
    known = {flag for action in parser()._actions for flag in action.option_strings}
    assert {*KEYWORDS} <= known


SPELLED = {
    "use --to scan or --to loop": 'use to="scan" or to="loop"',
    "fix the sizes: --set-dim 'a b='? --set-dim N=?, or drop --target": (
        'fix the sizes: dims={"a b": ?, "N": ?}, or drop target'
    ),
    "--set-shape X:16,1,80 --set-input n=FILE.npy": (
        'input_shapes={"X": [16, 1, 80]}, set_inputs={"n": numpy.load("FILE.npy")}'
    ),
    "(--set-input sr=16000)": '(set_inputs={"sr": 16000})',
    "fix the sizes (--set-dim, --set-shape)": "fix the sizes (dims, input_shapes)",
    "use --target portable --to unroll": 'use target="portable", to="unroll"',
    "keep it: --except 'while loop'": 'keep it: except_="while loop"',
    "raise the limit (--max-unroll 600)": "raise the limit (max_unroll=600)",
    "raise the limit (--max-nodes N)": "raise the limit (max_nodes=N)",
    "--delay 2 allows it": "delay=2 allows it",
    "make one with --stream": "make one with stream",
    "a stream has only one step: --stream AXIS=1": 'a stream has only one step: stream="AXIS=1"',
    "one frame each: --stream time=1 --stream 'X:1=2'": 'one frame each: stream={"time": 1, "X:1": 2}',
    "keep them: --except 'a b' --except c": 'keep them: except_=["a b", "c"]',
    "use --force to replace it": "use overwrite=True to replace it",
    "one loop each: --no-join, --lower-loops": "one loop each: join=False, lower_loops=True",
    "a runtime that runs Loop (--targets)": "a runtime that runs Loop (rl.TARGETS)",
    "the value of an option --unheard of": "the value of an option --unheard of",
}


@pytest.mark.parametrize("text", SPELLED)
def test_options_as_the_caller_types_them(text: str) -> None:
    assert spelled(text) == SPELLED[text]
    with for_command():
        assert spelled(text) == text


def test_the_words_of_python_run(tmp_path: Any) -> None:
    """A hint, with its ? filled in, is the keywords of the next call."""
    with pytest.raises(rl.UnknownSizeError) as caught:
        rl.lower(EXAMPLES / "model.onnx", to="unroll")
    hint = caught.value.hint.partition("number for each ?: ")[2].partition(", or use ")[0]
    keywords = eval(f"dict({hint.replace('?', '16')})")
    assert rl.lower(EXAMPLES / "model.onnx", to="unroll", **keywords, full=True)[1].nodes[0].seq_length == 16


def test_a_file_that_cannot_be_read_is_an_oserror_too(tmp_path: Path) -> None:
    for refused in (tmp_path / "absent.onnx", tmp_path):
        with pytest.raises(OSError, match="cannot read") as error:
            rl.lower(refused)
        assert isinstance(error.value, rl.ModelFileError)
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
