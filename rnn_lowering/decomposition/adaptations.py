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
from rnn_lowering.decomposition.rewrites import (
    apart,
    axes,
    bounds,
    indices,
    norms,
    planes,
    quantized,
    reductions,
    resizes,
    roundings,
    rows,
    spelled,
    tensors,
    windows,
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
        rows.take_parts, "has no sequences: wrote {} SequenceAt as Gather or Slice", replaces=rows.parts_taken
    ),
    "no sequences": Adaptation(refuse=tensors.refuse_sequences),
    "repeats as Gather": Adaptation(repeat_by_gather, "fails on repeated rows: wrote {} Tile and Expand as Gather"),
    "repeated fills": Adaptation(
        expand_fills, "fails on products of fills of open sizes: wrote {} ConstantOfShape as Expand"
    ),
    "several repeats apart": Adaptation(
        repeat_several_apart, "repeats other rows along several open axes: wrote {} Tile as Gather and Concat"
    ),
    "Flatten as Reshape": Adaptation(
        spelled.flatten_by_reshape, "multiplies no two open sizes: wrote {} Flatten as Reshape"
    ),
    "no Dropout of inputs": Adaptation(
        spelled.skip_dropouts, "loses the name of an input behind a Dropout: made an Identity of {}"
    ),
    "steps as Gather": Adaptation(rows.skip_by_gather, "fails on rows that are skipped: wrote {} Slice as Gather"),
    "steps and flips as Gather": Adaptation(
        partial(rows.skip_by_gather, flips=True),
        "fails on rows that are skipped or flipped: wrote {} Slice as Gather",
    ),
    "strides as Gather": Adaptation(
        rows.skip_strides, "fails on rows of a Scan that a Conv skips: skipped those of {} by a Gather"
    ),
    "taken steps": Adaptation(rows.take_steps, "never ends at a step of a Scan: wrote {} Slice as Gather"),
    "sizes of corners": Adaptation(
        resizes.write_sizes,
        "aligns corners of other sizes: wrote those of {} Resize",
        replaces=resizes.sized_resizes,
    ),
    "held rows": Adaptation(
        rows.hold_rows,
        "never ends or fails where rows of Scans are broadcast: held {} values in their place by a Where",
    ),
    "axes as scalars": Adaptation(
        spelled.spell_axes_of_sums, "takes the axis of a CumSum as a scalar only: wrote {} so"
    ),
    "chosen branches": Adaptation(
        tensors.choose_branches, "loads no two If in a graph: computed both branches of {}"
    ),
    "branches of one rank": Adaptation(refuse=tensors.refuse_unlike_branches),
    "wide sizes": Adaptation(tensors.widen_sizes, "knows no sizes in int32: computed those of {} Casts in int64"),
    "numbers of sizes": Adaptation(
        spelled.make_numbers,
        "rejects sizes as numbers: put a CastLike in {} places",
        spelled.unconverted,
        since=spelled.CAST_LIKE,
    ),
    "typed fills": Adaptation(
        spelled.write_fills, "fails on fills without a number: wrote it in {} ConstantOfShape"
    ),
    "typed exponents": Adaptation(
        spelled.type_exponents, "computes no powers of another type: gave {} Pow exponents of theirs"
    ),
    "constants as tensors": Adaptation(
        spelled.write_tensors, "reads constants as tensors only: made them of the numbers of {}"
    ),
    "stored constants": Adaptation(
        spelled.store_constants, "takes sizes and axes from initializers: made some of {} Constants"
    ),
    "stored indices": Adaptation(
        spelled.store_indices,
        "converts no rows that a Constant chooses: made initializers of the indices of {} Gather",
    ),
    "zero points as scales": Adaptation(
        spelled.shape_as_scales, "compares the shapes of scales and zero points: gave {} the same"
    ),
    "no declared shapes": Adaptation(
        spelled.forget_declared, "fails on wrong shapes of computed values: removed {} declared ones"
    ),
    "rank 4": Adaptation(axes.run_in_rank_4, "rejects some Resize and norms of three axes: gave {} a fourth one"),
    "Resize of rank 4": Adaptation(
        axes.resize_in_rank_4, "computes Resize of three axes wrongly: gave {} a fourth one"
    ),
    "centred norms": Adaptation(
        norms.centre_norms,
        "normalizes numbers that are close together wrongly: subtracted the mean before {} norms",
    ),
    "numbers of one axis": Adaptation(
        axes.write_numbers, "computes a number of several axes and a tensor wrongly: left {} numbers one axis"
    ),
    "pairs of operands": Adaptation(
        axes.pair_operands, "computes three operands of unlike shapes wrongly: wrote {} nodes with two at a time"
    ),
    "repeated matrices": Adaptation(
        axes.repeat_matrices, "multiplies fewer matrices with more wrongly at a second size: repeated {} operands"
    ),
    "slopes with axes": Adaptation(
        axes.align_slopes, "takes a vector of slopes by channel: gave {} of them an axis more"
    ),
    "slopes as products": Adaptation(axes.write_slopes, "takes slopes by channel only: wrote {} PRelu as products"),
    "axes from the start": Adaptation(
        indices.count_axes, "takes another axis where none is written, or one from the end: wrote those of {} nodes"
    ),
    "bounded choices": Adaptation(
        indices.bound_choices,
        "chooses wrongly by indices beyond a depth: let {} OneHot choose an element more, which is cut off",
    ),
    "rows for updates": Adaptation(
        indices.lengthen_to_updates,
        "fails on more updates than rows: added rows in {} ScatterElements",
        replaces=indices.longer_updates,
    ),
    "rows of indices": Adaptation(
        indices.cut_to_indices, "fails on fewer indices than rows: cut what {} GatherElements read"
    ),
    "rows of a Softmax": Adaptation(
        axes.flatten_rows, "computes a Softmax of several axes along one: wrote {} as those of matrices"
    ),
    "columns cut off": Adaptation(
        windows.cut_columns, "reads beyond the input of a Conv that leaves one column: cut off the others of {}"
    ),
    "constant convolutions": Adaptation(
        windows.compute_convolutions, "rejects a Conv of a constant: computed {} of them"
    ),
    "pads apart": Adaptation(
        windows.pad_single_kernels, "reads beyond what it pads for kernels of one number: put a Pad before {} Conv"
    ),
    "parted norms": Adaptation(
        norms.part_norms,
        "rejects norms with factors that are no vector behind them: put an Identity in front of {}",
    ),
    "squares as products": Adaptation(
        norms.square_by_products, "gives norms the factors of other axes: wrote {} squares as products"
    ),
    "norms apart": Adaptation(apart.swap_differences, "normalizes along other axes: swapped the terms of {} sums"),
    "no unused constants": Adaptation(
        spelled.drop_unused_constants, "crashes on unused initializers: removed {}", if_changed=True
    ),
    "rounding of floats": Adaptation(
        roundings.write_as_floats,
        "computes QuantizeLinear wrongly: wrote {} QuantizeLinear as arithmetic on floats",
        roundings.unwritten,
        roundings.written_as_floats,
        if_changed=True,
    ),
    "differences of floats": Adaptation(
        roundings.write_differences,
        "computes DequantizeLinear wrongly: wrote {} as arithmetic on floats",
        replaces=roundings.written_as_differences,
    ),
    "computed copies": Adaptation(apart.compute_copies, if_changed=True),
    "wide convolutions": Adaptation(
        axes.add_output_channels,
        "computes {} Conv wrongly: gave them an output channel more, which is cut off",
        if_changed=True,
    ),
    "bounded lookups": Adaptation(
        rows.bound_lookups,
        "takes rows of a table by indices in it, without axis = 0: changed {} Gather",
        first=rows.simplify_indices,
    ),
    "spelled pads": Adaptation(spelled.spell_pads, "loads no Pad without its mode and number: wrote them in {}"),
    "spelled orders": Adaptation(
        spelled.spell_orders, "loads no Transpose without its order of axes: wrote it in {}"
    ),
    "spelled splits": Adaptation(spelled.spell_splits, "crashes at a Split without sizes: wrote them in {}"),
    "crops as Slice": Adaptation(spelled.crop_by_slice, "fails on negative pads: wrote those of {} Pad as Slice"),
    "plain scatters": Adaptation(
        spelled.plain_scatters, 'loses an axis behind a reduction: left out the "none" of {} ScatterElements'
    ),
    "exact Gelu": Adaptation(
        apart.subtract_from_erf, "rounds a Gelu or crashes at it: wrote {} sums of an Erf as differences"
    ),
    "rotations by signs": Adaptation(
        apart.sign_rotations, "computes rotary embeddings wrongly: multiplied {} of them by signs"
    ),
    "spelled strides": Adaptation(spelled.spell_strides, "crashes at pools without strides: wrote them in {}"),
    "spelled modes": Adaptation(
        spelled.spell_modes, "takes other modes of a Resize where none are written: wrote those of {}"
    ),
    "spelled epsilons": Adaptation(
        spelled.spell_epsilons,
        "adds another number to variances where none is written: wrote the default in {} norms",
    ),
    "sums apart": Adaptation(
        apart.set_sums_apart, "rejects a sum of sums that are joined too: put a Reshape behind {} of them"
    ),
    "ended convolutions": Adaptation(
        apart.end_convolutions, "gives an output that is a Conv one axis more: put a Max behind {} of them"
    ),
    "spelled same pads": Adaptation(
        windows.spell_same_pads,
        "computes pads of SAME_UPPER and SAME_LOWER wrongly: wrote them in {} nodes",
        windows.refuse_same_pads,
        windows.same_padded,
    ),
    "spelled lower pads": Adaptation(
        partial(windows.spell_same_pads, modes=windows.LOWER),
        "computes pads that keep sizes wrongly: wrote them in {} nodes",
        partial(windows.refuse_same_pads, modes=windows.LOWER),
        partial(windows.same_padded, modes=windows.LOWER),
    ),
    "equal batches": Adaptation(
        axes.write_batches, "multiplies unlike batches wrongly: gave the matrices of {} MatMul the same"
    ),
    "vectors as biases": Adaptation(
        axes.add_biases, "takes vectors as the bias of a Gemm, without factors: wrote {} in steps"
    ),
    "tenth numbers": Adaptation(
        windows.widen_kernels, "computes kernels of nine numbers in a row wrongly: gave {} Conv a tenth one, 0"
    ),
    "starts in rows": Adaptation(
        rows.begin_in_rows, "loses rows of a Slice that begins before the first: let {} begin at it"
    ),
    "open ends": Adaptation(
        rows.open_far_ends, "takes the end of a Slice for a size: left {} of them open", if_changed=True
    ),
    "biases of halves": Adaptation(
        axes.add_biases_of_halves, "rejects a Gemm of float16 with a bias: added those of {}"
    ),
    "uncounted edges": Adaptation(
        windows.count_no_pads,
        "counts what is beyond the pads where it rounds up: excluded pads of {} pools that have none",
    ),
    "no vectors": Adaptation(axes.write_vectors, "multiplies no vectors: wrote those of {} MatMul as matrices"),
    "no two vectors": Adaptation(
        partial(axes.write_vectors, both=True),
        "multiplies no two vectors, and no vector of integers: wrote those of {} MatMul as matrices",
    ),
    "inputs with elements": Adaptation(refuse=tensors.refuse_no_elements),
    "no products of integers": Adaptation(refuse=quantized.refuse_products),
    "tables of floats": Adaptation(
        quantized.tables_as_floats,
        "fails on rows of integers that become floats: made floats of {} tables",
        replaces=quantized.nodes_of_tables,
        if_changed=True,
    ),
    "squeezed bounds": Adaptation(
        bounds.bound_squeezed, "loses a Squeeze in front of a Clip: wrote {} Clip as Max and Min"
    ),
    "factors of sizes": Adaptation(
        norms.multiply_by_sizes, "divides by 1 in place of an open size: multiplied by {} reciprocals of sizes"
    ),
    "clipped norms": Adaptation(bounds.bound_by_max, "normalizes along another axis: wrote {} Clip as Max"),
    "bounded integers": Adaptation(bounds.bound_integers, "clips no integers: wrote {} Clip as Max and Min"),
    "parted Reshapes": Adaptation(
        apart.part_reshapes, "joins two Reshapes wrongly: put an Identity in front of {}"
    ),
    "parted pairs": Adaptation(
        apart.part_pairs, "loses a Cast behind a Mul, or the sum in a Log: put an Identity in front of {}"
    ),
    "parted divisors": Adaptation(
        norms.part_divisors, "rejects quotients by sums along several axes: put an Identity in front of {} divisors"
    ),
    "whole pools as reductions": Adaptation(
        reductions.reduce_whole_pools,
        "pools all of three axes wrongly: wrote {} pools as reductions",
        replaces=reductions.whole_pools,
    ),
    "parted reductions": Adaptation(
        reductions.part_reductions,
        "reduces tensors of five and more axes wrongly: did so along two at a time in {} nodes",
    ),
    "reductions without axes": Adaptation(
        reductions.reduce_without_axes, "reduces along other axes behind an Unsqueeze: let {} reductions keep none"
    ),
    "vectors apart": Adaptation(
        reductions.set_vectors_apart, "joins what follows reductions to them wrongly: set it apart from {} of them"
    ),
    "numbers with axes": Adaptation(
        reductions.keep_axes, "rejects numbers that reductions give: let {} keep their axes, with a Squeeze behind"
    ),
    "bounded Tanh": Adaptation(bounds.bound_tanh, "computes Tanh as NaN between 45 and 88: clipped what {} read"),
    "logarithms of Sigmoid": Adaptation(
        bounds.write_logarithms, "loses Sigmoids that are almost 0: wrote {} Log of them by a bounded Exp"
    ),
    **{
        f"{kind} products": Adaptation(
            partial(resizes.multiply, kind=kind),
            "resizes wrongly: wrote {} Resize as products",
            replaces=partial(resizes.resizes, kind=kind),
        )
        for kind in get_args(resizes.Kind)
    },
    **{
        f"indices of {', '.join(operators)}": Adaptation(
            partial(indices.count_from_start, operators=operators),
            "takes no negative indices: counted those of {} nodes from the start",
        )
        for operators in (
            ("ScatterElements", "GatherElements", "GatherND", "ScatterND"),
            ("GatherND",),
            ("GatherND", "ScatterND"),
        )
    },
    "pools of planes": Adaptation(
        windows.part_pools,
        "pools along three axes wrongly: wrote {} pools as two",
        replaces=windows.pools_of_volumes,
    ),
    "convolutions of planes": Adaptation(
        windows.part_convolutions,
        "computes Conv along three axes wrongly: wrote {} as those of planes",
        replaces=windows.convolutions_of_volumes,
    ),
    "gathered windows": Adaptation(
        windows.gather_pools,
        "ignores the dilations of pools: wrote {} MaxPool as maxima",
        replaces=windows.dilated_pools,
    ),
    "groups of planes": Adaptation(
        planes.convolve_planes, "rejects groups along one axis of open size: gave {} Conv a second one"
    ),
    "transposed apart": Adaptation(
        planes.transpose_apart, "multiplies transposed matrices wrongly: transposed those of {} Gemm before"
    ),
    "whole windows": Adaptation(
        windows.floor_pools,
        "adds a window behind the input where it rounds up: rounded {} pools down",
        replaces=windows.floored_pools,
    ),
    "columns apart": Adaptation(
        axes.add_columns, "takes columns that are added to products for rows: set {} apart"
    ),
    "flips of rows": Adaptation(
        planes.flip_rows,
        "crashes at negative steps in many axes: took those of {} Slice in three",
        replaces=planes.flips_of_planes,
    ),
    "pads of all axes": Adaptation(first=planes.pad_every_axis),
    "counted pads": Adaptation(
        planes.pad_counted, "counts no pads behind an axis: put a Pad before {} AveragePool"
    ),
    "pads of one end": Adaptation(
        planes.part_pads, "takes other rows behind pads at both ends: wrote {} Pad as two"
    ),
    "pads of batches": Adaptation(
        planes.pad_batches,
        "pads a first of many axes wrongly: padded that of {} Pad in two axes",
        replaces=planes.pads_of_batches,
    ),
    "parted outputs": Adaptation(
        apart.part_outputs, "loses outputs that nodes read, or their shapes: returned {} by a Transpose"
    ),
    "integers as indices": Adaptation(refuse=tensors.refuse_integers),
    "at most 4 axes": Adaptation(refuse=tensors.refuse_axes),
    "no lone operands": Adaptation(
        spelled.copy_lone_operands, "joins and compares no single tensor: made an Identity of {} nodes"
    ),
    "no written beta": Adaptation(
        spelled.leave_default_beta, "makes a HardSwish of products with a HardSigmoid: left beta of {} of them out"
    ),
    "no empty operands": Adaptation(
        spelled.drop_empty_operands, "rejects a Concat with a constant without rows: left those of {} nodes out"
    ),
    "channels of signals": Adaptation(first=windows.add_channels),
    "fused nodes": Adaptation(first=unfuse),
    "only operators of ONNX": Adaptation(refuse=refuse_fused, first=unfuse),
    "outputs as sums": Adaptation(
        apart.sum_outputs, "loses outputs that some nodes read, such as a Relu: added 0 to {} of them"
    ),
    "batches apart": Adaptation(
        apart.set_batches_apart, "takes batches out of tensors: set {} values apart from theirs"
    ),
    "axes of reductions": Adaptation(
        refuse=reductions.refuse_reductions,
        replaces=reductions.reductions_by_attributes,
        first=reductions.reduce_by_attributes,
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
