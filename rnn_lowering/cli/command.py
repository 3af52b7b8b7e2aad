"""The command: parse arguments, call the Python interface, return an exit code."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rnn_lowering.cli.arguments import options_of, parser
from rnn_lowering.cli.signals import Interrupted, printing, unwinding
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.errors import (
    NotVerifiedError,
    OptionError,
    RnnLoweringError,
    RnnLoweringWarning,
    UnsupportedError,
    VerificationError,
    boundary,
    documentation,
    printable,
)
from rnn_lowering.files.options import Files
from rnn_lowering.files.scratch import remove_scratch
from rnn_lowering.flags import for_command
from rnn_lowering.options import Lowering

__all__ = ["main", "parser"]


_STANDARD = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    with for_command():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = _arguments(argv)
    except RnnLoweringError as error:
        return _fail(error, 1, 0)
    before = _identity(args.output)
    try:
        with boundary():
            if _asks_for_axes(args):
                return _show_axes(args)
            with unwinding():
                options = _options(args)
                return _list(args, *options) if args.list else _lower(args, *options)
    except VerificationError as error:
        _show_runs(error, args)
        return _fail(error, 5 if isinstance(error, NotVerifiedError) else 3, args.verbose)
    except RnnLoweringError as error:
        return _fail(error, 1, args.verbose)
    except KeyboardInterrupt as error:
        done = "nothing was written" if _identity(args.output) == before else f"'{args.output}' is written"
        print(f"rnn-lower: interrupted; {done}", file=sys.stderr)
        return error.code if isinstance(error, Interrupted) else 130  # 128 + SIGINT, as in shells
    finally:
        remove_scratch()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser()
    try:
        with printing():
            args = p.parse_args(argv)
            args.command = shlex.join(["rnn-lower", *(sys.argv[1:] if argv is None else argv)])
    except SystemExit:
        with printing():  # flush the help
            pass
        raise
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot
    if args.input == _STANDARD:
        args.input = Path("/dev/stdin")
    if args.output == _STANDARD:
        p.error("OUT.onnx cannot be stdout (-): name a file")
    if args.output is None and not args.list and not _asks_for_axes(args):
        p.error("OUT.onnx is missing; name the file to write, or add --list")
    if "require_verified" in args and vars(args).get("runs") == 0:
        p.error("--require-verified needs a comparison; drop it, or compare 1 run or more")
    if "bits" in args and "calibrate" not in args:
        p.error("--bits needs a calibration; add --calibrate, or drop --bits")
    if args.list and "report" in args:
        p.error("--list writes no report; drop --report or --list")
    if args.quiet and args.verbose:
        p.error("-q prints less and -v prints more; drop one of them")
    return args


def _options(args: argparse.Namespace) -> tuple[Lowering, Check, Files]:
    """Return the options. One that is wrong for every model ends the program, as wrong usage does."""
    try:
        tolerance = options_of(Tolerance, args)
        return options_of(Lowering, args), options_of(Check, args, tolerance=tolerance), options_of(Files, args)
    except OptionError as error:
        parser().error(str(error))


def _asks_for_axes(args: argparse.Namespace) -> bool:
    """Whether --stream names no axis."""
    return None in vars(args).get("stream", ())


def _show_axes(args: argparse.Namespace) -> int:
    """List the axes of the model's inputs; that is an error if a file was to be written, or the nodes listed."""
    from rnn_lowering.files.reading import load_model
    from rnn_lowering.streaming.time_axes import time_inputs

    model = load_model(args.input, trust_external_data=options_of(Files, args).trust_external_data)
    try:
        time_inputs(model, {})
    except UnsupportedError as error:
        if args.output is not None or args.list:
            return _fail(error, 2, args.verbose)
        with printing():
            print(printable(f"{args.input}: {error.hint}"))
    return 0


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return the inode and time of a file: they change when it is replaced."""
    try:
        status = path.stat() if path else None
    except (OSError, ValueError):
        return None
    return status and (status.st_ino, status.st_mtime_ns)


def _fail(error: RnnLoweringError, code: int, verbose: int) -> int:
    if verbose > 1:
        lines = "".join(traceback.format_exception(error)).split("\n")
        print(*map(printable, lines), sep="\n", file=sys.stderr)
    address = documentation(error.page)
    more = f" (see {address})" if address else ""
    print(f"rnn-lower: error: {error}{more}", file=sys.stderr)
    return code


def _show_runs(error: VerificationError, args: argparse.Namespace) -> None:
    if args.verbose and not args.quiet and error.report is not None and error.report.verification is not None:
        from rnn_lowering.cli.console import print_runs

        with suppress(RnnLoweringError), printing():
            print_runs(error.report.verification)


@contextmanager
def _warnings(quiet: bool) -> Iterator[None]:
    """Print the warnings of this package as soon as they are issued, and no others."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, RnnLoweringWarning) and not quiet:
            print(f"rnn-lower: warning: {printable(message)}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RnnLoweringWarning)
        warnings.showwarning = show
        yield


def _list(args: argparse.Namespace, lowering: Lowering, _: Check, files: Files) -> int:
    from rnn_lowering.cli.console import print_previews
    from rnn_lowering.files.reading import load_model
    from rnn_lowering.passes.lower import LowerRecurrentPass

    with _warnings(args.quiet):
        lowers = LowerRecurrentPass(lowering)
        model = load_model(args.input, trust_external_data=files.trust_external_data)
        previews, report = lowers.preview(model)
        if not args.quiet:
            with printing():
                print_previews(previews, report, args.input, model.graph)
    return 4 if any(preview.counts for preview in previews) else 0


def _lower(args: argparse.Namespace, lowering: Lowering, check: Check, files: Files) -> int:
    from rnn_lowering.cli.console import print_report, progress_bar
    from rnn_lowering.file_lowering import FileLowering

    with _warnings(args.quiet), nullcontext() if args.quiet else progress_bar() as show:
        report = FileLowering(
            source=args.input,
            destination=args.output,
            lowering=lowering,
            check=check,
            files=files,
            progress=show,
            command=args.command,
        ).run()
    if args.quiet:
        return 0
    with printing(f"'{args.output}' is written"):
        print_report(report, args.input, args.output, each_run=args.verbose > 0)
    return 0
