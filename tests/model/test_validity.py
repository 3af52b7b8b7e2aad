"""Without a comparison too, what is written is valid: ONNX's checker and strict inference accept it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from running import assert_close, run
from scope_models import FUNCTION_WITH_IF, LOCAL
from texts import FORMS, parse, random_feed

import rnn_lowering as rl
from rnn_lowering.model import model_sizes
from rnn_lowering.passes import nodes

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
@pytest.mark.parametrize("dims", [[5, 1, 2, 8], [5, 2, 4], [5, 1, 2, 4]], ids=["size", "rank", "right"])
def test_stale_shapes_are_replaced(dims: list[int], form: Any, tmp_path: Path) -> None:
    """The checker does not open data files: all tensors are there where a tool writes each to one."""
    original, source, out = declared(dims), tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(
        onnx.ModelProto.FromString(original.SerializeToString()),
        source,
        save_as_external_data=form == "scan",
        location="in.data",
        size_threshold=0,
        convert_attribute=False,
    )
    report = rl.lower_file(source, out, form, verify=0)
    in_memory, told = rl.lower(original, form, full=True)
    notes = [] if dims == [5, 1, 2, 4] else [model_sizes.STALE]
    assert (report.notes, told.notes) == (notes, notes)
    for lowered in (onnx.load(out), in_memory):
        onnx.checker.check_model(lowered, full_check=True)
        shapes = {value.name: shape(value) for value in (*lowered.graph.value_info, *lowered.graph.output)}
        assert (shapes["Y"][1:], shapes["Z"][1:]) == ([1, 2, 4], [1, 2, 4])
        feed = random_feed(lowered)
        assert_close(run(lowered, feed), run(parse(LSTM.format(attribute="hidden_size=4")), feed))


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering with a fault."""

    def replace(model: ir.Model, *_: object, **__: object) -> list[str]:
        model.graph[-1].op_type = "And"  # of floats
        return []

    monkeypatch.setattr(nodes, "replace_nodes", replace)


@pytest.mark.usefixtures("faulty")
def test_a_result_that_is_invalid_is_neither_written_nor_returned(tmp_path: Path) -> None:
    original = declared([5, 1, 2, 4])
    model = ir.from_proto(original)
    onnx.save(original, tmp_path / "in.onnx")
    for call in (
        lambda: rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0),
        lambda: rl.lower(original),
        lambda: rl.lower(model),
    ):
        with pytest.raises(rl.UnsupportedError, match="the result is not valid"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    assert [node.op_type for node in model.graph] == ["LSTM", "Neg"]


def test_no_more_is_asked_than_the_original_is(tmp_path: Path) -> None:
    """A part that lowering does not concern may be invalid before and after."""
    model = declared([5, 1, 2, 4], hidden_size=True)
    model.graph.node.append(helper.make_node("And", ["X", "X"], ["unused"]))
    onnx.save(model, tmp_path / "in.onnx")
    assert rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0).nodes


@pytest.mark.parametrize("form", FORMS)
def test_what_the_checker_does_not_see_in_a_function(form: Any) -> None:
    """It looks at none before IR version 8; here they are inlined."""
    original = parse(FUNCTION_WITH_IF, domains=LOCAL)
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


def test_many_operators_on_fixed_sizes_beside_open_ones() -> None:
    """Bounds of sizes are multiplied from node to node: they stay numbers that fit a float."""
    count = 120
    sums = " ".join(f"x{n} = Add (x{n - 1}, x0)" for n in range(1, count + 1))
    original = parse(
        f"""main (float[4,2,300] x0, float[N,M,300] u, int64[rank] shape) => (float[4,1,2,4] Y, Z)
            <float[1,12,300] W = {{}}, float[1,12,4] R = {{}}> {{
            {sums}  Y = GRU <hidden_size = 4> (x{count}, W, R)
            y = Mul (x{count}, u)  Z = Expand (y, shape) }}"""
    )
    feed = {**random_feed(original, N=1, M=1), "shape": np.array([4, 2, 300])}
    assert_close(run(rl.lower(original), feed), run(original, feed))
