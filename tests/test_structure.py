"""The order of the folders: no import runs against it; and names. docs/architecture.md says what is in each."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from commands import child
from paths import EXAMPLES, PACKAGE

CORE = [
    *("flags", "errors", "types", "argument_checks", "option_texts", "libraries", "child", "limits"),
    *("facts", "nodes", "emit", "recurrence", "targets", "options", "model", "passes"),
]
"""Folders and modules that every lowering needs: each imports from those before it only."""

ANNEXES = {
    "attention": ("causal_conv", "chunks", "references"),
    "loops": ("door", "stage"),
    "opening": ("lone_export", "open_dims"),
    "streaming": ("metadata", "stage"),
    "decomposition": ("adaptations", "stage"),
    "files": ("atomic", "data_folders", "external_data", "one_file", "reading", "scratch"),
    "compare": ("float64.node_reference",),
}
"""What else can be done to a model, and the doors of each room: the modules of it that other rooms import."""

FRONT = ["report", "file_lowering", "api", "olive", "cli", "__init__", "__main__"]
"""What users call."""

UNRELATED = {"nodes", "emit"}
"""Folders that do not know each other."""


@dataclass(frozen=True)
class Import:
    """An import of the package.

    Attributes:
        module, name: The module that imports, and the one that it imports.
        late: Whether it is in a function.
    """

    module: str
    name: str
    late: bool

    @property
    def rooms(self) -> tuple[str, str]:
        return _place(self.module), _place(self.name)


@cache
def imports() -> tuple[Import, ...]:
    """Return what the modules of the package import of it, but for types."""
    return tuple(_imports())


def _imports() -> Iterator[Import]:
    modules = {_name(path): path for path in PACKAGE.rglob("*.py")}
    for module, path in modules.items():
        for node, late in _nodes(ast.parse(path.read_text(encoding="utf-8")), late=False):
            found: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [name if name in modules else node.module for name in inner]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            yield from (Import(module, name, late) for name in found if name.startswith("rnn_lowering"))


def _nodes(parent: ast.AST, *, late: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield what is in a part of a module, and whether it is in a function; not what type checkers read only."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node, late
        yield from _nodes(node, late=late or isinstance(node, ast.FunctionDef))


def _name(path: Path) -> str:
    parts = ("rnn_lowering", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def _place(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_every_place_has_an_order() -> None:
    places = {_place(_name(path)) for path in PACKAGE.rglob("*.py")}
    assert places == {*CORE, *ANNEXES, *FRONT}


def test_the_core_is_in_order() -> None:
    of_core = [each for each in imports() if {*each.rooms} <= {*CORE}]
    assert [each for each in of_core if CORE.index(each.rooms[1]) > CORE.index(each.rooms[0])] == []


def test_the_core_imports_a_room_when_it_needs_it() -> None:
    leaving = [each for each in imports() if each.rooms[0] in CORE and each.rooms[1] not in CORE]
    leaving = [each for each in leaving if not each.name.endswith(".options")]  # which `Lowering` is made of
    assert [each for each in leaving if not each.late or each.rooms[1] in FRONT] == []


def test_rooms_meet_at_their_doors() -> None:
    entering = [each for each in imports() if each.rooms[1] in ANNEXES and each.rooms[0] not in FRONT]
    entering = [each for each in entering if each.rooms[0] != each.rooms[1]]
    doors = {room: ("options", *names) for room, names in ANNEXES.items()}
    assert [each for each in entering if each.name.split(".", 2)[2] not in doors[each.rooms[1]]] == []


def test_a_proof_stands_alone() -> None:
    """It shares no code with what it proves; one module of it knows the nodes, and one the Loops."""
    proof, door = "rnn_lowering.compare.proof", "rnn_lowering.compare.proof.of_nodes"
    know = door, f"{proof}.of_loops"
    inner = [each for each in imports() if each.module.startswith(proof) and each.module not in know]
    assert {each.name for each in inner if not each.name.startswith(proof)} == {"rnn_lowering.types"}
    outer = [each for each in imports() if not each.module.startswith(proof) and each.name.startswith(proof)]
    assert {each.name for each in outer} == {door}


def test_no_room_imports_what_users_call() -> None:
    assert [each for each in imports() if each.rooms[1] in FRONT and each.rooms[0] not in FRONT] == []


def test_folders_that_do_not_know_each_other() -> None:
    assert [each for each in imports() if {*each.rooms} == UNRELATED] == []


def test_what_a_plain_lowering_imports() -> None:
    """No annex but its options, and no report: most models need none of them."""
    code = (
        "import sys, rnn_lowering as rl; rl.lower(sys.argv[1]);"
        "print(*(name for name in sys.modules if name.startswith('rnn_lowering.')))"
    )
    done = child(EXAMPLES / "model.onnx", code=code)
    found = [name.split(".")[1:] for name in done.stdout.split()]
    assert ["passes", "nodes"] in found, done.stderr
    entered = {room for room, *inner in found if inner and inner != ["options"]}
    assert entered <= {*CORE, "files"}


def test_no_import_circle() -> None:
    graph: dict[str, set[str]] = {}
    for each in imports():
        if not each.late:
            graph.setdefault(each.module, set()).add(each.name)
    tuple(TopologicalSorter(graph).static_order())


def test_no_two_classes_share_a_name() -> None:
    """One says of what it is, also where only an underscore would tell them apart."""
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^ *class (\w+)[(:]", path.read_text(encoding="utf-8"), re.MULTILINE):
            homes.setdefault(name.lstrip("_"), []).append(_name(path))
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_folders_are_small() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert {folder: count for folder, count in Counter(path.parent for path in modules).items() if count > 14} == {}
