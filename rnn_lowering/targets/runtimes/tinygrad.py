"""tinygrad (`pip install tinygrad`): no recurrent operator, Scan or Loop."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

TARGET = Target("tinygrad", "0.14.0", ("unroll",), attention=("unroll", "chunked"), integer_products=True)
