"""Nets with what exporters write around recurrent nodes and pnnx cannot convert, and what takes its place."""

from typing import Any

import numpy as np
import onnx
from texts import parse, random_feed

X, NET = "float[2, 3, 4]", "g ({} x) => ({} y) <{}> {{ t = Tanh (x) {} }}"

AXES = "int64[1] one = {1}, int64[2] two = {1, 2}, int64[1] last = {-1}"
PADS = "int64[6] pads = {0, 0, 1, 0, 0, 2}, float v = {1.5}, int64[2] few = {1, 2}, int64[1] a = {-1}"
ROWS = "int64[1] r = {2}, int64[3] rs = {2, -1, 0}, int64[2, 2] rr = {2, 0, 1, 1}"
LENGTHS = "int64[2] l = {3, 2}, int64[3] m = {2, 1, 2}"
NORM = "float[3] w = {1, 2, 3}, float[3] b = {0, 1, 2}, float[4] u = {1, 2, 3, 4}, float[4] z = {0, 1, 2, 3}"
HALVES = "float[3] s = {1, 1, 2}, int64[3] n = {2, 3, 6}"
EPS = "float eps = {1e-12}, int64[3] e = {2, 3, 4}"
CUT = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'

BATCHES = """float[5, 3, 2] w = {}, float[4, 5] v = {}, float[4] u = {1, 2, 3, 4}, float[4] z = {0, 1, 2, 3},
    float[2, 5, 3] k = {}, float[2, 3, 4] k3 = {}, float[2, 1, 1] k1 = {1, 2}, float[2, 4, 5] k4 = {},
    float[3, 5] b = {}, int64 i0 = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[2] ones = {1, 1}"""
NORMED, CONV = "n = LayerNormalization (t, u, z)", "c = Conv (t, w)"

NETS: dict[str, tuple[str, str, str, int]] = {
    **{
        f"{name} at opset {opset}": (
            "float[a, b, c]",
            AXES,
            f"q = Exp (t) p = {name} (q, {axes}) y = Mul (p, p)",
            opset,
        )
        for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "ReduceL1")
        for opset, axes in ((18, "last"), (18, "two"), (21, "one"), (13, "two"))
        if opset > 13 or name == "ReduceSum"
    },
    "ReduceMean without axes": ("float[a, b, c]", "", "p = ReduceMean (t) y = Mul (p, p)", 18),
    "ReduceMax of all axes": ("float[a, b, c]", "", "p = ReduceMax (t) y = Mul (p, p)", 18),
    "a sum that loses its axes": ("float[a]", AXES, "p = ReduceSum <keepdims = 0> (t, two) y = Mul (p, p)", 18),
    "beside a Split of equal parts": (
        "float[a, b, c]",
        AXES,
        "p, q = Split <axis = 2, num_outputs = 2> (t) r = Add (p, q) y = ReduceSum (r, one)",
        18,
    ),
    "Pad without a number": ("float[a, b, c]", PADS, "y = Pad (t, pads)", 13),
    "Pad without its mode": ("float[a, b, c]", PADS, "y = Pad (t, pads, v)", 18),
    "Pad of one axis": ("float[a, b, c]", PADS, "y = Pad (t, few, , a)", 18),
    "one row": ("float[a, b, c]", ROWS, "y = Gather <axis = 1> (t, r)", 17),
    "some rows": ("float[a, b, c]", ROWS, "y = Gather <axis = -2> (t, rs)", 17),
    "a matrix of rows": ("float[a, b, c, d]", ROWS, "y = Gather <axis = 1> (t, rr)", 20),
    "rows of sequences in reverse": (
        "float[a, b, c]",
        LENGTHS,
        "y = ReverseSequence <time_axis = 1, batch_axis = 0> (t, l)",
        17,
    ),
    "columns in reverse": (
        "float[a, b, c]",
        LENGTHS,
        "y = ReverseSequence <time_axis = 0, batch_axis = 1> (t, m)",
        17,
    ),
    "InstanceNormalization": ("float[a, b, c]", NORM, "y = InstanceNormalization (t, w, b)", 17),
    "GroupNormalization": ("float[a, b, c]", NORM, "y = GroupNormalization <num_groups = 1> (t, w, b)", 21),
    "LayerNormalization": ("float[a, b, c]", NORM, "y = LayerNormalization (t, u, z)", 17),
    "a linear Resize": ("float[a, b, c]", HALVES, 'y = Resize <mode = "linear"> (t, , s)', 17),
    "a Resize to a size": ("float[a, b, c]", HALVES, f"y = Resize <{CUT}> (t, , , n)", 17),
    "a norm that is clipped": (
        "float[a, b, c]",
        EPS,
        "n = ReduceL2 <axes = [2]> (t) c = Clip (n, eps) r = Expand (c, e) y = Div (t, r)",
        17,
    ),
    **{
        f"{name} beside a batch": ("float[a, b, c]", BATCHES, nodes, 17)
        for name, nodes in {
            "a constant": f"{CONV} y = Add (c, k)",
            "a constant in front": "c = Mul (t, k3) y = Conv (c, w)",
            "a number for each row": f"{CONV} d = Relu (c) y = Mul (d, k1)",
            "a joined constant": f"{NORMED} y = Concat <axis = 1> (n, k3)",
            "a constant in a product": "n = LayerNormalization (t, u, z) y = MatMul (n, k4)",
            "a written norm": "m = ReduceMean <axes = [2]> (t) d = Sub (t, m) q = Mul (d, d) "
            "e = ReduceMean <axes = [2]> (q) r = Sqrt (e) f = Div (d, r) n = Mul (f, u) y = Add (n, k3)",
            "rows joined": f"{NORMED} y = Concat <axis = 0> (n, n)",
            "rows mixed": f"{NORMED} y = Softmax <axis = 0> (n)",
            "a mean of rows": f"{NORMED} y = ReduceMean <axes = [0]> (n)",
            "rows split": f"{NORMED} p, q = Split <axis = 0> (n, ones) y = Concat <axis = 2> (q, p)",
            "a row of a moved axis": f"{CONV} d = Transpose <perm = [1, 0, 2]> (c) y = Slice (d, one, two, one)",
        }.items()
    },
    "a row of a batch": ("float[a, b]", BATCHES, f"{NORMED} y = Gather <axis = 0> (n, i0)", 17),
    "a square of a batch": (
        "float[a, b]",
        BATCHES,
        f"{NORMED} d = Gather <axis = 1> (n, i0) e = Transpose <perm = [1, 0]> (d) y = MatMul (d, e)",
        17,
    ),
    "a Split of equal parts": ("float[a, b, c]", "", "p, q = Split <axis = 2> (t) r = Tanh (q) y = Mul (p, r)", 17),
    "a Transpose without its order": ("float[a, b, c]", "", "p = Transpose (t) y = Exp (p)", 17),
    "rows as the bias of a Gemm": (
        "float[a, b]",
        BATCHES,
        "e = Exp (t) d = Gather <axis = 0> (e, i0) g = Gemm (d, v, b) y = Exp (g)",
        17,
    ),
    "factors of a Gemm": (
        "float[a, b]",
        BATCHES,
        "e = Exp (t) d = Gather <axis = 0> (e, i0) y = Gemm <alpha = 3.0, beta = 0.5> (d, v, b)",
        17,
    ),
    "a factor of a product": (
        "float[a, b]",
        BATCHES,
        "e = Exp (t) d = Gather <axis = 0> (e, i0) g = Gemm <alpha = 3.0> (d, v) y = Tanh (g)",
        17,
    ),
}
"""By name, the type of the result, constants, nodes behind t, and the opset."""

INDICES = {
    "behind a Cast": ("int64[2, 3]", "j = Cast <to = 6> (i)"),
    "of int32 behind a Cast": ("int32[2, 3]", "j = Cast <to = 7> (i)"),
    "that are moved": ("int64[2, 3]", "j = Transpose <perm = [1, 0]> (i)"),
    "of three axes": ("int64[2, 3, 2]", "j = Identity (i)"),
}
"""By name, the type of indices, and what is done to them before rows of a table are taken."""


def nets_for_ncnn() -> dict[str, tuple[onnx.ModelProto, dict[str, Any]]]:
    """Return each net with its inputs, by name."""
    found = {}
    for name, (result, constants, nodes, opset) in NETS.items():
        net = parse(NET.format(X, result, constants, nodes), opset)
        found[name] = net, random_feed(net)
    for name, (kind, nodes) in INDICES.items():
        rank = kind.count(",") + 2
        result = f"float[{', '.join('abcd'[:rank])}]"
        net = parse(
            f"g ({kind} i) => ({result} y) <float[9, 4] w = {{}}> {{ {nodes} r = Gather (w, j) y = Tanh (r) }}"
        )
        shape = [int(size) for size in kind[kind.index("[") + 1 : -1].split(",")]
        numbers = np.arange(np.prod(shape)).reshape(shape) % 9
        found[f"indices {name}"] = net, {"i": numbers.astype(kind[: kind.index("[")])}
    return found
