"""What emitted graphs look like: what the runtimes that they are for support."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import onnx
import pytest
from cases import ALL_OPTIONAL, RESULTS, Array, Case, model
from chains import Link, chain
from onnx import numpy_helper
from running import scopes

import rnn_lowering as rl
from rnn_lowering.targets.table import TARGETS

FORMS = ("scan", "loop", "unroll")
OPSETS = (9, 10, 13, 17, 22)
CELLS: dict[str, Case] = {
    "RNN": Case("spelt_rnn", "RNN"),
    "GRU": Case("spelt_gru", "GRU"),
    "GRU_lbr": Case("spelt_gru_lbr", "GRU", {"linear_before_reset": 1}),
    "LSTM": Case("spelt_lstm", "LSTM"),
    "LSTM_peepholes": Case("spelt_peepholes", "LSTM", {"clip": 0.5}, optional=("B", "P", "initial_c")),
}
MOST_OPERATORS = {"RNN": 4, "GRU": 13, "GRU_lbr": 13, "LSTM": 12}
SYMBOLS = {
    "RNN": {"Ht"},
    "GRU": {"zt", "rt", "ht", "Ht"},
    "GRU_lbr": {"zt", "rt", "ht", "Ht"},
    "LSTM": {"it", "ot", "ft", "ct", "Ct", "Ht"},
    "LSTM_peepholes": {"it", "ot", "ft", "ct", "Ct", "Ht"},
}
LARGE = 2**62


@dataclass(frozen=True)
class Kind:
    """A node and how it is lowered."""

    cell: str
    form: str
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
    def backwards(self) -> bool:
        return self.direction != "forward"

    def __str__(self) -> str:
        lengths = "lengths" if self.lengths else "full"
        return f"{self.cell}-{self.form}-{self.opset}-{self.direction}-{lengths}-{self.x}"


def kinds() -> Iterator[Kind]:
    """Every cell in every form, at opsets, directions, lengths and sizes that vary with it."""
    settings = [
        ("forward", False, "static"),
        ("forward", True, "symbolic"),
        ("reverse", False, "symbolic"),
        ("reverse", True, "static"),
        ("bidirectional", False, "static"),
        ("bidirectional", True, "symbolic"),
        ("reverse", True, "symbolic"),
    ]
    for n, cell in enumerate(CELLS):
        for form in FORMS:
            for k, (direction, lengths, x) in enumerate(settings):
                if form != "unroll" or x == "static":
                    yield Kind(cell, form, OPSETS[(n + k) % len(OPSETS)], direction, lengths, x)
        yield Kind(cell, "loop", 8, "bidirectional")


KINDS = list(kinds())


def each_of(chosen: Sequence[Kind]) -> Callable[[Callable[[Kind], None]], Callable[[], None]]:
    """Make one test of a check of many kinds, which says at which it failed."""

    def decorate(check: Callable[[Kind], None]) -> Callable[[], None]:
        def test() -> None:
            for kind in chosen:
                try:
                    check(kind)
                except AssertionError as error:
                    raise AssertionError(f"{kind}: {error}") from error

        test.__doc__ = check.__doc__
        return test

    return decorate


every_kind = each_of(KINDS)
every_loop = each_of([k for k in KINDS if k.form != "unroll"])


@lru_cache(maxsize=256)
def lowered(kind: Kind) -> onnx.GraphProto:
    return rl.lower(model(kind.case, kind.opset), kind.form).graph


# Looking at graphs


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    found = [onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name]
    return found[0] if found else default


def bodies(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto]]:
    """The loops of a graph with their bodies; one whose body is without a MatMul only counts and is left out."""
    for node in graph.node:
        if node.op_type in ("Scan", "Loop"):
            body = attribute(node, "body")
            if of_type(body, "MatMul"):
                yield node, body


def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
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
    for node in of_type(graph, "Constant"):
        found[node.output[0]] = numpy_helper.to_array(attribute(node, "value"))
    return found


def producer(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    return next((node for node in graph.node if name in node.output), None)


def origin(graph: onnx.GraphProto, name: str) -> str:
    """The value before casts and changes of shape."""
    node = producer(graph, name)
    while node is not None and node.op_type in ("Identity", "Cast", "Squeeze", "Unsqueeze", "Split", "Reshape"):
        name = node.input[0]
        node = producer(graph, name)
    return name


def depends_on(graph: onnx.GraphProto, name: str, source: str) -> bool:
    if name == source:
        return True
    node = producer(graph, name)
    return node is not None and any(depends_on(graph, given, source) for given in node.input)


def shape_of(value: onnx.ValueInfoProto) -> list[int | str | None]:
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]


def directions(kind: Kind) -> int:
    return 2 if kind.direction == "bidirectional" else 1


def loops(kind: Kind) -> int:
    """One, since such small directions share a loop; one for each direction before opset 10, and unrolled."""
    return 1 if kind.opset >= 10 and kind.form != "unroll" else directions(kind)


def width(kind: Kind) -> int:
    """The hidden size of all directions that share a loop."""
    return kind.case.H * directions(kind) // loops(kind)


# Bodies


@every_loop
def test_both_directions_share_a_loop(kind: Kind) -> None:
    found = [node.op_type for node, _ in bodies(lowered(kind))]
    assert found == [kind.form.capitalize()] * loops(kind)
    apart = rl.lower(model(kind.case, kind.opset), kind.form, join=False).graph
    assert [node.op_type for node, _ in bodies(apart)] == [kind.form.capitalize()] * directions(kind)


@every_loop
def test_bodies_hold_their_constants(kind: Kind) -> None:
    """2: a Scan body uses nothing from outside, a Loop body only the tensors whose rows it reads."""
    for node, body in bodies(lowered(kind)):
        outside = captured(body)
        if node.op_type == "Scan":
            assert outside == set()
            continue
        rows = [n for n in body.node if outside & set(n.input)]
        counts_down = kind.opset == 9 and kind.x == "symbolic" and any(n.op_type == "Sub" for n in rows)
        assert {n.op_type for n in rows} == {"Gather", *(["Sub"] if counts_down else [])}
        assert all(n.input[0] in outside and n.input[1] not in outside for n in rows)
        assert not outside & constants(lowered(kind)).keys()
        assert len(outside) == len(rows) <= 3 + counts_down


@every_loop
def test_bodies_are_declared(kind: Kind) -> None:
    """6: type and rank of every input and output, no symbolic names."""
    for node, body in bodies(lowered(kind)):
        values = [*body.input, *body.output]
        for value in values:
            assert value.type.tensor_type.elem_type != 0, value.name
            assert value.type.tensor_type.HasField("shape"), value.name
            assert not any(isinstance(dim, str) for dim in shape_of(value)), value.name
        ranks = [len(shape_of(value)) for value in values]
        if node.op_type == "Loop":
            assert ranks[:2] == [0, 0]
            assert len(shape_of(body.output[0])) == 0
            del values[:2]
        states = len(RESULTS[kind.case.op_type]) - 1
        assert all(shape_of(value)[-1] == width(kind) for value in values[:states])
        assert all(len(shape_of(value)) == 2 for value in values[:states])


@every_loop
def test_no_value_is_listed_twice(kind: Kind) -> None:
    for _, body in bodies(lowered(kind)):
        names = [value.name for value in body.output]
        assert len(set(names)) == len(names)
        made = {name for node in body.node for name in node.output}
        assert made >= set(names)


@every_loop
def test_products_in_bodies(kind: Kind) -> None:
    """4: Add(MatMul(h, R), x) in that order, and no Gemm."""
    for _, body in bodies(lowered(kind)):
        assert of_type(body, "Gemm") == []
        weights = constants(body)
        for product in of_type(body, "MatMul"):
            assert weights[product.input[1]].shape[0] == width(kind)
            (name,) = product.output
            sums = [node for node in of_type(body, "Add") if origin(body, node.input[0]) == name]
            assert not [node for node in of_type(body, "Add") if origin(body, node.input[1]) == name]
            assert sums or kind.cell == "GRU_lbr"


@every_loop
def test_a_step_knows_nothing_of_lengths(kind: Kind) -> None:
    """5: a body is that of the same node without sequence_lens, but for a further state that is stacked."""
    plain = bodies(lowered(replace(kind, lengths=False)))
    for (_, body), (_, without) in zip(bodies(lowered(kind)), plain, strict=True):
        more = Counter(n.op_type for n in body.node) - Counter(n.op_type for n in without.node)
        counted_down = Counter(n.op_type for n in without.node) - Counter(n.op_type for n in body.node)
        assert set(more) <= {"Unsqueeze"}
        assert set(counted_down) <= {"Sub", "Cast"}
        assert len(body.node) <= len(without.node) + 1


@every_kind
def test_rows_of_ragged_sequences_are_picked(kind: Kind) -> None:
    """5: by a Gather with indices that are computed once, outside of bodies."""
    graph = lowered(kind)
    picked = [n for n in of_type(graph, "Gather") if depends_on(graph, n.input[1], "sequence_lens")]
    assert bool(picked) == kind.lengths
    assert not [n for n in nodes(graph) if n.op_type == "Where" and kind.lengths]


@every_kind
def test_no_reverse_sequence(kind: Kind) -> None:
    assert "ReverseSequence" not in {node.op_type for node in nodes(lowered(kind))}


@every_loop
def test_reverse(kind: Kind) -> None:
    """3: flips outside the loop: by constant indices where T is known, else by a Slice with step -1."""
    graph = lowered(kind)
    by_loop = kind.opset == 9 and kind.x == "symbolic"
    for node in of_type(graph, "Scan"):
        reads = attribute(node, "scan_input_directions", [])
        writes = attribute(node, "scan_output_directions", [])
        assert not [a.name for a in node.attribute if a.name.startswith("scan_") and a.name.endswith("axes")]
        if not by_loop or not kind.backwards or kind.lengths:
            assert (reads, writes) == ([], [])
    flips = [node for node in graph.node if is_flip(graph, node)]
    if not kind.backwards or kind.lengths:  # ragged sequences are turned within their lengths
        assert flips == []
    elif not by_loop:
        assert {node.op_type for node in flips} == {"Gather" if kind.x == "static" else "Slice"}
        assert len(flips) >= 2  # what goes in and what comes out
    elif kind.form == "scan":
        scanned = [node for node in of_type(graph, "Scan") if attribute(node, "scan_input_directions")]
        assert len(scanned) == 1
        assert set(attribute(scanned[0], "scan_input_directions")) == {1}
        assert attribute(scanned[0], "scan_output_directions") == [1]


def is_flip(graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    known = constants(graph)
    if node.op_type == "Gather" and node.input[1] in known:
        indices = known[node.input[1]]
        return indices.ndim == 1 and indices.size > 1 and indices.tolist() == list(range(len(indices)))[::-1]
    return node.op_type == "Slice" and len(node.input) > 4 and known[node.input[4]].tolist() == [-1]


@every_loop
def test_loop_interface(kind: Kind) -> None:
    """10: a trip count and a condition of rank 0."""
    graph = lowered(kind)
    known = constants(graph)
    for node in of_type(graph, "Loop"):
        count, condition = node.input[:2]
        assert (known[condition].shape, known[condition].dtype.name) == ((), "bool")
        if count in known:
            assert (known[count].shape, known[count].dtype.name) == ((), "int64")
            assert known[count] == kind.case.T
        else:
            squeeze = producer(graph, count)
            assert squeeze is not None
            assert squeeze.op_type == "Squeeze"


@each_of([k for k in KINDS if k.form == "loop" and k.x == "static"])
def test_what_a_loop_stacks_has_its_shape(kind: Kind) -> None:
    graph = lowered(kind)
    declared = {value.name: shape_of(value) for value in (*graph.value_info, *graph.output)}
    states = len(RESULTS[kind.case.op_type]) - 1
    for node, _ in bodies(graph):
        case, shape = kind.case, declared[node.output[states]]
        assert shape in ([case.T, case.N, width(kind)], [case.T, 1, case.N, width(kind)])


# Every form


@every_kind
def test_splits_name_their_sizes(kind: Kind) -> None:
    """7: explicit sizes, in the graph that splits, that sum up; never num_outputs."""
    for graph in scopes(lowered(kind)):
        known = constants(graph)
        for node in of_type(graph, "Split"):
            assert attribute(node, "num_outputs") is None
            sizes = attribute(node, "split") if kind.opset < 13 else known[node.input[1]].tolist()
            assert len(sizes) == len(node.output)
            assert all(size > 0 for size in sizes)


@every_kind
def test_no_extreme_numbers(kind: Kind) -> None:
    for graph in scopes(lowered(kind)):
        for name, array in constants(graph).items():
            if array.dtype.kind == "i" and array.size:
                assert max(abs(int(array.min())), abs(int(array.max()))) < LARGE, name


@every_kind
def test_inputs_are_multiplied_once(kind: Kind) -> None:
    """One product with W per direction for all steps and gates, outside of any body; the recurrent ones inside."""
    graph = lowered(kind)
    case = kind.case
    of_inputs = [n for n in of_type(graph, "MatMul", "Gemm") if depends_on_input_only(graph, n)]
    assert len(of_inputs) == directions(kind)
    known = constants(graph)
    assert all(known[node.input[1]].shape[0] == case.I for node in of_inputs)
    if kind.form != "unroll":
        assert len(of_type(graph, "MatMul")) == len(of_inputs)


def depends_on_input_only(graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    return origin(graph, node.input[0]) == "X"


@pytest.mark.parametrize("target", ["portable", "tract", "onnxruntime", "opencv"])
@pytest.mark.parametrize("optional", [("B",), ALL_OPTIONAL], ids=["B", "all"])
@pytest.mark.parametrize(("op_type", "attribute"), [("LSTM", "input_forget"), ("GRU", "linear_before_reset")])
def test_every_node_is_used(op_type: str, attribute: str, optional: tuple[str, ...], target: str) -> None:
    case = Case("used", op_type, {attribute: 1}, optional=optional)
    for form in TARGETS[target].forms:
        graphs = list(scopes(rl.lower(model(case, 17), form, target=target).graph))
        used = {name for graph in graphs for node in graph.node for name in node.input}
        used |= {output.name for graph in graphs for output in graph.output}
        assert [node.name for graph in graphs for node in graph.node if not used & set(node.output)] == []


@every_kind
def test_constant_weights_are_transposed_beforehand(kind: Kind) -> None:
    assert [node.op_type for node in nodes(lowered(kind)) if node.op_type == "Transpose"] == []


@every_kind
def test_biases_are_added_once(kind: Kind) -> None:
    """One Add of Wb + Rb per direction, not one per step; the Rbh of a GRU with linear_before_reset in the step."""
    graph = lowered(kind)
    rows = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind.case.op_type] * kind.case.H
    of_inputs: list[int] = []
    others: list[int] = []
    for scope in scopes(graph):
        known = constants(graph) | constants(scope)
        for node in of_type(scope, "Add"):
            sizes = [
                known[name].size
                for name in node.input
                if name in known and known[name].ndim == 1 and known[name].dtype.kind == "f"
            ]
            product = producer(scope, node.input[0])
            of_x = product is not None and product.op_type == "MatMul" and depends_on_input_only(scope, product)
            (of_inputs if of_x else others).extend(sizes)
    assert len(of_inputs) == directions(kind)
    assert sum(of_inputs) == rows * directions(kind)
    by_step = (
        kind.case.H if kind.form == "unroll" else rows * directions(kind) // loops(kind)
    )  # in a body Rbh with zeros before the gates are split
    assert set(others) <= ({by_step} if kind.cell == "GRU_lbr" else set())


@each_of([k for k in KINDS if k.form == "unroll"])
def test_unrolled_steps_share_their_weights(kind: Kind) -> None:
    graph = lowered(kind)
    sizes = [array.size for array in constants(graph).values() if array.dtype.kind == "f" and array.ndim > 1]
    case = kind.case
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[case.op_type]
    states = sum(case.N * case.H for s in case.inputs if s.startswith("initial"))
    zeros = case.N * case.H
    most = directions(kind) * (gates * case.H * (case.I + case.H) + states) + 2 * zeros
    assert sum(sizes) <= most
    assert not {node.op_type for node in graph.node} & {"Scan", "Loop", "If", "Shape"}


@pytest.mark.parametrize("cell", MOST_OPERATORS)
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("opset", [9, 17])
def test_operators_per_step(cell: str, form: str, opset: int) -> None:
    for node, body in bodies(lowered(Kind(cell, form, opset))):
        count = len(body.node)
        if node.op_type == "Loop":  # rows are gathered, and the condition is passed on, by nodes of the body
            count -= len(captured(body)) + 1
        assert count <= MOST_OPERATORS[cell], [n.op_type for n in body.node]


@pytest.mark.parametrize("cell", MOST_OPERATORS)
def test_operators_per_unrolled_step(cell: str) -> None:
    lengths = (5, 6)
    counts = [len(rl.lower(model(replace(CELLS[cell], T=T), 17), "unroll").graph.node) for T in lengths]
    assert counts[1] - counts[0] <= MOST_OPERATORS[cell] - 1  # Y needs no Identity here


# Names


@every_kind
def test_names_are_unique(kind: Kind) -> None:
    graph = lowered(kind)
    names = [name for scope in scopes(graph) for name in made_in(scope)]
    assert len(set(names)) == len(names)
    node_names = [node.name for node in nodes(graph)]
    assert len(set(node_names)) == len(node_names)
    assert "" not in node_names


@every_kind
def test_names_stand_under_the_nodes_name(kind: Kind) -> None:
    graph = lowered(kind)
    given = {"X", "sequence_lens", "initial_h", "initial_c", *RESULTS[kind.case.op_type]}
    for scope in scopes(graph):
        names = [node.name for node in scope.node]
        assert all(name.startswith("recurrent/") for name in [*names, *(made_in(scope) - given)])


@every_kind
def test_values_have_the_symbols_of_the_page(kind: Kind) -> None:
    graph = lowered(kind)
    parts = {"forward", "reverse"} if loops(kind) == 2 else {""}
    steps = {str(t) for t in range(kind.case.T)} if kind.form == "unroll" else {""}
    last = {"forward": f"{kind.case.T - 1}", "reverse": "0"}.get(kind.direction)
    made = {name for scope in scopes(graph) for name in made_in(scope)} | {value.name for value in graph.output}
    for part in parts:
        for step in steps:
            # The states of the last step are outputs of the node, whose names they have.
            for symbol in SYMBOLS[kind.cell] - ({"Ht", "Ct"} if step == last else set()):
                path = "/".join(filter(None, ("recurrent", part, step, symbol)))
                assert any(name == path or name.startswith(f"{path}_") for name in made), path


def test_a_node_without_a_name_lends_its_outputs() -> None:
    proto = model(CELLS["GRU"], 17)
    proto.graph.node[0].name = ""
    names = [node.name for node in nodes(rl.lower(proto, "scan").graph)]
    assert all(name.startswith("GRU_Y/") for name in names)


def test_names_of_several_nodes_do_not_meet() -> None:
    twins = chain(Link("LSTM", "same"), Link("LSTM", "same"), Link("LSTM", "same/forward"), dims=(5, 3))
    for form in FORMS:
        proto = rl.lower(twins, form)
        onnx.checker.check_model(proto, full_check=True)
        names = [name for scope in scopes(proto.graph) for name in made_in(scope)]
        assert len(set(names)) == len(names)


def test_names_of_the_model_are_not_taken() -> None:
    """The names that a lowering would choose are there already."""
    first = rl.lower(model(CELLS["LSTM"], 17), "scan")
    proto = model(CELLS["LSTM"], 17)
    taken = {n for scope in scopes(first.graph) for n in made_in(scope)} - made_in(proto.graph)
    for name in sorted(taken):
        proto.graph.node.append(onnx.helper.make_node("Identity", ["X"], [name], f"{name}/Identity"))
    again = rl.lower(proto, "scan")
    onnx.checker.check_model(again, full_check=True)
    names = [name for scope in scopes(again.graph) for name in made_in(scope)]
    assert len(set(names)) == len(names)


# What stays small


def test_zeros_leave_no_trace() -> None:
    """An absent input is no tensor full of zeros, and no node."""
    bare = rl.lower(model(replace(CELLS["LSTM"], optional=()), 17), "unroll").graph
    zeros = rl.lower(
        model(replace(CELLS["LSTM"], optional=("B", "P"), fill={"B": 0.0, "P": 0.0}), 17), "unroll"
    ).graph
    assert len(bare.node) == len(zeros.node)
    assert not any(array.size > 1 and not array.any() for array in constants(bare).values())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_connected_is_not_computed(form: str) -> None:
    for op in ("RNN", "GRU", "LSTM"):
        states = rl.lower(model(Case("spelt_states", op, outputs=("Y_h",)), 17), form).graph
        whole = rl.lower(model(Case("spelt_whole", op), 17), form).graph
        assert len(nodes(states)) < len(nodes(whole))
        for node, body in bodies(states):
            assert len(node.output) == len(RESULTS[op]) - 1
            assert "Identity" not in {n.op_type for n in body.node} or node.op_type == "Loop"


def test_equal_constants_are_one() -> None:
    for form in FORMS:
        for graph in scopes(lowered(Kind("LSTM", form))):
            seen = [(array.dtype, array.shape, array.tobytes()) for array in constants(graph).values()]
            assert len(set(seen)) == len(seen)


def test_weights_that_several_nodes_share_stay_one() -> None:
    proto = model(replace(CELLS["LSTM"], H=8), 17)
    twin = onnx.NodeProto()
    twin.CopyFrom(proto.graph.node[0])
    twin.name, twin.output[:] = "twin", ["Y2", "Y_h2", "Y_c2"]
    proto.graph.node.append(twin)
    for value in list(proto.graph.output):
        value.name += "2"
        proto.graph.output.append(value)
    graph = rl.lower(proto, "unroll").graph
    large = [array for array in constants(graph).values() if array.dtype.kind == "f" and array.size >= 16]
    assert len({array.tobytes() for array in large}) == len(large)
