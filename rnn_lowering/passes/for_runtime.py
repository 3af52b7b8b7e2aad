"""What a runtime needs of the model as a whole: the stage that adapts it, and the nodes that it does not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import forget_names
from rnn_lowering.model.preparation import NodeSelection
from rnn_lowering.model.replace import compute_copies
from rnn_lowering.model.scopes import (
    ORIGIN,
    drop_unused_constants,
    exported_loops,
    foreign_nodes,
    operators_in,
    repeating_nodes,
    scopes,
)
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import NodeReport
from rnn_lowering.passes.stages import Edit, Work
from rnn_lowering.targets.target import NESTED_SCAN, Target, check_operators

_MANY_STEPS = 32
"""Compilers take 0.03 to 0.3 s for each unrolled step, and more for each if there are more."""


def adapt(work: Work) -> Edit:
    """Return what changes the model once its nodes are lowered."""

    def edit() -> None:
        runtime, report = work.lowering.runtime, work.report
        if work.chosen.every or report.loops:
            report.notes += _for_runtime(work.model, runtime)
        if runtime.model.loses_copies:
            compute_copies(work.model)
        if runtime.model.misreads_convolutions:
            report.notes += _with_wide_convolutions(work.model, runtime)
        if runtime.model.bounds_lookups:
            report.notes += _with_bounded_lookups(work.model, runtime)
        report.notes += _many_steps(report.nodes)

    return edit


def _for_runtime(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a lowered model for its runtime, in place; yield what the user should know."""
    if not target.model.named_sizes:
        count = forget_names(model)
        if count:
            yield f"{target.name} fails on names of unknown sizes: removed them from {count} declared shapes"
    if not target.model.unused_constants and (names := drop_unused_constants(model)):
        yield f"{target.name} crashes on unused initializers: removed {', '.join(names)}"
    if not target.model.quantizes:
        yield from _without_quantization(model, target)
    page = target.documented
    if page is not None and not page.run:
        unchecked = f"; not checked: {page.unchecked}" if page.unchecked else ""
        yield f"{target.name} was not run: its operators come from {page.source}, of {page.date}{unchecked}"


def _without_quantization(model: ir.Model, target: Target) -> Iterator[str]:
    from rnn_lowering.decomposition.misread import write_as_floats

    if count := write_as_floats(model):
        nodes = "1 QuantizeLinear" if count == 1 else f"{count} QuantizeLinear"
        yield f"{target.name} computes QuantizeLinear wrongly: wrote {nodes} as arithmetic on floats"


def _with_wide_convolutions(model: ir.Model, target: Target) -> Iterator[str]:
    from rnn_lowering.decomposition.misread import add_output_channels

    if count := add_output_channels(model):
        yield f"{target.name} computes {count} Conv wrongly: gave them an output channel more, which is cut off"


def _with_bounded_lookups(model: ir.Model, target: Target) -> Iterator[str]:
    from rnn_lowering.decomposition.misread import bound_lookups

    if count := bound_lookups(model):
        yield f"{target.name} takes rows of a table by indices in it, without axis = 0: changed {count} Gather"


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
_EXPORTED = "--loops lowers it"

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


def refusals(model: ir.Model, lowering: Lowering) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that is not lowered and that the target cannot run."""
    runtime, selected = lowering.runtime, NodeSelection(lowering)
    if runtime.name not in _RUNTIMES_OF_FOREIGN:
        for ref in foreign_nodes(model):
            reason = f"{runtime.name} does not support it: {_FOREIGN}"
            yield UnsupportedError(reason, hint="export the model without it, or drop --target", node=ref)
    yield from _misread(model, runtime)
    if not runtime.model.empty_tensors:
        yield from _empty(model.graph, runtime)
    for scope, node in repeating_nodes(model, ("Scan",)) if not runtime.loops.nested_scans else ():
        if "Scan" in scope.around:
            hint = "unroll one of them (--to unroll), or drop --target"
            ref = node.meta.get(ORIGIN) or node_ref(node, scope.text)
            yield UnsupportedError(NESTED_SCAN.format(runtime.name), hint=hint, node=ref)
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


def _empty(graph: ir.Graph, runtime: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node with an input or output of the model that has no elements."""
    for value in (*graph.inputs, *graph.outputs):
        node = value.producer() or next((use.node for use in value.uses()), None)
        if node is not None and value.shape is not None and 0 in value.shape:
            kind = "output" if value.is_graph_output() else "input"
            shape = f"[{', '.join(map(str, value.shape))}]"
            reason = f"{runtime.name} takes no {kind} without elements, such as '{value.name}' {shape}"
            ref = node.meta.get(ORIGIN) or node_ref(node)
            yield UnsupportedError(reason, hint=f"remove this {kind} from the model, or drop --target", node=ref)


def _misread(model: ir.Model, runtime: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that stays, is not recurrent, and that a runtime computes wrongly in silence."""
    if not runtime.model.quantizes:
        yield from _rounded(model, runtime)
    opset, firsts = default_opset(model.opset_imports), dict(runtime.model.ignores_axes)
    for scope in scopes(model) if firsts else ():
        for node in scope.graph:
            first = firsts.get(node.op_type, opset + 1) if is_of_default_domain(node) else opset + 1
            floats = node.outputs[0].dtype is None or node.outputs[0].dtype.is_floating_point()
            if opset >= first and floats and len(node.inputs) > 1 and node.inputs[1] is not None:
                reason = f"{runtime.name} ignores its axes, which are an input from opset {first} on"
                hint = f"export the model at opset {first - 1} (torch.onnx.export: opset_version={first - 1})"
                yield UnsupportedError(reason, hint=hint, node=node_ref(node, scope.text))


def _rounded(model: ir.Model, runtime: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each QuantizeLinear that cannot be written as arithmetic on floats."""
    from rnn_lowering.decomposition.misread import roundings

    for each in roundings(model):
        if each.reason:
            wrong = f"{runtime.name} computes it wrongly, and it cannot become arithmetic on floats"
            hint = "export the model without it, or drop --target"
            yield UnsupportedError(f"{wrong}: {each.reason}", hint=hint, node=each.ref)
