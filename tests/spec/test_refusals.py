"""What a node may not say, and what it may say although it looks odd."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from cases import FORMALS, RESULTS, Case, expected, feed, model
from onnx import AttributeProto, TensorProto, helper
from oracle import DEFAULT_ACTIVATIONS, GATES
from running import assert_close, run

import rnn_lowering as rl
from rnn_lowering.errors import UnknownSizeError

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
    shapes: Mapping[str, Sequence[int | str | None] | None] | None = None,
    types: Mapping[str, int] | None = None,
    dtype: int = FLOAT,
    absent: Sequence[str] = (),
    constants: Sequence[str] = (),
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    name: str = "the node",
) -> onnx.ModelProto:
    """A node all of whose inputs are connected: graph inputs, or `constants` full of zeros."""
    sizes = {**page(op_type), **(shapes or {})}
    given = list(inputs or [symbol if symbol not in absent else "" for symbol in FORMALS[op_type]])
    elem_types = {**dict.fromkeys(sizes, dtype), "sequence_lens": INT32, **(types or {})}
    node = helper.make_node(op_type, given, list(outputs or RESULTS[op_type]), name)
    for key, value in {"hidden_size": H, **(attributes or {})}.items():
        if isinstance(value, AttributeProto):
            node.attribute.append(value)
        elif value is not None:
            node.attribute.append(helper.make_attribute(key, value))
    names = [s for s in dict.fromkeys(given) if s]
    graph = helper.make_graph(
        [node],
        "refusal",
        [
            helper.make_tensor_value_info(s, elem_types.get(s, dtype), sizes.get(s))
            for s in names
            if s not in constants
        ],
        [helper.make_tensor_value_info(s, dtype, [None] * (4 if s == "Y" else 3)) for s in node.output if s],
        [_zeros(s, elem_types[s], sizes[s]) for s in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _zeros(name: str, elem_type: int, shape: Any) -> TensorProto:
    array = np.zeros(shape, helper.tensor_dtype_to_np_dtype(elem_type))
    return onnx.numpy_helper.from_array(array, name)


def assert_refused(
    proto: onnx.ModelProto, fact: str, error: type[rl.RnnLoweringError] = rl.InvalidNodeError, to: str = "auto"
) -> None:
    op_type = proto.graph.node[0].op_type
    with pytest.raises(error, match=fact) as caught:
        rl.lower(proto, to)
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


# Attributes


def ints(name: str) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.INTS, ints=[1])


ATTRIBUTES: list[tuple[str, int, dict[str, Any], str]] = [
    *[(op, 17, {"bias": 1}, "no attribute 'bias'") for op in OPS],
    *[(op, 17, {"Clip": 1.0}, "no attribute 'Clip'") for op in OPS],
    ("LSTM", 17, {"linear_before_reset": 1}, "LSTM-14 has no attribute 'linear_before_reset'"),
    ("RNN", 17, {"linear_before_reset": 0}, "RNN-14 has no attribute 'linear_before_reset'"),
    ("GRU", 17, {"input_forget": 1}, "GRU-14 has no attribute 'input_forget'"),
    ("RNN", 17, {"input_forget": 0}, "RNN-14 has no attribute 'input_forget'"),
    *[(op, 13, {"layout": 0}, f"{op}-7 has no attribute 'layout'") for op in OPS],
    *[(op, 7, {"layout": 1}, f"{op}-7 has no attribute 'layout'") for op in OPS],
    *[(op, 7, {"output_sequence": 0}, f"{op}-7 has no attribute 'output_sequence'") for op in OPS],
    *[(op, 22, {"output_sequence": 1}, f"{op}-22 has no attribute 'output_sequence'") for op in OPS],
    ("GRU", 2, {"linear_before_reset": 1}, "GRU-1 has no attribute 'linear_before_reset'"),
    *[(op, 17, {"layout": layout}, f"layout is {layout}") for op in OPS for layout in (2, -1)],
    *[(op, 17, {"clip": 1}, "'clip' is of type INT, not FLOAT") for op in OPS],
    *[(op, 17, {"hidden_size": 4.0}, "'hidden_size' is of type FLOAT, not INT") for op in OPS],
    *[(op, 17, {"hidden_size": ints("hidden_size")}, "'hidden_size' is of type INTS, not INT") for op in OPS],
    ("LSTM", 17, {"activations": "Tanh"}, "'activations' is of type STRING, not STRINGS"),
    ("RNN", 17, {"direction": 0}, "'direction' is of type INT, not STRING"),
    ("RNN", 17, {"direction": ["forward"]}, "'direction' is of type STRINGS, not STRING"),
    ("GRU", 17, {"activation_alpha": 0.1}, "'activation_alpha' is of type FLOAT, not FLOATS"),
    ("GRU", 17, {"activation_beta": [1, 2]}, "'activation_beta' is of type INTS, not FLOATS"),
    ("GRU", 17, {"linear_before_reset": 1.0}, "'linear_before_reset' is of type FLOAT, not INT"),
    ("LSTM", 17, {"input_forget": "yes"}, "'input_forget' is of type STRING, not INT"),
    *[(op, 17, {"clip": clip}, f"clip is {clip:g}") for op in ("GRU", "LSTM") for clip in (0.0, -0.0, -1.0)],
    *[(op, 17, {"clip": clip}, "clip is (nan|-inf)") for op in ("GRU", "LSTM") for clip in (math.nan, -math.inf)],
    *[
        (op, 17, {"activations": [name, *names[1:]]}, f"'{name}'.*Sigmoid")
        for op, names in DEFAULT_ACTIVATIONS.items()
        for name in ("Foo", "", "Tanh ", "Gelu")
    ],
    *[
        (op, 17, {"activations": ["Tanh"] * count}, f"{count} activations, not {len(names)}")
        for op, names in DEFAULT_ACTIVATIONS.items()
        for count in range(1, 7)
        if count != len(names) and (op, count) != ("RNN", 2)
    ],
    *[
        (op, 17, {"direction": "reverse", "activations": names * 3}, "activations")
        for op, names in DEFAULT_ACTIVATIONS.items()
    ],
    *[
        (op, 17, {"direction": direction}, f"direction is '{direction}'.*forward, reverse and bidirectional")
        for op in OPS
        for direction in ("Forward", "FORWARD", "both", "", "foward")
    ],
    *[
        (op, 17, {"hidden_size": size}, f"hidden_size is {size}; it must be positive")
        for op in OPS
        for size in (0, -4)
    ],
    *[
        (op, 17, {"hidden_size": size}, f"hidden_size is {size}.*R has {H} columns")
        for op in OPS
        for size in (1, 5, 8)
    ],
]


@pytest.mark.parametrize(("op_type", "opset", "attributes", "fact"), ATTRIBUTES)
def test_wrong_attribute(op_type: str, opset: int, attributes: dict[str, Any], fact: str) -> None:
    assert_refused(node_model(op_type, attributes, opset=opset), fact)


@pytest.mark.parametrize("op_type", OPS)
def test_wrong_number_of_activations_of_two_directions(op_type: str) -> None:
    names = DEFAULT_ACTIVATIONS[op_type]
    shapes = {s: (2, *dims[1:]) for s, dims in page(op_type).items() if s not in ("X", "sequence_lens")}
    for wrong in (names, [*names, *names, "Tanh"]):
        attributes = {"direction": "bidirectional", "activations": wrong}
        fact = f"{len(wrong)} activations, not {2 * len(names)}"
        assert_refused(node_model(op_type, attributes, shapes=shapes), fact)


# Shapes


def _wrong(symbol: str, good: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Shapes with one axis more or less, and with one size wrong on each axis that something else determines."""
    yield good[1:]
    yield (*good, 1)
    yield (1, *good)
    free = {"X": (0, 1), "sequence_lens": ()}.get(symbol, ())
    for axis in range(len(good)):
        if axis not in free:
            yield (*good[:axis], good[axis] + 1, *good[axis + 1 :])


SHAPES = [
    (op_type, symbol, shape)
    for op_type in OPS
    for symbol, good in page(op_type).items()
    for shape in _wrong(symbol, good)
]


@pytest.mark.parametrize(("op_type", "symbol", "shape"), SHAPES)
def test_wrong_shape(op_type: str, symbol: str, shape: tuple[int, ...]) -> None:
    for constants in ([], [symbol])[: 1 if symbol == "X" else 2]:
        proto = node_model(op_type, shapes={symbol: shape}, constants=constants)
        assert_refused(proto, r"has shape \[.*\], not \[.*\]|but R has")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("symbol", ["W", "B", "initial_h"])
def test_a_wrong_shape_is_named(op_type: str, symbol: str) -> None:
    first, *rest = page(op_type)[symbol]
    wrong = [first + 1, *rest]
    pattern = rf"{symbol} has shape \[{', '.join(map(str, wrong))}\], not \[{first}, "
    assert_refused(node_model(op_type, shapes={symbol: wrong}), pattern)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("absent", [[], ["initial_h", "initial_c"], ["initial_h"]], ids=str)
@pytest.mark.parametrize("constants", [[], ["sequence_lens"]], ids=str)
def test_wrong_lengths_are_blamed_where_the_others_agree(
    op_type: str, absent: list[str], constants: list[str]
) -> None:
    proto = node_model(op_type, shapes={"sequence_lens": (N + 1,)}, absent=absent, constants=constants)
    assert_refused(proto, rf"sequence_lens has shape \[{N + 1}\], not \[batch_size={N}\]")


@pytest.mark.parametrize("op_type", OPS)
def test_wrong_lengths_are_not_blamed_where_the_others_disagree(op_type: str) -> None:
    more = {"sequence_lens": (N + 1,), "initial_h": (1, N + 1, H)}
    assert_refused(node_model(op_type, shapes=more), r": (initial_c|X) has shape")
    assert_refused(node_model(op_type, shapes={"initial_h": (1, N + 1, H)}), ": initial_h has shape")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_directions_and_shapes(op_type: str, direction: str) -> None:
    """The weights of one direction for two, and the other way round."""
    both = {s: (2, *dims[1:]) for s, dims in page(op_type).items() if s not in ("X", "sequence_lens")}
    shapes = {} if direction == "bidirectional" else both
    assert_refused(node_model(op_type, {"direction": direction}, shapes=shapes), r"has shape \[")


@pytest.mark.parametrize("op_type", OPS)
def test_batch_first_shapes(op_type: str) -> None:
    """With layout 1 the states are batch first too."""
    assert_refused(node_model(op_type, {"layout": 1}, shapes={"X": (N, T, I)}), "initial_h has shape")


@pytest.mark.parametrize("op_type", OPS)
def test_nothing_says_hidden_size(op_type: str) -> None:
    shapes = {"R": (None, None, None), "W": (None, None, None)}
    assert_refused(node_model(op_type, {"hidden_size": None}, shapes=shapes), "hidden_size")


@pytest.mark.parametrize("op_type", OPS)
def test_no_hidden_units(op_type: str) -> None:
    shapes = {
        "R": (1, 0, 0),
        "W": (1, 0, I),
        "B": (1, 0),
        "initial_h": (1, N, 0),
        "initial_c": (1, N, 0),
        "P": (1, 0),
    }
    proto = node_model(
        op_type, {"hidden_size": None}, shapes={s: shapes.get(s, d) for s, d in page(op_type).items()}
    )
    assert_refused(proto, "R has 0 columns")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize(("lengths", "known"), [((5, 6, 1), True), ((5, -1, 1), True), ((2, -1, 1), False)])
def test_constant_lengths_out_of_range(op_type: str, lengths: tuple[int, ...], known: bool) -> None:
    proto = node_model(op_type, shapes={} if known else {"X": (None, N, I)}, constants=["sequence_lens"])
    tensor = onnx.numpy_helper.from_array(np.array(lengths, np.int32), "sequence_lens")
    proto.graph.initializer[0].CopyFrom(tensor)
    assert_refused(proto, r"sequence_lens is \[")


def test_a_constant_length_may_be_any_where_the_length_is_unknown() -> None:
    proto = node_model("GRU", shapes={"X": (None, N, I)}, constants=["sequence_lens"])
    lengths = np.array([1, 9999, 0], np.int32)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(lengths, "sequence_lens"))
    assert rl.inspect(rl.lower(proto)) == []


# Types


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("other", [DOUBLE, HALF, INT32])
def test_mixed_types(op_type: str, other: int) -> None:
    for symbol in page(op_type):
        if symbol != "sequence_lens":
            assert_refused(node_model(op_type, types={symbol: other}), "different types")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("elem_type", [TensorProto.INT64, FLOAT, TensorProto.UINT32, TensorProto.BOOL])
def test_lengths_of_another_type(op_type: str, elem_type: int) -> None:
    for constants in ([], ["sequence_lens"]):
        proto = node_model(op_type, types={"sequence_lens": elem_type}, constants=constants)
        assert_refused(proto, "sequence_lens is .*, not INT32")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("elem_type", [INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING])
def test_types_that_no_version_supports(op_type: str, elem_type: int) -> None:
    name = TensorProto.DataType.Name(elem_type)
    assert_refused(node_model(op_type, dtype=elem_type), f"{name} is not a type of {op_type}-14")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize(("opset", "version"), [(7, 7), (13, 7), (21, 14)])
def test_bfloat16_below_22(op_type: str, opset: int, version: int) -> None:
    proto = node_model(op_type, dtype=TensorProto.BFLOAT16, opset=opset)
    assert_refused(proto, f"BFLOAT16 is not a type of {op_type}-{version}")
    rl.lower(node_model(op_type, dtype=TensorProto.BFLOAT16, opset=22))


# Inputs and outputs


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("symbol", ["X", "W", "R"])
def test_missing_input(op_type: str, symbol: str) -> None:
    assert_refused(node_model(op_type, absent=[symbol]), f"input {symbol} is missing")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("count", [1, 2])
def test_too_few_inputs(op_type: str, count: int) -> None:
    assert_refused(node_model(op_type, inputs=["X", "W"][:count]), f"{count} inputs.*3 to {len(FORMALS[op_type])}")


@pytest.mark.parametrize("op_type", OPS)
def test_too_many_inputs(op_type: str) -> None:
    most = len(FORMALS[op_type])
    assert_refused(node_model(op_type, inputs=[*FORMALS[op_type], "X"]), f"{most + 1} inputs.*3 to {most}")


@pytest.mark.parametrize("op_type", OPS)
def test_too_many_outputs(op_type: str) -> None:
    most = len(RESULTS[op_type])
    outputs = [*RESULTS[op_type], "more"]
    assert_refused(node_model(op_type, outputs=outputs), f"{most + 1} outputs.*at most {most}")


# Options and forms


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize(
    ("length", "option"), [("seq", r"--set-dim seq=\?"), (None, rf"--input-shape X:\?,{N},{I}")]
)
def test_unroll_without_a_length(op_type: str, length: str | None, option: str) -> None:
    proto = node_model(op_type, shapes={"X": (length, N, I)})
    assert_refused(
        proto, f"length is not known.*: {option}, or use --to scan or --to loop", UnknownSizeError, "unroll"
    )


@pytest.mark.parametrize("op_type", OPS)
def test_unroll_of_too_many_steps(op_type: str) -> None:
    proto = node_model(op_type, shapes={"X": (2709, N, I)})
    assert_refused(
        proto, "2709 steps.* 512 .*--max-unroll 2709.*--to scan or --to loop", rl.UnsupportedError, "unroll"
    )
    with pytest.raises(rl.UnsupportedError, match=r"5 steps.* 4 .*--max-unroll 5"):
        rl.lower(node_model(op_type), "unroll", max_unroll=4)
    rl.lower(node_model(op_type), "unroll", max_unroll=5)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("opset", [7, 8])
def test_scan_of_an_old_opset(op_type: str, opset: int) -> None:
    proto = node_model(op_type, opset=opset)
    assert_refused(proto, f"Scan needs opset 9.*{opset}.*loop", rl.UnsupportedError, "scan")


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("to", ["auto", "scan", "loop", "unroll"])
def test_an_opset_that_onnx_does_not_know(op_type: str, to: str) -> None:
    for opset in (NEWEST + 1, 0):
        proto = node_model(op_type, opset=opset)
        assert_refused(proto, rf"opset {opset} is .*onnx package.*{NEWEST}", rl.UnsupportedError, to)


@pytest.mark.parametrize("to", ["while", "Scan", ""])
def test_an_unknown_form(to: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=f"'{to}'.*auto, scan, loop, unroll"):
        rl.lower(node_model("RNN"), to)


def test_an_unknown_type_of_computation() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"'int8'.*native, float32"):
        rl.lower(node_model("RNN"), compute="int8")


# How a node is named


def test_a_node_without_a_name_goes_by_its_output() -> None:
    proto = node_model("GRU", {"clip": -1.0}, name="")
    with pytest.raises(rl.InvalidNodeError, match=r"GRU node '-> Y' in main graph: clip is -1"):
        rl.lower(proto)


def test_the_scope_is_named() -> None:
    proto = model(Case("refused_in_if", "GRU", {"clip": -1.0}, scope="if"), 17)
    with pytest.raises(rl.InvalidNodeError, match=r"in main graph > if \(If\) (then|else)_branch: clip") as caught:
        rl.lower(proto)
    assert caught.value.node is not None
    assert caught.value.node.scope.startswith("main graph > if (If) ")


@pytest.mark.parametrize("to", ["auto", "loop"])
def test_a_node_in_a_function(to: str) -> None:
    proto = model(Case("refused_in_function", "LSTM", {"clip": -1.0}, scope="function"), 17)
    with pytest.raises(rl.InvalidNodeError, match=r"LSTM node '.*recurrent.*' in .*: clip is -1"):
        rl.lower(proto, to)


def test_only_selected_nodes_are_judged() -> None:
    proto = node_model("GRU", {"clip": -1.0})
    assert rl.lower(proto, except_=["the node"]) == proto
    assert rl.lower(proto, except_="GRU") == proto


# What is accepted


def spec_of(proto: onnx.ModelProto) -> rl.RecurrentSpec:
    rl.lower(proto)
    (spec,) = rl.inspect(proto)
    assert isinstance(spec, rl.RecurrentSpec)
    return spec


def names_of(spec: rl.RecurrentSpec) -> list[str]:
    return [str(activation) for of_direction in spec.activations for activation in of_direction]


@pytest.mark.parametrize(
    ("op_type", "names"),
    [("RNN", ["SOFTSIGN"]), ("GRU", ["sigmoid", "tANH"]), ("LSTM", ["SIGMOID", "softplus", "rELU"])],
)
def test_any_letter_case(op_type: str, names: list[str]) -> None:
    spec = spec_of(node_model(op_type, {"activations": names}))
    assert names_of(spec) == [name.capitalize() for name in names]


@pytest.mark.parametrize("op_type", OPS)
def test_no_names(op_type: str) -> None:
    empty = AttributeProto(name="activations", type=AttributeProto.STRINGS)
    assert names_of(spec_of(node_model(op_type, {"activations": empty}))) == DEFAULT_ACTIVATIONS[op_type]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_two_names_of_an_rnn(direction: str) -> None:
    attributes = {"direction": direction, "activations": ["Relu", "Affine"]}
    assert names_of(spec_of(node_model("RNN", attributes))) == ["Relu"]


def test_surplus_parameters() -> None:
    attributes = {
        "activations": ["HardSigmoid", "LeakyRelu", "Tanh"],
        "activation_alpha": [0.5, 0.25, 9.0, 9.0],
        "activation_beta": [0.125, 9.0],
    }
    names = ["HardSigmoid(0.5, 0.125)", "LeakyRelu(0.25)", "Tanh"]
    assert names_of(spec_of(node_model("LSTM", attributes))) == names
    assert names_of(spec_of(node_model("GRU", {"activation_alpha": [3.0], "activation_beta": [3.0]}))) == [
        "Sigmoid",
        "Tanh",
    ]


def test_too_few_parameters() -> None:
    attributes = {"activations": ["LeakyRelu", "HardSigmoid", "Elu"], "activation_alpha": [0.5]}
    names = ["LeakyRelu(0.5)", "HardSigmoid(0.2, 0.5)", "Elu(1)"]
    assert names_of(spec_of(node_model("LSTM", attributes))) == names


@pytest.mark.parametrize(
    ("op_type", "clip", "bound"),
    [
        *[("RNN", clip, None) for clip in (-1.0, math.nan, math.inf, -math.inf)],
        ("RNN", 0.0, 0.0),
        *[(op, math.inf, None) for op in ("GRU", "LSTM")],
        *[(op, 0.5, 0.5) for op in OPS],
    ],
)
def test_clip(op_type: str, clip: float, bound: float | None) -> None:
    assert spec_of(node_model(op_type, {"clip": clip})).clip == bound


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("known", ["R", "W"])
def test_no_hidden_size(op_type: str, known: str) -> None:
    shapes = {s: (None, None, None) for s in ("W", "R") if s != known}
    assert spec_of(node_model(op_type, {"hidden_size": None}, shapes=shapes)).hidden_size == H


@pytest.mark.parametrize("op_type", OPS)
def test_unknown_shapes(op_type: str) -> None:
    spec = spec_of(node_model(op_type, shapes=dict.fromkeys(page(op_type))))
    assert (spec.hidden_size, spec.seq_length, spec.batch_size, spec.input_size) == (H, None, None, None)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("flag", [2, -1])
def test_any_number_but_0_is_true(op_type: str, flag: int) -> None:
    name = {"GRU": "linear_before_reset", "LSTM": "input_forget"}.get(op_type)
    spec = spec_of(node_model(op_type, {name: flag} if name else {}))
    assert (spec.linear_before_reset, spec.input_forget) == (op_type == "GRU", op_type == "LSTM")


def test_the_other_name_of_the_default_domain() -> None:
    proto = node_model("GRU")
    proto.graph.node[0].domain = "ai.onnx"
    assert rl.inspect(rl.lower(proto)) == []
    assert spec_of(proto).op_type == "GRU"
    proto.opset_import[0].domain = "ai.onnx"
    assert rl.inspect(rl.lower(proto)) == []


@pytest.mark.parametrize("name", ["letter case", "surplus", "negative clip", "no hidden size"])
def test_what_is_accepted_is_right(name: str) -> None:
    case = {
        "letter case": Case("accepted_letters", "LSTM", {"activations": ["SIGMOID", "elu", "TANH"]}),
        "surplus": Case("accepted_surplus", "GRU", {"activation_alpha": [0.3, 0.4], "activation_beta": [0.5]}),
        "negative clip": Case("accepted_clip", "RNN", {"clip": -0.1}, x_scale=3.0),
        "no hidden size": Case("accepted_hidden", "LSTM", hidden_size=False),
    }[name]
    assert_close(run(rl.lower(model(case, 17)), feed(case)), expected(case))
