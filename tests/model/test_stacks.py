"""Layers, one above the other, become one loop where the target runs that faster: what joins, what does not, that
the result is right, and that a comparison of single nodes sees what goes wrong in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle import GATES
from planting import Planting
from running import assert_close, run
from thinning import by_turns

import rnn_lowering as rl
from rnn_lowering.compare.nodes.one_by_one import NodeComparison
from rnn_lowering.compare.result import Verification
from rnn_lowering.compare.runner.process import Runner
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.recurrence import weights

BATCH, WIDTH = 2, 3
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


@dataclass(frozen=True)
class Stack:
    """Layers: their operator, hidden sizes and attributes, what is between them, inputs and outputs of all."""

    op: str = "LSTM"
    sizes: Sequence[int] = (4, 3)
    attributes: Mapping[str, Any] | None = None
    between: str = "squeeze"
    inputs: Sequence[str] = ("B",)
    outputs: Sequence[str] = ("Y_h",)
    T: int = 6
    declared: Sequence[int | str] = (6, BATCH)
    lengths: bool = False
    each: Sequence[Mapping[str, Any]] = ({},) * 4
    added: Sequence[int] = ()  # the shape of c, whose last size is that of H where it is 0

    def built(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the model, its inputs, and what it computes by the pages of the operators."""
        rng, batch_first = np.random.default_rng(len(self.sizes)), self.between == "layout 1"
        shape = (BATCH, self.T, WIDTH) if batch_first else (self.T, BATCH, WIDTH)
        X = rng.standard_normal(shape).astype(np.float32)
        feed: dict[str, np.ndarray] = {"X": X}
        lengths = np.array([self.T, self.T // 2], np.int32)
        tensors = [numpy_helper.from_array(np.array([2 if batch_first else 1]), "axis")]
        tensors.append(numpy_helper.from_array(np.array([0, 0, -1]), "merged"))
        tensors.append(numpy_helper.from_array(np.ones(1, np.float32), "one"))
        nodes: list[onnx.NodeProto] = []
        expected: dict[str, np.ndarray] = {}
        below = np.asarray(X, np.float64)
        symbols = ("Y", "Y_h", "Y_c")[: 3 if self.op == "LSTM" else 2]
        for n, (H, more) in enumerate(zip(self.sizes, self.each, strict=False)):
            rows, state = GATES[self.op] * H, (BATCH, 1, H) if batch_first else (1, BATCH, H)
            shapes = {"W": (1, rows, below.shape[2]), "R": (1, rows, H), "B": (1, 2 * rows), "P": (1, 3 * H)}
            shapes |= {"initial_h": state, "initial_c": state}
            given: dict[str, np.ndarray] = {
                s: rng.uniform(-1, 1, shapes[s]).astype(np.float32) for s in ("W", "R", *self.inputs)
            }
            feed |= {f"{s}{n}": array for s, array in given.items() if s.startswith("initial")}
            tensors += [numpy_helper.from_array(a, f"{s}{n}") for s, a in given.items() if f"{s}{n}" not in feed]
            order = ("W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")[: 7 if self.op == "LSTM" else 5]
            names = {s: f"{s}{n}" for s in given} | ({"sequence_lens": "lengths"} if self.lengths else {})
            attributes = {"hidden_size": H, **(self.attributes or {}), **more} | (
                {"layout": 1} if batch_first else {}
            )
            inputs = [f"x{n - 1}" if n else "X", *(names.get(s, "") for s in order)]
            nodes.append(helper.make_node(self.op, inputs, [f"{s}{n}" for s in symbols], f"node{n}", **attributes))
            if self.between in ADDED:
                c = rng.uniform(-2, 2, [size or H for size in self.added]).astype(np.float32)
                tensors.append(numpy_helper.from_array(c, f"c{n}"))
            text = f"g (float[a] X) => (float[a] X) {{ {(MOVES | ADDED)[self.between].format(n=n)} }}"
            nodes += onnx.parser.parse_graph(text).node
            page = {**given, "X": below} | ({"sequence_lens": lengths} if self.lengths else {})
            found = oracle.evaluate(self.op, attributes, page)
            below = found["Y"][:, :, 0] if batch_first else found["Y"][:, 0]
            expected |= {f"{s}{n}": found[s] for s in symbols if s in self.outputs}
            if self.between in ADDED:
                Y = found["Y"] if self.between == "added before" else found["Y"][:, 0]
                below = (Y + c + (self.between == "added twice")).reshape(*below.shape[:2], -1)
        top = f"x{len(self.sizes) - 1}"
        expected[top] = below
        feed |= {"lengths": lengths} if self.lengths else {}
        infos = [
            helper.make_tensor_value_info(
                name,
                TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT,
                [*(self.declared[::-1] if batch_first else self.declared), WIDTH] if name == "X" else array.shape,
            )
            for name, array in feed.items()
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in expected]
        graph = helper.make_graph(nodes, "stack", infos, outputs, tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model, feed, expected


def loops(model: onnx.ModelProto) -> int:
    return sum(node.op_type in ("Scan", "Loop") for node in model.graph.node)


def lowered(stack: Stack, to: str = "auto", **options: Any) -> onnx.ModelProto:
    """Return the lowered model, which gives what the original does in onnxruntime, and by the pages."""
    model, feed, expected = stack.built()
    new: onnx.ModelProto = rl.lower(model, to, target="onnxruntime", **options)
    actual = run(new, feed)
    if stack.between != "layout 1":  # onnxruntime has no kernel
        assert_close(actual, run(model, feed))
    assert_close(actual, expected)
    return new


REVERSE = {"direction": "reverse"}
STACKS: dict[str, Stack] = {
    **{f"{op} of {len(sizes)}": Stack(op, sizes) for op in GATES for sizes in ((4, 3), (2, 5, 3), (2, 2, 2, 2))},
    **{f"{op} in reverse": Stack(op, (4, 3, 2), REVERSE, outputs=("Y", "Y_h")) for op in GATES},
    **{f"{op} from given states": Stack(op, (4, 3), inputs=("B", "initial_h")) for op in GATES},
    **{f"{op} with Y of all": Stack(op, (4, 3, 2), outputs=("Y",)) for op in GATES},
    **{f"{op} with the last Y only": Stack(op, (4, 3, 2), outputs=()) for op in GATES},
    **{f"{op} clipped": Stack(op, (4, 3), {"clip": 0.4}) for op in GATES},
    **{f"GRU, {between}": Stack("GRU", (4, 3), between=between) for between in MOVES},
    "GRU of linear_before_reset": Stack("GRU", (4, 3, 5), {"linear_before_reset": 1}),
    "LSTM of input_forget": Stack("LSTM", (4, 3), {"input_forget": 1}),
    "LSTM with peepholes": Stack("LSTM", (4, 3), inputs=("B", "P", "initial_c"), outputs=("Y_h", "Y_c")),
    "LSTM without biases": Stack("LSTM", (4, 3), inputs=()),
    "LSTM of any batch": Stack("LSTM", (4, 3), declared=(6, "batch")),
    "LSTM of Softsign": Stack("LSTM", (4, 3), {"activations": ["HardSigmoid", "Softsign", "Tanh"]}),
    "the fewest steps": Stack("GRU", (4, 3), T=3, declared=(3, BATCH)),
    **{
        f"{op}, {between}": Stack(op, (4, 3, 2), between=between, added=(1, 0)) for op in GATES for between in ADDED
    },
    "LSTM with peepholes, added": Stack("LSTM", (4, 3), inputs=("P",), between="added before", added=(1, 1, 1, 0)),
    "GRU of linear_before_reset, added": Stack(
        "GRU", (4, 3), {"linear_before_reset": 1, **REVERSE}, between="added", added=(1, 1, 0)
    ),
    "RNN without biases, a number added": Stack("RNN", (4, 3), inputs=(), between="added to", added=()),
    "LSTM, numbers added": Stack("LSTM", (4, 3), between="added twice", added=(0,)),
}
ADDED_NAMES = [f"{op}, {between}" for op, between in zip(("LSTM", "GRU", "RNN", "GRU"), ADDED, strict=True)]
APART: dict[str, Stack] = {
    "too few steps": Stack(T=2, declared=(2, BATCH)),
    "lengths": Stack(lengths=True),
    "states that may overflow": Stack("RNN", attributes={"activations": ["Relu"]}),
    "other directions": Stack(each=({}, REVERSE)),
    "other attributes": Stack(each=({}, {"clip": 0.5})),
    "sizes where a product costs more": Stack(sizes=(100, 40)),
    "what differs by row is added": Stack(between="added", added=(BATCH, 0)),
    "what differs by step is added": Stack(between="added to", added=(6, 1, 1)),
    "what makes Y wider is added": Stack(sizes=(1, 4), between="added", added=(4,)),
}


@pytest.mark.parametrize(("name", "form"), by_turns(list(STACKS), ["scan", "loop"]))
def test_layers_become_one_loop(name: str, form: str) -> None:
    assert loops(lowered(STACKS[name], form)) == 1
    assert loops(lowered(STACKS[name], form, join=False)) == len(STACKS[name].sizes)


@pytest.mark.parametrize("name", APART)
def test_what_cannot_be_skewed_stays_apart(name: str) -> None:
    assert loops(lowered(APART[name], "scan")) == 2


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these outputs."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    del new.graph.output[:]
    new.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return new


@pytest.mark.parametrize("op", GATES)
def test_layers_of_any_length_become_one_loop(op: str) -> None:
    """Also of fewer steps than layers; a Scan of no step is for no runtime."""
    top = ("x2", "Y2", "Y_h2", "Y_c2") if op == "LSTM" else ("x2", "Y2", "Y_h2")
    for batch, attributes, inputs in (("batch", {}, ("B",)), (BATCH, REVERSE, ("B", "initial_h"))):
        stack = Stack(op, (4, 2, 3), attributes, inputs=inputs, declared=("seq", batch))
        model, feed, expected = stack.built()
        model = with_outputs(model, top)
        for form in ("scan", "loop"):
            new = rl.lower(model, form)
            assert loops(new) == 1
            found = run(new, feed)
            assert_close(
                {name: found[name] for name in ("x2", "Y_h2")}, {name: expected[name] for name in ("x2", "Y_h2")}
            )
            for T in (1, 2, 3, 4, 20):
                X = np.resize(feed["X"], (T, BATCH, WIDTH))
                assert_close(run(new, {**feed, "X": X}), run(model, {**feed, "X": X}))
    empty = run(new, {**feed, "X": feed["X"][:0]})
    assert (empty["x2"].shape, empty["Y2"].shape) == ((0, BATCH, 3), (0, 1, BATCH, 3))
    assert all((array == 0).all() and array.shape == (1, BATCH, 3) for name, array in empty.items() if "Y_" in name)


@pytest.mark.parametrize("used", ["Y_h0", "Y_c0", "Y0", "x0"])
def test_layers_of_any_length_stay_apart_where_an_output_of_a_lower_layer_is_used(used: str) -> None:
    """As in streams: a joined loop goes past the last step of this layer."""
    model, feed, _ = Stack("LSTM", (4, 3), declared=("seq", BATCH)).built()
    model = with_outputs(model, (used, "x1"))
    new = rl.lower(model)
    assert loops(new) == 2
    assert_close(run(new, feed), run(model, feed))


@pytest.mark.parametrize("op", GATES)
def test_constants_are_added_between_layers_of_any_length(op: str) -> None:
    """Also where the constants are outputs too."""
    for attributes, between, shape in (({}, "added", (0,)), (REVERSE, "added twice", (1, 1, 1, 0))):
        stack = Stack(op, (4, 2, 3), attributes, between, added=shape, declared=("seq", "batch"))
        model, feed, _ = stack.built()
        for form in ("scan", "loop"):
            for used in ([], ["c1"]):
                given = with_outputs(model, ["x2", *used])
                new = rl.lower(given, form)
                assert loops(new) == 1
                for T in (1, 2, 3, 9):
                    X = np.resize(feed["X"], (T, BATCH, WIDTH))
                    assert_close(run(new, {**feed, "X": X}), run(given, {**feed, "X": X}))


@pytest.mark.parametrize("op", GATES)
def test_constants_are_added_between_unrolled_layers(op: str) -> None:
    assert loops(lowered(Stack(op, (4, 3), between="added to", added=(1, 0)), "unroll")) == 0


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_constants_of_other_types_are_added(dtype: int) -> None:
    """onnxruntime has no kernels for these."""
    model, feed, expected = Stack("GRU", (4, 3), between="added", added=(0,)).built()
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(numpy_type), tensor.name))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = dtype
    new = rl.lower(model, target="onnxruntime")
    assert loops(new) == 1
    found = run(new, {name: array.astype(numpy_type) for name, array in feed.items()})
    rtol = 1e-6 if dtype == TensorProto.DOUBLE else 1e-2  # the weights are those of float32
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol, atol=rtol)


@pytest.mark.parametrize("numbers", ["a default", "infinite"])
def test_numbers_that_may_change_or_are_infinite_keep_layers_apart(numbers: str) -> None:
    model, feed, _ = Stack("GRU", (4, 3), between="added", added=(0,)).built()
    (c,) = (tensor for tensor in model.graph.initializer if tensor.name == "c0")
    if numbers == "a default":
        model.graph.input.append(helper.make_tensor_value_info("c0", TensorProto.FLOAT, [4]))
        feed["c0"] = np.arange(4, dtype=np.float32)
    else:
        c.CopyFrom(numpy_helper.from_array(np.array([0, np.inf, 1, 2], np.float32), "c0"))
    new = rl.lower(model)
    assert loops(new) == 2
    assert_close(run(new, feed), run(model, feed))


def test_a_reverse_stack_of_any_length_stays_apart_before_opset_10() -> None:
    """Rows of unknown number cannot be reversed there."""
    model, feed, expected = Stack("GRU", attributes=REVERSE, declared=("seq", BATCH)).built()
    model.opset_import[0].version = 9
    for node in model.graph.node:
        if node.op_type == "Squeeze":
            del node.input[1:]
            node.attribute.append(helper.make_attribute("axes", [1]))
    new = rl.lower(model)
    assert loops(new) == 2
    assert_close(run(new, feed), expected)


def test_the_product_between_layers_is_one_kernel_with_tanh() -> None:
    """onnxruntime runs a Gemm and the activation that follows as one."""
    model, *_ = STACKS["GRU of linear_before_reset"].built()
    new = rl.lower(model, target="onnxruntime")
    (body,) = (a.g for node in new.graph.node if node.op_type == "Scan" for a in node.attribute if a.name == "body")
    made = {name: node.op_type for node in body.node for name in node.output}
    assert [made[node.input[0]] for node in body.node if node.op_type == "Tanh"] == ["Gemm"]


def compared(stack: Stack) -> Verification:
    """Compare the nodes of a stack with float64, one by one."""
    model, *_ = stack.built()
    new = rl.lower(model, target="onnxruntime")
    assert loops(new) == 1
    with Runner() as runner:
        files = [ModelSource(runner.folder / f"{n}.onnx", proto) for n, proto in enumerate((model, new))]
        return NodeComparison(files[0], files[1], runner, rl.Check(), None).result("asked for")


@pytest.mark.parametrize(
    "name", ["LSTM of 3", "GRU in reverse", "GRU, reshape", "RNN with the last Y only", *ADDED_NAMES]
)
def test_layers_are_compared_with_float64(name: str) -> None:
    stack = STACKS[name]
    result = compared(stack)
    assert result.status == "verified"
    last = f"{stack.op} node 'node{len(stack.sizes) - 1}'"
    names = {check.name.split(" in ")[0] for check in result.nodes}
    inner = {f"{s} of {stack.op} node 'node{n}'" for n in range(len(stack.sizes) - 1) for s in stack.outputs}
    assert names == inner | {f"{s} of {last}" for s in {"Y", *stack.outputs}}


def test_a_wrong_product_between_layers_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_R(stack: Any, op: Any, ks: Any, **given: Any) -> Any:
        return stack(op, [ks[0], *(replace(k, W=k.R[0]) for k in ks[1:])], **given)

    Planting(monkeypatch).function(weights.layered_operands, with_R)
    stack = Stack("RNN", (4, 4), outputs=())
    result = compared(stack)
    assert result.status == "failed"
    model, *_ = stack.built()
    assert rl.verify(model, rl.lower(model, target="onnxruntime")).status == "failed"
