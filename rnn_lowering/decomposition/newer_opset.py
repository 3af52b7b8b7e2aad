"""Write a model of an older opset at a newer one, if its runtime computes more of its nodes right then.

Most of what takes the place of a node needs operators of opset 13, and CastLike one of 15. ONNX's version converter
needs shapes that it does not infer, and relabels nodes whose meaning has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lowering.decomposition.adaptations import ADAPTATIONS
from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.decomposition.operands import OLDEST_OPSET
from rnn_lowering.decomposition.rewrites.axes import ROWS_OF, flatten_rows
from rnn_lowering.facts.operators import default_opset, input_slots
from rnn_lowering.model.copying import clone
from rnn_lowering.model.scopes import nodes_in_scopes
from rnn_lowering.targets.target import Target

_OLDEST_RAISED = 7
"""Models of older opsets are converted before; from it on operands are broadcast as today."""

_OLDEST_IR_VERSION = 4
"""The first IR version with initializers that are no inputs."""

_IR_VERSIONS = {13: 7, 15: 8}
"""By opset that is written its IR version."""

_BY_SCALES = ("Resize", "Upsample")


def opset_wanted(model: ir.Model, target: Target) -> int:
    """Return the opset from which on nodes that adaptations refuse are none; 0 if no newer one helps."""
    adaptations, adapted = map(ADAPTATIONS.__getitem__, target.model.adaptations), AdaptedModel(model)
    newer = (each for each in adaptations if each.since > adapted.opset)
    return max((each.since for each in newer if any(True for _ in each.refuse(adapted, target))), default=0)


def at_newer_opset(model: ir.Model, newer: int = OLDEST_OPSET) -> ir.Model | None:
    """Return a copy of a model at opset 13 or 15; None if one of its nodes is not written so."""
    opset = default_opset(model.opset_imports)
    if not _OLDEST_RAISED <= opset < newer or model.functions or model.ir_version < _OLDEST_IR_VERSION:
        return None
    copy = clone(model)
    adapted = AdaptedModel(copy)
    of_several = adapted.nodes(*ROWS_OF) if opset < OLDEST_OPSET else ()
    axes = {node: _written_axis(node, adapted) for node in of_several}
    if None in axes.values():
        return None
    flatten_rows(adapted)
    for node, axis in axes.items():
        node.attributes["axis"] = ir.AttrInt64("axis", axis or 0)
    copy.opset_imports[""] = adapted.opset = newer
    copy.ir_version = max(copy.ir_version, _IR_VERSIONS[newer])
    nodes = [node for _, node in nodes_in_scopes(copy) if node.domain == ""]
    return copy if all(_raise(node, adapted, opset) for node in nodes) else None


def _written_axis(node: ir.Node, model: AdaptedModel) -> int | None:
    """Return the axis of a Softmax, which is along one; None if it is unknown."""
    shape = model.shape_of(node.inputs[0])
    return node.attributes.get_int("axis", 1) % len(shape) if shape else None


def _raise(node: ir.Node, model: AdaptedModel, opset: int) -> bool:
    """Write a node of an opset at that of its model, in place; return False if it is not known how."""
    if node.op_type in _BY_SCALES and opset < _PARTS_OF_RESIZE:
        return _raise_resize(node, model)
    node.op_type = _RENAMED.get(node.op_type, node.op_type)
    if not onnx.defs.has(node.op_type, model.opset, ""):
        return False
    schema, slots = onnx.defs.get_schema(node.op_type, model.opset, ""), input_slots(node.op_type, model.opset)
    for name in [name for name in node.attributes if name not in schema.attributes]:
        held = node.attributes.pop(name)
        parameter = (node.op_type, name)
        if parameter in _DROPPED and held.value == _DROPPED[parameter]:
            continue
        slot = slots.get(_INPUTS.get(parameter, name))
        dtype = ir.DataType.INT64 if held.type in _INTEGERS else model.dtype_of(node.inputs[0])
        if slot is None or held.is_ref() or dtype is None:
            return False
        node.resize_inputs(max(len(node.inputs), slot + 1))
        numbers = [held.value] if parameter == ("TopK", "k") else held.value
        node.replace_input_with(slot, model.constant(node, numbers, dtype.numpy(), name))
    fits = schema.min_input <= len(node.inputs) <= schema.max_input and len(node.outputs) <= schema.max_output
    return fits and not schema.deprecated


_INTEGERS = (ir.AttributeType.INT, ir.AttributeType.INTS)

_RENAMED = {"Scatter": "ScatterElements"}

_INPUTS = {("Pad", "value"): "constant_value", ("TopK", "k"): "K"}
"""By operator and attribute the name of the input that takes its place, if it is another one."""

_DROPPED: Mapping[tuple[str, str], Any] = {("BatchNormalization", "spatial"): 1}
"""By operator and attribute that opset 13 lacks the value that it stands for there."""

_PARTS_OF_RESIZE = 11
"""The first opset of a Resize that says how places correspond: before it as `asymmetric`."""


def _raise_resize(node: ir.Node, model: AdaptedModel) -> bool:
    scales = node.attributes.pop("scales", None)
    given = node.inputs[1] if scales is None else model.constant(node, scales.value, "float32", "scales")
    node.op_type = "Resize"
    node.resize_inputs(3)
    node.replace_input_with(1, None)
    node.replace_input_with(2, given)
    for name, mode in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
        node.attributes[name] = ir.AttrString(name, mode)
    return True
