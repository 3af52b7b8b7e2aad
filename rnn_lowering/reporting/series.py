"""The outputs of a node that ran on its own, as series over time for plots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnn_lowering.types import Array
from rnn_lowering.verification.isolate import Symbols
from rnn_lowering.verification.node_runs import NodeRun
from rnn_lowering.verification.tolerance import distance


@dataclass(frozen=True)
class NodeSeries:
    """The series of a run: of its original, of its lowered node, and of the operator specification in float64."""

    run: NodeRun

    @property
    def symbol(self) -> str:
        """The output that is plotted: Y, else a final state."""
        return min(self.run.expected)

    @property
    def along(self) -> str:
        """The unit of axis 0 of `series`, for the label of the axis."""
        return "time step" if self.symbol == "Y" else "hidden unit"

    def series(self, outputs: Symbols) -> Array:
        """Return the output that is plotted: Y as [seq, dirs, batch, hidden], a state as [hidden, dirs, batch,
        1]."""
        array, layout = outputs[self.symbol], self.run.node.spec.layout
        if self.symbol == "Y":  # [seq, dirs, batch, hidden], or [batch, seq, dirs, hidden]
            return np.moveaxis(array, 0, 2) if layout else array
        states = array.swapaxes(0, 1) if layout else array  # [dirs, batch, hidden]
        return np.moveaxis(states, -1, 0)[..., None]

    def errors(self) -> dict[str, Array]:
        """Return the largest absolute error at each position of axis 0 of `series`, for each run."""
        truth = self.series(self.run.expected)
        return {
            name: distance(truth, self.series(outputs)).max(axis=(1, 2, 3), initial=0.0)
            for name, outputs in self.run.outputs.items()
        }

    def largest(self) -> dict[str, dict[str, float]]:
        """Return the largest absolute error by output and run."""
        return {
            symbol: {
                name: float(distance(truth, outputs[symbol]).max(initial=0.0))
                for name, outputs in self.run.outputs.items()
            }
            for symbol, truth in self.run.expected.items()
        }

    def signals(self, outputs: Symbols, most: int) -> dict[str, Array]:
        """Return at most `most` signals of the first row of the batch, by their labels."""
        signals = self.series(outputs)[:, :, 0]
        directions = self.run.node.spec.directions
        if self.symbol == "Y":
            ways = directions if len(directions) > 1 else ("unit",)
            labels = [f"{way} {h}" for way in ways for h in range(signals.shape[2])]
        else:
            labels = list(directions)
        flat = signals.reshape(len(signals), len(labels))
        chosen = sorted({round(n) for n in np.linspace(0, len(labels) - 1, most)})
        return {labels[n]: flat[:, n] for n in chosen}
