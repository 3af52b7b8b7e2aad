"""What a Python has of a runtime: run by its path in that Python, and imported in this one.

    PYTHON probe.py DISTRIBUTION MODULE...

It imports nothing of the package, and none of the modules that it looks for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import metadata, util
from typing import Any


def missing(modules: Sequence[str]) -> list[str]:
    """Return those modules that cannot be found."""
    return [name for name in modules if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):  # its package is absent, or is a module without a specification
        return False


def version_of(distribution: str, module: str) -> str:
    """Return the version of a distribution, else of whatever has the module; "of unknown version" without any."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        pass
    others = metadata.packages_distributions().get(module.partition(".")[0], [])
    return metadata.version(others[0]) if others else "of unknown version"


def look(distribution: str, *modules: str) -> dict[str, Any]:
    """Return the version of this Python, which of the modules are missing, and the version of the distribution."""
    absent = missing(modules)
    version = "" if absent else version_of(distribution, modules[0])
    return {"python": sys.version_info[:2], "missing": absent, "version": version}


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    print(json.dumps(look(*sys.argv[1:])))
