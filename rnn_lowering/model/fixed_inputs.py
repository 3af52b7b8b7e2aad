"""Fix sizes, shapes and values of a model's inputs, as the user asks, and fold the constants that follow.

Folding makes more sizes known, and removes Ifs with constant conditions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.argument_checks import listed
from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.flags import set_input
from rnn_lowering.model.copying import clone
from rnn_lowering.model.folding import folded
from rnn_lowering.model.model_sizes import (
    Inferred,
    computed_values,
    infer_anew,
    inferred_values,
    size_of_dim,
    with_sizes,
)
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.model.scopes import constant_nodes
from rnn_lowering.model.trial_sizes import TRIAL
from rnn_lowering.types import Array, ArrayLike, Shapes

_KEY = "rnn_lowering.set_inputs"
"""Key of the values in the metadata."""


@dataclass(frozen=True)
class SizedModel:
    """A model at given sizes.

    Attributes:
        model: A copy of the model.
        folded: Whether constants were folded.
        fault: The error of ONNX's strict inference; empty if there is none.
    """

    model: ir.Model
    folded: bool
    fault: str


def at_sizes(
    model: ir.Model, dims: Mapping[str, int], input_shapes: Shapes, arrays: Mapping[str, Array] | None = None
) -> SizedModel:
    """Return a copy of a model at given sizes (see `fix_dimensions`).

    Constants are folded if that makes more sizes of recurrent nodes known; if an input becomes a constant or the
    model is not valid, also if it decides an If: paddings and branches may depend on sizes. If it is not valid, no
    number counts that it declares of a computed value: an exporter may have traced other sizes.

    Raises:
        OptionError, UnsupportedError: As `fix_dimensions`.
    """
    copy = clone(model)
    inferred = fix_dimensions(copy, dims, input_shapes, arrays)
    if fault := fault_of(copy):
        inferred = infer_anew(copy, {}, numbers_count=False)
        fault = fault_of(copy)
    known = folded(copy, decide=bool(arrays or fault), inferred=inferred)
    if known is None:
        return SizedModel(copy, folded=False, fault=fault)
    return SizedModel(known, folded=True, fault=fault_of(known))


def fix_dimensions(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    input_shapes: Shapes | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> Inferred:
    """Set symbolic dimensions to sizes in a whole model, in place, and infer all other shapes again.

    A declared shape of a computed value is used only for sizes that inference cannot find. If any declared size
    contradicts an inferred one, the model was traced at other sizes: then no declared number is used, only
    symbolic names that are fixed here.

    Args:
        model: The model.
        dims: Sizes by symbolic name.
        input_shapes: Whole shapes by input name; a symbolic name in that input is fixed everywhere.
        arrays: Inputs that become constants, as returned by `input_arrays`.

    Returns:
        What follows from the inputs alone.

    Raises:
        OptionError: The model has no such name, or a default has another shape. The model is unchanged.
        UnsupportedError: A size contradicts another. The model is unchanged.
    """
    sizes = dict(dims or {})
    arrays = arrays or {}
    inputs = {value.name: value for value in model.graph.inputs}
    for name, array in arrays.items():
        _bind(inputs[name], list(array.shape), sizes)
    shapes = {name: _bind(_input(model, name), list(shape), sizes) for name, shape in (input_shapes or {}).items()}
    _check_names(sizes, model)
    for name, shape in shapes.items():
        _check_default(inputs[name], shape)
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = with_sizes(value.shape, [size_of_dim(dim, sizes) for dim in value.shape])
    for name, shape in shapes.items():
        value = inputs[name]
        value.shape = ir.Shape(shape) if value.shape is None else with_sizes(value.shape, shape)
    _fix_inputs(model, arrays)
    return infer_anew(model, sizes)


def _check_names(sizes: Mapping[str, int], model: ir.Model) -> None:
    """Refuse a name that the model does not have, or whose size follows from those of the inputs."""
    present = {name for value in model.graph.inputs for name in _names(value)}
    computed = {name for value in computed_values(model) for name in _names(value)}
    others = [name for name in sizes if name not in present]
    following = _following(model, sizes) if computed.intersection(others) else {}
    for name in others:
        if name not in computed or name in following:
            raise OptionError(
                f"dimension '{name}' of '{following[name].name}' follows from the inputs"
                if name in following
                else f"no dimension is called '{name}'",
                hint=f"the dimensions of the inputs: {listed(sorted(present), name)}"
                if present
                else _unnamed(model),
            )


def _unnamed(model: ir.Model) -> str:
    """Return what to try where no input has a dimension with a name."""
    dims = {
        v.name: [d if isinstance(d, int) else "?" for d in v.shape]
        for v in model.graph.inputs
        if v.shape is not None
    }
    if len(dims) < len(model.graph.inputs):
        return "an input has no shape: give it one with --set-shape"
    shapes = ", ".join(f"{name} [{', '.join(map(str, sizes))}]" for name, sizes in dims.items())
    if any("?" in sizes for sizes in dims.values()):
        return f"the open sizes of {shapes} have no names: fix them with --set-shape"
    return f"the sizes of the inputs are fixed: {shapes}; to take others, open an axis with --open-dim"


def _following(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, ir.Value]:
    """Return the dimensions whose size follows from the inputs, each with a computed value that has it.

    A size does if inference finds a number once all inputs have numbers.
    """
    trial = clone(model)
    for value in trial.graph.inputs:
        if value.shape is not None:
            known = [dim if isinstance(dim, int) else sizes.get(dim.value or "", TRIAL) for dim in value.shape]
            value.shape = with_sizes(value.shape, known)
    inferred = inferred_values(trial)
    values: dict[str, ir.Value] = {}
    for value, tried in zip(computed_values(model), computed_values(trial), strict=True):
        for dim, size in zip(value.shape or (), inferred[tried].shape or (), strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value and isinstance(size, int):
                values.setdefault(dim.value, value)
    return values


def _names(value: ir.Value) -> set[str]:
    """Return the names of the dimensions of a value."""
    return {dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value}


def _input(model: ir.Model, name: str) -> ir.Value:
    for value in model.graph.inputs:
        if value.name == name:
            return value
    raise _no_input(name, model)


def _no_input(name: str, model: ir.Model) -> OptionError:
    known = listed((str(v.name) for v in model.graph.inputs), name)
    return OptionError(f"the model has no input '{name}'", hint=f"its inputs: {known}")


def _check_default(value: ir.Value, shape: list[int]) -> None:
    """Check that the default value of an input has a shape."""
    default = value.const_value
    if default is not None and list(default.shape.numpy()) != shape:
        raise OptionError(
            f"the default value of input '{value.name}' has the shape {list(default.shape.numpy())}, not {shape}",
            hint=f"give that shape, or set the input ({set_input(value.name or '', 'FILE.npy')})",
        )


def _bind(value: ir.Value, shape: list[int], sizes: dict[str, int]) -> list[int]:
    """Check a shape against the declared one of an input, and add the sizes of its symbolic names to `sizes`."""
    declared = list(value.shape) if value.shape is not None else [None] * len(shape)
    if len(declared) != len(shape):
        dims = [getattr(dim, "value", dim) for dim in declared]
        known = ", ".join("?" if dim is None else str(dim) for dim in dims)
        raise UnsupportedError(
            f"input '{value.name}' [{known}] has {len(declared)} dimensions, not {len(shape)}",
            hint="give a size for each",
        )
    for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        name = dim.value if isinstance(dim, ir.SymbolicDim) else None
        if size < 0:
            raise UnsupportedError(f"axis {axis} of input '{value.name}' cannot be {size}")
        expected = sizes.setdefault(name, size) if name else dim if isinstance(dim, int) and dim >= 0 else size
        if expected != size:
            what = f"dimension '{name}'" if name else f"axis {axis} of input '{value.name}'"
            if not name:
                way = f"--open-dim {quote(f'{value.name}:{axis}=NAME')}"
                raise UnsupportedError(
                    f"{what} is {expected} and cannot be {size}", hint=f"if the exporter fixed it, open it: {way}"
                )
            raise UnsupportedError(f"{what} is {expected} and cannot be {size}", hint="give it one size")
    return shape


def _fix_inputs(model: ir.Model, arrays: Mapping[str, Array]) -> None:
    """Replace inputs by Constant nodes with the given arrays, in place; their initializers are removed."""
    for value in [v for v in model.graph.inputs if v.name in arrays]:
        name, dtype = value.name or "", value.dtype
        model.graph.inputs.remove(value)
        model.graph.initializers.pop(name, None)
        tensor = ir.Tensor(arrays[name], dtype=dtype, name=name)
        nodes = constant_nodes(tensor, default_opset(model.opset_imports))
        constant = nodes[-1].outputs[0]
        constant.type, constant.shape = value.type, ir.Shape(tensor.shape)
        value.replace_all_uses_with(constant, replace_graph_outputs=True)
        value.name, constant.name = None, name
        if len(model.graph):
            model.graph.insert_before(model.graph[0], nodes)
        else:
            model.graph.extend(nodes)


# Values of inputs


def input_arrays(model: ir.Model, given: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Convert the given input values to arrays of the declared types and ranks.

    Args:
        model: The model.
        given: Values by input name; a single number is also accepted for an input with one element.

    Raises:
        OptionError: The model has no such input, or declares another type or shape.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    for name in given:
        if name not in inputs:
            raise _no_input(name, model)
    return {name: _shaped(inputs[name], _typed(inputs[name], value)) for name, value in given.items()}


def _typed(value: ir.Value, given: ArrayLike) -> Array:
    """Convert a value to the declared type of an input; its numbers must not change."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.STRING):
        raise OptionError(f"input '{value.name}' is not a numeric tensor and cannot be set")
    dtype = value.type.dtype
    try:
        array: np.ndarray[Any, Any] = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"the value of input '{value.name}' is not an array: {error}") from error
    if array.dtype.kind not in "biufV" or (array.dtype.kind == "V" and array.dtype != dtype.numpy()):
        raise OptionError(f"the value of input '{value.name}' has type {array.dtype}, not numbers")
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
    """Give an array the declared rank of an input."""
    shape = value.shape
    if shape is None:
        return array
    if array.ndim == 0 and all(size == 1 for size in shape):
        return array.reshape([1] * len(shape))
    fits = len(shape) == array.ndim and all(
        not isinstance(size, int) or size < 0 or size == given
        for size, given in zip(shape, array.shape, strict=True)
    )
    if not fits:
        declared = ", ".join(str(size) if isinstance(size, int) else size.value or "?" for size in shape)
        raise OptionError(
            f"input '{value.name}' has the shape [{declared}], the given value {list(array.shape)}",
            hint=f"give an array of that shape ({set_input(value.name or '', 'FILE.npy')})",
        )
    return array


def record(model: ir.Model, given: Mapping[str, Array]) -> None:
    """Record in the metadata which inputs became constants, for a later comparison."""
    if given:
        model.metadata_props[_KEY] = json.dumps({name: array.tolist() for name, array in given.items()})


def has_record(model: onnx.ModelProto) -> bool:
    """Whether `record` wrote into the metadata of a model."""
    return any(entry.key == _KEY for entry in model.metadata_props)


def recorded(original: ir.Model, lowered: ir.Model) -> dict[str, Array]:
    """Return the recorded values of the inputs that the lowered model no longer has."""
    left = {value.name for value in lowered.graph.inputs}
    names = {value.name for value in original.graph.inputs} - left
    with suppress(ValueError, TypeError, AttributeError, OptionError):  # whatever is written there
        given = json.loads(lowered.metadata_props.get(_KEY, "{}"))
        return input_arrays(original, {name: given[name] for name in given if name in names})
    return {}
