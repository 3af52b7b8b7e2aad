"""The plan of a lowering, made before the first edit: which nodes are lowered, what they specify, in which form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from rnn_lowering.model.copying import clone
from rnn_lowering.model.exporters import export_faults
from rnn_lowering.model.inference import known_inputs
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.old_opsets import FIRST_OPSET, NEW_OPSET, modernize
from rnn_lowering.model.prepare import SORTED, sort_nodes
from rnn_lowering.model.scopes import Found, recurrent_nodes
from rnn_lowering.model.selection import Choose
from rnn_lowering.spec.connections import KnownValues
from rnn_lowering.spec.node import RecurrentSpec, default_opset
from rnn_lowering.targets.choice import Choice


@dataclass(frozen=True)
class Prepared:
    """A model whose recurrent nodes can be read and replaced.

    Attributes:
        model: The given model, or a changed copy where functions are inlined or the opset is too old.
        found: All its recurrent nodes.
        wanted: Those that are to be lowered.
        notes: What was done, for the user.
    """

    model: ir.Model
    found: Sequence[Found]
    wanted: Sequence[Found]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A node that is to be lowered, what it specifies, and its form."""

    found: Found
    spec: RecurrentSpec
    choice: Choice


def prepare(model: ir.Model, selected: Choose, max_nodes: int) -> Prepared:
    """Sort the nodes, in place; inline functions with wanted nodes and convert an old opset, in a copy.

    Args:
        model: The model.
        selected: Which recurrent nodes are wanted.
        max_nodes: The most nodes that the model may have after inlining.

    Raises:
        InvalidNodeError: A wanted node of an old opset is not valid.
        UnsupportedError: A function cannot be inlined, or the opset cannot be converted.
    """
    found = list(recurrent_nodes(model))
    selected.check(found)
    wanted = selected(found)
    if not wanted:
        return Prepared(model, found, wanted)
    notes = [SORTED] if sort_nodes(model) else []
    opset = default_opset(model.opset_imports)
    if opset >= FIRST_OPSET and not any(entry.function for entry in wanted):
        return Prepared(model, found, wanted, tuple(notes))
    work = clone(model)
    inline_functions(work, lambda entry: bool(selected([entry])), max_nodes)
    inlined = model.functions.keys() - work.functions.keys()
    notes += [f"inlined function {domain}::{name}" for domain, name, _ in sorted(inlined)]
    if opset < FIRST_OPSET:
        read(work, selected(list(recurrent_nodes(work))))  # at its own version: the newer ones allow more
        modernize(work, opset)
        notes.append(f"converted from opset {opset} to {NEW_OPSET}")
    found = list(recurrent_nodes(work))
    selected.check(found)
    return Prepared(work, found, selected(found), tuple(notes))


def read(model: ir.Model, found: Sequence[Found]) -> list[RecurrentSpec]:
    """Return what nodes of a model specify.

    Raises:
        InvalidNodeError: A node specifies what its operator does not allow.
        UnsupportedError: A node cannot be read.
    """
    known = known_inputs(model, found)
    return [read_node(model, entry, known) for entry in found]


def read_node(model: ir.Model, entry: Found, known: KnownValues) -> RecurrentSpec:
    """Return what a node of a model specifies, as `read` does."""
    spec = RecurrentSpec.parse(entry.node, entry.opset, entry.scope, known)
    return replace(spec, warnings=(*spec.warnings, *export_faults(model, entry.node, spec)))
