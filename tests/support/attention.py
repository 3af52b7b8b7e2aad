"""Cases of LinearAttention: a node, its model, random inputs, and an oracle that is written independently of the
package."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import DTYPES, Array, Arrays
from graphs import MS, Graph

STANDARD = ""
RULES = ("linear", "gated", "delta", "gated_delta")
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
    domain: str = MS
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
    dtype: str = "float32"
    state_dtype: str = "float32"
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

    def model(self) -> onnx.ModelProto:
        graph, shapes = Graph(), self.shapes()
        for symbol, shape in shapes.items():
            graph.input(symbol, self._declared(symbol, shape), DTYPES[self.type_of(symbol)])
        inputs = [s if s in shapes else "" for s in SYMBOLS]
        while inputs[-1] == "":
            inputs.pop()
        outputs = {
            "output": (self.B, self.T, max(self.Hq, self.H) * self.dv),
            "present_state": (self.B, self.H, self.dk, self.dv),
        }
        attributes = {"q_num_heads": self.Hq, "kv_num_heads": self.H, "update_rule": self.rule, **self.attributes}
        if self.scale is not None:
            attributes["scale"] = self.scale
        graph.node(
            "LinearAttention", *inputs, outputs=[*outputs], name="attention", domain=self.domain, **attributes
        )
        for symbol, shape in outputs.items():
            graph.output(symbol, self._declared(symbol, shape), DTYPES[self.type_of(symbol)])
        return graph.model(self.opset or (21 if self.domain else 27), [MS], ir_version=10)

    def _declared(self, symbol: str, shape: tuple[int, ...]) -> list[int | str]:
        batch: int | str = "B" if "B" in self.open else shape[0]
        length: int | str = "T" if "T" in self.open and "state" not in symbol else shape[1]
        return [batch, length, *shape[2:]]

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
        return {symbol: array.astype(DTYPES[self.type_of(symbol)]) for symbol, array in made.items()}

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
