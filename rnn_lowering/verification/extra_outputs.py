"""Sessions of the original that return values of its main graph as additional outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from rnn_lowering.files.locations import from_the_root
from rnn_lowering.files.reading import Parsed
from rnn_lowering.spec.node import is_recurrent
from rnn_lowering.verification.branches import conditions
from rnn_lowering.verification.repairs import echoing_nodes, with_identities
from rnn_lowering.verification.runner import Session


def session_with_outputs(
    original: Parsed, scratch: Path, names: Callable[[onnx.ModelProto], Iterable[str]]
) -> Session:
    """Return a session of the original with additional outputs.

    Args:
        original: The model.
        scratch: Folder for the changed model.
        names: Names those values of the model; such as are not in the main graph are left out.

    Raises:
        ModelFileError: Its data is missing, or outside.
    """
    proto = _copy(original.proto)
    _add_outputs(proto, names(proto))
    return _saved(proto, original, scratch / "more_outputs.onnx")


def session_with_all_values(
    original: Parsed, scratch: Path, label: str, axes: Mapping[str, int]
) -> tuple[Session, dict[str, str]]:
    """Return a session whose outputs include all values of the main graph, and the node of each, in their order.

    Args:
        original: The model.
        scratch: Folder for the changed model.
        label: Part of the name of its file.
        axes: The axis of inputs that is opened, by name.
    """
    proto = _copy(original.proto)
    _open_axes(proto, axes)
    given = {value.name for value in proto.graph.output}
    nodes = {
        name: f"{node.op_type} node '{node.name or f'-> {name}'}'"
        for node in proto.graph.node
        for name in node.output
        if name
    }
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes if name not in given)
    return _saved(proto, original, scratch / f"more_outputs_{label}.onnx"), nodes


def session_with_open_axes(
    original: Parsed, scratch: Path, axes: Mapping[str, int]
) -> tuple[Session, onnx.ModelProto]:
    """Return a session of the original in which axes of inputs have no fixed size, and with
    the inputs of recurrent nodes and the conditions of Ifs as additional outputs; and its model.

    Args:
        original: The model.
        scratch: Folder for that model.
        axes: The axis by the name of the input.
    """
    proto = _copy(original.proto)
    _open_axes(proto, axes)
    _add_outputs(proto, (*recurrent_inputs(proto), *conditions(proto.graph)))
    return _saved(proto, original, scratch / "opened.onnx"), proto


def _add_outputs(proto: onnx.ModelProto, names: Iterable[str]) -> None:
    """Add values of a model's main graph to its outputs."""
    inner = {name for node in proto.graph.node for name in node.output if name}
    inner -= {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name in inner)


def has_fixed(proto: onnx.ModelProto, axes: Mapping[str, int]) -> bool:
    """Whether one of these axes of inputs, by name, has a fixed size."""
    return any(dim.HasField("dim_value") for dim in _dims(proto, axes))


def _dims(proto: onnx.ModelProto, axes: Mapping[str, int]) -> list[onnx.TensorShapeProto.Dimension]:
    return [v.type.tensor_type.shape.dim[axes[v.name]] for v in proto.graph.input if v.name in axes]


def _open_axes(proto: onnx.ModelProto, axes: Mapping[str, int]) -> None:
    """Let axes of inputs have no fixed size."""
    if has_fixed(proto, axes):
        for dim in _dims(proto, axes):
            dim.dim_param = "frames"
        _drop_shapes(proto.graph)


def _drop_shapes(graph: onnx.GraphProto) -> None:
    """Drop what a graph declares of computed values."""
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _drop_shapes(attribute.g)


def session_of(model: Parsed, scratch: Path, misread: Collection[str] = ()) -> Session:
    """Return a session of a model, in which nodes that onnxruntime misreads return Identities (see `repairs`).

    Args:
        model: The model.
        scratch: Folder for the changed model, if it is one.
        misread: Those nodes.
    """
    repaired = with_identities(model.proto, misread)
    if repaired is model.proto:
        return Session(model.path, proto=repaired)
    return _saved(repaired, model, scratch / f"repaired_{model.path.name}", ())


def _saved(proto: onnx.ModelProto, original: Parsed, path: Path, misread: Collection[str] | None = None) -> Session:
    proto = with_identities(proto, echoing_nodes(proto) if misread is None else misread)
    # onnxruntime follows no links, and reads the copy elsewhere
    from_the_root(proto, original.path, trust=original.trust)
    onnx.save(proto, path)
    return Session(path, Path(original.path.anchor), proto=proto)


def recurrent_inputs(proto: onnx.ModelProto) -> Iterator[str]:
    """Name the inputs of recurrent nodes: they must be finite, since onnxruntime's kernels do not propagate NaN."""
    for node in proto.graph.node:
        if is_recurrent(node):
            yield from (*node.input[:1], *node.input[5:7])


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
