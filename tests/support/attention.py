"""Cases of LinearAttention: a node, its model, random inputs, and an oracle that is written independently of the
package."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = dict[str, Array]

STANDARD, CONTRIB = "", "com.microsoft"
RULES = ("linear", "gated", "delta", "gated_delta")
TYPES = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
NUMPY = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SYMBOLS = ("query", "key", "value", "past_state", "decay", "beta")


@dataclass(frozen=True)
class Attention:
    """A node.

    Attributes:
        B, T: Batch size and sequence length.
        Hq, H, n: Heads of the query, of the state and, in com.microsoft, of the key (0: as the state).
        dk, dv: Sizes of a key and a value.
        by_key: Whether there is a decay for each key dimension.
        one_beta: Whether one beta is for all heads.
        scale: The attribute; None for none.
        state: Whether past_state is connected.
        keys: What keys are like: "unit", "equal" or "positive", all of length 1; "raw" keys are not.
        decays: "weak", or "strong" for -20 and -inf among weak ones.
        open: Which of "B" and "T" the model leaves open.
        opset: Of the model; 0 for the first that has the operator.
    """

    rule: str = "gated_delta"
    domain: str = CONTRIB
    B: int = 2
    T: int = 5
    Hq: int = 2
    H: int = 2
    n: int = 0
    dk: int = 4
    dv: int = 3
    by_key: bool = False
    one_beta: bool = False
    scale: float | None = None
    state: bool = True
    dtype: str = "float"
    state_dtype: str = "float"
    keys: str = "unit"
    decays: str = "weak"
    open: str = ""
    opset: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def decays_state(self) -> bool:
        return self.rule in ("gated", "gated_delta")

    @property
    def corrects(self) -> bool:
        return self.rule in ("delta", "gated_delta")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        B, T, H = self.B, self.T, self.H
        shapes: dict[str, tuple[int, ...]] = {
            "query": (B, T, self.Hq * self.dk),
            "key": (B, T, (self.n or H) * self.dk),
            "value": (B, T, H * self.dv),
        }
        if self.state:
            shapes["past_state"] = (B, H, self.dk, self.dv)
        if self.decays_state:
            shapes["decay"] = (B, T, H * (self.dk if self.by_key else 1))
        if self.corrects:
            shapes["beta"] = (B, T, 1 if self.one_beta else H)
        return shapes

    def type_of(self, symbol: str) -> str:
        states = symbol in ("past_state", "present_state")
        return (self.state_dtype if self.state else self.dtype) if states else self.dtype

    def node(self, **names: str) -> onnx.NodeProto:
        """Return the node; `names` are those of inputs and outputs that are not called by their symbols."""
        shapes = self.shapes()
        inputs = [names.get(s, s if s in shapes else "") for s in SYMBOLS]
        while inputs[-1] == "":
            inputs.pop()
        outputs = [names.get(s, s) for s in ("output", "present_state")]
        attributes = {"q_num_heads": self.Hq, "kv_num_heads": self.H, "update_rule": self.rule, **self.attributes}
        if self.scale is not None:
            attributes["scale"] = self.scale
        return helper.make_node("LinearAttention", inputs, outputs, "attention", domain=self.domain, **attributes)

    def values(self) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
        """Return the inputs and outputs of a model of the node."""

        def dims(symbol: str, shape: tuple[int, ...]) -> list[Any]:
            found: list[Any] = list(shape)
            found[0] = "B" if "B" in self.open else found[0]
            if "state" not in symbol and "T" in self.open:
                found[1] = "T"
            return found

        inputs = [
            helper.make_tensor_value_info(s, TYPES[self.type_of(s)], dims(s, shape))
            for s, shape in self.shapes().items()
        ]
        outputs = {
            "output": (self.B, self.T, max(self.Hq, self.H) * self.dv),
            "present_state": (self.B, self.H, self.dk, self.dv),
        }
        return inputs, [
            helper.make_tensor_value_info(s, TYPES[self.type_of(s)], dims(s, shape)) for s, shape in outputs.items()
        ]

    def model(self) -> onnx.ModelProto:
        inputs, outputs = self.values()
        graph = helper.make_graph([self.node()], "attention", inputs, outputs)
        return helper.make_model(graph, opset_imports=self.imports(), ir_version=10)

    def imports(self) -> list[onnx.OperatorSetIdProto]:
        opset = self.opset or (27 if self.domain == STANDARD else 21)
        return [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]

    def feed(self, seed: int = 0) -> Arrays:
        rng = np.random.default_rng(seed)
        made = {symbol: rng.standard_normal(shape) for symbol, shape in self.shapes().items()}
        if "decay" in made:
            g = -rng.uniform(0.01, 0.5, made["decay"].shape)
            if self.decays == "strong":
                g[rng.random(g.shape) < 0.2] = -20
                g[rng.random(g.shape) < 0.1] = -np.inf
            made["decay"] = g
        if "beta" in made:
            made["beta"] = rng.uniform(0, 1, made["beta"].shape)
        if self.keys != "raw":
            k = made["key"].reshape(self.B, self.T, self.n or self.H, self.dk)
            k = np.abs(k) if self.keys == "positive" else k
            k = np.broadcast_to(k[:, :1], k.shape) if self.keys == "equal" and self.T else k
            made["key"] = (k / np.linalg.norm(k, axis=-1, keepdims=True)).reshape(made["key"].shape)
            if self.keys == "equal" and "beta" in made:
                made["beta"][:] = 1
        return {symbol: array.astype(NUMPY[self.type_of(symbol)]) for symbol, array in made.items()}

    def expected(self, feed: Mapping[str, Array]) -> Arrays:
        """Return the outputs in float64: row by row, head by head, step by step."""
        given = {symbol: array.astype(np.float64) for symbol, array in feed.items()}
        heads = max(self.Hq, self.H)
        output = np.zeros((self.B, self.T, heads, self.dv))
        state = np.zeros((self.B, self.H, self.dk, self.dv))
        scale = float(np.float32(self.scale)) if self.scale else self.dk**-0.5
        for b in range(self.B):
            for h in range(self.H):
                S = given["past_state"][b, h].copy() if self.state else np.zeros((self.dk, self.dv))
                for t in range(self.T):
                    k = self._head(given["key"], b, t, h * (self.n or self.H) // self.H, self.dk)
                    v = self._head(given["value"], b, t, h, self.dv)
                    if self.decays_state:
                        width = self.dk if self.by_key else 1
                        S = np.exp(self._head(given["decay"], b, t, h, width))[:, None] * S
                    if self.corrects:
                        beta = given["beta"][b, t, 0 if self.one_beta else h]
                        v = beta * (v - S.T @ k)
                    S = S + np.outer(k, v)
                    for j in self._readers(h):
                        q = self._head(given["query"], b, t, j[0], self.dk)
                        output[b, t, j[1]] = scale * (S.T @ q)
                state[b, h] = S
        return {"output": output.reshape(self.B, self.T, heads * self.dv), "present_state": state}

    def _readers(self, h: int) -> Iterator[tuple[int, int]]:
        """Yield the query heads that read a state, and the heads of the output that they make."""
        if self.Hq < self.H:
            yield h * self.Hq // self.H, h
        else:
            group = self.Hq // self.H
            yield from ((h * group + j, h * group + j) for j in range(group))

    @staticmethod
    def _head(x: Array, b: int, t: int, head: int, size: int) -> Array:
        return x[b, t, head * size : (head + 1) * size]


def error(got: Arrays, expected: Arrays) -> float:
    """Return the largest difference, relative to the largest value of the output; infinite for NaN."""
    found = 0.0
    for symbol, array in expected.items():
        assert got[symbol].shape == array.shape, (symbol, got[symbol].shape, array.shape)
        if array.size:
            far = np.abs(got[symbol].astype(np.float64) - array).max()
            found = max(found, float(far / (np.abs(array).max() or 1))) if np.isfinite(far) else np.inf
    return found
