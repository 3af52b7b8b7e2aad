"""The tables of docs/conformance.md, from the stored outcomes."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
MOST = 120
"""Characters of a reason in the table."""

SIGNS = {"right": "✓", "wrong": "✗", "rejects": "–", "crashes": "†", "": ""}


def read() -> dict[str, Any]:
    """Return what is stored: runtime -> version, date, the outcomes as exported, lowered and as streams, and the
    reasons of those that are not right lowered and as streams."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def store(runtime: str, entry: dict[str, Any]) -> None:
    """Store the outcomes of a runtime; those of other kinds stay."""
    held = read()
    RESULTS.write_text(json.dumps(held | {runtime: held.get(runtime, {}) | entry}, indent=1, sort_keys=True) + "\n")


Labels = dict[str, tuple[str, str]]
"""Group and label by feature."""


def summary(results: dict[str, Any]) -> str:
    """Return a row for each runtime: how many models are right as exported, lowered, and as streams."""
    nowhere = _in_all(results)
    lines = ["| runtime | as exported | lowered | as a stream | date |", "|---|---|---|---|---|"]
    for runtime, entry in results.items():
        native, lowered = (_counted(entry[kind]) for kind in ("native", "lowered"))
        streams = {name: kind for name, kind in entry.get("stream", {}).items() if name not in nowhere}
        stream = _counted(streams) if streams else ""
        cells = (f"{runtime} {entry['version']}", native, lowered, stream, entry["date"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reasons(results: dict[str, Any]) -> str:
    """Return why lowered models are not right."""
    return _table_of_reasons({runtime: entry.get("reasons", {}) for runtime, entry in results.items()})


def reasons_of_streams(results: dict[str, Any]) -> str:
    """Return why models are no streams: first those that are none in any runtime."""
    nowhere = _in_all(results)
    said = {
        runtime: {
            name: reason for name, reason in entry.get("reasons of streams", {}).items() if name not in nowhere
        }
        for runtime, entry in results.items()
    }
    return _table_of_reasons({"all": nowhere} | said)


def features(results: dict[str, Any], labels: Labels) -> str:
    """Return a table for each group of features, with a row for each feature."""
    return "\n".join(_of_features(results, labels, _in_all(results))).strip()


def _of_features(results: dict[str, Any], labels: Labels, nowhere: dict[str, str]) -> list[str]:
    """A table of each group: one row a feature."""
    lines = []
    for group in dict.fromkeys(group for group, _ in labels.values()):
        head = " | ".join(["feature", *results, "as a stream"])
        lines += ["", f"### {group}", "", f"| {head} |", "|---" * (len(results) + 2) + "|"]
        for name, (of, label) in labels.items():
            if of == group:
                cells = [_cell(entry, name) for entry in results.values()]
                lines.append(f"| {' | '.join([label, *cells, _streams(results, name, nowhere)])} |")
    return lines


def _in_all(results: dict[str, Any]) -> dict[str, str]:
    """The features that are no stream in any runtime, and what most runtimes say."""
    streamed = [entry for entry in results.values() if "stream" in entry]
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


def _table_of_reasons(said: dict[str, dict[str, str]]) -> str:
    """A row for each runtime and reason with the number of its models, the most frequent first."""
    lines = ["| runtime | models | reason |", "|---|---|---|"]
    for runtime, by_feature in said.items():
        counts = Counter(_reason(text) for text in by_feature.values()).most_common()
        lines += [f"| {runtime} | {count} | {reason} |" for reason, count in counts]
    return "\n".join(lines)


def _reason(text: str) -> str:
    """A reason without the node and the hint, as it can stand in a cell."""
    refusal = re.fullmatch(r"rnn-lower: \S+ node '.*?' in main graph: (.*?)(; .*)?", text)
    said = f"refused: {refusal[1]}" if refusal else re.sub(r"\d{3,}|0x\w+|/\S+", "...", text)
    return re.sub(r"([|\[\]])", r"\\\1", said[:MOST]).replace("<", "&lt;")


def _cell(entry: dict[str, Any], name: str) -> str:
    """As exported; lowered, where that is not right."""
    native, lowered = entry["native"].get(name, ""), entry["lowered"].get(name, "")
    return SIGNS[native] if lowered in ("right", "") else f"{SIGNS[native]} {SIGNS[lowered]}"


def _counted(outcomes: dict[str, str]) -> str:
    count = Counter(outcomes.values())
    words = {"wrong": "wrong", "rejects": "rejected", "crashes": "crash"}
    others = [f"{count[outcome]} {word}" for outcome, word in words.items() if count[outcome]]
    return ", ".join([f"{count['right']} of {len(outcomes)} right", *others])
