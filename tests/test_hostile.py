"""Hostile models: damaged files, models that say anything. The outcome is a result or one of the project's errors.

A longer campaign: python tests/support/hostile.py CLASS 0 200000
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import hostile
import onnx
import onnx_ir as ir
import pytest
from found import FOUND
from oracle import GATES
from scope_models import LOCAL, SCOPES
from texts import parse
from thinning import exhaustive, thinned

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
FIRST = {"bytes": 20, "fields": 20, "opens": 6, "streams": 6}
"""The models of each class that the default run has."""

MORE = {"bytes": 1300, "fields": 1300, "opens": 494, "streams": 534}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        *((kind, 0, n) for kind, n in FIRST.items()),
        *(exhaustive((kind, FIRST[kind], n)) for kind, n in MORE.items()),
    ],
)
def test_models_of_a_campaign(kind: str, first: int, count: int) -> None:
    wrong = list(hostile.campaign(kind, first, count))
    assert wrong == [], "\n".join(f"{number}: {what}" for number, what in wrong)


@pytest.mark.parametrize("turn", thinned(range(len(hostile.ANY_FORM)), len(hostile.ANY_FORM)))
def test_what_campaigns_found(turn: int) -> None:
    """Each in one form, another one in each turn."""
    wrong = dict(hostile.campaign("found", turn * len(FOUND), len(FOUND)))
    names = list(FOUND)
    assert not wrong, {names[number % len(FOUND)]: what for number, what in wrong.items()}


def without_inputs(model: onnx.ModelProto) -> None:
    """A recurrent node in a branch has none."""
    for node in (n for a in model.graph.node[-1].attribute for n in a.g.node):
        if node.op_type in GATES:
            del node.input[:]


def graph_that_calls_give(model: onnx.ModelProto, kind: Any) -> None:
    node = next(n for function in model.functions for n in function.node)
    node.attribute.append(onnx.AttributeProto(name="body", ref_attr_name="body"))
    node.attribute[-1].type = kind


IN_SCOPES = {
    "a node without inputs in a branch": ("if", without_inputs),
    "a graph that calls give": ("function", partial(graph_that_calls_give, kind=onnx.AttributeProto.GRAPH)),
    "graphs that calls give": ("function", partial(graph_that_calls_give, kind=onnx.AttributeProto.GRAPHS)),
}


@pytest.mark.parametrize(("scope", "edit"), IN_SCOPES.values(), ids=list(IN_SCOPES))
def test_what_campaigns_found_in_scopes(scope: str, edit: Callable[[onnx.ModelProto], None]) -> None:
    model = parse(SCOPES[scope], domains=LOCAL)
    edit(model)
    calls: list[Callable[[onnx.ModelProto], Any]] = [
        rl.inspect,
        *(partial(rl.lower, lowering=form) for form in hostile.ANY_FORM),
    ]
    for call in calls:
        with pytest.raises(rl.RnnLoweringError) as caught:
            call(model)
        assert not isinstance(caught.value, rl.InternalError)


CALLS: list[Callable[[onnx.ModelProto], object]] = [
    rl.lower,
    rl.preview,
    lambda model: rl.LowerRecurrentPass()(ir.from_proto(model)),
    lambda model: rl.LowerRecurrentPass().preview(ir.from_proto(model)),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("version", [2**31, -(2**31) - 1])
@pytest.mark.parametrize("in_function", [False, True])
def test_version_that_cannot_exist(call: Callable[[Any], object], version: int, in_function: bool) -> None:
    """ONNX's own code has 32 bits for the version of a domain, a file 64."""
    model = parse(SCOPES["function"], domains=LOCAL)
    holder = model.functions[0] if in_function else model
    holder.opset_import[0].version = version
    where = f"function '{model.functions[0].name}'" if in_function else "the model"
    with pytest.raises(rl.ModelFileError, match=rf"{where} imports version {version} of domain 'ai.onnx'"):
        call(model)
