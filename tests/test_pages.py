"""Errors name a section of the documentation, and it is there."""

import ast
import re
from importlib import metadata
from pathlib import Path

import onnx
import pytest
from cases import Case, model
from paths import EXAMPLES, ROOT

import rnn_lowering as rl
from rnn_lowering import errors
from rnn_lowering.cli.command import main

DOCS = ROOT / "docs"
PACKAGE = Path(rl.__file__).parent

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="only in a checkout are there documents")


def sections(page: str) -> set[str]:
    """The anchors of a page, as the site makes them of its headings."""
    titles = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def pages() -> set[str]:
    """All that an error can name: those of modules, and of classes."""
    strings = {
        node.value
        for node in ast.walk(ast.parse(Path(errors.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in strings if re.fullmatch(r"[a-z-]+\.md(#\S+)?", text)}


def test_every_section_exists() -> None:
    assert set(errors.PAGES.values()) - {""} < pages()
    for page in pages():
        name, _, section = page.partition("#")
        assert not section or section in sections(name), page


def test_every_module_with_a_page_exists() -> None:
    for name in errors.PAGES:
        path = PACKAGE.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists(), name


REFUSED = {
    "getting-started.md#sizes-and-inputs": {"to": "unroll"},
    "getting-started.md#which-form-do-i-need": {"to": "unroll", "dims": {"seq": 9}, "max_unroll": 8},
    "streaming.md#my-net-is-refused-because": {"stream": "batch"},
    "runtimes.md": {"target": "abacus"},
}


@pytest.mark.parametrize("page", REFUSED)
def test_an_error_names_its_section(page: str) -> None:
    with pytest.raises(rl.RnnLoweringError) as refused:
        rl.lower(onnx.load(EXAMPLES / "model.onnx"), **REFUSED[page])  # type: ignore[arg-type]
    assert refused.value.page == page


def test_a_wrong_node_names_what_is_supported() -> None:
    with pytest.raises(rl.InvalidNodeError) as refused:
        rl.lower(model(Case("wrong", "LSTM", {"clip": -1.0}), 17))
    assert refused.value.page == "getting-started.md#what-is-supported"


def test_the_command_names_it_in_the_same_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(EXAMPLES / "model.onnx"), str(tmp_path / "out.onnx"), "--to", "unroll"]
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" (see docs/getting-started.md#sizes-and-inputs)")


def test_it_is_an_address_once_the_package_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.metadata("rnn-lowering")
    known.add_header("Project-URL", "Documentation, https://example.org/rnn/")  # type: ignore[attr-defined]
    monkeypatch.setattr(metadata, "metadata", lambda _: known)
    assert errors.documentation("loops.md#what-is-refused") == "https://example.org/rnn/loops/#what-is-refused"
    assert errors.documentation("runtimes.md") == "https://example.org/rnn/runtimes/"
