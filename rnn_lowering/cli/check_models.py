"""`rnn-lower-check`: whether models can be lowered, for hooks and continuous integration."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rnn_lowering.cli.arguments import dim, target
from rnn_lowering.errors import RnnLoweringError, printable, version
from rnn_lowering.spelling import for_command

if TYPE_CHECKING:
    from rnn_lowering.options import Lowering


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(
        prog="rnn-lower-check",
        description="List the recurrent nodes of models, and whether rnn-lower can lower them. No file is written.",
        epilog="exit codes: 0 all can be lowered; 1 a node cannot be, or a file is no model; 2 wrong usage",
    )
    p.add_argument("models", nargs="+", metavar="MODEL.onnx")
    p.add_argument("--target", type=target, default="portable", metavar="NAME", help="see rnn-lower --targets")
    p.add_argument("--to", default="auto", metavar="FORM", help="scan, loop, unroll or chunked")
    p.add_argument(
        "--set-dim",
        type=dim,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="fix a dimension in the models that have it",
    )
    p.add_argument("--version", action="version", version=f"rnn-lower-check {version()}")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    p = parser()
    args = p.parse_args(argv)
    from rnn_lowering.options import Lowering  # takes time

    with for_command():
        try:
            lowering = Lowering(to=args.to, target=args.target)
        except RnnLoweringError as error:
            p.error(str(error))
        return max([_check(path, lowering, dict(args.set_dim)) for path in args.models])


def _check(path: str, lowering: Lowering, sizes: dict[str, int]) -> int:
    """Print what would become of each recurrent node of a model; return 1 if one cannot be lowered."""
    from rnn_lowering.api import preview
    from rnn_lowering.files.reading import load_model
    from rnn_lowering.passes.preview import REFUSED

    name = printable(path)
    try:
        model = load_model(Path(path))
        dims = {str(dim) for value in model.graph.inputs for dim in value.shape or ()}
        found = preview(model, replace(lowering, dims={key: sizes[key] for key in sizes if key in dims}))
    except RnnLoweringError as error:
        print(f"{name}: {error}")
        return 1
    if not found:
        print(f"{name}: no recurrent nodes")
    for each in found:
        refusal = f": {printable(each.reason)}; {printable(each.hint)}" if each.form == REFUSED else ""
        print(f"{name}: {each.node}: {each.form}{refusal}".removesuffix("; "))
    return int(any(each.form == REFUSED for each in found))
