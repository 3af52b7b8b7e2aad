"""The table of runtimes: what each supports. Data only; choice.py reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rnn_lowering.emit.spelling import Spelling
from rnn_lowering.errors import OptionError

To = Literal["auto", "scan", "loop", "unroll"]
FORMS: tuple[str, ...] = get_args(To)

_PLAIN = Spelling()


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
        in_loops: How it wants the loops of float32, from opset 10 on.
    """

    name: str
    measured: str
    forms: tuple[str, ...]
    newest_opset: int | None = None
    oldest_opset: int | None = None
    composed: tuple[str, ...] = ()
    sequence_lens: bool = True
    sizes: tuple[str, ...] = ()
    in_loops: Spelling = _PLAIN


TARGETS = {
    target.name: target
    for target in (
        Target("portable", "", ("scan", "loop", "unroll")),
        Target(
            "onnxruntime",
            "1.31.1",
            ("scan", "loop", "unroll"),
            in_loops=Spelling(gemm=True, gemm_per_activation=True, stack_outside=True, join_directions=True),
        ),
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


def target_named(name: str) -> Target:
    """Return a row of the table.

    Raises:
        OptionError: There is none of this name.
    """
    if name not in TARGETS:
        raise OptionError(f"target '{name}' does not exist", hint=f"known are {', '.join(TARGETS)}")
    return TARGETS[name]
