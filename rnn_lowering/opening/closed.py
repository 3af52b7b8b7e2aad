"""Axes that a model declares open, though it runs at one size only: an exporter has frozen it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

import onnx_ir as ir

from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import KnownValues, SizingError, add_initializers
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.facts.operators import bodies_of
from rnn_lowering.facts.size import size
from rnn_lowering.model.copying import clone, inline_holders
from rnn_lowering.model.model_sizes import forget_sizes, open_names
from rnn_lowering.model.scopes import sort_nodes
from rnn_lowering.opening.evidence import PAGE

_TRIED = (48, 7, 240, 2, 5, 16, 5040, 97)
"""Sizes of an open axis: multiples of many numbers, and small ones. A model that fits two of them is open."""

_MOST_NUMBERS = 64


def closed_axes(model: ir.Model, most_nodes: int) -> list[str]:
    """Return notes on axes of inputs that are declared open, at whose sizes the model is not valid but for one."""
    work, names = clone(model), open_names(model)
    inline_holders(work, list(work.functions), most_nodes)
    sort_nodes(work)
    forget_sizes(work)
    if not names or len([*islice(_fitting(work, names, _TRIED), 2)]) > 1:
        return []
    for name in names:
        for other in _TRIED[:3]:
            rest = {each: other for each in names if each != name}
            found = [n for n in _numbers(work) if _fits(work, rest | {name: n})]
            if len(found) == 1 and not any(_fits(work, rest | {name: n}) for n in _TRIED if n not in found):
                return [f"'{name}' is declared open, but the model fits {name} = {found[0]} only (docs/{PAGE})"]
    return []


def _fitting(model: ir.Model, names: Iterable[str], sizes: Iterable[int]) -> Iterator[int]:
    """Yield sizes that the model accepts for all open axes."""
    return (n for n in sizes if _fits(model, dict.fromkeys(names, n)))


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
