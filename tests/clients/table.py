"""The table of runtimes, and that of exported Loops, from what is stored.

PYTHONPATH=tests:tests/support python -m clients.table [CLIENT ...]    measures, stores outcomes, prints the table
"""

import json
import sys
from collections import Counter
from typing import Any

from paths import MODELS

from clients.driving import OUTCOMES
from clients.environments import CLIENTS, HERE, make
from clients.measuring import STORED, measure, stored
from rnn_lowering import TARGETS

SAID = {"wrong": "wrong without an error", "rejects": "rejected", "crashes": "crash"}

CLIENTS_OF_LOOPS = {"tvm": "TVM", "ncnn": "ncnn", "tract": "tract", "mnn": "MNN", "opencv": "OpenCV"}
BY_DATA = {"jax/while_of_data", "pytorch/script_data"}
"""Models with a Loop that ends by a condition on data: refused for a client without Loops."""
CAUSES = {
    "refused: ignores its axes": "a reduction whose axes pnnx ignores",
    "refused: takes integers as indices": "arithmetic on integers",
    "output of its labels": "an output of labels",
    "values without axes": "values of rank 0",
}
"""A cause in outcomes_of_loops.json -> the words for it in the table; others are named as they are."""


def table(entries: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = ["| runtime | as exported | after `rnn-lower` | measured |", "|---|---|---|---|"]
    for client in CLIENTS:
        if entry := entries.get(client):
            before, after = _counted(entry["native"]), _counted(entry["lowered"])
            lines.append(f"| {CLIENTS[client].title} {entry['version']} | {before} | {after} | {entry['date']} |")
    return "\n".join(lines)


def _counted(outcomes: dict[str, str]) -> str:
    count = Counter(outcomes.values())
    parts = [f"{count['right']} of {len(outcomes)} right"]
    parts += [f"{count[outcome]} {SAID[outcome]}" for outcome in OUTCOMES[1:] if count[outcome]]
    return ", ".join(parts)


def table_of_loops(outcomes: dict[str, Any]) -> str:
    """The table of exported Loops and Scans, from outcomes_of_loops.json, as Markdown."""
    lines = [
        f"| runtime | {len(outcomes)} models as exported | with `--target` | the others |",
        "|---|---|---|---|",
    ]
    for client, title in CLIENTS_OF_LOOPS.items():
        before = sum(client in outcome["as exported"].split() for outcome in outcomes.values())
        left = {name: why for name, outcome in outcomes.items() if (why := outcome["rejected"].get(client))}
        if "loop" not in TARGETS[client].loop_forms:
            left |= dict.fromkeys(BY_DATA, "a condition on data")
        causes = Counter(CAUSES.get(why, why) for why in left.values())
        others = ", ".join(f"{why} ({count})" for why, count in causes.most_common())
        lines.append(f"| {title} | {before} right | {len(outcomes) - len(left)} right | {others} |")
    return "\n".join(lines)


def outcomes_of_loops() -> dict[str, Any]:
    """What became of each exported model with a Loop or Scan."""
    read: dict[str, Any] = json.loads((HERE / "outcomes_of_loops.json").read_text())
    return read


def main(arguments: list[str]) -> int:
    """Measure the clients named, or all; 1 where one is absent."""
    entries, absent = stored(), []
    for client in arguments or CLIENTS:
        if reason := make(client):
            absent.append(reason)
            continue
        entries[client] = measure(client, with_real=MODELS.exists())
        STORED.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    print("\n".join([table(entries), *absent]))
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
