"""Models in ExecuTorch, with its XNNPACK backend, converted by onnx2torch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.graphs import bilinear_2d
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from jobs import Arrays, main, once
from run_onnx2torch import converted
from torch.fx.experimental.proxy_tensor import make_fx


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    file = model.with_suffix(".pte")
    file.write_bytes(program(converted(model), tuple(map(torch.from_numpy, feed.values()))))
    method = Runtime.get().load_program(file).load_method("forward")

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        results = method.execute(tuple(map(torch.from_numpy, feed.values())))
        return {name: tensor.numpy() for name, tensor in zip(names, results, strict=True)}

    return call


def program(module: Any, inputs: tuple[Any, ...]) -> bytes:
    """The module as a program of ExecuTorch.

    onnx2torch reads sizes and axes of its operators from tensors, which torch.export does not know. So it is run
    once, and the operators that it called are exported.
    """
    with torch.no_grad():
        called = make_fx(lambda *xs: module(*xs), _error_on_data_dependent_ops=False)(*inputs)
    called.graph.eliminate_dead_code()
    called.recompile()
    exported = torch.export.export(called, inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return bytes(edge.to_executorch().buffer)


if __name__ == "__main__":
    bilinear_2d.get_graphs_dict()  # takes 3 s, and is kept for all jobs
    main(once(load))
