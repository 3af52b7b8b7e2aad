"""onnx's native code. Some malformed models make it crash or hang, so it runs in a child process where they may.

onnx.checker is safe for every model, and shape inference is safe for models that the checker accepts, unless they
contain huge numbers. So shapes of an ordinary model are inferred in this process. The version converter, which only
old models need, always runs in a child process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from threading import Event, Timer

import onnx
from onnx import shape_inference, version_converter

from rnn_lowering.limits import RUN_FACTOR, limit_memory, most_bytes

_SECONDS, _INFERENCE_SECONDS = 30, 10
"""Time limits of a conversion, and of the inference of an invalid model: each needs about a second if large."""

_LARGEST = 2**31 - 1

SMALL = 1000
"""The most bytes of a tensor that may be a shape: its numbers are used; of a larger one only the type and shape."""


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
    return _strictly_inferred(proto) if is_sound(proto) else ""


def problem_of(proto: onnx.ModelProto) -> str:
    """Return the error of the checker, else of strict inference, in one line; empty where there is none, or a size
    is such that neither is safe."""
    if not _is_moderate(proto.graph):
        return ""
    return _checked(proto) or _strictly_inferred(proto)


def _strictly_inferred(proto: onnx.ModelProto) -> str:
    for node in proto.graph.node:
        node.name = node.name or (f"-> {node.output[0]}" if node.output else "")
    try:
        shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:  # inference and protobuf have no common error
        return _first_fault(str(error))
    return ""


def _first_fault(text: str) -> str:
    """The first of the errors that inference lists, a line for each: the others mostly follow from it."""
    found = re.search(r"\(op_type:(\w+), node name: (.*?)\): (?:\[\w+\] )?(.+)", text)
    return f"{found[1]} node '{found[2]}': {found[3].strip()}" if found else " ".join(text.split())


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
    return _is_moderate(proto.graph) and not _checked(proto)


def _checked(proto: onnx.ModelProto) -> str:
    incomplete = list(_complete(proto.graph))
    try:
        onnx.checker.check_model(proto)
    except Exception as error:  # the checker's own error, or protobuf's
        return " ".join(str(error).split()) or type(error).__name__
    finally:
        for undo in incomplete:
            undo()
    return ""


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


@contextmanager
def one_child() -> Iterator[None]:
    """Let one process serve all that runs elsewhere in the block, which may be nested; it ends with the block.

    After a first crash nothing more is inferred: the model would crash it again.
    """
    if _current.get() is not None:
        yield
        return
    child = _Child()
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


class _Child:
    """A process for the jobs of one block, which is started when the first comes."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._crashed = False

    def run(self, task: str, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Do "infer", or convert to the opset that the task names.

        Raises:
            NativeError: It is refused, crashes or takes too long.
        """
        infer = task == "infer"
        if infer and self._crashed:
            raise NativeError("onnx's own code crashed on the model before")
        process = self._process = self._process or _start()
        seconds = _INFERENCE_SECONDS if infer else _SECONDS
        late = Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = Timer(seconds, stop)
        timer.start()
        try:
            done, data = _ask(process, task, proto.SerializeToString())
        except (OSError, ValueError):  # it is gone, or was in the middle of its answer
            self._crashed = True
            code = self.end()
            reason = f"onnx does not finish within {seconds} seconds" if late.is_set() else ""
            raise NativeError(reason or f"onnx's own code crashed (exit {code})") from None
        finally:
            timer.cancel()
        if not done:
            raise NativeError(" ".join(data.decode(errors="replace").split()))
        result: onnx.ModelProto = onnx.ModelProto.FromString(data)
        return result

    def end(self) -> int | None:
        """End the process; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe and pipe.close()
        with suppress(subprocess.TimeoutExpired):  # it ends with its input, or has crashed
            return process.wait(1)
        process.kill()
        return process.wait()


_current: ContextVar[_Child | None] = ContextVar("current", default=None)


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rnn_lowering.model.native", str(RUN_FACTOR * most_bytes())]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=_environment())


def _ask(process: subprocess.Popen[bytes], task: str, data: bytes) -> tuple[bool, bytes]:
    """Return whether a job was done, and the model, or why it was not.

    Raises:
        OSError, ValueError: The process is gone.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{task} {len(data)}\n".encode() + data)
    process.stdin.flush()
    word, size = process.stdout.readline().split()
    answer = process.stdout.read(int(size))
    if len(answer) < int(size):
        raise ValueError
    return word == b"done", answer


def _environment() -> dict[str, str]:
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *inherited])}


def _serve(memory: int) -> None:
    """Do the jobs that stdin gives: each is a line of the task and the bytes of a model, and the model. Each answer
    is a line of "done" and the bytes of the result, and the result; or of "refused" and those of the reason."""
    answers = os.fdopen(os.dup(1), "wb")  # native code may print to the descriptor that was stdout
    os.dup2(2, 1)
    limit_memory(memory)
    while line := sys.stdin.buffer.readline():
        task, size = line.split()
        proto = onnx.ModelProto.FromString(sys.stdin.buffer.read(int(size)))
        try:
            result = _inferred(proto) if task == b"infer" else version_converter.convert_version(proto, int(task))
            word, data = "done", result.SerializeToString()
        except Exception as error:  # whatever the native code raises is the reason
            word, data = "refused", str(error).encode(errors="replace")
        answers.write(f"{word} {len(data)}\n".encode() + data)
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
