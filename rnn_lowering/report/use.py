"""How a written model is run: code for its runtime, and the next step after a lowering."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from textwrap import indent
from typing import TYPE_CHECKING

from rnn_lowering.flags import spelled
from rnn_lowering.report.ports import arrays
from rnn_lowering.report.use_stream import host_code
from rnn_lowering.streaming.metadata import host_loop
from rnn_lowering.targets.calls import CALLS, Snippet
from rnn_lowering.targets.installed import PACKAGES, is_here

if TYPE_CHECKING:
    from rnn_lowering.report.file_report import FileReport

_IN_ONNXRUNTIME = ("portable", "onnxruntime")
"""Targets whose models run in onnxruntime, which is here."""

_ON_PAGE = "its report page has the code (--report FILE.html)"

_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "int32": "i32", "int64": "i64"}
"""Types as pnnx spells them."""


def next_steps(report: FileReport) -> Iterator[str]:
    """Yield the lines after that of the written file: how it is run."""
    call = _call(report)
    if report.stream is not None:
        yield from host_loop(report.stream, report.target).splitlines()
    elif call is not None:
        where = "" if report.target in _IN_ONNXRUNTIME else f" in {report.target}"
        yield f"run it{where}: {_line(call, report) or spelled(_ON_PAGE)}"
    if report.target in _IN_ONNXRUNTIME or report.verification.in_target is not None:
        return
    if is_here(report.target):
        yield f"{report.target} is installed: --run-in-target runs the result in it"


def commands(report: FileReport) -> list[str]:
    """Return the commands that convert the result for its runtime; none where it reads ONNX."""
    call, inputs = _call(report), report.lowered.inputs
    shapes = [f"[{','.join(map(str, port.sizes))}]{_SHORT.get(port.dtype or '', '')}" for port in inputs]
    texts = {
        "path": shlex.quote(report.lowered.name),
        "names": shlex.join(port.name for port in inputs),
        "shapes": shlex.quote(",".join(shapes)),
    }
    return [command.format(**texts) for command in call.commands] if call is not None else []


def install(report: FileReport) -> str:
    """Return the command that installs its runtime; "" where it is here, or is not of Python."""
    package = PACKAGES.get(report.target)
    return "" if package is None or report.target in _IN_ONNXRUNTIME else package.install


def code(report: FileReport) -> list[str]:
    """Return Python code that runs the result in its target, line by line; none where no row has it."""
    if report.stream is not None and report.target in _IN_ONNXRUNTIME:
        return _by_stream(report)
    start, inputs, outputs = _functions(report), report.lowered.inputs, report.lowered.outputs
    once = ["outputs = run({", *arrays(inputs), "})"]
    use = once if report.stream is None else host_code(report.stream, inputs, outputs)
    return [*start, *use] if start and use else []


def _functions(report: FileReport) -> list[str]:
    """Return code that loads the result and has a function `run`; none where no row has it."""
    call, inputs, outputs = _call(report), report.lowered.inputs, report.lowered.outputs
    if call is None:
        return []
    texts = {
        '"model.onnx"': repr(report.lowered.name),
        "INPUTS": repr([port.name for port in inputs]),
        "OUTPUTS": repr([port.name for port in outputs]),
        "SHAPES": repr({port.name: port.sizes for port in inputs}),
        "ZEROS": f"[{', '.join(port.zeros for port in outputs)}]",
    }
    text = f"import numpy as np\n{call.load}\n\n\ndef run(inputs):\n{indent(call.run, '    ')}\n\n\n"
    return re.sub("|".join(texts), lambda token: texts[token[0]], text).split("\n")[:-1]


def _call(report: FileReport) -> Snippet | None:
    return CALLS.get("onnxruntime" if report.target in _IN_ONNXRUNTIME else report.target)


def _line(call: Snippet, report: FileReport) -> str:
    named = [(port.name, port.name if port.name.isidentifier() else "...") for port in report.lowered.inputs]
    return call.line.format(
        file=repr(str(report.destination)),
        feed="{" + ", ".join(f"{name!r}: {value}" for name, value in named) + "}",
        values=f"[{', '.join(value for _, value in named)}]",
        outputs=repr([port.name for port in report.lowered.outputs]),
    )


def _by_stream(report: FileReport) -> list[str]:
    assert report.stream is not None
    states = {state.input for state in report.stream.states}
    inputs = arrays([port for port in report.lowered.inputs if port.name not in states])
    call = ["outputs = stream({  # a chunk; call it again with the next", *inputs, "})"]
    if report.stream.frames_late:
        call.append("last = stream.flush()  # after the last chunk: the frames that come late")
    start = ["import numpy as np, rnn_lowering", "", f"stream = rnn_lowering.Stream({report.lowered.name!r})"]
    return [*start, *call, "stream.reset()  # before a new sequence"]
