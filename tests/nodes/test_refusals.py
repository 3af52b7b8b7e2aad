"""What a node may not say, and what it may say although it looks odd."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from cases import FORMALS, RESULTS, Case, expected, feed, model
from graphs import Graph
from onnx import AttributeProto, TensorProto, helper
from oracle import DEFAULT_ACTIVATIONS, GATES
from running import assert_close, run
from texts import FORMS, parse
from thinning import exhaustive

import rnn_lowering as rl
from rnn_lowering.errors import UnknownSizeError
from rnn_lowering.flags import for_command
from rnn_lowering.nodes.rnn import RecurrentSpec

OPS = tuple(GATES)
T, N, I, H = 5, 3, 2, 4  # noqa: E741
NEWEST = onnx.defs.onnx_opset_version()
INT32, FLOAT, DOUBLE, HALF = TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16


def page(op_type: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a forward node."""
    rows = GATES[op_type] * H
    shapes = {
        "X": (T, N, I),
        "W": (1, rows, I),
        "R": (1, rows, H),
        "B": (1, 2 * rows),
        "sequence_lens": (N,),
        "initial_h": (1, N, H),
        "initial_c": (1, N, H),
        "P": (1, 3 * H),
    }
    return {symbol: shapes[symbol] for symbol in FORMALS[op_type]}


def node_model(
    op_type: str,
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    shapes: Mapping[str, Any] | None = None,
    types: Mapping[str, int] | None = None,
    dtype: int = FLOAT,
    absent: Sequence[str] = (),
    constants: Sequence[str] = (),
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    values: Mapping[str, Sequence[int]] | None = None,
    name: str = "the node",
) -> onnx.ModelProto:
    """A node all of whose inputs are connected: graph inputs, or `constants` full of zeros."""
    sizes: dict[str, Any] = {**page(op_type), **(shapes or {})}
    given = list(inputs or [symbol if symbol not in absent else "" for symbol in FORMALS[op_type]])
    elem_types = {**dict.fromkeys(sizes, dtype), "sequence_lens": INT32, **(types or {})}
    node = helper.make_node(op_type, given, list(outputs or RESULTS[op_type]), name)
    for key, value in {"hidden_size": H, **(attributes or {})}.items():
        if isinstance(value, AttributeProto):
            node.attribute.append(value)
        elif value is not None:
            node.attribute.append(helper.make_attribute(key, value))
    graph = Graph([node])
    for s in filter(None, dict.fromkeys(given)):
        numpy_type = helper.tensor_dtype_to_np_dtype(elem_types.get(s, dtype))
        if s in constants:
            graph.constant((values or {}).get(s, np.zeros(sizes[s])), numpy_type, s)
        else:
            graph.input(s, sizes.get(s), numpy_type)
    for s in node.output:
        graph.output(s, [None] * (4 if s == "Y" else 3), helper.tensor_dtype_to_np_dtype(dtype))
    return graph.model(opset)


def assert_refused(
    proto: onnx.ModelProto, fact: str, error: type[rl.RnnLoweringError] = rl.InvalidNodeError, **options: Any
) -> None:
    op_type = proto.graph.node[0].op_type
    with pytest.raises(error, match=fact) as caught:
        rl.lower(proto, **options)
    assert str(caught.value).startswith(f"{op_type} node 'the node' in main graph: ")
    assert "\n" not in str(caught.value)
    where = caught.value.node
    assert where is not None
    assert (where.name, where.operator, where.scope) == ("the node", op_type, "main graph")
    assert type(caught.value) is error


def test_the_unchanged_node_is_accepted() -> None:
    for op_type in OPS:
        for constants in ((), tuple(page(op_type))[1:]):
            onnx.checker.check_model(rl.lower(node_model(op_type, constants=constants)), full_check=True)


Row = tuple[dict[str, Any], str]
"""What differs from the valid node, and words of the error."""


def attributes(op: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Wrong attributes of an operator, with the opset."""
    names = DEFAULT_ACTIVATIONS[op]
    one_int = AttributeProto(name="hidden_size", type=AttributeProto.INTS, ints=[1])
    yield 17, {"bias": 1}, "no attribute 'bias'"
    yield 17, {"Clip": 1.0}, "no attribute 'Clip'"
    for name, owner in (("linear_before_reset", "GRU"), ("input_forget", "LSTM")):
        if op != owner:
            yield 17, {name: 1}, f"{op}-14 has no attribute '{name}'"
            yield 17, {name: 0}, f"{op}-14 has no attribute '{name}'"
        else:
            yield 17, {name: 1.0}, f"'{name}' is of type FLOAT, not INT"
            yield 17, {name: "yes"}, f"'{name}' is of type STRING, not INT"
    if op == "GRU":
        yield 2, {"linear_before_reset": 1}, "GRU-1 has no attribute 'linear_before_reset'"
    yield 13, {"layout": 0}, f"{op}-7 has no attribute 'layout'"
    yield 7, {"layout": 1}, f"{op}-7 has no attribute 'layout'"
    yield 7, {"output_sequence": 0}, f"{op}-7 has no attribute 'output_sequence'"
    yield 22, {"output_sequence": 1}, f"{op}-22 has no attribute 'output_sequence'"
    yield from ((17, {"layout": layout}, f"layout is {layout}") for layout in (2, -1))
    yield 17, {"clip": 1}, "'clip' is of type INT, not FLOAT"
    yield 17, {"hidden_size": 4.0}, "'hidden_size' is of type FLOAT, not INT"
    yield 17, {"hidden_size": one_int}, "'hidden_size' is of type INTS, not INT"
    yield 17, {"activations": "Tanh"}, "'activations' is of type STRING, not STRINGS"
    yield 17, {"direction": 0}, "'direction' is of type INT, not STRING"
    yield 17, {"direction": ["forward"]}, "'direction' is of type STRINGS, not STRING"
    yield 17, {"activation_alpha": 0.1}, "'activation_alpha' is of type FLOAT, not FLOATS"
    yield 17, {"activation_beta": [1, 2]}, "'activation_beta' is of type INTS, not FLOATS"
    for clip in (0.0, -0.0, -1.0, math.nan, -math.inf) if op != "RNN" else ():
        yield 17, {"clip": clip}, f"clip is {clip:g}"
    for name in ("Foo", "", "Tanh ", "Gelu"):
        yield 17, {"activations": [name, *names[1:]]}, f"'{name}'.*Sigmoid"
    for count in {*range(1, 7)} - {len(names)} - ({2} if op == "RNN" else set()):
        yield 17, {"activations": ["Tanh"] * count}, f"{count} activations, not {len(names)}"
    yield 17, {"direction": "reverse", "activations": names * 3}, "activations"
    for direction in ("Forward", "FORWARD", "both", "", "foward"):
        yield 17, {"direction": direction}, f"direction is '{direction}'.*forward, reverse and bidirectional"
    yield from ((17, {"hidden_size": size}, f"hidden_size is {size}; it must be positive") for size in (0, -4))
    yield from ((17, {"hidden_size": size}, f"hidden_size is {size}.*R has {H} columns") for size in (1, 5, 8))


def shapes(op: str) -> Iterator[Row]:
    """Shapes with an axis more or less, and with one size wrong on each axis that something else determines."""
    of_page, names = page(op), DEFAULT_ACTIVATIONS[op]
    for symbol, good in of_page.items():
        free = {"X": (0, 1), "sequence_lens": ()}.get(symbol, ())
        wrong = [(*good[:n], good[n] + 1, *good[n + 1 :]) for n in range(len(good)) if n not in free]
        for shape in (good[1:], (*good, 1), (1, *good), *wrong):
            for constants in ([], [symbol])[: 1 if symbol == "X" else 2]:
                yield {"shapes": {symbol: shape}, "constants": constants}, r"has shape \[.*\], not \[.*\]|but R has"
    for symbol in ("W", "B", "initial_h"):
        first, *rest = of_page[symbol]
        told = rf"{symbol} has shape \[{', '.join(map(str, (first + 1, *rest)))}\], not \[{first}, "
        yield {"shapes": {symbol: (first + 1, *rest)}}, told
    for absent, constants in product(([], ["initial_h", "initial_c"], ["initial_h"]), ([], ["sequence_lens"])):
        more = {"shapes": {"sequence_lens": (N + 1,)}, "absent": absent, "constants": constants}
        yield more, rf"sequence_lens has shape \[{N + 1}\], not \[batch_size={N}\]"
    state = {"initial_h": (1, N + 1, H)}
    yield {"shapes": {"sequence_lens": (N + 1,), **state}}, r": (initial_c|X) has shape"  # as the others disagree
    yield {"shapes": state}, ": initial_h has shape"
    both = {s: (2, *dims[1:]) for s, dims in of_page.items() if s not in ("X", "sequence_lens")}
    yield {"attributes": {"direction": "forward"}, "shapes": both}, r"has shape \["
    yield {"attributes": {"direction": "bidirectional"}}, r"has shape \["
    for wrong_names in (names, [*names, *names, "Tanh"]):
        given = {"direction": "bidirectional", "activations": wrong_names}
        yield {"attributes": given, "shapes": both}, f"{len(wrong_names)} activations, not {2 * len(names)}"
    yield {"attributes": {"layout": 1}, "shapes": {"X": (N, T, I)}}, "initial_h has shape"
    unknown = {"R": (None, None, None), "W": (None, None, None)}
    yield {"attributes": {"hidden_size": None}, "shapes": unknown}, "hidden_size"
    empty = {s: tuple(0 if size % H == 0 else size for size in dims) for s, dims in of_page.items()}
    yield {"attributes": {"hidden_size": None}, "shapes": empty}, "R has 0 columns"
    for lengths, T_of_X in (((5, 6, 1), T), ((5, -1, 1), T), ((2, -1, 1), None)):
        values = {"sequence_lens": lengths}
        row = {"shapes": {"X": (T_of_X, N, I)}, "constants": ["sequence_lens"], "values": values}
        yield row, r"sequence_lens is \["


def types_and_counts(op: str) -> Iterator[Row]:
    for other, symbol in product((DOUBLE, HALF, INT32), page(op)):
        if symbol != "sequence_lens":
            yield {"types": {symbol: other}}, "different types"
    for other in (TensorProto.INT64, FLOAT, TensorProto.UINT32, TensorProto.BOOL):
        for constants in ([], ["sequence_lens"]):
            row = {"types": {"sequence_lens": other}, "constants": constants}
            yield row, "sequence_lens is .*, not INT32"
    for other in (INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING):
        yield {"dtype": other}, f"{TensorProto.DataType.Name(other)} is not a type of {op}-14"
    for opset, version in ((7, 7), (13, 7), (21, 14)):
        yield {"dtype": TensorProto.BFLOAT16, "opset": opset}, f"BFLOAT16 is not a type of {op}-{version}"
    yield from (({"absent": [symbol]}, f"input {symbol} is missing") for symbol in ("X", "W", "R"))
    given, results = FORMALS[op], RESULTS[op]
    yield from (({"inputs": given[:n]}, f"{n} inputs?; 3 to {len(given)}") for n in (1, 2))
    yield {"inputs": [*given, "X"]}, f"{len(given) + 1} inputs.*3 to {len(given)}"
    yield {"outputs": [*results, "more"]}, f"{len(results) + 1} outputs.*at most {len(results)}"


def invalid(op: str) -> Iterator[Row]:
    yield from (({"attributes": given, "opset": opset}, fact) for opset, given, fact in attributes(op))
    yield from shapes(op)
    yield from types_and_counts(op)


def each_of_one_operator() -> Iterator[Any]:
    """Yield the rows of all operators. The default run has a row of several, such as a wrong shape of X, with one
    of them, by turns."""
    alike: dict[str, list[tuple[str, Row]]] = defaultdict(list)
    for op in OPS:
        counts: Counter[str] = Counter()
        for row in invalid(op):
            kind = re.sub(r"\d+", "", repr(row)).replace(op, "")
            alike[f"{kind} {counts[kind]}"].append((op, row))
            counts[kind] += 1
    for turn, rows in enumerate(alike.values()):
        for n, (op, (changes, fact)) in enumerate(rows):
            case = (op, changes, fact)
            yield case if n == turn % len(rows) else exhaustive(case)


@pytest.mark.parametrize(("op_type", "changes", "fact"), list(each_of_one_operator()))
def test_an_invalid_node(op_type: str, changes: dict[str, Any], fact: str) -> None:
    assert_refused(node_model(op_type, **changes), fact)


UNSUPPORTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"shapes": {"X": ("seq", N, I)}}, {"to": "unroll"}, r"--set-dim seq=\?, or use --to scan or --to loop"),
    (
        {"shapes": {"X": (None, N, I)}},
        {"to": "unroll"},
        rf"--set-shape X:\?,{N},{I}, or use --to scan or --to loop",
    ),
    (
        {"shapes": {"X": (2709, N, I)}},
        {"to": "unroll"},
        "2709 steps.* 512 .*--max-unroll 2709.*--to scan or --to loop",
    ),
    ({}, {"to": "unroll", "max_unroll": 4}, "5 steps.* 4 .*--max-unroll 5"),
    *(({"opset": opset}, {"to": "scan"}, f"Scan needs opset 9.*{opset}.*loop") for opset in (7, 8)),
    *(
        ({"opset": opset}, {"to": to}, rf"opset {opset} is .*onnx package.*{NEWEST}")
        for opset in (NEWEST + 1, 0)
        for to in ("auto", *FORMS)
    ),
]


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize(("changes", "options", "fact"), UNSUPPORTED)
def test_what_a_form_cannot_be(op_type: str, changes: dict[str, Any], options: dict[str, Any], fact: str) -> None:
    error = UnknownSizeError if "set-dim" in fact or "set-shape" in fact else rl.UnsupportedError
    with for_command():
        assert_refused(node_model(op_type, **changes), fact, error, **options)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        *(({"to": to}, f"'{to}'.*auto, scan, loop, unroll") for to in ("while", "Scan", "")),
        ({"compute": "int8"}, "'int8'.*native, float32"),
    ],
)
def test_an_unknown_option(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=fact):
        rl.lower(node_model("RNN"), **options)


# How a node is named


@pytest.mark.parametrize(
    ("proto", "named", "scope"),
    [
        (node_model("GRU", {"clip": -1.0}, name=""), r"GRU node '-> Y' in main graph: clip is -1", "main graph"),
        (
            model(Case("refused_in_if", "GRU", {"clip": -1.0}, scope="if"), 17),
            r"in main graph > if \(If\) (then|else)_branch: clip",
            "main graph > if (If) ",
        ),
        (
            model(Case("refused_in_function", "LSTM", {"clip": -1.0}, scope="function"), 17),
            r"LSTM node '.*recurrent.*' in .*: clip is -1",
            "",
        ),
    ],
    ids=["by its output", "in a body", "in a function"],
)
def test_how_a_node_is_named(proto: onnx.ModelProto, named: str, scope: str) -> None:
    for to in ("auto", "loop"):
        with pytest.raises(rl.InvalidNodeError, match=named) as caught:
            rl.lower(proto, to)
        assert caught.value.node is not None
        assert caught.value.node.scope.startswith(scope)


def test_only_selected_nodes_are_judged() -> None:
    proto = node_model("GRU", {"clip": -1.0})
    assert rl.lower(proto, except_=["the node"]) == proto
    assert rl.lower(proto, except_="GRU") == proto


# What is accepted


EMPTY = AttributeProto(name="activations", type=AttributeProto.STRINGS)
PARAMETERS = {"activation_alpha": [0.5, 0.25, 9.0, 9.0], "activation_beta": [0.125, 9.0]}
GATE = {"GRU": "linear_before_reset", "LSTM": "input_forget"}
READ: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("RNN", {"attributes": {"activations": ["SOFTSIGN"]}}, {"names": ["Softsign"]}),
    ("GRU", {"attributes": {"activations": ["sigmoid", "tANH"]}}, {"names": ["Sigmoid", "Tanh"]}),
    (
        "LSTM",
        {"attributes": {"activations": ["SIGMOID", "softplus", "rELU"]}},
        {"names": ["Sigmoid", "Softplus", "Relu"]},
    ),
    *((op, {"attributes": {"activations": EMPTY}}, {"names": DEFAULT_ACTIVATIONS[op]}) for op in OPS),
    *(
        ("RNN", {"attributes": {"direction": direction, "activations": ["Relu", "Affine"]}}, {"names": ["Relu"]})
        for direction in ("forward", "reverse")
    ),
    (
        "LSTM",
        {"attributes": {"activations": ["HardSigmoid", "LeakyRelu", "Tanh"], **PARAMETERS}},
        {"names": ["HardSigmoid(0.5, 0.125)", "LeakyRelu(0.25)", "Tanh"]},
    ),
    (
        "GRU",
        {"attributes": {"activation_alpha": [3.0], "activation_beta": [3.0]}},
        {"names": ["Sigmoid", "Tanh"]},
    ),
    (
        "LSTM",
        {"attributes": {"activations": ["LeakyRelu", "HardSigmoid", "Elu"], "activation_alpha": [0.5]}},
        {"names": ["LeakyRelu(0.5)", "HardSigmoid(0.2, 0.5)", "Elu(1)"]},
    ),
    *(("RNN", {"attributes": {"clip": clip}}, {"clip": None}) for clip in (-1.0, math.nan, math.inf, -math.inf)),
    ("RNN", {"attributes": {"clip": 0.0}}, {"clip": 0.0}),
    *((op, {"attributes": {"clip": math.inf}}, {"clip": None}) for op in ("GRU", "LSTM")),
    *((op, {"attributes": {"clip": 0.5}}, {"clip": 0.5}) for op in OPS),
    *(
        (op, {"attributes": {"hidden_size": None}, "shapes": {unknown: (None, None, None)}}, {"hidden_size": H})
        for op in OPS
        for unknown in ("W", "R")
    ),
    *(
        (
            op,
            {"shapes": dict.fromkeys(page(op))},
            {"hidden_size": H, "seq_length": None, "batch_size": None, "input_size": None},
        )
        for op in OPS
    ),
    *(
        (op, {"attributes": {GATE[op]: flag}}, {name: name == GATE[op] for name in GATE.values()})
        for op in GATE
        for flag in (2, -1)
    ),
    ("RNN", {}, dict.fromkeys(GATE.values(), False)),
    *((op, {"dtype": TensorProto.BFLOAT16, "opset": 22}, {}) for op in OPS),
]


@pytest.mark.parametrize(("op_type", "changes", "fields"), READ)
def test_what_is_read(op_type: str, changes: dict[str, Any], fields: dict[str, Any]) -> None:
    proto = node_model(op_type, **changes)
    assert rl.inspect(rl.lower(proto)) == []
    (spec,) = rl.inspect(proto)
    assert isinstance(spec, RecurrentSpec)
    names = [str(activation) for of_direction in spec.activations for activation in of_direction]
    assert {name: names if name == "names" else getattr(spec, name) for name in fields} == fields


def test_a_constant_length_may_be_any_where_the_length_is_unknown() -> None:
    lengths = {"sequence_lens": (1, 9999, 0)}
    proto = node_model("GRU", shapes={"X": (None, N, I)}, constants=["sequence_lens"], values=lengths)
    assert rl.inspect(rl.lower(proto)) == []
    rl.lower(node_model("GRU"), "unroll", max_unroll=5)


@pytest.mark.parametrize(
    "case",
    [
        Case("accepted_letters", "LSTM", {"activations": ["SIGMOID", "elu", "TANH"]}),
        Case("accepted_surplus", "GRU", {"activation_alpha": [0.3, 0.4], "activation_beta": [0.5]}),
        Case("accepted_clip", "RNN", {"clip": -0.1}, x_scale=3.0),
        Case("accepted_hidden", "LSTM", hidden_size=False),
    ],
    ids=lambda case: case.name,
)
def test_what_is_accepted_is_right(case: Case) -> None:
    assert_close(run(rl.lower(model(case, 17)), feed(case)), expected(case))


def test_a_projection_that_an_exporter_lost_has_a_way_out() -> None:
    """PyTorch's newer exporter writes an LSTM with proj_size so, without the weights of the projection."""
    net = parse("""g (float[7, 2, 8] x) => (float[7, 1, 2, 5] y) <float[1, 20, 8] W = {}, float[1, 20, 5] R = {},
        float[1, 2, 5] h = {}, float[1, 2, 12] c = {}> { y = LSTM <hidden_size = 5> (x, W, R, , , h, c) }""")
    with pytest.raises(rl.InvalidNodeError, match=r"initial_c has shape \[1, 2, 12\].*proj_size.*loop over Linear"):
        rl.lower(net)
