"""Stored networks, lowered whole and run in runtimes: what became of each is stored."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from onnx import numpy_helper
from paths import MODELS
from running import run
from texts import parse

import rnn_lowering as rl
from clients import networks
from clients.driving import assert_lowered_right, assert_right, drive, judge
from clients.environments import version

needs_models = pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")


@needs_models
@pytest.mark.exhaustive
@pytest.mark.long
@pytest.mark.parametrize("client", networks.NETWORKS)
def test_networks_do_what_they_did(client: str) -> None:
    """A network that a runtime learns to run is to be noticed: measure again."""
    outcomes, said = networks.measure(client)
    other = {file: said[file] for file in outcomes if outcomes[file] != networks.stored()[client]["outcomes"][file]}
    assert other == {}


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_what_is_stored_is_of_the_version_of_today(name: str) -> None:
    entry = networks.stored()[name]
    assert entry["version"] == version(name)
    assert len(entry["outcomes"]) == 115
    assert "wrong" not in entry["outcomes"].values()


QUANTIZED = """g (float[5, 2, 3] x) => (float[5, 2, 4] z, float[5, 2, 4] w)
    <float[1, 12, 3] W = {}, float[1, 12, 4] R = {}, float s = {0.0117}, int8 n = {3}, uint8 u = {128},
     int8 m = {-1}, int8[4] k = {12, -40, 90, -128}> {
    y = GRU <hidden_size = 4> (x, W, R)  i1 = Constant <value_ints = [1]> ()  v = Squeeze (y, i1)
    a = QuantizeLinear (v, s, n)  b = DequantizeLinear (a, s, n)  c = DequantizeLinear (k, s, m)
    d = Sub (b, c)  e = QuantizeLinear (d, s, u)  f = DequantizeLinear (e, s, u)  g = Sigmoid (f)
    h = QuantizeLinear (g, s, n)  z = DequantizeLinear (h, s, n)
    i = Mul (f, b)  j = QuantizeLinear (i, s)  w = DequantizeLinear (j, s) }"""


@pytest.mark.filterwarnings("ignore:left for (mnn|ncnn). DequantizeLinear")
@pytest.mark.parametrize("client", ["opencv", "mnn", "ncnn", "tract", "openvino"])
def test_what_is_quantized_between_nodes_is_right(client: Any, tmp_path: Path) -> None:
    """MNN quantizes by the range of the data; OpenCV takes Sub for Add there; pnnx has no QuantizeLinear."""
    model = parse(QUANTIZED)
    for tensor in model.graph.initializer:  # as exporters store numbers; MNN misreads int8 in other fields
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    feed = {"x": np.random.default_rng(3).standard_normal((5, 2, 3)).astype(np.float32)}
    new = rl.lower(model, target=client)
    assert_right(client, {"quantized": (new, feed)}, {"quantized": run(model, feed, optimize=False)}, tmp_path)


NESTED = """g (float[4, {T}, 2, 3] x) => (float[2] last, float[4, {T}, 1, 2, 5] ys)
    <float[1, {G}, 3] W = {{}}, float[1, {G}, 5] R = {{}}, float[2] s0 = {{1, 2}}, float half = {{0.5}}> {{
    last, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[{T}, 2, 3] row)
        => (float[2] s1, float[{T}, 1, 2, 5] y) {{
        y, yh = {op} <hidden_size = 5, direction = "{direction}"> (row, W, R)  s1 = Mul (s, half) }}> (s0, x) }}"""


def nested(op: str, direction: str, T: object = 6) -> tuple[onnx.ModelProto, Arrays]:
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
    model = parse(NESTED.format(T=T, G=5 * gates, op=op, direction=direction))
    return model, {"x": np.random.default_rng(1).standard_normal((4, 6, 2, 3)).astype(np.float32)}


@pytest.mark.environments("tract")
def test_a_scan_around_a_recurrent_node_is_unrolled_for_tract(tmp_path: Path) -> None:
    """A Scan in a Scan starts where it ended before: wrong without an error, or rejected. Unrolled steps in a Scan
    took the analysis over a minute."""
    models = {f"{op} {way}": nested(op, way) for op, way in (("GRU", "forward"), ("LSTM", "reverse"))}
    assert_lowered_right("tract", models, tmp_path)


@pytest.mark.environments("tract")
def test_tract_still_misreads_a_scan_in_a_scan(tmp_path: Path) -> None:
    """Once it does not, `LoopTraits.nested_scans` goes."""
    model, feed = nested("GRU", "forward")
    found = drive("tract", {"scan": (rl.lower(model, "scan"), feed)}, tmp_path)["scan"]
    assert judge(found, run(model, feed))[0] != "right"
