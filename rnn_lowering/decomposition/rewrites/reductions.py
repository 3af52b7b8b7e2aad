"""Reductions with constant axes as an attribute, at opset 17; a ReduceMax of each axis.

pnnx ignores axes that are an input, as all reductions have them from opset 18 on and ReduceSum from 13 on, or ncnn
does not load them. It loads no ReduceMax or ReduceMin of several axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, integers_of, parameter
from rnn_lowering.model.model_sizes import inferred_values, take_over
from rnn_lowering.model.opsets import import_opset, opset_without
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import Scope, recurrent_nodes, standard_nodes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.targets.target import Target

_KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_REDUCTIONS = tuple(f"Reduce{kind}" for kind in _KINDS)

OF_ATTRIBUTES = 17
"""The last opset at which axes are an attribute; those of ReduceSum are an input from opset 13 on."""

_ALONE = ("ReduceMax", "ReduceMin")
"""Those of one axis at a time."""


@dataclass(frozen=True)
class _Reduction:
    """A reduction that may be of floats.

    Attributes:
        node: The node.
        scope: The graph that it is in.
        axes: The axes that it reduces, in order, each with its size if it is known; None if they are unknown, or if
            they are those of a sum of which one size is.
        dtype: The type of its numbers, if it is known.
    """

    node: ir.Node
    scope: Scope
    axes: dict[int, int | None] | None
    dtype: ir.DataType | None

    @property
    def given(self) -> ir.Value | None:
        """The input that has the axes."""
        return self.node.inputs[1] if len(self.node.inputs) > 1 else None

    @property
    def is_written(self) -> bool:
        """Whether it can and must be written as other nodes."""
        several = self.node.op_type in _ALONE and len(self.axes or ()) > 1
        known = bool(self.axes) and self.dtype is not None and self.scope.function is None
        return known and (self.given is not None or several)


def reductions_by_attributes(model: ir.Model) -> set[ir.Node]:
    """Return the reductions by known axes: once these are attributes, all are right."""
    return {reduction.node for reduction in _reductions(model) if reduction.axes is not None}


def reduce_by_attributes(model: ir.Model) -> str | None:
    """Write the reductions by known axes at opset 17, in place, if every other node means the same there; return
    what was done, for the user."""
    opset = default_opset(model.opset_imports)
    found = [reduction for reduction in _reductions(model) if reduction.is_written]
    splits = _equal_splits(model) if found and opset > OF_ATTRIBUTES else {}
    others = [*(reduction.node for reduction in found), *(entry.node for entry in recurrent_nodes(model)), *splits]
    if not found or (opset > OF_ATTRIBUTES and opset_without(model, others, OF_ATTRIBUTES) > OF_ATTRIBUTES):
        return None
    inserter = Inserter(model)
    for node, sizes in splits.items():
        del node.attributes["num_outputs"]
        node.resize_inputs(2)
        node.replace_input_with(1, inserter.constant(node, sizes))
    for reduction in found:
        _rewrite(reduction, inserter)
    if opset > OF_ATTRIBUTES:
        import_opset(model, OF_ATTRIBUTES)
    return f"takes axes as an attribute only: wrote {counted(len(found), 'reduction')} so, as up to opset 17"


def _equal_splits(model: ir.Model) -> dict[ir.Node, list[int]]:
    """Return each Split of a known size that counts its parts, as opset 18 has it, with the sizes of these."""
    found = [node for scope, node in standard_nodes(model, "Split") if scope.function is None]
    known = inferred_values(model) if found else {}
    sizes = dict[ir.Node, list[int]]()
    for node in found:
        x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        shape = None if x is None else known.get(x, x).shape
        whole = None if shape is None else shape[axis]
        if "num_outputs" in node.attributes and isinstance(whole, int):
            part = -(-whole // len(node.outputs))
            last = whole - part * (len(node.outputs) - 1)
            sizes |= {node: [*[part] * (len(node.outputs) - 1), last]} if last >= 0 else {}
    return sizes


def bound_by_max(model: ir.Model) -> int:
    """Write each Clip of a reduction by a lower bound only as Max, in place; return their number: of a norm that is
    clipped and expanded pnnx makes one along another axis."""
    return _bound(model, [clip for clip in _clips(model) if _is_lower_bound(clip)])


def bound_integers(model: ir.Model) -> int:
    """Write each Clip of integers but int32 as Max and Min, in place; return their number: OpenCV has none."""
    clips = _clips(model)
    known = inferred_values(model) if clips else {}

    def is_integer(x: ir.Value | None) -> bool:
        dtype = None if x is None else known.get(x, x).dtype
        return dtype is not None and dtype.is_integer() and dtype != ir.DataType.INT32

    return _bound(model, [clip for clip in clips if is_integer(clip.inputs[0])])


def _clips(model: ir.Model) -> list[ir.Node]:
    clips = [node for scope, node in standard_nodes(model, "Clip") if scope.opset >= _MAX_OF_ALL]
    return [node for node in clips if any(node.inputs[1:])]


def _bound(model: ir.Model, clips: Sequence[ir.Node]) -> int:
    """Write Clips as Max and Min; return their number."""
    inserter = Inserter(model)
    for node in clips:
        value = node.inputs[0]
        for operator, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
            value = value if bound is None else inserter.before(node, operator, [value, bound])
        assert value is not None
        assert isinstance(node.graph, ir.Graph)
        take_over(node.outputs[0], value)
        node.graph.remove(node, safe=True)
    return len(clips)


_MAX_OF_ALL = 12
"""The first opset at which Clip and Max take the same types."""


def _is_lower_bound(clip: ir.Node) -> bool:
    x, bounds = clip.inputs[0], [*clip.inputs[1:], None][:2]
    source = None if x is None else x.producer()
    return (
        source is not None
        and source.op_type in _REDUCTIONS
        and bounds[0] is not None
        and clip.inputs[2:] in ((), (None,))
    )


def refuse_reductions(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each reduction of floats whose axes are an input."""
    for reduction in _reductions(model):
        given = reduction.given
        if given is None:
            continue
        hint = f"export the model at opset {OF_ATTRIBUTES} (torch.onnx.export: dynamo=False, opset_version=17)"
        if constant_of(given, reduction.scope.opset) is None:
            hint = "export the model with constant axes, or use another runtime"
        elif reduction.axes is None:
            hint = "fix the sizes of the inputs (--set-shape): the number of terms must be known"
        ref = node_ref(reduction.node, reduction.scope.text)
        yield UnsupportedError(f"{target.name} ignores or rejects axes that are an input", hint=hint, node=ref)


def _reductions(model: ir.Model) -> Iterator[_Reduction]:
    found = list(standard_nodes(model, *_REDUCTIONS))
    known = inferred_values(model) if found else {}
    for scope, node in found:
        value = None if node.inputs[0] is None else known.get(node.inputs[0], node.inputs[0])
        if value is not None and (value.dtype is None or value.dtype.is_floating_point()):
            yield _Reduction(node, scope, _axes(node, value.shape, scope.opset), value.dtype)


def _axes(node: ir.Node, shape: ir.Shape | None, opset: int) -> dict[int, int | None] | None:
    held = parameter(node, "axes", opset)
    numbers = constant_of(held, opset) if isinstance(held, ir.Value) else held
    if shape is None or (numbers is None and held is not None):
        return None
    axes = [] if numbers is None else integers_of(numbers if isinstance(numbers, ir.Attr) else numbers.numpy())
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return None
    sizes = {axis: dim if isinstance(dim, int) else None for axis, dim in enumerate(shape)}
    found = {axis: sizes[axis] for axis in sorted({axis % len(sizes) for axis in axes or sizes})}
    return None if node.op_type == "ReduceSum" and not all(found.values()) else found


def _rewrite(reduction: _Reduction, inserter: Inserter) -> None:
    """Put nodes with their axes as an attribute in the place of one; a sum is so many times the mean."""
    node, axes, is_sum = reduction.node, reduction.axes or {}, reduction.node.op_type == "ReduceSum"
    keeps, given = node.attributes.get_int("keepdims", 1), reduction.given
    value = node.inputs[0]
    assert value is not None
    assert reduction.dtype is not None
    assert isinstance(node.graph, ir.Graph)
    for step in [[axis] for axis in reversed(axes)] if node.op_type in _ALONE else [[*axes]]:
        operator = "ReduceMean" if is_sum else node.op_type
        value = inserter.before(node, operator, [value], {"axes": step, "keepdims": keeps})
    if is_sum:
        count = math.prod(size or 0 for size in axes.values())
        number = inserter.constant(node, count, reduction.dtype.numpy(), "count")
        value = inserter.before(node, "Mul", [value, number])
    take_over(node.outputs[0], value)
    node.graph.remove(node, safe=True)
    drop_unused([] if given is None else [given])
