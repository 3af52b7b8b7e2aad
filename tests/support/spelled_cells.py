"""RNN, GRU and LSTM as Loops and Scans, spelled as exporters and people spell them.

Each choice is a row of `CHOICES`: the names of the values that it has. A number makes the others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import Array, Arrays
from graphs import Graph, Shape, value
from onnx import helper

CHOICES: dict[str, tuple[str, ...]] = {
    "op_type": ("RNN", "GRU", "LSTM"),
    "repeated": ("scan", "scan along axis 1", "loop", "loop along axis 1", "counter", "slices"),
    "direction": ("forward", "forward", "backwards", "rows backwards"),
    "features": ("last", "last", "first", "of one row", "of rank 3"),
    "product": ("MatMul", "Gemm", "Einsum", "Transpose"),
    "gates": ("Split", "Slice", "Gather", "apart"),
    "inputs": ("apart", "joined", "outside", "outside, split"),
    "sum": ("before the parts", "of the parts"),
    "biases": ("none", "one", "both"),
    "weights": ("captured", "inside", "Constant"),
    "states": ("zeros", "inputs", "expanded"),
    "outputs": ("Y", "last", "both", "head"),
    "sizes": ("known", "T", "T and N"),
    "functions": ("default", "default", "hard", "relu6", "other", "scaled"),
    "clip": ("none", "none", "none", "every gate"),
    "reset": ("before", "after"),
    "update": ("(1 - z) n + z h", "n + z (h - n)", "n - z n + z h", "(1 - z) h + z n", "h + z (n - h)", "lerp"),
    "forget": ("own", "own", "1 - i", "c - i c"),
    "peepholes": ("none", "none", "all", "o"),
    "opset": ("11", "13", "17", "18", "21"),
}
"""A choice -> the names of its values."""

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OTHERS = (("Relu",), ("Softsign",), ("Softplus",), ("Elu", 0.7), ("LeakyRelu", 0.2), ("HardSigmoid", 0.25, 0.4))


@dataclass(frozen=True)
class Spelled:
    """A Loop or Scan that is a cell.

    Attributes:
        model: The model; its truth is what onnxruntime computes.
        op_type: The node that it is.
        chosen: The value of each choice.
        sizes: Those of the open dimensions, for each run.
    """

    model: onnx.ModelProto
    op_type: str
    chosen: dict[str, str]
    sizes: tuple[dict[str, int], ...]

    def feeds(self) -> list[Arrays]:
        """Random inputs of each run."""
        rng = np.random.default_rng(len(self.model.graph.node))
        return [
            {
                v.name: rng.normal(0, 1, [d.dim_value or sizes[d.dim_param] for d in shape_of(v)]).astype(
                    np.float32
                )
                for v in self.model.graph.input
            }
            for sizes in self.sizes
        ]


def shape_of(info: onnx.ValueInfoProto) -> Any:
    return info.type.tensor_type.shape.dim


def spelled(seed: int, **fixed: str) -> Spelled:
    """The cell of a number, with some choices made."""
    rng = random.Random(seed)
    chosen = {name: rng.choice(values) for name, values in CHOICES.items()} | fixed
    unknown = [f"{name}={value}" for name, value in fixed.items() if value not in CHOICES[name]]
    assert not unknown, unknown
    if chosen["functions"] in ("hard", "relu6"):
        chosen["clip"] = "none"  # a Clip in a Clip
    return _Speller(rng, chosen).spelled()


class _Body(Graph):
    """The body of a loop: its names are not those outside."""

    def constant(self, held: Any, dtype: Any = None, name: str = "") -> str:
        return super().constant(held, dtype, name or f"k{len(self.tensors)}")

    def several(self, op_type: str, *inputs: str, name: str = "", **given: Any) -> list[str]:
        return super().several(op_type, *inputs, name=name or f"step_{op_type}_{len(self.nodes)}", **given)


@dataclass
class _Rows:
    """Which row of stacked weights belongs to which gate: `of[k]` are those of gate k, by unit."""

    of: list[list[int]]
    order: list[tuple[int, int]]


@dataclass
class _Speller:
    """Writes a cell into the body of a loop.

    Values of the body are names; `fa` is the axis of the features of a row.
    """

    rng: random.Random
    chosen: dict[str, str]
    outer: Graph = field(default_factory=Graph)
    body: Graph = field(default_factory=_Body)
    rows: list[tuple[str, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.T, self.N, self.I, self.H = rng.randint(2, 5), rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 4)
        self.numbers = np.random.default_rng(rng.randrange(10**6))
        self.op_type, self.opset = self.chosen["op_type"], int(self.chosen["opset"])
        self.layout = self.chosen["features"]
        self.fa = {"last": 1, "first": 0, "of one row": 0, "of rank 3": 2}[self.layout]
        along_1 = self.chosen["repeated"].endswith("axis 1")
        self.time = 1 if along_1 else 0
        self.forget = self.chosen["forget"]

    # Sizes

    def row(self, features: int) -> list[int | str]:
        """The shape of a row or a state."""
        n: int | str = "N" if self.chosen["sizes"] == "T and N" else self.N
        rows: dict[str, list[int | str]] = {
            "last": [n, features],
            "first": [features, n],
            "of one row": [features],
            "of rank 3": [1, n, features],
        }
        return rows[self.layout]

    def stack(self, features: int, time: int) -> Shape:
        """The shape of all rows."""
        t: int | str = self.T if self.chosen["sizes"] == "known" else "T"
        row = self.row(features)
        return [*row[:time], t, *row[time:]]

    # Nodes; the order of what is added or multiplied is random

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.body.node(op_type, *inputs, **attributes)

    def add(self, a: str, b: str) -> str:
        return self.op("Add", *self.rng.sample((a, b), 2))

    def mul(self, a: str, b: str) -> str:
        return self.op("Mul", *self.rng.sample((a, b), 2))

    def sum(self, *terms: str) -> str:
        first, *others = self.rng.sample(terms, len(terms))
        for term in others:
            first = self.add(first, term)
        return first

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        """A constant where the weights are."""
        array = np.asarray(array, dtype)
        if self.chosen["weights"] == "captured":
            return self.outer.constant(array)
        if self.chosen["weights"] == "inside":
            return self.body.constant(array)
        return self.op("Constant", value=onnx.numpy_helper.from_array(array))

    def along_features(self, b: Array) -> Array:
        return b[:, None] if self.layout == "first" else b

    # Products

    def affine(self, graph: Graph, source: str, weight: Array, bias: Array | None, extra: int = 0) -> str:
        """Emit weight x + bias; `extra` axes are in front of those of a row."""
        made = self.product(graph, source, weight, extra)
        if bias is None:
            return made
        return graph.node("Add", *self.rng.sample((made, self.constant_of(graph, self.along_features(bias))), 2))

    def constant_of(self, graph: Graph, array: Array) -> str:
        return self.constant(array) if graph is self.body else graph.constant(array.astype(np.float32))

    def product(self, graph: Graph, source: str, weight: Array, extra: int) -> str:
        kind, first = self.chosen["product"], self.layout == "first"
        if kind == "Einsum" and self.opset >= 12:
            axes = ("t" if extra else "") + {"last": "ni", "first": "in", "of one row": "i", "of rank 3": "bni"}[
                self.layout
            ]
            equation = f"{axes},oi->{axes.replace('i', 'o')}"
            return graph.node("Einsum", source, self.constant_of(graph, weight), equation=equation)
        if kind == "Gemm" and self.layout in ("last", "first") and not extra:
            held = self.constant_of(graph, weight)
            return graph.node("Gemm", held, source) if first else graph.node("Gemm", source, held, transB=1)
        if kind == "Transpose":
            turned = self.constant_of(graph, weight.T if first else weight)
            held = graph.node("Transpose", turned, perm=[1, 0])
        else:
            held = self.constant_of(graph, weight if first else weight.T)
        return graph.node("MatMul", *((held, source) if first else (source, held)))

    def weight(self, *shape: int) -> Array:
        return self.numbers.normal(0, 0.6, shape).astype(np.float32)

    def bias(self, gates: int, which: int) -> list[Array] | None:
        """Biases of gates: `which` is 0 for that of x, 1 for that of h."""
        wanted = {"none": 0, "one": 1, "both": 2}[self.chosen["biases"]]
        return [self.weight(self.H) for _ in range(gates)] if which < wanted else None

    # Gates in one product

    def gate_rows(self, gates: int) -> _Rows:
        order = [(k, j) for k in self.rng.sample(range(gates), gates) for j in range(self.H)]
        if self.chosen["gates"] == "Gather":
            self.rng.shuffle(order)
        return _Rows([[order.index((k, j)) for j in range(self.H)] for k in range(gates)], order)

    def stacked(self, rows: _Rows, parts: list[Array] | None) -> Array | None:
        return None if parts is None else np.stack([parts[k][j] for k, j in rows.order])

    def cut(self, rows: _Rows, whole: str, graph: Graph | None = None, axis: int | None = None) -> list[str]:
        """The part of each gate."""
        graph, axis = graph or self.body, self.fa if axis is None else axis
        if len(rows.of) == 1 and self.chosen["gates"] != "Gather":
            return [whole]
        if self.chosen["gates"] == "Gather":
            return [graph.node("Gather", whole, graph.constant(of), axis=axis) for of in rows.of]
        if self.chosen["gates"] == "Slice":
            cuts = [(min(of), max(of) + 1) for of in rows.of]
            return [
                graph.node("Slice", whole, graph.constant([a]), graph.constant([b]), graph.constant([axis]))
                for a, b in cuts
            ]
        sizes = [self.H] * len(rows.of)
        if self.opset < 13:
            parts = graph.several("Split", whole, outputs=len(sizes), axis=axis, split=sizes)
        else:
            parts = graph.several("Split", whole, graph.constant(sizes), outputs=len(sizes), axis=axis)
        return [parts[min(of) // self.H] for of in rows.of]

    def of_x(self, rows: _Rows, W: list[Array], b: list[Array] | None) -> str | list[str]:
        """X's part of the gates, of all in one value or of each."""
        inputs = self.chosen["inputs"]
        weight, bias = self.stacked(rows, W), self.stacked(rows, b)
        assert weight is not None
        if not inputs.startswith("outside"):
            return self.affine(self.body, self.x(), weight, bias)
        if self.time:  # features first: axis 0 of X is no batch
            before = "X"
            if self.layout == "first" or self.fa == 0:
                before = self.outer.node("Transpose", "X", perm=self.moved(1, 0))
            made = self.affine(self.outer, before, weight, bias, extra=1)
            if before != "X":
                made = self.outer.node("Transpose", made, perm=self.moved(0, 1))
        else:
            made = self.affine(self.outer, "X", weight, bias, extra=1)
        if inputs == "outside":
            return self.scanned(made, len(rows.order))
        axis = self.fa + (self.fa >= self.time)
        return [self.scanned(part, self.H) for part in self.cut(rows, made, self.outer, axis)]

    def moved(self, start: int, end: int) -> list[int]:
        axes = list(range(len(self.row(1)) + 1))
        axes.insert(end, axes.pop(start))
        return axes

    def scanned(self, name: str, features: int) -> str:
        """A row of a value in each step."""
        row = f"row{len(self.rows)}"
        self.rows.append((row, name, features))
        if self.chosen["repeated"].startswith("scan"):
            return row
        return self.read(name)

    def x(self) -> str:
        """The row of X; read again each time by a Loop, as some exporters do."""
        if self.chosen["repeated"].startswith("scan"):
            if not any(name == "X" for _, name, _ in self.rows):
                self.scanned("X", self.I)
            return next(row for row, name, _ in self.rows if name == "X")
        return self.read("X")

    def read(self, name: str) -> str:
        """Let a Loop take row i, or row T - 1 - i."""
        at = "t" if self.chosen["repeated"] == "counter" else "i"
        if self.chosen["direction"] != "forward":
            last = self.op("Cast", "last", to=6) if at == "t" else "last"
            at = self.op("Sub", last, at)
        if self.chosen["repeated"] != "slices":
            return self.op("Gather", name, at, axis=self.time)
        first = self.op("Unsqueeze", at, axes=[0]) if self.opset < 13 else self.op("Unsqueeze", at, self.whole([0]))
        after = self.op("Add", first, self.whole([1]))
        taken = self.op("Slice", name, first, after, self.whole([self.time]))
        if self.opset < 13:
            return self.op("Squeeze", taken, axes=[self.time])
        return self.op("Squeeze", taken, self.whole([self.time]))

    def whole(self, held: Any) -> str:
        return self.body.constant(held, np.int64)

    def gates(self, W: list[Array], R: list[Array], b: Any, Rb: Any, h: str) -> list[str]:
        """The sums of gates that see the same x and h."""
        if self.chosen["gates"] == "apart" and len(W) > 1:
            return [self.gates([W[k]], [R[k]], b and [b[k]], Rb and [Rb[k]], h)[0] for k in range(len(W))]
        rows = self.gate_rows(len(W))
        weight, of_h, bias = self.stacked(rows, W), self.stacked(rows, R), self.stacked(rows, Rb)
        assert weight is not None
        assert of_h is not None
        if self.chosen["inputs"] == "joined":
            both = self.op("Concat", self.x(), h, axis=self.fa)
            more = self.stacked(rows, b)
            if bias is not None and more is not None:
                more = more + bias
            return self.cut(rows, self.affine(self.body, both, np.hstack([weight, of_h]), more))
        xs, hs = self.of_x(rows, W, b), self.affine(self.body, h, of_h, bias)
        if isinstance(xs, str) and self.chosen["sum"] == "before the parts":
            return self.cut(rows, self.add(xs, hs))
        parts = xs if isinstance(xs, list) else self.cut(rows, xs)
        return [self.add(a, c) for a, c in zip(parts, self.cut(rows, hs), strict=True)]

    # Functions

    def functions(self) -> list[tuple[Any, ...]]:
        """f, g and h of the cell."""
        kind, op = self.chosen["functions"], self.op_type
        gate: dict[str, tuple[Any, ...]] = {"hard": ("HardSigmoid", 0.2, 0.5), "relu6": ("HardSigmoid", 1 / 6, 0.5)}
        if op == "RNN":
            first = {"hard": gate["hard"], "relu6": gate["relu6"], "scaled": ("ScaledTanh", 0.8, 0.6)}.get(
                kind, ("Tanh",)
            )
            return [self.rng.choice(OTHERS) if kind == "other" else first]
        f = gate.get(kind, ("Sigmoid",))
        g: tuple[Any, ...] = ("ScaledTanh", 0.8, 0.6) if kind == "scaled" else ("Tanh",)
        if kind == "other":
            g = self.rng.choice(OTHERS)
        return [f, g] if op == "GRU" else [f, g, self.rng.choice((("Tanh",), g))]

    def number(self, held: float) -> str:
        return self.constant(np.float32(held))

    def apply(self, function: tuple[Any, ...], u: str, *, clipped: bool = True) -> str:
        """Emit a function of a gate's sum, in one of its spellings."""
        if clipped and self.chosen["clip"] != "none":
            u = self.op("Clip", u, self.number(-0.9), self.number(0.9))
        name, *numbers = function
        if name == "HardSigmoid":
            alpha, beta = numbers
            if self.chosen["functions"] == "relu6":
                inner = self.op("Clip", self.add(u, self.number(3)), self.number(0), self.number(6))
                return self.rng.choice(
                    (lambda: self.mul(inner, self.number(1 / 6)), lambda: self.op("Div", inner, self.number(6)))
                )()
            if self.rng.random() < 0.5:
                return self.op("HardSigmoid", u, alpha=alpha, beta=beta)
            line = self.add(self.mul(u, self.number(alpha)), self.number(beta))
            if self.rng.random() < 0.5:
                return self.op("Clip", line, self.number(0), self.number(1))
            return self.op("Min", self.op("Max", self.number(0), line), self.number(1))
        if name == "ScaledTanh":
            alpha, beta = numbers
            return self.mul(self.number(alpha), self.op("Tanh", self.mul(u, self.number(beta))))
        if name == "Relu" and self.rng.random() < 0.5:
            return self.op("Max", u, self.number(0))
        return self.op(name, u, **({"alpha": numbers[0]} if numbers else {}))

    # Cells

    def rnn(self, h: str) -> list[str]:
        (f,) = self.functions()
        (u,) = self.gates(*self.weights(1), h)
        return [self.apply(f, u)]

    def weights(self, gates: int) -> tuple[list[Array], list[Array], Any, Any]:
        W = [self.weight(self.H, self.I) for _ in range(gates)]
        R = [self.weight(self.H, self.H) for _ in range(gates)]
        return W, R, self.bias(gates, 0), self.bias(gates, 1)

    def gru(self, h: str) -> list[str]:
        f, g = self.functions()
        uz, ur = self.gates(*self.weights(2), h)
        z, r = self.apply(f, uz), self.apply(f, ur)
        W, R, b, Rb = self.weights(1)
        rows = self.gate_rows(1)
        found = self.of_x(rows, W, b)
        (of_x,) = found if isinstance(found, list) else self.cut(rows, found)
        weight, bias = self.stacked(rows, R), self.stacked(rows, Rb)
        assert weight is not None
        if self.chosen["reset"] == "before":
            (of_h,) = self.cut(rows, self.affine(self.body, h, weight, bias))
            of_h = self.mul(r, of_h)
        else:
            (of_h,) = self.cut(rows, self.affine(self.body, self.mul(r, h), weight, bias))
        n = self.apply(g, self.add(of_x, of_h))
        return [self.updated(z, n, h)]

    def updated(self, z: str, n: str, h: str) -> str:
        kind = self.chosen["update"]

        def rest() -> str:
            return self.op("Sub", self.number(1), z)

        if kind == "(1 - z) n + z h":
            return self.add(self.mul(rest(), n), self.mul(z, h))
        if kind == "(1 - z) h + z n":
            return self.add(self.mul(rest(), h), self.mul(z, n))
        if kind == "n + z (h - n)":
            return self.add(n, self.mul(z, self.op("Sub", h, n)))
        if kind == "h + z (n - h)":
            return self.add(h, self.mul(z, self.op("Sub", n, h)))
        if kind == "n - z n + z h":
            return self.add(self.op("Sub", n, self.mul(z, n)), self.mul(z, h))
        apart = self.op("Sub", h, n)
        low = self.op("Less", self.op("Abs", z), self.number(0.5))
        return self.op("Where", low, self.add(n, self.mul(z, apart)), self.op("Sub", h, self.mul(apart, rest())))

    def lstm(self, h: str, c: str) -> list[str]:
        f, g, squash = self.functions()
        ui, uo, uf, ug = self.gates(*self.weights(4), h)
        seen = self.chosen["peepholes"]
        if seen == "all":
            ui, uf = (self.add(u, self.mul(self.peephole(), c)) for u in (ui, uf))
        i, new = self.apply(f, ui), self.apply(g, ug)
        if self.forget == "c - i c":
            c1 = self.sum(self.op("Sub", c, self.mul(i, c)), self.mul(i, new))
        else:
            keep = self.apply(f, uf) if self.forget == "own" else self.op("Sub", self.number(1), i)
            c1 = self.add(self.mul(keep, c), self.mul(i, new))
        if seen != "none":
            uo = self.add(uo, self.mul(self.peephole(), c1))
        return [self.mul(self.apply(f, uo), self.apply(squash, c1, clipped=False)), c1]

    def peephole(self) -> str:
        return self.constant(self.along_features(self.weight(self.H)))

    # The loop

    def spelled(self) -> Spelled:
        time, kind = self.time, self.chosen["repeated"]
        scan = kind.startswith("scan")
        self.outer.input("X", self.stack(self.I, time))
        states = ["h", "c"][: 2 if self.op_type == "LSTM" else 1]
        initial = [self.initial(name) for name in states]
        count = self.steps()
        cells: dict[str, Callable[..., list[str]]] = {"RNN": self.rnn, "GRU": self.gru, "LSTM": self.lstm}
        new = cells[self.op_type](*states)
        stacked = self.stacked_output(new[0])
        new = [self.op("Identity", name) for name in new]
        infos = [value(name, self.row(self.H)) for name in states]
        results = [value(name, self.row(self.H)) for name in new]
        rows = [value(name, self.row(size)) for name, size in stacked]
        last = [f"{name}n" for name in states]
        ys = [f"stacked{n}" for n in range(len(stacked))]
        if scan:
            self.scan(initial, infos, results, rows, [*last, *ys])
        else:
            self.loop(count, initial, infos, results, rows, [*last, *ys])
        if self.chosen["outputs"] != "Y":
            for name in last[: self.rng.choice((1, 2))]:
                self.outer.output(name, self.row(self.H))
        for name, (_, size) in zip(ys, stacked, strict=True):
            self.outer.output(self.turned(name, scan), self.stack(size, 0))
        return Spelled(self.outer.model(self.opset), self.op_type, self.chosen, self.runs())

    def runs(self) -> tuple[dict[str, int], ...]:
        return tuple({"T": self.T + n, "N": self.N + n} for n in range(1 if self.chosen["sizes"] == "known" else 2))

    def turned(self, name: str, scan: bool) -> str:
        """Stacked rows in the order of X, where a Loop cannot write them so."""
        if scan or self.chosen["direction"] != "backwards":
            return name
        ends = [self.outer.constant([held]) for held in (-1, np.iinfo(np.int64).min, 0, -1)]
        return self.outer.node("Slice", name, *ends)

    def initial(self, name: str) -> str:
        shape = self.row(self.H)
        kind = self.chosen["states"]
        if kind == "inputs":
            return self.outer.input(f"initial_{name}", shape)
        known = [size for size in shape if isinstance(size, int)]
        if kind == "zeros" and len(known) == len(shape):
            return self.outer.constant(np.zeros(known, np.float32))
        if len(known) == len(shape):
            size = self.outer.constant(known)
        else:
            place = [*shape].index("N")
            axis = place + (place >= self.time)
            n = self.outer.node("Gather", self.outer.node("Shape", "X"), self.outer.constant([axis]))
            parts = [self.outer.constant([s]) if isinstance(s, int) else n for s in shape]
            size = self.outer.node("Concat", *parts, axis=0)
        if kind == "expanded":
            return self.outer.node("Expand", self.outer.constant(np.float32(0.25)), size)
        return self.outer.node("ConstantOfShape", size)

    def steps(self) -> str:
        """The number of steps of a Loop; `last` is the number of the last row."""
        if self.chosen["sizes"] == "known" and self.rng.random() < 0.5:
            count = self.outer.constant(self.T, np.int64)
        else:
            count = self.outer.node(
                "Gather", self.outer.node("Shape", "X"), self.outer.constant(self.time, np.int64)
            )
        self.outer.node("Sub", count, self.outer.constant(1, np.int64), outputs=["last"])
        return count

    def stacked_output(self, h: str) -> list[tuple[str, int]]:
        if self.chosen["outputs"] == "last":
            return []
        if self.chosen["outputs"] == "head":
            dense = self.affine(self.body, h, self.weight(2, self.H), self.weight(2))
            return [(self.op("Sigmoid", dense), 2)]
        return [(self.op("Identity", h), self.H)]

    def scan(self, initial: Sequence[str], infos: Any, results: Any, rows: Any, names: Sequence[str]) -> None:
        inputs = [*infos, *(value(row, self.row(size)) for row, _, size in self.rows)]
        body = helper.make_graph(self.body.nodes, "step", inputs, [*results, *rows], self.body.tensors)
        turned = self.chosen["direction"] != "forward"
        count = len(self.rows)
        attributes: dict[str, Any] = {
            "scan_input_axes": [self.time] * count,
            "scan_input_directions": [int(turned)] * count,
        }
        if rows:
            attributes["scan_output_directions"] = [int(self.chosen["direction"] == "backwards")] * len(rows)
        xs = [name for _, name, _ in self.rows]
        self.outer.several("Scan", *initial, *xs, outputs=names, body=body, num_scan_inputs=count, **attributes)

    def loop(
        self, count: str, initial: Sequence[str], infos: Any, results: Any, rows: Any, names: Sequence[str]
    ) -> None:
        states, going = [*infos], self.op("Identity", "go")
        results, initial, names = [*results], [*initial], [*names]
        if self.chosen["repeated"] == "counter":
            states.insert(0, value("t", [], np.int32))
            after = self.op("Add", "t", self.body.constant(1, np.int32))
            results.insert(0, value(after, [], np.int32))
            initial.insert(0, self.outer.constant(0, np.int32))
            names.insert(0, "steps")
            limit = self.op("Cast", count, to=6)
            going = self.op("And", self.op("Less", after, limit), self.op("Less", after, limit))
        inputs = [value("i", [], np.int64), value("go", [], np.bool_), *states]
        outputs = [value(going, [], np.bool_), *results, *rows]
        body = helper.make_graph(self.body.nodes, "step", inputs, outputs, self.body.tensors)
        yes = self.outer.constant(True, np.bool_)
        self.outer.several("Loop", count, yes, *initial, outputs=names, body=body)
