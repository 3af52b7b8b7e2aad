"""The table of references, one for each kind of recurrent nodes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from rnn_lowering.compare.references.attention_reference import (
    AttentionGateReference,
    GatedDeltaNetReference,
    GatedNormReference,
    LinearAttentionReference,
)
from rnn_lowering.compare.references.causal_conv_reference import CausalConvReference
from rnn_lowering.compare.references.node_reference import NodeReference
from rnn_lowering.compare.references.rnn_reference import RnnReference
from rnn_lowering.nodes.causal_conv import CausalConvSpec
from rnn_lowering.nodes.gated_delta_net import AttentionGateSpec, GatedDeltaNetSpec, GatedNormSpec
from rnn_lowering.nodes.linear_attention import LinearAttentionSpec
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.nodes.rnn import RecurrentSpec

REFERENCES: dict[type[NodeSpec], type[NodeReference[Any]]] = {
    RecurrentSpec: RnnReference,
    CausalConvSpec: CausalConvReference,
    AttentionGateSpec: AttentionGateReference,
    GatedNormSpec: GatedNormReference,
    GatedDeltaNetSpec: GatedDeltaNetReference,
    LinearAttentionSpec: LinearAttentionReference,
}
"""By kind."""


def reference_of(node: ir.Node, spec: NodeSpec) -> NodeReference[Any]:
    """Return the reference of a node."""
    return REFERENCES[type(spec)].of(node, spec)
