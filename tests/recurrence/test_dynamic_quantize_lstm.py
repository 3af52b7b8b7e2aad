"""onnxruntime's DynamicQuantizeLSTM is lowered exactly: nothing is lost beside its own kernel with one thread."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from chains import Link, chain
from graphs import MS, Graph, value
from onnx import helper, numpy_helper
from paths import MODELS
from quantized_lstm import ALL, WIDTH, H, Model, T, run
from running import nodes, scopes
from thinning import exhaustive

import rnn_lowering as rl
from rnn_lowering.cli.command import main

FORMS = ("scan", "loop", "unroll")


def assert_exact(model: Model, feed: Arrays, forms: Sequence[str] = FORMS, **options: Any) -> None:
    original = model.proto()
    expected = run(original, feed)
    sized: Any = {"input_shapes": {name: array.shape for name, array in feed.items()}}
    form: Any
    for form in forms:
        new = rl.lower(original, form, **{**(sized if form == "unroll" else {}), **options})
        assert not [n for n in nodes(new) if n.domain]
        assert {"DynamicQuantizeLinear", "MatMulInteger"} <= {n.op_type for n in nodes(new)}
        for a, b in zip(expected, run(new, feed), strict=True):
            assert np.abs(a - b).max(initial=0) <= (0 if model.N == 1 else 1e-6)


KINDS = [
    Model(dirs, dtype, per_column, peepholes, N=N)
    for dirs, dtype, per_column, peepholes, N in product(
        (1, 2), ("int8", "uint8"), (False, True), (False, True), (1, 4)
    )
]


@pytest.mark.few(6)
@pytest.mark.parametrize("model", KINDS, ids=str)
def test_every_kind_of_weights(model: Model) -> None:
    assert_exact(model, model.feed(), ["scan"])


FEATURES = {
    "reverse": Model(direction="reverse"),
    "clip": Model(attributes={"clip": 0.5}),
    "input_forget": Model(attributes={"input_forget": 1}, peepholes=True),
    "activations": Model(attributes={"activations": ["Sigmoid", "Relu", "Tanh"]}),
    "no bias": Model(changed={"B": None}),
    "no bias, peepholes": Model(changed={"B": None}, peepholes=True),
    "states": Model(states=True, dirs=2),
    "only Y": Model(outputs=("Y",), dirs=2),
    "only Y_h": Model(outputs=("Y_h",)),
    "only Y_c": Model(outputs=("Y_c",)),
    "opset 11": Model(opset=11),
    "opset 12, per column": Model(opset=12, per_column=True),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("N", [1, 4])
def test_every_feature(name: str, N: int) -> None:
    model = replace(FEATURES[name], N=N)
    assert_exact(model, model.feed())
    assert_exact(model, model.feed(), ["scan"], target="onnxruntime")


@pytest.mark.few(2)
@pytest.mark.parametrize("outputs", [ALL, ("Y",), ("Y_h", "Y_c")], ids=str)
@pytest.mark.parametrize("dirs", [1, 2])
@pytest.mark.parametrize("states", [False, True])
def test_rows_that_have_ended(outputs: Sequence[str], dirs: int, states: bool) -> None:
    """They enter as zeros with a Y, and hold their state without; X beyond the longest enters no range."""
    model = Model(dirs, lengths=True, states=states, outputs=outputs, N=4)
    assert_exact(model, model.feed([2, 5, 1, 4]))
    if "Y" in outputs:
        assert_exact(model, model.feed([2, 5, 0, 4]), ["scan"])


def test_in_a_body() -> None:
    inner = Model().proto()
    (node,) = inner.graph.node
    node.output[:] = ["y"]
    graph = Graph(tensors=list(inner.graph.initializer), inputs=list(inner.graph.input))
    graph.input("go", [], np.bool_)
    graph.input("Z", None)
    then = helper.make_graph([node], "then", [], [value("y", None)])
    other = helper.make_graph([helper.make_node("Identity", ["Z"], ["z"])], "else", [], [value("z", None)])
    graph.output(graph.node("If", "go", then_branch=then, else_branch=other), None)
    original = graph.model(inner.opset_import[0].version, [MS])
    feed = {**Model().feed(), "go": np.array(True), "Z": np.zeros((1, 1, 1, 1), np.float32)}
    np.testing.assert_allclose(run(rl.lower(original), feed)[0], run(original, feed)[0], atol=1e-6)


def test_in_a_function() -> None:
    """It is inlined, as for the other operators, and verified."""
    model = Model(1, N=1)
    inner = model.proto()
    held = [helper.make_node("Constant", [], [t.name], f"{t.name}_node", value=t) for t in inner.graph.initializer]
    nodes_inside = [*held, *inner.graph.node]
    body = helper.make_function("local", "Lstm", ["X"], list(ALL), nodes_inside, inner.opset_import)
    graph = Graph(inputs=list(inner.graph.input), outputs=list(inner.graph.output))
    graph.several("Lstm", "X", outputs=ALL, name="call", domain="local")
    original = graph.model(inner.opset_import[0].version, [MS, "local"], [body])
    lowered = rl.lower(original)
    assert "DynamicQuantizeLSTM" not in {n.op_type for n in nodes(lowered)}
    for a, b in zip(run(original, model.feed()), run(lowered, model.feed()), strict=True):
        np.testing.assert_array_equal(a, b)
    result = rl.verify(original, lowered, runs=1)
    assert result, str(result)
    assert "one thread" in result.reason
    assert len(result.nodes) == 3


@pytest.mark.parametrize("form", FORMS)
def test_dequantized_it_is_an_lstm_of_floats(form: Any) -> None:
    """With uint8 weights: products of int8 saturate in onnxruntime on processors without VNNI."""
    model = Model(2, dtype="uint8", peepholes=True)
    sized: Any = {"input_shapes": {"X": (T, model.N, WIDTH)}}
    new, report = rl.lower(model.proto(), form, dequantize=True, full=True, **sized)
    assert not {"DynamicQuantizeLinear", "MatMulInteger", "DequantizeLinear"} & {n.op_type for n in nodes(new)}
    (note,) = [note for note in report.notes if "became floats" in note]
    assert "not rounded" in note
    assert not re.search(r"\de-\d", note)  # no difference that was not measured
    for a, b in zip(run(model.proto(), model.feed()), run(new, model.feed()), strict=True):
        assert 0 < np.abs(a - b).max() < 2e-2


def test_without_rounding_the_verification_tells_the_measured_difference(tmp_path: Path) -> None:
    model = Model(1, dtype="uint8")
    onnx.save(model.proto(), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", dequantize=True, verify=1)
    assert report.verification is not None
    told = re.search(r"rounded to 8 bits any more, so outputs differ by up to (\S+)", report.verification.reason)
    assert told is not None
    assert float(told[1]) == pytest.approx(report.verification.max_abs, rel=0.05)
    assert 1e-4 < report.verification.max_abs < 2e-2
    exact = rl.verify(model.proto(), rl.lower(model.proto()), runs=1)
    assert "differ" not in exact.reason


def planted(graph: onnx.GraphProto, name: str, amount: float) -> int:
    """Add to the floats of this name, in all scopes; return how many tensors there are."""
    floats = [t for scope in scopes(graph) for t in scope.initializer if t.data_type == 1]
    found = [t for t in floats if t.name.rpartition("/")[2].startswith(name)]
    for tensor in found:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(amount), tensor.name))
    return len(found)


@pytest.mark.parametrize(
    ("name", "amount", "model"),
    [
        ("B", 1e-4, Model(2, peepholes=True, lengths=True, states=True)),
        exhaustive(("B", 1e-4, Model(1, outputs=("Y_h",)))),
        exhaustive(("P", 1e-4, Model(1, peepholes=True))),
        exhaustive(("R_scale", 1e-5, Model(1))),
        exhaustive(("W_scale", 1e-5, Model(1, "uint8", per_column=True))),
    ],
    ids=lambda value: "" if isinstance(value, Model) else str(value),
)
def test_a_small_fault_is_found(name: str, amount: float, model: Model) -> None:
    """Row by row the kernel is exact, so that its rounding hides nothing."""
    lowered = rl.lower(model.proto())
    assert planted(lowered.graph, name, amount)
    assert rl.verify(model.proto(), lowered, runs=1).status == "failed"


def test_its_name_alone_asks_for_no_thread() -> None:
    named = chain(Link("LSTM", "DynamicQuantizeLSTM"))
    assert "thread" not in rl.verify(named, rl.lower(named), runs=1).reason


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"dequantize": True}], ids=["exact", "floats"])
def test_it_is_verified(options: Any) -> None:
    model = Model(2, lengths=True, peepholes=True)
    check = rl.verify(model.proto(), rl.lower(model.proto(), **options), runs=1)
    assert check, str(check)
    assert "one thread" in check.reason or options
    other = replace(model, changed={"B": model.tensors()["B"] + np.float32(0.05)})
    assert not rl.verify(model.proto(), rl.lower(other.proto(), **options), runs=1)


def test_targets_without_integer_products_refuse_it() -> None:
    for target in ("ncnn", "rknn", "onnx2c", "rten"):
        with pytest.raises(rl.UnsupportedError, match="MatMulInteger") as caught:
            rl.lower(Model().proto(), target=target)
        assert "dequantize=True" in str(caught.value)
    with pytest.raises(rl.UnsupportedError, match="MatMulInteger: it saturates on processors"):
        rl.lower(Model().proto(), target="rten")
    with pytest.raises(rl.UnsupportedError, match="needs opset 11"):
        rl.lower(Model(opset=10).proto())
    rl.lower(Model(opset=10).proto(), dequantize=True)


COLUMNS = (1, 4 * H)
UNEQUAL = np.full((2, 4 * H), 128, np.uint8)
UNEQUAL[1, 3] = 127
ONES = np.ones(COLUMNS, np.float32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"W_scale": None}, "W_scale is missing"),
        ({"R_zero_point": None}, "R_zero_point is missing"),
        ({"W": np.zeros((WIDTH, 4 * H), np.int8)}, "W has shape"),
        ({"W": np.zeros((1, 4 * H, WIDTH), np.int8)}, "W "),
        ({"W": np.zeros((1, WIDTH, 4 * H), np.float32)}, "W is of type FLOAT"),
        ({"W_zero_point": np.zeros(1, np.uint8)}, "W_zero_point is of type UINT8"),
        ({"R_scale": np.ones((1, 4), np.float32)}, "R_scale has shape"),
        ({"R_scale": np.float32(1)}, "R_scale has shape"),
        ({"R_scale": np.ones(1)}, "R_scale is of type DOUBLE"),
        ({"W_zero_point": np.ones(COLUMNS, np.int8), "W_scale": ONES}, "W_zero_point per column must be 0"),
        ({"R": np.zeros((1, H + 1, 4 * H), np.int8)}, "R "),
    ],
)
def test_wrong_inputs_are_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    onnx.save(Model(changed=changed).proto(), tmp_path / "in.onnx")
    with pytest.raises(rl.InvalidNodeError) as caught:
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert message in str(caught.value)
    assert "DynamicQuantizeLSTM node 'dq'" in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


def test_zero_points_per_column_of_uint8_are_equal() -> None:
    model = Model(2, "uint8", per_column=True, changed={"R_zero_point": UNEQUAL})
    with pytest.raises(rl.InvalidNodeError, match="R_zero_point per column has different values"):
        rl.lower(model.proto())
    mixed = Model(2, changed={"W_scale": np.ones((2, 4 * H), np.float32)})
    with pytest.raises(rl.InvalidNodeError, match="different ranks"):
        rl.lower(mixed.proto())


def test_weights_that_are_not_constant_are_refused() -> None:
    original = Model().proto()
    (scale,) = [t for t in original.graph.initializer if t.name == "W_scale"]
    original.graph.initializer.remove(scale)
    original.graph.input.append(value("W_scale", [1]))
    with pytest.raises(rl.UnsupportedError, match="W_scale is not constant"):
        rl.lower(original)


def test_list_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(Model().proto(), tmp_path / "in.onnx")
    assert main([str(tmp_path / "in.onnx"), "--list"]) == 4
    assert "DynamicQuantizeLSTM-1" in capsys.readouterr().out
    (spec,) = rl.inspect(Model().proto())
    assert (spec.op_type, spec.hidden_size, spec.input_size, spec.rounds) == ("LSTM", H, WIDTH, True)


def test_a_quantized_model_of_an_exporter(tmp_path: Path) -> None:
    path = MODELS / "exported/derived/dtln_stage1_op11_dynquant_i8.onnx"
    if not path.exists():
        pytest.skip(f"{MODELS.name} is not there")
    report = rl.lower_file(path, tmp_path / "out.onnx", verify=2)
    assert report.verification
    assert report.verification.max_abs == 0
    assert [node.operator for node in report.nodes] == ["DynamicQuantizeLSTM"] * 2
    assert (tmp_path / "out.onnx").stat().st_size < 1.5 * path.stat().st_size
