"""What runtimes need of the model around recurrent nodes, by the name that `ModelTraits.adaptations` gives it.

A new one gets its row here: how the model is rewritten, and which nodes are refused since no rewrite helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import get_args

import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.decomposition.fused import refuse_fused, unfuse
from rnn_lowering.decomposition.repeats import expand_fills, repeat_by_gather, repeat_several_apart
from rnn_lowering.decomposition.rewrites.apart import (
    compute_copies,
    end_convolutions,
    part_outputs,
    part_pairs,
    part_reshapes,
    set_batches_apart,
    set_sums_apart,
    sign_rotations,
    subtract_from_erf,
    sum_outputs,
    swap_differences,
)
from rnn_lowering.decomposition.rewrites.axes import (
    add_biases,
    add_biases_of_halves,
    add_columns,
    add_output_channels,
    align_slopes,
    flatten_rows,
    pair_operands,
    repeat_matrices,
    resize_in_rank_4,
    run_in_rank_4,
    write_batches,
    write_numbers,
    write_slopes,
    write_vectors,
)
from rnn_lowering.decomposition.rewrites.bounds import (
    bound_by_max,
    bound_integers,
    bound_squeezed,
    bound_tanh,
    write_logarithms,
)
from rnn_lowering.decomposition.rewrites.indices import (
    bound_choices,
    count_axes,
    count_from_start,
    cut_to_indices,
    lengthen_to_updates,
    longer_updates,
)
from rnn_lowering.decomposition.rewrites.norms import (
    centre_norms,
    multiply_by_sizes,
    part_divisors,
    part_norms,
    square_by_products,
)
from rnn_lowering.decomposition.rewrites.planes import (
    convolve_planes,
    flip_rows,
    flips_of_planes,
    pad_batches,
    pad_counted,
    pad_every_axis,
    pads_of_batches,
    part_pads,
    transpose_apart,
)
from rnn_lowering.decomposition.rewrites.quantized import nodes_of_tables, refuse_products, tables_as_floats
from rnn_lowering.decomposition.rewrites.reductions import (
    keep_axes,
    part_reductions,
    reduce_by_attributes,
    reduce_whole_pools,
    reduce_without_axes,
    reductions_by_attributes,
    refuse_reductions,
    set_vectors_apart,
    whole_pools,
)
from rnn_lowering.decomposition.rewrites.resizes import Kind, multiply, resizes, sized_resizes, write_sizes
from rnn_lowering.decomposition.rewrites.roundings import (
    unwritten,
    write_as_floats,
    write_differences,
    written_as_differences,
    written_as_floats,
)
from rnn_lowering.decomposition.rewrites.rows import (
    begin_in_rows,
    bound_lookups,
    hold_rows,
    open_far_ends,
    parts_taken,
    simplify_indices,
    skip_by_gather,
    skip_strides,
    take_parts,
    take_steps,
)
from rnn_lowering.decomposition.rewrites.spelled import (
    CAST_LIKE,
    copy_lone_operands,
    crop_by_slice,
    drop_empty_operands,
    drop_unused_constants,
    flatten_by_reshape,
    forget_declared,
    leave_default_beta,
    make_numbers,
    plain_scatters,
    shape_as_scales,
    skip_dropouts,
    spell_axes_of_sums,
    spell_epsilons,
    spell_modes,
    spell_orders,
    spell_pads,
    spell_splits,
    spell_strides,
    store_constants,
    store_indices,
    type_exponents,
    unconverted,
    write_fills,
    write_tensors,
)
from rnn_lowering.decomposition.rewrites.tensors import (
    choose_branches,
    refuse_axes,
    refuse_integers,
    refuse_no_elements,
    refuse_sequences,
    refuse_unlike_branches,
    widen_sizes,
)
from rnn_lowering.decomposition.rewrites.windows import (
    LOWER,
    add_channels,
    compute_convolutions,
    convolutions_of_volumes,
    count_no_pads,
    cut_columns,
    dilated_pools,
    floor_pools,
    floored_pools,
    gather_pools,
    pad_single_kernels,
    part_convolutions,
    part_pools,
    pools_of_volumes,
    refuse_same_pads,
    same_padded,
    spell_same_pads,
    widen_kernels,
)
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.targets.target import Target

Refuse = Callable[[AdaptedModel, Target], Iterable[UnsupportedError]]
"""Returns an error for each node that stays and that the runtime rejects or computes wrongly."""


@dataclass(frozen=True)
class Adaptation:
    """What a runtime needs of a model.

    Attributes:
        rewrite: Changes the model in place; returns what it did, or how often, or nothing.
        text: What the user is told behind the name of the runtime, with what was returned for {}.
        refuse: Which nodes are refused.
        replaces: Returns the nodes that it replaces: they are not lacking.
        if_changed: Whether the model is changed only where something else is, too.
        first: As `rewrite`, in its opset too, before any node is read; returns the whole text.
        since: The opset from which on it refuses no node.
    """

    rewrite: Callable[[AdaptedModel], int | str | None] = lambda _: None
    text: str = ""
    refuse: Refuse = lambda model, target: ()
    replaces: Callable[[AdaptedModel], set[ir.Node]] = lambda _: set()
    if_changed: bool = False
    first: Callable[[AdaptedModel], str | None] = lambda _: None
    since: int = 0


ADAPTATIONS = {
    "parts of sequences": Adaptation(
        take_parts, "has no sequences: wrote {} SequenceAt as Gather or Slice", replaces=parts_taken
    ),
    "no sequences": Adaptation(refuse=refuse_sequences),
    "repeats as Gather": Adaptation(repeat_by_gather, "fails on repeated rows: wrote {} Tile and Expand as Gather"),
    "repeated fills": Adaptation(
        expand_fills, "fails on products of fills of open sizes: wrote {} ConstantOfShape as Expand"
    ),
    "several repeats apart": Adaptation(
        repeat_several_apart, "repeats other rows along several open axes: wrote {} Tile as Gather and Concat"
    ),
    "Flatten as Reshape": Adaptation(
        flatten_by_reshape, "multiplies no two open sizes: wrote {} Flatten as Reshape"
    ),
    "no Dropout of inputs": Adaptation(
        skip_dropouts, "loses the name of an input behind a Dropout: made an Identity of {}"
    ),
    "steps as Gather": Adaptation(skip_by_gather, "fails on rows that are skipped: wrote {} Slice as Gather"),
    "steps and flips as Gather": Adaptation(
        partial(skip_by_gather, flips=True), "fails on rows that are skipped or flipped: wrote {} Slice as Gather"
    ),
    "strides as Gather": Adaptation(
        skip_strides, "fails on rows of a Scan that a Conv skips: skipped those of {} by a Gather"
    ),
    "taken steps": Adaptation(take_steps, "never ends at a step of a Scan: wrote {} Slice as Gather"),
    "sizes of corners": Adaptation(
        write_sizes, "aligns corners of other sizes: wrote those of {} Resize", replaces=sized_resizes
    ),
    "held rows": Adaptation(
        hold_rows, "never ends or fails where rows of Scans are broadcast: held {} values in their place by a Where"
    ),
    "axes as scalars": Adaptation(spell_axes_of_sums, "takes the axis of a CumSum as a scalar only: wrote {} so"),
    "chosen branches": Adaptation(choose_branches, "loads no two If in a graph: computed both branches of {}"),
    "branches of one rank": Adaptation(refuse=refuse_unlike_branches),
    "wide sizes": Adaptation(widen_sizes, "knows no sizes in int32: computed those of {} Casts in int64"),
    "numbers of sizes": Adaptation(
        make_numbers, "rejects sizes as numbers: put a CastLike in {} places", unconverted, since=CAST_LIKE
    ),
    "typed fills": Adaptation(write_fills, "fails on fills without a number: wrote it in {} ConstantOfShape"),
    "typed exponents": Adaptation(
        type_exponents, "computes no powers of another type: gave {} Pow exponents of theirs"
    ),
    "constants as tensors": Adaptation(
        write_tensors, "reads constants as tensors only: made them of the numbers of {}"
    ),
    "stored constants": Adaptation(
        store_constants, "takes sizes and axes from initializers: made some of {} Constants"
    ),
    "stored indices": Adaptation(
        store_indices, "converts no rows that a Constant chooses: made initializers of the indices of {} Gather"
    ),
    "zero points as scales": Adaptation(
        shape_as_scales, "compares the shapes of scales and zero points: gave {} the same"
    ),
    "no declared shapes": Adaptation(
        forget_declared, "fails on wrong shapes of computed values: removed {} declared ones"
    ),
    "rank 4": Adaptation(run_in_rank_4, "rejects some Resize and norms of three axes: gave {} a fourth one"),
    "Resize of rank 4": Adaptation(resize_in_rank_4, "computes Resize of three axes wrongly: gave {} a fourth one"),
    "centred norms": Adaptation(
        centre_norms, "normalizes numbers that are close together wrongly: subtracted the mean before {} norms"
    ),
    "numbers of one axis": Adaptation(
        write_numbers, "computes a number of several axes and a tensor wrongly: left {} numbers one axis"
    ),
    "pairs of operands": Adaptation(
        pair_operands, "computes three operands of unlike shapes wrongly: wrote {} nodes with two at a time"
    ),
    "repeated matrices": Adaptation(
        repeat_matrices, "multiplies fewer matrices with more wrongly at a second size: repeated {} operands"
    ),
    "slopes with axes": Adaptation(
        align_slopes, "takes a vector of slopes by channel: gave {} of them an axis more"
    ),
    "slopes as products": Adaptation(write_slopes, "takes slopes by channel only: wrote {} PRelu as products"),
    "axes from the start": Adaptation(
        count_axes, "takes another axis where none is written, or one from the end: wrote those of {} nodes"
    ),
    "bounded choices": Adaptation(
        bound_choices,
        "chooses wrongly by indices beyond a depth: let {} OneHot choose an element more, which is cut off",
    ),
    "rows for updates": Adaptation(
        lengthen_to_updates,
        "fails on more updates than rows: added rows in {} ScatterElements",
        replaces=longer_updates,
    ),
    "rows of indices": Adaptation(
        cut_to_indices, "fails on fewer indices than rows: cut what {} GatherElements read"
    ),
    "rows of a Softmax": Adaptation(
        flatten_rows, "computes a Softmax of several axes along one: wrote {} as those of matrices"
    ),
    "columns cut off": Adaptation(
        cut_columns, "reads beyond the input of a Conv that leaves one column: cut off the others of {}"
    ),
    "constant convolutions": Adaptation(compute_convolutions, "rejects a Conv of a constant: computed {} of them"),
    "pads apart": Adaptation(
        pad_single_kernels, "reads beyond what it pads for kernels of one number: put a Pad before {} Conv"
    ),
    "parted norms": Adaptation(
        part_norms, "rejects norms with factors that are no vector behind them: put an Identity in front of {}"
    ),
    "squares as products": Adaptation(
        square_by_products, "gives norms the factors of other axes: wrote {} squares as products"
    ),
    "norms apart": Adaptation(swap_differences, "normalizes along other axes: swapped the terms of {} sums"),
    "no unused constants": Adaptation(
        drop_unused_constants, "crashes on unused initializers: removed {}", if_changed=True
    ),
    "rounding of floats": Adaptation(
        write_as_floats,
        "computes QuantizeLinear wrongly: wrote {} QuantizeLinear as arithmetic on floats",
        unwritten,
        written_as_floats,
        if_changed=True,
    ),
    "differences of floats": Adaptation(
        write_differences,
        "computes DequantizeLinear wrongly: wrote {} as arithmetic on floats",
        replaces=written_as_differences,
    ),
    "computed copies": Adaptation(compute_copies, if_changed=True),
    "wide convolutions": Adaptation(
        add_output_channels,
        "computes {} Conv wrongly: gave them an output channel more, which is cut off",
        if_changed=True,
    ),
    "bounded lookups": Adaptation(
        bound_lookups,
        "takes rows of a table by indices in it, without axis = 0: changed {} Gather",
        first=simplify_indices,
    ),
    "spelled pads": Adaptation(spell_pads, "loads no Pad without its mode and number: wrote them in {}"),
    "spelled orders": Adaptation(spell_orders, "loads no Transpose without its order of axes: wrote it in {}"),
    "spelled splits": Adaptation(spell_splits, "crashes at a Split without sizes: wrote them in {}"),
    "crops as Slice": Adaptation(crop_by_slice, "fails on negative pads: wrote those of {} Pad as Slice"),
    "plain scatters": Adaptation(
        plain_scatters, 'loses an axis behind a reduction: left out the "none" of {} ScatterElements'
    ),
    "exact Gelu": Adaptation(
        subtract_from_erf, "rounds a Gelu or crashes at it: wrote {} sums of an Erf as differences"
    ),
    "rotations by signs": Adaptation(
        sign_rotations, "computes rotary embeddings wrongly: multiplied {} of them by signs"
    ),
    "spelled strides": Adaptation(spell_strides, "crashes at pools without strides: wrote them in {}"),
    "spelled modes": Adaptation(
        spell_modes, "takes other modes of a Resize where none are written: wrote those of {}"
    ),
    "spelled epsilons": Adaptation(
        spell_epsilons, "adds another number to variances where none is written: wrote the default in {} norms"
    ),
    "sums apart": Adaptation(
        set_sums_apart, "rejects a sum of sums that are joined too: put a Reshape behind {} of them"
    ),
    "ended convolutions": Adaptation(
        end_convolutions, "gives an output that is a Conv one axis more: put a Max behind {} of them"
    ),
    "spelled same pads": Adaptation(
        spell_same_pads,
        "computes pads of SAME_UPPER and SAME_LOWER wrongly: wrote them in {} nodes",
        refuse_same_pads,
        same_padded,
    ),
    "spelled lower pads": Adaptation(
        partial(spell_same_pads, modes=LOWER),
        "computes pads that keep sizes wrongly: wrote them in {} nodes",
        partial(refuse_same_pads, modes=LOWER),
        partial(same_padded, modes=LOWER),
    ),
    "equal batches": Adaptation(
        write_batches, "multiplies unlike batches wrongly: gave the matrices of {} MatMul the same"
    ),
    "vectors as biases": Adaptation(
        add_biases, "takes vectors as the bias of a Gemm, without factors: wrote {} in steps"
    ),
    "tenth numbers": Adaptation(
        widen_kernels, "computes kernels of nine numbers in a row wrongly: gave {} Conv a tenth one, 0"
    ),
    "starts in rows": Adaptation(
        begin_in_rows, "loses rows of a Slice that begins before the first: let {} begin at it"
    ),
    "open ends": Adaptation(
        open_far_ends, "takes the end of a Slice for a size: left {} of them open", if_changed=True
    ),
    "biases of halves": Adaptation(
        add_biases_of_halves, "rejects a Gemm of float16 with a bias: added those of {}"
    ),
    "uncounted edges": Adaptation(
        count_no_pads, "counts what is beyond the pads where it rounds up: excluded pads of {} pools that have none"
    ),
    "no vectors": Adaptation(write_vectors, "multiplies no vectors: wrote those of {} MatMul as matrices"),
    "no two vectors": Adaptation(
        partial(write_vectors, both=True),
        "multiplies no two vectors, and no vector of integers: wrote those of {} MatMul as matrices",
    ),
    "inputs with elements": Adaptation(refuse=refuse_no_elements),
    "no products of integers": Adaptation(refuse=refuse_products),
    "tables of floats": Adaptation(
        tables_as_floats,
        "fails on rows of integers that become floats: made floats of {} tables",
        replaces=nodes_of_tables,
        if_changed=True,
    ),
    "squeezed bounds": Adaptation(
        bound_squeezed, "loses a Squeeze in front of a Clip: wrote {} Clip as Max and Min"
    ),
    "factors of sizes": Adaptation(
        multiply_by_sizes, "divides by 1 in place of an open size: multiplied by {} reciprocals of sizes"
    ),
    "clipped norms": Adaptation(bound_by_max, "normalizes along another axis: wrote {} Clip as Max"),
    "bounded integers": Adaptation(bound_integers, "clips no integers: wrote {} Clip as Max and Min"),
    "parted Reshapes": Adaptation(part_reshapes, "joins two Reshapes wrongly: put an Identity in front of {}"),
    "parted pairs": Adaptation(
        part_pairs, "loses a Cast behind a Mul, or the sum in a Log: put an Identity in front of {}"
    ),
    "parted divisors": Adaptation(
        part_divisors, "rejects quotients by sums along several axes: put an Identity in front of {} divisors"
    ),
    "whole pools as reductions": Adaptation(
        reduce_whole_pools, "pools all of three axes wrongly: wrote {} pools as reductions", replaces=whole_pools
    ),
    "parted reductions": Adaptation(
        part_reductions, "reduces tensors of five and more axes wrongly: did so along two at a time in {} nodes"
    ),
    "reductions without axes": Adaptation(
        reduce_without_axes, "reduces along other axes behind an Unsqueeze: let {} reductions keep none"
    ),
    "vectors apart": Adaptation(
        set_vectors_apart, "joins what follows reductions to them wrongly: set it apart from {} of them"
    ),
    "numbers with axes": Adaptation(
        keep_axes, "rejects numbers that reductions give: let {} keep their axes, with a Squeeze behind"
    ),
    "bounded Tanh": Adaptation(bound_tanh, "computes Tanh as NaN between 45 and 88: clipped what {} read"),
    "logarithms of Sigmoid": Adaptation(
        write_logarithms, "loses Sigmoids that are almost 0: wrote {} Log of them by a bounded Exp"
    ),
    **{
        f"{kind} products": Adaptation(
            partial(multiply, kind=kind),
            "resizes wrongly: wrote {} Resize as products",
            replaces=partial(resizes, kind=kind),
        )
        for kind in get_args(Kind)
    },
    **{
        f"indices of {', '.join(operators)}": Adaptation(
            partial(count_from_start, operators=operators),
            "takes no negative indices: counted those of {} nodes from the start",
        )
        for operators in (
            ("ScatterElements", "GatherElements", "GatherND", "ScatterND"),
            ("GatherND",),
            ("GatherND", "ScatterND"),
        )
    },
    "pools of planes": Adaptation(
        part_pools, "pools along three axes wrongly: wrote {} pools as two", replaces=pools_of_volumes
    ),
    "convolutions of planes": Adaptation(
        part_convolutions,
        "computes Conv along three axes wrongly: wrote {} as those of planes",
        replaces=convolutions_of_volumes,
    ),
    "gathered windows": Adaptation(
        gather_pools, "ignores the dilations of pools: wrote {} MaxPool as maxima", replaces=dilated_pools
    ),
    "groups of planes": Adaptation(
        convolve_planes, "rejects groups along one axis of open size: gave {} Conv a second one"
    ),
    "transposed apart": Adaptation(
        transpose_apart, "multiplies transposed matrices wrongly: transposed those of {} Gemm before"
    ),
    "whole windows": Adaptation(
        floor_pools,
        "adds a window behind the input where it rounds up: rounded {} pools down",
        replaces=floored_pools,
    ),
    "columns apart": Adaptation(add_columns, "takes columns that are added to products for rows: set {} apart"),
    "flips of rows": Adaptation(
        flip_rows,
        "crashes at negative steps in many axes: took those of {} Slice in three",
        replaces=flips_of_planes,
    ),
    "pads of all axes": Adaptation(first=pad_every_axis),
    "counted pads": Adaptation(pad_counted, "counts no pads behind an axis: put a Pad before {} AveragePool"),
    "pads of one end": Adaptation(part_pads, "takes other rows behind pads at both ends: wrote {} Pad as two"),
    "pads of batches": Adaptation(
        pad_batches,
        "pads a first of many axes wrongly: padded that of {} Pad in two axes",
        replaces=pads_of_batches,
    ),
    "parted outputs": Adaptation(
        part_outputs, "loses outputs that nodes read, or their shapes: returned {} by a Transpose"
    ),
    "integers as indices": Adaptation(refuse=refuse_integers),
    "at most 4 axes": Adaptation(refuse=refuse_axes),
    "no lone operands": Adaptation(
        copy_lone_operands, "joins and compares no single tensor: made an Identity of {} nodes"
    ),
    "no written beta": Adaptation(
        leave_default_beta, "makes a HardSwish of products with a HardSigmoid: left beta of {} of them out"
    ),
    "no empty operands": Adaptation(
        drop_empty_operands, "rejects a Concat with a constant without rows: left those of {} nodes out"
    ),
    "channels of signals": Adaptation(first=add_channels),
    "fused nodes": Adaptation(first=unfuse),
    "only operators of ONNX": Adaptation(refuse=refuse_fused, first=unfuse),
    "outputs as sums": Adaptation(
        sum_outputs, "loses outputs that some nodes read, such as a Relu: added 0 to {} of them"
    ),
    "batches apart": Adaptation(set_batches_apart, "takes batches out of tensors: set {} values apart from theirs"),
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
    known = AdaptedModel(model)
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        if (changed or not adaptation.if_changed) and (done := adaptation.rewrite(known)):
            yield f"{target.name} {adaptation.text.format(done)}"
            known = AdaptedModel(model)  # of which other things are known


def adapted_first(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a model before its nodes are read, in place; yield what was done, for the user."""
    known = AdaptedModel(model)
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        if text := adaptation.first(known):
            yield f"{target.name} {text}"
            known = AdaptedModel(model)


def refused(model: ir.Model, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node of a model that no adaptation makes right for a runtime."""
    adapted = _adapted_for(model, target)
    for adaptation in map(ADAPTATIONS.__getitem__, target.model.adaptations):
        yield from adaptation.refuse(adapted, target)


def replaced_nodes(model: ir.Model, target: Target) -> set[ir.Node]:
    """Return the nodes of a model that adaptations replace."""
    return _adapted_for(model, target).replaced


def _adapted_for(model: ir.Model, target: Target) -> AdaptedModel:
    return AdaptedModel(model, [ADAPTATIONS[name].replaces for name in target.model.adaptations])
