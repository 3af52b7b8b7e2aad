"""Masks and biases of attention by the numbers of queries and keys: as exporters write them, stranger, wrong."""

from typing import Any

import numpy as np
from onnx import TensorProto

from fuzz.nets.net import FAR, Net

ROWS = 320
"""Of tables: no sequence is longer."""


class Pairs:
    """What is calculated from the numbers of the queries and the keys of a layer.

    Attributes:
        x: What has the frames, [batch, time, channels].
        size: Their number, a vector of one.
        i, j: The numbers of the queries, [time, 1], and of the keys, [1, time].
    """

    def __init__(self, net: Net, x: str, heads: int) -> None:
        self.net, self.rng, self.x, self.heads = net, net.rng, x, heads
        self.size = net.size(x, 1)
        numbers = net.node("Range", 0, net.node("Squeeze", self.size, [0]), 1)
        self.i, self.j = net.node("Unsqueeze", numbers, [1]), net.node("Unsqueeze", numbers, [0])

    def apart(self) -> str:
        """Return i - j."""
        return self.net.node("Sub", self.i, self.j)

    # Masks, true where a key is kept

    def mask(self) -> str:
        """Return one that a stream may have, and does so mostly."""
        kind = self.rng.choice(("all", "all", "window", "window", "chunks", "ahead", "table", "triangle", "random"))
        mask: str = getattr(self, f"_{kind}")()
        return mask

    def _all(self) -> str:
        if self.rng.random() < 0.5:
            return self.compared("LessOrEqual", self.j, self.i)
        return self.compared("GreaterOrEqual", self.apart(), 0)

    def _window(self, ahead: int = 0) -> str:
        apart = self.apart()
        first = self.compared("GreaterOrEqual", apart, -ahead)
        return self.net.node("And", first, self.compared("Less", apart, self.rng.choice((1, 2, 4, 5, 16))))

    def _ahead(self) -> str:
        ahead = self.rng.choice((1, 2, 3))
        if self.rng.random() < 0.3:
            return self.compared("GreaterOrEqual", self.apart(), -ahead)
        return self._window(ahead)

    def _chunks(self) -> str:
        """Those of the chunk and of some before it; also only those of them that are within a distance."""
        size = self.rng.choice((2, 3, 4))
        apart = self.net.node("Sub", *(self.net.node("Div", each, size) for each in (self.i, self.j)))
        kept = self.compared("GreaterOrEqual", apart, 0)
        if self.rng.random() < 0.7:
            kept = self.net.node("And", kept, self.compared("LessOrEqual", apart, self.rng.choice((0, 1, 2))))
        if self.rng.random() < 0.4:
            return self.net.node("And", kept, self._window() if self.rng.random() < 0.5 else self._all())
        return kept

    def _table(self) -> str:
        """The first rows and columns of a constant mask."""
        window = self.rng.choice((FAR, FAR, 4))
        apart = np.subtract.outer(np.arange(ROWS), np.arange(ROWS))
        rows = self.rng.choice((ROWS, 40))
        table = self.net.constant((apart >= 0) & (apart < window))
        cut = self.net.slice(table, 0, rows, 0) if rows != ROWS else table
        cut = self.net.slice(cut, 0, self.size, 0)
        return self.net.slice(cut, 0, self.size, 1)

    def _triangle(self) -> str:
        """By Trilu: of ones below the diagonal, and above another one."""
        kept = self._below(0)
        if self.rng.random() < 0.5:
            return kept
        upper = self._trilu(self._ones(), -self.rng.choice((1, 3, 6)), 1)
        return self.net.node("And", kept, self._positive(upper))

    def _below(self, last: int) -> str:
        if self.rng.random() < 0.5:
            return self._positive(self._trilu(self._ones(), last, 0))
        return self.net.node("Not", self._positive(self._trilu(self._ones(), last + 1, 1)))

    def _ones(self) -> str:
        sizes = self.net.node("Concat", self.size, self.size, axis=0)
        return self.net.node("Expand", np.array(1.0, np.float32), sizes)

    def _trilu(self, value: str, diagonal: int, upper: int) -> str:
        return self.net.node("Trilu", value, diagonal, upper=upper)

    def _positive(self, value: str) -> str:
        if self.rng.random() < 0.5:
            return self.net.node("Cast", value, to=TensorProto.BOOL)
        return self.net.node("Not", self.net.node("Equal", value, np.array(0.0, np.float32)))

    def _random(self) -> str:
        """Anything; mostly its later keys are removed, and the own one is kept."""
        mask, apart = self.boolean(), self.apart()
        if self.rng.random() < 0.85:
            later = self.compared("LessOrEqual", self.rng.choice((0, 0, 0, -1, -2)), apart)
            mask = self.net.node("Or", self.compared("Equal", apart, 0), self.net.node("And", later, mask))
            if self.rng.random() < 0.6:
                mask = self.net.node("And", mask, self.compared("Less", apart, self.rng.randint(1, 9)))
        return mask

    # Expressions

    def number(self, depth: int = 0) -> str:
        """Return a number for each query, key or pair."""
        rng, net = self.rng, self.net
        if depth > 3 or rng.random() < 0.45:
            return rng.choice((self.i, self.j, self.i, self.j, net.constant(rng.randint(-6, 9)), self.apart()))
        match rng.choice(("Add", "Sub", "Sub", "Sub", "Mul", "Div", "Min", "Max", "Abs", "Neg", "Mod", "Clip")):
            case "Abs" | "Neg" as op:
                return net.node(op, self.number(depth + 1))
            case "Clip":
                return net.node("Clip", self.number(depth + 1), rng.randint(-5, 0), rng.randint(1, 9))
            case "Mul" | "Div" | "Mod" as op:
                return net.node(op, self.number(depth + 1), rng.choice((2, 3, 4, -1, 1)))
            case op:
                return net.node(op, self.number(depth + 1), self.number(depth + 1))

    def distance(self) -> str:
        """Return what is mostly a distance, of frames or of chunks."""
        kind = self.rng.random()
        if kind < 0.6:
            return self.apart() if self.rng.random() < 0.8 else self.net.node("Sub", self.j, self.i)
        if kind < 0.8:
            size = self.rng.choice((2, 3))
            return self.net.node("Sub", *(self.net.node("Div", each, size) for each in (self.i, self.j)))
        return self.number()

    def boolean(self, depth: int = 0) -> str:
        """Return a condition of distances."""
        rng, net = self.rng, self.net
        if depth > 2 or rng.random() < 0.6:
            if rng.random() < 0.25:
                return self._positive(self._trilu(self._ones(), rng.randint(-4, 4), rng.randint(0, 1)))
            op = rng.choice(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"))
            return self.compared(op, self.distance(), rng.choice((rng.randint(-7, 9), 0, 0, self.distance())))
        if rng.random() < 0.25:
            return net.node("Not", self.boolean(depth + 1))
        return net.node(rng.choice(("And", "And", "Or", "Xor")), self.boolean(depth + 1), self.boolean(depth + 1))

    def compared(self, op_type: str, a: Any, b: Any) -> str:
        """Compare integers, now and then as another type."""
        kinds = (TensorProto.INT32, TensorProto.FLOAT, TensorProto.UINT8, TensorProto.FLOAT16)
        if self.rng.random() < 0.85:
            return self.net.node(op_type, a, b)
        to = self.rng.choices(kinds, (6, 8, 1, 1))[0]
        names = [each if isinstance(each, str) else self.net.constant(each) for each in (a, b)]
        return self.net.node(op_type, *(self.net.node("Cast", name, to=to) for name in names))

    # What is added to scores

    def bias(self) -> str:
        """Return a bias by distance: of a slope, of a table, or of both for each head."""
        rng, net = self.rng, self.net
        if rng.random() < 0.5:
            slope = net.numbers(self.heads, 1, 1, scale=0.5) if rng.random() < 0.5 else np.array(-0.3)
            return net.node("Mul", net.node("Cast", self.distance(), to=net.kind), slope)
        rows = rng.choice((5, 9))
        place = net.node("Clip", self.distance(), 0, rows - 1)
        if rng.random() < 0.5:
            return net.node("Gather", net.numbers(rows), place)
        return net.turned(net.node("Gather", net.numbers(rows, self.heads), place), 2, 0, 1)

    # Masks that no stream can have

    def trap(self) -> str:
        """Return a mask that depends on the length, the data or the position, or keeps too much or too little."""
        net, kind = self.net, self.rng.randrange(9)
        causal, apart = self._all(), self.apart()
        if kind == 0:
            return self.compared("Less", self.j, self.i)
        if kind == 1:  # a window of a part of the sequence
            part = net.node("Div", self.size, self.rng.choice((2, 4)))
            return net.node("And", causal, net.node("LessOrEqual", apart, part))
        if kind == 2:  # from the end
            return net.node("And", causal, net.node("Less", net.node("Sub", self.size, self.j), 9))
        if kind == 3:  # other keys of long sequences
            return net.node("Or", self._window(), net.node("Greater", self.size, self.rng.choice((20, 200))))
        if kind == 4:  # some frames see all, or are seen by all
            place, first = self.rng.choice((self.i, self.j)), self.rng.choice((1, 10))
            return net.node("Or", self._window(), net.node("Less", place, first))
        if kind == 5:  # a table that sees later frames in its last rows
            table = np.tril(np.ones((ROWS, ROWS), bool))
            table[self.rng.choice((30, 180)) :] = True
            return net.slice(net.slice(net.constant(table), 0, self.size, 0), 0, self.size, 1)
        if kind == 6:  # keys that the data removes
            loud = net.node("Greater", net.slice(self.x, 0, 1, 2), np.array(0.0))
            return net.node("And", causal, net.node("Unsqueeze", net.turned(loud, 0, 2, 1), [1]))
        if kind == 7:  # distances on a ring
            around = net.node("Mod", apart, self.size)
            return net.node("Less", around, self.rng.choice((2, 5)))
        return net.node("GreaterOrEqual", net.node("Sub", self.j, self.i), 0)
