"""The proof of each node of a stream: one call, from any states, computes what the node computes of its frames.

So all calls together compute what it computes of the whole sequence: its states begin like those of the node. That
each frame enters once is what the runs compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.node_pairs import node_pairs
from rnn_lowering.compare.proof.of_nodes import proofs_of
from rnn_lowering.compare.result import NOT_PROVEN, PROVEN, NodeProof
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.facts.constants import constant_of, filling
from rnn_lowering.facts.operators import input_at
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.scopes import NodePlace, RecurrentNode, recurrent_nodes
from rnn_lowering.streaming.metadata import State, StreamPlan
from rnn_lowering.types import array_of

_SLOTS = {
    "RNN": {"h": (5, 1)},
    "GRU": {"h": (5, 1)},
    "LSTM": {"h": (5, 1), "c": (6, 2)},
    "DynamicQuantizeLSTM": {"h": (5, 1), "c": (6, 2)},
    "LinearAttention": {"s": (3, 1)},
}
"""By operator and state: which input and output of the node it is."""


def stream_proofs(original: ModelSource, stepped: ModelSource, plan: StreamPlan) -> tuple[NodeProof, ...]:
    """Return the proof of each lowered node of a stream, or why there is none."""
    try:
        model = original.new_model()
        reasons = dict[NodePlace, str]()
        copies = {node.output[0]: node.input[0] for node in stepped.proto.graph.node if node.op_type == "Identity"}
        for entry in list(recurrent_nodes(model)):
            states = {s.state: s for s in plan.states if s.node == entry.node.name}
            reasons[entry.place] = _connect(entry, states, copies)
        pairs = node_pairs(model, stepped)
        proofs = proofs_of(pairs)
    except RnnLoweringError:  # a node cannot be read
        return ()
    return tuple(
        NodeProof(proof.node, NOT_PROVEN, reason)
        if (reason := reasons.get(pair.place, ""))
        else replace(proof, status=PROVEN if proof else NOT_PROVEN)
        for pair, proof in zip(pairs, proofs, strict=True)
    )


def _connect(entry: RecurrentNode, states: Mapping[str, State], copies: Mapping[str, str]) -> str:
    """Let a node take and return the states of a stream; return why they are not those of the node.

    Args:
        copies: What Identities of the stream copy, by what they make.
    """
    node, graph = entry.node, entry.graph
    slots = _SLOTS.get(node.op_type)
    if slots is None:
        return f"one call of {node.op_type} has no equation"
    if entry.path != ("",) or not isinstance(graph, ir.Graph):
        return "it stands in a body or function"
    for letter, (slot, output) in slots.items():
        if letter not in states:
            return f"the stream has no state '{letter}' of it"
        state, first = states[letter], input_at(node, slot)
        if not _begins_like(first, state, entry.opset):
            return f"its first state '{letter}' is not that of the stream"
        if first is None or first.name != state.input:
            _take(node, slot, state, graph)
        node.resize_outputs(max(len(node.outputs), output + 1))
        last = node.outputs[output]
        if not last.is_graph_output():
            last.name = state.output
            graph.outputs.append(last)
        elif last.name not in (state.output, copies.get(state.output)):
            return f"its last state '{letter}' is not that of the stream"
    return ""


def _take(node: ir.Node, slot: int, state: State, graph: ir.Graph) -> None:
    """Let a node take a state from a new input of its graph."""
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(state.dtype)))
    value = ir.Value(name=state.input, type=kind, shape=ir.Shape(state.shape))
    graph.inputs.append(value)
    node.resize_inputs(max(len(node.inputs), slot + 1))
    node.replace_input_with(slot, value)


def _begins_like(first: ir.Value | None, state: State, opset: int) -> bool:
    """Whether a state of a stream begins as that of the node does: as zeros, constants, or what the host gives."""
    if first is None:
        return bool(state.initial == "zeros")
    if first.is_graph_input():
        return first.name == state.input
    constant = constant_of(first, opset)
    array = filling(first, opset) if constant is None else array_of(constant)
    if array is None:
        return False
    initial = np.zeros(1) if state.initial == "zeros" else np.asarray(state.initial, array.dtype)
    try:
        return bool((np.broadcast_to(initial, array.shape or initial.shape) == array).all())
    except ValueError:  # other shapes
        return False
