"""The original with values of its main graph as further outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx

from rnn_lowering.files.locations import from_the_root
from rnn_lowering.spec.node import is_recurrent
from rnn_lowering.verification.runner import Session


def watching(
    original: Path, scratch: Path, names: Callable[[onnx.ModelProto], Iterable[str]], *, trust: bool = False
) -> Session:
    """Return a session of the original that gives more values.

    Args:
        original: The model file.
        scratch: Folder for the model that gives more.
        names: Names those values of the model; such as are not in the main graph are left out.
        trust: Read data outside the folder of the original.

    Raises:
        ModelFileError: Its data is missing, or outside.
    """
    proto = onnx.load(original, load_external_data=False)
    inner = {name for node in proto.graph.node for name in node.output if name}
    inner -= {value.name for value in proto.graph.output}
    for name in dict.fromkeys(names(proto)):
        if name in inner:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    path = scratch / "watching.onnx"
    from_the_root(proto, original, trust=trust)  # onnxruntime follows no links, and reads the copy elsewhere
    onnx.save(proto, path)
    return Session(path, Path(original.anchor))


def entering(proto: onnx.ModelProto) -> Iterator[str]:
    """What enters recurrent nodes: it must be finite, since native kernels do not pass on NaN."""
    for node in proto.graph.node:
        if is_recurrent(node):
            yield from (*node.input[:1], *node.input[5:7])
