"""The recipes of docs/runtimes.md, which run as they stand, in the environments of their clients."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
from cases import Arrays
from paths import EXAMPLES, ROOT
from running import run

from clients.environments import CLIENTS, python

RECIPES = ROOT / "docs" / "runtimes.md"


def recipe(client: str) -> tuple[list[str], list[str], str]:
    """The arguments of `rnn-lower` in a recipe, the commands after it, and its Python or JavaScript."""
    _, section = RECIPES.read_text().split(f"\n## {CLIENTS[client].recipe}\n")
    block = re.search(r"```(?:python|javascript)\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    text = section.split("\n## ")[0].split("```")[0]
    first, *commands = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    assert re.match(rf"rnn-lower model.onnx [\w-]+\.onnx --target {client}\b", first)
    return first.split()[1:], commands, block[1] if block else ""


def example(folder: Path) -> Arrays:
    """Put the model of the documents and an input into a folder; return its outputs."""
    model = onnx.load(EXAMPLES / "model.onnx")
    X = np.random.default_rng(0).random((16, 1, 80), np.float32)  # that of getting-started.md
    onnx.save(model, folder / "model.onnx")
    np.save(folder / "X.npy", X)
    return run(model, {"X": X})


def run_commands(client: str, commands: list[str], folder: Path, **variables: str) -> str:
    """Run commands as they are typed, with the programs of a client's environment first; return what they print."""
    path = os.pathsep.join([str(python(client).parent), os.environ["PATH"]])
    printed = ""
    for command in commands:
        done = subprocess.run(
            command,
            shell=True,
            check=True,
            cwd=folder,
            env={**os.environ, "PATH": path, **variables},
            timeout=200,
            stdout=subprocess.PIPE,
            text=True,
        )
        printed += done.stdout
    return printed
