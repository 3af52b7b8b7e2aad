"""Lower the Loops and Scans of a model: choose their forms, and put their equivalents in their places."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.dialect import PLAIN, Dialect
from rnn_lowering.emit.draft import Names
from rnn_lowering.emit.open_scopes import Finish, Rule
from rnn_lowering.emit.ops import Ops
from rnn_lowering.errors import InvalidNodeError, NodeRef, UnsupportedError, boundary
from rnn_lowering.facts.operators import (
    DEFAULT_DOMAIN,
    bodies_of,
    default_opset,
    detach,
    is_used,
    reached,
    values_used,
    with_bodies,
)
from rnn_lowering.loops.body import LoopBody, ScanBody, read_body
from rnn_lowering.loops.body_copy import BodyWriter, RepeatBody
from rnn_lowering.loops.loop_forms import to_loop, to_scan, unroll
from rnn_lowering.loops.stacked_states import stack_rows_of_states
from rnn_lowering.loops.step_values import LoopLimits
from rnn_lowering.loops.value_facts import Elements, Facts, Item, number_of
from rnn_lowering.model.copying import clone, inline_holders
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import (
    ORIGIN,
    REPEATING,
    Scope,
    all_names,
    inner_scopes,
    operators_in,
    origin_of,
    repeating_nodes,
    scopes,
    sort_nodes,
    standard_nodes,
)
from rnn_lowering.nodes.spec import node_ref


@dataclass(frozen=True)
class LoopReport:
    """A Loop or Scan that was lowered or raised.

    Attributes:
        name, operator, scope: The node.
        form: "unroll", "loop" or "scan"; the operator of the node that it became if it was raised.
        reason: Why.
        steps: The number of its steps, those of nested ones included; None if unknown.

    Examples:
        >>> rl.lower(model, full=True)[1].loops
        []
    """

    name: str
    operator: str
    scope: str
    form: str
    reason: str
    steps: int | None

    @property
    def ref(self) -> NodeRef:
        return NodeRef(self.name, self.operator, self.scope)

    def __str__(self) -> str:
        steps = "" if self.steps is None else f", {self.steps} step{'' if self.steps == 1 else 's'}"
        some = f", and {_SOME_STEPS}" if _SOME_STEPS in self.reason else ""
        return f"{self.ref}: {self.form}{steps}{some}"


@dataclass(frozen=True)
class LoopForms:
    """The forms that a Loop or Scan may get.

    Attributes:
        forms: The preferred one first; empty to keep the node.
        reason: The reason for the preferred one.
        nested_stay: Whether Loops and Scans in its body keep their operators.
        stays_in_bodies: Whether the node also stays in a body that is lowered.
        without_steps: Whether a kept Loop becomes its initial states if it has no step.
        optional: Whether the node stays if it can have none of the forms, instead of an error.
        repeat: What emits the equivalent, for a form that is not one of `loop_forms`. If it refuses the node, those
            in its body are lowered.
        runs_no_steps, strict_scans: As in `LoopTraits`.
        check: Raises an error if one of the operators emitted for a node is not supported.
        dialect, instead, finish: Arguments of `Ops`.
    """

    forms: Sequence[str]
    reason: str = ""
    nested_stay: bool = False
    stays_in_bodies: bool = False
    without_steps: bool = False
    optional: bool = False
    repeat: RepeatBody | None = None
    runs_no_steps: bool = True
    strict_scans: bool = False
    check: Callable[[frozenset[str], NodeRef], None] | None = None
    dialect: Dialect = PLAIN
    instead: Mapping[str, Rule] = field(default_factory=dict)
    finish: tuple[Finish, ...] = ()

    @property
    def may_change(self) -> bool:
        return bool(self.forms) or self.without_steps


_READ_ELEMENTS = ("SequenceAt", "ConcatFromSequence")
"""Operators that read the elements of a list."""

_SOME_STEPS = "it must have at least one step"
_EMPTY = LoopForms(("unroll",), "it has no step")
Choose = Callable[[ir.Node], LoopForms]


def _as_it_is(writer: BodyWriter, loop: LoopBody | ScanBody) -> list[Item]:
    """Emit a Loop for a Loop and a Scan for a Scan."""
    return to_loop(writer, loop) if isinstance(loop, LoopBody) else to_scan(writer, loop)


_FORMS: dict[str, RepeatBody] = {"unroll": unroll, "loop": to_loop, "scan": to_scan}


def lower_loops(
    model: ir.Model,
    choose: Choose,
    limits: LoopLimits,
    refused: dict[NodeRef, UnsupportedError] | None = None,
    *,
    some_rows: bool = False,
) -> tuple[ir.Model, list[LoopReport], list[str]]:
    """Give Loops and Scans the chosen forms in a copy of a model; return it, a report of each, and notes.

    Where nothing changes, the model itself is returned.

    Args:
        model: The model.
        choose: Returns the forms of a Loop or Scan.
        limits: The limits of unrolling.
        refused: Takes the error of each node that cannot have its form, which stays; None to raise the first.
        some_rows: For a stream: no size is 0.

    Raises:
        InvalidNodeError: A node breaks the specification of its operator.
        UnsupportedError: A node cannot have its form.
    """
    collects = refused is not None and not some_rows
    if not collects:
        for scope, node in repeating_nodes(model):
            _chosen(choose, node, scope)
    follows = some_rows and any(standard_nodes(model, *_READ_ELEMENTS))
    if not follows and not any(_forms(choose, node).may_change for _, node in repeating_nodes(model)):
        return model, [], []
    work = clone(model)
    sort_nodes(work)
    lowered = [(scope, node) for scope, node in repeating_nodes(work) if _forms(choose, node).forms]
    holders = {scope.function.identifier() for scope, _ in lowered if scope.function is not None}
    called = _called_in_bodies(work, [node for _, node in lowered])
    notes = inline_holders(work, holders | called, limits.nodes)
    lowering = _LoopLowering(work, choose, limits, refused, some_rows)
    lowering.graph(next(scope for scope in scopes(work) if scope.graph is work.graph))
    if not lowering.reports and not lowering.followed and not (collects and refused):
        return model, [], []
    return work, lowering.reports, notes


def _called_in_bodies(model: ir.Model, nodes: Iterable[ir.Node]) -> set[ir.OperatorIdentifier]:
    """Return the functions that the bodies of nodes call, at any depth: what they compute is not known.

    One that imports another version of a domain than the model stays.
    """
    imports = {**model.opset_imports, **dict.fromkeys(DEFAULT_DOMAIN, default_opset(model.opset_imports))}

    def called(nodes: Iterable[ir.Node]) -> list[ir.OperatorIdentifier]:
        functions = {node.op_identifier() for node in nodes if node.domain not in DEFAULT_DOMAIN}
        known = {name: model.functions[name].opset_imports.items() for name in functions & model.functions.keys()}
        return [name for name, own in known.items() if all(imports.get(*item) == item[1] for item in own)]

    first = called(inner for node in nodes for inner in [*with_bodies(node)][1:])
    return {*reached(first, lambda name: called(model.functions[name].graph.all_nodes()))}


def _chosen(choose: Choose, node: ir.Node, scope: Scope) -> LoopForms:
    """Return the forms of a node; an error names it."""
    try:
        return choose(node)
    except UnsupportedError as error:
        raise UnsupportedError(error.reason, hint=error.hint, node=node_ref(node, scope.text)) from None


def _forms(choose: Choose, node: ir.Node) -> LoopForms:
    """Return the forms of a node, or `_EMPTY` if it is refused: `_chosen` then raises the error."""
    try:
        return choose(node)
    except UnsupportedError:
        return _EMPTY


class _LoopLowering:
    """Lowers the Loops and Scans of a model in place."""

    def __init__(
        self,
        model: ir.Model,
        choose: Choose,
        limits: LoopLimits,
        refused: dict[NodeRef, UnsupportedError] | None,
        some_rows: bool,
    ) -> None:
        self.model = model
        self.choose = choose
        self.limits = limits
        self.refused = refused
        self.some_rows = some_rows
        self.opset = default_opset(model.opset_imports)
        self.facts = Facts(model, self.opset)
        self.names = Names(all_names(model))
        self.reports: list[LoopReport] = []
        self.followed = False
        self.stays = {node for _, node in repeating_nodes(model) if _forms(choose, node).stays_in_bodies}
        self._shared: dict[ir.Graph, dict[Hashable, ir.Value]] = {}

    def graph(self, scope: Scope) -> None:
        """Lower the Loops and Scans of a graph and of the bodies in it."""
        for node in list(scope.graph):
            if node.graph is None:  # what was emitted for a Loop before it has its place
                continue
            repeats = node.domain in DEFAULT_DOMAIN and node.op_type in REPEATING
            if repeats and _forms(self.choose, node).forms:
                ref = node_ref(node, scope.text)
                try:
                    with boundary(ref):
                        self._lower(node, scope, _chosen(self.choose, node, scope))
                except UnsupportedError as error:
                    if self.refused is None:
                        raise
                    self._refuse(node, scope, error)
                except InvalidNodeError as error:
                    if self.refused is None or self.some_rows:
                        raise
                    self._refuse(node, scope, UnsupportedError(error.reason, hint=error.hint, node=ref))
            elif repeats and self.choose(node).without_steps and self._has_no_step(node):
                with boundary(node_ref(node, scope.text)), suppress(UnsupportedError):
                    self._lower(node, scope, _EMPTY)
                for inner in inner_scopes(node, scope) if node.graph is not None else ():
                    self.graph(inner)
            elif node.domain in DEFAULT_DOMAIN and "equence" in node.op_type:
                self._follow_sequence(node, scope)
            else:
                for inner in inner_scopes(node, scope):
                    self.graph(inner)

    def _refuse(self, node: ir.Node, scope: Scope, error: UnsupportedError) -> None:
        """Note the error of a node that stays, and that those in its body stay with it."""
        assert self.refused is not None
        ref = node_ref(node, scope.text)
        self.refused[ref] = error
        if self.some_rows:
            return
        for inner in inner_scopes(node, scope):
            if _forms(self.choose, node).repeat is not None:
                self.graph(inner)
                continue
            for each in inner.graph:
                if each.domain in DEFAULT_DOMAIN and each.op_type in REPEATING and each not in self.stays:
                    within = f"it is in the body of '{ref.name}', which is refused"
                    self._refuse(each, inner, UnsupportedError(within, node=node_ref(each, inner.text)))

    def _has_no_step(self, node: ir.Node) -> bool:
        """Whether a Loop is known to have no step."""
        if node.op_type != "Loop":
            return False
        numbers = [number_of(self.facts.known_tensor(value)) for value in node.inputs[:2] if value is not None]
        return any(number is not None and number <= 0 for number in numbers)

    def _lower(self, node: ir.Node, scope: Scope, wanted: LoopForms) -> None:
        """Give a node the first of the wanted forms that it can have."""
        ref, reason = node_ref(node, scope.text), wanted.reason
        if wanted.forms[0] != "unroll" and wanted.repeat is None and self._has_no_step(node):
            wanted, reason = replace(wanted, forms=(*_EMPTY.forms, *wanted.forms)), _EMPTY.reason
        for form in wanted.forms:
            try:
                loop = read_body(node, scope.text, self.opset)
                if isinstance(loop, LoopBody):
                    emitter = partial(self._emitter, node, scope.graph)
                    node = stack_rows_of_states(self.facts, loop, emitter, written_only=form == "unroll")
                writer = self._replace(node, scope, form, wanted)
            except UnsupportedError as error:
                if form != wanted.forms[-1]:
                    reason = error.reason
                elif not wanted.optional:
                    raise
                continue
            steps = writer.steps if form == "unroll" else None
            reason = "; ".join(filter(None, (reason, _SOME_STEPS if writer.assumes_steps else "")))
            self.reports.append(LoopReport(ref.name, ref.operator, ref.scope, form, reason, steps))
            return

    def _replace(self, node: ir.Node, scope: Scope, form: str, wanted: LoopForms) -> BodyWriter:
        """Give a node a form; return what wrote it."""
        ref, repeat = node_ref(node, scope.text), wanted.repeat or _FORMS[form]
        shared = dict(self._shared.get(scope.graph, {}))
        writer = BodyWriter(
            self._emitter(node, scope.graph, wanted if form != "unroll" else replace(wanted, dialect=PLAIN)),
            self.facts,
            repeat,
            self.limits,
            nested=_as_it_is if wanted.nested_stay else repeat,
            strict_scans=wanted.strict_scans,
            needs_steps=not wanted.runs_no_steps,
            stays=self.stays,
            some_rows=self.some_rows,
        )
        try:
            items = writer.write(node, scope.text)
            if wanted.check is not None:
                wanted.check(operators_in(writer.op.nodes), ref)
        except (InvalidNodeError, UnsupportedError):
            writer.op.abandon()
            self._shared[scope.graph] = shared  # constants that were emitted since are in no graph
            raise
        repeating = [new for new in writer.op.nodes if new.op_type in REPEATING]
        if len(repeating) == 1 and node.name:
            repeating[0].name = node.name
        branches = [branch for new in writer.op.nodes if new.op_type == "If" for branch in bodies_of(new)]
        for new in (*writer.op.nodes, *(each for branch in branches for each in branch)):
            new.meta[ORIGIN] = ref
        self._put(node, scope.graph, writer, items)
        return writer

    def _emitter(self, node: ir.Node, graph: ir.Graph, forms: LoopForms = _EMPTY) -> Ops:
        prefix = (node.name or node.outputs[0].name or node.op_type).rpartition("/")[2] or node.op_type
        return Ops(
            self.opset,
            self.names,
            prefix,
            ir.DataType.FLOAT,
            forms.dialect,
            forms.instead,
            finish=forms.finish,
            constant_nodes=self.model.ir_version < 4,
            shared=self._shared.setdefault(graph, {}),
        )

    def _put(self, node: ir.Node, graph: ir.Graph, writer: BodyWriter, items: Sequence[Item]) -> None:
        """Replace a node with what was emitted, whose outputs have these items."""
        op = writer.op
        taken: list[tuple[ir.Value, Item, ir.Value]] = []
        pairs = [(old, item) for old, item in zip(node.outputs, items, strict=False) if old.name]
        for old, item in pairs:
            if is_used(old):
                taken.append((old, item, writer.own_value(item, [new for _, _, new in taken])))
        op.finish([new for _, _, new in taken])
        for old, item, new in taken:
            if isinstance(item, Elements):
                self.facts.record_elements(new, item.items)
            take_over(old, new)
        for value in op.initializers:
            graph.register_initializer(value)
        graph.insert_before(node, op.nodes)
        used = values_used(node)
        detach(node)
        graph.remove(node, safe=True)
        drop_unused(used)

    def _follow_sequence(self, node: ir.Node, scope: Scope) -> None:
        """Record the elements of a sequence, or replace a node that takes elements from one."""
        if node.op_type == "SequenceEmpty":
            self.facts.record_elements(node.outputs[0], ())
            return
        writer = BodyWriter(self._emitter(node, scope.graph), self.facts, unroll, self.limits)
        given = [writer.item(value) for value in node.inputs]
        if node.op_type == "SequenceConstruct":
            self.facts.record_elements(node.outputs[0], given)
            return
        items = writer.results_of_sequence(node, given)
        if items is None:
            return
        self.followed, origin = True, origin_of(node, scope.text)
        if (
            node.op_type == "SequenceAt"
            and isinstance(items[0], ir.Value)
            and not node.outputs[0].is_graph_output()
        ):
            node.outputs[0].replace_all_uses_with(items[0])
        self._put(node, scope.graph, writer, items)
        for new in writer.op.nodes:
            new.meta[ORIGIN] = origin
