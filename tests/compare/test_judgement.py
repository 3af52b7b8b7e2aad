"""What a difference of outputs means: random numbers, rounding that a network amplifies, a fault of onnxruntime, or
one of the lowered model; and how models are judged that onnxruntime does not run."""

from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from case_list import BY_NAME
from cases import ALL_OPTIONAL, Case, feed, model
from chains import Link, chain
from onnx import helper, numpy_helper
from running import nodes, optimizations_change, runs_in_onnxruntime
from stream_models import net, random, recurrent
from texts import parse

import rnn_lowering as rl
from rnn_lowering import verify
from rnn_lowering.compare.coverage import undetermined_outputs
from rnn_lowering.compare.float64 import rnn_equations, rnn_reference
from rnn_lowering.compare.proof import of_nodes
from rnn_lowering.compare.proof.polynomials import Effort, UnprovenError

pytestmark = pytest.mark.usefixtures("workers_here")


def lstm(end: str, tensors: str = "float one = {1}") -> onnx.ModelProto:
    """An LSTM with nodes behind its `y`."""
    return parse(
        f"""main (float[T,N,2] X) => (float[a,b,c,d] Y, float[1,N,4] Y_h)
        <float[1,16,2] W = {{}}, float[1,16,4] R = {{}}, float[1,32] B = {{}}, {tensors}>
        {{ y, Y_h = LSTM <hidden_size = 4> (X, W, R, B) {end} }}""",
        domains=', "com.example": 1',
    )


def scaled(original: onnx.ModelProto, name: str, factor: float) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    (tensor,) = [t for t in copy.graph.initializer if t.name == name]
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(array * np.asarray(factor, array.dtype), name))
    return copy


# Random numbers and rounding


NOISE = {
    "RandomNormalLike": "n = RandomNormalLike (y) Y = Add (y, n)",
    "RandomUniformLike": "n = RandomUniformLike (y) Y = Add (y, n)",
    "Bernoulli": "p = Sigmoid (y) n = Bernoulli (p) Y = Add (y, n)",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("op_type", NOISE)
def test_what_is_random_is_compared_node_by_node(op_type: str) -> None:
    original = lstm(NOISE[op_type])
    assert undetermined_outputs(original).keys() == {"Y"}
    check = verify(original, rl.lower(original))
    assert check
    assert not check.whole
    assert "do not determine the outputs 'Y'" in check.reason
    assert op_type in check.reason
    assert not verify(original, rl.lower(scaled(original, "R", 1.001)))


def test_random_numbers_do_not_excuse_other_outputs() -> None:
    original = lstm(NOISE["Bernoulli"])
    wrong = rl.lower(original)
    for node in wrong.graph.node:
        node.output[:] = ["before" if name == "Y_h" else name for name in node.output]
    wrong.graph.node.append(helper.make_node("Neg", ["before"], ["Y_h"]))
    check = verify(original, wrong)
    assert check.status == "failed"
    assert "'Y_h'" in check.reason


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("inputs", "drawn"),
    [("y, ratio, yes", {"Y": "Dropout in training mode"}), ("y, ratio, no", {}), ("y", {})],
)
def test_dropout_is_random_in_training_only(inputs: str, drawn: dict[str, str]) -> None:
    """onnxruntime may draw the same numbers for both models."""
    tensors = "float ratio = {0.5}, bool yes = {1}, bool no = {0}"
    original = lstm(f"Y = Dropout ({inputs})", tensors)
    assert undetermined_outputs(original) == drawn
    check = verify(original, rl.lower(original))
    assert check
    assert drawn or check.whole


def test_functions_that_call_themselves_or_others_twice() -> None:
    """Each function is looked through once: the model names 2^60 calls, and one that never ends."""
    calls = {"endless": ("endless", "drawn"), **{f"twice{n}": (f"twice{n - 1}",) * 2 for n in range(1, 60)}}
    calls["twice0"] = ("endless", "drawn")
    texts = [f"f {name} (x) => (z) {{ y = f.{a} (x) z = f.{b} (y) }}" for name, (a, b) in calls.items()]
    header = '<domain: "f", opset_import: ["": 17, "f": 1]>'
    texts = [text.replace("f ", f"{header} ", 1) for text in texts]
    original = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "f": 1]> g (float[2] X) => (float[2] Y) {{ Y = f.twice59 (X) }}
        {header} drawn (x) => (z) {{ z = RandomNormalLike (x) }} {" ".join(texts)}"""
    )
    assert undetermined_outputs(original) == {"Y": "RandomNormalLike"}


def test_rounding_that_a_network_amplifies_is_told_from_faults() -> None:
    """The sine of a large multiple of y."""
    original = lstm("large = Mul (y, factor) Y = Sin (large)", "float factor = {30000}")
    check = verify(original, rl.lower(original))
    assert check, check.reason
    assert check.max_abs > 1e-4
    assert check.method == "onnxruntime, differences judged by float64 NumPy"
    assert "as close to float64" in check.reason
    assert all(check.proofs)
    for name in ("R", "factor"):
        assert verify(original, rl.lower(scaled(original, name, 1.001))).status == "failed"


def test_outputs_that_differ_wait_for_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[bool]()

    def endless(claim: object, effort: Effort) -> None:
        until = monotonic() + 60
        while not ended and monotonic() < until:
            try:
                effort.take(0)
            except UnprovenError:
                ended.append(True)
                raise

    monkeypatch.setattr(of_nodes, "prove", endless)
    original = lstm("Y = Identity (y)")
    assert verify(original, rl.lower(scaled(original, "R", 0.5))).status == "failed"
    assert ended


def test_constants_of_bfloat16_are_rounded() -> None:
    """The sum of two biases is, too."""
    case = Case("judgement_bfloat16", "LSTM", {"direction": "bidirectional"}, dtype="bfloat16", x="symbolic")
    original = model(case, 22)
    assert verify(original, rl.lower(original)).status == "verified"
    assert verify(original, rl.lower(scaled(original, "R", 0.5))).status == "failed"


# What onnxruntime cannot run


CUSTOM = lstm("Y = com.example.Special (y)")
NOT_RUNNABLE = {
    "layout": model(Case("verify_layout", "LSTM", {"layout": 1}, optional=ALL_OPTIONAL), 17),
    "layout, symbolic": model(
        Case("verify_layout_symbolic", "GRU", {"layout": 1}, optional=ALL_OPTIONAL, x="symbolic"), 17
    ),
    "double RNN": model(Case("verify_double", "RNN", {"direction": "reverse"}, dtype="float64"), 17),
    "double GRU": model(Case("verify_double", "GRU", dtype="float64", optional=ALL_OPTIONAL), 17),
    "bfloat16": model(Case("verify_bfloat16", "LSTM", dtype="bfloat16"), 22),
    "custom operator": CUSTOM,
    "old opset": model(Case("verify_old", "LSTM"), 6),
}
if not runs_in_onnxruntime(newest := model(Case("verify_new", "LSTM", optional=ALL_OPTIONAL), 28)):  # 1.32 does
    NOT_RUNNABLE["new opset"] = newest


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NOT_RUNNABLE)
def test_an_original_that_does_not_run_is_judged_by_its_nodes(name: str) -> None:
    original = NOT_RUNNABLE[name]
    check = verify(original, rl.lower(original), runs=2)
    assert check.status == "verified", check.reason
    assert check.method == "each node against float64 NumPy"
    assert check.runs == len(check.each_run) >= 2
    assert all("recurrent" in output.name or "LSTM" in output.name for output in check.outputs)
    assert not check.whole
    assert "nodes verified, not the whole model" in str(check)
    assert "float64" in str(check)
    check = verify(original, rl.lower(scaled(original, "B", 1.5)), runs=1)
    assert check.status == "failed"
    assert any(op_type in check.reason for op_type in ("LSTM", "GRU", "RNN"))


def test_a_batch_of_no_rows_is_judged_by_its_nodes() -> None:
    original = model(Case("verify_no_rows", "GRU", dtype="float64", N=0, lengths=()), 17)
    check = verify(original, rl.lower(original), runs=2)
    assert check.status == "verified", check.reason
    assert check.method == "each node against float64 NumPy"


def test_an_original_of_an_opset_that_onnxruntime_has_unreleased_is_run_as_a_whole() -> None:
    original = model(Case("verify_unreleased", "LSTM", optional=ALL_OPTIONAL), 27)
    check = verify(original, rl.lower(original), runs=1)
    assert check.whole
    assert check.status == "verified", check.reason


def test_why_onnxruntime_rejects_a_model_is_told_without_places_in_its_source() -> None:
    original = model(Case("verify_new_ir", "GRU"), 17)
    original.ir_version = 99
    check = verify(original, rl.lower(original), runs=1)
    assert "Unsupported model IR version: 99" in check.reason
    assert "onnxruntime_src" not in check.reason


def test_nothing_to_judge_by() -> None:
    check = verify(CUSTOM, CUSTOM)
    assert check.status == "not verified"
    assert not check
    assert check.reason.startswith("onnxruntime cannot run the original: ")
    assert "Special" in check.reason
    assert "\n" not in check.reason
    assert check.reason.endswith("; compare both models in a runtime that supports the original")
    assert check.outputs == ()
    assert str(check) == f"not verified: {check.reason}"


def test_sizes_at_which_the_original_does_not_run(tmp_path: Path) -> None:
    """Its exporter wrote those of the example, T = 5 and N = 3, into a Reshape."""
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(lstm("Y = Reshape (y, traced)", "int64[4] traced = {5, 3, 4, 1}"), source)
    with pytest.raises(rl.UnsupportedError, match="neither does the original"):
        rl.lower_file(source, out, input_shapes={"X": [4, 2, 2]})
    assert not out.exists()
    check = rl.lower_file(source, out, input_shapes={"X": [5, 3, 2]}).verification
    assert check is not None
    assert check.whole


# Nodes that run on their own


def test_nodes_in_functions_run_on_their_own() -> None:
    original = model(Case("verify_function", "GRU", {"clip": 0.5}, scope="function", optional=ALL_OPTIONAL), 17)
    check = verify(original, rl.lower(original), runs=1)
    assert check
    assert check.reason == ""
    assert [node.name.split()[0] for node in check.nodes] == ["Y", "Y_h"]


def branches(name: str, first: str = "W0") -> onnx.ModelProto:
    """RNN nodes with other weights in the branches of two Ifs; the values have equal names."""
    branch = "{}_branch = g () => (float[seq,1,2,4] Y) {{ Y = RNN <hidden_size = 4> (X, {}, R) }}"
    weights = (("a", first, "W1"), ("b", "W1", "W2"))
    ifs = [f"{o} = If (c) <{branch.format('then', w)}, {branch.format('else', v)}>" for o, w, v in weights]
    proto = parse(
        f"""main (bool c, float[seq,2,3] X) => (float[seq,1,2,4] a, float[seq,1,2,4] b)
        <float[1,4,3] W0 = {{}}, float[1,4,3] W1 = {{}}, float[1,4,3] W2 = {{}}, float[1,4,4] R = {{}}>
        {{ {" ".join(ifs)} }}"""
    )
    for node in proto.graph.node:
        node.name = name
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "nodes"), [("", 4), ("same", 2)])
def test_branches_whose_values_have_equal_names_are_told_apart(name: str, nodes: int) -> None:
    """onnxruntime does not run the one in which the nodes have one name, too: their scopes have a path."""
    original = branches(name)
    check = verify(original, rl.lower(original), runs=4)
    assert check.status == "verified", check.reason
    assert len(check.nodes) == nodes
    assert not verify(original, rl.lower(branches(name, "W2")), runs=4)


def test_nodes_of_an_unsorted_model_run_on_their_own() -> None:
    original = chain(Link("LSTM", "first"), Link("GRU", "second"))
    original.graph.node.sort(key=[*original.graph.node][::-1].index)
    check = verify(original, rl.lower(original), runs=1)
    assert check.reason == ""
    assert len(check.nodes) == 2


# Faults of onnxruntime do not make a right model fail


def test_a_model_that_onnxruntimes_optimizer_refuses() -> None:
    """It makes names that a model which it saved has already, and does not look."""
    names = ["gemm_input_shape", *(f"gemm_input_shape_token_{n}" for n in range(11))]
    reshapes = [f"h{n + 1} = Reshape (h{n}, {name})" for n, name in enumerate(names)]
    original = parse(
        f"""main (float[3,2,2] X) => (float[1,2,4] h12) <float[1,16,2] W = {{}}, float[1,16,4] R = {{}},
        float[1,32] B = {{}}, {", ".join(f"int64[3] {name} = {{1,2,4}}" for name in names)}>
        {{ y, h0 = LSTM <hidden_size = 4> (X, W, R, B) {" ".join(reshapes)} }}"""
    )
    lowered = rl.lower(original)
    with pytest.raises(Exception, match="replace the existing tensor"):
        ort.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    for models, which in (((original, lowered), "lowered model"), ((lowered, original), "original")):
        check = verify(*models, runs=1)
        assert check
        assert f"the {which} runs only with onnxruntime's optimizations disabled" in check.reason


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_an_absent_output_beside_an_absent_state(op_type: str) -> None:
    """Both are called "": the original runs in onnxruntime all the same."""
    optional = ("B", "P") if op_type == "LSTM" else ("B",)
    original = model(Case("absent", op_type, outputs=("Y_h",), optional=optional), 17)
    node = next(n for n in original.graph.node if n.op_type == op_type)
    node.input.extend([""] * (6 - len(node.input)))
    check = verify(original, rl.lower(original), runs=1)
    assert check
    assert check.method == "onnxruntime"


BODIES = {
    "swapped states": """(float[2, 4] t, float[2, 4] u, float[2, 4] z) { u = Add (s, x)  z = Add (t, x) }""",
    "a state that stays": """(float[2, 4] u, float[2, 4] t, float[2, 4] s) { u = Add (s, x) }""",
    "one value twice": """(float[2, 4] u, float[2, 4] u, float[2, 4] u) { u = Add (s, t) }""",
    "right": """(float[2, 4] u, float[2, 4] v, float[2, 4] w) { u = Add (s, t) v = Neg (u) w = Abs (x) }""",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_returns_its_own_input(body: str) -> None:
    """The model that should be its equal has an Identity there: as onnxruntime should read the original."""
    original = net(
        f"""g (float[time, 2, 3] X) => (float[time, 2, 4] Z, float[2, 4] p, float[2, 4] q) {{
            Y = LSTM <hidden_size = 4> (X, W, R, B)  y = Squeeze (Y, axis)
            p, q, Z = Scan <num_scan_inputs = 1, body = b
            (float[2, 4] s, float[2, 4] t, float[2, 4] x) => {BODIES[body]}> (zero, one, y) }}""",
        {**recurrent("LSTM", 3, 4), "axis": np.array([1]), "zero": random((2, 4), 1), "one": random((2, 4), 2)},
    )
    equal = rl.lower(original)
    (scan,) = (node for node in equal.graph.node if "Z" in node.output)
    (graph,) = (a.g for a in scan.attribute if a.name == "body")
    for n, value in enumerate(graph.output):
        graph.node.append(helper.make_node("Identity", [value.name], [f"other_{n}"]))
        value.name = f"other_{n}"
    check = verify(original, equal)
    assert check, check.reason
    for fact in ("onnxruntime misreads a body that returns its own input", "Scan node 'p'"):
        assert (fact in check.reason) == (body != "right")
    assert verify(original, rl.lower(original))


def pooled(pad: str, far: float = 9) -> onnx.ModelProto:
    """Zeros before a maximum: onnxruntime takes them for minus infinity."""
    constants: dict[str, Any] = {"axis": [1], "far": np.float32(far), "pads": [0, 0, 2, 0, 0, 0], "more": [4, 2]}
    return net(
        f"""g (float[time, batch, 3] X) => (float[batch, 4, t] Z) {{
            Y = GRU <hidden_size = 4> (X, W, R, B)  y = Squeeze (Y, axis)  low = Sub (y, far)
            x = Transpose <perm = [1, 2, 0]> (low)  {pad}  Z = MaxPool <kernel_shape = [3]> (p) }}""",
        {**recurrent("GRU", 3, 4), **{name: np.array(held) for name, held in constants.items()}},
    )


def test_an_optimization_that_changes_the_original() -> None:
    original = pooled("p = Pad (x, pads)")
    assert verify(original, rl.lower(pooled("p = Pad (x, pads)", 9.5))).status == "failed"
    if not optimizations_change(original, {"X": random((9, 2, 3))}):
        pytest.skip("this onnxruntime does not have the fault")
    zeros = "n = Shape <start = 1, end = 2> (X) sizes = Concat <axis = 0> (n, more) z = ConstantOfShape (sizes)"
    check = verify(original, rl.lower(pooled(f"{zeros} p = Concat <axis = 2> (z, x)")))
    assert check, check.reason
    assert "onnxruntime's optimizations change the original's outputs" in check.reason


def test_a_wrong_layer_in_a_shared_loop_whose_input_is_computed_fails() -> None:
    """The lower layer has no model of its own: its values come from the original."""
    original = parse(
        """main (float[6,2,3] x) => (float[6,1,2,4] Y)
            <float[1,12,3] W = {}, float[1,12,4] V = {}, float[1,12,4] R = {}> {
            t = Tanh (x)  y = GRU <hidden_size = 4> (t, W, R)  s = Squeeze <axes = [1]> (y)
            Y = GRU <hidden_size = 4> (s, V, R) }""",
        opset=11,
    )
    lowered = rl.lower(original, "loop")
    assert rl.verify(original, lowered)
    (gate, *_) = [node for node in nodes(lowered) if node.op_type == "Sigmoid"]
    gate.op_type = "Identity"
    assert rl.verify(original, lowered).status == "failed"


def test_a_wrong_layer_above_an_added_constant_fails() -> None:
    """The constant is not how far X of the layer may be off. The rest of the model damps the fault."""
    original = parse(
        """main (float[T,N,3] X) => (float[T,1,N,4] Z)
            <float[1,12,3] W = {}, float[1,12,4] V = {}, float[1,12,4] R = {}, float[1,12,4] S = {},
             int64[1] one = {1}, float[4] added = {0.5, 0.5, 0.5, 0.5}, float small = {1e-6}, float large = {1}> {
            y = GRU <hidden_size = 4> (X, W, R)  s = Squeeze (y, one)  x = Add (s, added)
            z = GRU <hidden_size = 4> (x, V, S)  damped = Mul (z, small)  Z = Add (damped, large) }"""
    )
    assert rl.verify(original, rl.lower(original), runs=1)
    check = rl.verify(original, rl.lower(scaled(original, "S", 1.02)), runs=1)
    assert check.status == "failed"
    assert "Y of GRU node '-> z'" in check.reason


@pytest.mark.filterwarnings("ignore:GRU node")
def test_growth_amplifies_the_rounding_of_float64_but_hides_no_fault() -> None:
    """The gates have no bound: states grow to 1e16 in 33 steps, and the last bit of X is amplified with them."""
    case = BY_NAME["random_67_GRU"]
    original = model(case, 17)
    shapes = {name: array.shape for name, array in feed(case).items() if name != "initial_h"}
    lowered = rl.lower(original)
    assert rl.verify(original, lowered, shapes=shapes).status == "verified"
    for tensor in lowered.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE and len(tensor.dims) >= 2:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * (1 + 1e-9), tensor.name))
    assert rl.verify(original, lowered, shapes=shapes).status == "failed"


def unproven(*_: object) -> None:
    raise UnprovenError("too large")


@pytest.mark.parametrize("proven", [True, False])
def test_each_layer_of_a_loop_is_computed_twice_for_each_run(proven: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 and in float32, with X moved by its rounding in the same batch, whatever layers are above."""
    counted = list[int]()
    evaluate = rnn_equations.evaluate

    def counting(*args: Any, **options: Any) -> Any:
        counted[-1] += 1
        return evaluate(*args, **options)

    for module in (rnn_equations, rnn_reference):
        monkeypatch.setattr(module, "evaluate", counting)
    if not proven:
        monkeypatch.setattr(of_nodes, "prove", unproven)
    for count in (2, 3):
        layers = [f"y{n} = RNN <hidden_size = 4> (x{n}, W, R) x{n + 1} = Squeeze (y{n}, one)" for n in range(count)]
        original = parse(
            f"""main (float[T,N,4] x0) => (float[T,N,4] x{count})
            <float[1,4,4] W = {{}}, float[1,4,4] R = {{}}, int64[1] one = {{1}}> {{ {" ".join(layers)} }}"""
        )
        counted.append(0)
        check = rl.verify(original, rl.lower(original), runs=1)
        assert (bool(check), len(check.nodes)) == (True, 1)
        assert all(check.proofs) == proven
    sizes = rnn_reference._SIZES_OF_PROVEN if proven else rnn_reference._SIZES
    assert np.diff(counted).tolist() == [2 * len(sizes)]


def test_an_output_of_another_rank_is_wrong() -> None:
    case = Case("rank", "GRU", x="symbolic")
    original, lowered = model(case, 17), rl.lower(model(case, 17))
    for node in lowered.graph.node:
        node.output[:] = ["whole" if name == "Y" else name for name in node.output]
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    lowered.graph.node.add(op_type="Squeeze", input=["whole", "one"], output=["Y"])
    check = rl.verify(original, lowered, runs=1)
    assert check.status == "failed"
    assert "shape" in check.reason


def test_open_sizes_beside_fixed_ones_are_named_where_neither_model_runs() -> None:
    """Two inputs give one axis names of their own, as Keras does; integers are drawn."""
    original = parse(
        """g (float[a, 1, 3] X, int64[b] ids) => (float[c, 1, 1, 2] Y) <float[1, 6, 3] W = {},
        float[1, 6, 2] R = {}, float[4, 3] table = {}, int64[1] one = {1}, int64[3] ends = {0, 1, 3}> {
        rows = Gather (table, ids) Z = Unsqueeze (rows, one) both = Concat <axis = 2> (X, Z)
        S = Gather <axis = 2> (both, ends) Y = GRU <hidden_size = 2> (S, W, R) }"""
    )
    with pytest.raises(rl.UnsupportedError, match="neither does the original") as caught:
        rl.verify(original, rl.lower(original, "unroll", dims={"a": 18}))
    assert 'dims={"b": ?}' in caught.value.hint
    assert rl.verify(original, rl.lower(original, "unroll", dims={"a": 18, "b": 18}))
