"""python -m conformance: write the suite, run it in a runtime, and write the page of results."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path

from clients.environments import CLIENTS, make, version

from conformance import judging, scoreboard, suite
from conformance.features import features


def main(arguments: list[str]) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    written = commands.add_parser("write", help="write the models, their inputs and outputs to a folder")
    written.add_argument("folder", type=Path, help="a new folder")
    run = commands.add_parser("run", help="run all models in a runtime; store and print the outcomes")
    which = run.add_mutually_exclusive_group(required=True)
    which.add_argument("--runtime", choices=CLIENTS, help="a runtime of tests/clients; it is installed first")
    which.add_argument(
        "--command", dest="tool", help="your program; {model}, {data} and {output} are replaced with paths"
    )
    run.add_argument("--only", default="", help="only features whose name contains this text")
    commands.add_parser("table", help="write docs/conformance.md from the stored outcomes")
    given = parser.parse_args(arguments)
    if given.command == "write":
        print(f"{suite.write(given.folder)} models in {given.folder}")
    elif given.command == "table":
        scoreboard.write({f.name: (f.group, f.label) for f in features()})
    else:
        return _run(given.runtime, given.tool, given.only)
    return 0


def _run(runtime: str | None, tool: str | None, only: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        suite.write(Path(folder) / "suite")
        chosen = [feature for feature in suite.stored(Path(folder) / "suite") if only in feature.name]
        if tool is not None:
            outcomes = judging.by_command(tool, chosen)
            print(json.dumps(outcomes, indent=1))
        else:
            assert runtime is not None
            if absent := make(runtime):
                print(absent, file=sys.stderr)
                return 1
            entry = {
                kind: judging.in_runtime(runtime, chosen, lowered=kind == "lowered")
                for kind in ("native", "lowered")
            }
            if not only:
                scoreboard.store(runtime, {"version": version(runtime), "date": date.today().isoformat(), **entry})
            print(json.dumps(entry, indent=1))
            outcomes = entry["lowered"]
    print(dict(Counter(outcomes.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
