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
from dataclasses import dataclass, field
from itertools import islice, product

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.constants import constant_of, is_constant
from rnn_lowering.facts.known import KnownValues, SizingError
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.operators import (
    BEFORE_THE_START,
    TO_THE_END,
    bodies_of,
    is_of_default_domain,
    operator_of,
    reached,
)
from rnn_lowering.limits import most_bytes
from rnn_lowering.model.copying import clone, inline_holders
from rnn_lowering.model.model_sizes import forget_sizes, open_names
from rnn_lowering.model.scopes import sort_nodes
from rnn_lowering.nodes.kinds import has_cell
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.opening.differences import names_of_inputs
from rnn_lowering.opening.walk import known_at
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

_OF_NO_NUMBERS = (ir.AttributeType.GRAPH, ir.AttributeType.STRING)
_FREE: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("ends", "indices", "inputs", "starts"), (-1,)),
    **{"alpha": (1,), "beta": (1,), "shape": (0, -1), "steps": (1, -1), "value": (0,)},
}
"""Numbers of others that are no size; nor is what is beyond each end."""

_SUMS = {
    *("CumSum", "DFT", "Einsum", "Gemm", "GlobalLpPool", "LpNormalization", "MatMul", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare", "Scan"),
}
_EXPONENTS = (2, 3, 0.5, -0.5, -1, -2)
_WINDOWED, _POOLS = ("Conv", "ConvTranspose"), ("AveragePool", "LpPool", "MaxPool")
_UNTRAINED = {"scale": 1, "Scale": 1, "input_var": 1, "B": 0, "bias": 0, "input_mean": 0}
"""What all numbers of an input of a norm are before training; in cells they are 0."""

_STATES, _STATE_SLOTS = ("initial_h", "initial_c"), (5, 6)
_FILLS = ("ConstantOfShape", "Expand")
"""Operators whose last input is the shape of what they give."""

_JOINING = ("Concat", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that give all numbers that they get."""

_SMALL = 1e-5
"""A smaller number is a bound of a norm."""

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
    for value in model.graph.outputs:
        if is_constant(value):
            return NodeRef(value.name or "", "output", "main graph"), "it is a constant"
    lone = _LoneExport([*model.graph.all_nodes()], [*exported], known, opened)
    return next(((node_ref(node), fact) for node in lone.nodes for fact in lone.facts(node)), None)


@dataclass
class _LoneExport:
    """Judges the numbers of a model.

    Attributes:
        nodes: Its nodes.
        sizes: The sizes that its opened axes had.
        known: What is known of it at these sizes.
        opened: What is known of it at any size.
        filled: Nodes that compute only states that are one number: the cell decides which shape these have.
        sums: Nodes behind a sum of rows.
    """

    nodes: Sequence[ir.Node]
    sizes: Sequence[int]
    known: KnownValues
    opened: KnownValues
    filled: set[ir.Node] = field(default_factory=set)
    sums: set[ir.Node] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self.nodes:
            read = node.inputs if node.op_type == "Scan" else node.inputs[:1]
            shape = [dim for value in read for dim in self.opened.shape(value)]
            product = node.op_type in ("Gemm", "MatMul")
            rows = (shape[:1] if node.attributes.get_int("transA", 0) else shape[-1:]) if product else shape
            adds = node.op_type in _SUMS and any(dim.constant is None for dim in rows)
            if adds or any(value is not None and value.producer() in self.sums for value in node.inputs):
                self.sums.add(node)
        for node in reversed(self.nodes):
            uses = [use for value in node.outputs for use in value.uses()]
            states = all(has_cell(use.node) and use.idx in _STATE_SLOTS for use in uses)
            shapes = all(
                use.node in self.filled and (use.node.op_type not in _FILLS or use.idx == len(use.node.inputs) - 1)
                for use in uses
            )
            if uses and (shapes or (states and node.op_type in (*_FILLS, "Slice"))):
                self.filled.add(node)

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
        names = names_of_inputs(node, self.known.opset)
        constants = ((n, v) for n, v in enumerate(node.inputs) if v is not None and is_constant(v))
        inputs = {names.get(slot, f"input {slot}"): value for slot, value in constants}
        named: dict[str, ir.Attr | ir.Value] = {**node.attributes, **inputs}
        for name, held in named.items():
            if isinstance(held, ir.Attr) and (held.type in _OF_NO_NUMBERS or name in _OF_WINDOWS):
                continue
            arrays = self._numbers(held)
            if arrays is None:
                yield f"its {name} is not known"
            elif not self._is_no_size(node, name, held, arrays):
                yield f"its {name} may follow from it"

    def _numbers(self, held: ir.Attr | ir.Value) -> list[Array] | None:
        """Return arrays with all numbers of an attribute or a constant, which is not computed where it only joins
        others; None if they are not known."""
        if isinstance(held, ir.Attr):
            array = numbers_in(held.as_tensor()) if held.type == ir.AttributeType.TENSOR else np.array(held.value)
            return None if array is None else [array]
        shape = self.known.static_shape(held)
        if shape is None or math.prod(shape) > most_bytes():
            return None
        parts = [each for each in reached([held], _joined) if not _joined(each)]
        tensors = [constant_of(each, self.known.opset) for each in parts]
        arrays = [array for tensor in tensors if tensor is not None and (array := numbers_in(tensor)) is not None]
        return arrays if len(arrays) == len(parts) else None

    def _is_no_size(self, node: ir.Node, name: str, held: ir.Attr | ir.Value, arrays: Sequence[Array]) -> bool:
        """Whether no number of an attribute or an input can be a size."""
        free = name in _NO_SIZES or all(self._is_free(name, array) for array in arrays)
        if isinstance(held, ir.Attr):
            return free
        if node in self.filled and not any(_follows(array, self.sizes) for array in arrays):
            return True
        shape, first = self.known.static_shape(held) or (), node.inputs[0]
        several = [n for n in self.sizes if n > 1]
        rows = {n for exported in several for n in (exported, exported + 1, 2 * exported - 1, 2 * exported + 1)}
        if rows & {*shape} or self._has_one_row(node, shape):
            return False
        if name in _STATES and any(dim % n == 0 for dim in shape[:-1] for n in several):
            return False  # a batch of all rows
        producer = None if first is None else first.producer()
        of_shape = node.op_type in ("Gather", "Slice") and producer is not None and producer.op_type == "Shape"
        power = (node.op_type, name) == ("Pow", "Y") and self._is_power(arrays)
        named = of_shape or power or (node.op_type, name) == ("Shape", "data")
        return free or named or self._is_weight(node, name, arrays, math.prod(shape))

    def _has_one_row(self, node: ir.Node, shape: Sequence[int]) -> bool:
        """Whether a constant has one row along an axis that had one too: it may be the first of a table."""
        if 1 not in self.sizes or not operator_of(node).elementwise:
            return False
        dims = zip(reversed(shape), reversed(self.opened.shape(node.outputs[0])), strict=False)
        return any(n == 1 and dim.symbols for n, dim in dims)

    def _is_power(self, arrays: Sequence[Array]) -> bool:
        """Whether an exponent is a usual one, and neither a size nor the inverse of one."""
        sizes = [power for n in self.sizes if n > 2 for power in (n, -1 / n, 1 / n)]
        return all(bool(np.isin(array, _EXPONENTS).all() and not np.isin(array, sizes).any()) for array in arrays)

    def _is_free(self, name: str, array: Array) -> bool:
        """Whether no number of an attribute or an input of this name can be a size."""
        if array.size == 1 and array.dtype.kind == "f" and 0 < (number := array.item()) < _SMALL:
            return not any(np.isclose(number * n**2, 1, 1e-3) for n in self.sizes)
        if array.dtype.kind not in "iuf" or name not in _FREE:
            return False
        free = [*_FREE[name]]
        return all(
            (np.isin(part, free) | (part >= TO_THE_END) | (part <= BEFORE_THE_START + 1)).all()
            for part in _parts([array])
        )

    def _is_weight(self, node: ir.Node, name: str, arrays: Sequence[Array], count: int) -> bool:
        if any(array.dtype.kind != "f" or not array.ndim for array in arrays):
            return False
        if node in self.sums or (name in _STATES and 1 in self.sizes):
            return False  # an axis of 1 may be the batch
        distinct: set[float] = set()
        for part in _parts(arrays):
            distinct |= {*(unique := np.unique(part)).tolist()}
            if _is_series(unique):
                return False
            if len(distinct) >= _FEWEST:
                break
        if len(distinct) == 1 < count:
            untrained = _UNTRAINED.get(name) if node.op_type.endswith("Normalization") else None
            return distinct == {0 if has_cell(node) else untrained}
        several = len(distinct) >= min(_FEWEST, count) > 1 or node.op_type in _WINDOWED
        powers = [float(n) ** power for n in (1, *self.sizes) for power in (-1, 1, 2)]
        return several and not any(all(_are_whole(part * by) for part in _parts(arrays)) for by in powers)

    def _has_own_windows(self, node: ir.Node) -> bool:
        """Whether the windows of a node follow from its weights: those of a pool may be as long as the axis.

        A kernel of half an axis may follow from it. Pads that keep a size follow from the kernel, but with a stride
        from the size too.
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
            count = int(kernel[n].constant or 0)
            span = dilations[n] * (count - 1) + 1
            if not after <= before < span or length is None or (count >= _FEWEST and 2 * count >= length):
                return False
            kept = (-(-int(length) // strides[n]) - 1) * strides[n] + span - int(length)
            if strides[n] > 1 and before + after == max(kept, 0):
                return False
        return True


def _joined(value: ir.Value) -> Sequence[ir.Value | None]:
    """Return the values whose numbers are those of a value, if it only joins them."""
    node = value.producer()
    inputs = () if node is None or node.op_type not in _JOINING else node.inputs
    return inputs if node is not None and node.op_type == "Concat" else inputs[:1]


def _follows(array: Array, sizes: Sequence[int]) -> bool:
    """Whether an array is neither zeros nor a shape that a cell decides, but has a size of the export."""
    return bool(np.isin(array, sizes).any() if array.dtype.kind in "iu" else array.any())


def _is_series(numbers: Array) -> bool:
    """Whether sorted numbers are evenly spaced, or each is as many times the one before: they were computed."""
    if len(numbers) < _FEWEST:
        return False
    middle, beside = numbers[1:-1], (numbers[:-2], numbers[2:])
    span = float(np.abs(numbers).max())
    evenly = np.abs(beside[0] + beside[1] - 2 * middle).max() <= 1e-5 * (numbers[-1] - numbers[0])
    return bool(evenly or np.allclose(beside[0] * beside[1], middle**2, 1e-4, 1e-12 * span**2))


def _parts(arrays: Sequence[Array]) -> Iterator[Array]:
    """Yield all numbers of arrays, some at a time."""
    for numbers in (array.reshape(-1) for array in arrays):
        for begin in range(0, numbers.size, _PART):
            part = numbers[begin : begin + _PART]
            yield part.astype(np.float64) if part.dtype.kind == "f" else part


def _are_whole(numbers: Array) -> bool:
    """Whether numbers are whole, and none but 0 is near 0."""
    whole = np.round(numbers)
    return bool(((whole != 0) | (numbers == 0)).all() and np.allclose(numbers, whole, 1e-5, 0))


# Axes that a model declares open, though it runs at one size only: an exporter has frozen it.


_TRIED = (48, 7, 240, 2, 5, 16, 5040, 97)
"""Sizes of an open axis: multiples of many numbers, and small ones. A model that fits two of them is open."""

_OTHERS = (7, 48)
"""Sizes of the other axes: what one axis fits must not follow from theirs."""

_MOST_NUMBERS = 64

_MOST_NODES = 200_000
"""Maximum nodes that all trials compute: about half a minute."""


def closed_axis(model: ir.Model, most_nodes: int) -> str:
    """Return a note on an axis of inputs that is declared open, though the model fits one size of it only; ""
    if there is none."""
    trial, names = _Trial.of(model, most_nodes), open_names(model)
    fitting = (n for n in _TRIED if trial.fits(dict.fromkeys(names, n)))
    if not names or len([*islice(fitting, 2)]) > 1:
        return ""
    numbers = list(dict.fromkeys((*_numbers(trial.model), *_TRIED)))
    for name in names if trial.can_try(len(names) * len(numbers) * len(_OTHERS)) else ():
        size = trial.only_size(name, numbers, [dict.fromkeys(names, other) for other in _OTHERS])
        if size is not None:
            only = f"'{name}' is declared open, but the model fits {name} = {size} only"
            return f"{only}: to open it, export the net at another size too, and add --open-dim and --also"
    return ""


def fitting_size(model: ir.Model, most_nodes: int, given: Mapping[str, int]) -> tuple[str, int] | None:
    """Return an axis, the longest if there are several, and its least size among the numbers of the model that the
    model fits, whichever size the others have; None if there is none."""
    trial = _Trial.of(model, most_nodes)
    numbers, names = sorted(_numbers(trial.model)), sorted(given, key=given.__getitem__, reverse=True)
    others = [given, *(dict.fromkeys(given, other) for other in _OTHERS)]
    if trial.can_try(len(names) * len(numbers)):
        for name, n in product(names, numbers):
            if all(trial.fits({**sizes, name: n}) for sizes in others):
                return name, n
    return None


@dataclass(frozen=True)
class _Trial:
    """Tries sizes of a model's open axes.

    Attributes:
        model: The model, which declares no computed sizes.
        declared: The shapes that its outputs declared.
    """

    model: ir.Model
    declared: Sequence[ir.Shape | None]

    @classmethod
    def of(cls, model: ir.Model, most_nodes: int) -> _Trial:
        work = clone(model)
        inline_holders(work, list(work.functions), most_nodes)
        sort_nodes(work)
        forget_sizes(work)
        return cls(work, [value.shape for value in model.graph.outputs])

    def can_try(self, count: int) -> bool:
        """Whether so many trials take seconds only."""
        return count * sum(1 for _ in self.model.graph.all_nodes()) <= _MOST_NODES

    def only_size(self, name: str, numbers: Sequence[int], others: Sequence[Mapping[str, int]]) -> int | None:
        """Return the one size of an axis that the model fits, whichever of these the others have; None if there is
        none."""
        found: set[int] = set()
        for sizes in others:
            fitting = [n for n in numbers if self.fits({**sizes, name: n}, name)]
            found.update(fitting)
            if len(fitting) != 1 or len(found) != 1 or not self.fits({**sizes, name: fitting[0]}):
                return None
        return found.pop()

    def fits(self, sizes: Mapping[str, int], name: str = "") -> bool:
        """Whether no node refuses the sizes that it gets, and the axes of outputs that are named like an input's,
        but for `name`, have its size: if steps are frozen, a Reshape puts the rest of them into the batch."""
        try:
            known = known_at(self.model, sizes, {})
        except SizingError:
            return False
        pairs = zip(map(known.shape, self.model.graph.outputs), self.declared, strict=True)
        shapes = ((found, dims) for found, dims in pairs if dims is not None and len(found) == len(dims))
        axes = (axis for found, dims in shapes for axis in zip(found, dims, strict=True))
        named = ((size.constant, str(dim)) for size, dim in axes if str(dim) in sizes and str(dim) != name)
        return all(number in (None, sizes[dim]) for number, dim in named)


def _numbers(model: ir.Model) -> list[int]:
    """Return integers of the model, which may be the size that it has."""
    values = (value for node in model.graph.all_nodes() for value in (*node.inputs, *node.outputs) if value)
    tensors = (ir.convenience.get_const_tensor(value) for value in dict.fromkeys(values))
    arrays = (numbers_in(each) for each in tensors if each is not None and each.size <= _MOST_NUMBERS)
    integers = (array for array in arrays if array is not None and array.dtype.kind in "iu")
    found = dict.fromkeys(int(n) for array in integers for n in array.reshape(-1) if 0 < n < 1 << 20)
    return list(islice(found, _MOST_NUMBERS))
