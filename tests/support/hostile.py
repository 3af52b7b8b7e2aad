"""Hostile models, each reproducible by its class and number, and a runner that lowers them.

Classes: `bytes` of a file are damaged; `fields` of a model are changed, at any depth; `streams` are made of such
models, or read with damaged metadata; `found` are those that earlier campaigns found.
Sound models, which must not be lowered wrongly, are those of `python -m fuzz`.

    python tests/support/hostile.py CLASS FIRST COUNT

lowers so many of a class and prints those that end in anything else than a result or an `RnnLoweringError`, or in a
result that the checker refuses where it accepts the model.
Native code may end its process, so batches run in processes of their own; what ended one is printed too.
"""

import contextlib
import faulthandler
import json
import logging
import random
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from case_list import NAMED, RANDOM
from cases import model
from found import FOUND, file_of
from one_process import Kept, keep_processes
from paths import EXAMPLES
from scope_models import CAPTURED, LOCAL, OVERRIDABLE, SCOPES, SHARED
from stream_models import KEY
from stream_nets import enhancer, keras_batch_first, keyword_spotter, language_model
from texts import FORMS, parse

import rnn_lowering as rl

MEMORY = 4 << 30
SECONDS = 45
"""The most that a model may take; the package gives onnx 10 for an inference, and 30 for a conversion."""

BATCH = 500
ANY_FORM = ("auto", *FORMS)

Model = onnx.ModelProto
Outcome = str | None
"""What went wrong; None for a result or an error that says what is wrong."""

Part = tuple[str, int, int]
"""A class, its first model, and how many."""


# What is mutated


def models() -> list[Model]:
    """Recurrent nodes of every kind, in bodies and in functions, and the example."""
    texts = [parse(text, domains=LOCAL) for text in (*SCOPES.values(), CAPTURED, OVERRIDABLE, SHARED)]
    nodes = [model(case, version) for case in NAMED[::5] for version in (13, 22) if version in case.opsets]
    more = [model(case, max(case.opsets)) for case in RANDOM[::4]]
    return [*texts * 3, *nodes, *more, onnx.load(EXAMPLES / "denoiser.onnx")]


def nets() -> list[Model]:
    """Networks that can be streams, and every third of the others."""
    found = [make()[0] for make in (enhancer, keras_batch_first, keyword_spotter, language_model)]
    return [*found * 4, *models()[::3]]


# Bytes

Damage = Callable[[bytearray, random.Random], None]


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if changed:
            rng.choice(DAMAGES)(changed, rng)
    return bytes(changed)


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    for n in range(at, min(at + rng.choice((1, 2, 9)), len(data))):
        data[n] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _cut(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 50))]


def _insert(data: bytearray, rng: random.Random) -> None:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    data[at:at] = rng.choice(
        (data[start : start + rng.choice((1, 10, 200, 2000))], rng.randbytes(rng.choice((1, 20))))
    )


DAMAGES: tuple[Damage, ...] = (_flip, _overwrite, _truncate, _cut, _insert)


# Fields

INTEGERS = (0, 1, -1, 2, 3, 5, 6, 7, 9, 13, 22, 99, 127, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-40, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS: tuple[str, ...] = (
    "",
    "X",
    "W",
    "R",
    "Y",
    "a/b",
    "../x",
    "a\x1b[2J\nb",
    "\0",
    "\u00e9",
    "x" * 5000,
    "unknown",
    "Tanh",
    "Relu",
)
TEXTS += ("forward", "reverse", "bidirectional", "ai.onnx", "com.microsoft", "local", "location", "offset", "-1")
ATTRIBUTES = ("hidden_size", "direction", "value", "axis", "axes", "perm", "to", "body", "layout", "clip")
OPERATORS = (
    *("LSTM", "GRU", "RNN", "If", "Loop", "Scan", "Constant", "Identity", "Shape", "Gather", "Cast", "Concat"),
    *("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Expand", "ConstantOfShape", "DequantizeLinear"),
    *("Split", "Tile", "Range", "recur", "DynamicQuantizeLSTM"),
)
JSON = ("", "[", "{", '"', "null", "-1", "1e999", "[]", "{}", "true", "\\u0000", '"zeros"', ",")
BYTES = (b"", b"\0", b"\xff" * 7, b"\xff\xfe", b"\0\0\x80\x3f" * 12, bytes(range(192)), bytes(192))


def changed(original: Model, rng: random.Random) -> Model:
    """A model with one field changed, or a few, of messages at any depth: each kind of message as often."""
    new = Model()
    new.CopyFrom(original)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if rng.random() < 0.05:
            _rename(new, rng)
            continue
        messages = list(_messages(new))
        kind = rng.choice(sorted({type(message).__name__ for message in messages}))
        message = rng.choice([m for m in messages if type(m).__name__ == kind])
        given = [field for field, _ in message.ListFields()]
        field = rng.choice(given if given and rng.random() < 0.7 else list(message.DESCRIPTOR.fields))
        _change(message, field, messages, rng)
    return new


def _change(message: Any, field: Any, messages: list[Any], rng: random.Random) -> None:
    others = [m for m in messages if m.DESCRIPTOR is field.message_type]
    if _repeated(field):
        _change_list(getattr(message, field.name), field, others, messages, rng)
    elif rng.random() < 0.2 or (field.message_type is not None and not others):
        message.ClearField(field.name)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(_copy(rng.choice(others)))
    else:
        setattr(message, field.name, _scalar(field, messages, rng))


def _change_list(values: Any, field: Any, others: list[Any], messages: list[Any], rng: random.Random) -> None:
    """An entry goes away, comes twice, becomes another; all change places; one of elsewhere is added."""
    kind = rng.choice(("remove", "remove", "repeat", "add", "add", "shuffle", "change", "change"))
    items = [_copy(item) for item in values]
    if kind == "shuffle":
        rng.shuffle(items)
    elif kind == "repeat" and items:
        items.append(_copy(rng.choice(items)))
    elif kind == "remove" and items:
        del items[rng.randrange(len(items))]
    elif field.message_type is None or others:
        new = _copy(rng.choice(others)) if others else _scalar(field, messages, rng)
        if kind == "change" and items:
            items[rng.randrange(len(items))] = new
        else:
            items.insert(rng.randint(0, len(items)), new)
    del values[:]
    values.extend(items)


def _rename(root: Model, rng: random.Random) -> None:
    """A name changes everywhere, so that the model stays whole."""
    names = [name for m in _messages(root) if isinstance(m, onnx.NodeProto) for name in (*m.input, *m.output)]
    old, new = rng.choice(names or [""]), rng.choice(TEXTS)
    for message in _messages(root):
        for field in message.DESCRIPTOR.fields:
            if field.type != field.TYPE_STRING:
                continue
            value = getattr(message, field.name)
            if _repeated(field):
                value[:] = [new if name == old else name for name in value]
            elif value == old:
                setattr(message, field.name, new)


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _messages(message: Any) -> Iterator[Any]:
    """A message and all below it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if _repeated(field) else [value]:
                yield from _messages(inner)


def _copy(item: Any) -> Any:
    if not hasattr(item, "DESCRIPTOR"):
        return item
    copy = type(item)()
    copy.CopyFrom(item)
    return copy


def _scalar(field: Any, messages: list[Any], rng: random.Random) -> Any:
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == field.TYPE_BYTES:
        return rng.choice((*BYTES, *(text.encode() for text in TEXTS)))
    if field.type != field.TYPE_STRING:
        return _integer(field, rng)
    known = [name for m in messages if isinstance(m, onnx.NodeProto) for name in (*m.input, *m.output)]
    known += [m.name for m in messages if hasattr(m, "name") and m.name]
    return rng.choice((rng.choice(known or [""]), rng.choice(TEXTS), rng.choice(OPERATORS), rng.choice(ATTRIBUTES)))


def _integer(field: Any, rng: random.Random) -> int:
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return rng.choice([n for n in INTEGERS if low <= n <= high])


# Outcomes


def outcome_of_a_file(data: bytes, folder: Path, form: Any) -> Outcome:
    """Lower a model file, by itself in an empty folder; nothing but the result may be written."""
    source, out = folder / "in.onnx", folder / "out" / "out.onnx"
    source.write_bytes(data)
    found = _outcome(lambda: rl.inspect(source)) or _outcome(lambda: rl.lower_file(source, out, form, verify=0))
    files = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    strange = files - {"in.onnx", "out", "out/out.onnx", "out/out.onnx.data"}
    for path in (out, out.with_name("out.onnx.data")):
        path.unlink(missing_ok=True)
    return found or (f"wrote {sorted(strange)}" if strange else None)


def outcome_of_a_model(original: Model, form: Any, **options: Any) -> Outcome:
    """Lower a model in memory, which stays as it is."""
    before = original.SerializeToString(deterministic=True)
    results: list[Model] = []
    found = _outcome(lambda: rl.inspect(original))
    found = found or _outcome(lambda: results.append(rl.lower(original, form, **options)))
    if original.SerializeToString(deterministic=True) != before:
        return "changed the original"
    return found or (refusal_of_the_checker(original, results[0]) if results else None)


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        call()
    except rl.InternalError as error:
        cause = error.__cause__ or error
        last = [f for f in traceback.extract_tb(cause.__traceback__) if "rnn_lowering" in f.filename]
        where = f"{Path(last[-1].filename).name}:{last[-1].name}" if last else "?"
        return f"{type(cause).__name__} in {where}: {' '.join(str(cause).split())[:200]}"
    except rl.RnnLoweringError:
        return None
    except Exception as error:
        return f"raw {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


def refusal_of_the_checker(original: Model, lowered: Model) -> Outcome:
    """Why the checker refuses a result, where it accepted the original."""
    inputs = [m for m in _messages(original) if isinstance(m, onnx.TensorShapeProto.Dimension)]
    if any(dim.dim_value < 0 for dim in inputs):
        return None  # the checker computes with negative sizes, which can end its process
    with contextlib.suppress(Exception):
        onnx.checker.check_model(original)
        try:
            onnx.checker.check_model(lowered)
        except Exception as error:
            return f"refused by the checker: {' '.join(str(error).split())[:200]}"
    return None


def outcome_of_metadata(stream: Model, rng: random.Random) -> Outcome:
    """Read a stream whose metadata are damaged."""
    (entry,) = [p for p in stream.metadata_props if p.key == KEY]
    at, size = rng.randrange(len(entry.value)), rng.choice((0, 1, 1, 5, 40))
    entry.value = entry.value[:at] + rng.choice(JSON) + entry.value[at + size :]
    return _outcome(lambda: rl.Stream(stream.SerializeToString()))


def axis_of_time(original: Model, rng: random.Random) -> str:
    """Any axis of any input, by its name or its number, and for some a number of frames."""
    dims = [(v.name, n, d) for v in original.graph.input for n, d in enumerate(v.type.tensor_type.shape.dim)]
    name, axis, dim = rng.choice(dims or [("time", 0, onnx.TensorShapeProto.Dimension())])
    text = dim.dim_param if dim.dim_param and rng.random() < 0.7 else f"{name}:{axis}"
    return text + rng.choice(("", "", "=1", "=2", "=4"))


def axes_to_open(original: Model, rng: random.Random) -> dict[str, str]:
    """One or two axes of inputs that have a fixed size."""
    dims = [(v.name, n, d) for v in original.graph.input for n, d in enumerate(v.type.tensor_type.shape.dim)]
    fixed = [f"{name}:{n}" for name, n, dim in dims if dim.HasField("dim_value")] or ["x:0"]
    return dict.fromkeys(rng.sample(fixed, min(len(fixed), rng.choice((1, 1, 2)))), "opened")


# The runner


def attempt(kind: str, number: int, originals: list[Model], folder: Path) -> Outcome:
    """Make the model of a number and lower it."""
    rng, form = random.Random(number), ANY_FORM[number % 4]
    if kind == "found":
        turn, place = divmod(number, len(FOUND))
        return outcome_of_a_file(file_of(list(FOUND)[place]), folder, ANY_FORM[(place + turn) % 4])
    original = rng.choice(originals)
    if kind == "bytes":
        return outcome_of_a_file(damaged(original.SerializeToString(), rng), folder, form)
    mutant = changed(original, rng)
    if kind == "fields":
        return outcome_of_a_model(mutant, form)
    if kind == "opens":
        return outcome_of_a_model(mutant, form, open_dims=axes_to_open(mutant, rng))
    if number % 4 == 0:
        return outcome_of_metadata(rl.lower(nets()[number % 3], stream="time"), rng)
    form = "keep" if form == "unroll" else form
    return outcome_of_a_model(mutant, form, stream=axis_of_time(mutant, rng))


def run_here(parts: Iterable[Part]) -> None:
    """Lower models in this process, which ends with a traceback where one takes too long; print a line each."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    keep_processes(pytest.MonkeyPatch())
    warnings.simplefilter("ignore")
    logging.disable()
    for kind, first, count in parts:
        originals = {"bytes": models, "fields": models, "opens": models, "streams": nets}.get(kind, list)()
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "out").mkdir()
            for number in range(first, first + count):
                print(json.dumps([kind, number]), flush=True)
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                wrong = attempt(kind, number, originals, Path(name))
                faulthandler.cancel_dump_traceback_later()
                if wrong is not None:
                    print(json.dumps([kind, number, wrong]), flush=True)
    Kept.end_all()


def campaign(*parts: Part) -> Iterator[tuple[str, int, str]]:
    """Lower models in batches; yield the class and number of those that went wrong, and how."""
    left = [
        (kind, start, min(BATCH, first + count - start))
        for kind, first, count in parts
        for start in range(first, first + count, BATCH)
    ]
    while left:
        batch = [part for n, part in enumerate(left) if not n or sum(size for *_, size in left[: n + 1]) <= BATCH]
        command = [sys.executable, __file__, "--here", *(str(field) for part in batch for field in part)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        yield from ((kind, number, rest[0]) for kind, number, *rest in lines if rest)
        if done.returncode == 0:
            left = left[len(batch) :]
            continue
        if not lines:
            raise RuntimeError(done.stderr[-2000:])
        said = " ".join(done.stderr.split())[-300:]
        kind, number = lines[-1][:2]
        yield kind, number, f"ended its process ({done.returncode}): {said}"
        place = next(n for n, part in enumerate(batch) if part[0] == kind and 0 <= number - part[1] < part[2])
        _, first, count = left[place]
        left[: place + 1] = [(kind, number + 1, first + count - number - 1)] if number + 1 < first + count else []


def main(arguments: list[str]) -> int:
    here = arguments[0] == "--here"
    given = arguments[here:]
    parts = [(given[n], int(given[n + 1]), int(given[n + 2])) for n in range(0, len(given), 3)]
    if here:
        run_here(parts)
        return 0
    ((kind, _, count),) = parts
    kinds: Counter[str] = Counter()
    for _, number, wrong in campaign(*parts):
        kinds[wrong[:60]] += 1
        print(number, ascii(wrong), flush=True)
    print(f"{count} of {kind}, {kinds.total()} wrong: {dict(kinds)}")
    return int(bool(kinds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
