"""A gated recurrence that the package has never seen: its schema, `Cell`, equation and float64 are enough.

ft = f(Xt*(Wf^T) + Ht-1*(Rf^T) + Wbf + Rbf)
ct = g(Xt*(Wc^T) + Ht-1*(Rc^T) + Wbc + Rbc)
Mt = ft (.) Mt-1 + (1 - ft) (.) ct
Ht = g(Mt)
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Array, Arrays
from graphs import Graph
from onnx.defs import OpSchema
from running import assert_close, operators, run
from texts import FORMS

import rnn_lowering as rl
from rnn_lowering.compare.float64.rnn_equations import EQUATIONS
from rnn_lowering.facts.contrib_schemas import CONTRIB_SCHEMAS, DOMAIN
from rnn_lowering.nodes.kinds import CELLS, Cell
from rnn_lowering.recurrence.cells import STEPS

NAME, T, N, WIDTH, H = "Leaky", 5, 2, 3, 4
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_m")
OUTPUTS = ("Y", "Y_h", "Y_m")
KINDS = OpSchema.AttrType
ATTRIBUTES = {"direction": KINDS.STRING, "hidden_size": KINDS.INT, "clip": KINDS.FLOAT}


def schema() -> OpSchema:
    options = OpSchema.FormalParameterOption

    def parameters(names: Sequence[str], required: int = 0) -> list[OpSchema.FormalParameter]:
        types = ["tensor(int32)" if name == "sequence_lens" else "T" for name in names]
        kinds = [options.Single] * required + [options.Optional] * (len(names) - required)
        zipped = zip(names, types, kinds, strict=True)
        return [OpSchema.FormalParameter(name, type_, param_option=kind) for name, type_, kind in zipped]

    found = OpSchema(
        NAME,
        DOMAIN,
        1,
        inputs=parameters(INPUTS, required=3),
        outputs=parameters(OUTPUTS),
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[OpSchema.Attribute(s, kind, required=False) for s, kind in ATTRIBUTES.items()],
    )
    found.set_type_and_shape_inference_function(infer_shapes)
    return found


def infer_shapes(context: Any) -> None:
    X, R = context.get_input_type(0), context.get_input_type(2)
    (seq, batch, _), (dirs, _, hidden) = (value.tensor_type.shape.dim for value in (X, R))
    for n in range(context.get_num_outputs()):
        output = onnx.TypeProto()
        output.tensor_type.elem_type = X.tensor_type.elem_type
        output.tensor_type.shape.dim.extend([*([] if n else [seq]), dirs, batch, hidden])
        context.set_output_type(n, output)


def step(op: Any, k: Any, states: Any, x: Any) -> list[Any]:
    h, m = states
    gates = [k.product(h, R) + xw for R, xw in zip(k.R, x, strict=True)]
    f, c = gates if len(gates) == 2 else op.split(gates[0], [k.hidden_size] * 2)
    c = k.g(k.clip(c))
    Mt = c + k.f(k.clip(f)) * (m - c)
    Ht = k.g(Mt)
    op.name(Mt=Mt, Ht=Ht)
    return [Ht, Mt]


def float64(k: Any, x: list[Array], h: Array, m: Array) -> list[Array]:
    f, c = (k.activated(gate, x[gate] + k.of_H(h)[gate]) for gate in (0, 1))
    new = f * m + (1 - f) * c
    return [np.tanh(new), new]


@pytest.fixture(autouse=True)
def new_cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cell = Cell(NAME, "fc", ("Sigmoid", "Tanh"), states=("h", "m"))
    monkeypatch.setitem(CELLS, (DOMAIN, NAME), cell)
    monkeypatch.setitem(CONTRIB_SCHEMAS, NAME, schema())
    monkeypatch.setitem(STEPS, NAME, step)
    monkeypatch.setitem(EQUATIONS, NAME, (float64, ["Sigmoid", "Tanh"]))
    onnx.defs.register_schema(CONTRIB_SCHEMAS[NAME])
    yield
    onnx.defs.deregister_schema(NAME, 1, DOMAIN)


def model(length: int | str = T, **attributes: Any) -> onnx.ModelProto:
    rng, graph = np.random.default_rng(0), Graph()
    dirs = 2 if attributes.get("direction") == "bidirectional" else 1
    shapes = {"W": (dirs, 2 * H, WIDTH), "R": (dirs, 2 * H, H), "B": (dirs, 4 * H)}
    names = [graph.input("X", [length, N, WIDTH])]
    names += [graph.constant(rng.uniform(-1, 1, shape), np.float32, s) for s, shape in shapes.items()]
    names += ["", *(graph.input(s, [dirs, N, H]) for s in ("initial_h", "initial_m"))]
    graph.several(NAME, *names, outputs=OUTPUTS, domain=DOMAIN, hidden_size=H, **attributes)
    for name, rows in zip(OUTPUTS, ([length], [], []), strict=True):
        graph.output(name, [*rows, dirs, N, H])
    return graph.model(domains=[DOMAIN])


def feed(dirs: int = 1, length: int = T) -> Arrays:
    rng = np.random.default_rng(1)
    sizes = {"X": (length, N, WIDTH), "initial_h": (dirs, N, H), "initial_m": (dirs, N, H)}
    return {s: rng.standard_normal(size).astype(np.float32) for s, size in sizes.items()}


def expected(given: onnx.ModelProto, fed: Arrays, reverse: Sequence[bool] = (False,)) -> Arrays:
    """The outputs, step by step."""
    W, R, B = (onnx.numpy_helper.to_array(tensor).astype(np.float64) for tensor in given.graph.initializer)
    X, ys, finals = fed["X"], np.zeros((len(fed["X"]), len(reverse), N, H)), []
    for d, backwards in enumerate(reverse):
        h, m = fed["initial_h"][d], fed["initial_m"][d]
        for t in reversed(range(len(X))) if backwards else range(len(X)):
            f, c = np.split(X[t] @ W[d].T + h @ R[d].T + B[d][: 2 * H] + B[d][2 * H :], 2, axis=-1)
            f = 1 / (1 + np.exp(-f))
            m = f * m + (1 - f) * np.tanh(c)
            h = ys[t, d] = np.tanh(m)
        finals.append((h, m))
    return {"Y": ys, **{s: np.stack(each) for s, each in zip(OUTPUTS[1:], zip(*finals, strict=True), strict=True)}}


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_it_is_lowered_in_each_form_and_compared(direction: str, form: Any, target: Any) -> None:
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    given, fed = model(direction=direction), feed(len(reverse))
    lowered = rl.lower(given, form, target=target)
    assert NAME not in operators(lowered)
    assert_close(run(lowered, fed), expected(given, fed, reverse))
    result = rl.verify(given, lowered, runs=1)
    assert result.status == "verified", result.reason
    assert [node.name.split()[0] for node in result.nodes] == [*OUTPUTS]


def test_layers_share_a_loop() -> None:
    rng, graph = np.random.default_rng(0), Graph()
    x = graph.input("X", ["seq", "batch", H])
    for _ in range(2):
        weights = [graph.constant(rng.uniform(-1, 1, (1, 2 * H, H)), np.float32) for _ in range(2)]
        y, _, m = graph.several(NAME, x, *weights, outputs=3, domain=DOMAIN, hidden_size=H)
        x = graph.node("Squeeze", y, graph.constant([1]))
    graph.output(x, None)
    graph.output(m, None)
    given = graph.model(domains=[DOMAIN])
    apart, joined = (rl.lower(given, "scan", target="onnxruntime", join=join) for join in (False, True))
    assert [len([n for n in each.graph.node if n.op_type == "Scan"]) for each in (apart, joined)] == [2, 1]
    fed = {"X": rng.standard_normal((T, N, H)).astype(np.float32)}
    assert_close(run(joined, fed), run(apart, fed))


def test_a_wrong_second_state_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(op: Any, k: Any, states: Any, x: Any) -> list[Any]:
        return step(op, k, [states[0], states[0]], x)

    monkeypatch.setitem(STEPS, NAME, forgetful)
    given = model()
    assert rl.verify(given, rl.lower(given), runs=1).status == "failed"


def test_both_states_are_streamed() -> None:
    given, fed = model("seq"), feed(length=6)
    stream = rl.Stream(rl.lower(given, stream="seq"))
    assert [(state.state, state.input) for state in stream.plan.states] == [("h", "initial_h"), ("m", "initial_m")]
    stream.states = {s: fed[s] for s in ("initial_h", "initial_m")}
    chunks = [stream({"X": fed["X"][start : start + 2]})["Y"] for start in (0, 2, 4)]
    want = expected(given, fed)
    assert_close({"Y": np.concatenate(chunks)}, {"Y": want["Y"]})
    assert_close(dict(zip(OUTPUTS[1:], stream.states.values(), strict=True)), {s: want[s] for s in OUTPUTS[1:]})
