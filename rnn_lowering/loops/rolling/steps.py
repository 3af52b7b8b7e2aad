"""The steps of a traced loop: the nodes of one, and what stands for them in each other step.

Every node of a step is found in every other one by its operator, its attributes and its inputs. So a Scan over one
of them computes the graph that was traced, node by node: this is the proof that a loop is rolled up right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rnn_lowering.loops.rolling.numbering import FEWEST_STEPS, Computation, NumberedGraph, ProductChain

_FEW = 5
"""Of a chain of more steps the third one is read: what the first step reads may be constants."""

Values = dict[int, int]
"""By number of a value in the step that is read, the number of what stands for it in another one."""


class NotRolledError(Exception):
    """Why steps are not rolled up."""


@dataclass
class Step:
    """One step as it was traced.

    Attributes:
        states: Its states, and the next ones.
        rows: Its rows, and by how many rows the next step goes on.
        outer: What is the same in each step.
        body: Its nodes, in order.
    """

    states: dict[int, int] = field(default_factory=dict)
    rows: dict[int, tuple[Row | StepCount, int]] = field(default_factory=dict)
    outer: set[int] = field(default_factory=set)
    body: list[Computation] = field(default_factory=list)


class _StepReader:
    """Reads a step of a chain beside the next one: what differs is a state, a row, or computed from them."""

    def __init__(self, graph: NumberedGraph, chain: ProductChain, number: int) -> None:
        self.graph, self.chain, self.number = graph, chain, number
        self.step = Step()
        self.next: Values = {}
        self._body: dict[Computation, None] = {}
        self._read([(chain.cuts[number - 1], chain.cuts[number])])
        self._read([self._state_at(number + 1)])

    @classmethod
    def read(cls, graph: NumberedGraph, chain: ProductChain, number: int) -> Step:
        """Return a step of a chain.

        Raises:
            NotRolledError: The next one differs, or reads what another step than the one before computes.
        """
        reader = cls(graph, chain, number)
        step = reader.step
        reader._join_states()
        while missing := [after for after in step.states.values() if after not in reader.next]:
            reader._read_next(missing)
            reader._join_states()
        step.body = sorted(reader._body, key=lambda computation: computation.outputs.start)
        return step

    def _read_next(self, states: Iterable[int]) -> None:
        """Read what computes the next states; the step after this one reads them."""
        if self.number + 2 >= len(self.chain.cuts):
            raise NotRolledError("a state is read in few steps")
        later = _StepReader(self.graph, self.chain, self.number + 1).step.states
        if any(state not in later for state in states):
            raise NotRolledError("a state is not read in each step")
        self._read([(state, later[state]) for state in states])

    def _state_at(self, number: int) -> tuple[int, int]:
        """Return the state that a step multiplies, beside that of the next step."""
        a, b = self.chain.cuts[number - 1 : number + 1]
        while self._is_joined_row(a, b):
            a, b = next(pair for pair in self.graph.inputs_of_both(a, b) or [] if self._level(pair[1]))
        return a, b

    def _read(self, pairs: list[tuple[int, int]]) -> None:
        pending = list(pairs)
        while pending:
            a, b = pending.pop()
            if a in self.next and self.next[a] != b:
                raise NotRolledError("a value stands for two of the next step")
            if a in self.next:
                continue
            self.next[a] = b
            pending += self._add(a, b)

    def _add(self, a: int, b: int) -> list[tuple[int, int]]:
        """Add a value of the step, beside that of the next one; return the pairs that it is computed from."""
        levels = self._level(a), self._level(b)
        if a == b:
            if levels[0]:
                raise NotRolledError("a step reads a state of another one than the step before")
            self.step.outer.add(a)
            return []
        if levels == (self.number - 1, self.number) and not self._is_joined_row(a, b):
            self.step.states[a] = b
            return []
        row = self._row(a, b) if levels == (0, 0) else None
        if row is not None:
            self.step.rows[a] = row
            return []
        inputs = self.graph.inputs_of_both(a, b)
        if inputs is None:
            raise NotRolledError("the steps differ")
        self._body[self.graph.producers[a]] = None
        return inputs

    def _level(self, number: int) -> int:
        return self.chain.levels.get(number, 0)

    def _row(self, a: int, b: int) -> tuple[Row | StepCount, int] | None:
        row, following = _row_of(self.graph, a), _row_of(self.graph, b)
        if row is None or following is None or not row.is_beside(following):
            return None
        return row, following.index - row.index

    def _is_joined_row(self, a: int, b: int) -> bool:
        """Whether a value joins one value of the step before with a row of this one, as Concat(X[t], h) does."""
        inputs = self.graph.inputs_of_both(a, b) or []
        rows = [pair for pair in inputs if pair[0] != pair[1] and not any(map(self._level, pair))]
        return bool(rows) and sum(self._level(x) > 0 for x, _ in inputs) == 1

    def _join_states(self) -> None:
        """Compute a state that follows from other states in the step that reads it, as P * c."""
        for a, b in list(self.step.states.items()):
            inputs = self.graph.inputs_of_both(a, b) or []
            of_states = [x for x, y in inputs if self.step.states.get(x) == y]
            if of_states and all(x in of_states or (x == y and not self._level(x)) for x, y in inputs):
                del self.step.states[a]
                self._body[self.graph.producers[a]] = None
                self.step.outer.update(x for x, _ in inputs if x not in of_states)


@dataclass
class StepBefore:
    """A step that is read from its next states back.

    Attributes:
        values: What stands for the values of the step.
        folded: Those for which constants stand: an exporter computed them.
    """

    values: Values
    folded: list[tuple[int, int]]


@dataclass
class RolledSteps:
    """Steps that are alike.

    Attributes:
        graph: Their graph.
        step: One of them.
        product: The product of its chain.
        first: The number of the first of them, if that of `step` is 0.
        values: Of each, what stands for the values of `step`.
    """

    graph: NumberedGraph
    step: Step
    product: Computation
    first: int = 0
    values: list[Values] = field(default_factory=list)

    @classmethod
    def of(cls, graph: NumberedGraph, chain: ProductChain) -> RolledSteps:
        """Find the steps of a chain, from its second or third one on and back.

        Raises:
            NotRolledError: They differ, or are few.
        """
        number = 3 if len(chain.cuts) > _FEW else 2
        rolled = cls(graph, _StepReader.read(graph, chain, number), chain.products[number - 1])
        states: Values | None = {state: state for state in rolled.step.states}
        while states is not None:
            values = rolled._run(states, len(rolled.values))
            if values.keys().isdisjoint(rolled.product.outputs) or not values.keys() >= rolled.step.rows.keys():
                break
            rolled.values.append(values)  # the last one may lack what only a next step reads
            states = rolled._states_after(values)
        while (read := rolled.read_back()) is not None and not read.folded:
            before = {state: read.values[state] for state in rolled.step.states if state in read.values}
            values = rolled._run(before, rolled.first - 1)
            if rolled._states_after(values) != {state: rolled.values[0][state] for state in rolled.step.states}:
                break
            rolled.add_before(values)
        if len(rolled.values) < FEWEST_STEPS:
            raise NotRolledError(f"only {len(rolled.values)} steps are alike")
        return rolled

    def _states_after(self, values: Values) -> Values | None:
        """Return the states that a step leaves; None if a part of it is missing."""
        whole = all(number in values for computation in self.step.body for number in computation.outputs)
        return {state: values[after] for state, after in self.step.states.items()} if whole else None

    def _run(self, states: Values, number: int) -> Values:
        """Return the values of a step by its states, as far as they are in the graph."""
        values = {**states, **{number: number for number in self.step.outer}}
        for row, (taken, stride) in self.step.rows.items():
            other = taken.other(self.graph, taken.index + stride * number)
            if other is not None:
                values[row] = other
        for computation in self.step.body:
            self._add(computation, values)
        return values

    def _add(self, computation: Computation, values: Values) -> bool:
        """Add the outputs of what stands for a node in a step; return whether it is there."""
        if not all(number is None or number in values for number in computation.inputs):
            return False
        inputs = [None if number is None else values[number] for number in computation.inputs]
        image = self.graph.find(computation.signature, inputs)
        if image is not None:
            values.update(zip(computation.outputs, image.outputs, strict=True))
        return image is not None

    def add_before(self, values: Values) -> None:
        """Add the step before the first one."""
        self.values.insert(0, values)
        self.first -= 1

    def read_back(self) -> StepBefore | None:
        """Return what stands for the values of the step before the first one, from its next states back; None if it
        differs."""
        computed = {number for computation in self.step.body for number in computation.outputs}
        before = StepBefore({}, [])
        pending = [(after, self.values[0][state]) for state, after in self.step.states.items()]
        while pending:
            number, value = pending.pop()
            if before.values.setdefault(number, value) != value or (number in self.step.outer and number != value):
                return None
            if number not in computed or (number, value) in before.folded:
                continue
            if self.graph.is_constant(value):
                before.folded.append((number, value))
                continue
            pairs = self.graph.inputs_of_both(number, value)
            if pairs is None:
                return None
            pending += [(x, y) for x, y in pairs if before.values.get(x) != y]
        return before

    def extend(self, computation: Computation, outer: Collection[int]) -> bool:
        """Add a node to the steps if every step has it, with what it reads outside; return whether it was added."""
        steps = [values | {number: number for number in outer} for values in self.values]
        if not all(self._add(computation, values) for values in steps):
            return False
        self.values = steps
        self.step.outer.update(outer)
        self.step.body.append(computation)
        return True


# Rows: what a step takes of a tensor at its own number, as in X[t], and numbers that grow with it.


_PARTS_OF_A_SLICE = (3, 4)
"""Start, end and axis, and the step."""


@dataclass(frozen=True)
class Row:
    """A row of a tensor.

    Attributes:
        source: The number of the tensor.
        axis: The axis along which the rows lie.
        keeps_axis: Whether the row has that axis, of size 1.
        index: Which row it is; below 0 if it is counted from the end.
        taken: What takes it.
    """

    source: int
    axis: int
    keeps_axis: bool
    index: int
    taken: Computation

    def other(self, graph: NumberedGraph, index: int) -> int | None:
        """Return the number of another row, if it is taken in the same way."""
        if (index < 0) != (self.index < 0):
            return None
        if self.taken.signature[0] == "Split":
            return self.taken.outputs[index] if index < len(self.taken.outputs) else None
        moved = {1: index, 2: index + 1} if self.taken.signature[0] == "Slice" else {1: index}
        inputs = list(self.taken.inputs)
        for slot, integer in moved.items():
            like = inputs[slot]
            inputs[slot] = None if like is None else graph.constant(like, integer)
            if inputs[slot] is None:
                return None
        node = graph.find(self.taken.signature, inputs)
        return None if node is None else node.outputs[0]

    def is_beside(self, other: Row | StepCount) -> bool:
        """Whether another row is one of the same tensor."""
        place = self.source, self.axis, self.keeps_axis
        return isinstance(other, Row) and place == (other.source, other.axis, other.keeps_axis)


@dataclass(frozen=True)
class StepCount:
    """A constant that grows with the number of the step.

    Attributes:
        like: Its number.
        index: Its integer.
    """

    like: int
    index: int

    def other(self, graph: NumberedGraph, index: int) -> int | None:
        """Return the number of the constant with another integer."""
        return graph.constant(self.like, index)

    def is_beside(self, other: Row | StepCount) -> bool:
        return isinstance(other, StepCount)


def _row_of(graph: NumberedGraph, number: int) -> Row | StepCount | None:
    """Return a value as a row of a tensor, or as a number; None if it is neither."""
    computation = graph.producers.get(number)
    if computation is None:
        integer = graph.integers.get(number)
        return StepCount(number, int(integer.ravel()[0])) if integer is not None and integer.size == 1 else None
    node, source = computation.node, computation.inputs[0] if computation.inputs else None
    if source is None or node.op_type not in ("Split", "Gather", "Slice"):
        return None
    axis = node.attributes.get_int("axis", 0) or 0
    integers = [None if n is None else graph.integers.get(n) for n in computation.inputs[1:]]
    if node.op_type == "Split":
        sizes = node.attributes.get_ints("split", None) or (integers[0] if integers else None)
        place = number - computation.outputs.start
        return Row(source, axis, True, place, computation) if sizes is not None and {*sizes} == {1} else None
    known = [array.ravel() for array in integers if array is not None and array.size == 1]
    if not integers or len(known) != len(integers):
        return None
    first = int(known[0][0])
    if node.op_type == "Gather":
        axes = 0 if integers[0] is None else integers[0].ndim
        whole = axis >= 0 and axes <= 1 and (first >= 0 or graph.size(source, axis) is not None)
        return Row(source, axis, axes > 0, first, computation) if whole and len(known) == 1 else None
    if len(known) not in _PARTS_OF_A_SLICE:
        return None
    end, axis, step = int(known[1][0]), int(known[2][0]), int(known[3][0]) if len(known) > 3 else 1
    whole = 0 <= first < (graph.size(source, axis) or 0) and (end, step) == (first + 1, 1)
    return Row(source, axis, True, first, computation) if whole else None
