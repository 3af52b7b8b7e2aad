"""The stored networks, lowered whole and run in runtimes.

PYTHONPATH=tests:tests/support python -m clients.networks [CLIENT ...]    measures, and stores what became of each

Each gets the first of its stored inputs, whose sizes are fixed. Where an error advises to make an input a constant,
that is done.
"""

import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from cases import Arrays
from running import TOLERANCES, assert_close, run
from stored_models import Entry, entries, load, optimized, variants

import rnn_lowering as rl
from clients.driving import Job, drive, judge
from clients.environments import CLIENTS, HERE, make, version

NETWORKS = ("tract", "openvino", "opencv", "mnn", "ncnn")
"""The clients that are measured."""

STORED = HERE / "outcomes_of_networks.json"
KINDS = ("right", "refused", "rejects", "crashes", "wrong")
ADVICE = re.compile(r'set_inputs=\{"([^"]+)"')


def lowered(entry: Entry, client: Any) -> Job:
    """A network for a client, and its inputs; what the errors advise is done."""
    (_, feed), *_ = variants(entry["file"])
    options: dict[str, Any] = {}
    while True:
        given = options.get("set_inputs", {})
        shapes = {name: list(array.shape) for name, array in feed.items() if name not in given}
        try:
            model = rl.lower(load(entry), target=client, input_shapes=shapes, **options)
        except rl.RnnLoweringError as error:
            name = ADVICE.search(str(error))
            if name and name[1] in feed and name[1] not in given:
                options["set_inputs"] = given | {name[1]: feed[name[1]]}
            else:
                raise
        else:
            return model, {name: array for name, array in feed.items() if name not in given}


def measure(client: str, names: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """What became of the networks whose file names have `names` in a client, and what was said."""
    jobs: dict[str, Job] = {}
    truths: dict[str, Arrays] = {}
    judged: dict[str, tuple[str, str]] = {}
    chosen = [entry for entry in entries("runs") if names in entry["file"]]
    for entry in chosen:
        file = entry["file"]
        try:
            with warnings.catch_warnings(action="ignore"):
                jobs[file] = lowered(entry, client)
        except rl.RnnLoweringError as error:
            judged[file] = "refused", str(error)
        else:
            truths[file] = run(load(entry), variants(file)[0][1], optimize=optimized(entry))
    with tempfile.TemporaryDirectory() as folder:
        got = drive(client, jobs, Path(folder))
    for entry in chosen:
        if (file := entry["file"]) in jobs:
            judged[file] = _judged(got[file], truths[file], "FLOAT16" in entry["dtypes"])
    return {file: judged[file][0] for file in sorted(judged)}, {file: said for file, (_, said) in judged.items()}


def _judged(got: Arrays | str, expected: Arrays, is_float16: bool) -> tuple[str, str]:
    """As `judge`, with the tolerance of float16 where a network computes in it."""
    outcome, said = judge(got, expected)
    if outcome != "wrong" or not is_float16 or isinstance(got, str):
        return outcome, said
    try:
        assert_close(got, expected, "float16", tolerances=TOLERANCES)
    except AssertionError:
        return outcome, said
    return "right", ""


def stored() -> dict[str, Any]:
    """By client: version, date and outcomes."""
    read: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return read


def table(held: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = ["| runtime | right | refused by `rnn-lower` | rejected | crash | wrong | measured |"]
    lines.append("|---|---|---|---|---|---|---|")
    for client in NETWORKS:
        if entry := held.get(client):
            count = Counter(entry["outcomes"].values())
            cells = [f"{count['right']} of {len(entry['outcomes'])}", *(str(count[kind]) for kind in KINDS[1:])]
            title = f"{CLIENTS[client].title} {entry['version']}"
            lines.append(f"| {' | '.join([title, *cells, entry['date']])} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure the clients named, or all; 1 where one is absent."""
    held, absent = stored(), []
    for client in arguments or NETWORKS:
        if reason := make(client):
            absent.append(reason)
            continue
        outcomes, said = measure(client)
        held[client] = {"version": version(client), "date": date.today().isoformat(), "outcomes": outcomes}
        print(*(f"{client}: {outcomes[f]}: {f}: {said[f]}" for f in outcomes if outcomes[f] != "right"), sep="\n")
    STORED.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
    print("\n".join([table(held), *absent]))
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
