"""The names of forms and targets, as types: a type checker refuses others. A test compares them with the table."""

from __future__ import annotations

from typing import Literal

FormName = Literal["auto", "scan", "loop", "unroll", "chunked", "keep"]
"""The forms; "keep": recurrent nodes stay."""

TargetName = Literal[
    "portable",
    "onnxruntime",
    "onnxruntime-web",
    "onnxruntime-webgpu",
    "webnn",
    "tinygrad",
    "tvm",
    "jaxonnxruntime",
    "onnx2torch",
    "executorch",
    "coreml",
    "ncnn",
    "mnn",
    "tract",
    "iree",
    "openvino",
    "opencv",
    "emx-onnx-cgen",
    "ezkl",
    "qnn",
    "rknn",
    "litert",
    "espdl",
    "candle",
    "rten",
    "burn",
    "onnx2c",
    "tensorrt",
    "tidl",
    "stedgeai",
    # other names
    "ort",
    "ortweb",
    "webgpu",
    "ortwebgpu",
    "apachetvm",
    "coremltools",
    "pnnx",
    "cv2",
    "onnxruntimeqnn",
    "rknntoolkit2",
    "tflite",
    "tensorflowlite",
    "onnx2tf",
    "espppq",
    "trt",
    "trtexec",
    "nvidia",
    "stedgeaicore",
]
"""The names of `TARGETS`, and their other names."""
