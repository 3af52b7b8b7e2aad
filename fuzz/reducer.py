"""Makes a found model smaller: drops outputs, nodes, inputs and constants while it fails in the same way."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import onnx
from running import bodies

from fuzz.case import Case

Edit = Callable[[onnx.ModelProto], bool]
"""Changes a model; returns whether it did."""


def reduced(case: Case, fails: Callable[[Case], bool], trials: int = 400) -> Case:
    """Return a case that still fails and from which nothing more can be dropped, or the smallest of many trials.

    Args:
        fails: Whether a case still fails in the same way.
        trials: The most cases that are tried.
    """
    left, smaller = trials, True
    while smaller:
        smaller = False
        for edit in _edits(case.model):
            model = onnx.ModelProto.FromString(case.model.SerializeToString())
            if not edit(model):
                continue
            _tidy(model)
            if model == case.model or model.ByteSize() > case.model.ByteSize():
                continue
            if (left := left - 1) < 0:
                return case
            if fails(Case(model, case.options)):
                case, smaller = Case(model, case.options), True
                break
    return case


def _edits(model: onnx.ModelProto) -> Iterator[Edit]:
    """Yield what can be tried, that which drops most first."""
    for place in range(len(model.graph.output)):
        yield lambda m, place=place: _only_output(m, place)  # type: ignore[misc]
    for place in range(len(model.graph.output)):
        yield lambda m, place=place: _without(m.graph.output, place)  # type: ignore[misc]
    for place in range(len(model.graph.node)):
        yield lambda m, place=place: _ended_at(m, place)  # type: ignore[misc]
    for scope, nodes in reversed([*enumerate(_scopes(model))]):
        for place in reversed(range(len(nodes))):
            for taken in range(len(nodes[place].input)):
                yield lambda m, s=scope, p=place, t=taken: _bypassed(m, s, p, t)  # type: ignore[misc]
            yield lambda m, s=scope, p=place: _without([*_scopes(m)][s], p)  # type: ignore[misc]
            for attribute in range(len(nodes[place].attribute)):
                yield lambda m, s=scope, p=place, a=attribute: _without([*_scopes(m)][s][p].attribute, a)  # type: ignore[misc]
            for given in reversed(range(len(nodes[place].input))):
                yield lambda m, s=scope, p=place, g=given: _unconnected(m, s, p, g)  # type: ignore[misc]


def _scopes(model: onnx.ModelProto) -> Iterator[Any]:
    """Yield the nodes of each graph, body and function."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        yield from _nested(nodes)


def _nested(nodes: Any) -> Iterator[Any]:
    yield nodes
    for node in nodes:
        for body in bodies(node):
            yield from _nested(body.node)


def _without(items: Any, place: int) -> bool:
    del items[place]
    return True


def _only_output(model: onnx.ModelProto, place: int) -> bool:
    if len(model.graph.output) < 2:
        return False
    kept = onnx.ValueInfoProto.FromString(model.graph.output[place].SerializeToString())
    del model.graph.output[:]
    model.graph.output.append(kept)
    return True


def _ended_at(model: onnx.ModelProto, place: int) -> bool:
    """Let the outputs of a node be those of the model."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph
    except Exception:
        return False
    known = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    made = [name for name in model.graph.node[place].output if name in known]
    if not made or {*made} == {value.name for value in model.graph.output}:
        return False
    del model.graph.output[:]
    for name in made:
        model.graph.output.append(known[name])
    return True


def _bypassed(model: onnx.ModelProto, scope: int, place: int, taken: int) -> bool:
    """Let an input of a node stand for its outputs."""
    nodes = [*_scopes(model)][scope]
    node = nodes[place]
    if not node.input[taken]:
        return False
    names = dict.fromkeys(node.output, node.input[taken])
    outputs = {value.name for graph in _graphs(model) for value in graph.output}
    if not outputs.isdisjoint(names):
        return False
    del nodes[place]
    for other in chain.from_iterable(_scopes(model)):
        other.input[:] = [names.get(name, name) for name in other.input]
    return True


def _unconnected(model: onnx.ModelProto, scope: int, place: int, given: int) -> bool:
    node = [*_scopes(model)][scope][place]
    if not node.input[given]:
        return False
    node.input[given] = ""
    while node.input and not node.input[-1]:
        del node.input[-1]
    return True


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield model.graph
    for node in chain.from_iterable(_scopes(model)):
        yield from bodies(node)


def _tidy(model: onnx.ModelProto) -> None:
    """Drop what nothing uses: nodes, inputs, initializers, functions, and what is said of values."""
    del model.graph.value_info[:]
    while True:
        used = {name for node in chain.from_iterable(_scopes(model)) for name in node.input}
        used |= {value.name for graph in _graphs(model) for value in graph.output}
        dead = [n for n, node in enumerate(model.graph.node) if used.isdisjoint(node.output)]
        if not dead:
            break
        for place in reversed(dead):
            del model.graph.node[place]
    for graph in _graphs(model):
        _keep(graph.initializer, used)
    _keep(model.graph.input, used)
    called = {(node.domain, node.op_type) for node in chain.from_iterable(_scopes(model))}
    for place in reversed(range(len(model.functions))):
        if (model.functions[place].domain, model.functions[place].name) not in called:
            del model.functions[place]


def _keep(items: Any, names: set[str]) -> None:
    for place in reversed(range(len(items))):
        if items[place].name not in names:
            del items[place]
