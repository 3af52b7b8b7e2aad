"""What runtimes need of the model around recurrent nodes, by the name that `ModelTraits.adaptations` gives it.

A new one gets its row here: how the model is rewritten, and which nodes are refused since no rewrite helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.decomposition.rewrites.apart import (
    end_convolutions,
    part_outputs,
    part_reshapes,
    set_batches_apart,
    set_sums_apart,
)
from rnn_lowering.decomposition.rewrites.axes import (
    add_biases,
    add_output_channels,
    reduce_by_attributes,
    reductions_by_attributes,
    refuse_reductions,
    run_in_rank_4,
    write_batches,
    write_vectors,
)
from rnn_lowering.decomposition.rewrites.quantized import (
    nodes_of_tables,
    refuse_products,
    tables_as_floats,
    unwritten,
    write_as_floats,
    write_differences,
    written_as_differences,
    written_as_floats,
)
from rnn_lowering.decomposition.rewrites.rows import (
    bound_lookups,
    repeat_by_gather,
    rows_by_gather,
    rows_taken,
    simplify_indices,
)
from rnn_lowering.decomposition.rewrites.spelled import (
    bound_by_max,
    bound_integers,
    crop_by_slice,
    make_numbers,
    plain_scatters,
    refuse_same_pads,
    same_padded,
    shape_as_scales,
    spell_orders,
    spell_pads,
    spell_same_pads,
    spell_splits,
    spell_strides,
    store_constants,
    unconverted,
    write_fills,
    write_tensors,
)
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.model.model_sizes import forget_declared
from rnn_lowering.model.replace import compute_copies
from rnn_lowering.model.scopes import drop_unused_constants, nodes_in_scopes, origin_of
from rnn_lowering.nodes.kinds import is_recurrent, node_ref
from rnn_lowering.targets.target import Target

Rewrite = Callable[[AdaptedModel], str | None]
"""Changes a model in place; returns what it did, for the user, behind the name of the runtime, or nothing."""

Refuse = Callable[[AdaptedModel, Target], Iterable[UnsupportedError]]
"""Returns an error for each node that stays and that the runtime rejects or computes wrongly."""


@dataclass(frozen=True)
class Adaptation:
    """What a runtime needs of a model.

    Attributes:
        rewrite: How the model is changed.
        refuse: Which nodes are refused.
        replaces: Returns the nodes that it replaces: they are not lacking.
        always: Whether the model is changed where nothing else is, too.
        first: How the model is changed, in its opset too, before any node is read.
    """

    rewrite: Rewrite = lambda _: None
    refuse: Refuse = lambda model, target: ()
    replaces: Callable[[AdaptedModel], set[ir.Node]] = lambda _: set()
    always: bool = False
    first: Rewrite = lambda _: None


def _counted(rewrite: Callable[[AdaptedModel], int], text: str) -> Rewrite:
    """Return a rewrite that returns how many changes it made; the text has their number."""

    def run(model: AdaptedModel) -> str | None:
        count = rewrite(model)
        return text.format(count) if count else None

    return run


def _without_unused_constants(model: AdaptedModel) -> str | None:
    names = drop_unused_constants(model.model)
    return f"crashes on unused initializers: removed {', '.join(names)}" if names else None


# What no rewrite makes right


def _refuse_no_elements(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node with an input or output of the model that has no elements."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        node = value.producer() or next((use.node for use in value.uses()), None)
        if node is not None and value.shape is not None and 0 in value.shape:
            kind = "output" if value.is_graph_output() else "input"
            shape = f"[{', '.join(map(str, value.shape))}]"
            reason = f"{target.name} takes no {kind} without elements, such as '{value.name}' {shape}"
            yield UnsupportedError(
                reason, hint=f"remove this {kind} from the model, or drop --target", node=origin_of(node)
            )


_MOST_AXES = 4


def _refuse_axes(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each input and computed value of more than 4 axes, and each input without an axis."""
    for value in model.graph.inputs:
        uses = list(value.uses())
        rank = None if value.shape is None else len(value.shape)
        if rank is not None and uses and (rank == 0 or rank > _MOST_AXES):
            reason = f"{target.name} takes inputs of 1 to {_MOST_AXES} axes, but '{value.name}' has {rank}"
            yield UnsupportedError(
                reason,
                hint="export the model with fewer axes, or use another runtime",
                node=node_ref(uses[0].node),
            )
    for scope, node in nodes_in_scopes(model.model):
        shapes = map(model.shape_of, node.outputs)
        rank = max((len(shape) for shape in shapes if shape is not None), default=0)
        if rank > _MOST_AXES:
            reason = f"{target.name} has tensors of at most {_MOST_AXES} axes, but this one has {rank}"
            yield UnsupportedError(
                reason,
                hint="export the model with fewer axes, or use another runtime",
                node=origin_of(node, scope.text),
            )


def _refuse_integers(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that computes with integers or booleans which follow from inputs, changes the
    type of floats, or returns integers: moved ones are right, as indices of a table. Replaced nodes stay out."""
    replaced, followed = _replaced(model, target), set(model.graph.inputs)

    def is_integer(value: ir.Value | None) -> bool:
        dtype = model.dtype_of(value)
        return value in followed and dtype is not None and not dtype.is_floating_point()

    for scope, node in nodes_in_scopes(model.model):
        row = operator_of(node)
        if node.op_type not in _OF_SIZES and not followed.isdisjoint(node.inputs):
            followed.update(node.outputs)
        computes = any(map(is_integer, (*node.inputs[: row.data], *node.outputs)))
        computes = computes or (node.op_type == "Cast" and node.outputs[0] in followed and _converts(node, model))
        returns = any(value.is_graph_output() and is_integer(value) for value in node.outputs)
        if is_recurrent(node) or node in replaced or not (returns or (computes and not row.moves)):
            continue
        reason = f"{target.name} computes with floats only, and takes integers as indices of a table"
        yield UnsupportedError(
            reason, hint="end the model before it, or use another runtime", node=origin_of(node, scope.text)
        )


def _refuse_sequences(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a sequence that is not replaced."""
    replaced = _replaced(model, target)
    for scope, node in nodes_in_scopes(model.model):
        if "Sequence" in node.op_type and node.op_type != "ReverseSequence" and node not in replaced:
            reason = f"{target.name} has no sequences of tensors"
            yield UnsupportedError(
                reason,
                hint="export the model with Split or Slice in place of a sequence, or use another runtime",
                node=node_ref(node, scope.text),
            )


def _converts(cast: ir.Node, model: AdaptedModel) -> bool:
    """Whether a Cast changes the type of what it reads."""
    value = cast.inputs[0]
    return value is not None and model.dtype_of(value) != cast.attributes.get_int("to", 0)


_OF_SIZES = ("Shape", "Size")


ADAPTATIONS = {
    "rows of sequences": Adaptation(
        _counted(rows_by_gather, "has no sequences: wrote {} SequenceAt as Gather"),
        replaces=rows_taken,
        always=True,
    ),
    "no sequences": Adaptation(refuse=_refuse_sequences),
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
    "constants as tensors": Adaptation(
        _counted(write_tensors, "reads constants as tensors only: made them of the numbers of {}"), always=True
    ),
    "stored constants": Adaptation(
        _counted(store_constants, "takes sizes and axes from initializers: made some of {} Constants"), always=True
    ),
    "zero points as scales": Adaptation(
        _counted(shape_as_scales, "compares the shapes of scales and zero points: gave {} the same"), always=True
    ),
    "no declared shapes": Adaptation(
        _counted(
            lambda model: forget_declared(model.model),
            "fails on wrong shapes of computed values: removed {} declared ones",
        ),
        always=True,
    ),
    "rank 4": Adaptation(
        _counted(run_in_rank_4, "rejects some Resize and norms of three axes: gave {} a fourth one"), always=True
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
    "differences of floats": Adaptation(
        _counted(write_differences, "computes DequantizeLinear wrongly: wrote {} as arithmetic on floats"),
        replaces=written_as_differences,
        always=True,
    ),
    "computed copies": Adaptation(lambda model: compute_copies(model.model)),
    "wide convolutions": Adaptation(
        _counted(
            add_output_channels,
            "computes {} Conv wrongly: gave them an output channel more, which is cut off",
        )
    ),
    "bounded lookups": Adaptation(
        _counted(bound_lookups, "takes rows of a table by indices in it, without axis = 0: changed {} Gather"),
        always=True,
        first=_counted(simplify_indices, "takes indices without a Cast, of two axes at most: changed {} of them"),
    ),
    "spelled pads": Adaptation(
        _counted(spell_pads, "loads no Pad without its mode and number: wrote them in {}"), always=True
    ),
    "spelled orders": Adaptation(
        _counted(spell_orders, "loads no Transpose without its order of axes: wrote it in {}"), always=True
    ),
    "spelled splits": Adaptation(
        _counted(spell_splits, "crashes at a Split without sizes: wrote them in {}"), always=True
    ),
    "crops as Slice": Adaptation(
        _counted(crop_by_slice, "fails on negative pads: wrote those of {} Pad as Slice"), always=True
    ),
    "plain scatters": Adaptation(
        _counted(plain_scatters, 'loses an axis behind a reduction: left out the "none" of {} ScatterElements'),
        always=True,
    ),
    "spelled strides": Adaptation(
        _counted(spell_strides, "crashes at pools of one axis without strides: wrote them in {}"), always=True
    ),
    "sums apart": Adaptation(
        _counted(set_sums_apart, "rejects a sum of sums that are joined too: put a Reshape behind {} of them"),
        always=True,
    ),
    "ended convolutions": Adaptation(
        _counted(end_convolutions, "gives an output that is a Conv one axis more: put a Max behind {} of them"),
        always=True,
    ),
    "spelled same pads": Adaptation(
        _counted(spell_same_pads, "computes pads of SAME_UPPER and SAME_LOWER wrongly: wrote them in {} nodes"),
        refuse_same_pads,
        same_padded,
        always=True,
    ),
    "equal batches": Adaptation(
        _counted(write_batches, "multiplies unlike batches wrongly: gave the matrices of {} MatMul the same"),
        always=True,
    ),
    "vectors as biases": Adaptation(
        _counted(add_biases, "takes vectors as the bias of a Gemm, without factors: wrote {} in steps"), always=True
    ),
    "no vectors": Adaptation(
        _counted(write_vectors, "multiplies no vectors: wrote those of {} MatMul as matrices"), always=True
    ),
    "inputs with elements": Adaptation(refuse=_refuse_no_elements),
    "no products of integers": Adaptation(refuse=refuse_products),
    "tables of floats": Adaptation(
        _counted(tables_as_floats, "fails on rows of integers that become floats: made floats of {} tables"),
        replaces=nodes_of_tables,
    ),
    "clipped norms": Adaptation(
        _counted(bound_by_max, "normalizes along another axis: wrote {} Clip as Max"), always=True
    ),
    "bounded integers": Adaptation(
        _counted(bound_integers, "clips no integers: wrote {} Clip as Max and Min"), always=True
    ),
    "parted Reshapes": Adaptation(
        _counted(part_reshapes, "joins two Reshapes wrongly: put an Identity in front of {}"), always=True
    ),
    "parted outputs": Adaptation(
        _counted(part_outputs, "loses outputs that nodes read, or their shapes: returned {} by a Transpose"),
        always=True,
    ),
    "integers as indices": Adaptation(refuse=_refuse_integers),
    "at most 4 axes": Adaptation(refuse=_refuse_axes),
    "batches apart": Adaptation(
        _counted(set_batches_apart, "takes batches out of tensors: set {} values apart from theirs"), always=True
    ),
    "axes of reductions": Adaptation(
        refuse=refuse_reductions, replaces=reductions_by_attributes, first=reduce_by_attributes
    ),
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
        if (changed or adaptation.always) and (text := adaptation.rewrite(AdaptedModel(model))):
            yield f"{target.name} {text}"


def adapted_first(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a model before its nodes are read, in place; yield what was done, for the user."""
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        if text := adaptation.first(AdaptedModel(model)):
            yield f"{target.name} {text}"


def refused(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that no adaptation makes right for a runtime."""
    adapted = AdaptedModel(model)
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        yield from adaptation.refuse(adapted, target)


def replaced_nodes(model: ir.Model, target: Target) -> set[ir.Node]:
    """Return the nodes of a model that adaptations replace."""
    return _replaced(AdaptedModel(model), target)


def _replaced(model: AdaptedModel, target: Target) -> set[ir.Node]:
    return {node for name in target.model.adaptations for node in ADAPTATIONS[name].replaces(model)}
