"""Libraries that a process of the command loads at their first use.

onnx_ir imports sympy, a third of the time that the command takes to start, and calculates by it with symbolic
sizes, which few models need. Whoever looks into a library first loads it, and all get the same one. Before Python
3.12.2 only one thread may do so: our other threads pass bytes on, and look into no model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_LATE = ("sympy", "onnx_ir._symbolic_shapes")
"""sympy, and the module of onnx_ir that looks into it when it is loaded."""


class _LateFinder(MetaPathFinder):
    """Finds these modules where they are, and lets them be loaded late."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _LATE else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def load_late() -> None:
    """Load these libraries late in this process, except those that are loaded already."""
    if not any(isinstance(finder, _LateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LateFinder())
