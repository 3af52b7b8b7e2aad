"""Operators of com.microsoft that onnxruntime's optimizer fuses, as those of ONNX that it fused.

Few runtimes know them; OpenVINO reads a FusedConv without what is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError, counted
from rnn_lowering.model.scopes import nodes_in_scopes
from rnn_lowering.nodes.kinds import is_recurrent
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.target import Target

_DOMAIN = "com.microsoft"

_PARAMETERS = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}
"""By activation the names of its numbers, in order."""

_OF_GEMM = ("activation_alpha", "activation_beta", "activation_gamma")

_OF_CONV = 3
"""The inputs of a Conv; behind them is what is added to it."""

_CLIP_OF_INPUTS = 11
"""The first opset of a Clip whose bounds are inputs."""


def unfuse(model: AdaptedModel) -> str | None:
    """Write the fused operators as those of ONNX, in place; return what was done, for the user."""
    found = [node for node in _fused(model) if node.op_type in _WRITTEN]
    written = 0
    for node in found:
        value = _WRITTEN[node.op_type](node, model)
        if value is not None:
            model.replace(node, value)
            written += 1
    return f"has only operators of ONNX: wrote {counted(written, 'fused node')} with these" if written else None


def refuse_fused(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each other operator of com.microsoft that stays."""
    for node in _fused(model):
        if not is_recurrent(node):
            hint = "let onnxruntime optimize the model at its basic level, or use another runtime"
            yield UnsupportedError(f"{target.name} has only operators of ONNX", hint=hint, node=node_ref(node))


def _fused(model: AdaptedModel) -> list[ir.Node]:
    functions = model.model.functions
    return [
        node
        for scope, node in nodes_in_scopes(model.model)
        if node.domain == _DOMAIN and scope.function is None and node.op_identifier() not in functions
    ]


def _conv(node: ir.Node, model: AdaptedModel) -> ir.Value | None:
    numbers = node.attributes.get_floats("activation_params", ())
    attributes = {name: held for name, held in node.attributes.items() if not name.startswith("activation")}
    value = model.before(node, "Conv", node.inputs[:_OF_CONV], **attributes)
    if node.inputs[_OF_CONV:]:
        value = model.before(node, "Add", [value, node.inputs[_OF_CONV]])
    return _activated(value, numbers, node, model)


def _gemm(node: ir.Node, model: AdaptedModel) -> ir.Value | None:
    numbers = [node.attributes.get_float(name) for name in _OF_GEMM if name in node.attributes]
    attributes = {name: held for name, held in node.attributes.items() if not name.startswith("activation")}
    return _activated(model.before(node, "Gemm", node.inputs, **attributes), numbers, node, model)


def _activated(value: ir.Value, numbers: Sequence[float], node: ir.Node, model: AdaptedModel) -> ir.Value:
    """Return what the activation of a fused node makes of a value."""
    operator = node.attributes.get_string("activation", "") or ""
    given = dict(zip(_PARAMETERS.get(operator, ()), numbers, strict=False))
    if operator == "Clip" and model.opset >= _CLIP_OF_INPUTS:
        dtype = model.dtype_of(node.inputs[0]) or ir.DataType.FLOAT
        bounds = [model.constant(node, number, dtype.numpy(), name) for name, number in given.items()]
        return model.before(node, operator, [value, *bounds])
    return model.before(node, operator, [value], **given) if operator else value


def _matmul(node: ir.Node, model: AdaptedModel) -> ir.Value | None:
    operands, dtype = list(node.inputs), model.dtype_of(node.inputs[0])
    if dtype is None or any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        return None
    for slot, name in enumerate(("transA", "transB")):
        if node.attributes.get_int(name, 0):
            shape = model.shape_of(operands[slot])
            if shape is None:
                return None
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            operands[slot] = model.before(node, "Transpose", [operands[slot]], perm=order)
    product, alpha = model.before(node, "MatMul", operands), node.attributes.get_float("alpha", 1.0)
    return product if alpha == 1 else _times(product, alpha, dtype, node, model)


def _gelu(node: ir.Node, model: AdaptedModel) -> ir.Value | None:
    """The same with or without a bias, and approximately."""
    x, dtype = node.inputs[0], model.dtype_of(node.inputs[0])
    if x is None or dtype is None:
        return None
    if node.inputs[1:]:
        x = model.before(node, "Add", node.inputs)
    if node.op_type == "QuickGelu":
        scaled = _times(x, node.attributes.get_float("alpha", 1.702), dtype, node, model)
        return model.before(node, "Mul", [x, model.before(node, "Sigmoid", [scaled])])
    if node.op_type == "FastGelu":
        square = model.before(node, "Mul", [x, x])
        cube = _times(model.before(node, "Mul", [square, x]), 0.044715, dtype, node, model)
        inner = _times(model.before(node, "Add", [x, cube]), math.sqrt(2 / math.pi), dtype, node, model)
        curve = model.before(node, "Tanh", [inner])
    else:
        curve = model.before(node, "Erf", [_times(x, math.sqrt(0.5), dtype, node, model)])
    above = model.before(node, "Add", [curve, model.constant(node, 1, dtype.numpy(), "one")])
    return _times(model.before(node, "Mul", [x, above]), 0.5, dtype, node, model)


def _times(value: ir.Value, number: float, dtype: ir.DataType, node: ir.Node, model: AdaptedModel) -> ir.Value:
    return model.before(node, "Mul", [value, model.constant(node, number, dtype.numpy(), "factor")])


_WRITTEN: Mapping[str, Callable[[ir.Node, AdaptedModel], ir.Value | None]] = {
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), _gelu),
}
"""By operator."""
