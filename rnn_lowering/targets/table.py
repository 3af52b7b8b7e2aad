"""Runtimes and what each takes, and the form that a node is given for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import onnx_ir as ir

from rnn_lowering.emit.builder import Spelling
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.recurrence.folds import Fold, loop, scan, unroll
from rnn_lowering.spec.node import RecurrentSpec

To = Literal["auto", "scan", "loop", "unroll"]
FORMS: tuple[str, ...] = get_args(To)
_FOLDS: dict[str, Fold] = {"scan": scan, "loop": loop, "unroll": unroll}
_FIRST_OPSET_OF_SCAN = 9


@dataclass(frozen=True)
class Target:
    """A runtime, as far as the form and the spelling of a recurrence go.

    Attributes:
        name: What `--target` calls it.
        measured: The version that was run.
        forms: Those that it takes, the preferred first.
        newest_opset, oldest_opset: Of models that it takes; None: no limit is known.
        composed: Operators that it lacks and that are composed of others; Gather: one of rows at any places.
        sequence_lens: Whether lengths may be known at run time only.
        sizes: Which of T and N must be known.
        fused: Whether it is onnxruntime, whose fusions a spelling of its own is for.
    """

    name: str
    measured: str
    forms: tuple[str, ...]
    newest_opset: int | None = None
    oldest_opset: int | None = None
    composed: tuple[str, ...] = ()
    sequence_lens: bool = True
    sizes: tuple[str, ...] = ()
    fused: bool = False


TARGETS = {
    target.name: target
    for target in (
        Target("portable", "", ("scan", "loop", "unroll")),
        Target("onnxruntime", "1.31.1", ("scan", "loop", "unroll"), fused=True),
        Target("tinygrad", "0.14.0", ("unroll",)),
        Target("tvm", "apache-tvm 0.27.0", ("unroll",)),
        Target(
            "jaxonnxruntime",
            "0.3.0",
            ("unroll",),
            newest_opset=20,
            oldest_opset=14,
            composed=("Softsign", "ThresholdedRelu", "HardSigmoid", "Elu", "Clip"),
        ),
        Target("onnx2torch", "1.5.15", ("unroll",), newest_opset=17, oldest_opset=9, composed=("ThresholdedRelu",)),
        Target(
            "ncnn",
            "pnnx 20261020",
            ("unroll",),
            newest_opset=26,
            composed=("Softsign", "ThresholdedRelu", "Less", "Gather"),
            sequence_lens=False,
        ),
        Target("mnn", "3.6.1", ("unroll", "loop"), sizes=("T",)),
        Target("tract", "0.23.9", ("scan", "unroll")),
        Target("iree", "3.13.0", ("scan", "unroll"), oldest_opset=13, composed=("Softsign",), sizes=("T", "N")),
        Target("openvino", "2026.4.1", ("scan", "loop", "unroll")),
        Target("emx-onnx-cgen", "1.4.0", ("scan", "unroll")),
        Target("ezkl", "23.0.5", ("unroll", "scan")),
        Target("rknn", "rknn-toolkit2 2.5.0", ("scan", "unroll"), newest_opset=19),
    )
}


@dataclass(frozen=True)
class Choice:
    """The form of one node, why it was taken, and how it is spelt."""

    form: str
    reason: str
    fold: Fold
    spelling: Spelling


def target_named(name: str) -> Target:
    """Return a row of the table.

    Raises:
        UnsupportedError: There is none of this name.
    """
    if name not in TARGETS:
        raise UnsupportedError(f"target '{name}' does not exist", hint=f"known are {', '.join(TARGETS)}")
    return TARGETS[name]


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
    fused = target.fused and form != "unroll" and spec.dtype == ir.DataType.FLOAT and opset >= 10
    return Choice(form, reason, _FOLDS[form], Spelling(fused, frozenset(target.composed)))


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
        raise UnsupportedError(
            f"{target.name} needs a known {' and '.join(names[u] for u in unknown)}",
            hint="fix the input's dimensions (--set-dim NAME=SIZE or --input-shape NAME:D0,D1,...)",
            node=spec.node,
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
        raise UnsupportedError(
            "the sequence length is not known, so its steps cannot be written out",
            hint=f"fix the input's dimension (--set-dim NAME=SIZE or --input-shape NAME:D0,D1,...){instead}",
            node=spec.node,
        )
    if spec.seq_length > max_unroll:
        raise UnsupportedError(
            f"{spec.seq_length} steps are more than the {max_unroll} that are written out",
            hint=f"raise the limit (--max-unroll {spec.seq_length}){instead}",
            node=spec.node,
        )
    if _needs_count(spec, opset):
        raise UnsupportedError(
            f"sequence_lens with an unknown batch size cannot be unrolled at opset {opset}",
            hint=f"fix the batch size (--set-dim), or convert the model to opset 9 or later{instead}",
            node=spec.node,
        )
