"""Whether two models compute the same: both run in onnxruntime, in processes of their own, on random inputs.

Where onnxruntime cannot run the original, each lowered node is cut out and compared with the operator page in
float64. Where outputs differ, each lowered node is fed what the original's was fed: the first that differs is
named, or, when every one is at least as close to float64 as the original's kernel, the model passes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.compare import Array, Tolerance, compare, distance
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.external import data_files, save
from rnn_lowering.feeds import candidates, length_inputs
from rnn_lowering.io import load_model
from rnn_lowering.isolate import IsolatedNode, isolated_nodes, run_nodes
from rnn_lowering.progress import LOWERED, ORIGINAL, Progress, counter
from rnn_lowering.progress import NODES as RUNNING_NODES
from rnn_lowering.sessions import Outputs, Session, SessionError, write_feed
from rnn_lowering.spec import GATES
from rnn_lowering.verdict import NODES, WHOLE, OutputCheck, RunCheck, RunInput, Verification, over_all

__all__ = ["Verification", "verify"]

PathLike = str | os.PathLike[str]


def verify(
    original: onnx.ModelProto | ir.Model | PathLike,
    lowered: onnx.ModelProto | ir.Model | PathLike,
    *,
    runs: int = 3,
    seed: int = 0,
    tolerance: Tolerance | None = None,
    feeds: Sequence[Mapping[str, Array]] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Run both models in onnxruntime and compare all outputs.

    Args:
        original, lowered: Models or paths. Each runs in a process of its own.
        runs: How many runs with random inputs; each has other sizes for dynamic dimensions.
        seed: Seed of the inputs.
        tolerance: What counts as equal; NaN must meet NaN.
        feeds: Inputs to use instead of random ones, one run each; those that one does not name are random.
        shapes: Shapes of random inputs, by name.
        progress: Called as progress(phase, done, total) when a phase begins and after each run.

    Returns:
        A result that is true only when something was compared, in every run, and agreed.
    """
    with tempfile.TemporaryDirectory(prefix="rnn-lower-") as folder:
        scratch = Path(folder)
        first, second = (_as_file(m, scratch / f"model{n}.onnx") for n, m in enumerate((original, lowered)))
        check = _Check(first, second, scratch, tolerance or Tolerance(), seed, progress)
        odd = check.odd_inputs()
        if odd:
            return check.nodes(runs, f"inputs that are not tensors of numbers cannot be made up: {odd}")
        groups = check.write_feeds([{}] * runs if feeds is None else feeds, shapes)
        return check.whole(groups, runs, all_must_run=feeds is not None)


def _as_file(model: onnx.ModelProto | ir.Model | PathLike, path: Path) -> Path:
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, path)
    elif isinstance(model, ir.Model):
        save(model, path, f"{path.name}.data" if data_files(model) else None)
    else:
        return Path(model).absolute()
    return path


@dataclass(frozen=True)
class _Check:
    """One verification: the two files, a folder for what it writes, and what counts as equal."""

    original: Path
    lowered: Path
    scratch: Path
    tolerance: Tolerance
    seed: int
    progress: Progress | None

    def odd_inputs(self) -> list[str]:
        """Name the inputs of the original that are not tensors of numbers or truth values."""
        graph = onnx.load(self.original, load_external_data=False).graph
        given = {tensor.name for tensor in graph.initializer}
        text, none = onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED
        return [v.name for v in graph.input if v.name not in given and v.type.tensor_type.elem_type in (text, none)]

    def write_feeds(
        self, given: Sequence[Mapping[str, Array]], shapes: Mapping[str, Sequence[int]] | None
    ) -> list[list[str]]:
        """Write the inputs of all runs; return those of each, alternatives of which the first accepted counts."""
        original, lowered = (onnx.load(p, load_external_data=False) for p in (self.original, self.lowered))
        names = [value.name for value in original.graph.input]
        groups = []
        for run, feed in enumerate(given):
            alternatives = (
                iter([dict(feed)])
                if feed and feed.keys() >= set(names) - {t.name for t in original.graph.initializer}
                else candidates(original, run, self.seed, lowered, feed, shapes)
            )
            groups.append([write_feed(self.scratch, f"feed{run}-{n}.npz", f) for n, f in enumerate(alternatives)])
        return groups

    def whole(self, groups: list[list[str]], runs: int, *, all_must_run: bool) -> Verification:
        """Compare the outputs of the two models."""
        session = self._watching(_entering)
        try:
            try:
                before = session.run(groups, counter(self.progress, ORIGINAL, len(groups)))
            except SessionError as error:
                if not error.crashed:
                    raise
                session = replace(session, optimise=False)  # its optimiser crashes on some models, its kernels too
                before = session.run(groups, counter(self.progress, ORIGINAL, len(groups)))
            accepted = [[g["feed"]] for g in before["groups"] if "feed" in g]
            errors = [g["error"] for g in before["groups"] if "error" in g]
            if not accepted or (all_must_run and errors):
                raise SessionError(errors[0] if errors else "no runs were asked for")
        except SessionError as error:
            reason = f"onnxruntime cannot run the original: {error}"
            return Verification("not verified", reason=reason) if all_must_run else self.nodes(runs, reason)
        expected = {feed: session.outputs(feed) for (feed,) in accepted}
        second = Session(self.lowered, self.lowered.parent, self.scratch, session.optimise)
        try:
            after = second.run(accepted, counter(self.progress, LOWERED, len(accepted)))
        except SessionError as error:
            return Verification("failed", reason=f"onnxruntime cannot run the lowered model: {error}")
        for group in after["groups"]:
            if "error" in group:
                return Verification("failed", reason=f"onnxruntime cannot run the lowered model: {group['error']}")
        names = before["names"][: _count_outputs(self.original)]
        if names != after["names"]:
            return Verification("failed", reason=f"outputs {names} became {after['names']}")
        result = self._compare(names, {feed: (before, second.outputs(feed)) for feed, before in expected.items()})
        if not result and self.tolerance == Tolerance():
            return self._examine(result, list(expected), session.optimise)
        if not result:
            return result
        each = self.nodes(runs, "no node was compared on its own")  # a network may damp what is wrong in a node
        return each if each.status == "failed" else replace(result, nodes=each.outputs, reason=each.reason)

    def nodes(self, runs: int, reason: str) -> Verification:
        """Compare each lowered node with the operator page in float64; where float64 is too far, with the node as
        it was: a recurrence may amplify any rounding."""
        try:
            each_run = tuple(self._node_runs(runs))
        except (SessionError, RnnLoweringError) as error:
            return Verification("not verified", NODES, reason=f"{reason}; a lowered node cannot be run: {error}")
        checks = over_all(each_run)
        if not checks:
            return Verification("not verified", reason=reason)
        wrong = [f"{c.name}: {c.reason}" for c in checks if not c.passed]
        status = "failed" if wrong else "verified"
        return Verification(status, NODES, runs, checks, wrong[0] if wrong else "", each_run, checks)

    def _node_runs(self, runs: int) -> Iterator[RunCheck]:
        rng = np.random.default_rng(self.seed)
        nodes = list(self._isolated())
        feeds = [[node.random_feed(rng) for _ in range(runs)] for node in nodes]
        ran = counter(self.progress, RUNNING_NODES, runs * len(nodes))
        results = run_nodes(nodes, feeds, self.scratch, ran=ran)
        for run in range(runs):
            inputs: list[RunInput] = []
            outputs: list[OutputCheck] = []
            for node, given, got in zip(nodes, feeds, results, strict=True):
                for symbol, array in given[run].items():
                    name = f"{symbol} of {node.spec.node}"
                    inputs.append(RunInput.of(name, array, are_lengths=symbol == "sequence_lens"))
                outputs += self._check_node(node, given[run], got[run])
            yield RunCheck(tuple(inputs), tuple(outputs))

    def _check_node(self, node: IsolatedNode, feed: Outputs, got: Outputs) -> Iterator[OutputCheck]:
        dtype = node.spec.dtype.numpy()
        want = node.expected(feed)
        for symbol, array in got.items():
            largest, reason = compare(want[symbol].astype(dtype), array.astype(dtype), self.tolerance)
            if reason and array.shape == want[symbol].shape and self._no_worse(node, feed, symbol, want, array):
                reason = ""
            if reason:
                reason += self._first_step(node, symbol, want[symbol].astype(dtype), array.astype(dtype))
            yield OutputCheck(f"{symbol} of {node.spec.node}", largest, not reason, reason)

    def _no_worse(self, node: IsolatedNode, feed: Outputs, symbol: str, want: Outputs, got: Array) -> bool:
        try:
            ((native,),) = run_nodes([node], [[feed]], self.scratch, native=True)
        except SessionError:
            return False
        return _no_further(got, native[symbol], want[symbol])

    def _isolated(self) -> Iterator[IsolatedNode]:
        trusted = (load_model(path, trust_external_data=True) for path in (self.original, self.lowered))
        return isolated_nodes(*trusted)

    def _compare(self, names: list[str], pairs: Mapping[str, tuple[Outputs, Outputs]]) -> Verification:
        """Compare the outputs of both models, numbered as their names are, by the feeds that gave them."""
        lengths = length_inputs(onnx.load(self.original, load_external_data=False).graph)
        each_run = []
        for feed, (before, after) in pairs.items():
            with np.load(self.scratch / feed) as held:
                inputs = tuple(RunInput.of(name, held[name], are_lengths=name in lengths) for name in held)
            outputs = tuple(self._compare_output(n, name, before, after) for n, name in enumerate(names))
            each_run.append(RunCheck(inputs, outputs))
        checks = over_all(each_run)
        wrong = "; ".join(f"output '{c.name}': {c.reason}" for c in checks if not c.passed)
        return Verification("failed" if wrong else "verified", WHOLE, len(pairs), checks, wrong, tuple(each_run))

    def _compare_output(self, n: int, name: str, before: Outputs, after: Outputs) -> OutputCheck:
        parts = [
            compare(before.get(key), after.get(key), self.tolerance)
            for key in sorted(before.keys() | after.keys())
            if key.split(":")[0] == str(n)
        ]
        reason = next((text for _, text in parts if text), "")
        return OutputCheck(name, max((d for d, _ in parts), default=0.0), not reason, reason)

    def _examine(self, failed: Verification, feeds: list[str], optimise: bool) -> Verification:
        """Find the first lowered node that differs from the original's, given the same inputs."""
        try:
            nodes = list(self._isolated())
            session = replace(self._watching(lambda _: _around(nodes)), optimise=optimise)
            names = session.run([[feed] for feed in feeds])["names"]
            differs = False
            for feed in feeds:
                values = {name: session.outputs(feed).get(f"{n}:0") for n, name in enumerate(names)}
                with np.load(self.scratch / feed) as held:
                    values |= dict(held)
                for node in nodes:
                    where, closer = self._against_original(node, values)
                    if where and not closer:
                        return replace(failed, reason=f"{failed.reason}; first in {node.spec.node}{where}")
                    differs = differs or bool(where)
        except (SessionError, RnnLoweringError):
            return failed
        if not differs:
            return failed  # no lowered node explains the difference
        return failed.judged("no lowered node is further from float64")

    def _against_original(self, node: IsolatedNode, values: Mapping[str, Array | None]) -> tuple[str, bool]:
        """Return where a lowered node differs from the original's, and whether it is as close to float64."""
        feed = {symbol: values.get(name) for symbol, name in node.feeds.items()}
        if any(array is None for array in feed.values()):
            raise SessionError("the node stands in a subgraph")
        known = {symbol: array for symbol, array in feed.items() if array is not None}
        (((got,),), want) = run_nodes([node], [[known]], self.scratch), node.expected(known)
        where, closer = "", True
        for symbol, value in node.spec.outputs.items():
            native = values.get(value.name or "")
            if native is None:
                raise SessionError("the node stands in a subgraph")
            if compare(native, got[symbol], self.tolerance)[1] and not where:
                where = f", output {symbol}{self._first_step(node, symbol, native, got[symbol])}"
            closer = closer and _no_further(got[symbol], native, want[symbol])
        return where, closer

    def _first_step(self, node: IsolatedNode, symbol: str, native: Array, got: Array) -> str:
        if symbol != "Y" or native.shape != got.shape:
            return ""
        wrong = self.tolerance.excess(native, got) > 0
        time = 1 if node.spec.layout else 0
        steps = wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != time))
        order = np.flatnonzero(steps)
        first = int(order[-1] if node.spec.directions == ("reverse",) else order[0])
        return f", from time step {first}"

    def _watching(self, names: Any) -> Session:
        """The original with values of its main graph as further outputs."""
        proto = onnx.load(self.original, load_external_data=False)
        inner = {name for node in proto.graph.node for name in node.output}
        inner -= {value.name for value in proto.graph.output}
        for name in dict.fromkeys(names(proto)):
            if name in inner:
                proto.graph.output.append(onnx.ValueInfoProto(name=name))
        path = self.scratch / "watching.onnx"
        _root(proto.graph, self.original.parent)
        onnx.save(proto, path)
        return Session(path, Path(self.original.anchor), self.scratch)


def _no_further(ours: Array, theirs: Array, truth: Array) -> bool:
    """Whether one is as close to float64 as the other, to within a rounding."""
    if ours.shape != truth.shape or ours.dtype != theirs.dtype:
        return False
    a, b = (float(distance(truth, x).max(initial=0.0)) for x in (ours, theirs))
    return a <= b + float(np.finfo(theirs.dtype).eps)


def _root(graph: onnx.GraphProto, folder: Path) -> None:
    """Let external tensors say where they lie from the root on, links followed, which onnxruntime does not do for
    a model that is not read from its own folder."""
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                path = (folder / entry.value).resolve()
                entry.value = str(path.relative_to(path.anchor))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _root(attribute.g, folder)


def _entering(proto: onnx.ModelProto) -> Iterator[str]:
    """What enters recurrent nodes: it must be finite, since native kernels do not pass on NaN."""
    for node in proto.graph.node:
        if node.op_type in GATES:
            yield from (*node.input[:1], *node.input[5:7])


def _around(nodes: list[IsolatedNode]) -> Iterator[str]:
    """What enters and leaves the lowered nodes."""
    for node in nodes:
        yield from node.feeds.values()
        yield from (value.name or "" for value in node.spec.outputs.values())


def _count_outputs(model: Path) -> int:
    return len(onnx.load(model, load_external_data=False).graph.output)
