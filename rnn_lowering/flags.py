"""The flags of the command, their keywords in Python, and how messages spell them.

Messages are written with flags; `spelled` returns them as the caller types them:

    --set-dim seq=? --set-dim N=?     dims={"seq": ?, "N": ?}
    --set-shape X:?,1,80            input_shapes={"X": [?, 1, 80]}
    --set-input lens=FILE.npy         set_inputs={"lens": numpy.load("FILE.npy")}
    --stream time=1                   stream="time=1"
    --stream a=1 --stream b=1         stream={"a": 1, "b": 1}
    --to scan                         to="scan"
    --dequantize                      dequantize=True
    drop --target                     drop target
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_of_command: ContextVar[bool] = ContextVar("of_command", default=False)


@contextmanager
def for_command() -> Iterator[None]:
    """Let messages of the block have flags."""
    token = _of_command.set(True)
    try:
        yield
    finally:
        _of_command.reset(token)


def set_dim(name: str) -> str:
    """Return the option that fixes an open size, with ? for its number."""
    return f"--set-dim {shlex.quote(f'{name}=')}?"


def set_dims(names: Iterable[str]) -> str:
    """Return the options that fix open sizes, each once; "" for none."""
    return " ".join(map(set_dim, dict.fromkeys(names)))


def set_input(name: str, number: str = "?") -> str:
    """Return the option that makes an input a constant."""
    return f"--set-input {shlex.quote(f'{name}=')}{number}"


def is_for_command() -> bool:
    """Return whether messages have flags."""
    return _of_command.get()


KEYWORDS = {
    "--list": ("rl.preview", "no value"),
    "--targets": ("rl.TARGETS", "no value"),
}
"""Each flag of the command: its keyword in Python, and its kind of text, one of `cli.arguments.TEXTS`, or
"no value". `options.py` adds those of its fields."""

_WORD = r"(?:'[^']*'|\"[^\"]*\"|[,.](?=\S)|[^\s'\",.;()])+"
_NUMBER = r"\d+(?=\W|$)|[NT]\b"
_VALUES = {
    "": r"[a-z]\w*(?<!\bor)(?<!\band)",
    "target": r"(?!or\b|and\b|to\b)[a-z][\w-]*",
    "pattern": rf"(?!or\b|and\b){_WORD}",
    "count": _NUMBER,
    "bytes": _NUMBER,
    "frames": _NUMBER,
    "delay": _NUMBER,
    "name": rf"(?!or\b|and\b){_WORD}",
    "size": rf"(?!or\b|and\b){_WORD}",
    "value": rf"(?!or\b|and\b){_WORD}",
    "shape": rf"(?!or\b|and\b){_WORD}",
    "stream": rf"(?=\S+=){_WORD}|AXIS",
    "file": r"FILE[\w.]*",
    "report": r"FILE[\w.]*",
    "export": r"(?:LONG|MIDDLE)\.onnx",
}
"""What the value of a flag looks like in a message, by the kind of its text."""

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")


def spelled(text: str) -> str:
    """Return a message with its options as the caller types them.

    Examples:
        >>> from rnn_lowering.flags import spelled
        >>> spelled("fix the sizes: --set-dim 'a b='? --set-dim N=4, or use --to scan")
        'fix the sizes: dims={"a b": ?, "N": 4}, or use to="scan"'
    """
    if is_for_command() or "--" not in text:
        return text
    parts, end, given = [], 0, _Given()
    for flag in _FLAG.finditer(text):
        if flag.start() < end or flag[0] not in KEYWORDS:
            continue
        between = text[end : flag.start()]
        if between != " ":
            parts.append(given.text())
            given = _Given()
            parts.append(between)
        value = re.compile(_VALUES.get(KEYWORDS[flag[0]][1], r"(?!)")).match(text, flag.end() + 1)
        given.add(flag[0], value[0] if value and text[flag.end()] == " " else "")
        end = value.end() if value and text[flag.end()] == " " else flag.end()
    return "".join([*parts, given.text(), text[end:]])


class _Given:
    """Options that follow each other: those of one keyword become one mapping."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[str]] = {}

    def add(self, flag: str, value: str) -> None:
        self._values.setdefault(KEYWORDS[flag], []).append(value)

    def text(self) -> str:
        return ", ".join(_keyword(*each, values) for each, values in self._values.items())


def _keyword(keyword: str, kind: str, values: list[str]) -> str:
    """Return an option of Python for the values of a flag; "" is a flag without one."""
    given = list(filter(None, values))
    if not given:
        return keyword + {"flag": "=True", "no flag": "=False"}.get(kind, "")
    if kind in _ENTRIES and not (kind == "stream" and len(given) == 1):
        entries = (f'"{name}": {value}' for name, value in map(_ENTRIES[kind], given))
        return f"{keyword}={{{', '.join(entries)}}}"
    if kind in ("count", "bytes", "frames", "delay"):
        return f"{keyword}={given[-1]}"
    texts = [f'"{_unquoted(value)}"' for value in given]
    return f"{keyword}={texts[0]}" if len(texts) == 1 else f"{keyword}=[{', '.join(texts)}]"


def keyword_of_flag(name: str, known: Collection[str]) -> str:
    """Return which of the known keywords a flag has whose name was given as a keyword; "" for none.

    Examples:
        >>> from rnn_lowering.flags import keyword_of_flag
        >>> keyword_of_flag("set_dim", ["dims", "join"]), keyword_of_flag("no_join", ["dims", "join"])
        ('dims', 'join=False')
    """
    flag = f"--{name.replace('_', '-')}"
    keyword, kind = KEYWORDS.get(flag) or KEYWORDS.get(flag.removesuffix("s"), ("", ""))
    if keyword.partition("=")[0] not in known:
        return ""
    return f"{keyword}=False" if kind == "no flag" else keyword


def _unquoted(text: str) -> str:
    return "".join(shlex.split(text, comments=False))


def _entry(separator: str, given: Callable[[str], str]) -> Callable[[str], tuple[str, str]]:
    def parts(text: str) -> tuple[str, str]:
        name, _, value = _unquoted(text).rpartition(separator)
        return name.replace('"', '\\"'), given(value)

    return parts


_ENTRIES = {
    "name": _entry("=", '"{}"'.format),
    "size": _entry("=", lambda size: f"({', '.join(size.split(','))})" if "," in size else size),
    "stream": _entry("=", str),
    "shape": _entry(":", lambda sizes: f"[{', '.join(sizes.split(',')) if sizes else ''}]"),
    "value": _entry("=", lambda value: f'numpy.load("{value}")' if value.endswith(".npy") else value),
}
"""By kind of text, the name and the value of an entry of a mapping."""
