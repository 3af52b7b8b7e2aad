"""onnx's native code. Some malformed models make it crash or hang, so it runs in a child process where they may.

onnx.checker is safe for every model, and shape inference is safe for models that the checker accepts, unless they
contain huge numbers. So shapes of an ordinary model are inferred in this process. The version converter, which only
old models need, always runs in a child process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx
from onnx import shape_inference, version_converter

_SECONDS = 30
"""Time limit of a child process, which needs about one second for a large model."""

_LARGEST = 2**31 - 1


class NativeError(Exception):
    """onnx's native code refused a model, crashed or did not finish."""


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the types and shapes that ONNX infers; the given model where inference fails."""
    try:
        return _inferred(proto) if is_sound(proto) else _in_child("infer", proto)
    except Exception:  # inference and protobuf have no common error: nothing is inferred
        return proto


def fault_of(proto: onnx.ModelProto) -> str:
    """Return the error of strict inference, in one line; empty where there is none or inference is not safe."""
    if not is_sound(proto):
        return ""
    try:
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:  # inference and protobuf have no common error
        return " ".join(str(error).split())
    return ""


def convert(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model at another opset.

    Raises:
        NativeError: It cannot be converted.
    """
    return _in_child(str(opset), proto)


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    return shape_inference.infer_shapes(proto, data_prop=True)


def is_sound(proto: onnx.ModelProto) -> bool:
    """Return whether inference can neither crash nor hang on a model."""
    if not _is_moderate(proto.graph):
        return False
    incomplete = list(_complete(proto.graph))
    try:
        onnx.checker.check_model(proto)
    except Exception:  # the checker's own error, or protobuf's
        return False
    finally:
        for undo in incomplete:
            undo()
    return True


def _is_moderate(graph: onnx.GraphProto) -> bool:
    """Return whether all sizes are non-negative and all numbers fit 32 bits: onnx counts up to some of them."""
    infos = (*graph.input, *graph.output, *graph.value_info)
    dims = [d.dim_value for info in infos for d in info.type.tensor_type.shape.dim]
    attributes = [a for node in graph.node for a in node.attribute]
    dims += [d for t in (*graph.initializer, *(a.t for a in attributes)) for d in t.dims]
    if any(not 0 <= d <= _LARGEST for d in dims) or any(abs(a.i) > _LARGEST for a in attributes):
        return False
    return all(_is_moderate(body) for a in attributes for body in (a.g, *a.graphs))


def _complete(graph: onnx.GraphProto) -> Iterator[Callable[[], None]]:
    """Add the shapes of inputs and outputs and the types of outputs that are missing, which the checker requires
    and inference does not; yield functions that remove them again."""
    for info in (*graph.input, *graph.output):
        if info.type.WhichOneof("value") is None and info in graph.output:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            info.type.tensor_type.shape.SetInParent()
            yield partial(info.ClearField, "type")
        elif info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()
            yield partial(info.type.tensor_type.ClearField, "shape")


def _in_child(task: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    command = [sys.executable, "-m", "rnn_lowering.model.native", task]
    try:
        done = subprocess.run(
            command,
            input=proto.SerializeToString(),
            capture_output=True,
            env=_environment(),
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NativeError(f"onnx does not finish within {_SECONDS} seconds") from None
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split()) if done.returncode == 1 else ""
        raise NativeError(reason or f"onnx's own code crashed (exit {done.returncode})")
    result: onnx.ModelProto = onnx.ModelProto.FromString(done.stdout)
    return result


def _environment() -> dict[str, str]:
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *inherited])}


def _child(task: str) -> None:
    """Read a model from stdin and write the result to stdout; on an error write the reason to stderr and exit."""
    proto = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    try:
        result = _inferred(proto) if task == "infer" else version_converter.convert_version(proto, int(task))
    except Exception as error:  # any exception of the native code is the reason
        sys.exit(str(error))
    sys.stdout.buffer.write(result.SerializeToString())


if __name__ == "__main__":
    _child(sys.argv[1])
