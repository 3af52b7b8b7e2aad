"""The original at the sizes and values that a lowered model fixes: constants of its nodes follow from them."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.model.folding import folded
from rnn_lowering.model.scopes import Path, recurrent_nodes, scopes
from rnn_lowering.model.set_inputs import recorded
from rnn_lowering.model.sizing import at_sizes


def as_sized(original: ir.Model, lowered: ir.Model) -> ir.Model:
    """Return the original with the sizes and values that the lowered model fixes; itself where it fixes none."""
    fixed = {value.name: value.shape for value in lowered.graph.inputs}
    dims: dict[str, int] = {}
    shapes: dict[str, list[int]] = {}
    for value in original.graph.inputs:
        before, after = value.shape, fixed.get(value.name)
        if after is None or (before is not None and len(before) != len(after)):
            continue
        pairs = list(zip(before if before is not None else [None] * len(after), after, strict=True))
        dims |= {a.value: b for a, b in pairs if isinstance(a, ir.SymbolicDim) and a.value and isinstance(b, int)}
        sizes = [size for size in after if isinstance(size, int)]
        if len(sizes) == len(after) and not all(isinstance(a, int) for a, _ in pairs):
            shapes[value.name or ""] = sizes
    arrays = recorded(original, lowered)
    return at_sizes(original, dims, shapes, arrays).model if dims or shapes or arrays else original


def as_folded(original: ir.Model, lowered: ir.Model) -> ir.Model:
    """Return the original folded, where the lowered model has what its recurrent nodes then give; else itself."""
    branches = _count_branches(original) > _count_branches(lowered)
    if not branches and not all(v.shape is not None and v.shape.is_static() for v in lowered.graph.inputs):
        return original
    known = folded(original, decide=branches)
    if known is None:
        return original
    values = computed_by_name(lowered)
    given = [(entry.path, v) for entry in recurrent_nodes(known) for v in entry.node.outputs]
    kept = all((path, v.name) in values for path, v in given if v.uses() or v.is_graph_output())
    return known if kept else original


def _count_branches(model: ir.Model) -> int:
    return sum(node.op_type == "If" for node in model.graph.all_nodes())


def computed_by_name(model: ir.Model) -> dict[tuple[Path, str], ir.Value | None]:
    """Return what nodes compute by scope and name, as bodies may share names; None where that is not enough."""
    values: dict[tuple[Path, str], ir.Value | None] = {}
    for scope in scopes(model):
        for value in (v for node in scope.graph for v in node.outputs):
            key = scope.path, value.name or ""
            values[key] = None if key in values else value
    return values
