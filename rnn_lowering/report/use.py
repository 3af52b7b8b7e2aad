"""How a written model is run: code for its runtime, and the next step after a lowering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rnn_lowering.streaming.metadata import host_loop
from rnn_lowering.targets.installed import PACKAGES, is_here

if TYPE_CHECKING:
    from rnn_lowering.report.file_report import FileReport, Port

_IN_ONNXRUNTIME = ("portable", "onnxruntime")
"""Targets whose models run in onnxruntime, which is here."""


def next_steps(report: FileReport) -> Iterator[str]:
    """Yield the lines after that of the written file: how it is run."""
    name = repr(str(report.destination))
    if report.stream is not None:
        yield from host_loop(report.stream, report.target).splitlines()
    elif statements := _statements(report, name, {port.name: _variable(port) for port in report.lowered.inputs}):
        where = "" if report.target in _IN_ONNXRUNTIME else f" in {report.target}"
        yield f"run it{where}: {'; '.join(statements)}"
    if report.target in _IN_ONNXRUNTIME or report.verification.in_target is not None:
        return
    if is_here(report.target):
        yield f"{report.target} is installed: --run-in-target runs the result in it"


def code(report: FileReport) -> list[str]:
    """Return Python code that runs the result in its target, line by line; none where no row has it."""
    name = repr(report.lowered.name)
    if report.stream is not None:
        return _code_of_stream(report, name) if report.target in _IN_ONNXRUNTIME else []
    statements = _statements(report, name, None)
    if not statements:
        return []
    package = PACKAGES[_runtime(report.target)]
    imports = ", ".join(["numpy as np", *dict.fromkeys(module for module in package.modules if module[0] != "_")])
    *others, last = statements
    inputs = ["inputs = {", *_arrays(report.lowered.inputs), "}"]
    return [f"import {imports}", "", *inputs, *others, f"outputs = {last}"]


def _variable(port: Port) -> str:
    return port.name if port.name.isidentifier() else "..."


def _runtime(target: str) -> str:
    return "onnxruntime" if target in _IN_ONNXRUNTIME else target


def _statements(report: FileReport, name: str, arrays: dict[str, str] | None) -> list[str]:
    """Return the statements of the target's row; the arrays are in variables, or in a dictionary `inputs`."""
    package = PACKAGES.get(_runtime(report.target))
    if package is None:
        return []
    named = [(repr(key), value) for key, value in arrays.items()] if arrays is not None else []
    texts = {
        "file": name,
        "feed": "{" + ", ".join(f"{key}: {value}" for key, value in named) + "}" if named else "inputs",
        "values": f"[{', '.join(value for _, value in named)}]" if named else "[*inputs.values()]",
        "outputs": repr([port.name for port in report.lowered.outputs]),
    }
    return [statement.format(**texts) for statement in package.call]


def _code_of_stream(report: FileReport, name: str) -> list[str]:
    assert report.stream is not None
    states = {state.input for state in report.stream.states}
    inputs = _arrays([port for port in report.lowered.inputs if port.name not in states])
    call = ["outputs = stream({  # a chunk; call it again with the next", *inputs, "})"]
    if report.stream.frames_late:
        call.append("last = stream.flush()  # after the last chunk: the frames that come late")
    start = ["import numpy as np, rnn_lowering", "", f"stream = rnn_lowering.Stream({name})"]
    return [*start, *call, "stream.reset()  # before a new sequence"]


def _arrays(ports: Sequence[Port]) -> list[str]:
    return [f"    {port.name!r}: {_zeros(port)}" for port in ports]


def _zeros(port: Port) -> str:
    """Return code that makes an array for an input, with 1 for open sizes."""
    sizes = [dim if isinstance(dim, int) else 1 for dim in port.shape or ()]
    names = [str(dim) if dim is not None else "?" for dim in port.shape or ()]
    is_open = names != list(map(str, sizes))
    return f"np.zeros({sizes}, {port.dtype!r})," + (f"  # [{', '.join(names)}]" if is_open else "")
