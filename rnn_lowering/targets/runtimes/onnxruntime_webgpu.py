"""onnxruntime-web on WebGPU (`npm install onnxruntime-web`): no node runs on the CPU, so graphs can be captured."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.native import COMMON, Excluded, NativeRule, features
from rnn_lowering.targets.target import STATIC, Target

MOST_PARTS = 7
"""Outputs of a Split: a shader has 8 storage buffers on every device, and one is the input."""


def split_in_groups(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x into groups, and these again, where there are more parts than a shader can write."""
    if len(sizes) <= MOST_PARTS:
        return None
    count = -(-len(sizes) // MOST_PARTS)  # parts in a group
    groups = [sizes[start : start + count] for start in range(0, len(sizes), count)]
    parts = op.split(x, [sum(group) for group in groups], axis)
    return [found for part, group in zip(parts, groups, strict=True) for found in op.split(part, group, axis)]


RULE = NativeRule(
    "1.30.0",
    "2026-11-23",
    features(
        "GRU, LSTM, forward, reverse, bidirectional, Sigmoid, Tanh, Relu, activations of each direction,"
        "activations in lower case, no activations, clip, input_forget, P, P of zeros, linear_before_reset,"
        "linear_before_reset 0, sequence_lens, sequence_lens of T, initial state, constant initial state,"
        "no initial_h, initial_c without initial_h, initial_c of zeros or none, Y_c beside others,"
        "outputs without a name, written hidden_size, transposed X and Y, a shared X, a constant X,"
        "computed weights, I = 1, T = 1, N above 1, open T, open N, float, in If, opset 7 to 21"
    )
    | COMMON,
    (
        Excluded(("RNN",), "has no RNN"),
        Excluded(("opset 22",), "has GRU and LSTM up to opset 21"),
        Excluded(("P", "clip"), "clips what P is multiplied with"),
    ),
    simulated=True,
)

TARGET = Target(
    "onnxruntime-webgpu",
    "onnxruntime-web 1.30.0",
    ("unroll",),
    other_names=("webgpu", "ortwebgpu"),
    newest_opset=21,
    oldest_opset=11,
    unsupported=("Softsign",),
    lacks_types=(ir.DataType.DOUBLE,),  # nor does the language of its shaders
    sizes=STATIC,
    misreads_convolutions=True,
    empty_tensors=False,
    integer_products=False,
    dialect=Dialect(index_type=ir.DataType.INT32),  # int64 has no arithmetic on WebGPU
    instead=(("Split", split_in_groups),),
    native=RULE,
)
