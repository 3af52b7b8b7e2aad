"""OpenVINO runs a lowered LSTM as its own, at the speed of that, also where its own import goes wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import causal_conv
import numpy as np
import onnx
import pytest
from cases import Arrays, Case, model
from graphs import MS, Graph
from running import run
from texts import parse

import rnn_lowering as rl
from clients.driving import assert_right, drive, judge, run_python

LAYERS = """
import sys, openvino
for path in sys.argv[1:]:
    ops = openvino.compile_model(path, "CPU").get_runtime_model().get_ops()
    print(*{op.get_rt_info()["layerType"].astype(str) for op in ops})
"""
PAIRS = [
    ("forward", "forward"),
    ("reverse", "reverse"),
    ("forward", "bidirectional"),
    ("bidirectional", "bidirectional"),
]


pytestmark = pytest.mark.environments("openvino")


def test_it_runs_its_own_kernel(tmp_path: Path) -> None:
    """Two loops, of which it makes two layers RNNSeq; a long GRU stays a loop."""
    cases = {
        "bias": Case("recognized", "LSTM", {"direction": "bidirectional"}, optional=("B", "initial_h")),
        "no bias": Case("recognized", "LSTM", optional=()),
        "long": Case("loop", "GRU", {"direction": "bidirectional"}, T=101),
    }
    paths = {name: tmp_path / f"{name}.onnx" for name in cases}
    for name, case in cases.items():
        onnx.save(rl.lower(model(case, 17), target="openvino"), paths[name])
    printed = run_python("openvino", "-c", LAYERS, *paths.values())
    layers = dict(zip(cases, map(str.split, printed.splitlines()), strict=True))
    for name in ("bias", "no bias"):
        assert "RNNSeq" in layers[name]
        assert "TensorIterator" not in layers[name]
    assert "RNNSeq" not in layers["long"]


def test_an_empty_state_keeps_its_shape(tmp_path: Path) -> None:
    """Of an empty constant that is an output OpenVINO loses the shape: a convolution with a kernel of 1."""
    convs = {
        str(optional): replace(causal_conv.STANDARD, domain=MS, kernel=1, optional=optional)
        for optional in [(), ("past_state",)]
    }
    jobs: dict[str, Any] = {
        name: (rl.lower(causal_conv.model(conv), target="openvino"), causal_conv.feed(conv))
        for name, conv in convs.items()
    }
    for name, got in drive("openvino", jobs, tmp_path).items():
        assert not isinstance(got, str), got
        assert got["present_state"].shape == causal_conv.expected(convs[name])["present_state"].shape
        assert judge(got, causal_conv.expected(convs[name]))[0] == "right"


def test_gates_whose_alpha_or_beta_is_0(tmp_path: Path) -> None:
    """Of a HardSigmoid with a 0 it takes the default, 0.2 or 0.5, in its place."""
    jobs: dict[str, Any] = {}
    wanted = {}
    form: Any
    for alpha, beta in [(1.0, 0.0), (0.5, -0.0), (0.0, 0.3), (0.0, 0.0), (0.2, 0.5), (-1.5, 0.25)]:
        for form in rl.TARGETS["openvino"].forms:
            net, given = hard_gates(alpha, beta)
            name = f"{alpha} {beta} {form}"
            jobs[name] = rl.lower(net, form, target="openvino"), given
            wanted[name] = run(net, given)
    assert_right("openvino", jobs, wanted, tmp_path)


def test_other_nodes_with_a_0(tmp_path: Path) -> None:
    """The same of a HardSigmoid that is no gate, and of Selu, as they are and lowered."""
    texts = {
        name: f"g (float[3, 4] x) => (float[3, 4] y) {{ y = {name} (x) }}"
        for name in ("HardSigmoid <alpha = 1.0, beta = 0.0>", "HardSigmoid <alpha = 0.0>", "Selu <gamma = 0.0>")
    }
    given = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)}
    nets = {name: parse(text) for name, text in texts.items()}
    wanted = {name: run(net, given) for name, net in nets.items()}
    became = drive("openvino", {name: (net, given) for name, net in nets.items()}, tmp_path / "before")
    assert {judge(became[name], wanted[name])[0] for name in nets} == {"wrong"}
    lowered: dict[str, Any] = {name: (rl.lower(net, target="openvino"), given) for name, net in nets.items()}
    assert_right("openvino", lowered, wanted, tmp_path / "after")


def hard_gates(alpha: float, beta: float) -> tuple[onnx.ModelProto, Arrays]:
    """A GRU with this HardSigmoid as f, and large numbers, such that both bounds are reached."""
    rng, graph = np.random.default_rng(0), Graph()
    weights = [graph.constant(rng.standard_normal((1, 12, 4)), np.float32) for _ in ("W", "R")]
    f = {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [alpha], "activation_beta": [beta]}
    graph.node("GRU", "X", *weights, outputs=["Y"], hidden_size=4, **f)
    graph.output("Y", None)
    given = rng.standard_normal((5, 2, 4)).astype(np.float32)
    graph.input("X", given.shape)
    return graph.model(), {"X": given}


def test_two_nodes_on_one_input(tmp_path: Path) -> None:
    """Of two LSTM nodes on one X it computes the first wrongly: a Transpose that they share becomes a Reshape."""
    jobs: dict[str, Any] = {f"{a} {b}": pair(a, b) for a, b in PAIRS}
    jobs["unknown sizes"] = pair("forward", "forward", sizes=["T", "N", 8])
    lowered = {name: (rl.lower(net, target="openvino"), given) for name, (net, given) in jobs.items()}
    assert_right("openvino", lowered, {name: run(*job) for name, job in jobs.items()}, tmp_path)


def pair(*directions: str, sizes: list[Any] | None = None) -> tuple[onnx.ModelProto, Arrays]:
    """Two LSTM nodes with weights of their own."""
    rng, graph, H = np.random.default_rng(0), Graph(), 8
    for n, direction in enumerate(directions):
        shape = (2 if direction == "bidirectional" else 1, 4 * H, H)
        weights = [graph.constant(rng.uniform(-0.5, 0.5, shape), np.float32) for _ in ("W", "R")]
        graph.node("LSTM", "X", *weights, outputs=[f"Y{n}"], hidden_size=H, direction=direction)
        graph.output(f"Y{n}", None)
    given = rng.standard_normal((6, 2, 8)).astype(np.float32)
    graph.input("X", sizes or given.shape)
    return graph.model(), {"X": given}
