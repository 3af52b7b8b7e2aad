"""Sizes are known behind operators of com.microsoft, of which ONNX's inference knows nothing."""

import onnx
import pytest

import rnn_lowering as rl

CHAIN = """
    <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    main (float[{N},12,{T}] x, float[12,1,4] w, float[{N},12,3] p, float[3] one, float[4,1,2] w4,
        float[{N},{T},3] a) => (float y, float s)
        <int64[3] parts = {{4, 4, 4}}> {{
        first, s1 = com.microsoft.CausalConvWithState <activation = "silu"> (x, w, "", p)
        rows = Transpose <perm = [0, 2, 1]> (first)
        decay, beta = com.microsoft.LinearAttentionGate (a, one, one, a)
        normed = com.microsoft.GatedRMSNorm (rows, one, rows)
        q, k, v = Split <axis = 2> (normed, parts)
        back = Transpose <perm = [0, 2, 1]> (q)
        y, s = com.microsoft.CausalConvWithState (back, w4)
    }}
"""


@pytest.mark.parametrize(("N", "T"), [(2, 5), ("N", "T")])
def test_sizes_behind_a_chain(N: int | str, T: int | str) -> None:
    specs = rl.inspect(onnx.parser.parse_model(CHAIN.format(N=N, T=T)))
    sizes = (N, T) if isinstance(N, int) else (None, None)
    assert [(spec.batch_size, spec.seq_length) for spec in specs] == [sizes] * 4
    assert specs[-1].input_size == 4


def test_a_chain_is_lowered_at_fixed_sizes() -> None:
    original = onnx.parser.parse_model(CHAIN.format(N="N", T="T"))
    _, report = rl.lower(original, target="iree", dims={"N": 1, "T": 1}, full=True)
    assert [(node.batch_size, node.seq_length) for node in report.nodes] == [(1, 1)] * 4
