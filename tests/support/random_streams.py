"""Random nets whose frames are shifted and cut, or whose graph depends on the length, and a judge of their streams.

`chain(seed)` is a row of operators over [batch, channels, time] = [2, 3, time] that add and drop frames;
`rates(seed)` changes their number, counts and sums them; `by_length(seed)` calculates with it and uses the result.
`judged` runs the stream in chunks beside onnxruntime on the whole, at lengths that no analysis was told of.
"""

import random as randoms
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from cases import Array, Arrays
from onnx import TensorProto, helper, numpy_helper
from stream_models import initial_states, plan_of, random, recurrent, streamed

import rnn_lowering as rl

LENGTHS = (7, 19, 50, 210, 310, 1000)
CHUNKS = ((1,), (5,), (3, 1, 4, 7, 2))
LONG = ((64, 3, 17),)
CHANNELS, BATCH, FAR = 3, 2, 2**63 - 1


class Graph:
    """A graph that grows at its end."""

    def __init__(self, seed: int) -> None:
        self.rng = randoms.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.frames = ["x"]
        self.opset = self.rng.choice((13, 17, 18))
        self.stride = 1

    @property
    def last(self) -> str:
        return self.frames[-1]

    def name(self) -> str:
        return f"v{len(self.nodes)}_{len(self.tensors)}"

    def constant(self, held: Any, dtype: Any = np.int64) -> str:
        name = self.name()
        self.tensors.append(numpy_helper.from_array(np.array(held, dtype), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def put(self, name: str) -> None:
        self.frames.append(name)

    def slice(self, value: str, first: Any, last: Any, axis: int = 2) -> str:
        bounds = [b if isinstance(b, str) else self.constant([b]) for b in (first, last)]
        return self.node("Slice", value, *bounds, self.constant([axis]))

    def size(self, axis: int, value: str = "x") -> str:
        """The size of an axis, a scalar or a vector of one."""
        shape = self.node("Shape", value)
        if self.rng.random() < 0.5:
            return self.vector(self.node("Gather", shape, self.constant(axis), axis=0))
        return self.node("Slice", shape, self.constant([axis]), self.constant([axis + 1]), self.constant([0]))

    def vector(self, value: str) -> str:
        return self.node("Unsqueeze", value, self.constant([0]))

    def model(self) -> onnx.ModelProto:
        dims: dict[str, list[int | str] | None] = {"x": [BATCH, CHANNELS, "time"], "y": None}
        self.nodes.append(helper.make_node("Identity", [self.last], ["y"]))
        infos = [helper.make_tensor_value_info(k, TensorProto.FLOAT, d) for k, d in dims.items()]
        graph = helper.make_graph(self.nodes, "fuzz", infos[:1], infos[1:], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


Step = Callable[[Graph], None]


def _pad(g: Graph) -> None:
    left, right = g.rng.choice(
        ((1, 0), (2, 0), (1, -1), (2, -2), (0, 1), (0, 2), (1, 1), (0, -1), (3, -1), (-1, 1))
    )
    fill = [g.constant(0.5, np.float32)] if g.rng.random() < 0.3 else []
    g.put(g.node("Pad", g.last, g.constant([0, 0, left, 0, 0, right]), *fill))


def _conv(g: Graph) -> None:
    kernel, dilation = g.rng.choice((1, 2, 3)), g.rng.choice((1, 1, 2))
    span = (kernel - 1) * dilation
    middle = [span // 2, span - span // 2]
    pads = g.rng.choice(([span, 0], [span, 0], [span, span], [0, 0], middle, [0, span], [span + 1, 0]))
    stride = 2 if g.rng.random() < 0.08 and g.stride == 1 else 1
    g.stride *= stride
    weights = g.constant(random((CHANNELS, CHANNELS, kernel), g.rng.randrange(99), 0.6), np.float32)
    g.put(g.node("Conv", g.last, weights, pads=pads, dilations=[dilation], strides=[stride]))


def _transposed(g: Graph) -> None:
    kernel = g.rng.choice((1, 2, 3))
    pads = g.rng.choice(([0, 0], [0, kernel - 1], [kernel - 1, 0], [kernel - 1, kernel - 1]))
    weights = g.constant(random((CHANNELS, CHANNELS, kernel), g.rng.randrange(99), 0.6), np.float32)
    g.put(g.node("ConvTranspose", g.last, weights, pads=pads))


def _pool(g: Graph) -> None:
    kernel = g.rng.choice((2, 3))
    pads = g.rng.choice(([kernel - 1, 0], [kernel - 1, kernel - 1], [0, kernel - 1]))
    if g.rng.random() < 0.5:
        g.put(g.node("MaxPool", g.last, kernel_shape=[kernel], pads=pads, strides=[1]))
    else:
        g.put(g.node("AveragePool", g.last, kernel_shape=[kernel], pads=pads, strides=[1], count_include_pad=1))


def _cut(g: Graph) -> None:
    bounds = ((0, -1), (0, -2), (1, FAR), (2, FAR), (1, -1), (-2, FAR), (0, -3), (0, 200), (0, FAR), (-200, FAR))
    g.put(g.slice(g.last, *g.rng.choice(bounds)))


def _zeros(g: Graph, count: int) -> str:
    """Frames of zeros, in the spellings of exporters."""
    kind = g.rng.randrange(4)
    if kind == 0:
        return g.constant(np.zeros((BATCH, CHANNELS, count)), np.float32)
    if kind == 1:
        shape = g.node("Shape", g.slice(g.last, 0, count))
        return g.node("ConstantOfShape", shape)
    sizes = g.node("Concat", g.size(0), g.constant([CHANNELS]), g.constant([count]), axis=0)
    if kind == 2:
        return g.node("Expand", g.constant(np.zeros((1, 1, 1)), np.float32), sizes)
    return g.node("ConstantOfShape", sizes, value=helper.make_tensor("", TensorProto.FLOAT, [1], [0.25]))


def _concat(g: Graph) -> None:
    count, zeros = g.rng.choice((1, 2)), None
    zeros = _zeros(g, count)
    kind = g.rng.randrange(4)
    if kind == 0:
        g.put(g.node("Concat", g.last, zeros, axis=2))
    elif kind == 1:
        g.put(g.node("Concat", zeros, g.last, axis=2))
    else:
        g.put(g.node("Concat", zeros, g.slice(g.last, 0, -g.rng.choice((count, count, 1, 2))), axis=2))


def _shift(g: Graph) -> None:
    count = g.rng.choice((1, 1, 2))
    short = g.slice(g.last, 0, -count)
    if g.rng.random() < 0.3:
        short = g.node("Tanh", short)
    g.put(g.node("Pad", short, g.constant([0, 0, count, 0, 0, 0])))


def _skip(g: Graph) -> None:
    g.put(g.node(g.rng.choice(("Add", "Mul", "Sub")), g.last, g.rng.choice(g.frames)))


def _activation(g: Graph) -> None:
    g.put(g.node(g.rng.choice(("Relu", "Tanh", "Neg")), g.last))


def _gru(g: Graph) -> None:
    held = recurrent("GRU", CHANNELS, CHANNELS, seed=g.rng.randrange(99))
    weights = [g.constant(array, np.float32) for array in held.values()]
    turned = g.node("Transpose", g.last, perm=[2, 0, 1])
    y = g.node("GRU", turned, *weights, hidden_size=CHANNELS)
    squeezed = g.node("Squeeze", y, g.constant([1]))
    g.put(g.node("Transpose", squeezed, perm=[1, 2, 0]))


def _strided(g: Graph) -> None:
    """Several frames become one."""
    stride = g.rng.choice((2, 2, 3))
    kernel, kind = g.rng.choice((stride, stride + 1, 2 * stride, 1)), g.rng.randrange(4)
    pads = g.rng.choice(([max(kernel - stride, 0), 0], [kernel - 1, 0], [0, 0], [kernel - 1, kernel - 1]))
    if kind == 0:
        weights = g.constant(random((CHANNELS, CHANNELS, kernel), g.rng.randrange(99), 0.6), np.float32)
        g.put(g.node("Conv", g.last, weights, pads=pads, strides=[stride]))
    elif kind == 1:
        pool = g.rng.choice(("MaxPool", "AveragePool"))
        more = {"count_include_pad": 1} if pool == "AveragePool" else {}
        pads = [min(pad, kernel - 1) for pad in pads]
        g.put(g.node(pool, g.last, kernel_shape=[kernel], pads=pads, strides=[stride], **more))
    elif kind == 2:
        bounds = [
            g.constant([n]) for n in (g.rng.choice((0, 0, 1, stride)), g.rng.choice((FAR, FAR, -1)), 2, stride)
        ]
        g.put(g.node("Slice", g.last, *bounds))
    else:  # joined side by side, or the mean of them
        turned = g.node("Transpose", g.last, perm=[0, 2, 1])
        stacked = g.node("Reshape", turned, g.constant([BATCH, -1, CHANNELS * stride]))
        parts = g.node("Reshape", stacked, g.constant([BATCH, -1, stride, CHANNELS]))
        axes: dict[str, Any] = {"axes": [2]} if g.opset < 18 else {}
        inputs = [parts] if g.opset < 18 else [parts, g.constant([2])]
        mean = g.node("ReduceMean", *inputs, keepdims=0, **axes)
        g.put(g.node("Transpose", mean, perm=[0, 2, 1]))


def _upsampled(g: Graph) -> None:
    """One frame becomes several."""
    times, kind = g.rng.choice((2, 2, 3)), g.rng.randrange(4)
    if kind == 0:
        scales = g.constant([1, 1, times], np.float32)
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        g.put(g.node("Resize", g.last, "", scales, **modes))
    elif kind == 1:
        kernel = g.rng.choice((times, 2 * times, times + 1, 1, 3))
        right = g.rng.choice((0, 0, max(kernel - times, 0)))
        left = g.rng.choice((0, 0, 0, 1)) if kernel > 1 else 0
        weights = g.constant(random((CHANNELS, CHANNELS, kernel), g.rng.randrange(99), 0.6), np.float32)
        padding = g.rng.choice((0, 0, 1))
        made = g.node(
            "ConvTranspose", g.last, weights, strides=[times], pads=[left, right], output_padding=[padding]
        )
        g.put(made)
        if g.rng.random() < 0.7 and kernel + padding > times + left + right:
            g.put(g.slice(g.last, 0, -(kernel + padding - times - left - right)))
    elif kind == 2:  # a pixel shuffle
        weights = g.constant(random((CHANNELS * times, CHANNELS, 1), g.rng.randrange(99), 0.6), np.float32)
        wide = g.node("Transpose", g.node("Conv", g.last, weights), perm=[0, 2, 1])
        g.put(g.node("Transpose", g.node("Reshape", wide, g.constant([BATCH, -1, CHANNELS])), perm=[0, 2, 1]))
    else:  # repeat_interleave
        column = g.node("Unsqueeze", g.last, g.constant([3]))
        tiled = g.node("Tile", column, g.constant([1, 1, 1, times]))
        g.put(g.node("Reshape", tiled, g.constant([BATCH, CHANNELS, -1])))


def _overlapped(g: Graph) -> None:
    """Overlap-add by Col2Im."""
    if g.opset < 18:
        return
    stride = g.rng.choice((1, 2, 3))
    kernel = stride + g.rng.choice((0, 1, stride))
    weights = g.constant(random((CHANNELS * kernel, CHANNELS, 1), g.rng.randrange(99), 0.6), np.float32)
    columns = g.node("Conv", g.last, weights)
    steps = g.node("Mul", g.node("Sub", g.size(2, columns), g.constant([1])), g.constant([stride]))
    image = g.node("Concat", g.constant([1]), g.node("Add", steps, g.constant([kernel])), axis=0)
    added = g.node("Col2Im", columns, image, g.constant([1, kernel]), strides=[1, stride])
    g.put(g.node("Squeeze", added, g.constant([2])))
    if kernel > stride and g.rng.random() < 0.8:
        g.put(g.slice(g.last, 0, stride - kernel))


def _summed(g: Graph) -> None:
    total = g.node("CumSum", g.last, g.constant(2), exclusive=g.rng.choice((0, 0, 1)))
    g.put(g.node("Mul", total, g.constant(0.01, np.float32)))  # so that no node magnifies what was rounded


def _counted(g: Graph) -> None:
    """The number of each frame, or a row of a table, is added."""
    value = g.rng.choice((g.last, g.last, "x"))
    size = g.node("Squeeze", g.size(2, value), g.constant([0]))
    first, step = g.rng.choice((0, 0, 1)), g.rng.choice((1, 1, 2))
    limit = g.node("Add", g.node("Mul", size, g.constant(step)), g.constant(first))
    counted = g.node("Range", g.constant(first), limit, g.constant(step))
    if g.rng.random() < 0.4:
        counted = g.node("Unsqueeze", g.node("Add", counted, g.constant(2)), g.constant([0]))
    if g.rng.random() < 0.5:
        table = g.constant(random((9000,), g.rng.randrange(99)), np.float32)
        g.put(g.node("Add", g.last, g.node("Gather", table, counted)))
    else:
        scaled = g.node("Mul", g.node("Cast", counted, to=1), g.constant(0.01, np.float32))
        g.put(g.node("Add", g.last, g.node("Sin", scaled)))


def _windows(g: Graph) -> None:
    """Frames around each, picked by a table."""
    count, shift = g.rng.choice((2, 3)), g.rng.choice((0, 0, 1))
    padded = g.node("Pad", g.last, g.constant([0, 0, count - 1 + shift, 0, 0, g.rng.choice((0, 0, 1))]))
    size = g.node("Squeeze", g.size(2, padded), g.constant([0]))
    limit = g.node("Sub", size, g.constant(count - 1 + shift))
    places = g.node("Unsqueeze", g.node("Range", g.constant(0), limit, g.constant(1)), g.constant([0]))
    offsets = np.arange(count)[:, None] + g.rng.choice((0, shift))
    picked = g.node("Gather", padded, g.node("Add", places, g.constant(offsets)), axis=2)
    g.put(g.node("Squeeze", g.slice(picked, 0, 1, 2), g.constant([2])))
    g.put(g.node("Add", g.last, g.node("Squeeze", g.slice(picked, -1, FAR, 2), g.constant([2]))))


def _repeated(g: Graph) -> None:
    """The first frame in front of the others."""
    count = g.rng.choice((1, 1, 2))
    if g.rng.random() < 0.5:
        pads = g.constant([0, 0, count, 0, 0, g.rng.choice((0, 0, 1))])
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


def chain(seed: int) -> onnx.ModelProto:
    """A row of two to six operators that add, drop and shift frames."""
    g = Graph(seed)
    for _ in range(g.rng.randint(2, 6)):
        g.rng.choice(STEPS)(g)
    return g.model()


def rates(seed: int) -> onnx.ModelProto:
    """A row of two to five operators that change the rate of frames, count or sum them."""
    g = Graph(seed)
    for _ in range(g.rng.randint(2, 5)):
        g.rng.choice(RATES)(g)
    return g.model()


def pools(seed: int) -> onnx.ModelProto:
    """A row of up to three operators, and a pooling of all frames, of which a few things are calculated."""
    g = Graph(seed)
    for _ in range(g.rng.randint(0, 3)):
        g.rng.choice((*STEPS, _gru, _activation, _skip))(g)
    axes = g.constant([2])
    pooled = (
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceSum",
        "ReduceLogSumExp",
        "ReduceL2",
        "variance",
        "attention",
    )
    kind = g.rng.choice(pooled)
    keeps = g.rng.randrange(2)
    g.opset = 18
    if kind == "variance":
        apart = g.node("Sub", g.last, g.node("ReduceMean", g.last, axes))
        g.put(g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=keeps))
    elif kind == "attention":
        scores = g.node("Mul", g.rng.choice(g.frames), g.constant([3.0], np.float32))
        weighed = g.node("Mul", g.node("Softmax", scores, axis=2), g.last)
        g.put(g.node("ReduceSum", weighed, axes, keepdims=keeps))
    else:
        g.put(g.node(kind, g.last, axes, keepdims=keeps))
    if g.rng.random() < 0.4:
        g.put(g.node("Tanh", g.last))
    if g.rng.random() < 0.2:
        g.put(g.node("Sub", g.rng.choice(g.frames), g.last))
    return g.model()


def _number(g: Graph) -> str:
    """A number that is calculated from the number of frames, a vector of one."""
    found = g.size(2, g.rng.choice(g.frames))
    for _ in range(g.rng.choice((0, 1, 1, 2, 3))):
        c = g.rng.choice((1, 2, 3, 4, 8, 20, 96, 200, 300))
        kind = g.rng.choice(
            ("Mod", "Div", "Min", "Max", "Sub", "Add", "Mul", "Neg", "Abs", "back", "float", "where")
        )
        if kind in ("Neg", "Abs"):
            found = g.node(kind, found)
        elif kind == "back":
            found = g.node("Sub", g.constant([c]), found)
        elif kind == "float":
            rounded = g.node(g.rng.choice(("Floor", "Sqrt", "Ceil")), g.node("Cast", found, to=1))
            found = g.node("Cast", rounded, to=7)
        elif kind == "where":
            found = g.node("Where", g.node("Greater", found, g.constant([c])), found, g.constant([c]))
        else:
            found = g.node(kind, found, g.constant([c]))
    return found


def _used(g: Graph, number: str) -> None:
    """Use it: as a bound, a size, an amount, a condition or a number."""
    kind = g.rng.randrange(9)
    if kind == 0:
        g.put(g.slice(g.last, 0, number))
    elif kind == 1:
        g.put(g.slice(g.last, number, FAR))
    elif kind == 2:
        pads = g.node("Concat", g.constant([0, 0]), number, g.constant([0, 0, 0]), axis=0)
        g.put(g.node("Pad", g.last, pads))
    elif kind == 3:
        pads = g.node("Concat", g.constant([0, 0, 0, 0, 0]), number, axis=0)
        cut = g.node("Pad", g.last, pads)
        g.put(g.slice(cut, 0, g.size(2)))
    elif kind == 4:
        target = g.node("Concat", g.constant([BATCH, CHANNELS]), number, axis=0)
        g.put(g.node("Reshape", g.last, target))
    elif kind == 5:
        sizes = g.node("Concat", g.constant([BATCH, CHANNELS]), number, axis=0)
        filled = g.node("ConstantOfShape", sizes, value=helper.make_tensor("", TensorProto.FLOAT, [1], [0.5]))
        g.put(g.node("Add", g.last, filled))
    elif kind == 6:
        g.put(g.node("Mul", g.last, g.node("Cast", number, to=1)))
    elif kind == 7:
        _branch(g, number)
    else:
        target = g.node("Concat", g.constant([BATCH, -1]), number, axis=0)
        back = g.constant([BATCH, CHANNELS, -1])
        g.put(g.node("Reshape", g.node("Neg", g.node("Reshape", g.last, target)), back))


def _branch(g: Graph, number: str) -> None:
    """An If on a comparison with a constant."""
    compared = g.node(
        g.rng.choice(("Greater", "Less", "Equal")), number, g.constant([g.rng.choice((0, 3, 20, 300))])
    )
    condition = g.node("Squeeze", compared, g.constant([0]))
    bodies = {}
    for branch, op in (("then_branch", "Neg"), ("else_branch", "Tanh")):
        out = g.name() + branch
        info = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        bodies[branch] = helper.make_graph([helper.make_node(op, [g.last], [out])], branch, [], [info])
    g.put(g.node("If", condition, **bodies))


def by_length(seed: int) -> onnx.ModelProto:
    """A net in which a number that depends on the length is used."""
    g = Graph(seed)
    steps = (_activation, _conv, _shift, _gru)
    for _ in range(g.rng.randint(0, 1)):
        g.rng.choice(steps)(g)
    _used(g, _number(g))
    for _ in range(g.rng.randint(0, 2)):
        g.rng.choice(steps)(g)
    return g.model()


def judged(model: onnx.ModelProto) -> str:
    """Return "refused", "accepted" or what is wrong with the stream that is accepted, with any delay."""
    try:
        stepped = streamed(model, "time", delay=True)
    except rl.RnnLoweringError as error:
        return f"internal: {error}" if "please report" in str(error) else "refused"
    try:
        whole, chunks = _session(model), _session(stepped)
    except Exception as error:  # onnxruntime has no common error
        return f"cannot be loaded: {error}"
    found = [_at_length(whole, chunks, plan_of(stepped), length) for length in LENGTHS]
    for frames in (1, 3):  # units in each call
        fixed = streamed(model, {"time": frames * plan_of(stepped)["unit"]}, delay=True)
        found.append(_at_length(whole, _session(fixed), plan_of(fixed), 50))
    wrong = next((text for text in found if text), "")
    return wrong or ("accepted" if "" in found else "refused")


def _at_length(whole: Any, chunks: Any, plan: Any, length: int) -> str | None:
    """Return what is wrong, "" for nothing; None where the whole cannot have this length.

    The sequence is followed by zeros, for as many frames as the stream is late: all that it gives must be what the
    whole gives of both, and what comes before the delay what the whole gives of the sequence alone.
    """
    unit, axis = plan["frames"] or plan["unit"], plan["outputs"]["y"]
    rate, lag, short = Fraction(plan["rates"].get("y", 1)), plan["delay"].get("y", 0), plan["short"].get("y", 0)
    frames = -(-length // unit) * unit
    after = ceil(lag / rate / unit) * unit
    feed = np.concatenate(
        [random((BATCH, CHANNELS, frames), length), np.zeros((BATCH, CHANNELS, after), np.float32)], 2
    )
    try:
        expected, ended = (whole.run(None, {"x": given})[0] for given in (feed, feed[:, :, :frames]))
    except Exception:
        return None
    count = int(frames * rate) - short
    if axis is not None:
        if ended.shape[axis] != count:
            return f"T = {length}: {ended.shape}, not {count} frames"
        expected = expected.take(range(count), axis)
        sure = range(max(count + short - lag, 0))
        if _apart(ended.take(sure, axis), expected.take(sure, axis)):
            return f"T = {length}: the whole sees what is behind"
    for sizes in ((1,),) if plan["frames"] else CHUNKS if length <= 50 else LONG:
        try:
            got = _chunked(chunks, plan, feed, [unit * size for size in sizes])
        except Exception as error:  # onnxruntime has no common error
            return f"T = {length}, chunks of {sizes}: {error}"
        got = got if axis is None else got.take(range(lag, lag + count), axis, mode="clip")
        if got.shape != expected.shape or _apart(got, expected):
            return f"T = {length}, chunks of {sizes}: {got.shape}, not {expected.shape}, or other numbers"
    return ""


def _apart(first: Array, second: Array) -> bool:
    scale = max(1.0, float(np.abs(second).max(initial=0)))
    return not np.allclose(first, second, rtol=0, atol=1e-4 * scale)


def _session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _chunked(session: Any, plan: Any, feed: Array, sizes: Sequence[int]) -> Array:
    names = [o.name for o in session.get_outputs()]
    states: Arrays = initial_states(plan, {})
    parts, start, turn = [], 0, 0
    results: dict[str, Array] = {}
    while start < feed.shape[2]:
        count = min(sizes[turn % len(sizes)], feed.shape[2] - start)
        chunk = {"x": feed[:, :, start : start + count], **states}
        results = dict(zip(names, session.run(None, chunk), strict=True))
        states = {s["input"]: results[s["output"]] for s in plan["states"]}
        parts.append(results["y"])
        start, turn = start + count, turn + 1
    axis = plan["outputs"]["y"]
    return parts[-1] if axis is None else np.concatenate(parts, axis)


NETS = {make.__name__: make for make in (chain, by_length, rates, pools)}
