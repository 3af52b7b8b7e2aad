"""The table of recurrent operators, each with the class that reads its nodes."""

from __future__ import annotations

from collections.abc import Container
from contextlib import nullcontext
from types import MappingProxyType

import onnx
import onnx_ir as ir

from rnn_lowering.errors import documented
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.nodes.causal_conv import CausalConvSpec
from rnn_lowering.nodes.connections import KnownInputs
from rnn_lowering.nodes.gated_delta_net import AttentionGateSpec, GatedDeltaNetSpec, GatedNormSpec
from rnn_lowering.nodes.linear_attention import LinearAttentionSpec
from rnn_lowering.nodes.node_spec import InputRole, NodeSpec
from rnn_lowering.nodes.rnn import RecurrentSpec

KINDS: tuple[type[NodeSpec], ...] = (
    RecurrentSpec,
    LinearAttentionSpec,
    CausalConvSpec,
    AttentionGateSpec,
    GatedNormSpec,
    GatedDeltaNetSpec,
)


def kind_of(node: ir.Node | onnx.NodeProto) -> type[NodeSpec] | None:
    """Return the kind of a recurrent node; None for other nodes."""
    operator = "" if node.domain in DEFAULT_DOMAIN else node.domain, node.op_type
    return next((kind for kind in KINDS if operator in kind.operators), None)


def is_recurrent(node: ir.Node | onnx.NodeProto) -> bool:
    """Return whether a node is recurrent, of any kind."""
    return kind_of(node) is not None


def has_steps(node: ir.Node | onnx.NodeProto) -> bool:
    """Return whether a recurrent node has steps that a form repeats."""
    kind = kind_of(node)
    return kind is not None and kind.repeats


def calls_function(node: ir.Node, functions: Container[ir.OperatorIdentifier]) -> bool:
    """Return whether a node with the name of a recurrent operator calls the model's function of that name: if it
    does not fit the operator. If it fits, onnxruntime runs its kernel."""
    kind = kind_of(node)
    return kind is not None and node.op_identifier() in functions and not kind.fits(node)


def read_spec(
    node: ir.Node, opset: int, scope: str = "main graph", known: KnownInputs = MappingProxyType({})
) -> NodeSpec:
    """Return what a recurrent node specifies; see `NodeSpec.parse`."""
    kind = kind_of(node)
    assert kind is not None
    with nullcontext() if kind is RecurrentSpec else documented("linear-attention.md#what-is-refused"):
        return kind.parse(node, opset, scope, known)


def role_of(node: onnx.NodeProto, slot: int) -> InputRole:
    """Return what an input of a recurrent node is."""
    kind = kind_of(node)
    assert kind is not None
    return kind.role(node, slot)
