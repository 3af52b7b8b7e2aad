"""Networks that people stream, small and with random weights, as exporters write them."""

import numpy as np
import onnx
from cases import Array, Arrays
from stream_models import net, random, recurrent


def keyword_spotter() -> tuple[onnx.ModelProto, Arrays]:
    """Features [batch, 20, time]: a causal Conv1d, a GRU, the scores of the last frame."""
    model = net(
        """g (float[batch, 20, time] features) => (float[batch, 6] scores, float[batch, t, 6] each) {
            p = Pad (features, [0, 0, 3, 0, 0, 0])  c = Conv (p, K, bias)  r = Relu (c)
            x = Transpose <perm = [2, 0, 1]> (r)
            [gru] y = GRU <hidden_size = 16, linear_before_reset = 1> (x, W, R, B)
            s = Squeeze (y, [1])  first = Transpose <perm = [1, 0, 2]> (s)
            l = MatMul (first, linear)  each = Add (l, offset)
            scores = Gather <axis = 1> (each, -1) }""",
        {
            **recurrent("GRU", 24, 16),
            **{"K": random((24, 20, 4), 1, 0.2), "bias": random((24,), 2)},
            **{"linear": random((16, 6), 3), "offset": random((6,), 4)},
        },
    )
    return model, {"features": random((2, 20, 23), 5)}


def language_model() -> tuple[onnx.ModelProto, Arrays]:
    """Tokens [batch, time], batch first; the states of two LSTM layers stacked, in and out."""
    weights = {
        **recurrent("LSTM", 12, 16),
        **recurrent("LSTM", 16, 16, "v"),
        **{"table": random((30, 12), 1), "out": random((16, 30), 2)},
    }
    model = net(
        """g (int64[batch, time] tokens, float[2, batch, 16] h0, float[2, batch, 16] c0)
            => (float[batch, t, 30] logits, float[2, batch, 16] hn, float[2, batch, 16] cn) {
            e = Gather (table, tokens)  x = Transpose <perm = [1, 0, 2]> (e)
            h1, h2 = Split <axis = 0> (h0, [1, 1])  c1, c2 = Split <axis = 0> (c0, [1, 1])
            y1, p1, q1 = LSTM <hidden_size = 16> (x, W, R, B, , h1, c1)  z1 = Squeeze (y1, [1])
            y2, p2, q2 = LSTM <hidden_size = 16> (z1, vW, vR, vB, , h2, c2)  z2 = Squeeze (y2, [1])
            b = Transpose <perm = [1, 0, 2]> (z2)  logits = MatMul (b, out)
            hn = Concat <axis = 0> (p1, p2)  cn = Concat <axis = 0> (q1, q2) }""",
        weights,
    )
    tokens = np.random.default_rng(3).integers(0, 30, (2, 23))
    return model, {"tokens": tokens, "h0": np.zeros((2, 2, 16), np.float32), "c0": np.zeros((2, 2, 16), np.float32)}


def keras_batch_first(time: str = "time") -> tuple[onnx.ModelProto, Arrays]:
    """As tf2onnx writes two layers with return_sequences: transposed in and out, zeros of the batch size."""
    weights = {**recurrent("LSTM", 7, 10), **recurrent("GRU", 10, 10, "v")}
    model = net(
        f"""g (float[batch, {time}, 7] inputs) => (float[batch, t, 10] outputs) {{
            shape = Shape (inputs)  n = Slice (shape, [0], [1])  sizes = Concat <axis = 0> ([1], n, [10])
            zeros = ConstantOfShape <value = float[1] {{0}}> (sizes)
            x = Transpose <perm = [1, 0, 2]> (inputs)
            [lstm] y = LSTM <hidden_size = 10> (x, W, R, B, , zeros, zeros)  s = Squeeze (y, [1])
            [gru] z = GRU <hidden_size = 10> (s, vW, vR, vB, , zeros)  r = Squeeze (z, [1])
            outputs = Transpose <perm = [1, 0, 2]> (r) }}""",
        weights,
    )
    return model, {"inputs": random((2, 23, 7), 6)}


def enhancer() -> tuple[onnx.ModelProto, Arrays]:
    """Like GTCRN: [batch, 2, time, 16] spectra; causal Conv2d with dilation, a bidirectional GRU over the
    frequencies of each frame, a GRU over time for each frequency, a transposed convolution, skip connections."""
    channels = 6
    weights: dict[str, Array] = {
        "encode": random((channels, 2, 3, 5), 1, 0.2),
        "deep": random((channels, 1, 3, 3), 2, 0.4),
        "decode": random((channels, 2, 3, 4), 3, 0.2),
        **recurrent("GRU", channels, 3, "i", directions=2),
        **recurrent("GRU", channels, channels, "t"),
        "scale": random((channels,), 4) + 1.5,
        "shift": random((channels,), 5),
    }
    model = net(
        """g (float[batch, 2, time, 16] spectra) => (float[batch, 2, t, f] enhanced) {
            shape = Shape (spectra)  n = Slice (shape, [0], [1])  t = Slice (shape, [2], [3])
            p = Pad (spectra, [0, 0, 2, 2, 0, 0, 0, 2])  c = Conv <strides = [1, 2]> (p, encode)
            b = BatchNormalization (c, scale, shift, shift, scale)  e = LeakyRelu (b)
            q = Pad (e, [0, 0, 4, 1, 0, 0, 0, 1])  d = Conv <dilations = [2, 1], group = 6> (q, deep)
            skip = Add (d, e)

            f = Transpose <perm = [3, 0, 2, 1]> (skip)  flat = Reshape (f, [8, -1, 6])
            intra, last = GRU <hidden_size = 3, direction = "bidirectional"> (flat, iW, iR, iB)
            i1 = Transpose <perm = [0, 2, 1, 3]> (intra)
            sizes = Concat <axis = 0> ([8], n, t, [6])  i2 = Reshape (i1, sizes)
            with_intra = Add (i2, f)

            byt = Transpose <perm = [2, 1, 0, 3]> (with_intra)
            rows = Concat <axis = 0> (t, [-1], [6])  seq = Reshape (byt, rows)
            inter = GRU <hidden_size = 6, linear_before_reset = 1> (seq, tW, tR, tB)  s = Squeeze (inter, [1])
            back = Concat <axis = 0> (t, n, [8], [6])  u = Reshape (s, back)
            v = Add (u, byt)  w = Transpose <perm = [1, 3, 0, 2]> (v)

            joined = Add (w, skip)  up = ConvTranspose <strides = [1, 2], pads = [0, 1, 2, 1]> (joined, decode)
            mask = Tanh (up)  enhanced = Mul (mask, spectra) }""",
        weights,
    )
    return model, {"spectra": random((2, 2, 23, 16), 7)}
