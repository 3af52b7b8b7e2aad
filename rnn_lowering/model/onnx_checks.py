"""ONNX's checker, shape inference and version converter, in a child process if the model could crash or hang them.

onnx.checker is safe for every model, and shape inference is safe for models that the checker accepts, unless they
contain huge numbers. So shapes of an ordinary model are inferred in this process. The version converter, which only
old models need, always runs in a child process.

ONNX's inference does not know com.microsoft: its operators are registered in another domain, and moved to it before
inference. It also gives an open axis that a Slice of opset 10 cuts the name of the whole axis: each such Slice
becomes a call of a function of a later opset.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from time import monotonic

import onnx
import onnx_ir as ir
from onnx import shape_inference, version_converter

from rnn_lowering.child import Child, ChildError, ChildOwner, Message, serve
from rnn_lowering.facts.contrib_schemas import DOMAIN as MICROSOFT
from rnn_lowering.facts.contrib_schemas import INFERENCE_DOMAIN, INFERENCE_SCHEMAS
from rnn_lowering.facts.node_outputs import MOST_AXES
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.limits import RUN_FACTOR, limit_memory, most_bytes
from rnn_lowering.model.growth import MOST_CALLED, called_nodes, grows, hide_growth
from rnn_lowering.model.protobuf import bodies_in, graphs_in, mentions, message_for_inference, nodes_in, pairs_in

CHECK_SECONDS, INFERENCE_SECONDS = 30, 10
"""Time limits of a conversion, and of the inference of an invalid model: each needs about a second if large."""

MOST_SECONDS = 30
"""Time limit of all inferences of a block: a Loop is inferred many times."""

_LARGEST = 2**31 - 1

_LONGEST_RANGE = 2**20
"""Maximum numbers of a Range that inference may hold in this process, about 100 bytes each."""

_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)

_QUICK_BYTES = 1 << 26
"""Maximum bytes of a message that is checked with its weights."""


class NativeError(Exception):
    """onnx's native code refused a model, crashed or did not finish."""


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes, in place, as far as ONNX can."""
    for value, value_type, shape in inferred_types(model):
        value.shape = value.shape if shape is None else shape
        if value_type is not None and value_type.dtype != value.dtype:
            value.type = value_type


def inferred_types(
    model: ir.Model, asked: Iterable[ir.Value] | None = None
) -> Iterator[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None]]:
    """Yield the values of a model with the types and shapes that ONNX infers, or else declared ones; with `asked`,
    only those of the main graph, and shapes that its nodes declare do not count."""
    proto = _message(model, without_shapes=asked is not None)
    _rename(proto)
    message = _with_inferred(proto).graph
    for value, info in _read(model.graph, message) if asked is None else _declared(asked, message):
        shape = ir.serde.deserialize_type_proto_for_shape(info.type)
        yield value, ir.serde.deserialize_type_proto_for_type(info.type), shape


def _read(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Yield the values of a graph and its bodies with their declarations in a message of the graph."""
    for scope, message in pairs_in(graph, proto):
        yield from _declared((*scope.inputs, *(v for node in scope for v in node.outputs)), message)


def _declared(values: Iterable[ir.Value], graph: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Yield values with what a graph declares of their names."""
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    for value in values:
        if value.name in infos:
            yield value, infos[value.name]


ANONYMOUS = "unk__"
"""The start of the names that ONNX's inference gives to unknown sizes."""


def is_anonymous(dim: int | ir.SymbolicDim) -> bool:
    """Return whether a dimension has neither a size nor a name from the model."""
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith(ANONYMOUS))


def with_inferred_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the types and shapes that ONNX infers; the given one if inference fails or takes too
    much."""
    return proto if called_nodes(proto) > MOST_CALLED or grows(proto) else _with_inferred(proto)


def _message(model: ir.Model, *, without_shapes: bool = False) -> onnx.ModelProto:
    """Return a message for inference, in which what would be too large is hidden; the computed values of the main
    graph are declared with or without shapes."""
    proto = message_for_inference(model, without_shapes=without_shapes)
    if called_nodes(proto) <= MOST_CALLED:
        hide_growth(proto)
    return proto


def _with_inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    if called_nodes(proto) > MOST_CALLED:
        return proto
    try:
        return _infer(proto) if _is_sound(proto) else _in_child("infer", proto)
    except Exception:  # inference and protobuf have no common error: nothing is inferred
        return proto


def convert(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model at another opset.

    Raises:
        NativeError: It cannot be converted.
    """
    return _in_child(str(opset), proto)


def is_sound(model: ir.Model) -> bool:
    """Return whether ONNX's inference is safe in this process: libraries run it here."""
    return _is_sound(_message(model))


def fault_of(model: ir.Model) -> str:
    """Return the error of strict inference of all types and shapes, in one line; empty if there is none, or if
    inference is not safe."""
    proto = _message(model)
    return _strictly_inferred(proto) if _is_moderate(proto) and not _checked(proto) else ""


def problem_of(model: ir.Model, *, infer: bool = True) -> str:
    """Return the error of ONNX's checker, or else of strict inference, in one line; empty if there is none."""
    return _problem(_message(model), infer=infer)


def accepts(message: onnx.ModelProto) -> bool:
    """Return whether checker and strict inference accept a message; False, unchecked, if it is large, or inference
    would compute too much."""
    return message.ByteSize() <= _QUICK_BYTES and not grows(message) and not _problem(message)


_MOST_ROUNDS = 8
"""How often shapes are inferred anew of numbers of axes that follow from Reshapes."""


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    inferred = shape_inference.infer_shapes(proto, data_prop=True)
    if mentions(proto, "Reshape"):
        for _ in range(_MOST_ROUNDS):
            if not _add_ranks(inferred.graph, ChainMap()):
                break
            inferred = shape_inference.infer_shapes(inferred, data_prop=True)
    return inferred


def _add_ranks(graph: onnx.GraphProto, outer: ChainMap[str, onnx.TypeProto]) -> bool:
    """Give the results of Reshapes to some number of unknown sizes as many axes, in bodies too; return whether any
    got some."""
    known = outer.new_child({info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)})
    added = False
    for node in graph.node:
        for body in bodies_in(node):
            added |= _add_ranks(body, known)
        is_reshape = node.op_type == "Reshape" and not node.domain and len(node.input) > 1
        made = known.get(node.output[0]) if is_reshape else None
        counts = known.get(node.input[1]) if made is not None else None
        if counts is None or made is None or made.tensor_type.HasField("shape"):
            continue
        dims = counts.tensor_type.shape.dim
        if len(dims) == 1 and dims[0].HasField("dim_value") and 0 <= dims[0].dim_value <= MOST_AXES:
            made.tensor_type.shape.SetInParent()
            made.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in range(dims[0].dim_value))
            added = True
    return added


def _is_sound(proto: onnx.ModelProto) -> bool:
    """Return whether inference of shapes and numbers can neither crash nor hang on a model, nor fill the memory."""
    return _is_moderate(proto) and not _has_long_range(proto) and not _checked(proto)


def _problem(proto: onnx.ModelProto, *, infer: bool = True) -> str:
    """Return the error of the checker, else of strict inference, in one line; empty if there is none, or a size
    makes both unsafe."""
    return _checked(proto, infer=infer) if _is_moderate(proto) else ""


def _checked(proto: onnx.ModelProto, *, infer: bool = False) -> str:
    """Return the error of the checker, then with `infer` of strict inference, in one line; empty if there is none.
    It takes one call, unless the checker needs shapes that inference must not see."""
    incomplete = list(_complete(proto.graph))
    try:
        onnx.checker.check_model(proto, full_check=infer and not incomplete)
    except shape_inference.InferenceError as error:
        return _first_fault(str(error))
    except Exception as error:  # the checker's own error, or protobuf's
        return " ".join(str(error).split()) or type(error).__name__
    finally:
        for undo in incomplete:
            undo()
    return _strictly_inferred(proto) if infer and incomplete else ""


def _complete(graph: onnx.GraphProto) -> Iterator[Callable[[], None]]:
    """Add the missing types of outputs, and the missing shapes of inputs and outputs, for the checker; yield
    functions that remove them again."""
    for info in (*graph.input, *graph.output):
        if info.type.WhichOneof("value") is None and info in graph.output:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            info.type.tensor_type.shape.SetInParent()
            yield partial(info.ClearField, "type")
        elif info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()
            yield partial(info.type.tensor_type.ClearField, "shape")


def _strictly_inferred(proto: onnx.ModelProto) -> str:
    try:
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:  # inference and protobuf have no common error
        return _first_fault(str(error))
    return ""


def _first_fault(text: str) -> str:
    """Return the first error that inference lists: the others mostly follow from it."""
    match = re.search(r"\(op_type:(\w+), node name: (.*?)\): (?:\[\w+\] )?(.+)", text)
    return f"{match[1]} node '{match[2]}': {match[3].strip()}" if match else " ".join(text.split())


def _is_moderate(proto: onnx.ModelProto) -> bool:
    """Return whether functions are called rarely enough, all sizes are at least 0 and all numbers fit 32 bits: onnx
    loops up to some of them."""
    if called_nodes(proto) > MOST_CALLED:
        return False
    for graph in graphs_in(proto.graph):
        attributes = _attributes_of(graph.node)
        if not all(0 <= size <= _LARGEST for size in _sizes(graph, attributes)):
            return False
        if not all(abs(attribute.i) <= _LARGEST for attribute in attributes):
            return False
    return True


def _has_long_range(proto: onnx.ModelProto) -> bool:
    """Return whether a Range may have more than `_LONGEST_RANGE` numbers, by all sizes of a model and the integers
    that it may be computed from: with bodies all, else those behind it."""
    if not mentions(proto, "Range"):
        return False
    graphs = list(graphs_in(proto.graph))
    nodes = [node for graph in graphs for node in graph.node]
    ranges = [node for node in nodes if node.op_type == "Range"]
    if not ranges:
        return False
    if len(graphs) == 1:
        nodes = _behind(ranges, nodes)
    names = {name for node in nodes for name in _numbers_read(node)}
    held = (tensor for graph in graphs for tensor in graph.initializer if tensor.name in names)
    sizes = (size for graph in graphs for size in _sizes(graph, _attributes_of(graph.node)))
    numbers = (*sizes, *_integers(_attributes_of(nodes), held))
    return any(number > _LONGEST_RANGE for number in numbers)


def _behind(last: Sequence[onnx.NodeProto], nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes and those whose numbers they are computed from."""
    makers = {name: node for node in nodes for name in node.output}
    names: dict[str, None] = {}
    found = list(last)
    for node in found:
        new = [name for name in _numbers_read(node) if name not in names]
        names |= dict.fromkeys(new)
        found += [makers[name] for name in new if name in makers]
    return found


def _numbers_read(node: onnx.NodeProto) -> list[str]:
    """Return the inputs whose numbers a node may give: not where a Slice begins and ends."""
    return list(node.input[:1] if node.op_type == "Slice" else node.input)


def _sizes(graph: onnx.GraphProto, attributes: Iterable[onnx.AttributeProto]) -> list[int]:
    """Return the sizes that a graph declares, and those of its tensors; `attributes` are those of its nodes."""
    infos = (*graph.input, *graph.output, *graph.value_info)
    sizes = [dim.dim_value for info in infos for dim in info.type.tensor_type.shape.dim]
    return sizes + [size for tensor in (*graph.initializer, *_tensors_of(attributes)) for size in tensor.dims]


def _tensors_of(attributes: Iterable[onnx.AttributeProto]) -> list[onnx.TensorProto]:
    return [attribute.t for attribute in attributes if attribute.HasField("t")]


def _attributes_of(nodes: Iterable[onnx.NodeProto]) -> list[onnx.AttributeProto]:
    return [attribute for node in nodes if node.attribute for attribute in node.attribute]


def _integers(attributes: Sequence[onnx.AttributeProto], held: Iterable[onnx.TensorProto]) -> Iterator[int]:
    """Yield the absolute values of the integers that attributes of nodes and scalar constants hold."""
    yield from (abs(attribute.i) for attribute in attributes)
    for tensor in (*held, *_tensors_of(attributes)):
        if tensor.data_type in _INTEGERS and not any(tensor.dims):
            stored = tensor.raw_data[:8]
            numbers = (*tensor.int64_data, *tensor.int32_data, int.from_bytes(stored, "little", signed=True))
            yield abs(numbers[0])


# What ONNX's inference does not know


_SLICE_OF_INPUTS = 10
"""First opset whose Slice has its bounds as inputs."""

_LATER = onnx.helper.make_opsetid("", 13)
"""An opset whose Slice has the same inputs, and is inferred correctly."""


def _rename(proto: onnx.ModelProto) -> None:
    """Make nodes of a message, in place, those that ONNX infers: of com.microsoft by another domain, unless the
    model has functions of their names, and Slice of opset 10 by a function."""
    proto.opset_import.append(onnx.helper.make_opsetid(INFERENCE_DOMAIN, 1))
    if not mentions(proto, "Slice", MICROSOFT):
        return
    own = {function.name for function in proto.functions if function.domain == MICROSOFT}
    functions: dict[str, onnx.FunctionProto] = {}
    opset = next((entry.version for entry in proto.opset_import if entry.domain == ""), 1)
    for node in nodes_in(proto.graph):
        if is_misread(node, opset):
            node.op_type, node.domain = f"Slice_{len(node.input)}", INFERENCE_DOMAIN
            functions[node.op_type] = _slice(node.op_type, len(node.input))
        elif node.domain == MICROSOFT and node.op_type in INFERENCE_SCHEMAS.keys() - own:
            schema = INFERENCE_SCHEMAS[node.op_type]
            node.op_type, node.domain = schema.name, schema.domain
            known = [a for a in node.attribute if a.name in schema.attributes]
            del node.attribute[:]
            node.attribute.extend(known)
    proto.functions.extend(functions.values())


def is_misread(node: onnx.NodeProto | ir.Node, opset: int) -> bool:
    """Return whether ONNX's inference (also onnxruntime's) keeps the name of an open axis that a node cuts."""
    return opset == _SLICE_OF_INPUTS and node.op_type == "Slice" and node.domain in DEFAULT_DOMAIN


def _slice(name: str, count: int) -> onnx.FunctionProto:
    inputs = [f"input{n}" for n in range(count)]
    nodes = [onnx.helper.make_node("Slice", inputs, ["output"])]
    return onnx.helper.make_function(INFERENCE_DOMAIN, name, inputs, ["output"], nodes, [_LATER])


# The child process


_current: ContextVar[_Native | None] = ContextVar("current", default=None)


@contextmanager
def one_child() -> Iterator[None]:
    """Use one child process for the whole block, nested blocks included. After a crash, or `MOST_SECONDS` of work,
    nothing more is inferred: the model would crash it again.
    """
    if _current.get() is not None:
        yield
        return
    child = _Native()
    token = _current.set(child)
    try:
        yield
    finally:
        _current.reset(token)
        child.end_child()


def _in_child(task: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    with one_child():
        child = _current.get()
        assert child is not None
        return child.run(task, proto)


class _Native(ChildOwner):
    """The child process of one block, started with its first job."""

    def __init__(self) -> None:
        self._crashed, self._seconds = False, 0.0

    def run(self, task: str, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Infer shapes, or convert to the opset that `task` names.

        Raises:
            NativeError: It is refused, crashes or takes too long.
        """
        infer = task == "infer"
        if infer and self._crashed:
            raise NativeError("onnx's own code crashed on the model before, or took too long")
        self._child = self._child or Child("rnn_lowering.model.onnx_checks")
        seconds = INFERENCE_SECONDS if infer else CHECK_SECONDS
        job = {"task": task, "memory": RUN_FACTOR * most_bytes(), "payload": proto.SerializeToString()}
        began = monotonic()
        try:
            (answer,) = self._child.ask(job, seconds)
            self._seconds += monotonic() - began
            self._crashed = self._seconds > MOST_SECONDS
        except ChildError as error:
            self._crashed = True
            self.end_child()
            late = f"onnx does not finish within {seconds} seconds"
            raise NativeError(late if error.late else f"onnx's own code crashed (exit {error.exit})") from None
        if "refused" in answer:
            raise NativeError(answer["refused"])
        result: onnx.ModelProto = onnx.ModelProto.FromString(answer["payload"])
        return result


def _do(job: Message) -> Iterator[Message]:
    """Run a job on the model in "payload": "task" is "infer" or the opset to convert to. The answer has the result
    in "payload", or the error in "refused"."""
    limit_memory(job["memory"])
    proto = onnx.ModelProto.FromString(job["payload"])
    try:
        task = job["task"]
        result = _infer(proto) if task == "infer" else version_converter.convert_version(proto, int(task))
        yield {"payload": result.SerializeToString()}
    except Exception as error:  # whatever the native code raises is the reason
        yield {"refused": " ".join(str(error).split())}


if __name__ == "__main__":
    serve(_do)
