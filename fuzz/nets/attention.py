"""Nets of linear attention: layers of LinearAttention, GatedDeltaNet and CausalConvWithState with their gates and
norms, as exporters write them and stranger: every rule, type, layout and group of heads, states that come from
anywhere, and layers in functions, branches and loops.

A layer takes x [B, T, WIDTH] and returns as much; a state is [B, ...].
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4
MS = "com.microsoft"
LENGTHS = (1, 1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 100, 129, 200, 300)
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": None}
NUMBERS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
RULES = ("linear", "gated", "delta", "gated_delta", "gated_delta")


class Net:
    """A graph that grows, and what its layers share.

    Attributes:
        B, T: What the model declares: numbers or names.
        batch: The batch size that constants have where they need one.
    """

    def __init__(self, seed: int, exact: bool = False) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        rng = self.rng
        self.standard = rng.random() < 0.4 and not exact
        self.exact = exact
        self.opset = 27 if self.standard else rng.choice((17, 20, 21, 23, 26))
        self.batch = rng.choice((1, 1, 2, 3))
        self.length = rng.choice(LENGTHS)
        self.B: int | str = rng.choice((self.batch, "B"))
        self.T: int | str = rng.choice((self.length, "T", "T"))
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def input(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def constant(self, array: Any, kind: int = 0) -> str:
        array = np.asarray(array)
        tensor = numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array)
        if kind and kind != tensor.data_type:
            tensor = helper.make_tensor("", kind, array.shape, array.ravel().tolist())
        tensor.name = self.name("c")
        self.tensors.append(tensor)
        return tensor.name

    def weight(self, *shape: int, scale: float = 1.0, kind: int = TensorProto.FLOAT) -> str:
        fan = shape[0] if len(shape) > 1 else 1
        return self.constant(self.numbers.standard_normal(shape) * scale * fan**-0.5, kind)

    def node(self, op: str, *given: str, domain: str = "", **attributes: Any) -> str:
        return self.several(op, *given, outputs=1, domain=domain, **attributes)[0]

    def several(self, op: str, *given: str, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        names = [self.name(op) for _ in range(outputs)]
        given_names = list(given)
        while given_names and not given_names[-1]:
            given_names.pop()
        self.nodes.append(helper.make_node(op, given_names, names, names[0], domain=domain, **attributes))
        return names

    def cast(self, x: str, kind: int) -> str:
        return x if kind == TensorProto.FLOAT else self.node("Cast", x, to=kind)

    def back(self, x: str, kind: int) -> str:
        return x if kind == TensorProto.FLOAT else self.node("Cast", x, to=TensorProto.FLOAT)

    def linear(self, x: str, rows: int, columns: int, scale: float = 1.0) -> str:
        y = self.node("MatMul", x, self.weight(rows, columns, scale=scale))
        return self.node("Add", y, self.weight(columns, scale=0.1)) if self.rng.random() < 0.3 else y

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "attention", self.inputs, self.outputs, self.tensors)
        imports = [("", self.opset), (MS, 1), ("local", 1)]
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*each) for each in imports],
            functions=self.functions,
            ir_version=10,
        )


State = tuple[str, str, list[int], int]
"""A state: the past one, the present one, its shape without the batch, and its type."""


def _past(net: Net, shape: list[int], kind: int, places: Sequence[str]) -> tuple[str, str]:
    """Return a past state of [B, *shape] from one of the places, and which."""
    place = net.rng.choice(places)
    if place == "absent":
        return "", place
    if place == "constant" and net.B != "B":
        scale = 0.0 if net.rng.random() < 0.3 else 0.5
        return net.constant(net.numbers.standard_normal((net.batch, *shape)) * scale, kind), place
    if place == "computed":
        held = net.input(net.name("given_state"), [net.B, *shape])
        return net.cast(net.node("Mul", held, net.constant(np.float32(0.5))), kind), place
    return net.input(net.name("past"), [net.B, *shape], kind), "input"


def _type(net: Net) -> int:
    if net.exact:
        return TensorProto.FLOAT
    name = net.rng.choice(("float32",) * 6 + ("float16",) * 2 + (("bfloat16",) if net.standard else ()))
    return NUMBERS[name]


PLACES = ("input", "input", "input", "absent", "constant", "computed")


def attention(net: Net, x: str, places: Sequence[str]) -> tuple[str, list[State]]:
    """A LinearAttention between projections."""
    rng, kind = net.rng, _type(net)
    domain = "" if net.standard else MS
    rule = rng.choice(RULES)
    states = rng.choice((1, 2, 2, 3, 4, 4))
    queries = states * rng.choice((1, 1, 1, 2))
    keys = states
    if domain and rng.random() < 0.4:
        keys = rng.choice([n for n in (1, 2, 3, 4) if states % n == 0])
        queries = rng.choice((queries, keys))
    dk, dv = rng.choice((1, 2, 3, 4, 8)), rng.choice((1, 1, 2, 3, 4, 8))
    scale = rng.choice((None, 0.0, 1.0, -0.7, 0.3))
    # As in exports, queries and keys are of length about 1, with some that are not.
    q = net.linear(x, WIDTH, queries * dk)
    k = net.linear(x, WIDTH, keys * dk, rng.choice((0.3, 0.5)))
    if rng.random() < 0.4:
        k = net.reshape(
            net.node(
                "LpNormalization",
                net.reshape(k, 0, -1 if net.B == "B" and net.T != "T" else 0, keys, dk),
                axis=-1,
                p=2,
            ),
            0,
            0,
            keys * dk,
        )
    v = net.linear(x, WIDTH, states * dv)
    decay = beta = ""
    if rule in ("gated", "gated_delta") or (domain and rng.random() < 0.2):
        width = states * (dk if rng.random() < 0.35 else 1)
        a = net.linear(x, WIDTH, width)
        how = rng.choice(("softplus", "gate", "strong", "abs", "log"))
        if how == "gate" and domain and width == states:
            decay, beta = net.several(
                "LinearAttentionGate",
                a,
                net.weight(width),
                net.constant(-net.numbers.uniform(0.1, 2, width)),
                net.linear(x, WIDTH, width),
                outputs=2,
                domain=MS,
            )
        elif how == "strong":
            decay = net.node("Mul", net.node("Softplus", a), net.constant(np.float32(rng.choice((-10, -40)))))
        elif how == "log":  # -inf where a gate is closed
            decay = net.node(
                "Log",
                net.node(
                    "Clip",
                    net.node("Mul", a, net.constant(np.float32(0.7))),
                    net.constant(np.float32(0)),
                    net.constant(np.float32(1)),
                ),
            )
        else:
            decay = net.node("Neg", net.node("Softplus" if how == "softplus" else "Abs", a))
    if rule in ("delta", "gated_delta") or (domain and rng.random() < 0.2):
        width = 1 if rng.random() < 0.25 else states
        beta = beta if beta and rng.random() < 0.8 else net.node("Sigmoid", net.linear(x, WIDTH, width))
    if not domain and rule in ("linear", "delta"):
        decay = ""
    if not domain and rule in ("linear", "gated"):
        beta = ""
    state_kind = kind if rng.random() < 0.6 or (domain and kind == TensorProto.FLOAT) else TensorProto.FLOAT
    past, place = _past(net, [states, dk, dv], state_kind, places)
    if place == "absent":
        state_kind = kind
    attributes: dict[str, Any] = {"q_num_heads": queries, "kv_num_heads": states}
    if rule != "gated_delta" or rng.random() < 0.7:
        attributes["update_rule"] = rule
    if scale is not None:
        attributes["scale"] = scale
    if rng.random() < 0.3:
        attributes["chunk_size"] = rng.choice((0, 1, 7, 64))
    y, present = net.several(
        "LinearAttention",
        *(net.cast(value, kind) if value else "" for value in (q, k, v)),
        past,
        *(net.cast(value, kind) if value else "" for value in (decay, beta)),
        outputs=2,
        domain=domain,
        **attributes,
    )
    heads = max(queries, states)
    y = net.back(y, kind)
    if domain and rng.random() < 0.3:
        y = net.node(
            "GatedRMSNorm",
            y,
            net.constant(net.numbers.uniform(0.5, 1.5, dv)),
            net.linear(x, WIDTH, heads * dv),
            domain=MS,
            **rng.choice(({}, {"activation": "sigmoid"}, {"activation": "silu", "epsilon": 1e-3})),
        )
    return net.linear(y, heads * dv, WIDTH), [(past, present, [states, dk, dv], state_kind)]


def delta_net(net: Net, x: str, places: Sequence[str]) -> tuple[str, list[State]]:
    """A GatedDeltaNet, with [B, T, heads, size] between projections."""
    rng = net.rng
    kind = TensorProto.FLOAT if net.exact else NUMBERS[rng.choice(("float32", "float32", "float16"))]
    rule, gate = rng.choice(RULES), rng.choice(("none", "softplus", "qwen", "sigmoid", "kda"))
    heads, dk, dv = rng.choice((1, 2)), rng.choice((1, 2, 4, 8)), rng.choice((1, 3, 4))
    states = heads * rng.choice((1, 1, 2))
    decays, corrects = rule in ("gated", "gated_delta"), rule in ("delta", "gated_delta")
    gate = gate if decays else "none"
    by_key, norm = rng.random() < 0.3, rng.random() < 0.4
    q = net.reshape(net.linear(x, WIDTH, heads * dk), 0, 0, heads, dk)
    k = net.reshape(net.linear(x, WIDTH, heads * dk, 0.4), 0, 0, heads, dk)
    v = net.reshape(net.linear(x, WIDTH, states * dv), 0, 0, states, dv)
    decay = beta = ""
    if decays:
        a = net.linear(x, WIDTH, states * (dk if by_key else 1))
        decay = net.reshape(a, 0, 0, states, dk) if by_key else a
        decay = net.node("Neg", net.node("Abs", decay)) if gate == "none" else decay
    squash = rng.random() < 0.5
    if corrects:
        beta = net.linear(x, WIDTH, states)
        beta = beta if squash else net.node("Sigmoid", beta)
    gates = [net.weight(states, scale=0.5) if gate != "none" else "" for _ in range(2)]
    past, _ = _past(net, [states, dv, dk], TensorProto.FLOAT, places)
    attributes: dict[str, Any] = {"update_rule": rule, "gate_activation": gate, "qk_l2_norm": int(norm)}
    attributes |= {"scale": rng.choice((0.5, 1.0))} if rng.random() < 0.4 else {}
    attributes |= {"gate_lower_bound": -2.5} if gate in ("sigmoid", "kda") and rng.random() < 0.5 else {}
    attributes |= {"beta_activation": "sigmoid"} if squash and corrects else {}
    q, k, v = (net.cast(value, kind) for value in (q, k, v))
    y, present = net.several(
        "GatedDeltaNet", q, k, v, "", decay, beta, past, *gates, outputs=2, domain=MS, **attributes
    )
    y = net.reshape(net.back(y, kind), 0, 0, states * dv)
    return net.linear(y, states * dv, WIDTH), [(past, present, [states, dv, dk], TensorProto.FLOAT)]


def conv(net: Net, x: str, places: Sequence[str]) -> tuple[str, list[State]]:
    """A CausalConvWithState, channels first between Transposes or last."""
    rng, kind = net.rng, _type(net)
    domain = "" if net.standard else MS
    kernel, dilation, last = rng.choice((1, 2, 3, 4, 4, 6)), 1, False
    attributes: dict[str, Any] = {}
    if domain:
        dilation = rng.choice((1, 1, 2, 3))
        last = rng.random() < 0.3
        attributes |= {"dilation": dilation} if dilation > 1 or rng.random() < 0.2 else {}
        attributes |= {"channels_last": 1} if last else {}
    if (activation := rng.choice((None, "none", "silu", "swish"))) is not None:
        attributes["activation"] = activation
    channels = WIDTH
    x = net.cast(x if last else net.node("Transpose", x, perm=[0, 2, 1]), kind)
    weight = net.weight(channels, 1, kernel, kind=kind)
    bias = net.weight(channels, scale=0.3, kind=kind) if rng.random() < 0.6 else ""
    rows = (kernel - 1) * dilation
    shape = [rows, channels] if last else [channels, rows]
    past, _ = _past(net, shape, kind, places if rows else [p for p in places if p != "constant"] or ["input"])
    y, present = net.several("CausalConvWithState", x, weight, bias, past, outputs=2, domain=domain, **attributes)
    y = net.back(y, kind)
    return y if last else net.node("Transpose", y, perm=[0, 2, 1]), [(past, present, shape, kind)]


Layer = Callable[[Net, str, Sequence[str]], Any]


def layer(net: Net, x: str, places: Sequence[str]) -> tuple[str, list[State]]:
    """One layer or a pair of convolution and attention, around them what networks have."""
    rng = net.rng
    kinds: list[Layer] = [attention, attention, attention, conv, conv]
    if not net.standard:
        kinds += [delta_net, delta_net]
    chosen = [conv, rng.choice((attention, kinds[-1]))] if rng.random() < 0.25 else [rng.choice(kinds)]
    states: list[State] = []
    given = x
    for make in chosen:
        x, more = make(net, x, places)
        states += more
    if rng.random() < 0.4:
        x = net.node("Add", x, given)
    elif rng.random() < 0.3:
        x = net.node(rng.choice(("Tanh", "Sigmoid")), x)
    return x, states


def in_function(net: Net, x: str) -> tuple[str, list[State]]:
    """A layer in a function that takes its weights and states."""
    first = len(net.nodes)
    y, states = layer(net, x, ("input", "absent"))
    inner, made = net.nodes[first:], {name for node in net.nodes[first:] for name in node.output}
    del net.nodes[first:]
    inputs = list(dict.fromkeys(name for node in inner for name in node.input if name and name not in made))
    outputs = [y, *(present for _, present, *_ in states)]
    opset = [helper.make_opsetid("", net.opset), helper.make_opsetid(MS, 1)]
    name = net.name("Layer")
    net.functions.append(helper.make_function("local", name, inputs, outputs, inner, opset))
    renamed = net.several(name, *inputs, outputs=len(outputs), domain="local")
    return renamed[0], [
        (past, new, shape, kind) for (past, _, shape, kind), new in zip(states, renamed[1:], strict=True)
    ]


def in_body(net: Net, x: str) -> tuple[str, list[State]]:
    """A layer in a Loop of a few steps, or in an If: x and the states are carried."""
    rng, first = net.rng, len(net.nodes)
    inside = net.name("x_inside")
    y, states = layer(net, inside, ("input",))
    inner = net.nodes[first:]
    del net.nodes[first:]
    outputs = [y, *(present for _, present, *_ in states)]
    shapes = [[net.B, net.T, WIDTH], *([net.B, *shape] for _, _, shape, _ in states)]
    kinds = [TensorProto.FLOAT, *(kind for *_, kind in states)]
    declared = [helper.make_tensor_value_info(n, k, s) for n, k, s in zip(outputs, kinds, shapes, strict=True)]
    names = [net.name("carried") for _ in outputs]
    if rng.random() < 0.4:
        inner.insert(0, helper.make_node("Identity", [x], [inside]))
        others = [x, *(past for past, *_ in states)]
        same = [net.name("same") for _ in others]
        nodes = [helper.make_node("Identity", [old], [new]) for old, new in zip(others, same, strict=True)]
        ends = [helper.make_tensor_value_info(n, k, s) for n, k, s in zip(same, kinds, shapes, strict=True)]
        condition = net.input(net.name("go"), [], TensorProto.BOOL)
        net.nodes.append(
            helper.make_node(
                "If",
                [condition],
                names,
                names[0],
                then_branch=helper.make_graph(inner, "yes", [], declared),
                else_branch=helper.make_graph(nodes, "no", [], ends),
            )
        )
        return names[0], [
            (past, new, shape, kind) for (past, _, shape, kind), new in zip(states, names[1:], strict=True)
        ]
    carried = [inside, *(net.name("before") for _ in states)]
    for node in inner:
        for n, name in enumerate(node.input):
            for before, (past, *_) in zip(carried[1:], states, strict=True):
                if name == past:
                    node.input[n] = before
    go, still, turn = (net.name(stem) for stem in ("go", "still", "turn"))
    inner.append(helper.make_node("Identity", [go], [still]))
    given = [helper.make_tensor_value_info(n, k, s) for n, k, s in zip(carried, kinds, shapes, strict=True)]
    body = helper.make_graph(
        inner,
        "body",
        [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            *given,
        ],
        [helper.make_tensor_value_info(still, TensorProto.BOOL, []), *declared],
    )
    steps = net.constant(np.array(rng.choice((1, 2, 3)), np.int64))
    net.nodes.append(
        helper.make_node(
            "Loop",
            [steps, net.constant(np.array(True)), x, *(past for past, *_ in states)],
            names,
            names[0],
            body=body,
        )
    )
    return names[0], [
        (past, new, shape, kind) for (past, _, shape, kind), new in zip(states, names[1:], strict=True)
    ]


def net_of(seed: int, exact: bool = False) -> Net:
    """Return the net of a number: one or two layers.

    Args:
        exact: All is in float32, and onnxruntime has kernels of its own.
    """
    net = Net(seed, exact)
    x = net.input("x", [net.B, net.T, WIDTH])
    for number in range(net.rng.choice((1, 1, 2))):
        where = net.rng.choice((*[None] * 6, in_function, in_function, in_body))
        x, states = where(net, x) if where else layer(net, x, PLACES)
        for n, (_, present, shape, kind) in enumerate(states):
            _give(net, f"present_{number}_{n}", present, [net.B, *shape], kind)
    name = net.node("Identity", x)
    net.output(name, [net.B, net.T, WIDTH])
    return net


def _give(net: Net, name: str, present: str, shape: list[int | str], kind: int) -> None:
    """A present state is an output, is used by nodes, or by nothing."""
    how = net.rng.choice(("output",) * 5 + ("used", "nothing"))
    if how == "output":
        net.nodes.append(helper.make_node("Identity", [present], [name], name))
        net.output(name, shape, kind)
    elif how == "used":
        total = net.node("ReduceSum", net.back(present, kind), net.constant(np.array([-1], np.int64)), keepdims=0)
        net.nodes.append(helper.make_node("Tanh", [total], [name], name))
        net.output(name, shape[:-1])


def feeds(model: onnx.ModelProto, lengths: Sequence[int], seed: int, batch: int = 2) -> list[dict[str, np.ndarray]]:
    """Return random inputs of a model, one set for each length of T."""
    made = []
    for n, length in enumerate(lengths):
        rng, sizes = np.random.default_rng((seed, n)), {"B": batch + n % 2, "T": length}
        feed = {}
        for value in model.graph.input:
            shape = [
                dim.dim_value if dim.HasField("dim_value") else sizes[dim.dim_param]
                for dim in value.type.tensor_type.shape.dim
            ]
            kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            held = rng.standard_normal(shape) * rng.choice((0.3, 1, 2))
            feed[value.name] = np.asarray(held > 0 if kind == np.bool_ else held.astype(kind))
        made.append(feed)
    return made
