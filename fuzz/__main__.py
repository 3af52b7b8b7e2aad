"""python -m fuzz: search for models that are lowered wrongly, and keep what is found as scripts."""

import argparse
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from fuzz import kinds
from fuzz.campaign import Counts, Found, Judge, search
from fuzz.reducer import reduced
from fuzz.script import script


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("kind", choices=kinds.NAMES)
    parser.add_argument("--minutes", type=float, default=30.0, help="of processor time; default: 30")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case; default: 0")
    parser.add_argument("--cases", type=int, help="so many cases, however long they take")
    parser.add_argument("--found", type=Path, default=Path("found"), help="the folder of scripts; default: found")
    parser.add_argument("--whole", action="store_true", help="keep what is found as it is, not reduced")
    given = parser.parse_args(arguments)
    if find_spec("pytest") is None:  # the processes that judge need it
        parser.error('the search needs pytest: pip install -e ".[test]", in the folder of the project')
    seed = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
    counts = Counts()

    def go_on(counts: Counts) -> bool:
        if given.cases is not None:
            return counts.cases < int(given.cases)
        return counts.seconds < 60 * float(given.minutes)

    print(f"{given.kind}, seed {seed}", flush=True)
    with suppress(KeyboardInterrupt):  # what was counted so far is told
        _search(given, seed, counts, go_on)
    print(f"{given.kind}, seed {seed}: {counts.text()}")
    return int(bool(counts.faults))


def _search(given: argparse.Namespace, seed: int, counts: Counts, go_on: Callable[[Counts], bool]) -> None:
    """Keep what is found as scripts."""
    for found in search(given.kind, seed, counts, go_on, given.first):
        known = counts.faults[found.outcome.what] > 3
        small = found if given.whole or known else smaller(found)
        given.found.mkdir(parents=True, exist_ok=True)
        path = given.found / f"{found.kind}_{seed}_{found.number}.py"
        path.write_text(script(small), encoding="utf-8")
        nodes = len(small.case.model.graph.node)
        print(f"{path} ({nodes} nodes): {small.outcome.what}: {small.outcome.detail[:300]!a}", flush=True)


def smaller(found: Found) -> Found:
    """Return a found case made as small as it gets."""
    judge = Judge(found.kind)
    try:
        case = reduced(found.case, lambda case: judge.case(case).what == found.outcome.what)
        outcome = judge.case(case)
    finally:
        judge.end()
    return Found(found.kind, found.seed, found.number, case, outcome) if case is not found.case else found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
