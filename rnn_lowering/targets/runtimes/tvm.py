"""TVM's Relax (`pip install apache-tvm`): no recurrent operator, Scan or Loop."""

from __future__ import annotations

from functools import partial

from rnn_lowering.emit.composites import by_columns
from rnn_lowering.targets.target import Target

LEAST_COLUMNS = 48
"""With fewer rows of weights the transposes cost more than they save; with 128 and 256, 64 steps are 9 to 32 times
faster with the flags of the recipe."""

TARGET = Target(
    "tvm",
    "apache-tvm 0.27.0",
    ("unroll",),
    other_names=("apachetvm",),
    attention=("unroll", "chunked"),
    integer_products=True,
    instead=(("MatMul", partial(by_columns, least=LEAST_COLUMNS)),),
)
