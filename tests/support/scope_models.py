"""Models as text: recurrent nodes in bodies and functions, weights that are captured, shared or overridable."""

IF = """
main (float[5,2,3] X, bool go) => (float[5,1,2,4] Y, float[1,2,4] Y_h)
<float[1,16,3] W = {}, float[1,16,4] R = {}, float[1,2,4] h0 = {}> {
    both = Identity(X)
    Y, Y_h = If (go) <
        then_branch = yes () => (float[5,1,2,4] yes_Y, float[1,2,4] yes_h) {
            [lstm] yes_Y, yes_h = LSTM <hidden_size=4> (both, W, R, "", "", h0)
        },
        else_branch = no () => (float[5,1,2,4] no_Y, float[1,2,4] no_h)
        <float[1,12,3] gru_W = {}, float[1,12,4] gru_R = {}> {
            [gru] no_Y, no_h = GRU <hidden_size=4, direction="reverse"> (both, gru_W, gru_R)
        }
    >
}
"""

LOOP = """
main (float[5,2,3] X, float[1,2,4] h0) => (float[1,2,4] h, float[k,5,1,2,4] Ys)
<int64 three = {3}, bool yes = {1}, float[1,12,3] W = {}, float[1,12,4] R = {}> {
    h, Ys = Loop (three, yes, h0) <body = again (int64 i, bool go, float[1,2,4] before)
        => (bool still, float[1,2,4] after, float[5,1,2,4] Y) <float[1,24] B = {}> {
            still = Identity(go)
            scaled = Mul(X, X)
            Y, after = GRU <hidden_size=4, linear_before_reset=1> (scaled, W, R, B, "", before)
        }
    >
}
"""

SCAN = """
main (float[k,5,2,3] Xs, float[1,2,4] h0) => (float[1,2,4] h, float[k,5,2,2,4] Ys)
<float[2,4,4] R = {}, int64[1] first = {0}> {
    W = Constant <value = float[2,4,3] {}> ()
    h, Ys = Scan <num_scan_inputs=1, body = each (float[1,2,4] before, float[5,2,3] X)
        => (float[1,2,4] after, float[5,2,2,4] Y) {
            two = Concat <axis=0> (before, before)
            Y, ends = RNN <hidden_size=4, direction="bidirectional"> (X, W, R, "", "", two)
            after = ReduceSum(ends, first)
        }
    > (h0, Xs)
}
"""

NESTED = """
main (float[5,2,3] X, bool go) => (float[1,2,4] h) <int64 two = {2}, float[1,16,3] W = {}, float[1,2,4] h0 = {}> {
    h = If (go) <
        then_branch = yes () => (float[1,2,4] yes_h) <bool on = {1}, float[1,16,4] R = {}> {
            yes_h = Loop (two, on, h0) <body = again (int64 i, bool still, float[1,2,4] before)
                => (bool next, float[1,2,4] after) {
                    next = Identity(still)
                    x = Neg(X)
                    after = If (still) <
                        then_branch = inner_yes () => (float[1,2,4] inner_h) {
                            B = Constant <value = float[1,32] {}> ()
                            [lstm] , inner_h = LSTM <hidden_size=4> (x, W, R, B, "", before)
                        },
                        else_branch = inner_no () => (float[1,2,4] inner_same) { inner_same = Identity(before) }
                    >
                }
            >
        },
        else_branch = no () => (float[1,2,4] no_h) { no_h = Identity(h0) }
    >
}
"""

FUNCTION = """
main (float[5,2,3] X) => (float[5,1,2,4] Y, float[5,2,2,2] Z)
<float[1,16,3] W = {}, float[1,16,4] R = {}, float[2,8,3] V = {}, float[2,8,2] S = {}> {
    doubled = local.twice(X)
    Y = local.recur <hs=4, way="reverse", bound=0.5> (doubled, W, R)
    Z = local.recur <hs=2, way="bidirectional", bound=3.0> (X, V, S)
}
<domain: "local", opset_import: ["": 17]>
recur <hs, way, bound> (X, W, R) => (Y) {
    [lstm] Y = LSTM <hidden_size: int = @hs, direction: string = @way, clip: float = @bound> (X, W, R)
}
<domain: "local", opset_import: ["": 17]>
twice (A) => (B) { B = Add(A, A) }
"""

NESTED_FUNCTIONS = """
main (float[5,2,3] X, bool go) => (float[1,2,4] h)
<float[1,12,3] W = {}, float[1,12,4] R = {}> {
    h = If (go) <
        then_branch = yes () => (float[1,2,4] yes_h) { yes_h = local.outer <size=4> (X, W, R) },
        else_branch = no () => (float[1,2,4] no_h) {
            minus = Neg(X)
            no_h = local.outer <size=4, lbr=1> (minus, W, R)
        }
    >
}
<domain: "local", opset_import: ["": 17, "local": 1]>
outer <size, lbr: int = 0> (X, W, R) => (h) {
    half = local.halved(X)
    h = local.inner <hs: int = @size, linear: int = @lbr> (half, W, R)
}
<domain: "local", opset_import: ["": 17]>
inner <hs, linear> (X, W, R) => (h) {
    [gru] , h = GRU <hidden_size: int = @hs, linear_before_reset: int = @linear> (X, W, R)
}
<domain: "local", opset_import: ["": 17]>
halved (A) => (B) { half = Constant <value = float {0.5}> () B = Mul(A, half) }
"""

FUNCTION_WITH_IF = """
main (float[5,2,3] X, bool go) => (float[1,2,4] h) <float[1,4,3] W = {}, float[1,4,4] R = {}> {
    h = local.maybe <hs=4> (X, W, R, go)
}
<domain: "local", opset_import: ["": 17]>
maybe <hs> (X, W, R, go) => (h) {
    h = If (go) <
        then_branch = yes () => (yes_h) { [rnn] , yes_h = RNN <hidden_size: int = @hs> (X, W, R) },
        else_branch = no () => (no_h) {
            B = Constant <value = float[1,8] {}> ()
            [rnn] , no_h = RNN <hidden_size: int = @hs> (X, W, R, B)
        }
    >
}
"""

LOCAL = ', "local": 1'

SCOPES = {
    "if": IF,
    "loop": LOOP,
    "scan": SCAN,
    "nested": NESTED,
    "function": FUNCTION,
    "nested_functions": NESTED_FUNCTIONS,
    "function_with_if": FUNCTION_WITH_IF,
}

CAPTURED = """
main (float[5,2,3] X, float[1,16,3] W, float[1,16,4] R, float[1,2,4] h0) => (float[1,2,4] h)
<int64 two = {2}, bool yes = {1}> {
    h = Loop (two, yes, h0) <body = again (int64 i, bool go, float[1,2,4] before)
        => (bool still, float[1,2,4] after) {
            still = Identity(go)
            [lstm] , after = LSTM <hidden_size=4, direction="reverse"> (X, W, R, "", "", before)
        }
    >
}
"""

OVERRIDABLE = """
main (float[5,2,3] X) => (float[5,1,2,4] Y) <float[1,12,3] w = {}, float[1,12,4] R = {}, float[1,24] B = {}> {
    W = Identity(w)
    Y = GRU <hidden_size=4> (X, W, R, B)
}
"""

SHARED = """
main (float[4,2,30] X) => (float[4,1,2,40] A, float[4,1,2,40] B)
<float[1,160,30] W = {}, float[1,160,40] R = {}> {
    n = Neg(X)
    A = LSTM <hidden_size=40> (X, W, R)
    B = LSTM <hidden_size=40> (n, W, R)
}
"""
