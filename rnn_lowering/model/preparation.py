"""Find and read the recurrent nodes that a user wants to lower, in a model where they can be replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import onnx_ir as ir

from rnn_lowering.errors import OptionError, callers
from rnn_lowering.facts.operators import default_opset, has_bodies
from rnn_lowering.model.copying import clone, clone_around, inline_functions
from rnn_lowering.model.model_sizes import computed_values, known_inputs
from rnn_lowering.model.opsets import NEW_OPSET, OLDEST_LOWERED_OPSET, modernize
from rnn_lowering.model.scopes import SORTED, RecurrentNode, recurrent_nodes, sort_nodes
from rnn_lowering.nodes.connections import KnownInputs
from rnn_lowering.nodes.kinds import read_spec
from rnn_lowering.nodes.spec import NodeSpec, node_ref
from rnn_lowering.options import Lowering, Selection
from rnn_lowering.recurrence.forms import Choice

LOOP_FORMS = ("scan", "loop", "unroll")
"""The forms that a Loop or Scan of the model can have."""

_FX_NODE = "pkg.torch.onnx.fx_node"
"""Key of the text in which PyTorch's newer exporter says what a node was."""


@dataclass(frozen=True)
class PreparedModel:
    """A model whose recurrent nodes can be read and replaced.

    Attributes:
        model: The given model, or a changed copy if functions are inlined or the opset is too old.
        found: All its recurrent nodes.
        wanted: Those that are to be lowered.
        notes: What was done, for the user.
        inferred: Whether its values declare what inference has found.
        known: What inference has found of the inputs of the wanted nodes, once they are read.
    """

    model: ir.Model
    found: Sequence[RecurrentNode]
    wanted: Sequence[RecurrentNode]
    notes: tuple[str, ...] = ()
    inferred: bool = False
    known: KnownInputs = field(default_factory=dict)

    def with_known_inputs(self) -> PreparedModel:
        """Return it with what inference finds of the inputs of the wanted nodes."""
        return replace(self, known=known_inputs(self.model, self.wanted, inferred=self.inferred))

    def copied(self) -> PreparedModel:
        """Return it with a copy of what the wanted nodes are compared by, and without the nodes."""
        if self.model.functions or has_bodies(self.model.graph):
            copy = clone(self.model)
            twins = dict(zip(computed_values(self.model), computed_values(copy), strict=True))
        else:
            copy, twins = clone_around(self.model, {entry.node for entry in self.wanted})
        known = {twins[value]: known for value, known in self.known.items()}
        for value in copy.graph.inputs:  # whose types are not declared, if they were computed
            found = known.get(value)
            if found is not None and found.shape is not None and value.type is None:
                value.type, value.shape = ir.TensorType(found.dtype), ir.Shape(found.dims)
        return replace(self, model=copy, found=(), wanted=(), known=known)


@dataclass(frozen=True)
class NodePlan:
    """A node that is to be lowered.

    Attributes:
        found: The node.
        spec: The specification of the node.
        choice: Its form.
        opset: The opset of what is emitted for it, which the model then imports.
    """

    found: RecurrentNode
    spec: NodeSpec
    choice: Choice
    opset: int


@dataclass(frozen=True)
class NodeSelection:
    """The nodes that the options select: by `only` and `except_`, and not to be kept."""

    lowering: Lowering

    def __call__(self, found: Sequence[RecurrentNode]) -> list[RecurrentNode]:
        """Return the recurrent nodes that are to be lowered."""
        return [] if self.lowering.keeps_nodes else [entry for entry in found if self.selects(entry.node)]

    def selects(self, node: ir.Node) -> bool:
        """Whether the patterns select a recurrent node, a Loop or a Scan."""
        only = self.lowering.only
        return (only == () or _matches(node, only)) and not _matches(node, self.lowering.except_)

    def asks_for(self, node: ir.Node) -> bool:
        """Whether `loops`, another form, or a target that does not run it asks to lower a selected Loop or Scan."""
        to, own = self.lowering.to, node.op_type.lower()
        other_form = to in LOOP_FORMS and to != own
        unsupported = own not in self.lowering.runtime.loop_forms
        return not self.lowering.keeps_nodes and (self.lowering.lower_loops or other_form or unsupported)

    def check(self, found: Sequence[ir.Node], before: Sequence[ir.Node] | None = None) -> None:
        """Check that every pattern matches a node, if there are any; or with `before`, every one that matched then.

        Raises:
            OptionError: A pattern matches none.
        """
        patterns = [*_patterns(self.lowering.only), *_patterns(self.lowering.except_)]
        unknown = [p for p in patterns if not _is_used(p, found) and (before is None or _is_used(p, before))]
        if unknown and found:
            names = ", ".join(dict.fromkeys(f"{node.op_type} '{node_ref(node).name}'" for node in found))
            raise OptionError(
                f"no recurrent node matches {', '.join(repr(p) for p in unknown)}", hint=f"there are {names}"
            )


def _patterns(selection: Selection) -> Iterator[str]:
    if isinstance(selection, tuple):
        yield from selection


def _is_used(pattern: str, found: Sequence[ir.Node]) -> bool:
    return any(_matches(node, (pattern,)) for node in found)


def _matches(node: ir.Node, selection: Selection) -> bool:
    if callable(selection):
        return bool(callers(selection)(node))
    return any(p == node.op_type or fnmatchcase(node_ref(node).name, p) for p in selection)


def prepare(model: ir.Model, selected: NodeSelection, max_nodes: int, *, inferred: bool = False) -> PreparedModel:
    """Sort the nodes, in place; inline functions with wanted nodes and convert an old opset, in a copy.

    Args:
        model: The model.
        selected: Which recurrent nodes are wanted.
        max_nodes: Maximum nodes of the model after inlining.
        inferred: Whether its values declare what inference has found.

    Raises:
        InvalidNodeError: A wanted node of an old opset is not valid.
        UnsupportedError: A function cannot be inlined, or the opset cannot be converted.
    """
    found = list(recurrent_nodes(model))
    wanted = selected(found)
    if not wanted:
        return PreparedModel(model, found, wanted, inferred=inferred)
    notes = [SORTED] if sort_nodes(model) else []
    opset = default_opset(model.opset_imports)
    if opset >= OLDEST_LOWERED_OPSET and not any(entry.function for entry in wanted):
        return PreparedModel(model, found, wanted, tuple(notes), inferred)
    work = clone(model)
    notes += inline_functions(work, lambda entry: bool(selected([entry])), max_nodes)
    if opset < OLDEST_LOWERED_OPSET:
        read(work, selected(list(recurrent_nodes(work))))  # at its own version: the newer ones allow more
        if has_bodies(work.graph):
            from rnn_lowering.model.folding import folded  # old models are few

            work = folded(work, decide=True) or work
        modernize(work, opset)
        notes.append(f"converted from opset {opset} to {NEW_OPSET}")
    before, found = found, list(recurrent_nodes(work))
    selected.check([e.node for e in found], [e.node for e in before])
    return PreparedModel(work, found, selected(found), tuple(notes))


def read(model: ir.Model, found: Sequence[RecurrentNode], *, inferred: bool = False) -> list[NodeSpec]:
    """Return what nodes of a model specify.

    Raises:
        InvalidNodeError: A node breaks the specification of its operator.
        UnsupportedError: A node cannot be read.
    """
    known = known_inputs(model, found, inferred=inferred)
    return [read_node(model, entry, known) for entry in found]


def read_node(model: ir.Model, entry: RecurrentNode, known: KnownInputs) -> NodeSpec:
    """Return what a node of a model specifies, as `read` does."""
    spec = read_spec(entry.node, entry.opset, entry.scope, known)
    return replace(spec, warnings=(*spec.warnings, *export_faults(model, entry)))


def export_faults(model: ir.Model, entry: RecurrentNode) -> tuple[str, ...]:
    """Return warnings about known exporter bugs.

    PyTorch computes a GRU as with linear_before_reset = 1. Its newer exporter wrote 0 with onnxscript 0.5.7 to
    0.7.0, whatever the version of torch (onnxscript #2852, pytorch #189225); the older one has always written 1.
    """
    node, given = entry.node, entry.node.attributes.get("linear_before_reset")
    if node.op_type != "GRU" or (given is not None and given.value) or not _is_gru_of_pytorch(model, node):
        return ()
    return (
        f"{entry.ref}: PyTorch's exporter omitted linear_before_reset = 1, so the model does not match the net; "
        "export it again with torch 2.15, onnxscript 0.7.1 or later, or dynamo=False",
    )


def _is_gru_of_pytorch(model: ir.Model, node: ir.Node) -> bool:
    """Return whether PyTorch's newer exporter made a node from a torch.nn.GRU: by its metadata, or where these are
    gone by the name that it gives nodes."""
    made_from = node.metadata_props.get(_FX_NODE)
    if made_from is not None:
        return "aten.gru." in made_from
    return model.producer_name == "pytorch" and (node.name or "").lower().startswith("node_gru_")
