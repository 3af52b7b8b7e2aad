"""`Session`: a model as onnxruntime runs it, with more outputs and open axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import onnx

from rnn_lowering.compare.coverage import Branch, observe
from rnn_lowering.facts.operators import moved_inputs, operator_of
from rnn_lowering.files.data_folders import from_the_root, read_parameters
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.model.protobuf import bodies_in, graphs_in, nodes_in
from rnn_lowering.model.scopes import REPEATING
from rnn_lowering.nodes.kinds import CELLS, DYNAMIC_QUANTIZE_LSTM, is_recurrent, role_of

_MANY_WEIGHTS = 1000


@dataclass(frozen=True)
class Session:
    """A model that is prepared for a run.

    Attributes:
        model: Path of the model.
        data: The folder that external data is relative to; None for the model's own.
        optimize: Whether onnxruntime optimizes the graph.
        proto: The parsed file; None to parse it on demand.
        branches: The branches whose conditions it returns.
        operators: Those of the model; None if that is not known.
        is_external: Whether tensors may be in data files.
    """

    model: Path
    data: Path | None = None
    optimize: bool = True
    proto: onnx.ModelProto | None = field(default=None, repr=False, compare=False)
    branches: tuple[Branch, ...] = field(default=(), repr=False, compare=False)
    operators: Collection[str] | None = field(default=None, repr=False, compare=False)
    is_external: bool = True

    @property
    def parsed(self) -> onnx.ModelProto:
        return self.proto or onnx.load(self.model, load_external_data=False)

    @property
    def one_thread(self) -> bool:
        """Whether it runs with one thread, because its results depend on the number of threads."""
        with suppress(Exception):  # a model that cannot be read is onnxruntime's to refuse
            operators = operator_counts(self.parsed) if self.operators is None else self.operators
            return DYNAMIC_QUANTIZE_LSTM in operators
        return False

    @property
    def has_many_weights(self) -> bool:
        """Whether it has so many that onnxruntime packs them: the time to load them unpacked grows with the square
        of their number."""
        with suppress(Exception):  # as above
            return len(self.parsed.graph.initializer) > _MANY_WEIGHTS
        return False


def session_with(
    original: ModelSource,
    path: Path,
    outputs: Iterable[str],
    axes: Mapping[str, int] | None = None,
    late: Mapping[str, int] | None = None,
    *,
    observed: bool = False,
) -> Session:
    """Return a session of the original with more outputs, with open input axes, and with states before the end.

    Args:
        original: The model.
        path: The file for the changed model.
        outputs: The names of the values to return too; those outside the main graph are ignored.
        axes: The axis that gets no fixed size, by input name.
        late: By the name of an output: how many frames before the end its states are (`states_returned`).
        observed: Return the conditions of Ifs too.

    Raises:
        ModelFileError: Its data is missing, or outside its folder.
    """
    proto = deepcopy(original.proto)
    if original.is_external:  # onnxruntime does not read them there, and other runtimes may
        read_parameters(proto, original.path, trust=original.trust)
    _open_axes(proto, axes or {})
    _return_earlier_states(proto, late or {})
    inner = {name for node in proto.graph.node for name in node.output if name}
    inner -= {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(outputs) if name in inner)
    branches = observe(proto) if observed else ()
    return replace(_saved(proto, original, path), branches=branches)


def session_of_original(original: ModelSource, folder: Path, *, observed: bool) -> Session:
    """Return the session of an original that returns what its recurrent nodes get, and if it is `observed` which
    branches it takes."""
    path = folder / ("observed.onnx" if observed else "original.onnx")
    return session_with(original, path, recurrent_inputs(original.proto), observed=observed)


def nodes_by_output(proto: onnx.ModelProto) -> dict[str, str]:
    """Return what to call the node of each computed value of the main graph, in order."""
    return {
        name: f"{node.op_type} node '{node.name or f'-> {name}'}'"
        for node in proto.graph.node
        for name in node.output
        if name
    }


_RECURRENT = (*(name for domain, name in CELLS if not domain), "Scan")


def states_returned(proto: onnx.ModelProto, output: str) -> dict[str, onnx.NodeProto]:
    """Return the last states that an output rearranges, each with its recurrent node or Scan of the main graph. If
    another node computes part of the output, return none."""
    sources = {name: node for node in proto.graph.node for name in node.output if name}
    states, pending = dict[str, onnx.NodeProto](), [output]
    while pending:
        name = pending.pop()
        node = sources.get(name)
        if node is None or (node.domain == "" and node.op_type == "Constant"):
            continue
        if node.domain or not (node.op_type in _RECURRENT or operator_of(node).moves):
            return {}
        if node.op_type in _RECURRENT:
            states[name] = node
        else:
            pending += node.input[: moved_inputs(node)]
    return states


def _return_earlier_states(proto: onnx.ModelProto, late: Mapping[str, int]) -> None:
    """Let outputs return states of some frames before the end: copies of their nodes compute them."""
    earlier = {state: n for output, n in late.items() for state in states_returned(proto, output)}
    if not earlier:
        return
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        copies = [
            each for name in node.output if name in earlier for each in _earlier(proto, node, name, earlier[name])
        ]
        proto.graph.node.extend([node, *copies])


def _earlier(proto: onnx.ModelProto, node: onnx.NodeProto, state: str, frames: int) -> list[onnx.NodeProto]:
    """Take a state from its node, and return nodes that compute it for so many frames before the end."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    count = attributes.get("num_scan_inputs", 0)
    rows = range(len(node.input) - count, len(node.input)) if count else range(1)
    axes = attributes.get("scan_input_axes") or [attributes.get("layout", 0)] * len(rows)
    copy, prefix, cuts = deepcopy(node), f"{state}_earlier", []
    copy.name = prefix
    copy.output[:] = [name if name in ("", state) else f"{prefix}_{n}" for n, name in enumerate(node.output)]
    node.output[:] = [f"{prefix}_whole" if name == state else name for name in node.output]
    for slot, axis in zip(rows, axes, strict=True):
        name = copy.input[slot] = f"{prefix}_input_{slot}"
        cuts += _without_last(proto, node.input[slot], name, frames, axis)
    return [*cuts, copy]


def _without_last(proto: onnx.ModelProto, value: str, name: str, count: int, axis: int) -> list[onnx.NodeProto]:
    """Return the nodes that compute a value without its last rows along an axis."""
    bounds: dict[str, Any] = {"starts": [0], "ends": [-count], "axes": [axis]}
    if next(entry.version for entry in proto.opset_import if not entry.domain) < 10:
        return [onnx.helper.make_node("Slice", [value], [name], **bounds)]
    nodes = []
    for bound, numbers in bounds.items():
        tensor = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], numbers)
        nodes.append(onnx.helper.make_node("Constant", [], [f"{name}_{bound}"], value=tensor))
    return [*nodes, onnx.helper.make_node("Slice", [value, *(f"{name}_{bound}" for bound in bounds)], [name])]


def has_fixed(proto: onnx.ModelProto, axes: Mapping[str, int]) -> bool:
    """Whether any of these input axes has a fixed size."""
    return any(dim.HasField("dim_value") for dim in _dims(proto, axes))


def _dims(proto: onnx.ModelProto, axes: Mapping[str, int]) -> list[onnx.TensorShapeProto.Dimension]:
    return [v.type.tensor_type.shape.dim[axes[v.name]] for v in proto.graph.input if v.name in axes]


def _open_axes(proto: onnx.ModelProto, axes: Mapping[str, int]) -> None:
    """Remove the fixed sizes of input axes."""
    if has_fixed(proto, axes):
        for dim in _dims(proto, axes):
            dim.dim_param = "frames"
        _drop_shapes(proto.graph)


def _drop_shapes(graph: onnx.GraphProto) -> None:
    """Remove the declared shapes of computed values."""
    for inner in graphs_in(graph):
        del inner.value_info[:]
        for value in inner.output:
            value.type.tensor_type.ClearField("shape")


def session_of(model: ModelSource, scratch: Path, misread: Collection[str] = ()) -> Session:
    """Return a session of a model, with workarounds for some of its `misread_nodes`.

    Args:
        model: The model.
        scratch: The folder for a changed model.
        misread: The nodes that get a workaround, by first output.
    """
    repaired = with_identities(model.proto, misread)
    if repaired is model.proto:
        return _session(model.path, None, repaired, model)
    return _saved(repaired, model, scratch / f"repaired_{model.path.name}", ())


def _saved(
    proto: onnx.ModelProto, original: ModelSource, path: Path, misread: Collection[str] | None = None
) -> Session:
    proto = with_identities(proto, misread_nodes(proto) if misread is None else misread)
    # onnxruntime follows no links, and the copy is in another folder
    if original.is_external:
        from_the_root(proto, original.path, trust=original.trust)
    onnx.save(proto, path)
    return _session(path, Path(original.path.anchor), proto, original)


def _session(path: Path, data: Path | None, proto: onnx.ModelProto, source: ModelSource) -> Session:
    """Return a session of a model that was made from the message of another."""
    return Session(path, data, proto=proto, operators=source.operators, is_external=source.is_external)


def recurrent_inputs(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of the recurrent nodes' inputs, which must be finite, as onnxruntime's kernels drop NaN, and
    of the numbers of steps of Loops."""
    for node in proto.graph.node:
        if node.op_type == "Loop" and node.input[0]:
            yield node.input[0]
        elif is_recurrent(node):
            roles = [role_of(node, slot) for slot in range(len(node.input))]
            yield from (n for n, r in zip(node.input, roles, strict=True) if n and (r.is_data or r.is_state))


def outputs_of_rows(graph: onnx.GraphProto) -> set[str]:
    """Return the outputs of a graph that a Loop stacks."""
    stacked = {
        name for node in graph.node if node.op_type == "Loop" for name in node.output[max(len(node.input) - 2, 0) :]
    }
    return stacked & {value.name for value in graph.output}


def operator_counts(proto: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model in all scopes and domains."""
    return Counter(node.op_type for node in nodes_of(proto))


def quantizes_inputs(proto: onnx.ModelProto) -> bool:
    """Whether a model quantizes values at run time, by their range."""
    return "DynamicQuantizeLinear" in operator_counts(proto)


# Loops and Scans that onnxruntime misreads, and their repair for a comparison.


def misread_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Return descriptions of the Loops and Scans that onnxruntime misreads, by first output."""
    misread = filter(_is_misread, nodes_of(model))
    return {_key(node): f"{node.op_type} node '{node.name or _key(node)}'" for node in misread}


def repairs_note(nodes: Mapping[str, str]) -> str:
    """Return a note on the workarounds for `misread_nodes`; "" if there are none."""
    if not nodes:
        return ""
    some = ", ".join(list(nodes.values())[:3]) + (", ..." if len(nodes) > 3 else "")
    return (
        "onnxruntime misreads a body that returns its own input, or an output without a name: an "
        f"Identity or a name was added for the comparison ({some})"
    )


def with_identities(model: onnx.ModelProto, nodes: Collection[str]) -> onnx.ModelProto:
    """Return a model in which the bodies of these nodes return Identities, and all their outputs have names; the
    same model if it has none of the nodes."""
    if not nodes or not any(_key(node) in nodes for node in nodes_of(model) if _is_misread(node)):
        return model
    copy = deepcopy(model)
    taken = {name for node in nodes_of(copy) for name in (*node.input, *node.output)}
    names = (name for n in count() if (name := f"returned_{n}") not in taken)
    for node in nodes_of(copy):
        if _key(node) in nodes:
            node.output[:] = [name or next(names) for name in node.output]
            body = _body(node)
            misread = _misread_outputs(body)
            for value, name in zip([v for v in body.output if v.name in misread], names, strict=False):
                body.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
                value.name = name
    return copy


def _is_misread(node: onnx.NodeProto) -> bool:
    unnamed = "" in node.output  # onnxruntime crashes when it runs such a Loop
    return node.op_type in REPEATING and (unnamed or bool(_misread_outputs(_body(node))))


def _misread_outputs(body: onnx.GraphProto) -> set[str]:
    returned = [value.name for value in body.output]
    given = {value.name for value in (*body.input, *body.initializer)}
    return {name for name in returned if name in given or returned.count(name) > 1}


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(bodies_in(node), onnx.GraphProto())


def _key(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output), "")


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in (model.graph, *model.functions):
        yield from nodes_in(graph)
