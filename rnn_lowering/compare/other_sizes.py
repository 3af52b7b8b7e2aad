"""Compare a model with open axes at other sizes than the original has.

The original runs at its own sizes only, so it gets parts of the inputs: some rows, where rows do not depend on each
other, and the first ones, where no row depends on a later one (see `opening/rows`). What is not known to be so is
compared at the sizes of the original only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import onnx

from rnn_lowering.compare.inputs import Feed, candidate_feeds, length_inputs, recorded_inputs, uses_of
from rnn_lowering.compare.judgement import DeclaredShapes
from rnn_lowering.compare.options import Check
from rnn_lowering.compare.result import OutputCheck, RunCheck, RunInput, Verification, over_all
from rnn_lowering.compare.runner import Outputs, Runner, Session, SessionError
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.facts.size import Size, Symbol
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.opening.open_dims import OpenSizes, open_sizes
from rnn_lowering.options import Lowering
from rnn_lowering.types import Array

_Sizes = Mapping[Symbol, int]

_Part = Mapping[Symbol, int]
"""By symbol, the first row of a part of the inputs."""

Pairs = Mapping[str, tuple[Outputs, Outputs]]
"""The outputs of the original and of the lowered model, by the feed that gave them."""


def opened_axes(original: onnx.ModelProto, lowered: onnx.ModelProto) -> dict[tuple[str, int], str]:
    """Return the axes of inputs whose size is fixed in the original and open in the lowered model: their names."""
    fixed = {value.name: value.type.tensor_type.shape.dim for value in original.graph.input}
    return {
        (value.name, n): dim.dim_param or f"{value.name}_{n}"
        for value in lowered.graph.input
        for n, (dim, was) in enumerate(
            zip(value.type.tensor_type.shape.dim, fixed.get(value.name, ()), strict=False)
        )
        if was.dim_value > 0 and not dim.HasField("dim_value")
    }


def with_sizes(lowered: onnx.ModelProto, axes: Mapping[tuple[str, int], int]) -> onnx.ModelProto:
    """Return the inputs of a model, with these sizes."""
    declared = onnx.ModelProto()
    declared.graph.input.extend(lowered.graph.input)
    for value in declared.graph.input:
        for n, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, n) in axes:
                dim.dim_value = axes[value.name, n]
    return declared


def exported_sizes(original: onnx.ModelProto, lowered: onnx.ModelProto) -> dict[tuple[str, int], int]:
    """Return the sizes that the original has on the axes that the lowered model opens."""
    dims = {value.name: value.type.tensor_type.shape.dim for value in original.graph.input}
    return {(name, n): dims[name][n].dim_value for name, n in opened_axes(original, lowered)}


@dataclass(frozen=True)
class OtherSizes:
    """A comparison at other sizes.

    Attributes:
        original, lowered: The models.
        runner, check: What runs them, and how they are compared.
        sessions: How onnxruntime runs them.
        compare: Compares outputs.
    """

    original: ModelSource
    lowered: ModelSource
    runner: Runner
    check: Check
    sessions: tuple[Session, Session]
    compare: Callable[[Pairs], Verification]

    def added_to(self, found: Verification) -> Verification:
        """Return a result with runs at other sizes, if axes are open; a failure if one of them is wrong."""
        if not self.axes:
            return found
        runs: dict[str, RunCheck] = {}
        faults: dict[str, str] = {}
        try:
            for sizes in self._other_sizes():
                text = _text(sizes)
                try:
                    run = self._run(sizes)
                except SessionError as error:
                    faults[text] = f"the lowered model does not run with {text}: {error}"
                    if error.crashed:
                        return Verification("failed", found.method, found.runs, reason=faults[text])
                    if not error.over_limit and (symbol := self._only_at_one_size(sizes, faults)):
                        reason = f"{faults[text]}; no other size of {symbol} runs"
                        return Verification("failed", found.method, found.runs, reason=reason)
                    continue
                if run is not None and run.wrong:
                    wrong = next(output for output in run.outputs if not output.passed)
                    reason = f"with {text}, output '{wrong.name}': {wrong.reason}"
                    return Verification("failed", found.method, found.runs + 1, run.outputs, reason, (run,))
                if run is not None:
                    runs[text] = run
        except RnnLoweringError as error:
            return replace(found, reason=_joined(found.reason, f"not compared at other sizes: {error}"))
        each = (*found.each_run, *runs.values())
        reason = _joined(found.reason, *self._notes(runs), *[*faults.values()][:1])
        return replace(found, runs=len(each), outputs=over_all(each), each_run=each, reason=reason)

    def _only_at_one_size(self, sizes: _Sizes, faults: Container[str]) -> Symbol | None:
        """Return the size that these sizes change alone, if the model runs at no other one."""
        changed = [symbol for symbol, count in sizes.items() if count != self.opened.exported[symbol]]
        tried = [_text(each) for each in self._alone(changed[0])]
        return changed[0] if len(changed) == 1 and all(text in faults for text in tried) else None

    def _notes(self, runs: Mapping[str, RunCheck]) -> Iterator[str]:
        """Yield which outputs were compared at other sizes, and which were not."""
        sizes: dict[str, list[str]] = {name: [] for name in self.opened.outputs}
        for text, run in runs.items():
            for name in dict.fromkeys(output.name for output in run.outputs):
                sizes[name].append(text)
        for compared in dict.fromkeys(map(tuple, sizes.values())):
            names = _named(name for name, texts in sizes.items() if tuple(texts) == compared)
            if compared:
                yield f"{names} compared at other sizes too ({' / '.join(compared)})"
            else:
                yield f"{names} not compared at other sizes: each element may follow from all rows"

    @cached_property
    def axes(self) -> dict[tuple[str, int], str]:
        """The names of the open axes."""
        return opened_axes(self.original.proto, self.lowered.proto)

    @cached_property
    def opened(self) -> OpenSizes:
        """The sizes of the original with these axes open."""
        dims = {f"{name}:{axis}": symbol for (name, axis), symbol in self.axes.items()}
        return open_sizes(self.original.new_model(), dims, Lowering.max_nodes)

    @cached_property
    def _declared(self) -> DeclaredShapes:
        return DeclaredShapes(self.original.proto, self.lowered.proto)

    def _other_sizes(self) -> Iterator[_Sizes]:
        """Yield sizes with fewer rows of each open axis than the original has, with more, and with more of all."""
        exported = self.opened.exported
        for symbol in exported:
            yield from self._alone(symbol)
        if len(exported) > 1:
            yield {symbol: _more(count) for symbol, count in exported.items()}

    def _alone(self, symbol: Symbol) -> list[_Sizes]:
        """Return sizes with fewer and with more rows of an axis, as far as all values have rows then."""
        exported = self.opened.exported
        counts = (max(1, exported[symbol] // 2), _more(exported[symbol]))
        found: list[_Sizes] = [{**exported, symbol: count} for count in counts if count != exported[symbol]]
        return [sizes for sizes in found if all(dim.at(sizes) >= 1 for dim in self._open)]

    @cached_property
    def _open(self) -> set[Size]:
        """The open sizes of all values."""
        known = self.opened.exported.keys()
        return {dim for shape in self.opened.shapes for dim in shape if dim.symbols and dim.symbols <= known}

    def _run(self, sizes: _Sizes) -> RunCheck | None:
        """Run the lowered model at some sizes, the original on parts of the inputs; None if it accepts none.

        Raises:
            SessionError: The lowered model does not run.
        """
        parts = [*self._parts(sizes)]
        ran = self._original_on(parts, sizes)
        if ran is None:
            return None
        feed, before = ran
        given = self.runner.write_feed(self._cut(feed, {}, sizes))
        after = self._outputs(self.sessions[1], [given])[0]
        every = self._all_sizes(self.runner.feed(given))
        outputs = self._checks(parts, sizes, every, before, after)
        if any(not check.passed for check in outputs):
            plain = [replace(session, optimize=False) for session in self.sessions]
            before = dict(zip(before, self._outputs(plain[0], [*before]), strict=True))
            outputs = self._checks(parts, sizes, every, before, self._outputs(plain[1], [given])[0])
        shown = self.runner.feed(given).items()
        return RunCheck(tuple(RunInput.of(n, a, are_lengths=n in self._lengths) for n, a in shown), outputs)

    def _outputs(self, session: Session, feeds: Sequence[str]) -> list[dict[str, Array]]:
        runs = self.runner.run(session, [[feed] for feed in feeds]).accepted(all_must_run=True)
        return [run.tensors() for run in runs]

    def _original_on(
        self, parts: Sequence[_Part], sizes: _Sizes
    ) -> tuple[Feed, dict[str, dict[str, Array]]] | None:
        """Return inputs, and the outputs of the original on parts of them; None if it accepts no inputs."""
        exported = self.opened.exported
        most = {axis: max(sizes[symbol], exported[symbol]) for axis, symbol in self.axes.items()}
        original, lowered = self.original.proto, self.lowered.proto
        opened = {name for name, _ in self.axes}
        shapes = {name: shape for name, shape in (self.check.shapes or {}).items() if name not in opened}
        check = replace(self.check, feeds=None, shapes=shapes)
        recorded = recorded_inputs(original, lowered)
        for feed in candidate_feeds(original, 0, check, with_sizes(lowered, most), recorded):
            feeds = [self.runner.write_feed(self._cut(feed, part, exported)) for part in parts]
            with suppress(SessionError):
                return feed, dict(zip(feeds, self._outputs(self.sessions[0], feeds), strict=True))
        return None

    # Parts

    def _parts(self, sizes: _Sizes) -> Iterator[_Part]:
        """Yield parts for the original: from the first row on, and from others where rows are alone."""
        starts = []
        for symbol, count in self.opened.exported.items():
            alone = any((rows := found.get(symbol)) and rows.alone for found in self.opened.rows.values())
            last = max(sizes[symbol] - count, 0) if alone else 0
            starts.append(dict.fromkeys((0, last // 2, last)))
        for chosen in product(*starts):
            yield dict(zip(self.opened.exported, chosen, strict=True))

    def _cut(self, feed: Mapping[str, Array], part: _Part, sizes: _Sizes) -> Feed:
        """Return a part of inputs, of some sizes; lengths are at most the number of frames."""
        cut = dict(feed)
        for (name, axis), symbol in self.axes.items():
            first = part.get(symbol, 0)
            if name in cut:
                cut[name] = cut[name].take(range(first, first + sizes[symbol]), axis)
        for name in self._lengths & cut.keys():
            cut[name] = np.minimum(cut[name], self._frames(cut)).astype(cut[name].dtype)
        return cut

    @cached_property
    def _lengths(self) -> set[str]:
        return length_inputs(self.original.proto.graph)

    def _frames(self, feed: Mapping[str, Array]) -> float:
        """Return the number of frames of inputs, as far as nodes say which axis has them."""
        axes = {name: use.axes for name, use in uses_of(self.original.proto.graph, feed).items()}
        frames = [feed[name].shape[found.index("T")] for name, found in axes.items() if "T" in found]
        return min(frames, default=math.inf)

    def _all_sizes(self, feed: Mapping[str, Array]) -> _Sizes:
        """Return all open sizes of some inputs."""
        return {symbol: feed[name].shape[axis] for (name, axis), symbol in self.opened.axes.items() if name in feed}

    def _checks(
        self,
        parts: Sequence[_Part],
        sizes: _Sizes,
        every: _Sizes,
        before: Mapping[str, Mapping[str, Array]],
        after: Mapping[str, Array],
    ) -> tuple[OutputCheck, ...]:
        """Compare the outputs of the lowered model with those of the original on parts of the inputs."""
        checks = []
        for n, (name, shape) in enumerate(self.opened.outputs.items()):
            wanted = tuple(int(dim.at(every)) for dim in shape)
            if name in after and after[name].shape != wanted:
                checks.append(
                    OutputCheck.of(name, math.inf, f"has shape {list(after[name].shape)}, not {list(wanted)}")
                )
                continue
            if name in after and (fault := self._declared.fault(name, after[name])):
                checks.append(OutputCheck.of(name, math.inf, fault))
                continue
            pairs: dict[str, tuple[Outputs, Outputs]] = {}
            for part, (feed, outputs) in zip(parts, before.items(), strict=True):
                places = self._places(name, part, sizes)
                if places is not None and name in outputs and name in after:
                    first, second = _both(outputs[name], after[name], places)
                    pairs[feed] = {f"{n}:0": first}, {f"{n}:0": second}
            checks += [check for check in over_all(self.compare(pairs).each_run) if check.name == name and pairs]
        return tuple(checks)

    def _places(self, name: str, part: _Part, sizes: _Sizes) -> Mapping[int, tuple[int, int]] | None:
        """Return, by axis of an output, from which row on a part can be compared, and how many rows; None if it
        cannot."""
        places = {}
        exported = self.opened.exported
        for symbol, rows in self.opened.rows[name].items():
            if symbol not in exported or sizes[symbol] == exported[symbol]:
                continue
            start, both = part[symbol], min(sizes[symbol], exported[symbol])
            if rows is None or rows.merged or (start and not rows.alone) or both <= rows.ahead:
                return None
            places[rows.axis] = (start, both - rows.ahead)
        return places


def _more(count: int) -> int:
    return count + count // 2 + 1


def _both(before: Array, after: Array, places: Mapping[int, tuple[int, int]]) -> tuple[Array, Array]:
    """Return the rows of two arrays that must be equal."""
    for axis, (start, count) in places.items():
        count = min(count, before.shape[axis], after.shape[axis] - start)
        before, after = before.take(range(count), axis), after.take(range(start, start + count), axis)
    return before, after


def _text(sizes: _Sizes) -> str:
    return ", ".join(f"{symbol} = {count}" for symbol, count in sizes.items())


def _named(outputs: Iterable[str]) -> str:
    names = [f"'{name}'" for name in outputs]
    return f"{'output' if len(names) == 1 else 'outputs'} {', '.join(names)}"


def _joined(*facts: str) -> str:
    return "; ".join(filter(None, facts))
