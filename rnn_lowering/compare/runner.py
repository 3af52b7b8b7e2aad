"""`Session`: a model as onnxruntime runs it, with more outputs, open axes, and workarounds for what it misreads.
`Runner`: the child process that runs it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import onnx

from rnn_lowering.child import Child, ChildError, ChildOwner, Message
from rnn_lowering.compare.coverage import Branch, observe
from rnn_lowering.compare.options import Check
from rnn_lowering.compare.worker import StoredArrays, read_steps, write_arrays
from rnn_lowering.facts.operators import moved_inputs, operator_of
from rnn_lowering.files.one_file import external_entries, from_the_root, read_parameters
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.files.scratch import scratch_folder
from rnn_lowering.limits import RUN_FACTOR, most_bytes
from rnn_lowering.model.protobuf import bodies_in, graphs_in, nodes_in
from rnn_lowering.model.scopes import REPEATING
from rnn_lowering.nodes.kinds import CELLS, DYNAMIC_QUANTIZE_LSTM, is_recurrent, role_of
from rnn_lowering.types import Array

_MANY_WEIGHTS = 1000


@dataclass(frozen=True)
class Session:
    """A model that is prepared for a run.

    Attributes:
        model: Path of the model.
        data: The folder that external data is relative to; None for the model's own.
        optimize: Whether onnxruntime optimizes the graph.
        proto: The parsed file; None to parse it on demand.
        branches: The branches whose conditions it returns.
    """

    model: Path
    data: Path | None = None
    optimize: bool = True
    proto: onnx.ModelProto | None = field(default=None, repr=False, compare=False)
    branches: tuple[Branch, ...] = field(default=(), repr=False, compare=False)

    @property
    def parsed(self) -> onnx.ModelProto:
        return self.proto or onnx.load(self.model, load_external_data=False)

    @property
    def one_thread(self) -> bool:
        """Whether it runs with one thread, because its results depend on the number of threads."""
        with suppress(Exception):  # a model that cannot be read is onnxruntime's to refuse
            return DYNAMIC_QUANTIZE_LSTM in operator_counts(self.parsed)
        return False

    @property
    def has_many_weights(self) -> bool:
        """Whether it has so many that onnxruntime packs them: the time to load them unpacked grows with the square
        of their number."""
        with suppress(Exception):  # as above
            return len(self.parsed.graph.initializer) > _MANY_WEIGHTS
        return False


def session_with(
    original: ModelSource,
    path: Path,
    outputs: Iterable[str],
    axes: Mapping[str, int] | None = None,
    late: Mapping[str, int] | None = None,
    *,
    observed: bool = False,
) -> Session:
    """Return a session of the original with more outputs, with open input axes, and with states before the end.

    Args:
        original: The model.
        path: The file for the changed model.
        outputs: The names of the values to return too; those outside the main graph are ignored.
        axes: The axis that gets no fixed size, by input name.
        late: By the name of an output: how many frames before the end its states are (`states_returned`).
        observed: Return the conditions of Ifs too.

    Raises:
        ModelFileError: Its data is missing, or outside its folder.
    """
    proto = deepcopy(original.proto)
    read_parameters(proto, original.path, trust=original.trust)  # onnxruntime does not, and other runtimes may
    _open_axes(proto, axes or {})
    _return_earlier_states(proto, late or {})
    inner = {name for node in proto.graph.node for name in node.output if name}
    inner -= {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(outputs) if name in inner)
    branches = observe(proto) if observed else ()
    return replace(_saved(proto, original, path), branches=branches)


def nodes_by_output(proto: onnx.ModelProto) -> dict[str, str]:
    """Return what to call the node of each computed value of the main graph, in order."""
    return {
        name: f"{node.op_type} node '{node.name or f'-> {name}'}'"
        for node in proto.graph.node
        for name in node.output
        if name
    }


_RECURRENT = (*(name for domain, name in CELLS if not domain), "Scan")


def states_returned(proto: onnx.ModelProto, output: str) -> dict[str, onnx.NodeProto]:
    """Return the last states that an output rearranges, each with its recurrent node or Scan of the main graph. If
    another node computes part of the output, return none."""
    sources = {name: node for node in proto.graph.node for name in node.output if name}
    found, pending = dict[str, onnx.NodeProto](), [output]
    while pending:
        name = pending.pop()
        node = sources.get(name)
        if node is None or (node.domain == "" and node.op_type == "Constant"):
            continue
        if node.domain or not (node.op_type in _RECURRENT or operator_of(node).moves):
            return {}
        if node.op_type in _RECURRENT:
            found[name] = node
        else:
            pending += node.input[: moved_inputs(node)]
    return found


def _return_earlier_states(proto: onnx.ModelProto, late: Mapping[str, int]) -> None:
    """Let outputs return states of some frames before the end: copies of their nodes compute them."""
    earlier = {state: n for output, n in late.items() for state in states_returned(proto, output)}
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for node in nodes:
        copies = [
            each for name in node.output if name in earlier for each in _earlier(proto, node, name, earlier[name])
        ]
        proto.graph.node.extend([node, *copies])


def _earlier(proto: onnx.ModelProto, node: onnx.NodeProto, state: str, frames: int) -> list[onnx.NodeProto]:
    """Take a state from its node, and return nodes that compute it for so many frames before the end."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    count = attributes.get("num_scan_inputs", 0)
    rows = range(len(node.input) - count, len(node.input)) if count else range(1)
    axes = attributes.get("scan_input_axes") or [attributes.get("layout", 0)] * len(rows)
    copy, prefix, cuts = deepcopy(node), f"{state}_earlier", []
    copy.name = prefix
    copy.output[:] = [name if name in ("", state) else f"{prefix}_{n}" for n, name in enumerate(node.output)]
    node.output[:] = [f"{prefix}_whole" if name == state else name for name in node.output]
    for slot, axis in zip(rows, axes, strict=True):
        name = copy.input[slot] = f"{prefix}_input_{slot}"
        cuts += _without_last(proto, node.input[slot], name, frames, axis)
    return [*cuts, copy]


def _without_last(proto: onnx.ModelProto, value: str, name: str, count: int, axis: int) -> list[onnx.NodeProto]:
    """Return the nodes that compute a value without its last rows along an axis."""
    bounds: dict[str, Any] = {"starts": [0], "ends": [-count], "axes": [axis]}
    if next(entry.version for entry in proto.opset_import if not entry.domain) < 10:
        return [onnx.helper.make_node("Slice", [value], [name], **bounds)]
    nodes = []
    for bound, numbers in bounds.items():
        tensor = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], numbers)
        nodes.append(onnx.helper.make_node("Constant", [], [f"{name}_{bound}"], value=tensor))
    return [*nodes, onnx.helper.make_node("Slice", [value, *(f"{name}_{bound}" for bound in bounds)], [name])]


def has_fixed(proto: onnx.ModelProto, axes: Mapping[str, int]) -> bool:
    """Whether any of these input axes has a fixed size."""
    return any(dim.HasField("dim_value") for dim in _dims(proto, axes))


def _dims(proto: onnx.ModelProto, axes: Mapping[str, int]) -> list[onnx.TensorShapeProto.Dimension]:
    return [v.type.tensor_type.shape.dim[axes[v.name]] for v in proto.graph.input if v.name in axes]


def _open_axes(proto: onnx.ModelProto, axes: Mapping[str, int]) -> None:
    """Remove the fixed sizes of input axes."""
    if has_fixed(proto, axes):
        for dim in _dims(proto, axes):
            dim.dim_param = "frames"
        _drop_shapes(proto.graph)


def _drop_shapes(graph: onnx.GraphProto) -> None:
    """Remove the declared shapes of computed values."""
    for inner in graphs_in(graph):
        del inner.value_info[:]
        for value in inner.output:
            value.type.tensor_type.ClearField("shape")


def session_of(model: ModelSource, scratch: Path, misread: Collection[str] = ()) -> Session:
    """Return a session of a model, with workarounds for some of its `misread_nodes`.

    Args:
        model: The model.
        scratch: The folder for a changed model.
        misread: The nodes that get a workaround, by first output.
    """
    repaired = _with_identities(model.proto, misread)
    if repaired is model.proto:
        return Session(model.path, proto=repaired)
    return _saved(repaired, model, scratch / f"repaired_{model.path.name}", ())


def _saved(
    proto: onnx.ModelProto, original: ModelSource, path: Path, misread: Collection[str] | None = None
) -> Session:
    proto = _with_identities(proto, misread_nodes(proto) if misread is None else misread)
    # onnxruntime follows no links, and the copy is in another folder
    from_the_root(proto, original.path, trust=original.trust)
    onnx.save(proto, path)
    return Session(path, Path(original.path.anchor), proto=proto)


def recurrent_inputs(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of the recurrent nodes' inputs: they must be finite, as onnxruntime's kernels drop NaN."""
    for node in proto.graph.node:
        if is_recurrent(node):
            roles = [role_of(node, slot) for slot in range(len(node.input))]
            yield from (n for n, r in zip(node.input, roles, strict=True) if n and (r.is_data or r.is_state))


def misread_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Return descriptions of the Loops and Scans that onnxruntime misreads, by first output."""
    misread = filter(_is_misread, _nodes(model))
    return {_key(node): f"{node.op_type} node '{node.name or _key(node)}'" for node in misread}


def outputs_of_rows(graph: onnx.GraphProto) -> set[str]:
    """Return the outputs of a graph that a Loop stacks."""
    stacked = {
        name for node in graph.node if node.op_type == "Loop" for name in node.output[max(len(node.input) - 2, 0) :]
    }
    return stacked & {value.name for value in graph.output}


def repairs_note(nodes: Mapping[str, str]) -> str:
    """Return a note on the workarounds for `misread_nodes`; "" if there are none."""
    if not nodes:
        return ""
    some = ", ".join(list(nodes.values())[:3]) + (", ..." if len(nodes) > 3 else "")
    return (
        "onnxruntime misreads a body that returns its own input, or an output without a name: an "
        f"Identity or a name was added for the comparison ({some})"
    )


def _with_identities(model: onnx.ModelProto, nodes: Collection[str]) -> onnx.ModelProto:
    """Return a model in which the bodies of these nodes return Identities, and all their outputs have names; the
    same model if it has none of the nodes."""
    if not any(_key(node) in nodes for node in _nodes(model) if _is_misread(node)):
        return model
    copy = deepcopy(model)
    taken = {name for node in _nodes(copy) for name in (*node.input, *node.output)}
    names = (name for n in count() if (name := f"returned_{n}") not in taken)
    for node in _nodes(copy):
        if _key(node) in nodes:
            node.output[:] = [name or next(names) for name in node.output]
            body = _body(node)
            misread = _misread_outputs(body)
            for value, name in zip([v for v in body.output if v.name in misread], names, strict=False):
                body.node.append(onnx.helper.make_node("Identity", [value.name], [name]))
                value.name = name
    return copy


def _is_misread(node: onnx.NodeProto) -> bool:
    unnamed = "" in node.output  # onnxruntime crashes when it runs such a Loop
    return node.op_type in REPEATING and (unnamed or bool(_misread_outputs(_body(node))))


def _misread_outputs(body: onnx.GraphProto) -> set[str]:
    returned = [value.name for value in body.output]
    given = {value.name for value in (*body.input, *body.initializer)}
    return {name for name in returned if name in given or returned.count(name) > 1}


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(bodies_in(node), onnx.GraphProto())


def _key(node: onnx.NodeProto) -> str:
    return next(filter(None, node.output), "")


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in (model.graph, *model.functions):
        yield from nodes_in(graph)


def operator_counts(proto: onnx.ModelProto) -> Counter[str]:
    """Count the operators of a model in all scopes and domains."""
    return Counter(node.op_type for node in _nodes(proto))


def quantizes_inputs(proto: onnx.ModelProto) -> bool:
    """Whether a model quantizes values at run time, by their range."""
    return "DynamicQuantizeLinear" in operator_counts(proto)


# `Runner`: runs models in a child process, so that a crash or hang of a native kernel stays there.


_LATE = "timed out after {:g} seconds (raise the limit: --verify-timeout; or give smaller inputs)"


class SessionError(Exception):
    """onnxruntime does not load or run the model.

    Attributes:
        crashed: Its process died.
        over_limit: It took longer, or needs more memory, than allowed. The model may be right.
    """

    def __init__(self, reason: str, *, crashed: bool = False, over_limit: bool = False) -> None:
        self.crashed, self.over_limit = crashed, over_limit
        super().__init__(reason)

    def about(self, what: object) -> SessionError:
        """Return the same error about a part of the model."""
        return SessionError(f"{what}: {self}", crashed=self.crashed, over_limit=self.over_limit)


class NotAcceptedError(SessionError):
    """onnxruntime loads the model but does not accept the inputs."""


Outputs = Mapping[str, Array]
_Ran = Callable[[], None]
"""Called after each run, in the calling process."""

_OWN = (1 << 30) + (1 << 24) * (os.cpu_count() or 1)
"""Bytes for onnxruntime itself and the stacks of its threads."""

_COPIES = 3
"""Maximum copies of the weights that onnxruntime makes while it folds and rearranges them."""

_COPIES_IN_FLOAT64 = 8
"""Maximum copies of the weights that an evaluation holds: messages and arrays, both twice as wide."""

_WORKER = "rnn_lowering.compare.worker"

_TOO_LARGE = "needs more than {:.1f} GB of memory beside its weights (raise the limit: --max-bytes)"


@dataclass(frozen=True)
class Run:
    """The result of a group of feeds.

    Attributes:
        feed: The feed that counts; "" if the model accepts none.
        error: Why it accepts none; "" if it accepts one.
        finite: Whether all its outputs are finite.
        names: The names of its outputs.
        path: The folder of their arrays.
    """

    feed: str
    error: str
    finite: bool
    names: tuple[str, ...]
    path: Path = field(repr=False)

    def outputs(self) -> Outputs:
        """Return the outputs by "number of the output:number of its part", a tensor being part 0.

        The arrays are mapped files, read-only and in C order. A slice of `reshape(-1)` is a view, so blocks of a
        large array need little memory. They are valid as long as the runner is.
        """
        return StoredArrays(self.path)

    def tensors(self) -> dict[str, Array]:
        """Return the outputs that are tensors, by name."""
        return tensors_by_name(self.names, self.outputs())


def tensors_by_name(names: Sequence[str], outputs: Outputs) -> dict[str, Array]:
    """Return the outputs that are tensors, by name."""
    return {name: outputs[f"{n}:0"] for n, name in enumerate(names) if f"{n}:0" in outputs}


class Alternatives(Sequence[str]):
    """Names of alternative feeds for one run. The first feed is written at once, the others when their names are
    read."""

    def __init__(self, names: Iterable[str]) -> None:
        self._unread = iter(names)
        self._read = list(islice(self._unread, 1))

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        end = index.stop if isinstance(index, slice) else index + 1
        self._read += islice(self._unread, None if end is None else max(0, end - len(self._read)))
        return self._read[index]

    def __len__(self) -> int:
        return len(self[:])


@dataclass(frozen=True)
class Outcome:
    """The names of a model's outputs, one run for each group of feeds, and the seconds that chunks took."""

    names: tuple[str, ...]
    runs: tuple[Run, ...]
    seconds: float = 0.0

    def steps(self, number: int) -> list[dict[str, Array]]:
        """Return the outputs by name of each chunk of a feed that ran in `Chunks`."""
        return read_steps(self.runs[number].path)

    def accepted(self, *, all_must_run: bool) -> list[Run]:
        """Return the runs of the feeds that the model accepts.

        Raises:
            NotAcceptedError: It accepts no feed; or not all, although all must run.
        """
        accepted = [run for run in self.runs if not run.error]
        errors = [run.error for run in self.runs if run.error]
        if not accepted or (all_must_run and errors):
            raise NotAcceptedError(errors[0] if errors else "no runs were requested")
        return accepted


@dataclass(frozen=True)
class Chunks:
    """The chunks of each feed, which run one after another.

    Attributes:
        sizes: The sizes of the chunks of each feed.
        axes: By name, the axis along which an input is cut, and its frames for each frame of the sizes; other
            inputs are the same in each chunk.
        lengths: Inputs that are lengths along that axis: they count down.
        carried: Output -> the input that receives it in the next chunk.
        returned: Outputs to return; empty for all.
    """

    sizes: Sequence[Sequence[int]]
    axes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lengths: Sequence[str] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    returned: Sequence[str] = ()


class Runner(ChildOwner):
    """Runs models one after another in a child process, with a scratch folder; both end with the `with` block.

    Promises:
        The process starts at once: it imports onnxruntime while the caller prepares.
        At most one session exists at a time; it serves all groups of a call whose first feed is accepted.
        If the process dies during a job, the job is tried once more in a new one: an earlier job may be the cause.
        No process outlives the block, nor the caller, however that is killed.

    Args:
        timeout: Seconds for loading a model and for each of its runs; may be infinite.

    Attributes:
        folder: The scratch folder, also for files of the caller.
        timeout: Seconds; None for no limit.
    """

    def __init__(self, timeout: float = Check.timeout) -> None:
        self._scratch = scratch_folder()
        self.folder = self._scratch.__enter__()
        self.timeout = None if math.isinf(timeout) else timeout
        self._written = 0

    def __enter__(self) -> Runner:
        self._child = Child(_WORKER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end_child()
        finally:
            self._scratch.__exit__(kind, error, trace)

    def write_feed(self, feed: Mapping[str, Array]) -> str:
        """Write the inputs of a run to a file; return a name for `run` and `feed`."""
        path = self._new_path("feed")
        write_arrays(path, feed)
        return str(path)

    def write_feeds(self, feeds: Iterable[Mapping[str, Array]]) -> Alternatives:
        """Return names for alternative feeds of one run; those that `run` does not need are never made."""
        return Alternatives(self.write_feed(feed) for feed in feeds)

    def feed(self, name: str) -> Outputs:
        """Return the inputs that `write_feed` wrote, mapped and read-only."""
        return StoredArrays(Path(name))

    def run(
        self,
        session: Session,
        groups: Sequence[Sequence[str]],
        ran: _Ran = lambda: None,
        *,
        chunks: Chunks | None = None,
    ) -> Outcome:
        """Run groups of alternative feeds. In each group, the first feed with finite outputs counts, else the first
        that the model accepts.

        Args:
            groups: Names that `write_feed` or `write_feeds` gave.
            ran: Called after each group.
            chunks: How the first feed of each group is cut; `Outcome.steps` gives the outputs of each chunk.

        Raises:
            SessionError: The model does not load, the process died, or the time is up.
        """
        first = self._run_or_retry(session, [group[:1] for group in groups], ran, chunks)
        again = [n for n, run in enumerate(first.runs) if not run.finite and len(groups[n]) > 1]
        if not again:
            return first
        others = self._run_or_retry(session, [groups[n][:] for n in again], lambda: None, chunks)
        runs = dict(enumerate(first.runs)) | dict(zip(again, others.runs, strict=True))
        return replace(first, runs=tuple(runs.values()))

    def run_optimized_or_not(
        self,
        session: Session,
        groups: Sequence[Sequence[str]],
        ran: _Ran = lambda: None,
        *,
        chunks: Chunks | None = None,
        all_must_run: bool = True,
        may_crash: bool = True,
    ) -> tuple[Session, Outcome, str]:
        """Run as `run` does; if that fails, run without onnxruntime's optimizations, which refuse some models or
        crash on them.

        Args:
            all_must_run: A group of which no feed is accepted is a failure, too.
            may_crash: A process that dies is no failure if it does not die without optimizations.

        Returns:
            The session that ran, its outcome, and why it ran without optimizations; "" if it did not.

        Raises:
            SessionError: It fails both times; the error is that of the first.
        """

        def run(session: Session, ran: _Ran) -> Outcome:
            outcome = self.run(session, groups, ran, chunks=chunks)
            if all_must_run:
                outcome.accepted(all_must_run=True)
            return outcome

        try:
            return session, run(session, ran), ""
        except SessionError as error:
            if error.over_limit or not session.optimize or (error.crashed and not may_crash):
                raise
            plain = replace(session, optimize=False)
            with suppress(SessionError):
                return plain, run(plain, lambda: None), f"only with onnxruntime's optimizations disabled: {error}"
            raise

    def _run_or_retry(
        self, session: Session, groups: Sequence[Sequence[str]], ran: _Ran, chunks: Chunks | None
    ) -> Outcome:
        """Run groups; do it again in a new process if the process dies and has done other jobs."""
        used = self._child is not None and self._child.jobs > 0
        try:
            return self._run(session, groups, ran, chunks)
        except SessionError as error:
            if not (error.crashed and used):
                raise
        return self._run(session, groups, lambda: None, chunks)

    def float64(self, model: Path, feed: str) -> Outputs:
        """Return the outputs of a model in float64, by index.

        Raises:
            SessionError: They cannot be computed.
        """
        out = self._new_path("float64")
        memory = RUN_FACTOR * most_bytes() + _COPIES_IN_FLOAT64 * model.stat().st_size
        job = {"model": str(model), "float64": feed, "out": str(out), "memory": memory}
        try:
            (answer,) = self._ask(job)
        except SessionError:
            self.end_child()
            raise
        if "error" in answer:
            raise SessionError(answer["error"])
        return StoredArrays(out)

    def _ask(self, job: Message) -> Iterator[Message]:
        self._child = self._child or Child(_WORKER)
        try:
            yield from self._child.ask(job, self.timeout)
        except ChildError as error:
            if error.late:
                raise SessionError(_LATE.format(self.timeout), over_limit=True) from None
            raise SessionError(f"its process died (exit {error.exit})", crashed=True) from None

    def _run(self, session: Session, groups: Sequence[Sequence[str]], ran: _Ran, chunks: Chunks | None) -> Outcome:
        out = self._new_path("out")
        out.mkdir()
        names: tuple[str, ...] | None = None
        runs: list[Run] = []
        seconds = 0.0
        try:
            for message in self._ask(_job(session, groups, chunks, out)):
                if message.get("too_large"):
                    raise SessionError(_TOO_LARGE.format(RUN_FACTOR * most_bytes() / 1e9), over_limit=True)
                if names is not None:
                    runs.append(_run_of(message, groups[len(runs)], names, out))
                    seconds += message.get("seconds", 0.0)
                    ran()
                elif "names" in message:
                    names = tuple(message["names"])
                else:
                    raise SessionError(message["error"])
        except SessionError as error:
            if error.crashed or error.over_limit:
                self.end_child()
            raise
        return Outcome(names or (), tuple(runs), seconds)

    def _new_path(self, kind: str) -> Path:
        self._written += 1
        return self.folder / f"{kind}{self._written}"


def _job(session: Session, groups: Sequence[Sequence[str]], chunks: Chunks | None, out: Path) -> Message:
    return {
        "model": str(session.model),
        "data": str(session.data or session.model.parent),
        "optimize": session.optimize,
        "threads": 1 if session.one_thread or chunks else 0,  # chunks are small: threads would only wait
        "packs": session.has_many_weights,
        "groups": groups,
        "chunks": None if chunks is None else asdict(chunks),
        "out": str(out),
        "memory": memory_of(session),
    }


def memory_of(session: Session) -> int:
    """Return how many bytes a run of a model may take."""
    return _OWN + RUN_FACTOR * most_bytes() + _COPIES * _bytes_of_files(session)


def _run_of(message: Message, group: Sequence[str], names: tuple[str, ...], out: Path) -> Run:
    feed = group[message["feed"]] if "feed" in message else ""
    finite = bool(message.get("finite"))
    return Run(feed, message.get("error", ""), finite, names, Path(message.get("out", out)))


def _bytes_of_files(session: Session) -> int:
    """Return the total size of a model's file and its data files."""
    folder = session.data or session.model.parent
    files = {session.model}
    with suppress(Exception):  # a model that cannot be read is onnxruntime's to refuse
        files |= {folder / entry.value for _, entry in external_entries(session.parsed)}
    return sum(file.stat().st_size for file in files if file.is_file())
