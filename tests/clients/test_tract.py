"""tract runs lowered models of an open length: one loaded model, sequences of any length."""

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import expected

import rnn_lowering as rl
from clients.driving import judge
from clients.environments import python, why_absent
from clients.trials import cases, original

OPEN = """
import sys, numpy as np, tract
for path in sys.argv[1:]:
    inference, feed = tract.onnx().load(path + ".onnx"), np.load(path + ".npz")
    names = [inference.input_name(n) for n in range(inference.input_count())]
    for n, name in enumerate(names):
        sizes, kind = [str(size) for size in feed[name].shape], feed[name].dtype.name
        if name == "X":
            sizes[int(feed["axis"])] = "T"
        inference.set_input_fact(n, ",".join([*sizes, kind.replace("float", "f").replace("int", "i")]))
    model = inference.into_model().into_runnable()
    results = [tensor.to_numpy() for tensor in model.run([feed[name] for name in names])]
    np.savez(path + ".out.npz", *results)
"""


def test_the_length_may_be_open(tmp_path: Path) -> None:
    """Both directions: what tract knows of the lengths of two Scans has to be the same."""
    if reason := why_absent("tract"):
        pytest.skip(reason)
    known = {name: dataclasses.replace(case, x="symbolic") for name, case in cases().items()}
    paths = {name: tmp_path / str(n) for n, name in enumerate(known)}
    outputs = {}
    for name, case in known.items():
        net, feed = original(case)
        lowered = rl.lower(net, target="tract")
        onnx.save(lowered, paths[name].with_suffix(".onnx"))
        given: dict[str, Any] = {"axis": case.attributes.get("layout", 0), **feed}
        np.savez(paths[name].with_suffix(".npz"), **given)
        outputs[name] = [value.name for value in lowered.graph.output]
    command: list[str | Path] = [python("tract"), "-c", OPEN, *paths.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    for name, case in known.items():
        with np.load(f"{paths[name]}.out.npz") as got:
            results = dict(zip(outputs[name], got.values(), strict=True))
        assert judge(results, expected(case)) == ("right", ""), name
