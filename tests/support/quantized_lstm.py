"""Models of one DynamicQuantizeLSTM; onnxruntime's kernel defines what they compute."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import running
from cases import Arrays
from graphs import MS, Graph

T, WIDTH, H = 6, 5, 8
ALL = ("Y", "Y_h", "Y_c")


@dataclass(frozen=True)
class Model:
    """A DynamicQuantizeLSTM; `changed` are inputs other than the usual ones, None for one that is missing."""

    dirs: int = 1
    dtype: str = "int8"
    per_column: bool = False
    peepholes: bool = False
    lengths: bool = False
    states: bool = False
    outputs: Sequence[str] = ALL
    N: int = 2
    direction: str = ""
    opset: int = 17
    attributes: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> Arrays:
        rng, D = np.random.default_rng(0), self.dirs
        signed = self.dtype == "int8"
        size = (D, 4 * H) if self.per_column else (D,)
        middle = (0 if signed else 128) if self.per_column else rng.integers(-5, 5, D) + (0 if signed else 128)
        weights = {symbol: rng.integers(-127, 128, (D, n, 4 * H)) for symbol, n in (("W", WIDTH), ("R", H))}
        held: Arrays = {s: (w + (0 if signed else 128)).astype(self.dtype) for s, w in weights.items()}
        for symbol in "WR":
            held[f"{symbol}_scale"] = rng.uniform(0.002, 0.006, size).astype(np.float32)
            held[f"{symbol}_zero_point"] = np.broadcast_to(middle, size).astype(self.dtype)
        held["B"] = rng.uniform(-0.3, 0.3, (D, 8 * H)).astype(np.float32)
        if self.peepholes:
            held["P"] = rng.uniform(-0.3, 0.3, (D, 3 * H)).astype(np.float32)
        return {name: array for name, array in {**held, **self.changed}.items() if array is not None}

    def proto(self) -> onnx.ModelProto:
        held, graph, state = self.tensors(), Graph(), [self.dirs, None, H]
        graph.input("X", [None, None, WIDTH])
        if self.lengths:
            graph.input("sequence_lens", [None], np.int32)
        for symbol in ("initial_h", "initial_c") if self.states else ():
            graph.input(symbol, state)
        for symbol, array in held.items():
            graph.constant(array, name=symbol)
        order = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
        scales = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
        given = {*held, *(value.name for value in graph.inputs)}
        direction = self.direction or ("bidirectional" if self.dirs == 2 else "forward")
        graph.node(
            "DynamicQuantizeLSTM",
            *(symbol if symbol in given else "" for symbol in (*order, *scales)),
            outputs=[symbol if symbol in self.outputs else "" for symbol in ALL],
            name="dq",
            domain=MS,
            **{"hidden_size": H, "direction": direction, **self.attributes},
        )
        for symbol in self.outputs:
            graph.output(symbol, None)
        return graph.model(self.opset, [MS])

    def feed(self, lengths: Sequence[int] = ()) -> Arrays:
        rng = np.random.default_rng(1)
        made: Arrays = {"X": rng.standard_normal((T, self.N, WIDTH)).astype(np.float32)}
        if self.lengths:
            made["X"][T - 1] *= 50  # beyond the lengths: enters no range
            made["sequence_lens"] = np.array(lengths, np.int32)
        if self.states:
            made |= {
                s: rng.uniform(-1, 1, (self.dirs, self.N, H)).astype(np.float32) for s in ("initial_h", "initial_c")
            }
        return made


def run(model: onnx.ModelProto, feed: Arrays) -> list[Any]:
    return [*running.run(model, feed).values()]
