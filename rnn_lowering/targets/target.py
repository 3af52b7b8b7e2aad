"""`Target`: what a runtime supports, and what is emitted in place of other operators."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.emit import substitutes
from rnn_lowering.emit.dialect import PLAIN, Dialect
from rnn_lowering.emit.ops import Finish, Rule
from rnn_lowering.recurrence.activations import FORMULAS, Formula
from rnn_lowering.targets.documented import Documented

LOOP_DIALECT_OPSET = 10
"""The first opset at which `Target.loop_dialect` is used: before, rows of unknown number cannot be flipped."""

STATIC = ("T", "N")
"""The sizes that must be fixed for a runtime without dynamic sizes."""


def _composing(formula: Formula) -> Rule:
    return lambda op, x, alpha=0.0, beta=0.0: formula(op, x, alpha, beta)


COMPOSED: dict[str, Rule] = substitutes.COMPOSED | {
    name: _composing(formula.compose) for name, formula in FORMULAS.items() if formula.compose is not None
}
"""By operator, what is emitted in its place where a runtime does not support it."""


@dataclass(frozen=True)
class Target:
    """A runtime, and which emitted forms and operators it supports.

    Attributes:
        name: Its name for `--target`.
        other_names: Other names for `--target`, in lowercase letters and digits.
        measured: The tested version, or the version that the document describes.
        forms: The forms that it supports, the preferred one first.
        exported_forms: Those in which it runs Loops and Scans of exporters; None for all of `forms`.
        runs_exported: Whether it runs Loops of exporters as they are, where it runs Loop.
        newest_opset, oldest_opset: The opsets of models that it supports; None where no limit is known.
        unsupported: Operators that it lacks or computes wrongly; others are emitted instead. "Softplus": it is
            infinite from 89 on. "Gather": only that of rows by an index of rank 2.
        attention: The forms in which LinearAttention was run, the one for an unknown length first; () for those of
            `forms` and "chunked".
        lacks: Recurrent operators whose equivalents it cannot run in any form, each with the reason.
        lacks_types: Element types that it computes in no node.
        sequence_lens: Whether it supports sequence_lens that are known only at run time.
        scans_need_rows: Whether a step of a Scan must use a row of what is scanned.
        sizes: Which of T and N must be known.
        batch_size: The only batch size that it supports; None for any.
        constants_in_scan: Whether the body of a Scan may use no computed value of the graph around it.
        integer_products: Whether it supports DynamicQuantizeLinear and MatMulInteger; None where that is not known.
        named_sizes: Whether the declared shapes of computed values may have names for unknown sizes.
        unused_constants: Whether a model may have initializers that nothing uses.
        since: Operators that it supports from an opset on only: as `unsupported` before.
        recognized_lstm: Whether it runs a Scan as its own LSTM where it can (see `recurrence.openvino_lstm`).
        dialect: What shapes its loops, in every form.
        instead: More substitutes, by operator: see `Rule`.
        finish: Rewrites of a finished body, or of the finished equivalent of a node: see `Finish`.
        outputs_apart: Whether the runtime forbids a graph output that a node also reads. Such an output gets its
            own Transpose.
        unroll_up_to: The longest sequence that it runs fastest unrolled.
        loop_from: The hidden size from which on it runs Loops fastest.
        loops_of_chunks: Whether it runs chunks fastest in a loop, those of a known number of steps too.
        loop_dialect: The dialect in loops of float32 from `LOOP_DIALECT_OPSET` on; None for `dialect`.
        loop_finish: More rewrites where `loop_dialect` is used.
        converted_only: Whether lowered models were converted for it and not run.
        documented: For a runtime that was not run: the operators that its document names; no others are emitted.

    Examples:
        >>> target = rl.TARGETS["tvm"]
        >>> target.forms, target.evidence
        (('unroll',), 'measured')
    """

    name: str
    measured: str
    forms: tuple[str, ...]
    other_names: tuple[str, ...] = ()
    exported_forms: tuple[str, ...] | None = None
    runs_exported: bool = True
    newest_opset: int | None = None
    oldest_opset: int | None = None
    unsupported: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()
    lacks_types: tuple[ir.DataType, ...] = ()
    sequence_lens: bool = True
    sizes: tuple[str, ...] = ()
    batch_size: int | None = None
    constants_in_scan: bool = False
    scans_need_rows: bool = False
    integer_products: bool | None = None
    named_sizes: bool = True
    unused_constants: bool = True
    since: tuple[tuple[str, int], ...] = ()
    recognized_lstm: bool = False
    dialect: Dialect = PLAIN
    instead: tuple[tuple[str, Rule], ...] = ()
    finish: tuple[Finish, ...] = ()
    outputs_apart: bool = False
    unroll_up_to: int = 0
    loop_from: float = math.inf
    loops_of_chunks: bool = False
    loop_dialect: Dialect | None = None
    loop_finish: tuple[Finish, ...] = ()
    converted_only: bool = False
    documented: Documented | None = None

    @property
    def evidence(self) -> str:
        """Where the row comes from.

        "measured": lowered models were run in it; "converted": they were converted for it, on a machine that cannot
        run them; "documented": a public document says so.
        """
        if self.documented:
            return "documented"
        return "converted" if self.converted_only else "measured"

    @property
    def loop_forms(self) -> tuple[str, ...]:
        """The forms in which it runs Loops and Scans of the model itself."""
        return self.forms if self.exported_forms is None else self.exported_forms

    @property
    def straight_line(self) -> bool:
        """Whether it runs no loops. Its compiler wants every size fixed, and constants folded."""
        return self.forms == ("unroll",)

    def without_joins(self) -> Target:
        """Return the target with a loop for each node and direction."""
        dialects = {name: getattr(self, name) for name in ("dialect", "loop_dialect")}
        return replace(
            self, **{name: replace(each, join_up_to=0, stack_up_to=0) for name, each in dialects.items() if each}
        )

    def rules(self, opset: int) -> dict[str, Rule]:
        """Return the substitutes for operators at an opset, by operator."""
        lacks = (*self.unsupported, *(name for name, first in self.since if opset < first))
        return {name: COMPOSED[name] for name in lacks} | dict(self.instead)
