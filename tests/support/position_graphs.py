"""Random graphs of positions, and whether what is derived of their values is what onnxruntime computes.

The values of a graph are computed from the number of frames T alone: i of shape [T, 1], j of shape [1, T], their
difference, and what operators make of them, of each type.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from cases import Array
from onnx import TensorProto, helper, numpy_helper

from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import SizingError, add_initializers
from rnn_lowering.facts.numbers import UnfollowedError, evaluate
from rnn_lowering.streaming.attention.distances import Distances, Positions, PositionTable
from rnn_lowering.streaming.attention.position_rows import cut_table
from rnn_lowering.streaming.attention.positions import Numbers, UnknownError
from rnn_lowering.streaming.sizes import FRAMES, StreamValues

Rng = np.random.Generator
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
INTEGERS = (TensorProto.INT32, TensorProto.INT64)
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
CASTS = (*FLOATS, *INTEGERS, TensorProto.FLOAT16, BOOL, TensorProto.UINT8)
COMPARED = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


@dataclass(frozen=True)
class Made:
    """A value: its name, type, and sizes, of which "T" is the number of frames."""

    name: str
    dtype: int
    dims: tuple[Any, ...]


@dataclass
class PositionGraph:
    """A graph of `count` random nodes behind i, j and i - j."""

    seed: int
    count: int = 8
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.node("Shape", ["X"], INT64, (1,), pool=False)
        self.n = self.node("Squeeze", [self.nodes[-1].output[0]], INT64, ())
        dtype = int(self.rng.choice([INT64, INT64, TensorProto.INT32, TensorProto.FLOAT]))
        end = self.n.name if dtype == INT64 else self.node("Cast", [self.n.name], dtype, (), to=dtype).name
        first, step = self.pick([(0, 1)] * 5 + [(3, 1), (0, 2), (-2, -1)])
        if (first, step) != (0, 1):
            scaled = self.node("Mul", [end, self.number(step, dtype)], dtype, (), pool=False).name
            end = self.node("Add", [scaled, self.number(first, dtype)], dtype, (), pool=False).name
        ends = [self.number(first, dtype), end, self.number(step, dtype)]
        r = self.node("Range", ends, dtype, ("T",), pool=False).name
        i = self.node("Unsqueeze", [r, self.number([1])], dtype, ("T", 1))
        j = self.node("Unsqueeze", [r, self.number([0])], dtype, (1, "T"))
        if dtype in INTEGERS and self.rng.random() < 0.3:  # positions of chunks
            by = self.number(int(self.rng.integers(1, 6)), dtype)
            i, j = (self.node("Div", [each.name, by], dtype, each.dims) for each in (i, j))
        self.node("Sub", self.pick([[i.name, j.name], [j.name, i.name]]), dtype, ("T", "T"))
        while len(self.nodes) < self.count + 9:
            self.grow()

    def pick(self, given: Sequence[Any]) -> Any:
        return given[int(self.rng.integers(len(given)))]

    def number(self, numbers: Any, dtype: int = INT64) -> str:
        name = f"c{len(self.held)}"
        array = np.array(numbers).astype(helper.tensor_dtype_to_np_dtype(dtype))
        self.held.append(numpy_helper.from_array(array, name))
        return name

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        dtype: int,
        dims: Sequence[Any],
        *,
        pool: bool = True,
        **attributes: Any,
    ) -> Made:
        made = Made(f"v{len(self.nodes)}", dtype, tuple(dims))
        self.nodes.append(helper.make_node(op, inputs, [made.name], **attributes))
        if pool:
            self.values.append(made)
        return made

    # Operands

    def value(self, dtypes: Sequence[int] = CASTS) -> Made:
        """A value of one of these types, late ones more often; cast if there is none."""
        weights = np.array([1.3**n * (1 + made.dims.count("T")) ** 2 for n, made in enumerate(self.values)])
        made = self.values[int(self.rng.choice(len(self.values), p=weights / weights.sum()))]
        return made if made.dtype in dtypes else self.cast(made, self.pick(dtypes))

    def cast(self, made: Made, dtype: int) -> Made:
        return self.node("Cast", [made.name], dtype, made.dims, to=dtype)

    def constant(self, dtype: int, *, divides: bool = False) -> Made:
        if dtype == BOOL:
            numbers = self.pick([True, False])
        elif dtype in FLOATS:
            numbers = self.pick(
                [0.5, 0.1, 1 / 3, -0.3, 2.0, 3.0, -1.0, 4.5, 16.0, 1e4, -1e9, 1e-3, 1e30, np.inf, 0.0]
            )
        else:
            numbers = self.pick([1, 2, 3, 5, -1, -2, 7, 12, 64, 100, 0, 1000, 1 << 29])
        if dtype == TensorProto.UINT8:
            numbers = abs(numbers) % 256
        if divides and dtype not in FLOATS:
            numbers = numbers or 3
        if dtype != BOOL and self.rng.random() < 0.08:
            return Made(self.number([[[numbers]], [[numbers + 1 or 1]]], dtype), dtype, (2, 1, 1))
        return Made(self.number(numbers, dtype), dtype, ())

    def pair(self, dtypes: Sequence[int], *, divides: bool = False) -> tuple[Made, Made]:
        first = self.value(dtypes)
        if self.rng.random() < 0.6 or divides:
            second = self.constant(first.dtype, divides=divides)
        else:
            second = self.value(dtypes)
            second = second if second.dtype == first.dtype else self.cast(second, first.dtype)
            return first, second
        return (first, second) if divides or self.rng.random() < 0.7 else (second, first)

    @staticmethod
    def joined(*given: Made) -> tuple[Any, ...]:
        rank = max(len(each.dims) for each in given)
        padded = [(1,) * (rank - len(each.dims)) + each.dims for each in given]
        return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))

    def of(self, op: str, given: Sequence[Made], dtype: int | None = None, **attributes: Any) -> Made:
        dtype = given[0].dtype if dtype is None else dtype
        return self.node(op, [each.name for each in given], dtype, self.joined(*given), **attributes)

    # Nodes

    def grow(self) -> None:
        numbers = (*FLOATS, *INTEGERS)
        kind = self.rng.integers(20)
        if kind < 3:
            self.cast(self.value(), self.pick(CASTS))
        elif kind < 5:
            self.of(self.pick(["Add", "Sub"]), self.pair(numbers))
        elif kind < 7:
            self.of("Mul", self.pair(numbers))
        elif kind < 9:
            self.of("Div", self.pair(numbers, divides=True))
        elif kind < 10:
            given = self.pair(numbers, divides=True)
            self.of("Mod", given, fmod=1 if given[0].dtype in FLOATS else int(self.rng.integers(2)))
        elif kind < 11:
            self.clip(self.value(numbers))
        elif kind < 12:
            self.of(self.pick(["Floor", "Ceil", "Round"]), [self.value(FLOATS)])
        elif kind < 13:
            self.of(self.pick(["Abs", "Neg"]), [self.value(numbers)])
        elif kind < 14:
            self.of(
                *self.pick(
                    [("Pow", self.pair(numbers)), ("Log", [self.value(FLOATS)]), ("Exp", [self.value(FLOATS)])]
                )
            )
        elif kind < 16:
            self.of(self.pick(COMPARED), self.pair(numbers), BOOL)
        elif kind < 17:
            op = self.pick(["And", "Or", "Xor", "Not", "Max", "Min"])
            pair = self.pair(numbers if op in ("Max", "Min") else (BOOL,))
            self.of(op, pair[:1] if op == "Not" else pair)
        elif kind < 18:
            given = self.pair(numbers)
            self.of("Where", [self.value((BOOL,)), *given], given[0].dtype)
        else:
            self.move()

    def clip(self, value: Made) -> None:
        low, high = (
            self.number(n, value.dtype) if self.rng.random() < 0.7 else ""
            for n in sorted(self.rng.integers(-9, 20, 2))
        )
        self.node("Clip", [value.name, low, high], value.dtype, value.dims)

    def move(self) -> None:
        value, kind = self.value(), self.rng.integers(7)
        rank = len(value.dims)
        if kind == 0 and rank > 1:
            perm = [*map(int, self.rng.permutation(rank))]
            self.node("Transpose", [value.name], value.dtype, [value.dims[n] for n in perm], perm=perm)
        elif kind == 1 and value.dims[-2:] == ("T", "T") and value.dtype in (*FLOATS, INT64, BOOL):
            k = [self.number(int(self.rng.integers(-6, 7)))] if self.rng.random() < 0.7 else []
            self.node("Trilu", [value.name, *k], value.dtype, value.dims, upper=int(self.rng.integers(2)))
        elif kind == 2 and value.dtype in (INT64, TensorProto.INT32):
            low, high = (self.number(n, value.dtype) for n in (0, 6))
            index = self.node("Clip", [value.name, low, high], value.dtype, value.dims)
            table = self.number(
                self.rng.integers(-5, 5, (7, 2) if self.rng.random() < 0.3 else 7), TensorProto.FLOAT
            )
            tail = () if len(self.held[-1].dims) == 1 else (2,)
            self.node("Gather", [table, index.name], TensorProto.FLOAT, (*value.dims, *tail))
        elif kind == 3:
            at = int(self.rng.integers(rank + 1))
            self.node(
                "Unsqueeze", [value.name, self.number([at])], value.dtype, (*value.dims[:at], 1, *value.dims[at:])
            )
        elif kind == 4 and rank < 4:
            ends = [self.number([1]) if d == 1 and self.rng.random() < 0.5 else self.size(d) for d in value.dims]
            dims = [1 if self.held[-1].name == e and e != "" else d for e, d in zip(ends, value.dims, strict=True)]
            if ends:
                sizes = self.node("Concat", ends, INT64, (len(ends),), pool=False, axis=0)
                wide = tuple("T" if d == 1 and self.rng.random() < 0.3 else d for d in value.dims)
                op = self.pick(["Reshape", "Expand"])
                if op == "Expand" and wide != value.dims:
                    sizes = self.node("Concat", [self.size(d) for d in wide], INT64, (rank,), pool=False, axis=0)
                    dims = [*wide]
                self.node(op, [value.name, sizes.name], value.dtype, value.dims if op == "Reshape" else dims)
        elif kind == 5:
            square = (
                np.tril(np.ones((450, 450)))
                if self.rng.random() < 0.5
                else np.tri(450, k=3) * 2 - np.tri(450, k=-5)
            )
            dtype = self.pick((*FLOATS, INT64))
            table = self.number(square, dtype)
            end = self.size("T")
            both = self.node("Concat", [end, end], INT64, (2,), pool=False, axis=0).name
            self.node("Slice", [table, self.number([0, 0]), both], dtype, ("T", "T"))
        elif kind == 6 and "T" in value.dims:
            axis = value.dims.index("T")
            ends = [self.number([n]) for n in self.pick([(0, 5), (1, 2**62), (0, 2**62), (0, -1)])]
            self.node("Slice", [value.name, *ends, self.number([axis])], value.dtype, value.dims, pool=False)

    def size(self, dim: Any) -> str:
        if dim != "T":
            return self.number([dim])
        return self.node("Unsqueeze", [self.n.name, self.number([0])], INT64, (1,), pool=False).name

    # Whole graphs

    @cached_property
    def model(self) -> onnx.ModelProto:
        outputs = [
            helper.make_tensor_value_info(made.name, made.dtype, [None] * len(made.dims)) for made in self.values
        ]
        given = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T"])]
        graph = helper.make_graph(self.nodes, "positions", given, outputs, self.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def computed(self, lengths: Sequence[int]) -> dict[int, dict[str, Array]]:
        """What onnxruntime computes for so many frames, by name; nothing where it fails."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(self.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [made.name for made in self.values]
        return {
            n: dict(zip(names, session.run(names, {"X": np.zeros(n, np.float32)}), strict=True)) for n in lengths
        }

    def derived(self) -> Iterator[tuple[str, Any]]:
        """What is known of each value, by name."""
        model = ir.from_proto(self.model)
        known = StreamValues.start(model, {"X": (FRAMES,)})
        add_initializers(known, model.graph)
        for node in model.graph:
            try:
                infer(known, node)
                if node.op_type == "Slice":
                    cut_table(known, node)
                evaluate(known, node)
            except (SizingError, UnfollowedError):
                continue
        positions = Positions(known)
        for value in model.graph.outputs:
            with suppress(UnknownError):
                yield value.name or "", positions.of(value)


def fault(found: Any, arrays: dict[int, Array]) -> str | None:
    """What is wrong of what is said of a value, given its numbers by the number of frames; None if it is right."""
    if isinstance(found, PositionTable):
        return None
    for frames, array in arrays.items():
        wrong = (
            _fault_of_numbers(found, array, frames) if isinstance(found, Numbers) else _fault(found, array, frames)
        )
        if wrong:
            return f"{wrong} at {frames} frames"
    if isinstance(found, Distances) and len({a.ndim for a in arrays.values()}) == 1:
        short, long = min(arrays), max(arrays)
        cut = arrays[long][tuple(slice(n) for n in arrays[short].shape)]
        if (found.rows is None or long <= found.rows) and not _same(cut, arrays[short]):
            return f"the numbers at {short} and {long} frames differ"
    return None


def _same(first: Array, second: Array) -> bool:
    return bool(np.allclose(first.astype(np.float64), second.astype(np.float64), rtol=1e-6, atol=0, equal_nan=True))


def _fault_of_numbers(found: Numbers, array: Array, frames: int) -> str | None:
    rest = array.astype(np.float64) - float(found.frames) * frames
    for axis, step in found.steps.items():
        if array.shape[axis] != frames:
            return f"axis {axis} has no positions"
        shape = [frames if n == axis else 1 for n in range(array.ndim)]
        rest = rest - float(step) * (np.arange(frames) // found.cell).reshape(shape)
    loose = np.isinf(found.low) and np.isinf(found.high) and found.low != found.high
    inside = (rest >= found.low) & (rest <= found.high)
    return None if loose or inside.all() else f"is {rest[~inside][0]} and not from {found.low} to {found.high}"


def _fault(found: Distances, array: Array, frames: int) -> str | None:
    if found.rows is not None and frames > found.rows:
        return None
    if any(array.shape[axis] != frames for axis in found.axes):
        return "has other axes"
    matrix = np.moveaxis(array, found.axes, (-2, -1)).astype(np.float64)
    cell = found.cell
    if frames > cell and not _same(matrix[..., cell:, cell:], matrix[..., :-cell, :-cell]):
        return "depends on the position"
    apart = np.subtract.outer(np.arange(frames), np.arange(frames))
    for sign, tail in zip((-1, 1), found.tails, strict=True):
        beyond = apart * sign > found.reach
        if np.isinf(tail.bound) or not beyond.any():
            continue
        with np.errstate(all="ignore"):
            rest = matrix[..., beyond] - float(tail.slope) * apart[beyond]
        near = 1e-6 * (abs(float(tail.slope)) * frames + (tail.bound if np.isfinite(tail.bound) else 0.0))
        if np.isfinite(tail.bound) and not (np.abs(rest) <= tail.bound + (0 if tail.exact else near)).all():
            return f"side {sign}: {np.abs(rest).max()} is more than {tail.bound}"
        if tail.exact and not ((rest == rest[..., :1]) | np.isnan(rest) & np.isnan(rest[..., :1])).all():
            return f"side {sign}: is not constant, {rest.min()} to {rest.max()}"
        if tail.exact and not ((rest >= tail.low) & (rest <= tail.high) | np.isnan(rest)).all():
            return f"side {sign}: is {rest.reshape(-1)[0]}, not from {tail.low} to {tail.high}"
    return None
