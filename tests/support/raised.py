"""What becomes of a model with `raise_loops=True`, compared with onnxruntime on the original."""

from collections.abc import Sequence

import numpy as np
import onnx
from cases import Arrays
from loop_models import as_meant
from oracle import GATES
from running import assert_close, nodes, run

import rnn_lowering as rl


def loops(model: onnx.ModelProto) -> list[str]:
    """The Loops and Scans of a model, in any scope."""
    return [node.op_type for node in nodes(model) if node.op_type in ("Loop", "Scan")]


def cells(model: onnx.ModelProto) -> list[str]:
    """The RNN, GRU and LSTM nodes of a model, in any scope."""
    return [node.op_type for node in nodes(model) if node.op_type in GATES]


def raised(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> onnx.ModelProto:
    """Raise the one loop of a model; return the result.

    If it has a node, it computes the same; else nothing changed.
    """
    new: onnx.ModelProto = rl.lower(model, raise_loops=True)
    if not cells(new):
        assert new.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
        return new
    onnx.checker.check_model(new, full_check=True)
    for feed in feeds:
        assert_same_as(model, new, feed)
    return new


def is_raised(model: onnx.ModelProto, feeds: Sequence[Arrays]) -> bool:
    """Return whether the one loop of a model becomes a node; see `raised`."""
    return bool(cells(raised(model, feeds)))


def assert_same_as(model: onnx.ModelProto, new: onnx.ModelProto, feed: Arrays) -> None:
    """Compare with the original as it is meant, which onnxruntime runs without optimizations."""
    wanted = run(as_meant(model), feed, optimize=False)
    finite = {name: np.isfinite(array).all() for name, array in wanted.items()}
    assert all(finite.values()), finite
    assert_close(run(new, feed), wanted, "float32")
