"""A model of an older opset is written at a newer one where its runtime computes more nodes right, only there."""

import onnx
import onnx_ir as ir
import pytest
from running import assert_close, run
from texts import parse, random_feed

import rnn_lowering as rl
from rnn_lowering.decomposition.newer_opset import at_newer_opset

X = "(float[2, 3, 4, 6] x) => (float[a, b, c, d] y)"
NODES = {
    "bounds": (6, 7, "Clip <min = -0.5, max = 0.5> (x)"),
    "pads": (9, 10, 'Pad <pads = [0, 0, 1, 0, 0, 0, 2, 1], value = 1.5, mode = "constant"> (x)'),
    "a cut": (9, 9, "Slice <axes = [1, -1], starts = [1, -3], ends = [3, 5]> (x)"),
    "the largest": (9, 9, "TopK <k = 2, axis = -1> (x)"),
    "a sum": (9, 12, "ReduceSum <axes = [1, 3], keepdims = 1> (x)"),
    "a Softmax of several axes": (9, 12, "Softmax <axis = 2> (x)"),
    "a LogSoftmax of the default axes": (9, 12, "LogSoftmax (x)"),
    "a Softmax of the last axis": (11, 12, "Softmax <axis = -1> (x)"),
    "a Dropout": (7, 11, "Dropout <ratio = 0.3> (x)"),
    "a Resize of the nearest": (10, 10, 'Resize <mode = "nearest"> (x, s)'),
    "a linear Resize": (10, 10, 'Resize <mode = "linear"> (x, s)'),
    "an Upsample": (9, 9, 'Upsample <mode = "nearest"> (x, s)'),
    "an Upsample by numbers": (7, 8, 'Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 1.5]> (x)'),
    "a norm": (7, 8, "BatchNormalization (x, n, n, n, n)"),
}
CASES = [(name, opset) for name, (first, last, _) in NODES.items() for opset in sorted({max(first, 7), last})]
CONSTANTS = "<float[4] s = {1, 1, 2, 1.5}, float[3] n = {0.5, 1, 2}>"


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_a_node_means_the_same(name: str, opset: int) -> None:
    outputs = "y, i" if name == "the largest" else "y"
    model = parse(f"g {X} {CONSTANTS} {{ {outputs} = {NODES[name][2]} }}", opset)
    newer = at_newer_opset(ir.from_proto(model))
    assert newer is not None
    proto, feed = ir.to_proto(newer), random_feed(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [entry.version for entry in proto.opset_import] == [13]
    assert_close(run(proto, feed), run(model, feed))


@pytest.mark.parametrize("opset", [9, 13, 14])
def test_a_node_means_the_same_at_opset_15(opset: int) -> None:
    text = """r = Softmax (x) b = BatchNormalization (r, n, n, n, n) p = Pow (b, two) z = Shape (p)
        y = Reshape (p, z)"""
    two = CONSTANTS.replace(">", ", float two = {2}>")
    model = parse(f"g {X} {two} {{ {text} }}", opset)
    newer = at_newer_opset(ir.from_proto(model), 15)
    assert newer is not None
    proto, feed = ir.to_proto(newer), random_feed(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [entry.version for entry in proto.opset_import] == [15]
    assert_close(run(proto, feed), run(model, feed))


@pytest.mark.parametrize("opset", [11, 12])
def test_axes_and_parts(opset: int) -> None:
    model = parse(
        f"""g {X} {{ p, q = Split <axis = 3, split = [2, 4]> (x) u = Unsqueeze <axes = [0, -1]> (q)
        v = Squeeze <axes = [0, 5]> (u) s = ReduceSum <axes = [-1], keepdims = 1> (p) y = Add (v, s) }}""",
        opset,
    )
    newer, feed = at_newer_opset(ir.from_proto(model)), random_feed(model)
    assert newer is not None
    assert_close(run(ir.to_proto(newer), feed), run(model, feed))


PRODUCT = """(float[4, 5] x, float[5, 6] z, float[6, 3] w) => (float[a, b] y) {
    y = Einsum <equation = "ij,jk,kl->il"> (x, z, w) }"""


def test_where_more_is_right() -> None:
    model = parse(f"g {PRODUCT}", 12)
    lowered, report = rl.lower(model, target="mnn", full=True)
    assert "mnn computes more nodes right at opset 13: wrote those of opset 12 so" in report.adapted
    feed = random_feed(model)
    assert_close(run(lowered, feed), run(model, feed))


def test_nowhere_else() -> None:
    text = "g (float[2, 3] x) => (float[a, b] y) { s = ReduceSum <axes = [1]> (x) y = Tanh (s) }"
    assert rl.lower(parse(text, 12), target="mnn").opset_import[0].version == 12
    unknown = "g (float x) => (float y) { y = Softmax (x) }"
    model = parse(unknown, 12)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert at_newer_opset(ir.from_proto(model)) is None
