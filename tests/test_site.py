"""The documentation site: its build fails at a warning, and what a reader sees on it."""

import dataclasses
import json
import re
import shutil
import subprocess
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from browsers import headless, page_once
from paths import ROOT

import rnn_lowering as rl

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


def test_the_reference_begins_with_a_table_of_all_names(site: Path) -> None:
    """Each leads to its part of the page, in one of four groups."""
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    names = [name for name in rl.__all__ if name != "__version__"]
    (table,) = re.findall(r'<h2 id="all-names">.*?</table>', page, re.DOTALL)
    linked = re.findall(r'href="#rnn_lowering\.(\w+)"', table)
    assert sorted(linked) == sorted(names)
    assert all(f'id="rnn_lowering.{name}"' in page for name in names)
    groups = re.findall(r'<h2 id="([^"]+)"', page)
    assert groups == ["all-names", "functions", "targets", "classes", "errors"]


def test_each_error_of_a_function_is_a_row(site: Path) -> None:
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    tables = re.findall(r"Raises:</span>.*?</table>", page, re.DOTALL)
    cells = [text(cell) for table in tables for cell in re.findall(r"<tr[^>]*>\s*<td>(.*?)</td>", table, re.DOTALL)]
    assert len(cells) > 15
    assert [cell for cell in cells if not re.fullmatch(r"\w+", cell)] == []


@pytest.mark.parametrize("kind", [rl.Lowering, rl.Check])
def test_the_reference_describes_each_option(site: Path, kind: Any) -> None:
    """In a row, with the default."""
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    for field in dataclasses.fields(kind):
        (row,) = re.findall(rf'<span title="rnn_lowering.{kind.__name__}.{field.name}">.*?</tr>', page, re.DOTALL)
        assert re.search(r"\. Default: \S.* Example: \w", text(row)), field.name


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


def test_the_menu_has_the_names_of_the_pages(site: Path) -> None:
    menu = re.search(r'<nav class="md-nav md-nav--primary".*?</nav>', home(site), re.DOTALL)
    assert menu is not None
    links = re.findall(r'<a href="([^"#]*)" class="md-nav__link[^"]*">(.*?)</a>', home(site), re.DOTALL)
    named = {href: text(label) for href, label in links if not href.startswith("http")}
    assert len(named) > 18
    for href, name in named.items():
        page = (site / href / "index.html").read_text(encoding="utf-8")
        title, *_ = re.findall(r"<h1[^>]*>(.*?)<a class", page, re.DOTALL)
        assert text(title) == name


def test_the_first_page_has_a_picture_a_command_and_its_output(site: Path) -> None:
    (picture,) = re.findall(r'<img [^>]*src="([^"]*)"', home(site))
    assert (site / picture).stat().st_size > 20_000
    commands, printed = re.findall(r"<pre>.*?</pre>", home(site), re.DOTALL)
    assert "rnn-lower model.onnx " in text(commands)
    assert "verified (onnxruntime)" in text(printed)


def test_the_button_copies_commands_without_what_they_print(site: Path) -> None:
    page = (site / "getting-started" / "index.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<div class="([^"]*)highlight">(.*?)</div>', page, re.DOTALL)
    shown = [(text(code), "no-copy" in classes) for classes, code in blocks]
    printed = [code for code, is_printed in shown if "lowered 1 LSTM node" in code]
    assert printed
    assert all(is_printed == ("lowered 1 LSTM node" in code) for code, is_printed in shown)
    assert not any("rnn-lower " in code for code in printed)


def home(site: Path) -> str:
    return (site / "index.html").read_text(encoding="utf-8")


MEASURE = """<body><script>
const cut = [];
const open = (page, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.width = `${width}px`;
  frame.style.height = "900px";
  frame.onload = () => {
    for (const shown of frame.contentDocument.querySelectorAll("html, article *"))
      if (shown.clientWidth && shown.scrollWidth > shown.clientWidth + 4)
        cut.push(`${page} at ${width}: ${shown.tagName} ${shown.textContent.trim().slice(0, 60)}`);
    frame.remove();
    done();
  };
  frame.src = page;
  document.body.append(frame);
});
(async () => {
  for (const width of [1280, 700])
    for (const page of PAGES) await open(page, width);
  document.body.textContent = `measured ${PAGES.length} pages, cut: ${cut.join("; ")}.`;
})();
</script></body>"""
"""A page that opens each page of the site at two widths, and tells what is wider than its place."""


@pytest.mark.browser
@pytest.mark.long
def test_nothing_is_cut_at_the_right(site: Path, tmp_path: Path) -> None:
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("index.html"))
    (site / "measure.html").write_text(MEASURE.replace("PAGES", json.dumps(pages)), encoding="utf-8")
    shown = page_once(site, "measure.html", r"measured \d+ pages", headless(tmp_path / "profile"), 120)
    (cut,) = re.findall(r"measured \d+ pages, cut: (.*?)\.<", shown, re.DOTALL)
    assert cut == ""


def links_of(page: Path) -> list[str]:
    """The texts of the links in the article of a page."""
    article = re.search(r"<article.*</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"<a [^>]*>([^<]*)</a>", article[0]) if article else []
