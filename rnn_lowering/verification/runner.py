"""Running models in onnxruntime, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnn_lowering.types import Array
from rnn_lowering.verification.arrays import read_arrays, write_arrays

Outputs = dict[str, Array]
Ran = Callable[[], None]
"""Called after each run, in the process of the caller."""


class SessionError(Exception):
    """onnxruntime does not load the model, or its process died (`crashed`)."""

    def __init__(self, reason: str, crashed: bool = False) -> None:
        self.crashed = crashed
        super().__init__(reason)


@dataclass(frozen=True)
class Session:
    """A model as it is to be run.

    Attributes:
        model: Path of the model.
        data: Folder of its external data.
        scratch: Folder for what passes between the processes.
        optimise: Whether onnxruntime optimises the graph.
    """

    model: Path
    data: Path
    scratch: Path
    optimise: bool = True

    def run(self, groups: Sequence[Sequence[str]], ran: Ran = lambda: None) -> dict[str, Any]:
        """Run groups of feeds, files of `scratch`; of each the first counts that the model takes and answers with
        finite numbers, else the first that it takes.

        Args:
            groups: Names of the files, as `write_feed` gives them.
            ran: Called after each group.

        Returns:
            {"names": [...], "groups": [{"feed": name} or {"error": text}, ...]}.

        Raises:
            SessionError: The model does not load, or the process died.
        """
        (outcome,) = run_all([(self, groups)], ran)
        if "error" in outcome:
            raise SessionError(outcome["error"])
        return outcome

    def outputs(self, feed: str) -> Outputs:
        """Read the outputs of the last run of a feed, by "number of the output:number of its part"."""
        return read_arrays(self.scratch / f"{feed}.out.npz")


def run_all(
    jobs: Sequence[tuple[Session, Sequence[Sequence[str]]]], ran: Ran = lambda: None
) -> list[dict[str, Any]]:
    """Run several sessions of one scratch folder in one process, as `Session.run` does; a model that does not load
    gives {"error": text}.

    Raises:
        SessionError: The process died.
    """
    scratch = jobs[0][0].scratch
    described = [
        {"model": str(s.model), "data": str(s.data), "optimise": s.optimise, "groups": groups} for s, groups in jobs
    ]
    (scratch / "job.json").write_text(json.dumps(described))
    result = scratch / "result.json"
    result.unlink(missing_ok=True)
    code = _work(scratch, ran)
    if not result.exists():
        raise SessionError(f"its process died (exit {code})", crashed=True)
    outcomes: list[dict[str, Any]] = json.loads(result.read_text())
    return outcomes


def _work(scratch: Path, ran: Ran) -> int:
    """Run the jobs in a folder in a process, which ends with this call at the latest; return its exit code."""
    command = [sys.executable, "-m", "rnn_lowering.verification.worker", str(scratch)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=pipe, stderr=nowhere, env=_environment()) as process:
        try:
            for line in process.stdout or ():
                if line.endswith(b"ran\n"):
                    ran()
        except BaseException:
            process.kill()
            raise
    return process.returncode


def write_feed(scratch: Path, name: str, feed: Mapping[str, Array]) -> str:
    """Write the inputs of a run; return the name that `Session.run` takes."""
    write_arrays(scratch / name, feed)
    return name


def _environment() -> dict[str, str]:
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *inherited])}
