"""Time lowered models beside onnxruntime's native kernels.

The ratios are of medians, timed as `timing` does: in processor time, which a busy machine changes least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

import rnn_lowering as rl
from benchmarks import attention
from benchmarks.models import Row, rows
from benchmarks.timing import medians

LOWERED = {
    "portable": ("scan", "portable"),
    "loop": ("loop", "portable"),
    "unroll": ("unroll", "portable"),
    "onnxruntime": ("scan", "onnxruntime"),
}
"""What is measured: form and target."""

WITH_LENGTHS = [
    Row(op, direction, *size, lengths=True)
    for op in ("RNN", "GRU", "LSTM")
    for direction in ("forward", "bidirectional")
    for size in ((1000, 1, 32, 32), (64, 8, 128, 256))
]


def lowered(row: Row, kind: str) -> onnx.ModelProto:
    to: Any
    target: Any
    to, target = LOWERED[kind]
    return rl.lower(row.model(), to, target=target, max_unroll=row.T)


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def report(seconds: float = 1.0, kinds: Sequence[str] = ("portable", "loop", "onnxruntime")) -> dict[str, Any]:
    """Print the tables; return them as data."""
    return {
        "native": _against_native(seconds, kinds),
        "lengths": _with_and_without_lengths(seconds, kinds),
        "attention": attention.report(seconds),
    }


def _against_native(seconds: float, kinds: Sequence[str]) -> list[dict[str, Any]]:
    print()
    _print_header("native ms", *kinds)
    results = []
    for row in rows():
        models = [row.model(), *(lowered(row, kind) for kind in kinds)]
        native, *others = medians(models, [row.feed()] * len(models), seconds)
        ratios = {kind: taken / native for kind, taken in zip(kinds, others, strict=True)}
        results.append(vars(row) | {"native_ms": native * 1e3} | ratios)
        _print_row(row, f" {native * 1e3:.2f} |", ratios)
    means = {kind: geometric_mean([r[kind] for r in results]) for kind in kinds}
    print("| geometric mean | | | | | |" + "".join(f" {mean:.2f} |" for mean in means.values()))
    return results


def _with_and_without_lengths(seconds: float, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """What sequence_lens cost: the ratio to the same model without them, all of length T."""
    print("\nWith sequence_lens, ratio to without:\n")
    _print_header(*kinds)
    results = []
    for row in WITH_LENGTHS:
        without = replace(row, lengths=False)
        ratios = {}
        for kind in kinds:
            plain, masked = medians(
                [lowered(without, kind), lowered(row, kind)], [without.feed(), row.feed()], seconds
            )
            ratios[kind] = masked / plain
        results.append(vars(row) | ratios)
        _print_row(row, "", ratios)
    return results


def _print_header(*columns: str) -> None:
    print("| " + " | ".join(("node", *"TNIH", *columns)) + " |")
    print("|---|" + "---:|" * (4 + len(columns)))


def _print_row(row: Row, more: str, ratios: Mapping[str, float]) -> None:
    numbers = "".join(f" {ratio:.2f} |" for ratio in ratios.values())
    print(f"| {row} | {row.T} | {row.N} | {row.I} | {row.H} |{more}{numbers}", flush=True)
