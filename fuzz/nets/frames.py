"""Random nets whose frames are shifted and cut, or whose graph depends on the length.

`chain(rng)` is a row of operators over [batch, channels, time] = [2, 3, time] that add and drop frames;
`rates(rng)` changes their number, counts and sums them; `pools(rng)` pools them; `by_length(rng)` calculates with
their number and uses the result.
"""

import random as randoms
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from fuzz.nets.net import FAR, Net

CHANNELS, BATCH = 3, 2


class Chain(Net):
    """A graph that grows at its end.

    Attributes:
        frames: All values so far that have frames.
    """

    def __init__(self, rng: randoms.Random) -> None:
        super().__init__(rng, rng.choice((13, 17, 18)), rng.choice(("float32",) * 12 + ("float16", "float64")))
        self.frames = [self.floating("x", [BATCH, CHANNELS, "time"])]
        self.stride = 1

    @property
    def last(self) -> str:
        return self.frames[-1]

    def put(self, name: str) -> None:
        self.frames.append(name)

    def then(self, op_type: str, *inputs: Any, **given: Any) -> None:
        """Let a node of the last value be the last."""
        self.put(self.node(op_type, self.last, *inputs, **given))

    def length(self, value: str) -> str:
        """The number of frames, a scalar."""
        return self.node("Squeeze", self.size(value, 2), [0])

    def ended(self) -> "Chain":
        self.node("Identity", self.last, outputs=["y"])
        self.outputs_of("y")
        return self


Step = Callable[[Chain], None]


def _pad(g: Chain) -> None:
    left, right = g.rng.choice(
        ((1, 0), (2, 0), (1, -1), (2, -2), (0, 1), (0, 2), (1, 1), (0, -1), (3, -1), (-1, 1))
    )
    fill = [0.5] if g.rng.random() < 0.3 else []
    g.then("Pad", [0, 0, left, 0, 0, right], *fill)


def _conv(g: Chain) -> None:
    kernel, dilation = g.rng.choice((1, 2, 3)), g.rng.choice((1, 1, 2))
    span = (kernel - 1) * dilation
    middle = [span // 2, span - span // 2]
    pads = g.rng.choice(([span, 0], [span, 0], [span, span], [0, 0], middle, [0, span], [span + 1, 0]))
    stride = 2 if g.rng.random() < 0.08 and g.stride == 1 else 1
    g.stride *= stride
    g.then("Conv", g.weights(CHANNELS, CHANNELS, kernel), pads=pads, dilations=[dilation], strides=[stride])


def _transposed(g: Chain) -> None:
    kernel = g.rng.choice((1, 2, 3))
    pads = g.rng.choice(([0, 0], [0, kernel - 1], [kernel - 1, 0], [kernel - 1, kernel - 1]))
    g.then("ConvTranspose", g.weights(CHANNELS, CHANNELS, kernel), pads=pads)


def _pool(g: Chain) -> None:
    kernel = g.rng.choice((2, 3))
    pads = g.rng.choice(([kernel - 1, 0], [kernel - 1, kernel - 1], [0, kernel - 1]))
    mean: dict[str, Any] = {"count_include_pad": 1}
    op_type, more = ("MaxPool", {}) if g.rng.random() < 0.5 else ("AveragePool", mean)
    g.then(op_type, kernel_shape=[kernel], pads=pads, strides=[1], **more)


def _cut(g: Chain) -> None:
    bounds = ((0, -1), (0, -2), (1, FAR), (2, FAR), (1, -1), (-2, FAR), (0, -3), (0, 200), (0, FAR), (-200, FAR))
    g.put(g.slice(g.last, *g.rng.choice(bounds)))


def _zeros(g: Chain, count: int) -> str:
    """Frames of zeros, in the spellings of exporters."""
    kind = g.rng.randrange(4)
    if kind == 0:
        return g.constant(np.zeros((BATCH, CHANNELS, count), np.float32))
    if kind == 1:
        return g.node("ConstantOfShape", g.node("Shape", g.slice(g.last, 0, count)))
    sizes = g.node("Concat", g.size("x", 0), [CHANNELS], [count], axis=0)
    if kind == 2:
        return g.node("Expand", np.zeros((1, 1, 1), np.float32), sizes)
    return g.node("ConstantOfShape", sizes, value=helper.make_tensor("", g.kind, [1], [0.25]))


def _concat(g: Chain) -> None:
    count = g.rng.choice((1, 2))
    zeros, kind = _zeros(g, count), g.rng.randrange(4)
    cut = g.last if kind < 2 else g.slice(g.last, 0, -g.rng.choice((count, count, 1, 2)))
    g.put(g.node("Concat", *((cut, zeros) if kind == 0 else (zeros, cut)), axis=2))


def _shift(g: Chain) -> None:
    count = g.rng.choice((1, 1, 2))
    short = g.slice(g.last, 0, -count)
    g.put(g.node("Pad", g.node("Tanh", short) if g.rng.random() < 0.3 else short, [0, 0, count, 0, 0, 0]))


def _skip(g: Chain) -> None:
    g.put(g.node(g.rng.choice(("Add", "Mul", "Sub")), g.last, g.rng.choice(g.frames)))


def _activation(g: Chain) -> None:
    g.put(g.node(g.rng.choice(("Relu", "Tanh", "Neg")), g.last))


def _gru(g: Chain) -> None:
    weights = g.recurrent("GRU", CHANNELS, CHANNELS)
    y = g.node("GRU", g.node("Transpose", g.last, perm=[2, 0, 1]), *weights, hidden_size=CHANNELS)
    g.put(g.node("Transpose", g.node("Squeeze", y, [1]), perm=[1, 2, 0]))


def _strided(g: Chain) -> None:
    """Several frames become one."""
    stride = g.rng.choice((2, 2, 3))
    kernel, kind = g.rng.choice((stride, stride + 1, 2 * stride, 1)), g.rng.randrange(4)
    pads = g.rng.choice(([max(kernel - stride, 0), 0], [kernel - 1, 0], [0, 0], [kernel - 1, kernel - 1]))
    if kind == 0:
        g.then("Conv", g.weights(CHANNELS, CHANNELS, kernel), pads=pads, strides=[stride])
    elif kind == 1:
        pool = g.rng.choice(("MaxPool", "AveragePool"))
        more = {"count_include_pad": 1} if pool == "AveragePool" else {}
        pads = [min(pad, kernel - 1) for pad in pads]
        g.put(g.node(pool, g.last, kernel_shape=[kernel], pads=pads, strides=[stride], **more))
    elif kind == 2:
        bounds = [[n] for n in (g.rng.choice((0, 0, 1, stride)), g.rng.choice((FAR, FAR, -1)), 2, stride)]
        g.then("Slice", *bounds)
    else:  # joined side by side, or the mean of them
        turned = g.node("Transpose", g.last, perm=[0, 2, 1])
        stacked = g.node("Reshape", turned, [BATCH, -1, CHANNELS * stride])
        parts = g.node("Reshape", stacked, [BATCH, -1, stride, CHANNELS])
        if g.opset < 18:
            mean = g.node("ReduceMean", parts, keepdims=0, axes=[2])
        else:
            mean = g.node("ReduceMean", parts, [2], keepdims=0)
        g.put(g.node("Transpose", mean, perm=[0, 2, 1]))


def _upsampled(g: Chain) -> None:
    """One frame becomes several."""
    times, kind = g.rng.choice((2, 2, 3)), g.rng.randrange(4)
    if kind == 0:
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        g.then("Resize", "", g.constant([1, 1, times], np.float32), **modes)
    elif kind == 1:
        kernel = g.rng.choice((times, 2 * times, times + 1, 1, 3))
        right = g.rng.choice((0, 0, max(kernel - times, 0)))
        left = g.rng.choice((0, 0, 0, 1)) if kernel > 1 else 0
        weights = g.weights(CHANNELS, CHANNELS, kernel)
        padding = g.rng.choice((0, 0, 1))
        more = {"output_padding": [padding]} if padding else {}
        g.then("ConvTranspose", weights, strides=[times], pads=[left, right], **more)
        if g.rng.random() < 0.7 and kernel + padding > times + left + right:
            g.put(g.slice(g.last, 0, -(kernel + padding - times - left - right)))
    elif kind == 2:  # a pixel shuffle
        weights = g.weights(CHANNELS * times, CHANNELS, 1)
        wide = g.node("Transpose", g.node("Conv", g.last, weights), perm=[0, 2, 1])
        g.put(g.node("Transpose", g.node("Reshape", wide, [BATCH, -1, CHANNELS]), perm=[0, 2, 1]))
    else:  # repeat_interleave
        tiled = g.node("Tile", g.node("Unsqueeze", g.last, [3]), [1, 1, 1, times])
        g.put(g.node("Reshape", tiled, [BATCH, CHANNELS, -1]))


def _overlapped(g: Chain) -> None:
    """Overlap-add by Col2Im."""
    if g.opset < 18:
        return
    stride = g.rng.choice((1, 2, 3))
    kernel = stride + g.rng.choice((0, 1, stride))
    columns = g.node("Conv", g.last, g.weights(CHANNELS * kernel, CHANNELS, 1))
    steps = g.node("Mul", g.node("Sub", g.size(columns, 2), [1]), [stride])
    image = g.node("Concat", [1], g.node("Add", steps, [kernel]), axis=0)
    added = g.node("Col2Im", columns, image, [1, kernel], strides=[1, stride])
    g.put(g.node("Squeeze", added, [2]))
    if kernel > stride and g.rng.random() < 0.8:
        g.put(g.slice(g.last, 0, stride - kernel))


def _summed(g: Chain) -> None:
    total = g.node("CumSum", g.last, 2, exclusive=g.rng.choice((0, 0, 1)))
    g.put(g.node("Mul", total, 0.01))  # so that no node magnifies what was rounded


def _counted(g: Chain) -> None:
    """The number of each frame, or a row of a table, is added."""
    size = g.length(g.rng.choice((g.last, g.last, "x")))
    first, step = g.rng.choice((0, 0, 1)), g.rng.choice((1, 1, 2))
    limit = g.node("Add", g.node("Mul", size, step), first)
    counted = g.node("Range", first, limit, step)
    if g.rng.random() < 0.4:
        counted = g.node("Unsqueeze", g.node("Add", counted, 2), [0])
    if g.rng.random() < 0.5:
        g.then("Add", g.node("Gather", g.numbers(9000), counted))
    else:
        g.then("Add", g.node("Sin", g.node("Mul", g.node("Cast", counted, to=g.kind), 0.01)))


def _windows(g: Chain) -> None:
    """Frames around each, picked by a table."""
    count, shift = g.rng.choice((2, 3)), g.rng.choice((0, 0, 1))
    padded = g.node("Pad", g.last, [0, 0, count - 1 + shift, 0, 0, g.rng.choice((0, 0, 1))])
    limit = g.node("Sub", g.length(padded), count - 1 + shift)
    places = g.node("Unsqueeze", g.node("Range", 0, limit, 1), [0])
    offsets = np.arange(count)[:, None] + g.rng.choice((0, shift))
    picked = g.node("Gather", padded, g.node("Add", places, offsets), axis=2)
    g.put(g.node("Squeeze", g.slice(picked, 0, 1, 2), [2]))
    g.then("Add", g.node("Squeeze", g.slice(picked, -1, FAR, 2), [2]))


def _repeated(g: Chain) -> None:
    """The first frame in front of the others."""
    count = g.rng.choice((1, 1, 2))
    if g.rng.random() < 0.5:
        pads = [0, 0, count, 0, 0, g.rng.choice((0, 0, 1))]
        g.put(g.slice(g.node("Pad", g.last, pads, mode="edge"), 0, -count))
    else:
        g.put(g.node("Concat", g.slice(g.last, 0, 1), g.slice(g.last, 0, g.rng.choice((-1, -2, FAR))), axis=2))


STEPS: tuple[Step, ...] = (
    *(_pad, _conv, _cut, _concat, _shift) * 2,
    *(_transposed, _pool, _skip, _activation, _gru),
)
RATES: tuple[Step, ...] = (
    *(_strided, _upsampled) * 3,
    *(_summed, _counted, _windows, _repeated, _overlapped) * 2,
    *(_pad, _conv, _cut, _shift, _skip, _activation, _gru),
)


def chain(rng: randoms.Random) -> Chain:
    """A row of two to six operators that add, drop and shift frames."""
    return _row(Chain(rng), 2, 6, STEPS).ended()


def rates(rng: randoms.Random) -> Chain:
    """A row of two to five operators that change the rate of frames, count or sum them."""
    return _row(Chain(rng), 2, 5, RATES).ended()


def _row(g: Chain, least: int, most: int, steps: Sequence[Step]) -> Chain:
    for _ in range(g.rng.randint(least, most)):
        g.rng.choice(steps)(g)
    return g


def pools(rng: randoms.Random) -> Chain:
    """A row of up to three operators, and a pooling of all frames, of which a few things are calculated."""
    g = _row(Chain(rng), 0, 3, (*STEPS, _gru, _activation, _skip))
    pooled = ("Mean", "Max", "Min", "Sum", "LogSumExp", "L2", "variance", "attention")
    kind, keeps, axes = g.rng.choice(pooled), g.rng.randrange(2), [2]
    g.opset = 18
    if kind == "variance":
        apart = g.node("Sub", g.last, g.node("ReduceMean", g.last, axes))
        g.put(g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=keeps))
    elif kind == "attention":
        scores = g.node("Mul", g.rng.choice(g.frames), np.array([3.0], np.float32))
        weighed = g.node("Mul", g.node("Softmax", scores, axis=2), g.last)
        g.put(g.node("ReduceSum", weighed, axes, keepdims=keeps))
    else:
        g.then(f"Reduce{kind}", axes, keepdims=keeps)
    if g.rng.random() < 0.4:
        g.then("Tanh")
    if g.rng.random() < 0.2:
        g.put(g.node("Sub", g.rng.choice(g.frames), g.last))
    return g.ended()


def _number(g: Chain) -> str:
    """A number that is calculated from the number of frames, a vector of one."""
    found = g.size(g.rng.choice(g.frames), 2)
    for _ in range(g.rng.choice((0, 1, 1, 2, 3))):
        c = g.rng.choice((1, 2, 3, 4, 8, 20, 96, 200, 300))
        kinds = ("Mod", "Div", "Min", "Max", "Sub", "Add", "Mul", "Neg", "Abs", "back", "float", "where")
        kind = g.rng.choice(kinds)
        if kind in ("Neg", "Abs"):
            found = g.node(kind, found)
        elif kind == "back":
            found = g.node("Sub", [c], found)
        elif kind == "float":
            rounded = g.node(g.rng.choice(("Floor", "Sqrt", "Ceil")), g.node("Cast", found, to=1))
            found = g.node("Cast", rounded, to=7)
        elif kind == "where":
            found = g.node("Where", g.node("Greater", found, [c]), found, [c])
        else:
            found = g.node(kind, found, [c])
    return found


def _used(g: Chain, number: str) -> None:
    """Use it: as a bound, a size, an amount, a condition or a number."""
    match g.rng.randrange(9):
        case 0:
            g.put(g.slice(g.last, 0, number))
        case 1:
            g.put(g.slice(g.last, number, FAR))
        case 2:
            g.then("Pad", g.node("Concat", [0, 0], number, [0, 0, 0], axis=0))
        case 3:
            padded = g.node("Pad", g.last, g.node("Concat", [0, 0, 0, 0, 0], number, axis=0))
            g.put(g.slice(padded, 0, g.size("x", 2)))
        case 4:
            g.then("Reshape", g.node("Concat", [BATCH, CHANNELS], number, axis=0))
        case 5:
            sizes = g.node("Concat", [BATCH, CHANNELS], number, axis=0)
            half = helper.make_tensor("", g.kind, [1], [0.5])
            g.then("Add", g.node("ConstantOfShape", sizes, value=half))
        case 6:
            g.then("Mul", g.node("Cast", number, to=g.kind))
        case 7:
            _branch(g, number)
        case _:
            g.then("Reshape", g.node("Concat", [BATCH, -1], number, axis=0))
            g.then("Neg")
            g.then("Reshape", [BATCH, CHANNELS, -1])


def _branch(g: Chain, number: str) -> None:
    """An If on a comparison with a constant."""
    compared = g.node(g.rng.choice(("Greater", "Less", "Equal")), number, [g.rng.choice((0, 3, 20, 300))])
    condition = g.node("Squeeze", compared, [0])
    bodies = {}
    for branch, op in (("then_branch", "Neg"), ("else_branch", "Tanh")):
        out = f"{branch}{len(g.nodes)}"
        info = helper.make_tensor_value_info(out, g.kind, None)
        bodies[branch] = helper.make_graph([helper.make_node(op, [g.last], [out])], branch, [], [info])
    g.put(g.node("If", condition, **bodies))


def by_length(rng: randoms.Random) -> Chain:
    """A net in which a number that depends on the length is used."""
    steps = (_activation, _conv, _shift, _gru)
    g = _row(Chain(rng), 0, 1, steps)
    _used(g, _number(g))
    return _row(g, 0, 2, steps).ended()


NETS = (chain, by_length, rates, pools)
