"""`RandomNet`: a net that grows node by node, at two sizes of its open axes.

What onnxruntime takes at both sizes is kept, so a step need not know each rule of its operator.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from cases import Array
from onnx import TensorProto, helper, numpy_helper
from running import run

FLOAT, MOST, FAR = TensorProto.FLOAT, 2**63 - 1, 2**31 - 1
LARGE = 1e5
OPSETS = (9, 11, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 19, 20)


class UnfitError(Exception):
    """A node does not suit the value that it would read."""


class RandomNet:
    """A net that grows.

    Attributes:
        values: By name, each value at both sizes of the open axes.
        last: The value that the next node reads.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.pick(OPSETS))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: dict[str, tuple[Array, Array]] = {}
        self.count = 0

    def pick(self, given: Sequence[Any]) -> Any:
        return given[int(self.rng.integers(len(given)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name][0].shape

    def rank(self, name: str, least: int = 1) -> int:
        require(self.values[name][0].ndim >= least)
        return self.values[name][0].ndim

    def open_axes(self, name: str) -> list[int]:
        first, second = (value.shape for value in self.values[name])
        return [n for n, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]

    def axis(self, name: str) -> int:
        """An axis, from opset 11 on also counted from the end."""
        rank = self.rank(name)
        axis = int(self.rng.integers(rank))
        return axis - rank if self.opset >= 11 and self.chance(0.5) else axis

    def sizes(self, name: str) -> list[int]:
        """The sizes of a constant that fits a value: 1 along open axes."""
        opened = self.open_axes(name)
        return [1 if n in opened else size for n, size in enumerate(self.shape(name))]

    def numbers(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def constant(self, numbers: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(numbers, None if isinstance(numbers, np.ndarray | np.generic) else dtype)
        name = self._name("c")
        tensor = numpy_helper.from_array(array, name)
        if self.chance(0.3):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.constants.append(tensor)
        self.values[name] = array, array
        return name

    def add(
        self, operator: str, *inputs: str, outputs: int = 1, captured: Sequence[str] = (), **attributes: Any
    ) -> str:
        """Add a node, whose bodies read captured values; return its first output."""
        require(onnx.defs.has(operator, self.opset, ""))
        given = {name: value for name, value in attributes.items() if value is not None}
        names = [self._name("v") for _ in range(outputs)]
        with suppress(ValueError):  # an empty list of sizes
            node = helper.make_node(operator, inputs, names, **given)
            made = [self._computed(node, n, captured) for n in (0, 1)]
            self.nodes.append(node)
            self.values |= dict(zip(names, zip(*made, strict=True), strict=True))
            return names[0]
        raise UnfitError

    def by_axes(self, operator: str, x: str, axes: Sequence[int], **attributes: Any) -> str:
        """Add a node whose axes are an input or an attribute, as its opset has them."""
        since = 13 if operator in ("ReduceSum", "Squeeze", "Unsqueeze") else 18
        if self.opset >= since:
            return self.add(operator, x, self.constant(axes), **attributes)
        return self.add(operator, x, axes=[*axes], **attributes)

    def others(self, node: str, count: int) -> list[str]:
        """Return the outputs behind the first one of the last node."""
        outputs = [*self.nodes[-1].output]
        assert outputs[0] == node
        return outputs[1:count]

    def floats(self, x: str) -> str:
        return x if self.values[x][0].dtype == np.float32 else self.add("Cast", x, to=FLOAT)

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def _computed(self, node: onnx.NodeProto, n: int, captured: Sequence[str]) -> list[Array]:
        names = [name for name in dict.fromkeys([*node.input, *captured]) if name]
        feed = {name: self.values[name][n] for name in names if name[0] != "c"}
        held = [numpy_helper.from_array(self.values[name][n], name) for name in names if name[0] == "c"]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
        model = model_of([node], [info_of(name, array) for name, array in feed.items()], outputs, held, self.opset)
        try:
            made = [*run(model, feed, optimize=False).values()]
        except Exception as error:  # of onnxruntime, which has no common error
            raise UnfitError from error
        require(all(array.size and array.size < 5000 and array.ndim <= 5 for array in made))
        numbers = [np.asarray(array, np.float64) for array in made]
        require(all((np.isfinite(array) & (np.abs(array) < LARGE)).all() for array in numbers))
        return made


def require(fits: object) -> None:
    if not fits:
        raise UnfitError


def model_of(nodes: Any, inputs: Any, outputs: Any, constants: Any, opset: int) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def info_of(name: str, array: Array, opened: Iterable[int] = ()) -> onnx.ValueInfoProto:
    sizes = [f"{name}_{n}" if n in [*opened] else size for n, size in enumerate(array.shape)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), sizes)


Step = Callable[[RandomNet, str], str]
"""Adds what an exporter would write behind a value, and returns the new one."""
