"""Models in onnxruntime-web on WebGPU, which SwiftShader computes."""

from in_page import main_on

from browsers import headless_gpu  # isort: skip  in_page knows its folder

if __name__ == "__main__":
    main_on("webgpu", headless_gpu)
