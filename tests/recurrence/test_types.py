"""Element types: each stays, `compute="float32"` casts at a node's edges, float64 has all activations."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal

import cases
import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from cases import ALL_OPTIONAL, Arrays, Case
from cases import expected as expected_of
from cases import feed as feed_of
from cases import model as model_of
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from oracle import ACTIVATIONS, GATES, evaluate
from running import NEWEST_OPSET, assert_close, nodes, run
from texts import FORMS, graphs, lowered, parse, random_feed
from thinning import thinned

import rnn_lowering as rl

HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
COMPUTE = ("native", "float32")
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}

BOTH_WAYS = """
main (T[6,2,3] X, T[2,2,4] h0) => (T[6,2,2,4] Y, T[2,2,4] Y_h)
<T[2,G,3] W = {}, T[2,G,4] R = {}, T[2,GG] B = {}> {
    Y, Y_h = OP <hidden_size=4, direction="bidirectional"> (X, W, R, B, "", h0)
}
"""


def both_ways(op_type: str, dtype: str, opset: int = 22) -> onnx.ModelProto:
    rows = 4 * GATES[op_type]
    text = BOTH_WAYS.replace("OP ", f"{op_type} ").replace("GG]", f"{2 * rows}]").replace("G,", f"{rows},")
    return parse(text.replace("T[", f"{dtype}["), opset, ir_version=10)


def types_of(model: onnx.ModelProto) -> set[int]:
    """The floating-point types of every tensor and value of a model, as inference sees them."""
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    found = set()
    for graph in graphs(inferred):
        values = (*graph.input, *graph.output, *graph.value_info)
        found |= {value.type.tensor_type.elem_type for value in values}
        found |= {tensor.data_type for tensor in graph.initializer}
    for node in nodes(inferred):
        found |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
    return found & FLOATS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize(("dtype", "element"), HALVES.items())
def test_a_half_stays_a_half(dtype: str, element: int, op_type: str, form: str) -> None:
    new = lowered(both_ways(op_type, dtype), form)
    assert types_of(new) == {element}
    assert "Cast" not in {node.op_type for node in nodes(new)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize(("dtype", "element"), HALVES.items())
def test_computing_in_float32_casts_at_the_edges(dtype: str, element: int, op_type: str, form: str) -> None:
    original = both_ways(op_type, dtype)
    new = lowered(original, form, compute="float32")
    assert types_of(new) == {element, TensorProto.FLOAT}
    casts = [node for node in nodes(new) if node.op_type == "Cast"]
    assert sorted(node.input[0] for node in casts if node.input[0] in ("X", "h0")) == ["X", "h0"]
    assert sorted(o for node in casts for o in node.output if o in ("Y", "Y_h")) == ["Y", "Y_h"]
    assert len(casts) == 4
    assert [v.type for v in new.graph.output] == [v.type for v in original.graph.output]


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_computing_in_float32_leaves_wider_types_alone(dtype: str) -> None:
    original = both_ways("GRU", dtype)
    assert lowered(original, compute="float32") == lowered(original)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op_type", GATES)
def test_float16_in_float32_is_as_onnxruntime_computes_it(op_type: str, form: str) -> None:
    original = both_ways(op_type, "float16", NEWEST_OPSET)
    new = lowered(original, form, compute="float32")
    for seed in range(3):
        feed = random_feed(original, seed)
        for name, native in run(original, feed).items():
            np.testing.assert_array_max_ulp(run(new, feed)[name], native, maxulp=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op_type", GATES)
def test_float16_in_float16_is_close(op_type: str, form: str) -> None:
    original = both_ways(op_type, "float16", 14)
    feed = random_feed(original)
    assert_close(run(lowered(original, form), feed), run(original, feed))


def test_float16_and_float32_nodes_in_one_model() -> None:
    original = parse("""
        main (float16[5,2,3] X) => (float16[5,1,2,4] Y, float[5,1,2,4] Z)
        <float16[1,16,3] W = {}, float16[1,16,4] R = {}, float[1,16,3] V = {}, float[1,16,4] S = {}> {
            Y = LSTM <hidden_size=4> (X, W, R)
            x = Cast <to=1> (X)
            Z = LSTM <hidden_size=4> (x, V, S)
        }
    """)
    feed = random_feed(original)
    for form in FORMS:
        for compute in ("native", "float32"):
            assert_close(run(lowered(original, form, compute=compute), feed), run(original, feed))


# bfloat16, which onnxruntime runs in float32 between Casts


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_bfloat16_at_an_opset_whose_operators_do_not_take_it(activation: str) -> None:
    """onnx2torch reads opsets up to 17; Softsign and others take bfloat16 from opset 22 on."""
    parameters = zip(("activation_alpha", "activation_beta"), ACTIVATIONS[activation][1:], strict=True)
    given = {name: [0.5] for name, default in parameters if default is not None}
    case = Case(activation, "RNN", {"activations": [activation], **given}, dtype="bfloat16")
    result = rl.lower(model_of(case, 22), target="onnx2torch")
    assert result.opset_import[0].version <= 17
    onnx.checker.check_model(result, full_check=True)
    results = dict(zip(case.results, ReferenceEvaluator(result).run(None, feed_of(case)), strict=True))
    assert_close(results, expected_of(case), case.dtype)


WEIGHTS: tuple[Literal["initializer", "input", "node"], ...] = ("initializer", "input", "node")


def bfloat16_cases() -> Iterator[Case]:
    for op, weights in product(GATES, WEIGHTS):
        yield Case(f"{op}_{weights}", op, {}, optional=ALL_OPTIONAL, weights=weights, dtype="bfloat16")
        both = {"direction": "bidirectional", "layout": 1}
        yield Case(f"{op}_{weights}_both_ways", op, both, weights=weights, dtype="bfloat16")


def between_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 for the bfloat16 of its inputs and outputs."""
    for values, ends in ((model.graph.input, "input"), (model.graph.output, "output")):
        for value in values:
            if value.type.tensor_type.elem_type != TensorProto.BFLOAT16:
                continue
            name, outside = value.name, f"{value.name}_float32"
            value.name, value.type.tensor_type.elem_type = outside, TensorProto.FLOAT
            if ends == "input":
                cast = helper.make_node("Cast", [outside], [name], to=TensorProto.BFLOAT16)
                model.graph.node.insert(0, cast)
            else:
                model.graph.node.append(helper.make_node("Cast", [name], [outside], to=TensorProto.FLOAT))
    return model


@pytest.mark.few(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", list(bfloat16_cases()), ids=lambda c: c.name)
def test_bfloat16_runs_in_onnxruntime(case: Case, form: str) -> None:
    new = lowered(between_casts(model_of(case, 22)), form, compute="float32")
    halves = {name: array for name, array in feed_of(case).items() if array.dtype == ml_dtypes.bfloat16}
    feed = {name: array for name, array in feed_of(case).items() if name not in halves}
    feed |= {f"{name}_float32": array.astype(np.float32) for name, array in halves.items()}
    results = {name.removesuffix("_float32"): array for name, array in run(new, feed).items()}
    assert_close(results, expected_of(case), "bfloat16", case.name)


# float64


def every_activation(opset: int) -> tuple[onnx.ModelProto, dict[str, tuple[dict[str, Any], Arrays]]]:
    """A float64 model with an RNN for every activation, without and with clip; and each node's meaning."""
    rng = np.random.default_rng(opset)
    meanings: dict[str, tuple[dict[str, Any], Arrays]] = {}
    graph = onnx.GraphProto(name="activations")
    graph.input.append(helper.make_tensor_value_info("X", TensorProto.DOUBLE, [4, 2, 3]))
    for (name, (_, alpha, beta)), clip in product(ACTIVATIONS.items(), (None, 0.3)):
        attributes: dict[str, Any] = {"activations": [name], **({} if clip is None else {"clip": clip})}
        for key, default in (("activation_alpha", alpha), ("activation_beta", beta)):
            attributes |= {} if default is None else {key: [0.625]}
        Y = f"Y_{name}_{clip}"
        weights = {symbol: rng.uniform(-0.5, 0.5, shape) for symbol, shape in SHAPES.items()}
        for symbol, array in weights.items():
            graph.initializer.append(numpy_helper.from_array(array, f"{Y}_{symbol}"))
        inputs = ["X", *(f"{Y}_{symbol}" for symbol in weights)]
        graph.node.append(helper.make_node("RNN", inputs, [Y], hidden_size=4, **attributes))
        graph.output.append(helper.make_tensor_value_info(Y, TensorProto.DOUBLE, [4, 1, 2, 4]))
        meanings[Y] = attributes, weights
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), meanings


SHAPES = {"W": (1, 4, 3), "R": (1, 4, 4), "B": (1, 8)}


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", thinned(range(7, NEWEST_OPSET + 1), 4))
def test_float64_has_every_activation(opset: int) -> None:
    model, meanings = every_activation(opset)
    X = np.random.default_rng(0).normal(0, 2, (4, 2, 3))
    expected = {Y: evaluate("RNN", given, {"X": X, **weights})["Y"] for Y, (given, weights) in meanings.items()}
    assert len(expected) == 22
    for form in ("scan" if opset >= 9 else "loop", "unroll"):
        results = run(lowered(model, form), {"X": X})
        assert {array.dtype.name for array in results.values()} == {"float64"}
        assert_close(results, expected, "float64", form)


# A float16 Transpose of [1, 0, 2] before a MatMul crashes onnxruntime's optimizer


def half(inputs: str, nodes: str, outputs: str = "Y", rows: int = 12, more: str = "") -> str:
    """Nodes over `X`, which is x [2, 5, 3] with the batch first; their weights W and R have so many rows."""
    turned = "X = Transpose <perm=[1,0,2]> (x)" if inputs.split()[1][0] == "x" else ""
    held = f"<float16[1,{rows},3] W = {{}}, float16[1,{rows},4] R = {{}}, int64[1] one = {{1}}{more}>"
    return f"main ({inputs}) => ({outputs}) {held} {{ {turned} {nodes} }}"


x = "float16[2,5,3] x"
Y = "float16[5,1,2,4] Y"
BACK = "y = Squeeze(Y, one) Z = Transpose <perm=[1,0,2]> (y)"
TRANSPOSED = {
    "a transpose before the node": half(x, "Y = LSTM <hidden_size=4> (X, W, R)", Y, 16),
    "a transpose and an identity": half(
        x, 'i = Identity (X) Y = GRU <hidden_size=4, direction="reverse"> (i, W, R)', Y
    ),
    "transposes on both sides": half(x, f"Y = GRU <hidden_size=4> (X, W, R) {BACK}", "float16[2,5,4] Z"),
    "two layers": half(
        "float16[batch,seq,3] x",
        f"""Y = RNN <hidden_size=4> (X, W, R) {BACK} z = Transpose <perm=[1,0,2]> (Z)
        V = RNN <hidden_size=4> (z, U, R)""",
        "float16[seq,1,batch,4] V",
        4,
        ", float16[1,4,4] U = {}",
    ),
    "weights at run time": f"""main ({x}, float16[16,1,3] w, float16[1,16,4] R) => ({Y}) {{
        X = Transpose <perm=[1,0,2]> (x)
        W = Transpose <perm=[1,0,2]> (w)
        Y = LSTM <hidden_size=4> (X, W, R) }}""",
    "batch first": half(
        "float16[2,5,3] X, float16[2,1,4] h0",
        'Y, Y_h = LSTM <hidden_size=4, layout=1> (X, W, R, "", "", h0)',
        "float16[2,5,1,4] Y, float16[2,1,4] Y_h",
        16,
    ),
    "a body": half(
        f"{x}, bool go",
        """Y = If (go) <
            then_branch = yes () => (float16[5,1,2,4] A) { A = LSTM <hidden_size=4> (X, W, R) },
            else_branch = no () => (float16[5,1,2,4] B) { B = LSTM <hidden_size=4, direction="reverse"> (X, W, R) }
        >""",
        Y,
        16,
    ),
}

CHILD = """
import sys
from pathlib import Path
import numpy as np
import onnx
from running import run
for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
    with np.load(path.with_suffix(".feed.npz")) as held:
        results = run(onnx.load(path), dict(held))
    np.savez(path.with_suffix(".results.npz"), **results)
"""


def run_in_a_child(models: Mapping[str, tuple[onnx.ModelProto, Arrays]], folder: Path) -> dict[str, Arrays]:
    """Run models, optimized, in a process that may crash; return the results by name."""
    for name, (model, feed) in models.items():
        onnx.save(model, folder / f"{name}.onnx")
        np.savez(folder / f"{name}.feed.npz", allow_pickle=False, **feed)
    subprocess.run([sys.executable, "-c", CHILD, str(folder)], cwd=Path(cases.__file__).parent, check=False)
    results = {}
    for name in models:
        if (path := folder / f"{name}.results.npz").exists():
            with np.load(path) as held:
                results[name] = dict(held)
    return results


def deadly(model: onnx.ModelProto) -> list[str]:
    """The MatMul nodes that use the result of a Transpose of [1, 0, 2]."""
    swapped = {
        node.output[0]
        for node in nodes(model)
        if node.op_type == "Transpose" and any(list(a.ints) == [1, 0, 2] for a in node.attribute)
    }
    return [node.name for node in nodes(model) if node.op_type == "MatMul" and swapped & set(node.input)]


def transposed(name: str, form: str, compute: str) -> tuple[onnx.ModelProto, onnx.ModelProto, Arrays]:
    """An original, its lowered form and inputs."""
    original = parse(TRANSPOSED[name])
    sizes: dict[str, Any] = {"dims": {"seq": 5}} if "seq" in TRANSPOSED[name] else {}
    feed = random_feed(original, batch=2, seq=5)
    if "bool go" in TRANSPOSED[name]:
        feed["go"] = np.array(True)
    return original, lowered(original, form, compute=compute, **sizes), feed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_no_matmul_of_a_transposed_float16(name: str, form: str) -> None:
    assert deadly(transposed(name, form, "native")[1]) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("form", FORMS)
def test_transposed_float16_in_optimized_sessions(form: str, tmp_path: Path) -> None:
    cases = {f"{name}, {how}": transposed(name, form, how) for name, how in product(TRANSPOSED, COMPUTE)}
    results = run_in_a_child({name: (new, feed) for name, (_, new, feed) in cases.items()}, tmp_path)
    assert sorted(cases.keys() - results.keys()) == [], "onnxruntime took its process down"
    for name, (original, _, feed) in cases.items():
        assert_close(results[name], reference(original, feed), "float16", name)


def reference(original: onnx.ModelProto, feed: Mapping[str, Any]) -> Mapping[str, npt.NDArray[Any]]:
    """What a float16 model computes, in onnxruntime or, where that does not support it, by the oracle."""
    (node,) = [n for n in original.graph.node if n.op_type == "LSTM"] or [None]
    if node is None or not any(a.name == "layout" and a.i for a in node.attribute):
        return run(original, feed, optimize=False)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in original.graph.initializer}
    inputs = {"X": feed["X"], "initial_h": feed["h0"], **weights}
    results = evaluate("LSTM", {"layout": 1}, inputs)
    return {name: results[name] for name in ("Y", "Y_h")}
