"""What ONNX's tests of operators would have found in tract, for tests of what is done about it."""

from collections.abc import Sequence
from functools import cache

import onnx
import pytest

from rnn_lowering.decomposition import lacking
from rnn_lowering.targets import onnx_tests
from rnn_lowering.targets.names import TargetName

TARGET: TargetName = "tract"


@cache
def operators() -> frozenset[str]:
    """ONNX's own operators."""
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain)


def without(monkeypatch: pytest.MonkeyPatch, *lacked: str) -> None:
    """Let all tests be right but those of some operators, which were rejected."""
    found(monkeypatch, [f"{name}:1/{'0/0/1' if name in lacked else '1/0/0'}" for name in sorted(operators())])


def found(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str], integers: Sequence[str] = (), wrong: Sequence[str] = ()
) -> None:
    """Let the tests of operators have these outcomes, as onnx_tests.json has them."""
    entry = {
        "version": "1.2",
        "date": "2026-11-23",
        "onnx": "1.20",
        "operators": words,
        "wrong with": wrong,
        "without float32": integers,
    }
    measured = onnx_tests.measured(entry)
    for module in (lacking, onnx_tests):
        monkeypatch.setattr(module, "tests_in", lambda target: measured if target == TARGET else None)
