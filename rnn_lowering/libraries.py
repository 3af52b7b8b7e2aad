"""Libraries that may be absent, or that a process of the command loads at their first use; the garbage collector.

onnxruntime, which comparisons and streams run in: lowering does not need it, and some platforms have none.

onnx_ir imports sympy, a third of the time that the command takes to start, and calculates by it with symbolic
sizes, which few models need. Whoever looks into a library first loads it, and all get the same one. Before Python
3.12.2 only one thread may do so: our other threads pass bytes on, and look into no model.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader, find_spec
from types import ModuleType
from typing import Any

from rnn_lowering.errors import UnsupportedError

_INSTALL = "pip install onnxruntime"


def without_onnxruntime(what: str) -> str:
    """Return that something needs onnxruntime; "" where that is installed."""
    try:
        spec = find_spec("onnxruntime")
    except ImportError:
        spec = None
    return "" if spec else f"{what} needs onnxruntime, which is not installed ({_INSTALL})"


def onnxruntime(what: str) -> Any:
    """Return the module onnxruntime.

    Args:
        what: What needs it, for the error.

    Raises:
        UnsupportedError: It is not installed.
    """
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise UnsupportedError(f"{what} needs onnxruntime: {error}", hint=_INSTALL) from error


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


_FROZEN_AT_START = 1000
"""More objects than the interpreter itself freezes: Python 3.12 does a few hundred, others none."""

_frozen = False
"""Whether the caller was seen to have frozen objects: counting many takes long."""

_MOST_UNSEEN = 1 << 20
"""So many objects become old before all are looked at: as many as lowering 70,000 nodes leaves."""

_unseen = 0
"""How many objects have become old since then."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the garbage collector: nothing that we read or emit is garbage, and it takes a quarter of the time.

    Behind it all objects count as old, or the collector would look at each of the new ones at once. It does so when
    they are many: a model that nobody needs any more refers to itself.
    """
    global _frozen, _unseen
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            _frozen = _frozen or gc.get_freeze_count() >= _FROZEN_AT_START
            if not _frozen:  # what the caller has frozen stays so
                _unseen += gc.get_count()[0]
                gc.freeze()
                gc.unfreeze()
            gc.enable()
            if _unseen > _MOST_UNSEEN:
                gc.collect()
                _unseen = 0
