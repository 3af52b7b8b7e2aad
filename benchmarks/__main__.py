"""`python -m benchmarks`: measure run times, lowering times and memory, and print tables."""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import cost, loops, lowering, memory, native, runtime, runtimes, streams

PARTS = ("memory", "lowering", "runtime")
"""Memory first: the peak of a child counts what its parent holds when it starts."""

MORE = ("runtimes", "loops", "native", "streams", "cost")


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        choices=[*PARTS, *MORE, []],
        help=f"default: all but {', '.join(MORE)}",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per model (default: 1)")
    parser.add_argument(
        "--kinds",
        default="portable,loop,onnxruntime",
        help=f"forms for runtime, of {','.join(runtime.LOWERED)} (default: %(default)s)",
    )
    parser.add_argument(
        "--runtimes",
        default=",".join(runtimes.RUNTIMES),
        help="for runtimes (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    parts = args.parts or PARTS
    results: dict[str, Any] = {}
    if "memory" in parts:
        results["memory"] = memory.report()
    if "lowering" in parts:
        results["lowering"] = lowering.report()
    if "runtime" in parts:
        results["runtime"] = runtime.report(args.seconds, args.kinds.split(","))
    if "runtimes" in parts:
        results["runtimes"] = runtimes.report(args.seconds, args.runtimes.split(","))
    if "loops" in parts:
        results["loops"] = {**loops.report(args.seconds), **loops.in_runtimes(args.seconds)}
    if "native" in parts:
        chosen = [name for name in args.runtimes.split(",") if name in native.RUNTIMES]
        results["native"] = native.report(args.seconds, chosen)
    if "streams" in parts:
        results["streams"] = streams.report(args.seconds)
    if "cost" in parts:
        results["cost"] = cost.report()
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
