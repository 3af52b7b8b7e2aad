"""Models in LiteRT, converted by onnx2tf without TensorFlow."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx2tf
import onnx2tf.onnx2tf  # takes seconds, so before the processes of the jobs
from ai_edge_litert.interpreter import Interpreter
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    converted(model, list(feed))
    interpreter = Interpreter(f"converted/{model.stem}_float32.tflite", num_threads=1)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    details = runner.get_input_details()
    for name, array in feed.items():
        shape = [int(size) for size in details[named_there(name)]["shape_signature"]]
        if -1 not in shape and shape != list(array.shape or (1,)):  # a call would change it to that of the feed
            raise ValueError(f"onnx2tf changes the shape of {name} to {shape}")
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.load(model).graph.output}

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        given = {named_there(name): np.reshape(array, array.shape or (1,)) for name, array in feed.items()}
        results = runner(**given)
        return {name: channels_second(results[named_there(name)], shapes[name]) for name in names}

    return call


def named_there(name: str) -> str:
    """The name that onnx2tf gives an input or output: "Identity__0" for "Identity:0"."""
    return name.replace(":", "__")


def channels_second(array: Any, shape: list[int]) -> Any:
    """An output in its shape in ONNX: that of a convolution has its channels last."""
    moved = np.moveaxis(array, -1, 1) if array.ndim > 2 else array
    return moved if array.shape != tuple(shape) == moved.shape else array


def converted(model: Path, inputs: list[str]) -> None:
    """Write the folder `converted` with the model for LiteRT; the inputs keep their axes."""
    shutil.rmtree("converted", ignore_errors=True)
    onnx2tf.convert(
        input_onnx_file_path=str(model),
        output_folder_path="converted",
        keep_shape_absolutely_input_names=inputs,
        non_verbose=True,
    )


if __name__ == "__main__":
    main(once(load))
