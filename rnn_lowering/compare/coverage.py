"""What a comparison cannot show: zero weights, constant and random outputs. `branches` has untaken branches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from rnn_lowering.compare.judging.tolerance import blocks
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.types import Array, array_of


def zero_weights(weights: Iterable[tuple[str, object, ir.TensorProtocol | None]]) -> list[str]:
    """Return a note for each weight that is all zeros.

    Args:
        weights: The symbol of each, its node, and its tensor; None if it is not constant.
    """
    return [
        f"{symbol} of {node} is all zeros, which hides errors in what it multiplies"
        for symbol, node, tensor in weights
        if tensor is not None and tensor.size and not any(part.any() for part in blocks(array_of(tensor)))
    ]


def constant_outputs(runs: Iterable[Mapping[str, Array]]) -> list[str]:
    """Return a note for each output that is constant over all runs.

    Args:
        runs: The outputs of each run by name.
    """
    ranges: dict[str, tuple[float, float]] = {}
    sizes: dict[str, int] = {}
    for run in runs:
        for name, array in run.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            low, high = ranges.get(name, (float("inf"), -float("inf")))
            ranges[name] = min(low, float(array.min())), max(high, float(array.max()))
            sizes[name] = sizes.get(name, 0) + array.size
    return [
        f"output '{name}' is {low:g} throughout: comparing it proves little"
        for name, (low, high) in ranges.items()
        if low == high and sizes[name] > 1
    ]


def undetermined_outputs(model: onnx.ModelProto) -> dict[str, str]:
    """Return the outputs that depend on random numbers, with the operator that draws them."""
    drawn_by = _RandomOperators(model)
    reached: dict[str, str] = {}
    before = -1
    while len(reached) > before:  # the nodes may be in any order
        before = len(reached)
        for node in model.graph.node:
            read = (name for inner in (node, *_inner(node)) for name in inner.input)
            source = next((reached[name] for name in read if name in reached), "") or drawn_by(node)
            reached |= {name: source for name in node.output if name and source}
    return {value.name: reached[value.name] for value in model.graph.output if value.name in reached}


def _inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in the bodies of a node."""
    for body in bodies_in(node):
        yield from nodes_in(body)


class _RandomOperators:
    """Finds the operator that draws random numbers in a node, its bodies or its function; "" for none.

    Each function is searched once, even if it calls itself or is called many times.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._found: dict[tuple[str, str], str] = {}
        self._off = {
            tensor.name
            for tensor in model.graph.initializer
            if tensor.data_type == onnx.TensorProto.BOOL
            and (tensor.external_data or not numpy_helper.to_array(tensor).any())
        }

    def __call__(self, node: onnx.NodeProto) -> str:
        return next(filter(None, map(self._of_one, (node, *_inner(node)))), "")

    def _of_one(self, node: onnx.NodeProto) -> str:
        if operator_of(node).random:
            return node.op_type
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] and node.input[2] not in self._off:
            return "Dropout in training mode"
        function = node.domain, node.op_type
        if function in self._functions and function not in self._found:
            self._found[function] = ""  # until its nodes are searched
            self._found[function] = next(filter(None, map(self, self._functions[function].node)), "")
        return self._found.get(function, "")
