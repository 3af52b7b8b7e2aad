"""Choose the form of a node for a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Finish, Rule
from rnn_lowering.emit.run_time_sizes import count_needs_loop
from rnn_lowering.emit.versions import first_opset
from rnn_lowering.errors import UnknownSizeError, UnsupportedError
from rnn_lowering.recurrence.chunks import chunked
from rnn_lowering.recurrence.openvino_lstm import is_recognizable
from rnn_lowering.recurrence.recurrence import Repeat
from rnn_lowering.recurrence.repetition import loop, scan, unroll
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.spec.rnn import RecurrentSpec
from rnn_lowering.targets.support import check_node, check_operators
from rnn_lowering.targets.target import LOOP_DIALECT_OPSET, Target

_REPEATS: dict[str, Repeat] = {"scan": scan, "loop": loop, "unroll": unroll}
CHUNKED = "chunked"


@dataclass(frozen=True)
class Choice:
    """The form of one node.

    Attributes:
        form: "scan", "loop", "unroll" or "chunked".
        reason: Why it was chosen.
        repeat: The function that emits it.
        dialect: What shapes what it emits.
        instead: By operator, what is emitted in its place.
        finish: What changes finished bodies.
        outputs_apart: As in `Target`.
    """

    form: str
    reason: str
    repeat: Repeat
    dialect: Dialect
    instead: Mapping[str, Rule]
    finish: tuple[Finish, ...]
    outputs_apart: bool


Emitted = Callable[[Choice], frozenset[str]]
"""Returns the operators that a form emits."""


def choose(
    spec: NodeSpec,
    opset: int,
    to: str,
    max_unroll: int,
    target: Target,
    emitted: Emitted,
) -> Choice:
    """Return the form of a node.

    Sequences of length 0 or 1 are always unrolled. Otherwise "auto" picks the first form in `target.forms` that is
    possible for this node.

    Args:
        spec: What the node specifies.
        opset: The opset of its graph.
        to: The requested form, or "auto".
        max_unroll: The maximum number of steps to unroll.
        target: The runtime.
        emitted: Is called for a documented target only.

    Raises:
        UnsupportedError: The target does not support such a node, or the requested form is not possible at this
            opset, for this node or for the target.
        UnknownSizeError: The form or the target needs a size that is not known.
    """
    check_node(spec, opset, target)
    forms = _forms(spec, target)
    if to not in ("auto", *forms):
        reason = spec.why_not(to) or f"{target.name} does not support the form {to}"
        raise UnsupportedError(reason, hint=_use(forms), node=spec.node)

    def checked(form: str, reason: str) -> Choice:
        _check_form(form, spec, opset, max_unroll, target)
        return _emitting(_choice(form, reason, spec, opset, target), spec, target, emitted)

    if spec.needs_no_loop and not _needs_loop(spec, opset):
        choice = _choice("unroll", spec.needs_no_loop, spec, opset, target)
        return _emitting(choice, spec, target, emitted)
    if to != "auto":
        try:
            return checked(to, "requested")
        except UnsupportedError as error:
            possible = [form for form in forms if form != to and _is_possible(checked, form)]
            error.advise(error.hint, _use(possible))
            raise
    reason = f"first choice for target {target.name}"
    forms = _preferred(spec, opset, target)
    for form in forms:
        try:
            return checked(form, reason)
        except UnsupportedError as error:
            if form == forms[-1]:
                raise
            reason = error.reason
    raise AssertionError(f"{target.name} supports no form")


def _forms(spec: NodeSpec, target: Target) -> list[str]:
    """Return the forms that a target supports for a kind of nodes."""
    every = [form for form in (*target.forms, CHUNKED) if not spec.why_not(form)]
    return list(target.attention or every) if CHUNKED in every and not spec.needs_no_loop else every


def _use(forms: Iterable[str]) -> str:
    """Return the hint to use other forms."""
    return " or ".join(f"--to {form}" for form in forms).replace("--to", "use --to", 1)


def _is_possible(checked: Callable[[str, str], Choice], form: str) -> bool:
    try:
        checked(form, "")
    except UnsupportedError:
        return False
    return True


def _emitting(choice: Choice, spec: NodeSpec, target: Target, emitted: Emitted) -> Choice:
    """Return a choice whose operators the target is known to support."""
    if target.documented is not None:
        check_operators(emitted(choice), spec.node, target, target.documented)
    return choice


def _choice(form: str, reason: str, spec: NodeSpec, opset: int, target: Target) -> Choice:
    # onnxruntime fuses a Gemm with its activation in float32 only.
    tuned = form != "unroll" and spec.dtype == ir.DataType.FLOAT and opset >= LOOP_DIALECT_OPSET
    dialect = target.loop_dialect if tuned and target.loop_dialect else target.dialect
    return Choice(
        form,
        reason,
        _repeat(form, spec, target),
        replace(dialect, recognized_lstm=form == "scan" and _is_recognized(spec, opset, target)),
        target.rules(opset),
        (*target.finish, *(target.loop_finish if tuned else ())),
        target.outputs_apart,
    )


def _repeat(form: str, spec: NodeSpec, target: Target) -> Repeat:
    if form != CHUNKED:
        return _REPEATS[form]
    few = _REPEATS[target.forms[0]] if target.dialect.by_length else None
    return partial(chunked, repeat=_REPEATS[_repeated(spec, target)], few=few)


def _repeated(spec: NodeSpec, target: Target) -> str:
    """Return the form in which chunks are repeated: straight-line where their number is known, unless the runtime
    is faster in a loop."""
    loops = [form for form in target.forms if form != "unroll"]
    return loops[0] if loops and (spec.seq_length is None or target.loops_of_chunks) else "unroll"


def _preferred(spec: NodeSpec, opset: int, target: Target) -> list[str]:
    """Return the forms that a target supports, the fastest for this node first."""
    forms, fastest = _forms(spec, target), spec.first_form()
    if spec.seq_length is None and fastest != forms[0]:
        fastest = ""  # a single step of a chunk costs as much as all of it
    first = fastest or target.forms[0]
    if _is_recognized(spec, opset, target):
        first = "scan"
    elif not fastest and spec.seq_length is not None and spec.seq_length <= target.unroll_up_to:
        first = "unroll"
    elif spec.hidden_size is not None and spec.hidden_size >= target.loop_from:
        first = "loop"
    return sorted(forms, key=lambda form: form != first)


def _is_recognized(spec: NodeSpec, opset: int, target: Target) -> bool:
    return (
        target.recognized_lstm
        and opset >= LOOP_DIALECT_OPSET
        and isinstance(spec, RecurrentSpec)
        and is_recognizable(spec)
    )


def _needs_loop(spec: NodeSpec, opset: int) -> bool:
    """Return whether even an unrolled node would need a Loop: to number the rows of an unknown batch size."""
    return count_needs_loop(opset) and spec.batch_size is None and "sequence_lens" in spec.inputs


def _check_form(form: str, spec: NodeSpec, opset: int, max_unroll: int, target: Target) -> None:
    if form == CHUNKED:
        _check_chunks(spec, opset, max_unroll, target)
        return
    first = first_opset(_REPEATS[form])
    if opset < first:
        raise UnsupportedError(
            f"{form.title()} needs opset {first}, but the model has {opset}",
            hint=f"convert the model to opset {first} or later (onnx.version_converter)",
            node=spec.node,
        )
    if form == "scan" and target.constants_in_scan and (computed := _computed_in_body(spec)):
        verb = "is" if len(computed) == 1 else "are"
        reason = f"{target.name} supports only constants in the body of a Scan: {' and '.join(computed)} {verb} not"
        raise UnsupportedError(reason, node=spec.node)
    if form == "unroll":
        _check_unroll(spec, opset, max_unroll)


def _computed_in_body(spec: NodeSpec) -> list[str]:
    """Return the inputs of a node that every step uses and that are not constants."""
    return [s for s in spec.used_by_steps if s in spec.inputs and s not in spec.constants]


def _check_unroll(spec: NodeSpec, opset: int, max_unroll: int) -> None:
    if spec.seq_length is None:
        raise UnknownSizeError(
            "the sequence length is not known, so the steps cannot be unrolled", node=spec.node, sizes=("T",)
        )
    if spec.seq_length > max_unroll:
        raise UnsupportedError(
            f"{spec.seq_length} steps are more than the limit of {max_unroll} for unrolling",
            hint=f"raise the limit (--max-unroll {spec.seq_length})",
            node=spec.node,
        )
    if _needs_loop(spec, opset):
        raise UnknownSizeError(
            f"sequence_lens with an unknown batch size cannot be unrolled at opset {opset}",
            hint="convert the model to opset 9 or later (onnx.version_converter)",
            node=spec.node,
            sizes=("N",),
        )


def _check_chunks(spec: NodeSpec, opset: int, max_unroll: int, target: Target) -> None:
    """Check that steps can be joined into chunks: so many as are unrolled, or in a loop."""
    repeated, T = _repeated(spec, target), spec.seq_length
    if repeated != "unroll" or T is None:
        _check_form(repeated, spec, opset, max_unroll, target)
        return
    count = -(-T // spec.steps_of_chunk)
    if count > max_unroll:
        raise UnsupportedError(
            f"{count} chunks are more than the limit of {max_unroll} for unrolling",
            hint=f"raise the limit (--max-unroll {count})",
            node=spec.node,
        )
