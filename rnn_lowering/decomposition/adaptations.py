"""What runtimes need of the model around recurrent nodes, by the name that `ModelTraits.adaptations` gives it.

A new one gets its row here: how the model is rewritten, and which nodes are refused since no rewrite helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.broadcasts import repeat_by_gather
from rnn_lowering.decomposition.rewrites.convolutions import add_output_channels
from rnn_lowering.decomposition.rewrites.fills import write_fills
from rnn_lowering.decomposition.rewrites.lookups import bound_lookups
from rnn_lowering.decomposition.rewrites.numbers_of_sizes import make_numbers, unconverted
from rnn_lowering.decomposition.rewrites.products import refuse_products
from rnn_lowering.decomposition.rewrites.resizing import resize_in_rank_4
from rnn_lowering.decomposition.rewrites.rounding import unwritten, write_as_floats, written_as_floats
from rnn_lowering.decomposition.rewrites.sequences import rows_by_gather, rows_taken
from rnn_lowering.decomposition.rewrites.tables import nodes_of_tables, tables_as_floats
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.model_sizes import forget_declared
from rnn_lowering.model.replace import compute_copies
from rnn_lowering.model.scopes import ORIGIN, drop_unused_constants, standard_nodes
from rnn_lowering.nodes.kinds import node_ref
from rnn_lowering.targets.target import Target

Rewrite = Callable[[ir.Model], str | None]
"""Changes a model in place; returns what it did, for the user, behind the name of the runtime, or nothing."""

Refuse = Callable[[ir.Model, Target], Iterable[UnsupportedError]]
"""Returns an error for each node that stays and that the runtime rejects or computes wrongly."""


@dataclass(frozen=True)
class Adaptation:
    """What a runtime needs of a model.

    Attributes:
        rewrite: How the model is changed.
        refuse: Which nodes are refused.
        replaces: Returns the nodes that it replaces: they are not lacking.
        always: Whether the model is changed where nothing else is, too.
    """

    rewrite: Rewrite = lambda _: None
    refuse: Refuse = lambda model, target: ()
    replaces: Callable[[ir.Model], set[ir.Node]] = lambda _: set()
    always: bool = False


def _counted(rewrite: Callable[[ir.Model], int], text: str) -> Rewrite:
    """Return a rewrite that returns how many changes it made; the text has their number."""

    def run(model: ir.Model) -> str | None:
        count = rewrite(model)
        return text.format(count) if count else None

    return run


def _without_unused_constants(model: ir.Model) -> str | None:
    names = drop_unused_constants(model)
    return f"crashes on unused initializers: removed {', '.join(names)}" if names else None


def _without_elements(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node with an input or output of the model that has no elements."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        node = value.producer() or next((use.node for use in value.uses()), None)
        if node is not None and value.shape is not None and 0 in value.shape:
            kind = "output" if value.is_graph_output() else "input"
            shape = f"[{', '.join(map(str, value.shape))}]"
            reason = f"{target.name} takes no {kind} without elements, such as '{value.name}' {shape}"
            ref = node.meta.get(ORIGIN) or node_ref(node)
            yield UnsupportedError(reason, hint=f"remove this {kind} from the model, or drop --target", node=ref)


def _ignored_axes(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each reduction of floats whose axes are an input, which the runtime ignores in silence."""
    opset, firsts = default_opset(model.opset_imports), dict(target.model.ignores_axes)
    for scope, node in standard_nodes(model, *firsts):
        first, dtype = firsts[node.op_type], node.outputs[0].dtype
        floats = dtype is None or dtype.is_floating_point()
        if opset >= first and floats and len(node.inputs) > 1 and node.inputs[1] is not None:
            reason = f"{target.name} ignores its axes, which are an input from opset {first} on"
            hint = f"export the model at opset {first - 1} (torch.onnx.export: opset_version={first - 1})"
            yield UnsupportedError(reason, hint=hint, node=node_ref(node, scope.text))


ADAPTATIONS = {
    "rows of sequences": Adaptation(
        _counted(rows_by_gather, "has no sequences: wrote {} SequenceAt as Gather"),
        replaces=rows_taken,
        always=True,
    ),
    "repeats as Gather": Adaptation(
        _counted(repeat_by_gather, "fails on repeated rows: wrote {} Tile and Expand as Gather"), always=True
    ),
    "numbers of sizes": Adaptation(
        _counted(make_numbers, "rejects sizes as numbers: put a CastLike in {} places"), unconverted, always=True
    ),
    "typed fills": Adaptation(
        _counted(write_fills, "fails on fills without a number: wrote it in {} ConstantOfShape"),
        always=True,
    ),
    "no declared shapes": Adaptation(
        _counted(forget_declared, "fails on wrong shapes of computed values: removed {} declared ones"), always=True
    ),
    "resizing in rank 4": Adaptation(
        _counted(resize_in_rank_4, "rejects a Resize of three axes: gave {} a fourth one"), always=True
    ),
    "no unused constants": Adaptation(_without_unused_constants),
    "rounding of floats": Adaptation(
        _counted(
            write_as_floats,
            "computes QuantizeLinear wrongly: wrote {} QuantizeLinear as arithmetic on floats",
        ),
        unwritten,
        written_as_floats,
    ),
    "computed copies": Adaptation(compute_copies),
    "wide convolutions": Adaptation(
        _counted(
            add_output_channels,
            "computes {} Conv wrongly: gave them an output channel more, which is cut off",
        )
    ),
    "bounded lookups": Adaptation(
        _counted(bound_lookups, "takes rows of a table by indices in it, without axis = 0: changed {} Gather")
    ),
    "inputs with elements": Adaptation(refuse=_without_elements),
    "no products of integers": Adaptation(refuse=refuse_products),
    "tables of floats": Adaptation(
        _counted(tables_as_floats, "fails on rows of integers that become floats: made floats of {} tables"),
        replaces=lambda model: {*nodes_of_tables(model)},
    ),
    "axes of reductions": Adaptation(refuse=_ignored_axes),
}
"""Every adaptation, by name."""


def adapted(model: ir.Model, target: Target, *, changed: bool) -> Iterator[str]:
    """Adapt a model to a runtime, in place; yield what was done, for the user.

    Args:
        model: The model.
        target: The runtime.
        changed: Whether something else has changed the model.
    """
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        if (changed or adaptation.always) and (text := adaptation.rewrite(model)):
            yield f"{target.name} {text}"


def refused(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that no adaptation makes right for a runtime."""
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        yield from adaptation.refuse(model, target)


def replaced_nodes(model: ir.Model, target: Target) -> set[ir.Node]:
    """Return the nodes of a model that adaptations replace."""
    return {node for name in target.model.adaptations for node in ADAPTATIONS[name].replaces(model)}
