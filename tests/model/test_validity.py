"""Without a comparison too, what is written is valid: ONNX's checker and strict inference accept it."""

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from running import assert_close, run
from scope_models import LOCAL
from texts import FORMS, parse, random_feed

import rnn_lowering as rl
from rnn_lowering.model import model_sizes
from rnn_lowering.passes import lower

LSTM = """
main (float[5,2,3] X) => (float[5,1,2,4] Z) <float[1,16,3] W = {{}}, float[1,16,4] R = {{}}> {{
    Y = LSTM <{attribute}> (X, W, R)
    Z = Neg (Y)
}}
"""


def declared(dims: list[int], *, hidden_size: bool = False) -> onnx.ModelProto:
    """A model that declares another shape of Y; ONNX infers Y's only where the node has the attribute."""
    model = parse(LSTM.format(attribute="hidden_size=4" if hidden_size else 'direction="forward"'))
    model.graph.value_info.append(helper.make_tensor_value_info("Y", TensorProto.FLOAT, dims))
    return model


def shape(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dims", [[5, 1, 2, 8], [5, 2, 4]], ids=["size", "rank"])
def test_stale_shapes_are_replaced(dims: list[int], form: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(declared(dims), source)
    report = rl.lower_file(source, out, form, verify=0)
    assert report.notes == [model_sizes.STALE]
    lowered = onnx.load(out)
    onnx.checker.check_model(lowered, full_check=True)
    shapes = {value.name: shape(value) for value in (*lowered.graph.value_info, *lowered.graph.output)}
    assert dims not in (shapes["Y"], shapes["Z"])
    feed = random_feed(lowered)
    assert_close(run(lowered, feed), run(parse(LSTM.format(attribute="hidden_size=4")), feed))


@pytest.mark.parametrize("form", FORMS)
def test_right_shapes_stay(form: str, tmp_path: Path) -> None:
    onnx.save(declared([5, 1, 2, 4]), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", form, verify=0)
    assert report.notes == []


def test_small_tensors_in_data_files_are_known(tmp_path: Path) -> None:
    """The checker does not open data files: all of them are where a tool writes each tensor to one."""
    onnx.save(
        declared([5, 1, 2, 4]),
        tmp_path / "in.onnx",
        save_as_external_data=True,
        location="in.data",
        size_threshold=0,
        convert_attribute=False,
    )
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", "scan", verify=0)
    assert report.notes == []


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering with a fault."""

    def replace(model: ir.Model, *_: object, **__: object) -> list[str]:
        model.graph[-1].op_type = "And"  # of floats
        return []

    monkeypatch.setattr(lower, "replace_nodes", replace)


@pytest.mark.usefixtures("faulty")
def test_a_result_that_is_invalid_is_not_written(tmp_path: Path) -> None:
    onnx.save(declared([5, 1, 2, 4]), tmp_path / "in.onnx")
    with pytest.raises(rl.UnsupportedError, match="the result is not valid"):
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.usefixtures("faulty")
def test_a_result_that_is_invalid_is_not_returned() -> None:
    original = declared([5, 1, 2, 4])
    model = ir.from_proto(original)
    for given in (original, model):
        with pytest.raises(rl.UnsupportedError, match="the result is not valid"):
            rl.lower(given)
    assert [node.op_type for node in model.graph] == ["LSTM", "Neg"]


def test_stale_shapes_are_replaced_in_memory() -> None:
    new, report = rl.lower(declared([5, 1, 2, 8]), full=True)
    assert report.notes == [model_sizes.STALE]
    onnx.checker.check_model(new, full_check=True)


def test_no_more_is_asked_than_the_original_is(tmp_path: Path) -> None:
    """A part that lowering does not concern may be invalid before and after."""
    model = declared([5, 1, 2, 4], hidden_size=True)
    model.graph.node.append(helper.make_node("And", ["X", "X"], ["unused"]))
    onnx.save(model, tmp_path / "in.onnx")
    assert rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0).nodes


FUNCTION = """
main (float[5,2,3] X, bool go) => (float[1,2,4] h) <float[1,4,3] W = {}, float[1,4,4] R = {}> {
    h = local.maybe (X, W, R, go)
}
<domain: "local", opset_import: ["" : 17]>
maybe (X, W, R, go) => (h) {
    h = If (go) <
        then_branch = yes () => (a) { _, a = RNN <hidden_size=4> (X, W, R) },
        else_branch = no () => (b) {
            B = Constant <value = float[1,8] {}> ()
            _0, b = RNN <hidden_size=4> (X, W, R, B)
        }
    >
}
"""


@pytest.mark.parametrize("form", FORMS)
def test_what_the_checker_does_not_see_in_a_function(form: str) -> None:
    """It looks at none before IR version 8; here they are inlined."""
    original = parse(FUNCTION, domains=LOCAL)
    original.ir_version = 7
    assert rl.lower(original, form)
    original.functions[0].node[0].attribute[1].g.node[0].attribute[0].name = "body"
    onnx.checker.check_model(original)
    with pytest.raises(rl.UnsupportedError, match="the result is not valid: Unrecognized attribute: body"):
        rl.lower(original, form)


def test_a_result_is_serialized_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked in memory is the message that is returned: one serialization, one call of the checker."""
    model = parse(LSTM.format(attribute="hidden_size=4"))
    serialized: Counter[str] = Counter()
    checked: list[int] = []
    serialize, check = ir.serde.serialize_node_into, onnx.checker.check_model

    def serializes(proto: onnx.NodeProto, from_: ir.Node, **options: Any) -> None:
        serialized[from_.name or ""] += 1
        serialize(proto, from_, **options)

    def checks(proto: onnx.ModelProto, **options: Any) -> None:
        checked.append(len(proto.graph.node))
        check(proto, **options)

    monkeypatch.setattr(ir.serde, "serialize_node_into", serializes)
    monkeypatch.setattr(onnx.checker, "check_model", checks)
    lowered = rl.lower(model, "unroll")
    assert {serialized[node.name] for node in lowered.graph.node if node.op_type != "Neg"} == {1}
    assert checked.count(len(lowered.graph.node)) == 1
