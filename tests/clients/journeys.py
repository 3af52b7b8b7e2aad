"""Nets as exporters write them, lowered as the documents say and run in runtimes, at two lengths where one is open.

PYTHONPATH=tests:tests/support python -m clients.journeys [CLIENT ...]    measures, and writes the table
PYTHONPATH=tests:tests/support python -m clients.journeys --stored        writes it from what is stored

A journey is NET.EXPORTER: see exporters/journeys/. The truth is what onnxruntime computes of the export. The exports
are kept in .clients/ until a script or a version changes.
"""

import hashlib
import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from filelock import FileLock
from running import run

import rnn_lowering as rl
from clients.driving import PACKAGES, Job, drive, judge, run_python
from clients.environments import CLIENTS, HERE, ROOT, environment, make, requirements, version

OPEN = ("tract", "openvino")
"""The clients for which the documents lower without sizes."""

NONE_FAILS = (*OPEN, "opencv", "mnn")
"""Those in which every journey is right, or refused with what to do."""

RUNTIMES = (*NONE_FAILS, "tvm", "ncnn", "litert")
EXPORTERS = {
    "older": "PyTorch, `dynamo=False`",
    "dynamo": "PyTorch, open axes",
    "fixed": "PyTorch, fixed axes",
    "keras": "Keras",
    "int8": "`quantize_dynamic`",
    "static": "`quantize_static`",
}
SCRIPTS = HERE / "exporters" / "journeys"
HOMES = {"keras": "keras"}
"""An exporter -> its environment, where it is not that of PyTorch."""

INTEGERS = 0.03
"""How far floats may be from integers that onnxruntime computes dynamically."""

ADVICE = re.compile(r'(dequantize)=True|set_inputs=\{"([^"]+)"')
STORED = HERE / "outcomes_of_journeys.json"
PAGE = HERE.parents[1] / "docs" / "runtimes.md"
BEGIN = "<!-- measured: PYTHONPATH=tests:tests/support python -m clients.journeys -->"
END = "<!-- end of the journeys -->"


def exported(journeys: Iterable[str]) -> list[Path]:
    """The files of journeys, exported unless they were before."""
    wanted: dict[str, list[str]] = {}
    for journey in journeys:
        wanted.setdefault(HOMES.get(journey.rpartition(".")[2], "pytorch"), []).append(journey)
    return [path for home, names in wanted.items() for path in _exported(home, names)]


def _exported(home: str, journeys: list[str]) -> list[Path]:
    folder = ROOT / "journeys" / _digest(home)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{journey}.onnx" for journey in journeys]
    with FileLock(folder / "lock"):
        if absent := [path.stem for path in paths if not path.exists()]:
            own = environment(home).glob("lib/python*/site-packages")
            script = SCRIPTS / f"journeys_of_{home}.py"
            run_python(home, script, folder, *absent, lent=[*own, *PACKAGES, SCRIPTS.parent])
    assert {path.name: path.read_text() for path in folder.glob("*.error")} == {}
    return paths


def _digest(home: str) -> str:
    """That of what an exporter writes."""
    texts = [path.read_bytes() for path in (requirements(home), *sorted(SCRIPTS.glob("*.py")))]
    return hashlib.sha256(repr((onnx.__version__, texts)).encode()).hexdigest()[:16]


def feeds(path: Path, inputs: Iterable[str]) -> list[Arrays]:
    """The inputs of each run of a journey."""
    with np.load(path.with_suffix(".npz")) as held:
        numbers = sorted({key.split()[0] for key in held.files})
        return [{name: held[f"{n} in {name}"] for name in inputs} for n in numbers]


def lowered(model: onnx.ModelProto, client: Any, feed: Arrays) -> Job:
    """A net for a client, and its inputs; what the errors advise is done."""
    options: dict[str, Any] = {}
    while True:
        constant = options.get("set_inputs", {})
        left = {name: array for name, array in feed.items() if name not in constant}
        shapes = None if client in OPEN else {name: list(array.shape) for name, array in left.items()}
        try:
            with warnings.catch_warnings(action="ignore"):
                return rl.lower(model, target=client, input_shapes=shapes, **options), left
        except rl.RnnLoweringError as error:
            advice = ADVICE.search(str(error))
            if advice and advice[1] and advice[1] not in options:
                options[advice[1]] = True
            elif advice and advice[2] in left:
                options["set_inputs"] = constant | {advice[2]: feed[advice[2]]}
            else:
                raise


def measure(client: str, paths: Iterable[Path], folder: Path, times: int = 1) -> dict[str, tuple[str, str]]:
    """What became of journeys in a client, where each is loaded and run so many times, and what was said."""
    jobs: dict[str, Job] = {}
    truths: dict[str, Arrays] = {}
    judged: dict[str, tuple[str, str]] = {}
    for path in paths:
        model = onnx.load(path)
        new = None
        try:
            for n, feed in enumerate(feeds(path, [value.name for value in model.graph.input])):
                new = (new[0], {name: feed[name] for name in new[1]}) if new and client in OPEN else None
                new = new or lowered(model, client, feed)
                truths[f"{path.stem} {n}"] = run(model, feed, optimize=False)
                jobs |= {f"{path.stem} {n} {time}": new for time in range(times)}
        except rl.RnnLoweringError as error:
            judged[path.stem] = "refused", str(error)
    got = drive(client, jobs, folder)
    for job in jobs:
        run_of, _, _ = job.rpartition(" ")
        journey, _, _ = run_of.rpartition(" ")
        outcome = _judged(got[job], truths[run_of], journey.endswith((".int8", ".static")))
        if judged.setdefault(journey, outcome)[0] == "right":
            judged[journey] = outcome
    return dict(sorted(judged.items()))


def _judged(got: Arrays | str, expected: Arrays, is_quantized: bool) -> tuple[str, str]:
    outcome, said = judge(got, expected)
    if outcome == "wrong" and is_quantized and not isinstance(got, str) and _are_near(got, expected):
        return "right", ""
    return outcome, said


def _are_near(got: Arrays, expected: Arrays) -> bool:
    return all(
        got[n].shape == a.shape and np.allclose(got[n], a, rtol=INTEGERS, atol=INTEGERS)
        for n, a in expected.items()
    )


def stored() -> dict[str, Any]:
    """By client: version, date and outcomes."""
    read: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return read


def table(held: Mapping[str, Any]) -> str:
    """The table as Markdown: right, refused, and neither."""
    lines = [f"| runtime | {' | '.join(EXPORTERS.values())} | measured |", f"|{'---|' * (len(EXPORTERS) + 2)}"]
    for client in (client for client in RUNTIMES if client in held):
        entry = held[client]
        cells = [f"{CLIENTS[client].title} {entry['version']}"]
        for exporter in EXPORTERS:
            count = Counter(what for name, what in entry["outcomes"].items() if name.endswith(f".{exporter}"))
            other = count.total() - count["right"] - count["refused"]
            cells.append(f"{count['right']} / {count['refused']} / {other}")
        lines.append(f"| {' | '.join([*cells, entry['date']])} |")
    return "\n".join(lines)


def in_page() -> str:
    """What stands between the markers."""
    text = PAGE.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()
