"""The exports of a net as the comparison sees them: with the sizes and the names of outputs that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.files.reading import ModelSource, parse_file
from rnn_lowering.model.protobuf import as_proto, graphs_in
from rnn_lowering.model.scopes import all_names
from rnn_lowering.opening.open_dims import exported_dims
from rnn_lowering.options import Lowering
from rnn_lowering.types import SizeOrSizes


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
    exported = exported_dims(original.model, lowering.open_dims, lowering.dims)
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
