"""The documentation site: its build fails at a warning, and what a reader sees on it."""

import re
import shutil
import subprocess
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not (ROOT / ".ci" / "site").exists(), reason="only in a checkout is there a site"),
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed"),
]


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The check of the packages, in a checkout."""
    return subprocess.run([root / ".ci" / "site", folder], capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the documents beside everything else of the checkout."""
    root = tmp_path / "checkout"
    root.mkdir()
    for path in ROOT.iterdir():
        if path.name in ("docs", ".ci"):
            shutil.copytree(path, root / path.name)
        else:
            (root / path.name).symlink_to(path)
    return root


def test_a_link_that_leads_nowhere_fails(checkout: Path, tmp_path: Path) -> None:
    """Each is a warning, and any warning is an error."""
    page = checkout / "docs" / "loops.md"
    links = "[1](absent.md)\n[2](../examples/absent.py)\n[3](streaming.md#absent)"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{links}\n", encoding="utf-8")
    done = build(checkout, tmp_path / "site")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for absent in ("docs/absent.md", "examples/absent.py", "#absent"):
        assert any(absent in line for line in warnings), done.stderr
    assert f"Aborted with {len(warnings)} warnings" in done.stderr


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_what_a_function_returns_is_one_row(site: Path) -> None:
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    tables = re.findall(r"Returns:</span>.*?</table>", page, re.DOTALL)
    assert len(tables) > 3
    for table in tables:
        (row,) = re.findall(r'<tr class="doc-section-item">.*?</tr>', table, re.DOTALL)
        cells = re.findall(r"<td>(.*?)</td>", row, re.DOTALL)
        assert "<p>" not in cells[0], text(row)  # a type, not a sentence
        assert not re.search(r"[a-z]{2} [a-z]{2}", text(cells[0])), text(row)


def test_examples_of_the_reference_are_code(site: Path) -> None:
    """A block, of which the interpreter's prompts are not quotations."""
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    assert page.count("&gt;&gt;&gt; ") > 20
    assert "<blockquote>" not in page


def test_code_is_that_of_the_documents(site: Path) -> None:
    """What looks like a link in a block is none."""
    blocks = 0
    for document in (ROOT / "docs").glob("*.md"):
        page = site / ("" if document.stem == "index" else document.stem) / "index.html"
        shown = unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))
        for block in re.findall(r"^```\w+\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S):
            blocks += 1
            assert block.strip() in shown
    assert blocks > 15


def test_links_show_titles(site: Path) -> None:
    """Not the names of files."""
    links = [text for page in site.rglob("index.html") for text in links_of(page)]
    assert len(links) > 100
    assert [link for link in links if link.endswith(".md")] == []


def links_of(page: Path) -> list[str]:
    """The texts of the links in the article of a page."""
    article = re.search(r"<article.*</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"<a [^>]*>([^<]*)</a>", article[0]) if article else []
