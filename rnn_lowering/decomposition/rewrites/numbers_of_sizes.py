"""Sizes as data: tract computes Shape, Size and Cast to int64 in a type of its own, which some operators reject.

A CastLike of a constant of int64 makes plain numbers of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.scopes import Scope, standard_nodes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.targets.target import Target

_REJECTING = ("ArgMax", "ArgMin", "CumSum", "NonZero", "TopK")

_MAKES_SIZES = ("Cast", "Shape", "Size")

_CAST_LIKE = 15
"""The first opset of the operator."""


def make_numbers(model: ir.Model) -> int:
    """Insert a CastLike before what rejects sizes, and behind outputs of the model that are sizes, in place; return
    their number."""
    fed = [node for scope, node in _fed_with_sizes(model) if scope.opset >= _CAST_LIKE]
    returned = _sizes_returned(model) if default_opset(model.opset_imports) >= _CAST_LIKE else []
    if not fed and not returned:
        return 0
    inserter = Inserter(model)
    for node in fed:
        node.replace_input_with(0, _plain(inserter, node, node.inputs[0]))
    for value in returned:
        name, plain = value.name, _plain(inserter, model.graph[-1], value)
        cast = plain.producer()
        assert cast is not None
        model.graph.remove(cast)
        model.graph.append(cast)
        take_over(value, plain)
        cast.replace_input_with(0, value)
        value.name = inserter.unique(f"{name}/sizes")
    return len(fed) + len(returned)


def unconverted(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that rejects its sizes, in an opset without CastLike."""
    for scope, node in _fed_with_sizes(model):
        if scope.opset < _CAST_LIKE:
            reason = f"{target.name} rejects it behind Shape, Size or Cast, and opset {scope.opset} has no CastLike"
            hint = f"export the model at opset {_CAST_LIKE} or later"
            yield UnsupportedError(reason, hint=hint, node=node_ref(node, scope.text))


def _plain(inserter: Inserter, node: ir.Node, value: ir.Value | None) -> ir.Value:
    return inserter.before(node, "CastLike", [value, inserter.constant(node, [0])])


def _fed_with_sizes(model: ir.Model) -> list[tuple[Scope, ir.Node]]:
    """Return the nodes that reject sizes and get some, each with its scope."""
    found = list(standard_nodes(model, *_REJECTING))
    known = inferred_values(model) if found else {}
    return [(scope, node) for scope, node in found if _is_of_sizes(node.inputs[0], known)]


def _sizes_returned(model: ir.Model) -> list[ir.Value]:
    integers = [v for v in model.graph.outputs if v.dtype == ir.DataType.INT64 and v.producer() is not None]
    known = inferred_values(model) if integers else {}
    return [value for value in integers if _is_of_sizes(value, known)]


def _is_of_sizes(value: ir.Value | None, known: Inferred) -> bool:
    """Whether an integer follows from Shape, Size or a Cast to int64 by operators of int64 only."""
    seen, pending = set[ir.Value](), [value]
    while pending:
        top = pending.pop()
        node = None if top is None or top in seen else top.producer()
        if top is None or node is None or known.get(top, top).dtype != ir.DataType.INT64:
            continue
        seen.add(top)
        if is_of_default_domain(node) and node.op_type in _MAKES_SIZES:
            return True
        pending += node.inputs if node.op_type not in ("CastLike", *_REJECTING) else ()
    return False
