"""Functions and layers around a recurrence, each in a net of its own as exporters write it, run in runtimes.

PYTHONPATH=tests:tests/support python -m clients.functions FOLDER CLIENT [TEXT ...]

exports those whose name has one of the texts, or all, to a folder unless they are there, lowers them as journeys
are and prints what became of those that are not right. A run counts if it is as onnxruntime has it, or as the
framework in float32 or float64: onnxruntime computes float16 in float32, and a norm of numbers that are close
together rounds them. A net whose length an exporter fixed fails at another.
"""

import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from cases import Arrays
from running import run

import rnn_lowering as rl
from clients.driving import PACKAGES, Job, drive, judge, run_python
from clients.environments import HERE, ROOT, environment, requirements
from clients.journeys import feeds, lowered

SCRIPTS = HERE / "exporters" / "functions"
HOMES = ("pytorch", "keras")
"""The environments of the exporters."""

TOGETHER = 40
"""The nets that a driver gets."""


def run_script(home: str, *arguments: str | Path) -> str:
    """Run the script of an environment; without arguments it names its nets, with a folder and names it writes."""
    own = environment(home).glob("lib/python*/site-packages")
    script = SCRIPTS / f"functions_of_{home}.py"
    return run_python(home, script, *arguments, lent=[*own, *PACKAGES, SCRIPTS.parent])


def kept() -> Path:
    """The folder of what was exported by the scripts of today."""
    texts = [path.read_bytes() for path in (*map(requirements, HOMES), *sorted(SCRIPTS.glob("*.py")))]
    folder = ROOT / "functions" / hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def exported(folder: Path, names: Iterable[str]) -> list[Path]:
    """The files of nets; there is none of what an exporter cannot write."""
    paths = [folder / f"{name}.onnx" for name in names]
    absent = [p.stem for p in paths if not (p.exists() or p.with_suffix(".error").exists())]
    for home in HOMES:
        if of_home := [name for name in absent if (home == "keras") == name.endswith(".keras")]:
            run_script(home, folder, *of_home)
    return [path for path in paths if path.with_suffix(".npz").exists()]


def measure(client: str, paths: Iterable[Path], folder: Path) -> dict[str, tuple[str, str]]:
    """What became of nets in a client, and what was said."""
    jobs: dict[str, Job] = {}
    truths: dict[str, list[Arrays]] = {}
    judged: dict[str, tuple[str, str]] = {}
    for path in paths:
        model = onnx.load(path)
        for n, feed in enumerate(feeds(path, [value.name for value in model.graph.input])):
            truth = [*_truths(path, model, n, feed)]
            try:
                if truth:
                    jobs[f"{path.stem} {n}"] = lowered(model, client, feed)
                    truths[f"{path.stem} {n}"] = truth
            except rl.RnnLoweringError as error:
                judged[path.stem] = "refused", str(error)
    got = drive(client, jobs, folder)
    for job, truth in truths.items():
        name = job.rpartition(" ")[0]
        outcomes = [judge(got[job], each, "float16" if _has_halves(jobs[job][0]) else "float32") for each in truth]
        outcome = next((each for each in outcomes if each[0] == "right"), outcomes[0])
        if judged.setdefault(name, outcome)[0] == "right":
            judged[name] = outcome
    return dict(sorted(judged.items()))


def _truths(path: Path, model: onnx.ModelProto, n: int, feed: Arrays) -> Iterator[Arrays]:
    """What onnxruntime computes of a net, and what its framework does; nothing if the net fails in the former."""
    try:
        found = run(model, feed, optimize=False)
    except Exception:  # the errors of onnxruntime have no common class
        return
    yield found
    for runs in (path.with_suffix(".npz"), path.with_suffix(".exact.npz")):
        if runs.exists():
            with np.load(runs) as held:
                yield {name: held[f"{n} out {k}"].astype(found[name].dtype) for k, name in enumerate(found)}


def _has_halves(model: onnx.ModelProto) -> bool:
    """Whether a net computes in float16, of which a last bit may differ."""
    types = (a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    return onnx.TensorProto.FLOAT16 in types


def main(arguments: list[str]) -> None:
    folder, client, *texts = arguments
    every = [name for home in HOMES for name in run_script(home).split()]
    wanted = [name for name in every if not texts or any(text in name for text in texts)]
    count: Counter[str] = Counter()
    paths = exported(Path(folder), wanted)
    for start in range(0, len(paths), TOGETHER):
        with tempfile.TemporaryDirectory() as jobs:
            for name, (outcome, said) in measure(client, paths[start : start + TOGETHER], Path(jobs)).items():
                count[outcome] += 1
                print(*([f"{client}: {name}: {outcome}: {said}"] if outcome != "right" else ()))
    print(client, dict(count))


if __name__ == "__main__":
    main(sys.argv[1:])
