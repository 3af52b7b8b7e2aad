"""Small models for the tests of streaming, and a host that knows nothing but the metadata."""

import ast
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import cycle
from math import ceil
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from cases import Array, Arrays
from onnx import numpy_helper
from oracle import GATES
from running import run, session
from texts import parse

import rnn_lowering as rl

KEY = "rnn_lowering.stream"
CHUNKINGS = ([1], [5], [3, 1, 4, 7, 2])
"""Sizes of chunks, repeated as often as needed."""


OPERAND = re.compile(r"(?:[^,\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])+")
RANDOM = re.compile(r"(?!(?:float|double|bool|u?int)\d*\[)([A-Za-z]\w*)(\[[\d, ]+\])")
NUMBERS = re.compile(r"-?\d\S*|\[.*\]|True|False")


def net(text: str, weights: Mapping[str, Array] | None = None, opset: int = 17) -> onnx.ModelProto:
    """A model from the text of its graph, with weights by name.

    An operand may be a number or an array, such as `2` and `[2, -1]`, of floats where there is a point. `K[3, 3]`
    is a tensor of random numbers, and `K` behind it the same.
    """
    held: Arrays = {}
    domains = "".join(f', "{name}": 1' for name in {*re.findall(r"= ([a-z]\w*(?:\.\w+)*)\.[A-Z]", text)})
    text = re.sub(r"\(([^()]+)\)", lambda found: f"({_operands(found[1], held)})", text)
    model = parse(text, opset, domains=domains)
    held = {**(weights or {}), **held}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    ranked = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output
    for value, found in zip(model.graph.output, ranked, strict=True):
        if not value.type.tensor_type.HasField("shape"):  # the checker needs a rank
            value.type.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension() for _ in found.type.tensor_type.shape.dim
            )
    onnx.checker.check_model(model)
    return model


def _operands(text: str, held: Arrays) -> str:
    return ",".join(_operand(part, held) for part in OPERAND.findall(text))


def _operand(text: str, held: Arrays) -> str:
    if made := RANDOM.fullmatch(text.strip()):
        name, shape = made[1], ast.literal_eval(made[2])
        assert name not in held, f"{name} is two tensors"
        held[name] = random(shape, zlib.crc32(text.strip().encode()), float(np.prod(shape[1:])) ** -0.5)
        return f" {name}"
    if NUMBERS.fullmatch(text.strip()):
        array = np.array(ast.literal_eval(text.strip()))
        name = f"const_{zlib.crc32(text.strip().encode())}"
        held[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
        return f" {name}"
    return text


FAR = {"far": np.array([2**63 - 1])}
"""The end of any axis, for Slice."""


def over(head: str, nodes: str, weights: Mapping[str, Array] | None = None, opset: int = 18) -> onnx.ModelProto:
    """A net of `inputs` or `inputs => outputs`, with those of the weights that it names.

    W, R and B are those of a GRU from 3 to 4. An output Y needs no declaration.
    """
    inputs, _, outputs = head.partition(" => ")
    words = {*re.findall(r"\w+", nodes)}
    named = {n: a for n, a in {**FAR, **recurrent("GRU", 3, 4), **(weights or {})}.items() if n in words}
    return net(f"g ({inputs}) => ({outputs or 'float[] Y'}) {{ {nodes} }}", named, opset)


def rows(table: str) -> list[tuple[str, str, str]]:
    """The head, the title and the nodes of each net in a table.

    A head is `# inputs`, `# inputs => outputs` or `# inputs { nodes` in front of those of each net. A title stands
    above its nets: one a line, indented by 4, with further lines indented by 8.
    """
    found: list[tuple[str, str, str]] = []
    head = first = title = ""
    for line in table.splitlines():
        if line.startswith("# "):
            head, _, first = line[2:].partition(" { ")
        elif line.startswith(" " * 8):
            found[-1] = (*found[-1][:2], f"{found[-1][2]}\n{line}")
        elif line.startswith(" "):
            found.append((head, title, f"{first} {line}"))
        elif line:
            title = line
    return found


def recurrent(
    operator: str, inputs: int, hidden: int, prefix: str = "", directions: int = 1, seed: int = 0
) -> Arrays:
    """W, R and B of a node, by these names behind a prefix."""
    rng = np.random.default_rng((seed, inputs, hidden, len(operator)))
    rows = GATES[operator] * hidden
    shapes = {"W": (directions, rows, inputs), "R": (directions, rows, hidden), "B": (directions, 2 * rows)}
    return {f"{prefix}{name}": random(shape, rng, hidden**-0.5) for name, shape in shapes.items()}


def random(shape: Sequence[int], rng: np.random.Generator | int = 0, scale: float = 1.0) -> Array:
    rng = np.random.default_rng(rng)
    return rng.uniform(-scale, scale, shape).astype(np.float32)


def streamed(model: onnx.ModelProto, stream: Any, to: Any = "keep", delay: bool | int = False) -> onnx.ModelProto:
    """The model as a stream; with "keep" its recurrent nodes stay."""
    held = ir.from_proto(model)
    rl.StreamPass(stream, delay)(held)
    if to != "keep":
        rl.LowerRecurrentPass(to)(held)
    proto = ir.to_proto(held)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def plan_of(model: onnx.ModelProto) -> dict[str, Any]:
    """The metadata of a stream."""
    (text,) = [p.value for p in model.metadata_props if p.key == KEY]
    plan: dict[str, Any] = json.loads(text)
    return plan


def whole(model: onnx.ModelProto, feed: Arrays) -> Arrays:
    """What a model computes of whole sequences."""
    return run(model, feed)


def chunked(
    model: onnx.ModelProto,
    feed: Arrays,
    sizes: Sequence[int],
    states: Arrays | None = None,
    running: Any = None,
) -> Arrays:
    """What a stream computes of the same, fed chunks of these sizes in turn, then zeros where it is late; "lens"
    counts down; `running` is the session, where there is one."""
    plan, running = plan_of(model), running or session(model)
    frames = next(feed[name].shape[axis] for name, axis in plan["inputs"].items() if axis is not None)
    feed = with_zeros_behind(plan, feed)
    named = {value.name: value.shape for value in running.get_inputs()}
    bound = {d: n for name in plan["inputs"] for d, n in zip(named[name], feed[name].shape, strict=True)}
    carried = initial_states(plan, bound) | (states or {})
    length = next(feed[name].shape[axis] for name, axis in plan["inputs"].items() if axis is not None)
    parts: list[Arrays] = []
    for start, end in pieces(length, sizes):
        chunk = {
            name: np.clip(feed[name] - start, 0, end - start).astype(feed[name].dtype)
            if name == "lens"
            else feed[name]
            if axis is None
            else feed[name].take(range(start, end), axis)
            for name, axis in plan["inputs"].items()
        }
        names = (output.name for output in running.get_outputs())
        parts.append(dict(zip(names, running.run(None, chunk | carried), strict=True)))
        carried = {s["input"]: parts[-1][s["output"]] for s in plan["states"]}
    joined = _joined(plan["outputs"], parts)
    axes = plan["outputs"]
    return {n: a if axes[n] is None else of_sequence(plan, n, a, frames, "delay") for n, a in joined.items()}


def pieces(length: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first frame of each chunk and that behind it; sizes are repeated."""
    start, turns = 0, cycle(sizes)
    while start < length:
        end = min(start + next(turns), length)
        yield start, end
        start = end


def _joined(axes: Mapping[str, int | None], parts: Sequence[Arrays]) -> Arrays:
    return {
        name: parts[-1][name] if axis is None else np.concatenate([part[name] for part in parts], axis)
        for name, axis in axes.items()
    }


def hosted(stream: rl.Stream, feed: Arrays, sizes: Sequence[int]) -> Arrays:
    """What rl.Stream returns of a sequence from a reset on, with flush."""
    stream.reset()
    axes = stream.plan.inputs
    length = next(feed[name].shape[axis] for name, axis in axes.items() if axis is not None)
    parts = [
        stream({n: feed[n] if a is None else feed[n].take(range(*piece), a) for n, a in axes.items()})
        for piece in pieces(length, sizes)
    ]
    flushed = stream.flush()
    return _joined(stream.plan.outputs, [*parts, flushed] if flushed else parts)


def with_zeros_behind(plan: Mapping[str, Any], feed: Arrays) -> Arrays:
    """The inputs with so many frames of zeros behind them as the stream is late, in whole calls."""
    late = max((ceil(n / Fraction(plan["rates"].get(o, 1))) for o, n in plan["delay"].items()), default=0)
    size = plan["frames"] or plan["unit"]
    zeros = {
        n: np.zeros_like(feed[n].take([0] * (-(-late // size) * size), a))
        for n, a in plan["inputs"].items()
        if late and a is not None
    }
    return {n: np.concatenate([a, zeros[n]], plan["inputs"][n]) if n in zeros else a for n, a in feed.items()}


def expected_of(plan: Mapping[str, Any], model: onnx.ModelProto, feed: Arrays) -> Arrays:
    """What the whole gives of a sequence with these zeros behind it, without what it gives of the zeros."""
    frames = next(feed[name].shape[axis] for name, axis in plan["inputs"].items() if axis is not None)
    got = whole(model, with_zeros_behind(plan, feed))
    named = {n: a for n, a in got.items() if n in plan["outputs"]}  # others are states
    return {n: a if plan["outputs"][n] is None else of_sequence(plan, n, a, frames) for n, a in named.items()}


def of_sequence(plan: Mapping[str, Any], name: str, array: Array, frames: int, late: str = "") -> Array:
    """What belongs to a sequence of so many frames; `late`: behind the frames that come before it."""
    count = int(frames * Fraction(plan["rates"].get(name, 1))) - plan["short"].get(name, 0)
    first = plan["delay"].get(name, 0) if late else 0
    return array.take(range(first, first + count), plan["outputs"][name])


def initial_states(plan: Mapping[str, Any], sizes: Mapping[str, int]) -> Arrays:
    """What the first chunk receives, with the sizes of open dimensions by name."""
    return {s["input"]: _initial(s, sizes) for s in plan["states"]}


def _initial(state: Mapping[str, Any], sizes: Mapping[str, int]) -> Array:
    shape = []
    for dim in state["shape"]:
        times, _, name = str(dim).rpartition("*")
        shape.append(dim if isinstance(dim, int) else int(times or 1) * sizes[name])
    held = 0 if state["initial"] == "zeros" else np.array(state["initial"])
    return np.broadcast_to(held, shape).astype(state["dtype"])


def assert_streams(
    model: onnx.ModelProto,
    stream: Any,
    feed: Arrays,
    sizes: Sequence[Sequence[int]] = CHUNKINGS,
    atol: float = 1e-5,
) -> onnx.ModelProto:
    """Compare chunks with the whole, with the recurrent nodes and lowered; return the former."""
    expected = whole(model, feed)
    kept = streamed(model, stream)
    for stepped in (kept, streamed(model, stream, "auto")):
        for chunks in sizes:
            got = chunked(stepped, feed, chunks)
            for name, array in got.items():
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=atol, err_msg=f"{name} {chunks}")
    return kept


def assert_at_every_length(model: onnx.ModelProto, stream: Any, most: int = 18) -> dict[str, Any]:
    """Compare a stream, late where it must be, with the whole on sequences of each length up to `most`, in three
    chunkings; return its metadata. Sizes of open axes other than "time" are 2."""
    stepped = streamed(model, stream, delay=True)
    plan, running = plan_of(stepped), session(stepped)
    unit = plan["unit"]
    for frames in range(unit, most + 1, unit):
        if frames < plan.get("shortest", unit):
            continue
        sizes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        for name, axis in plan["inputs"].items():
            if axis is not None:
                sizes[name][axis] = frames
        feed = {name: random(shape, frames) for name, shape in sizes.items()}
        expected = expected_of(plan, model, feed)
        for chunks in CHUNKINGS:
            got = chunked(stepped, feed, [unit * n for n in chunks], running=running)
            for name, array in got.items():
                said = f"{name} of {frames} frames in chunks of {chunks}"
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5, err_msg=said)
    return plan


def int64_at_run_time(model: onnx.ModelProto) -> list[str]:
    """The names of int64 values that nodes compute and others read."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.output)}
    read = {name for node in model.graph.node for name in node.input} | {v.name for v in model.graph.output}
    computed = {name for node in model.graph.node if node.op_type != "Constant" for name in node.output}
    return sorted(name for name in computed & read if types[name] == onnx.TensorProto.INT64)


def shown(plan: Mapping[str, Any]) -> str:
    """What each state of a stream is, and its shape."""
    return "  ".join(f"{s['state']}{s['shape']}".replace("'", "") for s in plan["states"]) or "none"
