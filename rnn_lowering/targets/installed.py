"""The runtimes that are installed: which Python has that of a target, in which version, and what runs models in it.

A runtime is run by its driver in `drivers`, a program that imports nothing of this package, in the Python that the
user names, in that which a variable of the target names (`RNN_LOWERING_TRACT_PYTHON`), or in this one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rnn_lowering.errors import OptionError, RnnLoweringError, UnsupportedError
from rnn_lowering.targets.probe import look, missing, version_of
from rnn_lowering.targets.target import target_named
from rnn_lowering.types import PathLike


@dataclass(frozen=True)
class Package:
    """What has a runtime.

    Attributes:
        modules: What its driver imports, the runtime itself first.
        install: The command that installs it in the version that was measured, as the tests use it.
    """

    modules: tuple[str, ...]
    install: str

    @property
    def pins(self) -> dict[str, str]:
        """The versions that the command names, by distribution; the runtime's own is the first."""
        return dict(re.findall(r"(\S+)==(\S+)", self.install))

    @property
    def distribution(self) -> str:
        return next(iter(self.pins))

    @property
    def measured(self) -> str:
        """The version that was measured."""
        return self.pins[self.distribution]


PACKAGES: Mapping[str, Package] = {
    "onnxruntime": Package(("onnxruntime",), "pip install onnxruntime==1.32.0"),
    "tinygrad": Package(("tinygrad",), "pip install tinygrad==0.14.0 numpy"),
    "tvm": Package(("tvm", "onnx"), "pip install apache-tvm==0.27.0.post1 onnx"),
    "jaxonnxruntime": Package(
        ("jaxonnxruntime", "jax", "onnx", "absl"), "pip install jaxonnxruntime==0.3.0 jax==0.10.2 onnx absl-py"
    ),
    "onnx2torch": Package(
        ("onnx2torch", "torch", "onnx"),
        "pip install --no-deps onnx2torch==1.5.15 && pip install torch==2.13.0 onnx",
    ),
    "ncnn": Package(("ncnn", "pnnx"), "pip install ncnn==1.0.20261020 && pip install --no-deps pnnx==20261020"),
    "mnn": Package(("MNN", "_tools"), "pip install MNN==3.6.1"),
    "tract": Package(("tract",), "pip install tract==0.23.9"),
    "iree": Package(
        ("iree.compiler", "iree.runtime", "onnx"),
        "pip install iree-base-compiler==3.13.0 iree-base-runtime==3.13.0 onnx",
    ),
    "openvino": Package(("openvino",), "pip install openvino==2026.4.1"),
    "opencv": Package(("cv2",), "pip install opencv-python-headless==5.0.0.93"),
    "emx-onnx-cgen": Package(("emx_onnx_cgen", "onnx"), "pip install emx-onnx-cgen==1.4.0"),
    "litert": Package(
        ("onnx2tf", "ai_edge_litert", "onnx"),
        "pip install onnx2tf==2.6.9 ai-edge-litert==2.1.2  # Python 3.12 or later",
    ),
}
"""By target, what has its runtime; a target that is not here has no driver."""

DRIVERS = Path(__file__).with_name("drivers")
_PROBE = Path(__file__).with_name("probe.py")

_OLDEST = (3, 10)
"""The oldest Python that runs the drivers."""

_SECONDS = 60
"""The most that a look into another Python may take."""


@dataclass(frozen=True)
class Runtime:
    """A runtime that was found.

    Attributes:
        target: The target.
        version: Its version.
        python: The Python that has it.
        environment: The variables of its process.
    """

    target: str
    version: str
    python: str
    environment: Mapping[str, str] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.target} {self.version}"

    @property
    def driver(self) -> Path:
        """The program that runs models in it."""
        return DRIVERS / f"run_{self.target.replace('-', '_')}.py"

    @property
    def measured(self) -> str:
        """The version that was measured."""
        return PACKAGES[self.target].measured


def find(target: str, python: PathLike | None = None) -> Runtime:
    """Return the runtime of a target.

    Args:
        target: Its name.
        python: The Python that has it; None: that of the target's variable, or this one.

    Raises:
        UnsupportedError: The target has no driver, or its runtime is not installed there.
        OptionError: The Python does not run.
    """
    target = target_named(target).name
    package = _package(target)
    if not hasattr(os, "fork"):
        raise UnsupportedError("a runtime is run on Linux and macOS only", hint="drop --run-in-target")
    named = python or _of_variable(target)
    program, environment = _python(named)
    asked = package.distribution, *package.modules, "numpy"
    found = _probe(program, environment, asked) if named else look(*asked)
    if found["missing"]:
        raise UnsupportedError(
            f"{target} is not installed in {program}: it has no {' and no '.join(found['missing'])}",
            hint=f"{package.install}, or name a Python that has it: --target-python, or {_variable(target)}",
        )
    return Runtime(target, found["version"], program, environment)


def is_here(target: str) -> bool:
    """Whether this Python has the runtime of a target, without a look into another one."""
    return target in PACKAGES and hasattr(os, "fork") and not missing([*PACKAGES[target].modules, "numpy"])


def all_found() -> dict[str, str]:
    """Return the version of each runtime that is found, by target."""
    from concurrent.futures import ThreadPoolExecutor  # takes time

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        versions = dict(zip(PACKAGES, pool.map(_version, PACKAGES), strict=True))
    return {target: version for target, version in versions.items() if version}


def _version(target: str) -> str:
    if not _of_variable(target):
        return version_of(PACKAGES[target].distribution, PACKAGES[target].modules[0]) if is_here(target) else ""
    with suppress(RnnLoweringError):
        return find(target).version
    return ""


def _package(name: str) -> Package:
    if name not in PACKAGES:
        known = ", ".join(PACKAGES)
        what = "portable is no runtime" if name == "portable" else f"no driver runs models in {name}"
        raise OptionError(
            f"{what}, so the result cannot be run there",
            hint=f"add --target: one of {known}"
            if name == "portable"
            else f"drop --run-in-target; targets with a driver are {known}",
        )
    return PACKAGES[name]


def _variable(target: str) -> str:
    return f"RNN_LOWERING_{target.upper().replace('-', '_')}_PYTHON"


def _of_variable(target: str) -> str | None:
    return os.environ.get(_variable(target))


def _python(named: PathLike | None) -> tuple[str, dict[str, str]]:
    """Return the path of a Python, and the variables of its process: another one gets no modules of this one."""
    if not named:
        return sys.executable, dict(os.environ)
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    program = shutil.which(os.fspath(named))
    return os.path.abspath(program) if program else os.fspath(named), others  # drivers run in another folder


def _probe(python: str, environment: Mapping[str, str], asked: Sequence[str]) -> dict[str, Any]:
    """Return what `probe.look` finds in another Python."""
    program: list[str | Path] = [python, _PROBE, *asked]
    try:
        done = subprocess.run(
            program, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        old = tuple(found["python"]) < _OLDEST
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        code = getattr(error, "returncode", None)
        why = getattr(error, "strerror", None) or (f"exit code {code}" if code else type(error).__name__)
        raise OptionError(
            f"'{python}' does not run as Python: {why}",
            hint="give the path of an interpreter, such as VENV/bin/python",
        ) from error
    if old:
        version = ".".join(map(str, found["python"]))
        raise OptionError(f"'{python}' is Python {version}", hint="give one of 3.10 or later")
    return found
