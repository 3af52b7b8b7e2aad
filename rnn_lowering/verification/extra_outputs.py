"""The original with values of its main graph as further outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx

from rnn_lowering.spec.node import is_recurrent
from rnn_lowering.verification.runner import Session


def watching(original: Path, scratch: Path, names: Callable[[onnx.ModelProto], Iterable[str]]) -> Session:
    """Return a session of the original that gives more values.

    Args:
        original: The model file.
        scratch: Folder for the model that gives more.
        names: Names those values of the model; such as are not in the main graph are left out.
    """
    proto = onnx.load(original, load_external_data=False)
    inner = {name for node in proto.graph.node for name in node.output if name}
    inner -= {value.name for value in proto.graph.output}
    for name in dict.fromkeys(names(proto)):
        if name in inner:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    path = scratch / "watching.onnx"
    _root(proto.graph, original.parent)
    onnx.save(proto, path)
    return Session(path, Path(original.anchor))


def entering(proto: onnx.ModelProto) -> Iterator[str]:
    """What enters recurrent nodes: it must be finite, since native kernels do not pass on NaN."""
    for node in proto.graph.node:
        if is_recurrent(node):
            yield from (*node.input[:1], *node.input[5:7])


def _root(graph: onnx.GraphProto, folder: Path) -> None:
    """Let external tensors say where they lie from the root on, links followed, which onnxruntime does not do for
    a model that is not read from its own folder."""
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                path = (folder / entry.value).resolve()
                entry.value = str(path.relative_to(path.anchor))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _root(attribute.g, folder)
