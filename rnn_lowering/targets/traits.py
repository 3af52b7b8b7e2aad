"""What a runtime does with one part of a model: its loops, LinearAttention, streams, and the model around these."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.open_scopes import Finish
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.kinds import NodeSpec
from rnn_lowering.recurrence.forms import Lower

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
        scans_need_rows: Whether a step of a Scan must use a row of what is scanned.
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
    scans_need_rows: bool = False
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
        folds: Whether it rejects arithmetic of known sizes, or computes it wrongly, though it runs loops.
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
