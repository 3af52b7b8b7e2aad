"""A damaged Loop or Scan is refused by name; one that stays is named by the report, `--list` and an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from commands import Command, saved
from loop_models import operators
from onnx import helper, parser

import rnn_lowering as rl

Damage = Callable[[onnx.NodeProto], Any]

LOOP = """<ir_version: 8, opset_import: ["": 17]> g (float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y)
    <bool yes = {1}, int64 M = {5}> {
    p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) {
        x = Gather (X, i) s1 = Add (s, x) o = Mul (s1, x) c1 = Identity (c) }> }"""

SCAN = """<ir_version: 8, opset_import: ["": 17]> g (float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y) {
    p, Y = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] x) => (float[2] s1, float[2] o) {
        s1 = Add (s, x) o = Mul (s1, x) }> (a, X) }"""


def body(node: onnx.NodeProto) -> onnx.GraphProto:
    graph: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    return graph


def set_ints(name: str, numbers: list[int]) -> Damage:
    return lambda node: node.attribute.append(helper.make_attribute(name, numbers))


DAMAGES: list[tuple[str, Damage, str]] = [
    (LOOP, lambda node: node.attribute.pop(), "no body"),
    (LOOP, lambda node: body(node).input.add(name="more"), "has 4 inputs, but the node passes 3"),
    (LOOP, lambda node: body(node).ClearField("output"), "but the node needs at least 3"),
    (LOOP, lambda node: node.output.append("more"), "3 outputs, but the node needs at least 4"),
    (SCAN, lambda node: node.attribute.remove(node.attribute[0]), "num_scan_inputs"),
    (SCAN, set_ints("scan_input_axes", [0, 0]), "scan_input_axes has 2"),
    (SCAN, set_ints("scan_input_axes", [2]), "axis 2"),
    (SCAN, set_ints("scan_input_directions", [2]), "not 0 or 1"),
    (SCAN, set_ints("scan_output_axes", [3]), "axis 3"),
]


@pytest.mark.parametrize("form", ["unroll", "loop", "scan"])
@pytest.mark.parametrize(("text", "damage", "message"), DAMAGES, ids=[message for *_, message in DAMAGES])
def test_a_damaged_loop_is_refused(text: str, damage: Damage, message: str, form: Any) -> None:
    model = parser.parse_model(text)
    damage(model.graph.node[0])
    with pytest.raises((rl.InvalidNodeError, rl.UnsupportedError), match=message) as caught:
        rl.lower(model, form, lower_loops=True)
    assert caught.value.node is not None
    assert caught.value.node.name == "-> p"


# What stays

LEAKY = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,3] X, float[3] s0, int64 M) => (float[3] sn, float[T,3] Y) <bool yes = {1}> {
    %s sn, Y = Loop (M, yes, s0) <body = b (int64 i, bool c, float[3] s) => (bool c1, float[3] s1, float[3] o) {
        x = Gather <axis = 0> (X, i)
        s1 = Add (s, x)
        o = Identity (s1)
        c1 = Identity (c)
    }>
}"""

NAMED, UNNAMED = (parser.parse_model(LEAKY % name) for name in ("[sum]", ""))


@pytest.mark.parametrize("form", ["auto", "loop"])
def test_the_report_names_what_stays(form: Any) -> None:
    new, report = rl.lower(NAMED, form, full=True)
    assert new == NAMED
    (left,) = report.left
    assert left.startswith("Loop node 'sum' in main graph: ")


def test_a_target_without_loops_refuses_by_name() -> None:
    for model, name in ((NAMED, "sum"), (UNNAMED, "-> sn")):
        with pytest.raises(rl.UnsupportedError, match=f"^Loop node '{name}' in main graph: ") as caught:
            rl.lower(model, target="tvm")
        assert caught.value.hint


def test_the_command_names_what_stays(rnn_lower: Command, tmp_path: Path) -> None:
    source, target = saved(tmp_path / "in.onnx", UNNAMED), tmp_path / "out.onnx"
    listed = rnn_lower(source, "--list")
    assert listed.code == 0  # exit code 4 is for RNN, GRU and LSTM
    assert "left as it is" in next(line for line in listed.lines if line.startswith(" -> sn  Loop"))
    lowered = rnn_lower(source, target, "--to", "loop", "--verify", "0")
    assert lowered.code == 0
    assert "left as it is: Loop node '-> sn' in main graph" in lowered.out
    for options in (("--target", "tvm"), ("--to", "unroll")):
        refused = rnn_lower(source, target, *options, "--force")
        assert (refused.code, refused.out) == (1, "")
        assert "Loop node '-> sn' in main graph" in refused.err
    unrolled = rnn_lower(source, target, "--to", "unroll", "--set-input", "M=3", "--set-dim", "T=3", "--force")
    assert (unrolled.code, "Loop" in operators(onnx.load(target))) == (0, False)


def test_operators_in_bodies_are_those_that_a_document_names() -> None:
    """Of rten, which runs Loop but no Celu; candle runs neither Loop nor Celu."""
    text = LEAKY.replace("s1 = Add (s, x)", "y = %s (x) s1 = Add (s, y)") % ("[sum]", "%s")
    bad, good = (parser.parse_model(text % operator) for operator in ("Celu", "Tanh"))
    cases: list[tuple[str, dict[str, Any]]] = [
        ("rten", {}),
        ("rten", {"lower_loops": True}),
        ("candle", {"set_inputs": {"M": 3}, "dims": {"T": 3}}),
    ]
    target: Any
    for target, options in cases:
        with pytest.raises(rl.UnsupportedError, match=f"{target} is not known to support Celu ") as caught:
            rl.lower(bad, target=target, **options)
        assert str(caught.value).startswith("Loop node 'sum' in main graph: ")
        rl.lower(good, target=target, **options)
    (preview,) = rl.preview(bad, target="rten")
    assert preview.form == "refused"
    open_sizes = parser.parse_model((text % "Celu").replace("[T,3]", "[T,K]").replace("float[3]", "float[K]"))
    with pytest.raises(rl.UnsupportedError, match="rten is not known to support Celu "):  # though it has no step
        rl.lower(open_sizes, target="rten", lower_loops=True, set_inputs={"M": 0})


# Each has a reason of its own

EACH = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,3] X, float[U,3] Z, float[3] s0, int64 M) => (float[3] p, float[3] q, float[3] r, float[3] u)
    <bool yes = {1}, int64 three = {3}, int64 zero = {0}> {
    xs = Shape (X) T0 = Gather (xs, zero) zs = Shape (Z) U0 = Gather (zs, zero)
    [first] p = Loop (T0, yes, s0) <body = b0 (int64 i0, bool c0, float[3] a0) => (bool d0, float[3] e0) {
        [inner] e0 = Loop (T0, yes, a0) <body = b4 (int64 i4, bool c4, float[3] a4) => (bool d4, float[3] e4) {
            e4 = Tanh (a4) d4 = Identity (c4) }> d0 = Identity (c0) }>
    [known] q = Loop (three, yes, s0) <body = b1 (int64 i1, bool c1, float[3] a1) => (bool d1, float[3] e1) {
        e1 = Tanh (a1) d1 = Identity (c1) }>
    [second] r = Loop (U0, yes, s0) <body = b2 (int64 i2, bool c2, float[3] a2) => (bool d2, float[3] e2) {
        e2 = Tanh (a2) d2 = Identity (c2) }>
    [third] u = Loop (M, yes, s0) <body = b3 (int64 i3, bool c3, float[3] a3) => (bool d3, float[3] e3) {
        e3 = Tanh (a3) d3 = Identity (c3) }> }"""


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{"target": "tvm"}, {"lowering": "unroll"}], ids=["tvm", "unroll"])
def test_each_loop_has_its_own_reason_and_hint(options: dict[str, Any]) -> None:
    """Not that of the first that is refused."""
    source = parser.parse_model(EACH)
    previews = {each.node.name: each for each in rl.preview(source, **options)}
    assert [*previews] == ["first", "known", "second", "third", "inner"]
    assert previews.pop("known").form == "unroll"
    assert {each.form for each in previews.values()} == {"refused"}
    assert previews.pop("inner").reason == "it is in the body of 'first', which is refused"
    assert {each.reason for each in previews.values()} == {"the number of its steps is not known"}
    for name, fix in (("first", 'dims={"T": ?}'), ("second", 'dims={"U": ?}'), ("third", 'set_inputs={"M": ?}')):
        hint = previews[name].hint
        assert fix in hint
        assert ("except_" in hint) == ("lowering" in options)
        assert "'first'" not in hint or name == "first"
    sizes = rl.preview(source, **options, dims={"T": 2, "U": 2}, set_inputs={"M": 2})
    assert {each.form for each in sizes} == {"unroll"}


def test_a_damaged_loop_is_not_the_reason_of_another() -> None:
    source = parser.parse_model(EACH)
    body(next(node for node in source.graph.node if node.name == "known")).ClearField("output")
    previews = {each.node.name: each for each in rl.preview(source, target="tvm")}
    assert "the node needs at least 2" in previews["known"].reason
    assert previews["second"].reason == "the number of its steps is not known"
