"""Large nets whose exporter writes each size as a number, and stored models: opened soon and right, or refused."""

import time

import numpy as np
import onnx
import pytest
from gtcrn import gtcrn
from onnx import numpy_helper, shape_inference
from running import run
from stored_models import Entry, load, parameters

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
    stream = rl.lower(new, stream={"time": 1})
    assert rl.verify_stream(truth, stream, runs=1).status == "verified"


# Each fixed axis of a stored model


_MOST = 3_000_000
"""Bytes of the models that run here."""


@pytest.mark.exhaustive
@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("entry", parameters("runs"))
def test_a_fixed_axis_is_opened_or_refused(entry: Entry) -> None:
    model = load(entry)
    if model.ByteSize() > _MOST:
        pytest.skip("takes long")
    given = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis in range(len(dims)) if value.name not in given and len(dims) > 1 else ():
            if dims[axis].dim_value > 0:
                try:
                    new = rl.lower(model, "keep", open_dims={f"{value.name}:{axis}": "opened"})
                except rl.UnsupportedError:
                    continue
                found = rl.verify(model, new, runs=1)
                assert found.status == "verified", f"{value.name}:{axis}: {found}"
