"""The nodes that are left as they are, and those of them that the target cannot run."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.scopes import exported_loops, foreign_nodes, operators_in
from rnn_lowering.options import KEEP, Lowering
from rnn_lowering.targets.target import check_operators

_FOREIGN = "not an operator of ONNX"
_UNSELECTED, _KEPT = "not selected", "kept"
_EXPORTED = "--loops lowers it"

_RUNTIMES_OF_FOREIGN = ("portable", "onnxruntime")


def why_left(lowering: Lowering) -> str:
    """Return the reason why a recurrent node that could be lowered is not."""
    return _KEPT if lowering.to == KEEP else _UNSELECTED


def others_left(model: ir.Model, lowering: Lowering) -> Iterator[tuple[NodeRef, str]]:
    """Yield the foreign nodes, and the Loops and Scans of the model itself that stay, each with the reason."""
    for ref in foreign_nodes(model):
        yield ref, _FOREIGN
    selected, stays = NodeSelection(lowering), _KEPT if lowering.to == KEEP else _EXPORTED
    for ref, node in exported_loops(model):
        yield ref, stays if selected.selects(node) else _UNSELECTED


def refusals(model: ir.Model, lowering: Lowering) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that is not lowered and that the target cannot run."""
    runtime, selected = lowering.runtime, NodeSelection(lowering)
    if runtime.name not in _RUNTIMES_OF_FOREIGN:
        for ref in foreign_nodes(model):
            reason = f"{runtime.name} does not support it: {_FOREIGN}"
            yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
    own = [(ref, node) for ref, node in exported_loops(model) if selected.selects(node)]
    for ref, node in own:
        try:
            check_operators(operators_in([node]), ref, runtime)
        except UnsupportedError as error:
            yield error
    for ref, node in own:
        if node.op_type.lower() not in runtime.loop_forms:
            hint = "export the model with its steps unrolled, or drop --target"
            yield UnsupportedError(f"{runtime.name} does not support {ref.operator}", hint=hint, node=ref)
