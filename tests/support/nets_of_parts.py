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

_CONV = "(float[2, 3, 4, 6] x) => (float[a, b, c, d] y) <float[5, 3, 1, 2] k = {}, float[1, 1, 1, 1] n = {}>"
NUMBERS = {
    f"a number and a Conv by {operator}": f"{_CONV} {{ t = Conv (x, k) y = {operator} (n, t) }}"
    for operator in ("Add", "Sub", "Mul", "Div", "Max")
}

SLOPES = {
    f"slopes {sizes}": f"""{_X}) <float[{sizes}] s = {{}}> {{ t = Tanh (x) y = PRelu (t, s) }}"""
    for sizes in ("6", "1, 6", "2, 1, 1", "2, 8, 6")
}

VECTORS = {
    "slopes of as many rows as channels": """(float[2, 5, 4, 5] x) => (float[a, b, c, d] y) <float[5] s = {}> {
        y = PRelu (x, s) }"""
}

AXES = {
    "an axis from the end": """(float[4, 6] x) => (float[a, b] y) <int64[1, 6] i = {0, 1, 2, 3, 2, 1},
        float[1, 6] u = {}> { y = ScatterElements <axis = -2> (x, i, u) }""",
}

_SAME = '<auto_pad = "SAME_LOWER", kernel_shape = [2, 2], strides = [{}, 1]>'
LOWER = {
    f"{node[:4]} of stride {stride}": f"""(float[2, 3, 7, 6] x) => (float[a, b, c, d] y)
        <float[5, 3, 2, 2] k = {{}}> {{ y = {node.format(_SAME.format(stride))} }}"""
    for node in ("Conv {} (x, k)", "MaxPool {} (x)")
    for stride in (1, 2)
}

WINDOWS = {
    "a pool without strides": """(float[2, 1, 6, 4] x) => (float[a, b, c, d] y) {
        y = MaxPool <kernel_shape = [1, 3]> (x) }""",
    "a start before the first row": f"""{_X}) <int64[2] s = {{-3, -9}}, int64[2] e = {{9, 4}},
        int64[2] a = {{0, 1}}> {{ t = Tanh (x) y = Slice (t, s, e, a) }}""",
}

SINGLE = {
    "a Conv of a constant": """(float[1, 4, 8] x) => (float[a, b, c] y)
        <float[1, 24, 8] h = {}, float[4, 24, 5] k = {}> { c = Conv <pads = [2, 2]> (h, k) y = Add (c, x) }""",
    "pads of one row": f"{_X}) <float[4, 8, 1] k = {{}}> {{ y = Conv <pads = [2, 1]> (x, k) }}",
    "pads of one row and column": """(float[2, 3, 4, 6] x) => (float[a, b, c, d] y) <float[5, 3, 1, 1] k = {}> {
        y = Conv <pads = [0, 1, 0, 2]> (x, k) }""",
}

INDICES = {
    "indices of some rows": """(float[4, 6] x) => (float[a, b] y) <int64[2, 3] i = {0, 1, -1, 3, 2, 1}> {
        y = GatherElements <axis = 1> (x, i) }""",
}

_ROI = '<mode = "{}", coordinate_transformation_mode = "{}", nearest_mode = "floor"> (x, roi, s)'
RESIZES = {
    f"{mode} with a part of three axes": f"""{_X}) <float[0] roi = {{}}, float[3] s = {{1, 1, 2}}> {{
        y = Resize {_ROI.format(mode, places)} }}"""
    for mode, places in (("nearest", "asymmetric"), ("linear", "half_pixel"))
}

ROWS = {
    f"{node} along {axis}, opset 11": f"{_X}) {{ t = Tanh (x) y = {node} <axis = {axis}> (t) }}"
    for node in ("Softmax", "LogSoftmax")
    for axis in (1, -3)
} | {"two Softmax in a row, opset 11": f"{_X}) {{ t = Softmax <axis = 1> (x) y = Softmax <axis = 1> (t) }}"}

REPEATS = {
    "one row and others": """(float[N, 1, 5, 3] x) => (float[a, b, c, d] y) <int64[4] n = {1, 3, 3, 1}> {
        y = Tile (x, n) }""",
    "one row and the last": """(float[4, 1, 5, T] x) => (float[a, b, c, d] y) <int64[4] n = {1, 2, 1, 2}> {
        y = Tile (x, n) }""",
}

REPEATS |= {
    "rows of a GRU, as others": """(float[T, N, 4] x) => (float[a, b, c, d] y) <float[1, 9, 4] w = {},
        float[1, 9, 3] r = {}, int64[4] n = {3, 3, 1, 2}> {
        g, h = GRU <hidden_size = 3> (x, w, r) y = Tile (g, n) }"""
}

STEPS = {
    "every second step from a computed one, of int32": """(float[N, T, 4] x) => (float[a, b, c] y)
        <int32[1] two = {2}, int32[1] one = {1}> { t = Tanh (x) s = Shape (x) i = Cast <to = 6> (s)
        first = Slice (i, one, two) start = Sub (first, first) y = Slice (t, start, first, one, two) }""",
    "every second step": """(float[N, T, 4] x) => (float[a, b, c] y)
        <int64[1] s = {0}, int64[1] e = {9223372036854775807},
        int64[1] axis = {1}, int64[1] step = {2}> { t = Tanh (x) y = Slice (t, s, e, axis, step) }""",
}

COLUMNS = {
    f"steps that leave one of {width} columns": f"""(float[6, 1, 5, {width}] x) => (float[a, b, c, d] y)
        <float[3, 1, 2, 3] k = {{}}> {{ y = Conv <strides = [1, 2], pads = [0, {pad}, 0, {pad}]> (x, k) }}"""
    for width, pad in ((4, 0), (2, 1))
}

EPSILONS = {
    name: f"""{_X}) <float[8] s = {{}}, float[8] v = {{{", ".join(["0.0001"] * 8)}}}, float small = {{0.01}}> {{
        t = Mul (x, small) y = {node} }}"""
    for name, node in (
        ("a norm of instances without epsilon", "InstanceNormalization (t, s, s)"),
        ("a norm of batches without epsilon", "BatchNormalization (t, s, s, s, v)"),
    )
}

PARTS = {
    "parts of padded rows": """(float[2, 3, 16] x) => (float[a, b, c, d] y) <int64[6] p = {0, 0, 4, 0, 0, 4},
        int64[4] s = {2, 3, 3, 8}> { q = Pad (x, p) r = Reshape (q, s) y = Concat <axis = 2> (r, r) }"""
}

MODES = {
    "a Resize without modes": """(float[2, 3, 4, 6] x) => (float[a, b, c, d] y) <float[4] s = {1, 1, 1.5, 2}> {
        y = Resize (x, , s) }"""
}

SPLITS = {
    "a Split without an axis": """(float[2, 4, 6] x) => (float[a, b, c] y, float[d, e, f] z) {
        t = Tanh (x) y, z = Split (t) }"""
}

ENDS = {
    f"a Conv and a {name} at the end": f"""{_X}) <float[4, 1] s = {{}}> {{
        c = Constant <value = float[4, 8, 1] {{{", ".join(["0.1"] * 32)}}}> () t = Conv (x, c) y = {node} }}"""
    for name, node in (("PRelu", "PRelu (t, s)"), ("Relu", "Relu (t)"))
}

BOUNDS = {
    f"a Squeeze and a Clip to {bounds}": f"""(float[2, 1, 6] x) => (float[a, b] y) <int64[1] axis = {{1}},
        float low = {{-0.5}}, float high = {{0.5}}> {{ s = Squeeze (x, axis) y = Clip (s, {bounds}) }}"""
    for bounds in ("low", ", high", "low, high")
}

_SIZE = """<int64[1] first = {0}, int64[1] axis = {0}, float[1] one = {1}> { s = Shape (x)
    f = Gather (s, first) n = Cast <to = 1> (f)"""
MEANS = {
    name: f"(float[T, 3] x) => (float[a, b] y) {_SIZE} {text} }}"
    for name, text in {
        "a mean over an open size": "m = ReduceSum (x, axis) y = Div (m, n)",
        "a root of an open size": "r = Sqrt (n) y = Div (x, r)",
        "one more than an open size": "m = Add (n, one) y = Div (x, m)",
    }.items()
}

UPWARD = {
    f"{mode} of {places}": f"""(float[2, 3, 4, 6] x) => (float[a, b, c, d] y) <float[4] s = {{1, 1, 1.5, 2}}> {{
        y = Resize <mode = "nearest", nearest_mode = "{mode}", coordinate_transformation_mode = "{places}">
            (x, , s) }}"""
    for mode in ("ceil", "round_prefer_ceil")
    for places in ("half_pixel", "asymmetric", "align_corners")
}

REDUCED = {
    f"an Unsqueeze and a {node} along {axis}, {keeps} kept": f"""(float[4, 5, 6] x) => (float{sizes} y)
        <int64[1] a = {{2}}> {{ u = Unsqueeze (x, a) y = {node} <axes = [{axis}], keepdims = {keeps}> (u) }}"""
    for node in ("ReduceMean", "ReduceMax")
    for axis, keeps, sizes in (
        (0, 1, "[a, b, c, d]"),
        (-3, 1, "[a, b, c, d]"),
        (-3, 0, "[a, b, c]"),
        (-4, 0, "[a, b, c]"),
    )
}

OLD = {
    **{f"{name}, opset 11": text for name, text in RESIZES.items()},
    "a vector behind a Pad": """(float[2, 8, 6] x) => (float[a, b] y) <float[7] v = {}> {
        p = Constant <value_ints = [0, 0, 0, 0, 0, 1]> () q = Pad (x, p) y = MatMul (q, v) }""",
    "a vector, opset 11": "(float[2, 8, 6] x) => (float[a, b] y) <float[6] v = {}> { y = MatMul (x, v) }",
}

POOLS = {
    f"powers in windows, {text}, opset {opset}": f"""(float[2, 3, 8, 6] x) => (float[a, b, c, d] y) {{
        y = LpPool <kernel_shape = [2, 3], {text}> (x) }}"""
    for opset in (9, 11, 17)
    for text in ("p = 1, strides = [2, 1]", "pads = [1, 0, 0, 2]", 'p = 3, auto_pad = "SAME_LOWER"')
}
POOLS |= {
    f"powers of all, {name}, opset {opset}": f"""(float[N, 3, {sizes}] x) => (float[a, b{c}] y) {{
        t = Tanh (x) y = GlobalLpPool <p = {p}> (t) }}"""
    for opset, p in ((11, 2), (17, 3))
    for name, sizes, c in (("one axis", "T", ", c"), ("two axes", "8, T", ", c, d"))
}
FLIPS = {
    f"parts of a Reshape that are flipped, steps of {step}": f"""(float[2, T, 2, 3] x) => (float[a, b, c] y)
        <int64[3] s = {{0, 0, -1}}, int64[2] first = {{-1, 0}}, int64[2] end = {{-9223372036854775807, 999}},
        int64[2] axis = {{2, 1}}, int64[2] step = {{-1, {step}}}> {{
        t = Tanh (x) r = Reshape (t, s) y = Slice (r, first, end, axis, step) }}"""
    for step in (1, 2)
}
STRIDES = {
    f"rows of a GRU that a Conv skips, T = {T}": f"""(float[{T}, 2, 4] x) => (float[a, b, c] y)
        <float[1, 9, 4] w = {{}}, float[1, 9, 3] r = {{}}, int64[1] axis = {{1}}, float[4, {kernel}, 1] k = {{}}> {{
        g, h = GRU <hidden_size = 3, linear_before_reset = 0> (x, w, r) q = Squeeze (g, axis)
        t = Transpose <perm = [{perm}]> (q) y = Conv <strides = [2]> (t, k) }}"""
    for T, perm, kernel in ((7, "1, 2, 0", 3), ("T", "1, 2, 0", 3), ("T", "0, 1, 2", 2))
}
OPEN_SIZES = {
    "several open sizes joined": """(float[N, T, 4] x) => (float[a, b] y, float[c, d] z) {
        t = Tanh (x) y = Flatten <axis = 1> (t) z = Flatten <axis = 2> (t) }""",
    "a cut of open rows, opset 9": """(float[N, 4] x) => (float[a, b] y) {
        t = Tanh (x) y = Slice <axes = [0], starts = [-3], ends = [2147483647]> (t) }""",
    "rows of a product of sizes": """(float[N, T, 8] x) => (float[a, b, c] y) <float[2, 2, 1, 1] k = {},
        int64[1] first = {0}, int64[1] second = {1}, int64[1] rest = {-1}, int64[1] one = {1}, int64[1] last = {3},
        int64[4] four = {1, 1, 1, 4}> {
        s = Shape (x) n = Gather (s, first) m = Gather (s, second) p = Mul (n, m)
        to = Concat <axis = 0> (p, one, rest) r = Reshape (x, to) u = Unsqueeze (r, last) e = Expand (u, four)
        j = Concat <axis = 1> (e, e) q = Conv (j, k) y = ReduceMax <axes = [-1], keepdims = 0> (q) }""",
}
BLOCKS = {
    f"blocks that are added, {name}": f"""(float[{x}] x) => (float[{y}] y) <int64[2] size = {{{size}}},
        int64[2] block = {{{block}}}> {{ t = Tanh (x) y = Col2Im <{how}> (t, size, block) }}"""
    for name, x, y, size, block, how in (
        ("frames", "N, 64, 5", "N, 2, 1, 99", "1, 99", "1, 32", "strides = [1, 16]"),
        ("planes", "2, 18, 9", "2, 2, 6, 5", "6, 5", "3, 3", "strides = [2, 2], pads = [1, 1, 0, 1]"),
        ("dilated", "2, 18, 6", "2, 2, 6, 7", "6, 7", "3, 3", "dilations = [2, 2]"),
    )
}
BLOCKS = {f"{name}, opset 18": text for name, text in BLOCKS.items()}
_STATE = """(float[N, 4] x) => (float[a, b] y) <float[3, 3] w = {}, float[4, 3] v = {}, int64[1] first = {0},
    int64[1] three = {3}, float zero = {0}> { s = Shape (x) n = Gather (s, first)"""
FILLS = {
    f"a product of zeros, {name}": f"""{_STATE} q = Concat <axis = 0> (n, three) h = {node} a = MatMul (h, w)
        b = MatMul (x, v) y = Add (a, b) }}"""
    for name, node in (
        ("a fill, opset 12", "ConstantOfShape <value = float[1] {0}> (q)"),
        ("a fill", "ConstantOfShape <value = float[1] {0}> (q)"),
        ("repeated", "Expand (zero, q)"),
    )
}
NARROW = {
    "sizes in int32": """(float[N, T, 4] x) => (float[a, b, c] y) <int32[2] kept = {0, 1}, int32[1] flat = {-1},
        int64[1] three = {3}, int64[1] four = {4}, int32[1] last = {3}, float[4, 3] w = {}, int64[1] axis = {0}> {
        s = Shape (x) i = Cast <to = 6> (s) k = Gather (i, kept) p = ReduceProd <axes = [0], keepdims = 0> (k)
        u = Unsqueeze (p, axis) c = Cast <to = 7> (u) q = Concat <axis = 0> (c, four) r = Reshape (x, q)
        m = MatMul (r, w) e = Concat <axis = 0> (k, last) f = Cast <to = 7> (e) y = Reshape (m, f) }""",
    "a mean by sizes in int32": """(float[N, T, 4] x) => (float[a, b] y) <int64[1] one = {1}, int64[1] two = {2}> {
        s = Shape (x) i = Cast <to = 6> (s) k = Slice (i, one, two) f = Cast <to = 1> (k)
        r = ReduceSum <keepdims = 0> (x, one) y = Div (r, f) }""",
}
_BEHIND = """(float[N, 4, T] x) => (float[a, b{c}] y) <float[4] v = {{}}, float[4, 1] w = {{}},
    float[4] s = {{1, 2, 3, 4}}, int64[1] last = {{-1}}> {{ t = Tanh (x)"""
FOLLOWED = {
    f"a vector behind a reduction, {name}": _BEHIND.format(c=", c" if "w)" in node else "") + f" {node} }}"
    for name, node in (
        ("a sum", "r = ReduceSum <keepdims = 0> (t, last) y = Mul (r, v)"),
        (
            "a mean and a norm",
            "r = ReduceMean <axes = [2], keepdims = 0> (t) y = BatchNormalization (r, v, v, v, s)",
        ),
        ("a pool", "r = GlobalMaxPool (t) q = Relu (r) y = Add (q, w)"),
        ("a largest number", "r = ReduceMax <axes = [2], keepdims = 1> (t) q = Tanh (r) y = Sub (q, w)"),
        (
            "a transposed mean",
            """u = Transpose <perm = [0, 2, 1]> (t) r = ReduceMean <axes = [1], keepdims = 0> (u)
        y = Mul (v, r)""",
        ),
    )
}
FOLLOWED |= {
    f"integers behind a reduction, {name}": f"""(float[N, 3, T] x) => (int64[a, b] y) <int64[1] last = {{-1}},
        int64 two = {{2}}, float nine = {{9}}> {{ t = Mul (x, nine) i = Cast <to = 7> (t) {node} }}"""
    for name, node in (
        ("a sum", "r = ReduceSum <keepdims = 0> (i, last) y = Sub (r, two)"),
        ("the largest", "r = ReduceMax <axes = [2], keepdims = 0> (i) y = Neg (r)"),
        ("a sum, opset 11", "r = ReduceSum <axes = [2], keepdims = 0> (i) y = Sub (r, two)"),
    )
}
_IFS = """(float[N, 4] x) => (float[a, b] y) <float zero = {{0}}, float[4, 3] w = {{}}, float[3] v = {{}}> {{
    m = ReduceMax <keepdims = 0> (x) c = Greater (m, zero)
    p = If (c) <then_branch = one () => (float[N, 4] p1) {{
        s = Shape (x) p1 = ConstantOfShape <value = float[1] {{1}}> (s) }},
        else_branch = two () => (float[N, 4] p2) {{ p2 = Identity (x) }}>
    n = ReduceMean <keepdims = 0> (p) d = Greater (n, zero)
    y = If (d) <then_branch = three () => ({q} q1) {{ g = {g} q1 = Tanh (g) }},
        else_branch = four () => ({q} q2) {{ h = {g} q2 = Sigmoid (h) }}> }}"""
IFS = {
    "two If with products": _IFS.format(q="float[N, 3]", g="Gemm (p, w, v)"),
    "two If with sums": _IFS.format(q="float[N, 4]", g="Add (p, x)"),
}
PADDED = {
    f"a padded axis before a GRU, {name}, opset 18": f"""(float[T, N, 2] x) => (float[a, b, 3] y)
        <int64[{2 * count}] p = {{{pads}}}, int64[{count}] axes = {{{axes}}}, float[1, 9, 2] w = {{}},
        float[1, 9, 3] r = {{}}, int64[1] one = {{1}}> {{
        t = Tanh (x) u = Pad {mode} (t, p, , axes) g, h = GRU <hidden_size = 3> (u, w, r) y = Squeeze (g, one) }}"""
    for name, count, pads, axes, mode in (
        ("the first", 1, "1, 0", "0", ""),
        ("from the end", 1, "1, 1", "-3", '<mode = "edge">'),
        ("two", 2, "0, 1, 2, 0", "1, 0", ""),
    )
}
VECTORS_9 = {
    "two vectors, opset 9": """(float[2, 8] x) => (float[1] y) <float[16] v = {}, int64[1] flat = {-1}> {
        t = Reshape (x, flat) q = MatMul (t, v) y = Unsqueeze <axes = [0]> (q) }"""
}
DROPOUTS = {
    f"a Dropout of an input, opset {opset}": "(float[N, 4] x) => (float[N, 4] y) { t = Dropout (x) y = Relu (t) }"
    for opset in (9, 17)
}
CHOSEN = {
    "rows that a constant chooses, opset 9": """(float[2, 4, T] x) => (float[2, 3, T] y)
        <bool[4] c = {1, 0, 1, 1}> { t = Tanh (x) y = Compress <axis = 1> (t, c) }""",
    "numbers that a constant chooses": """(float[4, 3] x) => (float[3] y) <bool[5] c = {1, 0, 1, 0, 1}> {
        t = Tanh (x) y = Compress (t, c) }""",
}

_MANY = "(float[{}] x) => (float[{}] y)"
MANY = {
    "pads of five axes": f"""{_MANY.format("2, 1, 3, T, 2", "a, b, c, d, e")} <float v = {{-1.5}},
        int64[10] p = {{1, 1, 0, 1, 0, 2, 1, 0, 0, 2}}> {{ t = Tanh (x) y = Pad (t, p, v) }}""",
    "edges of five axes": f"""{_MANY.format("1, 3, 2, 3, 2", "a, b, c, d, e")}
        <int64[10] p = {{2, 2, 1, 1, 2, 2, 0, 1, 0, 0}}> {{ t = Tanh (x) y = Pad <mode = "edge"> (t, p) }}""",
    "pads of an open batch": f"""{_MANY.format("N, 3, 4, 2", "a, b, c, d")}
        <int64[8] p = {{1, 0, 2, 0, 0, 1, 0, 2}}> {{
        t = Tanh (x) y = Pad (t, p) }}""",
    "two pads and two flips": f"""{_MANY.format("N, 3, 4, 2", "a, b, c, d")}
        <int64[8] p = {{1, 0, 0, 0, 0, 0, 0, 0}},
        int64[1] s = {{-1}}, int64[1] e = {{-99}}, int64[1] c = {{1}}, int64[1] d = {{2}}> {{ t = Tanh (x)
        q = Pad (t, p) r = Pad (q, p) u = Slice (r, s, e, c, s) y = Slice (u, s, e, d, s) }}""",
    "flips of an open batch": f"""{_MANY.format("N, 3, 4, 2", "a, b, c, d")} <int64[2] s = {{-1, -2}},
        int64[2] e = {{-99, -99}}, int64[2] a = {{2, 1}}, int64[2] p = {{-1, -1}}> {{
        t = Tanh (x) y = Slice (t, s, e, a, p) }}""",
}

WHOLE = {
    f"{node} of volumes{name}": f"""(float[2, 3, {T}, 5, 2] x) => (float[a, b, c, d, e] y) {{ t = Tanh (x)
        y = {node} (t) }}"""
    for node in ("GlobalAveragePool", "GlobalMaxPool")
    for name, T in ((", opset 11", "4"), (" of open size", "T"))
}

WHOLE["a pool of a pool"] = """(float[2, 3, 4, 5, 2] x) => (float[a, b, c, d, e] y) {
    t = GlobalMaxPool (x) y = GlobalAveragePool (t) }"""

_THREE = "(float[2, 3, 4] x) => (float[a, b, c] y) <float[3, 1] k = {}, float n = {0.3}>"
SEVERAL = {
    f"{node} of three": f"{_THREE} {{ t = Tanh (x) y = {node} ({given}) }}"
    for node, given in (("Max", "n, t, k"), ("Min", "k, t, x"), ("Sum", "n, k, t"), ("Mean", "k, n, x"))
}

_POOL = """(float[2, 2, 5, 6] x) => (float[a, b, c, d] y) {{ t = Abs (x)
    y = {} <kernel_shape = [2, 3], strides = [2, 2], {}> (t) }}"""
COUNTED = {
    "a mean that counts the pads that keep sizes": _POOL.format(
        "AveragePool", 'auto_pad = "SAME_UPPER", count_include_pad = 1'
    ),
    "a pool that is rounded up without pads": _POOL.format("MaxPool", 'auto_pad = "VALID", ceil_mode = 1'),
}

FROM_THE_END = {
    "pads of some axes, opset 18": """(float[2, T, 3] x) => (float[a, b, c] y) <int64[4] p = {1, 0, 2, 1},
        int64[2] i = {-1, 1}> { t = Tanh (x) y = Pad (t, p, , i) }""",
    **{
        f"rows of two axes{name}": f"""(float[5, {T}, 3] x) => (float[a, b, c] y) <int64[2, 2] i = {{0, 1, -1, -2}},
        float[2, 3] u = {{}}> {{ t = Tanh (x) y = ScatterND (t, i, u) }}"""
        for name, T in (("", "4"), (" of open size, opset 11", "T"))
    },
    "rows from the end": """(float[5, 2, 3] x) => (float[a, b, c] y) <int64[2, 1] i = {0, -1},
        float[2, 2, 3] u = {}> { t = Tanh (x) y = ScatterND (t, i, u) }""",
}

LOW = {
    "one row between two": """(float[2, 3, 1, 4] x) => (float[a, b, c, d] y) <float[4] s = {1, 1, 1, 1.5}> {
        y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , s) }""",
    "a Softmax, a Reshape and a Softmax, opset 11": f"""{_X}) <int64[2] s = {{0, -1}}> {{ t = Softmax <axis = 1> (x)
        r = Reshape (t, s) y = LogSoftmax <axis = 1> (r) }}""".replace("a, b, c", "a, b"),
}

BEHIND = {
    "a vector behind a GRU of open sizes": """(float[T, N, 4] x) => (float[a, b] y) <float[1, 9, 4] W = {},
        float[1, 9, 3] R = {}, float[3] v = {}, int64[1] one = {1}> { h, l = GRU <hidden_size = 3> (x, W, R)
        s = Squeeze (h, one) y = MatMul (s, v) }""",
    "a vector, opset 9": "(float[2, 8, 6] x) => (float[a, b] y) <float[6] v = {}> { y = MatMul (x, v) }",
}

_IN_STEPS = """(float[2, 4, 6] x) => (float[a, b, c] y) <float[{shape}] g = {{}}, float[{shape}] b = {{}},
    float two = {{2}}, float e = {{0.001}}> {{ t = Tanh (x) m = ReduceMean <axes = [{axes}]> (t) c = Sub (t, m)
    s = Pow (c, two) v = ReduceMean <axes = [{axes}]> (s) w = Add (v, e) q = Sqrt (w) d = Div (c, q) {end} }}"""
NORMS = {
    f"a norm along {axes} with factors {shape}, {n}": _IN_STEPS.format(axes=axes, shape=shape, end=end)
    for n, end in enumerate(("f = Mul (d, g) y = Add (f, b)", "f = Mul (g, d) y = Add (b, f)"))
    for axes, shape in (("-1", "1, 1, 6"), ("-1", "4, 1"), ("-1", "1"), ("1", "6"), ("1, 2", "1, 4, 1"))
}

NORMS["a norm with factors that are data"] = """(float[2, 4, 6] x, float[2, 1, 6] g, float[2, 1, 6] b) =>
    (float[a, b, c] y) <float two = {2}, float e = {0.001}> { t = Tanh (x) m = ReduceMean <axes = [-1]> (t)
    c = Sub (t, m) s = Pow (c, two) v = ReduceMean <axes = [-1]> (s) w = Add (v, e) q = Sqrt (w) d = Div (c, q)
    f = Mul (g, d) y = Add (f, b) }"""

UPDATES = {
    "more updates than rows, from the end": """(float[3, 4] x) => (float[a, b] y)
        <int64[5, 4] i = {0, 1, 2, 0, -1, -1, 1, 0, 1, 2, 0, -3, 2, 2, 2, 2, 0, 0, 1, 1}, float[5, 4] u = {}> {
        t = Tanh (x) y = ScatterElements <axis = 0> (t, i, u) }""",
    "sums of more updates than columns, opset 16": """(float[2, 3] x, float[2, 4] u) => (float[a, b] y)
        <int64[2, 4] i = {0, 1, 2, 0, 1, 1, -1, 0}> {
        y = ScatterElements <axis = 1, reduction = "add"> (x, i, u) }""",
    "two updates in a row by computed indices": """(float[T, 4] x, float[N, 4] u, float[N, 4] v) =>
        (float[a, b] y) <float half = {0.5}> { r = Relu (v) m = Mul (r, half) n = Tanh (m) f = Floor (n) g = Neg (f)
        i = Cast <to = 7> (g) t = ScatterElements <axis = 0> (x, i, u)
        y = ScatterElements <axis = 0> (t, i, v) }""",
    "updates by indices of unknown sizes": """(float[T, 4] x, float[N, 4] u) => (float[a, b] y) {
        m = ArgMax <axis = 0> (x) s = Shape (u) c = Cast <to = 1> (s) r = Relu (c) k = Cast <to = 7> (r)
        i = Expand (m, k) y = ScatterElements <axis = 0> (x, i, u) }""",
    "updates of open rows": """(float[T, 4] x, float[N, 4] u) => (float[a, b] y) {
        m = ArgMax <axis = 0> (x) s = Shape (u) i = Expand (m, s) y = ScatterElements <axis = 0> (x, i, u) }""",
    "sums of updates of open rows as PyTorch writes them, opset 16": """(float[T, 4] x, float[N, 4] u) =>
        (float[a, b] y) <int64[2] none = {0, 0}> { m = ArgMax <axis = 0> (x)
        s = Shape (u) i = Expand (m, s) e = Shape (i) w = Slice (u, none, e)
        y = ScatterElements <reduction = "add"> (x, i, w) }""",
    "sums of updates of open rows, opset 16": """(float[T, 4] x, float[N, 4] u) => (float[a, b] y) {
        m = ArgMax <axis = 0> (x) s = Shape (u) i = Expand (m, s)
        y = ScatterElements <axis = 0, reduction = "add"> (x, i, u) }""",
}

NETS: dict[str, dict[str, onnx.ModelProto]] = {
    target: {name: parse(f"g {text}", int(name.partition("opset ")[2] or 17)) for name, text in texts.items()}
    for target, texts in {
        "tract": PADS
        | POOLS
        | CHOSEN
        | FLIPS
        | STRIDES
        | VECTORS_9
        | OPEN_SIZES
        | BLOCKS
        | FILLS
        | NARROW
        | IFS
        | PADDED,
        "mnn": BLOCKS
        | PADS
        | OUTPUTS
        | SCATTERS
        | GELUS
        | NUMBERS
        | SLOPES
        | LOWER
        | WINDOWS
        | RESIZES
        | OLD
        | ROWS
        | BOUNDS
        | ENDS
        | EPSILONS
        | PARTS
        | MODES
        | MEANS
        | UPWARD
        | {name: text for name, text in POOLS.items() if "windows" in name}
        | SEVERAL
        | CHOSEN
        | MANY
        | WHOLE
        | COUNTED
        | FROM_THE_END
        | BEHIND
        | {name: text for name, text in UPDATES.items() if "sums" in name}
        | {name: text for name, text in NORMS.items() if "1, 1, 6" not in name},
        "opencv": BLOCKS
        | POOLS
        | CHOSEN
        | LOW
        | WHOLE
        | UPDATES
        | {name: text for name, text in NORMS.items() if "along -1" in name}
        | BEHIND
        | RESHAPES
        | MODES
        | SPLITS
        | CLIPS
        | SLOPES
        | AXES
        | INDICES
        | SINGLE
        | RESIZES
        | OLD
        | ROWS,
        "openvino": {name: text for name, text in POOLS.items() if "of all" in name}
        | FOLLOWED
        | DROPOUTS
        | INDICES
        | ROWS
        | REPEATS
        | COLUMNS
        | REDUCED
        | VECTORS
        | STEPS,
    }.items()
}
