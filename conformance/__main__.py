"""python -m conformance: write the suite, run it in a runtime, and print the results."""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

try:
    from clients.environments import CLIENTS, make, version

    import rnn_lowering as rl
    from conformance import judging, scoreboard, streams, suite
    from conformance.features import features
except ModuleNotFoundError as error:
    sys.exit(f'the conformance suite needs {error.name}: pip install -e ".[test]", in the folder of the project')

Outcomes = dict[str, judging.Outcome]


def main(arguments: list[str]) -> int:
    """Run the command line; return its exit code."""
    p = parser()
    given = p.parse_args(arguments)
    if given.action == "write":
        try:
            print(f"{suite.write(given.folder)} models in {given.folder}")
        except OSError as error:
            p.error(str(error))
    elif given.action == "table":
        labels = {f.name: (f.group, f.label) for f in features()}
        print(scoreboard.summary(scoreboard.read()), scoreboard.features(scoreboard.read(), labels), sep="\n\n")
    else:
        return _run(p, given)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    actions = p.add_subparsers(dest="action", required=True)
    written = actions.add_parser("write", help="write the models, their inputs and outputs to a folder")
    written.add_argument("folder", type=Path, help="a new folder")
    run = actions.add_parser("run", help="run all models in a runtime; print what becomes of each")
    which = run.add_mutually_exclusive_group(required=True)
    which.add_argument("--runtime", choices=CLIENTS, help="a runtime of tests/clients; it is installed first")
    which.add_argument("--command", help="your program; {model}, {data} and {output} are replaced with paths")
    run.add_argument("--target", help="with --command: also run the models that are lowered for this target")
    run.add_argument("--to", help="with --command: also run the models that are lowered to this form")
    run.add_argument("--streams", action="store_true", help="run only the streams of the models, frame by frame")
    run.add_argument("--only", default="", help="only features whose name has this text; stored results stay")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes and their reasons")
    actions.add_parser("table", help="print the tables of the stored outcomes")
    return p


def _run(p: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    lowering = _lowering(p, given)
    with tempfile.TemporaryDirectory() as folder:
        if given.command:
            try:
                judging.check(given.command, suite.plain(Path(folder) / "plain"))
            except judging.CommandError as error:
                p.error(f"argument --command: {error}")
        suite.write(Path(folder) / "suite")
        chosen = [feature for feature in suite.stored(Path(folder) / "suite") if given.only in feature.name]
        if not chosen:
            p.error(f"argument --only: no feature has '{given.only}' in its name")
        if given.runtime and (absent := make(given.runtime)):
            print(absent, file=sys.stderr)
            return 1
        found = _in_runtime(given, chosen, lowering) if given.runtime else _by_command(given, chosen, lowering)
        entry = {}
        for kind, title, outcomes in found:
            print(f"\n{title}:", flush=True)
            entry[kind] = _told(outcomes, len(chosen))
    _keep(given, entry)
    return 0


_OF_STREAMS = "as streams of one frame a call"

Found = Iterator[tuple[str, str, Iterator[tuple[str, judging.Outcome]]]]
"""The kind of a run, its title, and the outcome of each feature."""


def _by_command(given: argparse.Namespace, chosen: list[suite.Stored], lowering: rl.Lowering | None) -> Found:
    if given.streams:
        yield "stream", _OF_STREAMS, streams.by_command(given.command, chosen, lowering or rl.Lowering())
        return
    yield "native", "as exported", judging.by_command(given.command, chosen)
    if lowering is not None:
        yield "lowered", _title(lowering), judging.by_command(given.command, chosen, lowering)


def _in_runtime(given: argparse.Namespace, chosen: list[suite.Stored], lowering: rl.Lowering | None) -> Found:
    assert lowering is not None
    if not given.streams:
        yield "native", "as exported", judging.in_runtime(given.runtime, chosen, None)
        yield "lowered", _title(lowering), judging.in_runtime(given.runtime, chosen, lowering)
    yield "stream", _OF_STREAMS, streams.in_runtime(given.runtime, chosen)


def _lowering(p: argparse.ArgumentParser, given: argparse.Namespace) -> rl.Lowering | None:
    if given.runtime:
        if given.target or given.to:
            p.error("--target and --to are for --command; --runtime has its own target")
        return rl.Lowering(target=given.runtime)
    chosen = {name: value for name in ("target", "to") if (value := getattr(given, name))}
    try:
        return rl.Lowering(**chosen) if chosen else None
    except rl.OptionError as error:
        p.error(str(error))


def _title(lowering: rl.Lowering) -> str:
    return f"lowered (--target {lowering.target} --to {lowering.to})"


def _told(found: Iterator[tuple[str, judging.Outcome]], count: int) -> Outcomes:
    """Print each outcome as it is found, then how many there are of each kind."""
    outcomes = Outcomes()
    for name, outcome in found:
        outcomes[name] = outcome
        line = f"{len(outcomes):>4}/{count} {outcome.kind:<8} {name}"
        print(f"{line}: {outcome.reason}" if outcome.reason else line, flush=True)
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    print(", ".join(f"{kinds[kind]} {word}" for kind, word in WORDS.items() if kinds[kind]))
    return outcomes


WORDS = {"right": "right", "wrong": "wrong", "rejects": "rejected", "crashes": "crashed"}


def _keep(given: argparse.Namespace, entry: dict[str, Outcomes]) -> None:
    if given.json:
        rows = {kind: {name: vars(outcome) for name, outcome in of.items()} for kind, of in entry.items()}
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    if given.runtime and not given.only:  # a part is no result
        _store(given, entry)


def _store(given: argparse.Namespace, entry: dict[str, Outcomes]) -> None:
    """Store outcomes and reasons."""
    told: dict[str, Any] = {"version": version(given.runtime)}
    for kind, outcomes in entry.items():
        told[kind] = {name: outcome.kind for name, outcome in outcomes.items()}
        if key := REASONS.get(kind):
            told[key] = {name: of.reason for name, of in outcomes.items() if of.reason}
    if not given.streams:
        told["date"] = date.today().isoformat()
    scoreboard.store(given.runtime, told)


REASONS = {"lowered": "reasons", "stream": "reasons of streams"}
"""Where the reasons of a kind of run are stored."""


_NOT_READ = 141
"""As shells report a program whose output nobody reads any more."""


def _whole_command() -> int:
    """Run the command with the arguments of the process; it ends quietly if the reader of its output does."""
    try:
        return main(sys.argv[1:])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more
        return _NOT_READ


if __name__ == "__main__":
    sys.exit(_whole_command())
