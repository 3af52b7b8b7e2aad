"""How runtimes compute nodes wrongly without an error: what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from rnn_lowering.facts.operators import default_opset
from rnn_lowering.targets.target import KnownValue, Misreads

Misreading = Callable[[ir.Node, KnownValue, int], str]
"""Takes a node, what is known of values and the opset; returns how it is computed wrongly, which are run only, or
""."""

AXES_OF_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
"""Reductions that are composed of others."""

_OF_ONE_AXIS = 13
"""The first opset at which a LogSoftmax is of one axis, and has a function."""


def opset_of(node: ir.Node) -> int:
    """Return the version of ONNX's operators in the graph of a node."""
    return default_opset(node.graph.opset_imports if isinstance(node.graph, ir.Graph) else {})


def by_operator(found: Mapping[str, Misreading]) -> Misreads:
    """Return what a runtime misreads, of what each operator is asked for."""

    def misreads(node: ir.Node, known: KnownValue) -> str:
        return found[node.op_type](node, known, opset_of(node)) if node.op_type in found else ""

    return misreads


def reduces(node: ir.Node) -> bool:
    """Return whether a scatter adds, multiplies or compares what it writes."""
    return node.attributes.get_string("reduction", "none") != "none"


def pads(node: ir.Node) -> bool:
    """Return whether a pool pads its input."""
    by_itself = node.attributes.get_string("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return by_itself or any(node.attributes.get_ints("pads", ()))


_PAIR = 2


def einsum_of_several(node: ir.Node, known: KnownValue, opset: int) -> str:
    """A `Misreading`: an Einsum of more operands than two."""
    return "of two operands only" if len(node.inputs) > _PAIR else ""


def of_large_numbers(node: ir.Node) -> str:
    """Return how a runtime computes logarithms that exponentials are inside of, or "": by these, not by their
    differences from the largest."""
    if node.op_type == "ReduceLogSumExp":
        return "as infinity from 89 on"
    is_function = node.op_type == "LogSoftmax" and opset_of(node) >= _OF_ONE_AXIS
    return "as minus infinity from -104 on" if is_function else ""
