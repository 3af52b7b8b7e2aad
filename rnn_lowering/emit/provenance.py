"""Where emitted nodes come from, in their `metadata_props`.

A node has the name and the operator of the node that it replaces a part of; one in a written-out step has the
number of the step instead, after the direction if there are two, since a thousand steps would repeat the rest. It
also has the symbols of its results in the equations of the operator specification, and of the weights that it uses.
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
    """Let the node that computes a value tell the symbol of it."""
    node, index = value.producer(), value.index()
    if node is None or index is None:
        return
    symbols = node.metadata_props.get(SYMBOLS, "").split(",")
    symbols += [""] * (index + 1 - len(symbols))
    symbols[index] = symbol
    node.metadata_props[SYMBOLS] = ",".join(symbols)


def add_weights(node: ir.Node, symbols: Iterable[str]) -> None:
    """Let a node tell the symbols of weights that it uses."""
    known = node.metadata_props.get(WEIGHTS, "").split(",")
    found = dict.fromkeys(symbol for symbol in (*known, *symbols) if symbol)
    if found:
        node.metadata_props[WEIGHTS] = ",".join(found)
