"""`Cell`: what a gated recurrence has, such as RNN, GRU and LSTM; its equation is in `recurrence/cells`."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from rnn_lowering.facts.contrib_schemas import DOMAIN
from rnn_lowering.facts.operators import DEFAULT_DOMAIN

DYNAMIC_QUANTIZE_LSTM = "DynamicQuantizeLSTM"


@dataclass(frozen=True)
class Cell:
    """What a gated recurrence has.

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
