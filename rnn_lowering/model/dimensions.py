"""Fixing the sizes of symbolic dimensions, and the shapes or values of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.model.carried import computed_values, inferred_values
from rnn_lowering.model.inference import contradicts, merged
from rnn_lowering.model.set_inputs import fix_inputs
from rnn_lowering.types import Array, Shapes


def fix_dimensions(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    input_shapes: Shapes | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> None:
    """Set symbolic dimensions to sizes in a whole model, in place, and infer all other shapes again.

    A declared shape of a computed value is used only for sizes that inference cannot find. If any declared size
    contradicts an inferred one, the model was traced at other sizes: then no declared number is used, only
    symbolic names that are fixed here.

    Args:
        model: The model.
        dims: Sizes by symbolic name.
        input_shapes: Whole shapes by input name; a symbolic name in that input is fixed everywhere.
        arrays: Inputs that become constants, as returned by `input_arrays`.

    Raises:
        OptionError: The model has no such name, or a size is negative. The model is unchanged.
        UnsupportedError: A size contradicts another. The model is unchanged.
    """
    sizes = dict(dims or {})
    arrays = arrays or {}
    inputs = {value.name: value for value in model.graph.inputs}
    for name, array in arrays.items():
        _bind(inputs[name], list(array.shape), sizes)
    shapes = {name: _bind(_input(model, name), list(shape), sizes) for name, shape in (input_shapes or {}).items()}
    _check(sizes, model)
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = _with_sizes(value.shape, [_fixed(dim, sizes) for dim in value.shape])
    for name, shape in shapes.items():
        value = _input(model, name)
        value.shape = ir.Shape(shape) if value.shape is None else _with_sizes(value.shape, shape)
    fix_inputs(model, arrays)
    infer_anew(model, sizes)


def forget_names(model: ir.Model) -> int:
    """Remove the names of unknown sizes from the shapes of computed values, in place, but not from those of the
    outputs; return how many shapes had one."""
    changed = 0
    for value in computed_values(model):
        if value.shape is not None and not value.is_graph_output() and not value.shape.is_static():
            value.shape = _with_sizes(value.shape, [dim if isinstance(dim, int) else None for dim in value.shape])
            changed += 1
    return changed


def infer_anew(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Infer the shapes of computed values, in place; declared ones count as `fix_dimensions` tells.

    Args:
        model: The model, whose inputs have their sizes.
        sizes: Sizes by symbolic name.
    """
    known = inferred_values(model)
    traced = any(contradicts(other.shape, _sized(value.shape, sizes)) for value, other in known.items())
    for value, other in known.items():
        declared = _named(value.shape, sizes) if traced else _sized(value.shape, sizes)
        value.type, value.shape = value.type or other.type, merged(other.shape, declared)


def _check(sizes: Mapping[str, int], model: ir.Model) -> None:
    present = {d.value for v in _values(model) for d in v.shape or () if isinstance(d, ir.SymbolicDim) and d.value}
    for name, size in sizes.items():
        if size < 0:
            raise OptionError(f"dimension '{name}' cannot be {size}", hint="give a size of 0 or more")
        if name not in present:
            known = ", ".join(sorted(present)) or "none"
            raise OptionError(f"no dimension is called '{name}'", hint=f"the model's symbolic dimensions: {known}")


def _sized(shape: ir.Shape | None, sizes: Mapping[str, int]) -> ir.Shape | None:
    """Return a shape with sizes for its names."""
    return None if shape is None else _with_sizes(shape, [_fixed(dim, sizes) for dim in shape])


def _named(shape: ir.Shape | None, sizes: Mapping[str, int]) -> ir.Shape | None:
    """Return a shape with sizes for its names, and without the sizes that it had."""
    if shape is None:
        return None
    return _with_sizes(shape, [None if isinstance(dim, int) else _fixed(dim, sizes) for dim in shape])


def _with_sizes(shape: ir.Shape, sizes: Sequence[int | ir.SymbolicDim | None]) -> ir.Shape:
    return ir.Shape(sizes, [shape.get_denotation(axis) for axis in range(len(shape))])


def _fixed(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    return sizes.get(dim.value or "", dim) if isinstance(dim, ir.SymbolicDim) else dim


def _input(model: ir.Model, name: str) -> ir.Value:
    inputs = [v for v in model.graph.inputs if not v.is_initializer()]
    for value in inputs:
        if value.name == name:
            return value
    known = ", ".join(str(v.name) for v in inputs)
    raise OptionError(f"the model has no input '{name}'", hint=f"its inputs: {known}")


def _bind(value: ir.Value, shape: list[int], sizes: dict[str, int]) -> list[int]:
    """Match a shape with the declared shape of an input; add the sizes of its symbolic names to `sizes`."""
    declared = list(value.shape) if value.shape is not None else [None] * len(shape)
    if len(declared) != len(shape):
        raise UnsupportedError(f"input '{value.name}' has {len(declared)} dimensions, not {len(shape)}")
    for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        name = dim.value if isinstance(dim, ir.SymbolicDim) else None
        if size < 0:
            raise UnsupportedError(f"axis {axis} of input '{value.name}' cannot be {size}")
        expected = sizes.setdefault(name, size) if name else dim if isinstance(dim, int) else size
        if expected != size:
            what = f"dimension '{name}'" if name else f"axis {axis} of input '{value.name}'"
            raise UnsupportedError(f"{what} is {expected} and cannot be {size}")
    return shape


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every value of the main graph and its subgraphs."""
    yield from model.graph.inputs
    yield from computed_values(model)
