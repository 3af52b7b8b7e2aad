"""The table of runtimes in the README, and that of exported Loops in docs/loops.md.

PYTHONPATH=tests:tests/support python -m clients.table [CLIENT ...]    measures, stores outcomes, writes the tables
PYTHONPATH=tests:tests/support python -m clients.table --stored        writes the tables from what is stored
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from paths import MODELS

from clients.driving import OUTCOMES
from clients.environments import CLIENTS, HERE, make
from clients.measuring import STORED, measure, stored
from rnn_lowering import TARGETS

README = HERE.parents[1] / "README.md"
LOOPS = HERE.parents[1] / "docs" / "loops.md"
BEGIN = "<!-- measured: PYTHONPATH=tests:tests/support python -m clients.table -->"
END = "<!-- end of what was measured -->"
BEGIN_LOOPS = "<!-- measured: tests/clients/test_exporters_of_loops.py -->"
END_LOOPS = "<!-- end of the exported loops -->"
SAID = {"wrong": "wrong without an error", "rejects": "rejected", "crashes": "crash"}

CLIENTS_OF_LOOPS = {"tvm": "TVM", "ncnn": "ncnn", "tract": "tract", "mnn": "MNN", "opencv": "OpenCV"}
BY_DATA = {"jax/while_of_data", "pytorch/script_data"}
"""Models with a Loop that ends by a condition on data: refused for a client without Loops."""
CAUSES = {
    "refused: ignores its axes": "a reduction whose axes pnnx ignores",
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


def in_readme() -> str:
    """What stands between the markers of the README."""
    return _between(README, BEGIN, END)


def in_loops() -> str:
    """What stands between the markers of docs/loops.md."""
    return _between(LOOPS, BEGIN_LOOPS, END_LOOPS)


def _between(page: Path, begin: str, end: str) -> str:
    text = page.read_text()
    return text[text.index(begin) + len(begin) : text.index(end)].strip()


def outcomes_of_loops() -> dict[str, Any]:
    """What became of each exported model with a Loop or Scan."""
    read: dict[str, Any] = json.loads((HERE / "outcomes_of_loops.json").read_text())
    return read


def write(entries: dict[str, Any]) -> None:
    """Put the tables into the README and docs/loops.md."""
    _put(README, BEGIN, END, table(entries))
    _put(LOOPS, BEGIN_LOOPS, END_LOOPS, table_of_loops(outcomes_of_loops()))


def _put(page: Path, begin: str, end: str, lines: str) -> None:
    text = page.read_text()
    before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
    page.write_text(f"{before}\n\n{lines}\n\n{after}")


def main(arguments: list[str]) -> int:
    """Measure the clients named, or all; 1 where one is absent."""
    entries, absent = stored(), []
    for client in [] if "--stored" in arguments else arguments or CLIENTS:
        if reason := make(client):
            absent.append(reason)
            continue
        entries[client] = measure(client, with_real=MODELS.exists())
        STORED.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    write(entries)
    print("\n".join([table(entries), *absent]))
    return int(bool(absent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
