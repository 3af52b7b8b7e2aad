"""Damage to models, reproducible by a seed: to the bytes of a file, and to the fields of a message.

As a program, `python damage.py FIRST COUNT`, it lowers damaged models and prints, a JSON line each, those whose
outcome is neither a result nor an error of the project. It limits its own memory, and ends itself with a traceback
where a model takes too long.
"""

import faulthandler
import json
import random
import resource
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from paths import EXAMPLES
from scope_models import CAPTURED, LOCAL, OVERRIDABLE, SCOPES, SHARED
from texts import parse

import rnn_lowering as rl

MEMORY = 4 << 30
SECONDS = 20
EXAMPLE = EXAMPLES / "denoiser.onnx"
INTEGERS = (0, 1, -1, 2, 3, 7, 22, 127, 128, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, float("inf"), float("-inf"), float("nan"))
STRINGS = ("", " ", "X", "W", "R", "ai.onnx", "a/b", "\0", "\u00e9", "x" * 5000, "forward", "bidirectional")
OPERATORS = ("LSTM", "GRU", "RNN", "If", "Loop", "Scan", "Constant", "Identity", "Shape", "Split", "Concat")
BYTES = (b"", b"\0", b"\xff" * 7, b"\0\0\x80\x3f" * 12, bytes(range(192)))

Damage = Callable[[bytearray, random.Random], None]


def models() -> list[onnx.ModelProto]:
    """What is damaged: small models, and the example."""
    texts = (*SCOPES.values(), CAPTURED, OVERRIDABLE, SHARED)
    return [*(parse(text, domains=LOCAL) for text in texts), onnx.load(EXAMPLE)]


def damaged(number: int, originals: list[onnx.ModelProto]) -> bytes:
    """The bytes of a model file: every second one a message still."""
    rng = random.Random(number)
    original = originals[rng.randrange(len(originals))]
    return damaged_fields(original, rng) if number % 2 else damaged_bytes(original.SerializeToString(), rng)


# Bytes


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if changed:
            rng.choice(ON_BYTES)(changed, rng)
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


def _duplicate(data: bytearray, rng: random.Random) -> None:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    data[at:at] = data[start : start + rng.choice((1, 10, 200, 2000))]


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 3, 20)))


ON_BYTES: tuple[Damage, ...] = (_flip, _overwrite, _truncate, _cut, _duplicate, _insert)


# Fields


def damaged_fields(original: onnx.ModelProto, rng: random.Random) -> bytes:
    model = onnx.ModelProto()
    model.CopyFrom(original)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        messages = list(_messages(model))
        message = rng.choice(messages)
        field = rng.choice(list(message.DESCRIPTOR.fields))
        if _repeated(field):
            _damage_list(getattr(message, field.name), field, messages, rng)
        elif field.message_type is not None:
            _damage_message(message, field, messages, rng)
        elif rng.random() < 0.2:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _value(field, messages, rng))
    data: bytes = model.SerializeToString()
    return data


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _messages(message: Any) -> Iterator[Any]:
    """A message and all below it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if _repeated(field) else [value]:
                yield from _messages(inner)


def _damage_message(message: Any, field: Any, messages: list[Any], rng: random.Random) -> None:
    others = [m for m in messages if m.DESCRIPTOR is field.message_type and m is not message]
    if others and rng.random() < 0.5:
        copy = type(others[0])()
        copy.CopyFrom(rng.choice(others))
        getattr(message, field.name).CopyFrom(copy)
    else:
        message.ClearField(field.name)


def _damage_list(values: Any, field: Any, messages: list[Any], rng: random.Random) -> None:
    kind = rng.choice(("remove", "remove", "repeat", "add", "add", "shuffle", "change"))
    if kind == "remove" and values:
        del values[rng.randrange(len(values))]
    elif kind == "shuffle":
        items = list(values)
        rng.shuffle(items)
        _fill(values, items, field)
    elif kind == "repeat" and values:
        _fill(values, [*values, rng.choice(list(values))], field)
    elif field.message_type is not None:
        others = [m for m in messages if m.DESCRIPTOR is field.message_type]
        _fill(values, [*values, *([rng.choice(others)] if others else [])], field)
    elif kind == "change" and values:
        values[rng.randrange(len(values))] = _value(field, messages, rng)
    else:
        values.append(_value(field, messages, rng))


def _fill(values: Any, items: list[Any], field: Any) -> None:
    copies = []
    for item in items:
        copies.append(item)
        if field.message_type is not None:
            copies[-1] = type(item)()
            copies[-1].CopyFrom(item)
    del values[:]
    values.extend(copies)


def _value(field: Any, messages: list[Any], rng: random.Random) -> Any:
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64, field.CPPTYPE_UINT32):
        return _integer(field, rng)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == field.TYPE_BYTES:
        return rng.choice((*BYTES, *(text.encode() for text in STRINGS)))
    known = [getattr(m, f.name) for m in messages for f in m.DESCRIPTOR.fields if _text(f) and not _repeated(f)]
    known += [text for m in messages if isinstance(m, onnx.NodeProto) for text in (*m.input, *m.output)]
    return rng.choice((rng.choice(known), rng.choice(STRINGS), rng.choice(OPERATORS)))


def _text(field: Any) -> bool:
    return bool(field.type == field.TYPE_STRING)


def _integer(field: Any, rng: random.Random) -> int:
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return rng.choice([n for n in INTEGERS if low <= n <= high])


# The program


def outcome(data: bytes, folder: Path) -> str | None:
    """Lower a model file; return what went wrong, None for a result or an error of the project."""
    source, out = folder / "in.onnx", folder / "out" / "out.onnx"
    source.write_bytes(data)
    try:
        rl.lower_file(source, out, verify=0)
    except rl.RnnLoweringError:
        pass
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(f.filename).name}:{f.name}" for f in last if "rnn_lowering" in f.filename]
        return f"{type(error).__name__} in {ours[-1]}: {' '.join(str(error).split())[:200]}"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    strange = files - {"in.onnx", "out", "out/out.onnx", "out/out.onnx.data"}
    for path in (out, out.with_name("out.onnx.data")):
        path.unlink(missing_ok=True)
    return f"wrote {sorted(strange)}" if strange else None


def main(first: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    originals = models()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "out").mkdir()
        for number in range(first, first + count):
            print(json.dumps({"number": number}), flush=True)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            wrong = outcome(damaged(number, originals), Path(name))
            faulthandler.cancel_dump_traceback_later()
            if wrong is not None:
                print(json.dumps({"number": number, "wrong": wrong}), flush=True)
    print(json.dumps({"done": count}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
