"""Which form a node takes: what each form needs, and the choice of `auto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.folds import Fold, loop, scan, unroll
from rnn_lowering.spec import RecurrentSpec

To = Literal["auto", "scan", "loop", "unroll"]
FORMS: tuple[str, ...] = get_args(To)
_FOLDS: dict[str, Fold] = {"scan": scan, "loop": loop, "unroll": unroll}


@dataclass(frozen=True)
class Choice:
    """The form of one node and why it was taken."""

    form: str
    reason: str
    fold: Fold


def choose(spec: RecurrentSpec, opset: int, to: str, max_unroll: int) -> Choice:
    """Return the form of a node: straight-line at T = 1 (or 0) whatever is asked for; for "auto" else Scan where
    the opset has it, else Loop.

    Raises:
        UnsupportedError: The form asked for does not exist at the model's opset or for this node.
    """
    T = spec.seq_length
    if T is not None and T <= 1 and not _needs_count(spec, opset):
        return Choice("unroll", f"sequence length {T} needs no loop", unroll)
    if to == "auto":
        form, reason = ("scan", "opset has Scan") if opset >= 9 else ("loop", f"no Scan at opset {opset}")
        return Choice(form, reason, _FOLDS[form])
    if to == "scan" and opset < 9:
        raise UnsupportedError(
            f"Scan needs opset 9, this scope imports {opset}",
            hint="take the form loop, or convert the model to opset 9 or later (onnx.version_converter)",
            node=spec.node,
        )
    if to == "unroll":
        _check_unroll(spec, opset, max_unroll)
    return Choice(to, "asked for", _FOLDS[to])


def _needs_count(spec: RecurrentSpec, opset: int) -> bool:
    """Whether a mask needs the numbers of an unknown count of rows, which only a Loop gives before opset 9."""
    return opset < 9 and spec.batch_size is None and "sequence_lens" in spec.inputs


def _check_unroll(spec: RecurrentSpec, opset: int, max_unroll: int) -> None:
    if spec.seq_length is None:
        raise UnsupportedError(
            "the sequence length is not known, so its steps cannot be written out",
            hint="fix the input's dimension (--set-dim NAME=SIZE or --input-shape NAME:D0,D1,...), or take the "
            "form scan or loop",
            node=spec.node,
        )
    if spec.seq_length > max_unroll:
        raise UnsupportedError(
            f"{spec.seq_length} steps are more than the {max_unroll} that are written out",
            hint=f"raise the limit (--max-unroll {spec.seq_length}), or take the form scan or loop",
            node=spec.node,
        )
    if _needs_count(spec, opset):
        raise UnsupportedError(
            f"sequence_lens with an unknown batch size cannot be unrolled at opset {opset}",
            hint="fix the batch size (--set-dim), take the form loop, or convert the model to opset 9 or later",
            node=spec.node,
        )
