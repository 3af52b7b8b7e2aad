"""Nodes side by side, and layers one above the other, become one loop where the target runs that faster: what does,
what does not, that the result is right, and that a comparison of single nodes sees what goes wrong in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import FORMALS, RESULTS, Array, Arrays
from commands import Command
from graphs import Graph
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from oracle import GATES, evaluate
from planting import Planting
from running import assert_close, nodes, run
from thinning import by_turns

import rnn_lowering as rl
from rnn_lowering.compare.node_by_node import NodeComparison
from rnn_lowering.compare.result import Verification
from rnn_lowering.compare.runs.runner import Runner
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.recurrence import weights

SEQ, BATCH, WIDTH = 6, 2, 5
OPEN, FIXED = ("seq", "batch"), (SEQ, BATCH)


@dataclass(frozen=True)
class Member:
    """A node among others: its operator, attributes, hidden size, and the inputs and outputs that it has.

    Attributes:
        X: The value that it reads.
        before: Nodes in ONNX's text that compute what it reads.
        inputs: Those of its own: weights, and states that are inputs of the model.
        taken: Those that are other values, by symbol.
        outputs: Those that are outputs of the model.
    """

    op: str = "GRU"
    hidden: int = 4
    attributes: Mapping[str, Any] = field(default_factory=dict)
    X: str = "X"
    before: str = ""
    inputs: Sequence[str] = ("B",)
    taken: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ("Y", "Y_h")

    @property
    def dirs(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1


@dataclass(frozen=True)
class Net:
    """A model, its inputs, and what it computes by the pages of the operators."""

    members: Sequence[Member]
    model: onnx.ModelProto
    feed: Arrays
    expected: Arrays


def net(
    *members: Member,
    sizes: Sequence[int | str] = OPEN,
    T: int = SEQ,
    after: str = "",
    constants: Mapping[str, Array] | None = None,
) -> Net:
    """Return a model of members and of nodes after them; then every output of a member has a name."""
    rng, graph = np.random.default_rng(len(members)), Graph()
    batch_first = "layout" in members[0].attributes
    X = rng.standard_normal((BATCH, T, WIDTH) if batch_first else (T, BATCH, WIDTH)).astype(np.float32)
    lengths = np.array([T, 1 + T // 2], np.int32)
    fed: Arrays = {"X": X, "lengths": lengths, "more": lengths[::-1].copy()}
    declared: dict[str, Sequence[int | str]] = {"X": [*(sizes[::-1] if batch_first else sizes), WIDTH]}
    known = fed | dict(constants or {})
    for name, array in (constants or {}).items():
        graph.constant(array, name=name)
    wanted: list[str] = []
    for n, member in enumerate(members):
        known |= computed(graph, member.before, known)
        H, rows, dirs = member.hidden, GATES[member.op] * member.hidden, member.dirs
        wide = known[member.X].shape[2]
        shapes = {"W": (dirs, rows, wide), "R": (dirs, rows, H), "B": (dirs, 2 * rows), "P": (dirs, 3 * H)}
        names = {"X": member.X, **member.taken}
        for symbol in ("W", "R", *member.inputs):
            name = names[symbol] = f"{symbol}{n}"
            shape = shapes.get(symbol, (dirs, BATCH, H))
            known[name] = rng.uniform(-1, 1, shape).astype(np.float32)
            if symbol in shapes:
                graph.constant(known[name], name=name)
            else:
                fed[name], declared[name] = known[name], [dirs, sizes[1], H]
        attributes = {"hidden_size": H, **member.attributes}
        symbols = RESULTS[member.op]
        outputs = [f"{s}{n}" if after or s in member.outputs else "" for s in symbols]
        graph.several(
            member.op,
            *(names.get(s, "") for s in FORMALS[member.op]),
            outputs=outputs,
            name=f"node{n}",
            **attributes,
        )
        results = evaluate(member.op, attributes, {s: known[name] for s, name in names.items()})
        known |= {f"{s}{n}": results[s] for s in symbols}
        wanted += [f"{s}{n}" for s in symbols if s in member.outputs]
    known |= computed(graph, after, known)
    wanted += [graph.nodes[-1].output[0]] if after else []
    used = {name for node in graph.nodes for name in node.input}
    feed = {name: array for name, array in fed.items() if name in used}
    for name, array in feed.items():
        graph.input(name, declared.get(name, [sizes[1]]), array.dtype)
    for name in wanted:
        graph.output(name, None)
    return Net(members, graph.model(), feed, {name: known[name] for name in wanted})


def computed(graph: Graph, text: str, known: Arrays) -> Arrays:
    """Add nodes to a graph; return what they compute, in onnx's reference."""
    if not text:
        return {}
    parsed = list(onnx.parser.parse_graph(f"g (float[a] X) => (float[a] X) {{ {text} }}").node)
    graph.nodes += parsed
    taken = {name for node in parsed for name in node.input} & known.keys()
    made = [name for node in parsed for name in node.output]
    alone = Graph(parsed)
    for name in (*taken, *made):
        (alone.input if name in taken else alone.output)(name, None)
    exact = any(known[name].dtype == np.float64 for name in taken)
    feed = {n: known[n].astype(float) if exact and known[n].dtype.kind == "f" else known[n] for n in taken}
    return dict(zip(made, ReferenceEvaluator(alone.model()).run(None, feed), strict=True))


MOVES = {
    "squeeze": "x{n} = Squeeze (Y{n}, axis)",
    "reshape": "t{n} = Transpose <perm = [0, 2, 1, 3]> (Y{n}) x{n} = Reshape (t{n}, merged)",
    "batch first": "s{n} = Squeeze (Y{n}, axis) t{n} = Transpose <perm = [1, 0, 2]> (s{n}) "
    "x{n} = Transpose <perm = [1, 0, 2]> (t{n})",
    "layout 1": "x{n} = Squeeze (Y{n}, axis)",
}
ADDED = {
    "added": "s{n} = Squeeze (Y{n}, axis) x{n} = Add (s{n}, c{n})",
    "added to": "s{n} = Squeeze (Y{n}, axis) x{n} = Add (c{n}, s{n})",
    "added before": "s{n} = Add (Y{n}, c{n}) x{n} = Squeeze (s{n}, axis)",
    "added twice": "s{n} = Add (Y{n}, c{n}) t{n} = Squeeze (s{n}, axis) x{n} = Add (one, t{n})",
}
"""What adds a constant c between layers, besides the moves."""


def layers(
    op: str = "LSTM",
    hidden: Sequence[int] = (4, 3),
    attributes: Mapping[str, Any] | None = None,
    between: str = "squeeze",
    *,
    each: Sequence[Mapping[str, Any]] = ({},) * 4,
    inputs: Sequence[str] = ("B",),
    outputs: Sequence[str] = ("Y_h",),
    lengths: bool = False,
    added: Sequence[int] = (),
    T: int = SEQ,
    sizes: Sequence[int | str] = FIXED,
) -> Net:
    """Return layers with moves between them and after the last; `added` is the shape of c, with H where it is 0."""
    layout = {"layout": 1} if between == "layout 1" else {}
    rng = np.random.default_rng(0)
    constants = {"axis": np.array([2 if layout else 1]), "merged": np.array([0, 0, -1])}
    constants["one"] = np.ones(1, np.float32)
    members, text = [], ""
    for n, (H, more) in enumerate(zip(hidden, each, strict=False)):
        taken = {"sequence_lens": "lengths"} if lengths else {}
        attrs = {**(attributes or {}), **more, **layout}
        members.append(Member(op, H, attrs, f"x{n - 1}" if n else "X", text, inputs, taken, outputs))
        text = (MOVES | ADDED)[between].format(n=n)
        constants[f"c{n}"] = rng.uniform(-2, 2, [size or H for size in added]).astype(np.float32)
    return net(*members, sizes=sizes, T=T, after=text, constants=constants)


def loops(model: onnx.ModelProto) -> int:
    return sum(node.op_type in ("Scan", "Loop") for node in model.graph.node)


def lowered(given: Net, to: Any = "auto", target: Any = "onnxruntime", **options: Any) -> onnx.ModelProto:
    """Return the lowered model, which gives what the original does in onnxruntime, and by the pages."""
    new: onnx.ModelProto = rl.lower(given.model, to, target=target, **options)
    actual = run(new, given.feed)
    if "layout" not in given.members[0].attributes:  # for which onnxruntime has no kernel
        assert_close(actual, run(given.model, given.feed))
    assert_close(actual, given.expected)
    return new


REVERSE, BOTH = {"direction": "reverse"}, {"direction": "bidirectional"}
LENGTHS, SOFTSIGN = {"sequence_lens": "lengths"}, {"activations": ["HardSigmoid", "Softsign", "Tanh"]}
SIBLINGS: dict[str, list[Member]] = {
    **{op: [Member(op), Member(op)] for op in GATES},
    **{f"{op} of different sizes": [Member(op, 4), Member(op, 7), Member(op, 1)] for op in GATES},
    **{f"{op} both ways": [Member(op, 4, BOTH), Member(op, 3, BOTH)] for op in GATES},
    **{f"{op} one of them in reverse": [Member(op, 4), Member(op, 3, REVERSE)] for op in GATES},
    **{f"{op} in reverse": [Member(op, 4, REVERSE), Member(op, 3, REVERSE)] for op in GATES},
    **{f"{op} from given states": [Member(op, inputs=("B", "initial_h")), Member(op, 3)] for op in GATES},
    **{f"{op} clipped": [Member(op, 4, {"clip": 0.4}), Member(op, 3, {"clip": 0.4})] for op in GATES},
    "GRU of linear_before_reset": [Member("GRU", h, {"linear_before_reset": 1}) for h in (4, 3)],
    "LSTM of input_forget": [Member("LSTM", h, {"input_forget": 1}) for h in (4, 3)],
    "LSTM with peepholes": [Member("LSTM", h, inputs=("B", "P", "initial_c")) for h in (4, 3)],
    "LSTM without Y": [Member("LSTM", h, outputs=(s,)) for h, s in ((4, "Y_c"), (3, "Y"), (2, "Y_h"))],
    "GRU without biases": [Member("GRU", inputs=()), Member("GRU", 3)],
    "LSTM of Softsign": [Member("LSTM", h, SOFTSIGN) for h in (4, 3)],
    "LSTM of one length": [Member("LSTM", h, d, taken=LENGTHS) for h, d in ((4, {}), (3, REVERSE), (2, BOTH))],
    "GRU of layout 1": [Member("GRU", h, {"layout": 1}) for h in (4, 3)],
}
STACKS: dict[str, partial[Net]] = {
    **{f"{op} of {len(H)}": partial(layers, op, H) for op in GATES for H in ((4, 3), (2, 5, 3), (2, 2, 2, 2))},
    **{f"{op} in reverse": partial(layers, op, (4, 3, 2), REVERSE, outputs=("Y", "Y_h")) for op in GATES},
    **{f"{op} from given states": partial(layers, op, inputs=("B", "initial_h")) for op in GATES},
    **{f"{op} with Y of all": partial(layers, op, (4, 3, 2), outputs=("Y",)) for op in GATES},
    **{f"{op} with the last Y only": partial(layers, op, (4, 3, 2), outputs=()) for op in GATES},
    **{f"{op} clipped": partial(layers, op, attributes={"clip": 0.4}) for op in GATES},
    **{f"GRU, {between}": partial(layers, "GRU", between=between) for between in MOVES},
    "GRU of linear_before_reset": partial(layers, "GRU", (4, 3, 5), {"linear_before_reset": 1}),
    "LSTM of input_forget": partial(layers, attributes={"input_forget": 1}),
    "LSTM with peepholes": partial(layers, inputs=("B", "P", "initial_c"), outputs=("Y_h", "Y_c")),
    "LSTM without biases": partial(layers, inputs=()),
    "LSTM of any batch": partial(layers, sizes=(SEQ, "batch")),
    "LSTM of Softsign": partial(layers, attributes=SOFTSIGN),
    "the fewest steps": partial(layers, "GRU", T=3, sizes=(3, BATCH)),
    **{f"{op}, {how}": partial(layers, op, (4, 3, 2), between=how, added=(1, 0)) for op in GATES for how in ADDED},
    "LSTM with peepholes, added": partial(layers, inputs=("P",), between="added before", added=(1, 1, 1, 0)),
    "GRU of linear_before_reset, added": partial(
        layers, "GRU", attributes={"linear_before_reset": 1, **REVERSE}, between="added", added=(1, 1, 0)
    ),
    "RNN without biases, a number added": partial(layers, "RNN", inputs=(), between="added to"),
    "LSTM, numbers added": partial(layers, between="added twice", added=(0,)),
}


def halves(hidden: int) -> list[Member]:
    split = "sizes = Constant <value = int64[2] {2, 3}> () A, C = Split <axis = 2> (X, sizes)"
    return [Member(X="A", before=split), Member(X="C", hidden=hidden)]


def two(text: str, **taken: str) -> list[Member]:
    """A node of X, and one of A, which nodes compute."""
    return [Member(), Member(X="X" if taken else "A", hidden=4 if taken else 3, before=text, taken=taken)]


PROVEN = {
    "Split": halves(3),
    "Relu, a sum": two("two = Constant <value_float = 2.0> () r = Relu (X) A = Mul (r, two)"),
    "Transpose twice": two("t = Transpose <perm = [1, 0, 2]> (X) A = Transpose <perm = [1, 0, 2]> (t)"),
    "Unsqueeze, Squeeze": two(
        "axes = Constant <value_ints = [1]> () u = Unsqueeze (X, axes) A = Squeeze (u, axes)"
    ),
    "Reshape": two(
        "s = Constant <value_ints = [0, 0, 1, -1]> () u = Reshape (X, s) "
        "axes = Constant <value_ints = [-2]> () A = Squeeze (u, axes)"
    ),
    "Concat of features": two("A = Concat <axis = -1> (X, X)"),
}
"""Nodes whose sizes follow from what is computed for each step."""
UNPROVEN = {
    "a slice of time": two(
        "b = Constant <value_ints = [1]> () e = Constant <value_ints = [9]> () z = Constant <value_ints = [0]> () "
        "A = Slice (X, b, e, z)"
    ),
    "time twice": two("A = Concat <axis = 0> (X, X)"),
    "Y of the other": two("axes = Constant <value_ints = [1]> () s = Squeeze (Y0, axes) A = Relu (s)"),
    "the state of the other": two("last = Identity (Y_h0)", initial_h="last"),
}
APART: dict[str, partial[Net]] = {
    "operators": partial(net, Member("GRU"), Member("LSTM")),
    "activations": partial(net, Member("RNN"), Member("RNN", 3, {"activations": ["Softsign"]})),
    "states that may overflow": partial(net, *(Member("RNN", h, {"activations": ["Relu"]}) for h in (4, 3))),
    "clips": partial(net, Member("GRU", 4, {"clip": 0.4}), Member("GRU", 3)),
    "linear_before_reset": partial(net, Member("GRU", 4, {"linear_before_reset": 1}), Member("GRU", 3)),
    "lengths": partial(net, Member(taken=LENGTHS), Member(hidden=3, taken={"sequence_lens": "more"})),
    "lengths of one only": partial(net, Member(taken=LENGTHS), Member(hidden=3)),
    "sizes where a product costs more": partial(net, Member("GRU", 100), Member("GRU", 30)),
    **{name: partial(net, *members) for name, members in UNPROVEN.items()},
    **{f"{name}, fixed": partial(net, *members, sizes=FIXED) for name, members in UNPROVEN.items()},
    "layers of too few steps": partial(layers, T=2, sizes=(2, BATCH)),
    "layers with lengths": partial(layers, lengths=True),
    "layers that may overflow": partial(layers, "RNN", attributes={"activations": ["Relu"]}),
    "layers of other directions": partial(layers, each=({}, REVERSE)),
    "layers of other attributes": partial(layers, each=({}, {"clip": 0.5})),
    "layers of sizes where a product costs more": partial(layers, hidden=(100, 40)),
    "what differs by row is added": partial(layers, between="added", added=(BATCH, 0)),
    "what differs by step is added": partial(layers, between="added to", added=(SEQ, 1, 1)),
    "what makes Y wider is added": partial(layers, hidden=(1, 4), between="added", added=(4,)),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("name", [*SIBLINGS, *PROVEN])
def test_siblings_become_one_loop(name: str, form: str) -> None:
    given = net(*(SIBLINGS | PROVEN)[name], sizes=OPEN if form == "scan" or name in PROVEN else FIXED)
    assert loops(lowered(given, form)) == 1
    assert loops(lowered(given, form, join=False)) == sum(member.dirs for member in given.members)


def test_peepholes_of_zeros_share_a_loop_with_others() -> None:
    zeros = {"zeros": np.zeros((1, 12), np.float32)}
    given = net(Member("LSTM", inputs=("B", "P")), Member("LSTM", taken={"P": "zeros"}), constants=zeros)
    assert loops(lowered(given, "scan")) == 1


@pytest.mark.few(5)
@pytest.mark.parametrize(("name", "form"), by_turns(list(STACKS), ["scan", "loop"]))
def test_layers_become_one_loop(name: str, form: str) -> None:
    given = STACKS[name]()
    assert loops(lowered(given, form)) == 1
    assert loops(lowered(given, form, join=False)) == len(given.members)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", APART)
def test_what_stays_apart(name: str) -> None:
    assert loops(lowered(APART[name](), "scan")) == 2


def test_a_layer_that_starts_from_the_last_state_of_the_one_below_stays_apart() -> None:
    below = "axes = Constant <value_ints = [1]> () A = Squeeze (Y0, axes) last = Identity (Y_h0)"
    given = net(Member(), Member(X="A", hidden=4, before=below, taken={"initial_h": "last"}), sizes=FIXED)
    assert loops(lowered(given, "scan")) == 2


# Layers of any length


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these outputs."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    del new.graph.output[:]
    new.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return new


def assert_same_at_any_length(given: Net, outputs: Iterable[str], form: Any) -> onnx.ModelProto:
    """Lower to one loop, and compare with the original; lengths of fewer steps than layers too."""
    model = with_outputs(given.model, outputs)
    new = rl.lower(model, form)
    assert loops(new) == 1
    for T in (1, 2, 3, 4, 20):
        feed = {**given.feed, "X": np.resize(given.feed["X"], (T, BATCH, WIDTH))}
        assert_close(run(new, feed), run(model, feed))
    return new


@pytest.mark.few(2)
@pytest.mark.parametrize("op", GATES)
def test_layers_of_any_length_become_one_loop(op: str) -> None:
    """A Scan of no step is for no runtime."""
    for batch, attributes, inputs in (("batch", {}, ("B",)), (BATCH, REVERSE, ("B", "initial_h"))):
        given = layers(op, (4, 2, 3), attributes, inputs=inputs, sizes=("seq", batch))
        for form in ("scan", "loop"):
            new = assert_same_at_any_length(given, ["x2", *(f"{symbol}2" for symbol in RESULTS[op])], form)
            found = run(new, given.feed)
            assert_close({s: found[s] for s in ("x2", "Y_h2")}, {s: given.expected[s] for s in ("x2", "Y_h2")})
    empty = run(new, {**given.feed, "X": given.feed["X"][:0]})
    assert (empty["x2"].shape, empty["Y2"].shape) == ((0, BATCH, 3), (0, 1, BATCH, 3))
    assert all((array == 0).all() and array.shape == (1, BATCH, 3) for name, array in empty.items() if "Y_" in name)


@pytest.mark.few(1)
@pytest.mark.parametrize("op", GATES)
def test_constants_are_added_between_layers_of_any_length(op: str) -> None:
    """Also where the constants are outputs too, and unrolled."""
    for attributes, between, shape in (({}, "added", (0,)), (REVERSE, "added twice", (1, 1, 1, 0))):
        given = layers(op, (4, 2, 3), attributes, between, added=shape, sizes=OPEN)
        for form in ("scan", "loop"):
            for used in ([], ["c1"]):
                assert_same_at_any_length(given, ["x2", *used], form)
    assert loops(lowered(layers(op, between="added to", added=(1, 0)), "unroll")) == 0


@pytest.mark.parametrize("used", ["Y_h0", "Y_c0", "Y0", "x0"])
def test_layers_of_any_length_stay_apart_where_an_output_of_a_lower_layer_is_used(used: str) -> None:
    """As in streams: a joined loop goes past the last step of this layer."""
    given = layers(sizes=("seq", BATCH))
    model = with_outputs(given.model, (used, "x1"))
    new = rl.lower(model)
    assert loops(new) == 2
    assert_close(run(new, given.feed), run(model, given.feed))


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_constants_of_other_types_are_added(dtype: int) -> None:
    """onnxruntime has no kernels for these."""
    given = layers("GRU", between="added", added=(0,))
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    for tensor in given.model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(numpy_type), tensor.name))
    for info in (*given.model.graph.input, *given.model.graph.output):
        info.type.tensor_type.elem_type = dtype
    new = rl.lower(given.model, target="onnxruntime")
    assert loops(new) == 1
    found = run(new, {name: array.astype(numpy_type) for name, array in given.feed.items()})
    rtol = 1e-6 if dtype == TensorProto.DOUBLE else 1e-2  # the weights are those of float32
    for name, array in given.expected.items():
        np.testing.assert_allclose(found[name], array, rtol, atol=rtol)


@pytest.mark.parametrize("numbers", ["a default", "infinite"])
def test_numbers_that_may_change_or_are_infinite_keep_layers_apart(numbers: str) -> None:
    given = layers("GRU", between="added", added=(0,))
    if numbers == "a default":
        given.model.graph.input.append(helper.make_tensor_value_info("c0", TensorProto.FLOAT, [4]))
        given.feed["c0"] = np.arange(4, dtype=np.float32)
    else:
        (c,) = (tensor for tensor in given.model.graph.initializer if tensor.name == "c0")
        c.CopyFrom(numpy_helper.from_array(np.array([0, np.inf, 1, 2], np.float32), "c0"))
    new = rl.lower(given.model)
    assert loops(new) == 2
    assert_close(run(new, given.feed), run(given.model, given.feed))


def test_before_opset_10_no_rows_of_unknown_number_are_reversed() -> None:
    given = layers("GRU", attributes=REVERSE, sizes=("seq", BATCH))
    given.model.opset_import[0].version = 9
    for node in given.model.graph.node:
        if node.op_type == "Squeeze":
            del node.input[1:]
            node.attribute.append(helper.make_attribute("axes", [1]))
    assert loops(lowered(given, target="portable")) == 2
    for opset, count in ((9, 2), (10, 1)):
        for target in ("portable", "openvino"):
            both = net(Member("GRU", 4, BOTH))
            both.model.opset_import[0].version = opset
            assert loops(lowered(both, "loop", target)) == count


def test_the_product_between_layers_is_one_kernel_with_tanh() -> None:
    """onnxruntime runs a Gemm and the activation that follows as one."""
    new = rl.lower(STACKS["GRU of linear_before_reset"]().model, target="onnxruntime")
    (body,) = (a.g for node in new.graph.node if node.op_type == "Scan" for a in node.attribute if a.name == "body")
    made = {name: node.op_type for node in body.node for name in node.output}
    assert [made[node.input[0]] for node in body.node if node.op_type == "Tanh"] == ["Gemm"]


# The comparison


def compared(given: Net, count: int = 1) -> Verification:
    """Compare the nodes of a net with float64, one by one; it becomes this many loops."""
    new = rl.lower(given.model, target="onnxruntime")
    assert loops(new) == count
    with Runner() as runner:
        files = [ModelSource(runner.folder / f"{n}.onnx", proto) for n, proto in enumerate((given.model, new))]
        return NodeComparison(files[0], files[1], runner, rl.Check(), None).result("asked for")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "given",
    [
        *(partial(net, *SIBLINGS[n]) for n in ("LSTM of different sizes", "GRU both ways", "LSTM of one length")),
        *(STACKS[n] for n in ("LSTM of 3", "GRU in reverse", "GRU, reshape", "RNN with the last Y only")),
        *(STACKS[f"{op}, {how}"] for op, how in zip(("LSTM", "GRU", "RNN", "GRU"), ADDED, strict=True)),
    ],
)
def test_joined_nodes_are_compared_with_float64(given: partial[Net]) -> None:
    made = given()
    result = compared(made)
    assert result.status == "verified"
    wanted = {f"{s} of {m.op} node 'node{n}'" for n, m in enumerate(made.members) for s in m.outputs}
    if given.func is layers:  # which give Y of the last to the node after it
        wanted.add(f"Y of {made.members[-1].op} node 'node{len(made.members) - 1}'")
    assert {check.name.split(" in ")[0] for check in result.nodes} == wanted


def test_an_output_of_a_joined_node_may_be_the_first_state_of_another() -> None:
    own = ("B", "initial_h")
    made = net(Member("RNN", inputs=own), Member("RNN", inputs=own), Member("RNN", taken={"initial_h": "Y_h0"}))
    result = compared(made, 2)
    assert result.status == "verified"
    assert {check.name.split(" of ")[0] for check in result.nodes if "node0" in check.name} == {"Y", "Y_h"}


def reversed_nodes(join: Any, op: Any, ks: Any) -> Any:
    return join(op, ks[::-1])


def with_R(stack: Any, op: Any, ks: Any, **given: Any) -> Any:
    return stack(op, [ks[0], *(replace(k, W=k.R[0]) for k in ks[1:])], **given)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "fault", "given"),
    [
        (weights.side_by_side_operands, reversed_nodes, net(*halves(4))),
        (weights.layered_operands, with_R, layers("RNN", (4, 4), outputs=())),
    ],
)
def test_a_fault_in_a_shared_loop_fails_the_comparison(
    function: Any, fault: Any, given: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(given).status == "verified"
    Planting(monkeypatch).function(function, fault)
    assert compared(given).status == "failed"
    new = rl.lower(given.model, target="onnxruntime")
    assert rl.verify(given.model, new, runs=1).status == "failed"


def test_the_report_and_the_command_tell_it(tmp_path: Path, rnn_lower: Command) -> None:
    given = net(Member(), Member())
    _, report = rl.lower(given.model, target="onnxruntime", full=True)
    assert any("node0" in note and "node1" in note and "one recurrence" in note for note in report.notes)
    onnx.save(given.model, tmp_path / "in.onnx")
    for option, count in (((), 1), (("--no-join",), 2)):
        listed = rnn_lower(tmp_path / "in.onnx", "--list", "--target", "onnxruntime", *option)
        told = "GRU node 'node0' in main graph and GRU node 'node1' in main graph become one recurrence"
        assert (told in " ".join(listed.out.split())) == (count == 1)
        options = ["--target", "onnxruntime", "--verify", "0", *option]
        outcome = rnn_lower(tmp_path / "in.onnx", tmp_path / f"{count}.onnx", *options)
        assert outcome.code == 0
        assert loops(onnx.load(tmp_path / f"{count}.onnx")) == count


# Where it is faster


TARGETS = ["portable", "tract", "openvino", "onnxruntime-web", "iree", "mnn", "opencv"]


@pytest.mark.few(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "name", ["GRU", "GRU both ways", "RNN in reverse", "LSTM of one length", "GRU of layout 1"]
)
def test_other_targets_join_too(name: str, target: str) -> None:
    given = net(*SIBLINGS[name], sizes=FIXED)
    together, apart = (lowered(given, target=target, join=join) for join in (True, False))
    # IREE runs unrolled steps slower, and OpenVINO makes its own kernels of an LSTM.
    as_apart = target == "iree" or (target == "openvino" and "LSTM" in name)
    few, many = (len(list(nodes(model))) for model in (together, apart))
    assert few == many if as_apart else few < many


@pytest.mark.few(4)
@pytest.mark.parametrize("target", TARGETS)
def test_single_and_unrolled_steps_share_nothing(target: Any) -> None:
    given = net(Member("GRU", 4), Member("GRU", 3), T=1, sizes=(1, BATCH))
    assert lowered(given, target=target) == rl.lower(given.model, target=target, join=False)
    given = net(Member("LSTM", 4, BOTH), sizes=FIXED)
    form: Any
    for form, count in (("scan", 1), ("unroll", 0)) if target in ("portable", "iree") else ():
        new = lowered(given, form, target)
        assert loops(new) == count
        assert (new == rl.lower(given.model, form, target=target, join=False)) == (form == "unroll")


@pytest.mark.parametrize(("members", "together"), [([BOTH], 3), ([{}, REVERSE], 3), ([{}, {}], 4)])
def test_the_most_rows_at_which_a_loop_is_shared(members: list[dict[str, str]], together: int) -> None:
    """Reversed rows are copied: both directions of an LSTM of 64, 4 rows and 500 steps took 1.04 of the time."""
    for batch in (together, together + 1):
        given = net(*(Member("LSTM", 64, m) for m in members))
        for value in given.model.graph.input:
            value.type.tensor_type.shape.dim[1].dim_value = batch
        apart = rl.lower(given.model, join=False)
        assert (rl.lower(given.model) == apart) == (batch > together)


def test_tract_flips_no_rows_of_open_length() -> None:
    assert loops(lowered(net(Member("GRU", 4, BOTH), Member("GRU", 3, BOTH)), target="tract")) == 4
