"""The output of the command: aligned tables that fit the terminal, and there colors and a progress bar."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from textwrap import wrap
from threading import Timer
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress as Bar

from rnn_lowering.errors import NAME, printable

if TYPE_CHECKING:
    from rnn_lowering.compare.result import OutputCheck, RunCheck, Verification
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


def print_line(line: str) -> None:
    """Print a line; control characters are escaped."""
    console().print(printable(line))


def print_table(table: Table) -> None:
    """Print a table that fits the terminal."""
    out = console()
    for line, style in table.lines(width()):
        out.print(line, style=style or None)


def text_of_size(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)


def print_report(report: FileReport, *, verbose: bool) -> None:
    """Print what was done; if verbose also each node, operator, state and run of the comparison."""
    if verbose:
        _print_details(report)
    for line in report.lines():
        print_line(line)


def _print_details(report: FileReport) -> None:
    if report.nodes:
        table = Table(("node", "operator", "direction", *SIZES, "form"), folds=("direction",))
        for n in report.nodes:
            sizes = [text_of_size(s) for s in (n.seq_length, n.batch_size, n.input_size, n.hidden_size)]
            table.add(n.name, f"{n.operator}-{n.version}", n.direction, *sizes, n.form)
        print_table(table)
        print_line(LEGEND)
        print_table(_operator_table(report))
    for note in report.details():
        print_line(note)
    if report.stream is not None:
        print_states(report.stream)
    print_runs(report.verification)


SIZES = ("T", "N", "I", "H")
LEGEND = "T: steps, N: batch, I: input size, H: hidden size; ?: known at run time"


def print_states(plan: StreamPlan) -> None:
    """Print the states of a stream."""
    table = Table(("state", "next", "node", "shape", "type", "initial"), folds=("node", "initial", "next"))
    for s in plan.states:
        initial = s.initial if isinstance(s.initial, str) else "numbers in the metadata"
        table.add(s.input, s.output, s.node, _text_of_shape(s.shape), s.dtype, initial)
    if plan.states:
        print_table(table)
    else:
        print_line("the stream has no states")


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
    if check.each_run:
        print_line(f"compared by {check.method}:")
        print_table(_run_table(check.each_run))
    if check.in_target is not None:
        print_runs(check.in_target)
    if check.nodes:
        print_line("each node on its own, against float64:")
        table = Table(("output", "largest difference", "result"), folds=("result",))
        for node in check.nodes:
            table.add(*_cells(node), style=_style(node))
        print_table(table)
    if check.proofs:
        print_line("proofs:")
        table = Table(("node", "status", "reason"), folds=("reason",))
        for proof in check.proofs:
            table.add(proof.node, proof.status, proof.reason)
        print_table(table)


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


def print_targets(names: Sequence[str] = ()) -> None:
    """Print the table of targets, or of those that are named, their other names, and what its words for the
    evidence mean."""
    from rnn_lowering.targets.installed import all_found
    from rnn_lowering.targets.table import TARGETS, any_target_named
    from rnn_lowering.targets.target import EVIDENCE

    limits, here = ("opsets", "sequence_lens", "known sizes", "unsupported operators"), all_found()
    titles = ("target", "evidence", "version", "found here", "forms", *limits)
    table = Table(titles, folds=(*limits[::-1], "found here", "version"))
    shown = [any_target_named(name) for name in names] or list(TARGETS.values())
    for target in shown:
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
    print_table(table)
    evident = {target.evidence for target in shown}
    for evidence, meaning in EVIDENCE.items():
        if evidence in evident:
            print_line(f"{evidence}: {meaning}")
    others = [f"{target.name} ({', '.join(target.other_names)})" for target in shown if target.other_names]
    if others:
        print_line(f"other names: {', '.join(others)}")


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


_GAP, _INDENT = 2, "     "
_UNSAID = ("", "any", "main graph")
"""Cells that need no line of their own."""


def width() -> int:
    """Return the columns of the terminal, or those that the variable COLUMNS names; 80 in a pipe."""
    return max(shutil.get_terminal_size((80, 24)).columns, 20)


@dataclass
class Table:
    """Rows under titles; the first column has names.

    Attributes:
        titles: The titles of the columns.
        folds: The titles of the columns that become lines below the rows if the table is too wide, the first first.
        rows: The cells of each row, and its style for rich.

    Examples:
        >>> from rnn_lowering.cli.console import Table
        >>> table = Table(("node", "form", "why"), folds=("why",))
        >>> table.add("/lstm/LSTM", "refused", "the sequence length is not known")
        >>> print(*(text for text, _ in table.lines(40)), sep="|")
         node        form| /lstm/LSTM  refused|     why: the sequence length is not|     known
    """

    titles: Sequence[str]
    folds: Sequence[str] = ()
    rows: list[tuple[list[str], str]] = field(default_factory=list)

    def add(self, *cells: object, style: str = "") -> None:
        """Add a row; text from a model is shortened and control characters are escaped."""
        self.rows.append(([printable(cell, 3 * NAME) for cell in cells], style))

    def lines(self, columns: int) -> list[tuple[str, str]]:
        """Return the lines of the table with their styles, for a terminal of so many columns."""
        kept = list(range(len(self.titles)))
        folded: list[int] = []
        longest = columns
        for title in (None, *self.folds):
            if title is not None:
                kept.remove(self.titles.index(title))
                folded.append(self.titles.index(title))
            if sum(self._widths(kept, longest)) + _GAP * len(kept) - 1 <= columns:
                break
        else:
            longest = columns // 3  # longer names have lines of their own
        widths = self._widths(kept, longest)
        lines = [(_row([self.titles[n] for n in kept], widths), "")]
        for cells, style in self.rows:
            lines += [(line, style) for line in self._lines(cells, kept, sorted(folded), widths, columns)]
        return lines

    def _widths(self, kept: Sequence[int], longest: int) -> list[int]:
        """Return the width of each column that is kept; a name longer than `longest` takes none."""
        cells = [self.titles, *(row for row, _ in self.rows)]
        return [
            max(size for row in cells if (size := cell_len(row[n])) <= longest or n or row is self.titles)
            for n in kept
        ]

    def _lines(
        self, cells: list[str], kept: Sequence[int], folded: Sequence[int], widths: Sequence[int], columns: int
    ) -> list[str]:
        shown = [cells[n] for n in kept]
        lines = []
        if cell_len(shown[0]) > widths[0]:
            lines, shown[0] = _wrapped(shown[0], " ", columns), ""
        lines.append(_row(shown, widths))
        said = "; ".join(f"{self.titles[n]}: {cells[n]}" for n in folded if cells[n] not in _UNSAID)
        return [*lines, *_wrapped(said, _INDENT, columns)]


def _wrapped(text: str, indent: str, columns: int) -> list[str]:
    """Return a text as lines that fit, but for words that do not."""
    parts = wrap(text, columns - len(indent), break_long_words=False, break_on_hyphens=False)
    return [indent + part for part in parts]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (size - cell_len(cell)) for cell, size in zip(cells, widths, strict=True)]
    return f" {(' ' * _GAP).join(padded)}".rstrip()
