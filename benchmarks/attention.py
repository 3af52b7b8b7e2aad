"""Time lowered LinearAttention and CausalConvWithState nodes beside onnxruntime's own.

onnxruntime runs the standard LinearAttention as a Scan of 22 nodes, and that of com.microsoft with a kernel. The
ratios are of medians, timed as `timing` does.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

import onnx

import rnn_lowering as rl
from benchmarks.timing import medians

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

import causal_conv
from attention import STANDARD, Attention
from graphs import MS

SMALL = Attention(B=1, Hq=4, H=4, dk=64, dv=64)
LARGE = Attention(B=1, Hq=16, H=16, dk=128, dv=128)
QWEN = Attention(B=1, Hq=16, n=16, H=32, dk=128, dv=128)
MAMBA = Attention("gated", B=1, Hq=1536, H=1536, dk=16, dv=1, by_key=True)


@dataclass(frozen=True)
class Measured:
    """A node, and the forms in which it is measured; `title` says what is special about it."""

    title: str
    case: Attention
    forms: tuple[str, ...] = ("scan", "loop", "chunked")


OPEN = "open"
"""What the default is where the length is open, beside the forms of LinearAttention."""


def rows() -> Iterator[Measured]:
    """Yield the rows of the table."""
    sizes = (replace(SMALL, T=128), replace(SMALL, T=512), replace(LARGE, T=512))
    yield from (Measured("gated_delta", case) for case in sizes)
    yield Measured("gated_delta", replace(LARGE, T=1), ("unroll",))
    yield from (Measured("gated_delta, by key", replace(case, by_key=True)) for case in sizes)
    for rule in ("delta", "gated", "linear"):
        yield from (Measured(rule, replace(case, rule=rule)) for case in sizes[1:])
    yield Measured("gated_delta, 16 keys, 32 states", replace(QWEN, T=128), ("scan", "chunked"))
    yield Measured("gated_delta, 16 keys, 32 states", replace(QWEN, T=1), ("unroll",))
    yield Measured("gated, by key, 1 value", replace(MAMBA, T=64), ("scan", "chunked"))
    yield Measured("gated, by key, 1 value", replace(MAMBA, T=1), ("unroll",))


def report(seconds: float = 1.0) -> list[dict[str, Any]]:
    """Print the table; return it as data."""
    print("\nLinearAttention, ratio to onnxruntime's standard operator (to its com.microsoft kernel):\n")
    columns = ("kernel", "scan", "loop", "unroll", "chunked", OPEN)
    print(f"| node | T | heads | size | standard ms | {' | '.join(columns)} |")
    print("|---|" + "---:|" * (4 + len(columns)))
    results = []
    for row in rows():
        case, models = row.case, dict(_models(row.case, row.forms))
        taken = dict(zip(models, medians([*models.values()], [case.feed()] * len(models), seconds), strict=True))
        cells = [_cell(taken, column) for column in columns]
        standard = f"{taken['standard'] * 1e3:.2f}" if "standard" in taken else ""
        numbers = (row.title, str(case.T), str(case.H), f"{case.dk}x{case.dv}", standard, *cells)
        print(f"| {' | '.join(numbers)} |", flush=True)
        results.append({"title": row.title, "T": case.T, "heads": case.H, "dk": case.dk, "dv": case.dv, **taken})
    return results + _convolutions(seconds)


def _convolutions(seconds: float) -> list[dict[str, Any]]:
    """Print the table of convolutions; return it as data."""
    print("\nCausalConvWithState, a kernel of 4 with SiLU, ratio to the standard operator (to the kernel):\n")
    print("| frames | channels | standard ms | kernel | lowered | open |")
    print("|---:" * 6 + "|")
    results = []
    for length, channels in ((1, 256), (1, 8192), (512, 256), (512, 2048)):
        case = causal_conv.ConvCase(MS, 1, length, (channels,))
        opened = causal_conv.model(replace(case, symbolic=True))
        models = {
            "standard": causal_conv.model(replace(case, domain=STANDARD)),
            "kernel": causal_conv.model(case),
            "lowered": rl.lower(causal_conv.model(case), target="onnxruntime"),
            OPEN: rl.lower(opened, target="onnxruntime"),
        }
        taken = dict(
            zip(models, medians([*models.values()], [causal_conv.feed(case)] * len(models), seconds), strict=True)
        )
        cells = [_cell(taken, column) for column in ("kernel", "lowered", OPEN)]
        print(f"| {length} | {channels} | {taken['standard'] * 1e3:.3f} | {' | '.join(cells)} |", flush=True)
        results.append({"title": "CausalConvWithState", "length": length, "channels": channels, **taken})
    return results


def _cell(taken: Mapping[str, float], column: str) -> str:
    """Return the ratio to the standard operator, and to the kernel in brackets."""
    if column not in taken:
        return ""
    beside = f"({taken[column] / taken['kernel']:.1f})"
    return f"{taken[column] / taken['standard']:.2f} {beside}" if "standard" in taken else beside


def _models(case: Attention, forms: Sequence[str]) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the standard node, where it can be one, the kernel, and each form."""
    if case.n in (0, case.H) and case.Hq >= case.H:
        yield "standard", replace(case, domain=STANDARD, n=0).model()
    yield "kernel", replace(case, domain=MS).model()
    form: Any
    for form in (*forms, OPEN):
        model = replace(case, domain=MS, open="" if form in ("unroll", "chunked") else "T").model()
        yield form, rl.lower(model, "auto" if form == OPEN else form, target="onnxruntime")
