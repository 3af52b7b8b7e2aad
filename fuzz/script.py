"""A found case as a Python script that builds its model and judges it."""

import json
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.campaign import Found
from fuzz.case import Options

LONG = 400
"""The most numbers of a tensor that are written out; a longer one is written as bytes."""


def script(found: Found) -> str:
    """Return a script that builds a model, and judges it when it is run."""
    source = expression(found.case.model)
    held: dict[str, Any] = {}
    exec("import numpy as np\nimport onnx\nfrom onnx import TensorProto, helper, numpy_helper", held)
    if eval(source, held) != found.case.model:
        source = _message(found.case.model)
    return "\n".join(
        (
            f'"""{_plain(found.outcome.what)}: {_plain(found.outcome.detail)[:400]}',
            "",
            f"python -m fuzz {found.kind} --seed {found.seed} --first {found.number} --cases 1",
            '"""',
            "# ruff: noqa",
            "import numpy as np",
            "import onnx",
            "from onnx import TensorProto, helper, numpy_helper",
            "",
            f"MODEL = {source}",
            f"OPTIONS = {_options(found.case.options)}",
            "",
            'if __name__ == "__main__":',
            "    from fuzz.case import Case",
            "    from fuzz.worker import judged, kind_of",
            "",
            f"    print(judged(kind_of({found.kind!r}), Case(MODEL, OPTIONS)))",
            "",
        )
    )


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")


def _options(options: Options) -> str:
    return repr(json.loads(json.dumps(options)))


def expression(message: Any, indent: int = 0) -> str:
    """Return an expression that builds a message, with onnx.helper where it can be."""
    for kind, written in _WRITERS.items():
        if isinstance(message, kind):
            return str(written(message, indent))
    return _message(message, indent)


def _message(message: Any, indent: int = 0) -> str:
    """Return a call of the message's class with its fields."""
    given = []
    for field, value in message.ListFields():
        if isinstance(value, (int, float, str, bytes)):
            given.append(f"{field.name}={_number(value)}")
        elif field.message_type is None:
            given.append(f"{field.name}={[*value]!r}")
        elif hasattr(value, "ListFields"):
            given.append(f"{field.name}={expression(value, indent + 1)}")
        else:
            given.append(f"{field.name}={_list(value, indent + 1)}")
    return f"onnx.{type(message).__qualname__}({', '.join(given)})"


def _list(items: Any, indent: int) -> str:
    if not items:
        return "[]"
    space = "\n" + "    " * (indent + 1)
    return f"[{space}{f',{space}'.join(expression(item, indent + 1) for item in items)}]"


def _number(value: Any) -> str:
    return f"float({str(value)!r})" if isinstance(value, float) and not np.isfinite(value) else repr(value)


def _model(model: onnx.ModelProto, indent: int) -> str:
    imports = ", ".join(f"helper.make_opsetid({o.domain!r}, {o.version})" for o in model.opset_import)
    functions = f", functions={_list(model.functions, indent)}" if model.functions else ""
    head = f"opset_imports=[{imports}], ir_version={model.ir_version}{functions}"
    return f"helper.make_model({expression(model.graph, indent)}, {head})"


def _graph(graph: onnx.GraphProto, indent: int) -> str:
    parts = (graph.node, graph.input, graph.output, graph.initializer)
    nodes, inputs, outputs, tensors = (_list(part, indent) for part in parts)
    infos = f", value_info={_list(graph.value_info, indent)}" if graph.value_info else ""
    return f"helper.make_graph({nodes}, {graph.name!r}, {inputs}, {outputs}, {tensors}{infos})"


def _node(node: onnx.NodeProto, indent: int) -> str:
    given = [repr(node.op_type), repr([*node.input]), repr([*node.output])]
    given += [f"name={node.name!r}"] if node.name else []
    given += [f"domain={node.domain!r}"] if node.HasField("domain") else []
    attributes = {a.name: a for a in node.attribute}
    if any(a.ref_attr_name or not _writable(a) for a in node.attribute):
        return _message(node, indent)
    values = [f"{name!r}: {_attribute(a, indent)}" for name, a in attributes.items()]
    return f"helper.make_node({', '.join(given)}{', **{' + ', '.join(values) + '}' if values else ''})"


def _writable(attribute: onnx.AttributeProto) -> bool:
    return bool(attribute.ListFields()) and attribute.type in (
        *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT, onnx.AttributeProto.FLOATS),
        *(onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS, onnx.AttributeProto.GRAPH),
        onnx.AttributeProto.TENSOR,
    )


def _attribute(attribute: onnx.AttributeProto, indent: int) -> str:
    value = helper.get_attribute_value(attribute)
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR):
        return expression(value, indent + 1)
    return f"[{', '.join(map(_number, value))}]" if isinstance(value, list) else _number(value)


def _tensor(tensor: onnx.TensorProto, indent: int) -> str:
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind not in "biuf" or numpy_helper.from_array(array, tensor.name) != tensor:
        return _message(tensor, indent)
    if array.size > LONG or not np.isfinite(array).all():
        text = f"np.frombuffer({array.tobytes()!r}, np.{array.dtype.name})"
        return f"numpy_helper.from_array({text}.reshape({array.shape}), {tensor.name!r})"
    kind = "bool_" if array.dtype == bool else array.dtype.name
    shape = f".reshape({array.shape})" if 0 in array.shape else ""
    return f"numpy_helper.from_array(np.array({array.tolist()!r}, np.{kind}){shape}, {tensor.name!r})"


def _value(value: onnx.ValueInfoProto, indent: int) -> str:
    kind = value.type.tensor_type
    shape: Any = [d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in kind.shape.dim]
    shape = shape if kind.HasField("shape") else None
    if kind.elem_type and helper.make_tensor_value_info(value.name, kind.elem_type, shape) == value:
        dtype = onnx.TensorProto.DataType.Name(kind.elem_type)
        return f"helper.make_tensor_value_info({value.name!r}, TensorProto.{dtype}, {shape!r})"
    return _message(value, indent)


_WRITERS: dict[Any, Any] = {
    onnx.ModelProto: _model,
    onnx.GraphProto: _graph,
    onnx.NodeProto: _node,
    onnx.TensorProto: _tensor,
    onnx.ValueInfoProto: _value,
}
