"""Open axes of inputs whose size an exporter fixed: exports at two sizes say which numbers were sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shlex import quote

import onnx
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import OptionError, UnsupportedError, warn
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.files.reading import ModelSource, parse_file
from rnn_lowering.model.copying import clone, inline_holders
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.model.model_sizes import forget_sizes
from rnn_lowering.model.onnx_checks import is_anonymous, is_sound
from rnn_lowering.model.protobuf import as_proto, graphs_in
from rnn_lowering.model.scopes import all_names, sort_nodes
from rnn_lowering.opening.evidence import PAGE, SIZES, Evidence, Integers, refuse, told
from rnn_lowering.opening.lone_export import suspect
from rnn_lowering.opening.tables import Writer
from rnn_lowering.opening.walk import ExportWalk, shapes_at
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import ASSUMED
from rnn_lowering.passes.stages import Work
from rnn_lowering.types import ModelOrPath, SizeOrSizes

Sizes = Mapping[str, SizeOrSizes]
"""By name, the size of an axis that is declared open: in the only export, or in each."""

_FEWEST = 7
"""Sizes that differ by less decide badly."""

_SMALL_FACTORS = (2 * 3 * 5 * 7) ** 20
"""What divides it is a product of small numbers."""

_ELSEWHERE = 10007
"""A prime: one export is inferred at this size too."""

_TWICE = f"{SIZES}, and add the larger one: --also LONG.onnx"
_SAME_NET = "export the same net at both sizes"


def open_axes(work: Work) -> None:
    """Open the axes that the options name: a stage."""
    lowering = work.lowering
    work.exported = _exported_dims(work.model, lowering.open_dims, lowering.dims)
    also = [_model_of(given) for given in lowering.also]
    if lowering.raise_loops:  # the number of steps of a traced loop is a size too
        from rnn_lowering.loops.door import raise_all
        from rnn_lowering.loops.stage import raise_cells

        raise_cells(work)
        also = [raise_all(export, lowering).model for export in also]
    try:
        work.report.notes += open_dims(work.model, lowering.open_dims, lowering.max_nodes, work.exported, also)
    except UnsupportedError as error:
        if lowering.raise_loops or not also or not _is_traced(work.model):
            raise
        told = UnsupportedError(
            error.reason, hint="a loop was traced step by step: add --raise-loops", node=error.node
        )
        told.page = "loops.md#a-loop-that-was-traced-step-by-step"
        raise told from error


def _is_traced(model: ir.Model) -> bool:
    """Whether the steps of a loop are nodes of a model, as in an export that was traced."""
    from rnn_lowering.loops.door import traced_loops

    return any(traced_loops(model))


def _exported_dims(model: ir.Model, axes: Mapping[str, str], dims: Sizes) -> dict[str, SizeOrSizes]:
    """Return which of some sizes are the names of axes to open: the exports have them."""
    inputs = {value.name: value.shape or () for value in model.graph.inputs}
    places = (text.rpartition(":") for text in axes)
    names = {str(d) for name, _, axis in places for n, d in enumerate(inputs.get(name, ())) if axis == str(n)}
    return {name: held for name, held in dims.items() if name in names}


def open_dims(
    model: ir.Model,
    dims: Mapping[str, str],
    most_nodes: int,
    sizes: Sizes | None = None,
    also: Sequence[ir.Model] = (),
) -> list[str]:
    """Open axes of inputs in place; return what was changed, as text.

    Args:
        model: The model.
        dims: By INPUT:AXIS, the name that the size gets.
        most_nodes: Maximum nodes, once functions are inlined.
        sizes: Sizes of axes that are declared open.
        also: The same net at larger sizes; without one no number may be a size. They are changed too.

    Raises:
        OptionError: An axis that the model does not have, or that is open already; exports that do not fit.
        UnsupportedError: A number may be several sizes or none, or the exports are not the same net.
    """
    exports = [model, *also]
    _check_exports(exports)
    values = _opened(exports, dims, sizes or {})
    _check_sizes(values)
    for export in exports:
        inline_holders(export, list(export.functions), most_nodes)
        sort_nodes(export)
        if not is_sound(export):
            raise UnsupportedError(
                "the model is not valid, so its sizes cannot be followed", hint="check it with onnx.checker"
            )
        forget_sizes(export)
    if also:
        return _walked(exports, values)[1]
    try:
        both = {symbol: (held[0], _ELSEWHERE + 2 * n) for n, (symbol, held) in enumerate(values.items())}
        walk, notes = _walked([model, clone(model)], both)
        if (found := suspect(model, [held[0] for held in values.values()], walk.known[0], walk.opened)) is not None:
            raise refuse(found[0], f"one export does not tell whether it follows {told(values)}: {found[1]}")
    except UnsupportedError as error:
        error.page = PAGE
        error.advise(_TWICE)
        raise
    return [*notes, f"{ASSUMED}no weight follows from {told(values)}, which one export does not show"]


def _walked(exports: Sequence[ir.Model], values: Mapping[str, Integers]) -> tuple[ExportWalk, list[str]]:
    """Open the first of the exports, and declare the sizes of its outputs; return what was changed."""
    model, evidence = exports[0], Evidence(dict(values.items()))
    for value in model.graph.inputs:
        origins = {str(dim): (value, n) for n, dim in enumerate(value.shape or ())}
        evidence.origins |= {symbol: origins[symbol] for symbol in values.keys() & origins.keys()}
    given = shapes_at(model, {})
    opened = KnownValues.start(model, given)
    walk = ExportWalk(exports, Writer(Names(all_names(model)), opened, evidence))
    notes = walk.run()
    named = {symbol for shape in given.values() for dim in shape for symbol in dim.symbols}
    for value in model.graph.outputs:
        if (dims := opened.shapes.get(value)) is not None:
            sizes = [
                (str(dim) if dim.symbols else int(dim.at({}))) if dim.symbols <= named else None for dim in dims
            ]
            value.shape = ir.Shape(sizes)
    return walk, notes


# What is given


def _require(holds: bool, reason: str, *, hint: str) -> None:
    if not holds:
        raise OptionError(reason, hint=hint)


def _model_of(given: ModelOrPath) -> ir.Model:
    """Return another export as a model of its own."""
    if isinstance(given, ir.Model):
        return clone(given)
    if isinstance(given, onnx.ModelProto):
        return from_proto(given)
    from rnn_lowering.files.reading import load_model

    return load_model(Path(given))


def _check_exports(exports: Sequence[ir.Model]) -> None:
    """Check that the exports have one opset, and inputs of the same names, types and ranks."""
    imports = [export.opset_imports for export in exports]
    versions = told(each.get("", "?") for each in imports)
    same = all(each == imports[0] for each in imports)
    _require(same, f"the exports have opsets {versions}", hint="export both at the same opset")
    inputs = [[(v.name, v.dtype, len(v.shape or ())) for v in export.graph.inputs] for export in exports]
    alike = all(each == inputs[0] for each in inputs) and len({len(each.graph.outputs) for each in exports}) == 1
    names = told(", ".join(f"'{name}'" for name, _, _ in each) for each in inputs)
    _require(alike, f"the exports have different inputs ({names}) or outputs", hint=_SAME_NET)


def _opened(exports: Sequence[ir.Model], dims: Mapping[str, str], sizes: Sizes) -> dict[str, Integers]:
    """Give names to the axes that are opened, in place; return their sizes by name."""
    inputs = [[value for value in export.graph.inputs if not value.is_initializer()] for export in exports]
    places = [(value.name or "", n) for value in inputs[0] for n, _ in enumerate(value.shape or ())]
    rows = zip(*([dim for value in each for dim in value.shape or ()] for each in inputs), strict=True)
    axes = dict(zip(places, rows, strict=True))
    free = {place: str(row[0]) for place, row in axes.items() if isinstance(row[0], ir.SymbolicDim)}
    fixed = ", ".join(f"{name}:{n}" for name, n in axes if (name, n) not in free)
    listed = f"axes of fixed size are {fixed}" if fixed else "the model has no axis of fixed size"
    taken = {old: f"axis {n} of '{name}'" for (name, n), old in free.items()}
    names: dict[tuple[str, int], str] = {}
    values: dict[str, Integers] = {}
    for text, symbol in dims.items():
        name, _, number = text.rpartition(":")
        place = (name, int(number)) if number.isdecimal() else ("", -1)
        _require(place in axes, f"the model has no axis '{text}' to open", hint=listed)
        if (old := free.get(place)) is None:
            fact = f"'{symbol}' is already the name of {taken.get(symbol)}"
            _require(symbol not in taken, fact, hint=f"choose another name: --open-dim {quote(f'{text}=')}NAME")
        else:
            fact, say = f"axis {number} of '{name}' is open already: its name is '{old}'", quote(f"{old}=")
            _require(old in sizes, fact, hint=f"{listed}; if it runs at one size only, say which: --set-dim {say}?")
        held = tuple(_size_in(dim, text, sizes, n, len(exports)) for n, dim in enumerate(axes[place]))
        before = values.setdefault(symbol, held)
        fact = f"'{symbol}' is the name of axes of {before[0]} and {held[0]}"
        _require(before == held, fact, hint="give each size a name of its own")
        names[place] = symbol
    alike = {free[place]: symbol for place, symbol in names.items() if place in free}
    names |= {place: alike[old] for place, old in free.items() if old in alike}
    for (name, n), row in axes.items():
        said = {None if is_anonymous(dim) else str(dim) for dim in row}
        fact, same = f"axis {n} of '{name}' is {told(row)}", (name, n) in names or len(said) == 1
        _require(same, fact, hint=f"open it too: --open-dim {quote(f'{name}:{n}=')}NAME")
    for value in (value for each in inputs for value in each if value.shape is not None):
        value.shape = ir.Shape([names.get((value.name or "", n), dim) for n, dim in enumerate(value.shape or ())])
    return values


def _size_in(dim: int | ir.SymbolicDim, text: str, sizes: Sizes, n: int, count: int) -> int:
    """Return the size of an axis in export number `n` of so many."""
    if isinstance(dim, int):
        return dim
    given = sizes.get(str(dim), ())
    held = (given,) * (count == 1) if isinstance(given, int) else given
    fact, say, all_sizes = (
        f"axis '{text}' is declared open in {count} exports",
        quote(f"{dim}="),
        ",".join("?" * count),
    )
    _require(len(held) == count, fact, hint=f"say which, the smallest first: --set-dim {say}{all_sizes}")
    return held[n]


def _check_sizes(values: Mapping[str, Integers]) -> None:
    """Check that the sizes of the exports tell the axes apart; warn of sizes that decide badly."""
    for symbol, held in values.items():
        several = len(held) > 1
        fact = f"all exports have a size of {held[0]} for '{symbol}'"
        _require(len({*held}) > 1 or not several, fact, hint=SIZES)
        fact = f"'{symbol}' is {told(held)}: the files are in the wrong order"
        _require(min(held) == held[0], fact, hint="give the smallest first")
        fact = f"a size of {held[0]} for '{symbol}' tells nothing"  # many numbers that are no size are 0 or 1
        _require(held[0] > several, fact, hint="export at sizes such as 5 and 12")
        if several and (fact := _deciding(sorted({*held}))):
            warn(f"the sizes {told(held)} of '{symbol}' {fact}: numbers may be read wrongly; better are 11 and 160")
        for other in (other for other, same in values.items() if several and same == held and other != symbol):
            fact = f"'{symbol}' and '{other}' are both {told(held)}"
            raise OptionError(fact, hint="export at sizes that no other axis has")
    rows = [*zip(*values.values(), strict=True)]
    _require(len({*rows}) == len(rows), "two exports have the same sizes", hint=SIZES)


def _deciding(sizes: Sequence[int]) -> str:
    """Return why sizes of exports decide badly; "" if they decide well."""
    steps = [b - a for a, b in pairwise(sizes)]
    if max(steps) < _FEWEST:
        return f"differ by {told(steps)} only"
    decides = max(steps) == _FEWEST or any(_SMALL_FACTORS % step for step in steps)
    return "" if decides else f"differ by {told(steps)}, a product of small numbers"


# The exports of a net as the comparison sees them: with the sizes and the names of outputs that they share.


def exports_of(original: ModelSource, lowering: Lowering, *, trust_external_data: bool) -> list[ModelSource]:
    """Return the original and its other exports for the comparison: with sizes that they declare open, but were
    exported with."""
    exports = [original]
    for given in lowering.also:
        if isinstance(given, onnx.ModelProto | ir.Model):
            source = ModelSource(Path(), as_proto(given) if isinstance(given, ir.Model) else given)
        else:
            source = parse_file(Path(given), trust_external_data=trust_external_data)
        exports.append(_with_names(source, original.proto.graph.output))
    exported = _exported_dims(original.model, lowering.open_dims, lowering.dims)
    return [_at_sizes(source, exported, n) for n, source in enumerate(exports)] if exported else exports


def sizes_of(exports: Iterable[ModelSource], axes: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the sizes of opened axes in each export, by name."""
    inputs = [{value.name: value.type.tensor_type.shape.dim for value in e.proto.graph.input} for e in exports]
    places = {name: text.rpartition(":")[::2] for text, name in axes.items()}
    return {name: [dims[given][int(axis)].dim_value for dims in inputs] for name, (given, axis) in places.items()}


def _at_sizes(source: ModelSource, exported: Mapping[str, SizeOrSizes], n: int) -> ModelSource:
    """Return export number `n` with the sizes that axes have which it declares open."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    for dim in (dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim):
        if dim.dim_param in exported:
            held = exported[dim.dim_param]
            dim.dim_value = held if isinstance(held, int) else held[n]
    return replace(source, proto=proto)


def _with_names(source: ModelSource, outputs: Sequence[onnx.ValueInfoProto]) -> ModelSource:
    """Return an export whose outputs have these names: an exporter may number the values of each graph anew."""
    old, new = ([value.name for value in values] for values in (source.proto.graph.output, outputs))
    if old == new or len(old) != len(new):
        return source
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    names = Names(all_names(source.model))
    renamed = {name: names.unique(name) for name in {*new} - {*old}} | dict(zip(old, new, strict=True))
    for graph in graphs_in(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = renamed.get(value.name, value.name)
        for node in graph.node:
            for values in (node.input, node.output):
                values[:] = [renamed.get(name, name) for name in values]
    return replace(source, proto=proto)
