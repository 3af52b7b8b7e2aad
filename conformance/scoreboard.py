"""Write the page docs/conformance.md from the stored outcomes."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"
BEGIN, END = "<!-- measured: python -m conformance run -->", "<!-- end of what was measured -->"
MOST = 120
"""Characters of a reason in the table."""

SIGNS = {"right": "✓", "wrong": "**wrong**", "rejects": "–", "crashes": "crash", "": ""}


def read() -> dict[str, Any]:
    """Return what is stored: runtime -> version, date, the outcomes as exported and lowered, and the reasons of
    those that are not right after lowering."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def store(runtime: str, entry: dict[str, Any]) -> None:
    """Store the outcomes of a runtime."""
    RESULTS.write_text(json.dumps(read() | {runtime: entry}, indent=1, sort_keys=True) + "\n")


def tables(results: dict[str, Any], labels: dict[str, tuple[str, str]]) -> str:
    """Return the tables: one row a runtime, its reasons, then one row a feature; `labels` has group and label by
    feature."""
    lines = ["| runtime | as exported | lowered | date |", "|---|---|---|---|"]
    for runtime, entry in results.items():
        native, lowered = (_counted(entry[kind]) for kind in ("native", "lowered"))
        lines.append(f"| {runtime} {entry['version']} | {native} | {lowered} | {entry['date']} |")
    lines += ["", "## Why lowered models are not right", "", "| runtime | models | reason |", "|---|---|---|"]
    for runtime, entry in results.items():
        lines += [f"| {runtime} | {count} | {reason} |" for reason, count in _reasons(entry).items()]
    for group in dict.fromkeys(group for group, _ in labels.values()):
        lines += ["", f"## {group}", "", f"| feature | {' | '.join(results)} |", "|---" * (len(results) + 1) + "|"]
        for name, (of, label) in labels.items():
            if of == group:
                cells = (_cell(entry, name) for entry in results.values())
                lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _reasons(entry: dict[str, Any]) -> dict[str, int]:
    """How many models have each reason after lowering, the most frequent first."""
    return dict(Counter(_reason(text) for text in entry.get("reasons", {}).values()).most_common())


def _reason(text: str) -> str:
    """A reason without the node and the hint, as it can stand in a cell."""
    refusal = re.fullmatch(r"rnn-lower: \S+ node '.*?' in main graph: (.*?)(; .*)?", text)
    said = f"refused: {refusal[1]}" if refusal else re.sub(r"\d{3,}|0x\w+|/\S+", "...", text)
    return re.sub(r"([|<\[\]])", r"\\\1", said[:MOST])


def _cell(entry: dict[str, Any], name: str) -> str:
    """As exported; what lowering does to it follows where that is not right."""
    native, lowered = entry["native"].get(name, ""), entry["lowered"].get(name, "")
    return SIGNS[native] if lowered in ("right", "") else f"{SIGNS[native]} (lowered: {SIGNS[lowered]})"


def _counted(outcomes: dict[str, str]) -> str:
    count = Counter(outcomes.values())
    words = {"wrong": "wrong", "rejects": "rejected", "crashes": "crash"}
    others = [f"{count[outcome]} {word}" for outcome, word in words.items() if count[outcome]]
    return ", ".join([f"{count['right']} of {len(outcomes)} right", *others])


def write(labels: dict[str, tuple[str, str]]) -> None:
    """Put the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n\n{tables(read(), labels)}\n\n{after}", encoding="utf-8")
