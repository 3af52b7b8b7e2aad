"""Where weights come from: chains that are folded, values that a user may set, what stays and what goes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import value
from onnx import numpy_helper
from oracle import evaluate
from running import assert_close, nodes, run
from scope_models import OVERRIDABLE, SHARED
from texts import FORMS, assert_same, initializers, lowered, parse, random_feed
from thinning import by_turns

import rnn_lowering as rl
from rnn_lowering.facts import constants

LSTM = """
main (float[5,2,3] X) => (float[5,1,2,4] Y{outputs}) <{tensors}> {{
    {chain}
    Y = LSTM <hidden_size=4> (X, W, R)
}}
"""


def model(tensors: str, chain: str, opset: int = 17, outputs: str = "") -> onnx.ModelProto:
    """An LSTM whose W a chain of nodes gives."""
    tensors = ", ".join(filter(None, (tensors, "float[1,16,4] R = {}")))
    return parse(LSTM.format(tensors=tensors, chain=chain, outputs=outputs), opset, ir_version=10)


CHAINS = {
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
    "slice_from_before_the_first": (
        "float[2,16,3] w = {}, int64[2] from = {-3,-1}, int64[2] to = {-9,-99}, int64[2] axes = {0,1}, "
        "int64[2] steps = {-1,-1}",
        "W = Slice(w, from, to, axes, steps)",
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
OTHER_OPSETS = {
    "unsqueeze-9": ("float[16,3] w = {}", "W = Unsqueeze <axes=[0]> (w)", 9),
    "squeeze-9": ("float[1,1,16,3] w = {}", "W = Squeeze <axes=[1]> (w)", 9),
    "slice-9": ("float[2,16,5] w = {}", "W = Slice <axes=[0,2], starts=[1,1], ends=[2,4]> (w)", 9),
    "split-9": ("float[1,32,3] w = {}", "V, W = Split <axis=1, split=[16,16]> (w)", 9),
    "even_split-9": ("float[1,32,3] w = {}", "V, W = Split <axis=1> (w)", 9),
    "filled-9": ("int64[3] shape = {1,16,3}", "W = ConstantOfShape <value = float[1] {0.1}> (shape)", 9),
    "split_by_count-21": ("float[1,32,3] w = {}", "V, W = Split <axis=1, num_outputs=2> (w)", 21),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*CHAINS, *OTHER_OPSETS])
def test_a_chain_is_folded(name: str, form: str) -> None:
    original = model(*(CHAINS | OTHER_OPSETS)[name])
    new = assert_same(original, random_feed(original), form)
    chain = {node.output[0] for node in original.graph.node} - {"Y"}
    assert not chain & {name for node in nodes(new) for name in (*node.input, *node.output)}
    assert not {"W", "R", "w"} & initializers(new)
    assert initializers(new) <= {name for node in nodes(new) for name in node.input}
    twin = lowered(model("float[1,16,3] W = {}", "", original.opset_import[0].version), form)
    assert sorted(n.op_type for n in nodes(new)) == sorted(n.op_type for n in nodes(twin))


WIDE = 17 * 2**20 // (256 * 4)
VERY_LARGE = {
    "transpose": ("float[1,{WIDE},256] w = {}", "W = Transpose <perm=[0,2,1]> (w)"),
    "concat": ("float[1,64,{WIDE}] i = {}, float[1,192,{WIDE}] ofc = {}", "W = Concat <axis=1> (i, ofc)"),
    "several": (
        "float[{WIDE},64] a = {}, float[{WIDE},192] b = {}, int64[1] zero = {0}",
        "ab = Concat <axis=1> (a, b) t = Transpose(ab) i = Identity(t) W = Unsqueeze(i, zero)",
    ),
    "dequantized": (
        "int8[1,{WIDE},256] q = {}, float scale = {0.0001}",
        "w = DequantizeLinear (q, scale) W = Transpose <perm=[0,2,1]> (w)",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "form"), by_turns(list(VERY_LARGE), FORMS))
def test_a_chain_that_is_computed_late_needs_nothing_of_the_graph(name: str, form: Any) -> None:
    """A constant of 17 MiB is computed when the result is written: its nodes have left the graph by then."""
    assert WIDE * 256 * 4 > constants.KEPT_BYTES
    tensors, chain = (text.replace("{WIDE}", str(WIDE)) for text in VERY_LARGE[name])
    original = parse(f"""main (float[2,1,{WIDE}] X) => (float[2,1,1,64] Y) <{tensors}, float[1,256,64] R = {{}}> {{
        {chain} Y = LSTM <hidden_size=64> (X, W, R) }}""")
    if name == "dequantized":
        q = np.random.default_rng(0).integers(-120, 120, (1, WIDE, 256), np.int8)
        original.graph.initializer[0].CopyFrom(numpy_helper.from_array(q, "q"))
    new = rl.lower(original, form)
    feed = {"X": random_feed(original)["X"] / 8}
    assert_close(run(new, feed), run(original, feed))
    assert not {"w", "i", "ofc", "a", "b"} & initializers(new)


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


# What stays


def used() -> Iterator[Any]:
    """Models in which W, or a part of its chain, is used elsewhere; the initializers and first nodes that stay."""
    plain, more = "float[1,16,3] W = {}, float[2] spare = {}, bool go = {1}", ", float[1,16,3] used"
    for name, (tensors, chain) in CHAINS.items():
        if name != "split":
            original = model(tensors, chain, outputs=", float[1,16,3] W")
            yield pytest.param(original, initializers(original) - {"R"}, len(original.graph.node) - 1, id=name)
    for chain in ("used = Neg(W)", "used = Identity(W)"):
        yield pytest.param(model(plain, chain, outputs=more), {"W", "spare"}, 1, id=chain)
    body = """used = If (go) <
        then_branch = yes () => (float[1,16,3] inner) { inner = Neg(W) },
        else_branch = no () => (float[1,16,3] other) { other = Abs(W) } >"""
    yield pytest.param(model(plain, body, outputs=more), {"W", "go", "spare"}, 1, id="a body")
    yield pytest.param(model(plain, "", outputs=", float[1,16,3] W"), {"W", "spare"}, 0, id="an output")
    yield pytest.param(model(plain, "idle = Identity(X)"), {"spare"}, 1, id="nothing")
    part = "a = Transpose <perm=[0,2,1]> (w) V, W = Split <axis=1> (a, sizes) used = Neg(V)"
    tensors = "float[1,3,32] w = {}, int64[2] sizes = {16,16}"
    yield pytest.param(model(tensors, part, outputs=more), {"w", "sizes"}, 3, id="a part")


@pytest.mark.few(6)
@pytest.mark.parametrize(("original", "kept", "first"), list(used()))
def test_what_others_use_stays(original: onnx.ModelProto, kept: set[str], first: int) -> None:
    new = assert_same(original, random_feed(original))
    assert kept <= initializers(new)
    assert "R" not in initializers(new)
    assert ("W" in initializers(new)) == ("W" in kept)
    assert [n.op_type for n in new.graph.node[:first]] == [n.op_type for n in original.graph.node[:first]]


@pytest.mark.parametrize("chain", ["t = Identity(v) W = Transpose <perm=[0,2,1]> (t)", "W = Reshape(s, shape)"])
def test_what_is_computed_at_run_time_stays(chain: str) -> None:
    """From an input, or by an operator that is not folded."""
    text = f"s = Tanh(v) {chain}" if "(s" in chain else chain
    tensors = "float[1,3,16] v = {}, int64[3] shape = {1,16,3}" if "(s" in chain else ""
    original = model(tensors, text)
    if not tensors:
        original.graph.input.append(value("v", [1, 3, 16]))
    for form in FORMS:
        for seed in (0, 1):
            new = assert_same(original, random_feed(original, seed), form)
            assert new.graph.node[0].op_type == original.graph.node[0].op_type


def test_a_random_weight_is_not_a_constant() -> None:
    """Two uses of one random tensor see the same numbers, also after the lowering."""
    chain = "W = RandomUniform <shape=[1,16,3], low=-0.5, high=0.5> () "
    original = model("", chain, outputs=", float[1,16,3] W")
    new = lowered(original)
    feed = random_feed(new)
    results = run(new, feed)
    weights = {"W": results["W"], "R": numpy_helper.to_array(original.graph.initializer[0])}
    np.testing.assert_allclose(results["Y"], evaluate("LSTM", {}, {**feed, **weights})["Y"], 1e-4, 1e-5)


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


# Initializers that a user may set


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("opset", "ir_version", "listed"),
    [(8, 3, "wRB"), (8, 4, "wRB"), (13, 7, "wRB"), (17, 8, "wRB"), (17, 8, "R")],
)
def test_other_weights_can_be_fed(opset: int, ir_version: int, listed: str, form: str) -> None:
    form = "auto" if form == "scan" and opset < 9 else form
    original = parse(OVERRIDABLE, opset, ir_version)
    weights = [tensor for tensor in original.graph.initializer if tensor.name in listed]
    original.graph.input.extend(value(tensor.name, tensor.dims) for tensor in weights)
    feed = random_feed(original)
    new = assert_same(original, feed, form)
    assert set(listed) <= initializers(new)
    assert len(listed) == 3 or not {"w", "B"} & initializers(new)
    assert [v.name for v in new.graph.input][: len(listed) + 1] == [v.name for v in original.graph.input]
    before = run(new, feed)["Y"]
    if ir_version == 3:
        assert initializers(new) <= {v.name for v in new.graph.input}
        assert new.ir_version == 3
        for each in (original, new):  # onnxruntime treats the initializers of IR version 3 as constants
            del each.graph.initializer[:]
    fed = {**feed, **{t.name: -numpy_helper.to_array(t) / 2 for t in weights}}
    assert_close(run(new, fed), run(original, fed))
    assert not np.allclose(run(new, fed)["Y"], before, atol=1e-3)


# What is stored

OF_BOTH = SHARED.replace("[1,160", "[2,160").replace("[4,1,2,40]", "[4,2,2,40]")
SMALL, LARGE = [[30, 160]], [[30, 160], [40, 160]]
"""In a loop R is in the body."""
STORED: dict[str, tuple[str, dict[str, list[list[int]]]]] = {
    "two nodes": (SHARED, {"unroll": LARGE, "scan": SMALL, "loop": SMALL}),
    "a chain": (
        SHARED.replace("float[1,160,30] W", "float[160,30] w")
        .replace("{\n    n =", "{\n    W = Unsqueeze(w, zero)\n    n =")
        .replace("R = {}>", "R = {}, int64[1] zero = {0}>"),
        {"unroll": LARGE},
    ),
    "both directions": (
        OF_BOTH.replace("hidden_size=40", 'hidden_size=40, direction="bidirectional"'),
        {"unroll": sorted(LARGE * 2)},
    ),
    "many steps": (SHARED.replace("[4,", "[50,"), {"unroll": LARGE}),
}


@pytest.mark.parametrize("name", STORED)
def test_a_weight_is_stored_once(name: str) -> None:
    text, expected = STORED[name]
    original = parse(text)
    for form, shapes in expected.items():
        new = assert_same(original, random_feed(original), form)
        assert sorted(list(t.dims) for t in new.graph.initializer if np.prod(t.dims) > 1000) == shapes


def test_one_tensor_in_several_roles() -> None:
    original = parse("""
        main (float[3,4,4] X) => (float[3,1,4,4] Y, float[1,4,4] Y_h) <float[1,4,4] M = {}> {
            Y, Y_h = RNN <hidden_size=4> (X, M, M, "", "", M)
        }
    """)
    for form in FORMS:
        assert_same(original, random_feed(original), form)


@pytest.mark.parametrize("form", FORMS)
def test_weights_of_zeros_and_of_not_a_number(form: str) -> None:
    original = model("float[1,16,3] W = {}", "")
    for number in (0, np.nan):
        weights = np.zeros((1, 16, 3), np.float32)
        weights[0, 0, 0] = number
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
    form: Any
    for form in FORMS:
        new = rl.lower(original, form)
        onnx.checker.check_model(new)
        (Y,) = run(new, {"X": np.zeros((0, 2, 3), np.float32)}).values()
        assert not Y.any()
