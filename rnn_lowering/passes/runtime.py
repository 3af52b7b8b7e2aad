"""Changes that a runtime needs outside the lowered nodes, and notes for its user."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from rnn_lowering.model.sizes import forget_names
from rnn_lowering.targets.target import Target


def for_runtime(model: ir.Model, target: Target) -> Iterator[str]:
    """Change a lowered model as its runtime needs it, in place; yield what the user should know."""
    if not target.named_sizes:
        count = forget_names(model)
        if count:
            yield f"{target.name} fails on names of unknown sizes: removed them from {count} declared shapes"
    known = target.documented
    if known is not None:
        unchecked = f"; not checked: {known.unchecked}" if known.unchecked else ""
        yield f"{target.name} was not run: its operators come from {known.source}, of {known.date}{unchecked}"
