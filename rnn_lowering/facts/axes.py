"""How operators use the axes of their inputs, as the labels of an Einsum say it: the rules that `operators` names.

Softmax over the last axis of [N, T, H] has the labels 0, 1, 2 in its input and 0, 1, `Mixed(2)` in its output: it
acts along axis 2, whose size stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import onnx_ir as ir

from rnn_lowering.facts.size import PartialShape

Label = int | str | tuple[str, int]


@dataclass(frozen=True)
class Mixed:
    """An axis along which a node acts, and whose size stays."""

    label: Label


@dataclass(frozen=True)
class Axes:
    """How the axes of a node's inputs become those of its first output.

    Attributes:
        inputs: By slot, a label for each axis. An axis without a label has no rows of
            another one. Any axis of a slot that is absent may line up with another one.
        output: A label for each axis. An axis along which the node acts has a label that is not here.
        repeats: Whether an axis may be longer than that of the input with its label, whose rows are repeated.
    """

    inputs: Mapping[int, Sequence[Label]]
    output: Sequence[Label | Mixed | None]
    repeats: bool = False

    def label(self, slot: int, axis: int) -> Label | None:
        """Return the label of an axis of an input; None if it has none."""
        labels = self.inputs.get(slot, ())
        return labels[axis] if axis < len(labels) else None

    def axis_behind(self, slot: int, axis: int) -> int | None:
        """Return the axis of an input that becomes an axis of the output; None if no axis does."""
        label = self.output[axis] if axis < len(self.output) else None
        return next((n for n, each in enumerate(self.inputs.get(slot, ())) if each == label), None)


@dataclass(frozen=True)
class NodeShapes:
    """What a rule reads of a node.

    Attributes:
        node: The node.
        opset: Its opset.
        shape: Returns the shape of an input or output, of which only the rank must be known.
        numbers: Returns the numbers of a parameter, by its name; none if it is absent, None if it is unknown.
    """

    node: ir.Node
    opset: int
    shape: Callable[[ir.Value], PartialShape]
    numbers: Callable[[str], list[int] | None]

    @property
    def slots(self) -> list[int]:
        """The inputs that are there."""
        return [n for n, value in enumerate(self.node.inputs) if value is not None]

    def rank(self, slot: int = 0) -> int:
        """Return the rank of an input; 0 for one that is absent."""
        value = self.node.inputs[slot] if slot < len(self.node.inputs) else None
        return 0 if value is None else len(self.shape(value))

    def axis(self, default: int) -> int:
        """Return the attribute `axis`."""
        return (self.node.attributes.get_int("axis", default) or 0) % max(self.rank(), 1)

    def int(self, name: str, default: int = 0) -> int:
        """Return an attribute."""
        return self.node.attributes.get_int(name, default) or 0


AxisRule = Callable[[NodeShapes], Axes | None]
"""Returns how a node uses its axes; None if that is not known."""


def broadcast(given: NodeShapes) -> Axes:
    """All inputs are broadcast: their last axes meet."""
    rank = max(map(given.rank, given.slots), default=0)
    return Axes(_aligned(given, given.slots, rank), range(rank))


def _aligned(given: NodeShapes, slots: Iterable[int], rank: int) -> dict[int, Sequence[Label]]:
    return {slot: range(rank - given.rank(slot), rank) for slot in slots}


def repeated(given: NodeShapes) -> Axes:
    """The first input is broadcast to the output."""
    rank = len(given.shape(given.node.outputs[0]))
    return Axes(_aligned(given, [0], rank), range(rank), repeats=True)


def resized(given: NodeShapes) -> Axes | None:
    """Each axis is read alone, unless the image is cropped; sizes may change."""
    cropped = given.node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return None if cropped else Axes({0: range(given.rank())}, range(given.rank()), repeats=True)


def _acting(given: NodeShapes, along: Iterable[int], slots: Sequence[int] = (0,), keeps: bool = False) -> Axes:
    """The node acts along these axes, and keeps all; `keeps`: their sizes too."""
    rank = given.rank()
    acted = {axis % max(rank, 1) for axis in along}
    changed = [Mixed(n) if keeps else None for n in range(rank)]
    return Axes(dict.fromkeys(slots, range(rank)), [changed[n] if n in acted else n for n in range(rank)])


def alone(given: NodeShapes) -> Axes:
    """The node acts along no axis."""
    return _acting(given, ())


def along_axis(default: int, *, keeps: bool = False) -> AxisRule:
    """The node acts along the attribute `axis`."""
    return lambda given: _acting(given, [given.axis(default)], keeps=keeps)


def joining(given: NodeShapes) -> Axes:
    """The inputs are joined along the attribute `axis`."""
    return _acting(given, [given.axis(1)], given.slots)


def _from_axis(given: NodeShapes, default: int) -> Axes:
    """The node acts along all axes from the attribute `axis` on."""
    return _acting(given, range(given.axis(default), given.rank()), keeps=True)


def all_from(first: int, *, keeps: bool = False) -> AxisRule:
    """The node acts along all axes from `first` on."""
    return lambda given: _acting(given, range(first, given.rank()), keeps=keeps)


def along_channels(given: NodeShapes) -> Axes:
    """The node acts along axis 1."""
    return _acting(given, [1], keeps=True)


def first_only(rule: AxisRule) -> AxisRule:
    """Only the first input has rows. The others have a number per channel, or only give a type."""

    def of_first(given: NodeShapes) -> Axes | None:
        first = rule(given)
        return first and Axes({**dict.fromkeys(range(len(given.node.inputs)), ()), **first.inputs}, first.output)

    return of_first


def normalization(given: NodeShapes) -> Axes:
    """The node acts along all axes from the attribute `axis` on; scale and bias are broadcast."""
    return Axes(_aligned(given, given.slots, given.rank()), _from_axis(given, -1).output)


def quantization(given: NodeShapes) -> Axes | None:
    """The node acts along no axis. A scale of rank 1 is along the attribute `axis`; blocks with a scale each are
    unknown."""
    rank = given.rank()
    scales = [given.axis(1)] if given.rank(1) else []
    labels = {0: range(rank), **dict.fromkeys(range(1, len(given.node.inputs)), scales)}
    return None if given.rank(1) > 1 else Axes(labels, range(rank))


def softmax(given: NodeShapes) -> Axes:
    """The node acts along the attribute `axis`; before opset 13 along all axes from there on."""
    return _acting(given, [given.axis(-1)], keeps=True) if given.opset >= 13 else _from_axis(given, 1)


def reduction(given: NodeShapes) -> Axes:
    """The node acts along the parameter `axes`, or along all."""
    rank, axes = given.rank(), given.numbers("axes")
    along: Iterable[int] = range(rank) if axes is None else axes
    if not along and not given.int("noop_with_empty_axes"):
        along = range(rank)
    return _without_kept(given, _acting(given, along))


def arg_reduction(given: NodeShapes) -> Axes:
    """The node acts along the attribute `axis`."""
    return _without_kept(given, _acting(given, [given.axis(0)]))


def _without_kept(given: NodeShapes, acting: Axes) -> Axes:
    """Drop the axes along which a reduction acts, if it does not keep them."""
    kept = given.int("keepdims", 1)
    return acting if kept else Axes(acting.inputs, [label for label in acting.output if label is not None])


def cumulation(given: NodeShapes) -> Axes:
    """The node acts along the axis in the second input."""
    axes = given.numbers("axis")
    return _acting(given, range(given.rank()) if axes is None or len(axes) != 1 else axes, keeps=True)


def transform(given: NodeShapes) -> Axes | None:
    """The node acts along the parameter `axis`, and along the last one: the parts of a number."""
    axes = [given.int("axis", 1)] if given.opset < 20 else given.numbers("axis")
    return None if axes is None else _acting(given, [*(axes or [-2]), -1])


def written(given: NodeShapes) -> Axes:
    """The node acts along the attribute `axis`: positions that `indices` has. All inputs have the same axes."""
    return _acting(given, [given.axis(0)], given.slots, keeps=True)


def written_at(given: NodeShapes) -> Axes | None:
    """The node acts along the first axes: one for each number of a position. `updates` has the others."""
    value = given.node.inputs[1]
    numbers = given.shape(value)[-1] if value is not None and given.rank(1) else None
    count = None if numbers is None else numbers.constant
    if count is None:
        return None
    rank, acted = given.rank(), int(count)
    places: list[Label] = [("place", n) for n in range(given.rank(1) - 1)]
    inputs = {0: range(rank), 1: [*places, "numbers"], 2: [*places, *range(acted, rank)]}
    return Axes(inputs, [Mixed(n) if n < acted else n for n in range(rank)])


def mean_variance(given: NodeShapes) -> Axes:
    """The node acts along the attribute `axes`."""
    return _acting(given, given.node.attributes.get_ints("axes", ()) or (0, 2, 3), keeps=True)


def batch_normalization(given: NodeShapes) -> Axes:
    """The node acts on channels alone, and in training along all axes."""
    return _acting(given, range(given.rank()) if given.int("training_mode") else [1], keeps=True)


def matmul(given: NodeShapes) -> Axes:
    """The last two axes are those of matrices."""
    return _matmul(given.rank(0), given.rank(1))


def _matmul(*ranks: int) -> Axes:
    batch: list[list[Label]] = [[("batch", n) for n in range(rank - 2, 0, -1)] for rank in (*ranks, max(ranks))]
    rows: list[Label] = ["row"] if ranks[0] > 1 else []
    columns: list[Label] = ["column"] if ranks[1] > 1 else []
    inputs = {0: [*batch[0], *rows, "inner"], 1: [*batch[1], "inner", *columns]}
    return Axes(inputs, [*batch[2], *rows, *columns])


def fused_matmul(given: NodeShapes) -> Axes | None:
    """A MatMul of inputs whose last two axes may change places; where others do too, it is unknown."""
    if given.int("transBatchA") or given.int("transBatchB"):
        return None
    product = matmul(given)
    inputs = dict(product.inputs)
    for slot, name in enumerate(("transA", "transB")):
        if given.int(name) and given.rank(slot) > 1:
            *batch, first, second = inputs[slot]
            inputs[slot] = [*batch, second, first]
    return Axes(inputs, product.output)


def integer_product(a: int, b: int, of_rows: Sequence[int], of_columns: Sequence[int]) -> AxisRule:
    """A MatMul of the inputs a and b; scales and zero points of rank 1 have a number for each row or column."""

    def of_slots(given: NodeShapes) -> Axes | None:
        ranks = [given.rank(slot) for slot in (a, b)]
        product = _matmul(*ranks)
        scales = {slot: given.rank(slot) for slot in given.slots if slot not in (a, b)}
        if any(rank > 1 for rank in scales.values()):
            return None
        labels: dict[int, list[Label]] = {slot: ["row"] for slot in of_rows if scales.get(slot)}
        labels |= {slot: ["column"] for slot in of_columns if scales.get(slot)}
        factors = {a: product.inputs[0], b: product.inputs[1]}
        return Axes({**dict.fromkeys(scales, ()), **factors, **labels}, product.output)

    return of_slots


def gemm(given: NodeShapes) -> Axes:
    """A product of two matrices, and a sum that is broadcast."""
    added = "mn"[2 - given.rank(2) :] if len(given.node.inputs) > 2 else ""
    first, second = "km" if given.int("transA") else "mk", "nk" if given.int("transB") else "kn"
    return Axes({0: first, 1: second, 2: added}, "mn")


def einsum(given: NodeShapes) -> Axes:
    """An ellipsis stands for the axes that have no letter; without an arrow the result has the letters that are
    there once, in order."""
    equation = given.node.attributes.get_string("equation", "") or ""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms, letters = left.split(","), left.replace(".", "").replace(",", "")
    right = right if arrow else "..." * ("." in left) + "".join(c for c in sorted(letters) if letters.count(c) == 1)
    dots = [given.rank(slot) - len(term.replace(".", "")) for slot, term in enumerate(terms)]

    def labels(term: str, count: int) -> list[Label]:
        before, mark, behind = term.partition("...")
        return [*before, *(("dots", n) for n in range(count - 1, -1, -1) if mark), *behind]

    inputs = {slot: labels(term, dots[slot]) for slot, term in enumerate(terms)}
    return Axes(inputs, labels(right, max(dots)))


def gather(given: NodeShapes) -> Axes:
    """The axes of the indices replace the attribute `axis`."""
    data = range(given.rank())
    axis, rows = given.axis(0), [("row", n) for n in range(given.rank(1))]
    return Axes({0: data, 1: rows}, [*data[:axis], *rows, *data[axis + 1 :]])


def gather_elements(given: NodeShapes) -> Axes:
    """The node acts along the attribute `axis`, and along each axis of the indices whose size varies, unlike that
    of the data: each of its rows has a number."""
    data, indices = (
        [size is not None and size.varies for size in given.shape(value)]
        for value in given.node.inputs[:2]
        if value is not None
    )
    labels: list[Label] = [("number", n) if indices[n] and not data[n] else n for n in range(len(data))]
    return Axes({0: range(len(data)), 1: labels}, _acting(given, [given.axis(0)]).output, repeats=True)


def one_hot(given: NodeShapes) -> Axes:
    """An axis is added."""
    data = range(given.rank())
    added = given.int("axis", -1) % (len(data) + 1)
    return Axes({0: data}, [*data[:added], None, *data[added:]])


def transposition(given: NodeShapes) -> Axes | None:
    """The axes are in the order of the attribute `perm`, or reversed."""
    data = range(given.rank())
    perm = list(given.node.attributes.get_ints("perm", ()) or reversed(data))
    return Axes({0: data}, perm) if sorted(perm) == [*data] else None


def squeezed(given: NodeShapes) -> Axes | None:
    """The parameter `axes` says which axes are dropped; without it, the sizes do."""
    axes, rank = given.numbers("axes"), given.rank()
    dropped = {n % rank for n in axes or ()}
    return Axes({0: range(rank)}, [n for n in range(rank) if n not in dropped]) if dropped else None


def unsqueezed(given: NodeShapes) -> Axes | None:
    """The parameter `axes` says which axes are added."""
    axes, before = given.numbers("axes"), given.rank()
    if not axes:
        return None
    rank, data = before + len(axes), iter(range(before))
    added = {n % rank for n in axes}
    return Axes({0: range(before)}, [None if n in added else next(data) for n in range(rank)])


def sliced(given: NodeShapes) -> Axes | None:
    """The node acts along the parameter `axes`, or along all."""
    axes = given.numbers("axes")
    return None if axes is None else _acting(given, axes or range(given.rank()))


def reshaped(given: NodeShapes) -> Axes | None:
    """A Reshape copies the first axes, for which its target has zeros."""
    target = given.numbers("shape")
    if target is None or given.int("allowzero"):
        return None
    copied = len([*takewhile(lambda size: size == 0, target)])
    return Axes({0: range(given.rank())}, [n if n < copied else None for n in range(len(target))])
