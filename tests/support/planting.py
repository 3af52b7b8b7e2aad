"""Faults planted in the package while it runs: a function is replaced by one that does something else.

A fault names the functions and fields of the package that it replaces, not their source, so it survives when lines
are written anew; where a function or a field itself is renamed, Python says so.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import onnx
import pytest

import rnn_lowering as rl
from rnn_lowering.emit.dialect import first_opset, since


class Planting:
    """What a fault may replace; a monkeypatch takes it back.

    Attributes:
        lower: `rl.lower`, or what a fault made of it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.lower: Callable[..., Any] = rl.lower

    def function(self, original: Any, fault: Callable[..., Any]) -> None:
        """Let fault(original, *arguments) run wherever the package holds a function, by whatever name."""
        new: Any = wraps(original)(lambda *args, **kwargs: fault(original, *args, **kwargs))
        new = since(first_opset(original))(new) if first_opset(original) > 1 else new
        places = 0
        for module in [m for name, m in sys.modules.items() if name.startswith("rnn_lowering")]:
            for name, value in list(vars(module).items()):
                if value is original:
                    self._patch.setattr(module, name, new)
                    places += 1
                elif isinstance(value, dict):
                    for key in [key for key, held in value.items() if held is original]:
                        self._patch.setitem(value, key, new)
                        places += 1
        assert places, f"the package does not hold {original}"

    def method(self, owner: type, name: str, fault: Callable[..., Any]) -> None:
        """Let fault(original, self, *arguments) run instead of a method."""
        original = getattr(owner, name)
        self._patch.setattr(owner, name, lambda this, *args, **kwargs: fault(original, this, *args, **kwargs))

    def item(self, table: dict[str, Any], key: str, new: Any) -> None:
        self._patch.setitem(table, key, new)

    def reading(self, change: Callable[[onnx.NodeProto, onnx.ModelProto], None]) -> None:
        """Let the package read each recurrent node as another."""

        def lower(model: onnx.ModelProto, *args: Any, **kwargs: Any) -> onnx.ModelProto:
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            for node in changed.graph.node:
                if node.op_type in ("RNN", "GRU", "LSTM"):
                    change(node, changed)
            lowered: onnx.ModelProto = rl.lower(changed, *args, **kwargs)
            return lowered

        self.lower = lower


Fault = Callable[[Planting], None]
