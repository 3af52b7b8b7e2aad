"""`Verification`: the result of a comparison, with each run and each output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rnn_lowering.errors import counted
from rnn_lowering.flags import is_for_command, spelled
from rnn_lowering.types import Array, in_brackets

WHOLE = "onnxruntime"
EACH_NODE = "each node against float64 NumPy"
IN_CHUNKS = ", in chunks"
CHUNKED = f"onnxruntime{IN_CHUNKS}"
NOTHING_LOWERED = "nothing was lowered: the result is the original"
COMPARE_ELSEWHERE = "compare both models in a runtime that supports the original"
UNCHANGED, NOT_COMPARED = "unchanged", "not compared"
ACCEPTED_ONLY = "of the tried sizes, the original accepted only"
OPTIMIZATIONS = "onnxruntime's optimizations change the original's outputs: compared without them"
JUDGED = "onnxruntime, differences judged by float64 NumPy"
IN_FLOATS = "onnxruntime, beside the original in floats"

_IN_TARGET = ("status", "method", "reason", "runs", "max_abs")

_MOST_SIZES = 5
"""Maximum shapes of an input that the line names."""


@dataclass(frozen=True)
class OutputCheck:
    """One output of the model (or of one node), in one run or over all of them.

    Attributes:
        name: The name of an output of the model, or "Y of LSTM node 'name' in scope" for one of a node.
        max_abs: The largest absolute difference; infinite if type or shape differ, or only one side is NaN.
        passed: Whether it is within the tolerance.
        reason: Why it is not.
    """

    name: str
    max_abs: float
    passed: bool
    reason: str = ""

    @classmethod
    def of(cls, name: str, max_abs: float, reason: str) -> OutputCheck:
        """Return the check of an output, which failed if there is a reason."""
        return cls(name, max_abs, not reason, reason)


@dataclass(frozen=True)
class RunInput:
    """An input of a run.

    Attributes:
        name: Its name.
        shape: Its shape.
        lengths: The least and the greatest number of an input of sequence lengths; else None.
        value: The number of a single integer or boolean; else None.
    """

    name: str
    shape: tuple[int, ...]
    lengths: tuple[int, int] | None = None
    value: int | None = None

    @classmethod
    def of(cls, name: str, array: Array, *, are_lengths: bool) -> RunInput:
        lengths = (int(array.min()), int(array.max())) if are_lengths and array.size else None
        single = array.size == 1 and array.dtype.kind in "iub" and not are_lengths
        return cls(name, array.shape, lengths, int(array.reshape(-1)[0]) if single else None)


@dataclass(frozen=True)
class RunCheck:
    """One run: its inputs, and the differences of its outputs."""

    inputs: tuple[RunInput, ...]
    outputs: tuple[OutputCheck, ...]

    @property
    def wrong(self) -> bool:
        return not all(output.passed for output in self.outputs)


PROVEN, NOT_PROVEN = "proven", "not proven"


@dataclass(frozen=True)
class NodeProof:
    """Whether a lowered node is proven to compute what its operator specifies for every input, up to rounding; or a
    converted Loop or Scan what the original one computes.

    Attributes:
        node: The node, as "LSTM node 'name' in main graph".
        status: "proven": for every length and batch size that the node leaves open; "proven at 16 steps": the node
            fixes its length; or "not proven".
        reason: Why it is not proven.

    Examples:
        >>> [proof.status for proof in rl.verify(model, rl.lower(model)).proofs]
        ['proven', 'proven']
    """

    node: str
    status: str
    reason: str = ""

    def __bool__(self) -> bool:
        return self.status != NOT_PROVEN


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        status: "verified", "failed", "not verified" if nothing could be compared, "unchanged" if nothing was
            lowered, or "not compared" if no comparison was asked for.
        method: How it was compared: `WHOLE`, `EACH_NODE`, `JUDGED`, or `CHUNKED` and the sizes of the chunks; in a
            target the name and version of its runtime.
        runs: The number of runs that were compared.
        outputs: One entry per output of the model over all runs; with `EACH_NODE` per output of each node.
        reason: Why the comparison failed or was not possible, or which part was not possible.
        each_run: The runs one by one.
        nodes: One entry per output of each node that was also compared on its own with float64, over all its runs.
        in_target: The result of the same comparison in the runtime of the target, None if it did not run there. If
            that is not verified, neither is the whole.
        over_limit: Whether it is not verified because a limit of time or memory ended the comparison.
        proofs: One entry per lowered node and converted Loop: whether it is proven, beside the runs. Empty unless
            the runs agreed.

    Examples:
        >>> check = rl.verify(model, rl.lower(model), runs=1)
        >>> bool(check), check.status, check.max_abs < 1e-5
        (True, 'verified', True)
    """

    status: str
    method: str = WHOLE
    runs: int = 0
    outputs: tuple[OutputCheck, ...] = ()
    reason: str = ""
    each_run: tuple[RunCheck, ...] = ()
    nodes: tuple[OutputCheck, ...] = ()
    in_target: Verification | None = None
    over_limit: bool = False
    proofs: tuple[NodeProof, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", spelled(self.reason))

    def __bool__(self) -> bool:
        return self.status == "verified"

    @property
    def whole(self) -> bool:
        """Whether the outputs of the two models were compared, not only those of single nodes."""
        return bool(self.runs) and self.method != EACH_NODE

    @property
    def max_abs(self) -> float:
        """The largest absolute difference of any output in any run."""
        return max((o.max_abs for o in self.outputs), default=0.0)

    __repr__ = in_brackets

    def __str__(self) -> str:
        """Return the result in one line."""
        if self.in_target is not None:
            return f"{replace(self, in_target=None)}; {self.in_target}" if self.in_target else str(self.in_target)
        if self.status == "failed":
            return f"verification failed ({self.method}): {self.reason}"
        if self.status == UNCHANGED:
            return f"nothing to compare: {self.reason}"
        if self.status == NOT_COMPARED:
            return f"not compared with the original: {self.reason}"
        if self.status != "verified":
            return f"not verified: {self.reason}"
        numbers = f"{counted(self.runs, 'run')}, largest difference {self.max_abs:.2g}{self._sizes()}"
        if self.method == EACH_NODE:
            line = f"nodes verified, not the whole model ({EACH_NODE}): {numbers}"
        else:
            line = f"verified ({self.method}): {numbers}"
        return "; ".join(filter(None, (self.proven(), line, self.reason)))

    def proven(self, where: str = "") -> str:
        """Return how many nodes are proven, and for which lengths; "" if no proof was tried.

        Args:
            where: What says why no node is proven.
        """
        if not self.proofs:
            return ""
        proven = [proof.status for proof in self.proofs if proof]
        lengths = "for every length and input" if {*proven} == {PROVEN} else "for every input"
        why = f"({where or ('-v' if is_for_command() else '.proofs')} says why)"
        loops = " and Loops" if any(proof.node.startswith(("Loop", "Scan")) for proof in self.proofs) else ""
        nodes = f"{len(proven)} of {counted(len(self.proofs), 'node')}{loops} proven"
        return f"{nodes} {lengths}, up to rounding" if proven else f"{nodes} {why}"

    def _sizes(self) -> str:
        """Return the shapes and switches that differ from run to run, of the first input of each kind; "" if none
        does, or nodes or chunks are compared."""
        if self.method == EACH_NODE or IN_CHUNKS in self.method:
            return ""
        by_name: dict[str, list[RunInput]] = {}
        for given in (given for run in self.each_run for given in run.inputs):
            by_name.setdefault(given.name, []).append(given)
        texts: dict[bool, str] = {}
        for name, inputs in by_name.items():
            are_switches = len({given.shape for given in inputs}) == 1 and inputs[0].value is not None
            shown = (given.value if are_switches else list(given.shape) for given in inputs)
            distinct = list(dict.fromkeys(map(str, shown)))
            if len(distinct) > 1:
                some = ", ".join(distinct[:_MOST_SIZES]) + (", ..." if len(distinct) > _MOST_SIZES else "")
                texts.setdefault(not are_switches, f"{name}{' =' * are_switches} {some}")
        return f" ({'; '.join(texts[key] for key in sorted(texts, reverse=True))})" if texts else ""

    def and_in(self, target: Verification) -> Verification:
        """Return the same result with that of the runtime of the target."""
        return replace(self, status=self.status if target else target.status, in_target=target)

    def with_advice(self, advice: str) -> Verification:
        """Return the same result with a hint appended."""
        return replace(self, reason=f"{self.reason}; {advice}")

    def beside(self, others: Sequence[Verification], sizes: Mapping[str, Sequence[int]]) -> Verification:
        """Return the result over several originals, which are the same net at other sizes.

        Args:
            others: The results of the other originals.
            sizes: By name, a size of each original.
        """
        for n, found in enumerate((self, *others)):
            if not found:
                text = ", ".join(f"{name} = {held[n]}" for name, held in sizes.items())
                return replace(found, reason=f"at {text}: {found.reason}")
        each = tuple(run for found in (self, *others) for run in found.each_run)
        facts = dict.fromkeys(found.reason for found in (self, *others))
        texts = (
            f"{name} = {' and '.join(filter(None, (', '.join(map(str, held[:-1])), str(held[-1]))))}"
            for name, held in sizes.items()
        )
        reason = "; ".join(filter(None, (f"verified at {', '.join(texts)}", *facts)))
        return replace(self, runs=len(each), outputs=over_all(each), each_run=each, reason=reason)

    def judged(self, reason: str, method: str = JUDGED) -> Verification:
        """Return a failed comparison as verified, because float64 confirms it, or another method."""
        each_run = tuple(RunCheck(run.inputs, _passed(run.outputs)) for run in self.each_run)
        return Verification("verified", method, self.runs, _passed(self.outputs), reason, each_run)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: the fields by name, `max_abs` and `whole`; of the result in the target a few."""
        there = self.in_target
        in_target = None if there is None else {name: getattr(there, name) for name in _IN_TARGET}
        return asdict(self) | {"max_abs": self.max_abs, "whole": self.whole, "in_target": in_target}


NOT_ASKED_FOR = Verification(NOT_COMPARED, reason="no run was asked for")


def _passed(checks: Iterable[OutputCheck]) -> tuple[OutputCheck, ...]:
    return tuple(replace(check, passed=True) for check in checks)


def over_all(runs: Iterable[RunCheck]) -> tuple[OutputCheck, ...]:
    """Merge the checks of several runs into one per output, with the reason of the worst."""
    by_name: dict[str, list[OutputCheck]] = {}
    for check in (check for run in runs for check in run.outputs):
        by_name.setdefault(check.name, []).append(check)
    worst = {n: min(checks, key=lambda check: (check.passed, -check.max_abs)) for n, checks in by_name.items()}
    return tuple(replace(w, max_abs=max(check.max_abs for check in by_name[n])) for n, w in worst.items())
