"""Random inputs of a model at given sizes."""

from collections.abc import Mapping

import numpy as np
import onnx
from cases import Arrays
from onnx import helper


def feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int) -> Arrays:
    """Return random inputs; open dimensions have the sizes of their names, or 2."""
    rng, feed = np.random.default_rng(seed), {}
    held = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in held:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, 2) for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        numbers = rng.standard_normal(shape) * rng.choice((0.3, 1, 2))
        if dtype == np.bool_:
            feed[value.name] = np.asarray(rng.random(shape) < 0.7)
        elif dtype.kind in "iu":
            feed[value.name] = np.asarray(rng.integers(0, 1000, shape)).astype(dtype)
        else:
            feed[value.name] = np.asarray(numbers).astype(dtype)
    return feed
