"""Fixing symbolic dimensions: everywhere or not at all; sizes are known behind operators of com.microsoft too."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import ALL_OPTIONAL, Array, Arrays, Case, feed, model
from chains import Link, chain
from graphs import MS, Graph, Shape, value
from onnx import helper, numpy_helper
from paths import MODELS
from running import assert_close, operators, recurrent_left, run, scopes
from texts import FORMS, parse, random_feed
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.flags import for_command

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


def annotated(seq: str = "seq", batch: str = "batch", more: Mapping[str, Shape] | None = None) -> onnx.ModelProto:
    """Two stacked nodes, with shapes of the values between them, an input that shares a name, and more inputs."""
    proto = chain(*STACKED, dims=(seq, batch))
    proto.graph.value_info.append(value("Y0", [seq, 2, batch, 4]))
    proto.graph.input.append(value("scale", [batch, 1]))
    proto.graph.input.extend(value(name, shape) for name, shape in (more or {}).items())
    proto.graph.node[-1].output[0] = "unscaled"
    proto.graph.node.append(helper.make_node("Mul", ["unscaled", "scale"], ["out"], "scaled"))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_a_size_of_an_output_is_not_taken_from_the_user() -> None:
    """It follows from those of the inputs: with 16 steps and a stride of 2 it is 8, and not the 5 that is given."""
    text = """g (float[N, time, 3] x) => (float[N, half, 3] y) <float[3, 3, 1] k = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
        a = Transpose <perm = [0, 2, 1]> (x)
        b = Conv <strides = [2]> (a, k)
        y = Transpose <perm = [0, 2, 1]> (b) }"""
    for dims in ({"half": 5}, {"half": 5, "time": 16}, {"half": 8, "time": 16}):
        with pytest.raises(rl.OptionError, match=r"'half' of 'y' follows from the inputs; the .* inputs: N, time$"):
            rl.lower(parse(text), dims=dims)
    assert shapes(rl.lower(parse(text), dims={"time": 16}))["y"] == ["N", 8, 3]


@pytest.mark.parametrize("first", ["x = own.Halves (X)", "n = NonZero (m) i = Squeeze (n) x = Gather (X, i)"])
def test_a_size_that_follows_from_data_or_an_unknown_operator_can_be_given(first: str) -> None:
    text = f"""g (float[T, N, 2] X, bool[T] m) => (float[found, 1, N, 4] Y)
        <float[1, 16, 2] W = {{}}, float[1, 16, 4] R = {{}}> {{
        {first} Y = LSTM <hidden_size = 4> (x, W, R) }}"""
    model = parse(text, domains=', "own": 1')
    model.graph.value_info.append(value("x", ["found", "N", 2]))
    lowered = rl.lower(model, to="unroll", dims={"found": 5})
    assert shapes(lowered)["Y"] == [5, 1, "N", 4]
    assert recurrent_left(lowered) == []


def inputs(seq: int, batch: int) -> dict[str, Array]:
    return random_feed(annotated(), seq=seq, batch=batch)


# What is fixed


@pytest.mark.few(4)
@pytest.mark.parametrize("form", ["auto", "unroll"])
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"dims": {"seq": 6}}, ["--set-dim=seq=6"]),
        ({"dims": {"seq": 6, "batch": 2}}, ["--set-dim=seq=6", "--set-dim", "batch=2"]),
        ({"input_shapes": {"X": [6, 2, 3]}}, ["--set-shape", "X:6,2,3"]),
        ({"input_shapes": {"X": (6, 2, 3), "scale": (2, 1)}}, ["--set-shape=X:6,2,3", "--set-shape=scale:2,1"]),
        ({"dims": {"batch": 2}, "input_shapes": {"X": [6, 2, 3]}}, ["--set-dim=batch=2", "--set-shape=X:6,2,3"]),
        ({"dims": {"seq": 6}, "input_shapes": {"scale": [2, 1]}}, ["--set-dim=seq=6", "--set-shape=scale:2,1"]),
    ],
    ids=str,
)
def test_all_ways_to_say_it(options: dict[str, Any], arguments: list[str], form: Any, tmp_path: Path) -> None:
    original = annotated()
    fixed = rl.lower(original, form, **options)
    found, batch = shapes(fixed), 2 if "2" in str(options) else "batch"
    assert (found["X"], found["out"], found["scale"]) == ([6, batch, 3], [6, batch, 4], [batch, 1])
    assert found["Y0"] == [6, 2, batch, 4]
    assert names_left(fixed) == ({"batch"} if batch == "batch" else set())
    assert form == "auto" or not operators(fixed) & {"Scan", "Loop", "Shape", "ConstantOfShape"}
    onnx.checker.check_model(fixed, full_check=True)
    assert_close(run(fixed, inputs(6, 2)), run(original, inputs(6, 2)))
    source, target = saved(tmp_path, original)
    assert main([source, target, "--to", form, "--verify", "0", *arguments]) == 0
    assert shapes(onnx.load(target)) == found


def made_up() -> onnx.ModelProto:
    """Between the nodes the length has a name of its own, which only inference connects with the input's."""
    original = chain(*STACKED, dims=("seq", "batch"))
    widths = {"x0": 8, "x1": 4}
    original.graph.value_info.extend(value(x, [f"{x}_0", f"{x}_1", width]) for x, width in widths.items())
    return original


def unranked() -> onnx.ModelProto:
    original = chain(Link("LSTM", "first"))
    original.graph.input[0].type.tensor_type.ClearField("shape")
    return original


EVERY_INPUT = Case("dims_all", "LSTM", {"direction": "bidirectional"}, optional=ALL_OPTIONAL, x="symbolic")
IN_BRANCHES = Case("dims_if", "GRU", scope="if", x="symbolic")
X: Arrays = {"X": inputs(5, 3)["X"]}
FIVE = {"dims": {"seq": 5, "batch": 3}}
FOLLOWING: dict[str, tuple[onnx.ModelProto, dict[str, Any], Arrays, dict[str, Dims]]] = {
    "to the third layer": (
        chain(*STACKED, Link("RNN", "third"), dims=("seq", "batch")),
        {"dims": {"seq": 5}},
        X,
        {"X": [5, "batch", 3]},
    ),
    "names that an exporter made up": (made_up(), FIVE, X, {"x0": [5, 3, 8]}),
    "no names": (chain(*STACKED, dims=(None, None)), {"input_shapes": {"X": [5, 3, 3]}}, X, {"X": [5, 3, 3]}),
    "an unknown rank": (unranked(), {"input_shapes": {"X": [5, 3, 3]}}, X, {"X": [5, 3, 3]}),
    "the inputs of a node": (
        model(EVERY_INPUT, 17),
        FIVE,
        feed(EVERY_INPUT),
        {"sequence_lens": [3], "initial_c": [2, 3, 4], "Y": [5, 2, 3, 4], "Y_h": [2, 3, 4]},
    ),
    "in bodies": (model(IN_BRANCHES, 17), FIVE, feed(IN_BRANCHES), {"X": [5, 3, 2]}),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", FOLLOWING)
def test_sizes_follow(name: str) -> None:
    original, options, given, expected = FOLLOWING[name]
    with pytest.raises(rl.UnsupportedError, match="not known"):
        rl.lower(original, "unroll")
    unrolled = rl.lower(original, "unroll", **options)
    assert recurrent_left(unrolled) == []
    assert {name: dims for name, dims in shapes(unrolled).items() if name in expected} == expected
    assert not {"seq", "x0_0"} & names_left(unrolled)
    assert_close(run(unrolled, given), run(original, given))


@pytest.mark.parametrize(
    ("original", "options", "name", "dims"),
    [
        (annotated(more={"other": [None, "more"]}), {"input_shapes": {"X": [6, 2, 3]}}, "other", [None, "more"]),
        (annotated(more={"number": []}), {"input_shapes": {"number": []}}, "number", []),
        (parse("g (float[n,3] a) => (float[n,3] b) { m = Relu (a) b = Neg (m) }"), {"dims": {"n": 5}}, "b", [5, 3]),
    ],
)
def test_inputs_beside_nodes(original: onnx.ModelProto, options: dict[str, Any], name: str, dims: Dims) -> None:
    assert shapes(rl.lower(original, **options))[name] == dims


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("seq", [0, 1, 3])
def test_short_lengths(seq: int, to: Any) -> None:
    fixed = rl.lower(chain(Link("LSTM", "first"), dims=("seq", "batch")), to, dims={"seq": seq})
    assert operators(fixed) & {"Scan", "Loop"} == ({to.capitalize()} - {"Unroll"} if seq > 1 else set())
    assert shapes(fixed)["X"] == [seq, "batch", 3]
    assert run(fixed, {"X": inputs(seq, 2)["X"]})["out"].shape == (seq, 2, 4)


def test_an_ir_model_is_fixed_in_place_and_texts_stay() -> None:
    original = annotated()
    for given in original.graph.input:
        given.doc_string = f"text of {given.name}"
        given.type.tensor_type.shape.dim[0].denotation = "DATA_TIME"
    ir_model = ir.from_proto(original)
    rl.lower(ir_model, "unroll", dims={"seq": 6, "batch": 2})
    fixed = ir.to_proto(ir_model)
    assert shapes(fixed)["X"] == [6, 2, 3]
    assert [v.doc_string for v in fixed.graph.input] == ["text of X", "text of scale"]
    assert [v.type.tensor_type.shape.dim[0].denotation for v in fixed.graph.input] == ["DATA_TIME", "DATA_TIME"]


# What is refused


def without_shape(original: onnx.ModelProto) -> onnx.ModelProto:
    original.graph.input[0].type.tensor_type.ClearField("shape")
    return original


TWO_ROWS = Case("dims_states", "LSTM", optional=("B", "initial_h"), states_from="initializer", x="symbolic", N=2)
POSITIONS = parse(
    """g (float[seq,batch,3] X) => (float[?,?,?] Y)
    <float[1,9,3] W = {}, float[1,9,3] R = {}, float[7,1,3] positions = {}>
    { x = Add (X, positions)  , Y = GRU <hidden_size = 3> (x, W, R) }"""
)
"""A table of positions fits one length only."""
REFUSED: dict[str, tuple[onnx.ModelProto, dict[str, Any], str]] = {
    "unknown name": (annotated(), {"dims": {"time": 6}}, "'time'.*batch, seq"),
    "a name where all sizes are fixed": (
        chain(*STACKED, dims=(5, 2)),
        {"dims": {"seq": 6}},
        r"'seq'; the sizes of the inputs are fixed: X \[5, 2, 3\]; to take others, open an axis with open_dims",
    ),
    "a name where open sizes have none": (
        chain(*STACKED, dims=(None, 2)),
        {"dims": {"seq": 6}},
        r"'seq'; the open sizes of X \[\?, 2, 3\] have no names: fix them with input_shapes",
    ),
    "a name where a shape is missing": (
        without_shape(chain(*STACKED)),
        {"dims": {"time": 6}},
        "'time'; an input has no shape: give it one with input_shapes",
    ),
    "a stream where no input has a shape": (
        without_shape(chain(*STACKED)),
        {"stream": "X:0=1"},
        "no axis is called 'X:0'; no input has a shape: export the model with them",
    ),
    "a length where no input has a shape": (
        without_shape(chain(*STACKED)),
        {"to": "unroll"},
        r'fix the sizes of the inputs, with a number for each \?: input_shapes=\{"X": \[\?, \?, 3\]\}',
    ),
    "unknown input": (annotated(), {"input_shapes": {"Z": [6, 2, 3]}}, "'Z'.*X, scale"),
    "an output is no input": (annotated(), {"input_shapes": {"out": [6, 2, 4]}}, "'out'"),
    "a static size": (annotated(), {"input_shapes": {"X": [6, 2, 4]}}, "X.* 3 .* 4"),
    "a static size without names": (
        chain(*STACKED, dims=(5, "batch")),
        {"input_shapes": {"X": [6, 2, 3]}},
        "axis 0 of input 'X' is 5 and cannot be 6; if the exporter fixed it, open it: open_dims=",
    ),
    "rank": (annotated(), {"input_shapes": {"X": [6, 2]}}, r"'X' \[seq, batch, 3\] has 3 dimensions, not 2"),
    "no dimensions": (annotated(), {"input_shapes": {"X": []}}, "3 dimensions, not 0"),
    "two shapes": (annotated(), {"input_shapes": {"X": [6, 2, 3], "scale": [3, 1]}}, "'batch'"),
    "name and shape": (annotated(), {"dims": {"seq": 5}, "input_shapes": {"X": [6, 2, 3]}}, "'seq' is 5 .* 6"),
    "negative": (annotated(), {"dims": {"seq": -1}}, "-1"),
    "a negative size": (annotated(), {"input_shapes": {"X": [-1, 2, 3]}}, "-1"),
    "a negative size without names": (
        chain(*STACKED, dims=(None, None)),
        {"input_shapes": {"X": [-1, 2, 3]}},
        "-1",
    ),
    "a state of two rows": (model(TWO_ROWS, 17), {"dims": {"batch": 3}}, "recurrent"),
    "a table of positions": (
        POSITIONS,
        {"dims": {"seq": 5}, "to": "unroll"},
        "not valid at these sizes: .*Add.*; 'seq' is declared open, but the model fits seq = 7 only",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    original, options, fact = REFUSED[name]
    ir_model = ir.from_proto(original)
    before = original.SerializeToString(), ir.to_proto(ir_model).SerializeToString(deterministic=True)
    for given in (original, ir_model):
        with pytest.raises(rl.RnnLoweringError, match=fact) as caught:
            rl.lower(given, **options)
        assert isinstance(caught.value, rl.UnsupportedError) or name == "a state of two rows"
    assert (original.SerializeToString(), ir.to_proto(ir_model).SerializeToString(deterministic=True)) == before


def test_what_fits_is_not_refused() -> None:
    assert rl.lower(POSITIONS, "unroll", dims={"seq": 7, "batch": 2})
    assert rl.lower(chain(*STACKED, dims=(5, "batch")), input_shapes={"X": [5, 2, 3]})


def test_a_hint_names_what_can_be_fixed() -> None:
    hopeless = parse(
        """g (float[5,2,3] X) => (float[?,?,?] Y) <float[1,9,3] W = {}, float[1,9,3] R = {}, int64[1] axis = {1}>
        { places = NonZero (X)  count = Shape (places)  n = Gather (count, axis)  rows = ConstantOfShape (n)
          row = Cast <to = 7> (rows)  x = Gather (X, row)  , Y = GRU <hidden_size = 3> (x, W, R) }"""
    )
    target: Any
    for original, target, hint in (
        (annotated(), "portable", r": --set-dim seq=\?, or use"),
        (annotated(), "iree", r": --set-dim seq=\? --set-dim batch=\?"),
        (chain(*STACKED, dims=(None, 2)), "portable", r": --set-shape X:\?,2,3, or use"),
        (hopeless, "portable", r"cannot be unrolled; use --to scan or --to loop$"),
    ):
        with for_command(), pytest.raises(rl.UnsupportedError, match=hint):
            rl.lower(original, "auto" if target == "iree" else "unroll", target=target)


# On the command line


def saved(folder: Path, proto: onnx.ModelProto) -> tuple[str, str]:
    onnx.save(proto, folder / "in.onnx")
    return str(folder / "in.onnx"), str(folder / "out.onnx")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("original", "option", "name", "dims"),
    [
        *(
            (annotated(more={name: ["n", 3]}), ["--set-shape", f"{name}:6,3"], name, [6, 3])
            for name in ("serving_default_x:0", "x:y:z", "a=b", "with space")
        ),
        (annotated(more={"number:0": []}), ["--set-shape", "number:0:"], "number:0", []),
        (annotated("seq=8*n"), ["--set-dim", "seq=8*n=16"], "X", [16, "batch", 3]),
    ],
    ids=str,
)
def test_names_with_separators(
    original: onnx.ModelProto, option: list[str], name: str, dims: Dims, tmp_path: Path
) -> None:
    """The last one separates."""
    source, target = saved(tmp_path, original)
    assert main([source, target, "--verify", "0", *option]) == 0
    assert shapes(onnx.load(target))[name] == dims


@pytest.mark.parametrize(
    "options",
    [
        ["--set-dim", "time=6"],
        ["--set-shape", "Z:6,2,3"],
        ["--set-shape", "X:6,2,4"],
        ["--set-shape", "X:6,2"],
        ["--set-dim", "seq=5", "--set-shape", "X:6,2,3"],
        ["--set-dim", "seq=5", "--set-dim", "seq=6"],
        ["--set-shape", "X:5,2,3", "--set-shape", "X:6,2,3"],
    ],
    ids=" ".join,
)
def test_command_refuses(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    source, target = saved(tmp_path, annotated())
    code: Any
    try:
        code = main([source, target, "--verify", "0", *options])
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    assert "error: " in capsys.readouterr().err
    assert not Path(target).exists()


# Folding what follows from the sizes


def padded(op_type: str = "LSTM", X: str = "seq,batch,3") -> onnx.ModelProto:
    """A node in one of two branches; its X is padded by amounts that pass through what shape inference does not
    follow, and so does the choice of the branch."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    return parse(
        f"""g (float[{X}] X) => (float[] Y)
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


@pytest.mark.few(1)
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_what_follows_from_the_sizes_is_folded(op_type: str) -> None:
    """Also where the model has the sizes; a Scan needs none."""
    original, known = padded(op_type), padded(op_type, "5,2,3")
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll")
    before, x = known.SerializeToString(), random_feed(known)
    for lowered in (rl.lower(original, "unroll", dims={"seq": 5, "batch": 2}), rl.lower(known, "unroll")):
        assert not operators(lowered) & {op_type, "If", "Loop", "Scan", "Shape", "ConstantOfShape"}
        assert_close(run(lowered, x), run(original, x))
        assert run(lowered, x)["Y"].shape == (7, 1, 2, 4)
    assert known.SerializeToString() == before
    check = rl.verify(known, rl.lower(known, "unroll"), runs=1)
    assert check
    assert check.nodes
    assert operators(rl.lower(known, "scan")) >= {"If", "Scan", "ConstantOfShape"}
    assert operators(rl.lower(annotated(), "scan", dims={"seq": 5, "batch": 2})) >= {"Mul", "Scan"}


def test_a_slice_from_before_the_first_row_takes_the_first() -> None:
    """Onnx's evaluator, by which constants are folded, takes nothing."""
    original = parse("""main (float[T,1,3] x) => (float[a,b,c,d] Y) <float[1,2,3] W = {}, float[1,2,2] R = {},
        int64[1] n = {1}, int64[1] from = {-3}, int64[1] to = {-9}, int64[1] axes = {0}, int64[1] steps = {-1},
        int64[1] rows = {-1}, int64[1] three = {3}> {
        one = Slice (n, from, to, axes, steps) sizes = Concat <axis = 0> (rows, one, three) X = Reshape (x, sizes)
        Y = RNN <hidden_size = 2> (X, W, R) }""")
    lowered = rl.lower(original, dims={"T": 4}, target="ncnn")
    x = random_feed(original, T=4)
    assert_close(run(lowered, x), run(original, x))


def test_a_refused_model_is_not_folded_either() -> None:
    read = ir.from_proto(padded())
    before = ir.to_proto(read)
    with pytest.raises(rl.UnsupportedError, match="steps are more than the limit of 3"):
        rl.lower(read, "unroll", dims={"seq": 5, "batch": 2}, max_unroll=3)
    assert ir.to_proto(read) == before


def test_shapes_traced_at_other_sizes_are_inferred_anew() -> None:
    """What an exporter wrote down of inner values holds at the sizes of its example only."""
    original = annotated()
    original.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value = 9
    original.graph.value_info.append(value("x1", [9, 2, 4]))
    fixed = rl.lower(original, "unroll", dims={"seq": 4, "batch": 2})
    assert shapes(fixed)["Y0"] == [4, 2, 2, 4]
    assert 9 not in {dim for dims in shapes(fixed).values() for dim in dims}
    onnx.checker.check_model(fixed, full_check=True)
    assert run(fixed, inputs(4, 2))["out"].shape == (4, 2, 4)


CHAIN = """
main (float[N,12,T] x, float[12,1,4] w, float[N,12,3] p, float[3] one, float[4,1,2] w4, float[N,T,3] a)
=> (float y, float s) <int64[3] parts = {4, 4, 4}> {
    first, s1 = com.microsoft.CausalConvWithState <activation = "silu"> (x, w, "", p)
    rows = Transpose <perm = [0, 2, 1]> (first)
    decay, beta = com.microsoft.LinearAttentionGate (a, one, one, a)
    normed = com.microsoft.GatedRMSNorm (rows, one, rows)
    q, k, v = Split <axis = 2> (normed, parts)
    back = Transpose <perm = [0, 2, 1]> (q)
    y, s = com.microsoft.CausalConvWithState (back, w4)
}
"""


@pytest.mark.parametrize(("N", "T"), [(2, 5), (None, None)])
def test_sizes_behind_operators_of_com_microsoft(N: int | None, T: int | None) -> None:
    text = CHAIN.replace("N,", f"{N or 'N'},").replace("T]", f"{T or 'T'}]").replace("T,", f"{T or 'T'},")
    original = parse(text, 21, 10, ', "com.microsoft": 1')
    specs = rl.inspect(original)
    assert [(spec.batch_size, spec.seq_length) for spec in specs] == [(N, T)] * 4
    assert specs[-1].input_size == 4
    if N is None:
        _, report = rl.lower(original, target="iree", dims={"N": 1, "T": 1}, full=True)
        assert [(node.batch_size, node.seq_length) for node in report.nodes] == [(1, 1)] * 4


STATES = """
main (float[2,4,6] q, float[2,4,6] k, float[2,4,8] v, float[2,6,4] x, float[6,1,3] w, float[2,4,6] z)
=> (float o2, float s2, float y2, float p2, float y4, float p4) {
    o1, s1 = com.microsoft.LinearAttention <update_rule = "linear", q_num_heads = 2, kv_num_heads = 2> (q, k, v)
    o2, s2 = com.microsoft.LinearAttention <update_rule = "linear", q_num_heads = 2, kv_num_heads = 2>
        (q, k, o1, s1)
    y1, p1 = com.microsoft.CausalConvWithState (x, w)
    y2, p2 = com.microsoft.CausalConvWithState (y1, w, "", p1)
    y3, p3 = com.microsoft.CausalConvWithState <channels_last = 1, dilation = 2> (z, w)
    y4, p4 = com.microsoft.CausalConvWithState <channels_last = 1, dilation = 2> (y3, w, "", p3)
}
"""


@pytest.mark.parametrize("opset", [9, 11, 21])
@pytest.mark.parametrize("to", ["scan", "unroll"])
def test_states_of_nodes_that_are_given_none(to: Any, opset: int) -> None:
    """The states s1, p1 and p3 are not declared: their types and shapes follow from the other inputs."""
    original = parse(STATES, opset, 10, ', "com.microsoft": 1')
    known = {value.name: value for value in onnx.shape_inference.infer_shapes(rl.lower(original, to)).graph.output}
    assert [d.dim_value for d in known["s2"].type.tensor_type.shape.dim] == [2, 2, 3, 4]
    assert [d.dim_value for d in known["p2"].type.tensor_type.shape.dim] == [2, 6, 2]
    assert [d.dim_value for d in known["p4"].type.tensor_type.shape.dim] == [2, 4, 6]
    assert [rl.inspect(original)[n].batch_size for n in (3, 5)] == [2, 2]


@pytest.mark.exhaustive
def test_onnx_knows_no_more_of_com_microsoft_than_before() -> None:
    """A program that imports this package gets the checker, the inference and the evaluator that it had."""
    subprocess.run([sys.executable, "-c", "import rnn_lowering.model.onnx_checks, onnx.reference"], check=True)
    assert not [schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == MS]
    original = parse(STATES.replace("update_rule", "of_a_later_version"), 21, 10, ', "com.microsoft": 1')
    onnx.checker.check_model(original, full_check=True)


LAYERS = f"""
main (float[4,1,3] X, float[1,6,4] W2, float[1,6,2] R2) => (float Y2)
<uint8[2,3,8] W = {{{", ".join("1" * 48)}}}, uint8[2,2,8] R = {{{", ".join("2" * 32)}}}, float[2] s = {{0.1, 0.2}},
 uint8[2] z = {{0, 0}}, int64[3] sizes = {{0, 0, 4}}> {{
    Y, Y_h, Y_c = com.microsoft.DynamicQuantizeLSTM <hidden_size = 2, direction = "bidirectional">
        (X, W, R, "", "", "", "", "", s, z, s, z)
    rows = Transpose <perm = [0, 2, 1, 3]> (Y)
    x2 = Reshape (rows, sizes)
    Y2 = GRU <hidden_size = 2> (x2, W2, R2)
}}
"""


def test_sizes_above_a_quantized_lstm() -> None:
    original = parse(LAYERS, 21, 10, ', "com.microsoft": 1')
    assert [(spec.seq_length, spec.batch_size) for spec in rl.inspect(original)] == [(4, 1)] * 2


# The comparison at fixed sizes


def unsorted() -> onnx.ModelProto:
    original = annotated()
    original.graph.node.insert(0, original.graph.node.pop())
    return original


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "to", "dims", "notes"),
    [
        (annotated, "scan", {"seq": 6}, []),
        (annotated, "unroll", {"seq": 6}, []),
        (annotated, "scan", {"seq": 6, "batch": 2}, []),
        (annotated, "unroll", {"seq": 6, "batch": 2}, []),
        (annotated, "scan", {"batch": 1}, []),
        (annotated, "loop", {"batch": 1}, []),
        (padded, "unroll", {"seq": 5, "batch": 2}, ["computed the values that follow from the fixed sizes"]),
        (unsorted, "unroll", {"seq": 4, "batch": 2}, ["sorted the nodes by their dependencies"]),
    ],
)
def test_fixed_models_are_verified(
    make: Callable[[], onnx.ModelProto], to: str, dims: dict[str, int], notes: list[str], tmp_path: Path
) -> None:
    source, target = saved(tmp_path, make())
    options = [f"--set-dim={name}={size}" for name, size in dims.items()]
    report = tmp_path / "report.json"
    assert main([source, target, "--to", to, "--verify", "2", "--report", str(report), *options]) == 0
    told = json.loads(report.read_text())
    check = told["verification"]
    assert (check["status"], check["runs"], bool(check["nodes"])) == ("verified", 2, True)
    assert told["notes"] == notes


def test_nothing_to_lower_but_dimensions_to_fix(tmp_path: Path) -> None:
    source, target = saved(tmp_path, parse("g (float[n, 3] a) => (float[n, 3] b) { b = Relu (a) }"))
    assert main([source, target, "--set-dim", "n=5", "-q"]) == 0
    assert shapes(onnx.load(target))["a"] == [5, 3]


EXPANDED = parse(
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
"""What an exporter expands to the batch size is a constant once that is known."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("original", "constant"), [(annotated(), lambda t: t.name == "upper/B"), (EXPANDED, lambda t: t.dims[-1] == 4)]
)
def test_a_wrong_constant_fails_the_comparison(
    original: onnx.ModelProto, constant: Callable[[onnx.TensorProto], bool]
) -> None:
    fixed = rl.lower(original, "unroll", dims={"seq": 5, "batch": 2})
    check = rl.verify(original, fixed, runs=1)
    assert check
    assert check.nodes
    tensor = next(t for t in fixed.graph.initializer if t.dims and constant(t))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.5), tensor.name))
    assert rl.verify(original, fixed, runs=1).status == "failed"


SILERO = MODELS / "github" / "snakers4__silero-vad"


@pytest.mark.exhaustive
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


@pytest.mark.parametrize("opset", [9, 10, 11])
@pytest.mark.parametrize("form", FORMS)
def test_an_axis_that_is_cut_has_a_size_of_its_own(form: Any, opset: int) -> None:
    """ONNX's inference of opset 10 says that it has that of the whole axis; onnxruntime then shares buffers."""
    graph = Graph()
    x = graph.input("X", ["seq", 2, 3])
    bounds = [graph.constant([number]) for number in (0, -1, 0)]
    given = bounds if opset >= 10 else []
    cut = graph.node("Slice", x, *given, **({} if given else {"axes": [0], "starts": [0], "ends": [-1]}))
    for n, held in enumerate((x, cut)):
        weights = (graph.constant(np.ones(shape) / 8, np.float32) for shape in ((1, 12, 3), (1, 12, 4)))
        graph.node("GRU", held, *weights, outputs=[f"Y{n}"], hidden_size=4)
        graph.output(f"Y{n}", None)
    proto, fed = graph.model(opset), {"X": np.ones((7, 2, 3), np.float32)}
    lowered = rl.lower(proto, form, dims={"seq": 7} if form == "unroll" else {})
    assert_close(run(lowered, fed, optimize=False), run(proto, fed))


def test_how_often_a_model_with_sizes_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to change it."""
    copies, clone = [], ir.Model.clone

    def counted(model: ir.Model, **options: Any) -> ir.Model:
        copies.append(model)
        return clone(model, **options)

    proto = chain(*STACKED)
    monkeypatch.setattr(ir.Model, "clone", counted)
    rl.lower(proto, dims={"seq": 5, "batch": 2})
    assert len(copies) == 1


def test_sizes_of_every_node_are_named_at_once() -> None:
    """The length of the second node is a number of the batch; each size is named once, and they suffice."""
    graph = """g (float[T, N, 2] x) => (float[N, 1, 1, 3] y) { a = RNN <hidden_size = 3> (x, W, R)
        b = ReduceMax <axes = [0, 1], keepdims = 0> (a) c = Unsqueeze (b, one)
        y = RNN <hidden_size = 3> (c, W3, R) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    shapes = {"W": (1, 3, 2), "W3": (1, 3, 3), "R": (1, 3, 3)}
    model.graph.initializer.extend(numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in shapes.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    with pytest.raises(rl.UnknownSizeError) as caught:
        rl.lower(model, "unroll")
    assert '{"T": ?, "N": ?}' in caught.value.hint
    assert rl.lower(model, "unroll", dims={"T": 2, "N": 3})


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["opencv", "tvm", "mnn"])
@pytest.mark.parametrize(
    "product",
    ["Conv <pads = [1, 1, 1, 1]> (h0, K, k)", 'Conv <auto_pad = "VALID"> (h0, K)', "MatMul (h0, M)", "Gemm (M, M)"],
)
def test_a_product_of_a_constant_state_is_a_constant(product: str, target: Any) -> None:
    """The first step of a ConvLSTM: OpenCV rejects a Conv of a constant."""
    model = parse(f"""g (float[4, 1, 3] X) => (float[4, 1, 1, 2] Y, float y)
        <float[1, 2, 3] W = {{1, 2, 3, 4, 5, 6}}, float[1, 2, 2] R = {{1, 0, 2, 1}},
         int64[4] shape = {{1, 2, 3, 3}}, float[1] one = {{0.5}}, float[4] k = {{1, 2, 3, 4}},
         float[3, 3] M = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
        Y, h = RNN <hidden_size = 2> (X, W, R)  h0 = Expand (one, shape)  p = {product}
        s = Sigmoid (X)  m = ReduceMax <keepdims = 0> (s)  y = Mul (p, m) }}""")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    kernel = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "K"))
    lowered, fed = rl.lower(model, target=target), random_feed(model)
    assert not operators(lowered) & {"Conv", "Gemm"}
    assert all(node.output[0] != "p" for node in lowered.graph.node)
    assert_close(run(lowered, fed, optimize=False), run(model, fed))


@pytest.mark.parametrize("target", ["openvino", "mnn"])
def test_a_declared_number_does_not_close_an_open_size(target: Any) -> None:
    """PyTorch declares sizes of its example behind an LSTM: those of flipped rows follow from nothing else."""
    model = parse("""g (float[n, 1, 3] X) => (float[m, 1, 1, 3] Y)
        <float[1, 12, 3] W = {}, float[1, 12, 3] R = {}, int64[1] last = {-1}, int64[1] low = {-1000},
         int64[1] axis = {0}, int64[1] back = {-1}> {
        a = Tanh (X)  b = Slice (X, last, low, axis, back)  c = Neg (b)
        Y, h = LSTM <hidden_size = 3> (c, W, R) }""")
    model.graph.value_info.extend(value(name, [6, 1, 3]) for name in "abc")
    lowered = rl.lower(model, target=target)
    for n in (6, 9):
        fed = {"X": np.random.default_rng(n).normal(size=(n, 1, 3)).astype(np.float32)}
        assert_close(run(lowered, fed, optimize=False), run(model, fed, optimize=False))


def stacked(steps: int | str, stride: int = 1) -> onnx.ModelProto:
    """Two nodes, and between them what PyTorch writes of 5 steps: the product of two axes, by their sizes."""
    net = parse(f"""g (float[n, 3, {steps}] X) => (float[m, 1, n, 2] Y)
        <float[3, 3, 1] K = {{}}, float[2, 6, 3] W = {{}}, float[2, 6, 2] R = {{}}, float[1, 6, 4] W2 = {{}},
         float[1, 6, 2] R2 = {{}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] three = {{3}},
         int64[1] four = {{4}}, int64[1] all = {{-1}}> {{
        k = Conv <strides = [{stride}]> (X, K)  x = Transpose <perm = [2, 0, 1]> (k)
        a = GRU <hidden_size = 2, direction = "bidirectional"> (x, W, R)
        b = Transpose <perm = [0, 2, 1, 3]> (a)  s = Shape (b)  front = Slice (s, zero, two)
        p = Slice (s, two, three)  q = Slice (s, three, four)  pq = Mul (p, q)  r = Reshape (pq, all)
        shape = Concat <axis = 0> (front, r)  joined = Reshape (b, shape)
        Y = GRU <hidden_size = 2> (joined, W2, R2) }}""")
    net.graph.value_info.append(value("joined", [5, "n", 4]))
    return net


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("target", ["portable", "tract", "opencv", "mnn"])
def test_steps_of_the_example_do_not_count_behind_a_node(target: Any, stride: int) -> None:
    """What the Reshape makes follows from an open size, though ONNX infers nothing."""
    net = stacked("t", stride)
    assert [spec.seq_length for spec in rl.inspect(net)] == [None, None]
    for dims in ({}, {"n": 2}):
        lowered = rl.lower(net, target=target, dims=dims)
        for steps in (3, 8):
            fed = {"X": np.random.default_rng(steps).normal(size=(2, 3, steps)).astype(np.float32)}
            assert_close(run(lowered, fed, optimize=False), run(net, fed, optimize=False))


def test_steps_that_follow_from_fixed_sizes_count() -> None:
    assert [spec.seq_length for spec in rl.inspect(stacked(5))] == [5, 5]
    assert not recurrent_left(rl.lower(stacked(5), "unroll"))


@pytest.mark.parametrize("target", ["ncnn", "tvm", "opencv"])
def test_arithmetic_of_known_sizes_is_folded_without_a_recurrent_node(target: Any) -> None:
    """A loop of convolutions as PyTorch writes it: its first state is made of a Shape."""
    model = parse("""g (float[1, 2, h, w] x) => (float[1, 2, h, w] y) <float[2, 2, 1, 1] W = {}> {
        s = Shape (x)  z = ConstantOfShape (s)  a = Conv (z, W)  b = Conv (x, W)  y = Add (a, b) }""")
    lowered = rl.lower(model, target=target, input_shapes={"x": [1, 2, 3, 4]})
    assert not operators(lowered) & {"Shape", "ConstantOfShape"}
    fed = {"x": np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32)}
    assert_close(run(lowered, fed), run(model, fed))


@pytest.mark.parametrize("target", ["portable", "opencv"])
def test_an_output_that_declares_the_size_of_the_export_does_not_make_sizes_invalid(target: Any) -> None:
    """ONNX cannot infer Z, so the number that it declares meets another one behind it only."""
    original = parse(
        """g (float[batch,time,6] X) => (float[2,4,3,2] Z, float[b,t,3,2] D, float[time,1,b,2] Y)
        <float[1,8,6] W = {}, float[1,8,2] R = {}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] five = {5},
         int64[2] tail = {3,2}, int64[1] k3 = {3}> {
        s = Shape (X) end = Mod (two, five) front = Slice (s, zero, end) c = Concat <axis = 0> (front, tail)
        Z = Reshape (X, c) m = ReduceMean <axes = [2]> (X) u = Unsqueeze (m, k3) D = Sub (u, Z)
        x = Transpose <perm = [1,0,2]> (X) Y = LSTM <hidden_size = 2> (x, W, R) }"""
    )
    for frames in (4, 7):
        lowered = rl.lower(original, target=target, input_shapes={"X": [2, frames, 6]})
        assert shape_of(lowered.graph.output[0])[1] in (frames, None)
        assert rl.verify(original, lowered, runs=1)
