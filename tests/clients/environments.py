"""The environment of each client, each exporter, each optimizer, and Olive, made with

    PYTHONPATH=tests:tests/support python -m clients.environments [CLIENT ...]

in .clients/ in the root of the repository, from CLIENT.txt beside this file, installed without dependencies since
one of them asks for what it does not use. A line "# npm: NAME==VERSION" there is a package of npm, whose install
scripts are not run; "# python: 3.12 3.13" names the versions of Python that a client needs. An environment is kept
until that file changes.
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from browsers import CHROMIUM
from browsers import why_absent as why_no_browser
from filelock import FileLock

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / ".clients"
PACKAGED = HERE.parents[1] / "rnn_lowering" / "targets" / "drivers"
"""The drivers that users run too, and what all drivers share."""

DRIVERS = (PACKAGED, HERE / "drivers")


@dataclass(frozen=True)
class Client:
    """A runtime.

    Attributes:
        title: Its name in the table of runtimes.
        recipe: Its section of docs/runtimes.md.
        home: The client in whose environment it runs.
        slow: Whether it needs up to a second for a node.
        refusal: What it says of an operator where it rejects every model: nothing else may be its reason.
        precision: In what it computes: whose tolerance of support/running.py its outputs have.
        by_name: Why its environment is made only where the client is named; "" for all others.
        in_extra: Whether the extra `clients` of the package installs it.
        in_browser: Whether it runs in a page: that of another client in the browser of this machine.
    """

    title: str
    recipe: str
    home: str = ""
    slow: bool = False
    refusal: str = ""
    precision: str = "float32"
    by_name: str = ""
    in_extra: bool = True
    in_browser: bool = False


ROUNDED = "each operator in float16"
LICENCE = "read its licence, which binds who installs it"
LONG = "allow 40 minutes for its tests"
NO_LICENCE = "its wheel names no licence: ask its makers"

CLIENTS = {
    "tinygrad": Client("tinygrad", "tinygrad", slow=True, refusal="is not supported"),
    "tvm": Client("TVM (Relax)", "TVM", slow=True, refusal="not supported for frontend ONNX"),
    "ncnn": Client("ncnn", "ncnn"),
    "mnn": Client("MNN", "MNN"),
    "tract": Client("tract", "tract"),
    "openvino": Client("OpenVINO (CPU)", "OpenVINO"),
    "iree": Client("IREE (CPU)", "IREE", slow=True),
    "opencv": Client("OpenCV (dnn)", "OpenCV"),
    "onnxruntime-web": Client("onnxruntime-web (wasm)", "onnxruntime-web"),
    "onnxruntime-webgpu": Client(
        "onnxruntime-web (WebGPU)", "onnxruntime-web on WebGPU", home="onnxruntime-web", in_browser=True
    ),
    "webnn": Client("onnxruntime-web (WebNN, Chromium 153)", "onnxruntime-web on WebNN", in_browser=True),
    "onnx2torch": Client("onnx2torch", "onnx2torch", in_extra=False),
    "emx-onnx-cgen": Client("emx-onnx-cgen (C)", "emx-onnx-cgen", slow=True),
    "jaxonnxruntime": Client("jaxonnxruntime", "jaxonnxruntime", slow=True, in_extra=False),
    "ezkl": Client("ezkl (fixed point)", "ezkl", precision=ROUNDED, by_name=NO_LICENCE, in_extra=False),
    "qnn": Client("QNN (HTP simulator, float16)", "QNN", precision=ROUNDED, by_name=LICENCE, in_extra=False),
    "rknn": Client(
        "RKNN (simulator, float16)", "RKNN", slow=True, precision=ROUNDED, by_name=LICENCE, in_extra=False
    ),
    "litert": Client("LiteRT (onnx2tf)", "LiteRT", in_extra=False),
    "executorch": Client("ExecuTorch (XNNPACK)", "ExecuTorch", slow=True, by_name=LONG, in_extra=False),
    "espdl": Client("ESP-DL (esp-ppq, float)", "ESP-DL", in_extra=False),
}
EXPORTERS = ("pytorch", "keras", "tf-keras", "paddle", "jax", "sklearn", "olive")
OPTIMIZERS = ("onnxslim", "onnxsim", "onnxsim-prebuilt")
OF_ONNXRUNTIME = ("basic", "extended", "transformers")
"""The optimizers that onnxruntime itself has."""

HERE_TOO = ("onnxruntime", "onnxscript", *OF_ONNXRUNTIME)
"""What is in the environment of the tests."""

NPM = "# npm: "
PYTHON = "# python: "
SECONDS = 600
"""The most that one installation may take."""

AT_A_TIME = 2
"""Installations; much of one is waiting for the network."""


def python(client: str) -> Path:
    """The interpreter of a client's environment."""
    if client in HERE_TOO:
        return Path(sys.executable)
    return environment(client) / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def environment(client: str) -> Path:
    """The folder of a client's environment."""
    return ROOT / home(client)


def home(client: str) -> str:
    """The client whose environment it is."""
    return (client in CLIENTS and CLIENTS[client].home) or client


def why_absent(client: str) -> str | None:
    """Why a client cannot be run here, None where it can.

    Raises:
        FileNotFoundError: There is no such client.
    """
    if client in HERE_TOO:
        return None
    if home(client) != client:
        return why_absent(home(client)) or (why_no_browser() if CLIENTS[client].in_browser else None)
    failed, made, wanted = _failure(client), ROOT / client / "made_from.txt", requirements(client).read_text()
    if failed.exists():
        return f"{client} could not be installed: {failed.read_text()}"
    if not made.exists() or made.read_text() != wanted:
        make_it = f"PYTHONPATH=tests:tests/support python -m clients.environments {client}"
        return f"{client} is not installed: {_by_name(client) and f'{_by_name(client)}, then '}{make_it}"
    return None


def _by_name(client: str) -> str:
    return CLIENTS[client].by_name if client in CLIENTS else ""


def make(client: str) -> str | None:
    """Make the environment of a client unless it is there; return why it is absent, None where it is not."""
    if home(client) != client:
        make(home(client))
    elif why_absent(client):
        ROOT.mkdir(exist_ok=True)
        with FileLock(ROOT / f"{client}.lock"):  # another process may be making it
            if why_absent(client):  # still
                _make(client)
    return why_absent(client)


def make_once(client: str) -> str | None:
    """Make the environment of a client unless it is made by name only, or could not be made before; see `make`."""
    tried = _failure(home(client)).exists()
    return why_absent(client) if tried or _by_name(client) else make(client)


def _make(client: str) -> None:
    shutil.rmtree(ROOT / client, ignore_errors=True)
    _failure(client).unlink(missing_ok=True)
    try:
        _run([base_of(client), "-m", "venv", "--without-pip", ROOT / client])
        # Python compiles what is imported: compiling all of it takes most of an installation.
        install: list[str | Path] = ["install", "--quiet", "--no-deps", "--no-compile", "-r", requirements(client)]
        _run([sys.executable, "-m", "pip", "--python", python(client), *install])
        if packages := of_npm(client):
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
            _run(["npm", "install", *options, ROOT / client, *packages])
            _unpack_browser(ROOT / client)
    except (subprocess.SubprocessError, OSError) as error:
        _failure(client).write_text(_reason(error))
    else:
        (ROOT / client / "made_from.txt").write_text(requirements(client).read_text())


def base_of(client: str) -> str:
    """The Python from which an environment is made: this one, unless the client names others.

    Raises:
        FileNotFoundError: There is none of the versions that it names.
    """
    named = pythons(client)
    if not named or "{}.{}".format(*sys.version_info) in named:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for each in named:
        for found in (*sorted(pyenv.glob(f"{each}.*/bin/python"), reverse=True), shutil.which(f"python{each}")):
            if found and not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
                return str(found)
    raise FileNotFoundError(f"it needs Python {' or '.join(named)}, and none is here")


def pythons(client: str) -> list[str]:
    """The versions of Python that a client names."""
    lines = requirements(client).read_text().splitlines()
    return next((line.removeprefix(PYTHON).split() for line in lines if line.startswith(PYTHON)), [])


def version(client: str) -> str:
    """The version of a client, as its requirement file pins it."""
    return pin(client).split("==")[1]


def pin(client: str) -> str:
    """The line of the requirement file that is the client itself, else the first with a version."""
    lines = [line for line in requirements(client).read_text().splitlines() if "==" in line]
    return next((line for line in lines if line.startswith(f"{client}==")), lines[0])


def of_npm(client: str) -> list[str]:
    """The packages of npm that a client needs, as npm writes them."""
    lines = requirements(client).read_text().splitlines()
    return [line.removeprefix(NPM).replace("==", "@") for line in lines if line.startswith(NPM)]


def driver(client: str) -> Path:
    """The program that runs models in a client; it needs PACKAGED in PYTHONPATH."""
    name = f"run_{client.replace('-', '_')}.py"
    return next(folder / name for folder in DRIVERS if (folder / name).exists())


def requirements(client: str) -> Path:
    """The requirement file of a client."""
    return HERE / f"{home(client)}.txt"


def _failure(client: str) -> Path:
    return ROOT / f"{client}.failed"


UNPACK = 'import("@sparticuz/chromium").then((found) => found.default.executablePath())'
"""Unpacks the browser of that package into TMPDIR."""


def _unpack_browser(environment: Path) -> None:
    """Unpack the browser of an environment, if it has one, and see whether it starts here."""
    if (environment / "node_modules" / "@sparticuz").exists():
        (environment / CHROMIUM).parent.mkdir()
        _run(["node", "-e", UNPACK], cwd=environment, TMPDIR=str(environment / CHROMIUM.parent))
        _run([environment / CHROMIUM, "--version"])


def _run(command: list[str | Path], cwd: Path | None = None, **variables: str) -> None:
    env = {**os.environ, **variables}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS, cwd=cwd, env=env)


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no reason given")


def main(arguments: list[str]) -> int:
    """Make the environments; say what became of each; 1 where one is absent."""
    p = argparse.ArgumentParser(prog="python -m clients.environments")
    p.add_argument("names", nargs="*", metavar="CLIENT", help="without one, all but those that are made by name")
    given = p.parse_args(arguments)
    every = [c for c in (*CLIENTS, *EXPORTERS, *OPTIMIZERS) if home(c) == c]
    wanted = given.names or [c for c in every if not _by_name(c)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        absent = dict(zip(wanted, pool.map(make, wanted), strict=True))
    for client, reason in absent.items():
        print(f"client {client} {version(client)}: {reason or 'ready'}")
    return int(any(absent.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
