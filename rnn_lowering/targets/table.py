"""The table of targets: each runtime's row, `Target`, with the reasons and figures.

A new runtime gets its row here, and its name in names.py. Runtimes with many rewrites have theirs in `runtimes`;
documented.json has those known by a list of their operators, which were not run, or run once, built from their
sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, get_args

import onnx_ir as ir

from rnn_lowering.argument_checks import meant
from rnn_lowering.emit.composites import by_columns, constant_minus
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.errors import OptionError
from rnn_lowering.targets.names import FormName
from rnn_lowering.targets.native import Excluded, NativeRule
from rnn_lowering.targets.runtimes.devices import ESPDL, LITERT, NCNN
from rnn_lowering.targets.runtimes.mnn import MNN
from rnn_lowering.targets.runtimes.onnxruntime import ONNXRUNTIME, QNN, WEB, WEBGPU
from rnn_lowering.targets.runtimes.opencv import OPENCV
from rnn_lowering.targets.runtimes.openvino import OPENVINO
from rnn_lowering.targets.runtimes.tract import TRACT
from rnn_lowering.targets.target import (
    COMPOSED,
    EXPORTED_UNROLLED,
    PORTABLE,
    STATIC,
    AttentionTraits,
    Documented,
    LoopTraits,
    ModelTraits,
    Target,
)

TINYGRAD = Target(
    "tinygrad", "0.14.0", ("unroll",), attention=AttentionTraits(("unroll", "chunked")), integer_products=True
)
"""No recurrent operator, Scan or Loop."""

_LEAST_COLUMNS = 48
"""With fewer rows of weights the transposes cost more than they save; with 128 and 256, 64 steps are 9 to 32 times
faster with the flags of the recipe."""

TVM = Target(
    "tvm",
    "apache-tvm 0.27.0",
    ("unroll",),
    other_names=("apachetvm",),
    attention=AttentionTraits(("unroll", "chunked")),
    integer_products=True,
    instead=(("MatMul", partial(by_columns, least=_LEAST_COLUMNS)),),
    model=ModelTraits(adaptations=("constants as tensors",)),
)
"""TVM's Relax (`pip install apache-tvm`): no recurrent operator, Scan or Loop."""

IREE = Target(
    "iree",
    "3.13.0",
    ("scan", "unroll"),
    attention=AttentionTraits(("scan", "unroll", "chunked")),
    loops=LoopTraits(
        exported_forms=EXPORTED_UNROLLED, dialect=Dialect(join_up_to=128, stack_up_to=128), unroll_up_to=100
    ),
    oldest_opset=13,
    unsupported=("Softsign",),
    sizes=STATIC,
    integer_products=True,
    model=ModelTraits(adaptations=("constants as tensors",)),
    native=NativeRule(
        "3.13.0", "2026-11-22", frozenset(), (Excluded((), "runs lowered nodes 2 to 8 times as fast"),)
    ),
)
"""`pip install iree-base-compiler iree-base-runtime`: no Loop. Up to 100 steps run 1.6 to 8 times faster unrolled
than in a Scan. Scans that nodes share take 0.56 to 0.9 of the time, unrolled steps 0.94 to 1.09."""

ONNX2TORCH = Target(
    "onnx2torch", "1.5.15", ("unroll",), newest_opset=17, oldest_opset=9, unsupported=("ThresholdedRelu",)
)

# ExecuTorch and Core ML take the PyTorch modules of onnx2torch. Core ML was run by hand.
EXECUTORCH = Target(
    "executorch",
    "1.5.1",
    ("unroll",),
    newest_opset=17,
    oldest_opset=9,
    unsupported=("ThresholdedRelu",),
    model=ModelTraits(adaptations=("computed copies",)),  # XNNPACK rejects one value as two outputs
)

COREML = Target(
    "coreml",
    "coremltools 9.0",
    ("unroll",),
    other_names=("coremltools",),
    newest_opset=17,
    oldest_opset=9,
    unsupported=("ThresholdedRelu", "Less"),
    sequence_lens=False,
    why_no_lengths="coremltools does not convert their comparison",
    converted_only=True,
)

EMX = Target(
    "emx-onnx-cgen", "1.4.0", ("scan", "unroll"), loops=LoopTraits(runs_exported=False), since=(("Split", 13),)
)
"""It makes C code. Of exported Scans it rejects other axes and directions than the first, and it ignores sizes of a
Split that are an attribute."""


def write_strides(op: Ops, _: Sequence[ir.Value]) -> None:
    """Give each Conv its strides, also where they are 1: ezkl rejects it without ("missing required params")."""
    for node in op.nodes:
        if node.op_type == "Conv" and "strides" not in node.attributes:
            axes = len(node.attributes.get_ints("kernel_shape"))
            node.attributes.add(ir.AttrInt64s("strides", [1] * axes))


EZKL = Target(
    "ezkl",
    "23.0.5",
    ("unroll", "scan"),
    loops=LoopTraits(exported_forms=EXPORTED_UNROLLED),
    unsupported=("Softplus",),
    sizes=STATIC,
    finish=(write_strides,),
    model=ModelTraits(adaptations=("computed copies", "inputs with elements")),
)
"""`pip install ezkl`: circuits for proofs, which compute in fixed point."""

JAXONNXRUNTIME = Target(
    "jaxonnxruntime",
    "0.3.0",
    ("unroll",),
    newest_opset=20,
    oldest_opset=13,
    unsupported=("Softsign", "ThresholdedRelu", "HardSigmoid", "Elu", "Clip"),
    since=(("Relu", 14),),  # Relu-13 fails, Relu-14 does not
    model=ModelTraits(adaptations=("stored constants",)),
)

RKNN = Target(
    "rknn",
    "rknn-toolkit2 2.5.0",
    ("scan", "unroll"),
    other_names=("rknntoolkit2",),
    newest_opset=19,
    lacks=(("LinearAttention", "its simulator rejects it, or does not end within a minute"),),
    dialect=Dialect(equal_apart=True),
    loops=LoopTraits(constants_in_scan=True),
    model=ModelTraits(adaptations=("computed copies", "inputs with elements")),
    native=NativeRule(
        "2.5.0", "2026-11-23", frozenset(), (Excluded((), "rejects most recurrent nodes, or ends the process"),)
    ),
)
"""The simulator of an NPU, in float16. Of 100 random nodes it computed 29 right, rejected 33, and crashed at 38."""

WEBNN = Target(
    "webnn",
    "onnxruntime-web 1.30.0",
    ("unroll",),
    newest_opset=26,
    unsupported=("Softplus", "ThresholdedRelu"),
    lacks_types=(ir.DataType.DOUBLE,),
    sizes=STATIC,
    model=ModelTraits(adaptations=("inputs with elements",)),
    integer_products=False,  # it multiplies integers of one type only, and quantized weights are of another
)
"""onnxruntime-web's execution provider for WebNN, where no node may run outside of it; run in Chromium 153, which
computes WebNN with LiteRT on the CPU."""

_RUN = (
    *(PORTABLE, ONNXRUNTIME, WEB, WEBGPU, WEBNN, TINYGRAD, TVM, JAXONNXRUNTIME, ONNX2TORCH, EXECUTORCH, COREML),
    *(NCNN, MNN, TRACT, IREE, OPENVINO, OPENCV, EMX, EZKL, QNN, RKNN, LITERT, ESPDL),
)


def _documented(row: Mapping[str, Any]) -> Target:
    """Return the target of a row of documented.json; operators that its document does not name are composed or
    refused.

    A row has name, other_names, version, forms, limits (attributes of `Target`), source, date, run, operators,
    left_out and unchecked; lacks_types names element types; constant_minus is false if that runs in software.
    """
    known = Documented(
        row["source"],
        row["date"],
        " ".join(row["operators"]),
        tuple(row.get("left_out", {}).items()),
        row.get("unchecked", ""),
        row.get("run", ""),
    )
    limits = row.get("limits", {})
    return Target(
        row["name"],
        row["version"],
        tuple(row["forms"]),
        other_names=tuple(row.get("other_names", ())),
        unsupported=tuple(sorted(COMPOSED.keys() - known.operators)),
        sequence_lens={"Cast", "Gather", "Less"} <= known.operators,
        integer_products={"DynamicQuantizeLinear", "MatMulInteger"} <= known.operators,
        instead=() if row.get("constant_minus", True) else (("Sub", constant_minus),),
        lacks_types=tuple(ir.DataType[name] for name in row.get("lacks_types", ())),
        documented=known,
        **(limits | {"sizes": tuple(limits.get("sizes", ()))}),
    )


_ROWS = json.loads(files(__package__).joinpath("documented.json").read_text("utf-8"))


class Targets(dict[str, Target]):
    """Targets by name."""

    def __repr__(self) -> str:
        return f"<{len(self)} targets: {', '.join(self)}>"


TARGETS = Targets({target.name: target for target in (*_RUN, *map(_documented, _ROWS))})
"""Every target that `target=` accepts, by name."""


_ALIKE, _SHORT, _ALIKE_SHORT = 0.8, 3, 0.6
"""How alike a name and that of a target are which is taken for a slip: runtimes of one family are less. In a name
of three letters one wrong letter weighs more.
"""


def any_target_named(name: str) -> Target:
    """Return the target of a name, as `target_named`."""
    names = {name: (_letters(name), *target.other_names) for name, target in TARGETS.items()}
    found = {other: known for known, others in names.items() for other in others}
    if name in get_args(FormName):
        raise OptionError(f"target '{name}' does not exist", hint=f"it is a form: --to {name}")
    if _letters(name) not in found:
        known = (each for t in TARGETS.values() for each in (t.name, *t.other_names))
        like = meant(str(name), known, alike=_ALIKE_SHORT if len(str(name)) <= _SHORT else _ALIKE)
        raise OptionError(
            f"target '{name}' does not exist",
            hint=f"for another runtime, use --to unroll without a target; --targets lists {len(TARGETS)}{like}",
        )
    return TARGETS[found[_letters(name)]]


def _letters(name: object) -> str:
    return "".join(filter(str.isalnum, str(name).lower()))
