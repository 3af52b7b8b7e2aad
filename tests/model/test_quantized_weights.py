"""Weights that a model stores as integers behind DequantizeLinear stay integers, and the result stays the same."""

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import value
from onnx import numpy_helper
from paths import MODELS
from running import assert_close, nodes, operators, run
from texts import FORMS, assert_same, graphs, initializers, parse, random_feed

import rnn_lowering as rl
from rnn_lowering.emit.constants import Constant, Dequantized, dequantized_constant, literal
from rnn_lowering.facts import constants

MODEL = """
main (float[5,2,6] X) => (float[5,{D},2,4] Y, float[{D},2,4] Y_h) <{tensors}> {{
    {chain}
    Y, Y_h = GRU <hidden_size=4, linear_before_reset={lbr}, direction="{direction}"> (X, W, R)
}}
"""
R = "int8[{D},12,4] r = {48*D}, float rs = {0.01}, int8 rz = {-2}", "R = DequantizeLinear(r, rs, rz)"


def text_of(numbers: int) -> str:
    return "{" + ",".join(str((n * 37 + 11) % 101) for n in range(numbers)) + "}"


def model(tensors: str, chain: str, opset: int = 17, *, lbr: int = 1, both: bool = False) -> onnx.ModelProto:
    """A GRU with such a W and an R of int8; <number> in the tensors is that many integers."""
    D = 2 if both else 1
    r_tensors = R[0].replace("{D}", str(D)).replace("{48*D}", text_of(48 * D))
    tensors = re.sub("<([0-9]+)>", lambda count: text_of(int(count[1])), tensors)
    fields: Mapping[str, Any] = {"D": D, "lbr": lbr, "direction": "bidirectional" if both else "forward"}
    text = MODEL.format(tensors=f"{tensors}, {r_tensors}", chain=f"{R[1]} {chain}", **fields)
    return parse(text, opset, ir_version=10)


CASES = {
    "per tensor": ("int8[1,12,6] w = <72>, float s = {0.01}, int8 z = {3}", "W = DequantizeLinear(w, s, z)"),
    "no zero point": ("uint8[1,12,6] w = <72>, float s = {0.002}", "W = DequantizeLinear(w, s)"),
    "per row": (
        "int8[1,12,6] w = <72>, float[12] s = {}, int8[12] z = <12>",
        "W = DequantizeLinear <axis=1> (w, s, z)",
    ),
    "per last axis": (
        "uint8[12,6] w = <72>, float[6] s = {}, int64[1] a = {0}",
        "q = DequantizeLinear <axis=-1> (w, s) W = Unsqueeze(q, a)",
    ),
    "transposed": (
        "int8[1,6,12] w = <72>, float[12] s = {}",
        "q = DequantizeLinear <axis=2> (w, s) W = Transpose <perm=[0,2,1]> (q)",
    ),
    "reshaped": (
        "int8[12,6] w = <72>, float[12] s = {}, int64[3] to = {1,-1,6}",
        "q = DequantizeLinear <axis=0> (w, s) W = Reshape(q, to)",
    ),
    "split": (
        "int8[1,24,6] w = <144>, float[24] s = {}, int64[2] sizes = {12,12}",
        "q = DequantizeLinear <axis=1> (w, s) V, W = Split <axis=1> (q, sizes)",
    ),
    "sliced": (
        "uint8[2,12,6] w = <144>, float s = {0.01}, uint8 z = {50}, int64[1] from = {1}, int64[1] to = {2}",
        "q = DequantizeLinear(w, s, z) W = Slice(q, from, to)",
    ),
    "joined": (
        """int8[1,4,6] a = <24>, int8[1,4,6] b = <24>, int8[1,4,6] c = <24>,
        float s = {0.01}, float t = {0.02}, int8 z = {3}""",
        """x = DequantizeLinear(a, s, z) y = DequantizeLinear(b, t) v = DequantizeLinear(c, s)
        W = Concat <axis=1> (x, y, v)""",
    ),
}
NEW_CASES = {
    "blocks": (
        "int8[12,6] w = <72>, float[12,3] s = {}, int64[1] a = {0}",
        "q = DequantizeLinear <axis=1, block_size=2> (w, s) W = Unsqueeze(q, a)",
    ),
    "blocks of rows": (
        "int8[1,12,6] w = <72>, float[1,3,6] s = {}",
        "W = DequantizeLinear <axis=1, block_size=4> (w, s)",
    ),
    "cut blocks": (
        "int8[12,8] w = <96>, float[12,2] s = {}, int64[2] from = {0,1}, int64[2] to = {12,7}, int64[1] a = {0}",
        "q = DequantizeLinear <axis=1, block_size=4> (w, s) v = Slice(q, from, to) W = Unsqueeze(v, a)",
    ),
    "joined per row": (
        "int8[6,6] a = <36>, int8[6,6] b = <36>, float[6] s = {}, float[6] t = {}, int64[1] zero = {0}",
        """x = DequantizeLinear <axis=0> (a, s) y = DequantizeLinear <axis=0> (b, t)
        q = Concat <axis=0> (x, y) W = Unsqueeze(q, zero)""",
    ),
}


def large_floats(new: onnx.ModelProto, elements: int = 13) -> list[str]:
    """The names of the floats of any scope that are as large as weights."""
    tensors = [t for graph in graphs(new) for t in graph.initializer]
    return [t.name for t in tensors if t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) >= elements]


def weights(new: onnx.ModelProto) -> int:
    return sum(int(np.prod(t.dims)) for t in new.graph.initializer if t.data_type in (2, 3, 21, 22))


def same(new: onnx.ModelProto, original: onnx.ModelProto) -> bool:
    feed = random_feed(original)
    assert_close(run(new, feed), run(original, feed))
    return True


@pytest.mark.few(5)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*CASES, *NEW_CASES])
def test_weights_stay_integers(name: str, form: str) -> None:
    new_only = name in NEW_CASES
    original = model(*(CASES | NEW_CASES)[name], 21 if new_only else 13)
    new = assert_same(original, random_feed(original), form)
    assert not large_floats(new, 37 if new_only else 13)  # scales of blocks are up to 36 numbers
    assert {"W", "R"}.isdisjoint(output for node in nodes(new) for output in node.output)
    assert not [n for n in nodes(new) if n.op_type in ("Transpose", "Concat", "Split") and n.input[0] in "qxwr"]


@pytest.mark.parametrize("form", FORMS)
def test_dequantize_makes_floats(form: Any) -> None:
    original = model(*CASES["per row"])
    floats, report = rl.lower(original, form, dequantize=True, full=True)
    assert same(floats, original)
    assert any("W and R became floats" in note for note in report.notes)
    assert not weights(floats)
    assert "DequantizeLinear" not in operators(floats)
    assert large_floats(floats)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lbr", [0, 1])
def test_gates_that_are_split_in_both_directions(form: Any, lbr: int) -> None:
    tensors, chain = "int8[2,12,6] w = <144>, float[2] s = {}", "W = DequantizeLinear <axis=0> (w, s)"
    original = model(tensors, chain, lbr=lbr, both=True)
    new = assert_same(original, random_feed(original), form)
    assert not large_floats(new)
    assert weights(new) >= 2 * (72 + 48)
    assert same(rl.lower(original, form, target="onnxruntime"), original)


def test_a_dequantized_weight_is_written_once_and_used_by_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large integers are moved when they are written."""
    new = rl.lower(model(*CASES["per tensor"]), "unroll")
    assert sum(node.op_type == "DequantizeLinear" for node in nodes(new)) == 2  # W and R
    assert weights(new) == 72 + 48 + 2  # and two zero points
    monkeypatch.setattr(constants, "KEPT_BYTES", 0)
    for name in ("transposed", "joined"):
        original = model(*CASES[name])
        assert not large_floats(assert_same(original, random_feed(original)))


@pytest.mark.parametrize("bits", ["int4", "uint4"])
@pytest.mark.parametrize(
    ("scales", "attributes"), [("float[12] s = {}", "axis=1"), ("float[1,12,3] s = {}", "axis=2, block_size=2")]
)
def test_four_bits(bits: str, scales: str, attributes: str) -> None:
    original = model(f"int8[1,12,6] w = <72>, {scales}", f"W = DequantizeLinear <{attributes}> (w, s)", 21)
    (w,) = (t for t in original.graph.initializer if t.name == "w")
    numbers = numpy_helper.to_array(w) % 8
    w.CopyFrom(ir.to_proto(ir.tensor(numbers.astype(getattr(ml_dtypes, bits)), name="w")))
    for form in FORMS:
        new = assert_same(original, random_feed(original), form)
        held = {t.data_type for t in new.graph.initializer if t.name.rpartition("/")[2].startswith("W")}
        assert getattr(onnx.TensorProto, bits.upper()) in held


def test_scales_that_one_operator_cannot_express_are_folded_and_reported() -> None:
    original = model(*CASES["joined"], opset=12)
    new, report = rl.lower(original, full=True)
    assert same(new, original)
    (note,) = report.notes
    assert all(words in note for words in ("GRU", "integers of W became floats", "DequantizeLinear of opset 12"))
    assert not rl.lower(model(*CASES["per tensor"], opset=12), full=True)[1].notes


def test_what_others_use_stays() -> None:
    """A dequantized weight that is an output; a pair around an activation."""
    tensors, chain = CASES["per tensor"]
    pair = "Xq = QuantizeLinear (X, xs, xz) Xd = DequantizeLinear (Xq, xs, xz)"
    original = model(f"{tensors}, float xs = {{0.03}}, uint8 xz = {{128}}", f"{pair} {chain}")
    original.graph.node[-1].input[0] = "Xd"
    original.graph.output.append(value("W", [1, 12, 6]))
    new = assert_same(original, random_feed(original))
    assert {"w", "s", "z"} <= initializers(new)
    assert [node.output[0] for node in new.graph.node[:2]] == ["Xq", "Xd"]


def test_half_precision_scales_of_a_float32_computation() -> None:
    original = model(*CASES["per row"], opset=21)
    for tensor in original.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for info in (*original.graph.input, *original.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    feed = random_feed(original)
    integers, floats = (rl.lower(original, "scan", compute="float32", dequantize=d) for d in (False, True))
    assert not large_floats(integers)
    assert_close(run(integers, feed), run(floats, feed))


def test_onnxruntime_rounds_no_operand_of_its_own() -> None:
    """A product beside its DequantizeLinear becomes MatMulNBits, whose other operand is rounded to 8 bits."""
    original = parse(
        """main (float[20,4,64] X) => (float[20,1,4,64] Y) <int8[1,192,64] w = {}, float s = {0.004}> {
            W = DequantizeLinear(w, s) Y = GRU <hidden_size=64> (X, W, W) }"""
    )
    integers = np.random.default_rng(0).integers(-127, 128, (1, 192, 64), np.int8)
    original.graph.initializer[0].CopyFrom(numpy_helper.from_array(integers, "w"))
    feed = random_feed(original)
    form: Any
    for form in FORMS:
        (a,), (b,) = run(original, feed).values(), run(rl.lower(original, form), feed).values()
        assert np.abs(a - b).max() < 5e-6


def test_a_real_model_keeps_its_size() -> None:
    path = MODELS / "exported/authored/nsnet2_w_dq.onnx"
    if not path.exists():
        pytest.skip(f"{MODELS.name} is not there")
    original = onnx.load(path)
    feed = {"logspec": np.random.default_rng(0).standard_normal((1, 9, 161)).astype(np.float32)}
    for form in ("scan", "loop"):
        new = assert_same(original, feed, form)
        assert new.ByteSize() < 1.05 * original.ByteSize()
    floats = rl.lower(original, dequantize=True)
    assert floats.ByteSize() > 1.8 * original.ByteSize()
    assert_close(run(floats, feed), run(original, feed))


# The constants


SHAPE = (4, 6)


def uniform() -> Dequantized:
    return dequantized_constant(integers(), literal(0.5, ir.DataType.FLOAT), literal(3, ir.DataType.INT8))


def integers() -> Constant:
    return literal(np.arange(24).reshape(SHAPE), ir.DataType.INT8)


def varying(axis: int) -> Dequantized:
    ramp = np.expand_dims(np.arange(1, SHAPE[axis] + 1), 1 - axis)
    scale = literal(np.broadcast_to(ramp, SHAPE), ir.DataType.FLOAT)
    return dequantized_constant(integers(), scale, literal(np.zeros(SHAPE), ir.DataType.INT8))


MOVES = {
    "transposed": lambda c: c.transposed((1, 0)),
    "sliced": lambda c: c.sliced(1, 2, 5),
    "reshaped": lambda c: c.reshaped((1, *SHAPE)),
    "flipped": lambda c: c.flipped(),
    "followed": lambda c: c.followed_by([uniform(), c], 0),
    "followed by floats": lambda c: c.followed_by([literal(np.ones(SHAPE), ir.DataType.FLOAT)], 1),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("constant", [uniform(), varying(0), varying(1)], ids=["uniform", "rows", "columns"])
def test_what_is_done_to_integers_is_done_to_their_floats(move: str, constant: Dequantized) -> None:
    floats = literal(constant.read(), ir.DataType.FLOAT)
    others = {"followed": lambda: np.concatenate([floats.read(), uniform().read(), floats.read()])}
    moved = MOVES[move](constant)
    expected = others[move]() if move in others else MOVES[move](floats).read()
    np.testing.assert_array_equal(moved.read(), expected)
    assert moved.shape == expected.shape
    assert isinstance(moved, Dequantized) == (move != "followed by floats")


def test_scales_are_stored_in_as_few_numbers_as_the_opset_allows() -> None:
    whole = uniform().stored(10)
    assert whole is not None
    assert whole.scale.shape == ()
    assert uniform().stored(9) is None
    assert varying(1).stored(12) is None
    turned: Any = varying(1).transposed((1, 0))
    found = turned.stored(13)
    assert (found.axis, found.scale.read().tolist()) == (0, [1, 2, 3, 4, 5, 6])
    mixed: Any = varying(0).followed_by([varying(0)], 1).followed_by([uniform().followed_by([uniform()], 1)], 0)
    assert mixed.stored(13).axis == 0
    blocks: Any = varying(0).followed_by([uniform()], 1)
    assert blocks.stored(20) is None
    stored = blocks.stored(21)
    assert (stored.axis, stored.block, stored.scale.shape) == (1, 6, (4, 2))
