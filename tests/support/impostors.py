"""Models that compute almost what an original computes: the lowered form of a node that differs in one thing.

A verification that looks at too few sizes, at inputs of one magnitude, or at absolute differences accepts them as
the original.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
from cases import Array, Case, model
from onnx import helper, numpy_helper, parser
from oracle import GATES
from running import scopes

import rnn_lowering as rl

Weights = Callable[[dict[str, Array]], None]
Edit = Callable[[onnx.ModelProto], None]
DIRECTIONS = ("forward", "reverse", "bidirectional")
STATES = ("B", "initial_h", "initial_c")


@dataclass(frozen=True, eq=False)
class Impostor:
    """An original, and what its impostor has otherwise.

    Attributes:
        case: The original.
        given: Weights of the original by symbol, times the random ones of the case.
        attributes: Attributes of the impostor's node; None removes one.
        weights: Changes the impostor's weights in place.
        inputs: Changes the inputs of the impostor's node by position, "" removes one.
        edit: Changes the lowered impostor.
    """

    name: str
    case: Case
    given: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    weights: Weights | None = None
    inputs: Mapping[int, str] = field(default_factory=dict)
    edit: Edit | None = None

    def models(self, form: Any = "auto") -> tuple[onnx.ModelProto, onnx.ModelProto, onnx.ModelProto]:
        """Return the original, what a right lowering makes of it, and the lowered impostor."""
        original = model(self.case, 17 if self.case.dtype != "bfloat16" else 22)
        held = {t.name: numpy_helper.to_array(t).copy() for t in original.graph.initializer}
        for symbol, factor in self.given.items():
            held[symbol] *= np.asarray(factor, held[symbol].dtype)
        _hold(original, held)
        other = onnx.ModelProto()
        other.CopyFrom(original)
        (node,) = other.graph.node
        kept = [a for a in node.attribute if a.name not in self.attributes]
        given = {name: value for name, value in self.attributes.items() if value is not None}
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in given.items())])
        for slot, name in self.inputs.items():
            node.input[slot] = name
        if self.weights:
            self.weights(held)
            _hold(other, held)
        wrong = rl.lower(other, form)
        if self.edit:
            self.edit(wrong)
        return original, rl.lower(original, form), wrong


def _hold(proto: onnx.ModelProto, arrays: Mapping[str, Array]) -> None:
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(arrays[tensor.name]), tensor.name))


def times(symbol: str, factor: float, gate: int | None = None, gates: int = 1) -> Weights:
    """Multiply a weight, or one of its gates."""

    def edit(held: dict[str, Array]) -> None:
        parts = np.split(held[symbol], gates, axis=1)
        for n, part in enumerate(parts):
            part *= np.asarray(factor if gate in (None, n) else 1, part.dtype)
        held[symbol] = np.concatenate(parts, axis=1)

    return edit


def exchanged(symbol: str, axis: int, a: int, b: int, parts: int) -> Weights:
    """Exchange two parts of a weight."""

    def edit(held: dict[str, Array]) -> None:
        split = np.split(held[symbol], parts, axis=axis)
        split[a], split[b] = split[b], split[a]
        held[symbol] = np.concatenate(split, axis=axis)

    return edit


def entering(name: str, text: str) -> Edit:
    """Let nodes, as text, that make WRONG of an input come before whatever reads it."""

    def edit(lowered: onnx.ModelProto) -> None:
        for node in (node for scope in scopes(lowered.graph) for node in scope.node):
            node.input[:] = ["WRONG" if given == name else given for given in node.input]
        made = parser.parse_graph(f"made () => () {{ {text} }}").node
        for node in reversed(made):
            lowered.graph.node.insert(0, node)

    return edit


def at_size(axis: int, op_type: str, size: int) -> Edit:
    """Let X be 1.5 times as large where a size of it equals (Equal), or exceeds (Greater), a number."""
    return entering(
        "X",
        f"""axis = Constant <value = int64 {{{axis}}}> () limit = Constant <value = int64 {{{size}}}> ()
            more = Constant <value = float {{1.5}}> () one = Constant <value = float {{1}}> ()
            sizes = Shape (X) size = Gather (sizes, axis) case = {op_type} (size, limit)
            factor = Where (case, more, one) WRONG = Mul (X, factor)""",
    )


def bounded(name: str, least: float, most: float) -> Edit:
    """Clip an input."""
    kind = "int32" if name == "sequence_lens" else "float"
    return entering(
        name,
        f"""least = Constant <value = {kind} {{{least}}}> () most = Constant <value = {kind} {{{most}}}> ()
            WRONG = Clip ({name}, least, most)""",
    )


def first_row_only(name: str) -> Edit:
    """Let all rows start from the initial state of the first."""
    return entering(
        name,
        f"""row = Constant <value = int64[1] {{0}}> () shape = Shape ({name})
            first = Gather <axis = 1> ({name}, row) WRONG = Expand (first, shape)""",
    )


CELLS = {"RNN": {}, "GRU": {}, "GRU_lbr": {"linear_before_reset": 1}, "LSTM": {}}


def _case(cell: str, direction: str = "forward", *optional: str, H: int = 4, **attributes: Any) -> Case:
    merged = {**CELLS[cell], "direction": direction, **attributes}
    name = f"impostor_{cell}_{direction}_{H}"
    return Case(name, cell.split("_")[0], merged, T=6, H=H, optional=optional or ("B",), x="symbolic")


def _cells() -> Iterator[Impostor]:
    """Terms that are left out, counted twice or taken for another."""
    for cell, direction in product(CELLS, DIRECTIONS):
        case = _case(cell, direction, H=16 if direction == "reverse" else 4)
        for symbol, factor in (("R", 0.0), ("R", 1.001), ("B", 0.999)):
            yield Impostor(f"{symbol} times {factor}", case, weights=times(symbol, factor))
    for cell, direction in product(("GRU", "GRU_lbr", "LSTM"), DIRECTIONS):
        case, gates = _case(cell, direction), GATES[cell.split("_")[0]]
        yield Impostor("first gates exchanged", case, weights=exchanged("R", 1, 0, 1, gates))
        yield Impostor("Rb of the last gate left out", case, weights=times("B", 0, 2 * gates - 1, 2 * gates))
    yield Impostor("f = 1 - i", _case("LSTM"), attributes={"input_forget": 1})
    yield Impostor("f is not 1 - i", _case("LSTM", input_forget=1), attributes={"input_forget": 0})
    for flag in (0, 1):
        case = _case("GRU", linear_before_reset=flag)
        yield Impostor(
            f"linear_before_reset {flag} is {1 - flag}", case, attributes={"linear_before_reset": 1 - flag}
        )


def _small_terms() -> Iterator[Impostor]:
    """Terms that an absolute tolerance covers where inputs are of unit size."""
    for cell, scale in product(CELLS, (1e-2, 1e-3)):
        given = {"R": scale, "W": scale, "B": scale}
        yield Impostor(f"R of {scale} left out", _case(cell), given, weights=times("R", 0))
        yield Impostor(f"B of {scale} left out", _case(cell), given, weights=times("B", 0))
    for gate, scale in product(range(3), (1e-2, 1e-3)):
        case, left_out = _case("LSTM", "forward", "B", "P"), times("P", 0, gate, 3)
        yield Impostor(f"peephole {gate} of {scale}", case, {"P": scale}, weights=left_out)


def _clips() -> Iterator[Impostor]:
    for cell, clip, direction in product(CELLS, (0.5, 3.0, 5.0), ("forward", "bidirectional")):
        yield Impostor(f"clip {clip} left out", _case(cell, direction, clip=clip), attributes={"clip": None})
    for cell, clip in product(CELLS, (3.0, 5.0)):
        yield Impostor(f"clip {clip} too wide", _case(cell, clip=clip), attributes={"clip": 1.2 * clip})


def _activations() -> Iterator[Impostor]:
    changed = {
        "LeakyRelu": ([0.01], [0.02], [], []),
        "Elu": ([1.0], [0.9], [], []),
        "HardSigmoid": ([0.2], [0.21], [0.5], [0.5]),
        "ScaledTanh": ([0.5], [0.5], [0.7], [0.72]),
        "Affine": ([0.5], [0.5], [0.1], [0.11]),
    }
    for name, (alpha, other_alpha, beta, other_beta) in changed.items():
        given: dict[str, Any] = {k: v for k, v in {"activation_alpha": alpha, "activation_beta": beta}.items() if v}
        case = _case("RNN", activations=[name], **given)
        wrong = {"activation_alpha": other_alpha, "activation_beta": other_beta}
        yield Impostor(f"parameters of {name}", case, attributes={k: v or None for k, v in wrong.items()})
    for cell, (threshold, other) in product(("RNN", "GRU", "LSTM"), ((1.0, 1.1), (2.0, 3.0), (4.0, 4.5))):
        short = {"RNN": ["ThresholdedRelu"], "GRU": ["Sigmoid", "ThresholdedRelu"]}
        activations = short.get(cell, ["Sigmoid", "ThresholdedRelu", "Tanh"])
        case = _case(cell, activations=activations, activation_alpha=[threshold])
        yield Impostor(f"threshold {threshold} is {other}", case, attributes={"activation_alpha": [other]})
    exchanged_names: dict[tuple[str, ...], list[str]] = {
        ("LSTM", "Sigmoid", "Tanh", "Softsign"): ["Sigmoid", "Softsign", "Tanh"],
        ("LSTM", "Sigmoid", "HardSigmoid", "Tanh"): ["Sigmoid", "Sigmoid", "Tanh"],
        ("GRU", "Sigmoid", "Relu"): ["Sigmoid", "LeakyRelu"],
        ("RNN", "Relu"): ["Softplus"],
        ("RNN", "Relu", ""): ["LeakyRelu"],
    }
    for (cell, *names), wrong_names in exchanged_names.items():
        case = _case(cell, activations=[name for name in names if name])
        yield Impostor(
            f"{[name for name in names if name]} are {wrong_names}", case, attributes={"activations": wrong_names}
        )


def _lengths() -> Iterator[Impostor]:
    for cell, direction in product(("RNN", "GRU", "LSTM"), DIRECTIONS):
        case = _case(cell, direction, "B", "sequence_lens")
        yield Impostor("lengths left out", case, inputs={4: ""})
        yield Impostor("length 0 is 1", case, edit=bounded("sequence_lens", 1, 999))
        for most in (7, 20, 50):
            yield Impostor(f"lengths above {most} cut", case, edit=bounded("sequence_lens", 0, most))


def _states() -> Iterator[Impostor]:
    for cell, direction in product(("RNN", "GRU", "LSTM"), DIRECTIONS):
        case = _case(cell, direction, *STATES)
        yield Impostor("initial_h left out", case, inputs={5: ""})
        yield Impostor("initial_h of one row", case, edit=first_row_only("initial_h"))
        yield Impostor("initial_h above 2 cut", case, edit=bounded("initial_h", -2, 2))
        if cell == "LSTM":
            yield Impostor("initial_c left out", case, inputs={6: ""})
            yield Impostor("initial_h for initial_c", case, inputs={6: "initial_h"})
            yield Impostor("initial_c above 2 cut", case, edit=bounded("initial_c", -2, 2))


def _directions() -> Iterator[Impostor]:
    for cell in CELLS:
        gates = 2
        yield Impostor("forward is reverse", _case(cell), attributes={"direction": "reverse"})
        yield Impostor("reverse is forward", _case(cell, "reverse"), attributes={"direction": "forward"})
        for symbol in ("W", "R", "B"):
            case = _case(cell, "bidirectional")
            yield Impostor(f"{symbol} of the other direction", case, weights=exchanged(symbol, 0, 0, 1, gates))
    for cell, direction in product(("RNN", "GRU", "LSTM"), ("reverse", "bidirectional")):
        case = _case(cell, direction, "B", "sequence_lens", "initial_h", layout=1)
        yield Impostor("layout 1, initial_h left out", case, inputs={5: ""})
        yield Impostor("layout 1, lengths left out", case, inputs={4: ""})


def _sizes() -> Iterator[Impostor]:
    """Faults at some sizes of X, or of its numbers, only."""
    for cell, (op_type, size) in product(
        ("RNN", "GRU", "LSTM"),
        (("Equal", 1), ("Equal", 2), ("Equal", 3), ("Equal", 4), ("Greater", 16), ("Greater", 64)),
    ):
        yield Impostor(f"T {op_type} {size}", _case(cell), edit=at_size(0, op_type, size))
    for cell, (op_type, size) in product(
        ("RNN", "GRU", "LSTM"), (("Equal", 1), ("Equal", 4), ("Greater", 3), ("Greater", 8))
    ):
        yield Impostor(f"N {op_type} {size}", _case(cell), edit=at_size(1, op_type, size))
    for cell, most in product(("RNN", "GRU", "LSTM"), (2.0, 4.0)):
        yield Impostor(f"|X| above {most} cut", _case(cell), edit=bounded("X", -most, most))


IMPOSTORS = [
    (f"{group.__name__[1:]} {i.case.name.removeprefix('impostor_')} {i.name}", i)
    for group in (_cells, _small_terms, _clips, _activations, _lengths, _states, _directions, _sizes)
    for i in group()
]
"""Names and impostors, in the order of the groups."""
