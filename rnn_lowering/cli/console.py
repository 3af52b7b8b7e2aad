"""The output of the command: aligned tables, and on a terminal colors and a progress bar."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress as Bar

from rnn_lowering.cli.tables import Table, width
from rnn_lowering.compare.result import UNCHANGED
from rnn_lowering.errors import printable
from rnn_lowering.model.scopes import REPEATING
from rnn_lowering.report.file_report import Port

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnn_lowering.compare.result import OutputCheck, RunCheck, Verification
    from rnn_lowering.nodes.kinds import NodeSpec
    from rnn_lowering.passes.preview import Preview
    from rnn_lowering.passes.report import Report
    from rnn_lowering.report.file_report import FileReport
    from rnn_lowering.streaming.metadata import StreamPlan
    from rnn_lowering.types import Progress


class _Console(Console):
    def on_broken_pipe(self) -> None:  # rich would end the process
        raise


def console() -> Console:
    """Return a console for stdout: without markup, and without line breaks into a pipe."""
    width = None if sys.stdout.isatty() else 100_000
    return _Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def _print(out: Console, line: str) -> None:
    out.print(printable(line))


def _print_table(out: Console, table: Table) -> None:
    for line, style in table.lines(width()):
        out.print(line, style=style or None)


def _text_of_size(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)


def print_previews(previews: Sequence[Preview], report: Report, source: Path, graph: ir.Graph) -> None:
    """Print a row for each node: what it specifies and the form it would get; then the names and sizes that options
    use, and hints for refused nodes."""
    out = console()
    titles = ("node", "operator", "scope", "direction", "T", "N", "I", "H", "type", "activations", "form", "why")
    table = Table(titles, folds=("why", "activations", "scope", "type", "direction"))
    for preview in previews:
        node, spec = preview.node, preview.spec
        unknown = "?" if preview.recurrent and node.operator not in REPEATING else ""
        operator, *cells = _spec_cells(spec) if spec else [node.operator, *[unknown] * 7]
        table.add(node.name, operator, node.scope, *cells, preview.form, preview.reason)
    if not any(preview.counts for preview in previews):
        _print(out, f"{source}: {_nothing_found(previews)}")
    if previews:
        _print_table(out, table)
        _print(out, f"inputs: {_ports([Port.of(v) for v in graph.inputs if not v.is_initializer()])}")
        _print(out, f"outputs: {_ports([Port.of(v) for v in graph.outputs])}")
    for warning in (text for preview in previews if preview.spec for text in preview.spec.warnings):
        _print(out, f"warning: {warning}")
    for hint in dict.fromkeys(preview.hint for preview in previews if preview.hint):
        _print(out, f"to lower refused nodes: {hint}")
    for note in report.notes:
        _print(out, note)


def _nothing_found(previews: Sequence[Preview]) -> str:
    """Return what a list without recurrent nodes says: Loops and Scans of the model may be in it, and stay."""
    kinds = Counter(preview.node.operator for preview in previews if preview.recurrent)
    if not kinds:
        return "no recurrent nodes"
    found = " and ".join(f"{count} {kind}s" if count > 1 else f"a {kind}" for kind, count in kinds.items())
    stay = "which stays as it is" if kinds.total() == 1 else "which stay as they are"
    return f"no recurrent nodes other than {found}, {stay}"


def _ports(ports: Sequence[Port]) -> str:
    sizes = ["unknown shape" if p.shape is None else ", ".join(map(_text_of_size, p.shape)) for p in ports]
    return ", ".join(f"{p.name} [{shown}]" for p, shown in zip(ports, sizes, strict=True)) or "none"


def _spec_cells(spec: NodeSpec) -> list[str]:
    sizes = [_text_of_size(n) for n in (spec.seq_length, spec.batch_size, spec.input_size, spec.hidden_size)]
    dtype = spec.dtype.name.lower()
    return [f"{spec.node.operator}-{spec.version}", spec.direction, *sizes, dtype, spec.details]


def print_report(report: FileReport, source: Path, target: Path, *, each_run: bool) -> None:
    """Print what was done; with `each_run` every run of the verification too."""
    out = console()
    if not report.lowered_any:
        now = f"the inputs are now {_ports(report.lowered.inputs)}" if report.interface_changed else "unchanged"
        _print(out, f"{source}: nothing to lower; {now}")
    if report.nodes:
        table = Table(("node", "operator", "direction", "T", "N", "I", "H", "form"), folds=("direction",))
        for n in report.nodes:
            sizes = [_text_of_size(s) for s in (n.seq_length, n.batch_size, n.input_size, n.hidden_size)]
            table.add(n.name, f"{n.operator}-{n.version}", n.direction, *sizes, n.form)
        _print_table(out, table)
        _print_table(out, _operator_table(report))
    for note in report.notes:
        _print(out, note)
    for text in report.left:
        _print(out, f"left as it is: {text}")
    if report.stream is not None:
        _print_stream(report.stream, report.target, out)
    check = report.verification
    if check is not None and check.status == UNCHANGED:
        check = check.in_target
    if check is not None:
        if each_run:
            print_runs(check)
        _print(out, str(check))
    elif report.verification is None and (report.lowered_any or report.interface_changed):
        _print(out, "not compared with the original (--no-verify)")
    if report.quantization is not None:
        _print(out, str(report.quantization))
    _print(out, f"written to {target}")
    if report.verification is None or report.verification.in_target is None:
        _print_runtime(report.target, out)


def _print_runtime(target: str, out: Console) -> None:
    """Say that the runtime of a target is here, unless it is that of the comparison."""
    if target in ("portable", "onnxruntime"):
        return
    from rnn_lowering.targets.installed import is_here

    if is_here(target):
        _print(out, f"{target} is installed: --run-in-target runs the result in it")


def _print_stream(plan: StreamPlan, target: str, out: Console) -> None:
    """Print the states and what a host does."""
    table = Table(("state", "next", "node", "shape", "type", "initial"), folds=("node", "initial", "next"))
    for s in plan.states:
        initial = s.initial if isinstance(s.initial, str) else "numbers in the metadata"
        table.add(s.input, s.output, s.node, _text_of_shape(s.shape), s.dtype, initial)
    if plan.states:
        _print_table(out, table)
    else:
        _print(out, "the stream has no states")
    from rnn_lowering.streaming.metadata import host_loop

    for line in host_loop(plan, target).splitlines():
        _print(out, line)


def _operator_table(report: Report) -> Table:
    before, after = report.operators_before, report.operators_after
    table = Table(("operator", "before", "after"))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name, 0) != after.get(name, 0):
            table.add(name, str(before.get(name, 0)), str(after.get(name, 0)))
    table.add("all", str(sum(before.values())), str(sum(after.values())))
    return table


def print_runs(check: Verification) -> None:
    """Print the runs of a verification, and its checks of single nodes."""
    out = console()
    if check.each_run:
        _print(out, f"compared by {check.method}:")
        _print_table(out, _run_table(check.each_run))
    if check.in_target is not None:
        print_runs(check.in_target)
    if check.nodes:
        _print(out, "each node on its own, against float64:")
        table = Table(("output", "largest difference", "result"), folds=("result",))
        for node in check.nodes:
            table.add(*_cells(node), style=_style(node))
        _print_table(out, table)


def _run_table(runs: Sequence[RunCheck]) -> Table:
    """Return a table of runs; each row has the next input and the next output of a run."""
    titles = ("run", "input", "shape", "lengths", "output", "largest difference", "result")
    table = Table(titles, folds=("shape", "lengths", "result", "input", "output"))
    for n, run in enumerate(runs, 1):
        for row, (input_, output) in enumerate(zip_longest(run.inputs, run.outputs)):
            inputs = [input_.name, _text_of_shape(input_.shape), _range(input_.lengths)] if input_ else [""] * 3
            outputs = _cells(output) if output else [""] * 3
            table.add("" if row else str(n), *inputs, *outputs, style=_style(output))
    return table


def _text_of_shape(sizes: Sequence[int | str]) -> str:
    return ",".join(str(size) for size in sizes) or "scalar"


def _range(lengths: Sequence[int] | None) -> str:
    return f"{lengths[0]}..{lengths[1]}" if lengths else ""


def _cells(check: OutputCheck) -> list[str]:
    return [check.name, f"{check.max_abs:.2g}", "passed" if check.passed else check.reason]


def _style(check: OutputCheck | None) -> str:
    return "" if check is None or check.passed else "red"


def print_targets() -> None:
    """Print the table of targets, and what its words for the evidence mean."""
    from rnn_lowering.targets.installed import all_found
    from rnn_lowering.targets.table import TARGETS
    from rnn_lowering.targets.target import EVIDENCE

    limits, here = ("opsets", "sequence_lens", "known sizes", "unsupported operators"), all_found()
    titles = ("target", "evidence", "version", "found here", "forms", *limits)
    table = Table(titles, folds=(*limits[::-1], "found here", "version"))
    for target in TARGETS.values():
        opsets = {"from": target.oldest_opset, "to": target.newest_opset}
        table.add(
            target.name,
            target.evidence,
            target.version,
            here.get(target.name, ""),
            ", ".join(target.forms),
            " ".join(f"{word} {opset}" for word, opset in opsets.items() if opset) or "any",
            "any" if target.sequence_lens else "constant",
            " and ".join(target.sizes),
            ", ".join(target.unsupported),
        )
    _print_table(console(), table)
    for evidence, meaning in EVIDENCE.items():
        _print(console(), f"{evidence}: {meaning}")


@contextmanager
def progress_bar(delay: float = 1.0) -> Iterator[Progress | None]:
    """Yield a callback that shows a progress bar after `delay` seconds; None where stdout is not a terminal."""
    if not sys.stdout.isatty():
        yield None
        return
    bar = Bar(console=console(), transient=True)
    task = bar.add_task("lowering", total=None)
    timer = Timer(delay, bar.start)

    def show(phase: str, done: int, total: int) -> None:
        bar.update(task, description=printable(phase), completed=done, total=total)

    timer.start()
    try:
        yield show
    finally:
        timer.cancel()
        timer.join()  # a bar that is starting must not outlive this
        if bar.live.is_started:
            bar.stop()
