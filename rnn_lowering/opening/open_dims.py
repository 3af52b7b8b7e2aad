"""Open axes of inputs whose size an exporter fixed: exports at two sizes say which numbers were sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from shlex import quote

import onnx
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.errors import OptionError, UnsupportedError, warn
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.size import Shape, Size, size
from rnn_lowering.files.reading import ModelSource, parse_file
from rnn_lowering.model.copying import clone, inline_holders
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.model.model_sizes import forget_sizes
from rnn_lowering.model.onnx_checks import is_sound
from rnn_lowering.model.protobuf import as_proto, graphs_in
from rnn_lowering.model.scopes import all_names, sort_nodes
from rnn_lowering.opening.evidence import PAGE, SIZES, Evidence, Integers, deciding, refuse, told
from rnn_lowering.opening.lone_export import suspect
from rnn_lowering.opening.tables import Writer
from rnn_lowering.opening.walk import ExportWalk
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import ASSUMED
from rnn_lowering.passes.stages import Work
from rnn_lowering.types import ModelOrPath, SizeOrSizes

Sizes = Mapping[str, SizeOrSizes]
"""By name, the size of an axis that is declared open: in the only export, or in each."""

_Names = Mapping[tuple[str, int], str]
"""By input and axis, the name of its size."""

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
    work.report.notes += open_dims(work.model, lowering.open_dims, lowering.max_nodes, work.exported, also)


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
    names, values = _opened(exports, dims, sizes or {})
    if also:
        _check_exports(exports, names)
        _check_sizes(values)
    _check_least(values, 2 if also else 1)
    for export in exports:
        _prepare(export, most_nodes)
    if also:
        walk = _walk(exports, names, values)
        notes = walk.run()
    else:
        walk, notes = _alone(model, names, values)
    _declare(model, names, walk)
    return notes


def _alone(model: ir.Model, names: _Names, values: Mapping[str, Integers]) -> tuple[ExportWalk, list[str]]:
    """Open axes of the only export, if no number of it can have come from their sizes."""
    both = {symbol: (held[0], _ELSEWHERE + 2 * n) for n, (symbol, held) in enumerate(values.items())}
    walk = _walk([model, clone(model)], names, both)
    try:
        notes = walk.run()
        _declare(model, names, walk)
        if (found := suspect(model, [held[0] for held in values.values()], walk.known[0], walk.opened)) is not None:
            ref, fact = found
            raise refuse(ref, f"one export does not tell whether it follows {told(values)}: {fact}")
    except UnsupportedError as error:
        error.page = PAGE
        error.advise(_TWICE)
        raise
    notes.append(f"{ASSUMED}no weight follows from {told(values)}, which one export does not show")
    return walk, notes


def _walk(exports: Sequence[ir.Model], names: _Names, values: Mapping[str, Integers]) -> ExportWalk:
    model, evidence = exports[0], Evidence.of(values)
    inputs = {value.name: value for value in model.graph.inputs}
    evidence.origins |= {s: (inputs[name], axis) for (name, axis), s in names.items() if s in values}
    each = [{s: size(held[n]) for s, held in values.items()} for n in range(len(exports))]
    known = [KnownValues.start(e, _input_shapes(e, names, held)) for e, held in zip(exports, each, strict=True)]
    opened = KnownValues.start(model, _input_shapes(model, names, {}))
    return ExportWalk(exports, known, Writer(Names(all_names(model)), opened, evidence))


def _input_shapes(model: ir.Model, names: _Names, sizes: Mapping[str, Size]) -> dict[str, Shape]:
    """Return the shapes of inputs, with these sizes on the axes that are opened."""
    return {
        value.name or "": tuple(
            sizes.get(name, Size.symbol(name)) if name else size(int(str(dim)))
            for n, dim in enumerate(value.shape)
            for name in [names.get((value.name or "", n))]
        )
        for value in model.graph.inputs
        if value.shape is not None
    }


def _declare(model: ir.Model, names: _Names, walk: ExportWalk) -> None:
    """Declare the sizes of inputs and outputs."""
    for value in model.graph.inputs:
        if value.shape is not None:
            opened = [names.get((value.name or "", n), "") for n in range(len(value.shape))]
            dims = zip(opened, value.shape, strict=True)
            value.shape = ir.Shape([name if name in walk.evidence.axes else dim for name, dim in dims])
    named = {*names.values()}
    for value in model.graph.outputs:
        shape = walk.opened.shapes.get(value)
        if shape is not None:
            kept = ((d, d.constant) if d.symbols <= named else (None, None) for d in shape)
            value.shape = ir.Shape([str(d) if d and n is None else None if n is None else int(n) for d, n in kept])


def _prepare(model: ir.Model, most_nodes: int) -> None:
    """Inline the functions of an export, and sort its nodes."""
    inline_holders(model, list(model.functions), most_nodes)
    sort_nodes(model)
    if not is_sound(model):
        raise UnsupportedError(
            "the model is not valid, so its sizes cannot be followed", hint="check it with onnx.checker"
        )
    forget_sizes(model)


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


def _opened(
    exports: Sequence[ir.Model], dims: Mapping[str, str], sizes: Sizes
) -> tuple[dict[tuple[str, int], str], dict[str, Integers]]:
    """Return the name of each axis that is opened or was open, and the sizes of the first by name."""
    inputs = [value for value in exports[0].graph.inputs if not value.is_initializer()]
    axes = {(v.name or "", n): dim for v in inputs for n, dim in enumerate(v.shape or ())}
    free = {place: dim for place, dim in axes.items() if isinstance(dim, ir.SymbolicDim)}
    fixed = ", ".join(f"{name}:{n}" for name, n in axes if (name, n) not in free)
    listed = f"axes of fixed size are {fixed}" if fixed else "the model has no axis of fixed size"
    taken = {str(dim): f"axis {n} of '{name}'" for (name, n), dim in free.items()}
    names: dict[tuple[str, int], str] = {}
    values: dict[str, Integers] = {}
    for text, symbol in dims.items():
        name, _, number = text.rpartition(":")
        place = (name, int(number)) if number.isdecimal() else ("", -1)
        _require(place in axes, f"the model has no axis '{text}' to open", hint=listed)
        dim = str(axes[place])
        if place not in free:
            _require(
                symbol not in taken,
                f"'{symbol}' is already the name of {taken.get(symbol)}",
                hint=f"choose another name: --open-dim {quote(f'{text}=')}NAME",
            )
        _require(
            place not in free or dim in sizes,
            f"axis {number} of '{name}' is open already: its name is '{dim}'",
            hint=f"{listed}; if it runs at one size only, say which: --set-dim {quote(f'{dim}=')}?",
        )
        held = tuple(_size_in(export, place, sizes, n, len(exports)) for n, export in enumerate(exports))
        before = values.setdefault(symbol, held)
        _require(
            before == held,
            f"'{symbol}' is the name of axes of {before[0]} and {held[0]}",
            hint="give each size a name of its own",
        )
        names[place] = symbol
    alike = {str(free[place]): symbol for place, symbol in names.items() if place in free}
    unnamed = {place: alike.get(str(dim), dim.value or f"{place[0]}_{place[1]}") for place, dim in free.items()}
    return unnamed | names, values


def _size_in(export: ir.Model, place: tuple[str, int], sizes: Sizes, n: int, count: int) -> int:
    """Return the size of an axis in export number `n` of so many."""
    name, axis = place
    shape = next((value.shape for value in export.graph.inputs if value.name == name), None)
    if shape is None or axis >= len(shape):
        raise OptionError(f"another export has no axis '{name}:{axis}'", hint=_SAME_NET)
    dim = shape[axis]
    if isinstance(dim, int):
        return dim
    given = sizes.get(str(dim), ())
    held = ((given,) if count == 1 else ()) if isinstance(given, int) else given
    _require(
        len(held) == count,
        f"axis {axis} of '{name}' is declared open in {count} exports",
        hint=f"say which, the smallest first: --set-dim {quote(f'{dim}=')}{','.join('?' * count)}",
    )
    return held[n]


def _check_exports(exports: Sequence[ir.Model], names: _Names) -> None:
    """Check that the exports have one opset, and the same inputs but for the axes that are opened."""
    first = exports[0]
    for export in exports[1:]:
        versions = told(str(each.opset_imports.get("", "?")) for each in (first, export))
        same = export.opset_imports == first.opset_imports
        _require(same, f"the exports have opsets {versions}", hint="export both at the same opset")
        given = [[(v.name, v.dtype, len(v.shape or ())) for v in each.graph.inputs] for each in (first, export)]
        alike = given[0] == given[1] and len(first.graph.outputs) == len(export.graph.outputs)
        _require(alike, "the exports have different inputs or outputs", hint=_SAME_NET)
        for value, other in zip(first.graph.inputs, export.graph.inputs, strict=True):
            for axis, pair in enumerate(zip(value.shape or (), other.shape or (), strict=True)):
                fits = (value.name, axis) in names or pair[0] == pair[1]
                _require(
                    fits,
                    f"axis {axis} of '{value.name}' is {told(pair)}",
                    hint=f"open it too: --open-dim {quote(f'{value.name}:{axis}=')}NAME",
                )


def _check_sizes(values: Mapping[str, Integers]) -> None:
    """Check that the sizes of the exports tell the axes apart; warn of sizes that decide badly."""
    for symbol, held in values.items():
        fact = f"'{symbol}' is {told(held)}: the files are in the wrong order"
        _require(len(set(held)) > 1, f"all exports have a size of {held[0]} for '{symbol}'", hint=SIZES)
        _require(min(held) == held[0], fact, hint="give the smallest first")
    rows = list(zip(*values.values(), strict=True))
    _require(len(set(rows)) == len(rows), "two exports have the same sizes", hint=SIZES)
    for first, second in combinations(values, 2):
        same = f"'{first}' and '{second}' are both {told(values[first])}"
        _require(values[first] != values[second], same, hint="export at sizes that no other axis has")
    for symbol, held in values.items():
        if fact := deciding(set(held)):
            warn(f"the sizes {told(held)} of '{symbol}' {fact}: numbers may be read wrongly; better are 11 and 160")


def _check_least(values: Mapping[str, Integers], least: int) -> None:
    """Check that the first size of each axis is not smaller: many numbers that are no size equal 0 or 1."""
    for symbol, held in values.items():
        _require(
            held[0] >= least,
            f"a size of {held[0]} for '{symbol}' tells nothing",
            hint="export at sizes such as 5 and 12",
        )


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
