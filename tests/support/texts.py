"""Small models written as text in the syntax of onnx.parser, and what every lowered model must be."""

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from onnx import helper, numpy_helper, parser
from running import assert_close, bodies, nodes, recurrent_left, run

import rnn_lowering as rl

FORMS: tuple[Any, ...] = ("scan", "loop", "unroll")


def parse(text: str, opset: int = 17, ir_version: int = 8, domains: str = "") -> onnx.ModelProto:
    """Return the model of a text without a header; a tensor that is given as `{}` gets random numbers.

    Args:
        domains: Further opset imports, such as `, "local": 1`.
    """
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}{domains}]>'
    model = parser.parse_model(header + text)
    for tensor in _tensors(model):
        if not (tensor.raw_data or tensor.float_data or tensor.int64_data or tensor.int32_data):
            tensor.CopyFrom(numpy_helper.from_array(_weights(tensor), tensor.name))
    return model


def _weights(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    """Numbers of a size at which a recurrence does not become chaotic."""
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    bound = 1 / np.sqrt(tensor.dims[-1] or 1)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return rng.uniform(-bound, bound, tuple(tensor.dims)).astype(dtype)


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every body, those in functions too."""
    yield model.graph
    for node in nodes(model):
        yield from bodies(node)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in graphs(model):
        yield from graph.initializer
    for node in nodes(model):
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def random_feed(model: onnx.ModelProto, seed: int = 0, **sizes: int) -> Arrays:
    """Random numbers for the float inputs of a model; `sizes` of its symbolic dimensions."""
    rng = np.random.default_rng(seed)
    feed = {}
    given = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if value.name not in given and dtype.kind == "f":
            shape = [d.dim_value or sizes[d.dim_param] for d in tensor.shape.dim]
            feed[value.name] = rng.normal(0, 1, shape).astype(dtype)
    return feed


def lowered(
    original: onnx.ModelProto, form: Any = "auto", *, check: bool = True, **options: Any
) -> onnx.ModelProto:
    """Lower a model and check what must be true of every result; `check`: as onnx.checker sees it."""
    new: onnx.ModelProto = rl.lower(original, form, **options)
    assert recurrent_left(new) == []
    check_names(new, original)
    if check:
        onnx.checker.check_model(new, full_check=True)
    return new


def refusal(call: Callable[[], Any]) -> str:
    """Return the text of an error of the project; "" where there is none."""
    try:
        call()
    except rl.RnnLoweringError as error:
        return str(error)
    return ""


def assert_same(
    original: onnx.ModelProto, feed: Mapping[str, Any], form: str = "auto", *, check: bool = True, **options: Any
) -> onnx.ModelProto:
    """Lower a model and compare with the original in onnxruntime; return the result."""
    new = lowered(original, form, check=check, **options)
    assert_close(run(new, feed), run(original, feed), label=form)
    return new


def check_names(new: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Names that the lowering made are unique in the whole model, those of values and those of nodes."""
    for names in (value_names, node_names):
        before, after = Counter(names(original)), Counter(names(new))
        made = {name: count for name, count in after.items() if name not in before}
        assert set(made.values()) <= {1}, [name for name, count in made.items() if count > 1]


def value_names(model: onnx.ModelProto) -> Iterator[str]:
    """The name of every input, initializer and output of a node, in any scope."""
    for graph in graphs(model):
        yield from {*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
    for node in nodes(model):
        yield from (name for name in node.output if name)


def node_names(model: onnx.ModelProto) -> Iterator[str]:
    """The name of every node that has one, in any scope."""
    return (node.name for node in nodes(model) if node.name)


def initializers(model: onnx.ModelProto) -> set[str]:
    """The names of the initializers of the main graph."""
    return {tensor.name for tensor in model.graph.initializer}
