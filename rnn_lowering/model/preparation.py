"""Find the recurrent nodes that a user wants to lower, in a model where they can be read and replaced.

Inline functions, in time linear in the number of resulting nodes.

1. The functions that hold a wanted node and those that call them are found, callees first (`_with_callers`).
2. The resulting nodes are counted before any is made: nested calls can double them at each level.
3. Each call, first in these functions and then in the main graph, is replaced by a copy of the function's body, in
   which all calls have been replaced already.

Where a function returns its input, onnx_ir's InlinePass renames an input of the graph, and onnx.inliner leaves the
output of the call undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NAME, OptionError, UnsupportedError, callers, printable
from rnn_lowering.model.copying import clone, clone_graph
from rnn_lowering.model.model_sizes import known_inputs
from rnn_lowering.model.opsets import FIRST_OPSET, NEW_OPSET, modernize
from rnn_lowering.model.scopes import SORTED, RecurrentNode, names_in, recurrent_nodes, sort_nodes
from rnn_lowering.options import KEEP, Lowering, Selection
from rnn_lowering.spec.connections import InputFacts
from rnn_lowering.spec.kinds import read_spec
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN, NodeSpec, default_opset
from rnn_lowering.targets.choice import Choice

Identifier = ir.OperatorIdentifier

_HINT = "inline them first (onnx.inliner.inline_local_functions)"


def inline_functions(model: ir.Model, wanted: Callable[[RecurrentNode], bool], most: int) -> None:
    """Inline, in place, the functions that hold a wanted node, and those that call them. Referenced attributes,
    types and shapes of a function's values are known only where it is called.

    Args:
        model: The model; after an error it is in an undefined state.
        wanted: Which recurrent nodes are wanted.
        most: The most nodes that the result may have.

    Raises:
        UnsupportedError: A function calls itself, the result has too many nodes, or a call does not match its
            function.
    """
    holders = {e.function.identifier() for e in recurrent_nodes(model) if e.function is not None and wanted(e)}
    inline_holding(model, holders, most)


def inline_all(model: ir.Model, most: int) -> None:
    """Inline every function, in place; otherwise as `inline_functions`."""
    inline_holding(model, model.functions.keys(), most)


def inline_holding(model: ir.Model, holders: Collection[Identifier], most: int) -> None:
    """Inline these functions and those that call them, in place; otherwise as `inline_functions`."""
    inlined = _with_callers(model, holders) if holders else {}
    if not inlined:
        return
    _check_size(model, inlined, most)
    for function in inlined.values():
        _inline_calls(function.graph, inlined, function.opset_imports)
    _inline_calls(model.graph, inlined, model.opset_imports)
    for identifier in inlined:
        del model.functions[identifier]


def _with_callers(model: ir.Model, holders: Collection[Identifier]) -> dict[Identifier, ir.Function]:
    """Return the given functions and all that call them, at any depth, callees first."""
    calls = {i: {n.op_identifier() for n in f.graph.all_nodes()} for i, f in model.functions.items()}
    calls = {identifier: called & calls.keys() for identifier, called in calls.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        circle = " -> ".join(_name(identifier) for identifier in error.args[1])
        raise UnsupportedError(f"functions call themselves: {printable(circle, 3 * NAME)}") from error
    found: dict[Identifier, ir.Function] = {}
    for identifier in order:
        if identifier in holders or not found.keys().isdisjoint(calls[identifier]):
            found[identifier] = model.functions[identifier]
    return found


def _check_size(model: ir.Model, inlined: Mapping[Identifier, ir.Function], most: int) -> None:
    sizes: dict[Identifier, int] = {}
    for identifier, function in inlined.items():
        sizes[identifier] = _size(function.graph, sizes)
    total = _size(model.graph, sizes)
    if total > most:
        worst = max(inlined, key=lambda identifier: sizes[identifier])
        number = f"{total:,}" if total < 10**18 else "more than 10^18"
        raise UnsupportedError(
            f"inlining functions with recurrent nodes would make {number} nodes, more than {most:,}; "
            f"function {_name(worst)} is the largest",
            hint=f"raise the limit (--max-nodes {total if total < 10**9 else 'N'}) if this is intended",
        )


def _size(graph: ir.Graph, sizes: Mapping[Identifier, int]) -> int:
    return sum(sizes.get(node.op_identifier(), 1) for node in graph.all_nodes())


def _inline_calls(graph: ir.Graph, inlined: Mapping[Identifier, ir.Function], imports: dict[str, int]) -> None:
    """Inline every call of these functions in a graph and its subgraphs; `imports` are the graph's opsets."""
    names = None
    for scope in (graph, *graph.subgraphs()):
        for node in list(scope):
            function = inlined.get(node.op_identifier())
            if function is not None:
                names = names or Names(names_in((graph, *graph.subgraphs())))
                _join_imports(imports, function)
                _Call(scope, node, function, names).replace()


def _join_imports(imports: dict[str, int], function: ir.Function) -> None:
    """Add what a function imports.

    Raises:
        UnsupportedError: It imports another version of a domain.
    """
    for domain, version in function.opset_imports.items():
        has = default_opset(imports) if domain in DEFAULT_DOMAIN else imports.setdefault(domain, version)
        if has != version:
            raise UnsupportedError(
                f"function {_name(function.identifier())} imports version {version} of domain "
                f"'{domain or 'ai.onnx'}', but its caller imports version {has}",
                hint="inline it first (onnx.inliner.inline_local_functions with convert_version=True)",
            )


class _Call:
    """A call, the graph that it is in, its function, and the names that are used around it."""

    def __init__(self, graph: ir.Graph, node: ir.Node, function: ir.Function, names: Names) -> None:
        self.graph = graph
        self.node = node
        self.function = function
        self.names = names

    def replace(self) -> None:
        """Replace the call by a copy of the function's body."""
        attributes = self._arguments()
        body = clone_graph(self.function.graph)
        nodes, inputs, outputs = list(body), list(body.inputs), list(body.outputs)
        for node in body.all_nodes():
            _resolve(node, attributes)
            node.metadata_props.update({**self.node.metadata_props, **node.metadata_props})
        self._rename(body)
        body.inputs.clear()
        body.outputs.clear()
        body.remove(nodes)
        given = dict(zip(inputs, [*self.node.inputs, *[None] * len(inputs)], strict=False))
        self._connect(given)
        results, more = self._results(outputs, given)
        self.graph.insert_before(self.node, [*nodes, *more])
        for old, new in zip(self.node.outputs, results, strict=False):
            _take_over(old, new)
        self.graph.remove(self.node, safe=True)

    def _arguments(self) -> dict[str, ir.Attr]:
        """Return the attributes of the call, and the defaults of the function for those that it does not give."""
        formal, given = self.function, self.node
        if len(given.inputs) > len(formal.inputs) or len(given.outputs) > len(formal.outputs):
            raise self._error("has more inputs or outputs than the function")
        attributes = {a.name: a for a in formal.attributes.values() if a.value is not None}
        attributes |= given.attributes
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes.values()):
            raise self._error("has a graph as an attribute")
        return attributes

    def _rename(self, body: ir.Graph) -> None:
        """Rename nodes and values so that they do not clash with names around the call."""
        inputs = set(body.inputs)
        for scope in (body, *body.subgraphs()):
            for value in (*scope.inputs, *scope.initializers.values()):
                if value not in inputs:
                    value.name = self.names.unique(value.name or "value")
            for node in scope:
                node.name = self.names.unique(node.name or "node")
                for value in node.outputs:
                    value.name = self.names.unique(value.name) if value.name else value.name

    def _connect(self, given: Mapping[ir.Value, ir.Value | None]) -> None:
        """Replace the function's inputs by those of the call."""
        for formal, actual in given.items():
            if actual is not None:
                formal.replace_all_uses_with(actual, replace_graph_outputs=True)
                continue
            for user, slot in list(formal.uses()):
                user.replace_input_with(slot, None)

    def _results(
        self, outputs: Sequence[ir.Value], given: Mapping[ir.Value, ir.Value | None]
    ) -> tuple[list[ir.Value], list[ir.Node]]:
        """Return a distinct value for each output, and an Identity node for each output that the body does not
        compute."""
        results: list[ir.Value] = []
        more: list[ir.Node] = []
        for output in outputs[: len(self.node.outputs)]:
            source = given.get(output, output)
            if source is None:
                raise self._error("uses an output that is an omitted input")
            if output in given or source in results:
                more.append(ir.Node("", "Identity", [source], name=self.names.unique("Identity")))
                source = more[-1].outputs[0]
            results.append(source)
        return results, more

    def _error(self, fact: str) -> UnsupportedError:
        name = printable(self.node.name or "", NAME)
        return UnsupportedError(
            f"the call '{name}' of function {_name(self.function.identifier())} {fact}", hint=_HINT
        )


def _resolve(node: ir.Node, attributes: Mapping[str, ir.Attr]) -> None:
    """Resolve references to the function's attributes; those that the call omits are removed."""
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            actual = attributes.get(attribute.ref_attr_name or "")
            if actual is None:
                del node.attributes[name]
            elif actual.is_ref():
                node.attributes[name] = ir.RefAttr(name, actual.ref_attr_name or "", actual.type)
            else:
                node.attributes[name] = ir.Attr(name, actual.type, actual.value)


def _take_over(old: ir.Value, new: ir.Value) -> None:
    """Replace a call's output with a value that takes its name and its declared type and shape."""
    name = old.name
    new.type = old.type or new.type
    new.shape = new.shape if old.shape is None else old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if name:
        old.name = None
        new.name = name


def _name(identifier: Identifier) -> str:
    domain, name, overload = identifier
    return printable(f"{domain}::{name}" + (f":{overload}" if overload else ""), NAME)


@dataclass(frozen=True)
class PreparedModel:
    """A model whose recurrent nodes can be read and replaced.

    Attributes:
        model: The given model, or a changed copy where functions are inlined or the opset is too old.
        found: All its recurrent nodes.
        wanted: Those that are to be lowered.
        notes: What was done, for the user.
        inferred: Whether its values declare what inference has found.
    """

    model: ir.Model
    found: Sequence[RecurrentNode]
    wanted: Sequence[RecurrentNode]
    notes: tuple[str, ...] = ()
    inferred: bool = False


@dataclass(frozen=True)
class NodePlan:
    """A node that is to be lowered.

    Attributes:
        found: The node.
        spec: What it specifies.
        choice: Its form.
        opset: The opset of what is emitted for it, which the model then imports.
    """

    found: RecurrentNode
    spec: NodeSpec
    choice: Choice
    opset: int


def prepare(model: ir.Model, selected: NodeSelection, max_nodes: int, *, inferred: bool = False) -> PreparedModel:
    """Sort the nodes, in place; inline functions with wanted nodes and convert an old opset, in a copy.

    Args:
        model: The model.
        selected: Which recurrent nodes are wanted.
        max_nodes: The most nodes that the model may have after inlining.
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
    if opset >= FIRST_OPSET and not any(entry.function for entry in wanted):
        return PreparedModel(model, found, wanted, tuple(notes), inferred)
    work = clone(model)
    inline_functions(work, lambda entry: bool(selected([entry])), max_nodes)
    inlined = model.functions.keys() - work.functions.keys()
    notes += [f"inlined function {domain}::{name}" for domain, name, _ in sorted(inlined)]
    if opset < FIRST_OPSET:
        read(work, selected(list(recurrent_nodes(work))))  # at its own version: the newer ones allow more
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


def read_node(model: ir.Model, entry: RecurrentNode, known: InputFacts) -> NodeSpec:
    """Return what a node of a model specifies, as `read` does."""
    spec = read_spec(entry.node, entry.opset, entry.scope, known)
    return replace(spec, warnings=(*spec.warnings, *export_faults(model, entry)))


@dataclass(frozen=True)
class NodeSelection:
    """Selects nodes by `Lowering.only` and `Lowering.except_`; recurrent nodes may be `kept`."""

    only: Selection
    except_: Selection
    kept: bool = False

    @classmethod
    def of(cls, lowering: Lowering) -> NodeSelection:
        return cls(lowering.only, lowering.except_, lowering.to == KEEP)

    def __call__(self, found: Sequence[RecurrentNode]) -> list[RecurrentNode]:
        """Return the recurrent nodes that are to be lowered."""
        return [] if self.kept else [entry for entry in found if self.selects(entry.node)]

    def selects(self, node: ir.Node) -> bool:
        """Whether a recurrent node, a Loop or a Scan is to be lowered."""
        return (self.only == () or _matches(node, self.only)) and not _matches(node, self.except_)

    def check(self, found: Sequence[ir.Node], before: Sequence[ir.Node] | None = None) -> None:
        """Check that every pattern matches a node, if there are any; or with `before`, every one that matched then.

        Raises:
            OptionError: A pattern matches none.
        """
        patterns = [*_patterns(self.only), *_patterns(self.except_)]
        unknown = [p for p in patterns if not _known(p, found) and (before is None or _known(p, before))]
        if unknown and found:
            names = ", ".join(dict.fromkeys(f"{node.op_type} '{node.name or ''}'" for node in found))
            raise OptionError(
                f"no recurrent node matches {', '.join(repr(p) for p in unknown)}", hint=f"there are {names}"
            )


def _patterns(selection: Selection) -> Iterator[str]:
    if isinstance(selection, tuple):
        yield from selection


def _known(pattern: str, found: Sequence[ir.Node]) -> bool:
    return any(_matches(node, (pattern,)) for node in found)


def _matches(node: ir.Node, selection: Selection) -> bool:
    if callable(selection):
        return bool(callers(selection)(node))
    return any(p == node.op_type or fnmatchcase(node.name or "", p) for p in selection)


_FX_NODE = "pkg.torch.onnx.fx_node"
"""Key of the text in which PyTorch's newer exporter says what a node was."""


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
