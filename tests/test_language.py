"""Code, tests and documents are in plain modern English: words that have been replaced do not come back."""

import re
from pathlib import Path

import pytest
from paths import PACKAGE, ROOT

WORDS = {
    "spelt": r"spelt|spellings?",  # emitted as, dialect
    "likewise": r"likewise",
    "operator page": r"(?:operator|specification)(?:'s)? pages?",  # operator specification
    "stands in": r"stands in",  # is in
    "sentence that ends in of it": r"of it[.;]",
    "old verbs": r"bears|mends|hang together|brought (?:from|to) opset",
    "takes": r"(?:runtimes?|targets?|onnxruntime|checker|kernels?|operators?|nodes?|it) takes?(?! (?:\d|longer))",
    "says": r"(?:nodes?|operators?|models?|specifications?) says?",  # specifies
}
"""By name, what is not written any more, and in comments what is written instead."""

ALLOWED = {
    "spelt": ("tests/files/",),  # several spellings of one path
}
"""Where a word has another meaning."""

FILES = sorted(
    path
    for folder in (PACKAGE, ROOT / "tests", ROOT / "docs", ROOT / "examples", ROOT / "benchmarks")
    for path in folder.rglob("*")
    if path.suffix in (".py", ".md", ".j2") and path != Path(__file__)
) + sorted(ROOT.glob("*.md"))


def found(word: str, text: str) -> list[str]:
    pattern = re.compile(rf"\b(?:{WORDS[word]})" + ("" if word.startswith("sentence") else r"\b"), re.IGNORECASE)
    return [line.strip() for line in text.splitlines() if pattern.search(line)]


@pytest.mark.parametrize("word", WORDS)
def test_words_that_are_not_used(word: str) -> None:
    allowed = ALLOWED.get(word, ())
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    lines = {name: found(word, text) for name, text in texts.items() if not name.startswith(allowed)}
    assert {name: hits for name, hits in lines.items() if hits} == {}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("spelt", "an operator is spelt"),
        ("likewise", "Likewise after."),
        ("operator page", "by the operator page"),
        ("stands in", "a node stands in a graph"),
        ("sentence that ends in of it", "the name of it."),
        ("takes", "what a runtime takes"),
        ("says", "what the node says"),
    ],
)
def test_words_are_found(word: str, text: str) -> None:
    assert found(word, text) == [text]
    assert found(word, text.replace(" ", "")) == []


def test_files_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert names >= {"README.md", "docs/report.md", "rnn_lowering/api.py", "tests/cli/test_cli.py"}
