"""The stages of the operators that a target lacks: others take their place, or they stay and are named.

Before them, stages that change a model before its nodes are read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lowering.decomposition.adaptations import adapted_first, replaced_nodes
from rnn_lowering.decomposition.formulas import body_of, call_of
from rnn_lowering.decomposition.lacking import Lacking, LackingNode
from rnn_lowering.decomposition.newer_opset import at_newer_opset, opset_wanted
from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operand
from rnn_lowering.decomposition.rewrites.quantized import products_as_floats
from rnn_lowering.emit.draft import Names
from rnn_lowering.errors import NodeRef, UnsupportedError, counted
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_used
from rnn_lowering.flags import set_dims
from rnn_lowering.model.copying import inline_holders
from rnn_lowering.model.folding import with_constants
from rnn_lowering.model.model_sizes import Inferred, inferred_values, open_names, take_over
from rnn_lowering.model.replace import drop_unused, prefix_of
from rnn_lowering.model.scopes import all_names
from rnn_lowering.options import Lowering
from rnn_lowering.passes.report import ReplacedNode, UnsupportedNode
from rnn_lowering.passes.stages import Edit, Work
from rnn_lowering.targets.onnx_tests import Misread


def make_floats(work: Work) -> None:
    """Make floats of products of integers."""
    _say(work, filter(None, [products_as_floats(work.model)]))


def adapt_first(work: Work) -> None:
    """Change the model for its runtime before its nodes are read, and its opset if more nodes are right then."""
    texts = [*_made_newer(work), *adapted_first(work.model, work.lowering.runtime)]
    _say(work, texts)
    work.inferred = work.inferred and not texts


def _say(work: Work, texts: Iterable[str]) -> None:
    for text in texts:
        work.report.adapted.append(text)
        work.report.notes.append(text)


def _made_newer(work: Work) -> Iterator[str]:
    """Write the model at a newer opset if its runtime computes more nodes right then; yield a text for the user."""
    before, runtime = default_opset(work.model.opset_imports), work.lowering.runtime
    wrong = _misread(work.model, work.lowering) if before < OLDEST_OPSET else 0
    if wrong and (newer := at_newer_opset(work.model)) is not None and _misread(newer, work.lowering) < wrong:
        work.put(newer)
    wanted = opset_wanted(work.model, runtime)
    if wanted and (newer := at_newer_opset(work.model, wanted)) is not None:
        work.put(newer)
    if (newest := default_opset(work.model.opset_imports)) > before:
        yield f"{runtime.name} computes more nodes right at opset {newest}: wrote those of opset {before} so"


def _misread(model: ir.Model, lowering: Lowering) -> int:
    """Return how many nodes stay that the target computes wrongly or lacks."""
    opset = default_opset(model.opset_imports)
    return len(OperatorsLeft.of(model, lowering, opset).unsupported)


def decompose(work: Work) -> Edit:
    """Find the nodes that the target does not compute right; return what puts other operators in their place.

    Raises:
        UnsupportedError: A node stays that the target computes wrongly, or with `require_supported` any that stays.
    """
    others = OperatorsLeft.of(work.model, work.lowering, work.chosen.opset)
    work.report.replaced, work.report.unsupported = others.replaced, others.unsupported
    for node in others.refused(work.lowering):
        raise unsupported_error(node, work)

    def edit() -> None:
        _put_in_place(work.model, others.decompositions)
        work.report.notes += _replaced_texts(others.replaced)

    return edit


@dataclass(frozen=True)
class OperatorsLeft:
    """The nodes of a model that the target was measured not to run, none if it was not measured.

    Attributes:
        decompositions: Those that other operators take the place of.
        replaced: The same for the report.
        unsupported: Those that stay.
        of_constants: Those of them that read constants only: a runtime computes these while it loads.
    """

    decompositions: Sequence[_Decomposition]
    replaced: list[ReplacedNode]
    unsupported: list[UnsupportedNode]
    of_constants: Collection[NodeRef] = ()

    @classmethod
    def of(cls, model: ir.Model, lowering: Lowering, opset: int) -> OperatorsLeft:
        """Find them in a model whose other nodes get operators of an opset."""
        target = lowering.runtime.name
        lacking = Lacking(model, target, lowering.runtime.model.misreads)
        written = replaced_nodes(model, lowering.runtime)
        left = [each for each in lacking.nodes if each.node not in written]
        if not left or lacking.measured is None:
            return cls([], [], [])
        named = {n.node: UnsupportedNode(n.ref, target, lacking.measured.version, n.tests) for n in left}
        made = () if lowering.keep_rest else _decompositions(lacking, opset)
        decompositions = {each.lacking.node: each for each in made if each.lacking.node in named}
        replaced = [
            ReplacedNode(named[node].node, tuple(each.operators), named[node].reason)
            for node, each in decompositions.items()
        ]
        unsupported = {node: each for node, each in named.items() if node not in decompositions}
        constant = {each.node for node, each in unsupported.items() if _reads_constants(node, opset)}
        return cls([*decompositions.values()], replaced, [*unsupported.values()], constant)

    def refused(self, lowering: Lowering) -> list[UnsupportedNode]:
        """The nodes with which no model is written: those that stay and are computed wrongly; on demand,
        or where the target loads no such model, all."""
        if lowering.require_supported:
            return self.unsupported
        every = lowering.runtime.model.refuses_lacking
        wrong = [
            each
            for each in self.unsupported
            if (every and each.node not in self.of_constants) or isinstance(each.tests, Misread)
        ]
        return [] if lowering.keep_rest else wrong


def _reads_constants(node: ir.Node, opset: int) -> bool:
    return all(value is None or constant_of(value, opset) is not None for value in node.inputs)


def unsupported_error(node: UnsupportedNode, work: Work) -> UnsupportedError:
    """Return the error for a node that the target cannot run, or misreads."""
    lowering = work.lowering
    refused = lowering.runtime.model.refuses_lacking and not lowering.require_supported
    return UnsupportedError(
        node.reason,
        hint="end the model before it, use another runtime, or keep the node (--keep-rest)"
        if refused
        else "use another runtime, or drop --require-supported"
        if not isinstance(node.tests, Misread)
        else "export the model without it, or quantized otherwise; or use another runtime, or --keep-rest"
        if "Quant" in f"{node.node.operator} {node.reason}"
        else f"{_to_try(work)}without it, use another runtime, or keep the node, wrong as it is (--keep-rest)",
        node=node.node,
    )


def _to_try(work: Work) -> str:
    """Return the begin of a hint: sizes and an opset at which a node may be written otherwise."""
    names = [] if work.lowering.stream is not None else open_names(work.model)
    sizes = f"try fixed sizes ({set_dims(names)}), " if names else ""
    is_old = default_opset(work.model.opset_imports) < OLDEST_OPSET and at_newer_opset(work.model) is None
    opset = f"at opset {OLDEST_OPSET} or later, or " if is_old else ""
    return f"{sizes}export the model {opset}"


def _replaced_texts(nodes: Sequence[ReplacedNode]) -> Iterator[str]:
    """Yield a note for each operator that others took the place of."""
    for operator, group in groupby(sorted(nodes, key=lambda n: n.node.operator), key=lambda n: n.node.operator):
        members = list(group)
        others = ", ".join(sorted({name for each in members for name in each.operators}))
        which = str(members[0].node) if len(members) == 1 else f"{counted(len(members), f'{operator} node')}"
        yield f"replaced {which} by {others}: {members[0].reason} (--keep-rest keeps it)"


# What takes the place of a node that a target lacks: operators that it computes right, as a small model.


_LOG = logging.getLogger("rnn_lowering")

_MOST_ROUNDS = 6
"""Functions in functions: Attention has Softmax, which has ReduceMax."""

MOST_NODES = 10_000
_MOST_COPIED = 1 << 16
"""Maximum elements of a constant whose numbers are read."""

_OLDEST_IR_VERSION = 4
"""Before it, an initializer is an input."""


@dataclass(frozen=True)
class _Decomposition:
    """What takes the place of a node.

    Attributes:
        lacking: The node.
        model: Its main graph has the inputs and the used outputs of the node; only constants are left out.
    """

    lacking: LackingNode
    model: ir.Model

    @property
    def operators(self) -> list[str]:
        """The operators that are put in its place."""
        return sorted({node.op_type for node in self.model.graph})


def _decompositions(lacking: Lacking, opset: int) -> Iterator[_Decomposition]:
    """Yield what can take the place of nodes that the target lacks: only operators that are right there.

    Args:
        lacking: The nodes.
        opset: The version of the operators that are emitted.
    """
    if lacking.model.ir_version < _OLDEST_IR_VERSION:
        return
    for each in lacking.nodes:
        wrong = lacking.expands_wrongly(each.node)
        model = None if wrong or each.scope.function is not None else _decomposed(each, lacking, opset)
        if model is not None:
            yield _Decomposition(each, model)


def _decomposed(each: LackingNode, lacking: Lacking, opset: int) -> ir.Model | None:
    """Return the node as a model of operators that the target computes right; None if it cannot be written so."""
    model = _alone(each.node, lacking, opset)
    for n in range(_MOST_ROUNDS if model is not None else 0):
        assert model is not None
        nodes = [node for node in model.graph if n == 0 or not lacking.runs(node)]
        if not nodes:
            return model if _is_valid(model) else None
        try:
            expanded = _expand(model, nodes, opset)
        except Exception:  # the functions of onnx, its inference and its protobuf have no common error
            _LOG.debug("%s is not replaced: no body", each.node.op_type, exc_info=True)
            return None
        if not expanded:
            return None
        model = with_constants(model, sizes=True) or model
    return None


def _alone(original: ir.Node, lacking: Lacking, opset: int) -> ir.Model | None:
    """Return a model of a node with its small constants; None if the type of an input is unknown."""
    standing: dict[ir.Value, ir.Value] = {}
    for n, value in enumerate(original.inputs):
        if value is not None and value not in standing:
            standing[value] = _standing_for(value, n, lacking, opset)
    values, given = [None if v is None else standing[v] for v in original.inputs], [*standing.values()]
    if any(value.dtype is None for value in given):
        return None
    attributes, count = original.attributes.values(), len(original.outputs)
    node = ir.Node("", original.op_type, values, attributes, num_outputs=count, name=original.name)
    used = []
    for n, (output, old) in enumerate(zip(node.outputs, original.outputs, strict=True)):
        # Without a shape: that of STFT is inferred wrongly.
        output.name, output.type = f"output_{n}", lacking.values.get(old, old).type
        used += [output] if is_used(old) else []
    constants = [value for value in given if value.const_value is not None]
    inputs = [value for value in given if value.const_value is None]
    graph = ir.Graph(inputs, used, nodes=[node], initializers=constants, opset_imports={"": opset}, name="body")
    return ir.Model(graph, ir_version=lacking.model.ir_version)


def _standing_for(value: ir.Value, n: int, lacking: Lacking, opset: int) -> ir.Value:
    """Return what stands for an input of a node in a model of its own."""
    known, tensor = lacking.values.get(value, value), constant_of(value, opset)
    if tensor is None or tensor.size > _MOST_COPIED:
        return ir.Value(name=f"input_{n}", type=known.type, shape=known.shape)
    copied = ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=f"constant_{n}")
    kind, shape = ir.TensorType(copied.dtype), ir.Shape(list(tensor.numpy().shape))
    return ir.Value(name=copied.name, type=kind, shape=shape, const_value=copied)


def _expand(model: ir.Model, nodes: Sequence[ir.Node], opset: int) -> bool:
    """Put the bodies of nodes in their place; return False if one has none."""
    known, added = dict(inferred_values(model)), []
    for n, node in enumerate(nodes):
        operands = [Operand() if v is None else _operand(v, known, opset) for v in node.inputs]
        body = body_of(node, opset, operands)
        if body is None:
            return False
        body.name = f"{node.op_type}_{n}"
        added.append(body.identifier())
        model.functions[body.identifier()] = body
        call = call_of(node, opset, body.name)
        model.graph.insert_before(node, call)
        for old, new in zip(node.outputs, call.outputs, strict=True):
            new.type, new.shape, known[new] = old.type, old.shape, known.get(old, old)
            take_over(old, new)
        model.graph.remove(node, safe=True)
    inline_holders(model, added, MOST_NODES)
    RemoveUnusedNodesPass()(model)
    return True


def _operand(value: ir.Value, known: Inferred, opset: int) -> Operand:
    kind, tensor = known.get(value, value), constant_of(value, opset)
    shape = None if kind.shape is None else tuple(dim if isinstance(dim, int) else None for dim in kind.shape)
    sizes = None if kind.shape is None else list(kind.shape)
    dims = None if sizes is None else tuple(dim if isinstance(dim, int) else dim.value for dim in sizes)
    small = tensor is not None and tensor.size <= _MOST_COPIED
    return Operand(kind.dtype, shape, tensor.numpy() if tensor is not None and small else None, dims)


def _is_valid(model: ir.Model) -> bool:
    """Whether ONNX accepts the model: the body of a function may be of another opset."""
    known = inferred_values(model)
    for output in model.graph.outputs:
        output.shape = known.get(output, output).shape
    has_ranks = all(value.shape is not None for value in (*model.graph.inputs, *model.graph.outputs))
    try:
        if has_ranks:
            onnx.checker.check_model(ir.to_proto(model), full_check=True)
        else:  # with which the checker takes no model
            onnx.shape_inference.infer_shapes(ir.to_proto(model), check_type=True, strict_mode=True)
    except Exception:  # the checker and inference have no common error
        _LOG.debug("what would replace a node is not valid", exc_info=True)
        return False
    return True


def _put_in_place(model: ir.Model, found: Sequence[_Decomposition]) -> None:
    """Replace nodes with their decompositions; the model is changed."""
    names = Names(all_names(model) if found else ())
    for each in found:
        _splice(each, names)


def _splice(each: _Decomposition, names: Names) -> None:
    """Replace a node with its decomposition."""
    node, body = each.lacking.node, each.model.graph
    graph, inputs = node.graph, node.inputs
    assert graph is not None
    outputs = {value.name: value if value.producer() else _copy_of(value, body) for value in body.outputs}
    nodes, constants = _taken_out(body)
    for value in body.inputs:
        actual = inputs[int((value.name or "").removeprefix("input_"))]
        assert actual is not None
        value.replace_all_uses_with(actual)
    _rename(nodes, constants, prefix_of(node), names)
    for value in constants:
        if value.uses():
            graph.register_initializer(value)
    graph.insert_before(node, nodes)
    for n, old in enumerate(node.outputs):
        if (new := outputs.get(f"output_{n}")) is not None:
            take_over(old, new)
    graph.remove(node, safe=True)
    drop_unused(inputs, only_foldable=True)


def _taken_out(graph: ir.Graph) -> tuple[list[ir.Node], list[ir.Value]]:
    """Take the nodes and initializers out of a graph."""
    nodes = list(graph)
    graph.outputs.clear()
    graph.remove(nodes)
    return nodes, [graph.initializers.pop(name) for name in list(graph.initializers)]


def _rename(nodes: Sequence[ir.Node], constants: Sequence[ir.Value], prefix: str, names: Names) -> None:
    """Give nodes and values new names that begin with a prefix."""
    for node in nodes:
        node.name = names.unique(f"{prefix}/{node.op_type}")
    for value in (*constants, *(output for node in nodes for output in node.outputs)):
        value.name = names.unique(f"{prefix}/{value.name or 'value'}")


def _copy_of(constant: ir.Value, body: ir.Graph) -> ir.Value:
    """Return the output of an Identity: an initializer cannot take over the output of a node."""
    identity = ir.node("Identity", [constant])
    body.append(identity)
    identity.outputs[0].type, identity.outputs[0].shape = constant.type, constant.shape
    return identity.outputs[0]
