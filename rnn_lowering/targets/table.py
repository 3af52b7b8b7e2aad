"""The table of targets: each runtime's row, `Target`, with the reasons and figures.

A runtime with many rewrites of its own has a file in `runtimes`; documented.json has those known by a list of their
operators, which were not run, or run once, built from their sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import onnx_ir as ir

from rnn_lowering.argument_checks import meant
from rnn_lowering.emit.composites import as_transpose, constant_minus
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.errors import OptionError
from rnn_lowering.targets.native import Excluded, NativeRule
from rnn_lowering.targets.runtimes import (
    espdl,
    ezkl,
    litert,
    mnn,
    onnxruntime,
    onnxruntime_webgpu,
    opencv,
    openvino,
    qnn,
    tract,
    tvm,
)
from rnn_lowering.targets.target import COMPOSED, EXPORTED_UNROLLED, STATIC, Documented, Target

PORTABLE = Target(
    "portable",
    "",
    ("scan", "loop", "unroll"),
    growing_states=True,
    integer_products=True,
    # A shared loop took at most 1.01 of the time in every measured runtime. Unrolled steps stay apart: shared, they
    # take 1.06 to 1.13 of the time in TVM and IREE.
    loop_dialect=Dialect(join_up_to=128, stack_up_to=128),
)

TINYGRAD = Target("tinygrad", "0.14.0", ("unroll",), attention=("unroll", "chunked"), integer_products=True)
"""No recurrent operator, Scan or Loop."""

IREE = Target(
    "iree",
    "3.13.0",
    ("scan", "unroll"),
    attention=("scan", "unroll", "chunked"),
    exported_forms=EXPORTED_UNROLLED,
    oldest_opset=13,
    unsupported=("Softsign",),
    sizes=STATIC,
    integer_products=True,
    unroll_up_to=100,
    loop_dialect=Dialect(join_up_to=128, stack_up_to=128),
    native=NativeRule(
        "3.13.0", "2026-11-22", frozenset(), (Excluded((), "runs lowered nodes 2 to 8 times as fast"),)
    ),
)
"""`pip install iree-base-compiler iree-base-runtime`: no Loop. Up to 100 steps run 1.6 to 8 times faster unrolled
than in a Scan. Scans that nodes share take 0.56 to 0.9 of the time, unrolled steps 0.94 to 1.09."""

NCNN = Target(
    "ncnn",
    "pnnx 20261020",
    ("unroll",),
    other_names=("pnnx",),
    newest_opset=26,
    unsupported=("Softplus", "Softsign", "ThresholdedRelu", "Less", "Gather", "ReduceSum"),
    lacks=(("LinearAttention", "its tensors have at most 4 axes"),),
    sequence_lens=False,
    # Masks from a table crash too: pnnx runs the model on uninitialized integers, and Gather reads them.
    why_no_lengths="pnnx converts no arithmetic of integers",
    integer_products=False,
    quantizes=False,  # pnnx has no QuantizeLinear
    ignores_axes=(("ReduceSum", 13), ("ReduceL1", 18), ("ReduceL2", 18), ("ReduceMean", 18)),
    dialect=Dialect(matrix_product=True, matrix_steps=True),
    outputs_apart=as_transpose,  # pnnx aborts at an Identity of an output of the model
    loses_copies=True,
    empty_tensors=False,  # pnnx crashes
    bounds_lookups=True,
)
"""`pip install ncnn pnnx`: converted by pnnx; no recurrent ONNX operator, Scan or Loop."""

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
    loses_copies=True,  # XNNPACK rejects one value as two outputs
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

EMX = Target("emx-onnx-cgen", "1.4.0", ("scan", "unroll"), runs_exported=False, since=(("Split", 13),))
"""It makes C code. Of exported Scans it rejects other axes and directions than the first, and it ignores sizes of a
Split that are an attribute."""

JAXONNXRUNTIME = Target(
    "jaxonnxruntime",
    "0.3.0",
    ("unroll",),
    newest_opset=20,
    oldest_opset=13,
    unsupported=("Softsign", "ThresholdedRelu", "HardSigmoid", "Elu", "Clip"),
    since=(("Relu", 14),),  # Relu-13 fails, Relu-14 does not
)

RKNN = Target(
    "rknn",
    "rknn-toolkit2 2.5.0",
    ("scan", "unroll"),
    other_names=("rknntoolkit2",),
    newest_opset=19,
    lacks=(("LinearAttention", "its simulator rejects it, or does not end within a minute"),),
    constants_in_scan=True,
    loses_copies=True,
    empty_tensors=False,
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
    empty_tensors=False,
    integer_products=False,  # it multiplies integers of one type only, and quantized weights are of another
)
"""onnxruntime-web's execution provider for WebNN, where no node may run outside of it; run in Chromium 153, which
computes WebNN with LiteRT on the CPU."""

_RUN = (
    *(PORTABLE, onnxruntime.ONNXRUNTIME, onnxruntime.WEB, onnxruntime_webgpu.TARGET, WEBNN, TINYGRAD, tvm.TARGET),
    *(JAXONNXRUNTIME, ONNX2TORCH, EXECUTORCH, COREML, NCNN, mnn.TARGET, tract.TARGET, IREE, openvino.TARGET),
    *(opencv.TARGET, EMX, ezkl.TARGET, qnn.TARGET, RKNN, litert.TARGET, espdl.TARGET),
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

TARGETS = {target.name: target for target in (*_RUN, *map(_documented, _ROWS))}
"""Every target that `target=` accepts, by name."""


def target_named(name: str) -> Target:
    """Return the target of a name, ignoring case and punctuation.

    Raises:
        OptionError: There is none of this name.
    """
    names = {name: (_letters(name), *target.other_names) for name, target in TARGETS.items()}
    found = {other: known for known, others in names.items() for other in others}
    if _letters(name) not in found:
        like = meant(str(name), (each for t in TARGETS.values() for each in (t.name, *t.other_names)))
        raise OptionError(
            f"target '{name}' does not exist",
            hint=f"for another runtime, use --to unroll without a target; known are {', '.join(TARGETS)}{like}",
        )
    return TARGETS[found[_letters(name)]]


def _letters(name: object) -> str:
    return "".join(filter(str.isalnum, str(name).lower()))
