"""Where weights come from: chains that are folded, values that a user may set, what stays and what goes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import evaluate
from running import assert_close, nodes, run
from scope_models import OVERRIDABLE, SHARED
from texts import FORMS, assert_same, initializers, lowered, parse, random_feed

import rnn_lowering as rl
from rnn_lowering.spec import constant_values

LSTM = """
main (float[5,2,3] X) => (float[5,1,2,4] Y) <{tensors}> {{
    {chain}
    Y = LSTM <hidden_size=4> (X, W, R)
}}
"""
R = "float[1,16,4] R = {}"

Chains = Mapping[str, tuple[str, str]]
CHAINS: Chains = {
    "identity": ("float[1,16,3] w = {}", "W = Identity(w)"),
    "identities": ("float[1,16,3] w = {}", "a = Identity(w) b = Identity(a) W = Identity(b)"),
    "constant": ("", "W = Constant <value = float[1,16,3] {}> ()"),
    "cast": ("float16[1,16,3] w = {}", "W = Cast <to=1> (w)"),
    "cast_of_double": ("double[1,16,3] w = {}", "W = Cast <to=1> (w)"),
    "transpose": ("float[1,3,16] w = {}", "W = Transpose <perm=[0,2,1]> (w)"),
    "transpose_without_perm": ("float[3,16,1] w = {}", "W = Transpose(w)"),
    "unsqueeze": ("float[16,3] w = {}, int64[1] zero = {0}", "W = Unsqueeze(w, zero)"),
    "squeeze": ("float[1,1,16,3] w = {}, int64[1] zero = {0}", "W = Squeeze(w, zero)"),
    "reshape": ("float[48] w = {}, int64[3] shape = {1,-1,3}", "W = Reshape(w, shape)"),
    "slice": (
        "float[2,16,5] w = {}, int64[2] from = {1,1}, int64[2] to = {2,4}, int64[2] axes = {0,2}",
        "W = Slice(w, from, to, axes)",
    ),
    "concat": (
        "float[1,4,3] wi = {}, float[1,4,3] wo = {}, float[1,4,3] wf = {}, float[1,4,3] wc = {}",
        "W = Concat <axis=1> (wi, wo, wf, wc)",
    ),
    "concat_of_constants": (
        "float[1,12,3] w = {}",
        "last = Constant <value = float[1,4,3] {}> () W = Concat <axis=1> (w, last)",
    ),
    "split": ("float[1,32,3] w = {}, int64[2] sizes = {16,16}", "V, W = Split <axis=1> (w, sizes)"),
    "gather": ("float[3,16,3] w = {}, int64[1] second = {1}", "W = Gather(w, second)"),
    "expand": ("float[1,1,3] w = {}, int64[3] shape = {1,16,3}", "W = Expand(w, shape)"),
    "exported_gates": (
        "float[16,3] w = {}, int64[1] zero = {0}, int64[1] four = {4}, int64[1] end = {16}",
        """i = Slice(w, zero, four, zero) fc = Slice(w, four, end, zero) ordered = Concat <axis=0> (i, fc)
        t = Transpose(ordered) tt = Transpose <perm=[1,0]> (t) W = Unsqueeze(tt, zero)""",
    ),
}


OLD_CHAINS = {
    "unsqueeze": ("float[16,3] w = {}", "W = Unsqueeze <axes=[0]> (w)"),
    "squeeze": ("float[1,1,16,3] w = {}", "W = Squeeze <axes=[1]> (w)"),
    "slice": ("float[2,16,5] w = {}", "W = Slice <axes=[0,2], starts=[1,1], ends=[2,4]> (w)"),
    "split": ("float[1,32,3] w = {}", "V, W = Split <axis=1, split=[16,16]> (w)"),
    "even_split": ("float[1,32,3] w = {}", "V, W = Split <axis=1> (w)"),
    "filled": ("int64[3] shape = {1,16,3}", "W = ConstantOfShape <value = float[1] {0.1}> (shape)"),
}
NEW_CHAINS = {
    "split_by_count": ("float[1,32,3] w = {}", "V, W = Split <axis=1, num_outputs=2> (w)"),
}


def chain_model(name: str, chains: Chains = CHAINS, opset: int = 17) -> onnx.ModelProto:
    tensors, chain = chains[name]
    return parse(LSTM.format(tensors=", ".join(filter(None, (tensors, R))), chain=chain), opset, ir_version=10)


def emitted_tensors(new: onnx.ModelProto) -> list[str]:
    """The names of main-graph initializers that no node of any scope uses."""
    used = {name for node in nodes(new) for name in node.input}
    return sorted(initializers(new) - used)


def chains() -> Iterator[Any]:
    yield from (pytest.param(chain_model(name), id=name) for name in CHAINS)
    yield from (pytest.param(chain_model(name, OLD_CHAINS, 9), id=f"{name}-9") for name in OLD_CHAINS)
    yield from (pytest.param(chain_model(name, NEW_CHAINS, 21), id=f"{name}-21") for name in NEW_CHAINS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("original", list(chains()))
def test_a_chain_is_folded(original: onnx.ModelProto, form: str) -> None:
    new = assert_same(original, random_feed(original), form)
    chain = {node.output[0] for node in original.graph.node} - {"Y"}
    assert not chain & {name for node in nodes(new) for name in (*node.input, *node.output)}
    assert not {"W", "R", "w"} & initializers(new)
    assert emitted_tensors(new) == []
    twin = lowered(constant_model(original.opset_import[0].version), form)
    assert sorted(n.op_type for n in nodes(new)) == sorted(n.op_type for n in nodes(twin))


LARGE = """
main (float[3,2,32] X) => (float[3,1,2,16] Y) <{tensors}, float[1,64,16] R = {{}}> {{
    {chain}
    Y = LSTM <hidden_size=16> (X, W, R)
}}
"""
LARGE_CHAINS = {
    "transpose": ("float[1,32,64] w = {}", "W = Transpose <perm=[0,2,1]> (w)"),
    "concat": ("float[1,16,32] i = {}, float[1,48,32] ofc = {}", "W = Concat <axis=1> (i, ofc)"),
    "several": (
        "float[32,16] a = {}, float[32,48] b = {}, int64[1] zero = {0}",
        "ab = Concat <axis=1> (a, b) t = Transpose(ab) i = Identity(t) W = Unsqueeze(i, zero)",
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LARGE_CHAINS)
def test_a_chain_that_is_computed_late_needs_nothing_of_the_graph(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large constant is computed when the result is written: its nodes have left the graph by then."""
    monkeypatch.setattr(constant_values, "KEPT_BYTES", 0)
    tensors, chain = LARGE_CHAINS[name]
    original = parse(LARGE.format(tensors=tensors, chain=chain))
    new = assert_same(original, random_feed(original), form)
    assert not {"w", "i", "ofc", "a", "b"} & initializers(new)


def large_chain(*nodes_of_W: onnx.NodeProto, **tensors: npt.NDArray[Any]) -> onnx.ModelProto:
    """A model whose W of 17 MiB these nodes compute."""
    R = np.random.default_rng(1).standard_normal((1, 256, 64)).astype(np.float32) / 8
    node = helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=64)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "XY"]
    infos[0] = helper.make_tensor_value_info("X", TensorProto.FLOAT, [2, 1, WIDE])
    initializers = [numpy_helper.from_array(a, name) for name, a in {**tensors, "R": R}.items()]
    graph = helper.make_graph([*nodes_of_W, node], "large", infos[:1], infos[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WIDE = 17 * 2**20 // (256 * 4)


def wide(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).random(shape, np.float32) * 0.02 - 0.01


VERY_LARGE = {
    "transpose": lambda: large_chain(
        helper.make_node("Transpose", ["w"], ["W"], perm=[0, 2, 1]), w=wide((1, WIDE, 256))
    ),
    "concat": lambda: large_chain(
        helper.make_node("Concat", ["i", "ofc"], ["W"], axis=1), i=wide((1, 64, WIDE)), ofc=wide((1, 192, WIDE))
    ),
    "dequantized": lambda: large_chain(
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("Transpose", ["w"], ["W"], perm=[0, 2, 1]),
        q=(wide((1, WIDE, 256)) * 12_000).astype(np.int8),
        scale=np.array(1e-4, np.float32),
    ),
}


@pytest.mark.parametrize("name", VERY_LARGE)
def test_a_chain_above_the_limit(name: str) -> None:
    """As the test before, with weights that really are so large."""
    original = VERY_LARGE[name]()
    assert WIDE * 256 * 4 > constant_values.KEPT_BYTES
    new = rl.lower(original, "unroll")
    feed = {"X": np.random.default_rng(2).standard_normal((2, 1, WIDE), np.float32)}
    assert_close(run(new, feed), run(original, feed))
    assert not {"w", "i", "ofc"} & initializers(new)


def constant_model(opset: int) -> onnx.ModelProto:
    """The model with an initializer in the place of a chain."""
    return parse(LSTM.format(tensors=f"float[1,16,3] W = {{}}, {R}", chain=""), opset, ir_version=10)


@pytest.mark.parametrize("name", [name for name in CHAINS if name != "split"])
def test_a_chain_that_others_use_stays(name: str) -> None:
    original = chain_model(name)
    original.graph.output.append(onnx.helper.make_tensor_value_info("W", 1, [1, 16, 3]))
    before = [n for n in original.graph.node if n.op_type != "LSTM"]
    new = assert_same(original, random_feed(original))
    assert [n.op_type for n in new.graph.node][: len(before)] == [n.op_type for n in before]
    assert initializers(original) - {"R"} <= initializers(new)


def test_a_part_of_a_chain_that_others_use_stays() -> None:
    chain = "a = Transpose <perm=[0,2,1]> (w) V, W = Split <axis=1> (a, sizes) used = Neg(V)"
    text = LSTM.format(tensors=f"float[1,3,32] w = {{}}, int64[2] sizes = {{16,16}}, {R}", chain=chain)
    original = parse(text.replace("Y)", "Y, float[1,16,3] used)", 1))
    new = assert_same(original, random_feed(original))
    assert [n.op_type for n in new.graph.node[:3]] == ["Transpose", "Split", "Neg"]
    assert {"w", "sizes"} <= initializers(new)


@pytest.mark.parametrize("form", FORMS)
def test_every_input_through_a_chain(form: str) -> None:
    original = parse("""
        main (float[5,2,3] X) => (float[5,2,2,4] Y, float[2,2,4] Y_h, float[2,2,4] Y_c)
        <float[2,4,3,4] w = {}, float[2,16,4] r = {}, float16[2,32] b = {}, float[12] p = {}, float[4] h = {},
         int64[3] w_shape = {2,16,3}, int64[2] p_shape = {2,12}, int64[3] h_shape = {2,2,4}, int64[2] l = {5,3}> {
            t = Transpose <perm=[0,1,3,2]> (w)
            W = Reshape(t, w_shape)
            R = Identity(r)
            B = Cast <to=1> (b)
            P = Expand(p, p_shape)
            H = Expand(h, h_shape)
            L = Cast <to=6> (l)
            Y, Y_h, Y_c = LSTM <hidden_size=4, direction="bidirectional"> (X, W, R, B, L, H, H, P)
        }
    """)
    new = assert_same(original, random_feed(original), form)
    assert not {"Reshape", "Expand", "Cast"} & {n.op_type for n in nodes(new)}
    assert not initializers(original) & initializers(new)


def test_a_chain_from_an_outer_scope_is_folded() -> None:
    original = parse("""
        main (float[5,2,3] X, bool go) => (float[1,2,4] h) <float[1,3,16] w = {}, float[1,16,4] R = {}> {
            W = Transpose <perm=[0,2,1]> (w)
            h = If (go) <
                then_branch = yes () => (float[1,2,4] yes_h) {
                    V = Identity(W)
                    , yes_h = LSTM <hidden_size=4> (X, V, R)
                },
                else_branch = no () => (float[1,2,4] no_h) {
                    , no_h = LSTM <hidden_size=4, direction="reverse"> (X, W, R)
                }
            >
        }
    """)
    for go in (True, False):
        new = assert_same(original, {**random_feed(original), "go": np.array(go)})
    assert [n.op_type for n in new.graph.node] == ["If"]
    assert initializers(new) == set()


def test_what_a_chain_computes_at_run_time_stays() -> None:
    original = parse(LSTM.format(tensors=R, chain="t = Identity(v) W = Transpose <perm=[0,2,1]> (t)"))
    original.graph.input.append(onnx.helper.make_tensor_value_info("v", 1, [1, 3, 16]))
    for form in FORMS:
        for seed in (0, 1):
            assert_same(original, random_feed(original, seed), form)


def test_a_random_weight_is_not_a_constant() -> None:
    """Two uses of one random tensor see the same numbers, also after the lowering."""
    chain = "W = RandomUniform <shape=[1,16,3], low=-0.5, high=0.5> () "
    original = parse(LSTM.format(tensors=R, chain=chain).replace("Y)", "Y, float[1,16,3] W)", 1))
    new = lowered(original)
    feed = random_feed(new)
    results = run(new, feed)
    weights = {"W": results["W"], "R": numpy_helper.to_array(original.graph.initializer[0])}
    expected = evaluate("LSTM", {}, {**feed, **weights})["Y"]
    np.testing.assert_allclose(results["Y"], expected, 1e-4, 1e-5)


# Initializers that a user may set


def list_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all its initializers as graph inputs."""
    for tensor in model.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        model.graph.input.append(info)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("opset", "ir_version"), [(8, 4), (13, 7), (17, 8)])
def test_other_weights_can_be_fed(opset: int, ir_version: int, form: str) -> None:
    if form == "scan" and opset < 9:
        form = "auto"
    original = list_as_inputs(parse(OVERRIDABLE, opset, ir_version))
    feed = random_feed(original)
    new = assert_same(original, feed, form)
    fed = {**feed, **{t.name: -numpy_helper.to_array(t) / 2 for t in original.graph.initializer}}
    assert_close(run(new, fed), run(original, fed))
    assert not np.allclose(run(new, fed)["Y"], run(new, feed)["Y"], atol=1e-3)
    assert initializers(new) >= {"w", "R", "B"}
    assert [v.name for v in new.graph.input] == [v.name for v in original.graph.input]


@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_other_weights_can_be_fed_to_ir_3(form: str) -> None:
    original = list_as_inputs(parse(OVERRIDABLE, 8, 3))
    weights = {t.name: -numpy_helper.to_array(t) / 2 for t in original.graph.initializer}
    new = assert_same(original, random_feed(original), form)
    for model in (original, new):  # onnxruntime treats the initializers of IR version 3 as constants
        del model.graph.initializer[:]
    fed = {**random_feed(original), **weights}
    assert_close(run(new, fed), run(original, fed))


@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_ir_3_has_every_initializer_among_its_inputs(form: str) -> None:
    new = lowered(list_as_inputs(parse(OVERRIDABLE, 8, 3)), form)
    assert initializers(new) <= {value.name for value in new.graph.input}
    assert new.ir_version == 3


def test_weights_of_which_one_can_be_fed() -> None:
    original = parse(OVERRIDABLE)
    original.graph.input.append(onnx.helper.make_tensor_value_info("R", 1, [1, 12, 4]))
    feed = random_feed(original)
    new = assert_same(original, feed)
    fed = {**feed, "R": np.full((1, 12, 4), 0.3, np.float32)}
    assert_close(run(new, fed), run(original, fed))
    assert "R" in initializers(new)
    assert not {"w", "B"} & initializers(new)


# What is stored


def sizes_of_tensors(model: onnx.ModelProto) -> list[list[int]]:
    """The shapes of the large initializers of the main graph."""
    return sorted(list(t.dims) for t in model.graph.initializer if np.prod(t.dims) > 1000)


def test_a_shared_weight_is_stored_once() -> None:
    original = parse(SHARED)
    feed = random_feed(original)
    assert sizes_of_tensors(assert_same(original, feed, "unroll")) == [[30, 160], [40, 160]]
    for form in ("scan", "loop"):
        assert sizes_of_tensors(assert_same(original, feed, form)) == [[30, 160]]


def test_a_shared_chain_is_stored_once() -> None:
    text = SHARED.replace("float[1,160,30] W", "float[160,30] w")
    text = text.replace("{\n    n =", "{\n    W = Unsqueeze(w, zero)\n    n =")
    original = parse(text.replace("R = {}>", "R = {}, int64[1] zero = {0}>"))
    assert sizes_of_tensors(assert_same(original, random_feed(original), "unroll")) == [[30, 160], [40, 160]]


def test_a_weight_of_both_directions_is_stored_once_each() -> None:
    text = SHARED.replace("[1,160", "[2,160").replace("[4,1,2,40]", "[4,2,2,40]")
    original = parse(text.replace("hidden_size=40", 'hidden_size=40, direction="bidirectional"'))
    new = assert_same(original, random_feed(original), "unroll")
    assert sizes_of_tensors(new) == [[30, 160], [30, 160], [40, 160], [40, 160]]


def test_steps_share_their_weights() -> None:
    original = parse(SHARED.replace("[4,", "[50,"))
    assert sizes_of_tensors(lowered(original, "unroll")) == [[30, 160], [40, 160]]


def test_initializers_that_nothing_used_stay() -> None:
    text = LSTM.format(tensors=f"float[1,16,3] W = {{}}, {R}, float[2] spare = {{}}", chain="idle = Identity(X)")
    new = lowered(parse(text))
    assert "spare" in initializers(new)
    assert not {"W", "R"} & initializers(new)
    assert new.graph.node[0].output[0] == "idle"


USERS = {
    "a node": "used = Neg(W)",
    "a node before": "used = Identity(W)",
    "a body": """used = If (go) <
        then_branch = yes () => (float[1,16,3] inner) { inner = Neg(W) },
        else_branch = no () => (float[1,16,3] other) { other = Abs(W) } >""",
}


@pytest.mark.parametrize("user", USERS)
def test_an_initializer_that_others_use_stays(user: str) -> None:
    tensors = f"float[1,16,3] W = {{}}, {R}, bool go = {{1}}"
    original = parse(LSTM.format(tensors=tensors, chain=USERS[user]).replace("Y)", "Y, float[1,16,3] used)", 1))
    new = assert_same(original, random_feed(original))
    assert "W" in initializers(new)
    assert "R" not in initializers(new)


def test_an_initializer_that_is_an_output_stays() -> None:
    original = parse(LSTM.format(tensors=f"float[1,16,3] W = {{}}, {R}", chain=""))
    original.graph.output.append(onnx.helper.make_tensor_value_info("W", 1, [1, 16, 3]))
    assert "W" in initializers(assert_same(original, random_feed(original)))


@pytest.mark.parametrize("only", [["GRU"], ["second"]])
def test_weights_of_a_node_that_is_left_stay(only: Sequence[str]) -> None:
    original = parse("""
        main (float[5,2,3] X) => (float[5,1,2,4] A, float[5,1,2,4] B)
        <float[1,12,3] W = {}, float[1,12,4] R = {}, float[1,4,3] V = {}, float[1,4,4] S = {}> {
            [first] A = RNN <hidden_size=4> (X, V, S)
            [second] B = GRU <hidden_size=4> (X, W, R)
        }
    """)
    new = rl.lower(original, only=only)
    onnx.checker.check_model(new, full_check=True)
    assert {"V", "S"} <= initializers(new)
    assert not {"W", "R"} & initializers(new)
    feed = random_feed(original)
    assert_close(run(new, feed), run(original, feed))


def test_one_tensor_in_several_roles() -> None:
    original = parse("""
        main (float[3,4,4] X) => (float[3,1,4,4] Y, float[1,4,4] Y_h) <float[1,4,4] M = {}> {
            Y, Y_h = RNN <hidden_size=4> (X, M, M, "", "", M)
        }
    """)
    for form in FORMS:
        assert_same(original, random_feed(original), form)


def zeros(dtype: Any, *shape: int) -> npt.NDArray[Any]:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("form", FORMS)
def test_weights_of_zeros_and_of_not_a_number(form: str) -> None:
    original = parse(LSTM.format(tensors=f"float[1,16,3] W = {{}}, {R}", chain=""))
    original.graph.initializer[0].CopyFrom(numpy_helper.from_array(zeros(np.float32, 1, 16, 3), "W"))
    assert_same(original, random_feed(original), form)
    weights = zeros(np.float32, 1, 16, 3)
    weights[0, 0, 0] = np.nan
    original.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "W"))
    assert_same(original, random_feed(original), form)


@pytest.mark.parametrize(
    "nodes",
    [
        """a = LSTM <hidden_size=4> (X, W, R) b = Squeeze <axes=[1]> (a) c = GRU <hidden_size=2> (b, W2, R2)
        d = Squeeze <axes=[1]> (c) Y = LSTM <hidden_size=4> (d, W3, R)""",
        """a, h = LSTM <hidden_size=4> (X, W, R) c = RNN <hidden_size=4> (X, W4, R4, "", "", h)
        d = Squeeze <axes=[1]> (c) e = Slice <axes=[2], starts=[0], ends=[2]> (d)
        f, g = LSTM <hidden_size=4> (e, W3, R) Y = Unsqueeze <axes=[0]> (g)""",
    ],
)
def test_zeros_of_a_node_that_a_later_one_does_not_read(nodes: str) -> None:
    """The first node of no steps gives zeros; the second reads their shape only, and the third gives such zeros."""
    tensors = {"W": (16, 3), "R": (16, 4), "W2": (6, 4), "R2": (6, 2), "W3": (16, 2), "W4": (4, 3), "R4": (4, 4)}
    declared = ", ".join(f"float[1,{rows},{columns}] {name} = {{}}" for name, (rows, columns) in tensors.items())
    original = parse(f"g (float[0,2,3] X) => (float[p,q,r,s] Y) <{declared}> {{ {nodes} }}", 9)
    for form in FORMS:
        new = rl.lower(original, form)
        onnx.checker.check_model(new)
        (Y,) = run(new, {"X": zeros(np.float32, 0, 2, 3)}).values()
        assert not Y.any()
