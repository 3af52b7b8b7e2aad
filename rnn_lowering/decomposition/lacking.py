"""The nodes that a target lacks, and the operators that it computes right, by ONNX's own tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.operators import is_of_default_domain
from rnn_lowering.model.model_sizes import inferred_values
from rnn_lowering.model.scopes import Scope, nodes_in_scopes
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.onnx_tests import Misread, OperatorTests, RuntimeTests, tests_in
from rnn_lowering.targets.target import Misreads

_TYPES_OF_MODES = (ir.AttributeType.INT, ir.AttributeType.STRING)

_BASIC = frozenset(("Cast", "Constant", "Identity"))
"""Operators that every runtime has; ONNX's tests of Cast are of types that most lack."""

_CAST_TO = frozenset(map(int, (ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL)))
"""The types that every runtime converts to; OpenCV's Cast to uint8 is wrong."""

_WRONG_IN = {
    target: frozenset(operators.split())
    for target, operators in {
        "emx-onnx-cgen": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "espdl": "Gelu GroupNormalization",  # it adds a Sum in place to a scalar, and has no Constant of value_ints
        "ezkl": "DFT GroupNormalization NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "jaxonnxruntime": "Attention CenterCropPad DFT Gelu GroupNormalization NegativeLogLikelihoodLoss"
        " RotaryEmbedding STFT SoftmaxCrossEntropyLoss SpaceToDepth",
        "litert": "IsInf",  # of doubles, which it does not compare
        "mnn": "RotaryEmbedding",
        "ncnn": "RotaryEmbedding",
        "onnx2torch": "Attention DFT RotaryEmbedding STFT SpaceToDepth",
        "onnxruntime-webgpu": "SpaceToDepth",
        "qnn": "DFT ReverseSequence",
        "rknn": "Attention Gelu GroupNormalization RMSNormalization RotaryEmbedding Swish",
        "tinygrad": "ReverseSequence",
        "tvm": "CenterCropPad",
        "webnn": "SpaceToDepth",
    }.items()
}
"""By target the operators whose bodies failed there, though each operator of them has right tests: some have an
older version of it only."""


def _in_a_net(node: ir.Node) -> bool:
    """Whether a size is for another operator: then it is known before the model runs."""
    return not any(value.is_graph_output() for value in node.outputs)


def _one_row_or_of_a_table(node: ir.Node) -> bool:
    data, indices = node.inputs[:2]
    single = indices is not None and indices.shape is not None and len(indices.shape) == 0
    return single or (data is not None and data.is_initializer())


_OF_ANY_TYPE = frozenset(("Compress", "ReverseSequence", "Unique"))
"""Operators that choose or move elements: what tests with float32 say of them is so for each type."""

_RIGHT_IN_NETS: Mapping[str, Mapping[str, Callable[[ir.Node], bool]]] = {
    "espdl": {"Identity": lambda node: True},  # a Max takes the place of one that is an output
    # ONNX's tests write no strides; most of those of ScatterND reduce.
    "mnn": {"AveragePool": lambda node: True, "ScatterND": lambda node: True},
    "ncnn": {"Gather": _one_row_or_of_a_table, "Shape": _in_a_net},
    "rknn": {"Shape": _in_a_net},
}
"""By target and operator the nodes that it runs, though it is right in none of ONNX's tests of the operator."""


@dataclass(frozen=True)
class LackingNode:
    """A node that a target does not compute right, by ONNX's tests of its operator, or that it misreads.

    Attributes:
        node: The node.
        scope: The graph that it is in.
        tests: What became of the tests, or how it is misread.
    """

    node: ir.Node
    scope: Scope
    tests: OperatorTests | Misread

    @property
    def ref(self) -> NodeRef:
        return node_ref(self.node, self.scope.text)


@dataclass(frozen=True)
class Lacking:
    """What a target lacks in a model.

    Attributes:
        model: The model.
        target: The name of the target.
        misreads: What `ModelTraits.misreads` is.
    """

    model: ir.Model
    target: str
    misreads: Misreads | None = None

    @cached_property
    def measured(self) -> RuntimeTests | None:
        """What became of ONNX's tests in the target; None if it was not measured."""
        return tests_in(self.target)

    @cached_property
    def nodes(self) -> list[LackingNode]:
        """The nodes of ONNX's operators that the target was measured not to run. Recurrent nodes, Loops and Scans
        are not among them, nor are nodes of other types than the tests."""
        nodes = list(self._lacking()) if self.measured is not None else []
        return [
            node
            for node in nodes
            if isinstance(node.tests, Misread)
            or not node.tests.floats
            or node.node.op_type in _OF_ANY_TYPE
            or self._has_floats(node.node)
        ]

    @cached_property
    def values(self) -> Mapping[ir.Value, ir.Value]:
        """By value of the model one that has the type and shape which follow from the inputs."""
        return inferred_values(self.model)

    def runs(self, node: ir.Node) -> bool:
        """Return whether the target computes a node right, as far as is known."""
        if node.op_type in _BASIC:
            to = node.attributes.get_int("to", int(ir.DataType.FLOAT))
            return is_of_default_domain(node) and to in _CAST_TO
        if self.misreads is not None and self.misreads(node, self._known):
            return False
        if is_of_default_domain(node) and self._is_right_in_nets(node):
            return True
        return self.measured is not None and is_of_default_domain(node) and self.measured.runs(node.op_type)

    def expands_wrongly(self, node: ir.Node) -> bool:
        """Return whether the body of a node's operator failed in the target."""
        return node.op_type in _WRONG_IN.get(self.target, ())

    def _lacking(self) -> Iterator[LackingNode]:
        for scope, node in nodes_in_scopes(self.model):
            of_onnx = is_of_default_domain(node) and node.op_identifier() not in self.model.functions
            if of_onnx and (tests := self._failed(node, scope.opset)):
                yield LackingNode(node, scope, tests)

    def _failed(self, node: ir.Node, opset: int) -> OperatorTests | Misread | None:
        """Return why the target does not compute a node right; None if nothing says so."""
        assert self.measured is not None
        if self.misreads is not None and (how := self.misreads(node, self._known)):
            return Misread(how)
        tests = self.measured.failed(node.op_type, opset)
        if tests is not None and not self._is_right_in_nets(node):
            return tests
        modes = {name: a.value for name, a in node.attributes.items() if a.type in _TYPES_OF_MODES}
        return self.measured.failed_with(node.op_type, opset, modes)

    def _is_right_in_nets(self, node: ir.Node) -> bool:
        is_right = _RIGHT_IN_NETS.get(self.target, {}).get(node.op_type)
        return is_right is not None and is_right(node)

    def _known(self, value: ir.Value) -> ir.Value:
        """Return a value with the type and shape that follow from the inputs."""
        return self.values.get(value, value)

    def _has_floats(self, node: ir.Node) -> bool:
        """Whether a node computes with floats, as far as is known: tests with float32 say nothing of integers."""
        known = [self._known(value).dtype for value in (*node.inputs, *node.outputs) if value is not None]
        return any(dtype is None or dtype.is_floating_point() for dtype in known)
