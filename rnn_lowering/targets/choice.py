"""`FormChooser` chooses the form of a node for a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.composites import count_needs_loop
from rnn_lowering.emit.dialect import first_opset
from rnn_lowering.errors import UnknownSizeError, UnsupportedError, documented
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.equivalents import equivalent_of
from rnn_lowering.recurrence.forms import Choice, Emitted, Lower, Repeat, loop, scan, unroll
from rnn_lowering.targets.target import LOOP_DIALECT_OPSET, NESTED_SCAN, Target, check_emitted, check_node

_REPEATS: dict[str, Repeat] = {"scan": scan, "loop": loop, "unroll": unroll}
_CHUNKED = "chunked"


@dataclass(frozen=True)
class FormChooser:
    """Chooses the form of a node for a target.

    Attributes:
        spec: The specification of the node.
        opset: The opset of its graph.
        max_unroll: The maximum number of steps to unroll.
        target: The runtime.
        emitted: Returns what a form emits; called for a target with a list of operators or a limit of axes only.
        in_scan: Whether the node is in the body of a Scan.
    """

    spec: NodeSpec
    opset: int
    max_unroll: int
    target: Target
    emitted: Callable[[Choice], Emitted]
    in_scan: bool = False

    def choose(self, to: str) -> Choice:
        """Return the requested form, or with "auto" the first possible one, the target's preferred form first.

        Sequences of length 0 or 1 are always unrolled, unless even the unrolled node needs a Loop.

        Raises:
            UnsupportedError: The target does not support such a node, or the requested form is impossible at this
                opset, for this node or for the target.
            UnknownSizeError: The form or the target needs a size that is unknown.
        """
        check_node(self.spec, self.opset, self.target)
        spec, forms = self.spec, self._forms()
        straight = "" if self._needs_loop else spec.straight_line_reason
        if to not in ("auto", *forms) and not (straight and to == _CHUNKED):
            reason = spec.why_not(to) or f"{self.target.name} does not support the form {to}"
            raise UnsupportedError(reason, hint=_use(forms), node=spec.node)
        if straight:
            return self._choice("unroll", straight)
        if to == "auto":
            return self._first_possible()
        try:
            return self._checked(to, "requested")
        except UnsupportedError as error:
            error.advise(error.hint, _use(form for form in forms if form != to and self._is_possible(form)))
            raise

    def _first_possible(self) -> Choice:
        (*others, last), reason = self._preferred()
        for form in others:
            try:
                return self._checked(form, reason)
            except UnsupportedError as error:
                reason = error.reason
        return self._checked(last, reason)

    def _forms(self) -> list[str]:
        """Return the forms that the target supports for this kind of nodes."""
        every = [form for form in (*self.target.forms, _CHUNKED) if not self.spec.why_not(form)]
        attention = _CHUNKED in every and not self.spec.straight_line_reason
        return list(self.target.attention.forms or every) if attention else every

    def _preferred(self) -> tuple[list[str], str]:
        """Return the forms that the target supports, the fastest for this node first, and why it is."""
        spec, target = self.spec, self.target
        reason = usual = f"first choice for target {target.name}"
        forms, fastest = self._forms(), spec.preferred_form()
        if spec.seq_length is None and fastest != forms[0]:
            fastest = ""  # a single step of a chunk costs as much as all of it
        first = fastest or target.forms[0]
        if self._own_scan is not None:
            first, reason = "scan", f"{target.name} runs this Scan as an operator of its own"
        elif not fastest and spec.seq_length is not None and spec.seq_length <= target.loops.unroll_up_to:
            first, reason = "unroll", f"fastest in {target.name} for up to {target.loops.unroll_up_to} steps"
        elif spec.hidden_size is not None and spec.hidden_size >= target.loops.loop_from:
            first, reason = "loop", f"fastest in {target.name} from hidden size {target.loops.loop_from} on"
        return sorted(forms, key=lambda form: form != first), reason if first in forms else usual

    def _is_possible(self, form: str) -> bool:
        try:
            self._checked(form, "")
        except UnsupportedError:
            return False
        return True

    def _checked(self, form: str, reason: str) -> Choice:
        """Return a form that is possible for the node."""
        with documented("getting-started.md#which-form-do-i-need"):
            self._check_form(form)
        return self._choice(form, reason)

    def _choice(self, form: str, reason: str) -> Choice:
        """Return a form whose operators the target supports."""
        target = self.target
        # onnxruntime fuses a Gemm with its activation in float32 only.
        tuned = form != "unroll" and self.spec.dtype == ir.DataType.FLOAT and self.opset >= LOOP_DIALECT_OPSET
        dialect = (target.loops.dialect if tuned else None) or target.dialect
        own = self._own_scan if form == "scan" else None
        choice = Choice(
            form,
            reason,
            own or partial(equivalent_of(self.spec), repeat=self._repeat(form)),
            replace(dialect, join_up_to=0, stack_up_to=0) if own else dialect,
            target.rules(self.opset),
            (*target.finish, *(target.loops.finish if tuned else ())),
            target.model.outputs_apart,
        )
        if target.documented is not None or target.most_axes is not None:
            check_emitted(self.emitted(choice), self.spec.node, target)
        return choice

    def _repeat(self, form: str) -> Repeat:
        if form != _CHUNKED:
            return _REPEATS[form]
        few = _REPEATS[self.target.forms[0]] if self.target.dialect.by_length else None
        from rnn_lowering.attention.chunks import chunked

        return partial(chunked, repeat=_REPEATS[self._form_of_chunks], few=few)

    @property
    def _form_of_chunks(self) -> str:
        """The form that repeats chunks: straight-line if their number is known, unless a loop is faster."""
        loops = [form for form in self.target.forms if form != "unroll"]
        is_loop = self.spec.seq_length is None or self.target.attention.loops_of_chunks
        return loops[0] if loops and is_loop else "unroll"

    @property
    def _own_scan(self) -> Lower | None:
        own = self.target.loops.own_scan
        return own(self.spec, self.opset) if own else None

    @property
    def _needs_loop(self) -> bool:
        """Whether even an unrolled node needs a Loop, to number the rows of an unknown batch size."""
        return count_needs_loop(self.opset) and self.spec.batch_size is None and "sequence_lens" in self.spec.inputs

    def _check_form(self, form: str) -> None:
        if form == _CHUNKED:
            self._check_chunks()
            return
        spec, first = self.spec, first_opset(_REPEATS[form])
        if self.opset < first:
            raise UnsupportedError(
                f"{form.title()} needs opset {first}, but the model has {self.opset}",
                hint=f"convert the model to opset {first} or later (onnx.version_converter)",
                node=spec.node,
            )
        if form == "scan" and self.target.loops.constants_in_scan and (computed := _computed_in_body(spec)):
            verb = "is" if len(computed) == 1 else "are"
            constants = f"{self.target.name} supports only constants in the body of a Scan"
            raise UnsupportedError(f"{constants}: {' and '.join(computed)} {verb} not", node=spec.node)
        if form == "scan" and self.in_scan and not self.target.loops.nested_scans:
            raise UnsupportedError(NESTED_SCAN.format(self.target.name), node=spec.node)
        if form == "unroll":
            self._check_unroll()

    def _check_unroll(self) -> None:
        spec = self.spec
        if spec.seq_length is None:
            raise UnknownSizeError(
                "the sequence length is not known, so the steps cannot be unrolled", node=spec.node, sizes=("T",)
            )
        self._check_count(spec.seq_length, "steps")
        if self._needs_loop:
            raise UnknownSizeError(
                f"sequence_lens with an unknown batch size cannot be unrolled at opset {self.opset}",
                hint="convert the model to opset 9 or later (onnx.version_converter)",
                node=spec.node,
                sizes=("N",),
            )

    def _check_chunks(self) -> None:
        """Check the number of chunks, or the form of the loop that repeats them."""
        T = self.spec.seq_length
        if self._form_of_chunks != "unroll" or T is None:
            self._check_form(self._form_of_chunks)
        else:
            self._check_count(-(-T // self.spec.steps_of_chunk), "chunks")

    def _check_count(self, count: int, what: str) -> None:
        if count > self.max_unroll:
            raise UnsupportedError(
                f"{count} {what} are more than the limit of {self.max_unroll} for unrolling",
                hint=f"raise the limit (--max-unroll {count}), or try a stream of one step a call: "
                "--stream AXIS=1 (AXIS: the time dimension)"
                if self.spec.direction == "forward"
                else f"raise the limit (--max-unroll {count})",
                node=self.spec.node,
            )


def _use(forms: Iterable[str]) -> str:
    """Return the hint to use other forms."""
    return " or ".join(f"--to {form}" for form in forms).replace("--to", "use --to", 1)


def _computed_in_body(spec: NodeSpec) -> list[str]:
    """Return the inputs that every step uses and that are not constant."""
    return [s for s in spec.used_by_steps if s in spec.inputs and s not in spec.constants]
