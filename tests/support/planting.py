"""Faults planted in the package, in this process."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from paths import PACKAGE


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs once in a module of the package, replaced by `new`."""

    name: str
    module: str
    old: str
    new: str

    @property
    def source(self) -> str:
        """The module with the fault."""
        source = (PACKAGE / f"{self.module}.py").read_text()
        assert source.count(self.old) == 1, "the mutant no longer applies"
        return source.replace(self.old, self.new)

    @property
    def imported_as(self) -> str:
        return f"rnn_lowering.{self.module.replace('/', '.')}"


class _Loader(SourceFileLoader):
    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.imported_as, str(PACKAGE / f"{mutant.module}.py"))
        self._source = mutant.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.imported_as:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(self._mutant))


@contextmanager
def planted(mutant: Mutant) -> Iterator[ModuleType]:
    """Import the package anew with a fault; the one that was imported comes back at the end."""

    def take_out() -> dict[str, ModuleType]:
        names = [n for n in sys.modules if n == "rnn_lowering" or n.startswith("rnn_lowering.")]
        return {name: sys.modules.pop(name) for name in names}

    finder = _Finder(mutant)
    before = take_out()
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module("rnn_lowering")
    finally:
        sys.meta_path.remove(finder)
        take_out()
        sys.modules.update(before)
