"""The report of a lowering, as data and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, counted, version
from rnn_lowering.flags import is_for_command, spelled
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.model.scopes import NodePlace, all_graphs
from rnn_lowering.types import Array, in_brackets

if TYPE_CHECKING:  # most models have neither loops of their own nor frames
    from rnn_lowering.loops.door import LoopReport
    from rnn_lowering.streaming.metadata import StreamPlan
    from rnn_lowering.targets.onnx_tests import Misread, OperatorTests

SCHEMA = 1
"""Version of the fields that docs/report.md describes: it rises when a field is removed or changes its meaning."""


FOLDED = "computed the values that follow from the fixed sizes"
CONSTANTS = "computed the values that follow from constants"
ASSUMED = "assumed: "
"""Begins a note on what was not proved: the result line has it too."""


@dataclass(frozen=True)
class NodeReport:
    """A lowered node and its form; `place` identifies it in the model.

    Examples:
        >>> _, report = rl.lower(model, full=True)
        >>> [node.form for node in report.nodes]
        ['scan', 'scan']
    """

    name: str
    operator: str
    version: int
    scope: str
    dtype: str
    direction: str
    seq_length: int | None
    batch_size: int | None
    input_size: int | None
    hidden_size: int | None
    form: str
    reason: str
    warnings: tuple[str, ...] = ()
    place: NodePlace = field(default=(), repr=False)
    steps: int = field(default=0, repr=False)

    @classmethod
    def of(cls, planned: NodePlan) -> NodeReport:
        spec, choice = planned.spec, planned.choice
        return cls(
            name=spec.node.name,
            operator=spec.node.operator,
            version=spec.version,
            scope=spec.node.scope,
            dtype=spec.dtype.name.lower(),
            direction=spec.direction,
            seq_length=spec.seq_length,
            batch_size=spec.batch_size,
            input_size=spec.input_size,
            hidden_size=spec.hidden_size,
            form=choice.form,
            reason=choice.reason,
            warnings=spec.warnings,
            place=planned.found.place,
            steps=(spec.seq_length or 0) if spec.repeats else 0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as docs/report.md describes it."""
        return {name: value for name, value in vars(self).items() if name not in ("place", "steps")}


@dataclass(frozen=True)
class UnsupportedNode:
    """A node that stays, and that the target does not compute right.

    None of ONNX's tests of its operator was right there, or those with its modes were wrong; or it is known.

    Attributes:
        node: Its name, operator and scope.
        target: The runtime.
        version: The version that was measured.
        tests: What became of the tests, or how the node is computed.
    """

    node: NodeRef
    target: str
    version: str
    tests: OperatorTests | Misread

    @property
    def reason(self) -> str:
        """Why it is named."""
        return f"{self.target} {self.version} {self.tests.failures(' it')}"

    def __str__(self) -> str:
        return f"left for {self.target}: {self.node}, which {self.target} {self.version} {self.tests.failures()}"

    def to_dict(self) -> dict[str, str]:
        """Return plain data, as docs/report.md describes it."""
        return {**vars(self.node), "reason": self.reason}


def unsupported_texts(nodes: Sequence[UnsupportedNode]) -> Iterator[str]:
    """Yield a warning for each operator that the target cannot run, and each reason."""

    def key(each: UnsupportedNode) -> tuple[str, str]:
        return each.node.operator, each.reason

    for _, group in groupby(sorted(nodes, key=key), key=key):
        first, *more = group
        yield f"{first}, and {len(more)} more" if more else str(first)


@dataclass(frozen=True)
class ReplacedNode:
    """A node that the target does not compute right, and that other operators took the place of.

    Attributes:
        node: Its name, operator and scope.
        operators: The operators that took its place.
        reason: What became of the tests of its operator, or how the node is computed.
    """

    node: NodeRef
    operators: tuple[str, ...]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as docs/report.md describes it."""
        return {**vars(self.node), "operators": self.operators, "reason": self.reason}


@dataclass(frozen=True)
class SetInput:
    """An input that became a constant; `value` is None if it is not a single number."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    value: float | int | bool | None

    @classmethod
    def of(cls, name: str, array: Array) -> SetInput:
        return cls(name, array.dtype.name, array.shape, array.item() if array.size == 1 else None)


@dataclass
class Report:
    """The result of a lowering.

    Attributes:
        target: The runtime that it is for.
        nodes: The lowered nodes, in the order of the model.
        loops: The Loops and Scans of the model that were lowered or raised.
        left: Recurrent nodes that were not lowered, and why, as text.
        replaced: Other nodes, which the target cannot run, and what took their place.
        unsupported: Those that stay.
        adapted: What the runtime needed of the model around lowered nodes; notes have it, too.
        notes: Other changes to the model.
        set_inputs: Inputs that became constants; the lowered model does not have them.
        operators_before, operators_after: The number of nodes of each operator, in the whole model.
        stream: How to call the result, if it is a stream.

    Examples:
        >>> _, report = rl.lower(model, target="tvm", dims={"seq": 16}, full=True)
        >>> report.target, report.operators_before["LSTM"], report.operators_after["Tanh"]
        ('tvm', 1, 48)
    """

    target: str = "portable"
    nodes: list[NodeReport] = field(default_factory=list)
    loops: list[LoopReport] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    replaced: list[ReplacedNode] = field(default_factory=list)
    unsupported: list[UnsupportedNode] = field(default_factory=list)
    adapted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    set_inputs: list[SetInput] = field(default_factory=list)
    operators_before: dict[str, int] = field(default_factory=dict)
    operators_after: dict[str, int] = field(default_factory=dict)
    stream: StreamPlan | None = None

    @property
    def lowered_any(self) -> bool:
        """Whether a node, Loop or Scan was replaced, a stream was made, or the model adapted to its target."""
        return bool(self.nodes or self.loops or self.replaced or self.adapted or self.stream is not None)

    __repr__ = in_brackets

    def __str__(self) -> str:
        """Return what was done, as the command says it."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of lowered node, and what else was done or left."""
        by_operator: dict[str, Counter[str]] = {}
        for node in self.nodes:
            by_operator.setdefault(node.operator, Counter())[node.form] += 1
        for operator, forms in by_operator.items():
            shown = [f"{form} ({count})" if len(forms) > 1 else form for form, count in forms.items()]
            yield f"lowered {counted(forms.total(), f'{operator} node')}: {', '.join(shown)}"
        details = self.details()
        yield from (note for note in self.notes if note not in details)
        if self.adapted:
            where = "-v lists them" if is_for_command() else "in notes"
            yield f"{counted(len(self.adapted), 'change')} for {self.target}, no action needed ({where})"
        yield from (f"left as it is: {text}" for text in self.left)

    def details(self) -> list[str]:
        """Return the notes on what was done to the model of which its user need not know."""
        return [note for note in self.notes if note in (FOLDED, CONSTANTS, *self.adapted)]

    def spell(self) -> None:
        """Give the options in its texts the spelling of the caller: keywords of Python, or flags."""
        self.notes, self.left = [*map(spelled, self.notes)], [*map(spelled, self.left)]
        self.adapted = [*map(spelled, self.adapted)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as docs/report.md describes it."""
        return {
            "schema": SCHEMA,
            "version": version(),
            "command": "",
            "target": self.target,
            "files": {"before": None, "after": None},
            "written": False,
            "kept": "",
            "nodes": [node.to_dict() for node in self.nodes],
            "loops": [vars(loop) for loop in self.loops],
            "left": self.left,
            "replaced": [node.to_dict() for node in self.replaced],
            "unsupported": [node.to_dict() for node in self.unsupported],
            "notes": self.notes,
            "set_inputs": [vars(given) for given in self.set_inputs],
            "operators": {"before": self.operators_before, "after": self.operators_after},
            "stream": None if self.stream is None else self.stream.to_dict(),
            "verification": None,
            "quantization": None,
        }

    def to_json(self) -> str:
        """Return the data as JSON, which has no infinite numbers: they are null."""
        return json.dumps(_finite(self.to_dict()), indent=1, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def count_operators(model: ir.Model) -> dict[str, int]:
    """Count the operators of every graph, subgraph and function of a model."""
    counts = Counter(map(attrgetter("domain", "op_type"), chain.from_iterable(all_graphs(model))))
    return dict(sorted((f"{domain}::{name}" if domain else name, n) for (domain, name), n in counts.items()))
