"""The arguments of the command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rnn_lowering.cli import values
from rnn_lowering.errors import printable, version
from rnn_lowering.limits import MOST_BYTES

_USAGE = """rnn-lower IN.onnx OUT.onnx [options]
       rnn-lower IN.onnx --list [options]
       rnn-lower --help | --targets | --version"""

_EXIT = """exit codes:
  0  written, also when there was nothing to lower
  1  cannot lower, bad model, or a file cannot be read or written; nothing is written unless the message says so
  2  wrong usage
  3  verification failed; OUT.onnx is not written
  4  --list found recurrent nodes
  5  --require-verified, and no comparison was possible; OUT.onnx is not written
  130  interrupted (129 SIGHUP, 143 SIGTERM); nothing is written unless the message says so

An output cannot be a file of the input, a symbolic link, a folder, a FIFO or a device. Existing files are replaced
only with --force, a model and its data file together."""


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:  # argparse's own ignores a full disk
        (file or sys.stderr).write(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options may be between IN.onnx and OUT.onnx too, but for `--`, which argparse then forgets."""
        given = sys.argv[1:] if args is None else list(args)
        parse = super().parse_args if "--" in given else self.parse_intermixed_args
        return parse(given, namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (?:.* )?(--[\w-]+)", message)
        hint = values.meant(unknown[1], self._option_string_actions) if unknown else ""
        super().error(printable(message) + printable(hint))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = _Parser(
        prog="rnn-lower",
        usage=_USAGE,
        description="Replace the RNN, GRU and LSTM nodes of an ONNX model by primitive operators.",
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("input", type=Path, metavar="IN.onnx", help="the model")
    p.add_argument("output", type=Path, metavar="OUT.onnx", nargs="?", help="the file to write")
    p.add_argument(
        "--list",
        action="store_true",
        help="show every recurrent node and the form it would get, inputs and outputs; write nothing",
    )
    _add_forms(p)
    _add_sizes(p)
    _add_limits(p)
    _add_checks(p)
    _add_files(p)
    p.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    p.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="show each run of the comparison; -vv: also the traceback of an error",
    )
    p.add_argument("--version", action="version", version=f"rnn-lower {version()}")
    return p


def _add_forms(p: argparse.ArgumentParser) -> None:
    group = p.add_argument_group("which nodes, in which form")
    group.add_argument(
        "--to",
        choices=("auto", "scan", "loop", "unroll", "keep"),
        default="auto",
        help="form of the lowered nodes (default: auto, the one that the target prefers); keep: do not lower",
    )
    group.add_argument(
        "--target",
        type=values.target,
        metavar="NAME",
        help="the runtime that OUT.onnx is for (default: portable)",
    )
    group.add_argument("--targets", action=_ListTargets, help="show what each runtime supports, and exit")
    group.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="OP|NAME",
        help="lower only these operators or node names (globs)",
    )
    group.add_argument(
        "--except",
        action="append",
        default=[],
        dest="except_",
        metavar="OP|NAME",
        help="do not lower these",
    )
    group.add_argument(
        "--compute",
        choices=("native", "float32"),
        default="native",
        help="float32: compute float16 and bfloat16 nodes in float32 (default: native)",
    )
    group.add_argument("--dequantize", action="store_true", help="convert weights stored as integers to floats")


def _add_sizes(p: argparse.ArgumentParser) -> None:
    group = p.add_argument_group("sizes and inputs of the result")
    group.add_argument(
        "--set-dim",
        action="append",
        default=[],
        type=values.dim,
        metavar="NAME=SIZE",
        help="fix the size of a dimension",
    )
    group.add_argument(
        "--input-shape",
        action="append",
        default=[],
        type=values.shape,
        metavar="NAME:D0,D1,...",
        help="fix the shape of an input",
    )
    group.add_argument(
        "--set-input",
        action="append",
        default=[],
        type=values.input_value,
        metavar="NAME=VALUE|FILE.npy",
        help="make an input a constant, and fold what depends on it",
    )
    group.add_argument(
        "--stream",
        action="append",
        nargs="?",
        default=[],
        type=values.stream,
        metavar="AXIS[=FRAMES]",
        help="make a model that is called chunk by chunk, with its states as inputs and outputs: AXIS is "
        "the name of the time dimension, or INPUT:AXIS; FRAMES the number of frames of each call (default: any); "
        "without AXIS: name those that there are",
    )


def _add_limits(p: argparse.ArgumentParser) -> None:
    group = p.add_argument_group("limits")
    group.add_argument(
        "--max-unroll", type=values.count, default=512, metavar="T", help="the most steps to unroll (default: 512)"
    )
    group.add_argument(
        "--max-nodes",
        type=values.count,
        default=100_000,
        metavar="N",
        help="the most nodes that the model may have after inlining functions (default: 100000)",
    )
    group.add_argument(
        "--max-bytes",
        type=values.byte_count,
        default=MOST_BYTES,
        metavar="N[K|M|G]",
        help="the most bytes of a computed constant, and of the inputs of a run of the comparison (default: 256M)",
    )


def _add_checks(p: argparse.ArgumentParser) -> None:
    group = p.add_argument_group("comparison with the original")
    check = group.add_mutually_exclusive_group()
    check.add_argument(
        "--verify",
        "--runs",
        type=values.count,
        default="3",  # a text: argparse would not see that `--verify 3` excludes `--no-verify`
        metavar="N",
        help="number of runs to compare in onnxruntime (default: 3)",
    )
    check.add_argument("--no-verify", action="store_const", const=0, dest="verify", help="do not compare")
    group.add_argument("--require-verified", action="store_true", help="write nothing if no comparison is possible")
    group.add_argument(
        "--verify-timeout",
        type=values.seconds,
        default=120.0,
        metavar="SECONDS",
        help="time limit for loading a model and for each run; a slower model is not verified (default: 120)",
    )
    group.add_argument(
        "--feed",
        action="append",
        default=[],
        type=values.feed,
        metavar="NAME=FILE.npy",
        help="compare with this input",
    )
    group.add_argument(
        "--test-shape",
        action="append",
        default=[],
        type=values.shape,
        metavar="NAME:D0,...",
        help="compare with an input of this shape",
    )
    group.add_argument(
        "--keep-failed", type=Path, metavar="FILE", help="write a model that fails the comparison here"
    )
    group.add_argument("--rtol", type=values.tolerance, help="relative tolerance (default: by type; float32 1e-4)")
    group.add_argument("--atol", type=values.tolerance, help="absolute tolerance (default: by type; float32 1e-5)")
    group.add_argument("--seed", type=values.count, default=0, help="seed of the random inputs (default: 0)")


def _add_files(p: argparse.ArgumentParser) -> None:
    group = p.add_argument_group("files")
    group.add_argument(
        "--external-data",
        default="auto",
        metavar="auto|always|never|FILE",
        help="whether large tensors are written to a file beside OUT.onnx (default: auto, as in the input)",
    )
    group.add_argument(
        "--trust-external-data", action="store_true", help="read data files outside the folder of IN.onnx"
    )
    group.add_argument(
        "--report",
        type=values.report_file,
        metavar="FILE.json|FILE.html",
        help="write a report as JSON or as an HTML page with plots, also if the comparison fails",
    )
    group.add_argument(
        "--force", action="store_true", help="replace existing files; a data file gets a new name where one exists"
    )


class _ListTargets(argparse.Action):
    """Print the table of targets and exit, also where other arguments are missing."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from rnn_lowering.cli.console import print_targets

        print_targets()
        parser.exit()
