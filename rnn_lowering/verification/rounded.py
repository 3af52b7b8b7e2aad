"""Models with DynamicQuantizeLSTM, which rounds X and H to 8 bits: how they run, and what their lowering changes.

onnxruntime's kernel quantizes rows of the batch in as many groups as there are threads, each with a range of its
own. With one row there is one range: the kernel and an exact lowering then compute the same numbers. Beside float64
they do not, since any rounding may tip a number over to the next of the 8 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import onnx

from rnn_lowering.options import Tolerance
from rnn_lowering.spec.dynamic import OPERATOR
from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.types import Array
from rnn_lowering.verification.rows import of_rows

BESIDE_KERNEL = Tolerance(rtol=1e-5, atol=1e-6)
"""By how much one row may differ from onnxruntime's kernel."""


def count_operators(proto: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model, whatever their domains, in all scopes."""
    return Counter(n.op_type for graph in (proto.graph, *proto.functions) for n in all_nodes(graph))


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from all_nodes(body)


def depends_on_threads(proto: onnx.ModelProto) -> bool:
    """Whether the results of a model change with the number of threads of onnxruntime."""
    return OPERATOR in count_operators(proto)


def rounds(proto: onnx.ModelProto) -> bool:
    """Whether a model quantizes something by its range at run time."""
    return "DynamicQuantizeLinear" in count_operators(proto)


def what_changed(original: onnx.ModelProto, lowered: onnx.ModelProto, largest: float) -> list[str]:
    """Say how DynamicQuantizeLSTM was run, and by how much the results differ without its rounding.

    Args:
        largest: The largest difference of the outputs.
    """
    before = count_operators(original)
    if OPERATOR not in before:
        return []
    after = count_operators(lowered)
    facts = [f"run with one thread, on whose number {OPERATOR} depends"]
    if after[OPERATOR] < before[OPERATOR] and after["DynamicQuantizeLinear"] <= before["DynamicQuantizeLinear"]:
        facts.append(f"without the rounding of X and H to 8 bits outputs differ by up to {largest:.2g}")
    return facts


def single_rows(spec: RecurrentSpec, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Return a feed for each row of the batch; none where the batch size is fixed at more than 1.

    A row of length 0 is left out where Y is not connected: the kernel then reads memory that it never set.
    """
    if spec.batch_size not in (None, 1):
        return []
    rows = [of_rows(feed, spec, slice(n, n + 1)) for feed in feeds for n in range(feed["X"].shape[1])]
    return [row for row in rows if spec.gives_sequence or row.get("sequence_lens", [1])[0]]
