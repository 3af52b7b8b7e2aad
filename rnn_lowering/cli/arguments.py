"""The arguments of the command line: the options, and what their texts mean."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rnn_lowering._version import __version__
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.limits import MOST_BYTES
from rnn_lowering.printable import printable

if TYPE_CHECKING:
    from rnn_lowering.options import Check, Lowering
    from rnn_lowering.types import Array, ArrayLike

T = TypeVar("T")

_EXIT = """exit codes:
  0  written, also when there was nothing to lower
  1  cannot lower, bad model, or a file that cannot be read or written; nothing is written, unless it says so
  2  usage
  3  verification failed; OUT.onnx is not written
  4  --list found recurrent nodes
  5  --require-verified, and no comparison was possible; OUT.onnx is not written
  130  interrupted (129 SIGHUP, 143 SIGTERM); nothing is written, unless it says so

No file to write may be one of the input's, a symbolic link, a folder, a FIFO or a device; what exists is replaced
with --force only, a model and its data file together."""


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:  # that of argparse hides a full disk
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = _Parser(
        prog="rnn-lower",
        description="Replace the RNN, GRU and LSTM nodes of an ONNX model by primitive operators.",
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("input", type=Path, metavar="IN.onnx")
    p.add_argument("output", type=Path, metavar="OUT.onnx", nargs="?")
    p.add_argument(
        "--list", action="store_true", help="show every recurrent node and what would become of it; write nothing"
    )
    _add_forms(p)
    _add_checks(p)
    _add_files(p)
    p.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    p.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="show each run of the comparison; -vv: the traceback of an error too",
    )
    p.add_argument("--version", action="version", version=f"rnn-lower {__version__}")
    return p


def _add_forms(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--to",
        choices=("auto", "scan", "loop", "unroll", "keep"),
        default="auto",
        help="form of the lowered nodes (default: auto, what the target prefers); keep: they stay",
    )
    p.add_argument(
        "--target",
        type=_target,
        metavar="NAME",
        help="the runtime that OUT.onnx is for (default: portable)",
    )
    p.add_argument("--targets", action=_ListTargets, help="show the runtimes and what each takes, and exit")
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
        "--set-input",
        action="append",
        default=[],
        type=_value,
        metavar="NAME=VALUE|FILE.npy",
        help="make an input a constant, and decide what follows from it",
    )
    p.add_argument(
        "--stream",
        action="append",
        default=[],
        type=_stream,
        metavar="AXIS[=FRAMES]",
        help="make a model that is called chunk by chunk, its states inputs and outputs: AXIS is the dimension of "
        "time, or INPUT:AXIS; FRAMES the frames of each call (default: any number)",
    )
    p.add_argument(
        "--max-unroll", type=_count, default=512, metavar="T", help="most steps to write out (default: 512)"
    )
    p.add_argument(
        "--max-nodes",
        type=_count,
        default=100_000,
        metavar="N",
        help="most nodes that inlined functions may give the model (default: 100000)",
    )
    p.add_argument(
        "--max-bytes",
        type=_bytes,
        default=MOST_BYTES,
        metavar="N[K|M|G]",
        help="most bytes of a computed constant, and of the inputs of a run of the comparison (default: 256M)",
    )
    p.add_argument(
        "--compute",
        choices=("native", "float32"),
        default="native",
        help="float32: cast float16 and bfloat16 nodes at their edges (default: native)",
    )
    p.add_argument("--dequantize", action="store_true", help="make floats of weights that are stored as integers")


def _add_checks(p: argparse.ArgumentParser) -> None:
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
    p.add_argument("--require-verified", action="store_true", help="write nothing where no comparison is possible")
    p.add_argument(
        "--verify-timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="for loading a model and for each of its runs; what takes longer is not verified (default: 120)",
    )
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


def _add_files(p: argparse.ArgumentParser) -> None:
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
    p.add_argument(
        "--force", action="store_true", help="replace files that exist; data whose name is taken gets a new one"
    )


class _ListTargets(argparse.Action):
    """Print the table of targets and exit, whatever else is given."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from rnn_lowering.cli.console import print_targets

        print_targets()
        parser.exit()


def _target(text: str) -> str:
    from rnn_lowering.targets.table import TARGETS

    if text not in TARGETS:
        raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join(TARGETS)}")
    return text


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def _bytes(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    if not digits.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of bytes, such as 800M or 4G")
    return int(digits) * factor


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


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _dim(text: str) -> tuple[str, int]:
    name, separator, size = text.rpartition("=")
    if not separator or not size.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=SIZE")
    return name, int(size)


def _stream(text: str) -> tuple[str, int | None]:
    from rnn_lowering.options import parse_stream

    try:
        ((axis, frames),) = parse_stream(text).items()
    except RnnLoweringError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return axis, frames


def _shape(text: str) -> tuple[str, list[int]]:
    name, separator, shape = text.rpartition(":")
    sizes = shape.split(",") if shape else []
    if not separator or not all(size.strip().isdigit() for size in sizes):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:D0,D1,...")
    return name, [int(size) for size in sizes]


def _value(text: str) -> tuple[str, int | float | bool | str]:
    name, _, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"'{text}' names no input")
    if value.endswith(".npy"):
        return name, value
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for number in (int, float):
        with suppress(ValueError):
            return name, number(value)
    raise argparse.ArgumentTypeError(f"'{text}' is neither NAME=NUMBER nor NAME=FILE.npy")


def _feed(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE.npy")
    return name, path


def lowering_options(args: argparse.Namespace) -> Lowering:
    """Return what the arguments say of the lowering."""
    from rnn_lowering.options import Lowering

    return Lowering(
        to=args.to,
        target=args.target or "portable",
        only=args.only,
        except_=args.except_,
        max_unroll=args.max_unroll,
        max_nodes=args.max_nodes,
        max_bytes=args.max_bytes,
        compute=args.compute,
        dequantize=args.dequantize,
        dims=_once(args.set_dim, "--set-dim"),
        input_shapes=_once(args.input_shape, "--input-shape"),
        set_inputs=_read_values(_once(args.set_input, "--set-input")),
        stream=_once(args.stream, "--stream") or None,
    )


def check_options(args: argparse.Namespace) -> Check:
    """Return what the arguments say of the comparison."""
    from rnn_lowering.options import Check, Tolerance

    return Check(
        runs=args.verify,
        seed=args.seed,
        tolerance=Tolerance(args.rtol, args.atol),
        feeds=[_read_feeds(args.feed)] if args.feed else None,
        shapes=_once(args.test_shape, "--test-shape"),
        timeout=args.verify_timeout,
        max_bytes=args.max_bytes,
    )


def _once(pairs: list[tuple[str, T]], option: str) -> dict[str, T]:
    """Return named values; a name that is given two values is an error."""
    result: dict[str, T] = {}
    for name, value in pairs:
        if result.setdefault(name, value) != value:
            raise RnnLoweringError(
                f"{option} gives '{name}' twice: {result[name]} and {value}", hint="give it once"
            )
    return result


def _read_values(given: dict[str, int | float | bool | str]) -> dict[str, ArrayLike]:
    """Return the values of inputs; a text is the name of a .npy file."""
    arrays = _read_feeds([(name, value) for name, value in given.items() if isinstance(value, str)])
    return {name: arrays[name] if isinstance(value, str) else value for name, value in given.items()}


def _read_feeds(files: list[tuple[str, str]]) -> dict[str, Array]:
    """Return the arrays in .npy files by the names of their inputs."""
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
