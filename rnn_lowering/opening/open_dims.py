"""Open axes of inputs whose size an exporter fixed: the numbers that were this size follow it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.operators import TO_THE_END, default_opset, input_slots, parameter
from rnn_lowering.facts.size import Shape, Size, Symbol, size
from rnn_lowering.model.copying import inline_functions
from rnn_lowering.model.model_sizes import forget_sizes
from rnn_lowering.model.onnx_checks import is_sound
from rnn_lowering.model.scopes import all_names, sort_nodes
from rnn_lowering.opening.follow_sizes import SizeWalk
from rnn_lowering.opening.questions import Opened, ref
from rnn_lowering.opening.rows import RowsBySymbol, rows_of_outputs
from rnn_lowering.passes.stages import Work

NO_SIZES: Mapping[str, int] = MappingProxyType({})

_PRIMES = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079)


def open_dims(
    model: ir.Model, dims: Mapping[str, str], most_nodes: int, sizes: Mapping[str, int] = NO_SIZES
) -> list[str]:
    """Open axes of inputs in place; return what was changed, as text.

    Args:
        model: The model.
        dims: By INPUT:AXIS, the name that the size gets.
        most_nodes: Maximum nodes, once functions are inlined.
        sizes: By name, the size of an axis that is declared open, though the model has its size.

    Raises:
        OptionError: An axis that the model does not have, or that is open already.
        UnsupportedError: A number may be the size or not, or a node cannot have other sizes.
    """
    walk = _followed(model, dims, most_nodes, sizes)
    known, axes = walk.known, walk.axes
    writer = _Writer(model, walk.opset, known, axes, walk.names)
    notes = [text for opened in walk.opened.values() for text in writer.write(opened)]
    for value in model.graph.inputs:
        if value.shape is not None:
            names = [axes.get((value.name or "", n)) for n in range(len(value.shape))]
            opened = [
                dim if name in (None, *walk.free) else name for name, dim in zip(names, value.shape, strict=True)
            ]
            value.shape = ir.Shape(opened)
    for value in model.graph.outputs:
        if value in known.shapes:
            value.shape = ir.Shape([_declared(dim) for dim in known.shapes[value]])
    return notes


def exported_dims(model: ir.Model, axes: Collection[str], dims: Mapping[str, int]) -> dict[str, int]:
    """Return which of some sizes are the names of axes to open: the model was exported with them."""
    names = {
        str(dim.value)
        for value in model.graph.inputs
        for n, dim in enumerate(value.shape or ())
        if isinstance(dim, ir.SymbolicDim) and f"{value.name}:{n}" in axes
    }
    return {name: size for name, size in dims.items() if name in names}


@dataclass(frozen=True)
class OpenSizes:
    """The sizes of a model with open axes.

    Attributes:
        exported: By symbol, the size that the model was exported with.
        axes: By input and axis, the symbol of its size, also of axes that were open before.
        shapes: The shapes of all values.
        outputs: The shape of each output.
        rows: What each output follows from, by symbol (see `opening/rows`).
    """

    exported: Mapping[Symbol, int]
    axes: Mapping[tuple[str, int], str]
    shapes: Collection[Shape]
    outputs: Mapping[str, Shape]
    rows: Mapping[str, RowsBySymbol]


def open_sizes(model: ir.Model, dims: Mapping[str, str], most_nodes: int) -> OpenSizes:
    """Return the sizes that a model has once `open_dims` opens these axes; the model changes.

    Raises:
        OptionError, UnsupportedError: As in `open_dims`.
    """
    walk = _followed(model, dims, most_nodes)
    known = walk.known
    outputs = {value.name or "": known.shapes[value] for value in model.graph.outputs if value in known.shapes}
    rows = rows_of_outputs(model, known, walk.axes)
    exported: dict[Symbol, int] = {
        symbol: walk.exported[symbol] for symbol in walk.axes.values() if symbol not in walk.free
    }
    return OpenSizes(exported, walk.axes, known.shapes.values(), outputs, rows)


def _followed(
    model: ir.Model, dims: Mapping[str, str], most_nodes: int, sizes: Mapping[str, int] = NO_SIZES
) -> SizeWalk:
    """Follow the open sizes through a model, whose functions are inlined."""
    axes, exported = _symbols_of_axes(model, dims, sizes)
    free = _free_axes(model, axes, exported)
    inline_functions(model, lambda _: True, most_nodes)
    sort_nodes(model)
    if not is_sound(model):
        raise UnsupportedError(
            "the model is not valid, so its sizes cannot be followed", hint="check it with onnx.checker"
        )
    forget_sizes(model)
    names = Names(all_names(model))
    walk = SizeWalk(model, default_opset(model.opset_imports), axes, exported, names, free)
    walk.run()
    return walk


def _symbols_of_axes(
    model: ir.Model, dims: Mapping[str, str], sizes: Mapping[str, int]
) -> tuple[dict[tuple[str, int], str], dict[Symbol, int]]:
    """Return the symbol of each axis, and the size of each symbol."""
    inputs = {value.name: value for value in model.graph.inputs if not value.is_initializer()}
    listed = ", ".join(
        f"{name}:{n}"
        for name, value in inputs.items()
        for n, dim in enumerate(value.shape or ())
        if isinstance(dim, int)
    )
    hint = f"axes of fixed size are {listed}" if listed else "the model has no axis of fixed size"
    axes: dict[tuple[str, int], str] = {}
    exported: dict[Symbol, int] = {}
    taken = {
        str(dim): f"axis {n} of '{name}'"
        for name, value in inputs.items()
        for n, dim in enumerate(value.shape or ())
        if isinstance(dim, ir.SymbolicDim)
    }
    for text, symbol in dims.items():
        name, _, number = text.rpartition(":")
        shape = inputs[name].shape if name in inputs else None
        if shape is None or not number.isdecimal() or int(number) >= len(shape):
            raise OptionError(f"the model has no axis '{text}' to open", hint=hint)
        dim = shape[int(number)]
        if isinstance(dim, int) and symbol in taken:
            raise OptionError(
                f"'{symbol}' is already the name of {taken[symbol]}",
                hint=f"choose another name: --open-dim {quote(f'{text}=')}NAME",
            )
        if isinstance(dim, ir.SymbolicDim):
            dim = sizes.get(str(dim.value), dim)
        if not isinstance(dim, int):
            raise OptionError(
                f"axis {number} of '{name}' is open already: its name is '{dim}'",
                hint=f"{hint}; if it runs at one size only, say which: --set-dim {quote(f'{dim}=')}?",
            )
        if exported.setdefault(symbol, dim) != dim:
            raise OptionError(
                f"'{symbol}' is the name of axes of {exported[symbol]} and {dim}",
                hint="give each size a name of its own",
            )
        axes[name, int(number)] = symbol
    return axes, exported


def _free_axes(model: ir.Model, axes: dict[tuple[str, int], str], exported: dict[Symbol, int]) -> frozenset[str]:
    """Add the axes of inputs that are open already; return their symbols. Each has a prime as its size, which no
    number of the model means."""
    alike: dict[str | None, str] = {}
    inputs = {value.name or "": value.shape or () for value in model.graph.inputs}
    for (name, n), symbol in axes.items():
        dim = inputs[name][n]
        if isinstance(dim, ir.SymbolicDim):
            alike[dim.value] = symbol
    free: dict[str, None] = {}
    for name, shape in inputs.items():
        for n, dim in enumerate(shape):
            if isinstance(dim, ir.SymbolicDim) and (name, n) not in axes:
                axes[name, n] = symbol = alike.get(dim.value, dim.value or f"{name}_{n}")
                if symbol not in exported:
                    exported[symbol] = _PRIMES[len(free) % len(_PRIMES)]
                    free[symbol] = None
    return frozenset(free)


def _text(number: Size) -> str:
    """Return a size as one writes it: t - 2."""
    text = ""
    for monomial, factor in sorted(number.terms, key=lambda term: not term[0]):
        names = "*".join(map(str, monomial))
        times = "" if abs(factor) == 1 and names else str(abs(factor)) + "*" * bool(names)
        sign = " - " if factor < 0 else " + "
        text += (sign if text else sign.strip(" +")) + times + names
    return text or "0"


def _declared(dim: Size) -> int | str | None:
    constant = dim.constant
    return str(dim) if constant is None else int(constant)


@dataclass
class _Writer:
    """Writes the numbers that are sizes into the nodes that read them."""

    model: ir.Model
    opset: int
    known: KnownValues
    axes: Mapping[tuple[str, int], str]
    names: Names
    sizes: dict[Symbol, ir.Value] = field(default_factory=dict)

    def write(self, opened: Opened) -> Iterator[str]:
        """Give a node the numbers; yield what changed."""
        node, was = opened.node, self.known.parameter(opened.node, opened.name) or []
        if list(opened.numbers) == was:
            return
        changed = [f"{a} is {_text(b)}" for a, b in zip(was, opened.numbers, strict=True) if a != b]
        numbers = self._without_symbols(opened)
        held = parameter(node, opened.name, self.opset)
        if any(number.symbols for number in numbers):
            value = self._computed(node, numbers, held)
        else:
            value = self._constant(node, [int(n.constant or 0) for n in numbers])
        slot = input_slots(node.op_type, self.opset).get(opened.name)
        if slot is None:
            raise UnsupportedError(
                f"its {opened.name} is an attribute at opset {self.opset}, which cannot be a size",
                node=ref(node),
            )
        node.replace_input_with(slot, value)
        if changed:
            yield f"{ref(node)}: {' and '.join(changed)}"

    def _without_symbols(self, opened: Opened) -> list[Size]:
        """Return the numbers, with what stands for a size of the input in its place."""
        node, numbers = opened.node, list(opened.numbers)
        before = self.known.shape(node.inputs[0])
        if node.op_type == "Slice":
            axes = self.known.parameter(node, "axes") or [size(n) for n in range(len(numbers))]
            return [
                size(TO_THE_END) if n.symbols and before[int(axis.constant or 0)] == n else n
                for n, axis in zip(numbers, axes, strict=True)
            ]
        if node.op_type == "Expand":
            start = len(numbers) - len(before)
            return [
                size(1) if k >= start and n.symbols and before[k - start] == n else n for k, n in enumerate(numbers)
            ]
        if node.op_type == "Reshape":
            if not node.attributes.get_int("allowzero", 0):
                numbers = [
                    size(0) if n.symbols and k < len(before) and before[k] == n else n
                    for k, n in enumerate(numbers)
                ]
            left = [k for k, n in enumerate(numbers) if n.symbols]
            if len(left) == 1 and size(-1) not in numbers:
                numbers[left[0]] = size(-1)
        return numbers

    # Nodes

    def _add(self, before: ir.Node, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        name = self.names.unique(f"open/{op_type}")
        node = ir.node(op_type, inputs, attributes, name=name, outputs=[ir.Value(name=self.names.unique(name))])
        assert before.graph is not None
        before.graph.insert_before(before, node)
        return node.outputs[0]

    def _constant(self, before: ir.Node, numbers: Sequence[int]) -> ir.Value:
        return self._add(before, "Constant", [], value=ir.tensor(np.array(numbers, np.int64)))

    def _computed(self, node: ir.Node, numbers: Sequence[Size], held: object) -> ir.Value:
        parts = [self._size(node, number) for number in numbers]
        value = self._add(node, "Concat", parts, axis=0) if len(parts) > 1 else parts[0]
        if node.op_type == "Range":
            value = self._add(node, "Reshape", [value, self._constant(node, [])])
            dtype = held.dtype if isinstance(held, ir.Value) else None
            if dtype not in (None, ir.DataType.INT64):
                value = self._add(node, "Cast", [value], to=int(dtype))
        return value

    def _size(self, node: ir.Node, number: Size) -> ir.Value:
        """Return a size as a tensor of one integer."""
        if any(factor.denominator != 1 for _, factor in number.terms):
            raise UnsupportedError(f"a size of {number} is not computed", node=ref(node))
        if number.constant is not None:
            return self._constant(node, [int(number.constant)])
        terms = []
        for monomial, factor in number.terms:
            term = self._constant(node, [int(factor)])
            for symbol in monomial:
                term = self._add(node, "Mul", [term, self._of_input(symbol)])
            terms.append(term)
        total = terms[0]
        for term in terms[1:]:
            total = self._add(node, "Add", [total, term])
        return total

    def _of_input(self, symbol: Symbol) -> ir.Value:
        """Return the size of an input's axis; it is computed before all nodes."""
        if symbol not in self.sizes:
            name, axis = next(place for place, held in self.axes.items() if held == symbol)
            value = next(v for v in self.model.graph.inputs if v.name == name)
            first = self.model.graph[0]
            shape = self._add(first, "Shape", [value])
            self.sizes[symbol] = self._add(first, "Gather", [shape, self._constant(first, [axis])], axis=0)
        return self.sizes[symbol]


# The stage that opens axes whose size an exporter fixed.


def open_axes(work: Work) -> None:
    """Open the axes that the options name. A size that they give one of these says which size the model has."""
    axes = work.lowering.open_dims
    work.exported = exported_dims(work.model, axes, work.lowering.dims)
    work.report.notes += open_dims(work.model, axes, work.lowering.max_nodes, work.exported)
