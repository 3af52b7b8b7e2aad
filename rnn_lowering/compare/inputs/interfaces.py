"""The inputs and outputs of two models: the lowered one may have inputs as constants, or open what was fixed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import onnx

from rnn_lowering.compare.inputs.sizes import dims_of
from rnn_lowering.errors import RnnLoweringError
from rnn_lowering.model.fixed_inputs import has_record, recorded
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.types import Array

FIRST_IR_WITH_DEFAULTS = 4
"""Since this IR version, an initializer that is also an input is a default that a caller may override."""


def recorded_inputs(original: onnx.ModelProto, lowered: onnx.ModelProto) -> dict[str, Array]:
    """Return the inputs of the original that the lowered model has as constants."""
    with suppress(RnnLoweringError):  # onnxruntime refuses what is not a model
        return recorded(from_proto(original), from_proto(lowered)) if has_record(lowered) else {}
    return {}


def declared_as(original: onnx.ModelProto, lowered: onnx.ModelProto) -> onnx.ModelProto:
    """Return the inputs of a lowered model, with the sizes that the original fixes and it has opened."""
    fixed = {value.name: dims_of(value) for value in original.graph.input}
    declared = onnx.ModelProto()
    declared.graph.input.extend(lowered.graph.input)
    for value in declared.graph.input:
        for dim, was in zip(dims_of(value), fixed.get(value.name, ()), strict=False):
            if was.dim_value > 0 and not dim.HasField("dim_value"):
                dim.dim_value = was.dim_value
    return declared


def lost_defaults(original: onnx.ModelProto, lowered: onnx.ModelProto) -> list[str]:
    """Return the inputs with defaults that the lowered model neither has nor records as constants."""
    if original.ir_version < FIRST_IR_WITH_DEFAULTS:
        return []
    defaults = {tensor.name for tensor in original.graph.initializer}
    kept = {value.name for value in lowered.graph.input} | recorded_inputs(original, lowered).keys()
    return [v.name for v in original.graph.input if v.name in defaults and v.name not in kept]


def other_names(original: onnx.ModelProto, lowered: onnx.ModelProto) -> str:
    """Return which inputs and outputs only one of the models has, if they cannot be compared; else "".

    The lowered model may have inputs of the original as constants, and more inputs. Inputs with defaults do not
    count.
    """
    lost_inputs, lost_outputs = _lacking(original, lowered)
    lost_inputs = [name for name in lost_inputs if name not in recorded_inputs(original, lowered)]
    more_inputs, more_outputs = _lacking(lowered, original)
    if not (lost_inputs or lost_outputs or more_outputs):
        return ""
    lost, more = _named(lost_inputs, lost_outputs), _named(more_inputs, more_outputs)
    facts = (lost and f"the lowered model has no {lost}", more and f"the original has no {more}")
    return "; ".join(filter(None, facts))


def _lacking(one: onnx.ModelProto, other: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """Return the inputs and outputs of a model that another model does not have."""
    inputs, outputs = ({value.name for value in values} for values in (other.graph.input, other.graph.output))
    inputs |= {tensor.name for tensor in one.graph.initializer}
    return (
        [value.name for value in one.graph.input if value.name not in inputs],
        [value.name for value in one.graph.output if value.name not in outputs],
    )


def _named(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    return ", ".join([*(f"input '{name}'" for name in inputs), *(f"output '{name}'" for name in outputs)])
