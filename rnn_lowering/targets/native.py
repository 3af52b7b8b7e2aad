"""`NativeRule`: which recurrent nodes a version of a runtime was measured to compute right itself, and how fast.

A rule is data. It lists features that are right in any combination, and combinations that are excluded
all the same. A feature that it does not list was not measured with the others, so no node with it is native.
Measure a rule with `python -m clients.native NAME` in tests/clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.composites import can_flip
from rnn_lowering.errors import OptionError
from rnn_lowering.nodes.kinds import CELLS
from rnn_lowering.nodes.rnn import ACTIVATION_PARAMETERS, RecurrentSpec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.types import array_of

_STEPS, _ROWS = 100, 1
"""The sizes for which a speed is looked up where T or N is open."""


@dataclass(frozen=True)
class PlacedNode:
    """A node and where it stands.

    Attributes:
        spec: What it specifies.
        node: The node.
        opset: The opset of the result.
        around: The operators of the nodes whose bodies it is in, outermost first; "function" for a function.
        shares_data: Whether another recurrent node, or another Transpose, may read the same X.
        unnamed_sizes: Whether an input or output of the model has a size that is neither a number nor a name.
    """

    spec: NodeSpec
    node: ir.Node
    opset: int
    around: tuple[str, ...] = ()
    shares_data: bool = False
    unnamed_sizes: bool = False

    @property
    def rnn(self) -> RecurrentSpec:
        assert isinstance(self.spec, RecurrentSpec)
        return self.spec

    @property
    def functions(self) -> set[str]:
        """The activation functions, if one is not the default of its gate."""
        default = self.rnn.cell.activations
        every = [tuple(activation.name for activation in group) for group in self.rnn.activations]
        return set() if all(group == tuple(default) for group in every) else {name for g in every for name in g}

    def size_of_X(self, axis: int) -> int | None:
        """Return the size of an axis of X, if its own shape tells it."""
        shape = self.rnn.shape_of_X
        return None if shape is None or len(shape) != 3 else shape[axis]

    @property
    def named(self) -> set[str]:
        """The outputs that have names, used or not."""
        symbols = ("Y", *(f"Y_{state}" for state in self.rnn.cell.states))
        return {symbol for symbol, value in zip(symbols, self.node.outputs, strict=False) if value.name}

    def constant(self, symbol: str) -> bool:
        return symbol in self.spec.constants

    def has(self, *symbols: str) -> bool:
        return any(symbol in self.spec.inputs for symbol in symbols)

    def is_zero(self, symbol: str) -> bool:
        return self.constant(symbol) and not array_of(self.spec.constants[symbol]).any()


def _is_whole(placed: PlacedNode) -> bool:
    """Return whether sequence_lens are constants that are all T."""
    lengths, T = placed.spec.constants.get("sequence_lens"), placed.spec.seq_length
    return lengths is not None and T is not None and bool((array_of(lengths) == T).all())


def _has_lower_case(placed: PlacedNode) -> bool:
    given = placed.node.attributes.get("activations")
    names = () if given is None or not placed.functions else given.as_strings()
    return any(name not in ACTIVATION_PARAMETERS for name in names)


def _writes_defaults(placed: PlacedNode) -> bool:
    return not placed.functions and any(name in placed.node.attributes for name in ACTIVATION_ATTRIBUTES)


def _has_empty_P(placed: PlacedNode) -> bool:
    """Return whether the node has an input P that is empty, where it could have none."""
    inputs = placed.node.inputs
    return placed.rnn.op_type == "LSTM" and len(inputs) == _INPUTS_OF_LSTM and inputs[-1] is None


def _is_unnamed(placed: PlacedNode) -> bool:
    """Return whether an output that the operator has is left out."""
    return len(placed.named) < 1 + len(placed.rnn.cell.states)


ACTIVATION_ATTRIBUTES = ("activations", "activation_alpha", "activation_beta")
_WEIGHTS = ("W", "R", "B", "P")
_INPUTS_OF_LSTM = 8
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

Holds = Callable[[PlacedNode], bool]


def _operator(name: str) -> Holds:
    return lambda placed: placed.spec.node.operator == name


def _direction(name: str) -> Holds:
    return lambda placed: placed.spec.direction == name


def _function(name: str) -> Holds:
    return lambda placed: name in placed.functions


def _type(dtype: ir.DataType) -> Holds:
    return lambda placed: placed.spec.dtype == dtype


def _inside(operator: str) -> Holds:
    return lambda placed: operator in placed.around


FEATURES: dict[str, Holds] = {
    **{operator: _operator(operator) for _, operator in CELLS},
    **{name: _direction(name) for name in ("forward", "reverse", "bidirectional")},
    **{name: _function(name) for name in ACTIVATION_PARAMETERS},
    "activations of each direction": lambda placed: len(set(placed.rnn.activations)) > 1,
    "activations in lower case": _has_lower_case,
    "written defaults": _writes_defaults,
    "clip": lambda placed: placed.rnn.clip is not None,
    "input_forget": lambda placed: placed.rnn.input_forget,
    "linear_before_reset": lambda placed: placed.rnn.op_type == "GRU" and placed.rnn.linear_before_reset,
    "linear_before_reset 0": lambda placed: placed.rnn.op_type == "GRU" and not placed.rnn.linear_before_reset,
    "layout 1": lambda placed: placed.rnn.layout == 1,
    "no hidden_size": lambda placed: "hidden_size" not in placed.node.attributes,
    "no B": lambda placed: not placed.has("B"),
    "P": lambda placed: placed.has("P") and not placed.is_zero("P"),
    "empty P": _has_empty_P,
    "P of zeros": lambda placed: placed.has("P") and placed.is_zero("P"),
    "sequence_lens": lambda placed: placed.has("sequence_lens") and not _is_whole(placed),
    "sequence_lens of T": lambda placed: placed.has("sequence_lens") and _is_whole(placed),
    "initial state": lambda placed: placed.has("initial_h", "initial_c"),
    "constant initial state": lambda placed: any(map(placed.constant, ("initial_h", "initial_c"))),
    "no initial_h": lambda placed: not placed.has("initial_h"),
    "initial_c without initial_h": lambda placed: placed.has("initial_c") and not placed.has("initial_h"),
    "initial_h without initial_c": lambda placed: (
        placed.rnn.op_type == "LSTM" and placed.has("initial_h") and not placed.has("initial_c")
    ),
    "initial_c of zeros or none": lambda placed: (
        placed.rnn.op_type == "LSTM" and (not placed.has("initial_c") or placed.is_zero("initial_c"))
    ),
    "Y_c beside others": lambda placed: len(placed.named) > 1 and "Y_c" in placed.named,
    "outputs without a name": _is_unnamed,
    "a constant X": lambda placed: placed.constant("X"),
    "a shared X": lambda placed: placed.shares_data,
    "computed weights": lambda placed: any(placed.has(s) and not placed.constant(s) for s in _WEIGHTS),
    "quantized weights": lambda placed: bool(placed.spec.quantized),
    "unnamed sizes": lambda placed: placed.unnamed_sizes,
    "I = 1": lambda placed: placed.spec.input_size == 1,
    "T = 1": lambda placed: placed.spec.seq_length == 1,
    "T = 0": lambda placed: placed.spec.seq_length == 0,
    "N above 1": lambda placed: placed.spec.batch_size != 1,
    "N = 0": lambda placed: placed.spec.batch_size == 0,
    "open T": lambda placed: placed.size_of_X(placed.rnn.layout) is None,
    "open N": lambda placed: placed.size_of_X(1 - placed.rnn.layout) is None,
    "open I": lambda placed: placed.size_of_X(2) is None,
    **{dtype.name.lower(): _type(dtype) for dtype in _TYPES},
    **{f"in {operator}": _inside(operator) for operator in ("If", "Loop", "Scan", "SequenceMap", "function")},
    "opset 1 to 6": lambda placed: placed.opset < 7,
    "opset 7 to 21": lambda placed: 7 <= placed.opset <= 21,
    "opset 22": lambda placed: placed.opset == 22,
    "opset above 22": lambda placed: placed.opset > 22,
}
"""What a node may have, by name: whether it has it."""

_PHRASES = {
    **{name: f"with direction {name}" for name in ("forward", "reverse", "bidirectional")},
    **{name: f"with the activation {name}" for name in ACTIVATION_PARAMETERS},
    "activations of each direction": "with other activations in each direction",
    "written defaults": "with activations that are the defaults",
    "linear_before_reset 0": "with linear_before_reset = 0",
    "no hidden_size": "without hidden_size",
    "no B": "without B",
    "empty P": "with an input P that is empty",
    "unnamed sizes": "in a model with a size that has no name",
    "initial state": "with an initial state",
    "constant initial state": "with a constant initial state",
    "no initial_h": "without initial_h",
    "initial_c of zeros or none": "with an initial_c of zeros or none",
    "Y_c beside others": "with Y_c beside other outputs",
    "N above 1": "with N other than 1",
    **{f"open {size}": f"with an open {size}" for size in "TNI"},
    **{dtype.name.lower(): f"with the type {dtype.name.lower()}" for dtype in _TYPES},
    "in If": "in a branch of an If",
    **{f"in {name}": f"in the body of a {name}" for name in ("Loop", "Scan", "SequenceMap", "function")},
    "opset 1 to 6": "at opsets 1 to 6",
    "opset 7 to 21": "at opsets 7 to 21",
    "opset 22": "at opset 22",
    "opset above 22": "at opsets above 22",
}
"""By feature, how a sentence names it; the others are "with" their name."""

RESET_AFTER, RESET_BEFORE = ("GRU", "linear_before_reset"), ("GRU", "linear_before_reset 0")
"""The features of the two kinds of GRU."""

OTHER_ACTIVATIONS = ("activations of each direction", *ACTIVATION_PARAMETERS)
"""The features of nodes whose activations are not the defaults."""

ADAPTED = {
    "outputs without a name": "named outputs",
    "no hidden_size": "written hidden_size",
    "layout 1": "transposed X and Y",
    "reverse": "flipped X and Y",
    "written defaults": "no activations",
    "empty P": "no empty P",
}
"""By feature, what an adaptation gives the node in its place."""

COMMON = frozenset(("no B", "empty P", "initial_h without initial_c", "unnamed sizes"))
"""Features that most runtimes compute right."""

ADAPTATIONS = frozenset(ADAPTED.values())


def features(names: str) -> frozenset[str]:
    """Return the features of a list with commas between them."""
    return frozenset(name.strip() for name in names.split(",") if name)


@dataclass(frozen=True)
class Excluded:
    """Features that no native node has together.

    Attributes:
        features: All of them must hold; () holds for each node.
        reason: What the runtime does with such a node, as a verb with its objects, such as "ignores clip".
    """

    features: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Speed:
    """How many times as fast as lowered a node was measured.

    Attributes:
        features: Those that it needs; of several that fit, the one with the most counts.
        T, N: The sizes.
        ratios: The time of the lowered node divided by its own time, by H.
        nodes: Of how many nodes; lowered, they share a loop.
    """

    features: tuple[str, ...]
    T: int
    N: int
    ratios: Mapping[int, float]
    nodes: int = 1


@dataclass(frozen=True)
class NativeRule:
    """The nodes that a version of a runtime computes right itself.

    Attributes:
        version: The version that was measured.
        date: When.
        right: The features that it computes right, in any combination without one of `excluded`; an adaptation is
            a feature too: see `ADAPTED`.
        excluded: The combinations whose nodes do not stay, and why the features that `right` lacks are not in it.
        speeds: How much faster nodes were than lowered ones.
        simulated: Whether it was measured in a simulator, whose time says nothing: all nodes that are right stay.

    Raises:
        OptionError: A feature that does not exist, or a line for a feature that no node has after its adaptations.

    Examples:
        >>> rule = rl.TARGETS["tract"].native
        >>> rule.version, "reverse" in rule.right
        ('0.23.9', False)
    """

    version: str
    date: str
    right: frozenset[str]
    excluded: tuple[Excluded, ...] = ()
    speeds: tuple[Speed, ...] = ()
    simulated: bool = False

    def __post_init__(self) -> None:
        named = {name for lines in (self.excluded, self.speeds) for line in lines for name in line.features}
        unknown = sorted((self.right | named) - FEATURES.keys() - ADAPTATIONS)
        if unknown:
            raise OptionError(
                f"a rule for native nodes names '{unknown[0]}', which is no feature",
                hint=f"known are {', '.join(sorted(FEATURES.keys() | ADAPTATIONS))}",
            )
        for old in sorted(named & self._adapted.keys()):
            raise OptionError(
                f"a rule for native nodes has a line for '{old}', which no node has: each gets {self._adapted[old]}"
            )

    @property
    def _adapted(self) -> dict[str, str]:
        """The features that adaptations replace, and by what."""
        return {old: new for old, new in ADAPTED.items() if new in self.right and old not in self.right}

    def judge(self, placed: PlacedNode) -> Verdict:
        """Return whether the runtime computes a node right."""
        if not isinstance(placed.spec, RecurrentSpec) or placed.spec.rounds:
            return Verdict(frozenset(), f"was not measured with {placed.spec.node.operator}")
        features, adaptations = self._after({name for name, holds in FEATURES.items() if holds(placed)})
        for line in self.excluded:
            if features.issuperset(line.features):
                return Verdict(features, line.reason)
        unmeasured = sorted(features - self.right)
        if unmeasured:
            phrase = _PHRASES.get(unmeasured[0], f"with {unmeasured[0]}")
            return Verdict(features, f"was not measured {phrase}")
        if "flipped X and Y" in adaptations and not can_flip(placed.opset, placed.spec.seq_length):
            return Verdict(features, "needs X flipped, which takes opset 10 if T is open or large")
        return Verdict(features, "", adaptations)

    def _after(self, features: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the features after the adaptations that the rule allows, and these."""
        changed = {old: new for old, new in self._adapted.items() if old in features}
        after = {*features} - changed.keys() | {*changed.values()}
        return frozenset(after | ({"forward"} if "reverse" in changed else set())), tuple(changed.values())

    def speed(self, verdict: Verdict, spec: NodeSpec, nodes: int = 1) -> float | None:
        """Return how many times as fast as lowered a node is, by the nearest sizes that were measured; None if it
        was not measured.

        Args:
            nodes: The number of nodes that would share a loop.
        """
        fitting = [line for line in self.speeds if verdict.features.issuperset(line.features)]
        if not fitting or spec.hidden_size is None:
            return None
        best = max(len(line.features) for line in fitting)
        sizes = (spec.seq_length or _STEPS, spec.batch_size or _ROWS, spec.hidden_size, nodes)
        measured = [
            (_distance(sizes, (line.T, line.N, H, line.nodes)), ratio)
            for line in fitting
            if len(line.features) == best
            for H, ratio in line.ratios.items()
        ]
        return min(measured)[1]


def _distance(a: Iterable[int], b: Iterable[int]) -> float:
    """Return how far T, N, H and the number of nodes are apart; that number counts most."""
    away = [abs(math.log(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True)]
    return sum(away[:3]) + 4 * away[3]


@dataclass(frozen=True)
class Verdict:
    """Whether a runtime computes a node right.

    Attributes:
        features: What the node has, after its adaptations.
        fault: Why it does not stay; "" if the runtime computes it right.
        adaptations: The features that adaptations must give the node: see `ADAPTED`.
    """

    features: frozenset[str]
    fault: str
    adaptations: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return not self.fault
