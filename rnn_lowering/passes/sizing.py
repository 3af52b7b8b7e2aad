"""Apply the sizes and values that a user gives to a model, before its nodes are read."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.given import at_sizes, input_arrays
from rnn_lowering.model.native import fault_of
from rnn_lowering.model.scopes import SORTED, sort_nodes
from rnn_lowering.options import Lowering
from rnn_lowering.passes.advice import deciding_input
from rnn_lowering.passes.report import Report, SetInput

FOLDED = "folded values that follow from the fixed sizes"
CONSTANTS = "folded values that are computed from constants"


def as_given(model: ir.Model, lowering: Lowering, report: Report) -> ir.Model:
    """Return a copy of a model with the sizes and values that the options give its inputs; without any, the model.

    The nodes of the model are sorted first, in place.

    Raises:
        UnsupportedError: The model has no such input or dimension, or cannot have these sizes.
    """
    if not lowering.fixes_inputs:
        return model
    report.notes += [SORTED] if sort_nodes(model) else []
    arrays = input_arrays(model, lowering.set_inputs)
    given = at_sizes(model, lowering.dims, lowering.input_shapes, arrays)
    if given.fault and not fault_of(model):
        hint = deciding_input(given.model, lambda trial: not fault_of(trial))
        raise UnsupportedError(
            f"the model is not valid at these sizes: {given.fault}",
            hint=hint or "give sizes that the model supports",
        )
    report.set_inputs += [SetInput.of(name, array) for name, array in arrays.items()]
    report.notes += [FOLDED] if given.folded else []
    return given.model
