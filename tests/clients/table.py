"""The table of runtimes in the README.

PYTHONPATH=tests:tests/support python -m clients.table [CLIENT ...]    measures, stores outcomes, writes the table
PYTHONPATH=tests:tests/support python -m clients.table --stored        writes the table from what is stored
"""

import json
import sys
from collections import Counter
from typing import Any

from paths import MODELS

from clients.driving import OUTCOMES
from clients.environments import CLIENTS, HERE, make
from clients.measuring import STORED, measure, stored

README = HERE.parents[1] / "README.md"
BEGIN = "<!-- measured: PYTHONPATH=tests:tests/support python -m clients.table -->"
END = "<!-- end of what was measured -->"
SAID = {"wrong": "wrong without an error", "rejects": "rejected", "crashes": "crash"}


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


def in_readme() -> str:
    """What stands between the markers."""
    text = README.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def write(entries: dict[str, Any]) -> None:
    """Put the table into the README."""
    text = README.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    README.write_text(f"{before}\n\n{table(entries)}\n\n{after}")


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
