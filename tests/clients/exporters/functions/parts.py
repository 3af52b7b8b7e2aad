"""Parts of what is exported at once: models of some outputs, and halves of what failed."""

from collections.abc import Callable, Iterator
from pathlib import Path

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


def halves_left(names: list[str], save: Callable[[list[str]], None], folder: Path, end: str) -> list[list[str]]:
    """Write all at once, or return the halves to try; what fails alone leaves NAME.END.error."""
    try:
        save(names)
    except Exception as error:
        if len(names) > 1:
            return [names[: len(names) // 2], names[len(names) // 2 :]]
        (folder / f"{names[0]}.{end}.error").write_text(f"{type(error).__name__}: {str(error)[:2000]}")
    return []
