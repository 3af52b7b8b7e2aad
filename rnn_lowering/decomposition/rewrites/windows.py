"""Windows of convolutions and pools that runtimes compute wrongly.

MNN has no convolutions of volumes and no dilated pools. A convolution of volumes reads the planes of each of its
windows as channels of one plane. A dilated pool is a maximum of what its windows have along one axis, then along
the next. OpenCV takes each kernel of nine numbers for one of 3 rows and 3 columns, and reads beyond what it pads
for a kernel of one number. PyTorch gives an STFT signals of two axes, as onnxruntime takes them; ONNX has a third
one, of 1 or 2 channels. A Conv of one channel whose steps leave one column reads other memory in OpenVINO.

A pool along three axes, which MNN computes wrongly, is one along the last two axes, then one along the first: the
largest number of a box, or its mean, is that of its columns' own, also at the edges. For OpenCV, means count no
pads where there are none.

OpenCV pads both sides alike where a Conv or pool is to keep a size (auto_pad); MNN takes SAME_LOWER for the other,
counts such pads as none, and rounds none up that has no pads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.infer import follow
from rnn_lowering.facts.known import KnownValues, add_tensor
from rnn_lowering.flags import set_dims
from rnn_lowering.model.model_sizes import open_names
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.misread import begins_behind, pads, windows_of
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array, array_of

_OLDEST_OPSET = 13
"""The first opset of the operators that are written here."""

_SIGNALS = 2
"""The axes of signals without channels."""

_VOLUME, _PLANE = 3, 2
"""The axes along which these convolutions are, and the most along which these pools are."""


def add_channels(model: AdaptedModel) -> str | None:
    """Give signals of two axes, which an STFT reads, a third one, in place; return what was done, for the user."""
    nodes = [node for node in model.nodes("STFT") if len(model.shape_of(node.inputs[0]) or ()) == _SIGNALS]
    for node in nodes:
        node.replace_input_with(0, model.before(node, "Unsqueeze", node.inputs[:1], axes=[-1]))
    return f"takes signals of three axes: gave those of {len(nodes)} STFT one of channels" if nodes else None


def convolutions_of_volumes(model: AdaptedModel) -> set[ir.Node]:
    """Return the convolutions that `part_convolutions` replaces: of known sizes, save the batch, without groups."""
    return {node for node in model.nodes("Conv", since=_OLDEST_OPSET) if _volume(node, model) is not None}


def part_convolutions(model: AdaptedModel) -> int:
    """Write, in place, each of them as one of planes; return their number."""
    nodes = convolutions_of_volumes(model)
    for node in nodes:
        _convolve_planes(node, model)
    return len(nodes)


def dilated_pools(model: AdaptedModel) -> set[ir.Node]:
    """Return the pools that `gather_pools` replaces: of known sizes, with an element in each window."""
    return {node for node in model.nodes("MaxPool", since=_OLDEST_OPSET) if _pool_windows(node, model)}


def gather_pools(model: AdaptedModel) -> int:
    """Write, in place, each of them as maxima along one axis after the other; return their number."""
    nodes = dilated_pools(model)
    for node in nodes:
        _pool_by_axis(node, model)
    return len(nodes)


def widen_kernels(model: AdaptedModel) -> int:
    """Give, in place, each kernel of nine numbers in a row a tenth one, 0, and a pad more; return their number."""
    nodes = [node for node in model.nodes("Conv") if _has_nine_in_a_row(node, model)]
    for node in nodes:
        _widen(node, model)
    return len(nodes)


_NINE = 9
"""So many numbers OpenCV takes for a square."""


def _kernel(node: ir.Node, model: AdaptedModel) -> list[int]:
    weights = model.shape_of(node.inputs[1])
    sizes = [size for size in (weights or ())[2:] if isinstance(size, int)]
    return list(node.attributes.get_ints("kernel_shape", sizes))


def _has_nine_in_a_row(node: ir.Node, model: AdaptedModel) -> bool:
    kernel = _kernel(node, model)
    dilated = max(node.attributes.get_ints("dilations", (1,))) > 1
    return len(kernel) <= _PLANE and max(kernel, default=0) == math.prod(kernel) == _NINE and not dilated


def _widen(node: ir.Node, model: AdaptedModel) -> None:
    kernel, weights = _kernel(node, model), model.constant_of(node.inputs[1])
    rank, axis = len(kernel), kernel.index(_NINE)
    behind = [int(n == axis + 2) for n in range(rank + 2)]
    if weights is None:
        wide = model.before(node, "Pad", [node.inputs[1]], pads=[0] * len(behind) + behind)
    else:
        numbers = np.pad(array_of(weights), [(0, count) for count in behind])
        wide = model.constant(node, numbers, numbers.dtype)
    pads = list(node.attributes.get_ints("pads", (0,) * 2 * rank))
    pads[rank + axis] += 1
    kernel[axis] += 1
    node.replace_input_with(1, wide)
    node.attributes.pop("auto_pad", None)
    for name, held in (("kernel_shape", kernel), ("pads", pads)):
        node.attributes.add(ir.AttrInt64s(name, held))


def pad_single_kernels(model: AdaptedModel) -> int:
    """Put, in place, the pads of each Conv whose kernel is one number into a Pad before it; return their number."""
    nodes = [n for n in model.nodes("Conv") if any(n.attributes.get_ints("pads", ())) and _is_single(n, model)]
    for node in nodes:
        pads = list(node.attributes.pop("pads").as_ints())
        rank = len(pads) // 2
        around = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
        node.replace_input_with(0, model.before(node, "Pad", node.inputs[:1], pads=around))
    return len(nodes)


def _is_single(node: ir.Node, model: AdaptedModel) -> bool:
    kernel = _kernel(node, model)
    return bool(kernel) and math.prod(kernel) == 1


def cut_columns(model: AdaptedModel) -> int:
    """Let, in place, each Conv of one channel whose steps leave one column make all, and cut the others off; return
    their number."""
    nodes = [node for node in model.nodes("Conv", since=_OLDEST_OPSET) if _leaves_one_column(node, model)]
    for node in nodes:
        inputs, given = list(node.inputs), dict(node.attributes)
        strides = [*given.pop("strides").as_ints()[:-1], 1]
        columns = model.before(node, "Conv", inputs, strides=strides, **given)
        bounds = [model.constant(node, [number]) for number in (0, 1, len(strides) + 1)]
        model.replace(node, model.before(node, "Slice", [columns, *bounds]))
    return len(nodes)


def _leaves_one_column(node: ir.Node, model: AdaptedModel) -> bool:
    before, weights, after = (model.shape_of(value) for value in (*node.inputs[:2], node.outputs[0]))
    strides, kernel = node.attributes.get_ints("strides", (1,)), _kernel(node, model)
    if before is None or weights is None or after is None or len(before) != len("NCHW"):
        return False
    one_channel = weights[1] == 1 and node.attributes.get_int("group", 1) == 1
    whole = before[-1] == kernel[-1] and not any(node.attributes.get_ints("pads", ()))
    return one_channel and after[-1] == 1 and strides[-1] > 1 and not whole and _has_pads(node)


_LARGEST = 1 << 22
"""Maximum elements of the weights of a Conv of a constant."""


def compute_convolutions(model: AdaptedModel) -> int:
    """Make a constant, in place, of each Conv of constants; return their number."""
    found = [node for node in model.nodes("Conv", in_functions=False) if not node.outputs[0].is_graph_output()]
    return sum(_compute(node, model) for node in found)


def _compute(node: ir.Node, model: AdaptedModel) -> bool:
    known = KnownValues({**model.model.opset_imports, "": model.opset})
    for value in filter(None, node.inputs):
        tensor = model.constant_of(value)
        if tensor is None:
            return False
        add_tensor(known, value, tensor, _LARGEST)
    follow(known, node, lambda _: True)
    numbers = known.constant(node.outputs[0])
    if numbers is None:
        return False
    model.replace(node, model.constant(node, numbers, numbers.dtype), node.inputs)
    return True


def _volume(node: ir.Node, model: AdaptedModel) -> tuple[list[int], Array] | None:
    """Return the sizes of the input of a convolution, but of the batch, and its weights."""
    weights, sizes = model.constant_of(node.inputs[1]), _known_sizes(node, model)
    plain = node.attributes.get_int("group", 1) == 1 and _has_pads(node)
    if sizes is None or weights is None or len(sizes) != 1 + _VOLUME or not plain:
        return None
    return sizes, array_of(weights)


def _known_sizes(node: ir.Node, model: AdaptedModel) -> list[int] | None:
    shape = model.shape_of(node.inputs[0])
    sizes = [] if shape is None else [size for size in shape[1:] if isinstance(size, int)]
    return sizes if shape is not None and len(sizes) == len(shape) - 1 else None


def _has_pads(node: ir.Node) -> bool:
    return node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _windows(node: ir.Node, sizes: list[int], kernel: list[int]) -> list[Array]:
    """Return for each axis of space the places [windows, kernel] that a window reads; those outside are negative,
    or the size and more."""
    rank = len(kernel)
    strides, dilations = (node.attributes.get_ints(name, (1,) * rank) for name in ("strides", "dilations"))
    pads, windows = node.attributes.get_ints("pads", (0,) * 2 * rank), list[Array]()
    for axis, size in enumerate(sizes):
        span = dilations[axis] * (kernel[axis] - 1) + 1
        room = size + pads[axis] + pads[axis + rank] - span
        steps = room // strides[axis] + 1
        if node.attributes.get_int("ceil_mode", 0) and room % strides[axis]:
            steps += steps * strides[axis] < size + pads[axis]
        starts = np.arange(steps) * strides[axis] - pads[axis]
        windows.append(starts[:, None] + np.arange(kernel[axis]) * dilations[axis])
    return windows


def _convolve_planes(node: ir.Node, model: AdaptedModel) -> None:
    volume = _volume(node, model)
    assert volume is not None
    (channels, depth, *plane), weights = volume
    count, kernel = weights.shape[0], list(weights.shape[2:])
    places, *others = _windows(node, [depth, *plane], kernel)
    begin, end = max(0, -int(places.min())), max(0, int(places.max()) + 1 - depth)
    planes = model.before(node, "Transpose", [node.inputs[0]], perm=[0, 2, 1, 3, 4])
    if begin or end:
        pads = model.constant(node, [0, begin, 0, 0, 0, 0, end, 0, 0, 0])
        planes = model.before(node, "Pad", [planes, pads, model.constant(node, 0, weights.dtype)])
    rows = model.constant(node, places.reshape(-1) + begin)
    read = model.before(node, "Gather", [planes, rows], axis=1)
    joined = model.before(node, "Reshape", [read], shape=[-1, kernel[0] * channels, *plane])
    flat = weights.transpose(0, 2, 1, 3, 4).reshape(count, -1, *kernel[1:])
    pads_of = node.attributes.get_ints("pads", (0,) * 2 * _VOLUME)
    attributes = {name: node.attributes.get_ints(name, (1,) * _VOLUME)[1:] for name in ("strides", "dilations")}
    attributes |= {"kernel_shape": kernel[1:], "pads": [*pads_of[1:_VOLUME], *pads_of[_VOLUME + 1 :]]}
    inputs = [joined, model.constant(node, flat, weights.dtype), *node.inputs[2:]]
    made = model.before(node, "Conv", inputs, **attributes)
    shape = [-1, len(places), count, *map(len, others)]
    value = model.before(node, "Reshape", [made], shape=shape)
    model.replace(node, model.before(node, "Transpose", [value], perm=[0, 2, 1, 3, 4]))


def _pool_windows(node: ir.Node, model: AdaptedModel) -> list[Array]:
    """Return the places of a dilated pool; one outside is another one of its window. Nothing if it stays."""
    sizes, kernel = _known_sizes(node, model), list(node.attributes.get_ints("kernel_shape", ()))
    dilated = max(node.attributes.get_ints("dilations", (1,))) > 1
    if sizes is None or not dilated or not _has_pads(node) or len(node.outputs) > 1 or len(kernel) > _PLANE:
        return []
    windows = list[Array]()
    for size, places in zip(sizes[1:], _windows(node, sizes[1:], kernel), strict=True):
        inside = (places >= 0) & (places < size)
        if not inside.any(1).all():
            return []
        first = places[np.arange(len(places)), inside.argmax(1)]
        windows.append(np.where(inside, places, first[:, None]))
    return windows


def _pool_by_axis(node: ir.Node, model: AdaptedModel) -> None:
    windows, sizes, value = _pool_windows(node, model), _known_sizes(node, model), node.inputs[0]
    assert sizes is not None
    for n, places in enumerate(windows):
        rows = model.before(node, "Gather", [value, model.constant(node, places.reshape(-1))], axis=n + 2)
        shape = [-1, *sizes[: n + 1], *places.shape, *sizes[n + 2 :]]
        parts = model.before(node, "Reshape", [rows], shape=shape)
        value = model.before(node, "ReduceMax", [parts], axes=[n + 3], keepdims=0)
        sizes[n + 1] = len(places)
    assert value is not None
    model.replace(node, value)


# Pools


_OF_INPUTS = 5
"""The first opset of a Reshape whose shape is an input."""


def pools_of_volumes(model: AdaptedModel) -> set[ir.Node]:
    """Return the pools that `part_pools` replaces: of known sizes, save the batch, not dilated or rounded up."""
    return {node for node in model.nodes("AveragePool", "MaxPool", since=_OF_INPUTS) if _can_part(node, model)}


def part_pools(model: AdaptedModel) -> int:
    """Write, in place, each of them as two pools; return their number."""
    nodes = pools_of_volumes(model)
    for node in nodes:
        _part_pool(node, model)
    return len(nodes)


def _can_part(node: ir.Node, model: AdaptedModel) -> bool:
    shape = model.shape_of(node.inputs[0])
    if shape is None or not _are_known(shape[1:]) or len(node.attributes.get_ints("kernel_shape", ())) != _VOLUME:
        return False
    plain = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID") and len(node.outputs) == 1
    dilated = max(node.attributes.get_ints("dilations", (1,))) > 1
    return plain and not dilated and not node.attributes.get_int("ceil_mode", 0)


def _are_known(sizes: Iterable[int | ir.SymbolicDim]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _part_pool(node: ir.Node, model: AdaptedModel) -> None:
    N, C, *sizes = (size if isinstance(size, int) else -1 for size in model.shape_of(node.inputs[0]) or ())
    kernel, others = list(node.attributes.get_ints("kernel_shape")), dict(node.attributes)
    strides = list(node.attributes.get_ints("strides", (1,) * _VOLUME))
    around = list(node.attributes.get_ints("pads", (0,) * 2 * _VOLUME))
    whole = [size + around[n] + around[n + _VOLUME] for n, size in enumerate(sizes)]
    sizes_after = [(size - k) // stride + 1 for size, k, stride in zip(whole, kernel, strides, strict=True)]
    for name in ("auto_pad", "kernel_shape", "strides", "pads", "dilations"):
        others.pop(name, None)

    def pool(x: ir.Value | None, shape: list[int], k: list[int], s: list[int], p: list[int]) -> ir.Value:
        planes = model.before(node, "Reshape", [x], shape=shape)
        return model.before(node, node.op_type, [planes], kernel_shape=k, strides=s, pads=p, **others)

    rows = pool(node.inputs[0], [N, C * sizes[0], *sizes[1:]], kernel[1:], strides[1:], [*around[1:3], *around[4:]])
    columns = [N, C, sizes[0], math.prod(sizes_after[1:])]
    value = pool(rows, columns, [kernel[0], 1], [strides[0], 1], [around[0], 0, around[_VOLUME], 0])
    model.replace(node, model.before(node, "Reshape", [value], shape=[N, C, *sizes_after]))


def count_no_pads(model: AdaptedModel) -> int:
    """Let each AveragePool that is rounded up and has no pads count none, in place; return their number."""
    pools = [node for node in model.nodes("AveragePool") if node.attributes.get_int("ceil_mode", 0)]
    nodes = [node for node in pools if node.attributes.get_int("count_include_pad", 0) and not pads(node)]
    for node in nodes:
        del node.attributes["count_include_pad"]
    return len(nodes)


def floored_pools(model: AdaptedModel) -> set[ir.Node]:
    """Return each pool that is rounded up for a window behind the input only: ONNX has none there."""
    return {node for node in model.nodes("AveragePool", "MaxPool") if _rounds_for_nothing(node, model)}


def floor_pools(model: AdaptedModel) -> int:
    """Round each of them down, in place; return their number."""
    nodes = floored_pools(model)
    for node in nodes:
        del node.attributes["ceil_mode"]
    return len(nodes)


def _rounds_for_nothing(node: ir.Node, model: AdaptedModel) -> bool:
    windows = windows_of(node, model.shape_of(node.inputs[0]))
    known = windows is not None and all(isinstance(each.size, int) for each in windows)
    return known and any(map(begins_behind, windows or ())) and not any(each.adds for each in windows or ())


# Pads that keep a size


LOWER = ("SAME_LOWER",)
_SAME = ("SAME_UPPER", *LOWER)


def spell_same_pads(model: AdaptedModel, modes: Sequence[str] = _SAME) -> int:
    """Write the pads of each Conv and pool that are to keep a size, where they are known; return their number."""
    known = {node: ends for node, ends in _same_pads(model, modes) if ends is not None}
    for node, ends in known.items():
        del node.attributes["auto_pad"]
        node.attributes["pads"] = ir.AttrInt64s("pads", ends)
    return len(known)


def same_padded(model: AdaptedModel, modes: Sequence[str] = _SAME) -> set[ir.Node]:
    """Return the nodes whose pads are written."""
    return {node for node, ends in _same_pads(model, modes) if ends is not None}


def refuse_same_pads(
    model: AdaptedModel, target: Target, modes: Sequence[str] = _SAME
) -> Iterator[UnsupportedError]:
    """Yield an error for each of them whose pads follow from a size that is not known."""
    for node, ends in _same_pads(model, modes):
        if ends is None:
            reason = f"{target.name} pads both sides alike, and the size that decides its pads is not known"
            sizes = set_dims(_open_names(node, model))
            hint = f"fix the sizes of the inputs, with a number for each ?: {sizes}, or export with pads"
            yield UnsupportedError(reason, hint=hint, node=node_ref(node))


def _open_names(node: ir.Node, model: AdaptedModel) -> list[str]:
    """Return the names of the open axes that a node pads; those of all inputs if they have others."""
    names, padded = open_names(model.model), list(model.shape_of(node.inputs[0]) or ())[2:]
    own = [dim.value for dim in padded if isinstance(dim, ir.SymbolicDim) and dim.value is not None]
    return own if own and {*own} <= {*names} else names


def _same_pads(model: AdaptedModel, modes: Sequence[str]) -> list[tuple[ir.Node, list[int] | None]]:
    nodes = model.nodes("Conv", "MaxPool", "AveragePool")
    return [(n, _pads(n, model)) for n in nodes if _is_padded(n, modes)]


def _is_padded(node: ir.Node, modes: Sequence[str]) -> bool:
    """Whether a node pads in one of some modes; with those of MNN also one that counts its pads, or rounds up."""
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    counts, rounds_up = (node.attributes.get_int(name, 0) for name in ("count_include_pad", "ceil_mode"))
    wrong = (mode in _SAME and counts != 0) or (mode == "VALID" and rounds_up != 0)
    return mode in modes or (modes == LOWER and wrong)


def _pads(node: ir.Node, model: AdaptedModel) -> list[int] | None:
    """Return the pads before and behind each axis, by the formula of Conv's page; None if a size is not known."""
    shape = model.shape_of(node.inputs[0])
    kernel = _ints(node, "kernel_shape", _shape_of_weights(node, model))
    if shape is None or kernel is None:
        return None
    ones = [1] * len(kernel)
    if node.attributes.get_string("auto_pad", "") == "VALID":
        return [0] * 2 * len(kernel)
    strides = _ints(node, "strides", ones) or ones
    if _ints(node, "dilations", ones) != ones or not len(kernel) == len(strides) == len(shape) - 2:
        return None  # onnxruntime has no dilations with such pads
    sizes = [1 if stride == 1 else size for size, stride in zip(list(shape)[2:], strides, strict=True)]
    if not all(isinstance(size, int) for size in sizes):
        return None
    begins, ends = [], []
    for size, k, stride in zip(map(int, sizes), kernel, strides, strict=True):  # type: ignore[arg-type]
        total = max(0, (-(-size // stride) - 1) * stride + k - size)
        less, more = total // 2, total - total // 2
        upper = node.attributes.get_string("auto_pad", "") == "SAME_UPPER"
        begins.append(less if upper else more)
        ends.append(more if upper else less)
    return [*begins, *ends]


def _shape_of_weights(node: ir.Node, model: AdaptedModel) -> list[int] | None:
    shape = model.shape_of(node.inputs[1]) if node.op_type == "Conv" else None
    sizes = [] if shape is None else [size for size in list(shape)[2:] if isinstance(size, int)]
    return sizes if shape is not None and len(sizes) == len(shape) - 2 else None


def _ints(node: ir.Node, name: str, default: list[int] | None) -> list[int] | None:
    attribute = node.attributes.get(name)
    return default if attribute is None else list(attribute.as_ints())
