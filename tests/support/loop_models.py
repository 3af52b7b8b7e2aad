"""Models whose exporters wrote Loops and Scans, in a folder beside the checkout, and how onnxruntime runs them."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import onnx
import pytest
import running
from cases import Arrays
from onnx import helper
from paths import MODELS

LOOPS = MODELS / "loops"
Entry = dict[str, Any]


def entries() -> list[Any]:
    manifest = LOOPS / "manifest.jsonl"
    if not manifest.exists():
        return [pytest.param({}, marks=pytest.mark.skip(reason=f"{LOOPS.name} is not there"))]
    found = map(json.loads, manifest.read_text().splitlines())
    return [
        pytest.param(entry, id=entry["file"].removesuffix(".onnx"), marks=pytest.mark.shared) for entry in found
    ]


def feeds(entry: Entry) -> list[Arrays]:
    """The inputs of each run."""
    stored = np.load(LOOPS / entry["file"].replace(".onnx", ".npz"))
    runs: list[Arrays] = [{} for _ in range(entry["feeds"])]
    for key in stored:
        run, _, name = key.partition("|")
        runs[int(run)][name] = stored[key]
    return runs


def bodies(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto]]:
    """Every body in a graph, with the node that holds it."""
    for node in graph.node:
        for body in running.bodies(node):
            yield node, body
            yield from bodies(body)


def as_meant(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an Identity for each output of a body: onnxruntime misreads those that return inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    numbers = count()
    for node, body in bodies(copy.graph):
        if node.op_type in ("Loop", "Scan"):
            for value in body.output:
                name = f"as_meant_{next(numbers)}"
                body.node.append(helper.make_node("Identity", [value.name], [name]))
                value.name = name
    return copy


def run(model: onnx.ModelProto, feed: Arrays) -> list[Any]:
    """The outputs that onnxruntime computes from those of the inputs that the model has."""
    names = {value.name for value in model.graph.input}
    return [*running.run(model, {name: array for name, array in feed.items() if name in names}).values()]


def fits(model: onnx.ModelProto, feed: Arrays) -> bool:
    """Whether the inputs of a model may have these shapes."""
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return all(
        all(size in (0, given) for size, given in zip(shapes[name], array.shape, strict=True))
        for name, array in feed.items()
        if name in shapes
    )


def operators(model: onnx.ModelProto) -> set[str]:
    """The operators of a model, of every domain and also in its bodies."""
    return {node.op_type for node in running.nodes(model)}


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
