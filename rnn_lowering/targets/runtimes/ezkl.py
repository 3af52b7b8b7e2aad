"""ezkl (`pip install ezkl`), by hand: it computes in fixed point."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

TARGET = Target("ezkl", "23.0.5", ("unroll", "scan"))
