"""What a script of this folder says if a package or a file is missing; it is imported before all that may be."""

import argparse
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

PACKAGES = {"cv2": "opencv-python-headless", "rnn_lowering": "-e .", "tvm": "apache-tvm==0.27.0.post1"}
"""What pip calls a module, if not by its name."""
NO_FILE = ("FileNotFoundError", "ModelFileError", "NoSuchFile")
"""The errors of Python, rnn_lowering and onnxruntime."""


def what_to_type() -> str:
    """Return the commands in the docstring of the script that runs."""
    lines = map(str.strip, (sys.modules["__main__"].__doc__ or "").splitlines())
    found = [line for line in lines if line.startswith(("python ", "rnn-lower "))]
    return "\n  ".join(["type in the folder of the project:", *found])


class Parser(argparse.ArgumentParser):
    """Its errors say what to type."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {what_to_type()}\n")


def only_imported() -> NoReturn:
    """End a script that others import."""
    sys.exit(f"{Path(sys.argv[0]).name} is used by other scripts; examples/README.md says how to start those")


def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what is missing, or the traceback of another error."""
    script = Path(sys.argv[0]).name
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        print(f"{script} needs {module}: pip install {PACKAGES.get(module, module)}", file=sys.stderr)
    elif kind.__name__ in NO_FILE:
        print(f"{script}: {error}; {what_to_type()}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent:
    sys.excepthook = explain
if __name__ == "__main__":
    only_imported()
