"""The table of runtimes: what each supports. Data only, for choice.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.substitutes import SUBSTITUTED
from rnn_lowering.errors import OptionError
from rnn_lowering.recurrence.activations import FORMULAS
from rnn_lowering.targets import documented
from rnn_lowering.targets.documented import Documented

LOOP_DIALECT_OPSET = 10
"""The first opset at which `Target.loop_dialect` is used: before, rows of unknown number cannot be flipped."""

_PLAIN = Dialect()


@dataclass(frozen=True)
class Target:
    """A runtime, and what it supports of what a lowering emits.

    Attributes:
        name: Its name for `--target`.
        measured: The version that was tested; of a documented runtime that which its document is about.
        forms: The forms that it supports, the preferred one first.
        newest_opset, oldest_opset: The opsets of models that it supports; None where no limit is known.
        unsupported: Operators that it does not support, whose formulas are emitted instead; Gather: only that of
            rows by an index of rank 2.
        sequence_lens: Whether it supports sequence_lens that are known at run time only.
        sizes: Which of T and N must be known.
        batch_size: The only batch size that it supports; None for any.
        constants_in_scan: Whether the body of a Scan may use no computed value of the graph around it.
        integer_products: Whether it supports DynamicQuantizeLinear and MatMulInteger; None where that is not known.
        named_sizes: Whether the declared shapes of computed values may have names for unknown sizes.
        since: Operators that it supports from an opset on only: as `unsupported` before.
        recognized_lstm: Whether it runs a Scan as its own LSTM where it can (see `recurrence.recognized`).
        dialect: Which operators it supports or runs fastest, in every form.
        unroll_up_to: The longest sequence that it runs fastest unrolled.
        loop_from: The hidden size from which on it runs Loops fastest.
        loop_dialect: The same in loops of float32 from `LOOP_DIALECT_OPSET` on; None for `dialect`.
        converted_only: Whether lowered models were converted for it and not run.
        documented: What a document names, of a runtime that was not run: nothing else is emitted for it.
    """

    name: str
    measured: str
    forms: tuple[str, ...]
    newest_opset: int | None = None
    oldest_opset: int | None = None
    unsupported: tuple[str, ...] = ()
    sequence_lens: bool = True
    sizes: tuple[str, ...] = ()
    batch_size: int | None = None
    constants_in_scan: bool = False
    integer_products: bool | None = None
    named_sizes: bool = True
    since: tuple[tuple[str, int], ...] = ()
    recognized_lstm: bool = False
    dialect: Dialect = _PLAIN
    unroll_up_to: int = 0
    loop_from: float = math.inf
    loop_dialect: Dialect | None = None
    converted_only: bool = False
    documented: Documented | None = None

    @property
    def straight_line(self) -> bool:
        """Whether it runs no loops: its compilers want every size, and constants where they can be computed."""
        return self.forms == ("unroll",)

    @property
    def evidence(self) -> str:
        """What the row is from.

        "measured": lowered models were run in it; "converted": they were converted for it, on a machine that cannot
        run them; "documented": the row is what a public document names.
        """
        if self.documented:
            return "documented"
        return "converted" if self.converted_only else "measured"


_COMPOSED = SUBSTITUTED | {name for name, formula in FORMULAS.items() if formula.compose is not None}
"""The operators that are emitted as others where a runtime does not support them."""


def _documented(name: str, version: str, known: Documented, *forms: str, **limits: Any) -> Target:
    """Return the row of a runtime that was not run: what its document does not name is composed or refused."""
    return Target(
        name,
        version,
        forms,
        unsupported=tuple(sorted(_COMPOSED - known.operators)),
        sequence_lens={"Cast", "Gather", "Less"} <= known.operators,
        integer_products={"DynamicQuantizeLinear", "MatMulInteger"} <= known.operators,
        documented=known,
        **limits,
    )


_STATIC = ("T", "N")

TARGETS = {
    target.name: target
    for target in (
        Target("portable", "", ("scan", "loop", "unroll"), integer_products=True),
        Target(
            "onnxruntime",
            "1.31.1",
            ("scan", "loop", "unroll"),
            integer_products=True,
            loop_dialect=Dialect(gemm=True, gemm_per_activation=True, stack_outside=True, join_directions=True),
        ),
        Target("onnxruntime-web", "1.30.0", ("scan", "loop", "unroll"), integer_products=True),
        # Softplus also counts as unsupported where it is infinite from 89 on.
        Target("tinygrad", "0.14.0", ("unroll",), integer_products=True),
        Target("tvm", "apache-tvm 0.27.0", ("unroll",), integer_products=True, dialect=Dialect(columns_from=48)),
        Target(
            "jaxonnxruntime",
            "0.3.0",
            ("unroll",),
            newest_opset=20,
            oldest_opset=13,
            unsupported=("Softsign", "ThresholdedRelu", "HardSigmoid", "Elu", "Clip"),
            since=(("Relu", 14),),
        ),
        Target(
            "onnx2torch", "1.5.15", ("unroll",), newest_opset=17, oldest_opset=9, unsupported=("ThresholdedRelu",)
        ),
        # Both through onnx2torch 1.5.15. ExecuTorch has no Split whose sizes are an input, as from opset 13 on.
        Target(
            "executorch",
            "1.5.1",
            ("unroll",),
            newest_opset=12,
            oldest_opset=9,
            unsupported=("ThresholdedRelu",),
        ),
        Target(
            "coreml",
            "coremltools 9.0",
            ("unroll",),
            newest_opset=17,
            oldest_opset=9,
            unsupported=("ThresholdedRelu", "Less"),
            sequence_lens=False,
            converted_only=True,
        ),
        Target(
            "ncnn",
            "pnnx 20261020",
            ("unroll",),
            newest_opset=26,
            unsupported=("Softplus", "Softsign", "ThresholdedRelu", "Less", "Gather"),
            sequence_lens=False,
            integer_products=False,
            # Its converter aborts at an Identity of an output of the model.
            dialect=Dialect(matrix_product=True, matrix_steps=True, outputs_apart=True),
        ),
        Target(
            "mnn",
            "3.6.1",
            ("unroll", "loop"),
            unsupported=("Softplus",),
            integer_products=False,
            loop_from=128,
            # It computes a Slice with step -1 of unknown length wrongly and leaves a float16 ConstantOfShape unset.
            # Of an output that Relu reads it loses Add, Sub, Mul, Div, Max, Min and Softsign; of one that any
            # activation reads, Abs, Neg, Exp or Clip, the shape that Reshape, Squeeze or Unsqueeze gave it.
            dialect=Dialect(
                columns_from=1,
                columns_from_batch=2,
                reverse_in_loop=True,
                cast_zeros=True,
                max_of_outputs=True,
                outputs_apart=True,
            ),
        ),
        Target(
            "tract",
            "0.23.9",
            ("scan", "unroll"),
            unsupported=("Softplus",),
            integer_products=True,
            named_sizes=False,
            # It does not see that a Slice with step -1 keeps an unknown length.
            dialect=Dialect(reverse_in_loop=True, split_as_rows=4, matrix_product=True),
        ),
        Target(
            "iree",
            "3.13.0",
            ("scan", "unroll"),
            oldest_opset=13,
            unsupported=("Softsign",),
            sizes=("T", "N"),
            integer_products=True,
            unroll_up_to=100,
        ),
        Target(
            "openvino",
            "2026.4.1",
            ("loop", "scan", "unroll"),
            constants_in_scan=True,
            integer_products=True,
            recognized_lstm=True,
            unroll_up_to=100,
            dialect=Dialect(dequantize_inside=True),
        ),
        # Its Tanh is NaN from 45 to 88, it makes scalars tensors of rank 1, and in a Loop one state of two
        # that start from one value.
        Target(
            "opencv",
            "5.0.0",
            ("unroll", "loop"),
            unsupported=("Softplus",),
            dialect=Dialect(
                matrix_product=True, matrix_steps=True, bounded_tanh=True, gather_by_rank_1=True, zeros_apart=True
            ),
            integer_products=False,
        ),
        Target("emx-onnx-cgen", "1.4.0", ("scan", "unroll")),
        Target("ezkl", "23.0.5", ("unroll", "scan")),
        Target("rknn", "rknn-toolkit2 2.5.0", ("scan", "unroll"), newest_opset=19),
        _documented("candle", "0.11.0", documented.CANDLE, "unroll", oldest_opset=13),
        _documented("rten", "main", documented.RTEN, "unroll", "loop"),
        _documented("burn", "burn-onnx 0.21.0-pre.1", documented.BURN, "unroll", "scan", "loop", newest_opset=24),
        _documented("onnx2c", "master", documented.ONNX2C, "unroll", sizes=_STATIC),
        _documented("qnn", "onnxruntime-qnn 2.0.0", documented.QNN, "unroll", sizes=_STATIC),
        _documented("webnn", "onnxruntime-web 1.30.0", documented.WEBNN, "unroll", oldest_opset=7, sizes=_STATIC),
        _documented(
            "tensorrt",
            "10.1",
            documented.TENSORRT,
            *("unroll", "scan", "loop"),
            oldest_opset=9,
            newest_opset=20,
        ),
        _documented("tidl", "11.0", documented.TIDL, "unroll", newest_opset=19, sizes=_STATIC, batch_size=1),
        _documented(
            "stedgeai",
            "ST Edge AI Core 2.2",
            documented.STEDGEAI,
            "unroll",
            oldest_opset=7,
            newest_opset=20,
            sizes=_STATIC,
            batch_size=1,
            dialect=Dialect(no_constant_minus=True),  # its NPU runs that in software
        ),
    )
}


_OTHER_NAMES = {
    "trt": "tensorrt",
    "ort": "onnxruntime",
    "ortweb": "onnxruntime-web",
    "apachetvm": "tvm",
    "coremltools": "coreml",
    "cv2": "opencv",
    "pnnx": "ncnn",
    "rknntoolkit2": "rknn",
    "stedgeaicore": "stedgeai",
    "onnxruntimeqnn": "qnn",
}


def target_named(name: str) -> Target:
    """Return a row of the table; the case of letters does not count, nor do signs between them.

    Raises:
        OptionError: There is none of this name.
    """
    found = {_letters(known): known for known in TARGETS} | _OTHER_NAMES
    if _letters(name) not in found:
        raise OptionError(f"target '{name}' does not exist", hint=f"known are {', '.join(TARGETS)}")
    return TARGETS[found[_letters(name)]]


def _letters(name: object) -> str:
    return "".join(filter(str.isalnum, str(name).lower()))
