"""What became of the trials in each client, and the file that keeps it."""

import json
import tempfile
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

from cases import Case

from clients.driving import Job, drive, judge
from clients.environments import CLIENTS, HERE, version
from clients.trials import (
    REAL,
    case_for,
    cases,
    contrib,
    joined,
    lowered,
    original,
    real_original,
    real_truth,
    truth,
)

Outcomes: TypeAlias = dict[str, str]
"""One of `driving.OUTCOMES` by trial."""

STORED = HERE / "outcomes.json"


def small(client: str, *, native: bool) -> tuple[Outcomes, Outcomes]:
    """Run the small models, with the recurrent node or lowered; return what became of each, and what was said."""
    chosen = {name: case_for(case, client) for name, case in cases().items()}
    pairs = {name: (original(case), truth(case)) for name, case in chosen.items()} | contrib(client)
    jobs, truths = ({name: pair[n] for name, pair in pairs.items()} for n in (0, 1))
    return _measured(client, jobs, truths, native)  # type: ignore[arg-type]


def beside_oracle(client: str, groups: dict[str, dict[str, Case]]) -> tuple[Outcomes, Outcomes]:
    """The same for groups of cases, each group lowered as one model, beside float64: onnxruntime's own Softplus is
    infinite from 89 on."""
    pairs = {name: joined(chosen) for name, chosen in groups.items()}
    jobs = {name: job for name, (job, _) in pairs.items()}
    return _measured(client, jobs, {name: truth for name, (_, truth) in pairs.items()}, native=False)


def real(client: str, *, native: bool) -> tuple[Outcomes, Outcomes]:
    """The same for the real models."""
    jobs = {file: real_original(file, label) for file, label in REAL[client].items()}
    return _measured(client, jobs, {file: real_truth(file, label) for file, label in REAL[client].items()}, native)


def _measured(client: str, jobs: dict[str, Job], wanted: dict[str, Any], native: bool) -> tuple[Outcomes, Outcomes]:
    given = jobs if native else {name: lowered(job, client) for name, job in jobs.items()}
    with tempfile.TemporaryDirectory() as folder:
        got = drive(client, given, Path(folder))
    judged = {name: judge(got[name], wanted[name], CLIENTS[client].precision) for name in jobs}
    return {name: outcome for name, (outcome, _) in judged.items()}, {n: said for n, (_, said) in judged.items()}


def stored() -> dict[str, Any]:
    """By client: version, date, and the outcomes under native and lowered, real native and real lowered."""
    read: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return read


def measure(client: str, *, with_real: bool) -> dict[str, Any]:
    """All outcomes of a client; without the real models what is stored of these is kept."""
    entry: dict[str, Any] = {"version": version(client), "date": date.today().isoformat()}
    kept = stored().get(client, {})
    for kind, native in {"native": True, "lowered": False}.items():
        entry[kind] = small(client, native=native)[0]
        key = f"real {kind}"
        entry[key] = real(client, native=native)[0] if with_real and client in REAL else kept.get(key, {})
    return entry
