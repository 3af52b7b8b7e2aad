"""What the site has besides docs/: tables, pages of the repository, and the Python reference from the docstrings.

mkdocs calls these functions while it builds (`hooks` in mkdocs.yml).
"""

import logging
import posixpath
import re
import sys
from itertools import groupby
from pathlib import Path
from textwrap import dedent

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import rnn_lowering as rl

sys.path.append(str(Path(__file__).parent))
import tables

log = logging.getLogger("mkdocs.hooks")
"""mkdocs counts its warnings; with --strict they end a build."""

ROOT = Path(__file__).parent.parent
PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "examples.md": "examples/README.md"}
"""Page of the site -> file of the repository."""

_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```|^    .*?$|`[^`]*`)|\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for page, path in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


_FIRST = ("lower_file", "lower", "verify", "inspect", "preview")


def python_reference() -> str:
    """Return what the page of the Python interface has: a table of all public names, then each in full, with what
    most programs call first.

    Raises:
        PluginError: A public name has no docstring.
    """
    names = [*_FIRST, *(name for name in rl.__all__ if name not in ("__version__", *_FIRST))]
    groups = {title: [name for name in names if _group(name) == title] for title in GROUPS}
    listed = (name for members in groups.values() for name in members)
    rows = (f"| [`{name}`][rnn_lowering.{name}] | {_first_line(name)} |" for name in listed)
    sections = ["\n".join(["## All names", "", "| name | what it is |", "|---|---|", *rows])]
    for title, members in groups.items():
        sections += [f"## {title}", *(f"::: rnn_lowering.{name}" for name in members)]
    return "\n\n".join(sections) + "\n"


GROUPS = ("Functions", "Targets", "Classes", "Errors")
"""The parts of the reference."""


def _group(name: str) -> str:
    public = getattr(rl, name)
    if not isinstance(public, type):
        return "Functions" if callable(public) else "Targets"
    return "Errors" if issubclass(public, (Exception, Warning)) else "Classes"


def _first_line(name: str) -> str:
    """Return the first sentence of a docstring."""
    public = getattr(rl, name)
    if not callable(public):
        return "Every target that `target=` accepts, by name."
    if not public.__doc__:
        raise PluginError(f"{name} has no docstring")
    return " ".join(public.__doc__.partition("\n\n")[0].split()).replace("|", "\\|")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in the tables, and let links lead to pages of the site; those to other files of the repository become the
    names of the files."""
    if len(tables.COMMENT.findall(markdown)) > 1:  # the tables get the place of the table of contents
        page.meta["hide"] = ["toc"]
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    on_site = {path: site for site, path in PAGES.items()} | {"README.md": "index.md"}

    def lead(link: re.Match[str]) -> str:
        if link["code"]:
            return link[0]
        text, target, anchor = link["text"], link["target"], link["anchor"] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", source, path)
        if path in on_site:
            return f"[{text}]({on_site[path]}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        return f"{text} (`{path}`)" if text != path else f"`{path}`"

    shown = _BLOCK.sub(_apart, _CODE_OR_LINK.sub(lead, tables.in_place(markdown)))
    return f"{shown}\n{python_reference()}" if page.file.src_uri == "python.md" else shown


_BLOCK = re.compile(r"^```.*?^```|(?<=\n\n)    [^\n]+(?:\n+    [^\n]+)*", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:# .*\n)*(rnn-lower|python3?|pip|npm|pnnx|uvx|cp|\.venv/bin/\w+|PYTHONPATH=\S+) ")


def _apart(block: re.Match[str]) -> str:
    """Return the commands of a block and what they print as blocks of their own: a button copies commands only."""
    parts = dedent(block[0]).split("\n\n")
    if not any(map(_COMMAND.match, parts)):
        return block[0]
    blocks = ((typed, "\n\n".join(each)) for typed, each in groupby(parts, lambda part: bool(_COMMAND.match(part))))
    return "\n\n".join(f"```{'sh' if typed else ' { .text .no-copy }'}\n{text}\n```" for typed, text in blocks)
