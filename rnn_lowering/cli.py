"""The command line: arguments, printing and exit codes, nothing else."""

from __future__ import annotations

import argparse
import io
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rnn_lowering import __version__
from rnn_lowering.errors import RnnLoweringError, RnnLoweringWarning, VerificationError

if TYPE_CHECKING:
    from rich.console import Console

    from rnn_lowering.compare import Array
    from rnn_lowering.report import Report
    from rnn_lowering.spec import RecurrentSpec

T = TypeVar("T")

_EXIT = """exit codes:
  0  written, also when there was nothing to lower
  1  cannot lower, bad model, or a file that cannot be read or written; nothing is written
  2  usage
  3  verification failed; OUT.onnx is not written
  4  --list found recurrent nodes"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser(
        prog="rnn-lower",
        description="Replace the RNN, GRU and LSTM nodes of an ONNX model by primitive operators.",
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("input", type=Path, metavar="IN.onnx")
    p.add_argument("output", type=Path, metavar="OUT.onnx", nargs="?")
    p.add_argument("--list", action="store_true", help="show every recurrent node and write nothing")
    p.add_argument(
        "--to",
        choices=("auto", "scan", "loop", "unroll"),
        default="auto",
        help="form of the lowered nodes (default: auto)",
    )
    p.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="OP|NAME",
        help="lower only these operators or node names (globs)",
    )
    p.add_argument(
        "--except",
        action="append",
        default=[],
        dest="except_",
        metavar="OP|NAME",
        help="leave these as they are",
    )
    p.add_argument(
        "--set-dim", action="append", default=[], type=_dim, metavar="NAME=SIZE", help="fix a symbolic dimension"
    )
    p.add_argument(
        "--input-shape", action="append", default=[], type=_shape, metavar="NAME:D0,D1,...", help="fix an input"
    )
    p.add_argument(
        "--max-unroll", type=_count, default=512, metavar="T", help="most steps to write out (default: 512)"
    )
    p.add_argument(
        "--compute",
        choices=("native", "float32"),
        default="native",
        help="float32: cast float16 and bfloat16 nodes at their edges (default: native)",
    )
    check = p.add_mutually_exclusive_group()
    check.add_argument(
        "--verify",
        "--runs",
        type=_count,
        default=3,
        metavar="N",
        help="runs to compare in onnxruntime (default: 3)",
    )
    check.add_argument("--no-verify", action="store_const", const=0, dest="verify", help="do not compare")
    p.add_argument(
        "--feed", action="append", default=[], type=_feed, metavar="NAME=FILE.npy", help="compare with this input"
    )
    p.add_argument(
        "--test-shape",
        action="append",
        default=[],
        type=_shape,
        metavar="NAME:D0,...",
        help="compare at this shape",
    )
    p.add_argument("--keep-failed", type=Path, metavar="FILE", help="write a model that fails the comparison here")
    p.add_argument("--rtol", type=_tolerance, help="relative tolerance (default: by type; float32 1e-4)")
    p.add_argument("--atol", type=_tolerance, help="absolute tolerance (default: by type; float32 1e-5)")
    p.add_argument("--seed", type=_count, default=0, help="seed of the random inputs (default: 0)")
    p.add_argument(
        "--external-data",
        default="auto",
        metavar="auto|always|never|FILE",
        help="where large tensors go: a file beside OUT.onnx, or into it (default: auto, like the input)",
    )
    p.add_argument(
        "--trust-external-data", action="store_true", help="read data files outside the folder of IN.onnx"
    )
    p.add_argument(
        "--report",
        type=_report,
        metavar="FILE.json|FILE.html",
        help="write what was done as JSON, or as a page with plots; a failed comparison gets it too",
    )
    p.add_argument("--force", action="store_true", help="replace OUT.onnx if it exists")
    p.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    p.add_argument("-v", "--verbose", action="count", default=0, help="-vv: show the traceback of an error")
    p.add_argument("--version", action="version", version=f"rnn-lower {__version__}")
    return p


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def _report(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".json", ".html"):
        raise argparse.ArgumentTypeError(f"'{text}' ends in neither .json nor .html")
    return path


def _tolerance(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def _dim(text: str) -> tuple[str, int]:
    name, separator, size = text.rpartition("=")
    if not separator or not size.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=SIZE")
    return name, int(size)


def _shape(text: str) -> tuple[str, list[int]]:
    name, separator, shape = text.rpartition(":")
    sizes = shape.split(",") if shape else []
    if not separator or not all(size.strip().isdigit() for size in sizes):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:D0,D1,...")
    return name, [int(size) for size in sizes]


def _feed(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE.npy")
    return name, path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    p = parser()
    args = p.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot
    if args.output is None and not args.list:
        p.error("OUT.onnx is missing (or give --list)")
    try:
        return _list(args) if args.list else _lower(args)
    except VerificationError as error:
        return _fail(error, 3, args.verbose)
    except RnnLoweringError as error:
        return _fail(error, 1, args.verbose)
    except KeyboardInterrupt:
        print("rnn-lower: interrupted; nothing was written", file=sys.stderr)
        return 1


def _fail(error: RnnLoweringError, code: int, verbose: int) -> int:
    if verbose > 1:
        traceback.print_exception(error)
    print(f"rnn-lower: error: {error}", file=sys.stderr)
    return code


def _once(pairs: list[tuple[str, T]], option: str) -> dict[str, T]:
    """Return named values; a name that is given two values is an error."""
    result: dict[str, T] = {}
    for name, value in pairs:
        if result.setdefault(name, value) != value:
            raise RnnLoweringError(
                f"{option} gives '{name}' twice: {result[name]} and {value}", hint="give it once"
            )
    return result


def _read_feeds(files: list[tuple[str, str]]) -> dict[str, Array]:
    import numpy as np

    feed = {}
    for name, path in files:
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise RnnLoweringError(f"cannot read '{path}' for input '{name}': {error}") from error
        if not isinstance(array, np.ndarray):
            raise RnnLoweringError(f"'{path}' holds several arrays", hint="give one .npy file for each input")
        feed[name] = array
    return feed


def _list(args: argparse.Namespace) -> int:
    from rnn_lowering.api import inspect

    specs = inspect(args.input)
    if not args.quiet:
        _console().print(_spec_table(specs) if specs else f"{args.input}: no recurrent nodes")
    return 4 if specs else 0


def _lower(args: argparse.Namespace) -> int:
    from rnn_lowering.api import lower_file
    from rnn_lowering.compare import Tolerance
    from rnn_lowering.errors import ModelFileError

    if _exists(args.output) and not args.force:
        raise ModelFileError(f"'{args.output}' exists", hint="give --force to replace it")
    with warnings.catch_warnings(record=True) as caught, _progress() as show_progress:
        warnings.simplefilter("always", RnnLoweringWarning)
        report = lower_file(
            args.input,
            args.output,
            args.to,
            only=args.only,
            except_=args.except_,
            max_unroll=args.max_unroll,
            compute=args.compute,
            dims=_once(args.set_dim, "--set-dim"),
            input_shapes=_once(args.input_shape, "--input-shape"),
            verify=args.verify,
            tolerance=Tolerance(args.rtol, args.atol),
            seed=args.seed,
            feeds=[_read_feeds(args.feed)] if args.feed else None,
            test_shapes=_once(args.test_shape, "--test-shape"),
            keep_failed=args.keep_failed,
            report=args.report,
            external_data=args.external_data,
            trust_external_data=args.trust_external_data,
            progress=None if args.quiet else show_progress,
        )
    for warning in caught:
        if issubclass(warning.category, RnnLoweringWarning):
            print(f"rnn-lower: warning: {warning.message}", file=sys.stderr)
    if not args.quiet:
        _print_report(report, args)
    return 0


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have this name: writing will say so
        return False


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows a bar, on a terminal and after the first second."""
    from rich.progress import Progress

    start = time.monotonic()
    bar = Progress(console=_console(), transient=True)
    task = bar.add_task("writing tensors")

    def show(done: int, total: int) -> None:
        if sys.stdout.isatty() and time.monotonic() - start > 1:
            bar.start()
            bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 100_000  # a pipe gets whole lines
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def _size(number: int | None) -> str:
    return "?" if number is None else str(number)


def _spec_table(specs: Sequence[RecurrentSpec]) -> object:
    from rich.table import Table

    table = Table("node", "operator", "scope", "direction", "T", "N", "I", "H", "type", "activations", box=None)
    for s in specs:
        sizes = [_size(n) for n in (s.seq_length, s.batch_size, s.input_size, s.hidden_size)]
        direction = s.directions[0] if len(s.directions) == 1 else "bidirectional"
        activations = ", ".join(str(a) for per_direction in s.activations for a in per_direction)
        table.add_row(
            s.node.name,
            f"{s.op_type}-{s.version}",
            s.node.scope,
            direction,
            *sizes,
            s.dtype.name.lower(),
            activations,
        )
    return table


def _print_report(report: Report, args: argparse.Namespace) -> None:
    from rich.table import Table

    console = _console()
    if not report.nodes:
        console.print(f"{args.input}: nothing to lower; written unchanged to {args.output}")
    else:
        table = Table("node", "operator", "direction", "T", "N", "I", "H", "form", box=None)
        for n in report.nodes:
            sizes = [_size(s) for s in (n.seq_length, n.batch_size, n.input_size, n.hidden_size)]
            table.add_row(n.name, f"{n.operator}-{n.version}", n.direction, *sizes, n.form)
        console.print(table)
        console.print(_operator_table(report))
    for text in report.notes:
        console.print(text)
    for text in report.left:
        console.print(f"left as it is: {text}")
    if report.verification is not None:
        console.print(_verification_line(report))
    if report.nodes:
        console.print(f"written to {args.output}")


def _operator_table(report: Report) -> object:
    from rich.table import Table

    before, after = report.operators_before, report.operators_after
    table = Table("operator", "before", "after", box=None)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name, 0) != after.get(name, 0):
            table.add_row(name, str(before.get(name, 0)), str(after.get(name, 0)))
    table.add_row("all", str(sum(before.values())), str(sum(after.values())))
    return table


def _verification_line(report: Report) -> str:
    check = report.verification or {}
    if check["status"] != "verified":
        return f"{check['status']}: {check['reason']}"
    return f"verified ({check['method']}): {check['runs']} runs, largest difference {check['max_abs']:.2g}"
