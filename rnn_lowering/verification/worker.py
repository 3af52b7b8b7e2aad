"""Runs a model in a process of its own: a native kernel can take the whole process down with it.

Called as `python -m rnn_lowering.verification.worker FOLDER`. FOLDER/job.json holds a list of jobs, each {"model":
path, "data": folder of its external data, "optimise": bool, "groups": [[feed, ...], ...]}. Of each group the first
feed counts that the model accepts and answers with finite numbers, else the first that it accepts; its outputs go
to FOLDER/<feed>.out.npz. FOLDER/result.json holds a list, for each job {"error": text} or {"names": [...],
"groups": [{"feed": ...} or {"error": ...}, ...]}. A line "ran" goes to stdout after each group.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rnn_lowering.verification.arrays import read_arrays, write_arrays


def main(folder: Path, ran: Callable[[], None]) -> None:
    """Run the jobs in `folder`; call `ran` after each group of feeds."""
    results: list[dict[str, Any]] = []
    for job in json.loads((folder / "job.json").read_text()):
        try:
            results.append(_run(job, folder, ran))
        except Exception as error:  # whatever onnxruntime raises belongs in the result
            results.append({"error": _one_line(error)})
    (folder / "result.json").write_text(json.dumps(results))


def _run(job: dict[str, Any], folder: Path, ran: Callable[[], None]) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", job["data"])
    if not job["optimise"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = Path(job["model"]).read_bytes()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    groups = []
    for group in job["groups"]:
        groups.append(_run_group(session, folder, group))
        ran()
    return {"names": names, "groups": groups}


def _run_group(session: Any, folder: Path, group: list[str]) -> dict[str, str]:
    outcome = {"error": "no input to try"}
    for feed in group:
        inputs = read_arrays(folder / feed)
        try:
            outputs = session.run(None, inputs)
        except Exception as error:
            outcome = outcome if "feed" in outcome else {"error": _one_line(error)}
            continue
        finite = all(np.isfinite(part).all() for part in _flat(outputs) if part.dtype.kind == "f")
        if finite or "feed" not in outcome:
            outcome = {"feed": feed}
            flat = {f"{n}:{k}": part for n, value in enumerate(outputs) for k, part in enumerate(_flat(value))}
            write_arrays(folder / f"{feed}.out.npz", flat)
        if finite:
            break
    return outcome


def _flat(value: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays in an output: a tensor, a sequence or a map."""
    if isinstance(value, dict):
        return [np.array(list(value)), np.array(list(value.values()))]
    if isinstance(value, list):
        return [part for item in value for part in _flat(item)]
    array = np.asarray(value)
    return [array.astype(str) if array.dtype == object else array]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


if __name__ == "__main__":
    main(Path(sys.argv[1]), lambda: print("ran", flush=True))
