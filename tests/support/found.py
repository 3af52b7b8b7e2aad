"""What campaigns have found: edits of a model that made another error come through than the project's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx
from onnx import helper
from texts import parse

Edit = Callable[[onnx.ModelProto], Any]
"""Changes a model in place, or returns the bytes of another."""

STEP = """
main (float[5,2,3] X) => (float[5,1,2,4] Y) <float[1,16,3] V = {}, float[1,16,4] R = {}> {
    x = Neg(X)
    W = Transpose <perm=[0,1,2]> (V)
    [lstm] Y = LSTM <hidden_size=4, direction="reverse"> (x, W, R)
}
"""


def file_of(name: str) -> bytes:
    """A model file with the edit of a name."""
    model = parse(STEP)
    edited = FOUND[name](model)
    data: bytes = edited if isinstance(edited, bytes) else model.SerializeToString()
    return data


def raw(model: onnx.ModelProto, number: int, data: bytes, **fields: Any) -> None:
    tensor = model.graph.initializer[number]
    tensor.raw_data = data
    for name, value in fields.items():
        setattr(tensor, name, value)


def at_opset(version: int, model: onnx.ModelProto) -> None:
    model.opset_import[0].version = version


def sized(axis: int, size: int, model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    del model.graph.output[0].type.tensor_type.shape.dim[:]


def shapeless_at_opset_6(model: onnx.ModelProto) -> None:
    at_opset(6, model)
    model.graph.output[0].type.tensor_type.ClearField("shape")


def constant(model: onnx.ModelProto, **attributes: Any) -> None:
    """Let W come from a Constant node."""
    model.graph.node[1].CopyFrom(helper.make_node("Constant", [], ["W"], **attributes))


def attribute(model: onnx.ModelProto, node: int, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(model.graph.node[node].attribute[0], name, value)


def renamed(model: onnx.ModelProto) -> bytes:
    data: bytes = model.SerializeToString()
    return data.replace(b"Neg", b"\xff\xfe\xfd")


VERSIONS = (0, -1, 2**31, 2**63 - 1, -(2**63))
HUGE = (-1, -7, -(2**63), 2**31 - 1, 2**31, 2**40, 2**63 - 1)
FOUND: dict[str, Edit] = {
    "a tensor without numbers": lambda m: raw(m, 0, b""),
    "a tensor with too few numbers": lambda m: raw(m, 1, b"\0" * 8),
    "a tensor with half a number": lambda m: raw(m, 1, b"\0" * 7),
    "a tensor with too many numbers": lambda m: raw(m, 1, b"\0" * 4000),
    "a tensor without a type": lambda m: raw(m, 1, b"\0" * 256, data_type=0),
    "a tensor of an unknown type": lambda m: raw(m, 1, b"\0" * 256, data_type=99),
    "a tensor of text": lambda m: raw(m, 1, b"\0" * 256, data_type=8),
    "a negative size of a tensor": lambda m: m.graph.initializer[1].dims.append(-1),
    "a huge size of a tensor": lambda m: m.graph.initializer[1].dims.append(2**62),
    **{f"opset {n}": partial(at_opset, n) for n in VERSIONS},
    **{f"X of length {n}": partial(sized, 0, n) for n in HUGE},
    **{f"X of batch size {n}": partial(sized, 1, n) for n in HUGE},
    **{f"X of input size {n}": partial(sized, 2, n) for n in HUGE},
    "an output without a shape at opset 6": shapeless_at_opset_6,
    "a constant of nothing": constant,
    "a constant twice": lambda m: constant(m, value_int=1, value_float=1.0),
    "a constant of something else": lambda m: constant(m, other=1),
    "a constant of the wrong type": lambda m: constant(m, value=1),
    "a constant of text": lambda m: constant(m, value_string="W"),
    "a constant of two outputs": lambda m: m.graph.node[1].output.append("more"),
    "a chain of no input": lambda m: m.graph.node[1].ClearField("input"),
    "an attribute without a type": lambda m: attribute(m, 1, type=0),
    "an attribute of another type": lambda m: attribute(m, 1, type=5),
    "an attribute without a function": lambda m: attribute(m, 1, ref_attr_name="perm"),
    "an operator that is no text": renamed,
    "an output twice": lambda m: m.graph.output.append(m.graph.output[0]),
    "an output of the input": lambda m: m.graph.node[2].output.append("X"),
    "an input twice": lambda m: m.graph.input.append(m.graph.input[0]),
    "a name that nothing gives": lambda m: m.graph.node[2].input.__setitem__(2, "nothing"),
    "a node twice": lambda m: m.graph.node.append(m.graph.node[2]),
    "a circle": lambda m: m.graph.node[0].input.__setitem__(0, "Y"),
}
