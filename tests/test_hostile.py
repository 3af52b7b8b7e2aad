"""Hostile models: damaged files, models that say anything. The outcome is a result or one of the project's errors.

A longer campaign: python tests/support/hostile.py CLASS 0 200000
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import hostile
import onnx
import onnx_ir as ir
import pytest
from found import FOUND
from oracle import GATES
from scope_models import LOCAL, SCOPES
from texts import parse
from thinning import exhaustive

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
FIRST = {"bytes": 4, "fields": 4, "opens": 2, "streams": 2}
"""The models of each class that the default run has."""

SECONDS, MOST_KILOBYTES = 20, 1 << 20
"""The limits of a model that asks for much; each takes about a second and 200 MB."""

MORE = {"bytes": 1316, "fields": 1316, "opens": 498, "streams": 538}


@pytest.mark.long
@pytest.mark.parametrize(
    "parts",
    [
        [*((kind, 0, n) for kind, n in FIRST.items()), ("found", 0, len(FOUND))],
        *(exhaustive([(kind, FIRST[kind], n)]) for kind, n in MORE.items()),
        *(exhaustive([("found", turn * len(FOUND), len(FOUND))]) for turn in range(1, len(hostile.ANY_FORM))),
    ],
    ids=lambda parts: " and ".join(f"{kind} {first}" for kind, first, _ in parts),
)
def test_models_of_a_campaign(parts: list[hostile.Part]) -> None:
    """One process lowers the first of all classes. Each that earlier campaigns found has one form, another in each
    turn."""
    names = list(FOUND)
    wrong = [
        (names[n % len(names)] if kind == "found" else f"{kind} {n}", what)
        for kind, n, what in hostile.campaign(*parts)
    ]
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong)


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


# Small models that ask for much


def asking(nodes: str, tensors: str = "", functions: str = "", inputs: str = "") -> onnx.ModelProto:
    """A model of an LSTM whose output is multiplied by `m`."""
    return parse(
        f"""main (float[T, 1, 4] X{inputs}) => (Z) <float[1, 16, 4] W = {{}}, float[1, 16, 4] R = {{}},
        int64 zero = {{0}}, int64 one = {{1}}, int64 giga = {{1000000000}}, int64[1] ones = {{1}},
        int64[1] many = {{1000000000}}{tensors}> {{
        Y = LSTM <hidden_size = 4> (X, W, R)  {nodes}  k = ReduceMax <keepdims = 0> (m)  f = Cast <to = 1> (k)
        Z = Mul (Y, f) }} {functions}""",
        domains=LOCAL,
    )


def doubling(step: str, first: str = "ones", last: int = 29) -> str:
    """So many nodes, of which each reads the one before twice."""
    nodes = [step.format(new=f"c{n}", old=f"c{n - 1}") for n in range(1, last + 1)]
    return f"c0 = Identity ({first}) {' '.join(nodes)} m = Identity (c{last})"


def function(name: str, body: str) -> str:
    return f'<domain: "local", opset_import: ["": 17, "local": 1]> {name} (x) => (y) {{ {body} }} '


THIRTY = function("f0", "y = Neg (x)") + "".join(
    function(f"f{n}", f"a = local.f{n - 1} (x) y = local.f{n - 1} (a)") for n in range(1, 30)
)
ASKING: dict[str, Callable[[], onnx.ModelProto]] = {
    "functions": lambda: asking("m = local.f29 (Y)", functions=THIRTY),
    "functions that nothing calls": lambda: asking("m = Neg (Y)", functions=THIRTY),
    "a call in a branch": lambda: asking(
        "m = If (yes) <then_branch = t () => (v) { v = local.f29 (Y) }, else_branch = e () => (w) { w = Neg (Y) }>",
        ", bool yes = {1}",
        THIRTY,
    ),
    "Range": lambda: asking("m = Range (zero, giga, one)"),
    "a product in Range": lambda: asking("n = Mul (giga, giga)  m = Range (zero, n, one)"),
    "ConstantOfShape": lambda: asking("m = ConstantOfShape (many)"),
    "Expand": lambda: asking("m = Expand (one, many)"),
    "Tile": lambda: asking("m = Tile (ones, many)"),
    "OneHot": lambda: asking("m = OneHot (ones, giga, both)", ", int64[2] both = {0, 1}"),
    "Pad": lambda: asking("m = Pad (ones, behind)", ", int64[2] behind = {0, 1000000000}"),
    "Resize": lambda: asking("m = Resize (data, , , many)", ", float[1] data = {1}"),
    "Concat": lambda: asking(doubling("{new} = Concat <axis = 0> ({old}, {old})")),
    "Concat of weights": lambda: asking(
        doubling("{new} = Concat <axis = 0> ({old}, {old})", "data"), ", float[16] data = {}"
    ),
    "Concat of weights, folded": lambda: asking(
        doubling("{new} = Concat <axis = 0> ({old}, {old})", "data", 20), ", float[16] data = {}"
    ),
    "Concat of sizes": lambda: asking("s = Shape (X) " + doubling("{new} = Concat <axis = 0> ({old}, {old})", "s")),
    "Mul of matrices": lambda: asking(
        "s = Shape (X)  e = Expand (one, s) " + doubling("{new} = Mul ({old}, {old})", "data", 26),
        ", float[2, 2] data = {}",
    ),
    "Gather": lambda: asking(doubling("{new} = Gather ({old}, {old})", "zeros"), ", int64[1] zeros = {0}"),
    "a rank by Range": lambda: asking("s = Range (zero, giga, one)  m = ConstantOfShape (s)"),
    "a rank by Expand": lambda: asking("s = Expand (one, many)  m = ConstantOfShape (s)"),
    "a rank by Tile": lambda: asking(
        "a = Tile (ones, k3)  b = Tile (a, k3)  s = Tile (b, k3)  m = Expand (one, s)", ", int64[1] k3 = {1000}"
    ),
    "a rank by Pad": lambda: asking("s = Pad (ones, p)  m = Reshape (ones, s)", ", int64[2] p = {0, 1000000000}"),
    "a rank by an input": lambda: asking("m = ConstantOfShape (s)", inputs=", int64[1000000000] s"),
    "a rank in a function": lambda: asking(
        "s = Range (zero, giga, one)  m = local.g (s)", functions=function("g", "y = ConstantOfShape (x)")
    ),
    "a rank in a body": lambda: asking(
        """s = Expand (one, many)  m = Loop (one, yes, zero) <body = b (int64 i, bool c, int64 u) =>
        (bool k, int64 v) { k = Identity (c) z = Expand (u, s)  v = ReduceMax <keepdims = 0> (z) }>""",
        ", bool yes = {1}",
    ),
}


@pytest.mark.few(11)
@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("task", ["auto", "unroll", "tvm", "stream", "open"])
def test_a_small_model_that_asks_for_much(name: str, task: str) -> None:
    """What it asks for is counted, not computed."""
    original, options = ASKING[name](), dict[str, Any]()
    if task in ("unroll", "tvm"):
        options = {"to": "unroll"} if task == "unroll" else {"target": "tvm"}
        options["dims"] = {"T": 3}
    elif task != "auto":
        options = {"stream": "T"} if task == "stream" else {"open_dims": {"X:1": "N"}}
    began = monotonic()
    with suppress(rl.RnnLoweringError):
        rl.lower(original, **options)
    assert monotonic() - began < SECONDS
    if sys.platform == "linux":
        from resource import RUSAGE_SELF, getrusage

        assert getrusage(RUSAGE_SELF).ru_maxrss < MOST_KILOBYTES


def test_functions_that_multiply_are_refused_everywhere() -> None:
    original = ASKING["functions"]()
    calls: list[Callable[[], object]] = [
        lambda: rl.lower(original),
        lambda: rl.preview(original),
        lambda: rl.inspect(original),
        lambda: rl.verify(original, original),
    ]
    for call in calls:
        with pytest.raises(rl.UnsupportedError, match=r"536,870,9\d\d nodes, more than "):
            call()


def test_functions_that_are_called_often_are_lowered() -> None:
    functions = function("f0", "y = Neg (x)") + "".join(
        function(f"f{n}", f"a = local.f{n - 1} (x) y = local.f{n - 1} (a)") for n in range(1, 10)
    )
    original = asking("m = local.f9 (Y)", functions=functions)
    assert rl.verify(original, rl.lower(original), runs=1).whole
