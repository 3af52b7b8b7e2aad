"""One lowered node alone: extracted from the lowered model and run; its outputs by the specification in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.mapped import array_of
from rnn_lowering.model.copying import clone
from rnn_lowering.model.inference import known_inputs
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.prepare import sort_nodes
from rnn_lowering.model.scopes import Found, NodePlace, recurrent_nodes
from rnn_lowering.options import Lowering
from rnn_lowering.spec.node import GATES, RecurrentSpec
from rnn_lowering.types import Array
from rnn_lowering.verification import reference
from rnn_lowering.verification.as_lowered import as_folded, as_sized, computed_by_name
from rnn_lowering.verification.node_inputs import check_bytes
from rnn_lowering.verification.process import SessionError
from rnn_lowering.verification.rounded import rounds
from rnn_lowering.verification.runner import Ran, Runner, Session
from rnn_lowering.verification.stored_tensors import StoredTensors, root
from rnn_lowering.verification.subgraph import cut_out, order_of_nodes, sized, whole

_LONG = 256
"""More nodes get a session for each combination of sizes: with open sizes, creating one takes half a minute."""

_SIZES = {"seq_length": 7, "batch_size": 3, "input_size": 4}


@dataclass(frozen=True)
class IsolatedNode:
    """A recurrent node of the original and its lowered form.

    Attributes:
        place: Identifies it.
        spec: What the node specifies.
        attributes: Its attributes as Python values.
        feeds: The inputs that are not constants: symbol of the operator specification -> name of the value.
        cut: The subgraph that replaces it, as a model from those inputs to its connected outputs; None where the
            lowered model has none.
        whole: Returns the node itself as a model.
    """

    place: NodePlace
    spec: RecurrentSpec
    attributes: Mapping[str, Any]
    feeds: Mapping[str, str]
    cut: onnx.ModelProto | None
    whole: Callable[[], onnx.ModelProto]

    def random_feed(self, rng: np.random.Generator, **sizes: int) -> dict[str, Array]:
        """Return random inputs by symbol: ragged lengths, T and 0 among them; weights that keep states bounded.

        Args:
            sizes: What the node leaves open: seq_length (at least the longest constant length), batch_size and
                input_size.

        Raises:
            UnsupportedError: Its known sizes exceed the limit.
        """
        s = self.spec
        known = {size: getattr(s, size) for size in _SIZES if getattr(s, size) is not None}
        T, N, width = (_SIZES | sizes | known).values()
        check_bytes(s, T, N, width)
        if s.seq_length is None and "sequence_lens" in s.constants:
            T = max(T, int(s.constants["sequence_lens"].numpy().max(initial=0)))
        H = s.hidden_size
        dirs, rows = len(s.directions), GATES[s.op_type] * s.hidden_size
        shapes = {
            "X": (N, T, width) if s.layout else (T, N, width),
            "W": (dirs, rows, width),
            "R": (dirs, rows, H),
            "B": (dirs, 2 * rows),
            "P": (dirs, 3 * H),
        }
        state = (N, dirs, H) if s.layout else (dirs, N, H)
        feed: dict[str, Array] = {}
        for symbol in self.feeds:
            if symbol == "sequence_lens":
                feed[symbol] = rng.integers(0, T + 1, N).astype(np.int32)
                feed[symbol][1:2] = 0
                feed[symbol][:1] = T
                continue
            scale = 1.0 if symbol == "X" or symbol.startswith("initial") else H**-0.5
            feed[symbol] = rng.uniform(-scale, scale, shapes.get(symbol, state)).astype(s.dtype.numpy())
        first = {name: symbol for symbol, name in reversed(list(self.feeds.items()))}
        return {symbol: feed[first[name]] for symbol, name in self.feeds.items()}  # one value may enter twice

    def inputs(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """All its inputs by symbol: those of the feed and the constants."""
        return {**{symbol: array_of(tensor) for symbol, tensor in self.spec.constants.items()}, **feed}

    def expected(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The node's connected outputs by the operator specification, in float64."""
        result = reference.evaluate(self.spec.op_type, self.attributes, self.inputs(feed))
        return {symbol: result[symbol] for symbol in self.spec.outputs}


Symbols = dict[str, Array]


def run_node(
    node: IsolatedNode, feeds: Sequence[Symbols], runner: Runner, *, original: bool = False, ran: Ran = lambda: None
) -> Iterator[Symbols]:
    """Run a lowered node in onnxruntime, in one session; return its connected outputs by symbol, feed by feed.

    The arrays are mapped files, as `Run.outputs` returns them.

    Args:
        original: Run the node of the original.
        ran: Called after each feed.

    Raises:
        SessionError: onnxruntime cannot run it.
    """
    model = node.whole() if original else node.cut
    if model is None:
        raise SessionError(f"{node.spec.node} has no counterpart in the lowered model")
    named = [_named(node, model, feed) for feed in feeds]
    held: list[Mapping[str, Array]] = []
    try:
        for sizes, group in groupby(named, _sizes if len(model.graph.node) > _LONG else lambda _: {}):
            path = runner.folder / "node.onnx"
            proto = sized(model, sizes)
            onnx.save(proto, path)
            groups = [[runner.write_feed(feed)] for feed in group]
            for run in runner.run(Session(path, root(path), proto=proto), groups, ran).runs:
                if run.error:
                    raise SessionError(run.error)
                held.append(run.outputs())
    except SessionError as error:
        raise error.about(node.spec.node) from None
    return ({s: outputs[f"{k}:0"] for k, s in enumerate(node.spec.outputs)} for outputs in held)


def _sizes(feed: Symbols) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


def _named(node: IsolatedNode, model: onnx.ModelProto, feed: Mapping[str, Array]) -> Symbols:
    taken = {value.name for value in model.graph.input}
    arrays = {name: feed[symbol] for symbol, name in node.feeds.items() if name in taken}
    half = node.spec.dtype == ir.DataType.BFLOAT16
    return {n: a.astype(np.float32) if half and a.dtype.kind != "i" else a for n, a in arrays.items()}


def isolated_nodes(
    original: ir.Model, lowered: ir.Model, tensors: StoredTensors | None = None
) -> Iterator[IsolatedNode]:
    """Yield every recurrent node of the original that the lowered model no longer has.

    Functions that the lowered model no longer has are inlined first, as the lowering does: only where they are
    called do the attributes of their nodes become known. Sizes that the lowered model fixes are fixed first, since
    constants follow from them. The nodes of `original` are sorted in place.

    Args:
        tensors: Where large tensors of the models of single nodes are; None: in those models.

    Raises:
        RnnLoweringError: A node of the original cannot be read.
    """
    sort_nodes(original)
    original = as_sized(original, lowered)
    if original.functions.keys() - lowered.functions.keys():
        original = clone(original)
        most = max(Lowering.max_nodes, sum(1 for _ in lowered.graph.all_nodes()))  # a lowering makes no fewer
        inline_functions(original, lambda found: _identifier(found) not in lowered.functions, most)
    folded = as_folded(original, lowered)
    if folded is not original:
        nodes = list(_isolated(folded, lowered, tensors))
        if all(node.cut is not None for node in nodes):
            yield from nodes
            return
    yield from _isolated(original, lowered, tensors)  # the lowering did not fold


def _isolated(original: ir.Model, lowered: ir.Model, tensors: StoredTensors | None) -> Iterator[IsolatedNode]:
    """`isolated_nodes` of an original that is at the sizes of the lowered model, and folded as that is."""
    found = list(recurrent_nodes(original))
    values, order = computed_by_name(lowered), order_of_nodes(lowered)
    left = {(entry.path, v.name) for entry in recurrent_nodes(lowered) for v in entry.node.outputs}
    gone = [e for e in found if not left.intersection((e.path, v.name) for v in e.node.outputs if v.name)]
    known = known_inputs(original, gone)
    specs = [RecurrentSpec.parse(e.node, e.opset, e.scope, known) for e in gone]
    for entry, spec in zip(gone, specs, strict=True):
        if not spec.outputs:
            continue
        feeds = {s: v.name or "" for s, v in spec.inputs.items() if s not in spec.constants}
        found_values = [values.get((entry.path, v.name or "")) for v in spec.outputs.values()]
        outputs = [value for value in found_values if value is not None]
        cut = cut_out(lowered, order, outputs, feeds, spec, tensors) if len(outputs) == len(found_values) else None
        if cut is not None and not rounds(cut):
            spec = spec.as_floats()
        as_it_was = partial(whole, entry, spec, feeds, tensors)
        yield IsolatedNode(entry.place, spec, _attributes(entry, spec), feeds, cut, as_it_was)


def _identifier(found: Found) -> ir.OperatorIdentifier | None:
    return found.function.identifier() if found.function else None


def _attributes(entry: Found, spec: RecurrentSpec) -> dict[str, Any]:
    """Return the attributes of a node, and how it quantizes what it multiplies."""
    rounded = {reference.ROUNDED: "zeros" if spec.gives_sequence else "held"} if spec.rounds else {}
    return {name: a.value for name, a in entry.node.attributes.items() if not a.is_ref()} | rounded
