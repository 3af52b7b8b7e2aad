"""Models of some outputs of another one."""

from collections.abc import Iterator

import onnx


def part(whole: onnx.ModelProto, outputs: list[str]) -> onnx.ModelProto:
    """What outputs of a model need of it."""
    model = onnx.ModelProto()
    model.CopyFrom(whole)
    graph, wanted, nodes = model.graph, set(outputs), []
    for node in reversed(graph.node):
        if wanted & {*node.output}:
            nodes.append(node)
            wanted |= {*read(node)}
    kept = {"node": nodes[::-1], "output": [value for value in graph.output if value.name in outputs]}
    kept["input"] = [value for value in graph.input if value.name in wanted]
    kept["initializer"] = [tensor for tensor in graph.initializer if tensor.name in wanted]
    made = {name for node in nodes for name in node.output}
    kept["value_info"] = [value for value in graph.value_info if value.name in made]
    copies = {field: [type(each).FromString(each.SerializeToString()) for each in kept[field]] for field in kept}
    for field, values in copies.items():
        del getattr(graph, field)[:]
        getattr(graph, field).extend(values)
    return model


def read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node and its bodies read."""
    yield from node.input
    for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from read(inner)
