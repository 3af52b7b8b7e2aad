"""What is derived of values that are computed from positions is what onnxruntime computes: which constant or line
a function of the distance is beyond its reach, and that it is one of the distance and of the place in a chunk."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from position_graphs import PositionGraph, fault
from running import run
from stream_models import net
from thinning import thinned

from rnn_lowering.facts.node_outputs import compute_node

LENGTHS = (3, 10, 37)
LONG, LONGEST = 96, 400


def check(seed: int) -> int:
    """Compare all values of a graph; return how many were derived."""
    graph = PositionGraph(seed, 6 + seed % 9)
    try:
        arrays = graph.computed((*LENGTHS, LONG if seed % 32 else LONGEST))
    except ort.capi.onnxruntime_pybind11_state.Fail:  # sizes that do not fit
        return 0
    derived = dict(graph.derived())
    for name, found in derived.items():
        wrong = fault(found, {frames: given[name] for frames, given in arrays.items()})
        assert wrong is None, f"graph {seed}: {name} {wrong}: {found}\n{graph}"
    return len(derived)


@pytest.mark.parametrize("first", thinned(range(0, 200, 50), 4))
def test_positions_are_what_onnxruntime_computes(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 50)) > 500


@pytest.mark.parametrize("seed", [3371, 6179])
def test_halves_are_rounded_to_even_numbers(seed: int) -> None:
    assert check(seed)


@pytest.mark.parametrize("nodes", ["Clip (x)", "Clip (x, 1.0)", "Clip (x, -2.0, 2.0)"])
@pytest.mark.parametrize("numbers", [[1.0, 3.0], [1.0, np.inf], [-np.inf, 0.0]])
def test_a_clip_is_computed_as_onnxruntime_does_or_not_at_all(nodes: str, numbers: list[float]) -> None:
    given = np.array(numbers, np.float32)
    model = net(f"g (float[2] x) => (float[2] y) {{ y = {nodes} }}")
    graph = ir.from_proto(model).graph
    arrays = {v: v.const_value.numpy() for v in graph.initializers.values() if v.const_value is not None}
    found = compute_node(graph[0], {graph.inputs[0]: given, **arrays}, 17)
    assert bool(found) == (bool(np.isfinite(given).all()) or "2.0" in nodes)
    assert not found or np.array_equal(found[0], run(model, {"x": given})["y"])


@pytest.mark.parametrize(("base", "exponent", "known"), [(3, 4, True), (0, -1, False), (1000, 9, False)])
def test_a_power_of_integers_that_does_not_fit_is_not_known(base: int, exponent: int, known: bool) -> None:
    model = net("g (int64[1] x, int64[1] p) => (int64[1] y) { y = Pow (x, p) }")
    graph, feed = ir.from_proto(model).graph, {"x": np.array([base]), "p": np.array([exponent])}
    found = compute_node(graph[0], dict(zip(graph.inputs, feed.values(), strict=True)), 17)
    assert bool(found) == known
    assert not found or np.array_equal(found[0], run(model, feed)["y"])
