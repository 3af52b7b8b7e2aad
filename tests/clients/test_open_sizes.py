"""Lowered models whose sizes are open: what is loaded once computes sequences and batches of any size.

tract, whose inputs get their sizes by hand, is in test_tract.py.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
import pytest
from cases import Arrays, Case, model, values
from einsums import EINSUMS, einsum_of
from oracle import evaluate
from running import run
from texts import parse, random_feed

import rnn_lowering as rl
from clients.driving import assert_lowered_right, judge, run_python
from clients.environments import PACKAGED
from clients.trials import OPSET, cases

Open: TypeAlias = Literal["symbolic", "batch"]
"""As in `Case.x`."""

RUN = """
import importlib, os, sys, numpy as np
from pathlib import Path
load = importlib.import_module(f"run_{sys.argv[1]}").load
for path in sys.argv[2:]:
    names, feeds = open(path + ".txt").read().split(), []
    while os.path.exists(f"{path}.{len(feeds)}.npz"):
        feeds.append(dict(np.load(f"{path}.{len(feeds)}.npz")))
    call = load(Path(path), feeds[0], names)
    for n, feed in enumerate(feeds):
        np.savez(f"{path}.{n}.out.npz", **call(feed))
"""
SIZES: dict[Open, list[tuple[int, int]]] = {
    "symbolic": [(4, 2), (7, 3), (1, 1), (3, 4)],
    "batch": [(4, 2), (4, 5), (4, 1)],
}
"""What is open -> T and N of the runs."""

TRIALS: list[tuple[str, str, Open]] = [("openvino", "auto", "symbolic"), ("opencv", "auto", "symbolic")]
TRIALS += [("opencv", "loop", "batch"), ("mnn", "auto", "symbolic"), ("mnn", "auto", "batch")]


@pytest.mark.parametrize(("client", "to", "open_sizes"), TRIALS)
def test_sizes_may_be_open(client: Any, to: Any, open_sizes: Open, tmp_path: Path) -> None:
    """OpenCV makes one state of the two of an LSTM where its Loop starts both from one computed tensor."""
    known = {name: dataclasses.replace(case, x=open_sizes) for name, case in cases().items()}
    paths = {name: tmp_path / f"{n}.onnx" for n, name in enumerate(known)}
    for name, case in known.items():
        lowered = rl.lower(model(case, OPSET), target=client, to=to)
        onnx.save(lowered, paths[name])
        Path(f"{paths[name]}.txt").write_text(" ".join(case.results))
        for n, given in enumerate(feeds(case, SIZES[open_sizes])):
            ordered: dict[str, Any] = {value.name: given[value.name] for value in lowered.graph.input}
            np.savez(f"{paths[name]}.{n}.npz", **ordered)
    run_python(client, "-c", RUN, client, *paths.values(), lent=[PACKAGED])
    for name, case in known.items():
        for n, given in enumerate(feeds(case, SIZES[open_sizes])):
            results = evaluate(case.op_type, case.attributes, {**values(case), **given})
            with np.load(f"{paths[name]}.{n}.out.npz") as got:
                outcome = judge(dict(got), {symbol: results[symbol] for symbol in case.results})
            assert outcome == ("right", ""), f"{name} {SIZES[open_sizes][n]}"


def test_fewer_matrices_meet_more(tmp_path: Path) -> None:
    """MNN, loaded once: at the second size it would read beyond the matrices of the first."""
    text = """g (float[N, 2, 5, 8] x, float[N, 1, 8, 6] w) => (float[N, 2, 5, 6] y) {
        t = Tanh (x) v = Tanh (w) y = MatMul (t, v) }"""
    lowered, path = rl.lower(parse(text), target="mnn"), tmp_path / "0.onnx"
    onnx.save(lowered, path)
    Path(f"{path}.txt").write_text("y")
    drawn = [random_feed(parse(text), N=size) for size in (1, 3, 2)]
    for n, feed in enumerate(drawn):
        given: dict[str, Any] = feed
        np.savez(f"{path}.{n}.npz", **given)
    run_python("mnn", "-c", RUN, "mnn", path, lent=[PACKAGED])
    for n, feed in enumerate(drawn):
        with np.load(f"{path}.{n}.out.npz") as got:
            assert judge(dict(got), {"y": np.tanh(feed["x"]) @ np.tanh(feed["w"])}) == ("right", ""), n


ONE_START = """g (float[T, N, 6] x) => (float[T, 1, N, 5] y) <float[1, 20, 6] W = {}, float[1, 20, 5] R = {},
    int64[1] one = {1}, int64[1] five = {5}> {
    n = Shape <start: int = 1, end: int = 2> (x) sizes = Concat <axis = 0> (one, n, five)
    h = ConstantOfShape <value: tensor = float[1] {0.5}> (sizes)
    y = LSTM <hidden_size = 5> (x, W, R, , , h, h) }"""


@pytest.mark.parametrize("client", ["openvino", "opencv", "tract"])
def test_both_states_may_start_from_one_tensor(client: Any, tmp_path: Path) -> None:
    """As Keras writes an LSTM; OpenCV would make one state of them."""
    net = parse(ONE_START, 17)
    jobs = {str(T): (net, random_feed(net, T=T, N=N)) for T, N in SIZES["symbolic"]}
    assert_lowered_right(client, jobs, tmp_path)


def test_an_einsum_takes_further_sizes(tmp_path: Path) -> None:
    """OpenCV's keeps those of its first run."""
    nets = {equation: rl.lower(einsum_of(equation), target="opencv") for equation in EINSUMS}
    sizes = ((2, 5), (3, 2), (1, 1))
    for n, net in enumerate(nets.values()):
        onnx.save(net, tmp_path / f"{n}.onnx")
        (tmp_path / f"{n}.onnx.txt").write_text("y")
        for at, (A, B) in enumerate(sizes):
            given: dict[str, Any] = random_feed(net, A=A, B=B)
            np.savez(tmp_path / f"{n}.onnx.{at}.npz", **given)
    run_python("opencv", "-c", RUN, "opencv", *(tmp_path / f"{n}.onnx" for n in range(len(nets))), lent=[PACKAGED])
    for n, equation in enumerate(nets):
        for at, (A, B) in enumerate(sizes):
            with np.load(tmp_path / f"{n}.onnx.{at}.out.npz") as got:
                wanted = run(einsum_of(equation), random_feed(nets[equation], A=A, B=B))
                assert judge(dict(got), wanted) == ("right", ""), (equation, A, B)


GROUPS = """g (float[N, 8, T] x) => (float[N, 8, A] y) <float[8, 2, 3] w = {}, float[8] b = {}> {
    t = Tanh (x) c = Conv <group = 4, pads = [1, 1]> (t, w, b) y = Tanh (c) }"""


@pytest.mark.parametrize("client", ["mnn", "openvino", "opencv", "tract"])
def test_groups_along_an_open_axis(client: Any, tmp_path: Path) -> None:
    net = parse(GROUPS, 17)
    assert_lowered_right(
        client, {str(T): (net, random_feed(net, T=T, N=N)) for T, N in ((12, 2), (7, 1))}, tmp_path
    )


def feeds(case: Case, sizes: list[tuple[int, int]]) -> Iterator[Arrays]:
    """The inputs of a case at each T and N; its weights stay."""
    inputs = ("X", "sequence_lens", "initial_h", "initial_c")
    for T, N in sizes:
        given = values(dataclasses.replace(case, T=T, N=N, lengths=None))
        yield {name: given[name] for name in inputs if name in given}
