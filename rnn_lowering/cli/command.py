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

from rnn_lowering.cli.arguments import parser, print_brief
from rnn_lowering.cli.signals import Interrupted, printing, unwinding
from rnn_lowering.cli.texts import options_of
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.errors import (
    NotVerifiedError,
    OptionError,
    RnnLoweringError,
    RnnLoweringWarning,
    UnfinishedWarning,
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
                if args.several:
                    return _all(args, *options)
                return _list(args, *options) if args.list else _lower(args, *options)
    except RnnLoweringError as error:
        return _failed(error, args)
    except KeyboardInterrupt as error:
        done = "nothing was written" if _identity(args.output) == before else f"'{args.output}' is written"
        print(f"rnn-lower: interrupted; {done}", file=sys.stderr)
        return error.code if isinstance(error, Interrupted) else 130  # 128 + SIGINT, as in shells
    finally:
        remove_scratch()


def _failed(error: RnnLoweringError, args: argparse.Namespace, source: Path | None = None) -> int:
    """Print why a model is not lowered; return the exit code."""
    code = 1
    if isinstance(error, VerificationError):
        _show_runs(error, args)
        code = 5 if isinstance(error, NotVerifiedError) else 3
    return _fail(error, code, args.verbose, source)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = parser()
    try:
        with printing():
            if not (sys.argv[1:] if argv is None else argv):
                print_brief(p, sys.stderr)
                p.exit(2)
            args = p.parse_args(argv)
            args.command = shlex.join(["rnn-lower", *(sys.argv[1:] if argv is None else argv)])
    except SystemExit:
        with printing():  # flush the help
            pass
        raise
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot
    _take_models(p, args)
    for contradiction in _contradictions(args):
        p.error(contradiction)
    return args


def _take_models(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Tell the model, its output and several models apart."""
    models: list[Path] = args.models
    if not models:
        p.error("IN.onnx is missing; name the model")
    args.input, args.output, args.several = models[0], None, False
    if args.list and len(models) == 2 and models[1] != _STANDARD and not models[1].exists():
        models.pop()  # the output of a lowering that is only tried
    if args.out_dir is not None or (args.list and len(models) > 1):
        args.several = True
    elif len(models) == 2:
        args.output = models[1]
    elif len(models) > 2:
        p.error("several models need a folder for their results: add --out-dir DIR, or --list")
    if args.several and _STANDARD in models:
        p.error("one of several models cannot be stdin (-): name a file")
    if args.input == _STANDARD:
        args.input = Path("/dev/stdin")
    if args.output == _STANDARD:
        p.error("OUT.onnx cannot be stdout (-): name a file")
    if args.output is None and not (args.list or args.several or _asks_for_axes(args)):
        p.error("OUT.onnx is missing; name the file to write, or add --list")


_OF_ONE = {"also": "--also", "report": "--report", "keep_failed": "--keep-failed", "calibrate": "--calibrate"}


def _contradictions(args: argparse.Namespace) -> Iterator[str]:
    """Yield what is wrong with options that do not fit each other."""
    if "require_verified" in args and vars(args).get("runs") == 0:
        yield "--require-verified needs a comparison; drop it, or compare 1 run or more"
    if "require_proven" in args and vars(args).get("runs") == 0:
        yield "--require-proven needs a comparison; drop it, or compare 1 run or more"
    if "calibrate" in args and "stream" not in args:
        yield "only a stream can be calibrated; add --stream AXIS=1 (AXIS: the time dimension)"
    if "target_python" in args and "run_in_target" not in args:
        yield "--target-python needs a run; add --run-in-target, or drop it"
    if "run_in_target" in args and vars(args).get("target", "portable") == "portable":
        yield "--run-in-target needs a runtime; add --target NAME"
    if "bits" in args and "calibrate" not in args:
        yield "--bits needs a calibration; add --calibrate, or drop --bits"
    if args.list and "report" in args:
        yield "--list writes no report; drop --report or --list"
    if args.list and args.out_dir is not None:
        yield "--list writes nothing; drop --out-dir or --list"
    if args.json and not args.list:
        yield "--json prints a list; add --list, or name a report: --report FILE.json"
    if args.quiet and (args.verbose or args.json):
        yield f"-q prints less and {'--json' if args.json else '-v'} prints more; drop one of them"
    if args.keep_going and not args.several:
        yield "--keep-going needs several models; add --out-dir DIR, or drop it"
    if args.several:
        yield from (f"{flag} needs one model; drop it" for name, flag in _OF_ONE.items() if name in args)
        if _asks_for_axes(args):
            yield "--stream needs an AXIS; rnn-lower MODEL.onnx --stream lists them"


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
    """List the axes of the model's inputs; that is an error if a file was to be written."""
    from rnn_lowering.files.reading import load_model
    from rnn_lowering.streaming.sizes import time_inputs

    model = load_model(args.input, trust_external_data=options_of(Files, args).trust_external_data)
    try:
        time_inputs(model, {})
    except UnsupportedError as error:
        if args.output is not None:
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


def _fail(error: RnnLoweringError, code: int, verbose: int, source: Path | None = None) -> int:
    if verbose > 1:
        lines = "".join(traceback.format_exception(error)).split("\n")
        print(*map(printable, lines), sep="\n", file=sys.stderr)
    address = documentation(error.page)
    more = f" (see {address})" if address else ""
    where = "" if source is None else f"{printable(source)}: "
    print(f"rnn-lower: error: {where}{error}{more}", file=sys.stderr)
    return code


def _show_runs(error: VerificationError, args: argparse.Namespace) -> None:
    if args.verbose and not args.quiet and error.report is not None:
        from rnn_lowering.cli.console import print_runs

        with suppress(RnnLoweringError), printing():
            print_runs(error.report.verification)


@contextmanager
def _warnings(quiet: bool) -> Iterator[None]:
    """Print the warnings of this package as soon as they are issued, and no others; if quiet, only that a limit
    ended a comparison."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, UnfinishedWarning if quiet else RnnLoweringWarning):
            print(f"rnn-lower: warning: {printable(message)}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RnnLoweringWarning)
        warnings.showwarning = show
        yield


def _list(args: argparse.Namespace, lowering: Lowering, _: Check, files: Files) -> int:
    from rnn_lowering.cli.listing import Listing, print_json, print_listing
    from rnn_lowering.files.reading import load_model

    with _warnings(args.quiet):
        model = load_model(args.input, trust_external_data=files.trust_external_data)
        listing = Listing.of(args.input, model, lowering)
        if not args.quiet:
            with printing():
                print_json([listing.to_dict()]) if args.json else print_listing(listing)
    return listing.code


def _all(args: argparse.Namespace, lowering: Lowering, check: Check, files: Files) -> int:
    from rnn_lowering.cli.console import progress_bar
    from rnn_lowering.cli.several import Series, places

    def fail(path: Path, error: RnnLoweringError) -> int:
        return _failed(error, args, path)

    series = Series(lowering, check, files, fail, args.keep_going)
    with _warnings(args.quiet):
        if args.list:
            with printing():
                return series.list(args.models, as_json=args.json, quiet=args.quiet)
        with nullcontext() if args.quiet else progress_bar() as show:
            code = series.lower(places(args.models, args.out_dir), args.command, show)
        if not args.quiet:
            with printing():
                series.print(args.out_dir)
        return code


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
        print_report(report, verbose=args.verbose > 0)
    return 0
