"""How a written model is run: the next step after a lowering, and code for its runtime, also chunk by chunk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from rnn_lowering.compare.result import EACH_NODE
from rnn_lowering.errors import LINE, counted, page_named
from rnn_lowering.files.one_file import text_format
from rnn_lowering.flags import set_dim, spelled
from rnn_lowering.nodes.spec import axis_by_name
from rnn_lowering.streaming.metadata import State, StreamPlan
from rnn_lowering.targets.calls import CALLS, Snippet
from rnn_lowering.targets.installed import PACKAGES, is_here
from rnn_lowering.targets.table import TARGETS

if TYPE_CHECKING:
    from fractions import Fraction

    from rnn_lowering.report.file_report import FileReport


_IN_ONNXRUNTIME = ("portable", "onnxruntime")
"""Targets whose models run in onnxruntime, which is here."""

_TO_BINARY = "convert it to .onnx first, with onnx.load and onnx.save"

SECTIONS = {
    "onnxruntime-web": "runtimes.md#onnxruntime-web",
    "onnxruntime-webgpu": "runtimes.md#onnxruntime-web-on-webgpu",
    "webnn": "runtimes.md#onnxruntime-web-on-webnn",
    "executorch": "runtimes.md#executorch",
    "coreml": "runtimes.md#by-hand-core-ml",
    "ezkl": "runtimes.md#ezkl",
    "qnn": "runtimes.md#qnn",
    "rknn": "runtimes.md#rknn",
    "espdl": "runtimes.md#esp-dl",
}
"""The sections of docs/ that have the code of targets that `CALLS` lacks."""

_UNTRIED = "as its own documentation says: no test does"

_SHORT = {
    **{"float32": "f32", "float64": "f64", "float16": "f16", "int32": "i32", "int64": "i64"},
    **{"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16"},
}
"""Types as pnnx and tract spell them."""


def next_steps(report: FileReport) -> Iterator[str]:
    """Yield the lines after that of the written file: how it is run. Code comes last, as it can be copied."""
    in_runtime = report.target not in _IN_ONNXRUNTIME and report.verification.in_target is None
    if in_runtime and is_here(report.target):
        yield f"{report.target} is installed: --run-in-target runs the result in it"
    if report.stream is not None:
        if report.target in _IN_ONNXRUNTIME and not (_has_no_kernel(report) or text_format(report.destination)):
            stream = f"stream = rnn_lowering.Stream({str(report.destination)!r})"
            yield f"run it: {stream}; stream({_feed(report.stream.inputs)}) for each chunk; in another host:"
        program = [] if report.target in _IN_ONNXRUNTIME else _program(report)
        yield from program or host_loop(report.stream, report.target).splitlines()
    else:
        yield from _without_loops(report)
        yield from () if _has_no_kernel(report) else _in_runtime(report)


def _without_loops(report: FileReport) -> Iterator[str]:
    """Yield which options write no Scan or Loop, where no runtime and no form was asked for."""
    looped = [node for node in report.nodes if node.form in ("scan", "loop") and node.reason != "requested"]
    if report.target != "portable" or not looped:
        return
    kinds = " or ".join(sorted({node.form.capitalize() for node in looped}, reverse=True))
    sizes = ""
    if any(node.seq_length is None for node in looped):
        opened = {dim for port in report.lowered.inputs for dim in port.shape or () if not isinstance(dim, int)}
        lengths = [name for name in opened if name is None or axis_by_name(name) != "N"]
        name = lengths[0] if len(lengths) == 1 else None
        sizes = f" {set_dim(name)}" if name else " and a length (--set-dim, --set-shape)"
    yield spelled(f"for a runtime without {kinds}: --to unroll{sizes}, or name it with --target")


def _in_runtime(report: FileReport) -> Iterator[str]:
    """Yield how the result is called: the code, or which page has it."""
    call, page = _call(report), _recipe(report)
    where = "" if report.target in _IN_ONNXRUNTIME else f" in {report.target}"
    if text_format(report.destination):
        yield f"run it{where}: {_TO_BINARY}"
    elif call is not None and (line := _line(call, report)):
        yield f"run it{where}: {line}"
    elif program := _program(report):
        yield from program
    else:
        yield f"run it{where}: {page} has the code" if page else f"run it{where} {_UNTRIED}"


def _program(report: FileReport) -> list[str]:
    """Return the commands and the code that run the result; none where no row has them, or a line is too long to be
    shown whole."""
    file = str(report.destination)
    lines = "\n".join(code(report, file)).replace("\n\n\n", "\n\n").split("\n")
    if lines == [""] or max(map(len, lines)) > LINE:
        return []
    converting = [f"$ {command}" for command in commands(report, file)]
    head = ["convert it first, in a shell:"] if converting else []
    return [*head, *converting, f"run it in {report.target} ({install(report)}):", *lines]


def elsewhere(report: FileReport) -> str:
    """Return what to do where there is no code."""
    if text_format(report.destination):
        return f"To run it, {_TO_BINARY}."
    if page := _recipe(report):
        if report.stream is None:
            return f"The code for {report.target} is in {page}."
        return f"The code for {report.target}, and for streams, is in {page}, and in {page_named('streaming.md')}."
    known = TARGETS[report.target].documented
    source = f" Its operators are those in {known.source} ({known.date})." if known is not None else ""
    return f"Run it {_UNTRIED}.{source}"


def _recipe(report: FileReport) -> str:
    """Return the section of docs/ that has code for the target; "" where none has."""
    if TARGETS[report.target].documented is not None:
        return ""
    page = SECTIONS.get(report.target, "runtimes.md")
    return page_named(page)


def _has_no_kernel(report: FileReport) -> bool:
    """Whether the result is for onnxruntime, which did not run the original, and has other operators."""
    fails = report.target in _IN_ONNXRUNTIME and report.verification.method == EACH_NODE
    return fails and any("::" in operator for operator in report.operators_after)


def commands(report: FileReport, file: str = "") -> list[str]:
    """Return the commands that convert the result, in `file` or beside the page, for its runtime; none where it
    reads ONNX."""
    call, inputs = _call(report), report.lowered.inputs
    shapes = [f"[{','.join(map(str, port.sizes))}]{_SHORT.get(port.dtype or '', '')}" for port in inputs]
    texts = {
        "path": shlex.quote(file or report.lowered.name),
        "names": shlex.join(port.name for port in inputs),
        "shapes": shlex.quote(",".join(shapes)),
    }
    return [command.format(**texts) for command in call.commands] if call is not None else []


def install(report: FileReport) -> str:
    """Return the command that installs its runtime; "" where it is here, or is not of Python."""
    package = PACKAGES.get(report.target)
    return "" if package is None or report.target in _IN_ONNXRUNTIME else package.install


def code(report: FileReport, file: str = "") -> list[str]:
    """Return Python code that runs the result, in `file` or beside the page, in its target; none where no row has
    it."""
    if text_format(report.destination):
        return []
    if report.stream is not None and report.target in _IN_ONNXRUNTIME:
        return _by_stream(report)
    start, inputs, outputs = (
        _functions(report, file or report.lowered.name),
        report.lowered.inputs,
        report.lowered.outputs,
    )
    once = ["outputs = run({", *arrays(inputs), "})"]
    use = once if report.stream is None else host_code(report.stream, inputs, outputs)
    return [*start, *use] if start and use else []


def _functions(report: FileReport, file: str) -> list[str]:
    """Return code that loads the result from a file and has a function `run`; none where no row has it."""
    call, inputs, outputs = _call(report), report.lowered.inputs, report.lowered.outputs
    if call is None:
        return []
    texts = {
        '"model.onnx"': repr(file),
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
    names = [port.name for port in report.lowered.inputs]
    return call.line.format(
        file=repr(str(report.destination)),
        feed=_feed(names),
        values=f"[{', '.join(map(_variable, names))}]",
        outputs=repr([port.name for port in report.lowered.outputs]),
        facts="".join(_facts(report.lowered.inputs)),
    )


def _facts(inputs: Iterable[Port]) -> Iterator[str]:
    """Yield what tells tract the sizes of arrays where some are open."""
    for n, port in enumerate(inputs):
        if not all(isinstance(dim, int) for dim in port.shape or [None]):
            kind = _SHORT.get(port.dtype or "", port.dtype)
            yield f"net.set_input_fact({n}, ','.join(map(str, {_variable(port.name)}.shape)) + ',{kind}'); "


def _feed(names: Iterable[str]) -> str:
    """Return a dictionary of arrays in one line."""
    return "{" + ", ".join(f"{name!r}: {_variable(name)}" for name in names) + "}"


def _variable(name: str) -> str:
    return name if name.isidentifier() else "..."


def _by_stream(report: FileReport) -> list[str]:
    assert report.stream is not None
    states = {state.input for state in report.stream.states}
    inputs = arrays([port for port in report.lowered.inputs if port.name not in states])
    call = ["outputs = stream({  # a chunk; call it again with the next", *inputs, "})"]
    if report.stream.frames_late:
        call.append("last = stream.flush()  # after the last chunk: the frames that come late")
    start = ["import numpy as np, rnn_lowering", "", f"stream = rnn_lowering.Stream({report.lowered.name!r})"]
    return [*start, *call, "stream.reset()  # before a new sequence"]


# A stream, called chunk by chunk: as text


_ADVICE = {
    "ncnn": "pnnx writes the batch axis of each blob into *_ncnn.py: "
    "ncnn.Mat(array, batch_index=...) and mat.numpy(batch_index=...) need it"
}
"""Advice for hosts, by target."""


def host_loop(plan: StreamPlan, target: str) -> str:
    """Return the loop of a host as Python text, in which `run` calls the model.

    Args:
        plan: How the stream is called.
        target: The runtime that it is for.
    """
    several = f" of a multiple of {plan.unit} frames" if plan.unit > 1 else ""
    chunk = f"each chunk{several}" if plan.frames is None else f"each chunk of {counted(plan.frames, 'frame')}"
    inputs = ", ".join(f'"{name}": {name}' for name in plan.inputs)
    states = [f'    "{s.input}": {_text_of_first(s)},' for s in plan.states]
    lines = ["states = {", *states, "}"] if states else []
    lines += [f"for {chunk}{_text_of_axes(plan)}:"]
    lines += [f"    {name} = the length of each row in this chunk, 0 after its end" for name in plan.lengths]
    lines += [f"    outputs = run({{{inputs}{', **states' if states else ''}}})"]
    after = [f'        "{s.input}": outputs["{s.output}"],' for s in plan.states]
    lines += ["    states = {", *after, "    }"] if after else []
    if plan.frames_late:
        lines.append(f"then the same with {counted(plan.frames_late, 'frame')} of zeros: the outputs come late")
    if same := [name for name, axis in plan.inputs.items() if axis is None and name not in plan.lengths]:
        lines.append(f"the same in each call: {', '.join(same)}")
    if plan.max_frames is not None:
        lines.append(f"a sequence has {plan.max_frames} frames or less")
    if plan.shortest > plan.unit:
        lines.append(f"a sequence has {plan.shortest} frames or more")
    lines += [
        f'outputs["{s.output}"]: the state after the last frame, once it is followed by {zeros} of zeros'
        for s in plan.states
        if s.output in plan.delay and (zeros := counted(plan.zeros_for(s.output), "frame"))
    ]
    for name, axis in plan.outputs.items():
        use = "after the last chunk" if axis is None else f"joined along axis {axis}"
        lines.append(f'outputs["{name}"]: {use}{_late(plan, name)}')
    return "\n".join([*lines, *(text for name, text in _ADVICE.items() if name == target)])


def _late(plan: StreamPlan, output: str) -> str:
    """Return which frames of a late output belong to the sequence; "" for other outputs."""
    late, short, rate = plan.delay.get(output, 0), plan.short.get(output, 0), plan.rate(output)
    if not plan.frames_late or plan.outputs[output] is None:
        return ""
    frames = "each frame" if rate.denominator == 1 else f"every {rate.denominator} frames"
    count = "as many as the sequence has" if rate == 1 else f"{rate.numerator} for {frames} of the sequence"
    less = f", {short} less" if short else ""
    if not late:
        return f": {count}{less}"
    drop = "the first frame, which is" if late == 1 else f"the first {late} frames, which are"
    return f": drop {drop} before the sequence; then keep {count}{less}"


def _text_of_first(state: State) -> str:
    shape = f"[{', '.join(map(str, state.shape))}]"
    return f"zeros {shape}" if isinstance(state.initial, str) else f"the metadata's numbers, broadcast to {shape}"


def _text_of_axes(plan: StreamPlan) -> str:
    timed = [
        f"axis {axis} of {name}" + (f", {int(plan.frames * rate)} long" if plan.frames and rate != 1 else "")
        for name, axis in plan.inputs.items()
        if axis is not None
        for rate in [plan.rate(name)]
    ]
    return f" ({', '.join(timed)})" if timed else ""


# The same as code with a function `run`, for runtimes that know nothing of its states

_MOST_NUMBERS = 64
"""The most numbers of a first state that are written out."""


def host_code(plan: StreamPlan, inputs: Sequence[Port], outputs: Sequence[Port]) -> list[str] | None:
    """Return code that runs the chunks of a sequence and joins what they give, line by line; the frames of delayed
    outputs are those of the sequence. None where a state starts with too many numbers."""
    if any(np.size(state.initial) > _MOST_NUMBERS for state in plan.states):
        return None
    states, late = {state.input for state in plan.states}, plan.frames_late
    chunk = [port for port in inputs if port.name not in states]
    lines = ["chunks = [{  # the first one of a sequence: add the others", *arrays(chunk), "}]"]
    if states:
        lines += ["states = {", *(f"    {s.input!r}: {_first(s)}," for s in plan.states), "}"]
    behind = ""
    if late:
        lines += ["zeros = chunks[-1] | {  # behind the sequence: outputs come late", *_zeros(plan, chunk), "}"]
        behind = f" + [zeros] * {late // (plan.frames or late)}"
    lines += ["results = []", f"for chunk in chunks{behind}:"]
    lines += ["    feed = {**chunk, **states}" if states else "    feed = chunk"]
    lines += [f"    arrays = run({{name: feed[name] for name in {_names(inputs)}}})"]
    lines += [f"    results.append(dict(zip({_names(outputs)}, arrays)))"]
    after = [f"        {s.input!r}: np.asarray(results[-1][{s.output!r}], {s.dtype!r})," for s in plan.states]
    lines += ["    states = {", *after, "    }"] if after else []
    return [*lines, *_joined(plan)]


def _names(ports: Sequence[Port]) -> list[str]:
    return [port.name for port in ports]


def _first(state: State) -> str:
    """Return code that makes the first array of a state, with 1 for open sizes."""
    names = [dim.partition("*")[2] or dim for dim in state.shape if isinstance(dim, str)]
    sizes = list(state.sizes(dict.fromkeys(names, 1)))
    if state.initial == "zeros":
        return array_of(sizes, state.dtype)
    return f"np.broadcast_to(np.array({state.initial!r}, {state.dtype!r}), {sizes}).copy()"


def _zeros(plan: StreamPlan, chunk: Sequence[Port]) -> Iterator[str]:
    """Yield the lines of the inputs along time in a chunk of zeros."""
    for port in chunk:
        axis = plan.inputs[port.name]
        if axis is not None:
            sizes = port.sizes
            sizes[axis] = int((plan.frames or plan.frames_late) * plan.rate(port.name))
            yield f"    {port.name!r}: {array_of(sizes, port.dtype)},"


def _joined(plan: StreamPlan) -> Iterator[str]:
    """Yield the lines that join the frames of each output, without those before and behind the sequence."""
    if plan.frames_late:
        timed, along = next((name, axis) for name, axis in plan.inputs.items() if axis is not None)
        yield f"frames = sum(chunk[{timed!r}].shape[{along}] for chunk in chunks){_times(1 / plan.rate(timed))}"
    yield "outputs = {"
    for name, axis in plan.outputs.items():
        if axis is None:
            yield f"    {name!r}: results[-1][{name!r}],"
        else:
            parts = f"np.concatenate([result[{name!r}] for result in results], {axis})"
            yield f"    {name!r}: {parts}{_frames_of(plan, name, axis)},"
    yield "}"


def _frames_of(plan: StreamPlan, name: str, axis: int) -> str:
    """Return the slice of the frames that belong to the sequence; "" where all do."""
    if not plan.frames_late:
        return ""
    late, short = plan.delay.get(name, 0), plan.short.get(name, 0)
    end = f"{late} + frames" if late else "frames"
    stop = f"{end}{_times(plan.rate(name))}" + (f" - {short}" if short else "")
    return f"[{':, ' * axis}{late or ''}:{stop}]"


def _times(rate: Fraction) -> str:
    times = f" * {rate.numerator}" if rate.numerator != 1 else ""
    return times + (f" // {rate.denominator}" if rate.denominator != 1 else "")


# The inputs and outputs of a model, and code that makes arrays for them


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its NumPy type and its shape, None if unknown."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, value: ir.Value) -> Port:
        dims = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        shape = None if dims is None else tuple(None if d == -1 else d for d in dims)
        dtype = None
        with suppress(TypeError):  # of a type that NumPy lacks
            dtype = None if value.dtype is None else value.dtype.numpy().name
        return cls(value.name or "", dtype, shape)

    def __str__(self) -> str:
        dims = (
            "unknown shape" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{self.name} [{dims}]"

    @property
    def is_switch(self) -> bool:
        """Whether it is one integer or boolean."""
        single = self.shape is not None and all(dim == 1 for dim in self.shape)
        return single and (self.dtype or "").lstrip("u").startswith(("int", "bool"))

    @property
    def sizes(self) -> list[int]:
        """Its sizes, with 1 for open ones."""
        return [dim if isinstance(dim, int) else 1 for dim in self.shape or ()]

    @property
    def zeros(self) -> str:
        """Code that makes an array for it."""
        return array_of(self.sizes, self.dtype)

    @property
    def comment(self) -> str:
        """A comment on its open sizes; "" where all are known."""
        names = [str(dim) if dim is not None else "?" for dim in self.shape or ()]
        return "" if names == list(map(str, self.sizes)) else f"  # [{', '.join(names)}]"


def array_of(sizes: list[int], dtype: str | None) -> str:
    """Return code that makes an array of zeros."""
    return f"np.zeros({sizes}, {dtype!r})"


def arrays(ports: Iterable[Port]) -> list[str]:
    """Return the lines of a dictionary with an array for each input."""
    return [f"    {port.name!r}: {port.zeros},{port.comment}" for port in ports]
