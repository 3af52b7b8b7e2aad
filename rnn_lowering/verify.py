"""Whether two models compute the same: both run in onnxruntime, in processes of their own, on random inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.feeds import Array, Feed, candidates
from rnn_lowering.spec import GATES

_TOLERANCES = {
    "float32": (1e-4, 1e-5),
    "float64": (1e-9, 1e-10),
    "float16": (1e-2, 2e-3),
    "bfloat16": (8e-2, 4e-2),
}


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal: |a - b| <= atol + rtol * |b|. None: by the type of the output (float32: 1e-4, 1e-5;
    float64: 1e-9, 1e-10; float16: 1e-2, 2e-3; bfloat16: 8e-2, 4e-2; others: exactly equal)."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        rtol, atol = _TOLERANCES.get(dtype.name, (0.0, 0.0))
        return rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol


@dataclass(frozen=True)
class OutputCheck:
    """One output over all runs."""

    name: str
    max_abs: float
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        status: "verified", "failed", or "not verified" where the original could not be run.
        method: How it was compared.
        runs: How many runs were compared.
        outputs: One entry per output.
        reason: Why it failed or was not possible.
    """

    status: str
    method: str = "onnxruntime"
    runs: int = 0
    outputs: tuple[OutputCheck, ...] = field(default=())
    reason: str = ""

    def __bool__(self) -> bool:
        return self.status == "verified"

    @property
    def max_abs(self) -> float:
        """The largest absolute difference of any output in any run."""
        return max((o.max_abs for o in self.outputs), default=0.0)

    def __str__(self) -> str:
        if self.status == "verified":
            return f"verified in onnxruntime: {self.runs} runs, largest difference {self.max_abs:.2g}"
        if self.status == "failed":
            return f"verification failed: {self.reason}"
        return f"not verified: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `json` can write."""
        return asdict(self)


def verify(
    original: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    lowered: onnx.ModelProto | ir.Model | str | os.PathLike[str],
    *,
    runs: int = 3,
    seed: int = 0,
    tolerance: Tolerance | None = None,
    feeds: Sequence[Mapping[str, Array]] | None = None,
) -> Verification:
    """Run both models in onnxruntime and compare all outputs.

    Args:
        original, lowered: Models or paths. Each runs in a process of its own.
        runs: How many runs with random inputs; each has other sizes for dynamic dimensions.
        seed: Seed of the inputs.
        tolerance: What counts as equal; NaN must meet NaN.
        feeds: Inputs to use instead of random ones.

    Returns:
        A result that is true only when every run of both models succeeded and agreed.
    """
    with tempfile.TemporaryDirectory(prefix="rnn-lower-") as scratch:
        folder = Path(scratch)
        first, second = (_as_file(m, folder / f"model{n}.onnx") for n, m in enumerate((original, lowered)))
        groups = _write_feeds(first, second, folder, runs, seed, feeds)
        return _run_both(first, second, groups, folder, tolerance or Tolerance(), all_must_run=feeds is not None)


def _run_both(
    original: Path,
    lowered: Path,
    groups: list[list[str]],
    folder: Path,
    tolerance: Tolerance,
    *,
    all_must_run: bool,
) -> Verification:
    watching, count = _watching(original, folder)
    before = _run(watching, original.parent, count, groups, folder)
    optimise = before.get("died") is None
    if not optimise:
        before = _run(watching, original.parent, count, groups, folder, optimise=False)
    if "error" in before:
        return Verification("not verified", reason=f"onnxruntime cannot run the original: {before['error']}")
    accepted = [[g["feed"]] for g in before["groups"] if "feed" in g]
    if not accepted or (all_must_run and len(accepted) < len(groups)):
        error = next((g["error"] for g in before["groups"] if "error" in g), "no runs were asked for")
        return Verification("not verified", reason=f"onnxruntime cannot run the original: {error}")
    expected = {feed: _outputs(folder, feed) for (feed,) in accepted}
    after = _run(lowered, lowered.parent, count, accepted, folder, optimise=optimise)
    errors = [after] if "error" in after else [g for g in after["groups"] if "error" in g]
    if errors:
        return Verification("failed", reason=f"onnxruntime cannot run the lowered model: {errors[0]['error']}")
    if before["names"] != after["names"]:
        return Verification("failed", reason=f"outputs {before['names']} became {after['names']}")
    pairs = [(expected[feed], _outputs(folder, feed)) for (feed,) in accepted]
    return _compare(before["names"], pairs, tolerance)


def _watching(model: Path, folder: Path) -> tuple[Path, int]:
    """Write the model with what enters its recurrent nodes as further outputs, so that inputs can be chosen that
    are finite there (native kernels do not pass on NaN); return its path and the number of true outputs."""
    proto = onnx.load(model, load_external_data=False)
    count = len(proto.graph.output)
    known = {v.name for v in (*proto.graph.output, *proto.graph.input)} | {t.name for t in proto.graph.initializer}
    for node in proto.graph.node:
        for name in (*node.input[:1], *node.input[5:7]) if node.op_type in GATES else ():
            if name and name not in known:
                known.add(name)
                proto.graph.output.append(onnx.ValueInfoProto(name=name))
    path = folder / "watching.onnx"
    onnx.save(proto, path)
    return path, count


def _as_file(model: onnx.ModelProto | ir.Model | str | os.PathLike[str], path: Path) -> Path:
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, path)
    elif isinstance(model, ir.Model):
        ir.save(model, path)
    else:
        return Path(model).resolve()
    return path


def _write_feeds(
    first: Path,
    second: Path,
    folder: Path,
    runs: int,
    seed: int,
    feeds: Sequence[Mapping[str, Array]] | None,
) -> list[list[str]]:
    """Write the inputs of all runs; return their files, alternatives of one run together."""
    original, lowered = (onnx.load(path, load_external_data=False) for path in (first, second))
    groups: list[list[Feed]] = (
        [[dict(feed)] for feed in feeds]
        if feeds is not None
        else [list(candidates(original, run, seed, lowered)) for run in range(runs)]
    )
    files = []
    for run, group in enumerate(groups):
        files.append([f"feed{run}-{n}.npz" for n in range(len(group))])
        for name, feed in zip(files[-1], group, strict=True):
            np.savez(folder / name, allow_pickle=False, **feed)
    return files


def _run(
    model: Path, data: Path, outputs: int, groups: list[list[str]], folder: Path, *, optimise: bool = True
) -> dict[str, Any]:
    """Run the worker; its result has "died" where onnxruntime took the process down."""
    job = {"model": str(model), "data": str(data), "outputs": outputs, "optimise": optimise, "groups": groups}
    (folder / "job.json").write_text(json.dumps(job))
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "rnn_lowering.worker", str(folder)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *_inherited_path()])},
        check=False,
    )
    if not result.exists():
        return {"error": f"its process died (exit {done.returncode})", "died": True}
    outcome: dict[str, Any] = json.loads(result.read_text())
    return outcome


def _inherited_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


def _outputs(folder: Path, feed: str) -> dict[str, Array]:
    with np.load(folder / f"{feed}.out.npz") as held:
        return dict(held)


def _compare(
    names: list[str], pairs: list[tuple[dict[str, Array], dict[str, Array]]], tol: Tolerance
) -> Verification:
    checks = []
    for n, name in enumerate(names):
        parts = [
            _compare_arrays(a.get(key), b.get(key), tol)
            for a, b in pairs
            for key in sorted(a.keys() | b.keys())
            if key.split(":")[0] == str(n)
        ]
        reason = next((text for _, text in parts if text), "")
        checks.append(OutputCheck(name, max((d for d, _ in parts), default=0.0), not reason, reason))
    wrong = [c for c in checks if not c.passed]
    reason = "; ".join(f"output '{c.name}': {c.reason}" for c in wrong)
    return Verification("failed" if wrong else "verified", runs=len(pairs), outputs=tuple(checks), reason=reason)


def _compare_arrays(a: Array | None, b: Array | None, tol: Tolerance) -> tuple[float, str]:
    """Return the largest absolute difference and, where the arrays are not equal enough, why."""
    if a is None or b is None:
        return np.inf, "a part is missing"
    if a.dtype != b.dtype or a.shape != b.shape:
        return np.inf, f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
    rtol, atol = tol.of(a.dtype)
    if a.dtype.kind not in "f" and a.dtype.name not in _TOLERANCES:
        wrong = int((a != b).sum())
        return float(wrong > 0), f"{wrong} of {a.size} elements differ" if wrong else ""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return np.inf, "NaN in different places"
    with np.errstate(invalid="ignore"):
        difference = np.where((x == y) | np.isnan(x), 0.0, np.abs(x - y))
    bad = difference > atol + rtol * np.abs(x)
    largest = float(difference.max(initial=0.0))
    return (
        largest,
        f"largest difference {largest:.2g}, {int(bad.sum())} of {a.size} too far" if bad.any() else "",
    )
