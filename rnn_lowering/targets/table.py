"""The table of runtimes: the files in `runtimes`, and those of documented.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rnn_lowering.emit.composites import constant_minus
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.errors import OptionError
from rnn_lowering.targets.runtimes import (
    by_hand,
    iree,
    mnn,
    ncnn,
    onnx2torch,
    onnxruntime,
    onnxruntime_webgpu,
    opencv,
    openvino,
    tinygrad,
    tract,
    tvm,
)
from rnn_lowering.targets.target import COMPOSED, Documented, Target, rows


def _documented(row: Mapping[str, Any]) -> Target:
    """Return a documented runtime; operators that its document does not name are composed or refused."""
    known = Documented.of(row)
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
        documented=known,
        **(limits | {"sizes": tuple(limits.get("sizes", ()))}),
    )


# A shared loop was not slower in any measured runtime. Unrolled steps stay apart: shared, they take 1.06 to 1.13 of
# the time in TVM and IREE.
PORTABLE = Target(
    "portable",
    "",
    ("scan", "loop", "unroll"),
    integer_products=True,
    loop_dialect=Dialect(join_up_to=128, stack_up_to=128),
)

_TRIED = (
    *(PORTABLE, onnxruntime.ONNXRUNTIME, onnxruntime.WEB, onnxruntime_webgpu.TARGET),
    *(tinygrad.TARGET, tvm.TARGET, by_hand.JAXONNXRUNTIME),
    *(onnx2torch.ONNX2TORCH, onnx2torch.EXECUTORCH, onnx2torch.COREML, ncnn.TARGET, mnn.TARGET, tract.TARGET),
    *(iree.TARGET, openvino.TARGET, opencv.TARGET, by_hand.EMX, by_hand.EZKL, by_hand.RKNN),
)

TARGETS = {target.name: target for target in (*_TRIED, *map(_documented, rows()))}


def target_named(name: str) -> Target:
    """Return the target of a name, ignoring case and punctuation.

    Raises:
        OptionError: There is none of this name.
    """
    names = {name: (_letters(name), *target.other_names) for name, target in TARGETS.items()}
    found = {other: known for known, others in names.items() for other in others}
    if _letters(name) not in found:
        raise OptionError(f"target '{name}' does not exist", hint=f"known are {', '.join(TARGETS)}")
    return TARGETS[found[_letters(name)]]


def _letters(name: object) -> str:
    return "".join(filter(str.isalnum, str(name).lower()))
