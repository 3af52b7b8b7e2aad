"""What a runtime needs of the model as a whole: the stage that adapts it, and the nodes that it does not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.scopes import exported_loops, foreign_nodes, operators_in, origin_of, repeating_nodes
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import NodeReport
from rnn_lowering.passes.stages import Edit, Work
from rnn_lowering.targets.target import NESTED_SCAN, Target, check_operators

_MANY_STEPS = 32
"""Compilers take 0.03 to 0.3 s for each unrolled step, and more for each if there are more."""


def adapt(work: Work) -> Edit:
    """Return what changes the model once its nodes are lowered."""
    return lambda: _adapt(work)


def _adapt(work: Work) -> None:
    runtime, report = work.lowering.runtime, work.report
    if runtime.model.adaptations:
        from rnn_lowering.decomposition.adaptations import adapted

        texts = list(adapted(work.model, runtime, changed=work.changes))
        report.adapted += texts
        report.notes += texts
    if work.chosen.every or report.loops:
        report.notes += _not_run(runtime)
    report.notes += _many_steps(report.nodes)


def _not_run(target: Target) -> Iterator[str]:
    """Yield what the user should know of a runtime that was not run."""
    page = target.documented
    if page is not None and not page.run:
        unchecked = f"; not checked: {page.unchecked}" if page.unchecked else ""
        yield f"{target.name} was not run: its operators come from {page.source}, of {page.date}{unchecked}"


def _many_steps(nodes: Iterable[NodeReport]) -> list[str]:
    """Return a note if more steps are unrolled than compilers load quickly, and a stream is possible."""
    unrolled = [node for node in nodes if node.form == "unroll" and node.steps > _MANY_STEPS]
    if not unrolled or any(node.direction != "forward" for node in unrolled):
        return []
    steps = max(node.steps for node in unrolled)
    return [f"{steps} steps are unrolled, which compilers load slowly; a stream has only one step: --stream AXIS=1"]


# The nodes that stay as they are, and which of them the target does not run.


_FOREIGN = "not an operator of ONNX"
_UNSELECTED, _KEPT = "not selected", "kept"
_EXPORTED = "--lower-loops lowers it"
_TRACED = "--raise-loops makes a node of its steps, if they compute one"

_OFTEN = 4
"""A loop that is traced has so many steps at least."""

_RUNTIMES_OF_FOREIGN = ("portable", "onnxruntime")


def why_left(lowering: Lowering) -> str:
    """Return the reason why a recurrent node that could be lowered is not."""
    return _KEPT if lowering.keeps_nodes else _UNSELECTED


def others_left(
    model: ir.Model, lowering: Lowering, not_raised: Mapping[NodeRef, str]
) -> Iterator[tuple[NodeRef, str]]:
    """Yield the foreign nodes, and the Loops and Scans of the model itself that stay, each with the reason.

    Args:
        model: The model.
        lowering: The options.
        not_raised: Why Loops and Scans are not raised.
    """
    for ref in foreign_nodes(model):
        yield ref, _FOREIGN
    selected, stays = NodeSelection(lowering), _KEPT if lowering.keeps_nodes else _EXPORTED
    for ref, node in exported_loops(model):
        why = f"not raised: {not_raised[ref]}" if ref in not_raised else stays
        yield ref, why if selected.selects(node) else _UNSELECTED
    if not lowering.raise_loops and repeats_products(model):
        from rnn_lowering.loops.door import traced_loops

        yield from ((ref, _TRACED) for ref in traced_loops(model))


def repeats_products(model: ir.Model) -> bool:
    """Whether a model multiplies with the same weights often, as a loop does that was traced step by step."""
    weights = Counter(
        source.inputs[0] if source is not None and source.op_type == "Identity" else value
        for node in model.graph
        if node.op_type in ("Gemm", "MatMul")
        for value in node.inputs[1:2]
        if value is not None
        for source in [value.producer()]
    )
    return max(weights.values(), default=0) >= _OFTEN


def refusals(model: ir.Model, lowering: Lowering) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that is not lowered and that the target cannot run."""
    runtime, selected = lowering.runtime, NodeSelection(lowering)
    if runtime.name not in _RUNTIMES_OF_FOREIGN:
        for ref in foreign_nodes(model):
            reason = f"{runtime.name} does not support it: {_FOREIGN}"
            yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
    if runtime.model.adaptations:
        from rnn_lowering.decomposition.adaptations import refused

        yield from refused(model, runtime)
    for scope, node in repeating_nodes(model, ("Scan",)) if not runtime.loops.nested_scans else ():
        if "Scan" in scope.around:
            hint = "unroll one of them (--to unroll), or drop --target"
            yield UnsupportedError(NESTED_SCAN.format(runtime.name), hint=hint, node=origin_of(node, scope.text))
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
