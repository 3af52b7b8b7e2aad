"""What runs models: it ends in time, leaves no process, and one model's crash does not touch the next."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from chains import Link, chain
from one_process import run_workers_here
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering import file_lowering
from rnn_lowering.child import Child, ChildError, Message
from rnn_lowering.compare import node_by_node
from rnn_lowering.compare.runs import runner as runner_module
from rnn_lowering.compare.runs import worker
from rnn_lowering.compare.runs.runner import Chunks, Runner, SessionError
from rnn_lowering.compare.runs.sessions import Session
from rnn_lowering.compare.runs.worker import StoredArrays, write_arrays
from rnn_lowering.limits import limited
from rnn_lowering.passes.lower import lower_model

pytestmark = pytest.mark.usefixtures("own_processes")
ONE = (Link("GRU", "first", hidden=4),)
ENDLESS = """g (float[T,N,3] X) => (float[T,1,N,4] Y, int64 sum)
    <float[1,12,3] W = {}, float[1,12,4] R = {}, int64 trips = {1}, bool go = {1}, int64 zero = {0}> {
    Y = GRU <hidden_size = 4> (X, W, R)
    sum = Loop (trips, go, zero) <body = b (int64 step, bool go_in, int64 state) => (bool go_out, int64 next) {
        go_out = Identity (go_in)  next = Add (state, step) }> }"""
MANY = """many (int64[1] X) => (int64[1] Y) {
    m = ConstantOfShape <value = int8[1] {1}> (X)  least = ReduceMin (m)  Y = Cast <to = 7> (least) }"""


@pytest.mark.parametrize("which", thinned(["original", "lowered"], 2))
def test_a_model_that_never_ends(which: str, started: list[subprocess.Popen[bytes]]) -> None:
    endless = ENDLESS.replace("trips = {1}", f"trips = {{{2**60}}}")
    original = parse(endless if which == "original" else ENDLESS)
    lowered = rl.lower(parse(endless if which == "lowered" else ENDLESS))
    start = time.perf_counter()
    check = rl.verify(original, lowered, timeout=0.5)
    assert check.status == "not verified"
    assert f"the {which}" in check.reason
    assert "timed out after 0.5 seconds (raise the limit: rl.Check(timeout=...)" in check.reason
    assert time.perf_counter() - start < 60
    assert {process.returncode for process in started} == {-signal.SIGKILL}


def test_one_process_for_everything(started: list[subprocess.Popen[bytes]]) -> None:
    original = chain(*ONE, *ONE)
    assert rl.verify(original, rl.lower(original))
    assert len(started) == 1


def test_what_compares_a_stream_is_started_before_the_stream_is_made(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    source, written = tmp_path / "model.onnx", tmp_path / "stream.onnx"
    onnx.save(chain(*ONE), source)
    rl.lower_file(source, written, stream="seq", verify=0)
    rl.preview(source, stream="seq")
    with pytest.raises(rl.RnnLoweringError, match="exists"):
        rl.lower_file(source, written, stream="seq")
    assert started == []
    assert rl.lower_file(source, written, stream="seq", overwrite=True).verification
    assert len(started) == 1
    onnx.save(chain(Link("GRU", "first", {"direction": "bidirectional"})), source)
    with pytest.raises(rl.UnsupportedError, match="bidirectional"):
        rl.lower_file(source, tmp_path / "refused.onnx", stream="seq")
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def saved(folder: Path) -> Session:
    path = folder / "model.onnx"
    onnx.save(chain(*ONE), path)
    return Session(path)


def test_a_process_that_an_earlier_job_damaged_is_replaced(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    session = saved(tmp_path)
    with Runner() as runner:
        feed = runner.write_feed({"X": np.zeros((5, 2, 3), np.float32)})
        first = runner.run(session, [[feed]])
        started[0].kill()
        second = runner.run(session, [[feed]])
        assert len(started) == 2
        assert first.names == second.names
        for name, array in first.runs[0].outputs().items():
            np.testing.assert_array_equal(array, second.runs[0].outputs()[name])


def test_a_first_job_that_kills_its_process_is_not_repeated(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    with Runner() as runner:
        started[0].kill()
        with pytest.raises(SessionError, match="its process died") as raised:
            runner.run(saved(tmp_path), [])
        assert raised.value.crashed
        assert len(started) == 1
        assert runner.run(saved(tmp_path), []).runs == ()


def noted(call: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """Return a function that adds its name to others when it is called."""

    def note(*given: Any, **also: Any) -> Any:
        names.append(call.__name__)
        return call(*given, **also)

    return note


def test_a_model_that_is_loaded_ahead_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, other = saved(tmp_path), Session(tmp_path / "other.onnx")
    onnx.save(chain(Link("LSTM", "second")), other.model)
    loaded: list[str] = []
    run_workers_here(monkeypatch)
    monkeypatch.setattr(worker, "_load", noted(worker._load, loaded))
    with Runner() as runner:
        feed = runner.write_feed({"X": np.ones((5, 2, 3), np.float32)})
        alone = [runner.run(each, [[feed]]).runs[0].outputs() for each in (session, other)]
        for run, also_loads in ((session, 0), (other, 2), (replace(session), 2)):
            loaded.clear()
            runner.load(session)
            for outputs in (runner.run(run, [[feed]]).runs[0].outputs() for _ in range(2)):
                expected = alone[run is other]
                assert outputs.keys() == expected.keys()
                assert all((outputs[name] == expected[name]).all() for name in expected)
            assert len(loaded) == 1 + also_loads
        loaded.clear()
        for each in (session, other):
            runner.load(each)
        assert all(runner.run(each, [[feed]]).runs[0].feed == feed for each in (session, other))
        assert len(loaded) == 2


def test_a_model_that_is_loaded_ahead_and_kills_its_process(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    session, missing = saved(tmp_path), Session(tmp_path / "missing.onnx")
    with Runner() as runner:
        feed = runner.write_feed({"X": np.zeros((5, 2, 3), np.float32)})
        runner.load(missing)
        with pytest.raises(SessionError, match="missing"):
            runner.run(missing, [[feed]])
        runner.load(session)
        started[0].kill()
        assert runner.run(session, [[feed]]).runs[0].feed == feed
        assert len(started) == 2


def test_a_model_that_others_loaded_ahead_keep_waiting_runs_alone(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time that another model takes to load would be that of the one that runs."""
    session, other, limits = saved(tmp_path), Session(tmp_path / "other.onnx"), iter((True, True, False))

    def late(self: Child, job: Message, seconds: float | None, ask: Any = Child.ask) -> Iterator[Message]:
        if next(limits):
            raise ChildError
        yield from ask(self, job, seconds)

    monkeypatch.setattr(Child, "ask", late)
    with Runner() as runner:
        feed = runner.write_feed({"X": np.zeros((5, 2, 3), np.float32)})
        runner.load(session)
        with pytest.raises(SessionError, match="timed out") as raised:
            runner.run(session, [[feed]])
        assert raised.value.over_limit
        runner.load(session)
        runner.load(other)
        assert runner.run(session, [[feed]]).runs[0].feed == feed
        assert len(started) == 3


def test_an_original_is_loaded_while_it_is_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(Runner, "load", noted(Runner.load, order))
    monkeypatch.setattr(file_lowering, "lower_model", noted(lower_model, order))
    source = tmp_path / "model.onnx"
    onnx.save(chain(*ONE), source)
    assert rl.lower_file(source, tmp_path / "lowered.onnx").verification
    assert order == ["load", "lower_model", "load", "load"]  # of the result too, then without optimizations


def test_a_long_node_that_is_the_whole_result_is_loaded_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    run_workers_here(monkeypatch)
    monkeypatch.setattr(worker, "_load", noted(worker._load, loaded))
    source, checks = tmp_path / "model.onnx", []
    text = """g (float[T,N,3] X) => (float[T,1,N,4] Y) <float[1,12,3] W = {}, float[1,12,4] R = {}>
        { Y = GRU <hidden_size = 4> (X, W, R) }"""
    onnx.save(parse(text), source)
    for one_by_one in (False, True):
        if one_by_one:
            monkeypatch.setattr(node_by_node, "_is_all_of", lambda *_: False)
        loaded.clear()
        file = tmp_path / "lowered.onnx"
        report = rl.lower_file(source, file, to="unroll", input_shapes={"X": (60, 3, 3)}, overwrite=True)
        assert report.verification
        checks.append(report.verification.nodes)
        assert len(loaded) == 3 + one_by_one  # the original, and the result with and without optimizations
    assert [check.name for check in checks[0]] == ["Y of GRU node '-> Y' in main graph"]
    assert checks[0] == checks[1]


def test_the_process_ends_with_its_caller() -> None:
    child = Child("rnn_lowering.compare.runs.worker")
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(60) == 0
    child.end()


def test_the_first_feed_that_is_accepted_counts(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with Runner() as runner:
        feeds = [runner.write_feed({"X": np.zeros((5, 2, width), np.float32)}) for width in (9, 3)]
        good, bad = runner.run(saved(tmp_path), [feeds, feeds[:1]]).runs
        assert (good.feed, good.error) == (feeds[1], "")
        assert bad.feed == ""
        assert "invalid dimensions" in bad.error


def test_feeds_that_no_run_needs_are_not_made(tmp_path: Path) -> None:
    made: list[int] = []

    def feeds(*widths: int) -> Iterator[dict[str, Any]]:
        for width in widths:
            made.append(width)
            yield {"X": np.zeros((5, 2, width), np.float32)}

    with Runner() as runner:
        groups = [runner.write_feeds(feeds(*widths)) for widths in ((3, 4), (9, 3, 5), (7, 8))]
        assert made == [3, 9, 7]
        right, second, wrong = runner.run(saved(tmp_path), groups).runs
        assert made == [3, 9, 7, 3, 5, 8]
    assert right.feed == groups[0][0]
    assert second.feed == groups[1][1]
    assert wrong.feed == ""


def test_sequences_run_alone_where_two_need_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_OWN", 1 << 29)
    onnx.save(parse(MANY, 13), tmp_path / "many.onnx")
    with limited(1 << 20), Runner() as runner:
        feeds = [[runner.write_feed({"X": np.array([size])})] for size in (300_000_000, 300_000_000, 3)]
        outcome = runner.run(Session(tmp_path / "many.onnx"), feeds, chunks=Chunks([[1]] * 3))
        for n in range(3):
            np.testing.assert_array_equal(outcome.steps(n)[0]["Y"], [1])


ARRAYS = {
    "file": np.arange(6, dtype=np.int8).reshape(2, 3),
    "allow_pickle": np.array(1.5),
    "/../a\x1b\n": np.zeros((0, 3)),
    "x" * 70_000: np.array(["a", "bc"]),
    "": np.array([True]),
}


def test_arrays_of_any_name(tmp_path: Path) -> None:
    write_arrays(tmp_path / "arrays", ARRAYS)
    found = StoredArrays(tmp_path / "arrays")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_time_limit_is_positive_or_none() -> None:
    original = chain(*ONE)
    assert rl.verify(original, rl.lower(original), runs=1, timeout=float("inf"))
    for timeout in (0, -1, float("nan")):
        with pytest.raises(rl.RnnLoweringError, match="timeout cannot be"):
            rl.Check(timeout=timeout)
