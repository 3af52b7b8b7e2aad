"""Models made node by node, as sizes or layers ask for; one in which all is fixed is a text (texts.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

MS = "com.microsoft"

Shape = Sequence[int | str | None] | None
"""Sizes, names of open ones, None for unknown ones; None for an unknown rank."""


def value(name: str, shape: Shape, dtype: Any = np.float32) -> onnx.ValueInfoProto:
    """Declare an input or output of a graph."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


@dataclass
class Graph:
    """A graph that grows; what adds a value returns its name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, shape: Shape, dtype: Any = np.float32) -> str:
        self.inputs.append(value(name, shape, dtype))
        return name

    def output(self, name: str, shape: Shape, dtype: Any = np.float32) -> None:
        """Let a value be an output."""
        self.outputs.append(value(name, shape, dtype))

    def constant(self, held: Any, dtype: Any = None, name: str = "") -> str:
        """Add an initializer; integers are int64."""
        name = name or f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(held, dtype, order="C"), name))
        return name

    def node(self, op_type: str, *inputs: str, **given: Any) -> str:
        """Add a node; return the name of its first output. See `several`."""
        return self.several(op_type, *inputs, **{"outputs": 1} | given)[0]

    def several(
        self, op_type: str, *inputs: str, outputs: int | Sequence[str], name: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node; return the names of its outputs, of which `outputs` is the number or the names."""
        name = name or f"{op_type}_{len(self.nodes)}"
        names = [f"{name}_{n}" if n else name for n in range(outputs)] if isinstance(outputs, int) else [*outputs]
        self.nodes.append(helper.make_node(op_type, inputs, names, name, **attributes))
        return names

    def model(
        self,
        opset: int = 17,
        domains: Sequence[str] = (),
        functions: Sequence[onnx.FunctionProto] = (),
        ir_version: int = 8,
    ) -> onnx.ModelProto:
        """Return the model, which imports version 1 of further domains."""
        graph = helper.make_graph(self.nodes, "main", self.inputs, self.outputs, self.tensors)
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=ir_version)
