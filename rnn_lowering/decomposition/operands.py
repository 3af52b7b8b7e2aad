"""What is known of the inputs of a node that is written as a function, and how one of `functions` is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from rnn_lowering.types import Array

OLDEST_OPSET = 13
"""The first opset of the operators in these formulas: Less of integers, Range, Constant of integers."""


@dataclass(frozen=True)
class Operand:
    """What is known of an input of a node.

    Attributes:
        dtype: Its element type; None if it is absent.
        shape: Its sizes, None for an unknown one; None for an unknown rank.
        numbers: Those of a small constant.
        dims: Its sizes, or the names of unknown ones.
    """

    dtype: ir.DataType | None = None
    shape: tuple[int | None, ...] | None = None
    numbers: Array | None = None
    dims: tuple[int | str | None, ...] | None = None

    def type_proto(self) -> onnx.TypeProto:
        """Return the type as ONNX writes it."""
        return onnx.TypeProto() if self.dtype is None else helper.make_tensor_type_proto(self.dtype, self.shape)

    @property
    def integer(self) -> int | None:
        """The number of a constant with one."""
        return None if self.numbers is None or self.numbers.size != 1 else int(self.numbers.reshape(-1)[0])


Operands: TypeAlias = Sequence[Operand]
Formula: TypeAlias = Callable[[ir.Node, int, Operands], onnx.FunctionProto | None]


def function_of(
    name: str, given: Mapping[str, Array | Sequence[int] | int], inputs: str = ""
) -> onnx.FunctionProto:
    """Return a function of `functions` with an input for each of the node's, apart from optional ones.

    Args:
        name: Its name.
        given: By name, the constants that take the place of its other inputs, and its attributes.
        inputs: The names of the node's inputs; "" for those of the function.
    """
    from rnn_lowering.decomposition import functions  # onnxscript takes a second

    proto: onnx.FunctionProto = getattr(functions, name).to_function_proto()
    names = inputs.split(", ") if inputs else [each for each in proto.input if each not in given]
    absent = {*proto.input} - {*names} - given.keys()
    for node in proto.node:
        while node.input and node.input[-1] in absent:
            node.input.pop()
        for attribute in node.attribute:
            if source := attribute.ref_attr_name:
                attribute.CopyFrom(helper.make_attribute(attribute.name, given[source]))
    for constant in proto.input:
        if constant in given:
            value = numpy_helper.from_array(np.asarray(given[constant]), constant)
            proto.node.insert(0, helper.make_node("Constant", [], [constant], value=value))
    del proto.input[:], proto.attribute[:], proto.value_info[:]
    proto.input.extend(names)
    return proto


def holding(proto: onnx.FunctionProto, constants: Mapping[str, Array]) -> onnx.FunctionProto:
    """Let a function begin with constants, by name, in place; return it."""
    for name, numbers in constants.items():
        value = numpy_helper.from_array(numbers)
        proto.node.insert(0, helper.make_node("Constant", [], [name], value=value))
    return proto


def is_integer(operand: Operand) -> bool:
    return operand.dtype is not None and operand.dtype.is_integer()


def integers(numbers: Sequence[int]) -> Array:
    return np.array(numbers, np.int64)


_WRONG_BODIES = frozenset(("AffineGrid", "SwiGLU"))
"""Operators whose body in onnx 1.23 does not compute what ONNX's tests want: AffineGrid's gives Range tensors of
rank 1, SwiGLU's is wrong for another alpha."""


def of_onnx(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Return the function that ONNX defines an operator by; None if there is none that is right."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    if node.op_type in _WRONG_BODIES:
        return None
    if version := _fitting(schema.function_opset_versions, opset):
        serialized = schema.get_function_with_opset_version(version)
    elif version := _fitting(schema.context_dependent_function_opset_versions, opset):
        types = [each.type_proto().SerializeToString() for each in operands]
        given = ir.to_proto(node).SerializeToString()
        serialized = schema.get_context_dependent_function_with_opset_version(version, given, types)
    else:
        return None
    if not serialized:
        return None
    proto = onnx.FunctionProto()
    proto.ParseFromString(serialized)
    return proto


def _fitting(versions: Sequence[int], opset: int) -> int:
    """Return the newest version that is not newer than an opset; if all are, the oldest, whose operators may exist
    before; 0 for none."""
    return max((version for version in versions if version <= opset), default=min(versions, default=0))
