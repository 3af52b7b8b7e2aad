"""Which test provokes which hint: `hints_provoked.json` names one test for each hint that the package writes.

pytest -m '' --hints FILE             # each test with its hints
python tests/support/provoked.py FILE # names a test for each hint that has none
"""

import ast
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import pytest
from paths import PACKAGE

import rnn_lowering as rl

REGISTER = Path(__file__).with_name("hints_provoked.json")
"""By hint, as the source writes it, the test that provokes it."""

_PLACES = {"refuse": 2, "unsupported": 1, "invalid": 1}
"""By method, which of its arguments is the hint, where it has no name."""

_MAY_HINT = re.compile(r"\bhint\b|\.(refuse|unsupported|invalid)\(")
"""What a line has that begins a call with a hint, or names it."""

_PACKAGE = f"{PACKAGE}{os.sep}"


@cache
def hints_in(path: str) -> dict[int, list[str]]:
    """Return the hints that calls in a module write, by line: each a text as in the source, without names and
    numbers that are put in."""
    found: dict[int, list[str]] = defaultdict(list)
    source = Path(path).read_text(encoding="utf-8")
    hinting = [n for n, line in enumerate(source.splitlines(), 1) if _MAY_HINT.search(line)]
    for statement in ast.parse(source).body if hinting else ():
        if any(statement.lineno <= n <= (statement.end_lineno or n) for n in hinting):
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and (hint := _hint(call)) is not None:
                    for n in range(call.lineno, (call.end_lineno or call.lineno) + 1):
                        found[n] += _texts(hint)
    return dict(found)


def _hint(call: ast.Call) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "hint"), None)
    place = _PLACES.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None
    return named if named is not None or place is None or len(call.args) <= place else call.args[place]


def _texts(hint: ast.expr) -> list[str]:
    """Return the text of a hint, with {} for what is put in; nothing if another place writes it."""
    if isinstance(hint, ast.IfExp):
        return [*_texts(hint.body), *_texts(hint.orelse)]
    if isinstance(hint, ast.BoolOp):
        return [text for value in hint.values for text in _texts(value)]
    if isinstance(hint, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in hint.values)]
    return [hint.value] if isinstance(hint, ast.Constant) and isinstance(hint.value, str) and hint.value else []


def all_hints() -> set[str]:
    """Return every hint that the package writes."""
    paths = map(str, PACKAGE.rglob("*.py"))
    return {text for path in paths for texts in hints_in(path).values() for text in texts}


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Yield a set that gets the hint of each error that is made in the block."""
    found: set[str] = set()
    made = rl.RnnLoweringError.__init__

    def record(error: rl.RnnLoweringError, *args: object, **options: object) -> None:
        made(error, *args, **options)  # type: ignore[arg-type]
        if error.hint:
            found.update(text for text in _of_frames(sys._getframe(1)) if _is_in(text, error.hint))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rl.RnnLoweringError, "__init__", record)
        yield found


def _of_frames(frame: FrameType | None) -> Iterator[str]:
    """Yield the hints that are written on the lines that run."""
    while frame is not None:
        if (path := frame.f_code.co_filename).startswith(_PACKAGE):
            yield from hints_in(path).get(frame.f_lineno, ())
        frame = frame.f_back


def _is_in(text: str, hint: str) -> bool:
    """Whether a hint has this text, up to the first option: those are spelled in two ways."""
    return all(part in hint for part in text.partition("--")[0].split("{}"))


@cache
def register() -> dict[str, str]:
    found: dict[str, str] = json.loads(REGISTER.read_text(encoding="utf-8"))
    return found


@cache
def expected() -> dict[str, set[str]]:
    """Return the hints that each named test must provoke."""
    tests = defaultdict(set)
    for text, test in register().items():
        tests[test].add(text)
    return tests


def is_defined(test: str) -> bool:
    """Whether there is a test function of that name; its cases are not looked at."""
    file, _, name = test.partition("::")
    path, function = PACKAGE.parent / file, name.partition("[")[0]
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")


def main(file: str) -> None:
    """Name a test for each hint that has none, of those in a file of `pytest --hints`; drop hints that are gone."""
    found: dict[str, str] = {}
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        test, texts = json.loads(line)
        found |= {text: min(test, found.get(text, test), key=lambda name: (len(name), name)) for text in texts}
    old = {text: test for text, test in register().items() if is_defined(test)}
    named = {text: old.get(text) or found.get(text, "") for text in sorted(all_hints())}
    REGISTER.write_text(json.dumps(named, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
