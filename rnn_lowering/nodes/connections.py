"""The inputs and outputs of a recurrent node: which are connected or constant, and whether their shapes agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lowering.errors import InvalidNodeError, NodeRef, counted
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.known import Known
from rnn_lowering.facts.operators import is_used
from rnn_lowering.types import Dims

KnownInputs = Mapping[ir.Value, Known]

HINT_OF_TYPE = "declare it in the model (value_info)"
"""What to try where inference does not find an element type."""

REQUIRED = onnx.defs.OpSchema.FormalParameterOption.Single
"""The option of inputs and outputs that a node must have."""


class Connections:
    """The inputs of a node that are connected and the outputs that something uses, by their names in its schema.

    Args:
        known: Types and shapes of inputs, in place of the declared ones.

    Attributes:
        inputs, outputs: The values.
        constants: The tensors of those inputs that are constants.
        warnings: Wrong declarations of the model that are ignored.

    Raises:
        InvalidNodeError: There are too many, or a required one is missing.
    """

    def __init__(
        self, node: ir.Node, ref: NodeRef, schema: onnx.defs.OpSchema, opset: int, known: KnownInputs
    ) -> None:
        self.ref = ref
        self.known = known
        self.schema = schema
        self.warnings: list[str] = []
        if not schema.min_input <= len(node.inputs) <= schema.max_input:
            raise self.invalid(
                counted(len(node.inputs), "input"), f"{schema.min_input} to {schema.max_input} are allowed"
            )
        if len(node.outputs) > schema.max_output:  # fewer than GRU-1 must have are computed all the same
            raise self.invalid(counted(len(node.outputs), "output"), f"at most {schema.max_output} are allowed")
        self.inputs = {p.name: v for p, v in zip(schema.inputs, node.inputs, strict=False) if v is not None}
        for formal in schema.inputs:
            if formal.option == REQUIRED and formal.name not in self.inputs:
                raise self.invalid(f"input {formal.name} is missing")
        named = zip(schema.outputs, node.outputs, strict=False)
        self.outputs = {p.name: v for p, v in named if v.name and is_used(v)}
        tensors = {symbol: constant_of(value, opset) for symbol, value in self.inputs.items()}
        self.constants = {symbol: tensor for symbol, tensor in tensors.items() if tensor is not None}

    def invalid(self, reason: str, hint: str = "") -> InvalidNodeError:
        return InvalidNodeError(reason, hint=hint, node=self.ref)

    def types(self) -> dict[str, ir.DataType]:
        """Return the known element types of the inputs."""
        types: dict[str, ir.DataType] = {}
        for symbol, value in self.inputs.items():
            tensor = self.constants.get(symbol)
            dtype = tensor.dtype if tensor is not None else self.known_of(value).dtype
            if dtype != ir.DataType.UNDEFINED:
                types[symbol] = dtype
        return types

    def dtype(self) -> ir.DataType:
        """Return the element type T; each input must have a type that its parameter allows."""
        parameters, types = {formal.name: formal.type_str for formal in self.schema.inputs}, self.types()
        for symbol, dtype in types.items():
            self.check_type(dtype, parameters[symbol])
        return self.common_type({symbol: dtype for symbol, dtype in types.items() if parameters[symbol] == "T"})

    def common_type(self, types: Mapping[str, ir.DataType]) -> ir.DataType:
        """Return the element type of inputs that must be of one type T."""
        if len(set(types.values())) > 1:
            given = ", ".join(f"{symbol} {dtype.name}" for symbol, dtype in types.items())
            raise self.invalid(f"inputs are of different types: {given}")
        if not types:
            raise self.invalid("the element type of its inputs is not known", HINT_OF_TYPE)
        dtype = next(iter(types.values()))
        self.check_type(dtype)
        return dtype

    def agreed(self, wanted: Mapping[str, SpecifiedShape]) -> dict[str, int]:
        """Return the known sizes, on which the shapes of the inputs must agree."""
        shapes = {symbol: shape for symbol in wanted if (shape := self.dims(symbol)) is not None}
        sizes, wrong = agree(shapes, wanted)
        if wrong is not None:
            raise self.invalid(f"{wrong} has shape {list(shapes[wrong])}, not {describe(wanted[wrong], sizes)}")
        return sizes

    def fields(self) -> dict[str, Any]:
        """Return what a `NodeSpec` has of them."""
        return {
            "node": self.ref,
            "version": self.schema.since_version,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "constants": self.constants,
            "stored": dict(self.constants),
            "warnings": tuple(dict.fromkeys(self.warnings)),  # once for all directions
        }

    def check_type(self, dtype: ir.DataType, parameter: str = "T") -> None:
        """Refuse an element type that the operator does not have."""
        constraints = self.schema.type_constraints
        allowed = next(c.allowed_type_strs for c in constraints if c.type_param_str == parameter)
        if dtype.name.lower() not in {t[7:-1] for t in allowed}:
            raise self.invalid(f"{dtype.name} is not a type of {self.ref.operator}-{self.schema.since_version}")

    def dims(self, symbol: str) -> Dims | None:
        if symbol not in self.inputs:
            return None
        tensor = self.constants.get(symbol)
        known = self.known_of(self.inputs[symbol]) if tensor is None else Known.at(tensor.dtype, tensor.shape)
        return None if known.shape is None else known.dims

    def known_of(self, value: ir.Value) -> Known:
        return self.known.get(value) or Known.at(value.dtype, value.shape)


SpecifiedShape = tuple["str | int", ...]
"""A shape in the operator specification: sizes that are known, and names of sizes."""


def agree(shapes: Mapping[str, Dims], wanted: Mapping[str, SpecifiedShape]) -> tuple[dict[str, int], str | None]:
    """Return the sizes on which shapes agree, and the input to blame if they do not.

    That is the first, in the order of `wanted`, that does not fit those before it. If all inputs but sequence_lens
    agree, it is sequence_lens, and the sizes are those of the others.
    """
    sizes, wrong = _matched_in_order(shapes, wanted)
    if wrong is None or "sequence_lens" not in shapes:
        return sizes, wrong
    others = {symbol: shape for symbol, shape in shapes.items() if symbol != "sequence_lens"}
    found, still_wrong = _matched_in_order(others, wanted)
    return (sizes, wrong) if still_wrong else (found, "sequence_lens")


def describe(specified: SpecifiedShape, sizes: Mapping[str, int]) -> str:
    """Return a specified shape as text, with the sizes that are known."""
    return (
        "[" + ", ".join(f"{n}={sizes[n]}" if isinstance(n, str) and n in sizes else str(n) for n in specified) + "]"
    )


def _matched_in_order(
    shapes: Mapping[str, Dims], wanted: Mapping[str, SpecifiedShape]
) -> tuple[dict[str, int], str | None]:
    """Return the sizes known before the first input that does not fit, and that one."""
    sizes: dict[str, int] = {}
    for symbol, specified in wanted.items():
        matched = _match(shapes[symbol], specified, sizes) if symbol in shapes else sizes
        if matched is None:
            return sizes, symbol
        sizes = matched
    return sizes, None


def _match(actual: Dims, specified: SpecifiedShape, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Return the sizes known after a shape is matched with the specified one; None if it does not fit."""
    if len(actual) != len(specified):
        return None
    matched = dict(sizes)
    for size, wanted in zip(actual, specified, strict=True):
        expected = matched.setdefault(wanted, size) if isinstance(wanted, str) and size is not None else wanted
        if size is not None and size != expected:
            return None
    return matched
