"""A copy of a model for given sizes and values of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.model.copying import clone
from rnn_lowering.model.dimensions import fix_dimensions
from rnn_lowering.model.folding import folded
from rnn_lowering.model.onnx_inference import fault_of
from rnn_lowering.types import Array, Shapes


@dataclass(frozen=True)
class Sized:
    """A model at given sizes.

    Attributes:
        model: A copy of the model.
        folded: Whether constants were folded.
        fault: The error of ONNX's strict inference; empty where there is none.
    """

    model: ir.Model
    folded: bool
    fault: str


def at_sizes(
    model: ir.Model, dims: Mapping[str, int], input_shapes: Shapes, arrays: Mapping[str, Array] | None = None
) -> Sized:
    """Return a copy of a model at given sizes (see `fix_dimensions`).

    Constants are folded where that makes more sizes of recurrent nodes known; if an input becomes a constant or the
    model is not valid, also where it decides an If: paddings and branches may depend on sizes.

    Raises:
        OptionError, UnsupportedError: As `fix_dimensions`.
    """
    copy = clone(model)
    fix_dimensions(copy, dims, input_shapes, arrays)
    fault = fault_of(copy)
    known = folded(copy, decide=bool(arrays or fault))
    if known is None:
        return Sized(copy, folded=False, fault=fault)
    return Sized(known, folded=True, fault=fault_of(known))
