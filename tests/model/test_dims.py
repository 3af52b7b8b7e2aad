"""Fixing symbolic dimensions: everywhere or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Array, Case, feed, model
from chains import Link, chain
from onnx import TensorProto, helper, numpy_helper
from paths import MODELS
from running import assert_close, operators, recurrent_left, run, scopes
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main

pytestmark = pytest.mark.usefixtures("workers_here")

STACKED = (Link("LSTM", "lower", {"direction": "bidirectional"}), Link("GRU", "upper"))
Dims = list[int | str | None]


def shape_of(value: onnx.ValueInfoProto) -> Dims:
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]


def shapes(proto: onnx.ModelProto) -> dict[str, Dims]:
    graph = proto.graph
    return {value.name: shape_of(value) for value in (*graph.input, *graph.value_info, *graph.output)}


def names_left(proto: onnx.ModelProto) -> set[str]:
    """The symbolic names in any shape of the main graph and its subgraphs."""
    values = [v for scope in scopes(proto.graph) for v in (*scope.input, *scope.value_info, *scope.output)]
    return {dim for value in values for dim in shape_of(value) if isinstance(dim, str)}


def annotated(dims: tuple[str, str] = ("seq", "batch")) -> onnx.ModelProto:
    """Two stacked nodes, with the shapes of the values between them, and an input that shares a name."""
    proto = chain(*STACKED, dims=dims)
    seq, batch = dims
    proto.graph.value_info.append(helper.make_tensor_value_info("Y0", TensorProto.FLOAT, [seq, 2, batch, 4]))
    proto.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [batch, 1]))
    proto.graph.node[-1].output[0] = "unscaled"
    proto.graph.node.append(helper.make_node("Mul", ["unscaled", "scale"], ["out"], "scaled"))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def inputs(seq: int, batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(seq * 100 + batch)
    X, scale = rng.normal(size=(seq, batch, 3)), rng.normal(size=(batch, 1))
    return {"X": X.astype(np.float32), "scale": scale.astype(np.float32)}


# What is fixed


def test_a_name_is_fixed_everywhere() -> None:
    original = annotated()
    fixed = rl.lower(original, dims={"seq": 6})
    found = shapes(fixed)
    assert (found["X"], found["out"], found["scale"]) == ([6, "batch", 3], [6, "batch", 4], ["batch", 1])
    assert found["Y0"] == [6, 2, "batch", 4]
    assert "seq" not in names_left(fixed)
    onnx.checker.check_model(fixed, full_check=True)
    assert_close(run(fixed, inputs(6, 2)), run(original, inputs(6, 2)))


@pytest.mark.parametrize(
    "options",
    [
        {"dims": {"seq": 6, "batch": 2}},
        {"input_shapes": {"X": [6, 2, 3]}},
        {"input_shapes": {"X": (6, 2, 3), "scale": (2, 1)}},
        {"dims": {"batch": 2}, "input_shapes": {"X": [6, 2, 3]}},
        {"dims": {"seq": 6}, "input_shapes": {"scale": [2, 1]}},
    ],
    ids=str,
)
def test_all_ways_to_say_it(options: dict[str, Any]) -> None:
    original = annotated()
    fixed = rl.lower(original, "unroll", **options)
    found = shapes(fixed)
    assert (found["X"], found["out"], found["scale"], found["Y0"]) == ([6, 2, 3], [6, 2, 4], [2, 1], [6, 2, 2, 4])
    assert names_left(fixed) == set()
    assert not operators(fixed) & {"Scan", "Loop", "Shape", "ConstantOfShape"}
    onnx.checker.check_model(fixed, full_check=True)
    assert_close(run(fixed, inputs(6, 2)), run(original, inputs(6, 2)))


def test_shapes_follow_to_the_second_layer() -> None:
    """Only the input declares the sequence length."""
    original = chain(*STACKED, Link("RNN", "third"), dims=("seq", "batch"))
    assert list(original.graph.value_info) == []
    unrolled = rl.lower(original, "unroll", dims={"seq": 4})
    assert "Scan" not in operators(unrolled)
    assert recurrent_left(unrolled) == []
    given = {"X": inputs(4, 3)["X"]}
    assert_close(run(unrolled, given), run(original, given))


def test_names_that_an_exporter_made_up_follow() -> None:
    """Between the nodes the length has a name of its own, which only inference connects with the input's."""
    original = chain(*STACKED, dims=("seq", "batch"))
    for name, width in {"x0": 8, "x1": 4}.items():
        dims: Dims = [f"{name}_dim_0", f"{name}_dim_1", width]
        original.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    unrolled = rl.lower(original, "unroll", dims={"seq": 4, "batch": 3})
    assert recurrent_left(unrolled) == []
    assert shapes(unrolled)["x0"] == [4, 3, 8]
    given = {"X": inputs(4, 3)["X"]}
    assert_close(run(unrolled, given), run(original, given))


def test_an_unnamed_dimension_is_fixed_by_the_shape() -> None:
    original = chain(*STACKED, dims=(None, None))
    with pytest.raises(rl.UnsupportedError, match="not known"):
        rl.lower(original, "unroll")
    unrolled = rl.lower(original, "unroll", input_shapes={"X": [4, 3, 3]})
    assert shapes(unrolled)["X"] == [4, 3, 3]
    given = {"X": inputs(4, 3)["X"]}
    assert_close(run(unrolled, given), run(original, given))


def test_an_input_of_unknown_rank_is_fixed_by_the_shape() -> None:
    original = chain(Link("LSTM", "first"))
    original.graph.input[0].type.tensor_type.ClearField("shape")
    unrolled = rl.lower(original, "unroll", input_shapes={"X": [4, 3, 3]})
    assert shapes(unrolled)["X"] == [4, 3, 3]


def test_only_the_given_input_is_fixed() -> None:
    original = annotated()
    original.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [None, "more"]))
    found = shapes(rl.lower(original, input_shapes={"X": [6, 2, 3]}))
    assert found["other"] == [None, "more"]


@pytest.mark.parametrize("to", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("seq", [0, 1, 3])
def test_short_lengths(seq: int, to: str) -> None:
    original = chain(Link("LSTM", "first"), dims=("seq", "batch"))
    fixed = rl.lower(original, to, dims={"seq": seq})
    assert ("Scan" in operators(fixed), "Loop" in operators(fixed)) == (
        to == "scan" and seq > 1,
        to == "loop" and seq > 1,
    )
    assert shapes(fixed)["X"] == [seq, "batch", 3]
    assert run(fixed, {"X": inputs(seq, 2)["X"]})["out"].shape == (seq, 2, 4)


def test_the_shapes_of_all_inputs_of_a_node() -> None:
    optional = ("B", "sequence_lens", "initial_h", "initial_c", "P")
    case = Case("dims_all", "LSTM", {"direction": "bidirectional"}, optional=optional, x="symbolic")
    original = model(case, 17)
    unrolled = rl.lower(original, "unroll", dims={"seq": case.T, "batch": case.N})
    assert names_left(unrolled) == set()
    found = shapes(unrolled)
    assert (found["sequence_lens"], found["initial_c"]) == ([case.N], [2, case.N, case.H])
    assert (found["Y"], found["Y_h"]) == ([case.T, 2, case.N, case.H], [2, case.N, case.H])
    assert_close(run(unrolled, feed(case)), run(original, feed(case)))


def test_dimensions_in_subgraphs() -> None:
    case = Case("dims_if", "GRU", scope="if", x="symbolic")
    unrolled = rl.lower(model(case, 17), "unroll", dims={"seq": case.T})
    assert "seq" not in names_left(unrolled)
    assert_close(run(unrolled, feed(case)), run(model(case, 17), feed(case)))


def test_without_recurrent_nodes() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        plain (float[n, 3] a) => (float[n, 3] b) { middle = Relu (a) b = Neg (middle) }"""
    )
    found = shapes(rl.lower(proto, dims={"n": 5}))
    assert (found["a"], found["b"]) == ([5, 3], [5, 3])


def test_an_ir_model_is_fixed_in_place() -> None:
    ir_model = ir.from_proto(annotated())
    rl.lower(ir_model, "unroll", dims={"seq": 6, "batch": 2})
    assert shapes(ir.to_proto(ir_model))["X"] == [6, 2, 3]


def test_the_given_proto_keeps_its_dimensions() -> None:
    original = annotated()
    before = original.SerializeToString()
    rl.lower(original, dims={"seq": 6})
    assert original.SerializeToString() == before


def test_texts_of_inputs_stay() -> None:
    original = annotated()
    for value in original.graph.input:
        value.doc_string = f"text of {value.name}"
        value.type.tensor_type.shape.dim[0].denotation = "DATA_TIME"
    fixed = rl.lower(original, dims={"seq": 6})
    assert [v.doc_string for v in fixed.graph.input] == ["text of X", "text of scale"]
    assert [v.type.tensor_type.shape.dim[0].denotation for v in fixed.graph.input] == ["DATA_TIME", "DATA_TIME"]


def test_a_scalar_input_has_an_empty_shape() -> None:
    original = annotated()
    original.graph.input.append(helper.make_tensor_value_info("number", TensorProto.FLOAT, []))
    assert shapes(rl.lower(original, input_shapes={"number": []}))["number"] == []


# What is refused


def with_weight_input() -> onnx.ModelProto:
    proto = annotated()
    proto.graph.input.append(helper.make_tensor_value_info("B1", TensorProto.FLOAT, [1, 24]))
    return proto


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown name": ({"dims": {"time": 6}}, "'time'.*batch, seq"),
    "unknown input": ({"input_shapes": {"Z": [6, 2, 3]}}, "'Z'.*X, scale"),
    "an output is no input": ({"input_shapes": {"out": [6, 2, 4]}}, "'out'"),
    "a static size": ({"input_shapes": {"X": [6, 2, 4]}}, "X.* 3 .* 4"),
    "rank": ({"input_shapes": {"X": [6, 2]}}, "3 dimensions, not 2"),
    "no dimensions": ({"input_shapes": {"X": []}}, "3 dimensions, not 0"),
    "two shapes": ({"input_shapes": {"X": [6, 2, 3], "scale": [3, 1]}}, "'batch'"),
    "name and shape": ({"dims": {"seq": 5}, "input_shapes": {"X": [6, 2, 3]}}, "'seq' is 5 .* 6"),
    "negative": ({"dims": {"seq": -1}}, "-1"),
    "a negative size": ({"input_shapes": {"X": [-1, 2, 3]}}, "-1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, fact = REFUSED[name]
    original, ir_model = annotated(), ir.from_proto(annotated())
    before = original.SerializeToString(), ir.to_proto(ir_model).SerializeToString(deterministic=True)
    for given in (original, ir_model):
        with pytest.raises(rl.UnsupportedError, match=fact):
            rl.lower(given, **options)
    assert (original.SerializeToString(), ir.to_proto(ir_model).SerializeToString(deterministic=True)) == before


def test_two_sizes_for_an_unnamed_dimension_of_known_size() -> None:
    original = chain(*STACKED, dims=(5, "batch"))
    with pytest.raises(rl.UnsupportedError, match=r"axis 0 of input 'X' is 5 and cannot be 6"):
        rl.lower(original, input_shapes={"X": [6, 2, 3]})
    assert shapes(rl.lower(original, input_shapes={"X": [5, 2, 3]}))["X"] == [5, 2, 3]


def test_a_negative_size_of_an_unnamed_dimension() -> None:
    with pytest.raises(rl.UnsupportedError, match="-1"):
        rl.lower(chain(*STACKED, dims=(None, None)), input_shapes={"X": [-1, 2, 3]})


def test_a_size_that_the_graph_contradicts() -> None:
    """The initial state shows that there are two rows."""
    case = Case("dims_states", "LSTM", optional=("B", "initial_h"), states_from="initializer", x="symbolic", N=2)
    with pytest.raises(rl.RnnLoweringError, match="recurrent"):
        rl.lower(model(case, 17), dims={"batch": 3})


# On the command line


def saved(folder: Path, proto: onnx.ModelProto) -> tuple[str, str]:
    onnx.save(proto, folder / "in.onnx")
    return str(folder / "in.onnx"), str(folder / "out.onnx")


@pytest.mark.parametrize(
    "options",
    [
        ["--set-dim", "seq=6", "--set-dim", "batch=2"],
        ["--input-shape", "X:6,2,3"],
        ["--input-shape", "X:6,2,3", "--input-shape", "scale:2,1"],
        ["--set-dim", "seq=6", "--input-shape", "scale:2,1"],
    ],
    ids=" ".join,
)
def test_command(tmp_path: Path, options: list[str]) -> None:
    source, target = saved(tmp_path, annotated())
    assert main([source, target, "--to", "unroll", "--no-verify", *options]) == 0
    found = shapes(onnx.load(target))
    assert (found["X"], found["out"], found["scale"]) == ([6, 2, 3], [6, 2, 4], [2, 1])


@pytest.mark.parametrize("name", ["serving_default_x:0", "x:y:z", "a=b", "with space", "X"])
def test_names_with_colons(tmp_path: Path, name: str) -> None:
    """The last colon separates."""
    proto = annotated()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = name
    source, target = saved(tmp_path, proto)
    assert main([source, target, "--to", "unroll", "--no-verify", "--input-shape", f"{name}:6,2,3"]) == 0
    assert shapes(onnx.load(target))[name] == [6, 2, 3]


def test_names_of_dimensions_with_equal_signs(tmp_path: Path) -> None:
    source, target = saved(tmp_path, annotated(("seq=8*n", "batch")))
    assert main([source, target, "--no-verify", "--set-dim", "seq=8*n=16"]) == 0
    assert shapes(onnx.load(target))["X"] == [16, "batch", 3]


def test_a_scalar_on_the_command_line(tmp_path: Path) -> None:
    proto = annotated()
    proto.graph.input.append(helper.make_tensor_value_info("number:0", TensorProto.FLOAT, []))
    source, target = saved(tmp_path, proto)
    assert main([source, target, "--no-verify", "--input-shape", "number:0:"]) == 0
    assert shapes(onnx.load(target))["number:0"] == []


@pytest.mark.parametrize(
    "options",
    [
        ["--set-dim", "time=6"],
        ["--input-shape", "Z:6,2,3"],
        ["--input-shape", "X:6,2,4"],
        ["--input-shape", "X:6,2"],
        ["--set-dim", "seq=5", "--input-shape", "X:6,2,3"],
        ["--set-dim", "seq=5", "--set-dim", "seq=6"],
        ["--input-shape", "X:5,2,3", "--input-shape", "X:6,2,3"],
    ],
    ids=" ".join,
)
def test_command_refuses(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    source, target = saved(tmp_path, annotated())
    code: Any
    try:
        code = main([source, target, "--no-verify", *options])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    assert "error: " in capsys.readouterr().err
    assert not Path(target).exists()


@pytest.mark.parametrize("to", ["scan", "unroll"])
@pytest.mark.parametrize("dims", [{"seq": 6}, {"seq": 6, "batch": 2}, {"batch": 1}])
def test_verification_of_fixed_dimensions(tmp_path: Path, dims: Mapping[str, int], to: str) -> None:
    source, target = saved(tmp_path, annotated())
    if to == "unroll" and "seq" not in dims:
        to = "loop"
    options = [f"--set-dim={name}={size}" for name, size in dims.items()]
    report = tmp_path / "report.json"
    assert main([source, target, "--to", to, "--verify", "2", "--report", str(report), *options]) == 0
    check = json.loads(report.read_text())["verification"]
    assert (check["status"], check["runs"]) == ("verified", 2)


def test_verification_of_a_fixed_model_can_fail() -> None:
    original = annotated()
    fixed = rl.lower(original, "unroll", dims={"seq": 6, "batch": 2})
    assert rl.verify(original, fixed, runs=1)
    (tensor,) = (t for t in fixed.graph.initializer if t.name == "upper/B")
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.1), tensor.name))
    assert not rl.verify(original, fixed, runs=1)


def test_nothing_to_lower_but_dimensions_to_fix(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] a) => (float[n, 3] b) { b = Relu (a) }'
    )
    source, target = saved(tmp_path, proto)
    assert main([source, target, "--set-dim", "n=5", "-q"]) == 0
    assert shapes(onnx.load(target))["a"] == [5, 3]


# Folding what follows from the sizes


def padded(op_type: str = "LSTM") -> onnx.ModelProto:
    """A node in one of two branches; its X is padded by amounts that pass through what shape inference does not
    follow, and so does the choice of the branch."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    return parse(
        f"""g (float[seq,batch,3] X) => (float[] Y)
        <float[1,{4 * gates},3] W = {{}}, float[1,{4 * gates},4] R = {{}},
         int64[1] six = {{6}}, int64[1] two = {{2}}, int64[1] axis = {{0}}, int64[1] first = {{1}}>
        {{
            zeros = ConstantOfShape <value = int64[1] {{0}}> (six)
            updates = Identity (two)
            at = Unsqueeze (axis, axis)
            pads = ScatterND (zeros, at, updates)
            long = Pad (X, pads)
            sizes = Shape (long)
            seq_of = Gather (sizes, axis)
            enough = Greater (seq_of, first)
            yes = Squeeze (enough, axis)
            Y = If (yes) <
                then_branch = then_g () => (float[] A) {{ A = {op_type} <hidden_size = 4> (long, W, R) }},
                else_branch = else_g () => (float[] B) {{ B = Identity (X) }}>
        }}"""
    )


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_what_follows_from_the_sizes_is_folded(op_type: str) -> None:
    original = padded(op_type)
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll")
    lowered = rl.lower(original, "unroll", dims={"seq": 5, "batch": 2})
    assert not operators(lowered) & {op_type, "If", "Loop", "Scan", "Shape", "ConstantOfShape"}
    x = {"X": np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)}
    assert_close(run(lowered, x), run(original, x))
    assert run(lowered, x)["Y"].shape == (7, 1, 2, 4)


def test_folding_is_told(tmp_path: Path) -> None:
    onnx.save(padded(), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", "unroll", dims={"seq": 5, "batch": 2})
    assert "computed the values that follow from the fixed sizes" in report.notes
    assert report.operators_before["If"] == 1
    assert report.verification is not None
    assert report.verification.status == "verified"


def test_nothing_is_folded_without_need() -> None:
    lowered = rl.lower(annotated(), "scan", dims={"seq": 5, "batch": 2})
    assert operators(lowered) >= {"Mul", "Scan"}
    plain = rl.lower(padded(), "scan")
    assert operators(plain) >= {"If", "ConstantOfShape"}


def test_a_refused_model_is_not_folded_either() -> None:
    read = ir.from_proto(padded())
    before = ir.to_proto(read)
    with pytest.raises(rl.UnsupportedError, match="steps are more than the limit of 3"):
        rl.lower(read, "unroll", dims={"seq": 5, "batch": 2}, max_unroll=3)
    assert ir.to_proto(read) == before


SILERO = MODELS / "github" / "snakers4__silero-vad"


@pytest.mark.skipif(not SILERO.exists(), reason=f"{SILERO.name} is not there")
@pytest.mark.parametrize(
    ("file", "sizes"),
    thinned(
        [
            ("silero_vad_16k_op15.onnx", {"input": (1, 576), "state": (2, 1, 128)}),
            ("silero_vad_v3_op13.onnx", {"input": (1, 1536), "h0": (2, 1, 64), "c0": (2, 1, 64)}),
        ],
        2,
    ),
)
def test_silero_becomes_straight_line(file: str, sizes: dict[str, tuple[int, ...]]) -> None:
    original = onnx.load(SILERO / file)
    lowered = rl.lower(original, target="tvm", input_shapes=sizes)
    assert not operators(lowered) & {"LSTM", "If", "Loop", "Scan"}
    assert rl.verify(original, lowered, runs=1, shapes=sizes)


@pytest.mark.parametrize("original", [annotated(), padded()], ids=["stacked", "padded"])
def test_nodes_of_a_fixed_model_are_compared_on_their_own(original: onnx.ModelProto) -> None:
    check = rl.verify(original, rl.lower(original, "unroll", dims={"seq": 5, "batch": 2}), runs=1)
    assert check
    assert check.nodes
    assert check.reason == ""


def test_states_that_follow_from_the_sizes_are_compared_as_such() -> None:
    """What an exporter expands to the batch size is a constant once that is known."""
    original = parse(
        """g (float[seq,batch,3] X) => (float[] Y)
        <float[1,4,3] W = {}, float[1,4,4] R = {}, float[1,1,4] h0 = {}, int64[1] one = {1}, int64[1] four = {4}>
        {
            sizes = Shape (X)
            batch_of = Gather (sizes, one)
            shape = Concat <axis = 0> (one, batch_of, four)
            h = Expand (h0, shape)
            Y = RNN <hidden_size = 4> (X, W, R, , , h)
        }"""
    )
    lowered = rl.lower(original, "unroll", dims={"seq": 5, "batch": 2})
    check = rl.verify(original, lowered, runs=2)
    assert check
    assert check.nodes
    state = next(t for t in lowered.graph.initializer if list(t.dims)[-2:] == [2, 4] or list(t.dims) == [1, 1, 4])
    state.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(state) + np.float32(0.5), state.name))
    assert rl.verify(original, lowered, runs=2).status == "failed"


def test_an_unsorted_model_may_have_its_sizes_fixed(tmp_path: Path) -> None:
    original = annotated()
    original.graph.node.insert(0, original.graph.node.pop())
    onnx.save(original, tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", "unroll", dims={"seq": 4, "batch": 2})
    assert report.notes == ["sorted the nodes by their dependencies"]
    assert report.verification is not None
    assert report.verification.status == "verified"


def test_shapes_traced_at_other_sizes_are_inferred_anew() -> None:
    """What an exporter wrote down of inner values holds at the sizes of its example only."""
    original = annotated()
    for value in original.graph.value_info:
        value.type.tensor_type.shape.dim[0].dim_value = 9
    original.graph.value_info.append(helper.make_tensor_value_info("x1", TensorProto.FLOAT, [9, 2, 4]))
    fixed = rl.lower(original, "unroll", dims={"seq": 4, "batch": 2})
    assert shapes(fixed)["Y0"] == [4, 2, 2, 4]
    assert 9 not in {dim for dims in shapes(fixed).values() for dim in dims}
    onnx.checker.check_model(fixed, full_check=True)
    given = inputs(4, 2)
    assert run(fixed, given)["out"].shape == (4, 2, 4)


def test_sizes_that_a_model_cannot_have_are_refused() -> None:
    """A table of positions fits one length only."""
    original = parse(
        """g (float[seq,batch,3] X) => (float[?,?,?] Y)
        <float[1,9,3] W = {}, float[1,9,3] R = {}, float[7,1,3] positions = {}>
        { x = Add (X, positions)  , Y = GRU <hidden_size = 3> (x, W, R) }"""
    )
    assert rl.lower(original, "unroll", dims={"seq": 7, "batch": 2})
    with pytest.raises(rl.UnsupportedError, match=r"not valid at these sizes: .*Add"):
        rl.lower(original, "unroll", dims={"seq": 5, "batch": 2})


def test_sizes_that_the_model_has_need_not_be_told() -> None:
    original = padded()
    for dim, size in zip(original.graph.input[0].type.tensor_type.shape.dim, (5, 2, 3), strict=True):
        dim.dim_value = size
    before = original.SerializeToString()
    lowered = rl.lower(original, "unroll")
    assert not operators(lowered) & {"LSTM", "If", "Loop", "Scan"}
    assert original.SerializeToString() == before
    check = rl.verify(original, lowered, runs=1)
    assert check
    assert check.nodes
    assert operators(rl.lower(original, "scan")) >= {"If", "Scan"}  # which needs no sizes


def test_a_hint_names_what_can_be_fixed() -> None:
    original = annotated()
    with pytest.raises(rl.UnsupportedError, match=r": --set-dim seq=\?, or use"):
        rl.lower(original, "unroll")
    with pytest.raises(rl.UnsupportedError, match=r": --set-dim seq=\? --set-dim batch=\?"):
        rl.lower(original, target="iree")
    unnamed = chain(*STACKED, dims=(None, 2))
    with pytest.raises(rl.UnsupportedError, match=r": --input-shape X:\?,2,3, or use"):
        rl.lower(unnamed, "unroll")
    hopeless = parse(
        """g (float[5,2,3] X) => (float[?,?,?] Y) <float[1,9,3] W = {}, float[1,9,3] R = {}, int64[1] axis = {1}>
        { places = NonZero (X)  count = Shape (places)  n = Gather (count, axis)  rows = ConstantOfShape (n)
          row = Cast <to = 7> (rows)  x = Gather (X, row)  , Y = GRU <hidden_size = 3> (x, W, R) }"""
    )
    with pytest.raises(rl.UnsupportedError, match=r"cannot be unrolled; use --to scan or --to loop$"):
        rl.lower(hopeless, "unroll")
