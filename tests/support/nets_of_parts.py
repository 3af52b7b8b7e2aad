"""Parts of nets that a runtime rejects or computes wrongly as they are, by target: each is written otherwise."""

import onnx
from texts import parse

_X = "(float[2, 8, 6] x) => (float[a, b, c] y"

PADS = {
    "a shift": f"{_X}) <int64[6] p = {{0, 1, 0, 0, -1, 0}}> {{ r = Relu (x) s = Pad (r, p) y = Tanh (s) }}",
    "a crop": f"{_X}) <int64[6] p = {{0, -2, 0, 0, -1, 1}}> {{ r = Relu (x) s = Pad (r, p) y = Tanh (s) }}",
    "a shift of a number": f"""{_X}) <int64[6] p = {{0, 0, -1, 0, 0, 1}}, float v = {{3}}> {{ r = Relu (x)
        s = Pad (r, p, v) y = Tanh (s) }}""",
    "an edge": f"""{_X}) <int64[6] p = {{0, -1, 0, 0, 2, 0}}> {{ r = Relu (x) s = Pad <mode = "edge"> (r, p)
        y = Tanh (s) }}""",
    "a mirror": f"""{_X}) <int64[6] p = {{0, -3, 0, 0, 2, 0}}> {{ r = Relu (x) s = Pad <mode = "reflect"> (r, p)
        y = Tanh (s) }}""",
    "computed pads": f"""{_X}) <int64[4] p = {{0, 0, 1, -1}}, int64[2] o = {{0, 0}}, int64[2] two = {{-1, 2}},
        int64[1] first = {{0}}, int64[1] last = {{-1}}, int64[1] low = {{-9999}}, int64[1] flat = {{-1}}> {{
        q = Concat <axis = 0> (p, o) r = Reshape (q, two) f = Slice (r, last, low, first, last)
        t = Transpose <perm = [1, 0]> (f) w = Reshape (t, flat) s = Pad (x, w) y = Tanh (s) }}""",
}

_READERS = ("Relu", "Tanh", "Exp", "Neg", "Identity")
_WRITERS = {
    "a sum": "y = Add (x, x)",
    "a Reshape": "y = Reshape (x, s)",
    "an Unsqueeze": "t = ReduceMax <keepdims = 0, axes = [1]> (x) y = Unsqueeze (t, one)",
    "a product": "y = MatMul (x, w)",
}
OUTPUTS = {
    f"{name} that {reader} reads": f"""{_X}, float[d, e, f] z) <int64[3] s = {{2, 6, 8}}, int64[1] one = {{1}},
        float[6, 6] w = {{}}> {{ {text} t2 = {reader} (y) z = Sigmoid (t2) }}"""
    for name, text in _WRITERS.items()
    for reader in _READERS
}

RESHAPES = {
    "groups of rows": f"""{_X}) <int64[2] s = {{16, 6}}, int64[3] z = {{0, 3, -1}}> {{ r = Relu (x)
        s1 = Reshape (r, s) s2 = Reshape (s1, z) y = Tanh (s2) }}""",
    "three in a row": f"""{_X}) <int64[2] s = {{16, 6}}, int64[3] q = {{4, 4, 6}}, int64[3] z = {{0, 2, -1}}> {{
        r = Relu (x) s1 = Reshape (r, s) s2 = Reshape (s1, q) s3 = Reshape (s2, z) y = Tanh (s3) }}""",
}

SCATTERS = {
    "rows scattered": """(float[4, 6] x) => (float[a, b] y) <int64[1] k = {2}, float[4, 6] z = {}> {
        v, i = TopK (x, k) y = ScatterElements <reduction = "none", axis = 1> (z, i, v) }"""
}

_ERF = """(float[4, 16] x) => (float[a, b] y) <float z = {3}, float s = {1.41421356}, float k = {1},
    float h = {0.5}> { r = Mul (x, z) d = Div (r, s) e = Erf (d)"""
GELUS = {
    "a Gelu": f"{_ERF} a = Add (e, k) b = Mul (r, a) y = Mul (b, h) }}",
    "one and Erf": f"{_ERF} a = Add (k, e) b = Mul (a, r) y = Mul (h, b) }}",
}

_INTEGERS = "(float[2, 8, 6] x) => (float[a, b, c] y) <int64 low = {2}, int64 high = {4}>"
CLIPS = {
    f"integers and {bounds}": f"""{_INTEGERS} {{ n = Abs (x) t = Ceil (n) i = Cast <to = 7> (t)
        c = Clip (i, {bounds}) d = Cast <to = 1> (c) y = Div (x, d) }}"""
    for bounds in ("low", ", high", "low, high")
}

NETS: dict[str, dict[str, onnx.ModelProto]] = {
    target: {name: parse(f"g {text}") for name, text in texts.items()}
    for target, texts in {
        "tract": PADS,
        "mnn": PADS | OUTPUTS | SCATTERS | GELUS,
        "opencv": RESHAPES | CLIPS,
    }.items()
}
