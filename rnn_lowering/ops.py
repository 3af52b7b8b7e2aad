"""How a primitive operator is spelt at a given opset, on values that are read like the operator pages.

`Ops` emits nodes; a `Tensor` is what it emits them on and carries the arithmetic. A tensor is one of
* a value of the graph that is being built,
* a `Constant`, known at lowering time: operations on constants are folded, not emitted, and an initializer
  appears in whichever (sub)graph first uses one,
* a symbolic zero (an absent bias, peephole or initial state): operations on it vanish.

Nothing above this module knows an opset.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

Dims = tuple["int | None", ...]
Array = np.ndarray[Any, np.dtype[Any]]

_FAR_BEFORE_FIRST = -(2**31)
"""End of a backwards Slice; not the smallest int64, which some runtimes get wrong."""

_BLOCK_BYTES = 1 << 24

_LONGEST_WRITTEN = 1 << 20


class Names:
    """Names that are unique in the whole model: a body must not shadow a name of an outer scope."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """Return `hint`, or `hint_1`, `hint_2`, ... where it is taken."""
        name, count = hint, self._next.get(hint, 0)
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._next[hint] = count
        self._taken.add(name)
        return name


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor known at lowering time. It is read when it is written out, so that no copy of a large weight
    is held meanwhile.

    Attributes:
        read: Computes it.
        name: What an initializer of it is called.
        key: Equal for equal constants that were computed alike from the same value of the model; None: unknown.
    """

    dtype: ir.DataType
    shape: tuple[int, ...]
    read: Callable[[], Array]
    name: str = "const"
    key: Any = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return the tensor of an initializer or Constant node: an array if small, else a lazy one."""

        def evaluate() -> ir.TensorProtocol:
            return ir.Tensor(_contiguous(self.read()).reshape(self.shape), dtype=self.dtype, name=name)

        if self.size <= 1024:
            return evaluate()
        return ir.LazyTensor(evaluate, dtype=self.dtype, shape=ir.Shape(self.shape), name=name)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value (None: a symbolic zero) with its known dimensions and the emitter that its operators call."""

    value: ir.Value | Constant | None
    dtype: ir.DataType
    shape: Dims
    op: Ops

    @property
    def is_zero(self) -> bool:
        return self.value is None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __add__(self, other: Tensor) -> Tensor:
        return self.op.add(self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return self.op.sub(self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return self.op.mul(self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.op.matmul(self, other)


@dataclass
class _Scope:
    """The (sub)graph under construction."""

    constants_as: str  # "initializer" or "node"
    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    cache: dict[Any, ir.Value] = field(default_factory=dict)


def broadcast(*shapes: Dims) -> Dims:
    """Return the dimensions of an element-wise result; None where they are not known."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]

    def one(dims: tuple[int | None, ...]) -> int | None:
        sizes = [d for d in dims if d != 1]
        known = [d for d in sizes if d is not None]
        return known[0] if known else (None if sizes else 1)

    return tuple(one(dims) for dims in zip(*padded, strict=True))


class Ops:
    """Emits primitive operators of one opset, in the scope that is open.

    Args:
        opset: Version of the default domain at which nodes are spelt.
        names: The name generator of the model.
        prefix: What the names of emitted values start with: the original node's name.
        dtype: Element type of the recurrence.
        constants_as: "initializer", or "node" where initializers would have to be inputs too (IR version 3).
        shared: The constants that earlier nodes brought into the same graph; this one's are added.
    """

    def __init__(
        self,
        opset: int,
        names: Names,
        prefix: str,
        dtype: ir.DataType,
        constants_as: str = "initializer",
        shared: dict[Any, ir.Value] | None = None,
    ) -> None:
        self.opset = opset
        self.dtype = dtype
        self._names = names
        self._prefix = prefix
        self._scopes = [_Scope(constants_as, cache={} if shared is None else shared)]

    # Scopes, names and emission

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the open scope, in order."""
        return self._scopes[-1].nodes

    @property
    def initializers(self) -> list[ir.Value]:
        """The initializers that the open scope needs."""
        return self._scopes[-1].initializers

    @contextmanager
    def under(self, part: str) -> Iterator[None]:
        """Let the names of what is emitted meanwhile start with `part` below the present prefix."""
        before, self._prefix = self._prefix, f"{self._prefix}/{part}" if part else self._prefix
        yield
        self._prefix = before

    @contextmanager
    def body(self) -> Iterator[None]:
        """Emit into a new scope, the body of a Scan or Loop, whose constants are its own."""
        self._scopes.append(_Scope(self._scopes[0].constants_as))
        yield
        self._scopes.pop()

    def body_input(self, hint: str, dtype: ir.DataType, shape: Dims) -> Tensor:
        """Return a declared input of the open body; `shape` is given without symbolic names."""
        value = ir.Value(
            name=self._names.unique(f"{self._prefix}/{hint}"),
            type=ir.TensorType(dtype),
            shape=ir.Shape(shape),
        )
        return Tensor(value, dtype, shape, self)

    def body_graph(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ir.Graph:
        """Return the open scope as a graph. Each output becomes a value of its own that a node of this scope
        computes: onnxruntime's Scan is wrong when one value is listed twice."""
        seen: set[ir.Value] = set()
        values = []
        for tensor in outputs:
            value = self.output(tensor)
            if value in seen:
                value = self.value(self.identity(tensor))
            seen.add(value)
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
            values.append(value)
        return ir.Graph(
            [self.value(t) for t in inputs],
            values,
            nodes=self.nodes,
            initializers=self.initializers,
            name=self._names.unique(f"{self._prefix}/body"),
        )

    def output(self, tensor: Tensor) -> ir.Value:
        """Return a value that a node of the open scope computes: `tensor`, or an Identity of it."""
        value = self.value(tensor)
        producer = value.producer()
        if producer is not None and any(node is producer for node in reversed(self.nodes)):
            return value
        return self.value(self.identity(tensor))

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        shapes: Sequence[Dims],
        dtypes: Sequence[ir.DataType] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Append a node to the open scope; one output per entry of `shapes`, of `dtypes` or the recurrence's."""
        node = ir.Node(
            "",
            op_type,
            [None if t is None else self.value(t) for t in inputs],
            [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()],
            num_outputs=len(shapes),
            name=self._names.unique(f"{self._prefix}/{op_type}"),
        )
        for value in node.outputs:
            value.name = self._names.unique(f"{self._prefix}/{op_type}_output")
        self.nodes.append(node)
        types = dtypes or [self.dtype] * len(shapes)
        return [Tensor(v, d, s, self) for v, d, s in zip(node.outputs, types, shapes, strict=True)]

    def name(self, **symbols: Tensor) -> None:
        """Give values the symbols of the operator page: `op.name(Ht=H)`."""
        for symbol, tensor in symbols.items():
            if isinstance(tensor.value, ir.Value) and tensor.value.producer() is not None:
                tensor.value.name = self._names.unique(f"{self._prefix}/{symbol}")

    def declare(self, tensors: Sequence[Tensor]) -> None:
        """Write types and shapes of values into the model, where all dimensions are known."""
        for tensor in tensors:
            if isinstance(tensor.value, ir.Value) and None not in tensor.shape:
                tensor.value.type, tensor.value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)

    def value(self, tensor: Tensor) -> ir.Value:
        """Return the graph value of a tensor; a constant becomes one of the open scope."""
        if isinstance(tensor.value, ir.Value):
            return tensor.value
        constant = tensor.value
        if constant is None:
            constant = _zeros(tensor.dtype, _static(tensor.shape))
        scope = self._scopes[-1]
        key = self._key(constant)
        if key not in scope.cache:
            scope.cache[key] = self._write_constant(scope, constant)
        return scope.cache[key]

    @staticmethod
    def _key(constant: Constant) -> Any:
        if constant.size <= 16:
            return constant.dtype, constant.shape, np.asarray(constant.read()).tobytes()
        return constant if constant.key is None else (constant.key, constant.shape)

    def _write_constant(self, scope: _Scope, constant: Constant) -> ir.Value:
        name = self._names.unique(f"{self._prefix}/{constant.name}")
        tensor = constant.tensor(name)
        if scope.constants_as == "initializer":
            value = ir.Value(
                name=name,
                type=ir.TensorType(constant.dtype),
                shape=ir.Shape(constant.shape),
                const_value=tensor,
            )
            scope.initializers.append(value)
            return value
        as_float = self.opset < 9 and not constant.dtype.is_floating_point()  # Constant-1 holds floats only
        held = ir.tensor(constant.read().astype(np.float32), name=name) if as_float else tensor
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", held)], name=self._names.unique(f"{name}_node"))
        node.outputs[0].name = name
        scope.nodes.append(node)
        if not as_float:
            return node.outputs[0]
        source = Tensor(node.outputs[0], ir.DataType.FLOAT, constant.shape, self)
        return self.value(self.cast(source, constant.dtype))

    # Constants

    def constant(self, number: float | Sequence[int], dtype: ir.DataType | None = None) -> Tensor:
        """Return a number, or a 1-D tensor of integers, as a constant of `dtype` or the recurrence's type."""
        dtype = dtype or (self.dtype if isinstance(number, float) else ir.DataType.INT64)
        array = np.array(number).astype(dtype.numpy())
        return self.known(Constant(dtype, array.shape, lambda: array))

    def known(self, constant: Constant) -> Tensor:
        return Tensor(constant, constant.dtype, constant.shape, self)

    def given(self, value: ir.Value, dtype: ir.DataType, shape: Dims) -> Tensor:
        """Return a value that exists already."""
        return Tensor(value, dtype, shape, self)

    def zero(self, shape: Dims) -> Tensor:
        """Return a symbolic zero: no node, no tensor, until something needs its numbers."""
        return Tensor(None, self.dtype, shape, self)

    def _folded(self, label: Any, function: Callable[..., Array], shape: Dims, *args: Tensor) -> Tensor | None:
        """Return function(*args) as a constant, or None when not all arguments are constants. Equal labels mean
        equal functions."""
        constants = [t.value for t in args if isinstance(t.value, Constant)]
        if len(constants) != len(args):
            return None
        first = constants[0]
        keys = tuple(c.key for c in constants)
        return self.known(
            Constant(
                first.dtype,
                _static(shape),
                lambda: function(*(c.read() for c in constants)),
                first.name,
                key=None if None in keys else (label, keys),
            )
        )

    # Arithmetic

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return b if a.is_zero else a
        return self._binary("Add", np.add, a, b)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return self.neg(b) if a.is_zero else a
        return self._binary("Sub", np.subtract, a, b)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        if a.is_zero or b.is_zero:
            return self.zero(broadcast(a.shape, b.shape))
        return self._binary("Mul", np.multiply, a, b)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        return self._binary("Div", np.divide, a, b)

    def _binary(self, op_type: str, function: Callable[..., Array], a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast(a.shape, b.shape)
        return self._folded(op_type, function, shape, a, b) or self.emit(op_type, [a, b], [shape], [a.dtype])[0]

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """a [..., m, k] @ b [k, n]."""
        shape = (*a.shape[:-1], b.shape[-1])
        return self.zero(shape) if a.is_zero else self.emit("MatMul", [a, b], [shape])[0]

    def neg(self, x: Tensor) -> Tensor:
        return x if x.is_zero else self.unary("Neg", x)

    def unary(self, op_type: str, x: Tensor, **attributes: float) -> Tensor:
        """An element-wise operator of one input."""
        return self.emit(op_type, [x], [x.shape], [x.dtype], **attributes)[0]

    def clip(self, x: Tensor, bound: float) -> Tensor:
        """Bound x to [-bound, bound]."""
        if self.dtype == ir.DataType.DOUBLE and self.opset < 12:  # onnxruntime: no kernel
            limit = self.constant(bound)
            over, under = self.unary("Relu", x - limit), self.unary("Relu", self.neg(x + limit))
            return x - over + under
        if self.opset < 11:
            return self.unary("Clip", x, min=-bound, max=bound)
        return self.emit("Clip", [x, self.constant(-bound), self.constant(bound)], [x.shape])[0]

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast(a.shape, b.shape)
        folded = self._folded("Less", np.less, shape, a, b)
        if folded is not None:
            assert isinstance(folded.value, Constant)
            return self.known(Constant(ir.DataType.BOOL, folded.value.shape, folded.value.read, "mask"))
        if self.opset < 9 and not a.dtype.is_floating_point():
            a, b = self.cast(a, ir.DataType.FLOAT), self.cast(b, ir.DataType.FLOAT)
        return self.emit("Less", [a, b], [shape], [ir.DataType.BOOL])[0]

    def selector(self, mask: Tensor) -> Tensor:
        """Return what `select` takes to choose between two tensors by a mask [seq, batch, 1].

        From opset 9, which has Where: the mask. Before: the rows to pick from (old rows, new rows), [seq, batch].
        """
        if self.opset >= 9:
            return mask
        int64 = ir.DataType.INT64
        batch = self.dim(mask, 1)
        rows = self.unsqueeze(self.cast(self.steps(batch), int64), [0])  # [1, batch]
        return self.cast(self.squeeze(mask, [2]), int64) * batch + rows

    def select(self, mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
        """`new` where the mask is true, else `old`; what is not selected may be NaN.

        Before opset 9 `old` is a symbolic zero and `new` is finite, or the mask is a `selector`.
        """
        if isinstance(mask.value, Constant) and mask.dtype == ir.DataType.BOOL:
            known = mask.value.read()
            if known.all() or not known.any():
                return new if known.all() else old
        if new.is_zero and old.is_zero:
            return old
        shape = broadcast(new.shape, old.shape)
        if mask.dtype == ir.DataType.INT64:
            rows = new.rank - 2
            picks = self.squeeze(mask, [0]) if mask.rank > 1 else mask
            both = self.concat([old, new], axis=rows)
            return self.emit("Gather", [both, picks], [shape], axis=rows)[0]
        if self.opset < 9:
            assert old.is_zero
            return new * self.cast(mask, self.dtype)
        new, old = (self.constant(0.0) if t.is_zero else t for t in (new, old))
        return self.emit("Where", [mask, new, old], [broadcast(mask.shape, shape)])[0]

    @staticmethod
    def is_true(mask: Tensor) -> bool:
        """Whether a mask is known to be true everywhere."""
        return isinstance(mask.value, Constant) and bool(mask.value.read().all())

    # Data movement

    def identity(self, x: Tensor) -> Tensor:
        return self.emit("Identity", [x], [x.shape], [x.dtype])[0]

    def cast(self, x: Tensor, dtype: ir.DataType) -> Tensor:
        if x.dtype == dtype:
            return x
        if isinstance(x.value, Constant):
            held = x.value
            key = None if held.key is None else (("Cast", dtype), held.key)
            return self.known(Constant(dtype, held.shape, lambda: _cast(held.read(), dtype), held.name, key))
        return self.emit("Cast", [x], [x.shape], [dtype], to=int(dtype))[0]

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        shape = tuple(x.shape[axis] for axis in perm)
        return (
            self._folded(("Transpose", *perm), lambda a: a.transpose(perm), shape, x)
            or self.emit("Transpose", [x], [shape], [x.dtype], perm=list(perm))[0]
        )

    def split(self, x: Tensor, sizes: Sequence[int], axis: int = -1) -> list[Tensor]:
        """Cut x into parts of the given sizes."""
        if len(sizes) == 1:
            return [x]
        axis %= x.rank
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        if x.is_zero:
            return [self.zero(shape) for shape in shapes]
        if isinstance(x.value, Constant):
            ends = np.cumsum(sizes).tolist()
            return [
                self._cut(x, axis, end - size, end, shape)
                for size, end, shape in zip(sizes, ends, shapes, strict=True)
            ]
        types = [x.dtype] * len(sizes)
        if self.opset < 13:
            return self.emit("Split", [x], shapes, types, axis=axis, split=list(sizes))
        return self.emit("Split", [x, self.constant(list(sizes))], shapes, types, axis=axis)

    def _cut(self, x: Tensor, axis: int, start: int, end: int, shape: Dims) -> Tensor:
        where = (slice(None),) * axis + (slice(start, end),)
        part = self._folded(("Slice", axis, start, end), lambda a: a[where], shape, x)
        assert part is not None
        return part

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        sizes = [p.shape[axis] for p in parts]
        total = None if None in sizes else sum(s for s in sizes if s is not None)
        shape = tuple(
            total if n == axis else next((p.shape[n] for p in parts if p.shape[n] is not None), None)
            for n in range(parts[0].rank)
        )
        if all(p.is_zero for p in parts):
            return self.zero(shape)
        parts = [self.known(_zeros(p.dtype, _static(p.shape))) if p.is_zero else p for p in parts]
        folded = self._folded(("Concat", axis), lambda *arrays: np.concatenate(arrays, axis), shape, *parts)
        return folded or self.emit("Concat", parts, [shape], [parts[0].dtype], axis=axis)[0]

    def unsqueeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Insert dimensions of 1 at the given (non-negative) axes of the result."""
        dims = list(x.shape)
        for axis in sorted(axes):
            dims.insert(axis, 1)
        return self._reshaping("Unsqueeze", x, axes, tuple(dims))

    def squeeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Drop dimensions of 1."""
        return self._reshaping("Squeeze", x, axes, tuple(d for n, d in enumerate(x.shape) if n not in axes))

    def _reshaping(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Dims) -> Tensor:
        if x.is_zero:
            return self.zero(shape)
        if isinstance(x.value, Constant):
            static = _static(shape)
            folded = self._folded(("Reshape", static), lambda a: a.reshape(static), shape, x)
            assert folded is not None
            return folded
        if self.opset < 13:
            return self.emit(op_type, [x], [shape], [x.dtype], axes=list(axes))[0]
        return self.emit(op_type, [x, self.constant(list(axes))], [shape], [x.dtype])[0]

    def can_flip(self, x: Tensor) -> bool:
        """Whether `flip` is possible: a Slice with steps needs opset 10."""
        return _is_short(x.shape[0]) or self.opset >= 10

    def reshape(self, x: Tensor, sizes: Sequence[Tensor], shape: Dims) -> Tensor:
        """x with the given sizes, each an int64 [1]; a size of 0 is that of x."""
        return self.emit("Reshape", [x, self.concat(sizes, axis=0)], [shape], [x.dtype])[0]

    def flip(self, x: Tensor) -> Tensor:
        """Reverse x along axis 0: by a Gather of constant indices where the length is known, else by a Slice
        with step -1."""
        length = x.shape[0]
        if length == 1:
            return x
        if isinstance(x.value, Constant):
            folded = self._folded("Flip", lambda a: a[::-1], x.shape, x)
            assert folded is not None
            return folded
        if length is not None and _is_short(length):
            return self.take(x, self.constant(range(length - 1, -1, -1)))
        bounds = [self.constant([n]) for n in (-1, _FAR_BEFORE_FIRST, 0, -1)]  # starts, ends, axes, steps
        return self.emit("Slice", [x, *bounds], [x.shape], [x.dtype])[0]

    # Run-time sizes

    def dim(self, x: Tensor, axis: int) -> Tensor:
        """The size of an axis, int64 [1]."""
        size = x.shape[axis]
        if size is not None:
            return self.constant([size])
        shape = self.emit("Shape", [x], [(x.rank,)], [ir.DataType.INT64])[0]
        return self.emit("Gather", [shape, self.constant([axis])], [(1,)], [ir.DataType.INT64], axis=0)[0]

    def zeros(self, sizes: Sequence[Tensor]) -> Tensor:
        """Zeros of the recurrence's type; each size is an int64 [1]."""
        dims = tuple(int(s.value.read()[0]) if isinstance(s.value, Constant) else None for s in sizes)
        if None not in dims and _is_short(math.prod(_static(dims))):
            return self.known(_zeros(self.dtype, _static(dims)))
        shape = self.concat(sizes, axis=0)
        if self.opset < 9:
            return self.emit("Tile", [self.known(_zeros(self.dtype, (1,) * len(dims))), shape], [dims])[0]
        zero = ir.Tensor(np.zeros(1, self.dtype.numpy()), dtype=self.dtype)
        return self.emit("ConstantOfShape", [shape], [dims], value=zero)[0]

    def steps(self, length: Tensor) -> Tensor:
        """0, 1, ..., length - 1 as int32 [length]; `length` is an int64 [1]."""
        int32, int64 = ir.DataType.INT32, ir.DataType.INT64
        count = int(length.value.read()[0]) if isinstance(length.value, Constant) else None
        if count is not None and _is_short(count):
            return self.known(Constant(int32, (count,), lambda: np.arange(count, dtype=np.int32), "steps"))
        if self.opset < 9:
            counted = self._counted(length)
        elif self.opset < 11:  # no Range: the indices of as many ones
            one = ir.Tensor(np.ones(1, np.float32))
            ones = self.emit("ConstantOfShape", [length], [(None,)], value=one)
            counted = self.squeeze(self.emit("NonZero", ones, [(1, None)], [int64])[0], [0])
        else:
            bounds = [self.constant(0, int64), self.squeeze(length, [0]), self.constant(1, int64)]
            counted = self.emit("Range", bounds, [(None,)], [int64])[0]
        return self.cast(counted, int32)

    def _counted(self, length: Tensor) -> Tensor:
        """0, 1, ..., length - 1 as int64 [length], from the iterations of a Loop."""
        int64 = ir.DataType.INT64
        trips = self.squeeze(length, [0])
        with self.body():
            i, going = self.loop_inputs()
            carried = self.body_input("trips", int64, ())  # a Loop before opset 11 must carry something
            body = self.body_graph([i, going, carried], [going, carried, i])
        return self.emit("Loop", [trips, self.true(), trips], [(), (None,)], [int64] * 2, body=body)[1]

    def loop_inputs(self) -> tuple[Tensor, Tensor]:
        """The first two inputs of a Loop body: the iteration number and the condition, of rank 0."""
        return self.body_input("i", ir.DataType.INT64, ()), self.body_input("going", ir.DataType.BOOL, ())

    def true(self) -> Tensor:
        """The condition of a Loop that runs all its iterations."""
        return self.known(Constant(ir.DataType.BOOL, (), lambda: np.array(True), "true"))

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """x[index] along axis 0; `index` is of rank 0 (the axis goes) or 1."""
        return self.emit("Gather", [x, index], [(*index.shape, *x.shape[1:])], [x.dtype], axis=0)[0]


def _is_short(length: int | None) -> bool:
    """Whether something of this many numbers is written out, rather than made at run time."""
    return length is not None and length <= _LONGEST_WRITTEN


def _static(shape: Dims) -> tuple[int, ...]:
    sizes = tuple(d for d in shape if d is not None)
    if len(sizes) != len(shape):
        raise AssertionError(f"a constant needs known dimensions, not {shape}")
    return sizes


def _contiguous(view: Array) -> Array:
    """Copy a view in blocks, giving back the memory of a mapped file as it goes."""
    base: Any = view
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or view.nbytes <= _BLOCK_BYTES:
        return np.array(view, order="C")
    copy = np.empty(view.shape, view.dtype)
    axis = int(np.argmax(np.abs(view.strides)))
    count = -(-view.nbytes // _BLOCK_BYTES)
    for rows in np.array_split(np.arange(view.shape[axis]), count):
        block = (slice(None),) * axis + (slice(int(rows[0]), int(rows[-1]) + 1) if rows.size else slice(0),)
        copy[block] = view[block]
        base.madvise(mmap.MADV_DONTNEED)
    return copy


def _cast(array: Array, dtype: ir.DataType) -> Array:
    return array.astype(dtype.numpy())


@lru_cache(maxsize=64)
def _zeros(dtype: ir.DataType, shape: tuple[int, ...]) -> Constant:
    return Constant(dtype, shape, lambda: np.zeros(shape, dtype.numpy()), "zeros")
