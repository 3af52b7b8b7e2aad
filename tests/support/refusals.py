"""The one error of an invalid node, and models of one node with other attributes or shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import pytest
from onnx import helper

import rnn_lowering as rl


def refusal(original: onnx.ModelProto, start: str = "") -> rl.RnnLoweringError:
    """Return the one error of a model's only node, whatever is asked for: it names the node, then begins with
    `start`."""
    errors = []
    for ask in (rl.lower, rl.inspect):
        with pytest.raises(rl.RnnLoweringError) as caught:
            ask(original)
        errors.append(caught.value)
    (node,) = original.graph.node
    assert str(errors[0]) == str(errors[1])
    assert str(errors[0]).startswith(f"{node.op_type} node '{node.name}' in main graph: {start}")
    return errors[0]


def with_attributes(original: onnx.ModelProto, **attributes: Any) -> onnx.ModelProto:
    """Return the model with other attributes of its only node; None drops one."""
    changed = onnx.ModelProto()
    changed.CopyFrom(original)
    (node,) = changed.graph.node
    kept = [a for a in node.attribute if a.name not in attributes]
    given = [helper.make_attribute(name, value) for name, value in attributes.items() if value is not None]
    del node.attribute[:]
    node.attribute.extend([*kept, *given])
    return changed


def with_shapes(original: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str] | None]) -> onnx.ModelProto:
    """Return the model with other declared shapes of inputs; None declares none."""
    changed = onnx.ModelProto()
    changed.CopyFrom(original)
    for value in changed.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    return changed
