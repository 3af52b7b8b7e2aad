"""Lowered nodes are proven; no wrong one is. The judge of mutants is the oracle in float64, at sizes that no proof
uses."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cases import Case, model
from commands import Command
from distant import AXES, KINDS, at_a_distance
from impostors import IMPOSTORS, Edit, Impostor, entering
from lengths_that_meet import (
    CONDITIONS,
    by_the_next_length,
    random_condition,
    where_both_ends_are_last,
    where_it_is_half,
    where_lengths_meet,
)
from mutants import mutant
from oracle import GATES, evaluate
from other_arithmetic import OTHER_ARITHMETIC
from random_masks import RandomMask, under_mask
from running import session
from sizes_that_meet import OF_AXES, three_times_as_many
from taken_sizes import CLOSED, JOINED, OPEN, closed_for_open, of_joined_rows
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.compare.proof.axes import RunSizes
from rnn_lowering.compare.proof.obligations import Claim, prove
from rnn_lowering.compare.proof.polynomials import UnprovenError

STATES = ("B", "sequence_lens", "initial_h", "initial_c")
CASES = [
    Case("LSTM", "LSTM", {"direction": "bidirectional"}, optional=(*STATES, "P"), x="symbolic"),
    Case("reset_after", "GRU", {"linear_before_reset": 1}, x="symbolic"),
    Case("backwards", "GRU", {"direction": "reverse"}, optional=("B", "initial_h"), x="symbolic"),
    Case("clipped", "RNN", {"clip": 0.5}, optional=("B", "sequence_lens"), x="symbolic"),
    Case("both_ways", "LSTM", {"direction": "bidirectional"}, x="symbolic"),
    Case("fixed", "LSTM", T=6, optional=("B", "initial_c"), x="static"),
    Case("coupled", "LSTM", {"input_forget": 1}, x="batch"),
    Case("given", "GRU", {"linear_before_reset": 1}, weights="input", x="symbolic"),
    Case("hard", "RNN", {"activations": ["HardSigmoid"], "activation_alpha": [0.3]}, x="symbolic"),
    Case("few_rows", "LSTM", {"direction": "bidirectional"}, N=2, optional=STATES, x="length"),
]
OPEN_LENGTH = ("symbolic", "length")
FAR_ROWS = Case("far", "RNN", I=19, H=23, x="symbolic")
RAGGED = replace(FAR_ROWS, T=6, optional=("B", "sequence_lens"))

Sizes = Sequence[tuple[int, int]]
ODD: Sizes = ((1, 1), (2, 5), (7, 3), (64, 2), (230, 1))
"""(T, N) of the runs that judge a mutant."""
LARGE: Sizes = ((2, 2), (29, 2), (12, 12), (29, 29), (14, 29), (40, 17), (130, 1), (1, 4))
"""Those of the runs that show a fault that only large sizes have, or a small pair."""

FAR = 2e-5


@pytest.mark.few(3)
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("case", CASES[::-1], ids=lambda case: case.name)
@pytest.mark.usefixtures("workers_here")
def test_proven(case: Case, form: Any) -> None:
    original = model(case, 17)
    check = rl.verify(original, rl.lower(original, form), runs=1)
    (proof,) = check.proofs
    is_open = case.x in OPEN_LENGTH
    length = "proven" if is_open else f"proven at {case.T} steps"
    assert (proof.status, proof.reason) == (length, "")
    assert f"1 of 1 node proven for every {'length and ' * is_open}input" in str(check)


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "impostor"), thinned(IMPOSTORS, 16))
def test_no_impostor_is_proven(name: str, impostor: Impostor) -> None:
    original, right, wrong = impostor.models()
    prove(claim(impostor.case, original, right))
    with pytest.raises((UnprovenError, AttributeError, LookupError, TypeError, ValueError)):
        prove(claim(impostor.case, original, wrong))


@pytest.mark.parametrize("first", thinned([*range(0, 1200, 20)], 60))
def test_no_wrong_mutant_is_proven(first: int) -> None:
    proven = 0
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        case = CASES[rng.integers(len(CASES))]
        original = model(case, 17)
        wrong, what = mutant(rl.lower(original, str(rng.choice(["scan", "loop"]))), rng)  # type: ignore[call-overload]
        try:
            prove(claim(case, original, wrong))
        except (ArithmeticError, UnprovenError, AttributeError, LookupError, TypeError, ValueError):
            continue
        proven += 1
        for far in distances(case, original, wrong, rng):
            assert far < FAR, f"{seed}, {case.name}: {what}"
    assert proven < 10


@pytest.mark.parametrize("lengths", [False, True], ids=["", "lengths"])
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("distance", [4, 6, 12])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_no_fault_at_a_distance_is_proven(kind: str, axis: int, distance: int, form: Any, lengths: bool) -> None:
    if axis in AXES.get(kind, (0, 1)):
        refuse(at_a_distance(kind, axis, distance), form, lengths, np.random.default_rng(0))


@pytest.mark.parametrize("name", OTHER_ARITHMETIC)
def test_no_other_arithmetic_is_proven(name: str) -> None:
    refuse(OTHER_ARITHMETIC[name], "scan", False, np.random.default_rng(0))


@pytest.mark.parametrize("size", [5, 7])
@pytest.mark.parametrize("kind", OF_AXES)
def test_no_multiple_of_a_size_is_another_one(kind: str, size: int) -> None:
    case = Case("few", "RNN", I=2, H=3, x="symbolic")
    refuse(three_times_as_many(kind, size), "scan", False, np.random.default_rng(0), case)


@pytest.mark.parametrize("first", thinned([*range(0, 300, 5)], 60))
def test_no_fault_in_few_rows_is_proven(first: int) -> None:
    for seed in range(first, first + 5):
        rng = np.random.default_rng(seed)
        while not (mask := RandomMask(rng, lengths=bool(seed % 2))).is_hidden(LARGE):
            pass
        case = replace(FAR_ROWS, optional=("B", "sequence_lens") if mask.lengths else ("B",))
        original, _, wrong = Impostor("", case, edit=under_mask(mask)).models(("scan", "loop")[seed // 2 % 2])
        right_if_proven(case, original, wrong, rng, LARGE)


@pytest.mark.few(5)
@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("x", ["symbolic", "batch", "static"])
@pytest.mark.parametrize("kind", CONDITIONS)
def test_no_fault_of_several_lengths_is_proven(kind: str, x: Any, form: Any) -> None:
    if x != "symbolic" or (form != "unroll" and kind != "two numbers"):
        case = replace(RAGGED, x=x)
        original, right, wrong = Impostor("", case, edit=where_lengths_meet(CONDITIONS[kind])).models(form)
        prove(claim(case, original, right))
        drawn = map(np.random.default_rng, range(100))
        assert any(far > FAR for rng in drawn for far in distances(case, original, wrong, rng))
        with pytest.raises(UnprovenError):
            prove(claim(case, original, wrong))


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("N", [3, 5])
def test_no_length_of_another_sequence_is_proven(N: int, form: Any) -> None:
    case = replace(RAGGED, x="static", N=N)
    original, right, wrong = Impostor("", case, edit=by_the_next_length()).models(form)
    prove(claim(case, original, right))
    assert max(distances(case, original, wrong, np.random.default_rng(0))) > FAR
    with pytest.raises(UnprovenError, match="length of another sequence"):
        prove(claim(case, original, wrong))


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_no_length_chooses_a_size(form: Any) -> None:
    case = replace(RAGGED, x="static", T=4, N=4)
    original, right, wrong = Impostor("", case, edit=where_both_ends_are_last()).models(form)
    prove(claim(case, original, right))
    drawn = map(np.random.default_rng, range(50))
    assert any(far > FAR for rng in drawn for far in distances(case, original, wrong, rng))
    with pytest.raises(UnprovenError):
        prove(claim(case, original, wrong))


@pytest.mark.usefixtures("workers_here")
def test_no_rounding_to_another_type_is_proven() -> None:
    """Not even to one that onnxruntime's kernels lack."""
    edit = entering("X", "small = Cast <to = 16> (X) WRONG = Cast <to = 1> (small)")
    original, _, wrong = Impostor("", FAR_ROWS, edit=edit).models()
    check = rl.verify(original, wrong, runs=1, tolerance=rl.Tolerance(rtol=1e30, atol=1e30))
    assert [proof.status for proof in check.proofs] == ["not proven"]


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_no_length_that_is_half_of_the_steps_is_proven(form: Any) -> None:
    """Its sizes have 7, so no proof runs at 7 steps."""
    case = replace(RAGGED, I=7)
    original, right, wrong = Impostor("", case, edit=where_it_is_half()).models(form)
    prove(claim(case, original, right))
    assert max(distances(case, original, wrong, np.random.default_rng(0), [(3, 30)])) > FAR
    with pytest.raises(UnprovenError, match="are moved"):
        prove(claim(case, original, wrong))


@pytest.mark.few(12)
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", CLOSED)
def test_no_size_that_is_closed_is_taken_for_an_open_one(kind: str, axis: int, form: Any) -> None:
    for size in range(3, 12):
        refuse(closed_for_open(kind, axis, size), form, False, np.random.default_rng(0))


@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("N", [2, 3, 16])
def test_no_row_of_another_step_is_proven(N: int, kind: str) -> None:
    """Of rows of all steps, so many in each, one is chosen by its number among all."""
    case = Case("few", "RNN", I=2, H=3, N=N, x="length")
    original, right, wrong = Impostor("", case, edit=of_joined_rows(JOINED[kind], N)).models("scan")
    prove(claim(case, original, right))
    prove(
        claim(case, original, Impostor("", case, edit=of_joined_rows("next = Identity (own)", N)).models("scan")[2])
    )
    assert max(distances(case, original, wrong, np.random.default_rng(0), LARGE)) > FAR
    with pytest.raises(UnprovenError):
        prove(claim(case, original, wrong))


@pytest.mark.few(4)
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("kind", OPEN)
def test_no_size_is_taken_for_another(kind: str, form: Any) -> None:
    for size in (3, 5, 7):
        refuse(entering("X", OPEN[kind](size)), form, False, np.random.default_rng(0))


@pytest.mark.parametrize("first", thinned([*range(0, 400, 10)], 40))
def test_no_fault_where_lengths_meet_is_proven(first: int) -> None:
    for seed in range(first, first + 10):
        rng = np.random.default_rng(seed)
        case = replace(RAGGED, x=("symbolic", "batch", "static")[seed % 3])
        edit = where_lengths_meet(random_condition(rng))
        original, _, wrong = Impostor("", case, edit=edit).models("scan")
        right_if_proven(case, original, wrong, rng)


def right_if_proven(
    case: Case, original: onnx.ModelProto, wrong: onnx.ModelProto, rng: np.random.Generator, sizes: Sizes = ODD
) -> None:
    try:
        prove(claim(case, original, wrong))
    except UnprovenError:
        return
    for far in distances(case, original, wrong, rng, sizes):
        assert far < FAR


def refuse(edit: Edit, form: Any, lengths: bool, rng: np.random.Generator, case: Case = FAR_ROWS) -> None:
    """Check that a fault is one, at large sizes, and that it is not proven."""
    case = replace(case, optional=("B", "sequence_lens") if lengths else ("B",))
    original, right, wrong = Impostor("", case, edit=edit).models(form)
    prove(claim(case, original, right))
    assert max(distances(case, original, wrong, rng, LARGE)) > FAR
    with pytest.raises(UnprovenError):
        prove(claim(case, original, wrong))


def claim(case: Case, original: onnx.ModelProto, lowered: onnx.ModelProto) -> Claim:
    """The claim that a model computes what a node does."""
    dirs, H = len(case.reverse), case.H
    T: int | str = "T" if case.x in OPEN_LENGTH else case.T
    N: int | str = "N" if case.x in ("symbolic", "batch") else case.N
    rows = GATES[case.op_type] * H
    shapes = {"X": (T, N, case.I), "sequence_lens": (N,), "initial_h": (dirs, N, H), "initial_c": (dirs, N, H)}
    shapes |= {"W": (dirs, rows, case.I), "R": (dirs, rows, H), "B": (dirs, 2 * rows)}
    names = {value.name for value in original.graph.input}
    fixed = {name: size if isinstance(size, int) else None for name, size in (("T", T), ("N", N))}
    given = {name: shape for name, shape in shapes.items() if name in names}
    if case.attributes.get("layout"):
        given = {name: (shape[1], shape[0], *shape[2:]) if shape[1:] else shape for name, shape in given.items()}
    return Claim([original], lowered, given, fixed, frozenset({"sequence_lens"}) & names, 2.0**-24)


def distances(
    case: Case,
    original: onnx.ModelProto,
    wrong: onnx.ModelProto,
    rng: np.random.Generator,
    sizes: Sizes = ODD,
) -> Iterator[float]:
    """Yield how far a model is from the oracle; a model that is no valid one is none that is proven."""
    try:
        runs = session(wrong)
    except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidGraph):
        return
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in original.graph.initializer}
    for T, N in sizes:
        given = T if case.x in OPEN_LENGTH else case.T, N if case.x in ("symbolic", "batch") else case.N
        sized = replace(case, T=given[0], N=given[1])
        feed = {}
        for name, dims in claim(replace(sized, x="static"), original, wrong).shapes.items():
            shape = tuple(map(int, dims))
            lengths = name == "sequence_lens"
            drawn = rng.integers(0, sized.T + 1, shape) if lengths else rng.standard_normal(shape)
            feed[name] = drawn.astype(np.int32 if lengths else np.float32)
        truth = evaluate(case.op_type, case.attributes, {**weights, **feed})
        names = [value.name for value in wrong.graph.output]
        try:
            outputs = runs.run(None, feed)
        except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidArgument):
            yield np.inf
            continue
        for name, got in zip(names, outputs, strict=True):
            far = np.abs(got - truth[name]) if got.shape == truth[name].shape else np.array(np.inf)
            yield float(np.nan_to_num(far, nan=np.inf).max(initial=0))


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_units_of_real_models(op: str) -> None:
    case = Case("large", op, {"direction": "bidirectional"}, I=40, H=200, optional=STATES, x="symbolic")
    original = model(case, 17)
    lowered = rl.lower(original, "scan")
    prove(claim(case, original, lowered))
    for place in (0, -1):
        wrong = onnx.ModelProto()
        wrong.CopyFrom(lowered)
        tensor = next(t for t in wrong.graph.initializer if np.prod(t.dims) == max_size(lowered))
        values = onnx.numpy_helper.to_array(tensor).copy()
        values.flat[np.flatnonzero(values)[place]] *= 1 + 2.0**-20
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        with pytest.raises(UnprovenError):
            prove(claim(case, original, wrong))


@pytest.mark.few(3)
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("name", ["W", "R"])
@pytest.mark.parametrize(
    "edit",
    [
        "WRONG = Transpose <perm = [0, 2, 1]> ({0})",
        "last = Constant <value_ints = [-1]> () first = Constant <value_ints = [-99]> ()"
        " axes = Constant <value_ints = [{1}]> () WRONG = Slice ({0}, last, first, axes, last)",
        "zero = Sub ({0}, {0}) WRONG = Softplus (zero)",
        "more = Constant <value_float = 1.000001> () WRONG = Mul ({0}, more)",
    ],
    ids=["turned", "backwards", "equal", "larger"],
)
def test_weights_that_come_at_run_time(edit: str, name: str, form: Any) -> None:
    """There are too many of them to compute with each."""
    for axis in (1, 2):
        case = Case("given", "RNN", {"direction": "bidirectional"}, I=40, H=40, weights="input", x="symbolic")
        impostor = Impostor("", case, edit=entering(name, edit.format(name, axis)))
        original, right, wrong = impostor.models(form)
        prove(claim(case, original, right))
        with pytest.raises(UnprovenError):
            prove(claim(case, original, wrong))


def test_each_row_has_each_length() -> None:
    """The last of more rows than there are lengths reads the row before it."""
    case = Case("rows", "RNN", T=1, N=4, optional=("B", "sequence_lens"), x="static")
    original = model(case, 17)
    wrong = rl.lower(original, "loop")
    (places,) = (t for t in wrong.graph.initializer if onnx.numpy_helper.to_array(t).tolist() == [[-4, -3, -2, -1]])
    prove(claim(case, original, wrong))
    places.CopyFrom(onnx.numpy_helper.from_array(np.array([[-4, -3, -2, -2]]), places.name))
    with pytest.raises(UnprovenError):
        prove(claim(case, original, wrong))


EMPTY = Case("empty", "GRU", optional=("B", "initial_h"), x="static")


@pytest.mark.parametrize(
    "case", [replace(EMPTY, T=0), replace(EMPTY, N=0), replace(EMPTY, I=0)], ids=["T", "N", "I"]
)
def test_sizes_of_0(case: Case) -> None:
    original = model(case, 17)
    lowered = rl.lower(original)
    prove(claim(case, original, lowered))
    for node in lowered.graph.node:
        node.output[:] = ["before" if name == "Y_h" else name for name in node.output]
    lowered.graph.node.add(op_type="Softplus", input=["before"], output=["Y_h"])
    with pytest.raises(UnprovenError) if case.N else nullcontext():
        prove(claim(case, original, lowered))


def test_no_size_chooses_a_row_of_a_constant() -> None:
    axes = RunSizes({"T": 37, "N": 11}, frozenset({4}))
    axes.chosen(37, axes.of(37), -1)
    axes.chosen(4, 3)
    with pytest.raises(UnprovenError, match="a size chooses a row of a constant"):
        axes.chosen(4, axes.of(11))


def max_size(lowered: onnx.ModelProto) -> int:
    return max(int(np.prod(t.dims)) for t in lowered.graph.initializer)


def test_require_proven(rnn_lower: Command, tmp_path: Path) -> None:
    for case, code in ((CASES[3], 0), (Case("large", "LSTM", T=800), 5)):
        source, target = tmp_path / "in.onnx", tmp_path / f"{case.name}.onnx"
        onnx.save(model(case, 17), source)
        outcome = rnn_lower(source, target, "--require-proven", "--verify", "1")
        assert (outcome.code, target.exists()) == (code, not code)
        assert ("is not proven: too large" in outcome.err) == bool(code)


@pytest.mark.usefixtures("workers_here")
def test_that_no_node_is_proven_is_said(rnn_lower: Command, tmp_path: Path) -> None:
    """On the line, on the page and in Python."""
    source, target, page = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "page.html"
    onnx.save(model(Case("large", "LSTM", T=800), 17), source)
    outcome = rnn_lower(source, target, "--verify", "1", "--report", page)
    assert "0 of 1 node proven (-v says why); verified (onnxruntime)" in outcome.out
    assert "0 of 1 node proven (the list of proofs says why)" in page.read_text(encoding="utf-8")
    report = rl.lower_file(source, target, verify=1, overwrite=True)
    assert "0 of 1 node proven (.proofs says why); verified (onnxruntime)" in str(report)
