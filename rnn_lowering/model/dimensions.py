"""Fixing symbolic dimensions, so that a form that needs known sizes can follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.copying import clone, replace_content
from rnn_lowering.model.onnx_inference import infer_shapes, is_sound
from rnn_lowering.model.scopes import recurrent_nodes


def fix_dimensions(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> bool:
    """Give symbolic dimensions sizes throughout a model, in place, and infer all shapes anew.

    Where a recurrent node's sizes are then still unknown, what follows from the sizes is folded into constants:
    paddings and branches may depend on them.

    Args:
        model: The model.
        dims: Sizes by symbolic name.
        input_shapes: Whole shapes by input name; a symbolic name in that input is fixed everywhere.

    Returns:
        Whether anything was folded.

    Raises:
        UnsupportedError: A name that the model does not have, or a size that contradicts another. The model is
            as it was.
    """
    if not dims and not input_shapes:
        return False
    sizes = dict(dims or {})
    unnamed = {}
    for name, shape in (input_shapes or {}).items():
        unnamed[name] = _bind(_input(model, name), list(shape), sizes)
    present = {d.value for v in _values(model) for d in v.shape or () if isinstance(d, ir.SymbolicDim) and d.value}
    for name, size in sizes.items():
        if size < 0:
            raise UnsupportedError(f"dimension '{name}' cannot be {size}", hint="give a size of 0 or more")
        if name not in present:
            known = ", ".join(sorted(present)) or "none"
            raise UnsupportedError(
                f"no dimension is called '{name}'", hint=f"the model's symbolic dimensions: {known}"
            )
    for value in _values(model):
        if value.shape is not None and any(isinstance(d, ir.SymbolicDim) for d in value.shape):
            value.shape = _with_sizes(value.shape, [_fixed(d, sizes) for d in value.shape])
    for name, shape in unnamed.items():
        value = _input(model, name)
        value.shape = ir.Shape(shape) if value.shape is None else _with_sizes(value.shape, shape)
    infer_shapes(model)
    return _fold(model)


def _unsized(model: ir.Model) -> int:
    """How many recurrent nodes have an X of unknown length or batch size."""
    shapes = [entry.node.inputs[0].shape for entry in recurrent_nodes(model) if entry.node.inputs[0] is not None]
    return sum(shape is None or not all(isinstance(size, int) for size in shape[:2]) for shape in shapes)


def _fold(model: ir.Model) -> bool:
    """Fold constants, where that lets more sizes be known; return whether it did."""
    unsized = _unsized(model)
    if not unsized or not is_sound(model):
        return False
    from onnxscript.optimizer import fold_constants

    folded = clone(model)
    try:
        fold_constants(
            folded,
            onnx_shape_inference=True,
            should_fold=lambda node: True if node.op_type == "ConstantOfShape" else None,
        )
    except Exception:  # a node that the folder cannot evaluate, whatever it raises: it then stays
        return False
    RemoveUnusedNodesPass()(folded)
    if _unsized(folded) >= unsized:
        return False
    replace_content(model, folded.graph, folded.functions)
    return True


def _with_sizes(shape: ir.Shape, sizes: Sequence[int | ir.SymbolicDim]) -> ir.Shape:
    return ir.Shape(sizes, [shape.get_denotation(axis) for axis in range(len(shape))])


def _fixed(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    return sizes.get(dim.value or "", dim) if isinstance(dim, ir.SymbolicDim) else dim


def _input(model: ir.Model, name: str) -> ir.Value:
    inputs = [v for v in model.graph.inputs if not v.is_initializer()]
    for value in inputs:
        if value.name == name:
            return value
    known = ", ".join(str(v.name) for v in inputs)
    raise UnsupportedError(f"the model has no input '{name}'", hint=f"its inputs: {known}")


def _bind(value: ir.Value, shape: list[int], sizes: dict[str, int]) -> list[int]:
    """Match a shape with an input's declaration; add what its symbolic names become to `sizes`."""
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
    """Every value of the main graph and its subgraphs."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
