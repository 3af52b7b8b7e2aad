"""The options of Loops and Scans."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_lowering.argument_checks import FORM


@dataclass(frozen=True)
class LoopOptions:
    """What to do with the Loops and Scans of a model.

    Attributes:
        lower_loops: Lower every Loop and Scan of the model too, in the form that `to` or the target chooses.
            Otherwise only those are lowered that the target does not run, or whose form is not `to`. Example:
            `lower_loops=True`.
        raise_loops: Turn each Loop and Scan that computes an RNN, GRU or LSTM into that node, before all else.
            Without `to`, `target`, `stream` and `lower_loops`, nothing else is done: the node is the fastest form
            in onnxruntime. Example: `raise_loops=True`.
    """

    lower_loops: bool = FORM.switch(
        "--lower-loops",
        "lower every Loop and Scan of the model too (default: only those that the target does not run, or whose "
        "form is not that of --to)",
    )
    raise_loops: bool = FORM.switch(
        "--raise-loops",
        "turn each Loop and Scan that computes an RNN, GRU or LSTM into that node. Alone, it lowers nothing; with "
        "--to, --target, --stream or --lower-loops the new nodes are lowered like all others",
    )
