"""The import of opset 27 goes down with CausalConvWithState, as far as the meaning of the other nodes stays."""

import numpy as np
import onnx
import pytest
from causal_conv import STANDARD, arrays, model
from onnx import helper
from running import run
from texts import parse

import rnn_lowering as rl

NEEDED: dict[str, tuple[int, str]] = {
    "none": (17, ""),
    "types only": (17, "y = Reshape (output, shape)"),
    "a cast": (17, "y = Cast <to=10> (output)"),
    "a range": (17, "y = Range (zero, three, one)"),
    "a range of half precision": (27, "y = Range (zero16, three16, one16)"),
    "axes as an input": (18, "y = ReduceMean (output, second)"),
    "reduction over everything": (18, "y = ReduceMean (output)"),
    "a split into equal parts": (18, "a, y = Split <axis=1, num_outputs=2> (output)"),
    "a split by sizes": (17, "a, y = Split <axis=1> (output, parts)"),
    "a pad": (17, "y = Pad (output, pads)"),
    "a pad that wraps": (19, 'y = Pad <mode="wrap"> (output, pads)'),
    "a group normalization": (21, "y = GroupNormalization <num_groups=1> (output, scale3, scale3)"),
    "a new operator": (23, "y = RMSNormalization (output, scale5)"),
    "pooling with ceil_mode": (22, "y = MaxPool <kernel_shape=[2], strides=[2], ceil_mode=1> (output)"),
    "pooling": (17, "y = MaxPool <kernel_shape=[2]> (output)"),
    "a larger of truth values": (20, "truth = Cast <to=9> (output) y = ReduceMax (truth, second)"),
    "in a body": (
        23,
        """y = If (yes) <then_branch = a () => (float[b,c,t] t) { t = RMSNormalization (output, scale5) },
        else_branch = b () => (float[b,c,t] e) { e = Neg (output) }>""",
    ),
    "a float8 cast": (27, "y = Cast <to=17> (output)"),
}
CONSTANTS = """
float zero = {0}, float three = {3}, float one = {1}, float16 zero16 = {0}, float16 three16 = {3},
float16 one16 = {1}, int64[2] shape = {2,15}, int64[1] second = {1}, int64[2] parts = {1,2},
int64[6] pads = {0,0,1,0,0,1}, float[3] scale3 = {1,2,3}, float[5] scale5 = {1,2,3,4,5}, bool yes = {1}"""


def beside(text: str, imports: str = "", functions: str = "") -> onnx.ModelProto:
    """A convolution whose output other nodes take; what they make is "y"."""
    proto = model(STANDARD)
    given = parse(f"g (float[2,3,5] output) => () <{CONSTANTS}> {{ {text} }} {functions}", 27, domains=imports)
    used = {name for node in given.graph.node for name in node.input} | {"scale5"}
    proto.graph.node.extend(given.graph.node)
    proto.graph.initializer.extend(tensor for tensor in given.graph.initializer if tensor.name in used)
    proto.opset_import.extend(given.opset_import[1:])
    proto.functions.extend(given.functions)
    proto.graph.output.extend([onnx.ValueInfoProto(name="y")] if text else [])
    return proto


def imported(proto: onnx.ModelProto) -> int:
    return int(next(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")))


@pytest.mark.parametrize("name", NEEDED)
def test_lowest_opset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed, text = NEEDED[name]
    original = beside(text)
    new, report = rl.lower(original, full=True)
    assert imported(new) == needed
    told = [note for note in report.notes if note.startswith("the model's opset is")]
    assert told == (
        [f"the model's opset is {needed} instead of 27, which no node needs any more"] if needed < 27 else []
    )
    if needed == 27:
        return
    feed = {name: a for name, a in arrays(STANDARD).items() if name in {v.name for v in new.graph.input}}
    monkeypatch.delenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", raising=False)
    after = run(new, feed, relabel=False)  # an ordinary onnxruntime
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    for symbol, array in run(original, feed, relabel=False).items():
        np.testing.assert_allclose(after[symbol], array, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("own", "together"), [(27, 23), (24, 24)])
def test_functions_and_the_model_import_one_version(own: int, together: int) -> None:
    """ONNX's checker refuses two versions of one operator."""
    function = f"""<domain: "local", opset_import: ["": {own}]>
    normed (x, scale) => (n) {{ n = RMSNormalization (x, scale) }}"""
    new = rl.lower(beside("y = local.normed (output, scale5)", ', "local": 1', function))
    assert imported(new) == together
    assert [entry.version for entry in new.functions[0].opset_import] == [together]


def test_only_where_a_lowered_node_needed_it() -> None:
    """Of com.microsoft, or with another node of opset 27 that stays, the import stays; so it does on request."""
    original = beside("[kept] y, s = CausalConvWithState (output, weight)")
    assert imported(rl.lower(original, only="conv")) == 27
    assert imported(rl.lower(original)) == 17
    of_ms = model(STANDARD)
    of_ms.graph.node[0].domain = "com.microsoft"
    of_ms.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert imported(rl.lower(of_ms)) == 27
    new, report = rl.lower(model(STANDARD), full=True, keep_rest=True)
    assert imported(new) == 27
    assert report.notes == []


def test_the_ir_version_goes_down_too() -> None:
    """onnxruntime 1.31 refuses IR version 14, which onnx 1.23 writes."""
    original = model(STANDARD)
    original.ir_version = 14
    new, report = rl.lower(original, full=True)
    assert new.ir_version == 10
    assert "the model's IR version is 10 instead of 14" in report.notes


def test_a_target_with_a_newest_opset_takes_the_result() -> None:
    assert rl.TARGETS["onnx2torch"].newest_opset == 17
    assert imported(rl.lower(model(STANDARD), target="onnx2torch")) == 17
    assert [each.form for each in rl.preview(model(STANDARD), target="onnx2torch")] == ["unroll"]
    with pytest.raises(rl.UnsupportedError, match="opset 17 or earlier, but the model has 27"):
        rl.lower(model(STANDARD), target="onnx2torch", keep_rest=True)
