"""A net that is no stream is refused, with the reason that docs/refusals.json lists: a net or more for each."""

import onnx
import onnx_ir as ir
import pytest
from stream_models import over, rows

import rnn_lowering as rl

REFUSED = rows("""
# float[2, 3, time] X
looks 1 frame ahead, ... delay of 1 frame
    Y = Conv <pads = [1, 1]> (X, K[3, 3, 3])
looks 2 frames ahead, ... delay of 2 frames
    Y = Conv <pads = [0, 2]> (X, K[3, 3, 3])
looks 3 frames ahead
    Y = Conv <pads = [3, 3], dilations = [3]> (X, K[3, 3, 3])
looks 2 frames ahead, ... delay of 2 frames; delay=2
    Y = Conv (X, K[3, 3, 3])
output 'Y' has 2 frames more than the stream
    Y = Conv <pads = [2, 2]> (X, K[3, 3, 3])
looks 2 frames ahead
    Y = Conv <strides = [2]> (X, K[3, 3, 3])
averages over fewer frames at the start; set count_include_pad
    p = Pad (X, [0, 0, 2, 0, 0, 0])  a = AveragePool <kernel_shape = [3], pads = [1, 0]> (p)
        Y = Slice (a, [0], [-1], [2])
pads with other frames (mode reflect), ... ; pad with a constant
    p = Pad <mode = "reflect"> (X, [0, 1, 0, 0, 1, 2])  Y = Conv (p, K[3, 5, 3])
output 'Y' has 1 frame more
    p = Conv <pads = [2, 2]> (X, K[3, 3, 3])  s = Slice (p, [0], [-1], [2])  Y = Relu (s)
joins values whose frames are not aligned
    p = Pad (X, [0, 0, 2, 0, 0, 0])  q = Pad (X, [0, 0, 2, 0, 0, 2])  Y = Add (p, q)
output 'Y' has 1 frame more than the stream
    Y = ConvTranspose <strides = [2]> (X, K[3, 3, 3])
looks 1 frame ahead
    Y = ConvTranspose <strides = [2], pads = [1, 0]> (X, K[3, 3, 3])
subtracts the mean of all frames, ... (utterance normalization)
    m = GlobalAveragePool (X)  Y = Sub (X, m)
Gather node '-> Y' in main graph: picks frames by their position
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  Y = Gather <axis = 2> (a, [-1])
output 'Y' has 1 frame more than the stream; trim it with a Slice
    p = Pad (X, [0, 0, 4, 0, 0, 4])  Y = Conv <strides = [4]> (p, K[3, 3, 8])
interpolates between frames in a way that is not known
    Y = Resize <mode = "linear"> (X, , [1.0, 1.0, 3.0])
is not known to repeat each frame
    Y = Resize <mode = "nearest", nearest_mode = "ceil"> (X, , [1.0, 1.0, 3.0])
    s = Shape (X)  t = Gather (s, 2)  n = Div (t, 3)  u = Unsqueeze (n, [0])  q = Concat <axis = 0> ([2, 3], u)
        Y = Resize <mode = "nearest"> (X, , , q)
    Y = Resize <mode = "nearest", coordinate_transformation_mode = "align_corners"> (X, , [1.0, 1.0, 0.5])
    Y = Resize <mode = "nearest", coordinate_transformation_mode = "pytorch_half_pixel",
        nearest_mode = "round_prefer_ceil"> (X, , [1.0, 1.0, 0.5])
    Y = Resize <mode = "nearest"> (X, , [1.0, 2.0, 0.5])
the shape of 'o' depends on the number of frames in a way that a stream cannot follow
    s = Shape (X)  t = Gather (s, [2])  q = Concat <axis = 0> (t, t)  o = ConstantOfShape (q)  Y = MatMul (X, o)
the shape of 'r' depends on the number of frames in a way that a stream cannot follow
    s = Shape (X)  t = Gather (s, 2)  n = Mul (t, t)  r = Range (0, n, 1)  f = Cast <to = 1> (r)  Y = Add (X, f)
pads the frames by an amount that depends on their number, or is not known
    s = Shape (X)  t = Gather (s, [2])  p = Concat <axis = 0> ([0, 0], t, [0, 0, 0])  Y = Pad (X, p)
output 'Y' has not as many frames as the stream; pad it in front by the 1 frame
    Y = ConvTranspose <pads = [0, 3]> (X, K[3, 3, 3])
does not return one result per frame
    b = Shape <end = 2> (X)  t = Shape <start = 2> (X)  d = Mul (t, [2])  z = Concat <axis = 0> (b, d)
        Y = Resize <keep_aspect_ratio_policy = "not_larger", mode = "nearest", nearest_mode = "floor",
        coordinate_transformation_mode = "asymmetric"> (X, , , z)
not aligned: ... 1/2 for each of the stream and ... 1/4
    a = Slice (X, [0], far, [2], [2])  b = Slice (a, [0], far, [2], [2])  Y = Concat <axis = 1> (a, b)
output 'Y' has 2 frames more than
    Y = ConvTranspose <strides = [2]> (X, K4[3, 3, 4])
STFT node '-> Y' in main graph: looks 4 frames ahead
    u = Transpose <perm = [0, 2, 1]> (X)  c = Slice (u, [0], [1], [2])  Y = STFT (c, 4, window[8])
a stride of 2 over time does not fit the frames that are cut off before it
    s = Slice (X, [0], [-1], [2])  Y = Conv <strides = [2], pads = [3, 0]> (s, K[3, 3, 3])
its frames are merged with another axis, or its weights depend on them
    m = GlobalMaxPool (X)  Y = Conv (X, m)
for which onnxruntime ignores the dilations; give the paddings as numbers
    p = MaxPool <kernel_shape = [3], dilations = [2], auto_pad = "SAME_LOWER"> (X)  Y = Relu (p)
    Y = LpPool <kernel_shape = [3], dilations = [2], auto_pad = "SAME_UPPER"> (X)
ceil_mode adds a result behind the last whole window; drop ceil_mode, or let kernel and paddings fit the stride
    Y = MaxPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (X)
    Y = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 1], ceil_mode = 1> (X)
    Y = MaxPool <kernel_shape = [2], strides = [2], pads = [1, 1], ceil_mode = 1> (X)
    Y = MaxPool <kernel_shape = [2], strides = [2], auto_pad = "SAME_UPPER", ceil_mode = 1> (X)
    c = Slice (X, [1], far, [2])  Y = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (c)
output_shape or a missing kernel_shape do not fit chunks
    Y = ConvTranspose <output_shape = [8]> (X, K[3, 3, 3])
its paddings depend on the sizes of its result
    Y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2]> (X, K[3, 3, 3])
repeats or cuts off the first frame of a value that comes late
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  s = Slice (c, [0], [-2], [2])
        Y = Pad <mode = "edge"> (s, [0, 0, 2, 0, 0, 0])
joins frames with others along the time axis
    r = Relu (X)  Y = Concat <axis = 2> (X, r)
picks frames at another rate than that of its table
    s = Shape (X)  n = Slice (s, [2], [3])  m = Squeeze (n, [0])  r = Range (0, m, 1)  t = Mul (r, [2])
        Y = Gather <axis = 2> (X, t)
weighs all frames, after some were padded, cut or moved
    p = Pad (X, [0, 0, 4, 0, 0, 0])  w = Softmax <axis = 2> (p)  m = Mul (w, p)  Y = ReduceSum (m, [2])
spreads a value that is known only after the last frame over all frames
    m = GlobalMaxPool (X)  s = Shape (X)  Y = Expand (m, s)
takes a size from the stream: 'i'
    m = GlobalMaxPool (X)  f = Reshape (m, [-1])  i = Cast <to = 7> (f)  Y = Expand (lead[2, 3, 1], i)
looks beyond its frame: it acts along axis 2, which holds the frames
    Y = LogSoftmax <axis = 2> (X)

# float[batch, time, 3] X
Slice node '-> z'
    z = Slice (X, [0], [200], [1])  Y = Neg (z)
    m = Neg ([200])  z = Slice (X, m, far, [1])  Y = Neg (z)
Div node '-> z' in main graph: 'd' depends on the number of frames
    f = Slice (X, [0], [200], [1])  s = Shape (f)  n = Gather (s, [1])  d = Cast <to = 1> (n)  z = Div (X, d)
        Y = Neg (z)
output 'Y' has 198 frames more than the stream
    f = Slice (X, [0], [200], [1])  s = Shape (f)  o = ConstantOfShape (s)  c = Slice (X, [0], [-2], [1])
        z = Concat <axis = 1> (o, c)  Y = Neg (z)
Concat node '-> c' in main graph: 'o' has fewer frames in a shorter sequence
    f = Slice (X, [0], [200], [1])  s = Shape (f)  o = ConstantOfShape (s)  c = Concat <axis = 1> (X, o)
        m = Neg ([200])  z = Slice (c, [0], m, [1])  Y = Neg (z)
at the end after the last
    c = Slice (X, [0], [-2], [1])  z = Pad (c, [0, 0, 0, 0, 2, 0])  Y = Neg (z)
    c = Slice (X, [0], [-1], [1])  z = Concat <axis = 1> (c, lead[2, 1, 3])  Y = Neg (z)
    c = Slice (X, [0], [-1], [1])  t = Transpose <perm = [0, 2, 1]> (c)  v = Conv <pads = [1, 1]> (t, K[3, 3, 2])
        z = Transpose <perm = [0, 2, 1]> (v)  Y = Neg (z)
    c = Slice (X, [0], [-1], [1])  t = Transpose <perm = [0, 2, 1]> (c)  v = ConvTranspose (t, K[3, 3, 2])
        z = Transpose <perm = [0, 2, 1]> (v)  Y = Neg (z)
sums from the last frame on
    Y = CumSum <reverse = 1> (X, 1)
pads with other frames (mode edge)
    Y = Pad <mode = "edge"> (X, [0, 1, 1, 0, 0, 0])
output 'Y' has 1 frame more than the stream
    Y = Pad <mode = "edge"> (X, [0, 0, 0, 0, 1, 0])
its frames are merged with another axis
    r = Reshape (X, [-1, 1, 3])  Y = GRU <hidden_size = 4> (r, W, R)
output 'Y' holds the frames of several rows, one row after another
    Y = Reshape (X, [-1, 3])

# float[batch, time, 3] X { s = Shape (X)  t = Gather (s, [1])
Greater node '-> c'
    c = Greater (t, [300])  z = If (c) <then_branch = a () => (float[d, e, f] z1) { z1 = Neg (X) },
        else_branch = b () => (float[g, h, i] z2) { z2 = Identity (X) }>  Y = Neg (z)
Mod node '-> m'
    m = Mod <fmod = 1> (t, [4])  f = Cast <to = 1> (m)  z = Add (X, f)  Y = Neg (z)
    m = Mod ([40], t)  f = Cast <to = 1> (m)  z = Add (X, f)  Y = Neg (z)
    m = Mod (t, [-4])  f = Cast <to = 1> (m)  z = Add (X, f)  Y = Neg (z)
Min node '-> m'
    m = Min (t, [20])  z = Slice (X, [0], m, [1])  Y = Neg (z)
Add node '-> z'
    m = Div (t, [200])  f = Cast <to = 1> (m)  z = Add (X, f)  Y = Neg (z)
Max node '-> m'
    m = Max (t, [8])  f = Cast <to = 1> (m)  z = Div (X, f)  Y = Neg (z)
Clip node '-> m'
    q = Squeeze (t, [0])  m = Clip (q, 1, 1099511627776)  f = Cast <to = 1> (m)  z = Div (X, f)  Y = Neg (z)
Pad node '-> p' in main graph: 'k' has 1 frame fewer than the chunk
    q = Concat <axis = 0> ([1], t, [1])  o = ConstantOfShape <value = float[1] {1.0}> (q)
        k = Slice (o, [0], [-1], [1])  p = Pad (k, [0, 1, 0, 0, 0, 0])  z = Mul (X, p)  Y = Neg (z)
Concat node '-> p' in main graph: 'o' has 2 frames fewer than the chunk
    n = Sub (t, [2])  q = Concat <axis = 0> ([1], n, [3])  o = ConstantOfShape <value = float[1] {1.0}> (q)
        p = Concat <axis = 1> (zeros[1, 1, 3], zeros, o)  z = Mul (X, p)  Y = Neg (z)
Sqrt node '-> m'
    f = Cast <to = 1> (t)  m = Sqrt (f)  z = Div (X, m)  Y = Neg (z)
Div node '-> z' in main graph: 'f' depends on the number of frames
    f = Cast <to = 1> (t)  z = Div (X, f)  Y = Neg (z)
Slice node '-> z'
    m = Div (t, [2])  z = Slice (X, [0], m, [1])  Y = Neg (z)
Equal node '-> c'
    c = Equal (t, [20])  m = Where (c, [1], [2])  z = Slice (X, [0], m, [1])  Y = Neg (z)
TopK node '-> v'
    q = Squeeze (t, [0])  v, k = TopK <axis = 0> (table[500], t)  z = Add (X, v)  Y = Neg (z)
Cast node '-> Y'
    Y = Cast <to = 1> (t)

Slice node '-> Y' in main graph: picks frames by their position
    Y = Slice (X, [-2], far, [1])
    p = Pad (X, [0, 1, 0, 0, 0, 0])  Y = Slice (p, [-3], far, [1])
If node '-> Y' in main graph: its condition depends on the stream
    f = Slice (X, [-1], far, [1])  m = ReduceMax <keepdims = 0> (f)  c = Greater (m, 0.0)
        Y = If (c) <then_branch = a () => (float[d, e, f] y) { y = CumSum (X, 1) },
        else_branch = b () => (float[d, e, f] z) { z = Neg (X) }>

# float[batch, time, 3] X, float[rows, 3] given
Slice node '-> p'
    s = Shape (X)  t = Gather (s, [1])  p = Slice (given, [0], t, [0])  z = Add (X, p)  Y = Neg (z)

# float[time, batch, 3] X, float[1, batch, 4] h0
Add node '-> Y'
    y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  Y = Add (y, h0)
Tanh node '-> d' in main graph: reads 'h0', a state
    y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  c = Squeeze (h0, [0])  d = Tanh (c)  Y = Add (y, d)

# float[time, batch, 3] X, float[1, batch, 4] h0 => float[] Y, float[] Z
'h0' is a state and an output
    Y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  Z = Identity (h0)
RNN node '-> w'
    Y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  q = Transpose <perm = [1, 0, 2]> (h0)
        w, Z = RNN <hidden_size = 4> (q, Wr[1, 4, 4], Rr[1, 4, 4])

# float[time, batch, 3] X, int32[batch] lens
Neg node '-> l' in main graph: computes the sequence lengths, which differ in a chunk
    l = Neg (lens)  Y = GRU <hidden_size = 4> (X, W, R, B, l)
reads 'lens', the sequence lengths
    y = GRU <hidden_size = 4> (X, W, R, B, lens)  f = Cast <to = 1> (lens)  u = Unsqueeze (f, [1])  Y = Div (y, u)
Max node '-> m'
    one = Cast <to = 6> ([1])  m = Max (lens, one)  Y = GRU <hidden_size = 4> (X, W, R, B, m)
TopK node '-> v'
    s = Shape (lens)  f = Cast <to = 1> (lens)  v, order = TopK <axis = 0> (f, s)  x = Gather <axis = 1> (X, order)
        l = Cast <to = 6> (v)  Y = GRU <hidden_size = 4> (x, W, R, B, l)
TopK node '-> v' in main graph: reads 'lens'
    s = Shape (lens)  f = Cast <to = 1> (lens)  v, order = TopK <axis = 0> (f, s)  x = Gather <axis = 1> (X, order)
        Y = GRU <hidden_size = 4> (x, W, R, B, lens)

# float[batch, time, 3] X { s = Shape (X)  t = Gather (s, 1)
Gather node '-> Y' in main graph: looks 2 frames ahead
    r = Range (0, t, 1)  u = Unsqueeze (r, [0])  w = Add (u, [[0], [1], [2]])  Y = Gather <axis = 1> (X, w)
Gather node '-> Y' in main graph: looks 1 frame ahead
    r = Range (0, t, 1)  u = Unsqueeze (r, [0])  w = Add (u, [[0], [1]])  Y = Gather <axis = 1> (X, w)
Gather node '-> Y' in main graph: picks a frame before the first one
    r = Range (0, t, 1)  u = Sub (r, 1)  Y = Gather <axis = 1> (X, u)
Range node '-> r'
    n = Add (t, t)  r = Range (t, n, 1)  f = Cast <to = 1> (r)  c = Unsqueeze (f, [1])  Y = Add (X, c)

# float[batch, time, 3] X => int64[] Y
Range node '-> Y' in main graph: counts frames in a way
    s = Shape (X)  t = Gather (s, 1)  n = Add (t, t)  Y = Range (t, n, 1)
    s = Shape (X)  t = Gather (s, 1)  Y = Range (t, 0, -1)

# float[batch, time, 4] g
Sub node ... subtracts the mean of all frames, which is known only after the last one (utterance normalization)
    m = ReduceMean (g, [1])  d = Sub (g, m)  q = Mul (d, d)  v = ReduceMean (q, [1])  e = Sqrt (v)  Y = Div (d, e)
joins each frame with a value that is known only after the last one
    m = ReduceMax (g, [1])  Y = Div (g, m)
    n = Neg (g)  m = ReduceMean (n, [1])  d = Sub (g, m)  q = Mul (d, d)  Y = ReduceMean (q, [1])
Softmax node ... weighs each frame by all of them; a stream can only have the sum
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  Y = Mul (w, g)
weighs each frame by all of them
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  q = Mul (w, w)  v = Mul (q, g)  Y = ReduceSum (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  Y = ReduceMax (w, [1])
depends on the number of frames, which a stream never knows
    h = Shape (g)  n = Gather (h, 1)  f = Cast <to = 1> (n)  Y = Div (g, f)
pools frames that were padded, cut or moved before
    t = Transpose <perm = [0, 2, 1]> (g)  c = Conv <pads = [2, 2]> (t, K[4, 4, 3])  Y = GlobalAveragePool (c)
    t = Transpose <perm = [0, 2, 1]> (g)  c = Conv <pads = [1, 1]> (t, K[4, 4, 3])  Y = GlobalAveragePool (c)
Softmax node '-> w' in main graph: weighs each frame by all of them
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  u = Mul (w, g)  v = Pow (u, 2.0)
        Y = ReduceSum (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  u = Mul (w, g)  v = Mul (u, u)  Y = ReduceSum (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  u = Mul (w, g)  v = Add (u, g)  Y = ReduceSum (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  u = Mul (w, g)  v = Softmax (u)  Y = ReduceSum (v, [1])
    a = MatMul (g, score[4, 1])  w = Softmax <axis = 1> (a)  b = Neg (a)  x = Softmax <axis = 1> (b)  u = Mul (w, g)
        v = Mul (u, x)  Y = ReduceSum (v, [1])
MatMul node '-> Y' in main graph: joins each frame with a value that is known only after the last one
    t = Transpose <perm = [0, 2, 1]> (g)  c = MatMul (t, g)  Y = MatMul (g, c)
MatMul node '-> Y' in main graph: sums products of frames that were padded, cut or moved before; multiply exactly
    a = Slice (g, [1], far, [1])  b = Slice (g, [0], [-1], [1])  t = Transpose <perm = [0, 2, 1]> (a)
        Y = MatMul (t, b)
    p = Pad (g, [0, 1, 0, 0, 0, 0])  t = Transpose <perm = [0, 2, 1]> (p)  Y = MatMul (t, p)
counts frames in a way that needs the whole sequence
    h = Shape (g)  n = Gather (h, 1)  r = Range (n, 0, -1)  f = Cast <to = 1> (r)  u = Unsqueeze (f, [1])
        Y = Div (g, u)
    h = Shape (g)  n = Gather (h, 1)  f = Cast <to = 1> (n)  k = Add (f, 0.000000001)  r = Range (0.0, k, 1.0)
        u = Unsqueeze (r, [1])  Y = Add (g, u)
'f' depends on the number of frames, which a stream never knows
    h = Shape (g)  n = Gather (h, 1)  r = Range (0, n, 1)  c = Cast <to = 1> (r)  f = Cast <to = 1> (n)
        d = Div (c, f)  u = Unsqueeze (d, [1])  Y = Add (g, u)

# float[time, batch, 3] X
GRU node '-> y' in main graph: direction is reverse
    y = GRU <hidden_size = 4, direction = "reverse"> (X, W, R, B)  Y = Neg (y)
GRU node '-> Y' in main graph: its initial state is computed from the stream
    last = Gather (X, [-1])  h0 = MatMul (last, wide[3, 4])  Y = GRU <hidden_size = 4> (X, W, R, B, , h0)
Slice node '-> x' in main graph: picks frames by their position
    x = Slice (X, [1], [2], [0])  y = Sub (X, x)  Y = Neg (y)
    x = Slice (X, [0], [2], [0])  m = ReduceMean <keepdims = 1> (x, [0])  y = Sub (X, m)  Y = Neg (y)
    x = Slice (X, [0], [1], [0])  y = Concat <axis = 2> (X, x)  Y = Neg (y)
    x = Slice (X, [0], [1], [0])  Y = Neg (x)
Sub node '-> y' in main graph: joins each frame with a value that is known only after the last one
    x = Slice (X, [-1], far, [0])  y = Sub (X, x)  Y = Neg (y)
Sub node '-> x' in main graph: subtracts the mean of all frames
    m = ReduceMean (X, [0])  x = Sub (X, m)  Y = Neg (x)
Softmax node '-> x' in main graph: weighs each frame by all of them
    x = Softmax <axis = 0> (X)  Y = Neg (x)
reverses the frames
    x = Slice (X, [-1], [-2147483648], [0], [-1])  Y = Neg (x)
MatMul node '-> s' in main graph: compares frames with each other
    q = Transpose <perm = [1, 0, 2]> (X)  k = Transpose <perm = [1, 2, 0]> (X)  s = MatMul (q, k)
        y = Unsqueeze (s, [0])  Y = Neg (y)
Add node '-> Y' in main graph: compares frames with each other: they are on different axes
    a = Unsqueeze (X, [1])  b = Unsqueeze (X, [0])  Y = Add (a, b)
Reshape node '-> x' in main graph: mixes the frames with other axes
    x = Reshape (X, [2, -1, 3])  Y = Neg (x)
    x = Reshape (X, [-1, 4])  Y = Neg (x)
did the exporter fix the length?
    x = Reshape (X, [11, 2, 3])  Y = Neg (x)
is not known to act on each frame alone
    Y = Bernoulli (X)
    Y = other.FFT (X)
pads frames that are merged with another axis
    r = Reshape (X, [-1, 3])  Y = Pad (r, [1, 0, 0, 0])
reads 2 frames more than the stream has; trim its input with a Slice
    p = Pad (X, [2, 0, 0, 0, 0, 0])  Y = GRU <hidden_size = 4> (p, W, R, B)
reads not as many frames as the stream has; pad it in front by the 2 frames
    x = Slice (X, [0], [-2], [0])  Y = GRU <hidden_size = 4> (x, W, R, B)
its weights depend on the stream
    m = ReduceMax (X)  w = Mul (W, m)  Y = GRU <hidden_size = 4> (X, w, R)
initial_h depends on the size of an axis
    s = Shape (X)  b = Slice (s, [1], [2])  f = Cast <to = 1> (b)  o = Concat <axis = 0> ([1], b, [4])
        h = Expand (f, o)  Y = GRU <hidden_size = 4> (X, W, R, , , h)

# float[time, batch, 3] X, int64 n
Loop node '-> Y' in main graph: its initial state is computed from the stream
    Y = Loop (n, , X) <body = b (int64 i, bool go, float[p, q, 3] x) => (bool go2, float[p, q, 3] x2) {
        go2 = Identity (go)  y = GRU <hidden_size = 3> (x, V[1, 9, 3], S[1, 9, 3])  x2 = Squeeze (y, [1]) }>

# float[time, 16, 1] X
its signal is not the stream, or its frames have no constant length and step
    Y = STFT (X, 1, window[4])

# float[2, 3, time] X => float[] Y, int64[] Z
returns positions, which would restart in each chunk
    Y, Z = MaxPool <kernel_shape = [2], pads = [1, 0]> (X)

# float[time, 2, 6] X => float[] Y, int64[] Z
returns positions, which would restart in each chunk
    Y, Z = MaxPool <kernel_shape = [2]> (X)

# float[2, 3, time, width] X
its paddings depend on a size that is not fixed
    Y = Conv <auto_pad = "SAME_UPPER", strides = [1, 2]> (X, K[3, 3, 3, 3])

# float[time, 4, 5] X
its columns are not the frames, or its sizes are not known
    Y = Col2Im (X, [1, 6], [1, 2])

# float[1, 4, time] X
adds its columns along several axes, or cuts some of the result off
    s = Shape (X)  n = Slice (s, [2], [3])  m = Sub (n, [1])  i = Concat <axis = 0> ([1], m)
        Y = Col2Im <pads = [0, 1, 0, 1]> (X, i, [1, 2])
its size is not that of all its columns together
    s = Shape (X)  n = Slice (s, [2], [3])  m = Add (n, [3])  i = Concat <axis = 0> ([1], m)
        Y = Col2Im (X, i, [1, 2])

# float[2, 3, time] X, float v
pads the frames with a number that is not constant
    Y = Pad (X, [0, 0, 4, 0, 0, 0], v)

# float[2, 3, time] X, float[2, 3, 1] g
joins the frames of the stream with others on both sides, or with some that a short sequence lacks
    Y = Concat <axis = 2> (g, X, lead[2, 3, 1])

# float[2, 3, time] X, int64[k] target
the shape of 'r' is not known, so its time axis cannot be found
    r = Reshape (X, target)  Y = Neg (r)

# float[2, time, 4] X => float[] Y, float[] p
its past_state is computed from the stream; make it an input
    m = ReduceMax (X)  past = Mul (m, past0[2, 1, 4, 4])
        Y, p = LinearAttention <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear"> (X, X, X, past)
LinearAttention node '-> Y' in main graph: does not read one frame for each of the stream
    x = Pad (X, [0, 1, 0, 0, 0, 0])
        Y, p = LinearAttention <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear"> (x, x, x)
LinearAttention node '-> Y' in main graph: its frames are not along axis 1 of all its inputs
    x = Transpose <perm = [1, 0, 2]> (X)
        Y, p = LinearAttention <q_num_heads = 1, kv_num_heads = 1, update_rule = "linear"> (x, x, x)

# float[2, 3, time] X, int64[1] end
starts or ends are not constant
    Y = Slice (X, [0], end, [2])

# float[2, wide, time] X
cuts other axes by the number of frames
    s = Shape (X)  n = Slice (s, [2], [3])  Y = Slice (X, [0], n, [1])

# float[2, 3, time] X, float[k] Z
cuts frames and an axis of another size that is not fixed
    k = Shape (Z)  e = Concat <axis = 0> (k, [-1])  Y = Slice (X, [0, 0], e, [1, 2])

# float[5, time, 3] X, float[1, n, 4] h
its frames are its batch, but its initial states or lengths have a fixed batch size
    Y = GRU <hidden_size = 4> (X, W, R, , , h)

# float[2, 3, time] X, int32[2] lens
has sequence_lens, and reads frames that come 1 late
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  x = Transpose <perm = [2, 0, 1]> (c)
        Y = GRU <hidden_size = 4> (x, W, R, , lens)
its sequence_lens count other frames than those of the stream
    c = Conv <strides = [2]> (X, K[3, 3, 2])  x = Transpose <perm = [2, 0, 1]> (c)
        Y = GRU <hidden_size = 4> (x, W, R, , lens)

# float[2, 3, time] X, int32[2] lens => float[] Y, float[] Z
has sequence_lens, in a stream that looks ahead
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  x = Transpose <perm = [2, 0, 1]> (c)
        t = Transpose <perm = [2, 0, 1]> (X)  Y = GRU <hidden_size = 4> (t, W, R, , lens)  Z = Neg (x)

# float[time, 1, 3] X
its sequence_lens are computed from the stream
    m = ReduceMax (X)  f = Reshape (m, [-1])  l = Cast <to = 6> (f)  Y = GRU <hidden_size = 4> (X, W, R, , l)

# float[time, batch, 3] X, int32[batch] lens => float[] Y, int32[] l
'lens', the sequence lengths, is also an output, but differs in a chunk
    l = Identity (lens)  Y = GRU <hidden_size = 4> (X, W, R, , l)

# float[1, time, 4] X, float[5, n, 3] Z
its initial states or lengths have frames, but its input does not
    Y = GRU <hidden_size = 4> (Z, W, R, , , X)

# float[time, batch, 3] X, float[1, batch, 4] h => float[] Y, float[] Z
shares the initial state in input 'h' with another node
    Y = GRU <hidden_size = 4> (X, W, R, , , h)  Z = GRU <hidden_size = 4> (X, W, R, , , h)

# float[2, 3, time] X, bool c
the frames of its branches differ in axis, rate or position
    Y = If (c) <then_branch = a () => (float[a, b, n] y) { y = Slice (X, [0], [-1], [2]) },
        else_branch = b () => (float[a, b, n] z) { z = Neg (X) }>
its branches have different numbers of frames
    s = Shape (X)  n = Slice (s, [2], [3])  m = Add (n, [1])
        z = If (c) <then_branch = a () => (float[d] y) { y = ConstantOfShape (n) },
        else_branch = b () => (float[e] w) { w = ConstantOfShape (m) }>  Y = Add (X, z)
its branches depend on the number of frames in different ways
    s = Shape (X)  n = Slice (s, [2], [3])  z = If (c) <then_branch = a () => (int64[1] y) { y = Neg (n) },
        else_branch = b () => (int64[1] w) { w = Abs (n) }>  Y = Slice (X, [0], z, [2])
If node '-> Y' in main graph: its branches have different numbers of outputs
    Y = If (c) <then_branch = a () => (float[a, b, n] y, float z) { y = Neg (X)  z = ReduceMax <keepdims = 0> (X) },
        else_branch = b () => (float[a, b, n] w) { w = Neg (X) }>

# float[time, N, 3] X, float[N, 3] S
goes backwards: it starts at the last frame, which a stream has not seen yet
    F, Y = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b (float[N, 3] s, float[N, 3] x)
        => (float[N, 3] t, float[N, 3] y) { m = ReduceMax <keepdims = 0> (x)  t = Add (s, m)  y = Add (x, t) }>
        (S, X)
reads 1 frame more than the stream has
    l = Pad (X, [1, 0, 0, 0, 0, 0])  F, Y = Scan <num_scan_inputs = 1, body = b (float[N, 3] s, float[N, 3] x)
        => (float[N, 3] t, float[N, 3] y) { m = ReduceMax <keepdims = 0> (x)  t = Add (s, m)  y = Add (x, t) }>
        (S, l)
reads the first frame of the stream, 'f', in every step
    f = Slice (X, [0], [1], [0])  F, Y = Scan <num_scan_inputs = 1, body = b (float[N, 3] s, float[N, 3] x)
        => (float[N, 3] t, float[N, 3] y) { m = ReduceMax <keepdims = 0> (f)  t = Add (s, m)  y = Add (x, t) }>
        (S, X)
reads 'X', which has all frames of the stream or depends on them, in every step
    F, Y = Scan <num_scan_inputs = 1, body = b (float[N, 3] s, float[N, 3] x)
        => (float[N, 3] t, float[N, 3] y) { m = ReduceMax <keepdims = 0> (X)  t = Add (s, m)  y = Add (x, t) }>
        (S, X)

# float[time, a, 3] X, float[time, b, 3] Z
elements: a state cannot have that size
    x = Concat <axis = 1> (X, Z)  Y = GRU <hidden_size = 4> (x, W, R)

# float[time, a, 3] X, float[b, 3] Z
the size of axis 1 of 'x' is not known: a state cannot have that size
    x = Add (X, Z)  Y = GRU <hidden_size = 4> (x, W, R)
a call may skip a state in its branches
    x = Add (X, Z)  m = Shape (x)  n = Shape (X)  d = Sub (m, n)  e = ReduceSum <keepdims = 0> (d)
        c = Cast <to = 9> (e)  Y = If (c) <then_branch = a () => (float[p, q, r] y) { y = Neg (x) },
        else_branch = b () => (float[s, t, u] z) { z = CumSum (x, 0) }>

# float[2, 3, time] X => int64[] Y
pools frames of type int64
    i = Cast <to = 7> (X)  Y = ReduceMean (i, [2])

# float[2, 3, time] X => bool[] Y
pools frames of type bool; cast them to float
    b = Greater (X, 0.5)  Y = ReduceMax (b, [2])

# float[3, time] X
looks beyond its frame: it acts along axis 1, which holds the frames
    i = Cast <to = 7> (X)  Y = GatherElements <axis = 0> (places[3, 50], i)

# float[2, 3, time] X
has negative paddings; cut frames with a Slice
    Y = Conv <pads = [-1, 0]> (X, K[3, 3, 3])
    Y = MaxPool <kernel_shape = [2], pads = [2, -1]> (X)
    Y = ConvTranspose <pads = [-1, 2]> (X, K[3, 3, 2])
loops over values of the stream in a way that is not supported
    Y = other.Repeat <body = b (float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }> (X)

# float[time, 2, 3] X
loops over values of the stream in a way that is not supported
    s = SequenceConstruct (x[2, 3], x)  i = Constant <value_int = 0> ()  z = SequenceMap <body = b (float[2, 3] a,
        float[n, 2, 3] o) => (float[n, 2, 3] y) { y = Add (a, o) }> (s, X)  Y = SequenceAt (z, i)
GRU node '-> y' in main graph > -> z (SequenceMap) body: a node in a loop body has a state per iteration
    s = SequenceConstruct (x[2, 3], x)  i = Constant <value_int = 0> ()  z = SequenceMap <body = b (float[2, 3] a,
        float[n, 2, 3] o) => (float[n, 1, 2, 4] y) { q = Add (a, o)  y = GRU <hidden_size = 4> (q, W, R) }> (s, X)
        Y = SequenceAt (z, i)

# float[time, 2, 3] X, float[2, 3] S, bool c
the shape of 'y', which its steps return, is not known; ... move an If or Loop out of its steps
    F, Y = Scan <num_scan_inputs = 1, body = b (float[2, 3] s, float[2, 3] x) => (float[2, 3] t, float[2, 3] y) {
        t = Add (s, x)  y = If (c) <then_branch = p () => (float[2, 3] u) { u = Neg (t) },
        else_branch = q () => (float[2, 3] v) { v = Tanh (t) }> }> (S, X)

# float[2, 3, time] X, float[1, 2, 4] h0, float[1, 2, 4] c0 => float[] Y, float[] hn, float[] cn, float[] e
LSTM node '-> Y' in main graph: returns its last state, which comes 2 frames after ... drop that output
    a = Conv <pads = [2, 2]> (X, K[3, 3, 5])  x = Transpose <perm = [2, 0, 1]> (a)
        Y, hn, c = LSTM <hidden_size = 4> (x, W[1, 16, 3], R[1, 16, 4], , , h0, c0)  cn = Neg (c)  e = Neg (hn)
    a = Conv <pads = [2, 2]> (X, K[3, 3, 5])  x = Transpose <perm = [2, 0, 1]> (a)  e = Neg (h0)
        Y, hn, cn = LSTM <hidden_size = 4> (x, W[1, 16, 3], R[1, 16, 4])

# float[2, 3, time] X, float[2, 3, 2] cache => float[] Y, float[] new
Concat node '-> j' in main graph: puts computed frames before frames that come late; put constants there
    a = Conv <pads = [1, 1]> (X, K[3, 3, 3])  j = Concat <axis = 2> (cache, a)  Y = Conv (j, K)
        new = Slice (j, [-2], far, [2])

# float[time, 2, 5] X
Reshape node '-> x' in main graph: makes the frames the batch of ... in sequences of 1; did
    x = Reshape (X, [1, -1, 5])  Y = GRU <hidden_size = 4> (x, W[1, 12, 5], R, B, , h[1, 2, 4])
""")


def refusal(model: ir.Model, stream: str = "time", delay: bool = True) -> str:
    """The error, which has a hint, and after which the model is what it was."""
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.StreamPass(stream, delay=delay)(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize(("head", "message", "nodes"), REFUSED, ids=lambda text: text.split("  ")[0][:40])
def test_a_net_that_is_no_stream_is_refused(head: str, message: str, nodes: str) -> None:
    opset = 27 if "LinearAttention" in nodes else 20 if "=> bool" in head else 18
    model = ir.from_proto(over(head, nodes, opset=opset))
    said = refusal(model, delay="ahead" not in message)
    assert all(part.strip() in said for part in message.split("..."))


def test_a_number_that_is_rounded_on_the_way() -> None:
    """In float32, T / 41 * 41 is 40.999996 for some T."""
    text = """g (float[T, 2] X) => (float[K] Y) <int64 zero = {0}, int64[1] first = {0}, float by = {41}>
        { s = Shape (X) n = Gather (s, zero) f = Cast <to = 1> (n) q = Div (f, by) p = Mul (q, by)
          c = Cast <to = 7> (p) k = Unsqueeze (c, first) Y = ConstantOfShape (k) }"""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)
    assert "Mul node '-> p' in main graph: uses the number of frames" in refusal(ir.from_proto(model), "T")
    model.graph.initializer[2].float_data[0] = 4  # not rounded
    with pytest.warns(rl.RnnLoweringWarning, match="no state is carried"):
        rl.lower(model, stream="T")


@pytest.mark.parametrize(
    ("opset", "head", "inputs", "stream", "message"),
    [
        (8, "float[time, N, 3] X, int32[N] lens", "X, W, R, , lens", "time", "with sequence_lens needs opset 9"),
        (8, "float[2, 3, time] X", "x, W, R", "time=1", "a state behind a look-ahead needs opset 9"),
        (
            10,
            "float[2, 3, time] X",
            "x, W, R",
            "time",
            "look-ahead, with any number of frames in a call, needs opset 11",
        ),
        (8, "float[time, N, 3] X, float[1, N, 4] S", "X, W, R, , , h0", "time", "needs Where, which opset 8 lacks"),
    ],
)
def test_an_opset_that_is_too_old_is_refused(opset: int, head: str, inputs: str, stream: str, message: str) -> None:
    nodes = f"Y = GRU <hidden_size = 4> ({inputs})"
    if "x," in nodes:
        nodes = f"c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  x = Transpose <perm = [2, 0, 1]> (c)  {nodes}"
    if "h0" in nodes:
        nodes = f"h0 = Tanh (S)  {nodes}"
    assert message in refusal(ir.from_proto(over(head, nodes, opset=opset)), stream)


@pytest.mark.parametrize(
    ("head", "message", "nodes"),
    [row for row in REFUSED if "frames that come late; put" in row[1] or "returns its last" in row[1]],
)
def test_a_delay_that_does_not_help_is_not_advised(head: str, message: str, nodes: str) -> None:
    assert message.split(" ... ")[0] in refusal(ir.from_proto(over(head, nodes)), delay=False)


@pytest.mark.parametrize("layout", [0, 1])
def test_the_features_are_not_the_time(layout: int) -> None:
    """The error says which axis is; another export would not help."""
    dims = "time, 2, 3" if layout == 0 else "2, time, 3"
    net = over(f"float[{dims}] X", f"Y = GRU <hidden_size = 4, layout = {layout}> (X, W, R)")
    with pytest.raises(rl.UnsupportedError) as refused:
        rl.lower(net, stream="X:2=1")
    assert refused.value.reason == "takes the frames as features of one step"
    assert refused.value.hint == "name the time axis; the steps of the node are along 'time'"


def test_an_axis_that_does_not_help_is_not_to_be_opened() -> None:
    fixed = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        main (float[5,1,3] X, float[2,16,3] W, float[2,16,4] R) => (float[5,2,1,4] Y) {
            Y = LSTM <hidden_size = 4, direction = "bidirectional"> (X, W, R)
        }""")
    with pytest.raises(rl.UnsupportedError, match=r"direction is bidirectional.*; train a forward model$"):
        rl.lower(fixed, stream={"X:0": 1})
