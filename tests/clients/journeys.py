"""Nets as exporters write them, lowered as the documents say and run in runtimes, at two lengths where one is open.

PYTHONPATH=tests:tests/support python -m clients.journeys [CLIENT ...]    measures them

A journey is NET.EXPORTER: see exporters/journeys/. The truth is what onnxruntime computes of the export. What is
exported stays in .clients/ until a script or a version changes.
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
from onnx import numpy_helper
from running import run

import rnn_lowering as rl
from clients.driving import PACKAGES, Job, drive, judge, run_python
from clients.environments import CLIENTS, HERE, ROOT, environment, make, requirements, version

OPEN = ("tract", "openvino")
"""The clients for which the documents lower without sizes."""

SAMPLED = (*OPEN, "opencv", "mnn", "ncnn")
"""Those in which some journeys are run each time: the others compile or convert each for long."""

RUNTIMES = (*SAMPLED, "tvm", "litert")
"""All: every journey is right there, or refused with what to do."""

EXPORTERS = {
    "older": "PyTorch, `dynamo=False`",
    "dynamo": "PyTorch, open axes",
    "fixed": "PyTorch, fixed axes",
    "keras": "Keras",
    "int8": "`quantize_dynamic`",
    "static": "`quantize_static`",
}
SCRIPTS = HERE / "exporters" / "journeys"
HOMES = ("pytorch", "keras")
"""The environments of the exporters."""

INTEGERS = 0.03
"""How far floats may be from integers that onnxruntime computes."""

SECONDS = 180
"""The most that a run may take: TVM and onnx2tf need half a minute of two free cores for some nets."""

ADVICE = re.compile(r'(dequantize)=True|set_inputs=\{"([^"]+)"|fix the (sizes)')
STORED = HERE / "outcomes_of_journeys.json"


def exported(journeys: Iterable[str]) -> list[Path]:
    """The files of journeys, exported unless they were before."""
    paths = attempted(journeys)
    assert {error.name: error.read_text() for path in paths if (error := _error(path)).exists()} == {}
    return paths


def attempted(journeys: Iterable[str]) -> list[Path]:
    """The same; there is no file of what its exporter cannot write, but one that says why."""
    wanted: dict[str, list[str]] = {}
    for journey in journeys:
        wanted.setdefault("keras" if journey.endswith(".keras") else "pytorch", []).append(journey)
    return [path for home, of_home in wanted.items() for path in _exported(home, of_home)]


def _exported(home: str, journeys: list[str]) -> list[Path]:
    folder = ROOT / "journeys" / _digest(home)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{journey}.onnx" for journey in journeys]
    with FileLock(folder / "lock"):
        written = [path for path in paths if path.with_suffix(".npz").exists() or _error(path).exists()]
        if absent := [path.stem for path in paths if path not in written]:
            _run_script(home, folder, *absent)
    return paths


def _error(path: Path) -> Path:
    return path.with_suffix(".error")


def names(home: str) -> list[str]:
    """All journeys that an environment exports."""
    return _run_script(home).split()


def _run_script(home: str, *arguments: str | Path) -> str:
    own = environment(home).glob("lib/python*/site-packages")
    script = SCRIPTS / f"journeys_of_{home}.py"
    return run_python(home, script, *arguments, lent=[*own, *PACKAGES, SCRIPTS.parent])


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
    has_sizes = client not in OPEN
    while True:
        constant = options.get("set_inputs", {})
        left = {name: array for name, array in feed.items() if name not in constant}
        shapes = {name: list(array.shape) for name, array in left.items()} if has_sizes else None
        try:
            with warnings.catch_warnings(action="ignore"):
                return rl.lower(model, target=client, input_shapes=shapes, **options), left
        except rl.RnnLoweringError as error:
            advice = ADVICE.search(str(error))
            dequantize, name, sizes = advice.groups() if advice else ("", "", "")
            if dequantize and not options.get("dequantize"):
                options["dequantize"] = True
            elif name in left:
                options["set_inputs"] = constant | {name: feed[name]}
            elif sizes and not has_sizes:
                has_sizes = True
            else:
                raise


def measure(client: str, paths: Iterable[Path], folder: Path, times: int = 1) -> dict[str, tuple[str, str]]:
    """What became of journeys in a client, where each is loaded and run so many times, and what was said."""
    jobs: dict[str, Job] = {}
    truths: dict[str, Arrays] = {}
    judged: dict[str, tuple[str, str]] = {}
    steps: dict[str, float] = {}
    for path in paths:
        model = onnx.load(path)
        steps[path.stem] = _step(model)
        try:
            for n, feed in enumerate(feeds(path, [value.name for value in model.graph.input])):
                new = lowered(model, client, feed)
                truths[f"{path.stem} {n}"] = run(model, feed, optimize=False)
                jobs |= {f"{path.stem} {n} {time}": new for time in range(times)}
        except rl.RnnLoweringError as error:
            judged[path.stem] = "refused", str(error)
    got = drive(client, jobs, folder, seconds=SECONDS)
    for job in jobs:
        run_of, _, _ = job.rpartition(" ")
        journey, _, _ = run_of.rpartition(" ")
        outcome = _judged(got[job], truths[run_of], steps[journey])
        if judged.setdefault(journey, outcome)[0] == "right":
            judged[journey] = outcome
    return dict(sorted(judged.items()))


def _judged(got: Arrays | str, expected: Arrays, step: float) -> tuple[str, str]:
    outcome, said = judge(got, expected)
    if outcome == "wrong" and not isinstance(got, str):
        near = all(
            got[name].shape == array.shape and np.allclose(got[name], array, rtol=step and INTEGERS, atol=step)
            for name, array in expected.items()
        )
        return ("right", "") if near else (outcome, said)
    return outcome, said


def _step(model: onnx.ModelProto) -> float:
    """How far the outputs of a model may be, 0 if it is not quantized: a step of those that are integers."""
    if not any("Quantize" in node.op_type for node in model.graph.node):
        return 0.0
    returned = {value.name for value in model.graph.output}
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    last = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.output[0] in returned]
    return max([INTEGERS, *(1.01 * float(tensors[node.input[1]]) for node in last)])


def stored() -> dict[str, Any]:
    """By client: version, date and outcomes."""
    read: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return read


def table(held: Mapping[str, Any]) -> str:
    """The table as Markdown: right, refused, and neither."""
    columns = ["runtime", *EXPORTERS.values(), "measured", "exports run"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for client in (client for client in RUNTIMES if client in held):
        entry = held[client]
        cells = [f"{CLIENTS[client].title} {entry['version']}"]
        for exporter in EXPORTERS:
            count = Counter(what for name, what in entry["outcomes"].items() if name.endswith(f".{exporter}"))
            other = count.total() - count["right"] - count["refused"]
            cells.append(f"{count['right']} / {count['refused']} / {other}")
        lines.append(f"| {' | '.join([*cells, entry['date'], str(len(entry['outcomes']))])} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure the clients named, or all; 1 where one is absent."""
    held, absent = stored(), [*filter(None, map(make, HOMES))]
    every = [] if absent else attempted(name for home in HOMES for name in names(home))
    paths = [path for path in every if not _error(path).exists()]
    for client in (arguments or RUNTIMES) if paths else []:
        if reason := make(client):
            absent.append(reason)
            continue
        with tempfile.TemporaryDirectory() as folder:
            judged = measure(client, paths, Path(folder))
        outcomes = {name: outcome for name, (outcome, _) in judged.items()}
        held[client] = {"version": version(client), "date": date.today().isoformat(), "outcomes": outcomes}
        print(*(f"{client}: {name}: {what}" for name, what in judged.items() if what[0] != "right"), sep="\n")
        STORED.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
    print("\n".join([table(held), *absent]))
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
