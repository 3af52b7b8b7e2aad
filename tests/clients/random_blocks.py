"""Blocks of random nets: each adds several operators as exporters write them for a layer, or a rarer operator."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from clients.growing_nets import FLOAT, RandomNet, Step, info_of, require

_HALF, _INT32, _INT64 = TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64


def number(net: RandomNet, value: float) -> str:
    return net.constant(np.float32(value))


def size_of(net: RandomNet, x: str, axis: int) -> str:
    """Return a size as a tensor of one axis."""
    if net.opset >= 15 and net.chance(0.3):
        return net.add("Shape", x, start=axis, end=axis + 1)
    if net.chance(0.5):
        return net.add("Gather", net.add("Shape", x), net.constant([axis]), axis=0)
    return net.by_axes("Unsqueeze", net.add("Gather", net.add("Shape", x), net.constant(axis), axis=0), [0])


def matrix(net: RandomNet, x: str, columns: int) -> str:
    rows = net.shape(x)[-1]
    product = net.add("MatMul", x, net.constant(net.numbers(rows, columns) / np.float32(rows**0.5)))
    return net.add("Add", product, net.constant(net.numbers(columns))) if net.chance(0.5) else product


def attention(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    require(net.rank(x) == 3 and 2 not in net.open_axes(x))
    heads, width = net.pick((1, 2)), net.pick((2, 3))
    q, k, v = (_heads(net, matrix(net, x, heads * width), heads, width) for _ in "qkv")
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.add("Mul", scores, number(net, width**-0.5))
    scores = _masked(net, scores, x) if net.chance(0.5) else scores
    weights = net.add("Softmax", scores, axis=3 if net.opset < 13 else -1)
    y = net.add("Transpose", net.add("MatMul", weights, v), perm=[0, 2, 1, 3])
    return matrix(net, net.add("Reshape", y, net.constant([0, 0, heads * width])), heads * width)


def _heads(net: RandomNet, x: str, heads: int, width: int) -> str:
    if net.chance(0.5):
        shape = net.constant([0, 0, heads, width])
    else:
        sizes = [size_of(net, x, 0), size_of(net, x, 1)]
        shape = net.add("Concat", *sizes, net.constant([heads]), net.constant([width]), axis=0)
    return net.add("Transpose", net.add("Reshape", x, shape), perm=[0, 2, 1, 3])


def _masked(net: RandomNet, scores: str, x: str) -> str:
    """Let each row read no later one, or not those that are 0."""
    size = net.add("Gather", net.add("Shape", x), net.constant(1), axis=0)
    low = number(net, net.pick((-1e9, -1e4)))
    if net.opset >= 14 and net.chance(0.4):
        row = net.by_axes("Unsqueeze", size, [0])
        square = net.add("Concat", row, row, axis=0)
        ones = net.add(
            "ConstantOfShape", square, value=numpy_helper.from_array(np.array([net.pick((1, -1e9))], np.float32))
        )
        mask = net.add("Trilu", ones, net.constant(1), upper=1)
        return net.add("Add", scores, mask)
    require(net.opset >= 11)
    places = net.add("Range", net.constant(0), size, net.constant(1))
    rows, columns = (net.by_axes("Unsqueeze", places, [axis]) for axis in (1, 0))
    kind = net.pick(("Greater", "Less", "LessOrEqual")) if net.opset >= 12 else net.pick(("Greater", "Less"))
    later = net.add(kind, *((columns, rows) if kind == "Greater" else (rows, columns)))
    if kind == "LessOrEqual":
        later = net.add("Not", later)
    return net.add("Where", later, low, scores)


def convolved(net: RandomNet, x: str) -> str:
    """A Conv, a norm, an activation, and what is added to it."""
    x = net.floats(x)
    rank = net.rank(x, 3) - 2
    require(1 not in net.open_axes(x))
    channels, size = net.shape(x)[1], net.pick((1, 3))
    count = net.pick((channels, channels, 2, 4))
    group = channels if count == channels and net.chance(0.3) else 1
    weights = net.constant(net.numbers(count, channels // group, *[size] * rank) / np.float32(2))
    bias = [net.constant(net.numbers(count))] if net.chance(0.5) else []
    pads = [size // 2] * 2 * rank if net.chance(0.7) else None
    y = net.add("Conv", x, weights, *bias, group=group, pads=pads, kernel_shape=[size] * rank)
    if net.chance(0.5):
        y = _normed(net, y, count)
    y = activated(net, y)
    if net.shape(y) == net.shape(x) and net.chance(0.5):
        y = net.add("Add", *((x, y) if net.chance(0.5) else (y, x)))
    return gated(net, y, count) if net.chance(0.25) else y


def _normed(net: RandomNet, x: str, count: int) -> str:
    scale, bias, mean = (net.constant(net.numbers(count)) for _ in "abc")
    if net.chance(0.3):
        return net.add("InstanceNormalization", x, scale, bias, epsilon=net.pick((None, 1e-3)))
    variance = net.constant(np.abs(net.numbers(count)) + np.float32(0.5))
    return net.add("BatchNormalization", x, scale, bias, mean, variance, epsilon=net.pick((None, 1e-3)))


def activated(net: RandomNet, x: str) -> str:
    kind = net.pick(("Relu", "LeakyRelu", "Swish", "Gelu", "Mish", "Clip", "HardSigmoid", "Softplus", "Elu"))
    if kind == "Swish":
        return net.add("Mul", x, net.add("Sigmoid", x))
    if kind == "Mish":
        return net.add("Mul", x, net.add("Tanh", net.add("Softplus", x)))
    if kind == "HardSigmoid":
        return net.add("Mul", x, net.add(kind, x, alpha=1 / 6))
    if kind == "Gelu":
        inner = net.add("Erf", net.add("Div", x, number(net, 2**0.5)))
        above = net.add("Add", inner, number(net, 1))
        return net.add("Mul", net.add("Mul", x, above), number(net, 0.5))
    if kind == "Clip":
        return bounded(net, x)
    return net.add(kind, x)


def bounded(net: RandomNet, x: str) -> str:
    low, high = net.pick(((0, 6), (-1, 1), (None, 0.5), (-0.5, None)))
    if net.opset < 11:
        return net.add("Clip", x, min=low, max=high)
    given = ["" if low is None else number(net, low), *([] if high is None else [number(net, high)])]
    return net.add("Clip", x, *given)


def gated(net: RandomNet, x: str, count: int) -> str:
    """A factor for each channel, of what is pooled."""
    rank = net.rank(x, 3) - 2
    pooled = (
        net.add("GlobalAveragePool", x)
        if net.chance(0.5)
        else net.by_axes("ReduceMean", x, [*range(2, rank + 2)], keepdims=1)
    )
    for columns, kind in ((2, "Relu"), (count, net.pick(("Sigmoid", "HardSigmoid")))):
        rows = net.shape(pooled)[1]
        pooled = net.add(kind, net.add("Conv", pooled, net.constant(net.numbers(columns, rows, *[1] * rank))))
    return net.add("Mul", x, pooled)


def halves_of_channels(net: RandomNet, x: str) -> str:
    """A gated unit: half of an axis times the Sigmoid of the other half."""
    x = net.floats(x)
    axes = [n for n, size in enumerate(net.shape(x)) if size % 2 == 0 and n not in net.open_axes(x)]
    require(axes)
    axis = net.pick(axes)
    half = net.shape(x)[axis] // 2
    if net.opset >= 18 and net.chance(0.5):
        first = net.add("Split", x, outputs=2, axis=axis, num_outputs=2)
    elif net.opset < 13:
        first = net.add("Split", x, outputs=2, axis=axis, split=net.pick((None, [half, half])))
    else:
        sizes = [net.constant([half, half])] if net.opset >= 18 or net.chance(0.6) else []
        first = net.add("Split", x, *sizes, outputs=2, axis=axis)
    (second,) = net.others(first, 2)
    return net.add("Mul", first, net.add(net.pick(("Sigmoid", "Tanh")), second))


def integers(net: RandomNet, x: str) -> str:
    x = net.add("Mul", net.floats(x), number(net, 3))
    dtype, kind = net.pick(((np.int64, _INT64), (np.int32, _INT32)))
    x = net.add("Cast", net.add("Floor", x) if net.chance(0.5) else x, to=kind)
    for _ in range(net.pick((1, 1, 2))):
        x = _of_integers(net, x, dtype)
    if net.values[x][0].dtype == bool and net.chance(0.5):
        return net.add("Where", x, number(net, 1.5), number(net, -1))
    return net.add("Cast", x, to=FLOAT)


def _of_integers(net: RandomNet, x: str, dtype: Any) -> str:
    require(net.values[x][0].dtype == dtype)
    group = net.pick(("two", "two", "one", "reduced", "compared", "bounded", "largest"))
    if group == "two":
        kind = net.pick(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow"))
        c = net.constant(dtype(net.pick((2, 3, 5))))
        return net.add(kind, x, c, fmod=1 if kind == "Mod" and net.chance(0.2) else None)
    if group == "one":
        return net.add(net.pick(("Abs", "Neg", "Sign", "Identity", "Relu")), x)
    if group == "reduced":
        return net.by_axes(f"Reduce{net.pick(('Sum', 'Max', 'Min', 'Prod', 'Mean'))}", x, [net.axis(x)], keepdims=1)
    if group == "compared":
        return net.add(net.pick(("Equal", "Greater", "Less")), x, net.constant(dtype(net.pick((0, 1)))))
    if group == "bounded":
        return net.add("Clip", x, net.constant(dtype(-1)), net.constant(dtype(2)))
    found = net.add(net.pick(("ArgMax", "ArgMin")), x, axis=net.axis(x), keepdims=1)
    return net.add("Cast", found, to=_INT64 if dtype == np.int64 else _INT32)


def of_several(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    sizes = net.sizes(x)
    smaller = net.constant(net.numbers(*sizes[int(net.rng.integers(len(sizes) + 1)) :]))
    given = [x, smaller, net.pick((x, number(net, 0.3), net.add("Tanh", x)))]
    order = net.rng.permutation(3)
    return net.add(net.pick(("Max", "Min", "Sum", "Mean")), *(given[n] for n in order))


def branched(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    largest = net.add("ReduceMax", x, keepdims=0)
    condition = net.add("Greater", largest, number(net, net.pick((0.5, 5))))
    c = number(net, 0.5)
    name = f"b{net.count}"

    def graph(kind: str, with_constant: bool) -> onnx.GraphProto:
        output = helper.make_empty_tensor_value_info(f"{name}{kind}y")
        nodes = [helper.make_node(kind, [x], [f"{name}{kind}"])]
        nodes.append(helper.make_node("Mul" if with_constant else "Add", [f"{name}{kind}", c], [output.name]))
        output.CopyFrom(info_of(output.name, net.values[x][0], net.open_axes(x)))
        return helper.make_graph(nodes, f"{name}{kind}g", [], [output])

    then, other = graph("Relu", True), graph("Tanh", net.chance(0.5))
    return net.add("If", condition, captured=[x, c], then_branch=then, else_branch=other)


def in_halves(net: RandomNet, x: str) -> str:
    """Operators in float16 that round nothing, of numbers that it has."""
    eighths = net.add("Round" if net.opset >= 11 else "Floor", net.add("Mul", net.floats(x), number(net, 8)))
    x = net.add("Cast", net.add("Mul", eighths, number(net, 0.125)), to=_HALF)
    for _ in range(net.pick((1, 2))):
        kind = net.pick(("Relu", "Neg", "Abs", "Add", "Mul", "Concat", "Transpose", "Where", "Max"))
        if kind in ("Relu", "Neg", "Abs"):
            x = net.add(kind, x)
        elif kind in ("Add", "Mul", "Max"):
            x = net.add(kind, x, net.constant(np.float16(0.5)))
        elif kind == "Concat":
            x = net.add(kind, x, x, axis=net.axis(x))
        elif kind == "Where":
            x = net.add(kind, net.add("Greater", x, net.constant(np.float16(0))), x, net.constant(np.float16(-2)))
        else:
            x = net.add(kind, x)
    return net.add("Cast", x, to=FLOAT)


def rare_norm(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    kind = net.pick(("Lp", "LRN", "MeanVariance", "Layer", "RMS", "Group", "cosine"))
    last = net.rank(x) - 1
    if kind == "Lp":
        return net.add("LpNormalization", x, axis=net.axis(x), p=net.pick((1, 2, None)))
    if kind == "LRN":
        return net.add("LRN", x, size=3, alpha=net.pick((None, 0.1)), beta=net.pick((None, 0.5)))
    if kind == "MeanVariance":
        axes = net.pick((None, [0, 2]))
        require(net.rank(x) > (axes or [3])[-1])
        return net.add("MeanVarianceNormalization", x, axes=axes)
    if kind == "cosine":
        norms = net.by_axes(net.pick(("ReduceL2", "ReduceL1")), x, [last], keepdims=1)
        return net.add("Div", x, net.add("Max", norms, number(net, 1e-3)))
    if kind == "Group":
        return _group_norm(net, x)
    centred = x if kind == "RMS" else net.add("Sub", x, net.by_axes("ReduceMean", x, [-1], keepdims=1))
    square = net.add("Pow", centred, number(net, 2)) if net.chance(0.5) else net.add("Mul", centred, centred)
    variance = net.by_axes("ReduceMean", square, [-1], keepdims=1)
    return net.add("Div", centred, net.add("Sqrt", net.add("Add", variance, number(net, 1e-3))))


def _group_norm(net: RandomNet, x: str) -> str:
    """As PyTorch writes it: an InstanceNormalization of groups."""
    rank, shape = net.rank(x, 3), net.shape(x)
    require(1 not in net.open_axes(x) and shape[1] % 2 == 0)
    grouped = net.add("Reshape", x, net.constant([0, 2, -1]))
    normed = net.add("InstanceNormalization", grouped, *(net.constant(c, np.float32) for c in ([1, 1], [0, 0])))
    y = net.add("Reshape", normed, net.add("Shape", x))
    scales = [net.constant(net.numbers(shape[1], *[1] * (rank - 2))) for _ in "ab"]
    return net.add("Add", net.add("Mul", y, scales[0]), scales[1])


def pixels(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    require(net.rank(x) == 4)
    kind = net.pick(("DepthToSpace", "SpaceToDepth"))
    mode = net.pick((None, "DCR", "CRD")) if kind[0] == "D" and net.opset >= 11 else None
    return net.add(kind, x, blocksize=net.pick((1, 2)), mode=mode)


def rare_pool(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    rank = net.rank(x, 3) - 2
    kind = net.pick(("LpPool", "GlobalLpPool", "MaxPool", "AveragePool"))
    if kind == "GlobalLpPool":
        return net.add(kind, x, p=net.pick((None, 1, 3)))
    kernel = [net.pick((1, 2, 3)) for _ in range(rank)]
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": net.pick((None, [1] * rank, [2] * rank))}
    if net.chance(0.4):
        given["auto_pad"] = net.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif kind == "MaxPool" and net.opset >= 10 and net.chance(0.5):
        given["dilations"] = [net.pick((1, 2)) for _ in kernel]
    if kind == "LpPool":
        given["p"] = net.pick((None, 1, 2, 3))
    return net.add(kind, x, **given)


def scattered(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    require(net.opset >= 11)
    kinds = ["none", "add", "mul"] if net.opset >= 16 else [None]
    reduction = net.pick([*kinds, "max", "min"] if net.opset >= 18 else kinds)
    kind = net.pick(("of the largest", "rows", "cells", "elements"))
    axis = net.rank(x) - 1
    if kind == "of the largest":
        require(axis not in net.open_axes(x))
        values = net.add("TopK", x, net.constant([min(2, net.shape(x)[-1])]), outputs=2, axis=-1)
        (rows,) = net.others(values, 2)
        base = net.add("Mul", x, number(net, 0))
        return net.add("ScatterElements", base, rows, values, axis=-1, reduction=reduction)
    sizes = net.sizes(x)
    if kind == "elements":
        sizes = [size + 1 if n == axis else size for n, size in enumerate(sizes)] if net.chance(0.3) else sizes
        rows = net.constant(net.rng.integers(0, net.shape(x)[axis], sizes))
        return net.add(
            "ScatterElements", x, rows, net.constant(net.numbers(*sizes)), axis=axis, reduction=reduction
        )
    depth = 1 if kind == "rows" else 2
    require(net.rank(x, depth) and not [n for n in net.open_axes(x) if n >= depth])
    places = [[0] * depth, [-1] * depth] if net.chance(0.5) else [[0] * depth]
    updates = net.constant(net.numbers(len(places), *net.shape(x)[depth:]))
    return net.add("ScatterND", x, net.constant(places), updates, reduction=reduction)


def taken(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    kind = net.pick(("batches", "largest", "table", "sorted"))
    if kind == "batches":
        require(net.opset >= 12 and net.rank(x, 2) and 0 not in net.open_axes(x))
        places = net.rng.integers(0, max(1, min(net.shape(x)[1], 3)), (net.shape(x)[0], 1))
        return net.add("GatherND", x, net.constant(places), batch_dims=1)
    if kind == "table":
        rows = net.add(
            "Cast", net.add("Clip", net.add("Abs", x), "", number(net, 4)), to=net.pick((_INT32, _INT64))
        )
        return net.add("Gather", net.constant(net.numbers(5, 3)), rows)
    axis = net.axis(x)
    require(axis % net.rank(x) not in net.open_axes(x))
    values = net.add("TopK", x, net.constant([net.shape(x)[axis]]), outputs=2, axis=axis)
    (rows,) = net.others(values, 2)
    if kind == "sorted":
        return net.add("Add", values, net.add("Cast", rows, to=FLOAT))
    return net.add("GatherElements", net.add("Tanh", x), rows, axis=axis)


def by_shapes(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    kind, rank = net.pick(("reshaped", "expanded", "filled", "places", "like", "cut")), net.rank(x)
    if kind == "reshaped":
        require(rank >= 2)
        shape = net.add("Concat", size_of(net, x, 0), net.constant([-1]), axis=0)
        return net.add("Reshape", x, shape)
    if kind == "expanded":
        row = net.by_axes("ReduceMean", x, [0], keepdims=1)
        return net.add("Expand", row, net.add("Shape", x))
    if kind == "filled":
        value = numpy_helper.from_array(np.array([net.pick((0, 1.5))], np.float32))
        return net.add("Concat", x, net.add("ConstantOfShape", net.add("Shape", x), value=value), axis=net.axis(x))
    if kind == "like":
        require(rank == 2)
        return net.add("Add", x, net.add("EyeLike", x, k=net.pick((None, 1))))
    size = net.add("Gather", net.add("Shape", x), net.constant(0), axis=0)
    if kind == "cut":
        end = net.by_axes("Unsqueeze", net.add("Sub", size, net.constant(1)), [0])
        require(net.opset >= 10)
        return net.add("Slice", x, net.constant([0]), end, net.constant([0]))
    require(net.opset >= 11 and net.shape(x)[0] < 8 and rank == 2)
    places = net.add("Range", net.constant(0), size, net.constant(1))
    return net.add("Concat", x, net.add("Gather", net.constant(net.numbers(8, 3)), places), axis=1)


def masked(net: RandomNet, x: str) -> str:
    """Rows behind a length are 0, or far below."""
    x = net.floats(x)
    require(net.rank(x, 2) and net.opset >= 11 and 0 not in net.open_axes(x))
    size = net.add("Gather", net.add("Shape", x), net.constant(1), axis=0)
    places = net.by_axes("Unsqueeze", net.add("Range", net.constant(0), size, net.constant(1)), [0])
    lengths = net.constant(net.rng.integers(1, net.shape(x)[1] + 1, (net.shape(x)[0], 1)))
    within = net.add("Less", places, lengths)
    axes = [*range(2, net.rank(x))]
    within = net.by_axes("Unsqueeze", within, axes) if axes else within
    if net.chance(0.5):
        return net.add("Where", within, x, number(net, net.pick((0, -1e4))))
    return net.add("Mul", x, net.add("Cast", within, to=FLOAT))


def resized_to(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    require(net.opset >= 10 and net.rank(x, 3))
    mode = net.pick(("nearest", "linear", "cubic"))
    if net.opset == 10:
        scales = net.constant([1, 1, *(2 for _ in range(net.rank(x, 3) - 2))], np.float32)
        return net.add("Resize", x, scales, mode=net.pick(("nearest", "linear")))
    require(not [n for n in net.open_axes(x) if n > 1])
    sizes = [*net.shape(x)[:2], *(net.pick((1, 2, 3, 5, size, 2 * size)) for size in net.shape(x)[2:])]
    roi = net.constant(np.zeros(0, np.float32))
    none = net.constant(np.zeros(0, np.float32)) if net.opset < 13 else ""
    places = net.pick((None, "asymmetric", "align_corners", "half_pixel"))
    given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": places}
    given["nearest_mode"] = net.pick((None, "floor")) if mode == "nearest" else None
    if net.opset >= 18 and net.chance(0.5):
        axes = [*range(2, net.rank(x))]
        return net.add("Resize", x, "", "", net.constant(sizes[2:]), axes=axes, **given)
    firsts = [size_of(net, x, 0), size_of(net, x, 1)] if {0, 1} & {*net.open_axes(x)} else []
    shape = net.add("Concat", *firsts, net.constant(sizes[2:]), axis=0) if firsts else net.constant(sizes)
    return net.add("Resize", x, roi, none, shape, **given)


def recurrent(net: RandomNet, x: str) -> str:
    """A recurrence of rows [time, batch, features]."""
    x = net.floats(x)
    require(net.rank(x) == 3 and 2 not in net.open_axes(x))
    gates, kind = net.pick(((1, "RNN"), (3, "GRU"), (4, "LSTM"), (4, "LSTM")))
    direction = net.pick(("forward", "reverse", "bidirectional"))
    D, H, features = 2 if direction[0] == "b" else 1, net.pick((2, 3)), net.shape(x)[2]
    weights = [net.constant(net.numbers(D, gates * H, size) / 2) for size in (features, H)]
    weights += [net.constant(net.numbers(D, 2 * gates * H) / 2)] if net.chance(0.5) else []
    own = {"linear_before_reset": net.pick((0, 1))} if kind == "GRU" else {}
    outputs = 3 if kind == "LSTM" else 2
    y = net.add(kind, x, *weights, outputs=outputs, hidden_size=H, direction=direction, **own)
    if net.chance(0.3):
        h = net.others(y, 2)[0]
        return net.add("Transpose", h, perm=[1, 0, 2])
    if D == 1 and net.chance(0.5):
        return net.by_axes("Squeeze", y, [1])
    return net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, 0, -1]))


def scanned(net: RandomNet, x: str) -> str:
    """A Scan whose body reads a constant of the outside."""
    x = net.floats(x)
    require(net.rank(x) == 3 and net.open_axes(x) in ([], [0]))
    N, C = net.shape(x)[1:]
    start, factor = net.constant(np.zeros((N, C), np.float32)), net.constant(net.numbers(C))
    p = f"s{net.count}"
    row = info_of(f"{p}x", net.values[x][0][0])
    state = info_of(f"{p}h", net.values[x][0][0])
    last, out = (info_of(f"{p}{name}", net.values[x][0][0]) for name in ("n", "y"))
    nodes = [
        helper.make_node("Mul", [state.name, factor], [f"{p}m"]),
        helper.make_node("Add", [row.name, f"{p}m"], [f"{p}a"]),
        helper.make_node(net.pick(("Tanh", "Sigmoid")), [f"{p}a"], [last.name]),
        helper.make_node("Identity", [last.name], [out.name]),
    ]
    body = helper.make_graph(nodes, f"{p}g", [state, row], [last, out])
    end = net.add("Scan", start, x, outputs=2, captured=[factor], body=body, num_scan_inputs=1)
    return net.others(end, 2)[0]


def summed_products(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    require(net.opset >= 12 and net.rank(x) in (2, 3))
    one, two = ("ab", "abc")[net.rank(x) - 2], net.add("Tanh", x)
    one_of = {
        "ab": ("ab->ba", "ab->a", "ab,ab->a", "ab,cb->ac", "ab,ab->ab", "ab,cb,cd->ad", "ab->b"),
        "abc": (
            "abc->cab",
            "abc->ac",
            "abc,abd->acd",
            "abc,adc->abd",
            "abc,abc->ab",
            "abc,abd,abe->acde",
            "abc->b",
        ),
    }[one]
    equation = net.pick(one_of)
    return net.add("Einsum", *[x, two, x][: equation.count(",") + 1], equation=equation)


def rare(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    kinds = (
        "Shrink",
        "Hardmax",
        "Sinh",
        "Cosh",
        "Asinh",
        "Tan",
        "Mod",
        "ReverseSequence",
        "IsNaN",
        "Compress",
        "Swish",
    )
    kind = net.pick(kinds)
    if kind == "Shrink":
        return net.add(kind, x, lambd=0.3, bias=net.pick((None, 0.1)))
    if kind == "Hardmax":
        return net.add(kind, x, axis=net.axis(x))
    if kind == "Mod":
        return net.add(kind, x, number(net, 0.7), fmod=1)
    if kind == "Swish":
        return net.add("Mul", net.add("Sigmoid", net.add("Mul", x, number(net, 1.702))), x)
    if kind == "IsNaN":
        return net.add("Where", net.add(kind, net.add("Log", x)), number(net, 0), x)
    if kind == "Compress":
        axis = net.axis(x)
        require(axis % net.rank(x) not in net.open_axes(x))
        kept = [True, *(net.chance(0.5) for _ in range(net.shape(x)[axis] - 1))]
        return net.add(kind, x, net.constant(np.array(kept)), axis=axis)
    if kind == "ReverseSequence":
        require(net.rank(x, 2) and 0 not in net.open_axes(x))
        lengths = net.rng.integers(1, net.shape(x)[1] + 1, net.shape(x)[0])
        return net.add(kind, x, net.constant(lengths), batch_axis=0, time_axis=1)
    return net.add(kind, x)


def padded_axes(net: RandomNet, x: str) -> str:
    x, axis = net.floats(x), net.axis(x)
    require(net.opset >= 18)
    mode = net.pick(("constant", "edge", "reflect", "wrap") if net.opset >= 19 else ("constant", "edge", "reflect"))
    return net.add("Pad", x, net.constant([1, net.pick((0, 1))]), "", net.constant([axis]), mode=mode)


BLOCKS: tuple[Step, ...] = (
    *(attention, attention, convolved, convolved, halves_of_channels, integers, integers, of_several, branched),
    *(in_halves, rare_norm, rare_norm, pixels, rare_pool, scattered, scattered, taken, taken, by_shapes, by_shapes),
    *(masked, resized_to, recurrent, recurrent, scanned, summed_products, rare, padded_axes),
)
