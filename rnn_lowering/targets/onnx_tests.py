"""What ONNX's own tests of single operators say of the runtimes that were run: the data of onnx_tests.json.

`python -m clients.operators NAME` of the tests measures and writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import onnx

_FLAGS = """align_corners allowzero antialias ceil_mode center_point_box count_include_pad detect_negative
detect_positive exclude_outside exclusive fmod interleaved inverse is_case_sensitive is_causal keepdims largest
new_axis noop_with_empty_axes onesided periodic reverse saturate select_last_index sorted storage_order
training_mode transA transB upper"""
FLAGS = frozenset(_FLAGS.split())
"""The attributes of ONNX's operators that are 0 or 1, but for those of RNN, GRU and LSTM."""

_NEEDS = {"nearest_mode": "mode"}
"""Attributes that have no effect unless another one has its default: exporters write them all the same."""


_SAME_SINCE = {"Compress": 9, "Hardmax": 1, "MeanVarianceNormalization": 9, "Less": 7, "LpPool": 2}
"""By operator the version since which floats are computed in the same way: the tests say so of all of them."""


@dataclass(frozen=True)
class OperatorTests:
    """What became of ONNX's tests of one operator in a runtime, each a model of one node.

    Those with float32 count; of an operator without such, those with integers or bool. A crash is rejected too.

    Attributes:
        since: The oldest version of the operator in these tests: they say nothing of an older one.
        right, wrong, rejected: The number of tests.
        floats: Whether they have float32: then they say nothing of a node that has integers only.
        modes: Of the nodes in these tests, such as "ceil_mode=1": see `modes_of`. None for all tests.
    """

    since: int
    right: int
    wrong: int
    rejected: int
    floats: bool = True
    modes: frozenset[str] | None = None

    @property
    def mostly_right(self) -> bool:
        """Whether at least half of the tests were right: others have attributes or types that are rare."""
        return 0 < self.right >= self.wrong + self.rejected

    def failures(self, it: str = "") -> str:
        """Return which tests were not right: "rejected in 38 of 38 of ONNX's tests", or "rejected it in"."""
        kinds = {f"rejected{it}": self.rejected, f"computed{it} wrongly": self.wrong}
        parts = [f"{kind} in {count}" for kind, count in kinds.items() if count]
        count = self.right + self.wrong + self.rejected
        modes = ", ".join(sorted(self.modes or ())) or "default modes"
        which = "" if self.modes is None else f" with {modes}"
        return f"{' and '.join(parts)} of {count} of ONNX's tests{which}"


@dataclass(frozen=True)
class Misread:
    """How a runtime computes a node wrongly, without an error, though ONNX's tests of its operator are right there.

    Attributes:
        how: Words behind "computes it", such as "with the default of alpha, not 0".
    """

    how: str

    def failures(self, it: str = "") -> str:
        """Return it as `OperatorTests.failures` does."""
        return f"computes{it} {self.how}"


@dataclass(frozen=True)
class RuntimeTests:
    """What became of ONNX's tests in one runtime.

    Attributes:
        version: Of the runtime.
        date: Of the measurement.
        onnx: The version of onnx whose tests were run.
        operators: By operator of ONNX's own domain.
        wrong_with: By operator and modes, what became of the tests with modes that made some of them wrong.
    """

    version: str
    date: str
    onnx: str
    operators: Mapping[str, OperatorTests]
    wrong_with: Mapping[str, Mapping[frozenset[str], OperatorTests]]

    def runs(self, operator: str) -> bool:
        """Return whether the runtime computes an operator right, as far as is known."""
        tests = self.operators.get(operator)
        return tests is not None and tests.mostly_right

    def failed(self, operator: str, opset: int) -> OperatorTests | None:
        """Return the tests of an operator if none was right; None also if they say nothing of it at an opset."""
        tests = self.operators.get(operator)
        return tests if tests and not tests.right and _covers(tests, operator, opset) else None

    def failed_with(self, operator: str, opset: int, attributes: Mapping[str, object]) -> OperatorTests | None:
        """Return the tests with the modes of a node, if these made them wrong: see `modes_of`."""
        by_modes, version = self.wrong_with.get(operator), _version(operator, opset)
        tests = by_modes.get(modes_of(operator, version, attributes)) if by_modes and version else None
        return tests if tests and _covers(tests, operator, opset) else None


def _covers(tests: OperatorTests, operator: str, opset: int) -> bool:
    """Return whether tests say something of an operator at an opset."""
    return _version(operator, opset) >= min(tests.since, _SAME_SINCE.get(operator, tests.since))


def _version(operator: str, opset: int) -> int:
    """Return the version of an operator of ONNX at an opset; 0 if ONNX has none."""
    try:
        return int(onnx.defs.get_schema(operator, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def modes_of(operator: str, version: int, attributes: Mapping[str, object]) -> frozenset[str]:
    """Return the modes of a node, its attributes that are words or flags, without defaults: "ceil_mode=1".

    Args:
        operator: An operator of ONNX.
        version: The version of the operator, or of ONNX.
        attributes: By name; other types than int and str do not count, nor does the equation of Einsum.
    """
    declared = onnx.defs.get_schema(operator, version, "").attributes
    modes = {}
    for name, value in attributes.items():
        default = onnx.helper.get_attribute_value(declared[name].default_value) if name in declared else None
        usual = default.decode() if isinstance(default, bytes) else default
        if (name in FLAGS or (isinstance(value, str) and name != "equation")) and value != usual:
            modes[name] = value
    return frozenset(f"{name}={value}" for name, value in modes.items() if _NEEDS.get(name) not in modes)


@cache
def tests_in(target: str) -> RuntimeTests | None:
    """Return what became of the tests in a target; None if it was not measured."""
    entry = _entries().get(target)
    return None if entry is None else measured(entry)


def measured_targets() -> tuple[str, ...]:
    """Return the targets in which the tests were run."""
    return tuple(_entries())


def measured(entry: Mapping[str, Any]) -> RuntimeTests:
    """Return an entry of the data: an operator is a word, its name, `since`, right, wrong and rejected tests."""
    others = set(" ".join(entry.get("without float32", ())).split())
    counts = _counts(entry["operators"])
    operators = {name: OperatorTests(*numbers, name not in others) for name, numbers in counts.items()}
    wrong_with: dict[str, dict[frozenset[str], OperatorTests]] = {}
    for word, numbers in _counts(entry.get("wrong with", ())).items():
        name, _, given = word.partition(".")
        modes = frozenset(filter(None, given.split(",")))
        wrong_with.setdefault(name, {})[modes] = OperatorTests(*numbers, name not in others, modes)
    return RuntimeTests(entry["version"], entry["date"], entry["onnx"], operators, wrong_with)


def _counts(lines: Sequence[str]) -> dict[str, tuple[int, int, int, int]]:
    counts = {}
    for word in " ".join(lines).split():
        name, _, numbers = word.partition(":")
        since, right, wrong, rejected = map(int, numbers.split("/"))
        counts[name] = since, right, wrong, rejected
    return counts


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(files(__package__).joinpath("onnx_tests.json").read_text("utf-8"))  # type: ignore[no-any-return]
