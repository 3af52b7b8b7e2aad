"""The arguments of the command line. An option is a field of the options of its room."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, get_args

from rnn_lowering.argument_checks import GROUPS, Option, meant
from rnn_lowering.cli.texts import TEXTS, OneValue, folder, model_file, one_of
from rnn_lowering.compare.options import Check, Tolerance
from rnn_lowering.errors import OptionError, printable, version
from rnn_lowering.files.options import Files
from rnn_lowering.options import FORMS, Lowering
from rnn_lowering.targets.names import TargetName

_USAGE = """rnn-lower IN.onnx OUT.onnx [options]
       rnn-lower IN.onnx ... --out-dir DIR [options]
       rnn-lower IN.onnx ... --list [options]"""

_DESCRIPTION = """Replace recurrent nodes of ONNX models (LSTM, GRU, ...) with MatMul, Add, ...

  rnn-lower model.onnx --list                                  what is in it
  rnn-lower model.onnx out.onnx --target tvm --set-dim seq=16  for one runtime
  rnn-lower model.onnx step.onnx --stream seq=1                frame by frame"""

_CODES = """exit codes: 0 written, 1 not possible, 2 wrong usage, 3 wrong result,
4 --list found nodes, 5 not compared, 130 interrupted; --help-all says more"""

_EXIT = """exit codes:
  0  OUT.onnx is written, even if there was nothing to lower; --list found nothing to lower
  1  cannot lower, bad model, or a file cannot be read or written; nothing is written unless the message says so
  2  wrong usage
  3  verification failed, or the target does not run the result (--run-in-target); OUT.onnx is not written
  4  --list found recurrent nodes, or Loops and Scans that would be lowered, and none is refused
  5  --require-verified or --run-in-target, and no comparison was possible; OUT.onnx is not written
     --require-proven, and a node is not proven; OUT.onnx is not written
  130  interrupted (129 SIGHUP, 143 SIGTERM); nothing is written unless the message says so

Of several models the highest code counts.
OUT.onnx cannot be a file of the input, a symbolic link, a folder, a FIFO or a device.
Existing files are replaced only with --force; a model and its data file are replaced together.
A quantized stream with an output below 10 dB is written only with --force."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Each line of a description is wrapped on its own, below its text; a command stays whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_wrapped(line, width) for line in text.splitlines())


def _wrapped(line: str, width: int) -> str:
    head = re.match(r"  (?:\d+  )?", line)
    if line.startswith("  rnn-lower "):
        return line
    below = " " * len(head[0]) if head else ""
    return textwrap.fill(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)


_OTHER_WORDS = {
    "--list": ("--dryrun", "--preview", "--inspect", "--show", "--info"),
    "--verify": ("--runs",),
    "--calibrate": ("--quantize",),
    "--set-dim": ("--dim", "--dims"),
}
"""By flag what other programs call it."""

_OUTPUT = ("-o", "--out", "--output")


def _meant(unknown: str, known: Collection[str]) -> str:
    """Return "did you mean ...?" for a flag that does not exist; it may be a form or a target."""
    if unknown in _OUTPUT:
        return "; name the result without a flag: rnn-lower IN.onnx OUT.onnx"
    bare = unknown.lstrip("-")
    of_others = [flag for flag, words in _OTHER_WORDS.items() if unknown in words]
    begun = [flag for flag in known if flag.startswith(unknown) and bare]
    names = [f"--target {bare}" for name in get_args(TargetName) if name == bare]
    flag = next(iter(of_others or begun or names), "")
    if flag:
        return f"; did you mean {flag}?"
    form = meant(bare, FORMS, alike=_ALIKE).replace("did you mean ", "did you mean --to ")
    like = meant(bare, [flag.removeprefix("--") for flag in known]).replace("did you mean ", "did you mean --")
    return form or like or "; --help-all shows all options"


_ALIKE = 0.8
"""How alike a flag and a form are where the form is meant."""


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:  # argparse's own ignores a full disk
        (file or sys.stderr).write(message)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options may be between IN.onnx and OUT.onnx too, unless `--` is given: argparse would drop it."""
        texts = sys.argv[1:] if args is None else list(args)
        parse = super().parse_args if "--" in texts else self.parse_intermixed_args
        return parse(texts, namespace)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (?:.* )?(--?[a-z][\w-]*)", message)
        hint = _meant(unknown[1], self._option_string_actions) if unknown else ""
        self.exit(2, f"rnn-lower: error: {printable(message)}{printable(hint)}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = _Parser(
        prog="rnn-lower",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EXIT,
        formatter_class=_Help,
        add_help=False,
        allow_abbrev=False,
    )
    p.add_argument("models", type=model_file, metavar="IN.onnx", nargs="*", help="the model; - is stdin")
    _add_general(p.add_argument_group("general"))
    groups = {group.title: p.add_argument_group(group.title) for group in GROUPS}
    _add_options(groups)
    files = groups[GROUPS[-1].title]
    files.add_argument(
        "--out-dir",
        action=OneValue,
        type=folder,
        metavar="DIR",
        help="write the result of each model to this folder",
    )
    files.add_argument("--keep-going", action="store_true", help="of several models, go on after an error")
    return p


def _add_general(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-h", "--help", action=_Show, show=lambda p, _: print_brief(p), help="show the most used options, and exit"
    )
    group.add_argument("--help-all", action=_Show, show=_print_help, help="show all options, and exit")
    group.add_argument(
        "--list",
        "--dry-run",
        action="store_true",
        help="list the recurrent nodes with their forms, the inputs and the outputs; write nothing",
    )
    group.add_argument("--json", action="store_true", help="with --list: print JSON, an entry for each model")
    group.add_argument(
        "--targets",
        action=_Show,
        show=_print_targets,
        nargs="*",
        metavar="NAME",
        help="show what each runtime supports, or those that are named, and exit",
    )
    group.add_argument(
        "-q", "--quiet", action="store_true", help="print errors, and a comparison that a limit ended"
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="show each node, operator and run of the comparison; -vv: also show the traceback of an error",
    )
    group.add_argument(
        "--completion", action=_Complete, metavar="SHELL", help="print what completes options in bash, zsh or fish"
    )
    group.add_argument("--version", action=_Show, show=_print_version, help="show the version and exit")


def _add_options(groups: Mapping[str, argparse._ArgumentGroup]) -> None:
    """Add the options that fields declare; the parsed arguments lack an option that is not used."""
    for declared in (field for kind in (Lowering, Check, Tolerance, Files) for field in fields(kind)):
        option: Option = declared.metadata["option"]
        if not option.flag:
            continue
        default = f"{declared.default:g}" if isinstance(declared.default, float) else str(declared.default)
        settings = {"help": option.help.replace("{default}", default), **TEXTS[option.kind].settings}
        if option.metavar:
            settings |= {"metavar": option.metavar}
        if option.choices:
            settings |= {"metavar": f"{{{','.join(option.choices)}}}", "type": one_of(option)}
        groups[option.group].add_argument(option.flag, dest=declared.name, default=argparse.SUPPRESS, **settings)


_BRIEF = {
    "--list": "list the recurrent nodes and inputs; write nothing",
    "--targets": "list the runtimes, and what each supports",
    "--target": "the runtime that will run OUT.onnx",
    "--to": "scan, loop, unroll (no loop), chunked or keep",
    "--set-dim": "fix the size of a dimension",
    "--set-shape": "fix the shape of an input",
    "--stream": "make a model that is called chunk by chunk",
    "--open-dim": "make a fixed axis dynamic",
    "--verify": "comparison runs (default: 3; 0: do not compare)",
    "--run-in-target": "then run OUT.onnx in its runtime, and compare",
    "--report": "write a report with plots (or .json)",
    "--out-dir": "lower several models into a folder",
    "--force": "replace existing files",
    "--help-all": "show all options",
}
"""The options of --help, each with a line."""


def print_brief(p: argparse.ArgumentParser, file: Any = None) -> None:
    """Print a help that fits on a screen of 80 x 40; to stdout, or another file."""
    lines = []
    for flag, text in _BRIEF.items():
        action = p._option_string_actions[flag]
        metavar = _SHORT.get(flag, action.metavar or "")
        lines.append(f"  {f'{flag} {metavar}':<28}{text}".rstrip())
    text = "\n".join([f"usage: {_USAGE}", "", _DESCRIPTION, "", "options:", *lines, "", _CODES, ""])
    p._print_message(text, file or sys.stdout)


def _print_help(p: argparse.ArgumentParser, _: Sequence[str]) -> None:
    p.print_help()


def _print_targets(p: argparse.ArgumentParser, names: Sequence[str]) -> None:
    from rnn_lowering.cli.console import print_targets

    try:
        print_targets(names)
    except OptionError as error:
        p.error(str(error))


_SHORT = {"--to": "FORM", "--report": "FILE.html", "--targets": ""}
"""What stands for a value there, if it is shorter."""


def _print_version(parser: argparse.ArgumentParser, _: Any) -> None:
    parser._print_message(f"rnn-lower {version()}\n", sys.stdout)


class _Show(argparse.Action):
    """Print something and exit, even if other arguments are missing."""

    def __init__(self, option_strings: Sequence[str], dest: str, show: Any, nargs: Any = 0, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=nargs, **options)
        self.show = show

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any) -> None:
        self.show(parser, values)
        parser.exit()


class _Complete(argparse.Action):
    """Print the completion of a shell and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, *_: Any) -> None:
        try:
            import shtab
        except ImportError:
            parser.error("--completion needs shtab 1.8 or later: pip install shtab")
        shells = ("bash", "zsh", "fish")
        if shell not in shells:
            parser.error(f"--completion knows {', '.join(shells)}, not '{shell}'")
        parser._print_message(shtab.complete(parser, shell), sys.stdout)
        parser.exit()
