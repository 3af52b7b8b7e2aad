"""Parameters of a model of a fixed length: an entry for each frame is refused, one entry for all frames is not."""

import re

import numpy as np
import pytest
from stream_models import CHUNKINGS, chunked, over, random, rows, streamed, whole

import rnn_lowering as rl

PER_FRAME = "axis . of '[pb]' has size 10 and meets the frames, but has none itself; the exporter fixed the length"
NETS = rows(f"""
# float[2, 10, 4] X
{PER_FRAME}
    Y = Add (X, p[N, 1])
    Y = Add (p[1, N, 4], X)
    Y = Max (X, k[4], p[N, 4])
    Y = PRelu (X, p[N, 1])
    Y = PRelu (X, p[1, N, 4])
    b = Greater (p[1, N, 1], 0.0)  Y = Where (b, X, k[4])
    b = Greater (X, 0.0)  Y = Where (b, k[4], p[N, 4])
    Y = Einsum <equation = "btc,tc->btc"> (X, p[N, 4])
    Y = LayerNormalization (X, p[N, 4])
    Y = LayerNormalization (X, k[4], p[N, 1])
    Y = RMSNormalization (X, p[1, N, 4])
    q = QuantizeLinear <axis = 1> (X, p[N])  f = Cast <to = 1> (q)  Y = Mul (f, k[4])
    i = Cast <to = 3> (X)  Y = DequantizeLinear <axis = 1> (i, p[N])
always: {PER_FRAME}
    Y = Concat <axis = 2> (X, p[2, N, 3])
    Y = Einsum <equation = "tcd,btc->dbt"> (p[N, 4, 3], X)
always: is not known to act on each frame alone
    i = Cast <to = 3> (X)  Y = DequantizeLinear <axis = 2, block_size = 2> (i, p[2, N, 2])
    i = Cast <to = 3> (X)  Y = DequantizeLinear <axis = 1, block_size = 2> (i, p[2, 5, 4])
right
    Y = MatMul (X, p[1, 4, N])
    Y = CastLike (X, p[N, 4])

# float[2, 4, 10] X
{PER_FRAME}
    Y = Mul (X, p[N])
    Y = PRelu (X, p[N])

# float[10, 2, 4] X
{PER_FRAME}
    Y = MatMul (X, p[N, 4, 3])
    Y = MatMul (p[N, 3, 2], X)
    Y = Pow (X, p[N, 1, 1])
right
    Y = Conv (X, p[N, 2, 3], c[N])

# float[10, 4] X
{PER_FRAME}
    Y = Gemm (X, w[4, 3], p[N, 3])
    Y = Gemm (X, w[4, 3], p[N, 1])

# float[4, 10] X
{PER_FRAME}
    Y = Gemm (w[3, 4], X, p[3, N])
    Y = Gemm (w[3, 4], X, p[N])
    Y = Gemm <transA = 1> (X, w[4, 3], p[N, 1])
""")


def reason_of(head: str, nodes: str, entries: int) -> str:
    """Why the stream is refused, with so many entries in place of N; "" if it is right."""
    sizes = [int(n) for n in re.findall(r"\d+", head)]
    model = over(head, re.sub(r"\bN\b", str(entries), nodes), opset=23)
    try:
        stepped = streamed(model, f"X:{sizes.index(10)}")
    except rl.UnsupportedError as error:
        return str(error)
    feed = {"X": random(sizes, 1)}
    expected = whole(model, feed)["Y"]
    for chunks in CHUNKINGS:
        np.testing.assert_allclose(chunked(stepped, feed, chunks)["Y"], expected, rtol=0, atol=1e-5)
    return ""


@pytest.mark.few(16)
@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize(("head", "said", "nodes"), NETS)
def test_an_entry_for_each_frame_of_a_fixed_length_is_refused(head: str, said: str, nodes: str) -> None:
    reason = reason_of(head, nodes, 10)
    assert reason == "" if said == "right" else re.search(said.removeprefix("always: "), reason)
    if not said.startswith("always"):
        assert reason_of(head, nodes, 1) == ""
