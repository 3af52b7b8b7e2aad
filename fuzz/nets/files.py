"""Model files that are hostile or odd: each is a situation, a change of a model or of its file."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from graphs import Shape
from hostile import changed, damaged
from onnx import TensorProto, helper, numpy_helper

Model = onnx.ModelProto
Situation = Callable[[Model, random.Random, Path], bytes]
"""Returns the bytes of the model file; may write other files into the folder."""

NAMES = (
    *("", " ", ".", "..", "../x", "/", "a/b", "a\\b", "%s", "{0}", "-o", "--force", "x" * 300, "\n", "a\tb", "\0"),
    *("\u00e9", "\u202e", "\U0001f600", "'", '"', "<b>", "${HOME}", "LSTM", "lowered", "Y", "X", "past_h", "None"),
    *("rnn_lowering", "stream_Where", "CON", "\x1b[31m", "a:b", "a,b", "a=1", "0", "-1", "*", "?", "[0]"),
)

VALUES = (
    *("", "/etc/passwd", "../secret.bin", "..", ".", "/dev/zero", "-1", "99999999999", "1e3", "0x10", "a", "fifo"),
    *("9" * 30, " 0", "sub", "sub/../data.bin", "data.bin\0x", "~/x", "\n", "C:\\x", "/proc/self/mem", "1"),
)
"""What an entry of external data may have for a location, an offset or a length."""


def _bytes(model: Model) -> bytes:
    return bytes(model.SerializeToString())


def plain(model: Model, rng: random.Random, folder: Path) -> bytes:
    return _bytes(model)


def some_bytes(model: Model, rng: random.Random, folder: Path) -> bytes:
    return damaged(model.SerializeToString(), rng)


def some_fields(model: Model, rng: random.Random, folder: Path) -> bytes:
    return _bytes(changed(model, rng))


def cut(model: Model, rng: random.Random, folder: Path) -> bytes:
    data = _bytes(model)
    return data[: rng.choice((0, 1, 2, 10, len(data) // 2, len(data) - 1, rng.randrange(len(data))))]


def no_model(model: Model, rng: random.Random, folder: Path) -> bytes:
    return rng.choice(
        (b"\xff" * 9, b"{}", b"PK\x03\x04", b"\x80\x02}q.", b"\n" * 99, b"<html>", bytes(5000), b"a b")
    )


def huge_counts(model: Model, rng: random.Random, folder: Path) -> bytes:
    """Sizes of tensors, inputs or attributes that are far larger than what is there."""
    big = rng.choice((2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63), 0))
    kind = rng.choice(("tensor", "input", "attribute", "repeat", "steps"))
    tensors = list(model.graph.initializer)
    if kind == "tensor" and tensors:
        tensor = rng.choice(tensors)
        if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = big
        else:
            tensor.dims.append(big)
    elif kind == "input":
        dims = [d for v in model.graph.input for d in v.type.tensor_type.shape.dim]
        if dims:
            rng.choice(dims).dim_value = big
    elif kind == "attribute":
        numbers = [a for n in model.graph.node for a in n.attribute if a.type == onnx.AttributeProto.INT]
        if numbers:
            rng.choice(numbers).i = big
    elif kind == "repeat":
        name = model.graph.node[0].output[0]
        shape = numpy_helper.from_array(np.array([min(abs(big), 2**40)]), "huge")
        model.graph.initializer.append(shape)
        model.graph.node.append(helper.make_node("ConstantOfShape", ["huge"], ["made"], "made_huge"))
        model.graph.node.append(helper.make_node("Concat", ["made", name], ["both"], "both", axis=0))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(abs(big) % 2**62), "steps"))
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["s"], ["t"])],
            "body",
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
                helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                helper.make_tensor_value_info("s", TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info("on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("t", TensorProto.FLOAT, None),
            ],
        )
        x = model.graph.input[0].name
        model.graph.node.append(helper.make_node("Loop", ["steps", "", x], ["looped"], "looped", body=body))
        model.graph.output.append(helper.make_tensor_value_info("looped", TensorProto.FLOAT, None))
    return _bytes(model)


def external(model: Model, rng: random.Random, folder: Path) -> bytes:
    """Weights in data files with odd locations, offsets and lengths; links among them."""
    data = b""
    location = rng.choice(
        ("data.bin", "data.bin", "sub/data.bin", "in.onnx", "./data.bin", "d\u00e9ta.bin", "link.bin")
    )
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or not tensor.dims:
            continue
        held = numpy_helper.to_array(tensor).tobytes()
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
        entries = {"location": location, "offset": str(len(data)), "length": str(len(held))}
        data += held
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in entries.items():
            tensor.external_data.add(key=key, value=text)
    (folder / "sub").mkdir(exist_ok=True)
    target = folder / (location if location not in ("in.onnx", "link.bin") else "data.bin")
    target.write_bytes(data[: rng.choice((len(data), len(data), len(data), len(data) // 2, 0))])
    if location == "link.bin":
        (folder / "link.bin").symlink_to(rng.choice((target, "/etc/passwd", "nowhere", "link.bin", "data.bin")))
    outside = [entry for t in model.graph.initializer for entry in t.external_data]
    if outside and rng.random() < 0.5:
        entry = rng.choice(outside)
        entry.value = rng.choice(VALUES)
        if rng.random() < 0.2:
            entry.key = rng.choice(("", "checksum", "location", "offset", "unknown"))
    if rng.random() < 0.2:
        os.mkfifo(folder / "fifo")
    return _bytes(model)


def names(model: Model, rng: random.Random, folder: Path) -> bytes:
    """Odd names of values, nodes, graphs, dimensions, or names that collide."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        new = rng.choice(NAMES)
        kind = rng.choice(("value", "value", "node", "graph", "dim", "collide", "domain"))
        if kind == "value":
            every = [n for node in model.graph.node for n in (*node.input, *node.output) if n]
            old = rng.choice(every)
            for node in model.graph.node:
                node.input[:] = [new if n == old else n for n in node.input]
                node.output[:] = [new if n == old else n for n in node.output]
            for held in (*model.graph.input, *model.graph.output, *model.graph.initializer):
                held.name = new if held.name == old else held.name
        elif kind == "node":
            rng.choice(model.graph.node).name = new
        elif kind == "graph":
            model.graph.name = new
        elif kind == "domain":
            rng.choice(model.graph.node).domain = new
        elif kind == "dim":
            dims = [d for v in model.graph.input for d in v.type.tensor_type.shape.dim]
            if dims:
                rng.choice(dims).dim_param = new
        else:
            other = rng.choice(model.graph.node)
            other.name = rng.choice(model.graph.node).name or new
            if rng.random() < 0.3 and other.output:
                other.output[0] = rng.choice([v.name for v in (*model.graph.input, *model.graph.output)])
    return _bytes(model)


def not_text(model: Model, rng: random.Random, folder: Path) -> bytes:
    """Bytes that are no UTF-8 where a name is expected."""
    data = _bytes(model)
    every = [n for node in model.graph.node for n in (*node.input, *node.output, node.name, node.op_type) if n]
    name = rng.choice(every).encode()
    return data.replace(name, b"\xff\xfe\x80"[: len(name)].ljust(len(name), b"\xc3"))


def functions(model: Model, rng: random.Random, folder: Path) -> bytes:
    """Functions that call themselves or each other, are absent, twice there or never called."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    kind, x = rng.choice(("self", "two", "absent", "twice", "deep", "shadow", "wide")), model.graph.input[0].name
    calls = {
        "self": [("a", "a")],
        "two": [("a", "b"), ("b", "a")],
        "absent": [("a", "z")],
        "twice": [("a", ""), ("a", "")],
        "deep": [*((f"d{n}", f"d{n + 1}") for n in range(60)), ("d60", "")],
        "shadow": [("LSTM", "")],
        "wide": [*((f"w{n}", f"w{n + 1}") for n in range(18)), ("w18", "")],
    }[kind]
    for name, called in calls:
        inner = [helper.make_node(called or "Neg", ["x"], ["y"], domain="f" if called else "")]
        if kind == "wide" and called:  # twice as many nodes in each
            inner = [
                helper.make_node(called, ["x"], ["h"], domain="f"),
                helper.make_node(called, ["h"], ["y"], domain="f"),
            ]
        model.functions.append(helper.make_function("f", name, ["x"], ["y"], inner, opset))
    model.opset_import.append(helper.make_opsetid("f", 1))
    model.ir_version = max(model.ir_version, 8)
    model.graph.node.append(helper.make_node(calls[0][0], [x], ["called"], "called", domain="f"))
    if rng.random() < 0.5:
        model.graph.output.append(helper.make_tensor_value_info("called", TensorProto.FLOAT, None))
    return _bytes(model)


def versions(model: Model, rng: random.Random, folder: Path) -> bytes:
    """IR versions 0 to 99; opset imports that are absent, twice there, negative or huge."""
    model.ir_version = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 99, 2**40, -1))
    kind = rng.choice(("kept", "none", "twice", "both", "other", "number"))
    if kind == "none":
        del model.opset_import[:]
    elif kind == "twice":
        model.opset_import.append(helper.make_opsetid("", rng.choice((9, 13, 17))))
    elif kind == "both":
        model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    elif kind == "other":
        model.opset_import.append(helper.make_opsetid(rng.choice(NAMES), rng.choice((-1, 0, 1, 2**40))))
    elif kind == "number" and model.opset_import:
        model.opset_import[0].version = rng.choice((-1, 0, 1, 2, 5, 6, 7, 8, 9, 12, 14, 22, 27, 28, 29, 99, 2**40))
    return _bytes(model)


def lies(model: Model, rng: random.Random, folder: Path) -> bytes:
    """Declared types and shapes of values that are others; graphs that are not sorted, empty, or without ends."""
    graph = model.graph
    kind = rng.choice(
        ("info", "info", "output", "input", "unsorted", "empty", "ends", "starts", "twice", "sequence")
    )
    made = [n for node in graph.node for n in node.output if n]
    shapes: tuple[Shape, ...] = (None, [], [1], [2, 3], [0, 0, 0], [5, 2, 3], ["T", 2, 3], [7, 1, 2, 4], [-1, 2])
    shape = rng.choice(shapes)
    dtype = rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BFLOAT16, 0, 999))
    if kind == "info":
        for _ in range(rng.choice((1, 3))):
            new = helper.make_tensor_value_info(rng.choice([*made, "nothing"]), TensorProto.FLOAT, shape)
            new.type.tensor_type.elem_type = dtype
            graph.value_info.append(new)
    elif kind in ("output", "input"):
        values = graph.output if kind == "output" else graph.input
        new = helper.make_tensor_value_info(rng.choice(values).name, TensorProto.FLOAT, shape)
        new.type.tensor_type.elem_type = dtype
        rng.choice(values).CopyFrom(new)
    elif kind == "unsorted":
        nodes = list(graph.node)
        rng.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    elif kind == "empty":
        for part in rng.choice((("node",), ("node", "output"), ("node", "input", "output", "initializer"))):
            graph.ClearField(part)
    elif kind in ("ends", "starts"):
        graph.ClearField("output" if kind == "ends" else "input")
    elif kind == "twice":
        values = rng.choice((graph.node, graph.input, graph.output, graph.initializer))
        if values:
            again = type(values[0])()
            again.CopyFrom(rng.choice(values))
            values.append(again)
    else:
        rng.choice(graph.input).type.CopyFrom(
            helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, shape))
        )
    return _bytes(model)


SITUATIONS: dict[str, Situation] = {
    made.__name__: made
    for made in (
        *(plain, some_bytes, some_fields, cut, no_model, huge_counts, external, names, not_text, functions),
        *(versions, lies),
    )
}
