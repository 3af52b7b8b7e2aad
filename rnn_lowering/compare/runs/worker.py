"""The program of the child process that runs models: `rnn_lowering.child` with this module.

A job loads one model and runs it:
    model: Path of the model.
    data: Folder of its external data.
    optimize: Whether onnxruntime optimizes the graph.
    threads: The number of its threads; 0: onnxruntime chooses.
    packs: Whether onnxruntime packs weights for its kernels.
    groups: Lists of feeds, each a file of arrays. The first feed of a group with finite outputs counts, else the
        first that the model accepts.
    loaded: The number of the model, if a job has loaded it; those of lower numbers are not needed any more. Null to
        load it: then no others are.
    chunks: The fields of `runner.Chunks`, or null. If given, the first feed of each group is cut into chunks,
        which run one after another; `read_steps` reads their outputs. Two groups run side by side.
    out: Folder for files of outputs, named "number of the output:number of its part".
    memory: The maximum number of bytes that the process may allocate.

Its messages, in this order:
    {"names": [...]}: The names of the outputs, once the model is loaded.
    {"feed": index, "out": file, "finite": whether all outputs are} or {"error": text}: One for each group. With
        chunks also "seconds", the time that they took.
    {"error": text}: Instead of all these, if the model does not load.
    {"too_large": true}: The last message, if the memory is not enough.

A job with "load" only loads the model, for jobs that name this number as "loaded"; it has no message.
A job with "float64" evaluates the model on that feed in float64; its message is {} or {"error": text}.

Arrays pass between the processes in mapped files, without copies.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from rnn_lowering.child import Message, serve
from rnn_lowering.limits import limit_memory
from rnn_lowering.types import Array

_ALIGNED = 64
"""Each array in a file begins at a multiple of this many bytes."""

_SMALL = 1 << 16
"""Bytes of an array that is read at once: to map it would take longer."""


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays of any names into one file: the length of its index, the index as JSON, the bytes of each array.

    Raises:
        ValueError: One holds Python objects.
    """
    if any(array.dtype.hasobject for array in arrays.values()):
        raise ValueError("an array holds Python objects")
    starts = accumulate((_rounded_up(array.nbytes) for array in arrays.values()), initial=0)
    index = [(n, a.dtype.str, a.shape, start) for (n, a), start in zip(arrays.items(), starts, strict=False)]
    head = json.dumps(index).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for (_, _, _, start), array in zip(index, arrays.values(), strict=True):
            file.seek(_first_byte(len(head)) + start)
            array.tofile(file)


def _rounded_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _first_byte(head: int) -> int:
    return _rounded_up(8 + head)


class StoredArrays(Mapping[str, Array]):
    """The arrays in a file, by name, read-only. Each access maps a large one anew, so nothing stays in memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            index = json.loads(file.read(size))
        self._path, self._first = path, _first_byte(size)
        self._index = {name: (np.dtype(dtype), tuple(shape), start) for name, dtype, shape, start in index}

    def __getitem__(self, name: str) -> Array:
        dtype, shape, start = self._index[name]
        if not math.prod(shape):  # nothing can be mapped
            return np.zeros(shape, dtype)
        if math.prod(shape) * dtype.itemsize <= _SMALL:
            with self._path.open("rb") as file:
                file.seek(self._first + start)
                return np.frombuffer(file.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        return np.memmap(self._path, dtype, "r", self._first + start, shape)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


def _write_steps(path: Path, names: Sequence[str], steps: Sequence[Mapping[str, Array]]) -> None:
    """Write the outputs of steps. They are many and small, so those of one name become one array."""
    write_arrays(path, {name: np.concatenate([step[name].reshape(-1) for step in steps]) for name in names})
    _shapes_of(path).write_text(json.dumps([[step[name].shape for name in names] for step in steps]))


def _shapes_of(path: Path) -> Path:
    return path.with_suffix(".json")


def read_steps(path: Path) -> list[dict[str, Array]]:
    """Return the outputs of each step by name."""
    joined = {name: np.asarray(array) for name, array in StoredArrays(path).items()}
    starts = dict.fromkeys(joined, 0)
    steps = []
    for shapes in json.loads(_shapes_of(path).read_text()):
        step = {}
        for name, shape in zip(joined, shapes, strict=True):
            end = starts[name] + math.prod(shape)
            step[name] = joined[name][starts[name] : end].reshape(shape)
            starts[name] = end
        steps.append(step)
    return steps


_NO_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
"""Texts of onnxruntime's errors when memory runs out."""

_SEQUENCES_AT_ONCE = min(2, os.cpu_count() or 1)
"""Sequences of chunks that run side by side, each on a thread of its own."""


_Loaded = tuple[Any, Message]
"""The session of a model, None if it does not load, and the message about it."""

_ahead: dict[int, _Loaded] = {}
"""What is loaded for later jobs, by number."""


def do(job: Message) -> Iterator[Message]:
    """Do a job; yield its messages."""
    if "load" in job:
        limit_memory(job["memory"])
        _ahead[job["load"]] = _loaded(job)
        return
    number = job.get("loaded")
    for held in [held for held in _ahead if number is None or held < number]:
        del _ahead[held]
    if number is None:
        limit_memory(job["memory"])
    if "float64" in job:
        yield _float64(job)
        return
    session, message = _loaded(job) if number is None else _ahead[number]
    yield message
    try:
        yield from _runs(session, job) if session else ()
    except MemoryError:
        yield {"too_large": True}


def _loaded(job: Message) -> _Loaded:
    try:
        session = _load(job)
        return session, {"names": [output.name for output in session.get_outputs()]}
    except Exception as error:  # whatever onnxruntime raises
        return None, {"error": _one_line(error), "too_large": _is_of_memory(error)}


def _runs(session: Any, job: Message) -> Iterator[Message]:
    places = [Path(job["out"]) / str(n) for n in range(len(job["groups"]))]
    if job.get("chunks") is None:
        yield from map(partial(_run_group, session), job["groups"], places)
        return
    run = partial(_run_chunks, session, job["chunks"])
    sequences = list(zip((group[0] for group in job["groups"]), job["chunks"]["sizes"], places, strict=True))
    done = 0
    with suppress(MemoryError), ThreadPoolExecutor(_SEQUENCES_AT_ONCE) as pool:
        for message in pool.map(run, *zip(*sequences, strict=True)):
            yield message
            done += 1
    for sequence in sequences[done:]:  # those that need the memory for themselves
        yield run(*sequence)


def _float64(job: Message) -> Message:
    from rnn_lowering.compare.float64.evaluator import evaluate_model

    try:
        feed = StoredArrays(Path(job["float64"]))
        write_arrays(Path(job["out"]), evaluate_model(Path(job["model"]), feed))
    except Exception as error:  # the evaluator has no common error
        return {"error": _one_line(error)}
    return {}


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)


def _load(job: Message) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # what one run needed goes back before the next model is loaded
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", job["data"])
    # A product of dequantized weights stays one of floats: 4, the default, would round the other operand to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    model = Path(job["model"]).read_bytes()
    if not job["packs"]:  # weights are there once, not a second time packed
        options.add_session_config_entry("session.disable_prepacking", "1")
    if not job["optimize"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = job["threads"]
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a quarter less processor time
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run_group(session: Any, group: Sequence[str], out: Path) -> Message:
    outcome: Message = {"error": "no input to try"}
    inputs = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    for n, feed in enumerate(group):
        try:
            arrays = StoredArrays(Path(feed))
            outputs = session.run(None, {name: np.asarray(a) for name, a in arrays.items() if name in inputs})
        except Exception as error:  # whatever onnxruntime raises
            failed = {"error": _why(error)}
            outcome = outcome if "feed" in outcome else failed
            continue
        finite = all(np.isfinite(part).all() for part in _flat(outputs) if part.dtype.kind == "f")
        if finite or "feed" not in outcome:
            outcome = {"feed": n, "out": str(out), "finite": bool(finite)}
            flat = {f"{i}:{k}": part for i, value in enumerate(outputs) for k, part in enumerate(_flat(value))}
            write_arrays(out, flat)
        if finite:
            break
    return outcome


def _run_chunks(session: Any, chunks: Message, feed: str, sizes: Sequence[int], out: Path) -> Message:
    names = [output.name for output in session.get_outputs()]
    whole = {name: np.asarray(array) for name, array in StoredArrays(Path(feed)).items()}
    kept = [name for name in names if not chunks["returned"] or name in chunks["returned"]]
    given, steps = dict(whole), list[dict[str, np.ndarray[Any, Any]]]()
    start, began = 0, monotonic()
    for size in sizes:
        for name, (axis, rate) in chunks["axes"].items():
            given[name] = whole[name].take(range(start * rate, (start + size) * rate), axis)
        for name in chunks["lengths"]:
            given[name] = np.clip(whole[name] - start, 0, size).astype(whole[name].dtype)
        try:
            outputs = dict(zip(names, session.run(None, given), strict=True))
            given |= {entering: outputs[leaving] for leaving, entering in chunks["carried"].items()}
        except Exception as error:  # whatever onnxruntime raises
            return {"error": _why(error)}
        steps.append({name: _numbers_or_texts(np.asarray(outputs[name])) for name in kept})
        start += size
    seconds = monotonic() - began
    _write_steps(out, kept, steps)
    return {"feed": 0, "out": str(out), "finite": True, "seconds": seconds}


def _why(error: Exception) -> str:
    """Return why a model did not run.

    Raises:
        MemoryError: The memory was not enough.
    """
    if _is_of_memory(error):
        raise MemoryError from error
    return _one_line(error)


def _flat(value: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays in an output, which is a tensor, a sequence or a map."""
    if isinstance(value, dict):
        return [np.array(list(value)), np.array(list(value.values()))]
    if isinstance(value, list):
        return [part for item in value for part in _flat(item)]
    return [_numbers_or_texts(np.asarray(value))]


def _numbers_or_texts(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(str) if array.dtype == object else array


_IN_CPP = re.compile(r"/onnxruntime_src/\S+ [^()]*\([^()]*\) ")
"""A place in the source of onnxruntime: a file and the head of a function."""


def _one_line(error: Exception) -> str:
    return _IN_CPP.sub("", " ".join(str(error).split()))[:500]


NEW_OPSETS = {"ALLOW_RELEASED_ONNX_OPSET_ONLY": "0"}
"""Lets onnxruntime run opsets that it knows but does not count as released (27 and later)."""


if __name__ == "__main__":
    os.environ.update(NEW_OPSETS)
    serve(do, prepare=lambda: import_module("onnxruntime"))
