"""The import of opset 27 goes down with CausalConvWithState, as far as the meaning of the other nodes stays."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from causal_conv import STANDARD, arrays, model
from onnx import TensorProto, helper, numpy_helper

import rnn_lowering as rl
from rnn_lowering.types import Array

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def beside(*nodes: onnx.NodeProto, tensors: dict[str, Array] | None = None, opset: int = 27) -> onnx.ModelProto:
    """A convolution whose output other nodes take; what they make is "y"."""
    proto = model(STANDARD)
    proto.opset_import[0].version = opset
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (tensors or {}).items())
    if any("y" in node.output for node in nodes):
        proto.graph.output.append(onnx.ValueInfoProto(name="y"))
    return proto


def node(operator: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs or ["output"], ["y"], name="other", **attributes)


def sizes(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def bounds(numpy_type: type) -> dict[str, Array]:
    return {name: np.array(number, numpy_type) for name, number in {"a": 0, "b": 3, "c": 1}.items()}


NEEDED: dict[str, tuple[int, onnx.ModelProto]] = {
    "none": (17, beside()),
    "types only": (17, beside(node("Reshape", "output", "shape"), tensors={"shape": sizes(2, 15)})),
    "a cast": (17, beside(node("Cast", to=TensorProto.FLOAT16))),
    "a range": (
        17,
        beside(
            node("Range", "a", "b", "c"),
            tensors={n: np.array(k, np.float32) for n, k in zip("abc", (0, 3, 1), strict=True)},
        ),
    ),
    "a range of half precision": (
        27,
        beside(
            node("Range", "a", "b", "c"),
            tensors={n: np.array(k, np.float16) for n, k in zip("abc", (0, 3, 1), strict=True)},
        ),
    ),
    "axes as an input": (18, beside(node("ReduceMean", "output", "axes"), tensors={"axes": sizes(1)})),
    "reduction over everything": (18, beside(node("ReduceMean", "output"))),
    "a split into equal parts": (
        18,
        beside(helper.make_node("Split", ["output"], ["a", "y"], axis=1, num_outputs=2)),
    ),
    "a split by sizes": (
        17,
        beside(helper.make_node("Split", ["output", "split"], ["a", "y"], axis=1), tensors={"split": sizes(1, 2)}),
    ),
    "a pad": (17, beside(node("Pad", "output", "pads"), tensors={"pads": sizes(0, 0, 1, 0, 0, 1)})),
    "a pad that wraps": (
        19,
        beside(node("Pad", "output", "pads", mode="wrap"), tensors={"pads": sizes(0, 0, 1, 0, 0, 1)}),
    ),
    "a group normalization": (
        21,
        beside(
            node("GroupNormalization", "output", "scale", "zero", num_groups=1),
            tensors={"scale": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)},
        ),
    ),
    "a new operator": (
        23,
        beside(node("RMSNormalization", "output", "scale"), tensors={"scale": np.ones(5, np.float32)}),
    ),
    "pooling with ceil_mode": (22, beside(node("MaxPool", kernel_shape=[2], strides=[2], ceil_mode=1))),
    "pooling": (17, beside(node("MaxPool", kernel_shape=[2]))),
    "a larger of truth values": (
        20,
        beside(
            helper.make_node("Cast", ["output"], ["truth"], to=TensorProto.BOOL),
            node("ReduceMax", "truth", "axes"),
            tensors={"axes": sizes(1)},
        ),
    ),
    "in a body": (
        23,
        beside(
            helper.make_node(
                "If",
                ["always"],
                ["y"],
                **{
                    f"{name}_branch": helper.make_graph(
                        [helper.make_node(operator, ["output", "scale"][: 1 + (name == "then")], [name])],
                        name,
                        [],
                        [helper.make_tensor_value_info(name, F, None)],
                    )
                    for name, operator in {"then": "RMSNormalization", "else": "Neg"}.items()
                },
            ),
            tensors={"always": np.array(True), "scale": np.ones(5, np.float32)},
        ),
    ),
    "a float8 cast": (27, beside(node("Cast", to=TensorProto.FLOAT8E4M3FN))),
}


def imported(proto: onnx.ModelProto) -> int:
    return int(next(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")))


@pytest.mark.parametrize("name", NEEDED)
def test_lowest_opset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, original = NEEDED[name]
    new, report = rl.lower(original, full=True)
    assert imported(new) == needed
    told = [note for note in report.notes if note.startswith("the model's opset is")]
    assert told == (
        [f"the model's opset is {needed} instead of 27, which no node needs any more"] if needed < 27 else []
    )
    if needed == 27:
        return
    feed = {name: a for name, a in arrays(STANDARD).items() if name in {v.name for v in new.graph.input}}
    monkeypatch.delenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", raising=False)
    after = run(new, feed)  # an ordinary onnxruntime
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    before = run(original, feed)
    for symbol, array in before.items():
        np.testing.assert_allclose(after[symbol], array, rtol=1e-6, atol=1e-6)


def run(proto: onnx.ModelProto, feed: dict[str, Array]) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))


def test_the_opset_can_be_kept() -> None:
    new, report = rl.lower(model(STANDARD), full=True, keep_opset=True)
    assert imported(new) == 27
    assert report.notes == []


@pytest.mark.parametrize(("own", "together"), [(27, 23), (24, 24)])
def test_functions_and_the_model_import_one_version(own: int, together: int) -> None:
    """ONNX's checker refuses two versions of one operator."""
    original = beside(helper.make_node("normed", ["output", "scale"], ["y"], domain="local"))
    original.graph.initializer.append(numpy_helper.from_array(np.ones(5, np.float32), "scale"))
    original.opset_import.append(helper.make_opsetid("local", 1))
    body = [helper.make_node("RMSNormalization", ["x", "scale"], ["n"])]
    opset = [helper.make_opsetid("", own)]
    original.functions.append(helper.make_function("local", "normed", ["x", "scale"], ["n"], body, opset))
    new = rl.lower(original)
    assert imported(new) == together
    assert [entry.version for entry in new.functions[0].opset_import] == [together]


def test_only_where_a_lowered_node_needed_it() -> None:
    """Of com.microsoft, or with another node of opset 27 that stays, the import stays."""
    original = beside(
        helper.make_node("CausalConvWithState", ["output", "weight"], ["y", "s"], name="kept"),
    )
    assert imported(rl.lower(original, only="conv")) == 27
    assert imported(rl.lower(original)) == 17
    of_ms = model(STANDARD)
    of_ms.graph.node[0].domain = "com.microsoft"
    of_ms.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert imported(rl.lower(of_ms)) == 27


def test_the_ir_version_goes_down_too() -> None:
    """onnxruntime 1.31 refuses IR version 14, which onnx 1.23 writes."""
    original = model(STANDARD)
    original.ir_version = 14
    new, report = rl.lower(original, full=True)
    assert new.ir_version == 10
    assert "the model's IR version is 10 instead of 14" in report.notes


def test_a_target_with_a_newest_opset_takes_the_result() -> None:
    assert rl.TARGETS["onnx2torch"].newest_opset == 17
    assert imported(rl.lower(model(STANDARD), target="onnx2torch")) == 17
    assert [each.form for each in rl.preview(model(STANDARD), target="onnx2torch")] == ["unroll"]
    with pytest.raises(rl.UnsupportedError, match="opset 17 or earlier, but the model has 27"):
        rl.lower(model(STANDARD), target="onnx2torch", keep_opset=True)
