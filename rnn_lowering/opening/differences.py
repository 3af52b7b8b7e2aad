"""What a node becomes whose constants or attributes differ between the exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations

import onnx
import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.known import constants_of
from rnn_lowering.facts.operators import TO_THE_END, input_slots, inputs_and_attributes, is_of_default_domain
from rnn_lowering.facts.size import Shape, Size, product, size
from rnn_lowering.opening.evidence import Integers, refuse, text_of, told
from rnn_lowering.opening.tables import Arrays, Tables, Writer

_ENDS = 2
"""The slot of the ends of a Slice."""

_WINDOWS = 2
"""The first axis along which windows move."""


@dataclass(frozen=True)
class Difference:
    """A node, and what differs between the exports.

    Attributes:
        node: The node of the first export, which is opened.
        ref: What to call it.
        constants: By slot, what the constant is in each export.
        attributes: By name, what the attribute is in each export.
        writer: Writes nodes into the opened model.
    """

    node: ir.Node
    ref: NodeRef
    constants: Mapping[int, Arrays]
    attributes: Mapping[str, Sequence[ir.Attr]]
    writer: Writer

    @property
    def own(self) -> list[Shape]:
        """The shapes of its inputs."""
        return [self.writer.known.shape(value) for value in self.node.inputs]

    def ints(self, name: str, default: int, count: int) -> list[int]:
        """Return an attribute of the node."""
        return list(self.node.attributes.get_ints(name) or [default] * count)

    def columns(self, name: str) -> list[Integers]:
        """Return the integers of an attribute that differs, those of each place in all exports."""
        return list(zip(*(given.as_ints() for given in self.attributes.get(name, ())), strict=True))

    def open(self) -> list[str]:
        """Change the node; return what changed.

        Raises:
            UnsupportedError: No rule explains what differs.
        """
        self.writer.place, default = self.node, is_of_default_domain(self.node)
        notes = []
        for name, given in list(self.attributes.items())[:1]:
            rule = _ATTRIBUTES.get(self.node.op_type) if default else None
            if not (changed := rule(self) if rule else ""):
                text = told(a.value if a.type != ir.AttributeType.TENSOR else "a tensor" for a in given)
                fact = f"its attribute {name} is {text}, which cannot be a size"
                raise refuse(self.ref, fact, hint="export at opset 13 or later")
            notes.append(f"{self.ref}: {changed}")
        names = names_of_inputs(self.node, self.writer.known.opset)
        for slot, arrays in self.constants.items():
            whole = arrays[0].dtype == "int64" and arrays[0].ndim == 1 and len({a.shape for a in arrays}) == 1
            change = self._open_sizes if whole else self._open_table
            notes.append(f"{self.ref}: {change(slot, names.get(slot, f'input {slot}'), arrays)}")
        return notes

    def _open_table(self, slot: int, name: str, arrays: Arrays) -> str:
        self.node.replace_input_with(slot, Tables(self.writer, self.ref, self.own, name).write(arrays))
        return f"{name} follows the size"

    def _open_sizes(self, slot: int, name: str, arrays: Arrays) -> str:
        """Write integers of which some are sizes."""
        columns: list[Integers] = list(zip(*(array.tolist() for array in arrays), strict=True))
        place = (self.node.op_type, slot) if is_of_default_domain(self.node) else ("", 0)
        fixed, own = dict[int, Size](), self.own
        if place == ("Reshape", 1):
            fixed = self._of_reshape(columns)
        elif place == ("Slice", _ENDS):
            fixed = self._of_cut(columns)
        numbers = [
            fixed.get(n) or self.writer.evidence.integer(self.ref, name, c, own) for n, c in enumerate(columns)
        ]
        written = _WRITTEN[place](self, numbers) if place in _WRITTEN else numbers
        self.node.replace_input_with(slot, self.writer.sizes(written))
        changed = (f"{c[0]} is {text_of(n)}" for c, n in zip(columns, numbers, strict=True) if len(set(c)) > 1)
        return " and ".join(changed)

    def _of_cut(self, columns: list[Integers]) -> dict[int, Size]:
        """Return ends of a Slice by their place, which cut in two exports at least, and in the others take all.

        Where one cuts nothing, its end becomes the size.
        """
        found, axes = dict[int, Size](), constants_of(self.writer.known, self.node, "axes")
        for n, axis in enumerate(() if axes is None or not self.own[0] else axes or range(len(columns))):
            lengths = self.writer.evidence.numbers_of(self.own[0][axis])
            if lengths is not None and len({*columns[n]}) > 1:
                pairs = zip(columns[n], lengths, strict=True)
                if max(columns[n]) > 0:  # else all count from the end
                    columns[n] = tuple(min(end, length) if end >= 0 else length + end for end, length in pairs)
                ends = columns[n]
                cuts = [end for end, length in zip(ends, lengths, strict=True) if end < length]
                if len(cuts) > 1 and {*cuts} == {max(ends)} and min(ends) > 0:
                    found[n] = size(cuts[0])
        return found

    def _of_reshape(self, columns: Sequence[Integers]) -> dict[int, Size]:
        """Return numbers of a Reshape by their place, as far as the product of all decides them."""
        before, zero = self.own[0], not self.node.attributes.get_int("allowzero", 0)
        differ = [n for n, numbers in enumerate(columns) if len(set(numbers)) > 1]
        kept = [(n, c[0]) for n, c in enumerate(columns) if n not in differ]
        if not before or any(number == -1 for _, number in kept):
            return {}
        rest = product(before[n] if zero and not number and n < len(before) else size(number) for n, number in kept)
        if len(differ) == 1:
            whole = product(before).divided(rest)
            return {differ[0]: whole} if whole is not None and whole.is_integral else {}
        choices = combinations(*(self.writer.evidence.integers(columns[n], self.own) for n in differ))
        fits = [choice for choice in choices if product(choice) * rest == product(before)]
        return dict(zip(differ, fits[0], strict=True)) if len(fits) == 1 else {}


def names_of_inputs(node: ir.Node, opset: int) -> dict[int, str]:
    """Return the names that a schema of ONNX gives the inputs of a node, by slot; none without a schema."""
    if not is_of_default_domain(node) or not onnx.defs.has(node.op_type, opset, ""):
        return {}
    return {slot: name for name, slot in input_slots(node.op_type, opset).items()}


# How numbers of a node are written: what stands for a size of its input takes no computation.


def _as_reshape(of: Difference, numbers: Sequence[Size]) -> list[Size]:
    """Write -1 and 0 where they give the sizes."""
    before, zero = of.own[0], not of.node.attributes.get_int("allowzero", 0)
    found = [size(0) if zero and n.symbols and n in before[k : k + 1] else n for k, n in enumerate(numbers)]
    left = [k for k, n in enumerate(found) if n.symbols]
    if len(left) == 1 and size(-1) not in found:
        found[left[0]] = size(-1)
    return found


def _as_expand(of: Difference, numbers: Sequence[Size]) -> list[Size]:
    """Write 1 where the input has the size."""
    before = ((size(0),) * len(numbers) + of.own[0])[-len(numbers) :]
    return [size(1) if n.symbols and dim == n else n for n, dim in zip(numbers, before, strict=True)]


def _as_cut(of: Difference, numbers: Sequence[Size]) -> list[Size]:
    """Write numbers that count from the end, and the end itself."""
    axes, before = constants_of(of.writer.known, of.node, "axes"), of.own[0]
    if axes is None or not before:
        return list(numbers)
    found = []
    for number, axis in zip(numbers, axes or range(len(numbers)), strict=True):
        rest = (number - before[axis]).constant if number.symbols else None
        counted = number if rest is None or rest > 0 else size(rest)
        found.append(size(TO_THE_END) if rest == 0 else counted)
    return found


_WRITTEN: Mapping[tuple[str, int], Callable[[Difference, Sequence[Size]], list[Size]]] = {
    ("Reshape", 1): _as_reshape,
    ("Expand", 1): _as_expand,
    ("Slice", 1): _as_cut,
    ("Slice", 2): _as_cut,
}
"""By operator and slot."""


# The rules of attributes: each changes a node and returns what changed, or "" where it does not apply.


def _pool(of: Difference) -> str:
    """A pool over whole axes: it becomes a reduction of them."""
    node, before, columns = of.node, of.own[0], of.columns("kernel_shape")
    pads, count = of.ints("pads", 0, 2 * len(columns)), len(columns)
    axes = [n + _WINDOWS for n, numbers in enumerate(columns) if len(set(numbers)) > 1]
    fits = all(of.writer.evidence.sizes.get(before[axis]) == columns[axis - _WINDOWS] for axis in axes)
    moved = any(len(set(c)) > 1 and n + _WINDOWS not in axes for n, c in enumerate(of.columns("strides")))
    padded = any(pads[axis - _WINDOWS] or pads[axis - _WINDOWS + count] for axis in axes)
    plain = {*of.attributes} <= {"kernel_shape", "strides"} and {*of.ints("dilations", 1, count)} == {1}
    plain &= bool(columns) and node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
    if not (plain and fits) or moved or padded or len(node.outputs) > 1:
        return ""
    value, reduction = node.inputs[0], "ReduceMean" if node.op_type == "AveragePool" else "ReduceMax"
    assert value is not None
    inputs, given = inputs_and_attributes(
        reduction, of.writer.known.opset, [value], {"axes": axes, "keepdims": 1}, of.writer.integers
    )
    reduced = of.writer.add(reduction, *filter(None, inputs), **given)
    shape = tuple(size(1) if n in axes else dim for n, dim in enumerate(before))
    node.replace_input_with(0, of.writer.declared(reduced, of.writer.known.types[value], shape))
    for name, held in (("kernel_shape", [c[0] for c in columns]), ("strides", of.ints("strides", 1, count))):
        node.attributes[name] = ir.AttrInt64s(name, [1 if n + _WINDOWS in axes else h for n, h in enumerate(held)])
    return f"it reduces all of axis {told(axes)}"


def _transposed(of: Difference) -> str:
    """The sizes that a ConvTranspose gives: pads say the same."""
    node, (before, weights, *_) = of.node, of.own
    kernel = of.ints("kernel_shape", 0, 0) or [int(dim.constant or 0) for dim in weights[_WINDOWS:]]
    names = ("strides", 1), ("dilations", 1), ("output_padding", 0)
    strides, dilations, more = (of.ints(name, default, len(kernel)) for name, default in names)
    last, pads = node.attributes.get_string("auto_pad", "NOTSET") == "SAME_UPPER", []
    for n, wanted in enumerate(of.columns("output_shape")[-len(kernel) :]):
        full = (before[n + _WINDOWS] - 1) * strides[n] + dilations[n] * (kernel[n] - 1) + 1 + more[n]
        rests = {of.writer.evidence.in_export(full, k) - held for k, held in enumerate(wanted)}
        rest = rests.pop().constant if len(rests) == 1 else None
        if rest is None or rest < 0:
            return ""
        halves = int(rest) // 2, int(rest) - int(rest) // 2
        pads.append(halves if last else halves[::-1])
    if not pads:
        return ""
    for name in ("output_shape", "auto_pad"):
        node.attributes.pop(name, None)
    node.attributes["pads"] = ir.AttrInt64s("pads", [pad for side in zip(*pads, strict=True) for pad in side])
    return "pads in place of output_shape"


_ATTRIBUTES = {"AveragePool": _pool, "MaxPool": _pool, "ConvTranspose": _transposed}
"""By operator."""
