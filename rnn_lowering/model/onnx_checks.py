"""ONNX's checker, shape inference and version converter, in a child process if the model could crash or hang them.

onnx.checker is safe for every model, and shape inference is safe for models that the checker accepts, unless they
contain huge numbers. So shapes of an ordinary model are inferred in this process. The version converter, which only
old models need, always runs in a child process.

ONNX's inference does not know the operators of com.microsoft: in the message that is inferred, each such node
becomes a call of a function whose outputs have the shapes of the node's. It also gives an open axis that a Slice of
opset 10 cuts the name of the whole axis: each becomes a call of a function of a later opset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import onnx
import onnx_ir as ir
from onnx import shape_inference, version_converter

from rnn_lowering.child import Child, ChildError, Message, serve
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.facts.schemas import DOMAIN as MICROSOFT
from rnn_lowering.facts.schemas import LIKE_INPUTS, MOST_HEADS, heads_in, repeats
from rnn_lowering.limits import RUN_FACTOR, limit_memory, most_bytes
from rnn_lowering.model.messages import graphs_in, message_for_inference, nodes_in, pairs_in

CHECK_SECONDS, INFERENCE_SECONDS = 30, 10
"""Time limits of a conversion, and of the inference of an invalid model: each needs about a second if large."""

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
    proto = message_for_inference(model)
    _call_functions(proto)
    for value, info in _read(model.graph, with_inferred_shapes(proto).graph):
        shape = ir.serde.deserialize_type_proto_for_shape(info.type)
        value_type = ir.serde.deserialize_type_proto_for_type(info.type)
        value.shape = value.shape if shape is None else shape
        if value_type is not None and value_type.dtype != value.dtype:
            value.type = value_type


def _read(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, onnx.ValueInfoProto]]:
    """Yield the values of a graph and its bodies with their declarations in a message of the graph."""
    for scope, message in pairs_in(graph, proto):
        infos = {info.name: info for info in (*message.input, *message.value_info, *message.output)}
        for value in (*scope.inputs, *(v for node in scope for v in node.outputs)):
            if value.name in infos:
                yield value, infos[value.name]


ANONYMOUS = "unk__"
"""The start of the names that ONNX's inference gives to unknown sizes."""


def is_anonymous(dim: int | ir.SymbolicDim) -> bool:
    """Return whether a dimension has neither a size nor a name from the model."""
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith(ANONYMOUS))


def with_inferred_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the types and shapes that ONNX infers; the given model if inference fails."""
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
    return _is_sound(message_for_inference(model))


def fault_of(model: ir.Model) -> str:
    """Return the error of strict inference of all types and shapes, in one line; empty if there is none, or if
    inference is not safe."""
    proto = message_for_inference(model)
    return _strictly_inferred(proto) if _is_moderate(proto.graph) and not _checked(proto) else ""


def problem_of(model: ir.Model, *, infer: bool = True) -> str:
    """Return the error of ONNX's checker, or else of strict inference, in one line; empty if there is none."""
    return _problem(message_for_inference(model), infer=infer)


def accepts(message: onnx.ModelProto) -> bool:
    """Return whether checker and strict inference accept a message; False, unchecked, if it is large."""
    return message.ByteSize() <= _QUICK_BYTES and not _problem(message)


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    return shape_inference.infer_shapes(proto, data_prop=True)


def _is_sound(proto: onnx.ModelProto) -> bool:
    """Return whether inference of shapes and numbers can neither crash nor hang on a model, nor fill the memory."""
    return _is_moderate(proto.graph) and not _has_long_range(proto.graph) and not _checked(proto)


def _problem(proto: onnx.ModelProto, *, infer: bool = True) -> str:
    """Return the error of the checker, else of strict inference, in one line; empty if there is none, or a size
    makes both unsafe."""
    return _checked(proto, infer=infer) if _is_moderate(proto.graph) else ""


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
    found = re.search(r"\(op_type:(\w+), node name: (.*?)\): (?:\[\w+\] )?(.+)", text)
    return f"{found[1]} node '{found[2]}': {found[3].strip()}" if found else " ".join(text.split())


def _is_moderate(main: onnx.GraphProto) -> bool:
    """Return whether all sizes are at least 0 and all numbers fit 32 bits: onnx loops up to some of them."""
    return all(
        all(0 <= size <= _LARGEST for size in _sizes(graph))
        and all(abs(attribute.i) <= _LARGEST for node in graph.node for attribute in node.attribute)
        for graph in graphs_in(main)
    )


def _has_long_range(main: onnx.GraphProto) -> bool:
    """Return whether a Range may have more than `_LONGEST_RANGE` numbers, by all sizes and integers of a model."""
    graphs = list(graphs_in(main))
    if not any(node.op_type == "Range" for graph in graphs for node in graph.node):
        return False
    return any(number > _LONGEST_RANGE for graph in graphs for number in (*_sizes(graph), *_integers(graph)))


def _sizes(graph: onnx.GraphProto) -> list[int]:
    infos = (*graph.input, *graph.output, *graph.value_info)
    sizes = [dim.dim_value for info in infos for dim in info.type.tensor_type.shape.dim]
    return sizes + [size for tensor in _tensors(graph) for size in tensor.dims]


def _tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    return [*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]


def _integers(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield the absolute values of the integers that attributes and scalar constants hold."""
    yield from (abs(attribute.i) for node in graph.node for attribute in node.attribute)
    for tensor in _tensors(graph):
        if tensor.data_type in _INTEGERS and not any(tensor.dims):
            stored = tensor.raw_data[:8]
            numbers = (*tensor.int64_data, *tensor.int32_data, int.from_bytes(stored, "little", signed=True))
            yield abs(numbers[0])


# The shapes of operators of com.microsoft


_DOMAIN = "rnn_lowering.shapes"


_EINSUM, _SLICE_OF_INPUTS = 12, 10
"""First opset with Einsum, and first one whose Slice has its bounds as inputs."""

_LATER = onnx.helper.make_opsetid("", 13)
"""An opset whose Slice has the same inputs, and is inferred correctly."""


def _call_functions(proto: onnx.ModelProto) -> None:
    """Replace nodes of com.microsoft in a message, in place, by calls of functions, unless the model has
    functions of their names; also those of Slice of opset 10."""
    own = {(function.domain, function.name) for function in proto.functions}
    functions: dict[str, onnx.FunctionProto] = {}
    opset = next((entry for entry in proto.opset_import if entry.domain == ""), None)
    for node in nodes_in(proto.graph):
        if opset is not None and is_misread(node, opset.version):
            name = f"Slice_{len(node.input)}"
            functions[name] = _slice(name, [f"input{n}" for n in range(len(node.input))])
            node.domain, node.op_type = _DOMAIN, name
            continue
        if opset is None or node.domain != MICROSOFT or (node.domain, node.op_type) in own:
            continue
        if node.op_type == "DynamicQuantizeLSTM":
            _make_lstm(node)
        if node.op_type not in LIKE_INPUTS:
            continue
        given = [bool(name) for name in node.input]
        heads = heads_in(node)
        name = f"{node.op_type}_{''.join(map(str, map(int, given)))}_{len(node.output)}_{heads[0]}_{heads[1]}"
        functions[name] = _function(name, node, given, heads, opset)
        node.domain, node.op_type = _DOMAIN, name
        del node.attribute[:]
    if functions:
        proto.functions.extend(functions.values())
        proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))


def is_misread(node: onnx.NodeProto | ir.Node, opset: int) -> bool:
    """Return whether ONNX's inference (also onnxruntime's) keeps the name of an open axis that a node cuts."""
    return opset == _SLICE_OF_INPUTS and node.op_type == "Slice" and node.domain in DEFAULT_DOMAIN


def _slice(name: str, inputs: Sequence[str]) -> onnx.FunctionProto:
    nodes = [onnx.helper.make_node("Slice", inputs, ["output0"])]
    return onnx.helper.make_function(_DOMAIN, name, inputs, ["output0"], nodes, [_LATER])


def _make_lstm(node: onnx.NodeProto) -> None:
    """Make a DynamicQuantizeLSTM an LSTM, in place: inference reads X, hidden_size and direction, no weights."""
    node.domain, node.op_type = "", "LSTM"
    del node.input[3:]
    kept = [a for a in node.attribute if a.name in ("hidden_size", "direction")]
    del node.attribute[:]
    node.attribute.extend(kept)


def _function(
    name: str, node: onnx.NodeProto, given: Sequence[bool], heads: tuple[int, int], opset: onnx.OperatorSetIdProto
) -> onnx.FunctionProto:
    inputs = [f"input{n}" for n in range(len(given))]
    outputs = [f"output{n}" for n in range(len(LIKE_INPUTS[node.op_type][: len(node.output)]))]
    copies = repeats(*heads)
    states_follow = all(0 < number <= MOST_HEADS for number in heads)
    nodes = []
    for n, (slot, output) in enumerate(zip(LIKE_INPUTS[node.op_type], outputs, strict=False)):
        if slot >= len(given) or not given[slot]:
            nodes += _first_state(node.op_type, output, heads, opset.version) if n and states_follow else []
        elif n == 0 and copies > 1:
            nodes.append(onnx.helper.make_node("Concat", [inputs[slot]] * copies, [output], axis=2))
        else:
            nodes.append(onnx.helper.make_node("Identity", [inputs[slot]], [output]))
    return onnx.helper.make_function(_DOMAIN, name, inputs, outputs, nodes, [opset])


def _first_state(operator: str, output: str, heads: tuple[int, int], opset: int) -> list[onnx.NodeProto]:
    """Return nodes whose output has the type and shape of the state after a node that is given none."""
    node = onnx.helper.make_node
    if opset < _EINSUM:
        return _first_state_by_products(operator, output, heads, opset)
    if operator == "CausalConvWithState":  # [N, C, K - 1] of X [N, C, T] and W [C, 1, K]
        bounds = {"starts": [1], "ends": [_LARGEST], "axes": [2]}
        constants = [node("Constant", [], [name], value_ints=numbers) for name, numbers in bounds.items()]
        rest = node("Slice", ["input1", *bounds], ["rest"])
        return [*constants, rest, node("Einsum", ["input0", "rest"], [output], equation="nct,cok->nck")]
    if operator == "LinearAttention":  # [N, heads, d_k, d_v] of query [N, T, heads d_k] and value [N, T, heads d_v]
        nodes = []
        for slot, number in zip((0, 2), heads, strict=True):
            nodes.append(node("Constant", [], [f"sizes{slot}"], value_ints=[0, 0, number, -1]))
            nodes.append(node("Reshape", [f"input{slot}", f"sizes{slot}"], [f"rows{slot}"]))
        return [*nodes, node("Einsum", ["rows0", "rows2"], [output], equation="ntqd,ntkv->nkdv")]
    return []


def _first_state_by_products(
    operator: str, output: str, heads: tuple[int, int], opset: int
) -> list[onnx.NodeProto]:
    """Return what `_first_state` does, without Einsum."""
    node, nodes = onnx.helper.make_node, list[onnx.NodeProto]()

    def constant(name: str, numbers: Sequence[int]) -> str:
        tensor = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [len(numbers)], numbers)
        nodes.append(node("Constant", [], [name], value=tensor))
        return name

    if operator == "CausalConvWithState":
        bounds = {"starts": [1], "ends": [_LARGEST], "axes": [2]}
        if opset < _SLICE_OF_INPUTS:
            nodes.append(node("Slice", ["input1"], ["rest"], starts=[1], ends=[_LARGEST], axes=[2]))
        else:
            nodes.append(
                node("Slice", ["input1", *(constant(name, given) for name, given in bounds.items())], ["rest"])
            )
        nodes.append(node("Transpose", ["rest"], ["row"], perm=[1, 0, 2]))  # [1, C, K - 1]
        nodes.append(node("ReduceMean", ["input0"], ["one"], axes=[2], keepdims=1))  # [N, C, 1]
        return [*nodes, node("Mul", ["one", "row"], [output])]
    if operator == "LinearAttention":
        for slot, number, order in ((0, heads[0], (0, 2, 3, 1)), (2, heads[1], (0, 2, 1, 3))):
            sizes = constant(f"sizes{slot}", [0, 0, number, -1])
            nodes.append(node("Reshape", [f"input{slot}", sizes], [f"rows{slot}"]))
            nodes.append(node("Transpose", [f"rows{slot}"], [f"factor{slot}"], perm=order))
        nodes.append(node("ReduceMean", ["factor0"], ["one"], axes=[1], keepdims=1))  # [N, 1, d_k, T]
        return [*nodes, node("MatMul", ["one", "factor2"], [output])]  # by [N, heads, T, d_v]
    return []


# The child process


_current: ContextVar[_Native | None] = ContextVar("current", default=None)


@contextmanager
def one_child() -> Iterator[None]:
    """Use one child process for the whole block, nested blocks included. After a crash nothing more is inferred:
    the model would crash it again.
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
        child.end()


def _in_child(task: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    with one_child():
        child = _current.get()
        assert child is not None
        return child.run(task, proto)


class _Native:
    """The child process of one block, started with its first job."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._crashed = False

    def run(self, task: str, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Infer shapes, or convert to the opset that `task` names.

        Raises:
            NativeError: It is refused, crashes or takes too long.
        """
        infer = task == "infer"
        if infer and self._crashed:
            raise NativeError("onnx's own code crashed on the model before")
        self._child = self._child or Child("rnn_lowering.model.onnx_checks")
        seconds = INFERENCE_SECONDS if infer else CHECK_SECONDS
        job = {"task": task, "memory": RUN_FACTOR * most_bytes(), "payload": proto.SerializeToString()}
        try:
            (answer,) = self._child.ask(job, seconds)
        except ChildError as error:
            self._crashed = True
            self.end()
            late = f"onnx does not finish within {seconds} seconds"
            raise NativeError(late if error.late else f"onnx's own code crashed (exit {error.exit})") from None
        if "refused" in answer:
            raise NativeError(answer["refused"])
        result: onnx.ModelProto = onnx.ModelProto.FromString(answer["payload"])
        return result

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


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
