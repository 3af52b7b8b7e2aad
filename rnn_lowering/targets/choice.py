"""The choice of the form of a node for a target, or the error that says why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.integers import FIRST_OPSET as INTEGERS_OPSET
from rnn_lowering.emit.sizes import counting_needs_loop
from rnn_lowering.emit.versions import first_opset
from rnn_lowering.errors import UnknownSizeError, UnsupportedError
from rnn_lowering.recurrence.folds import Fold, loop, scan, unroll
from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.targets.table import LOOP_DIALECT_OPSET, Target

_FOLDS: dict[str, Fold] = {"scan": scan, "loop": loop, "unroll": unroll}


@dataclass(frozen=True)
class Choice:
    """The form of one node.

    Attributes:
        form: "scan", "loop" or "unroll".
        reason: Why it was chosen.
        fold: The function that emits it.
        dialect: Which operators it is emitted in.
    """

    form: str
    reason: str
    fold: Fold
    dialect: Dialect


def choose(spec: RecurrentSpec, opset: int, to: str, max_unroll: int, target: Target) -> Choice:
    """Return the form of a node.

    At sequence length 0 or 1 that is "unroll", whatever is requested. Otherwise "auto" is the first form in
    `target.forms` that is possible for this node.

    Args:
        spec: What the node specifies.
        opset: The opset of its graph.
        to: The requested form, or "auto".
        max_unroll: The most steps that are unrolled.
        target: The runtime.

    Raises:
        UnsupportedError: The target does not support such a node, or the requested form is not possible at this
            opset, for this node or for the target.
        UnknownSizeError: The form or the target needs a size that is not known.
    """
    _check_target(spec, opset, target)
    if to not in ("auto", *target.forms):
        raise UnsupportedError(
            f"{target.name} does not support the form {to}",
            hint=f"use {' or '.join(('auto', *target.forms))}",
            node=spec.node,
        )
    T = spec.seq_length
    if T is not None and T <= 1 and not _needs_loop(spec, opset):
        return _choice("unroll", f"sequence length {T} needs no loop", spec, opset, target)
    if to != "auto":
        _check_form(to, spec, opset, max_unroll, target)
        return _choice(to, "requested", spec, opset, target)
    reason = f"first choice for target {target.name}"
    for form in target.forms:
        try:
            _check_form(form, spec, opset, max_unroll, target)
        except UnsupportedError as error:
            if form == target.forms[-1]:
                raise
            reason = error.reason
        else:
            return _choice(form, reason, spec, opset, target)
    raise AssertionError(f"{target.name} supports no form")


def _choice(form: str, reason: str, spec: RecurrentSpec, opset: int, target: Target) -> Choice:
    # onnxruntime fuses a Gemm with its activation in float32 only.
    tuned = form != "unroll" and spec.dtype == ir.DataType.FLOAT and opset >= LOOP_DIALECT_OPSET
    dialect = replace(
        target.loop_dialect if tuned else Dialect(),
        unsupported=frozenset(target.unsupported),
        dequantize_inside=target.dequantize_inside,
    )
    return Choice(form, reason, _FOLDS[form], dialect)


def _check_target(spec: RecurrentSpec, opset: int, target: Target) -> None:
    newest, oldest = target.newest_opset, target.oldest_opset
    limit = f"at most {newest}" if newest and opset > newest else ""
    limit = f"at least {oldest}" if oldest and opset < oldest else limit
    if limit:
        raise UnsupportedError(
            f"{target.name} supports models of opset {limit}, this one imports {opset}",
            hint="export it at such an opset, or convert it (onnx.version_converter)",
            node=spec.node,
        )
    if spec.rounds:
        _check_integers(spec, opset, target)
    if not target.sequence_lens and "sequence_lens" in spec.inputs and "sequence_lens" not in spec.constants:
        raise UnsupportedError(
            f"{target.name} does not support sequence_lens that are known at run time only",
            hint="export the model without lengths, or with constant ones",
            node=spec.node,
        )
    unknown = [
        name
        for name, size in (("T", spec.seq_length), ("N", spec.batch_size))
        if size is None and name in target.sizes
    ]
    if unknown:
        names = {"T": "sequence length", "N": "batch size"}
        raise UnknownSizeError(
            f"{target.name} needs a known {' and '.join(names[u] for u in unknown)}",
            node=spec.node,
            sizes=tuple(unknown),
        )


def _check_integers(spec: RecurrentSpec, opset: int, target: Target) -> None:
    """Refuse products of integers where they cannot be."""
    hint = "make floats of the weights (--dequantize)"
    if opset < INTEGERS_OPSET:
        reason = f"DynamicQuantizeLinear needs opset {INTEGERS_OPSET}, this scope imports {opset}"
        raise UnsupportedError(reason, hint=hint, node=spec.node)
    if not target.integer_products:
        lacks = "does not support" if target.integer_products is False else "is not known to support"
        reason = f"{target.name} {lacks} DynamicQuantizeLinear and MatMulInteger"
        raise UnsupportedError(reason, hint=hint, node=spec.node)


def _needs_loop(spec: RecurrentSpec, opset: int) -> bool:
    """Return whether even an unrolled node would need a Loop: to number the rows of an unknown batch size."""
    return counting_needs_loop(opset) and spec.batch_size is None and "sequence_lens" in spec.inputs


def _check_form(form: str, spec: RecurrentSpec, opset: int, max_unroll: int, target: Target) -> None:
    others = " or ".join(other for other in target.forms if other != form)
    instead = f", or use the form {others}" if others else ""
    first = first_opset(_FOLDS[form])
    if opset < first:
        raise UnsupportedError(
            f"{form.title()} needs opset {first}, this scope imports {opset}",
            hint=f"convert the model to opset {first} or later (onnx.version_converter){instead}",
            node=spec.node,
        )
    if form == "unroll":
        _check_unroll(spec, opset, max_unroll, instead)


def _check_unroll(spec: RecurrentSpec, opset: int, max_unroll: int, instead: str) -> None:
    if spec.seq_length is None:
        raise UnknownSizeError(
            "the sequence length is not known, so the steps cannot be unrolled",
            hint=instead.removeprefix(", or "),
            node=spec.node,
            sizes=("T",),
        )
    if spec.seq_length > max_unroll:
        raise UnsupportedError(
            f"{spec.seq_length} steps are more than the limit of {max_unroll} for unrolling",
            hint=f"raise the limit (--max-unroll {spec.seq_length}){instead}",
            node=spec.node,
        )
    if _needs_loop(spec, opset):
        raise UnknownSizeError(
            f"sequence_lens with an unknown batch size cannot be unrolled at opset {opset}",
            hint=f"convert the model to opset 9 or later{instead}",
            node=spec.node,
            sizes=("N",),
        )
