"""The tables of the pages, made of what was measured: `python docs/tables.py NAME` prints one.

The site shows a table where its page has the comment `<!-- table: NAME -->`. A short table also stands below its
comment, for whoever reads the page elsewhere: `python docs/tables.py --write` makes it anew.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")]

try:
    from clients import journeys, measuring, networks, ranks, table

    import rnn_lowering as rl
    from conformance import scoreboard
    from conformance.features import features
    from rnn_lowering.targets.installed import PACKAGES
    from rnn_lowering.targets.target import Target
except ModuleNotFoundError as missing:
    sys.exit(f'the tables need {missing.name}: pip install -e ".[test]"')

COMMENT = re.compile(r"^<!-- table: (.*?) -->(?P<below>\n(?:\n\|.*)+)?$", re.MULTILINE)


def in_place(markdown: str) -> str:
    """Return a page with its tables."""
    return COMMENT.sub(lambda comment: TABLES[comment[1]](), markdown)


def anew(markdown: str) -> str:
    """Return a page whose tables are as the data say, where it has them."""

    def written(comment: re.Match[str]) -> str:
        below = f"\n\n{TABLES[comment[1]]()}" if comment["below"] else ""
        return f"<!-- table: {comment[1]} -->{below}"

    return COMMENT.sub(written, markdown)


def by_a_list() -> str:
    """Return a row for each target that follows a list of operators."""
    lines = ["| target | forms | it takes | composed if needed | source | date |", "|---|---|---|---|---|---|"]
    for name, target in rl.TARGETS.items():
        if known := target.documented:
            composed = ", ".join(target.unsupported)
            cells = (f"`{name}`", ", ".join(target.forms), _limits(target), composed, known.source, known.date)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _limits(target: Target) -> str:
    from_opset = f"from opset {target.oldest_opset}" if target.oldest_opset else ""
    limits = [from_opset, f"up to opset {target.newest_opset}" if target.newest_opset else ""]
    limits.append(f"known {' and '.join(target.sizes)}" if target.sizes else "")
    limits.append(f"N = {target.batch_size}" if target.batch_size else "")
    limits.append("" if target.sequence_lens else "constant lengths")
    limits += [f"no {dtype.name.lower()}" for dtype in target.lacks_types]
    return ", ".join(filter(None, limits))


def install() -> str:
    """Return what installs each runtime that a driver of the package runs."""
    rows = [f"| {name} | `{package.install}` |" for name, package in PACKAGES.items()]
    return "\n".join(["| target | |", "|---|---|", *rows])


def refusals() -> str:
    """Return a table for each kind of reason for which a net is no stream."""
    kinds = json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8"))
    lines = []
    for kind, rows in kinds.items():
        lines += ["", f"### {kind}", "", "| the error | what to do |", "|---|---|"]
        lines += [f"| {error} | {cure} |" for error, cure in rows.items()]
    return "\n".join(lines).strip()


TABLES: dict[str, Callable[[], str]] = {
    "runtimes": lambda: table.table(measuring.stored()),
    "networks": lambda: networks.table(networks.stored()),
    "journeys": lambda: journeys.table(journeys.stored()),
    "exported loops": lambda: table.table_of_loops(table.outcomes_of_loops()),
    "axes in QNN": lambda: ranks.table("qnn"),
    "by a list": by_a_list,
    "install": install,
    "refusals": refusals,
    "conformance": lambda: scoreboard.summary(scoreboard.read()),
    "reasons": lambda: scoreboard.reasons(scoreboard.read()),
    "reasons of streams": lambda: scoreboard.reasons_of_streams(scoreboard.read()),
    "features": lambda: scoreboard.features(scoreboard.read(), {f.name: (f.group, f.label) for f in features()}),
}
"""By name: what makes it."""


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for page in Path(__file__).parent.glob("*.md"):
            page.write_text(anew(page.read_text(encoding="utf-8")), encoding="utf-8")
    elif sys.argv[1:] and {*sys.argv[1:]} <= {*TABLES}:
        try:
            print("\n\n".join(TABLES[name]() for name in sys.argv[1:]), flush=True)
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    else:
        sys.exit(f"python docs/tables.py --write, or NAME, with one of: {', '.join(TABLES)}")
