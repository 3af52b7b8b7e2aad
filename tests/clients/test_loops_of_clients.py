"""Loops and Scans of real exporters in runtimes that run none of them, or only one."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from loop_models import LOOPS, as_meant, entries, feeds, run
from loop_traps import numbers
from texts import parse

import rnn_lowering as rl
from clients.driving import Job, assert_right, drive, judge
from rnn_lowering.targets.table import TARGETS

DATA = {"script_first_positive.onnx", "hand_loop_until_sum.onnx"}
"""Models whose number of steps depends on data."""

OTHERS: dict[str, set[str]] = {
    "tvm": {"skl_knn_minkowski.onnx"},
    "tract": set(),
    "opencv": {"skl_knn_minkowski.onnx"},
    "openvino": {"skl_knn_minkowski.onnx"},
}
"""Models with other operators that a runtime lacks: ArrayFeatureExtractor."""


@pytest.mark.shared
@pytest.mark.parametrize("client", OTHERS)
def test_loops_of_exporters_run(client: Any, tmp_path: Path) -> None:
    if not LOOPS.exists():
        pytest.skip(f"{LOOPS.name} is not there")
    jobs: dict[str, Job] = {}
    wanted = {}
    for (entry,) in (parameter.values for parameter in entries()):
        name, model = entry["file"], onnx.load(LOOPS / entry["file"])
        fixed = entry["fix"].get("set_inputs", {})
        feed = next(f for f in feeds(entry) if all(f[n] == value for n, value in fixed.items()))
        shapes = {n: array.shape for n, array in feed.items() if n not in fixed}
        if name in DATA and "loop" not in TARGETS[client].loop_forms:
            with pytest.raises(rl.UnsupportedError, match="depends on data"):
                rl.lower(model, target=client, input_shapes=shapes, set_inputs=fixed)
            continue
        jobs[name] = rl.lower(model, target=client, input_shapes=shapes, set_inputs=fixed), feed
        wanted[name] = dict(zip((v.name for v in model.graph.output), run(as_meant(model), feed), strict=True))
    found = drive(client, jobs, tmp_path)
    assert {name: judge(found[name], wanted[name])[0] for name in jobs} == {
        name: "rejects" if name in OTHERS[client] else "right" for name in jobs
    }


def test_a_loop_without_rows_is_unrolled_for_tract() -> None:
    """It fails on a Scan that takes no rows."""
    model = parse("""g (float[2] a) => (float[2] p)
        <bool yes = {1}, int64 M = {3}> {
        p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
            s1 = Add (s, s) c1 = Identity (c) }> }""")
    lowered, report = rl.lower(model, target="tract", full=True)
    assert [loop.form for loop in report.loops] == ["unroll"]
    assert run(lowered, {"a": numbers(2)})[0] == pytest.approx(numbers(2) * 8)


def test_a_loop_over_the_numbers_of_its_steps_is_unrolled_for_tract() -> None:
    """It fails where a step slices or expands by such a number; a Loop of unknown length keeps them."""
    model = parse("""g (float[T, 2] x) => (float[2] y)
        <bool yes = {1}, float[2] h = {0, 0}> {
        T = Shape <end = 1> (x)
        y = Loop (T, yes, h) <body = b (int64 i, bool c, float[2] h) => (bool c1, float[2] h1) {
            row = Gather (x, i) f = Cast <to = 1> (i) g = Mul (h, f)
            h1 = Sub (row, g) c1 = Identity (c) }> }""")
    for dims, form in (({"T": 3}, "unroll"), ({}, "scan")):
        lowered, report = rl.lower(model, target="tract", dims=dims, full=True)
        assert [loop.form for loop in report.loops] == [form]
        assert run(lowered, {"x": numbers(3, 2)})[0] == pytest.approx(run(model, {"x": numbers(3, 2)})[0])


STEP = "n = Mul (h, half) g = Add (n, x) y = Identity (g)"
LOOP = f"""four = Constant <value = int64 {{4}}> () yes = Constant <value = bool {{1}}> ()
    M = Constant <value = int64 {{%d}}> ()
    last, ys = Loop (M, yes, zeros)
    <body = b (int64 i, bool c, float[3] h) => (bool k, float[3] g, float[3] y)
    {{ k = Identity (c) x = Gather <axis = 0> (X, %s) {STEP} }}>"""
SCAN = f"""last, ys = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [%d],
    body = b (float[3] h, float[3] x) => (float[3] g, float[3] y) {{ {STEP} }}> (zeros, X)"""
RECURRENCES = {
    "all": LOOP % (5, "i"),
    "none": LOOP % (0, "i"),
    "down": LOOP.replace("k = ", "j = Sub (four, i) k = ") % (5, "j"),
} | {f"backwards {n}": SCAN % n for n in (0, 1)}


@pytest.mark.parametrize(
    ("client", "names"),
    [
        ("ncnn", ["all", "down", "backwards 0", "backwards 1"]),
        ("opencv", ["all", "down", "backwards 0", "backwards 1"]),
        ("openvino", ["all", "none", "backwards 0"]),
        ("tract", ["all", "none", "backwards 0"]),
    ],
)
def test_rows_directions_and_no_steps(client: Any, names: list[str], tmp_path: Path) -> None:
    """pnnx misreads a Gather of reversed rows; OpenCV crashes with exported Loops and with unused booleans,
    OpenVINO with a Loop of no step."""
    x, jobs, wanted = numbers(5, 3), dict[str, Job](), {}
    for name in names:
        rows = 0 if name == "none" else 5
        model = parse(f"""g (float[5,3] X) => (float[3] last, float[{rows},3] ys)
            <float[3] zeros = {{0, 0, 0}}, float half = {{0.5}}, bool unused = {{1}}> {{ {RECURRENCES[name]} }}""")
        jobs[name] = rl.lower(model, target=client), {"X": x}
        h, ys = np.zeros(3), []
        for row in (x[::-1] if name.startswith(("back", "down")) else x)[:rows]:
            ys.append(h := h * 0.5 + row)
        wanted[name] = {"last": h, "ys": np.array(ys[:: -1 if name.endswith("1") else 1]).reshape(rows, 3)}
        wanted[name] = {key: array.astype(np.float32) for key, array in wanted[name].items()}
    assert_right(client, jobs, wanted, tmp_path)


BODIES = {
    "a computed value": ("k = Tanh (W) ", "q = Mul (h, k) g = Add (q, x) y = Tanh (g)"),
    "no row": ("", "g = Tanh (h) y = Relu (g)"),
    "Relu of a state": ("", "q = Mul (h, W) g = Add (q, x) y = Relu (g)"),
}


@pytest.mark.parametrize("client", ["openvino", "mnn", "tract"])
def test_bodies_that_runtimes_misread(client: Any, tmp_path: Path) -> None:
    """OpenVINO rejects a Scan that uses a computed value, and takes one step if none uses a row;
    tract rejects that, and MNN loses a state."""
    jobs, wanted = dict[str, Job](), {}
    for name, (before, step) in BODIES.items():
        model = parse(f"""g (float[5,2,3] X, float[2,3] W, float[2,3] h0) => (float[2,3] last, float[5,2,3] ys) {{
            {before} last, ys = Scan <num_scan_inputs = 1, body = b (float[2,3] h, float[2,3] x)
                => (float[2,3] g, float[2,3] y) {{ {step} }}> (h0, X) }}""")
        feed = {"X": numbers(5, 2, 3), "W": numbers(2, 3), "h0": numbers(2, 3) / 2}
        outputs = dict(zip(("last", "ys"), run(as_meant(model), feed), strict=True))
        form: Any
        for form in ("auto", *TARGETS[client].loop_forms):
            if client == "tract" and name == "no row" and form != "unroll":
                continue
            jobs[f"{name}, {form}"] = rl.lower(model, form, lower_loops=form != "auto", target=client), feed
            wanted[f"{name}, {form}"] = outputs
    assert_right(client, jobs, wanted, tmp_path)
