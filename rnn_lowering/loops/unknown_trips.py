"""The error of a Loop or Scan whose number of steps is not known."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.errors import NodeRef, UnsupportedError


class UnknownTripsError(UnsupportedError):
    """The number of steps is not known before the model runs.

    Args:
        value: What it follows from; None where that is in the body.
    """

    def __init__(
        self, reason: str, *, hint: str = "", node: NodeRef | None = None, value: ir.Value | None = None
    ) -> None:
        self.value = value
        super().__init__(reason, hint=hint, node=node)


def depends_on_data(node: NodeRef, value: ir.Value | None = None) -> UnknownTripsError:
    """Return the error of a Loop that ends by a condition on data."""
    return UnknownTripsError(
        "the number of its steps depends on data",
        hint="export it with a fixed number of steps, or keep it, for a runtime that runs Loop (--targets)",
        node=node,
        value=value,
    )
