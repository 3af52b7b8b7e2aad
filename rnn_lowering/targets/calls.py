"""How a model is run in each runtime: the code that a report shows, and the line that the command prints.

The code stands here as it runs, for a file "model.onnx". INPUTS and OUTPUTS are lists of names, SHAPES has the
shapes of the inputs by name, and ZEROS is a list of arrays for the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Snippet:
    """How a model is run in a runtime.

    Attributes:
        load: Code that imports the runtime and loads the model.
        run: The body of a function that takes `inputs`, arrays by name, and returns the outputs as a list.
        line: The same in one line, the last step of which has the outputs as the runtime gives them: {file} is the
            name of the model, {feed} a dictionary of arrays, {values} and {outputs} are lists, {facts} tells tract
            open sizes; "" where it is long.
        commands: Convert the model before: {path} is its name, {names} and {shapes} are of its inputs.
    """

    load: str
    run: str
    line: str = ""
    commands: tuple[str, ...] = ()


_PNNX = """$(python -c "import importlib.util as u; print(*u.find_spec('pnnx').submodule_search_locations)")/pnnx"""
"""The program in the package pnnx; its command of that name asks for PyTorch, which the program does not need."""

CALLS: Mapping[str, Snippet] = {
    "onnxruntime": Snippet(
        'import onnxruntime\n\nnet = onnxruntime.InferenceSession("model.onnx")',
        "return net.run(None, inputs)",
        "onnxruntime.InferenceSession({file}).run(None, {feed})",
    ),
    "tract": Snippet(
        """\
import tract

nets = {}  # by sizes: tract runs some models only if it knows them


def net_for(arrays):
    kinds = ["bool" if a.dtype == bool else f"{a.dtype.kind}{8 * a.dtype.itemsize}" for a in arrays]
    facts = tuple(",".join([*map(str, a.shape), kind]) for a, kind in zip(arrays, kinds))
    if facts not in nets:
        net = tract.onnx().load("model.onnx")
        for n, fact in enumerate(facts):
            net.set_input_fact(n, fact)
        nets[facts] = net.into_model().into_runnable()
    return nets[facts]""",
        "return [y.to_numpy() for y in net_for([*inputs.values()]).run([*inputs.values()])]",
        "net = tract.onnx().load({file}); {facts}net.into_model().into_runnable().run({values})",
    ),
    "openvino": Snippet(
        """\
import openvino

precise = {"INFERENCE_PRECISION_HINT": "f32"}  # else bfloat16 on processors that have it
net = openvino.compile_model("model.onnx", "CPU", precise)""",
        "found = net(inputs)\nreturn [found[name].copy() for name in OUTPUTS]",
        'openvino.compile_model({file}, "CPU")({feed})',
    ),
    "opencv": Snippet(
        'import cv2\n\nnet = cv2.dnn.readNetFromONNX("model.onnx")',
        """\
for name, array in inputs.items():
    net.setInput(array, name)
return [y.copy() for y in net.forward(OUTPUTS)]""",
        "net = cv2.dnn.readNetFromONNX({file}); "
        "[net.setInput(a, name) for name, a in {feed}.items()]; net.forward({outputs})",
    ),
    "tinygrad": Snippet(
        """\
from tinygrad import Tensor  # without a GPU it needs clang, or the variable DEV=PYTHON, which is slow
from tinygrad.nn import onnx

onnx.onnx_ops["MatMul"] = lambda a, b: a.contiguous() @ b  # ten times faster
net = onnx.OnnxRunner("model.onnx")""",
        """\
found = net({name: Tensor(array).realize() for name, array in inputs.items()})
return [found[name].numpy() for name in OUTPUTS]""",
    ),
    "tvm": Snippet(
        """\
import onnx, tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

module = relax.get_pipeline("zero")(from_onnx(onnx.load("model.onnx"), SHAPES))
net = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())""",
        """\
found = net["main"](*map(tvm.runtime.tensor, inputs.values()))
return [y.numpy() for y in ([found] if hasattr(found, "numpy") else found)]""",
    ),
    "mnn": Snippet(
        """\
import MNN, _tools  # _tools is MNN's converter

options = ["mnnconvert", "-f", "ONNX", "--bizCode", "any"]
_tools.mnnconvert([*options, "--modelFile", "model.onnx", "--MNNModel", "net.mnn"])
net = MNN.nn.load_module_from_file("net.mnn", INPUTS, OUTPUTS)
kinds = {"f": MNN.expr.float, "i": MNN.expr.int, "u": MNN.expr.uint8}""",
        """\
arrays = [a.astype("int32") if a.dtype.kind in "ib" else a for a in inputs.values()]
given = [MNN.expr.const(a, list(a.shape), MNN.expr.NCHW, kinds[a.dtype.kind]) for a in arrays]
return [MNN.expr.convert(y, MNN.expr.NCHW).read().copy() for y in net.forward(given)]""",
    ),
    "ncnn": Snippet(
        """\
import re
import ncnn

net = ncnn.Net()
net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
net.load_param("net.param"), net.load_model("net.bin")
batch = dict(re.findall(r"(in\\d+|out\\d+)\\b.*batch_index=(\\d+)", open("net.py").read()))""",
        """\
with net.create_extractor() as extractor:
    for n, array in enumerate(inputs.values()):
        array = array.astype({"int64": "int32", "float16": "float32"}.get(array.dtype.name, array.dtype))
        extractor.input(f"in{n}", ncnn.Mat(array, batch_index=int(batch[f"in{n}"])).clone())
    mats = [extractor.extract(f"out{n}")[1] for n in range(len(OUTPUTS))]
    return [np.array(y.numpy(batch_index=int(batch[f"out{n}"]))) for n, y in enumerate(mats)]""",
        commands=(
            f"{_PNNX} {{path}} inputshape={{shapes}} fp16=0 ncnnparam=net.param ncnnbin=net.bin ncnnpy=net.py",
        ),
    ),
    "iree": Snippet(
        """\
import iree.runtime

net = iree.runtime.load_vm_flatbuffer_file("net.vmfb", driver="local-task")
name = next(n for n in net.vm_module.function_names if n[:2] != "__" and "$" not in n)""",
        """\
found = getattr(net, name)(*inputs.values())
return [y.to_host() for y in (found if isinstance(found, (list, tuple)) else [found])]""",
        commands=(
            "iree-import-onnx {path} -o net.mlir",
            "iree-compile net.mlir --iree-hal-target-device=local "
            "--iree-hal-local-target-device-backends=llvm-cpu -o net.vmfb",
        ),
    ),
    "litert": Snippet(
        """\
from pathlib import Path
from ai_edge_litert.interpreter import Interpreter

file = next(Path("converted").glob("*_float32.tflite"))
net = Interpreter(str(file)).get_signature_runner()""",
        """\
found = net(**{name.replace(":", "__"): array for name, array in inputs.items()})
return [found[name.replace(":", "__")] for name in OUTPUTS]""",
        commands=("onnx2tf -i {path} -o converted -kat {names} -nuo",),
    ),
    "emx-onnx-cgen": Snippet(
        """\
import ctypes

net = ctypes.CDLL("./net.so").model""",
        """\
outputs = ZEROS
arrays = [*map(np.ascontiguousarray, inputs.values()), *outputs]
net(*(array.ctypes.data_as(ctypes.c_void_p) for array in arrays))
return outputs""",
        commands=(
            "emx-onnx-cgen compile {path} net.c --model-name model --large-weight-threshold 0",
            "cc -O2 -shared -fPIC -o net.so net.c -lm",
        ),
    ),
    "jaxonnxruntime": Snippet(
        """\
import jax, onnx
from jaxonnxruntime import call_onnx, config

config.update("jaxort_only_allow_initializers_as_static_args", False)
model = onnx.load("model.onnx")""",
        """\
function, weights = call_onnx.call_onnx_model(model, inputs)
return [np.asarray(y) for y in jax.jit(function)(weights, inputs)]""",
    ),
    "onnx2torch": Snippet(
        """\
import sys, unittest.mock
import torch

sys.modules["torchvision"] = sys.modules["torchvision.ops"] = unittest.mock.MagicMock()
import onnx2torch

net = onnx2torch.convert("model.onnx").eval()""",
        """\
with torch.no_grad():
    found = net(*map(torch.from_numpy, inputs.values()))
return [y.numpy() for y in (found if isinstance(found, (list, tuple)) else [found])]""",
    ),
}
"""By target, how its runtime is called; a target that is not here is called in another language, or by hand."""
