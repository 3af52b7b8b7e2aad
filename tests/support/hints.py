"""Following the hints of errors, as a user would who pastes their options into the command."""

import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import rnn_lowering as rl
from rnn_lowering.cli.arguments import parser
from rnn_lowering.cli.texts import options_of
from rnn_lowering.flags import for_command

SIZE = "8"
"""Fills each ? of a hint."""

MOST_STEPS = 6

_FLAGS = {"--dequantize"}


def alternatives(hint: str) -> Iterator[list[str]]:
    """Yield the arguments that a hint offers, one list for each of its alternatives that has any.

    "drop --target" offers none: it takes one away.
    """
    for part in re.split(r",? or (?=--|[a-z ]+--)|,? or ", hint):
        found = re.search(r"(?<![\w-])--[a-z]", part)
        if found and not part.startswith("drop "):
            yield _arguments(part[found.start() :])


def _arguments(text: str) -> list[str]:
    lexer = shlex.shlex(text.rstrip(")"), posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    found: list[str] = []
    while words and words[0].startswith("--"):
        option = words.pop(0).rstrip(",)")
        found += [option] if option in _FLAGS else [option, words.pop(0).removesuffix(",")]
    return found


@dataclass
class Followed:
    """What came of the hints for a model.

    Attributes:
        followed: How many there were.
        ended: Messages at the end that offer no option; none where the model is lowered.
        nowhere: What led to a message that was there before.
    """

    followed: int = 0
    ended: list[str] = field(default_factory=list)
    nowhere: list[str] = field(default_factory=list)


def follow(model: onnx.ModelProto, target: str, arguments: tuple[str, ...] = ()) -> Followed:
    """Lower a model for a target and follow each hint, until it is lowered or a hint offers no option."""
    result = Followed()
    with tempfile.TemporaryDirectory() as folder:
        _follow(model, ["--target", target, *arguments], [], result, Path(folder))
    return result


def _follow(model: onnx.ModelProto, given: list[str], before: list[str], result: Followed, folder: Path) -> None:
    message, hint = _refusal(model, given)
    command = " ".join(given)
    if message in before:
        result.nowhere.append(f"{command}: again: {message}")
    elif len(before) == MOST_STEPS:
        result.nowhere.append(f"{command}: no end: {message}")
    elif message:
        offers = list(alternatives(hint))
        result.followed += len(offers)
        result.ended += [] if offers else [message]
        for offered in offers:
            _follow(model, _with(given, _filled(offered, model, folder)), [*before, message], result, folder)


def _with(given: list[str], offered: list[str]) -> list[str]:
    """Return the arguments with those that are offered; one that is given once takes the place of an older one."""
    kept = [*given]
    for flag in {"--to", "--max-unroll"}.intersection(kept, offered):
        del kept[kept.index(flag) : kept.index(flag) + 2]
    return [*kept, *offered]


def _refusal(model: onnx.ModelProto, given: list[str]) -> tuple[str, str]:
    """Return what is wrong, without the hint, and the hint; empty where the model is lowered."""
    try:
        options = options_of(rl.Lowering, parser().parse_args(["in.onnx", "out.onnx", *given]))
        with for_command():
            found, _ = rl.LowerRecurrentPass(options).preview(ir.from_proto(model))
    except SystemExit:
        raise AssertionError(f"the command cannot be used: {' '.join(given)}") from None
    except rl.RnnLoweringError as error:
        return f"{error.node}: {error.reason}", error.hint
    refused = [(f"{each.node}: {each.reason}", each.hint) for each in found if each.form == "refused"]
    return refused[0] if refused else ("", "")


def _filled(arguments: list[str], model: onnx.ModelProto, folder: Path) -> list[str]:
    return [_with_file(text, model, folder) if ".npy" in text else text.replace("?", SIZE) for text in arguments]


def _with_file(text: str, model: onnx.ModelProto, folder: Path) -> str:
    """Return NAME=FILE.npy with a file of ones in the shape of the input."""
    name = text.removesuffix("=FILE.npy")
    (value,) = [value for value in model.graph.input if value.name == name]
    kind = value.type.tensor_type
    shape = [dim.dim_value if dim.HasField("dim_value") else int(SIZE) for dim in kind.shape.dim]
    path = folder / "FILE.npy"
    np.save(path, np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    return f"{name}={path}"
