"""Whether one export is enough: no node of it knows a size, and no number of it can be one.

An operator of ONNX knows the size of an axis by its inputs alone. What is left are the numbers of the model. These
can be no size: what names an axis, the last row or the end; what belongs to weights, such as the windows of a Conv,
or is decided by them, such as the shape of a state; and weights: different numbers, or those before training, none
along an axis as long as the opened one, and not behind a sum of rows, which may have been divided by their number.
No file shows that another weight was multiplied by a size, so the report says that this is assumed not to be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.constants import constant_of, is_constant
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import KnownValues, SizingError, add_initializers
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import BEFORE_THE_START, TO_THE_END, bodies_of, input_slots, is_of_default_domain
from rnn_lowering.facts.size import size
from rnn_lowering.limits import most_bytes
from rnn_lowering.model.copying import clone, inline_holders
from rnn_lowering.model.model_sizes import forget_sizes, open_names
from rnn_lowering.model.scopes import sort_nodes
from rnn_lowering.nodes.kinds import has_cell, node_ref
from rnn_lowering.opening.evidence import PAGE
from rnn_lowering.types import Array

_NO_SIZES = {
    *("activations", "allowzero", "axes", "axis", "direction", "end", "equation", "exclusive", "hidden_size"),
    *("input_forget", "keepdims", "layout", "linear_before_reset", "momentum", "noop_with_empty_axes"),
    *("num_scan_inputs", "perm", "ratio", "reverse", "scan_input_axes", "scan_output_axes", "start", "to"),
    *("training_mode", "transA", "transB"),
}
"""Attributes and inputs that are no size."""

_OF_WINDOWS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
"""Attributes that have a rule of their own."""

_FREE: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("ends", "indices", "inputs", "starts"), (-1,)),
    **{"alpha": (1,), "beta": (1,), "shape": (0, -1), "steps": (1, -1), "value": (0,)},
}
"""Numbers of others that are no size; nor is what is beyond each end."""

_SUMS = ("CumSum", "Einsum", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare")
_WINDOWED, _POOLS = ("Conv", "ConvTranspose"), ("AveragePool", "LpPool", "MaxPool")
_UNTRAINED = {"scale": 1, "Scale": 1, "input_var": 1, "B": 0, "bias": 0, "input_mean": 0}
"""What all numbers of an input of a norm are before training; in cells they are 0."""

_STATES, _STATE_SLOTS = ("initial_h", "initial_c"), (5, 6)
_FILLS = ("ConstantOfShape", "Expand")
"""Operators whose last input is the shape of what they give."""

_SMALL = 1e-4
"""A smaller epsilon is a bound of a norm."""

_FEWEST = 8
"""Fewer different numbers may follow from a size."""

_PART = 1 << 16
"""So many numbers are judged at once: mostly the first of them decide."""


def suspect(
    model: ir.Model, exported: Collection[int], known: KnownValues, opened: KnownValues
) -> tuple[NodeRef, str] | None:
    """Return what may know the size of an opened axis, and why; None if nothing does.

    Args:
        model: The model, whose axes are declared open.
        exported: The sizes that they had.
        known: What is known of the model at these sizes.
        opened: What is known of it at any size.
    """
    lone = _LoneExport([*model.graph.all_nodes()], exported, known, opened)
    for value in model.graph.outputs:
        if is_constant(value):
            return NodeRef(value.name or "", "output", "main graph"), "it is a constant"
    return next(((node_ref(node), fact) for node in lone.nodes for fact in lone.facts(node)), None)


class _LoneExport:
    """Judges the numbers of a model.

    Attributes:
        nodes: Its nodes.
        sizes: The sizes that its opened axes had.
        known: What is known of it at these sizes.
        opened: What is known of it at any size.
        filled: Nodes that compute the shape of a state.
        sums: Nodes behind a sum of rows.
    """

    def __init__(
        self, nodes: Sequence[ir.Node], sizes: Collection[int], known: KnownValues, opened: KnownValues
    ) -> None:
        self.nodes, self.sizes, self.known, self.opened = nodes, [*sizes], known, opened
        self.filled, self.sums = _filled(nodes), set[ir.Node]()
        for node in nodes:
            before = (value.producer() for value in node.inputs if value is not None)
            if self._adds_rows(node) or any(each in self.sums for each in before):
                self.sums.add(node)

    def _constant(self, value: ir.Value) -> Array | None:
        """Return a constant; None if it is not known, or has more elements than the limit in bytes."""
        if math.prod(self.known.static_shape(value) or ()) > most_bytes():
            return None
        tensor = constant_of(value, self.known.opset)
        return None if tensor is None else numbers_in(tensor)

    def _adds_rows(self, node: ir.Node) -> bool:
        """Whether a node may add rows along an opened axis."""
        shape = self.opened.shape(node.inputs[0] if node.inputs else None)
        if node.op_type == "MatMul":
            shape = shape[-1:]
        return node.op_type in (*_SUMS, "MatMul") and any(dim.constant is None for dim in shape)

    def facts(self, node: ir.Node) -> Iterator[str]:
        """Yield what of a node may follow from a size."""
        if node.outputs and all(map(is_constant, node.outputs)):
            return  # its numbers are judged where they are read
        if not is_of_default_domain(node) and not has_cell(node):
            yield "its operator may know it"
        if any(is_constant(value) for body in bodies_of(node) for value in body.outputs):
            yield "a constant of its bodies may follow from it"
        if not self._has_own_windows(node):
            yield "its windows may follow from it"
        yield from (f"its {a.name} may follow from it" for a in node.attributes.values() if not _is_plain(a))
        names = {slot: name for name, slot in input_slots(node.op_type, self.known.opset).items()}
        for slot, value in enumerate(node.inputs):
            if value is None or not is_constant(value):
                continue
            name, array = names.get(slot, f"input {slot}"), self._constant(value)
            if array is None:
                yield f"its {name} is not known"
            elif node in self.filled and self._fills(array):
                continue
            elif {*array.shape} & {n for n in self.sizes if n > 1} or not self._is_no_size(node, name, array):
                yield f"its {name} may follow from it"

    def _fills(self, array: Array) -> bool:
        """Whether an array is zeros, or a shape that a cell decides: no size of the export, such as a batch."""
        return not (np.isin(array, self.sizes).any() if array.dtype.kind in "iu" else array.any())

    def _is_no_size(self, node: ir.Node, name: str, array: Array) -> bool:
        """Whether no number of a constant can be a size."""
        producer = None if node.inputs[0] is None else node.inputs[0].producer()
        of_shape = node.op_type in ("Gather", "Slice") and producer is not None and producer.op_type == "Shape"
        if of_shape or name in _NO_SIZES or (node.op_type, name) in (("Pow", "Y"), ("Shape", "data")):
            return True
        if array.size == 1 and array.dtype.kind == "f" and 0 < (number := array.item()) < _SMALL / 10:
            return not any(np.isclose(number * n**2, 1, 1e-3) for n in self.sizes)
        return _is_free(name, array) or self._is_weight(node, name, array)

    def _is_weight(self, node: ir.Node, name: str, array: Array) -> bool:
        if array.dtype.kind != "f" or not array.ndim or node in self.sums or (name in _STATES and 1 in self.sizes):
            return False  # an axis of 1 may be the batch
        distinct = _distinct(array)
        if len(distinct) == 1 < array.size:
            untrained = _UNTRAINED.get(name) if node.op_type.endswith("Normalization") else None
            return distinct == {0 if has_cell(node) else untrained}
        several = len(distinct) >= min(_FEWEST, array.size) > 1 or node.op_type in _WINDOWED
        return several and not any(_are_multiples(array, n) for n in (1, *self.sizes))

    def _has_own_windows(self, node: ir.Node) -> bool:
        """Whether the windows of a node follow from its weights: those of a pool may be as long as the axis.

        Pads that keep a size follow from the kernel, but with a stride from the size too.
        """
        given, shape = node.attributes, self.opened.shape(node.inputs[0] if node.inputs else None)
        moved = [n for n, dim in enumerate(shape[2:]) if dim.constant is None]
        if node.op_type not in _WINDOWED or not moved or "auto_pad" in given:
            return node.op_type not in _POOLS or not moved
        lengths, kernel = (self.known.shape(value)[2:] for value in node.inputs[:2])
        pads = given.get_ints("pads") or [0] * 2 * len(kernel)
        strides, dilations = (given.get_ints(name) or [1] * len(kernel) for name in ("strides", "dilations"))
        for n in moved:
            before, after, length = pads[n], pads[n + len(kernel)], lengths[n].constant
            span = dilations[n] * (int(kernel[n].constant or 0) - 1) + 1
            if not after <= before < span or length is None:
                return False
            if strides[n] > 1 and before + after == _same(int(length), span, strides[n]):
                return False
        return True


def _filled(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Return nodes that compute only states that are one number: which shape these have is decided by the cell."""
    filled: set[ir.Node] = set()
    for node in reversed(nodes):
        uses = [use for value in node.outputs for use in value.uses()]
        states = all(has_cell(use.node) and use.idx in _STATE_SLOTS for use in uses)
        shapes = all(
            use.node in filled and (use.node.op_type not in _FILLS or use.idx == len(use.node.inputs) - 1)
            for use in uses
        )
        if uses and (shapes or (states and node.op_type in (*_FILLS, "Slice"))):
            filled.add(node)
    return filled


def _is_plain(attribute: ir.Attr) -> bool:
    """Whether no number of an attribute can be a size."""
    plain_types = (ir.AttributeType.GRAPH, ir.AttributeType.STRING)
    if attribute.name in (*_NO_SIZES, *_OF_WINDOWS) or attribute.type in plain_types:
        return True
    if attribute.name == "epsilon":
        return attribute.as_float() < _SMALL
    tensor = attribute.type == ir.AttributeType.TENSOR
    array = numbers_in(attribute.as_tensor()) if tensor else np.array(attribute.value)
    return array is not None and _is_free(attribute.name, array)


def _is_free(name: str, array: Array) -> bool:
    """Whether no number of an attribute or an input of this name can be a size."""
    if array.dtype.kind not in "iuf" or name not in _FREE:
        return False
    free = [*_FREE[name]]
    return all(
        (np.isin(part, free) | (part >= TO_THE_END) | (part <= BEFORE_THE_START + 1)).all()
        for part in _parts(array)
    )


def _same(length: int, span: int, stride: int) -> int:
    """Return the pads with which windows of a stride begin at each row of which one is due."""
    return max((-(-length // stride) - 1) * stride + span - length, 0)


def _parts(array: Array) -> Iterator[Array]:
    """Yield all numbers of an array, some at a time."""
    numbers = array.reshape(-1)
    for begin in range(0, numbers.size, _PART):
        part = numbers[begin : begin + _PART]
        yield part.astype(np.float64) if part.dtype.kind == "f" else part


def _distinct(array: Array) -> set[float]:
    """Return the different numbers of an array, as soon as there are enough."""
    found: set[float] = set()
    for part in _parts(array):
        found |= {*np.unique(part).tolist()}
        if len(found) >= _FEWEST:
            break
    return found


def _are_multiples(array: Array, of: int) -> bool:
    """Whether all numbers are whole, times a power of a size."""
    return any(all(_are_whole(part * float(of) ** power) for part in _parts(array)) for power in (-1, 1, 2))


def _are_whole(numbers: Array) -> bool:
    """Whether numbers are whole, and none but 0 is near 0."""
    whole = np.round(numbers)
    return bool(((whole != 0) | (numbers == 0)).all() and np.allclose(numbers, whole, 1e-5, 0))


# Axes that a model declares open, though it runs at one size only: an exporter has frozen it.


_TRIED = (48, 7, 240, 2, 5, 16, 5040, 97)
"""Sizes of an open axis: multiples of many numbers, and small ones. A model that fits two of them is open."""

_MOST_NUMBERS = 64


def closed_axes(model: ir.Model, most_nodes: int) -> list[str]:
    """Return notes on axes of inputs that are declared open, at whose sizes the model is not valid but for one."""
    work, names = clone(model), open_names(model)
    inline_holders(work, list(work.functions), most_nodes)
    sort_nodes(work)
    forget_sizes(work)
    fitting = (n for n in _TRIED if _fits(work, dict.fromkeys(names, n)))
    if not names or len([*islice(fitting, 2)]) > 1:
        return []
    for name in names:
        for other in _TRIED[:3]:
            rest = {each: other for each in names if each != name}
            found = [n for n in _numbers(work) if _fits(work, rest | {name: n})]
            if len(found) == 1 and not any(_fits(work, rest | {name: n}) for n in _TRIED if n not in found):
                return [f"'{name}' is declared open, but the model fits {name} = {found[0]} only (docs/{PAGE})"]
    return []


def _fits(model: ir.Model, sizes: Mapping[str, int]) -> bool:
    """Whether no node refuses the sizes that it gets."""
    shapes = {
        value.name or "": tuple(size(d if isinstance(d, int) else sizes.get(str(d), 1)) for d in value.shape)
        for value in model.graph.inputs
        if value.shape is not None
    }
    known = KnownValues.start(model, shapes)
    add_initializers(known, model.graph)
    for node in model.graph:
        try:
            if not bodies_of(node):
                infer(known, node)
                with suppress(UnfollowedError):
                    evaluate(known, node)
        except SizingError:
            return False
    return True


def _numbers(model: ir.Model) -> list[int]:
    """Return integers of the model, which may be the size that it has."""
    values = (value for node in model.graph.all_nodes() for value in (*node.inputs, *node.outputs) if value)
    tensors = (ir.convenience.get_const_tensor(value) for value in dict.fromkeys(values))
    arrays = (numbers_in(each) for each in tensors if each is not None and each.size <= _MOST_NUMBERS)
    integers = (array for array in arrays if array is not None and array.dtype.kind in "iu")
    found = dict.fromkeys(int(n) for array in integers for n in array.reshape(-1) if 0 < n < 1 << 20)
    return list(islice(found, _MOST_NUMBERS))
