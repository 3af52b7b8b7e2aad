"""What onnxslim, onnxsim and onnxruntime's optimizers make of a model is lowered right, and lowered models stay
right when they change them. The truth is what onnxruntime computes of the original."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnxruntime
import pytest
from cases import Arrays
from running import assert_close, run
from stored_models import entries, load, variants
from texts import FORMS, parse

import rnn_lowering as rl
from clients.driving import Job, read, write
from clients.environments import HERE, OF_ONNXRUNTIME, OPTIMIZERS, PACKAGED, python

LEVELS: dict[str, Any] = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
"""onnxruntime's optimizer, as a session saves its model."""

TRANSFORMERS = "transformers"
"""onnxruntime.transformers.optimizer, which needs a second for a model."""

HIDE_SIZES = ("extended", TRANSFORMERS)
"""They leave operators of onnxruntime's own, behind which sizes are not known: such a model is unrolled before."""

UNKNOWN_LENGTH = "the sequence length is not known, so the steps cannot be unrolled"

OF_SUMS = ("fuse_matmul_add_bias_into_gemm", "fuse_matmul_add_bias_into_gemm_batched")
"""Passes of onnxsim that fail where only a body uses the sum."""

Optimized: TypeAlias = dict[str, onnx.ModelProto | str]


def optimized(tool: str, jobs: Mapping[str, Job], folder: Path, skipped: tuple[str, ...] = OF_SUMS) -> Optimized:
    """What a tool makes of models, or its error."""
    if tool not in OPTIMIZERS:
        return {name: by_onnxruntime(tool, model, folder) for name, (model, _) in jobs.items()}
    folders = {name: folder / f"{n:03}" for n, name in enumerate(jobs)}
    for name, (model, feed) in jobs.items():
        write(folders[name], model, feed)
    command: list[str | Path] = [python(tool), HERE / "drivers" / "optimize.py", folder, "60", *skipped]
    paths = {"PYTHONPATH": str(PACKAGED), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env={**os.environ, **paths}, capture_output=True, check=True)
    said = {name: read(path) for name, path in folders.items()}
    return {n: s if isinstance(s, str) else onnx.load(folders[n] / "optimized.onnx") for n, s in said.items()}


def by_onnxruntime(tool: str, model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    if tool == TRANSFORMERS:
        from onnxruntime.transformers.optimizer import optimize_model

        onnx.save(model, folder / "given.onnx")
        changed: onnx.ModelProto = optimize_model(str(folder / "given.onnx"), opt_level=0).model
        return changed
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[tool]
    options.optimized_model_filepath = str(folder / "saved.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return onnx.load(folder / "saved.onnx")


def stored(every: int) -> dict[str, tuple[onnx.ModelProto, Arrays, Arrays]]:
    """Every so manieth stored model, its inputs, and its outputs."""
    found = {}
    for entry in entries("runs")[::every]:
        model, (_, feed) = load(entry), variants(entry["file"])[0]
        model.ir_version = max(model.ir_version, 4)
        found[entry["file"]] = model, feed, run(model, feed, optimize=False)
    return found


def lower(model: onnx.ModelProto, form: Any, feed: Arrays) -> onnx.ModelProto:
    shapes = {name: array.shape for name, array in feed.items()} if form == "unroll" else None
    return rl.lower(model, form, input_shapes=shapes)


def check(model: onnx.ModelProto, feed: Arrays, wanted: Arrays, label: str) -> None:
    names = {value.name for value in model.graph.input}
    got = run(model, {name: array for name, array in feed.items() if name in names}, optimize=False)
    assert_close(got, wanted, label=label)


@pytest.mark.shared
@pytest.mark.parametrize("tool", [*OPTIMIZERS, *OF_ONNXRUNTIME])
def test_before_and_after(tool: str, tmp_path: Path) -> None:
    models = stored(24 if tool == TRANSFORMERS else 8)
    if not models:
        pytest.skip("the stored models are not there")
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    after: dict[str, Job] = {}
    before = optimized(tool, {n: (model, feed) for n, (model, feed, _) in models.items()}, tmp_path / "before")
    for name, (model, feed, wanted) in models.items():
        first = before[name]
        assert not isinstance(first, str), (name, first)
        for form in FORMS:
            label = f"{name}|{form}"
            try:
                after[label] = lower(model, form, feed), feed
            except rl.UnsupportedError:  # Scan at opset 7, branches that are not valid at all sizes
                continue
            try:
                check(lower(first, form, feed), feed, wanted, label)
            except rl.UnsupportedError as error:
                if tool not in HIDE_SIZES or error.reason != UNKNOWN_LENGTH:
                    raise
    assert len(after) > 2 * len(models)
    for label, second in optimized(tool, after, tmp_path / "after").items():
        assert not isinstance(second, str), (label, second)
        name = label.partition("|")[0]
        check(second, *models[name][1:], label)


# What the optimizers get wrong themselves: once they do not, docs/troubleshooting.md is to say so.

CAPTURED_SUM = """g (float[3, 2] x, bool c) => (float[3, 2] y)
    <float[2, 2] W = {1, 2, 3, 4}, float[2] B = {1, 2}> {
    product = MatMul (x, W) sum = Add (product, B)
    y = If (c) <then_branch = t () => (float[3, 2] p) { p = Relu (sum) },
                else_branch = e () => (float[3, 2] q) { q = Tanh (sum) }> }"""
OLD = """g (float[2] x) => (float[2] y) {
    a = Constant <value = float[1] {2}> () b = Constant <value = float[1] {2}> ()
    c = Cast <to = 7> (a) d = Cast <to = 1> (c) e = Mul (x, b) f = Add (e, a) y = Add (f, d) }"""


@pytest.mark.parametrize("tool", ["onnxsim", "onnxsim-prebuilt"])
def test_onnxsim_fails_with_a_sum_that_only_bodies_use(tool: str, tmp_path: Path) -> None:
    job = {"sum": (parse(CAPTURED_SUM), Arrays())}
    assert "eraseOutput: Assertion" in str(optimized(tool, job, tmp_path / "1", ())["sum"])
    assert isinstance(optimized(tool, job, tmp_path / "2")["sum"], onnx.ModelProto)


def test_onnxruntime_asks_for_constants_of_ir_version_3(tmp_path: Path) -> None:
    saved = by_onnxruntime("basic", parse(OLD, opset=8, ir_version=3), tmp_path)
    session = onnxruntime.InferenceSession(saved.SerializeToString(), providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) > 1


def test_onnxruntime_gives_one_name_twice(tmp_path: Path) -> None:
    """Its fusion of MatMul and Add names an initializer gemm_input_shape, also where there is one."""
    one, other = (
        parse(f"""g (float[3, 2, 2] x{n}) => (float[3, 2, 2] y{n})
        <float[2, 2] W{n} = {{1, 2, 3, 4}}, float[2] B{n} = {{1, 2}}> {{
        p{n} = MatMul (x{n}, W{n}) y{n} = Add (p{n}, B{n}) }}""")
        for n in (1, 2)
    )
    saved = by_onnxruntime("basic", one, tmp_path)
    joined = onnx.compose.merge_models(saved, other, io_map=[("y1", "x2")])
    with pytest.raises(Exception, match="Attempt to replace the existing tensor"):
        by_onnxruntime("basic", joined, tmp_path)
