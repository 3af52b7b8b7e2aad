"""The `metadata_props` of emitted nodes: which recurrent node and which part of its equations they come from.

An emitted node has the name (`NODE`) and operator (`OPERATOR`) of the recurrent node that it was emitted for, the
symbols that the operator specification's equations use for its outputs (`SYMBOLS`), and those of the weights among
its inputs (`WEIGHTS`). Unrolled steps are all alike, so the nodes of two steps in the middle tell of all: they have
the number of the step (`STEP`), after the direction if there are two, instead of the name and the operator. Nodes
of the other steps have no metadata: their names tell the step.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

NODE = "rnn_lowering.node"
OPERATOR = "rnn_lowering.operator"
STEP = "rnn_lowering.step"
SYMBOLS = "rnn_lowering.symbols"
"""Key of the symbols of a node's outputs, in their order, separated by commas; "" for one that has none."""
WEIGHTS = "rnn_lowering.weights"
"""Key of the symbols of the weights among a node's inputs, separated by commas."""


def set_symbol(value: ir.Value, symbol: str) -> None:
    """Add the symbol of a value to the metadata of the node that computes it."""
    node, index = value.producer(), value.index()
    if node is None or index is None:
        return
    symbols = node.metadata_props.get(SYMBOLS, "").split(",")
    symbols += [""] * (index + 1 - len(symbols))
    symbols[index] = symbol
    node.metadata_props[SYMBOLS] = ",".join(symbols)


def add_weights(node: ir.Node, symbols: Iterable[str]) -> None:
    """Add the symbols of weights that a node uses to its metadata."""
    known = node.metadata_props.get(WEIGHTS, "").split(",")
    found = dict.fromkeys(symbol for symbol in (*known, *symbols) if symbol)
    if found:
        node.metadata_props[WEIGHTS] = ",".join(found)
