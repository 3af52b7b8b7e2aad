"""Infer types and shapes with exact sizes, by ONNX's inference and our own rules.

ONNX's inference carries a symbolic dimension through most operators and never guesses. Here each polynomial is such
a symbol; the operators that calculate with sizes have a rule of their own. Nothing runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.emit.versions import TO_THE_END, parameter
from rnn_lowering.spec.node_outputs import ELEMENTWISE, SAME_SHAPE, infer_outputs, numbers_in
from rnn_lowering.spec.node_spec import default_opset
from rnn_lowering.streaming.polynomials import CHUNK, TIME, Size, first_frames, product, size
from rnn_lowering.types import Array

Shape = tuple[Size, ...]
PartialShape = Sequence[Size | None]

LARGEST = 1 << 22
"""Constants of more elements are not evaluated: only their shapes are known."""

LARGEST_UNIT = 1 << 16
"""No stream is called with a multiple of more frames than these, unless the strides of its nodes need it."""

_SENT = 1 << 12
"""Constants of so few elements are shown to the inference of shapes."""


class SizingError(Exception):
    """A node does not accept the sizes that it gets."""

    def __init__(self, node: ir.Node, reason: str) -> None:
        self.node = node
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


@dataclass
class SymbolicValues:
    """Holds types, shapes and contents of the values in a main graph and the branches of its Ifs.

    Attributes:
        opsets: The version of each domain.
        types: Element types by value.
        shapes: By value; values of an unknown rank are absent.
        contents: What follows from constants and sizes alone: an array that broadcasts to the shape. Numbers that
            depend on sizes are `Size`, in an array of objects.
        unit: What divides the number of frames.
        wanted: What would have to divide it, so that all sizes were integers.
    """

    opsets: Mapping[str, int]
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    shapes: dict[ir.Value, Shape] = field(default_factory=dict)
    contents: dict[ir.Value, Array] = field(default_factory=dict)
    unit: int = 1
    wanted: int = 1
    _named: dict[str, Size] = field(default_factory=dict)
    _labels: dict[Size, str] = field(default_factory=dict)
    _unknown: dict[str, Size] = field(default_factory=dict)
    _count: int = CHUNK

    @property
    def opset(self) -> int:
        return self.opsets[""]

    def is_whole(self, number: Size) -> bool:
        """Whether a size is an integer at every number of frames. If not, note the chunk size that it needs."""
        unit = number.unit
        if unit is not None and self.unit % unit and unit <= LARGEST_UNIT:
            self.wanted = math.lcm(self.wanted, unit)
        return number.integral(self.unit)

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the value as an array if it is the same at all sizes, else None."""
        held = None if value is None else self.contents.get(value)
        if held is None or held.dtype == object or value not in self.shapes:
            return None
        shape = [dim.constant for dim in self.shapes[value]]
        if None in shape or np.prod([float(n or 0) for n in shape]) > LARGEST:
            return None
        return np.broadcast_to(held, [int(n or 0) for n in shape])

    def numbers(self, value: ir.Value | None) -> list[Size] | None:
        """Return the elements of a value that holds sizes; None if they are not known."""
        held = None if value is None else self.contents.get(value)
        if held is None or value not in self.shapes or held.size > _SENT or held.dtype.kind not in "iufO":
            return None
        shape = [dim.constant for dim in self.shapes[value]]
        if None in shape or list(held.shape) != shape or (held.dtype.kind == "f" and not np.isfinite(held).all()):
            return None
        return [n if isinstance(n, Size) else size(Fraction(n)) for n in held.reshape(-1).tolist()]

    def given(self, node: ir.Node, slot: int) -> list[Size] | None:
        """Return the sizes that an input of a node holds; None if it is absent or they are not known."""
        return self.numbers(node.inputs[slot]) if has(node, slot) else None

    def parameter(self, node: ir.Node, name: str) -> list[Size] | None:
        """The numbers of a parameter, an attribute or an input; none where it is absent, None where not known."""
        held = parameter(node, name, self.opset)
        if isinstance(held, ir.Value):
            return self.numbers(held)
        return [] if held is None else [size(Fraction(n)) for n in held.value]

    def unknown(self, key: str = "") -> Size:
        """Return a symbol for an unknown size: equal keys give equal symbols."""
        if not key or key not in self._unknown:
            self._count += 1
            self._unknown[key] = Size.symbol(self._count)
        return self._unknown[key]

    def infer(self, node: ir.Node) -> None:
        """Add the types and shapes of the outputs of a node, as far as they follow from its inputs."""
        if any(v not in self.types for v in node.inputs if v is not None):
            return
        types = [None if v is None else self._type(v) for v in node.inputs]
        data = {n: held for n, v in enumerate(node.inputs) if v is not None and (held := self._data(v)) is not None}
        try:
            inferred = infer_outputs(node, self.opsets, types, data)
        except onnx.defs.SchemaError:  # of another domain, or newer than the onnx package
            if (node.domain, node.op_type) == ("com.microsoft", "LinearAttention"):
                self._infer_attention(node)
            return
        except Exception as error:  # inference, the checker and protobuf have no common error
            raise SizingError(node, str(error)) from error
        for output, held in zip(node.outputs, inferred, strict=True):
            if held is not None and held.HasField("tensor_type") and held.tensor_type.elem_type:
                self.types[output] = ir.DataType(held.tensor_type.elem_type)
                if held.tensor_type.HasField("shape"):
                    self._set(output, [self._size(dim) for dim in held.tensor_type.shape.dim])
        if node.domain == "" and (rule := _RULES.get(node.op_type)) is not None:
            for output, dims in zip(node.outputs, rule(self, node), strict=False):
                if dims is not None:
                    self._set(output, dims)

    def _infer_attention(self, node: ir.Node) -> None:
        """Add the types and shapes of the outputs of a LinearAttention of com.microsoft."""
        query, value = shape_of(self, node), shape_of(self, node, 2)
        readers, states = (node.attributes.get_int(f"{name}_num_heads", 1) or 1 for name in ("q", "kv"))
        first = node.inputs[0]
        if query is None or value is None or len(query) != 3 or len(value) != 3 or first is None:
            return
        key_size, value_size = query[2] * Fraction(1, readers), value[2] * Fraction(1, states)
        past = node.inputs[3] if has(node, 3) else None
        output, present = node.outputs
        self.types[output] = self.types[first]
        self.types[present] = self.types[first if past is None else past]
        self._set(output, [*query[:2], value_size * max(readers, states)])
        self._set(present, [query[0], size(states), key_size, value_size])

    def _set(self, value: ir.Value, dims: PartialShape) -> None:
        before = self.shapes.get(value, ())
        fallback = before if len(before) == len(dims) else [None] * len(dims)
        self.shapes[value] = tuple(
            dim if dim is not None else old if old is not None else self.unknown()
            for dim, old in zip(dims, fallback, strict=True)
        )

    def _size(self, dim: onnx.TensorShapeProto.Dimension) -> Size | None:
        return size(dim.dim_value) if dim.HasField("dim_value") else self._named.get(dim.dim_param)

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        shape = self.shapes.get(value)
        dims: list[int | str] | None = None if shape is None else []
        for dim in shape or ():
            constant = dim.constant
            dims = [*(dims or ()), self._label(dim) if constant is None else int(constant)]
        return onnx.helper.make_tensor_type_proto(int(self.types[value]), dims)

    def _label(self, dim: Size) -> str:
        """Return a unique name of a size for ONNX's inference: different sizes may print alike."""
        label = self._labels.setdefault(dim, f"d{len(self._labels)}")
        self._named[label] = dim
        return label

    def _data(self, value: ir.Value) -> Array | None:
        held = self.constant(value) if self.types[value] != ir.DataType.STRING else None
        return None if held is None or held.size > _SENT else np.ascontiguousarray(held).reshape(held.shape)


def start(model: ir.Model, inputs: Mapping[str, Shape]) -> SymbolicValues:
    """Return what is known of inputs with these shapes."""
    known = SymbolicValues({**model.opset_imports, "": default_opset(model.opset_imports)})
    for value in model.graph.inputs:
        if value.name and value.name in inputs:
            known.shapes[value] = tuple(inputs[value.name])
        elif value.shape is not None and value.shape.is_static():
            known.shapes[value] = tuple(size(n) for n in value.shape.numpy())
        if value.dtype is not None:
            known.types[value] = value.dtype
    return known


def add_initializers(known: SymbolicValues, graph: ir.Graph) -> None:
    """Add the types, shapes and contents of initializers; one that is an input has no fixed contents."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        known.types[value] = tensor.dtype
        known.shapes[value] = tuple(size(n) for n in tensor.shape.numpy())
        small = not value.is_graph_input() and tensor.size <= LARGEST
        if small and (held := numbers_in(tensor)) is not None:
            known.contents[value] = held


def has(node: ir.Node, slot: int) -> bool:
    return len(node.inputs) > slot and node.inputs[slot] is not None


def shape_of(known: SymbolicValues, node: ir.Node, slot: int = 0) -> Shape | None:
    value = node.inputs[slot] if has(node, slot) else None
    return None if value is None else known.shapes.get(value)


Outputs = Sequence[PartialShape | None]


def broadcast(shapes: Sequence[Shape]) -> PartialShape:
    """Broadcast shapes; an axis is None if its size is not known."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(size(1),) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [_joined([shape[axis] for shape in padded]) for axis in range(rank)]


def _joined(dims: Sequence[Size]) -> Size | None:
    found = list(dict.fromkeys(dim for dim in dims if dim != size(1)))
    if len(found) <= 1:
        return found[0] if found else size(1)
    if any(dim.timed for dim in found):
        return None
    return next((dim for dim in found if dim.constant is not None), found[0])


def _elementwise(known: SymbolicValues, node: ir.Node) -> Outputs:
    shapes = [known.shapes.get(v) for v in node.inputs if v is not None]
    return [] if None in shapes else [broadcast([s for s in shapes if s is not None])]


def _same_shape(known: SymbolicValues, node: ir.Node) -> Outputs:
    return [shape_of(known, node)]


def _reshape(known: SymbolicValues, node: ir.Node) -> Outputs:
    before, target = shape_of(known, node), known.given(node, 1)
    if target is None:
        return []
    if before is None:
        return [[None if n.constant in (0, -1) else n for n in target]]
    keep = not node.attributes.get_int("allowzero", 0)
    after: list[Size | None] = [
        before[n] if keep and d == size(0) and n < len(before) else d for n, d in enumerate(target)
    ]
    total, rest = product(before), product(d for d in after if d is not None and d != size(-1))
    if size(-1) in after:
        left = total.divided(rest)
        fits = left is not None and known.is_whole(left)
        return [[(left if fits else None) if d == size(-1) else d for d in after]]
    first, second = (product(dims) for dims in _unlike(before, after))
    if first != second and (first.timed or second.timed or first.constant is not None):
        texts = [f"[{', '.join(map(str, dims))}]" for dims in (before, target)]
        raise SizingError(node, f"{texts[0]} cannot be reshaped to {texts[1]}")
    return [after]


def _unlike(before: Shape, after: Sequence[Size | None]) -> tuple[Shape, Shape]:
    """Drop the equal axes at both ends of two shapes."""
    first, second = list(before), [dim for dim in after if dim is not None]
    for end in (0, -1):
        while first and second and first[end] == second[end]:
            first.pop(end)
            second.pop(end)
    return tuple(first), tuple(second)


def _flatten(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape, axis = shape_of(known, node), node.attributes.get_int("axis", 1) or 0
    return [] if shape is None else [[product(shape[:axis]), product(shape[axis:])]]


def _expand(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape, target = shape_of(known, node), known.given(node, 1)
    return [] if shape is None or target is None else [broadcast([shape, tuple(target)])]


def _tile(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape, times = shape_of(known, node), known.given(node, 1)
    return [] if shape is None or times is None else [[a * b for a, b in zip(shape, times, strict=True)]]


def _of_shape(known: SymbolicValues, node: ir.Node) -> Outputs:
    return [known.given(node, 0)]


def _range(known: SymbolicValues, node: ir.Node) -> Outputs:
    bounds = [known.given(node, slot) for slot in range(3)]
    first, limit, step = (None if b is None or len(b) != 1 else b[0] for b in bounds)
    if first is None or limit is None or step is None:
        return []
    count = (limit - first).divided(step)
    return [[count if count is not None and known.is_whole(count) else None]]


def _concat(known: SymbolicValues, node: ir.Node) -> Outputs:
    shapes = [known.shapes.get(v) for v in node.inputs if v is not None]
    if not shapes or any(s is None or not s for s in shapes):
        return []
    rank = len(shapes[0] or ())
    axis = (node.attributes.get_int("axis", 1) or 0) % rank
    dims: list[Size | None] = [None] * rank
    dims[axis] = sum((s[axis] for s in shapes if s is not None), size(0))
    return [dims]


def slice_bounds(known: SymbolicValues, node: ir.Node, rank: int) -> dict[int, tuple[Size, Size, Size]] | None:
    """Return (start, end, step) for each axis that a Slice names; None if they are not known."""
    starts, ends, axes, steps = (known.parameter(node, name) for name in ("starts", "ends", "axes", "steps"))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    numbers = [a.constant for a in axes] or range(len(starts))
    if any(n is None for n in numbers):
        return None
    each = zip(numbers, starts, ends, steps or [size(1)] * len(starts), strict=True)
    return {int(n or 0) % rank: (first, last, step) for n, first, last, step in each}


def position(bound: Size, length: Size) -> Size | None:
    """Return a bound of a Slice as a position from 0 to the length; None if it differs between lengths."""
    constant = bound.constant
    if constant is not None and constant >= TO_THE_END:
        return length
    if constant is not None and constant <= -TO_THE_END:
        return size(0)
    found = length + bound if constant is not None and constant < 0 else bound
    if constant is None and not bound.whole().never_negative:
        return None
    if (length - found).whole().never_negative or (constant is not None and constant < 0):
        return found
    return length if (found - length).whole().never_negative else None


def _slice(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    bounds = None if shape is None else slice_bounds(known, node, len(shape))
    if shape is None or bounds is None:
        return []
    dims: list[Size | None] = [None if axis in bounds else dim for axis, dim in enumerate(shape)]
    for axis, (first, last, step) in bounds.items():
        if step == size(1) and shape[axis].constant is None:
            begin, end = position(first, shape[axis]), position(last, shape[axis])
            dims[axis] = None if begin is None or end is None else end - begin
            if begin == size(0) and end is None and shape[axis] == Size.symbol(TIME) and last.constant is not None:
                dims[axis] = first_frames(int(last.constant))
        elif step.constant is not None and step.constant > 1 and shape[axis].constant is None:
            begin, end = position(first, shape[axis]), position(last, shape[axis])
            if begin is not None and end is not None:
                rounded = (end - begin + step - 1).divided(step)
                count = None if rounded is None else rounded.rounded_down()
                dims[axis] = count if count is not None and known.is_whole(count) else None
    return [dims]


def pads(known: SymbolicValues, node: ir.Node, rank: int) -> list[Size] | None:
    """Return the paddings of all axes, those at the starts first; None if they are not known."""
    amounts, axes = known.parameter(node, "pads"), known.parameter(node, "axes")
    if amounts is None or axes is None or any(a.constant is None for a in axes):
        return None
    found, numbers = [size(0)] * 2 * rank, [int(a.constant or 0) % rank for a in axes] or range(rank)
    for n, axis in enumerate(numbers if amounts else ()):
        found[axis], found[axis + rank] = amounts[n], amounts[n + len(numbers)]
    return found


def _pad(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    amounts = None if shape is None else pads(known, node, len(shape))
    if shape is None or amounts is None:
        return []
    return [[dim + amounts[n] + amounts[n + len(shape)] for n, dim in enumerate(shape)]]


def _split(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    if not shape:
        return []
    axis, count = (node.attributes.get_int("axis", 0) or 0) % len(shape), len(node.outputs)
    parts: Sequence[Size | None] | None = known.parameter(node, "split")
    if not parts:
        part = None if parts is None else shape[axis].divided(count)
        parts = [part if part is not None and known.is_whole(part) else None] * count
    return [[part if n == axis else dim for n, dim in enumerate(shape)] for part in parts]


def _resize(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape = shape_of(known, node)
    sizes, scales = known.parameter(node, "sizes"), known.parameter(node, "scales")
    if shape is None or node.attributes.get_ints("axes"):
        return []
    if scales is not None and len(scales) == len(shape):
        grown = [dim * scale for dim, scale in zip(shape, scales, strict=True)]
        return [[dim if known.is_whole(dim) else None for dim in grown]]
    return [sizes] if sizes is not None and len(sizes) == len(shape) else []


def _col2im(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape, image, block = shape_of(known, node), known.given(node, 1), known.given(node, 2)
    if shape is None or image is None or block is None:
        return []
    return [[shape[0], shape[1].divided(product(block)), *image]]


def _stft(known: SymbolicValues, node: ir.Node) -> Outputs:
    shape, window, length = shape_of(known, node), shape_of(known, node, 2), known.given(node, 3)
    size_of_frame = length[0].constant if length else window[0].constant if window else None
    if shape is None or size_of_frame is None:
        return []
    bins = int(size_of_frame) // 2 + 1 if node.attributes.get_int("onesided", 1) else int(size_of_frame)
    return [[shape[0], None, size(bins), size(2)]]


_RULES: dict[str, Callable[[SymbolicValues, ir.Node], Outputs]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(SAME_SHAPE, _same_shape),
    "Col2Im": _col2im,
    "Concat": _concat,
    "ConstantOfShape": _of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "STFT": _stft,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _resize,
}
