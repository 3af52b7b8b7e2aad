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
    """Return what is stored: runtime -> version, date, the outcomes as exported, lowered and as streams, and the
    reasons of those that are not right lowered and as streams."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def store(runtime: str, entry: dict[str, Any]) -> None:
    """Store the outcomes of a runtime; those of other kinds stay."""
    held = read()
    RESULTS.write_text(json.dumps(held | {runtime: held.get(runtime, {}) | entry}, indent=1, sort_keys=True) + "\n")


def tables(results: dict[str, Any], labels: dict[str, tuple[str, str]]) -> str:
    """Return the tables: one row a runtime, its reasons, then one row a feature; `labels` has group and label by
    feature."""
    nowhere = _in_all([entry for entry in results.values() if "stream" in entry])
    lines = ["| runtime | as exported | lowered | as a stream | date |", "|---|---|---|---|---|"]
    for runtime, entry in results.items():
        native, lowered = (_counted(entry[kind]) for kind in ("native", "lowered"))
        streams = {name: kind for name, kind in entry.get("stream", {}).items() if name not in nowhere}
        stream = _counted(streams) if streams else ""
        cells = (f"{runtime} {entry['version']}", native, lowered, stream, entry["date"])
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Why lowered models are not right", "", "| runtime | models | reason |", "|---|---|---|"]
    for runtime, entry in results.items():
        lines += _reasons(runtime, entry.get("reasons", {}))
    lines += ["", "## Why models are no streams", "", "| runtime | models | reason |", "|---|---|---|"]
    lines += _reasons("all", nowhere)
    for runtime, entry in results.items():
        own = {name: said for name, said in entry.get("reasons of streams", {}).items() if name not in nowhere}
        lines += _reasons(runtime, own)
    return "\n".join([*lines, *_of_features(results, labels, nowhere)])


def _of_features(results: dict[str, Any], labels: dict[str, tuple[str, str]], nowhere: dict[str, str]) -> list[str]:
    """A table of each group: one row a feature."""
    lines = []
    for group in dict.fromkeys(group for group, _ in labels.values()):
        head = " | ".join(["feature", *results, "as a stream"])
        lines += ["", f"## {group}", "", f"| {head} |", "|---" * (len(results) + 2) + "|"]
        for name, (of, label) in labels.items():
            if of == group:
                cells = [_cell(entry, name) for entry in results.values()]
                lines.append(f"| {' | '.join([label, *cells, _streams(results, name, nowhere)])} |")
    return lines


def _in_all(streamed: list[dict[str, Any]]) -> dict[str, str]:
    """The features that are no stream in any of these runtimes, and what most of these say."""
    kinds = [entry["stream"] for entry in streamed]
    refused = [name for name in (kinds[0] if kinds else ()) if all(of.get(name) == "rejects" for of in kinds)]
    said = {name: Counter(entry["reasons of streams"][name] for entry in streamed) for name in refused}
    return {name: counts.most_common(1)[0][0] for name, counts in said.items()}


def _streams(results: dict[str, Any], name: str, nowhere: dict[str, str]) -> str:
    """What becomes of the stream of a feature, and where it is not right."""
    if name in nowhere:
        return "refused"
    found = {runtime: entry.get("stream", {}).get(name, "") for runtime, entry in results.items()}
    others = [f"{runtime} {SIGNS[kind]}" for runtime, kind in found.items() if kind not in ("", "right")]
    return "; ".join(others) or SIGNS["right"]


def _reasons(runtime: str, reasons: dict[str, str]) -> list[str]:
    """A line for each reason with the number of its models, the most frequent first."""
    counts = Counter(_reason(text) for text in reasons.values()).most_common()
    return [f"| {runtime} | {count} | {reason} |" for reason, count in counts]


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
