"""The preview and the report of a lowering, as data and as JSON.

Hints for users: which inputs to fix if a size is unknown or a branch invalid, and when a stream is better.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import permutations
from shlex import quote
from typing import Any

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, RnnLoweringError, version
from rnn_lowering.loops.lowering import LoopReport
from rnn_lowering.model.copying import clone
from rnn_lowering.model.fixed_inputs import fix_dimensions, folded, input_arrays
from rnn_lowering.model.model_sizes import inferred_values
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.model.scopes import REPEATING, NodePlace, all_graphs, bodies_of
from rnn_lowering.spec.constant_values import constant_of
from rnn_lowering.spec.node_spec import NodeSpec, default_opset
from rnn_lowering.streaming.metadata import StreamPlan
from rnn_lowering.types import Array

SCHEMA = 1
"""Version of the fields that docs/report.md describes: it rises when a field is removed or changes its meaning."""


REFUSED, LEFT = "refused", "left as it is"


@dataclass(frozen=True)
class Preview:
    """The form that a recurrent node would get; or a Loop or Scan of the model itself, with `spec` None.

    Attributes:
        node: Its name, operator and scope.
        spec: What it specifies; None if it cannot be read.
        form: "scan", "loop", "unroll", `REFUSED` or `LEFT`.
        reason: Why.
        hint: What to try if it is refused.

    Examples:
        >>> [(each.spec.op_type, each.form) for each in rl.preview(model)]
        [('LSTM', 'scan'), ('GRU', 'scan')]
    """

    node: NodeRef
    spec: NodeSpec | None
    form: str
    reason: str
    hint: str = ""

    @classmethod
    def refused(cls, error: RnnLoweringError, node: NodeRef, spec: NodeSpec | None = None) -> Preview:
        return cls(node, spec, REFUSED, error.reason, error.hint)

    @property
    def counts(self) -> bool:
        """Whether the node is recurrent by its operator, or refused: a Loop or Scan that stays is neither."""
        return self.node.operator not in REPEATING or self.form != LEFT


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
class SetInput:
    """An input that became a constant: `value` where it is one number, else None."""

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
        loops: The Loops and Scans of the model that were lowered.
        left: Recurrent nodes that were not lowered, and why, as text.
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
    notes: list[str] = field(default_factory=list)
    set_inputs: list[SetInput] = field(default_factory=list)
    operators_before: dict[str, int] = field(default_factory=dict)
    operators_after: dict[str, int] = field(default_factory=dict)
    stream: StreamPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as docs/report.md describes it."""
        return {
            "schema": SCHEMA,
            "version": version(),
            "command": "",
            "target": self.target,
            "files": {"before": None, "after": None},
            "nodes": [node.to_dict() for node in self.nodes],
            "loops": [vars(loop) for loop in self.loops],
            "left": self.left,
            "notes": self.notes,
            "set_inputs": [vars(given) for given in self.set_inputs],
            "operators": {"before": self.operators_before, "after": self.operators_after},
            "stream": None if self.stream is None else self.stream.to_dict(),
            "verification": None,
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
    counts: Counter[str] = Counter()
    for graph in all_graphs(model):
        for node in graph:
            counts[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
    return dict(sorted(counts.items()))


_COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
_SAME_NUMBERS = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")
_MOST_CANDIDATES = 12

_SHAPES = {"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0, "Range": 0, "Slice": 1, "Pad": 1, "Split": 1}
"""By operator, its first input that holds sizes or positions instead of data; so do all later ones."""

_SIZES_ONLY = ("Shape", "Size")

NO_LENGTHS = "export the model without lengths, or with constant lengths"
"""The hint where no input of the model decides sequence_lens."""

_MANY_STEPS = 32
"""Compilers take 0.03 to 0.3 s for each unrolled step, and more for each if there are more."""

_MINUTES = 512
"""More unrolled steps take minutes to write, to compare and to compile."""


def long_work(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a warning if so much is unrolled that everything after it takes minutes."""
    steps = sum(node.steps for node in nodes if node.form == "unroll")
    if steps <= _MINUTES:
        return []
    return [f"{steps:,} steps are unrolled in total: lowering and compiling will take minutes"]


def many_steps(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a note where more steps are unrolled than compilers load quickly, and a stream is possible."""
    long = [node for node in nodes if node.form == "unroll" and node.steps > _MANY_STEPS]
    if not long or any(node.direction != "forward" for node in long):
        return []
    steps = max(node.steps for node in long)
    return [f"{steps} steps are unrolled, which compilers load slowly; a stream has only one step: --stream AXIS=1"]


def open_sizes(model: ir.Model, value: ir.Value, axes: tuple[int, ...], *, every: bool = False) -> str:
    """Return the options that fix sizes of a value, with ? for sizes that the user has to fill in.

    Args:
        model: The model.
        value: A value of the model or of one of its subgraphs.
        axes: The dimensions of the value that must be known.
        every: Fix the sizes of all inputs.

    Returns:
        Options of the command line; empty if the value depends on no open size of an input.
    """
    inputs = [v for v in model.graph.inputs if v.shape is not None and not v.is_initializer()]
    names = {d.value for v in inputs for d in v.shape or () if isinstance(d, ir.SymbolicDim) and d.value}
    known = inferred_values(model).get(value, value).shape
    wanted = [known[axis] for axis in axes] if known is not None and len(known) > max(axes) else [None]
    wanted = [dim for v in inputs for dim in v.shape or ()] if every else wanted
    missing = [dim.value if isinstance(dim, ir.SymbolicDim) else None for dim in wanted if not isinstance(dim, int)]
    set_by_numbers = every and any(map(_is_shape, inputs))
    if missing and all(name in names for name in missing) and not set_by_numbers:
        return " ".join(f"--set-dim {quote(f'{name}=')}?" for name in dict.fromkeys(missing))
    sources = _behind(value, model)
    behind = [v for v in inputs if every or v in sources]
    shaped = [v for v in behind if not (v.shape is None or v.shape.is_static())]
    return " ".join(
        [
            *(f"--input-shape {quote(f'{v.name}:')}{','.join(_sizes(v))}" for v in shaped if not _is_shape(v)),
            *(f"--set-input {_given(v)}" for v in behind if _is_shape(v)),
        ]
    )


def open_trips(model: ir.Model, value: ir.Value | None) -> str:
    """Return a hint which inputs to fix so that the number of steps is known; empty where that follows from none.

    Args:
        model: The model.
        value: What the number of steps follows from, in a copy of the model.
    """
    if value is None:
        return ""
    behind = {v.name for v in _behind(value, model) if v.is_graph_input()}
    deciding = [v for v in model.graph.inputs if v.name in behind and not v.is_initializer()]
    numbers = [v for v in deciding if v.dtype is not None and v.dtype.is_integer() and _is_small(v)]
    if numbers:
        return f"make them constants: {' '.join(f'--set-input {_given(v)}' for v in numbers)}"
    sizes = open_sizes(model, deciding[0], (0,), every=True) if deciding else ""
    return f"fix the sizes of the inputs, with a number for each ?: {sizes}" if sizes else ""


def _is_shape(value: ir.Value) -> bool:
    """Return whether the numbers of an integer value are sizes or positions of another value."""
    if value.dtype is None or not value.dtype.is_integer():
        return False
    for node, index in value.uses():
        if index >= _SHAPES.get(node.op_type, index + 1):
            return True
        if node.op_type in _SAME_NUMBERS and any(map(_is_shape, node.outputs)):
            return True
    return False


def open_lengths(model: ir.Model, lengths: ir.Value, X: ir.Value) -> str:
    """Return a hint which inputs of the model to fix so that sequence_lens are constant; empty if X would be."""
    data = _behind(X, model)
    behind = _behind(lengths, model, _SIZES_ONLY)
    deciding = [v for v in model.graph.inputs if v in behind and not v.is_initializer()]
    if not deciding and (sizes := open_sizes(model, lengths, (0,), every=True)):
        return f"fix the sizes of the inputs, with a number for each ?: {sizes}"
    if not deciding or any(v in data and not _is_small(v) for v in deciding):
        return ""
    return f"make them constants: {' '.join(f'--set-input {_given(v)}' for v in deciding)}"


def _is_small(value: ir.Value) -> bool:
    """Return whether an input holds at most one number for each sequence."""
    return value.shape is not None and len(value.shape) <= 1


def _given(value: ir.Value) -> str:
    """Return NAME=? for an input of one number, NAME=FILE.npy for another."""
    one = value.shape is not None and all(dim == 1 for dim in value.shape)
    return f"{quote(f'{value.name}=')}{'?' if one else 'FILE.npy'}"


def _sizes(value: ir.Value) -> list[str]:
    return [_size(dim) for dim in value.shape or ()]


def _size(dim: int | ir.SymbolicDim) -> str:
    return str(dim) if isinstance(dim, int) and dim >= 0 else "?"


def _behind(value: ir.Value, model: ir.Model, but: Container[str] = ()) -> set[ir.Value]:
    """Return the values that a value is computed from, those of these operators not followed."""
    holders = {body: node for node in model.graph.all_nodes() for body in bodies_of(node)}
    behind: set[ir.Value] = set()
    pending: list[ir.Value | None] = [value]
    while pending:
        current = pending.pop()
        if current is None or current in behind:
            continue
        behind.add(current)
        node = current.producer()
        if node is not None and node.op_type not in but:
            pending += (*node.inputs, *(output for body in bodies_of(node) for output in body.outputs))
        elif node is None and current.graph in holders:
            pending += holders[current.graph].inputs
    return behind


def deciding_input(model: ir.Model, accepts: Callable[[ir.Model], bool]) -> str:
    """Return a hint which input to set so that an invalid branch of an If is never run; empty if there is none.

    Args:
        model: The model.
        accepts: Returns whether a model has no invalid branch.
    """
    for name, value in list(dict.fromkeys(_candidates(model)))[:_MOST_CANDIDATES]:
        trial = clone(model)
        try:
            fix_dimensions(trial, {}, {}, input_arrays(trial, {name: value}))
        except RnnLoweringError:
            continue
        trial = folded(trial, decide=True) or trial
        if accepts(trial):
            return f"if its branch is never run, set the input that decides (--set-input {quote(name)}={value})"
    return ""


def _candidates(model: ir.Model) -> Iterator[tuple[str, int]]:
    """Yield inputs, and integers that they are compared with, also one more and one less."""
    opset = default_opset(model.opset_imports)
    for node in model.graph.all_nodes():
        if node.domain or node.op_type not in _COMPARISONS:
            continue
        for value, other in permutations(node.inputs, 2):
            source = _source(value)
            tensor = None if other is None else constant_of(other, opset)
            if source is not None and tensor is not None and tensor.size == 1 and tensor.dtype.is_integer():
                number = int(tensor.numpy().item())
                yield from ((source.name or "", number + step) for step in (0, 1, -1))


def _source(value: ir.Value | None) -> ir.Value | None:
    """Return the integer input of the model whose elements a value has, in any shape."""
    while value is not None and (node := value.producer()) is not None:
        value = node.inputs[0] if node.inputs and node.op_type in _SAME_NUMBERS else None
    whole = value is not None and value.dtype is not None and value.dtype.is_integer()
    return value if whole and value is not None and value.is_graph_input() else None
