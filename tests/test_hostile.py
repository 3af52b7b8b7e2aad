"""Hostile models: damaged files, nodes that say anything. The outcome is a result or one of the project's errors.

A longer campaign: HOSTILE_EXAMPLES=20000 pytest -n0 tests/test_hostile.py
"""

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import damage
import fuzz
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from oracle import DEFAULT_ACTIVATIONS, GATES
from scope_models import LOCAL, SCOPES
from texts import parse
from thinning import exhaustive, thinned

import rnn_lowering as rl

EXAMPLES = int(os.environ.get("HOSTILE_EXAMPLES", "200"))
MEMORY = 3 << 30
SECONDS = 5
FORMS = ("auto", "scan", "loop", "unroll")

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


# Limits


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Memory that is enough for anything sensible: an attempt to take more is a MemoryError."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux says how much memory is taken")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


class LateError(BaseException):
    """A model has taken too long."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise an error, which no handler of errors catches, in what takes longer than any of these models should."""

    def late(*_: Any) -> None:
        raise LateError(f"not done in {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# What campaigns have found, one edit each


STEP = """
main (float[5,2,3] X) => (float[5,1,2,4] Y) <float[1,16,3] V = {}, float[1,16,4] R = {}> {
    x = Neg(X)
    W = Transpose <perm=[0,1,2]> (V)
    [lstm] Y = LSTM <hidden_size=4, direction="reverse"> (x, W, R)
}
"""


@dataclass(frozen=True)
class Found:
    """An edit of the model that made another error come through than the project's."""

    name: str
    edit: Callable[[onnx.ModelProto], Any]
    reason: str = ""


def raw(model: onnx.ModelProto, number: int, data: bytes, **fields: Any) -> None:
    tensor = model.graph.initializer[number]
    tensor.raw_data = data
    for name, value in fields.items():
        setattr(tensor, name, value)


def at_opset(version: int, model: onnx.ModelProto) -> None:
    model.opset_import[0].version = version


def sized(axis: int, size: int, model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    del model.graph.output[0].type.tensor_type.shape.dim[:]


def shapeless_at_opset_6(model: onnx.ModelProto) -> None:
    at_opset(6, model)
    model.graph.output[0].type.tensor_type.ClearField("shape")


def constant(model: onnx.ModelProto, **attributes: Any) -> None:
    """Let W come from a Constant node."""
    model.graph.node[1].CopyFrom(helper.make_node("Constant", [], ["W"], **attributes))


def attribute(model: onnx.ModelProto, node: int, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(model.graph.node[node].attribute[0], name, value)


def renamed(model: onnx.ModelProto) -> bytes:
    data: bytes = model.SerializeToString()
    return data.replace(b"Neg", b"\xff\xfe\xfd")


VERSIONS = (0, -1, 2**31, 2**63 - 1, -(2**63))
HUGE = (-1, -7, -(2**63), 2**31 - 1, 2**31, 2**40, 2**63 - 1)
FOUND = [
    Found("a tensor without numbers", lambda m: raw(m, 0, b"")),
    Found("a tensor with too few numbers", lambda m: raw(m, 1, b"\0" * 8)),
    Found("a tensor with half a number", lambda m: raw(m, 1, b"\0" * 7)),
    Found("a tensor with too many numbers", lambda m: raw(m, 1, b"\0" * 4000)),
    Found("a tensor without a type", lambda m: raw(m, 1, b"\0" * 256, data_type=0)),
    Found("a tensor of an unknown type", lambda m: raw(m, 1, b"\0" * 256, data_type=99)),
    Found("a tensor of text", lambda m: raw(m, 1, b"\0" * 256, data_type=8)),
    Found("a negative size of a tensor", lambda m: m.graph.initializer[1].dims.append(-1)),
    Found("a huge size of a tensor", lambda m: m.graph.initializer[1].dims.append(2**62)),
    *(Found(f"opset {n}", partial(at_opset, n)) for n in VERSIONS),
    *(Found(f"X of length {n}", partial(sized, 0, n)) for n in HUGE),
    *(Found(f"X of batch size {n}", partial(sized, 1, n)) for n in HUGE),
    *(Found(f"X of input size {n}", partial(sized, 2, n)) for n in HUGE),
    Found("an output without a shape at opset 6", shapeless_at_opset_6),
    Found("a constant of nothing", constant),
    Found("a constant twice", lambda m: constant(m, value_int=1, value_float=1.0)),
    Found("a constant of something else", lambda m: constant(m, other=1)),
    Found("a constant of the wrong type", lambda m: constant(m, value=1)),
    Found("a constant of text", lambda m: constant(m, value_string="W")),
    Found("a constant of two outputs", lambda m: m.graph.node[1].output.append("more")),
    Found("a chain of no input", lambda m: m.graph.node[1].ClearField("input")),
    Found("an attribute without a type", lambda m: attribute(m, 1, type=0)),
    Found("an attribute of another type", lambda m: attribute(m, 1, type=5)),
    Found("an attribute without a function", lambda m: attribute(m, 1, ref_attr_name="perm")),
    Found("an operator that is no text", renamed),
    Found("an output twice", lambda m: m.graph.output.append(m.graph.output[0])),
    Found("an output of the input", lambda m: m.graph.node[2].output.append("X")),
    Found("an input twice", lambda m: m.graph.input.append(m.graph.input[0])),
    Found("a name that nothing gives", lambda m: m.graph.node[2].input.__setitem__(2, "nothing")),
    Found("a node twice", lambda m: m.graph.node.append(m.graph.node[2])),
    Found("a circle", lambda m: m.graph.node[0].input.__setitem__(0, "Y")),
]


def found() -> Iterator[Any]:
    for case in FOUND:
        marks = [pytest.mark.xfail(reason=case.reason, strict=True)] if case.reason else []
        yield pytest.param(case.edit, id=case.name, marks=marks)


@pytest.mark.parametrize("edit", thinned(list(found()), 5))
def test_what_campaigns_found(edit: Callable[[onnx.ModelProto], Any], little_memory: None, tmp_path: Path) -> None:
    model = parse(STEP)
    edited = edit(model)
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    source.write_bytes(edited if isinstance(edited, bytes) else model.SerializeToString())
    with suppress(rl.RnnLoweringError), time_limit():
        rl.inspect(source)
    for form in FORMS:
        with suppress(rl.RnnLoweringError), time_limit():
            rl.lower_file(source, out, form, verify=0)


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
        *(partial(rl.lower, lowering=form) for form in FORMS),
    ]
    for call in calls:
        with pytest.raises(rl.RnnLoweringError) as caught:
            call(model)
        assert not isinstance(caught.value, rl.InternalError)


# Damaged files


@pytest.mark.parametrize("part", thinned(range(8), 8))
def test_damaged_files(part: int) -> None:
    """`python tests/support/damage.py 0 10000` is the long campaign."""
    count = EXAMPLES // 2
    command = [sys.executable, damage.__file__, str(part * count), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1] == {"done": count}, f"ended in {lines[-1]}: {done.stderr[-3000:]}"
    wrong = [line for line in lines if "wrong" in line]
    assert wrong == [], "\n".join(f"{line['number']}: {line['wrong']}" for line in wrong)


@pytest.mark.parametrize("part", thinned(range(12), 12))
def test_mutants_of_whole_models(part: int) -> None:
    """`python tests/support/fuzz.py 0 200000` is the long campaign."""
    wrong = list(fuzz.campaign(part * EXAMPLES * 2, EXAMPLES * 2))
    assert wrong == [], "\n".join(f"{number}: {what}" for number, what in wrong)


@pytest.mark.parametrize("part", thinned(range(4), 4))
def test_mutants_as_streams(part: int) -> None:
    """`python tests/support/fuzz.py --stream 0 20000` is the long campaign."""
    wrong = list(fuzz.campaign(part * EXAMPLES, EXAMPLES, stream=True))
    assert wrong == [], "\n".join(f"{number}: {what}" for number, what in wrong)


# Nodes that say anything


PARTS = ("inputs", "outputs", "attributes", "kinds", "sizes", "ranks", "types", "names", "versions")
RIGHT = {"T": 3, "N": 2, "I": 3, "H": 4, "P": 12}
PAGES = {"X": "TNI", "W": "DGI", "R": "DGH", "B": "DB", "lens": "N", "h": "DNH", "c": "DNH", "P": "DP"}
FORMALS: dict[str, tuple[str, ...]] = {"RNN": ("X", "W", "R", "B", "lens", "h")}
FORMALS |= {"GRU": FORMALS["RNN"], "LSTM": (*FORMALS["RNN"], "c", "P")}
BYTES_OF: dict[int, int] = {TensorProto.FLOAT: 4, TensorProto.DOUBLE: 8, TensorProto.INT32: 4, TensorProto.INT64: 8}
BYTES_OF |= {TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2}
TYPES = st.sampled_from((*BYTES_OF, TensorProto.STRING, TensorProto.BOOL, TensorProto.UNDEFINED))
SIZES = st.sampled_from(
    (0, 1, 2, 3, 4, 8, 12, 16, -1, -7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, None, "n", "")
)
FLOATS = st.floats(width=32)
TEXTS = st.one_of(st.sampled_from(("", "forward", "Tanh", "\0", "层", "x" * 300)), st.text(max_size=5))
INTEGERS = st.one_of(
    st.integers(-2, 8), st.sampled_from((2**31, 2**62, 2**63 - 1, -(2**63))), st.integers(-(2**63), 2**63 - 1)
)
LISTS = st.one_of(st.lists(INTEGERS, max_size=3), st.lists(TEXTS, max_size=3), st.lists(FLOATS, max_size=3))
ANYTHING = st.one_of(INTEGERS, FLOATS, TEXTS, LISTS, st.binary(max_size=4))
ACTIVATIONS = ("Tanh", "Sigmoid", "Affine", "Elu", "ThresholdedRelu", "softplus", "LeakyRelu", "HardSigmoid")
ATTRIBUTES = ("clip", "direction", "layout", "output_sequence", "input_forget", "activations", "hidden_size", "")


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A recurrent node and what it is given; up to three parts may be wrong."""
    wrong = draw(st.sets(st.sampled_from(PARTS), max_size=3))
    op_type, dirs = draw(st.sampled_from(sorted(GATES))), draw(st.sampled_from((1, 1, 2)))
    element: int = draw(st.sampled_from((1, 1, TensorProto.FLOAT16, TensorProto.DOUBLE)))
    graph = onnx.GraphProto(name=draw(TEXTS) if "names" in wrong else "graph")
    opset = draw(st.sampled_from((7, 8, 9, 10, 11, 13, 14, 17, 21, 22, 26, 28)))
    graph.node.append(draw(nodes(op_type, dirs, opset, wrong)))
    for name, dims in draw(shapes(op_type, dirs, wrong)).items():
        kinds = ("input", "initializer", "settable", "none") if "kinds" in wrong else ("input", "initializer")
        dtype: int = TensorProto.INT32 if name == "lens" else element
        dtype = draw(TYPES) if "types" in wrong and draw(st.booleans()) else dtype
        _give(graph, name, draw(st.sampled_from(kinds)), dtype, dims)
    for name in graph.node[0].output:
        if name:
            unknown = None if "ranks" in wrong else [None] * (4 if name == "Y" else 3)
            graph.output.append(helper.make_tensor_value_info(name, element, unknown))
    if "versions" in wrong:
        opset = draw(st.sampled_from((1, 2, 3, 5, 6, 29, 0, -1, 2**40)))
    ir_version = draw(st.sampled_from((3, 4, 8, 10)))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


@st.composite
def nodes(draw: st.DrawFn, op_type: str, dirs: int, opset: int, wrong: set[str]) -> onnx.NodeProto:
    used = draw(st.sets(st.sampled_from(FORMALS[op_type][3:])))
    inputs = [name if name in used or n < 3 else "" for n, name in enumerate(FORMALS[op_type])]
    results = ("Y", "Y_h", "Y_c") if op_type == "LSTM" else ("Y", "Y_h")
    outputs = [name if draw(st.booleans()) else "" for name in results]
    if "inputs" in wrong:
        inputs = draw(st.lists(st.sampled_from(("X", "W", "R", "B", "h", "", "other")), max_size=10))
    if "outputs" in wrong:
        outputs = draw(st.lists(st.sampled_from(("Y", "Y_h", "Y", "", "X", "Z")), max_size=4))
    node = helper.make_node(op_type, inputs, outputs, draw(TEXTS) if "names" in wrong else "node")
    given = draw(attributes(op_type, dirs, opset))
    if "attributes" in wrong:
        given |= draw(st.dictionaries(st.one_of(st.sampled_from(ATTRIBUTES), TEXTS), ANYTHING, max_size=2))
    node.attribute.extend(_attribute(name, value) for name, value in given.items())
    return node


@st.composite
def attributes(draw: st.DrawFn, op_type: str, dirs: int, opset: int) -> dict[str, Any]:
    """Attributes that are right."""
    count = len(DEFAULT_ACTIVATIONS[op_type]) * dirs
    possible: dict[str, st.SearchStrategy[Any]] = {
        "hidden_size": st.just(4),
        "activations": st.lists(st.sampled_from(ACTIVATIONS), min_size=count, max_size=count),
        "activation_alpha": st.lists(FLOATS, max_size=6),
        "activation_beta": st.lists(FLOATS, max_size=6),
        "clip": st.floats(2**-20, math.inf, width=32) if op_type != "RNN" else FLOATS,
        **({"layout": st.integers(0, 1)} if opset >= 14 else {}),
        **({"GRU": {"linear_before_reset": INTEGERS}, "LSTM": {"input_forget": INTEGERS}}.get(op_type, {})),
    }
    given = {name: draw(possible[name]) for name in sorted(draw(st.sets(st.sampled_from(sorted(possible)))))}
    direction = draw(st.sampled_from(("forward", "reverse"))) if dirs == 1 else "bidirectional"
    return {**given, "direction": direction}


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, list) and not value:
        kind = onnx.AttributeProto.STRINGS if name == "activations" else onnx.AttributeProto.FLOATS
        return onnx.AttributeProto(name=name, type=kind)
    return helper.make_attribute(name, value)


@st.composite
def shapes(draw: st.DrawFn, op_type: str, dirs: int, wrong: set[str]) -> dict[str, list[Any]]:
    """The sizes of what the node is given."""
    G = GATES[op_type] * 4
    right: dict[str, Any] = {**RIGHT, "D": dirs, "G": G, "B": 2 * G}
    right |= {letter: draw(st.sampled_from((right[letter], None, letter))) for letter in "TN"}
    if "sizes" in wrong:
        right |= draw(st.dictionaries(st.sampled_from(sorted(right)), SIZES, max_size=2))
    given = {name: [right[letter] for letter in page] for name, page in PAGES.items()}
    if "ranks" in wrong:
        given |= draw(st.dictionaries(st.sampled_from(sorted(PAGES)), st.lists(SIZES, max_size=4), max_size=2))
    return given


def _give(graph: onnx.GraphProto, name: str, kind: str, element: int, dims: list[Any]) -> None:
    if kind in ("initializer", "settable"):
        sizes = [d if isinstance(d, int) else 2 for d in dims]
        tensor = TensorProto(name=name, data_type=element, dims=sizes)
        tensor.raw_data = bytes(max(0, min(math.prod(sizes), 1000)) * BYTES_OF.get(element, 1))
        graph.initializer.append(tensor)
    if kind in ("input", "settable"):
        graph.input.append(helper.make_tensor_value_info(name, element, dims))


def taken(model: onnx.ModelProto) -> bool:
    """Whether the checker accepts a model, and does not compute with negative sizes, which can abort its
    process."""
    shapes = [value.type.tensor_type.shape for value in model.graph.input]
    if any(dim.dim_value < 0 for shape in shapes for dim in shape.dim):
        return False
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def check(model: onnx.ModelProto, form: str) -> None:
    """Lower a model: the result is as the checker wants it where the model was, or it is refused."""
    with suppress(rl.RnnLoweringError):
        rl.inspect(model)
    before = model.SerializeToString(deterministic=True)
    try:
        lowered = rl.lower(model, form)
    except rl.RnnLoweringError:
        return
    finally:
        assert model.SerializeToString(deterministic=True) == before
    if taken(model):
        onnx.checker.check_model(lowered, full_check=True)


@pytest.mark.parametrize(("form", "count"), [("auto", EXAMPLES // 2), *(exhaustive((f, EXAMPLES)) for f in FORMS)])
def test_nodes_that_say_anything(form: str, count: int, little_memory: None) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def attempt(model: onnx.ModelProto) -> None:
        note(str(model))
        with time_limit():
            check(model, form)

    attempt()
