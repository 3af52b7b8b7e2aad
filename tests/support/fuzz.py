"""Mutants of whole models, reproducible by their numbers: attributes, types, shapes, names, edges, the fields of
tensors, domains, opsets, subgraphs and functions are changed.

As a program, `python tests/support/fuzz.py [--stream] FIRST COUNT`, it lowers them (or makes streams of them) and
prints those whose outcome is neither a result, which the checker accepts where it accepted the mutant, nor an
`RnnLoweringError`. Batches run in processes
of their own, since onnx's native code may end its process; what ended one is a crash and is printed too.
"""

import contextlib
import copy
import faulthandler
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from cases import NAMED, model
from onnx import AttributeProto, TensorProto, version_converter
from paths import EXAMPLES
from scope_models import LOCAL, SCOPES
from stream_nets import enhancer, keras_batch_first, keyword_spotter, language_model
from texts import parse

import rnn_lowering as rl
from rnn_lowering.model import native
from rnn_lowering.streaming.plan import KEY, StreamPlan, host_loop

MEMORY = 4 << 30
SECONDS = 20
BATCH = 500
SIZES = (-1, 0, 1, 2, 3, 5, 7, 2**31, 2**62, -(2**63))
NAMES = ("", "X", "W", "R", "Y", "file", "a\x1b[2J\nb", "x" * 5000, "\u00e9", "\0", "unknown")
OPERATORS = (
    *("LSTM", "GRU", "RNN", "If", "Loop", "Scan", "Constant", "Identity", "Shape", "Gather", "Cast", "Concat"),
    *("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Expand", "ConstantOfShape", "DequantizeLinear"),
    *("Split", "Tile", "Range", "recur", ""),
)
DOMAINS = ("", "ai.onnx", "local", "com.microsoft", "ai.onnx.ml", "unknown\n")
METADATA = ("", "[", "{", '"', "null", "-1", "1e999", "[]", "{}", "true", "\\u0000", '"zeros"', ",")
VERSIONS = (-1, 0, 1, 3, 6, 7, 9, 11, 13, 14, 17, 21, 22, 26, 2**31, 2**62)

Model = onnx.ModelProto
Mutation = Callable[[Model, random.Random], None]


def models() -> list[Model]:
    """What is mutated: recurrent nodes of every kind, in subgraphs and in functions, and the example."""
    texts = [parse(text, domains=LOCAL) for text in SCOPES.values()]
    nodes = [model(case, version) for case in NAMED[::5] for version in (13, 22) if version in case.opsets]
    return [*texts, *nodes, onnx.load(EXAMPLES / "denoiser.onnx")]


def nets() -> list[Model]:
    """What is mutated for streams: networks that can be streams, and every third of the others."""
    found = [make()[0] for make in (enhancer, keras_batch_first, keyword_spotter, language_model)]
    return [*found * 4, *models()[::3]]


def mutant(number: int, originals: list[Model]) -> Model:
    """The mutant of a number: one change or a few."""
    rng = random.Random(number)
    changed = copy.deepcopy(originals[rng.randrange(len(originals))])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        with contextlib.suppress(IndexError, ValueError):  # there is nothing of that kind to change
            rng.choice(MUTATIONS)(changed, rng)
    return changed


# What is in a model


def _graphs(root: Model) -> Iterator[Any]:
    """Every graph, and every function, which has nodes, inputs and outputs too."""
    pending: list[Any] = [root.graph, *root.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for attribute in (a for node in graph.node for a in node.attribute):
            pending += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _nodes(root: Model) -> list[onnx.NodeProto]:
    return [node for graph in _graphs(root) for node in graph.node]


def _attributes(root: Model) -> list[AttributeProto]:
    return [a for node in _nodes(root) for a in node.attribute]


def _proper(root: Model) -> list[onnx.GraphProto]:
    return [graph for graph in _graphs(root) if isinstance(graph, onnx.GraphProto)]


def _infos(root: Model) -> list[onnx.ValueInfoProto]:
    return [v for g in _proper(root) for v in (*g.input, *g.output, *g.value_info)]


def _tensors(root: Model) -> list[TensorProto]:
    inside = [a.t for a in _attributes(root) if a.HasField("t")]
    return [*inside, *(t for g in _proper(root) for t in g.initializer)]


def _value_names(root: Model) -> list[str]:
    found = [name for node in _nodes(root) for name in (*node.input, *node.output)]
    return [*found, *(t.name for g in _proper(root) for t in g.initializer), *NAMES]


def _one_of(messages: Any, rng: random.Random) -> Any:
    return rng.choice(list(messages))


# Mutations


def _attribute_value(root: Model, rng: random.Random) -> None:
    a = _one_of(_attributes(root), rng)
    a.i = rng.choice(SIZES)
    a.f = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    a.s = rng.choice((b"", b"forward", b"reverse", b"bidirectional", b"\xff\xfe", b"Tanh"))
    for values, choices in ((a.ints, SIZES), (a.floats, (0.0, 1.0, float("nan"))), (a.strings, (b"Relu", b"\xff"))):
        if values:
            values[rng.randrange(len(values))] = rng.choice(choices)


def _attribute_length(root: Model, rng: random.Random) -> None:
    a = _one_of(_attributes(root), rng)
    for values, more in ((a.ints, 1), (a.floats, 1.0), (a.strings, b"Tanh")):
        if values and rng.random() < 0.5:
            del values[rng.randrange(len(values))]
        else:
            values.append(more)


def _attribute_type(root: Model, rng: random.Random) -> None:
    _one_of(_attributes(root), rng).type = rng.choice(list(AttributeProto.AttributeType.values()))


def _attribute_name(root: Model, rng: random.Random) -> None:
    a = _one_of(_attributes(root), rng)
    a.name = rng.choice((*NAMES, "hidden_size", "direction", "value", "axis", "axes", "perm", "to", "body"))


def _attribute_reference(root: Model, rng: random.Random) -> None:
    a = _one_of(_attributes(root), rng)
    a.ref_attr_name = rng.choice((*NAMES, *(name for f in root.functions for name in f.attribute)))


def _attribute_removed(root: Model, rng: random.Random) -> None:
    node = _one_of([n for n in _nodes(root) if n.attribute], rng)
    del node.attribute[rng.randrange(len(node.attribute))]


def _attribute_moved(root: Model, rng: random.Random) -> None:
    _one_of(_nodes(root), rng).attribute.append(copy.deepcopy(_one_of(_attributes(root), rng)))


def _operator(root: Model, rng: random.Random) -> None:
    _one_of(_nodes(root), rng).op_type = rng.choice(OPERATORS)


def _domain(root: Model, rng: random.Random) -> None:
    _one_of([*_nodes(root), *root.functions, *root.opset_import], rng).domain = rng.choice(DOMAINS)


def _opset(root: Model, rng: random.Random) -> None:
    imports = [*root.opset_import, *(o for f in root.functions for o in f.opset_import)]
    _one_of(imports, rng).version = rng.choice(VERSIONS)


def _ir_version(root: Model, rng: random.Random) -> None:
    root.ir_version = rng.choice((-1, 0, 1, 3, 4, 8, 10, 99))


def _imports_removed(root: Model, rng: random.Random) -> None:
    holder = _one_of([root, *root.functions], rng)
    del holder.opset_import[rng.randrange(len(holder.opset_import)) :]


def _edge(root: Model, rng: random.Random) -> None:
    node = _one_of(_nodes(root), rng)
    names = _one_of([node.input, node.output], rng)
    kind = rng.choice(("change", "change", "remove", "add", "clear"))
    if kind == "add":
        names.append(rng.choice(_value_names(root)))
    elif kind == "clear":
        del names[:]
    elif kind == "remove":
        del names[rng.randrange(len(names))]
    else:
        names[rng.randrange(len(names))] = rng.choice(_value_names(root))


def _name(root: Model, rng: random.Random) -> None:
    named: list[Any] = [*_nodes(root), *_infos(root), *_tensors(root), *_graphs(root)]
    _one_of(named, rng).name = rng.choice(_value_names(root))


def _renamed(root: Model, rng: random.Random) -> None:
    """A name changes everywhere, so that the model stays whole."""
    old, new = rng.choice(_value_names(root)), rng.choice(NAMES)
    for graph in _graphs(root):
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        if isinstance(graph, onnx.FunctionProto):
            for names in (graph.input, graph.output):
                names[:] = [new if name == old else name for name in names]
    declared: list[Any] = [*_infos(root), *_tensors(root)]
    for entry in declared:
        entry.name = new if entry.name == old else entry.name


def _shape(root: Model, rng: random.Random) -> None:
    shape = _one_of([v.type.tensor_type.shape for v in _infos(root)], rng)
    kind = rng.choice(("size", "size", "name", "add", "remove"))
    if kind == "add":
        shape.dim.add().dim_value = rng.choice(SIZES)
    elif kind == "remove":
        del shape.dim[rng.randrange(len(shape.dim))]
    elif kind == "size":
        _one_of(shape.dim, rng).dim_value = rng.choice(SIZES)
    else:
        _one_of(shape.dim, rng).dim_param = rng.choice(NAMES)


def _type(root: Model, rng: random.Random) -> None:
    info = _one_of(_infos(root), rng)
    kind = rng.choice(("element", "element", "none", "sequence", "optional", "shapeless"))
    if kind == "element":
        info.type.tensor_type.elem_type = rng.choice((*TensorProto.DataType.values(), 99, -1))
    elif kind == "sequence":
        info.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == "optional":
        info.type.optional_type.elem_type.tensor_type.elem_type = 1
    elif kind == "shapeless":
        info.type.tensor_type.ClearField("shape")
    else:
        info.ClearField("type")


def _tensor(root: Model, rng: random.Random) -> None:
    tensor = _one_of(_tensors(root), rng)
    kind = rng.choice(("type", "type", "dims", "data", "fields", "external", "segment"))
    if kind == "type":
        tensor.data_type = rng.choice((*TensorProto.DataType.values(), 99, -1))
    elif kind == "dims":
        tensor.dims.append(rng.choice(SIZES))
    elif kind == "data":
        tensor.raw_data = rng.choice((b"", b"\0", b"\xff" * 7, b"\0\0\x80\x3f" * 12, bytes(192)))
    elif kind == "external":
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = rng.choice((("location", "x"), ("location", "../x"), ("offset", "-1"), ("", "")))
    elif kind == "segment":
        tensor.segment.begin = 1
    else:
        tensor.ClearField("raw_data")
        tensor.float_data.extend([1.0] * rng.choice((0, 1, 12, 48)))
        tensor.int32_data.extend([1] * rng.choice((0, 1, 12)))
        tensor.string_data.extend([b"x"] * rng.choice((0, 0, 1)))


def _list(root: Model, rng: random.Random) -> None:
    """An entry of a list goes away, comes twice, or moves."""
    graph = _one_of(_graphs(root), rng)
    lists = [graph.node, graph.input, graph.output]
    if isinstance(graph, onnx.GraphProto):
        lists += [graph.initializer, graph.value_info]
    values = _one_of(lists, rng)
    items = [item if isinstance(item, str) else copy.deepcopy(item) for item in values]
    kind = rng.choice(("remove", "remove", "repeat", "shuffle"))
    if kind == "shuffle":
        rng.shuffle(items)
    elif kind == "repeat":
        items.append(rng.choice(items))
    else:
        del items[rng.randrange(len(items))]
    del values[:]
    values.extend(items)


def _body(root: Model, rng: random.Random) -> None:
    """A body goes away, becomes another one, or nests."""
    a = _one_of([a for a in _attributes(root) if a.HasField("g")], rng)
    kind = rng.choice(("clear", "swap", "nest"))
    if kind == "clear":
        a.ClearField("g")
    elif kind == "swap":
        a.g.CopyFrom(copy.deepcopy(_one_of(_proper(root), rng)))
    else:
        _one_of(a.g.node, rng).attribute.append(copy.deepcopy(a))


def _function(root: Model, rng: random.Random) -> None:
    """A function goes away, comes twice, calls itself, or has other attributes."""
    function = _one_of(root.functions, rng)
    kind = rng.choice(("remove", "repeat", "recurse", "attribute", "default", "overload"))
    if kind == "remove":
        root.functions.remove(function)
    elif kind == "repeat":
        root.functions.append(copy.deepcopy(function))
    elif kind == "recurse":
        function.node.add(op_type=function.name, domain=function.domain, input=function.input, output=["again"])
    elif kind == "attribute":
        function.attribute.append(rng.choice(("hidden_size", "direction", "other")))
    elif kind == "default":
        function.attribute_proto.append(copy.deepcopy(_one_of(_attributes(root), rng)))
    else:
        function.overload = "other"


def _absent_graph(root: Model, _: random.Random) -> None:
    root.ClearField("graph")


def _from_another(root: Model, rng: random.Random) -> None:
    """A node of the model is put into another of its graphs."""
    _one_of(_graphs(root), rng).node.append(copy.deepcopy(_one_of(_nodes(root), rng)))


MUTATIONS: tuple[Mutation, ...] = (
    *(_attribute_value, _attribute_length, _attribute_type, _attribute_name, _attribute_reference),
    *(_attribute_removed, _attribute_moved, _operator, _operator, _domain, _opset, _ir_version, _imports_removed),
    *(_edge, _edge, _edge, _name, _renamed, _shape, _shape, _type, _tensor, _tensor, _list, _list),
    *(_body, _function, _function, _from_another, _absent_graph),
)


# The program


def axis_of_time(original: Model, number: int) -> str:
    """Any axis of any input, by its name or its number, and for some a number of frames."""
    rng = random.Random(number)
    dims = [(v.name, n, d) for v in original.graph.input for n, d in enumerate(v.type.tensor_type.shape.dim)]
    if not dims:
        return "time"
    name, axis, dim = rng.choice(dims)
    text = dim.dim_param if dim.dim_param and rng.random() < 0.7 else f"{name}:{axis}"
    return text + rng.choice(("", "", "=1", "=2", "=4"))


def _streamed(original: Model, form: str, number: int) -> Model:
    """Make a stream of a mutant, and read its metadata after some damage to them."""
    stream = rl.lower(original, form, stream=axis_of_time(original, number))
    (text,) = [p.value for p in stream.metadata_props if p.key == KEY]
    rng = random.Random(number)
    for _ in range(20):
        at, size = rng.randrange(len(text)), rng.choice((0, 1, 1, 5, 40))
        with contextlib.suppress(rl.RnnLoweringError):
            plan = StreamPlan.from_json(text[:at] + rng.choice(METADATA) + text[at + size :])
            host_loop(plan, "portable")
    return stream


def outcome(original: Model, form: str, number: int, *, stream: bool = False) -> str | None:
    """Lower a mutant; return what went wrong, None for a result or an error of the project."""
    try:
        with contextlib.suppress(rl.RnnLoweringError):
            rl.inspect(original)
        lowered = _streamed(original, form, number) if stream else rl.lower(original, form)
    except rl.InternalError as error:
        cause = error.__cause__ or error
        last = [f for f in traceback.extract_tb(cause.__traceback__) if "rnn_lowering" in f.filename]
        where = f"{Path(last[-1].filename).name}:{last[-1].name}" if last else "?"
        return f"{type(cause).__name__} in {where}: {' '.join(str(cause).split())[:200]}"
    except rl.RnnLoweringError:
        return None
    except Exception as error:
        return f"raw {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return _complaint(original, lowered)


def _complaint(original: Model, lowered: Model) -> str | None:
    if any(d.dim_value < 0 for v in _infos(original) for d in v.type.tensor_type.shape.dim):
        return None  # the checker computes with negative sizes, which can end its process
    with contextlib.suppress(Exception):
        onnx.checker.check_model(original)
        try:
            onnx.checker.check_model(lowered)
        except Exception as error:
            return f"refused by the checker: {' '.join(str(error).split())[:200]}"
    return None


def _forked(task: str, proto: Model) -> Model:
    """onnx's native code in a fork of this process: where the package starts a Python, that takes a second each."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(5)
        with contextlib.suppress(BaseException):
            result = (
                native._inferred(proto) if task == "infer" else version_converter.convert_version(proto, int(task))
            )
            with os.fdopen(writer, "wb") as out:
                out.write(result.SerializeToString())
            os._exit(0)
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as given:
        data = given.read()
    if os.waitpid(pid, 0)[1]:
        raise native.NativeError("refused, crashed or hung")
    found: Model = onnx.ModelProto.FromString(data)
    return found


def lower_here(first: int, count: int, *, stream: bool) -> None:
    """Lower mutants in this process, which ends with a traceback where one takes too long; print a line each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    logging.disable()
    native._in_child = _forked
    originals = nets() if stream else models()
    forms = ("auto", "scan", "loop", "keep" if stream else "unroll")
    for number in range(first, first + count):
        print(json.dumps([number]), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        wrong = outcome(mutant(number, originals), forms[number % 4], number, stream=stream)
        faulthandler.cancel_dump_traceback_later()
        if wrong is not None:
            print(json.dumps([number, wrong]), flush=True)


def campaign(first: int, count: int, *, stream: bool = False) -> Iterator[tuple[int, str]]:
    """Lower mutants in batches; yield the numbers of those that went wrong, and how."""
    end = first + count
    while first < end:
        size = min(BATCH, end - first)
        kind = ["--stream"] if stream else []
        command = [sys.executable, __file__, *kind, "--here", str(first), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        yield from ((number, rest[0]) for number, *rest in lines if rest)
        if done.returncode == 0:
            first += size
            continue
        if not lines:
            raise RuntimeError(done.stderr[-2000:])
        said = " ".join(done.stderr.split())[-300:]
        yield lines[-1][0], f"ended its process ({done.returncode}): {said}"
        first = lines[-1][0] + 1


def main(arguments: list[str]) -> int:
    stream = arguments[0] == "--stream"
    arguments = arguments[1:] if stream else arguments
    if arguments[0] == "--here":
        lower_here(int(arguments[1]), int(arguments[2]), stream=stream)
        return 0
    kinds: Counter[str] = Counter()
    for number, wrong in campaign(int(arguments[0]), int(arguments[1]), stream=stream):
        kinds[wrong[:60]] += 1
        print(number, ascii(wrong), flush=True)
    print(f"{arguments[1]} mutants, {kinds.total()} wrong: {dict(kinds)}")
    return int(bool(kinds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
