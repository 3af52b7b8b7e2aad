"""RNN, GRU, LSTM and DynamicQuantizeLSTM as a comparison needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference.op_run import OpRun

from rnn_lowering.compare.references import rnn_feeds, rnn_float64
from rnn_lowering.compare.references.node_reference import NodeReference, Symbols, attributes_of
from rnn_lowering.spec.rnn import RecurrentSpec
from rnn_lowering.types import Array


class RnnReference(NodeReference[RecurrentSpec]):
    """The reference of an RNN, GRU or LSTM; its attributes say how it quantizes what it multiplies."""

    @classmethod
    def of(cls, node: ir.Node, spec: RecurrentSpec) -> RnnReference:
        rounded = {rnn_float64.ROUNDED: "zeros" if spec.gives_sequence else "held"} if spec.rounds else {}
        return cls(spec, {name: a.value for name, a in node.attributes.items() if not a.is_ref()} | rounded)

    def outputs(self, inputs: Mapping[str, Array]) -> Symbols:
        return rnn_float64.evaluate(self.spec.op_type, self.attributes, inputs)

    def outputs_and_allowed(self, inputs: Mapping[str, Array]) -> tuple[Symbols, Symbols]:
        dtype = self.spec.dtype.numpy()
        return rnn_float64.float64_of_node(self.spec.op_type, self.attributes, inputs, dtype)

    def feeds(self, names: Mapping[str, str], rng: np.random.Generator) -> list[Symbols]:
        return rnn_feeds.feeds_of_node(self.spec, self.attributes, names, rng)

    def usual_feed(self, names: Mapping[str, str], rng: np.random.Generator, steps: int) -> Symbols:
        return rnn_feeds.usual_feed(self.spec, self.attributes, names, rng, steps)

    def single_rows(self, feeds: Sequence[Mapping[str, Array]]) -> list[Symbols]:
        """Return a feed for each row of the batch of a node that rounds; none where the batch size is fixed at more
        than 1.

        A row of length 0 is left out where Y is not connected: the kernel then reads memory that it never set.
        """
        spec = self.spec
        if not spec.rounds or spec.batch_size not in (None, 1):
            return []
        rows = [spec.of_rows(feed, slice(n, n + 1)) for feed in feeds for n in range(feed["X"].shape[1])]
        return [row for row in rows if spec.gives_sequence or row.get("sequence_lens", [1])[0]]

    def axes_of_a_row(self, symbol: str) -> tuple[int, ...]:
        """Return the axes that one direction of one row of the batch runs along."""
        return rnn_float64.axes_of_a_row(symbol, bool(self.spec.layout))


class _Recurrent(OpRun):
    """A recurrent operator for onnx's evaluator, in float64."""

    op_domain = ""

    def _run(self, *inputs: Array | None, **_: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        schema = onnx.defs.get_schema(node.op_type)
        symbols = [formal.name for formal in schema.inputs]
        given = {s: a for s, a in zip(symbols, inputs, strict=False) if a is not None and a.size}
        found = rnn_float64.evaluate(node.op_type, dict(attributes_of(node)), given)
        return tuple(found[formal.name] for formal in schema.outputs[: len(node.output)])


class RNN(_Recurrent):
    """RNN in float64."""


class GRU(_Recurrent):
    """GRU in float64."""


class LSTM(_Recurrent):
    """LSTM in float64."""
