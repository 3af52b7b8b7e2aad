"""The equivalent of a recurrent node, by its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.equivalents.causal_conv_node import lower_causal_conv
from rnn_lowering.recurrence.equivalents.gate_nodes import (
    lower_attention_gate,
    lower_gated_delta_net,
    lower_gated_norm,
)
from rnn_lowering.recurrence.equivalents.linear_attention_node import lower_linear_attention
from rnn_lowering.recurrence.equivalents.rnn_node import lower_rnn, lower_siblings, lower_stack
from rnn_lowering.recurrence.recurrence import Repeat
from rnn_lowering.spec.causal_conv import CausalConvSpec
from rnn_lowering.spec.gated_delta_net import GatedDeltaNetSpec
from rnn_lowering.spec.gates import AttentionGateSpec, GatedNormSpec
from rnn_lowering.spec.linear_attention import LinearAttentionSpec
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.spec.rnn import RecurrentSpec

EQUIVALENTS: dict[type[NodeSpec], Callable[[Ops, Any, Repeat], dict[str, Tensor]]] = {
    RecurrentSpec: lower_rnn,
    CausalConvSpec: lower_causal_conv,
    AttentionGateSpec: lower_attention_gate,
    GatedNormSpec: lower_gated_norm,
    GatedDeltaNetSpec: lower_gated_delta_net,
    LinearAttentionSpec: lower_linear_attention,
}
"""By kind: emits the equivalent of a node."""


def lower_node(op: Ops, spec: NodeSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    return EQUIVALENTS[type(spec)](op, spec, repeat)


def lower_nodes(
    op: Ops, specs: Sequence[NodeSpec], repeat: Repeat, added: Sequence[Sequence[Constant]]
) -> list[dict[str, Tensor]]:
    """Emit the equivalent of a node, of several that `directions.can_join`, or of layers that `can_stack`.

    Args:
        added: Of layers, the constants that are added below each but the first; else empty.

    Returns:
        The outputs of each, as `lower_node` does.
    """
    if len(specs) == 1:
        return [lower_node(op, specs[0], repeat)]
    nodes = cast(Sequence[RecurrentSpec], specs)
    return lower_stack(op, nodes, repeat, added) if added else lower_siblings(op, nodes, repeat)
