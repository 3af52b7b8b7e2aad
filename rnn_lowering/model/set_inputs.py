"""Inputs that become constants, so that what depends on their values can be folded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import OptionError
from rnn_lowering.spec.node import default_opset
from rnn_lowering.types import Array, ArrayLike

_KEY = "rnn_lowering.set_inputs"

_FIRST_OPSET_OF_INTEGERS = 9
"""Of Constant: https://onnx.ai/onnx/operators/onnx__Constant.html."""
_FIRST_OPSET_OF_CAST = 6
"""As it is today; ONNX's converter does not know the earlier one: https://onnx.ai/onnx/operators/onnx__Cast.html."""


def input_arrays(model: ir.Model, given: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Return the given values of inputs as arrays of the types and ranks that the model declares.

    Args:
        model: The model.
        given: Values by input name; a single number is also accepted for an input with one element.

    Raises:
        OptionError: The model has no such input, or declares another type or shape.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    for name in given:
        if name not in inputs:
            raise OptionError(
                f"the model has no input '{name}'", hint=f"its inputs: {', '.join(str(n) for n in inputs)}"
            )
    return {name: _shaped(inputs[name], _typed(inputs[name], value)) for name, value in given.items()}


def fix_inputs(model: ir.Model, arrays: Mapping[str, Array]) -> None:
    """Replace inputs by Constant nodes with the given arrays, in place; their initializers are removed."""
    for value in [v for v in model.graph.inputs if v.name in arrays]:
        name, dtype = value.name or "", value.dtype
        model.graph.inputs.remove(value)
        model.graph.initializers.pop(name, None)
        tensor = ir.Tensor(arrays[name], dtype=dtype, name=name)
        nodes = _constant(tensor, default_opset(model.opset_imports))
        constant = nodes[-1].outputs[0]
        constant.type, constant.shape = value.type, ir.Shape(tensor.shape)
        value.replace_all_uses_with(constant, replace_graph_outputs=True)
        value.name, constant.name = None, name
        if len(model.graph):
            model.graph.insert_before(model.graph[0], nodes)
        else:
            model.graph.extend(nodes)


def _constant(tensor: ir.TensorProtocol, opset: int) -> list[ir.Node]:
    """Return the nodes that make a tensor; before opset 9 a Constant has floats only, which are cast."""
    floats_only = _FIRST_OPSET_OF_CAST <= opset < _FIRST_OPSET_OF_INTEGERS
    if not floats_only or tensor.dtype.is_floating_point():
        return [ir.node("Constant", [], {"value": tensor}, num_outputs=1)]
    floats = ir.Tensor(tensor.numpy().astype(np.float64))
    source = ir.node("Constant", [], {"value": floats}, num_outputs=1)
    return [source, ir.node("Cast", source.outputs, {"to": int(tensor.dtype)}, num_outputs=1)]


def record(model: ir.Model, given: Mapping[str, Array]) -> None:
    """Write the inputs that became constants and their values into the metadata of a model, for a comparison."""
    if given:
        model.metadata_props[_KEY] = json.dumps({name: array.tolist() for name, array in given.items()})


def recorded(original: ir.Model, lowered: ir.Model) -> dict[str, Array]:
    """Return the values of those inputs of the original that the lowered model does not have, from its metadata."""
    left = {value.name for value in lowered.graph.inputs}
    names = {value.name for value in original.graph.inputs} - left
    with suppress(ValueError, TypeError, AttributeError, OptionError):  # whatever is written there
        given = json.loads(lowered.metadata_props.get(_KEY, "{}"))
        return input_arrays(original, {name: given[name] for name in given if name in names})
    return {}


def _typed(value: ir.Value, given: ArrayLike) -> Array:
    """Return a value as an array of the declared type of an input; the conversion must not change its numbers."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.STRING):
        raise OptionError(f"input '{value.name}' is no tensor of numbers and cannot be set")
    dtype = value.type.dtype
    try:
        array: np.ndarray[Any, Any] = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"the value of input '{value.name}' is no array: {error}") from error
    if array.dtype.kind not in "biufV" or (array.dtype.kind == "V" and array.dtype != dtype.numpy()):
        raise OptionError(f"the value of input '{value.name}' is not made of numbers but of {array.dtype}")
    with np.errstate(all="ignore"):
        typed = array.astype(dtype.numpy())
        rounds = array.dtype.kind == "f" and dtype.is_floating_point()
        same = np.isfinite(typed.astype(np.float64)) == np.isfinite(array) if rounds else typed == array
    if not np.all(same):
        raise OptionError(
            f"input '{value.name}' is of type {dtype.name.lower()}, which cannot hold the given value",
            hint="give numbers of that type",
        )
    return typed


def _shaped(value: ir.Value, array: Array) -> Array:
    """Return an array in the declared rank of an input."""
    shape = value.shape
    if shape is None:
        return array
    if array.ndim == 0 and all(size == 1 for size in shape):
        return array.reshape([1] * len(shape))
    fits = len(shape) == array.ndim and all(
        not isinstance(size, int) or size == given for size, given in zip(shape, array.shape, strict=True)
    )
    if not fits:
        declared = ",".join(str(size) if isinstance(size, int) else size.value or "?" for size in shape)
        raise OptionError(
            f"input '{value.name}' has the shape [{declared}], the given value {list(array.shape)}",
            hint=f"give an array of that shape (--set-input {quote(f'{value.name}=')}FILE.npy)",
        )
    return array
