"""What a difference of outputs means: random numbers, rounding that a network amplifies, or a fault."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import Case, model
from onnx import helper, numpy_helper

import rnn_lowering as rl
from rnn_lowering.compare.result import undetermined_outputs

pytestmark = pytest.mark.usefixtures("workers_here")

PLAIN = Case("judgement", "LSTM", x="symbolic")


def followed_by(*nodes: onnx.NodeProto, **constants: object) -> onnx.ModelProto:
    """A model in which nodes from "Y_before" to "Y" follow the recurrent one."""
    proto = model(PLAIN, 17)
    proto.graph.node[0].output[0] = "Y_before"
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    del proto.graph.value_info[:]
    return proto


def noisy(op_type: str) -> onnx.ModelProto:
    """Random numbers are added to Y."""
    if op_type == "Bernoulli":
        first = [helper.make_node("Sigmoid", ["Y_before"], ["p"]), helper.make_node("Bernoulli", ["p"], ["noise"])]
    elif op_type == "Dropout":
        first = [helper.make_node("Dropout", ["Y_before", "ratio", "training"], ["noise"])]
    else:
        first = [helper.make_node(op_type, ["Y_before"], ["noise"])]
    used = {"ratio": np.float32(0.5), "training": np.array(True)} if op_type == "Dropout" else {}
    return followed_by(*first, helper.make_node("Add", ["Y_before", "noise"], ["Y"]), **used)


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_what_is_random_is_compared_node_by_node(op_type: str) -> None:
    original = noisy(op_type)
    assert undetermined_outputs(original).keys() == {"Y"}
    check = rl.verify(original, rl.lower(original))
    assert check
    assert not check.whole
    assert "do not determine the outputs 'Y'" in check.reason
    assert op_type in check.reason
    assert not rl.verify(original, rl.lower(scaled(original, "R", 1.001)))


def test_dropout_in_training_is_random() -> None:
    """onnxruntime may draw the same numbers for both models."""
    original = noisy("Dropout")
    assert undetermined_outputs(original) == {"Y": "Dropout in training mode"}
    assert rl.verify(original, rl.lower(original))


def test_functions_that_call_themselves_or_others_twice() -> None:
    """Each function is looked through once: the model names 2^60 calls, and one that never ends."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]

    def function(name: str, *calls: str) -> onnx.FunctionProto:
        nodes = [helper.make_node(call, [f"x{n}"], [f"x{n + 1}"], domain="local") for n, call in enumerate(calls)]
        return helper.make_function("local", name, ["x0"], [f"x{len(calls)}"], nodes, imports)

    original = followed_by(helper.make_node("twice59", ["Y_before"], ["Y"], domain="local"))
    drawing = helper.make_node("RandomNormalLike", ["x0"], ["x1"])
    original.functions.append(helper.make_function("local", "drawn", ["x0"], ["x1"], [drawing], imports))
    original.functions.append(function("endless", "endless"))
    calls = [("endless", "drawn"), *((f"twice{n}",) * 2 for n in range(59))]
    original.functions.extend(function(f"twice{n}", *names) for n, names in enumerate(calls))
    assert undetermined_outputs(original) == {"Y": "RandomNormalLike"}


def scaled(original: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    (tensor,) = [t for t in copy.graph.initializer if t.name == name]
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(array * np.asarray(factor, array.dtype), name))
    return copy


def test_random_numbers_do_not_excuse_other_outputs() -> None:
    original = noisy("RandomNormalLike")
    wrong = onnx.ModelProto()
    wrong.CopyFrom(rl.lower(original))
    for node in wrong.graph.node:
        node.output[:] = ["before" if name == "Y_h" else name for name in node.output]
    wrong.graph.node.append(helper.make_node("Neg", ["before"], ["Y_h"]))
    check = rl.verify(original, wrong)
    assert check.status == "failed"
    assert "'Y_h'" in check.reason


@pytest.mark.parametrize("training", [None, False])
def test_dropout_that_draws_nothing(training: bool | None) -> None:
    inputs = ["Y_before"] if training is None else ["Y_before", "", "training"]
    original = followed_by(
        helper.make_node("Dropout", inputs, ["Y"]), **({} if training is None else {"training": training})
    )
    assert undetermined_outputs(original) == {}
    assert rl.verify(original, rl.lower(original)).whole


def steep() -> onnx.ModelProto:
    """A network that makes much of a rounding: the sine of a large multiple of Y."""
    nodes = [helper.make_node("Mul", ["Y_before", "factor"], ["large"]), helper.make_node("Sin", ["large"], ["Y"])]
    return followed_by(*nodes, factor=np.float32(3e4))


def test_rounding_that_a_network_amplifies() -> None:
    original = steep()
    check = rl.verify(original, rl.lower(original))
    assert check, check.reason
    assert check.max_abs > 1e-4
    assert check.method == "onnxruntime, differences judged by float64 NumPy"
    assert "as close to float64" in check.reason


@pytest.mark.parametrize("name", ["R", "factor"])
def test_a_fault_that_a_network_amplifies(name: str) -> None:
    original = steep()
    assert rl.verify(original, rl.lower(scaled(original, name, 1.001))).status == "failed"


@pytest.mark.parametrize("name", ["out.json", "out.textproto", "out.pbtxt"])
def test_results_in_text(name: str, tmp_path: Path) -> None:
    onnx.save(model(PLAIN, 17), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / name)
    assert report.verification is not None
    assert report.verification.status == "verified"
    assert rl.verify(tmp_path / "in.onnx", tmp_path / name, runs=1)
    assert rl.inspect(tmp_path / name) == []


def test_text_that_cannot_hold_the_result(tmp_path: Path) -> None:
    onnx.save(model(PLAIN, 17), tmp_path / "in.onnx")
    with pytest.raises(rl.OptionError, match=r"\.textproto"):
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnxtxt")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def traced() -> onnx.ModelProto:
    """A model whose exporter wrote the sizes of its example, T = 5 and N = 3, into a Reshape."""
    return followed_by(helper.make_node("Reshape", ["Y_before", "traced"], ["Y"]), traced=np.array([5, 3, 4]))


def test_sizes_at_which_the_original_does_not_run(tmp_path: Path) -> None:
    onnx.save(traced(), tmp_path / "in.onnx")
    with pytest.raises(rl.UnsupportedError, match="neither does the original"):
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", input_shapes={"X": [4, 2, 2]})
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", input_shapes={"X": [5, 3, 2]})
    assert report.verification is not None
    assert report.verification.whole


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_constants_of_bfloat16_are_rounded(factor: float) -> None:
    """The sum of two biases is, too."""
    case = Case("judgement_bfloat16", "LSTM", {"direction": "bidirectional"}, dtype="bfloat16", x="symbolic")
    original = model(case, 22)
    check = rl.verify(original, rl.lower(scaled(original, "R", factor)))
    assert check.status == ("verified" if factor == 1 else "failed")
