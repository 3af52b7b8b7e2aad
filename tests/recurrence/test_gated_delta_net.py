"""GatedDeltaNet beside float64, and onnxruntime's kernel where there is one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest
from cases import DTYPES
from graphs import MS, Graph, value
from refusals import refusal, with_shapes
from running import assert_near, evaluated, run, runs_in_onnxruntime

import rnn_lowering as rl
from rnn_lowering.attention.gated_delta_net import GatedDeltaNetSpec
from rnn_lowering.attention.references import GatedDeltaNetReference
from rnn_lowering.types import Array

SLOTS = ("query", "key", "value", "cu_seqlens", "decay", "beta", "initial_state", "a_log", "dt_bias")


@dataclass(frozen=True)
class Net:
    """A node with `heads` of query and key and `states` of value; `by_key`: a decay for each key dimension."""

    rule: str = "gated_delta"
    B: int = 2
    T: int = 5
    heads: int = 2
    states: int = 4
    dk: int = 4
    dv: int = 3
    by_key: bool = False
    gate: str = "none"
    norm: bool = False
    sigmoid: bool = False
    state: bool = True
    dtype: str = "float32"
    open: bool = False
    scale: float = 0.0

    def feed(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        shapes: dict[str, tuple[int, ...]] = {
            "query": (self.B, self.T, self.heads, self.dk),
            "key": (self.B, self.T, self.heads, self.dk),
            "value": (self.B, self.T, self.states, self.dv),
        }
        if self.rule in ("gated", "gated_delta"):
            shapes["decay"] = (self.B, self.T, self.states, *((self.dk,) if self.by_key else ()))
        if self.rule in ("delta", "gated_delta"):
            shapes["beta"] = (self.B, self.T, self.states)
        if self.state:
            shapes["initial_state"] = (self.B, self.states, self.dv, self.dk)
        if self.gate != "none":
            shapes |= dict.fromkeys(("a_log", "dt_bias"), (self.states,))
        made = {symbol: rng.standard_normal(shape) for symbol, shape in shapes.items()}
        if self.norm:
            made["key"][:, 0] *= 1e-6  # what is added to the square of the length shows
        else:
            made["key"] /= np.linalg.norm(made["key"], axis=-1, keepdims=True)
        if "decay" in made and self.gate == "none":
            made["decay"] = -np.abs(made["decay"])
        if "beta" in made and not self.sigmoid:
            made["beta"] = rng.uniform(0, 1, shapes["beta"])
        kind = DTYPES[self.dtype]
        return {s: a.astype(kind if s in ("query", "key", "value") else np.float32) for s, a in made.items()}

    def expected(self) -> dict[str, Array]:
        """Return the outputs in float64, one head and one step after another."""
        given = {symbol: array.astype(np.float64) for symbol, array in self.feed().items()}
        output = np.zeros((self.B, self.T, self.states, self.dv))
        final = np.zeros((self.B, self.states, self.dv, self.dk))
        for b, h in np.ndindex(self.B, self.states):
            reader = h // (self.states // self.heads)
            S = given["initial_state"][b, h].T if self.state else np.zeros((self.dk, self.dv))
            for t in range(self.T):
                q, k, v = given["query"][b, t, reader], given["key"][b, t, reader], given["value"][b, t, h]
                if self.norm:
                    least = 1e-6 if self.gate in ("sigmoid", "kda") else 1e-12
                    q, k = (x / np.sqrt(x @ x + least) for x in (q, k))
                if "decay" in given:
                    g = given["decay"][b, t, h]
                    if self.gate in ("qwen", "softplus"):
                        g = -np.exp(given["a_log"][h]) * np.log(1 + np.exp(g + given["dt_bias"][h]))
                    elif self.gate != "none":
                        bound = {"sigmoid": -5.0, "kda": -2.5}[self.gate]
                        g = bound / (1 + np.exp(-np.exp(given["a_log"][h]) * (g + given["dt_bias"][h])))
                    S = np.exp(g) * S if g.ndim == 0 else np.exp(g)[:, None] * S
                if "beta" in given:
                    beta = given["beta"][b, t, h]
                    beta = 1 / (1 + np.exp(-beta)) if self.sigmoid else beta
                    v = beta * (v - S.T @ k)
                S = S + np.outer(k, v)
                output[b, t, h] = (self.scale or self.dk**-0.5) * (S.T @ q)
            final[b, h] = S.T
        return {"output": output, "final_state": final}

    def model(self, outputs: tuple[str, ...] = ("output", "final_state"), **attributes: Any) -> onnx.ModelProto:
        given, graph = self.feed(), Graph()
        for symbol, array in given.items():
            graph.input(symbol, self._declared(symbol, array.shape), array.dtype)
        names = [symbol if symbol in given else "" for symbol in SLOTS]
        while not names[-1]:
            names.pop()
        taken: dict[str, Any] = {"update_rule": self.rule, "scale": self.scale}
        taken |= {"gate_activation": self.gate, "qk_l2_norm": int(self.norm)}
        taken |= {"gate_lower_bound": -2.5} if self.gate == "kda" else {}
        taken |= {"beta_activation": "sigmoid"} if self.sigmoid else {}
        graph.several("GatedDeltaNet", *names, outputs=outputs, name="net", domain=MS, **(taken | attributes))
        for symbol in outputs:
            graph.output(symbol, None, given["query"].dtype if symbol == "output" else np.float32)
        return graph.model(21, [MS], ir_version=10)

    def _declared(self, symbol: str, shape: tuple[int, ...]) -> list[int | str]:
        if not self.open or symbol in ("a_log", "dt_bias"):
            return list(shape)
        return ["B", *shape[1:]] if symbol == "initial_state" else ["B", "T", *shape[2:]]


NETS = {
    "gated_delta": Net(),
    "linear": Net("linear", heads=4),
    "gated": Net("gated", scale=0.5),
    "delta": Net("delta", heads=1, state=False),
    "by key": Net(by_key=True),
    "qwen": Net(gate="qwen", sigmoid=True),
    "qwen by key": Net(gate="qwen", by_key=True, open=True),
    "softplus, of length 1": Net(gate="softplus", norm=True),
    "sigmoid": Net(gate="sigmoid", norm=True, open=True),
    "kda by key": Net(gate="kda", by_key=True, norm=True),
    "a single key dimension": Net(gate="qwen", by_key=True, dk=1),
    "open": Net(open=True),
    "open, no state": Net(open=True, state=False, heads=4),
    "one token": Net(T=1, gate="qwen", sigmoid=True),
    "long": Net(T=70),
    "half": Net(dtype="float16", gate="qwen"),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("form", ["auto", "scan", "loop", "unroll", "chunked"])
@pytest.mark.parametrize("name", NETS)
def test_computes_what_float64_does(name: str, form: Any) -> None:
    net = NETS[name]
    if net.open and form == "unroll":
        net = replace(net, open=False)
    assert_right(net, run(rl.lower(net.model(), form), net.feed()))


@pytest.mark.parametrize("name", NETS)
def test_onnxruntime_computes_what_the_oracle_does(name: str) -> None:
    net = NETS[name]
    if not net.state or not runs_in_onnxruntime(net.model()):
        pytest.skip("this onnxruntime has no kernel for it")
    assert_right(net, run(net.model(), net.feed(), relabel=False))


def assert_right(net: Net, got: dict[str, Array]) -> None:
    for symbol, array in net.expected().items():
        dtype = net.dtype if symbol == "output" else "float32"
        assert got[symbol].dtype == DTYPES[dtype]
        assert_near(got, {symbol: array}, 2e-3 if dtype == "float16" else 3e-6)


def test_bfloat16_in_the_reference_evaluator() -> None:
    net = Net(dtype="bfloat16", T=3)
    assert_near(evaluated(rl.lower(net.model(), "unroll"), net.feed()), net.expected(), 1e-2)


def test_a_final_state_that_nothing_uses() -> None:
    net = Net()
    got = run(rl.lower(net.model(("output",))), net.feed())
    np.testing.assert_allclose(got["output"], net.expected()["output"], atol=3e-6)


@pytest.mark.few(1)
@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("name", ["qwen", "qwen by key", "open, no state", "sigmoid"])
def test_is_verified_by_its_node(name: str) -> None:
    original = NETS[name].model()
    check = rl.verify(original, rl.lower(original), runs=1)
    assert (check.status, check.whole) == ("verified", runs_in_onnxruntime(original))
    other = replace(NETS[name], scale=0.51).model()
    assert rl.verify(original, rl.lower(other), runs=1).status == "failed"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"state_update_capacity": 2}, "state_update is asked for"),
    ({"gate_activation": "relu"}, "gate_activation is 'relu'; none, softplus, qwen, sigmoid and kda are allowed"),
    ({"beta_activation": "tanh"}, "beta_activation is 'tanh'; none and sigmoid are allowed"),
    ({"update_rule": "other"}, "update_rule is 'other'; linear, gated, delta and gated_delta are allowed"),
    ({"gate_activation": "qwen"}, "input a_log is missing; gate_activation qwen needs it"),
    ({"other": 1}, "GatedDeltaNet-1 has no attribute 'other'"),
]
SHAPES: list[tuple[str, list[int] | None, str]] = [
    ("query", [10, 2, 4], "query is of shape [10, 2, 4]: only rank 4 can be lowered"),
    ("query", None, "query is of unknown shape: only rank 4 can be lowered"),
    ("key", [2, 5, 4, 4], "key has shape [2, 5, 4, 4], not [batch_size=2, length=5, heads=2, head_size_qk=4]"),
    ("value", [2, 5, 3, 3], "decay has shape [2, 5, 4], not [batch_size=2, length=5, states=3]"),
    ("decay", [2, 5], "decay has shape [2, 5], not one of rank 3 or 4"),
    ("initial_state", [2, 4, 4, 3], "initial_state has shape [2, 4, 4, 3], not"),
]
INPUTS = [
    (1, "", "key or value is missing: packed queries, keys and values cannot be lowered"),
    (3, "lengths", "cu_seqlens is connected: lengths of packed sequences cannot be lowered"),
    (4, "", "input decay is missing; update_rule gated_delta needs it"),
    (7, "a_log", "input a_log is connected; it needs another gate_activation than none"),
]


def test_each_invalid_one_has_one_error() -> None:
    for attributes, text in REFUSED:
        refusal(Net().model(**attributes), text)
    for symbol, shape, text in SHAPES:
        refusal(with_shapes(Net().model(), {symbol: shape}), text)
    refusal(Net(heads=3).model(), "value has 4 heads, query 3; the first must be a multiple of the second")
    for slot, name, text in INPUTS:
        original = Net().model()
        inputs = original.graph.node[0].input
        inputs.extend([""] * (slot + 1 - len(inputs)))
        inputs[slot] = name
        if name:
            dtype = np.float32 if name == "a_log" else np.int32
            original.graph.input.append(value(name, [3], dtype))
        refusal(original, text)


def test_it_cannot_be_streamed() -> None:
    """It is lowered without --stream."""
    with pytest.raises(rl.UnsupportedError, match=r"its state cannot be carried .*; lower it without stream$"):
        rl.lower(replace(NETS["gated_delta"], open=True).model(), stream="T")


def test_a_comparison_that_needs_too_much_memory() -> None:
    """It takes place with smaller sizes, or a higher limit."""
    original = NETS["gated_delta"].model()
    lowered = rl.lower(original)
    found = rl.verify(original, lowered, max_bytes=1000)
    assert not found
    assert "more than the limit of 1,000 bytes (max_bytes); compare it at smaller sizes" in str(found)
    assert rl.verify(original, lowered, max_bytes=100_000, runs=1)


@pytest.mark.parametrize("gate", ["none", "softplus"])
def test_no_decay_of_a_comparison_lets_the_state_grow(gate: str) -> None:
    """Those of a node that computes its decay have any sign."""
    (spec,) = rl.inspect(Net(gate=gate).model())
    assert isinstance(spec, GatedDeltaNetSpec)
    drawn = GatedDeltaNetReference(spec, {}).numbers("decay", (2, 50, 4), 1, np.random.default_rng(0))
    assert (drawn.max() > 0) == (gate != "none")
    assert drawn.min() < 0
