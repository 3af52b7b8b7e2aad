"""A graph or body that is being built: its nodes and constants, their names, and metadata with equations.

An emitted node has metadata (`metadata_props`): the name (`NODE`) and operator (`OPERATOR`) of the recurrent node
that it was emitted for, the symbols that the operator specification uses for its outputs (`SYMBOLS`), and those of
the weights among its inputs (`WEIGHTS`). Unrolled steps are all alike, so only the nodes of two steps in the
middle have metadata. Theirs has the number of the step (`STEP`), after the direction if there are two, in place of
name and operator.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.operators import detach, is_used


@dataclass
class Draft:
    """A (sub)graph under construction.

    Attributes:
        nodes, initializers: Those that were added.
        cache: The values of its constants by `Constant.key`; earlier nodes may have brought some of them.
        added: The keys of the constants that were added.
        matrices: The products of rank 2.
        made: The outputs of what was emitted, by operator, inputs and attributes; None if equal nodes are emitted
            again.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    cache: dict[Hashable, ir.Value] = field(default_factory=dict)
    added: list[Hashable] = field(default_factory=list)
    matrices: set[ir.Value] = field(default_factory=set)
    made: dict[Hashable, list[Tensor]] | None = None

    def prune(self, outputs: Collection[ir.Value] = ()) -> None:
        """Remove unused nodes and constants; `outputs` are the future ones of the graph."""
        wanted = set(outputs)

        def is_kept(value: ir.Value) -> bool:
            return is_used(value) or value in wanted

        kept = []
        for node in reversed(self.nodes):
            if any(map(is_kept, node.outputs)):
                kept.append(node)
            else:
                detach(node)
        self.nodes[:] = reversed(kept)
        self.initializers[:] = filter(is_kept, self.initializers)
        for key in self.added:
            if not is_kept(self.cache[key]):
                del self.cache[key]

    def abandon(self) -> None:
        """Disconnect the nodes from their inputs, and forget the constants."""
        for node in self.nodes:
            detach(node)
        for key in self.added:
            self.cache.pop(key, None)
        self.made = None

    def initializer(self, name: str, constant: Constant) -> ir.Value:
        """Add a constant as an initializer."""
        type_, shape = ir.TensorType(constant.dtype), ir.Shape(constant.shape)
        value = ir.Value(name=name, type=type_, shape=shape, const_value=constant.tensor(name))
        self.initializers.append(value)
        return value

    def computes(self, value: ir.Value) -> bool:
        """Return whether one of the nodes computes a value; a Constant does not count, it may be shared."""
        producer = value.producer()
        if producer is None or producer.op_type == "Constant":
            return False
        return any(node is producer for node in reversed(self.nodes))


NODE = "rnn_lowering.node"
OPERATOR = "rnn_lowering.operator"
STEP = "rnn_lowering.step"
SYMBOLS = "rnn_lowering.symbols"
"""Key of the symbols of a node's outputs, in their order, separated by commas; "" for one that has none."""
WEIGHTS = "rnn_lowering.weights"
"""Key of the symbols of the weights among a node's inputs, separated by commas."""


class Names:
    """Names that are unique in the whole model: a body must not shadow a name of an outer scope."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def unique(self, hint: str, first: int = 1) -> str:
        """Return `hint`, or `hint_1`, `hint_2`, ... where it is used already; the numbers begin with `first`."""
        if hint not in self._used:
            self._used.add(hint)
            return hint
        name, count = hint, self._next.get(hint, first - 1)
        while name in self._used:
            count += 1
            name = f"{hint}_{count}"
        self._next[hint] = count
        self._used.add(name)
        return name


@dataclass(frozen=True)
class Prefix:
    """The start of the names of emitted nodes and values: the recurrent node, its part, the step.

    Attributes:
        names: The name generator of the model.
        node: The recurrent node's name.
        short: The last part of it, for names in unrolled steps: a thousand steps repeat it.
        part: The part of the equivalent, as "forward/"; "" for the whole.
        step: The number of the unrolled step; "" outside.
    """

    names: Names
    node: str
    short: str
    part: str = ""
    step: str = ""

    @classmethod
    def of(cls, names: Names, node: str) -> Prefix:
        path, _, last = node.rpartition("/")
        return cls(names, node, names.unique(last) if path and last else node)

    def inside(self, part: str) -> Prefix:
        return replace(self, part=f"{self.part}{part}/") if part else self

    def at(self, t: int) -> Prefix:
        return replace(self, step=f"{self.part}{t}")

    def name(self, hint: str) -> str:
        """Return a unique name for a node or a value."""
        return self.names.unique(self._start + hint)

    @cached_property
    def _start(self) -> str:
        return f"{self.short}/{self.step}/" if self.step else f"{self.node}/{self.part}"

    def rename(self, value: object, symbol: str) -> None:
        """Give a value the name of a symbol, where a node computes it that is in no graph yet."""
        if not isinstance(value, ir.Value) or (node := value.producer()) is None or node.graph is not None:
            return
        value.name = self.name(symbol)
        if node.metadata_props:
            _set_symbol(node, node.outputs.index(value), symbol)

    def constant(self, hint: str) -> str:
        """Return a unique name for a constant, which steps share."""
        return self.names.unique(f"{self.node}/{self.part}{hint}")


def _set_symbol(node: ir.Node, index: int, symbol: str) -> None:
    """Add the symbol of an output to the metadata of a node."""
    symbols = node.metadata_props.get(SYMBOLS, "").split(",")
    symbols += [""] * (index + 1 - len(symbols))
    symbols[index] = symbol
    node.metadata_props[SYMBOLS] = ",".join(symbols)


def add_weights(node: ir.Node, symbols: Iterable[str]) -> None:
    """Add the symbols of weights that a node uses to its metadata."""
    known = node.metadata_props.get(WEIGHTS, "").split(",")
    all_symbols = dict.fromkeys(symbol for symbol in (*known, *symbols) if symbol)
    if all_symbols:
        node.metadata_props[WEIGHTS] = ",".join(all_symbols)
