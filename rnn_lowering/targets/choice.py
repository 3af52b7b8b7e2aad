"""The form of a node for a target, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.emit.spelling import Spelling
from rnn_lowering.errors import UnknownSizeError, UnsupportedError
from rnn_lowering.recurrence.folds import Fold, loop, scan, unroll
from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.targets.table import Target

_FOLDS: dict[str, Fold] = {"scan": scan, "loop": loop, "unroll": unroll}
_FIRST_OPSET_OF_SCAN = 9


@dataclass(frozen=True)
class Choice:
    """The form of one node, why it was taken, and how it is spelt."""

    form: str
    reason: str
    fold: Fold
    spelling: Spelling


def choose(spec: RecurrentSpec, opset: int, to: str, max_unroll: int, target: Target) -> Choice:
    """Return the form of a node: straight-line at T = 1 (or 0) whatever is asked for; for "auto" else the first
    form that the target takes and that this node can have.

    Raises:
        UnsupportedError: The target does not take such a node, or the form asked for does not exist at the model's
            opset, for this node or for the target.
    """
    _check_target(spec, opset, target)
    if to not in ("auto", *target.forms):
        raise UnsupportedError(
            f"{target.name} does not take the form {to}",
            hint=f"take {' or '.join(('auto', *target.forms))}",
            node=spec.node,
        )
    T = spec.seq_length
    if T is not None and T <= 1 and not _needs_count(spec, opset):
        return _choice("unroll", f"sequence length {T} needs no loop", spec, opset, target)
    if to != "auto":
        _check_form(to, spec, opset, max_unroll, target)
        return _choice(to, "asked for", spec, opset, target)
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
    raise AssertionError(f"{target.name} takes no form")


def _choice(form: str, reason: str, spec: RecurrentSpec, opset: int, target: Target) -> Choice:
    # onnxruntime fuses a Gemm with its activation in float32; a flip of unknown length needs opset 10.
    tuned = form != "unroll" and spec.dtype == ir.DataType.FLOAT and opset >= 10
    spelling = replace(target.in_loops if tuned else Spelling(), composed=frozenset(target.composed))
    return Choice(form, reason, _FOLDS[form], spelling)


def _check_target(spec: RecurrentSpec, opset: int, target: Target) -> None:
    newest, oldest = target.newest_opset, target.oldest_opset
    limit = f"at most {newest}" if newest and opset > newest else ""
    limit = f"at least {oldest}" if oldest and opset < oldest else limit
    if limit:
        raise UnsupportedError(
            f"{target.name} takes models of opset {limit}, this one imports {opset}",
            hint="export it at such an opset, or convert it (onnx.version_converter)",
            node=spec.node,
        )
    if not target.sequence_lens and "sequence_lens" in spec.inputs and "sequence_lens" not in spec.constants:
        raise UnsupportedError(
            f"{target.name} cannot take sequence_lens that are known at run time only",
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


def _needs_count(spec: RecurrentSpec, opset: int) -> bool:
    """Whether a mask needs the numbers of an unknown count of rows, which only a Loop gives before opset 9."""
    return opset < _FIRST_OPSET_OF_SCAN and spec.batch_size is None and "sequence_lens" in spec.inputs


def _check_form(form: str, spec: RecurrentSpec, opset: int, max_unroll: int, target: Target) -> None:
    others = " or ".join(other for other in target.forms if other != form)
    instead = f", or take the form {others}" if others else ""
    if form == "scan" and opset < _FIRST_OPSET_OF_SCAN:
        raise UnsupportedError(
            f"Scan needs opset 9, this scope imports {opset}",
            hint=f"convert the model to opset 9 or later (onnx.version_converter){instead}",
            node=spec.node,
        )
    if form == "unroll":
        _check_unroll(spec, opset, max_unroll, instead)


def _check_unroll(spec: RecurrentSpec, opset: int, max_unroll: int, instead: str) -> None:
    if spec.seq_length is None:
        raise UnknownSizeError(
            "the sequence length is not known, so its steps cannot be written out",
            hint=instead.removeprefix(", or "),
            node=spec.node,
            sizes=("T",),
        )
    if spec.seq_length > max_unroll:
        raise UnsupportedError(
            f"{spec.seq_length} steps are more than the {max_unroll} that are written out",
            hint=f"raise the limit (--max-unroll {spec.seq_length}){instead}",
            node=spec.node,
        )
    if _needs_count(spec, opset):
        raise UnknownSizeError(
            f"sequence_lens with an unknown batch size cannot be unrolled at opset {opset}",
            hint=f"convert the model to opset 9 or later{instead}",
            node=spec.node,
            sizes=("N",),
        )
