"""Running each lowered node and its original on one random input; the outputs as series over time for plots."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.passes.report import NodeReport
from rnn_lowering.types import Array
from rnn_lowering.verification.isolate import IsolatedNode, Symbols, isolated_nodes, run_node
from rnn_lowering.verification.process import SessionError
from rnn_lowering.verification.runner import Runner
from rnn_lowering.verification.tolerance import distance

ORIGINAL, LOWERED = "original in onnxruntime", "lowered"

_STEPS = 48
"""The sequence length of a node for which it is not fixed."""


@dataclass(frozen=True)
class Trial:
    """A node that ran on its own.

    Attributes:
        node: The node and its lowered form.
        truth: Its outputs by the operator specification, computed in float64.
        outputs: The outputs of the `ORIGINAL` and of the `LOWERED` node in onnxruntime, if they ran.
        failures: Why one did not run, by the same names.
    """

    node: IsolatedNode
    truth: Symbols
    outputs: dict[str, Symbols]
    failures: dict[str, str]

    @property
    def symbol(self) -> str:
        """The output that is plotted: Y, else a final state."""
        return min(self.truth)

    @property
    def along(self) -> str:
        """The unit of axis 0 of `series`, for the label of the axis."""
        return "time step" if self.symbol == "Y" else "hidden unit"

    def series(self, outputs: Symbols) -> Array:
        """Return the output that is plotted: Y as [seq, dirs, batch, hidden], a state as [hidden, dirs, batch,
        1]."""
        array, layout = outputs[self.symbol], self.node.spec.layout
        if self.symbol == "Y":  # [seq, dirs, batch, hidden], or [batch, seq, dirs, hidden]
            return np.moveaxis(array, 0, 2) if layout else array
        states = array.swapaxes(0, 1) if layout else array  # [dirs, batch, hidden]
        return np.moveaxis(states, -1, 0)[..., None]

    def errors(self) -> dict[str, Array]:
        """Return the largest absolute error at each position of axis 0 of `series`, for each run."""
        truth = self.series(self.truth)
        return {
            name: distance(truth, self.series(outputs)).max(axis=(1, 2, 3), initial=0.0)
            for name, outputs in self.outputs.items()
        }

    def largest(self) -> dict[str, dict[str, float]]:
        """Return the largest absolute error by output and run."""
        return {
            symbol: {
                name: float(distance(truth, outputs[symbol]).max(initial=0.0))
                for name, outputs in self.outputs.items()
            }
            for symbol, truth in self.truth.items()
        }

    def signals(self, outputs: Symbols, most: int) -> dict[str, Array]:
        """Return at most `most` signals of the first row of the batch, by their labels."""
        signals = self.series(outputs)[:, :, 0]
        directions = self.node.spec.directions
        if self.symbol == "Y":
            ways = directions if len(directions) > 1 else ("unit",)
            labels = [f"{way} {h}" for way in ways for h in range(signals.shape[2])]
        else:
            labels = list(directions)
        flat = signals.reshape(len(signals), len(labels))
        chosen = sorted({round(n) for n in np.linspace(0, len(labels) - 1, most)})
        return {labels[n]: flat[:, n] for n in chosen}


def trials(reports: Sequence[NodeReport], original: ir.Model, lowered: ir.Model) -> dict[int, Trial]:
    """Run each of the reported nodes alone; return the trials by position, without nodes that cannot be extracted.

    Raises:
        RnnLoweringError: A node of the original cannot be read.
    """
    found: dict[tuple[str, str], list[IsolatedNode]] = {}
    for node in isolated_nodes(original, lowered):
        if node.cut is not None:
            found.setdefault((node.spec.node.name, node.spec.node.scope), []).append(node)
    rng = np.random.default_rng(0)
    jobs: dict[int, _Job] = {}
    for n, report in enumerate(reports):
        if nodes := found.get((report.name, report.scope)):
            node = nodes.pop(0)
            with suppress(UnsupportedError):  # at sizes that are too large it has no trial
                jobs[n] = node, node.random_feed(rng, **_sizes(report))
    with Runner() as runner:
        return {
            n: _trial(*job, *(_run(*job, runner, native) for native in (True, False))) for n, job in jobs.items()
        }


_Job = tuple[IsolatedNode, Symbols]


def _sizes(report: NodeReport) -> dict[str, int]:
    """Return sizes for a run: those that the lowering knows."""
    known = {size: getattr(report, size) for size in ("seq_length", "batch_size", "input_size")}
    return {"seq_length": _STEPS} | {size: number for size, number in known.items() if number is not None}


def _run(node: IsolatedNode, feed: Symbols, runner: Runner, native: bool) -> Symbols | str:
    """Return the outputs of a node, or why it cannot be run."""
    try:
        (outputs,) = run_node(node, [feed], runner, native=native)
    except SessionError as error:
        return str(error)
    return {symbol: np.array(array) for symbol, array in outputs.items()}


def _trial(node: IsolatedNode, feed: Symbols, native: Symbols | str, ours: Symbols | str) -> Trial:
    trial = Trial(node, node.expected(feed), {}, {})
    for name, run in {ORIGINAL: native, LOWERED: ours}.items():
        if isinstance(run, str):
            trial.failures[name] = run
        elif wrong := [symbol for symbol, truth in trial.truth.items() if run[symbol].shape != truth.shape]:
            trial.failures[name] = f"its {wrong[0]} has shape {run[wrong[0]].shape}"
        else:
            trial.outputs[name] = run
    return trial
