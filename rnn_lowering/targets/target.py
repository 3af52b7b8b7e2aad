"""`Target`: what a runtime supports, what is emitted in place of others, and whether it supports a node."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnn_lowering.emit import composites
from rnn_lowering.emit.dialect import PLAIN, Dialect, first_opset
from rnn_lowering.emit.open_scopes import Finish, Rule
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnknownLengthsError, UnknownSizeError, UnsupportedError
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.activations import FORMULAS, Formula
from rnn_lowering.recurrence.forms import Emitted, Lower
from rnn_lowering.recurrence.weights import integer_product

if TYPE_CHECKING:  # most lowerings keep no node
    from rnn_lowering.targets.native import NativeRule

# What a runtime does with one part of a model: its loops, LinearAttention, streams, and the model around these


KnownValue = Callable[[ir.Value], ir.Value]
"""Returns a value with its known type and shape."""

Misreads = Callable[[ir.Node, KnownValue], str]
"""Takes a node that is not recurrent; returns how a runtime computes it wrongly, or ""."""

LOOP_DIALECT_OPSET = 10
"""First opset that uses `LoopTraits.dialect`; before it, an unknown number of rows cannot be reversed."""

EXPORTED_UNROLLED = ("unroll",)
"""The `exported_forms` of a runtime that reads every Scan forwards along axis 0, whatever its directions say,
without an error."""


@dataclass(frozen=True)
class LoopTraits:
    """How a runtime runs Loops and Scans.

    Attributes:
        exported_forms: The forms in which it runs those of exporters; None for all of `Target.forms`.
        runs_exported: Whether it runs those of exporters as they are, where it runs Loop or Scan.
        nested_scans: Whether a Scan in the body of a Scan starts from its initial states each time.
        runs_no_steps: Whether it runs an If around a Scan that may have no step; if not, the Scan has at least one.
        strict_scans: Whether a step of a Scan must use a row of what is scanned, and cut nothing at positions that
            it computes.
        constants_in_scan: Whether the body of a Scan may use no computed value of the graph around it.
        dialect: The dialect in loops of float32 from `LOOP_DIALECT_OPSET` on; None for `Target.dialect`.
        finish: More rewrites where `dialect` is used.
        unroll_up_to: The maximum sequence length that it runs fastest unrolled.
        loop_from: The minimum hidden size that it runs fastest as a Loop.
        own_scan: Takes a node and the opset; returns what emits a Scan for it that the runtime runs as an operator
            of its own, or None.
    """

    exported_forms: tuple[str, ...] | None = None
    runs_exported: bool = True
    nested_scans: bool = True
    runs_no_steps: bool = True
    strict_scans: bool = False
    constants_in_scan: bool = False
    dialect: Dialect | None = None
    finish: tuple[Finish, ...] = ()
    unroll_up_to: int = 0
    loop_from: float = math.inf
    own_scan: Callable[[NodeSpec, int], Lower | None] | None = None


@dataclass(frozen=True)
class AttentionTraits:
    """How a runtime runs LinearAttention.

    Attributes:
        forms: The forms in which it was run, the one for an unknown length first; () for those of `Target.forms`
            and "chunked".
        loops_of_chunks: Whether chunks run fastest in a loop, also where their number is known.
    """

    forms: tuple[str, ...] = ()
    loops_of_chunks: bool = False


@dataclass(frozen=True)
class StreamTraits:
    """How a runtime runs streams.

    Attributes:
        signed_activations: Whether the activations of a stream that is quantized for it are signed.
        growing_states: Whether it ran streams whose states grow from call to call.
        softmax_apart: Whether it computes a Softmax over an open number of keys wrongly together with the products
            around it, so that these are set apart.
    """

    signed_activations: bool = True
    growing_states: bool = False
    softmax_apart: bool = False


@dataclass(frozen=True)
class ModelTraits:
    """What a runtime does with the model around recurrent nodes: its other nodes, inputs, outputs and constants.

    Attributes:
        adaptations: What the model gets so that it is right there, in this order, and what is refused: names of
            decomposition/adaptations.py.
        folds: Whether it rejects arithmetic of known sizes, computes it wrongly, or does not see which branch
            follows from it, though it runs loops.
        refuses_lacking: Whether a node is refused if the runtime was measured not to run it: most runtimes are
            measured by other nodes of the operator, which they may run where this one stands.
        misreads: Takes a node that is not recurrent; returns how the runtime computes it wrongly because of its
            attributes or neighbours, as in `Misread`, or "".
        outputs_apart: Emits a copy, if the runtime forbids a graph output that a node also reads: such an output
            becomes one.
    """

    adaptations: tuple[str, ...] = ()
    folds: bool = False
    refuses_lacking: bool = False
    misreads: Misreads | None = None
    outputs_apart: Callable[[Ops, Tensor], Tensor] | None = None


# A runtime


@dataclass(frozen=True)
class Documented:
    """The operators that a public document or source names as supported; no others count.

    Attributes:
        source: A URL, or a repository on GitHub and a path in it.
        date: Of the source.
        named: The operators of the default domain that it names as supported, separated by white space.
        left_out: Named operators that count as unsupported, each with the limit that the document names or a run
            showed.
        unchecked: Limits that the document names and a lowering does not check.
        run: The date on which lowered models were run in it; "" where none were.

    Examples:
        >>> rl.TARGETS["tensorrt"].documented.source
        'onnx/onnx-tensorrt: docs/operators.md'
    """

    source: str
    date: str
    named: str
    left_out: tuple[tuple[str, str], ...] = ()
    unchecked: str = ""
    run: str = ""

    @property
    def operators(self) -> frozenset[str]:
        """The operators that may be emitted."""
        return frozenset(self.named.split()) - {operator for operator, _ in self.left_out}


STATIC = ("T", "N")
"""The sizes that must be fixed for a runtime without dynamic sizes."""


def _composing(formula: Formula) -> Rule:
    return lambda op, x, alpha=0.0, beta=0.0: formula(op, x, alpha, beta)


COMPOSED: dict[str, Rule] = composites.COMPOSED | {
    name: _composing(formula.compose) for name, formula in FORMULAS.items() if formula.compose is not None
}
"""By operator, what is emitted in its place where a runtime does not support it."""


EVIDENCE = {
    "measured": "the tests run lowered models in it",
    "tried": "lowered models were run in it once",
    "converted": "lowered models were converted for it, but not run",
    "documented": "it was not run: a public list or its source says which operators it has",
}
"""By `Target.evidence`, what is known of a target."""


@dataclass(frozen=True, repr=False)
class Target:
    """A runtime, and which emitted forms and operators it supports.

    Attributes:
        name: Its name for `--target`.
        version: The tested version, or the version that the document describes.
        forms: The forms that it supports, the preferred one first.
        other_names: Other names for `--target`, in lowercase letters and digits.
        newest_opset, oldest_opset: The opsets of models that it supports; None if no limit is known.
        unsupported: Operators that it lacks or computes wrongly; others are emitted instead. "Softplus": it is
            infinite from 89 on. "Gather": only that of rows by an index of rank 2.
        since: Operators that it supports only from an opset on; before, they count as `unsupported`.
        lacks: Recurrent operators whose equivalents it cannot run in any form, each with the reason.
        lacks_types: Element types that it computes in no node.
        sequence_lens: Whether it supports sequence_lens that are known only at run time.
        why_no_lengths: Why it takes no sequence_lens that are not constant.
        sizes: Which of T and N must be known.
        most_axes: The most axes of a tensor that it computes, and does not just give another shape; None for any.
        batch_size: The only batch size that it supports; None for any.
        integer_products: Whether it supports DynamicQuantizeLinear and MatMulInteger; None if unknown.
        dialect: How equivalents are emitted for it, in every form.
        instead: More substitutes, by operator: see `Rule`.
        finish: Rewrites of a finished body, or of the finished equivalent of a node: see `Finish`.
        loops: How it runs Loops and Scans.
        attention: How it runs LinearAttention.
        streams: How it runs streams.
        model: What it does with the model around recurrent nodes.
        converted_only: Whether lowered models were converted for it and not run.
        documented: For a runtime that no test runs: the operators that its document names; no others are emitted.
        native: Which recurrent nodes it was measured to compute right itself; None if that was not measured.

    Examples:
        >>> target = rl.TARGETS["tvm"]
        >>> target.forms, target.evidence
        (('unroll',), 'measured')
    """

    name: str
    version: str
    forms: tuple[str, ...]
    other_names: tuple[str, ...] = ()
    newest_opset: int | None = None
    oldest_opset: int | None = None
    unsupported: tuple[str, ...] = ()
    since: tuple[tuple[str, int], ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()
    lacks_types: tuple[ir.DataType, ...] = ()
    sequence_lens: bool = True
    why_no_lengths: str = ""
    sizes: tuple[str, ...] = ()
    most_axes: int | None = None
    batch_size: int | None = None
    integer_products: bool | None = None
    dialect: Dialect = PLAIN
    instead: tuple[tuple[str, Rule], ...] = ()
    finish: tuple[Finish, ...] = ()
    loops: LoopTraits = field(default_factory=LoopTraits)
    attention: AttentionTraits = field(default_factory=AttentionTraits)
    streams: StreamTraits = field(default_factory=StreamTraits)
    model: ModelTraits = field(default_factory=ModelTraits)
    converted_only: bool = False
    documented: Documented | None = None
    native: NativeRule | None = None

    def __repr__(self) -> str:
        shown = ("name", "version", "evidence", "forms")
        return f"Target({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def evidence(self) -> str:
        """Where the row comes from: one of `EVIDENCE`."""
        if self.documented:
            return "tried" if self.documented.run else "documented"
        return "converted" if self.converted_only else "measured"

    @property
    def loop_forms(self) -> tuple[str, ...]:
        """The forms in which it runs Loops and Scans of the model itself."""
        exported = self.loops.exported_forms
        return self.forms if exported is None else exported

    @property
    def straight_line(self) -> bool:
        """Whether it runs no loops. Its compiler wants every size fixed."""
        return self.forms == ("unroll",)

    @property
    def folds(self) -> bool:
        """Whether constants take the place of nodes that compute something from constants and known sizes."""
        return self.straight_line or self.model.folds

    def without_joins(self) -> Target:
        """Return the target with a loop for each node and direction."""
        apart = partial(replace, join_up_to=0, stack_up_to=0)
        in_loops = self.loops.dialect and apart(self.loops.dialect)
        return replace(self, dialect=apart(self.dialect), loops=replace(self.loops, dialect=in_loops))

    def of_any_length(self) -> Target:
        """Return the target as if the number of steps need not be known."""
        return replace(self, sizes=tuple(name for name in self.sizes if name != "T"))

    def rules(self, opset: int) -> dict[str, Rule]:
        """Return the substitutes for operators at an opset, by operator."""
        lacks = (*self.unsupported, *(name for name, first in self.since if opset < first))
        return {name: COMPOSED[name] for name in lacks} | dict(self.instead)


NESTED_SCAN = "{} computes a Scan in the body of a Scan wrongly"
"""Why a target refuses nested Scans, by its name."""

_INTEGERS_OPSET = first_opset(integer_product)
_NAMES = {"T": "sequence length", "N": "batch size"}


def check_node(spec: NodeSpec, opset: int, target: Target) -> None:
    """Check opset, sizes and lengths, which no form changes.

    Raises:
        UnsupportedError: The target does not support such a node.
        UnknownSizeError: The target needs a size that is unknown.
        UnknownLengthsError: The target needs lengths that are unknown.
    """
    _check_opset(spec, opset, target)
    if reason := dict(target.lacks).get(spec.node.operator):
        hint = "use another runtime, or drop --target"
        raise UnsupportedError(f"{target.name} cannot run its equivalent: {reason}", hint=hint, node=spec.node)
    check_types([spec.dtype], spec.node, target)
    if spec.rounds:
        _check_integers(spec, opset, target)
    if not target.sequence_lens and "sequence_lens" in spec.inputs.keys() - spec.constants.keys():
        why = f": {target.why_no_lengths}" if target.why_no_lengths else ""
        raise UnknownLengthsError(f"{target.name} needs constant sequence_lens{why}", node=spec.node)
    _check_sizes(spec, target)


def _check_opset(spec: NodeSpec, opset: int, target: Target) -> None:
    newest, oldest = target.newest_opset, target.oldest_opset
    limit = hint = ""
    if newest is not None and opset > newest:  # ONNX's converter cannot go down across opsets 15 and 14
        limit = f"{newest} or earlier"
        hint = f"export it at opset {newest} (torch.onnx.export: opset_version={newest})"
    if oldest is not None and opset < oldest:
        limit = f"{oldest} or later"
        hint = f"convert it to opset {oldest} (onnx.version_converter), or export it again"
    if limit:
        supports = f"{target.name} supports opset {limit}, but the model has {opset}"
        raise UnsupportedError(supports, hint=hint, node=spec.node)


def _check_sizes(spec: NodeSpec, target: Target) -> None:
    sizes = {"T": spec.seq_length, "N": spec.batch_size}
    unknown = tuple(name for name, size in sizes.items() if size is None and name in target.sizes)
    if unknown:
        names = " and ".join(_NAMES[name] for name in unknown)
        raise UnknownSizeError(f"{target.name} needs a known {names}", node=spec.node, sizes=unknown)
    if target.batch_size not in (None, spec.batch_size):
        raise UnsupportedError(
            f"{target.name} supports only batch size {target.batch_size}, not {spec.batch_size}",
            hint=f"export the model with batch size {target.batch_size}",
            node=spec.node,
        )


def check_types(dtypes: Collection[ir.DataType | None], node: NodeRef | None, target: Target) -> None:
    """Check the element types of a node.

    Raises:
        UnsupportedError: The target computes nothing of one of them.
    """
    missing = [str(dtype.numpy()) for dtype in target.lacks_types if dtype in dtypes]
    if missing:
        hint = "export the model in float32, use another runtime, or drop --target"
        raise UnsupportedError(f"{target.name} has no {' and '.join(missing)}", hint=hint, node=node)


def check_emitted(emitted: Emitted, node: NodeRef, target: Target) -> None:
    """Check what is emitted for a node: its operators, and the axes of its tensors.

    Raises:
        UnsupportedError: The target does not support it.
    """
    check_operators(emitted.operators, node, target)
    if target.most_axes is not None and emitted.axes > target.most_axes:
        raise UnsupportedError(
            f"{target.name} computes tensors of at most {target.most_axes} axes, but the equivalent of the node "
            f"has some of {emitted.axes}",
            hint="use another runtime, or drop --target",
            node=node,
        )


def check_operators(emitted: frozenset[str], node: NodeRef, target: Target) -> None:
    """Check the operators that are emitted for a node, or are in its body, against the list of a documented target.
    Any other target runs them all.

    Raises:
        UnsupportedError: The list lacks one.
    """
    known = target.documented
    missing = emitted - known.operators if known else frozenset()
    if known is None or not missing:
        return
    reason = f"{target.name} is not known to support {' and '.join(sorted(missing))} ({known.source}, {known.date})"
    that = "that" if len(missing) == 1 else "those"
    hint = f"if it does support {that}, use --target portable --to {target.forms[0]}"
    if missing == {"DequantizeLinear"}:
        hint = "convert the weights to floats (--dequantize)"
    if missing == {"Constant"}:
        hint = "convert the model to IR version 4 or later"
    raise UnsupportedError(reason, hint=hint, node=node)


def _check_integers(spec: NodeSpec, opset: int, target: Target) -> None:
    """Check that the opset and the target have integer products."""
    hint = "convert the weights to floats (--dequantize)"
    if opset < _INTEGERS_OPSET:
        reason = f"DynamicQuantizeLinear needs opset {_INTEGERS_OPSET}, but the model has {opset}"
        raise UnsupportedError(reason, hint=hint, node=spec.node)
    if not target.integer_products:
        limits = dict(target.documented.left_out) if target.documented is not None else {}
        lacks = "does not support" if target.integer_products is False else "is not known to support"
        reason = f"{target.name} {lacks} DynamicQuantizeLinear and MatMulInteger"
        if limit := limits.get("MatMulInteger"):
            reason = f"{target.name} does not compute MatMulInteger: it {limit}"
        raise UnsupportedError(reason, hint=hint, node=spec.node)


# The target of no runtime in particular, and where all others are looked up


PORTABLE = Target(
    "portable",
    "",
    ("scan", "loop", "unroll"),
    streams=StreamTraits(growing_states=True),
    integer_products=True,
    loops=LoopTraits(
        # A shared loop took at most 1.01 of the time in every measured runtime. Unrolled steps stay apart: shared,
        # they take 1.06 to 1.13 of the time in TVM and IREE.
        dialect=Dialect(join_up_to=128, stack_up_to=128),
    ),
)


def target_named(name: str) -> Target:
    """Return the target of a name, ignoring case and punctuation.

    Raises:
        OptionError: There is none of this name.
    """
    if name == PORTABLE.name:
        return PORTABLE
    from rnn_lowering.targets.table import any_target_named  # the rows of all runtimes

    return any_target_named(name)
