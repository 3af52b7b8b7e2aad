"""The rules of nodes: what a node becomes whose constants or attributes differ between the exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as combinations

import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.operators import TO_THE_END, input_slots, is_of_default_domain
from rnn_lowering.facts.size import Shape, Size, product, size
from rnn_lowering.opening.evidence import Evidence, Integers, refuse, text_of, told
from rnn_lowering.opening.tables import Arrays, Tables, Writer


@dataclass(frozen=True)
class Differences:
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
    def known(self) -> KnownValues:
        """What is known of the opened model."""
        return self.writer.known

    @property
    def evidence(self) -> Evidence:
        return self.writer.evidence

    @property
    def own(self) -> list[Shape]:
        """The shapes of its inputs."""
        return [self.known.shape(value) for value in self.node.inputs]

    def open(self) -> list[str]:
        """Change the node; return what changed.

        Raises:
            UnsupportedError: No rule explains what differs.
        """
        self.writer.place, notes = self.node, []
        if self.attributes:
            rule = _ATTRIBUTES.get(self.node.op_type) if is_of_default_domain(self.node) else None
            notes = [rule(self) if rule else ""]
            if not notes[0]:
                name, given = next(iter(self.attributes.items()))
                text = told(a.value if a.type != ir.AttributeType.TENSOR else "a tensor" for a in given)
                raise refuse(
                    self.ref,
                    f"its attribute {name} is {text}, which cannot be a size",
                    hint="export at opset 13 or later",
                )
        for slot, arrays in self.constants.items():
            whole = arrays[0].dtype == "int64" and arrays[0].ndim == 1 and len({a.shape for a in arrays}) == 1
            notes.append(f"{self.ref}: {(self._open_sizes if whole else self._open_table)(slot, arrays)}")
        return notes

    def _name(self, slot: int) -> str:
        """Return the name of an input in the schema of the operator."""
        slots = input_slots(self.node.op_type, self.known.opset) if is_of_default_domain(self.node) else {}
        return next((name for name, place in slots.items() if place == slot), f"input {slot}")

    def _open_table(self, slot: int, arrays: Arrays) -> str:
        value = Tables(self.writer, self.ref, self.own, self._name(slot)).write(arrays)
        self.node.replace_input_with(slot, value)
        return f"{self._name(slot)} follows the size"

    def _open_sizes(self, slot: int, arrays: Arrays) -> str:
        """Write integers of which some are sizes."""
        columns: list[Integers] = list(zip(*(array.tolist() for array in arrays), strict=True))
        place = (self.node.op_type, slot) if is_of_default_domain(self.node) else ("", 0)
        fixed = self._of_reshape(columns) if place == ("Reshape", 1) else {}
        explained = partial(self.evidence.integer, self.ref, self._name(slot), own=self.own)
        numbers = [fixed.get(n) or explained(column) for n, column in enumerate(columns)]
        written = _WRITTEN[place](self, numbers) if place in _WRITTEN else numbers
        self.node.replace_input_with(slot, self.writer.sizes(written))
        changed = (f"{c[0]} is {text_of(n)}" for c, n in zip(columns, numbers, strict=True) if len(set(c)) > 1)
        return " and ".join(changed)

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
        choices = combinations(*(self.evidence.integers(columns[n], self.own) for n in differ))
        fits = [choice for choice in choices if product(choice) * rest == product(before)]
        return dict(zip(differ, fits[0], strict=True)) if len(fits) == 1 else {}


# How numbers of a node are written: what stands for a size of its input takes no computation.


def _as_reshape(of: Differences, numbers: Sequence[Size]) -> list[Size]:
    """Write -1 and 0 where they give the sizes."""
    before, found = of.own[0], list(numbers)
    if not of.node.attributes.get_int("allowzero", 0):
        found = [size(0) if n.symbols and k < len(before) and before[k] == n else n for k, n in enumerate(found)]
    left = [k for k, n in enumerate(found) if n.symbols]
    if len(left) == 1 and size(-1) not in found:
        found[left[0]] = size(-1)
    return found


def _as_expand(of: Differences, numbers: Sequence[Size]) -> list[Size]:
    """Write 1 where the input has the size."""
    before, start = of.own[0], len(numbers) - len(of.own[0])
    return [size(1) if k >= start and n.symbols and before[k - start] == n else n for k, n in enumerate(numbers)]


def _as_cut(of: Differences, numbers: Sequence[Size]) -> list[Size]:
    """Write numbers that count from the end, and the end itself."""
    axes, before = of.known.parameter(of.node, "axes"), of.own[0]
    if axes is None or not before or any(axis.constant is None for axis in axes):
        return list(numbers)
    places = [int(axis.constant or 0) for axis in axes] or range(len(numbers))
    found = []
    for number, axis in zip(numbers, places, strict=True):
        rest = (number - before[axis]).constant if number.symbols else None
        counted = number if rest is None or rest > 0 else size(rest)
        found.append(size(TO_THE_END) if rest == 0 else counted)
    return found


_WRITTEN: Mapping[tuple[str, int], Callable[[Differences, Sequence[Size]], list[Size]]] = {
    ("Reshape", 1): _as_reshape,
    ("Expand", 1): _as_expand,
    ("Slice", 1): _as_cut,
    ("Slice", 2): _as_cut,
}
"""By operator and slot."""


# The rules of attributes: each changes a node and returns what changed, or "" where it does not apply.


def _integers(node: ir.Node, name: str, default: int, count: int) -> list[int]:
    return list(node.attributes.get_ints(name) or [default] * count)


def _pool(of: Differences) -> str:
    """A pool over whole axes: it becomes a reduction of them."""
    node, before, kernels = of.node, of.own[0], of.attributes.get("kernel_shape", ())
    plain = {*of.attributes} <= {"kernel_shape", "strides"} and len(node.outputs) == 1
    if not plain or not kernels or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return ""
    columns = list(zip(*(kernel.as_ints() for kernel in kernels), strict=True))
    whole = [n for n, numbers in enumerate(columns) if len(set(numbers)) > 1]
    pads, strides = (
        _integers(node, name, d, len(columns) * k) for name, d, k in (("pads", 0, 2), ("strides", 1, 1))
    )
    steps = list(zip(*(held.as_ints() for held in of.attributes.get("strides", ())), strict=True))
    moved = any(len(set(numbers)) > 1 and n not in whole for n, numbers in enumerate(steps))
    fits = all(of.evidence.sizes.get(before[n + 2]) == columns[n] for n in whole)
    if moved or not fits or any(pads[n] or pads[n + len(columns)] for n in whole) or "dilations" in node.attributes:
        return ""
    axes, value, writer = [n + 2 for n in whole], node.inputs[0], of.writer
    assert value is not None
    reduction = "ReduceMean" if node.op_type == "AveragePool" else "ReduceMax"
    if "axes" in input_slots(reduction, of.known.opset):
        reduced = writer.add(reduction, value, writer.integers(axes), keepdims=1)
    else:
        reduced = writer.add(reduction, value, axes=axes, keepdims=1)
    shape = tuple(size(1) if n in axes else dim for n, dim in enumerate(before))
    node.replace_input_with(0, writer.declared(reduced, of.known.types[value], shape))
    for name, held in (("kernel_shape", [c[0] for c in columns]), ("strides", strides)):
        node.attributes[name] = ir.AttrInt64s(name, [1 if n in whole else each for n, each in enumerate(held)])
    return f"{of.ref}: it reduces all of axis {told(axes)}"


def _transposed(of: Differences) -> str:
    """The sizes that a ConvTranspose gives: pads say the same."""
    node, before, weights = of.node, of.own[0], of.own[1]
    kernel = _integers(node, "kernel_shape", 0, 0) or [int(dim.constant or 0) for dim in weights[2:]]
    wanted = [list(a.as_ints())[-len(kernel) :] for a in of.attributes.get("output_shape", ())]
    names = ("strides", 1), ("dilations", 1), ("output_padding", 0)
    strides, dilations, more = (_integers(node, name, default, len(kernel)) for name, default in names)
    pads: list[list[int]] = [[], []]
    for n, length in enumerate(kernel):
        full = (before[n + 2] - 1) * strides[n] + dilations[n] * (length - 1) + 1 + more[n]
        rests = {of.evidence.in_export(full, k) - held[n] for k, held in enumerate(wanted)}
        rest = rests.pop().constant if len(rests) == 1 else None
        if rest is None or rest < 0:
            return ""
        half, last = int(rest) // 2, node.attributes.get_string("auto_pad", "NOTSET") == "SAME_UPPER"
        pads[last].append(int(rest) - half)
        pads[not last].append(half)
    node.attributes.pop("output_shape")
    node.attributes.pop("auto_pad", None)
    node.attributes["pads"] = ir.AttrInt64s("pads", [*pads[0], *pads[1]])
    return f"{of.ref}: pads in place of output_shape"


_ATTRIBUTES = {"AveragePool": _pool, "MaxPool": _pool, "ConvTranspose": _transposed}
"""By operator."""
