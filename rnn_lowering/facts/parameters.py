"""Parameters such as `axes`, `starts`, `pads` or `split`: attributes in some opsets, inputs in others.

The schema of the operator tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import onnx
import onnx_ir as ir

from rnn_lowering.types import Array

V = TypeVar("V")


TO_THE_END = 2**31 - 1
"""An end of a Slice behind every axis; not the largest int64, which some runtimes get wrong."""


BEFORE_THE_START = -(2**31)
"""An end of a backwards Slice; not the smallest int64, which some runtimes get wrong."""


@cache
def input_slots(op_type: str, opset: int) -> Mapping[str, int]:
    """Return the inputs of an operator of the default domain, by the names that its schema gives them."""
    schema = onnx.defs.get_schema(op_type, opset, "")
    return {given.name: slot for slot, given in enumerate(schema.inputs) if given.name not in schema.attributes}


def parameter(node: ir.Node, name: str, opset: int) -> ir.Attr | ir.Value | None:
    """Return what holds a parameter of a node of the default domain: an attribute or an input; None for neither."""
    slot = input_slots(node.op_type, opset).get(name)
    if slot is not None:
        return node.inputs[slot] if slot < len(node.inputs) else None
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute


def integers_of(held: ir.Attr | Array) -> list[int]:
    """Return the integers of a parameter, of its attribute or of the array of its input."""
    if isinstance(held, ir.Attr):
        return [held.as_int()] if held.type == ir.AttributeType.INT else list(held.as_ints())
    return [int(n) for n in held.ravel()]


def inputs_and_attributes(
    op_type: str,
    opset: int,
    inputs: Sequence[V],
    parameters: Mapping[str, Any],
    constant: Callable[[Any], V],
) -> tuple[list[V | None], dict[str, Any]]:
    """Return the inputs and the attributes of a node.

    Args:
        op_type: An operator of the default domain.
        opset: The opset.
        inputs: The first inputs.
        parameters: Parameters by name: attributes, or inputs that follow the first ones.
        constant: Makes a parameter an input.
    """
    slots = input_slots(op_type, opset) if parameters else {}
    found = {slots[name]: constant(value) for name, value in parameters.items() if name in slots}
    followed = [found.get(slot) for slot in range(len(inputs), max(found, default=-1) + 1)]
    return [*inputs, *followed], {name: value for name, value in parameters.items() if name not in slots}
