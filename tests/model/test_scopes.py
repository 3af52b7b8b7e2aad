"""Recurrent nodes in bodies and functions, on values of outer scopes, beside names that invite collisions."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from running import assert_close, recurrent_left, run
from scope_models import CAPTURED, FUNCTION, IF, LOCAL, NESTED, NESTED_FUNCTIONS, SCOPES
from texts import FORMS, assert_same, check_names, lowered, node_names, parse, random_feed, refusal, value_names

import rnn_lowering as rl


def feeds(model: onnx.ModelProto) -> Iterator[dict[str, Any]]:
    feed = random_feed(model, k=3)
    conditions = [value.name for value in model.graph.input if value.name == "go"]
    for go in (True, False) if conditions else (True,):
        yield {**feed, **{name: np.array(go) for name in conditions}}


SAME_NAMES = """
main (float[5,2,3] X, bool go) => (float[5,1,2,4] Y, float[5,1,2,4] Z)
<float[1,16,3] W = {}, float[1,16,4] R = {}> {
    [lstm] Y = LSTM <hidden_size=4> (X, W, R)
    Z = If (go) <
        then_branch = yes () => (float[5,1,2,4] yes_Y) {
            [lstm] yes_Y = LSTM <hidden_size=4, direction="reverse"> (X, W, R)
        },
        else_branch = no () => (float[5,1,2,4] no_Y) { [lstm] no_Y = LSTM <hidden_size=4> (X, W, R) }
    >
}
"""
TAKEN = """
main (float[5,2,3] X, bool go, float[5,1,2,4] "lstm/Ht") => (float[5,1,2,4] Y, float[5,1,2,4] Z)
<float[1,16,3] "lstm/W" = {}, float[1,16,4] "lstm/R" = {}, float[1,32] "lstm/B" = {}, float[1] "lstm/const" = {},
 float[1,12,4] "lstm/true" = {}> {
    [lstm] "lstm/XW" = LSTM <hidden_size=4> (X, "lstm/W", "lstm/R", "lstm/B")
    ["lstm/MatMul"] "lstm/body" = Identity("lstm/XW")
    ["lstm/Scan"] "lstm/zeros" = Add("lstm/body", "lstm/Ht")
    ["lstm/Split"] Y = Add("lstm/zeros", "lstm/const")
    Z = If (go) <
        then_branch = yes () => (float[5,1,2,4] "lstm/going") <float[1,12,3] "lstm/steps" = {}> {
            "lstm/state0" = Neg("lstm/Ht")
            ["lstm/t0/MatMul"] "lstm/Xt0" = Mul(X, X)
            [lstm] "lstm/going" = GRU <hidden_size=4> ("lstm/Xt0", "lstm/steps", "lstm/true")
        },
        else_branch = no () => (float[5,1,2,4] "lstm/Ct") { "lstm/Ct" = Identity("lstm/Ht") }
    >
}
"""
"""Names that look like those that are made."""


def is_loop(node: ir.Node) -> bool:
    """Whether it is a Loop or Scan of the model, which stays in these tests."""
    return node.op_type in ("Loop", "Scan")


TEXTS = SCOPES | {
    "same names": SAME_NAMES,
    "names that look made": TAKEN,
    "the default of a function's attribute": FUNCTION.replace(
        "<hs, way, bound>", '<hs, way: string = "reverse", bound>'
    ).replace('way="reverse", ', ""),
    "the default of the operator": FUNCTION.replace('way="reverse", bound=0.5', 'way="reverse"'),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TEXTS)
def test_computes_the_same(name: str, form: str) -> None:
    original = parse(TEXTS[name], domains=LOCAL)
    for feed in feeds(original):
        assert_same(original, feed, form, except_=is_loop)


def test_names_the_scope_of_every_node() -> None:
    scopes = {name: [spec.node.scope for spec in rl.inspect(parse(SCOPES[name]))] for name in ("if", "loop")}
    nested = [spec.node.scope for spec in rl.inspect(parse(NESTED))]
    assert scopes["if"] == ["main graph > -> Y (If) then_branch", "main graph > -> Y (If) else_branch"]
    assert scopes["loop"] == ["main graph > -> h (Loop) body"]
    assert nested == ["main graph > -> h (If) then_branch > -> yes_h (Loop) body > -> after (If) then_branch"]


def test_a_function_without_recurrent_nodes_stays() -> None:
    original = parse(FUNCTION, domains=LOCAL)
    new = lowered(original)
    assert [f.name for f in new.functions] == ["twice"]
    assert onnx.printer.to_text(new.functions[0]) == onnx.printer.to_text(original.functions[1])
    assert [n.op_type for n in new.graph.node if n.domain == "local"] == ["twice"]
    nested = lowered(parse(NESTED_FUNCTIONS, domains=LOCAL))
    assert [f.name for f in nested.functions] == ["halved"]


def test_functions_that_are_not_inlined() -> None:
    """Where nodes are not selected; one of another opset may be refused, one that calls itself is."""
    original = parse(FUNCTION, domains=LOCAL)
    assert rl.lower(original, except_="LSTM") == original
    other = parse(FUNCTION.replace("17]>\nrecur", "13]>\nrecur"), domains=LOCAL)
    assert other.functions[0].opset_import[0].version == 13
    reason = refusal(lambda: assert_same(other, random_feed(other)))
    assert "inline" in reason or not reason
    text = FUNCTION.replace("B = Add(A, A)", "c = local.twice(A) B = Identity(c)").replace(
        "[lstm] Y = LSTM", "x = local.twice(X) again = local.recur <hs=4> (x, W, R) [lstm] Y = LSTM"
    )
    with pytest.raises(rl.RnnLoweringError):
        rl.lower(parse(text, domains=LOCAL))


@pytest.mark.parametrize("form", FORMS)
def test_weights_of_an_outer_scope_that_are_computed_at_run_time(form: str) -> None:
    original = parse(CAPTURED)
    first, second = (assert_same(original, random_feed(original, seed), form) for seed in (0, 1))
    assert first == second


@pytest.mark.parametrize("form", FORMS)
def test_sizes_of_an_outer_scope_that_are_not_known(form: Any) -> None:
    original = parse(CAPTURED.replace("float[5,2,3] X", "float[T,N,3] X").replace("[1,2,4]", "[1,N,4]"))
    sizes: dict[str, Any] = {}
    if form == "unroll":
        with pytest.raises(rl.UnsupportedError, match="length is not known"):
            rl.lower(original, form)
        sizes = {"dims": {"T": 4}}
    for N in (1, 3):
        assert_same(original, random_feed(original, T=4, N=N), form, **sizes)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in SCOPES if name != "scan"])
def test_every_name_that_is_made_is_taken_already(name: str, form: str) -> None:
    """A value and a node, which is an output, has each of the names."""
    original, taken = (parse(SCOPES[name], domains=LOCAL) for _ in range(2))
    once = lowered(original, form)
    of_nodes = sorted({*node_names(once)} - {*node_names(original)})
    values = sorted({*value_names(once), *node_names(once)} - {*value_names(original)})
    for value, node in zip_longest(values, of_nodes, fillvalue=""):
        taken.graph.node.append(helper.make_node("Relu", ["X"], [value], node))
        taken.graph.output.append(helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [5, 2, 3]))
    onnx.checker.check_model(taken)
    for feed in feeds(original):
        assert_same(taken, feed, form)


def test_lowering_in_two_passes_keeps_names_apart() -> None:
    original = parse(IF.replace("[gru]", "[lstm]"))
    new = rl.lower(rl.lower(original, only=["GRU"]))
    check_names(new, original)
    assert recurrent_left(new) == []
    for feed in feeds(original):
        assert_close(run(new, feed), run(original, feed))


@pytest.mark.few(2)
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 13, 19, 21])
@pytest.mark.parametrize("name", ["if", "loop", "nested"])
def test_bodies_at_other_opsets(name: str, opset: int) -> None:
    original = parse(SCOPES[name], opset, ir_version=10 if opset > 17 else 4)
    for feed in feeds(original):
        for form in FORMS if opset >= 9 else ("loop", "unroll"):
            assert_same(original, feed, form, except_=is_loop)


CONSTANT_BRANCHES = """
main (float[T,2,3] X) => (float[T,1,2,4] Y, float[3] k) <float[1,16,3] W = {}, float[1,16,4] R = {}> {
    Y, k = local.choose(X, W, R)
}
<domain: "local", opset_import: ["": 17, "local": 1]>
choose (X, W, R) => (Y, sum) {
    always = Constant <value = bool {1}> ()
    Y, taken = If (always) <
        then_branch = yes () => (float[T,1,2,4] yes_Y, float[3] yes_k) <float[1,32] B = {}, float[3] k = {}> {
            yes_Y = LSTM <hidden_size=4> (X, W, R, B)
            yes_k = Neg(k)
        },
        else_branch = no () => (float[T,1,2,4] no_Y, float[3] no_k) <float[1,32] B = {}, float[3] k = {}> {
            no_Y = LSTM <hidden_size=4, direction="reverse"> (X, W, R, B)
            no_k = Exp(k)
        }
    >
    sum = local.other(taken)
}
<domain: "local", opset_import: ["": 17]>
other (a) => (b) {
    always = Constant <value = bool {1}> ()
    b = If (always) <
        then_branch = yes () => (float[3] c) <float[3] k = {}> { c = Add(a, k) },
        else_branch = no () => (float[3] d) { d = Neg(a) }
    >
}
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_function_gets_nodes_for_the_initializers_of_a_branch(form: str) -> None:
    original = parse(CONSTANT_BRANCHES, domains=LOCAL)
    onnx.checker.check_model(original, full_check=True)
    new = assert_same(original, random_feed(original, T=5), form, dims={"T": 5})
    assert [node.op_type for node in new.functions[0].node] == ["Constant", "Add"]
