"""A proof takes memory for what it makes, nothing for what is too large, and leaves nothing behind."""

import gc

import numpy as np
import onnx
import pytest
from cases import Case, model
from texts import parse

import rnn_lowering as rl
from rnn_lowering.compare.proof import obligations
from rnn_lowering.compare.proof.axes import RunSizes
from rnn_lowering.compare.proof.functions import relu
from rnn_lowering.compare.proof.loops import CONTROL
from rnn_lowering.compare.proof.machine import Machine
from rnn_lowering.compare.proof.obligations import Claim, prove
from rnn_lowering.compare.proof.operators import OPERATORS
from rnn_lowering.compare.proof.polynomials import MOST_FUNCTIONS, Algebra, Effort, UnprovenError
from rnn_lowering.compare.proof.sequences import marks_of
from rnn_lowering.compare.proof.symbolic_rows import SymbolicRows

SLACK, ROUNDING = 2.0**-15, 2.0**-24


def proofs(original: onnx.ModelProto) -> list[tuple[str, str]]:
    check = rl.verify(original, rl.lower(original, "scan"), runs=1)
    return [(str(proof.status), proof.reason) for proof in check.proofs]


@pytest.mark.usefixtures("workers_here")
def test_a_product_is_as_large_as_its_result() -> None:
    assert proofs(model(Case("wide", "RNN", T=17, N=1, I=1024, H=1024, x="static"), 17)) == [
        ("proven at 17 steps", "")
    ]
    rows = SymbolicRows(Effort(), SLACK)
    machine = Machine(rows, RunSizes({}, None), ROUNDING, CONTROL, OPERATORS, marks_of)
    for shape in ((17, 1), (1, 17, 1)):
        with pytest.raises(UnprovenError, match="too large"):
            machine.product(rows.symbols(shape, "x"), np.zeros((1, 1 << 20)))


def layers(count: int, H: int) -> onnx.ModelProto:
    weights = ", ".join(f"float[1,{H},{H}] W{n} = {{}}, float[1,{H},{H}] R{n} = {{}}" for n in range(count))
    nodes = "\n".join(
        f"Y{n} = RNN <hidden_size={H}> (X{n}, W{n}, R{n}) X{n + 1} = Squeeze (Y{n}, one)" for n in range(count)
    )
    return parse(f"""
main (float[T,N,{H}] X0) => (float[T,N,{H}] X{count}) <int64[1] one = {{1}}, {weights}> {{
{nodes}
}}""")


@pytest.mark.usefixtures("workers_here")
def test_layers_that_meet_each_size_take_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 layers take T to T + 7 steps, of which one is a multiple of 8."""
    assert set(proofs(layers(3, 8))) == {("proven", "")}
    monkeypatch.setattr(obligations, "_check_at", lambda *_: pytest.fail("it was tried"))
    assert set(proofs(layers(8, 8))) == {("not proven", "too large")}


def proven_steps(effort: Effort) -> int | None:
    case = Case("steps", "LSTM", T=60, N=1, optional=("B",), x="static")
    original = model(case, 17)
    sizes, shapes = {"T": case.T, "N": case.N}, {"X": (case.T, case.N, case.I)}
    lowered = rl.lower(original, "unroll")
    return prove(Claim([original], lowered, shapes, sizes, frozenset(), ROUNDING), effort)


def test_functions_of_a_step() -> None:
    """They are no more than those by which a node is too large before it is tried."""
    assert proven_steps(effort := Effort()) == 60
    assert MOST_FUNCTIONS - effort.left < 50 * 60


def test_nothing_is_left_for_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        before = algebras()
        proven_steps(Effort())
        assert algebras() == before
    finally:
        gc.enable()


def algebras() -> int:
    return sum(isinstance(thing, Algebra) for thing in gc.get_objects())


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_positive(sign: int) -> None:
    """Also where a function of x is computed as that of -x."""
    k = Algebra(Effort(), SLACK)
    k.begin_run()
    a, b = (k.symbol(4, name) for name in "ab")
    x = a - b if sign > 0 else b - a
    y = relu(k, x)
    assert not relu(k, -y).terms
    assert relu(k, y) is y
    assert relu(k, y - a).terms
