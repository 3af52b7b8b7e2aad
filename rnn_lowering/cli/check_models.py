"""`rnn-lower-check`: whether models can be lowered, for hooks and continuous integration."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rnn_lowering.argument_checks import GROUPS
from rnn_lowering.cli.arguments import ListTargets, add_options, model_file, options_of
from rnn_lowering.errors import RnnLoweringError, printable, version
from rnn_lowering.files.options import Files
from rnn_lowering.flags import for_command
from rnn_lowering.options import Lowering

if TYPE_CHECKING:
    import onnx_ir as ir


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(
        prog="rnn-lower-check",
        description="List the recurrent nodes of models, and whether rnn-lower can lower them. No file is written.",
        epilog="exit codes: 0 all can be lowered; 1 a node cannot be, or a file is no model; 2 wrong usage",
    )
    p.add_argument("models", nargs="+", type=model_file, metavar="MODEL.onnx")
    group = p.add_argument_group("as in rnn-lower; a dimension or an input is fixed in the models that have it")
    names = [field.name for field in fields(Lowering)]
    add_options(dict.fromkeys((each.title for each in GROUPS), group), (*names, "trust_external_data"))
    group.add_argument("--targets", action=ListTargets, help="show what each runtime supports, and exit")
    p.add_argument("--version", action="version", version=f"rnn-lower-check {version()}")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    p = parser()
    args = p.parse_args(argv)
    if None in vars(args).get("stream", ()):
        p.error("--stream needs an AXIS; rnn-lower MODEL.onnx --stream lists them")
    with for_command():
        try:
            lowering, files = options_of(Lowering, args), options_of(Files, args)
        except RnnLoweringError as error:
            p.error(str(error))
        return max([_check(path, lowering, files) for path in args.models])


def _check(path: Path, lowering: Lowering, files: Files) -> int:
    """Print what would become of each recurrent node of a model; return 1 if one cannot be lowered."""
    from rnn_lowering.api import preview
    from rnn_lowering.files.reading import load_model
    from rnn_lowering.passes.preview import REFUSED, UNSUPPORTED

    name = printable(path)
    try:
        model = load_model(path, trust_external_data=files.trust_external_data)
        found = preview(model, _fitting(lowering, model))
    except RnnLoweringError as error:
        print(f"{name}: {error}")
        return 1
    if not any(each.recurrent for each in found):
        print(f"{name}: no recurrent nodes")
    for each in found:
        says = each.form in (REFUSED, UNSUPPORTED)
        refusal = f": {printable(each.reason)}; {printable(each.hint)}" if says else ""
        print(f"{name}: {each.node}: {each.form}{refusal}".removesuffix("; "))
    return int(any(each.form == REFUSED for each in found))


def _fitting(lowering: Lowering, model: ir.Model) -> Lowering:
    """Return the lowering without sizes and values of what a model does not have."""
    inputs = {value.name for value in model.graph.inputs}
    dims = {str(dim) for value in model.graph.inputs for dim in value.shape or ()}
    return replace(
        lowering,
        dims={name: size for name, size in lowering.dims.items() if name in dims},
        input_shapes={name: shape for name, shape in lowering.input_shapes.items() if name in inputs},
        set_inputs={name: value for name, value in lowering.set_inputs.items() if name in inputs},
    )
