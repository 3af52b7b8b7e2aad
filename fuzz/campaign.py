"""Runs a search: cases by number, each judged in a child process; counts what became of them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx

from fuzz.case import Case, Outcome, fault
from rnn_lowering.child import Child, ChildError, Message

SECONDS = 120.0
"""The most that a case may take."""

MANY = 300
"""Cases that one process judges: what it leaks ends with it."""


@dataclass(frozen=True)
class Found:
    """A case that shows a fault."""

    kind: str
    seed: int
    number: int
    case: Case
    outcome: Outcome


@dataclass
class Judge:
    """Judges cases of a kind in a child process, which is replaced when it dies, hangs or has judged many.

    Attributes:
        kind: The name of the kind, or of any module like one.
        seconds: The processor time that cases took.
    """

    kind: str
    seconds: float = 0.0
    _child: Child | None = None

    def case(self, case: Case) -> Outcome:
        """Judge a case."""
        job = {"options": case.options, "payload": case.model.SerializeToString()}
        return self._ask(job)[1]

    def number(self, seed: int, number: int) -> tuple[Case, Outcome]:
        """Judge the case of a seed and a number."""
        return self._ask({"seed": seed, "number": number})

    def _ask(self, job: Message) -> tuple[Case, Outcome]:
        if self._child is None or self._child.jobs >= MANY:
            self.end()
            self._child = Child("fuzz.worker")
        case, outcome = Case(onnx.ModelProto()), None
        try:
            for message in self._child.ask({"kind": self.kind, **job}, SECONDS):
                if "options" in message:
                    model = onnx.ModelProto.FromString(message["payload"])
                    case = Case(model, json.loads(message["options"]))
                else:
                    outcome = Outcome(**json.loads(message["outcome"]))
                    self.seconds += message["seconds"]
        except ChildError as error:
            self.end()
            self.seconds += SECONDS if error.late else 0.0
            outcome = fault(f"the process {error}")
        assert outcome is not None
        return case, outcome

    def end(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.end()
            self._child = None


@dataclass
class Counts:
    """What became of the cases of a search."""

    cases: int = 0
    comparisons: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    invalid: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.comparisons += outcome.comparisons
        self.outcomes[outcome.kind] += 1
        reasons = {"refused": self.refusals, "invalid": self.invalid, "fault": self.faults}
        if outcome.kind in reasons:
            reasons[outcome.kind][outcome.what] += 1

    def text(self) -> str:
        """Return the counts, a line each."""
        kinds = ", ".join(f"{self.outcomes[kind]} {kind}" for kind in ("agreed", "refused", "invalid", "fault"))
        lines = [
            f"{self.cases} models, {self.comparisons} comparisons in {self.seconds:.0f} s of processor: {kinds}"
        ]
        for title, counter in (("refused", self.refusals), ("invalid", self.invalid), ("fault", self.faults)):
            lines += [f"  {title} {count:5d}  {what}" for what, count in counter.most_common()]
        return "\n".join(lines)


def search(
    kind: str,
    seed: int,
    counts: Counts,
    go_on: Callable[[Counts], bool],
    first: int = 0,
) -> Iterator[Found]:
    """Judge the cases of a seed from a number on while `go_on`; yield those that show a fault."""
    judge, number = Judge(kind), first
    try:
        while go_on(counts):
            case, outcome = judge.number(seed, number)
            counts.add(outcome)
            counts.seconds = judge.seconds
            if outcome.kind == "fault":
                yield Found(kind, seed, number, case, outcome)
            number += 1
    finally:
        judge.end()
