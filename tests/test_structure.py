"""The order of the folders: no import runs against it; and names. docs/architecture.md says what is in each."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from commands import child
from paths import EXAMPLES, PACKAGE

ORDER = [
    *("flags", "errors", "types", "argument_checks", "child", "limits", "needs"),
    *("facts", "nodes", "emit", "recurrence", "targets", "options", "model"),
    *("opening", "loops", "raising", "decomposition"),
    *(
        "streaming",
        "passes",
        "files",
        "compare",
        "report",
        "file_lowering",
        "api",
        "olive",
        "cli",
        "__init__",
        "__main__",
    ),
]
"""Folders and modules at the top: each imports from those before it only."""

UNRELATED = {"nodes", "emit"}
"""Folders that do not know each other."""


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Return each (module, imported module) of the package, wherever in a module the import is."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[str, str]]:
    modules = {_name(path): path for path in PACKAGE.rglob("*.py")}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [name if name in modules else node.module for name in inner]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            yield from ((module, name) for name in found if name.startswith("rnn_lowering"))


def _name(path: Path) -> str:
    parts = ("rnn_lowering", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def _place(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_every_place_has_an_order() -> None:
    assert {_place(_name(path)) for path in PACKAGE.rglob("*.py")} == set(ORDER)


def test_no_import_runs_upward() -> None:
    upward = [(a, b) for a, b in imports() if ORDER.index(_place(b)) > ORDER.index(_place(a))]
    assert upward == []


def test_folders_that_do_not_know_each_other() -> None:
    assert [(a, b) for a, b in imports() if {_place(a), _place(b)} == UNRELATED] == []


def test_what_a_plain_lowering_imports() -> None:
    """No loops of exporters, no streams, no comparison and no report: most models need none of them."""
    code = (
        "import sys, rnn_lowering as rl; rl.lower(sys.argv[1]);"
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('rnn_lowering.')})"
    )
    done = child(EXAMPLES / "model.onnx", code=code)
    assert "passes" in done.stdout.split()
    assert {"opening", "loops", "raising", "streaming", "compare", "report"}.isdisjoint(done.stdout.split()), (
        done.stderr
    )


def test_no_import_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, name in imports():
        graph.setdefault(module, set()).add(name)
    tuple(TopologicalSorter(graph).static_order())


def test_no_two_classes_share_a_name() -> None:
    """One says of what it is, also where only an underscore would tell them apart."""
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(_name(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
