"""What the table of operators says is true of ONNX's own examples of each, computed by ONNX's evaluator."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

from rnn_lowering.facts.axes import Axes, Mixed, NodeShapes
from rnn_lowering.facts.operators import OPERATORS, Operator, input_slots, moved_inputs
from rnn_lowering.facts.size import size as as_size

Array = np.ndarray[Any, Any]

WITHOUT_ROW = """
    AffineGrid Attention BlackmanWindow CausalConvWithState ConcatFromSequence
    DeformConv Det DynamicQuantizeLinear GRU GridSample HammingWindow HannWindow If ImageDecoder
    LSTM LinearAttention Loop MaxRoiPool MaxUnpool MelWeightMatrix NegativeLogLikelihoodLoss
    NonMaxSuppression Optional OptionalGetElement OptionalHasElement RNN
    RegexFullMatch RoiAlign RotaryEmbedding STFT Scan SequenceAt SequenceConstruct SequenceEmpty SequenceErase
    SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat
    StringNormalizer StringSplit TfIdfVectorizer Unique
"""
"""Operators of which nothing is claimed: a module that knows one reads its node itself."""

NOT_READ = """
    attention image_decoder softmax_cross_entropy_loss affinegrid negativeloglikelihoodloss flexattention
    linear_attention causal_conv_with_state gridsample lstm gru rnn loop scan if sequence_map averagepool lppool
    maxpool
"""
"""Modules of ONNX's examples that have none of an operator with a row, or take seconds."""

MOST_EXAMPLES = 8
"""Maximum examples of an operator."""


@dataclass(frozen=True)
class Example:
    """A node with its inputs and outputs."""

    model: onnx.ModelProto
    inputs: Sequence[Array]
    outputs: Sequence[Array]

    @property
    def node(self) -> onnx.NodeProto:
        node: onnx.NodeProto = self.model.graph.node[0]
        return node

    @property
    def row(self) -> Operator:
        return OPERATORS[self.node.op_type]

    def slots(self) -> list[int]:
        """Return the slot of each array of `inputs`."""
        return [n for n, name in enumerate(self.node.input) if name]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        feed = {value.name: array for value, array in zip(self.model.graph.input, inputs, strict=True)}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if self.node.op_type == "GlobalLpPool":  # which the evaluator lacks
                session = InferenceSession(self.model.SerializeToString(), providers=["CPUExecutionProvider"])
                return [np.asarray(found) for found in session.run(None, feed)]
            return [np.asarray(found) for found in ReferenceEvaluator(self.model).run(None, feed)]


def own(operator: str, inputs: Sequence[Array], **attributes: Any) -> Example:
    names = [f"x{n}" for n in range(len(inputs))]
    node = onnx.helper.make_node(operator, names, ["y"], **attributes)
    given = [onnx.helper.make_tensor_value_info(name, 1, None) for name in names]
    graph = onnx.helper.make_graph([node], "own", given, [onnx.helper.make_tensor_value_info("y", 1, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    example = Example(model, inputs, [])
    return Example(model, inputs, example.run(inputs))


@cache
def examples() -> dict[str, list[Example]]:
    """Return the examples of each operator with a row."""
    found: dict[str, list[Example]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(node_cases.__path__):
            if module.name not in NOT_READ.split():
                importlib.import_module(f"{node_cases.__name__}.{module.name}")
    for case in node_cases._NodeTestCases:
        node = case.model.graph.node[0]
        known = found.setdefault(node.op_type, [])
        trains = node.op_type == "Dropout" and len(node.input) > 2
        if len(known) < MOST_EXAMPLES and "_expanded" not in case.name and not trains:
            inputs, outputs = ([_array(each) for each in arrays] for arrays in case.data_sets[0])
            if all(each is not None for each in (*inputs, *outputs)):
                known.append(Example(case.model, inputs, outputs))
    image = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    for name in ("AveragePool", "LpPool", "MaxPool"):
        found[name] = [own(name, [image], kernel_shape=[2])]
    found["GlobalLpPool"] = [own("GlobalLpPool", [image])]
    return found


def _array(given: Any) -> Any:
    """Return a tensor as an array; None for a sequence and the like."""
    given = onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given
    return np.asarray(given) if isinstance(given, np.ndarray | np.generic) else None


def having(claim: str) -> list[str]:
    return sorted(name for name, row in OPERATORS.items() if getattr(row, claim))


def same(first: Array, second: Array) -> bool:
    """Whether arrays are equal but for rounding."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind == "f":
        tolerance = 1e-2 if first.dtype.itemsize < 4 else 1e-5
        return bool(np.allclose(first, second, tolerance, tolerance, equal_nan=True))
    return first.tolist() == second.tolist() if first.dtype.kind in "OU" else first.tobytes() == second.tobytes()


def checked(checks: Iterator[bool]) -> None:
    found = list(checks)
    assert found
    assert all(found)


def test_every_operator_has_a_row_or_is_known_to_have_none() -> None:
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert names - OPERATORS.keys() - {*WITHOUT_ROW.split()} == set()
    assert OPERATORS.keys() & {*WITHOUT_ROW.split()} == set()


@pytest.mark.few(18)
@pytest.mark.parametrize("name", having("elementwise"))
def test_an_elementwise_operator_reads_one_element(name: str) -> None:
    checked(_acts_on_elements(example) for example in examples()[name])


def _acts_on_elements(example: Example) -> bool:
    """Whether elements that change places do so in the result; what has rank 0 is the same everywhere."""
    shape = np.broadcast_shapes(*(array.shape for array in example.inputs))
    order = np.random.default_rng(0).permutation(int(np.prod(shape)))
    inputs = [
        np.broadcast_to(array, shape).reshape(-1)[order].reshape(shape) if array.ndim else array
        for array in example.inputs
    ]
    (before, *_), (after, *_) = example.outputs, example.run(inputs)
    return before.shape == shape and same(after, before.reshape(-1)[order].reshape(shape))


@pytest.mark.parametrize("name", having("boolean"))
def test_a_boolean_operator_returns_booleans(name: str) -> None:
    checked(each.outputs[0].dtype == bool and each.inputs[0].dtype != bool for each in examples()[name])


@pytest.mark.parametrize("name", [name for name in having("same_shape") if not name.startswith("Random")])
def test_the_first_output_has_the_shape_of_the_first_input(name: str) -> None:
    checked(each.outputs[0].shape == each.inputs[0].shape for each in examples()[name])


@pytest.mark.parametrize("name", having("moves"))
def test_a_moving_operator_moves_elements_only(name: str) -> None:
    checked(_moves(example) for example in examples()[name])


def _moves(example: Example) -> bool:
    """Whether the result of numbers tells that of others; whether all are there, in order, if the row says so."""
    count = moved_inputs(example.node)
    data, others = example.inputs[:count], example.inputs[count:]
    ends = np.cumsum([0, *(array.size for array in data)])
    numbered = [np.arange(end - a.size, end).reshape(a.shape) for a, end in zip(data, ends[1:], strict=True)]
    results = [
        example.run([*(np.asarray(factor * array, np.float32) for array in numbered), *others]) for factor in (1, 3)
    ]
    if not all(same(3 * once, thrice) for once, thrice in zip(*results, strict=True)):
        return False
    row, before, after = example.row, numbered[0].squeeze(), results[0][0].squeeze()
    in_order = before.ravel().tolist() == after.ravel().tolist()
    transposed = any(np.array_equal(before.transpose(order), after) for order in permutations(range(before.ndim)))
    return (in_order or not row.keeps_order) and (transposed or not row.keeps_axes)


# Axes


def axes_of(example: Example) -> Axes | None:
    """Return what the row says of the axes of an example."""
    node = ir.serde.deserialize_node(example.node)
    arrays = dict(zip([v for v in node.inputs if v is not None and v.name], example.inputs, strict=True))
    opset = example.model.opset_import[0].version
    shapes = {value: array.shape for value, array in [*arrays.items(), (node.outputs[0], example.outputs[0])]}

    def numbers(name: str) -> list[int] | None:
        slot = input_slots(node.op_type, opset).get(name)
        if slot is None:
            return list(np.ravel(node.attributes[name].value)) if name in node.attributes else []
        value = node.inputs[slot] if slot < len(node.inputs) else None
        return [int(n) for n in arrays[value].ravel()] if value in arrays else []

    rule = example.row.axes
    return rule and rule(NodeShapes(node, opset, lambda value: [as_size(n) for n in shapes[value]], numbers))


@pytest.mark.few(26)
@pytest.mark.parametrize("name", having("axes"))
def test_axes_are_those_of_the_row(name: str) -> None:
    checked(_has_axes(example) for example in examples()[name])


def _has_axes(example: Example) -> bool:
    found = axes_of(example)
    if found is None:
        return True
    sizes: dict[object, set[int]] = {}
    for slot, array in zip(example.slots(), example.inputs, strict=True):
        for own_label, size in zip(found.inputs.get(slot, ()), array.shape, strict=False):
            sizes.setdefault(own_label, set()).add(size)
    shape = example.outputs[0].shape
    if len(found.output) != len(shape):
        return False
    for axis, label in enumerate(found.output):
        read = sizes.get(label.label if isinstance(label, Mixed) else label, {shape[axis]})
        if not found.repeats and shape[axis] != max(read - {1}, default=1):
            return False
        by_itself = label in sizes and shape[axis] == max(read) > 1
        if by_itself and not _each_by_itself(example, found, axis, label):
            return False
    return True


def _each_by_itself(example: Example, found: Axes, axis: int, label: object) -> bool:
    """Whether rows along an axis are computed each from that row: in another order, and if one of them changes."""
    length, before = example.outputs[0].shape[axis], example.outputs[0]
    reverse, changed = np.arange(length)[::-1], np.r_[0, 0 : length - 1]
    for order in (reverse, changed):
        inputs = []
        for slot, array in zip(example.slots(), example.inputs, strict=True):
            for own, each in enumerate(found.inputs.get(slot, ())):
                array = array.take(order, own) if each == label and array.shape[own] == length else array
            inputs.append(array)
        if not same(example.run(inputs)[0], before.take(order, axis)):
            return False
    return True
