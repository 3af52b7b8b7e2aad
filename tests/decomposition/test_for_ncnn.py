"""What pnnx cannot convert is written in another way, with the same numbers, or refused at once."""

import numpy as np
import onnx_ir as ir
import pytest
from nets_for_ncnn import NET, X, nets_for_ncnn
from running import assert_close, nodes, operators, run
from texts import parse, random_feed

import rnn_lowering as rl
from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.decomposition.rewrites.apart import set_batches_apart
from rnn_lowering.facts.constants import constant_of

MADE = nets_for_ncnn()


@pytest.mark.few(8)
@pytest.mark.parametrize("name", MADE)
def test_what_pnnx_cannot_convert_is_written_in_another_way(name: str) -> None:
    net, feed = MADE[name]
    lowered = rl.lower(net, target="ncnn")
    assert_close(run(lowered, feed), run(net, feed))
    left = [node for node in nodes(lowered) if node.op_type.startswith("Reduce")]
    assert all(len(node.input) == 1 for node in left)
    assert not operators(lowered) & {"ReverseSequence"}
    for node in nodes(lowered):
        if node.op_type == "Gather" and node.input[0] == "t":
            raise AssertionError("rows are cuts")
        if node.op_type == "Pad":
            assert len(node.input) == 3
            assert [a.name for a in node.attribute] == ["mode"]


REFUSED = {
    "comparisons": ("y0 = Equal (t, x) y = Cast <to = 1> (y0)", "Equal node '-> y0' .* computes with floats only"),
    "positions": (
        "y0 = ArgMax (t) y = Cast <to = 1> (y0)",
        "ArgMax node .*; end the model before it, or use another",
    ),
    "other floats": ("y0 = Cast <to = 10> (t) y = Cast <to = 1> (y0)", "Cast node '-> y0' .* floats only"),
    "elements": (
        "y = GatherElements <axis = 0> (t, k)",
        "rejected it in 3 of 3 of .*; end the model .*keep_rest=True",
    ),
    "five axes": ("y0 = Unsqueeze (t, two) y = Squeeze (y0, two)", "at most 4 axes, but this one has 5; export"),
    "a norm of several axes": (
        "y = LayerNormalization <axis = 1> (t, w, b)",
        "along the last axis only.*end the model",
    ),
    "half pixels": ('y = Resize <mode = "nearest"> (t, , s)', "with asymmetric coordinates, rounded down, only"),
    "computed axes": ("y = ReduceMean (t, c)", "axes that are an input; export the model with constant axes"),
    "a newer operator": ("y0 = Gelu (t) y = ReduceMean (y0, last)", "export the model at opset 17 .*dynamo=False"),
}
CONSTANTS = """int64[1, 3, 4] k = {0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1}, int64[2] two = {0, 1},
    float[3] s = {1, 1, 2}, float[3, 4] w = {}, float[3, 4] b = {}, int64[1] last = {-1}"""


@pytest.mark.parametrize("name", REFUSED)
def test_what_ncnn_lacks_is_refused_with_a_way_out(name: str) -> None:
    text, message = REFUSED[name]
    net = parse(NET.format(X, "float[a, b, c]", CONSTANTS, text).replace("x) =>", "x, int64[1] c) =>"), 20)
    with pytest.raises(rl.UnsupportedError, match=message):
        rl.lower(net, target="ncnn")
    rl.lower(net, target="onnxruntime")


def test_inputs_of_five_axes_are_refused() -> None:
    net = parse("g (float[1, 2, 3, 4, 5] x) => (float[a, b, c, d, e] y) { y = Tanh (x) }")
    with pytest.raises(
        rl.UnsupportedError, match="takes inputs of 1 to 4 axes, but 'x' has 5; export the model with"
    ):
        rl.lower(net, target="ncnn")


def test_the_number_of_terms_must_be_known() -> None:
    net = parse("g (float[n, 3] x) => (float[a, b] y) <int64[1] a = {0}> { t = Exp (x) y = ReduceSum (t, a) }", 18)
    with pytest.raises(rl.UnsupportedError, match=r"fix the sizes of the inputs .* terms must be known"):
        rl.lower(net, target="ncnn")
    assert "ReduceMean" in operators(rl.lower(net, target="ncnn", input_shapes={"x": (4, 3)}))


def test_the_opset_stays_on_demand() -> None:
    net, _ = MADE["ReduceMean at opset 18"]
    assert rl.lower(net, target="ncnn").opset_import[0].version == 17
    with pytest.raises(rl.UnsupportedError, match="export the model at opset 17"):
        rl.lower(net, target="ncnn", keep_rest=True)


LENGTHS = """g (float[5, 2, 3] x, int64[2] n) => (float[a, b, c, d] y, float[e, f, g] h)
    <float[1, 12, 3] W = {{}}, float[1, 12, 4] R = {{}}, int64[1] k = {{2}}> {{
    sorted, order = {} l = Cast <to = 6> (sorted) y, h = GRU <hidden_size = 4> (x, W, R, , l) }}"""


def test_lengths_that_no_input_makes_constant_have_another_hint() -> None:
    net = parse(LENGTHS.format("Unique (n)"))
    with pytest.raises(rl.UnsupportedError, match=r"export the model without lengths \(pack_padded_sequence\)"):
        rl.lower(net, target="ncnn")


def test_lengths_of_a_sorted_batch_may_be_given() -> None:
    """As pack_padded_sequence writes them."""
    net = parse(LENGTHS.format("TopK (n, k)"))
    with pytest.raises(rl.UnsupportedError, match="make them constants"):
        rl.lower(net, target="ncnn")
    lengths = np.array([3, 5])
    lowered, feed = rl.lower(net, target="ncnn", set_inputs={"n": lengths}), random_feed(net)
    assert_close(run(lowered, {"x": feed["x"]}), run(net, feed | {"n": lengths}))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "text", ["a = Concat <axis = 1> (k, x)  b = Conv (a, w4)", "a = Add (x, k)  b = Conv (a, w2)"]
)
def test_only_rows_that_meet_are_set_apart(text: str, batch: int) -> None:
    """A batch of one row stays as it is, and two operators of batches stay side by side."""
    net = """g (float[NUM, 2, 6, 6] x) => (float[a, b, c, d] y)
        <float[NUM, 2, 6, 6] k = {}, float[4, 4, 1, 1] w4 = {}, float[4, 2, 1, 1] w2 = {}>
        { TEXT  c = MaxPool <kernel_shape = [2, 2]> (b)  y = Neg (c) }""".replace("TEXT", text)
    model = parse(net.replace("NUM", str(batch)), 17)
    lowered, feed = rl.lower(model, target="ncnn"), random_feed(model)
    assert len([*nodes(lowered)]) - len([*nodes(model)]) == (0 if batch == 1 else 5)
    assert_close(run(lowered, feed), run(model, feed))


def test_a_batch_whose_rows_never_meet_stays() -> None:
    model = parse(
        """g (float[n, 2, 6] x) => (float[a, b, c] y) <float[4, 2, 3] w = {}, float[4, 1] k = {}>
        { a = Conv (x, w) b = Mul (a, k) c = Softmax <axis = -1> (b) y = Transpose <perm = [0, 2, 1]> (c) }""",
        17,
    )
    assert operators(rl.lower(model, target="ncnn")) == operators(model)


def test_a_batch_of_open_size_is_set_apart() -> None:
    model = parse(
        """g (float[n, 2, 6] x) => (float[b, c] y) <float[4, 2, 3] w = {}, int64 i = {0}>
        { a = Conv (x, w) y = Gather (a, i) }""",
        17,
    )
    lowered, feed = rl.lower(model, target="ncnn"), random_feed(model, n=3)
    assert "Concat" in operators(lowered)
    assert_close(run(lowered, feed), run(model, feed))


def test_a_batch_of_a_value_of_several_open_sizes_is_refused() -> None:
    """One open size is what is left of all numbers; of two, no Reshape gives both."""
    text = """g (int64[{}] i) => (float[4, 4] y) <float[9, 4] t = {{}}> {{
        x = Gather (t, i) y = ReduceMax <axes = [0], keepdims = 0> (x) }}"""
    with pytest.raises(rl.UnsupportedError, match=r"ncnn takes the batch out .* sizes are not known; fix"):
        rl.lower(parse(text.format("N, T"), 13), target="ncnn")
    assert "Slice" in operators(rl.lower(parse(text.format("N, 4"), 13), target="ncnn"))


def test_each_value_is_asked_for_its_constant_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find that a value is none may be a walk to the begin of the model."""
    asked: list[ir.Value | None] = []

    def counted(_: AdaptedModel, value: ir.Value | None) -> ir.TensorProtocol | None:
        asked.append(value)
        return constant_of(value, 17)

    monkeypatch.setattr(AdaptedModel, "constant_of", counted)
    text = """g (float[5, 2, 6] x) => (float[5, 2, 6] y) <float[1, 2, 1] w = {2, 3}, int64[6] i = {0,1,2,3,4,5}>
        { a = Mul (x, w) b = Gather <axis = 2> (a, i) c = Transpose <perm = [0, 1, 2]> (b) y = Add (c, w) }"""
    set_batches_apart(AdaptedModel(ir.from_proto(parse(text, 17))))
    assert len(asked) == len({*asked}) > 4
