"""What a Python has of a runtime: run by its path in that Python, and imported in this one.

    PYTHON probe.py DISTRIBUTION MODULE...

It imports nothing of the package, and none of the modules that it looks for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import metadata, util


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


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    absent = missing(sys.argv[2:])
    found = "" if absent else version_of(*sys.argv[1:3])
    print(json.dumps({"python": sys.version_info[:2], "missing": absent, "version": found}))
