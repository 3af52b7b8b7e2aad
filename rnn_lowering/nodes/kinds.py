"""The tables of recurrent operators: `CELLS`, and `KINDS`, with what reads, emits and computes each kind."""

from __future__ import annotations

from collections.abc import Collection, Container
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lowering.errors import documented
from rnn_lowering.facts.contrib_schemas import DOMAIN
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.nodes.connections import KnownInputs
from rnn_lowering.nodes.spec import InputRole, NodeSpec

# Gated recurrences


DYNAMIC_QUANTIZE_LSTM = "DynamicQuantizeLSTM"


@dataclass(frozen=True)
class Cell:
    """What a gated recurrence, such as RNN, GRU and LSTM, has; its equation is in `recurrence/cells`.

    Its inputs are X, W, R, B, sequence_lens and the initial states in this order, then P; its outputs are Y and the
    final states. Y of a step is the first state.

    Attributes:
        operator: Its name.
        gates: The gates in the order of W, R and B, each a letter of the operator specification.
        activations: The default activations of one direction: f, g, h.
        states: The states: `initial_c` and `Y_c` are those of "c".
        peepholes: The gates that have one, in the order of P.
        resets: Whether a reset gate multiplies H, or its product, for the last gate: the product is then apart from
            those of the other gates.
    """

    operator: str
    gates: str
    activations: tuple[str, ...]
    states: tuple[str, ...] = ("h",)
    peepholes: str = ""
    resets: bool = False

    @property
    def initial_states(self) -> tuple[str, ...]:
        """The names of the inputs that are states."""
        return tuple(f"initial_{state}" for state in self.states)

    def state_slots(self) -> dict[str, tuple[int, int]]:
        """Return the number of the input and of the output of each state."""
        return {state: (5 + n, 1 + n) for n, state in enumerate(self.states)}


_LSTM = Cell("LSTM", "iofc", ("Sigmoid", "Tanh", "Tanh"), ("h", "c"), peepholes="iof")

CELLS = {
    ("", "RNN"): Cell("RNN", "i", ("Tanh",)),
    ("", "GRU"): Cell("GRU", "zrh", ("Sigmoid", "Tanh"), resets=True),
    ("", "LSTM"): _LSTM,
    (DOMAIN, DYNAMIC_QUANTIZE_LSTM): _LSTM,
}
"""By domain and operator."""


def cell_of(node: ir.Node | onnx.NodeProto) -> Cell:
    """Return the cell of a node that has one."""
    return CELLS["" if node.domain in DEFAULT_DOMAIN else node.domain, node.op_type]


def cell_named(operator: str) -> Cell:
    """Return a cell by the name of its operator."""
    return next(cell for cell in CELLS.values() if cell.operator == operator)


# All kinds


@dataclass(frozen=True)
class Kind:
    """A kind of recurrent nodes. What is named by its module is imported when a node needs it.

    Attributes:
        operators: The (domain, operator) of its nodes; "" for ONNX's own domain.
        spec: The class that reads a node, a `NodeSpec`.
        equivalent: The function that emits what takes the place of a node.
        reference: The class that computes a node in float64, a `NodeReference`.
        page: The section of the documents that says what is refused.
    """

    operators: Collection[tuple[str, str]]
    spec: str
    equivalent: str
    reference: str
    page: str = "linear-attention.md#what-is-refused"

    @property
    def spec_type(self) -> type[NodeSpec]:
        return imported(self.spec)  # type: ignore[no-any-return]


def imported(name: str) -> Any:
    """Return what has this name in a module of the package."""
    module, _, own = name.rpartition(".")
    return getattr(import_module(f"rnn_lowering.{module}"), own)


KINDS = (
    Kind(
        CELLS.keys(),
        "nodes.rnn.RecurrentSpec",
        "recurrence.equivalents.lower_rnn",
        "compare.float64.rnn_reference.RnnReference",
        page="",
    ),
    Kind(
        [("", "LinearAttention"), (DOMAIN, "LinearAttention")],
        "attention.linear_attention.LinearAttentionSpec",
        "attention.linear_equivalent.lower_linear_attention",
        "attention.references.LinearAttentionReference",
    ),
    Kind(
        [("", "CausalConvWithState"), (DOMAIN, "CausalConvWithState")],
        "attention.causal_conv.CausalConvSpec",
        "attention.causal_conv.lower_causal_conv",
        "attention.references.CausalConvReference",
    ),
    Kind(
        [(DOMAIN, "LinearAttentionGate")],
        "attention.gated_delta_net.AttentionGateSpec",
        "attention.gated_delta_net.lower_attention_gate",
        "attention.references.AttentionGateReference",
    ),
    Kind(
        [(DOMAIN, "GatedRMSNorm")],
        "attention.gated_delta_net.GatedNormSpec",
        "attention.gated_delta_net.lower_gated_norm",
        "attention.references.GatedNormReference",
    ),
    Kind(
        [(DOMAIN, "GatedDeltaNet")],
        "attention.gated_delta_net.GatedDeltaNetSpec",
        "attention.gated_delta_net.lower_gated_delta_net",
        "attention.references.GatedDeltaNetReference",
    ),
)


_OTHERS = {operator: kind for kind in KINDS[1:] for operator in kind.operators}
"""Those without a cell, by domain and operator."""


def kind_of(node: ir.Node | onnx.NodeProto) -> Kind | None:
    """Return the kind of a recurrent node; None for other nodes."""
    operator = "" if node.domain in DEFAULT_DOMAIN else node.domain, node.op_type
    return KINDS[0] if operator in CELLS else _OTHERS.get(operator)


def kind_of_spec(spec: NodeSpec) -> Kind:
    """Return the kind of a node that was read."""
    return next(kind for kind in KINDS if kind.spec.rpartition(".")[2] == type(spec).__name__)


def is_recurrent(node: ir.Node | onnx.NodeProto) -> bool:
    """Return whether a node is recurrent, of any kind."""
    return kind_of(node) is not None


def has_cell(node: ir.Node | onnx.NodeProto) -> bool:
    """Return whether a node is an RNN, GRU or LSTM."""
    return kind_of(node) is KINDS[0]


def has_steps(node: ir.Node | onnx.NodeProto) -> bool:
    """Return whether a recurrent node has steps that a form repeats."""
    kind = kind_of(node)
    return kind is not None and kind.spec_type.repeats


def calls_function(node: ir.Node, functions: Container[ir.OperatorIdentifier]) -> bool:
    """Return whether a node with the name of a recurrent operator calls the model's function of that name: if it
    does not fit the operator. If it fits, onnxruntime runs its kernel."""
    kind = kind_of(node) if node.op_identifier() in functions else None
    return kind is not None and not kind.spec_type.fits(node)


def read_spec(
    node: ir.Node, opset: int, scope: str = "main graph", known: KnownInputs = MappingProxyType({})
) -> NodeSpec:
    """Return what a recurrent node specifies; see `NodeSpec.parse`."""
    kind = kind_of(node)
    assert kind is not None
    with documented(kind.page) if kind.page else nullcontext():
        return kind.spec_type.parse(node, opset, scope, known)


def role_of(node: onnx.NodeProto, slot: int) -> InputRole:
    """Return what an input of a recurrent node is."""
    kind = kind_of(node)
    assert kind is not None
    return kind.spec_type.role(node, slot)
