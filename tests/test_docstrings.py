"""Each public class and function has an example in its docstring, and the examples run."""

import dataclasses
import doctest
import inspect
import pydoc
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from one_process import run_workers_here
from paths import ROOT

import rnn_lowering as rl

MODEL = ROOT / "examples" / "model.onnx"
NAMES = sorted(name for name in rl.__all__ if callable(getattr(rl, name)))

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="only in a checkout are there examples")


@pytest.mark.few(16)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with model.onnx, which is `model`."""
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copy(MODEL, "model.onnx")
    names = {"rl": rl, "np": np, "onnx": onnx, "onnx_ir": onnx_ir, "model": onnx.load(MODEL)}
    test = doctest.DocTestParser().get_doctest(getattr(rl, name).__doc__ or "", names, name, None, None)
    assert test.examples
    said: list[str] = []
    with warnings.catch_warnings():
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert said == []


DESCRIBED = {"Lowering": rl.Lowering, "Check": rl.Check, "lower": rl.Lowering, "lower_file": rl.Lowering}
"""What a user asks for help about -> the options that it takes as keywords."""


@pytest.mark.parametrize("name", DESCRIBED)
def test_help_describes_each_option(name: str) -> None:
    """With the type, the default that it has, and an example that is a valid option."""
    kind = DESCRIBED[name]
    shown = " ".join(pydoc.plain(pydoc.render_doc(getattr(rl, name))).replace("\n |", "\n").split())
    given = kind()
    for field in dataclasses.fields(kind):
        default = re.escape(repr(getattr(given, field.name)))
        found = re.search(
            rf" {field.name} \((\w[^:]*)\): ([A-Z\"].*?) Default: `{default}`\. Example: `(.*?)`\. ", shown
        )
        assert found, field.name
        assert not re.search(r"Name|Shapes|Selection|Stream|OrPath|OrSizes|Like", found[1]), found[1]
        assert f"{field.name}=" in found[3]
        made = eval(f"rl.{kind.__name__}({found[3]})", {"rl": rl, "np": np})
        assert repr(getattr(made, field.name)) != repr(getattr(given, field.name))


@pytest.mark.parametrize("name", ["lower", "lower_file"])
def test_a_signature_has_types(name: str) -> None:
    """Also of the options that it shows of those that it takes."""
    parameters = inspect.signature(getattr(rl, name)).parameters
    assert {"target", "dims", "stream"} < parameters.keys()
    assert [each for each in parameters.values() if each.annotation is each.empty] == []
    assert parameters["stream"].annotation == "str | Mapping[str, int | None] | None"
