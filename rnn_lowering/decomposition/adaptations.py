"""What runtimes need of the model around recurrent nodes, by the name that `ModelTraits.adaptations` gives it.

A new one gets its row here: how the model is rewritten, and which nodes are refused since no rewrite helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.decomposition.batches import set_batches_apart
from rnn_lowering.decomposition.refusals import (
    refuse_axes,
    refuse_integers,
    refuse_no_elements,
    refuse_sequences,
)
from rnn_lowering.decomposition.rewrites.broadcasts import repeat_by_gather
from rnn_lowering.decomposition.rewrites.constants import (
    shape_as_scales,
    store_constants,
    write_fills,
    write_tensors,
)
from rnn_lowering.decomposition.rewrites.convolutions import (
    add_output_channels,
    end_convolutions,
    set_sums_apart,
)
from rnn_lowering.decomposition.rewrites.lookups import bound_lookups, simplify_indices
from rnn_lowering.decomposition.rewrites.numbers_of_sizes import make_numbers, unconverted
from rnn_lowering.decomposition.rewrites.products import refuse_products
from rnn_lowering.decomposition.rewrites.ranks import (
    add_biases,
    part_outputs,
    part_reshapes,
    run_in_rank_4,
    write_batches,
    write_vectors,
)
from rnn_lowering.decomposition.rewrites.reductions import (
    bound_by_max,
    bound_integers,
    reduce_by_attributes,
    reductions_by_attributes,
    refuse_reductions,
)
from rnn_lowering.decomposition.rewrites.rounding import (
    unwritten,
    write_as_floats,
    write_differences,
    written_as_differences,
    written_as_floats,
)
from rnn_lowering.decomposition.rewrites.sequences import rows_by_gather, rows_taken
from rnn_lowering.decomposition.rewrites.spelled import (
    crop_by_slice,
    plain_scatters,
    refuse_same_pads,
    same_padded,
    spell_orders,
    spell_pads,
    spell_same_pads,
    spell_splits,
    spell_strides,
)
from rnn_lowering.decomposition.rewrites.tables import nodes_of_tables, tables_as_floats
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.model_sizes import forget_declared
from rnn_lowering.model.replace import compute_copies
from rnn_lowering.model.scopes import drop_unused_constants
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
        first: How the model is changed, in its opset too, before any node is read.
    """

    rewrite: Rewrite = lambda _: None
    refuse: Refuse = lambda model, target: ()
    replaces: Callable[[ir.Model], set[ir.Node]] = lambda _: set()
    always: bool = False
    first: Rewrite = lambda _: None


def _counted(rewrite: Callable[[ir.Model], int], text: str) -> Rewrite:
    """Return a rewrite that returns how many changes it made; the text has their number."""

    def run(model: ir.Model) -> str | None:
        count = rewrite(model)
        return text.format(count) if count else None

    return run


def _without_unused_constants(model: ir.Model) -> str | None:
    names = drop_unused_constants(model)
    return f"crashes on unused initializers: removed {', '.join(names)}" if names else None


ADAPTATIONS = {
    "rows of sequences": Adaptation(
        _counted(rows_by_gather, "has no sequences: wrote {} SequenceAt as Gather"),
        replaces=rows_taken,
        always=True,
    ),
    "no sequences": Adaptation(
        refuse=lambda model, target: refuse_sequences(model, target, replaced_nodes(model, target))
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
        _counted(forget_declared, "fails on wrong shapes of computed values: removed {} declared ones"), always=True
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
    "computed copies": Adaptation(compute_copies),
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
    "inputs with elements": Adaptation(refuse=refuse_no_elements),
    "no products of integers": Adaptation(refuse=refuse_products),
    "tables of floats": Adaptation(
        _counted(tables_as_floats, "fails on rows of integers that become floats: made floats of {} tables"),
        replaces=lambda model: {*nodes_of_tables(model)},
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
    "integers as indices": Adaptation(
        refuse=lambda model, target: refuse_integers(model, target, replaced_nodes(model, target))
    ),
    "at most 4 axes": Adaptation(refuse=refuse_axes),
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
        if (changed or adaptation.always) and (text := adaptation.rewrite(model)):
            yield f"{target.name} {text}"


def adapted_first(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a model before its nodes are read, in place; yield what was done, for the user."""
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        if text := adaptation.first(model):
            yield f"{target.name} {text}"


def refused(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that no adaptation makes right for a runtime."""
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        yield from adaptation.refuse(model, target)


def replaced_nodes(model: ir.Model, target: Target) -> set[ir.Node]:
    """Return the nodes of a model that adaptations replace."""
    return {node for name in target.model.adaptations for node in ADAPTATIONS[name].replaces(model)}
