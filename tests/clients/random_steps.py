"""Steps of random nets: each adds an operator as exporters write it, with few others."""

from typing import Any

import numpy as np
from onnx import TensorProto

from clients.growing_nets import FAR, FLOAT, MOST, RandomNet, Step, require

_OF_ONE = (
    *("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Floor", "Ceil", "Sign", "Erf", "Softplus", "Softsign"),
    *("Selu", "Identity", "Round", "Sin", "Cos", "Atan", "HardSwish", "Mish", "Gelu", "Celu", "Elu", "LeakyRelu"),
    *("HardSigmoid", "ThresholdedRelu"),
)
_OF_ALPHA = ("Celu", "Elu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu")


def function(net: RandomNet, x: str) -> str:
    operator = net.pick(_OF_ONE)
    alpha = net.pick((0.1, 0.5, 1.5)) if operator in _OF_ALPHA and net.chance(0.5) else None
    return net.add(operator, net.floats(x), alpha=alpha)


def root(net: RandomNet, x: str) -> str:
    above = net.add("Add", net.add("Abs", net.floats(x)), net.constant(np.float32(net.pick((0.01, 0.3, 1)))))
    return net.add(net.pick(("Sqrt", "Log", "Reciprocal")), above)


def sum_with_constant(net: RandomNet, x: str) -> str:
    x, operator = net.floats(x), net.pick(("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu"))
    sizes = [1 if net.chance(0.3) else size for size in net.sizes(x)]
    given = net.numbers(*sizes[int(net.rng.integers(len(sizes) + 1)) :])
    if operator == "Pow":
        return net.add("Pow", net.add("Abs", x), net.constant(np.float32(net.pick((0.5, 1, 1.5, 2, 3)))))
    c = net.constant(np.abs(given) + np.float32(0.5) if operator == "Div" else np.asarray(given))
    commutes = operator in ("Add", "Sub", "Mul", "Min", "Max") and net.chance(0.4)
    return net.add(operator, *((c, x) if commutes else (x, c)))


def with_itself(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    rank, kind = net.rank(x, 2), net.pick(("Add", "Mul", "MatMul", "Einsum"))
    if kind in ("Add", "Mul"):
        return net.add(kind, x, net.add("Tanh", x))
    if kind == "Einsum":
        labels = "abcde"[:rank]
        return net.add("Einsum", x, x, equation=f"{labels},{labels[:-1]}z->{labels[:-2]}{labels[-1]}z")
    return net.add("MatMul", x, net.add("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2]))


def reduction(net: RandomNet, x: str) -> str:
    kinds = ("Sum", "Mean", "Max", "Min", "L1", "L2", "Prod", "LogSumExp", "SumSquare")
    x = net.floats(x)
    rank = net.rank(x)
    axes = sorted(map(int, net.rng.choice(rank, net.pick((1, 1, 1, min(2, rank))), replace=False)))
    from_end = net.opset >= 11 and net.chance(0.4)
    axes = [axis - rank for axis in axes] if from_end else axes
    return net.by_axes(f"Reduce{net.pick(kinds)}", x, axes, keepdims=net.pick((0, 1, None)))


def largest(net: RandomNet, x: str) -> str:
    x, axis = net.floats(x), net.axis(x)
    if net.chance(0.5):
        found = net.add(net.pick(("ArgMax", "ArgMin")), x, axis=axis, keepdims=net.pick((0, 1)))
        return net.add("Cast", found, to=FLOAT)
    rank = net.rank(x)
    k = 1 if axis % rank in net.open_axes(x) else int(net.rng.integers(1, net.shape(x)[axis] + 1))
    order = net.pick((1, 0)) if net.opset >= 11 else None
    return net.add("TopK", x, net.constant([k]), outputs=2, axis=axis, largest=order)


def one_hot(net: RandomNet, x: str) -> str:
    rows = net.add("ArgMax", net.floats(x), axis=net.axis(x), keepdims=0)
    ends = net.constant([0, 1], np.float32)
    return net.add("OneHot", rows, net.constant(12), ends, axis=net.pick((-1, 0, None)))


def rows_of_one(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    axis = net.rank(x) - 1 if net.opset < 13 and net.chance(0.5) else net.axis(x)
    return net.add(net.pick(("Softmax", "LogSoftmax")), x, axis=axis)


_BOUNDS = (
    *(
        (0, -1, 1),
        (1, MOST, 1),
        (-1, MOST, 1),
        (0, MOST, 2),
        (-2, -1, 1),
        (1, -1, 1),
        (-1, -1 - MOST, -1),
        (0, 1, 1),
    ),
    *((1, 3, 2), (-3, FAR, 1), (FAR, -1 - FAR, -1), (0, 1000, 1), (-1, -1000, -2)),
)


def cut(net: RandomNet, x: str) -> str:
    rank = net.rank(x)
    axes = list(map(int, net.rng.choice(rank, net.pick((1, 1, min(2, rank))), replace=False)))
    starts, ends, steps = (list(each) for each in zip(*(net.pick(_BOUNDS) for _ in axes), strict=True))
    if net.opset < 10:
        require(set(steps) == {1})
        return net.add("Slice", x, axes=axes, starts=starts, ends=ends)
    given = [starts, ends, [axis - rank for axis in axes] if net.chance(0.3) else axes, steps]
    dtype = np.int32 if max(map(abs, (*starts, *ends))) <= FAR and net.chance(0.3) else np.int64
    return net.add("Slice", x, *(net.constant(numbers, dtype) for numbers in given))


def gathered(net: RandomNet, x: str) -> str:
    axis = net.axis(x)
    last = 1 if axis % net.rank(x) in net.open_axes(x) else net.shape(x)[axis] - 1
    rows = net.pick((0, -1, [0], [-1], [0, 0], [last, 0], [[0, last], [-1, 0]], [*range(last, -1, -1)]))
    return net.add("Gather", x, net.constant(rows, net.pick((np.int64, np.int32))), axis=axis)


def padded(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    mode, count = net.pick(("constant", "reflect", "edge", None)), 2 * net.rank(x)
    pads = [int(net.pick((0, 0, 1, 2))) for _ in range(count)]
    if net.opset < 11:
        return net.add("Pad", x, pads=pads, mode=mode, value=net.pick((0.0, 1.5)))
    number = [net.constant(np.float32(-1.5))] if mode in ("constant", None) and net.chance(0.5) else []
    return net.add("Pad", x, net.constant(pads), *number, mode=mode)


def moved(net: RandomNet, x: str) -> str:
    rank, kind = net.rank(x), net.pick(("Transpose", "Squeeze", "Unsqueeze", "Flatten"))
    if kind == "Transpose":
        return net.add(kind, x, perm=list(map(int, net.rng.permutation(rank))))
    if kind == "Squeeze":
        ones = [n for n, size in enumerate(net.shape(x)) if size == 1]
        require(ones)
        return net.by_axes(kind, x, [net.pick(ones)])
    if kind == "Unsqueeze":
        axis = int(net.rng.integers(rank + 1))
        return net.by_axes(kind, x, [axis - rank - 1 if net.opset >= 11 and net.chance(0.3) else axis])
    return net.add(kind, x, axis=int(net.rng.integers(rank + 1)) if kind == "Flatten" else None)


def reshaped(net: RandomNet, x: str) -> str:
    shape, opened = net.shape(x), net.open_axes(x)
    axis = int(net.rng.integers(net.rank(x)))
    require(not any(n > axis for n in opened))
    before, size, after = [0] * axis, shape[axis], list(shape[axis + 1 :])
    halves = [*before, 2, size // 2, *after] if size % 2 == 0 and axis not in opened else [*before, -1, *after]
    merged = [*before[1:], -1, *after] if axis else [-1]
    return net.add("Reshape", x, net.constant(net.pick((halves, merged, [-1], [0, -1]))))


def joined(net: RandomNet, x: str) -> str:
    axis, other = net.axis(x), x
    if net.chance(0.5) and not [n for n in net.open_axes(x) if n != axis % net.rank(x)]:
        sizes = list(net.shape(x))
        sizes[axis] = net.pick((1, 2))
        other = net.constant(net.numbers(*sizes).astype(net.values[x][0].dtype))
    return net.add("Concat", *((x, other) if net.chance(0.5) else (other, x)), axis=axis)


def parted(net: RandomNet, x: str) -> str:
    axes = [n for n, size in enumerate(net.shape(x)) if size > 1 and n not in net.open_axes(x)]
    require(axes)
    axis = net.pick(axes)
    sizes = [1, net.shape(x)[axis] - 1]
    if net.opset < 13:
        return net.add("Split", x, outputs=2, axis=axis, split=sizes)
    return net.add("Split", x, net.constant(sizes), outputs=2, axis=axis)


def repeated(net: RandomNet, x: str) -> str:
    if net.chance(0.5):
        return net.add("Tile", x, net.constant([net.pick((1, 1, 2, 3)) for _ in range(net.rank(x))]))
    opened = net.open_axes(x)
    sizes = [net.pick((1, 2)) if n not in opened and d == 1 else 1 for n, d in enumerate(net.shape(x))]
    return net.add("Expand", x, net.constant([2, *sizes] if net.chance(0.4) else sizes))


def product(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    require(net.rank(x) - 1 not in net.open_axes(x))
    weights = net.numbers(net.shape(x)[-1], net.pick((1, 3, 4))) / np.float32(net.shape(x)[-1] ** 0.5)
    if net.rank(x) == 2 and net.chance(0.5):
        turned = net.pick((0, 1))
        bias = net.constant(net.numbers(*net.pick(((weights.shape[1],), (1,), (1, weights.shape[1])))))
        given = net.constant(np.ascontiguousarray(weights.T) if turned else weights)
        return net.add("Gemm", x, given, bias, transB=turned, alpha=net.pick((None, 0.5)))
    if net.chance(0.15):
        weights = weights[:, 0]
    if net.opset >= 12 and weights.ndim == 2 and net.chance(0.2):
        labels = "abcde"[: net.rank(x)]
        return net.add("Einsum", x, net.constant(weights), equation=f"{labels},{labels[-1]}z->{labels[:-1]}z")
    return net.add("MatMul", x, net.constant(weights))


def convolution(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    rank = net.rank(x, 3) - 2
    require(rank <= 2 and 1 not in net.open_axes(x))
    channels, turned = net.shape(x)[1], net.chance(0.3)
    group = net.pick((1, 1, channels))
    count = int(net.pick((1, 2))) * (1 if turned else group)
    kernel = [net.pick((1, 2, 3)) for _ in range(rank)]
    own = [channels, count] if turned else [count, channels // group]
    pads = [net.pick((0, 1, 2)) for _ in range(2 * rank)]
    same = net.pick(("SAME_UPPER", "SAME_LOWER")) if not turned and net.chance(0.2) else None
    many = ("strides", 2), ("dilations", 2)
    steps = {k: [net.pick((1, 1, n)) for _ in kernel] if net.chance(0.4) and not same else None for k, n in many}
    attributes = {"group": group, "kernel_shape": kernel, "auto_pad": same, **steps}
    attributes["pads"] = pads if net.chance(0.6) and not same else None
    weights = [net.constant(net.numbers(*own, *kernel) / 2)]
    if net.chance(0.5):
        weights.append(net.constant(net.numbers(count * group if turned else count)))
    return net.add("ConvTranspose" if turned else "Conv", x, *weights, **attributes)


def pool(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    rank, kind = net.rank(x, 3) - 2, net.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if kind.startswith("Global"):
        return net.add(kind, x)
    kernel = [net.pick((1, 2, 3)) for _ in range(rank)]
    require(all(k <= size for k, size in zip(kernel, net.shape(x)[2:], strict=True)))
    pads = [int(net.rng.integers((k + 1) // 2)) for k in kernel] * 2 if net.chance(0.5) else None
    strides = [net.pick((1, 2)) for _ in kernel] if net.chance(0.6) else None
    ceil = 1 if net.opset >= 10 and net.chance(0.3) else None
    counted = 1 if kind == "AveragePool" and net.chance(0.4) else None
    edges: dict[str, Any] = {"ceil_mode": ceil, "count_include_pad": counted}
    return net.add(kind, x, kernel_shape=kernel, pads=pads, strides=strides, **edges)


def norm(net: RandomNet, x: str) -> str:
    x, kind = net.floats(x), net.pick(("LayerNormalization", "InstanceNormalization", "BatchNormalization"))
    axis = net.rank(x) - 1 if kind[0] == "L" else min(1, net.rank(x) - 1)
    require(axis not in net.open_axes(x))
    of_channels = [net.constant(net.numbers(net.shape(x)[axis])) for _ in "ab"]
    if kind[0] == "B":
        variance = np.abs(net.numbers(net.shape(x)[axis])) + np.float32(0.5)
        of_channels += [net.constant(net.numbers(net.shape(x)[axis])), net.constant(variance)]
    return net.add(kind, x, *of_channels, axis=-1 if kind[0] == "L" else None)


def chosen(net: RandomNet, x: str) -> str:
    x, number = net.floats(x), net.constant(np.float32(net.pick((0, 0.3))))
    found = net.add(net.pick(("Greater", "Less", "GreaterOrEqual", "LessOrEqual")), x, number)
    if net.chance(0.3):
        found = net.add(net.pick(("And", "Or", "Xor")), found, net.add("Not", net.add("Less", x, number)))
    if net.chance(0.5):
        other = net.constant(np.float32(net.pick((0, -1e9, 1))))
        return net.add("Where", found, *((x, other) if net.chance(0.5) else (other, x)))
    return net.add("Cast", found, to=net.pick((FLOAT, FLOAT, TensorProto.INT64, TensorProto.INT32)))


def summed(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    if net.chance(0.4):
        diagonal = [net.constant(net.pick((0, 1, -1)))] if net.chance(0.5) else []
        return net.add("Trilu", x, *diagonal, upper=net.pick((0, 1)))
    axis = net.constant(net.axis(x) if net.chance(0.6) else [net.axis(x)])
    return net.add("CumSum", x, axis, exclusive=net.pick((None, 1)), reverse=net.pick((None, 1)))


def resized(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    scales = [1.0, 1.0, *(net.pick((1, 2, 2, 0.5, 1.5)) for _ in range(net.rank(x, 3) - 2))]
    mode = net.pick(("nearest", "linear", "nearest", "cubic"))
    places = net.pick(("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"))
    nearest = net.pick(("floor", "ceil", "round_prefer_floor")) if mode == "nearest" else None
    roi = net.constant(np.zeros(0, np.float32)) if net.opset < 13 else ""
    given = {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": nearest}
    return net.add("Resize", x, roi, net.constant(scales, np.float32), **given)


def indexed(net: RandomNet, x: str) -> str:
    x, kind = net.floats(x), net.pick(("GatherND", "GatherElements", "ScatterND", "ScatterElements"))
    require(net.opset >= 11)
    if kind.endswith("ND"):
        rows = net.pick(([[0], [-1]], [[0]], [[0, 0], [-1, 0]]))
        if kind == "GatherND":
            return net.add(kind, x, net.constant(rows))
        require(len(rows[0]) == 1 and not [n for n in net.open_axes(x) if n > 0])
        return net.add(kind, x, net.constant(rows), net.constant(net.numbers(len(rows), *net.shape(x)[1:])))
    axis, sizes = net.axis(x), net.sizes(x)
    most = sizes[axis]
    rows = net.rng.integers(-1 if kind[0] == "G" and net.chance(0.5) else 0, most, sizes)
    updates = [net.constant(net.numbers(*sizes))] if kind[0] == "S" else []
    return net.add(kind, x, net.constant(rows), *updates, axis=axis)


def by_size(net: RandomNet, x: str) -> str:
    x = net.floats(x)
    axis = int(net.rng.integers(net.rank(x)))
    size = net.add("Gather", net.add("Shape", x), net.constant(axis if net.chance(0.5) else [axis]), axis=0)
    if net.chance(0.6):
        return net.add(net.pick(("Div", "Mul")), x, net.add("Cast", size, to=FLOAT))
    require(axis == net.rank(x) - 1 and net.values[size][0].ndim == 0)
    places = net.add("Range", net.constant(0), size, net.constant(1))
    return net.add(net.pick(("Add", "Mul")), x, net.add("Cast", places, to=FLOAT))


STEPS: tuple[Step, ...] = (
    *(function, function, root, sum_with_constant, sum_with_constant, with_itself, reduction, reduction, largest),
    *(one_hot, rows_of_one, rows_of_one, cut, cut, cut, gathered, gathered, padded, moved, moved, moved, reshaped),
    *(reshaped, joined, parted, repeated, product, product, convolution, convolution, pool, norm, chosen, summed),
    *(resized, indexed, indexed, by_size),
)
