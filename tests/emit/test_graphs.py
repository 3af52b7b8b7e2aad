"""What emitted graphs look like: what the runtimes that they are for support, and the tool chains of NPUs."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import pytest
from case_list import CASES
from cases import ALL_OPTIONAL, RESULTS, Array, Case, expected, feed, model
from chains import Link, chain
from onnx import numpy_helper
from oracle import GATES
from running import assert_close, nodes, run, scopes
from texts import FORMS
from thinning import exhaustive, thinned

import rnn_lowering as rl
from rnn_lowering.targets.table import TARGETS

OPSETS = (9, 10, 13, 17, 22)
CELLS: dict[str, Case] = {
    "RNN": Case("spelt_rnn", "RNN"),
    "GRU": Case("spelt_gru", "GRU"),
    "GRU_lbr": Case("spelt_gru_lbr", "GRU", {"linear_before_reset": 1}),
    "LSTM": Case("spelt_lstm", "LSTM"),
    "LSTM_peepholes": Case("spelt_peepholes", "LSTM", {"clip": 0.5}, optional=("B", "P", "initial_c")),
}
MOST_OPERATORS = {"RNN": 4, "GRU": 13, "GRU_lbr": 13, "LSTM": 12}
SYMBOLS = {"RNN": {"Ht"}, "GRU": {"zt", "rt", "ht", "Ht"}, "LSTM": {"it", "ot", "ft", "ct", "Ct", "Ht"}}


@dataclass(frozen=True)
class Kind:
    """A node and how it is lowered."""

    cell: str
    form: Any
    opset: int = 17
    direction: str = "forward"
    lengths: bool = False
    x: str = "static"

    @property
    def case(self) -> Case:
        case = CELLS[self.cell]
        optional = (*case.optional, "sequence_lens") if self.lengths else case.optional
        attributes = {**case.attributes, "direction": self.direction}
        return replace(case, attributes=attributes, optional=optional, x=self.x)  # type: ignore[arg-type]

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def loops(self) -> int:
        """One, since such small directions share a loop; one for each direction before opset 10, and unrolled."""
        return 1 if self.opset >= 10 and self.form != "unroll" else self.directions

    @property
    def width(self) -> int:
        """The hidden size of all directions that share a loop."""
        return self.case.H * self.directions // self.loops

    @property
    def reads_backwards(self) -> bool:
        """Whether a loop reads rows of unknown number from the last to the first."""
        return self.opset == 9 and self.x == "symbolic"


SETTINGS = [
    ("forward", False, "static"),
    ("forward", True, "symbolic"),
    ("reverse", False, "symbolic"),
    ("reverse", True, "static"),
    ("bidirectional", False, "static"),
    ("bidirectional", True, "symbolic"),
    ("reverse", True, "symbolic"),
]
KINDS = [
    Kind(cell, form, OPSETS[(n + k) % len(OPSETS)], *setting)
    for n, cell in enumerate(CELLS)
    for form in FORMS
    for k, setting in enumerate(SETTINGS)
    if form != "unroll" or setting[2] == "static"
]
KINDS += [Kind(cell, "loop", 8, "bidirectional") for cell in CELLS]
Check = Callable[[Kind, onnx.GraphProto], None]


def each_of(chosen: Sequence[Kind]) -> Callable[[Check], Callable[[int], None]]:
    """Make one test of a check of every second kind, which says at which it failed, and one of the others."""

    def decorate(check: Check) -> Callable[[int], None]:
        @pytest.mark.parametrize("first", [0, exhaustive(1)])
        def test(first: int) -> None:
            for kind in chosen[first::2]:
                try:
                    check(kind, lowered(kind))
                except AssertionError as error:
                    raise AssertionError(f"{kind}: {error}") from error

        return test

    return decorate


every_kind = each_of(KINDS)
every_loop = each_of([k for k in KINDS if k.form != "unroll"])
every_unrolled = each_of([k for k in KINDS if k.form == "unroll"])


@lru_cache(maxsize=256)
def lowered(kind: Kind) -> onnx.GraphProto:
    return rl.lower(model(kind.case, kind.opset), kind.form).graph


# Looking at graphs


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def bodies(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, onnx.GraphProto]]:
    """The loops of a graph with their bodies; one whose body is without a MatMul only counts and is left out."""
    found = [(node, attribute(node, "body")) for node in of_type(graph, "Scan", "Loop")]
    return [(node, body) for node, body in found if of_type(body, "MatMul")]


def every_node(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for scope in scopes(graph) for node in scope.node]


def of_type(graph: onnx.GraphProto, *op_types: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type in op_types]


def made_in(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return names | {name for node in graph.node for name in node.output}


def captured(body: onnx.GraphProto) -> set[str]:
    """The values from outside that the nodes of a body use."""
    return {name for node in body.node for name in node.input if name} - made_in(body)


def constants(graph: onnx.GraphProto) -> dict[str, Array]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = {node.output[0]: numpy_helper.to_array(attribute(node, "value")) for node in of_type(graph, "Constant")}
    return found | made


def producer(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    return next((node for node in graph.node if name in node.output), None)


def origin(graph: onnx.GraphProto, name: str) -> str:
    """The value before casts and changes of shape."""
    node = producer(graph, name)
    moves = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Split", "Reshape")
    return origin(graph, node.input[0]) if node is not None and node.op_type in moves else name


def depends_on(graph: onnx.GraphProto, name: str, source: str) -> bool:
    node = producer(graph, name)
    return name == source or (node is not None and any(depends_on(graph, i, source) for i in node.input))


def shape_of(value: onnx.ValueInfoProto) -> list[int | str | None]:
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]


def of_inputs(graph: onnx.GraphProto, node: onnx.NodeProto | None) -> bool:
    """Whether a node is a product with X."""
    return node is not None and node.op_type in ("MatMul", "Gemm") and origin(graph, node.input[0]) == "X"


# Bodies


@every_loop
def test_bodies_hold_their_constants(kind: Kind, graph: onnx.GraphProto) -> None:
    """A Scan body uses nothing from outside, a Loop body only the tensors whose rows it reads."""
    assert [node.op_type for node, _ in bodies(graph)] == [kind.form.capitalize()] * kind.loops
    for node, body in bodies(graph):
        outside = captured(body)
        rows = [n for n in body.node if outside & set(n.input)]
        counts_down = kind.reads_backwards and any(n.op_type == "Sub" for n in rows)
        expected = {"Gather", "Sub"} if counts_down else {"Gather"}
        assert {n.op_type for n in rows} == (set() if node.op_type == "Scan" else expected)
        assert all(n.input[0] in outside and n.input[1] not in outside for n in rows)
        assert not outside & constants(graph).keys()
        assert len(outside) == len(rows) <= 3 + counts_down


@every_loop
def test_bodies_are_declared(kind: Kind, graph: onnx.GraphProto) -> None:
    """Type and rank of every input and output, no symbolic names; no output is there twice, or passed on."""
    states = len(RESULTS[kind.case.op_type]) - 1
    for node, body in bodies(graph):
        values = [*body.input, *body.output]
        for value in values:
            assert value.type.tensor_type.elem_type != 0, value.name
            assert value.type.tensor_type.HasField("shape"), value.name
            assert not any(isinstance(dim, str) for dim in shape_of(value)), value.name
        if node.op_type == "Loop":
            assert [shape_of(value) for value in (*values[:2], body.output[0])] == [[], [], []]
            del values[:2]
        assert all(shape_of(value)[1:] == [kind.width] for value in values[:states])
        names = [value.name for value in body.output]
        assert len(set(names)) == len(names)
        assert {name for n in body.node for name in n.output} >= set(names)


@every_loop
def test_products_in_bodies(kind: Kind, graph: onnx.GraphProto) -> None:
    """Add(MatMul(h, R), x) in that order, and no Gemm."""
    for _, body in bodies(graph):
        assert of_type(body, "Gemm") == []
        sums = [[origin(body, name) for name in node.input] for node in of_type(body, "Add")]
        for product in of_type(body, "MatMul"):
            assert constants(body)[product.input[1]].shape[0] == kind.width
            assert product.output[0] not in [right for _, right in sums]
            assert kind.cell == "GRU_lbr" or product.output[0] in [left for left, _ in sums]


@every_loop
def test_a_step_knows_nothing_of_lengths(kind: Kind, graph: onnx.GraphProto) -> None:
    """A body is that of the same node without sequence_lens, but for a further state that is stacked."""
    plain = bodies(lowered(replace(kind, lengths=False)))
    for (_, body), (_, without) in zip(bodies(graph), plain, strict=True):
        operators, others = (Counter(n.op_type for n in held.node) for held in (body, without))
        assert set(operators - others) <= {"Unsqueeze"}
        assert set(others - operators) <= {"Sub", "Cast"}
        assert len(body.node) <= len(without.node) + 1


@every_kind
def test_rows_of_ragged_sequences_are_picked(kind: Kind, graph: onnx.GraphProto) -> None:
    """By a Gather with indices that are computed once, outside of bodies."""
    picked = [n for n in of_type(graph, "Gather") if depends_on(graph, n.input[1], "sequence_lens")]
    assert bool(picked) == kind.lengths
    without = {"ReverseSequence", "Transpose", *(["Where"] if kind.lengths else [])}
    assert without.isdisjoint(node.op_type for node in every_node(graph))


@every_loop
def test_reverse(kind: Kind, graph: onnx.GraphProto) -> None:
    """Flips outside the loop: by constant indices where T is known, else by a Slice with step -1."""
    backwards = kind.direction != "forward" and not kind.lengths  # ragged sequences are turned within their lengths
    by_loop = backwards and kind.reads_backwards
    reads = [attribute(node, "scan_input_directions", []) for node in of_type(graph, "Scan")]
    writes = [attribute(node, "scan_output_directions", []) for node in of_type(graph, "Scan")]
    assert not any(a.name.endswith("axes") for node in of_type(graph, "Scan") for a in node.attribute)
    if by_loop and kind.form == "scan":
        assert [set(each) for each in reads if each] == [{1}]
        assert [each for each in writes if each] == [[1]]
    elif not by_loop:
        assert not any([*reads, *writes])
        flips = [node.op_type for node in graph.node if is_flip(graph, node)]
        assert set(flips) == ({"Gather" if kind.x == "static" else "Slice"} if backwards else set())
        assert len(flips) >= 2 * backwards  # what goes in and what comes out


def is_flip(graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    known = constants(graph)
    if node.op_type == "Gather" and node.input[1] in known:
        indices = known[node.input[1]]
        return indices.ndim == 1 and indices.size > 1 and indices.tolist() == list(range(len(indices)))[::-1]
    return node.op_type == "Slice" and len(node.input) > 4 and known[node.input[4]].tolist() == [-1]


@every_loop
def test_loop_interface(kind: Kind, graph: onnx.GraphProto) -> None:
    """A trip count and a condition of rank 0; what is stacked is declared."""
    known = constants(graph)
    for node in of_type(graph, "Loop"):
        count, condition = node.input[:2]
        assert (known[condition].shape, known[condition].dtype.name) == ((), "bool")
        if count in known:
            assert (known[count].shape, known[count].dtype.name) == ((), "int64")
            assert known[count] == kind.case.T
        else:
            (squeeze,) = (made for made in graph.node if count in made.output)
            assert squeeze.op_type == "Squeeze"
    declared = {value.name: shape_of(value) for value in (*graph.value_info, *graph.output)}
    states, case = len(RESULTS[kind.case.op_type]) - 1, kind.case
    for node, _ in bodies(graph) if kind.form == "loop" and kind.x == "static" else ():
        shapes = [case.T, case.N, kind.width], [case.T, 1, case.N, kind.width]
        assert declared[node.output[states]] in shapes


# Every form


@every_kind
def test_constants(kind: Kind, graph: onnx.GraphProto) -> None:
    """A Split has explicit sizes, in the graph that splits; no number is extreme, and none is there twice."""
    for scope in scopes(graph):
        known = constants(scope)
        for node in of_type(scope, "Split"):
            assert attribute(node, "num_outputs") is None
            sizes = attribute(node, "split") if kind.opset < 13 else known[node.input[1]].tolist()
            assert len(sizes) == len(node.output)
            assert all(size > 0 for size in sizes)
        integers = [array for array in known.values() if array.dtype.kind == "i" and array.size]
        assert all(max(abs(int(array.min())), abs(int(array.max()))) < 2**62 for array in integers)
        if kind.opset == 17 and not kind.lengths:
            seen = [(array.dtype, array.shape, array.tobytes()) for array in known.values()]
            assert len(set(seen)) == len(seen)


@every_kind
def test_inputs_are_multiplied_once(kind: Kind, graph: onnx.GraphProto) -> None:
    """One product with W per direction for all steps and gates, outside of any body; the recurrent ones inside."""
    products = [n for n in of_type(graph, "MatMul", "Gemm") if of_inputs(graph, n)]
    assert len(products) == kind.directions
    known = constants(graph)
    assert all(known[node.input[1]].shape[0] == kind.case.I for node in products)
    if kind.form != "unroll":
        assert len(of_type(graph, "MatMul")) == len(products)


@pytest.mark.parametrize("target", ["portable", "tract", "onnxruntime", "opencv"])
@pytest.mark.parametrize("optional", [("B",), ALL_OPTIONAL], ids=["B", "all"])
@pytest.mark.parametrize(("op_type", "attribute"), [("LSTM", "input_forget"), ("GRU", "linear_before_reset")])
def test_every_node_is_used(op_type: str, attribute: str, optional: tuple[str, ...], target: Any) -> None:
    case = Case("used", op_type, {attribute: 1}, optional=optional)
    form: Any
    for form in TARGETS[target].forms:
        graphs = list(scopes(rl.lower(model(case, 17), form, target=target).graph))
        used = {name for graph in graphs for node in graph.node for name in node.input}
        used |= {output.name for graph in graphs for output in graph.output}
        assert [node.name for graph in graphs for node in graph.node if not used & set(node.output)] == []


@every_kind
def test_biases_are_added_once(kind: Kind, graph: onnx.GraphProto) -> None:
    """One Add of Wb + Rb per direction, not one per step; the Rbh of a GRU with linear_before_reset in the step."""
    rows = GATES[kind.case.op_type] * kind.case.H
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for scope in scopes(graph):
        known = constants(graph) | constants(scope)
        for node in of_type(scope, "Add"):
            added = [known[name] for name in node.input if name in known]
            biases = [array.size for array in added if array.ndim == 1 and array.dtype.kind == "f"]
            sizes[of_inputs(scope, producer(scope, node.input[0]))] += biases
    assert len(sizes[True]) == kind.directions
    assert sum(sizes[True]) == rows * kind.directions
    # In a body Rbh has zeros, since it is added before the gates are split.
    in_step = kind.case.H if kind.form == "unroll" else rows * kind.directions // kind.loops
    assert set(sizes[False]) <= ({in_step} if kind.cell == "GRU_lbr" else set())


@every_unrolled
def test_unrolled_steps_share_their_weights(kind: Kind, graph: onnx.GraphProto) -> None:
    sizes = [array.size for array in constants(graph).values() if array.dtype.kind == "f" and array.ndim > 1]
    case, state = kind.case, kind.case.N * kind.case.H
    states = state * sum(s.startswith("initial") for s in case.inputs)
    weights = GATES[case.op_type] * case.H * (case.I + case.H)
    assert sum(sizes) <= kind.directions * (weights + states) + 2 * state  # and zeros
    assert not {node.op_type for node in graph.node} & {"Scan", "Loop", "If", "Shape"}


@pytest.mark.parametrize("cell", MOST_OPERATORS)
def test_operators_per_step(cell: str) -> None:
    for form, opset in ((form, opset) for form in ("scan", "loop") for opset in (9, 17)):
        for node, body in bodies(lowered(Kind(cell, form, opset))):
            # In a Loop nodes of the body gather rows and pass on the condition.
            more = len(captured(body)) + 1 if node.op_type == "Loop" else 0
            assert len(body.node) - more <= MOST_OPERATORS[cell], [n.op_type for n in body.node]
    few, many = (len(rl.lower(model(replace(CELLS[cell], T=T), 17), "unroll").graph.node) for T in (5, 6))
    assert many - few <= MOST_OPERATORS[cell] - 1  # Y needs no Identity here


@every_kind
def test_names(kind: Kind, graph: onnx.GraphProto) -> None:
    """They stand under the node's name, and values have the symbols of the page."""
    given = {"X", "sequence_lens", "initial_h", "initial_c", *RESULTS[kind.case.op_type]}
    made = {name for scope in scopes(graph) for name in made_in(scope)}
    assert all(name.startswith("recurrent/") for name in made - given)
    assert all(node.name.startswith("recurrent/") for node in every_node(graph))
    last = {"forward": f"{kind.case.T - 1}", "reverse": "0"}.get(kind.direction)
    for part in ("forward", "reverse") if kind.loops == 2 else ("",):
        for step in map(str, range(kind.case.T)) if kind.form == "unroll" else ("",):
            # The states of the last step are outputs of the node, whose names they have.
            for symbol in SYMBOLS[kind.case.op_type] - ({"Ht", "Ct"} if step == last else set()):
                path = "/".join(filter(None, ("recurrent", part, step, symbol)))
                assert any(name == path or name.startswith(f"{path}_") for name in made), path


def test_a_node_without_a_name_lends_its_outputs() -> None:
    proto = model(CELLS["GRU"], 17)
    proto.graph.node[0].name = ""
    assert all(node.name.startswith("GRU_Y/") for node in nodes(rl.lower(proto, "scan")))


def equal_nodes(graph: onnx.GraphProto) -> Iterator[str]:
    """The nodes of which one scope has two; a copy and zeros of its own are meant."""
    for scope in scopes(graph):
        keys = [
            (node.op_type, *node.input, *sorted(a.SerializeToString() for a in node.attribute))
            for node in scope.node
            if node.input and node.op_type not in ("Identity", "ConstantOfShape", "Expand")
        ]
        yield from (str(key) for key, count in Counter(keys).items() if count > 1)


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize("form", ["portable", "onnxruntime", "openvino", "opencv", "tract", "loop", "unroll"])
@pytest.mark.parametrize("share", thinned(range(48), 48))
@pytest.mark.few(4)
def test_nothing_is_emitted_twice(share: int, form: Any) -> None:
    options: dict[str, Any] = {"target": form} if form in TARGETS else {"lowering": form}
    lowered = 0
    for case in CASES[share::48]:
        with suppress(rl.UnsupportedError, rl.InvalidNodeError):
            graph = rl.lower(model(case, 17), **options).graph
            assert list(equal_nodes(graph)) == [], case.name
            lowered += 1
    assert lowered > 3


def test_zeros_leave_no_trace() -> None:
    """An absent input is no tensor full of zeros, and no node."""
    bare, zeros = (
        rl.lower(model(replace(CELLS["LSTM"], optional=optional, fill={"B": 0.0, "P": 0.0}), 17), "unroll").graph
        for optional in ((), ("B", "P"))
    )
    assert len(bare.node) == len(zeros.node)
    assert not any(array.size > 1 and not array.any() for array in constants(bare).values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_what_is_not_connected_is_not_computed(op: str, form: Any) -> None:
    states = rl.lower(model(Case("spelt_states", op, outputs=("Y_h",)), 17), form)
    assert len(list(nodes(states))) < len(list(nodes(rl.lower(model(Case("spelt_whole", op), 17), form))))
    for node, body in bodies(states.graph):
        assert len(node.output) == len(RESULTS[op]) - 1
        assert "Identity" not in {n.op_type for n in body.node} or node.op_type == "Loop"


# Steps for NPUs, by the public lists of ST Neural-ART, Ethos-U Vela, TIDL and QNN HTP

OF_NPUS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "RNN": ("RNN", {}, set()),
    "GRU": ("GRU", {}, {"Sub", "Mul", "Split"}),
    "GRU_lbr": ("GRU", {"linear_before_reset": 1}, {"Sub", "Mul", "Split"}),
    "LSTM": ("LSTM", {}, {"Mul", "Split"}),
    "LSTM_clip": ("LSTM", {"clip": 0.7}, {"Mul", "Split", "Clip"}),
    "LSTM_input_forget": ("LSTM", {"input_forget": 1}, {"Mul", "Split", "Sub"}),
}
"""With the operators of a step besides products, sums and activations."""
AROUND = {
    "step": {"Unsqueeze", "Squeeze", "Concat", "Identity"},
    "scan": {"Unsqueeze"},
    "loop": {"Unsqueeze", "Gather", "Identity"},
    "unroll": {"Unsqueeze", "Concat", "Split", "Neg"},  # Neg: a GRU's first step from zeros
}
"""The form "step" is a stream of one frame."""


def in_steps(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a body, or of a graph without one those of the recurrent node."""
    for scope in list(scopes(graph))[1:] or [graph]:
        yield from (node for node in scope.node if node.name.startswith("rnn/"))


@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize("kind", OF_NPUS)
def test_a_step_runs_on_npus(kind: str, form: Any) -> None:
    """Products have a constant matrix on the right; ranks are 2 in a loop, else 3 with a first size of 1; no output
    is idle but the forget gate of input_forget, and what zeros before the first unrolled step make so."""
    op_type, attributes, operators = OF_NPUS[kind]
    proto = chain(Link(op_type, "rnn", attributes), dims=("time" if form == "step" else 4, 1))
    new = rl.lower(proto, stream="time=1") if form == "step" else rl.lower(proto, form)
    new = onnx.shape_inference.infer_shapes(new, strict_mode=True, data_prop=True)
    steps, all_scopes = list(in_steps(new.graph)), list(scopes(new.graph))
    assert {node.op_type for node in steps} <= {"MatMul", "Add", "Tanh", "Sigmoid"} | operators | AROUND[form]
    known = {name: array for scope in all_scopes for name, array in constants(scope).items()}
    assert all(known[node.input[1]].ndim == 2 for node in steps if node.op_type == "MatMul")
    from_constants = [node.input[0] in known for node in steps if node.op_type == "Sub"]
    assert set(from_constants) <= {kind == "LSTM_input_forget"}  # 1 - it
    values = [v for scope in all_scopes for v in (*scope.value_info, *scope.input, *scope.output)]
    ranks = {v.name: len(shape_of(v)) for v in values if v.type.HasField("tensor_type")}
    assert max(ranks.values()) <= 4
    inner = {ranks[name] for node in steps if node.op_type not in AROUND[form] for name in node.output}
    assert inner <= {2 if form in ("scan", "loop") else 3}
    used = {name for node in nodes(new) for name in node.input}
    used |= {value.name for scope in all_scopes for value in scope.output}
    for node in nodes(new) if form != "unroll" and kind != "LSTM_input_forget" else ():
        idle = node.name.startswith("rnn/") and node.op_type not in ("Scan", "Loop") and set(node.output) - used
        assert not idle, node.name


def test_target_without_subtraction_from_a_constant() -> None:
    """ST's, which runs 1 - x in software; the numbers are the same."""
    proto = chain(Link("LSTM", "rnn", {"input_forget": 1}), dims=(4, 1))
    new = rl.lower(proto, target="stedgeai")
    known = constants(new.graph)
    assert not [node for node in nodes(new) if node.op_type == "Sub" and node.input[0] in known]
    feed = {"X": np.random.default_rng(0).standard_normal((4, 1, 3)).astype(np.float32)}
    np.testing.assert_array_equal(run(new, feed)["out"], run(rl.lower(proto, "unroll"), feed)["out"])


CONSTANT = {
    "Affine of 0": ("Affine", 0.0, 0.3),
    "Affine of nothing": ("Affine", 0.0, 0.0),
    "ScaledTanh times 0": ("ScaledTanh", 0.0, 0.7),
    "ScaledTanh of 0": ("ScaledTanh", 0.7, 0.0),
    "HardSigmoid of 0": ("HardSigmoid", 0.0, 0.4),
    "HardSigmoid above 1": ("HardSigmoid", 0.0, 1.4),
}
"""Activations that return the same number for each argument: their names, alpha and beta."""


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_activation_leaves_no_constant_state(name: str, cell: str, form: str) -> None:
    """tract rejects a loop with a state that it can compute without a step."""
    function, alpha, beta = CONSTANT[name]
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[cell]
    attributes = {
        "activations": [function] * count,
        "activation_alpha": [alpha] * count,
        "activation_beta": [beta] * count,
    }
    case = Case(f"constant_{cell}", cell, attributes)
    new = rl.lower(model(case, 17), form)  # type: ignore[call-overload]
    for scope in [*scopes(new.graph)][1:] or [new.graph]:
        constant = folded_values(scope) | folded_values(new.graph)
        assert constant.isdisjoint(output.name for output in scope.output)
    assert_close(run(new, feed(case)), expected(case), "float32")


def folded_values(graph: onnx.GraphProto) -> set[str]:
    """What a compiler folds: what constants alone compute, and products with 0."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found, zeros = {*arrays}, {name for name, array in arrays.items() if not array.any()}
    for node in graph.node:
        by_zero = node.op_type == "Mul" and not zeros.isdisjoint(node.input)
        if by_zero or found.issuperset(node.input):
            found |= {*node.output}
    return found
