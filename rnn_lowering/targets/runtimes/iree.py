"""IREE (`pip install iree-base-compiler iree-base-runtime`): no Loop; up to 100 steps run 1.6 to 8 times faster
unrolled than in a Scan. Scans that nodes share take 0.56 to 0.9 of the time, unrolled steps 0.94 to 1.09."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.targets.target import STATIC, Target

TARGET = Target(
    "iree",
    "3.13.0",
    ("scan", "unroll"),
    attention=("scan", "unroll", "chunked"),
    # It reads every Scan forwards along axis 0, whatever its directions say, without an error.
    exported_forms=("unroll",),
    oldest_opset=13,
    unsupported=("Softsign",),
    sizes=STATIC,
    integer_products=True,
    unroll_up_to=100,
    loop_dialect=Dialect(join_up_to=128, stack_up_to=128),
)
