"""What became of ONNX's own tests of single operators in the runtimes that were run: the data of onnx_tests.json.

`python -m clients.operators NAME` of the tests measures and writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class OperatorTests:
    """What became of ONNX's tests of one operator in a runtime, each a model of one node.

    Those with float32 count; of an operator without such, those with integers or bool. A crash is rejected too.

    Attributes:
        since: The oldest version of the operator in these tests: they say nothing of an older one.
        right, wrong, rejected: The number of tests.
        floats: Whether they have float32: then they say nothing of a node that has integers only.
    """

    since: int
    right: int
    wrong: int
    rejected: int
    floats: bool = True

    @property
    def mostly_right(self) -> bool:
        """Whether at least half of the tests were right: others have attributes or types that are rare."""
        return 0 < self.right >= self.wrong + self.rejected

    def failures(self, it: str = "") -> str:
        """Return which tests were not right: "rejected in 38 of 38 of ONNX's tests", or "rejected it in"."""
        kinds = {f"rejected{it}": self.rejected, f"computed{it} wrongly": self.wrong}
        parts = [f"{kind} in {count}" for kind, count in kinds.items() if count]
        return f"{' and '.join(parts)} of {self.right + self.wrong + self.rejected} of ONNX's tests"


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
    """

    version: str
    date: str
    onnx: str
    operators: Mapping[str, OperatorTests]

    def of(self, operator: str, version: int) -> OperatorTests | None:
        """Return what is known of a version of an operator; None for nothing."""
        tests = self.operators.get(operator)
        return None if tests is None or version < tests.since else tests


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
    operators, others = {}, set(" ".join(entry.get("without float32", ())).split())
    for word in " ".join(entry["operators"]).split():
        name, _, numbers = word.partition(":")
        since, right, wrong, rejected = map(int, numbers.split("/"))
        operators[name] = OperatorTests(since, right, wrong, rejected, name not in others)
    return RuntimeTests(entry["version"], entry["date"], entry["onnx"], operators)


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(files(__package__).joinpath("onnx_tests.json").read_text("utf-8"))  # type: ignore[no-any-return]
