"""A graph that grows at random, of any opset and element type."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from cases import DTYPES, Array
from graphs import Graph, Shape
from onnx import helper
from oracle import GATES

FAR = 2**63 - 1
"""The end of any axis."""


class Net(Graph):
    """A graph whose operators are written as its opset has them.

    Attributes:
        rng: Where all choices come from.
        opset: Its opset.
        dtype: The name of its floats' type.
        prefix: What new names begin with; that of a body.
    """

    def __init__(self, rng: random.Random, opset: int, dtype: str = "float32", prefix: str = "") -> None:
        super().__init__()
        self.rng, self.opset, self.dtype, self.prefix = rng, opset, dtype, prefix
        self.domains: set[str] = set()
        self.functions: list[onnx.FunctionProto] = []

    @property
    def floats(self) -> Any:
        return DTYPES[self.dtype]

    @property
    def kind(self) -> int:
        """The number of the floats' type in ONNX."""
        return helper.np_dtype_to_tensor_dtype(np.dtype(self.floats))

    def numbers(self, *shape: int, scale: float = 1.0) -> Array:
        """Random numbers within -scale and scale."""
        made = np.random.default_rng(self.rng.randrange(2**31)).uniform(-scale, scale, shape)
        return made.astype(self.floats)

    def weights(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of random numbers: of a size at which a layer keeps the size of its inputs."""
        return self.constant(self.numbers(*shape, scale=scale * float(np.prod(shape[1:]) or 1) ** -0.5))

    def floating(self, name: str, shape: Shape) -> str:
        return self.input(name, shape, self.floats)

    def constant(self, held: Any, dtype: Any = None, name: str = "") -> str:
        array = np.asarray(held)
        if dtype is None and (array.dtype.kind == "f" or array.dtype.name == "bfloat16"):
            dtype = self.floats
        return super().constant(held, dtype, name or f"{self.prefix}c{len(self.tensors)}")

    def several(self, op_type: str, *inputs: Any, **given: Any) -> list[str]:
        """Add a node; inputs that are no names are constants."""
        named = [v if isinstance(v, str) else self.constant(v) for v in inputs]
        if given.get("domain"):
            self.domains.add(given["domain"])
        if "name" not in given:
            given["name"] = f"{self.prefix}{op_type}_{len(self.nodes)}"
        return super().several(op_type, *named, **given)

    def node(self, op_type: str, *inputs: Any, **given: Any) -> str:
        return self.several(op_type, *inputs, **{"outputs": 1} | given)[0]

    # Operators whose parameters are attributes in old opsets

    def _by_axes(self, op_type: str, value: str, axes: Sequence[int], since: int, **given: Any) -> str:
        if self.opset < since:
            return self.node(op_type, value, axes=[*axes], **given)
        return self.node(op_type, value, [*axes], **given)

    def squeeze(self, value: str, *axes: int) -> str:
        return self._by_axes("Squeeze", value, axes, 13)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self._by_axes("Unsqueeze", value, axes, 13)

    def reduced(self, kind: str, value: str, *axes: int, keepdims: int = 1) -> str:
        return self._by_axes(f"Reduce{kind}", value, axes, 13 if kind == "Sum" else 18, keepdims=keepdims)

    def slice(self, value: str, first: Any, last: Any, axis: int = 2, step: int = 1) -> str:
        """`value[first:last:step]` along an axis; the bounds are numbers or names of vectors of one."""
        if self.opset < 10:
            assert step == 1, "older opsets have no steps"
            return self.node("Slice", value, axes=[axis], starts=[first], ends=[last])
        bounds = [b if isinstance(b, str) else [b] for b in (first, last)]
        return self.node("Slice", value, *bounds, [axis], *([[step]] if step != 1 else []))

    def pad(self, value: str, pads: Sequence[int], fill: float = 0.0, mode: str = "constant") -> str:
        if self.opset < 11:
            return self.node("Pad", value, pads=[*pads], value=fill, mode=mode)
        held = [np.array(fill, self.floats)] if fill else []
        return self.node("Pad", value, [*pads], *held, mode=mode)

    def split(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        if self.opset < 13:
            return self.several("Split", value, outputs=len(sizes), axis=axis, split=[*sizes])
        return self.several("Split", value, [*sizes], outputs=len(sizes), axis=axis)

    def clip(self, value: str, low: float, high: float) -> str:
        if self.opset < 11:
            return self.node("Clip", value, min=low, max=high)
        return self.node("Clip", value, *(np.array(bound, self.floats) for bound in (low, high)))

    def turned(self, value: str, *perm: int) -> str:
        return self.node("Transpose", value, perm=[*perm])

    def size(self, value: str, axis: int) -> str:
        """The size of an axis, a vector of one."""
        shape = self.node("Shape", value)
        if self.rng.random() < 0.5 or self.opset < 10:
            return self.unsqueeze(self.node("Gather", shape, axis, axis=0), 0)
        return self.slice(shape, axis, axis + 1, 0)

    def recurrent(self, op_type: str, inputs: int, hidden: int, directions: int = 1, bias: int = 1) -> list[str]:
        """W, R and, with a bias, B of a recurrent node."""
        rows, scale = GATES[op_type] * hidden, hidden**-0.5
        shapes = [(directions, rows, inputs), (directions, rows, hidden), (directions, 2 * rows)]
        return [self.constant(self.numbers(*shape, scale=scale)) for shape in shapes[: 2 + bias]]

    def whole(self) -> onnx.ModelProto:
        """The model."""
        return self.model(self.opset, sorted(self.domains), self.functions, ir_version=version_of(self.opset))

    def outputs_of(self, *names: str, dtype: Any = None) -> None:
        for name in names:
            self.output(name, None, dtype or self.floats)


def version_of(opset: int) -> int:
    """Return an IR version that knows an opset, of those that onnxruntime takes."""
    known = helper.find_min_ir_version_for([helper.make_opsetid("", opset)], ignore_unknown=True)
    return min(max(8, known), 13)
