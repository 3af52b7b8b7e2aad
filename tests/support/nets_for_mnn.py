"""Nets whose nodes along one axis MNN misreads as they are."""

import numpy as np
import onnx
from texts import parse

OF_ONE_AXIS = {
    "an output that is a Conv": "y = Conv (x, w)",
    "and a Relu": "c = Conv (x, w) y = Relu (c)",
    "a ConvTranspose": "y = ConvTranspose (x, t)",
    "also read by another node": "y = Conv (x, w) z = Tanh (y)",
    "a pool without strides": "p = MaxPool <kernel_shape = [2]> (x) y = Tanh (p)",
    "a mean without strides": "y = AveragePool <kernel_shape = [2]> (x)",
}
"""MNN gives the outputs an axis more, and its process ends at the pools."""


def of_one_axis(nodes: str) -> onnx.ModelProto:
    outputs = "y, float[a, b, c] z" if " z " in nodes else "y"
    model = parse(f"""g (float[1, 4, 10] x) => (float[N, M, L] {outputs}) <float[3, 4, 3] w = {{}},
        float[4, 3, 3] t = {{}}> {{ {nodes} }}""")
    for tensor in model.graph.initializer:
        array = np.linspace(-1, 1, 36, dtype=np.float32).reshape(tuple(tensor.dims))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model
