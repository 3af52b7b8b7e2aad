"""Nets as exporters write them for one size T: rows of blocks in which each size is a number.

A net is a list of rows (a block, its numbers), so it can be built at any size; the weights follow from a seed.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from frozen_nets import made

Row = tuple[str, Sequence[int]]
"""The name of a block, and its numbers."""

WIDTH = 6


class Net:
    """A net that is being written.

    Attributes:
        size: T.
        length: The rows of the value x, which has the shape [2, length, 6].
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = self.length = size
        self.nodes: list[str] = []
        self.constants: dict[str, Any] = {}
        self.random = np.random.default_rng(seed)
        self.value, self.count = "X", 0

    def constant(self, number: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(number)
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape).astype(np.float32) / 2)

    def add(self, text: str, *inputs: str) -> str:
        """Write a node: an operator, with its attributes."""
        self.count += 1
        self.nodes.append(f"v{self.count} = {text} ({', '.join(inputs)})")
        return f"v{self.count}"

    def numbers(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))


def _heads(net: Net, n: int) -> str:
    rows = net.add("Reshape", net.value, net.numbers(2, net.length, 2, 3))
    turned = net.add("Transpose <perm = [0,2,1,3]>", rows)
    back = net.add("Transpose <perm = [0,2,1,3]>", net.add("Tanh", turned))
    return net.add("Reshape", back, net.numbers(2, net.length, WIDTH))


def _merged(net: Net, n: int) -> str:
    rows = net.add("Reshape", net.value, net.numbers(2 * net.length, WIDTH))
    return net.add("Reshape", net.add("MatMul", rows, net.weights(WIDTH, WIDTH)), net.numbers(2, net.length, WIDTH))


def _positions(net: Net, n: int) -> str:
    return net.add("Add", net.value, net.constant((np.arange(net.length) / n).astype(np.float32)[:, None]))


def _band(net: Net, n: int) -> str:
    far = np.arange(net.length)[None] - np.arange(net.length)[:, None]
    return net.add("MatMul", net.constant(((far <= 0) & (far > -n)).astype(np.float32)), net.value)


def _centred(net: Net, n: int) -> str:
    total = net.add("ReduceSum", net.value, net.numbers(1))
    mean = net.add("Mul", total, net.constant(np.float32(1 / max(net.length, 1))))
    return net.add("Sub", net.value, net.add("Expand", mean, net.numbers(2, net.length, WIDTH)))


def _cut(net: Net, n: int) -> str:
    first, last = n % 3, net.length - n % 2
    net.length = last - first
    return net.add("Slice", net.value, net.numbers(first), net.numbers(last), net.numbers(1))


def _moved(net: Net, n: int) -> str:
    padded = net.add("Pad", net.value, net.numbers(0, n, 0, 0, 0, 0))
    return net.add("Slice", padded, net.numbers(0), net.numbers(net.length), net.numbers(1))


def _half(net: Net, n: int) -> str:
    columns = net.add("Transpose <perm = [0,2,1]>", net.value)
    weights, stride = net.weights(WIDTH, WIDTH, 3), n % 2 + 2
    conv = net.add(f"Conv <kernel_shape = [3], pads = [1,1], strides = [{stride}]>", columns, weights)
    net.length = (net.length - 1) // stride + 1
    return net.add("Transpose <perm = [0,2,1]>", conv)


def _last(net: Net, n: int) -> str:
    row = net.add("Gather <axis = 1>", net.value, net.numbers(net.length - 1))
    return net.add("Add", net.value, row)


def _scaled(net: Net, n: int) -> str:
    """A number that follows from T as no exporter of a good net would write it."""
    number = _stranger(net.size, n)
    return net.add("Mul", net.value, net.constant(np.float32([number, 1 / number, number**0.5][n % 3])))


def _counted(net: Net, n: int) -> str:
    ones = net.add("ConstantOfShape <value = float[1] {1}>", net.numbers(_stranger(net.size, n)))
    return net.add("Add", net.value, net.add("ReduceMean <keepdims = 0>", net.add("CumSum", ones, net.constant(0))))


def _picked(net: Net, n: int) -> str:
    row = net.add("Gather <axis = 1>", net.value, net.numbers(min(_stranger(net.size, n), net.length) - 1))
    return net.add("Add", net.value, row)


def _stranger(size: int, n: int) -> int:
    """Return an integer of at least 1 that follows from a size."""
    p = n // 6 + 2
    of = (size // p, -(-size // p), min(size, 8 * p), max(size, 8 * p), size % p + 1, size * size // p)
    return max(1, of[n % 6])


BLOCKS: dict[str, Callable[[Net, int], str]] = {
    **{"heads": _heads, "merged": _merged, "positions": _positions, "band": _band, "centred": _centred},
    **{"cut": _cut, "moved": _moved, "half": _half, "last": _last},
    **{"scaled": _scaled, "counted": _counted, "picked": _picked},
}
"""The last three are stranger."""


def some_rows(rng: random.Random) -> list[Row]:
    """Return a net: blocks as engineers write them, and seldom a stranger one."""
    names, strange = [*BLOCKS][:-3], [*BLOCKS][-3:]
    chosen = [rng.choice(strange if rng.random() < 0.15 else names) for _ in range(rng.randint(1, 5))]
    return [(name, [rng.randint(1, 40)]) for name in chosen]


def build(rows: Sequence[Row], size: int, seed: int) -> onnx.ModelProto:
    """Return the net of some rows at a size."""
    net = Net(size, seed)
    for name, (number,) in rows:
        net.value = BLOCKS[name](net, number)
    nodes = " ".join([*net.nodes, f"Y = Identity ({net.value})"])
    return made(f"float[2,{size},{WIDTH}] X", f"float[2,{net.length},{WIDTH}] Y", nodes, 17, **net.constants)
