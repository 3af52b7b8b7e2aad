"""The least precise float type between the inputs of a model and each output: its rounding is in the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import TensorProto

from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.model.protobuf import bodies_in

_BITS: Mapping[int, int] = {
    TensorProto.DOUBLE: 53,
    TensorProto.FLOAT: 24,
    TensorProto.FLOAT16: 11,
    TensorProto.BFLOAT16: 8,
}
"""By float type the bits of its numbers."""

_EXACT = 64
"""Bits of what follows from the inputs, but has no float type."""

_NAMES = {24: "float32", 11: "float16", 8: "bfloat16"}

_Known = dict[str, int]
"""By value the fewest bits on the way from the inputs to it; absent: it does not follow from the inputs."""


def least_precise(model: onnx.ModelProto) -> Mapping[str, str]:
    """Return the NumPy name of the least precise type on the way to each output; absent: all are float64."""
    bits = _Walk(model).outputs(model.graph, {}, None)
    found = {value.name: bits.get(value.name, _EXACT) for value in model.graph.output}
    return {name: _NAMES[fewest] for name, fewest in found.items() if fewest in _NAMES}


class _Walk:
    """Follows values through a model, its bodies and its functions."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._returned: dict[tuple[object, ...], list[int | None]] = {}

    def outputs(self, graph: onnx.GraphProto, outer: Mapping[str, int], given: int | None) -> _Known:
        """Return what is known of the values in a graph.

        Args:
            graph: The graph.
            outer: The values around it.
            given: The bits of all its inputs; None for the main graph.
        """
        constants = {tensor.name for tensor in graph.initializer}
        known = {name: bits for name, bits in outer.items() if name not in constants}
        for value in (value for value in graph.input if value.name not in constants):
            bits = _BITS.get(value.type.tensor_type.elem_type, _EXACT)
            known[value.name] = bits if given is None else min(bits, given)
        declared = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
        self._walk(graph.node, known, declared)
        return known

    def _walk(self, nodes: Iterable[onnx.NodeProto], known: _Known, declared: Mapping[str, int]) -> None:
        for node in nodes:
            for name, bits in zip(node.output, self._of_node(node, known), strict=False):
                if name and bits is not None:
                    known[name] = min(bits, _BITS.get(declared.get(name, 0), _EXACT))

    def _of_node(self, node: onnx.NodeProto, known: _Known) -> list[int | None]:
        """Return the fewest bits on the way to each output; None for one that does not follow from the inputs."""
        given = [known.get(name) for name in node.input]
        if (node.domain, node.op_type) in self._functions:
            return self._call((node.domain, node.op_type), given)
        fewest = min((bits for bits in given if bits is not None), default=None)
        for body in bodies_in(node):
            inside = fewest
            for _ in range(len(_BITS)):  # what a step returns enters the next one
                values = self.outputs(body, known, _EXACT if inside is None else inside)
                found = [bits for v in body.output if (bits := values.get(v.name)) is not None]
                before, inside = inside, min([*found, *([inside] if inside is not None else [])], default=None)
                if inside == before:
                    break
            fewest = inside if fewest is None else min(fewest, inside if inside is not None else fewest)
        if fewest is not None and node.op_type == "Cast" and node.domain in DEFAULT_DOMAIN:
            fewest = min([fewest, *(_BITS.get(a.i, _EXACT) for a in node.attribute if a.name == "to")])
        return [fewest] * len(node.output)

    def _call(self, key: tuple[str, str], given: list[int | None]) -> list[int | None]:
        function, call = self._functions[key], (key, *given)
        if call not in self._returned:
            self._returned[call] = [None] * len(function.output)  # it may call itself
            pairs = zip(function.input, given, strict=False)
            known = {name: bits for name, bits in pairs if bits is not None}
            self._walk(function.node, known, {})
            self._returned[call] = [known.get(name) for name in function.output]
        return self._returned[call]
