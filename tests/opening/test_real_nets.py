"""A net of many layers whose exporter writes each size as a number: it is opened soon, and then streamed."""

import time

import numpy as np
import onnx
import pytest
from gtcrn import gtcrn
from onnx import numpy_helper, shape_inference
from running import run

import rnn_lowering as rl


def frozen(frames: int) -> onnx.ModelProto:
    """Return GTCRN as torch exports it for some frames: the target of each Reshape has the sizes."""
    model, _ = gtcrn()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = frames
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = frames
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info}
    count = 0
    for node in model.graph.node:
        shape = shapes.get(node.output[0], [])
        if node.op_type == "Reshape" and shape and all(shape):
            node.input[1] = f"{node.output[0]}_frozen"
            model.graph.initializer.append(numpy_helper.from_array(np.array(shape), node.input[1]))
            count += any(n % frames == 0 for n in shape)
    assert count >= 4
    return model


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_gtcrn_is_opened_and_streamed() -> None:
    first, second = frozen(11), frozen(160)
    begun = time.process_time()
    new = rl.lower(first, "keep", open_dims={"mix:2": "time"}, also=[second])
    assert time.process_time() - begun < 5
    truth, feed = gtcrn()
    np.testing.assert_allclose(run(new, feed)["enh"], run(truth, feed)["enh"], 1e-4, 1e-5)
    stream = rl.lower(first, open_dims={"mix:2": "time"}, also=[second], stream={"time": 1})
    assert rl.verify_stream(truth, stream).status == "verified"
