"""Fix sizes, shapes and values of inputs, and fold: what is known becomes a constant, a decided If its branch.

The numbers are those of `facts/`: constants, sizes, and what follows from them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from rnn_lowering.argument_checks import listed
from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.infer import infer
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.operators import (
    bodies_of,
    captured_values,
    default_opset,
    input_at,
    is_of_default_domain,
    is_used,
    operator_of,
)
from rnn_lowering.facts.size import size as exact_size
from rnn_lowering.limits import most_bytes
from rnn_lowering.model.copying import clone
from rnn_lowering.model.model_sizes import (
    Inferred,
    computed_values,
    infer_anew,
    inferred_values,
    merge_shapes,
    size_of_dim,
    take_over,
    with_sizes,
)
from rnn_lowering.model.onnx_checks import fault_of, is_sound
from rnn_lowering.model.scopes import recurrent_nodes, repeating_nodes
from rnn_lowering.types import Array, ArrayLike, Shapes, in_memory

_LARGEST_READ = 1 << 13
"""Maximum elements of a constant whose numbers are read."""

_SHARE = 16
"""The share of the memory limit that a folded tensor may have, since it is written to the file."""


def fold(model: ir.Model) -> None:
    """Fold constants in a model and its functions, in place.

    Args:
        model: The model. Its values declare only types and shapes that follow from its inputs.
    """
    _Folder(model.opset_imports, model.graph).fold(model.graph)
    for function in model.functions.values():
        _Folder(function.opset_imports, function.graph, is_function=True).fold(function.graph)
    RemoveUnusedNodesPass()(model)


class _Folder:
    """Folds a graph and the bodies in it.

    Args:
        opsets: The version of each domain.
        root: The graph.
        is_function: Whether it is that of a function, which cannot have initializers.
    """

    def __init__(self, opsets: Mapping[str, int], root: ir.Graph, *, is_function: bool = False) -> None:
        self._known = KnownValues({**opsets, "": default_opset(opsets)}, any_size=True)
        self._is_function = is_function
        self._names = Counter(value.name for graph in (root, *root.subgraphs()) for value in _own_values(graph))

    def fold(self, graph: ir.Graph) -> None:
        """Fold the nodes of a graph, in order."""
        self._record([*graph.inputs, *graph.initializers.values()])
        for node in list(graph):
            self._fold_node(graph, node)

    def _fold_node(self, graph: ir.Graph, node: ir.Node) -> None:
        self._record(node.outputs)
        condition = self._known.constant(node.inputs[0]) if node.op_type == "If" and node.domain == "" else None
        if condition is not None and condition.size == 1:
            self._take_branch(graph, node, "then_branch" if condition.all() else "else_branch")
            return
        bodies = bodies_of(node)
        for body in bodies:
            self.fold(body)
        if bodies or node.op_type == "Constant" or not is_of_default_domain(node):
            return
        self._compute(node)
        used = list(filter(is_used, node.outputs))
        if all(map(self._is_written, used)):
            for value in used:
                self._replace(graph, node, value)
        elif (source := self._unchanged(node)) is not None and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(source)

    def _compute(self, node: ir.Node) -> None:
        """Add the numbers of a node's outputs. Stored integers stay integers: nothing is dequantized."""
        if "broadcast" in node.attributes:  # before opset 7, which aligns other axes
            return
        try:
            infer(self._known, node)
            if operator_of(node).exact or operator_of(node).elementwise or self._is_product(node):
                evaluate(self._known, node)
        except Exception:  # inference has no common error: nothing is known
            return

    def _is_product(self, node: ir.Node) -> bool:
        """Whether a node multiplies floats by weights, as a step does with a constant initial state."""
        spelled = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        exact = self._known.types.get(node.outputs[0]) in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        return node.op_type in ("Conv", "Gemm", "MatMul") and spelled and exact

    def _unchanged(self, node: ir.Node) -> ir.Value | None:
        """Return the input of a Cast to the type that it has, or of an Expand or Reshape to its shape; None for any
        other node."""
        value = node.inputs[0] if node.op_type in ("Cast", "Expand", "Reshape") and node.inputs else None
        if value is None:
            return None
        ask = self._known.types.get if node.op_type == "Cast" else self._known.static_shape
        before = ask(value)
        return value if before is not None and before == ask(node.outputs[0]) else None

    def _is_written(self, value: ir.Value) -> bool:
        """Whether the numbers of a value are known, and few enough for the file."""
        array = self._known.constant(value)
        plain = self._known.types.get(value) not in (None, ir.DataType.STRING)
        return array is not None and plain and array.nbytes * _SHARE <= most_bytes()

    def _replace(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
        """Replace an output of a node by its numbers. An output of the graph stays that of a node: onnx2torch and
        others lose one that is an initializer."""
        array = self._known.constant(value)
        assert array is not None
        is_output = value.is_graph_output() and not self._is_function
        name = self._unique_name(value.name or "") if is_output else value.name
        tensor = ir.tensor(array.copy(), dtype=self._known.types[value], name=name)
        new = ir.Value(name=name, const_value=tensor)
        new.type, new.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        new = self._placed(graph, node, new)
        self._record([new])
        self._known.contents[new] = array
        for reader, index in tuple(value.uses()):
            reader.replace_input_with(index, new)
        take_over(value, _copied(graph, node, new) if is_output else new)

    def _placed(self, graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
        """Return an initializer as one of a graph; in a function, as the output of a Constant."""
        if not self._is_function:
            graph.register_initializer(value)
            return value
        tensor = value.const_value
        tensor = in_memory(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor
        constant = ir.node("Constant", [], {"value": tensor}, num_outputs=1)
        new = constant.outputs[0]
        new.type, new.shape = value.type, value.shape
        graph.insert_before(before, constant)
        take_over(value, new)
        return new

    # Branches

    def _take_branch(self, graph: ir.Graph, node: ir.Node, name: str) -> None:
        """Put the nodes of a branch in the place of an If."""
        branch = node.attributes[name].as_graph()
        nodes, outputs = list(branch), list(branch.outputs)
        branch.outputs.clear()
        initializers = [branch.initializers.pop(name) for name in list(branch.initializers)]
        self._make_unique([*initializers, *(value for each in nodes for value in each.outputs)])
        placed = {value: self._placed(graph, node, value) for value in initializers}
        self._record(placed.values())
        branch.remove(nodes)
        graph.insert_before(node, nodes)
        for old, value in zip(node.outputs, outputs, strict=True):
            if old.name:
                take_over(old, self._movable(node, placed.get(value, value), nodes))
        graph.remove(node, safe=True)
        for inner in nodes:
            self._fold_node(graph, inner)

    @staticmethod
    def _movable(node: ir.Node, value: ir.Value, moved: Collection[ir.Node]) -> ir.Value:
        """Return a value that can take the name of an output of an If: not one from outside, nor another output."""
        if value.producer() in moved and not value.is_graph_output():
            return value
        assert node.graph is not None
        return _copied(node.graph, node, value)

    def _make_unique(self, values: Sequence[ir.Value]) -> None:
        """Rename values that come into a graph where their names may be taken: other branches may have them too."""
        for value in values:
            if value.name and self._names[value.name] > 1:
                self._names[value.name] -= 1
                value.name = self._unique_name(value.name)

    def _unique_name(self, name: str) -> str:
        """Return a name that no value has, with a number behind it."""
        number = 1
        while self._names[f"{name}_{number}"]:
            number += 1
        self._names[f"{name}_{number}"] += 1
        return f"{name}_{number}"

    def _record(self, values: Iterable[ir.Value]) -> None:
        """Record types, shapes and constants; each size that is no number is a size of its own."""
        for value in values:
            tensor = None if value.is_graph_input() else self._tensor(value)
            dims = value.shape if tensor is None else tensor.shape
            if isinstance(value.type, ir.TensorType):
                self._known.types[value] = value.type.dtype
            if tensor is not None:
                self._known.types[value] = tensor.dtype
            if dims is not None:
                sizes = (exact_size(n) if isinstance(n, int) and n >= 0 else self._known.unknown() for n in dims)
                self._known.shapes[value] = tuple(sizes)
            if tensor is not None and tensor.size <= _LARGEST_READ and (array := numbers_in(tensor)) is not None:
                self._known.contents[value] = array

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the tensor of an initializer or a Constant."""
        node = value.producer()
        if node is None:
            return value.const_value
        return constant_of(value, self._known.opset) if node.op_type == "Constant" else None


def _copied(graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    """Return the output of an Identity of a value, in place of what a node computes."""
    identity = ir.node("Identity", [value])
    identity.meta.update(before.meta)
    graph.insert_before(before, identity)
    return identity.outputs[0]


def _own_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


# Fix sizes, shapes and values of a model's inputs, as the user asks, and fold the constants that follow. Folding
# makes more sizes known, and removes Ifs with constant conditions.


_KEY = "rnn_lowering.set_inputs"
"""Key of the values in the metadata."""

_FIRST_OPSET_OF_CAST = 6
"""As it is today; ONNX's converter does not know the earlier one: https://onnx.ai/onnx/operators/onnx__Cast.html."""

_FIRST_OPSET_OF_INTEGERS = 9
"""Of Constant: https://onnx.ai/onnx/operators/onnx__Constant.html."""

_MOST_PASSES = 4

TRIAL = 960
"""A size of inputs that most models accept: large, and a multiple of many."""


@dataclass(frozen=True)
class SizedModel:
    """A model at given sizes.

    Attributes:
        model: A copy of the model.
        folded: Whether constants were folded.
        fault: The error of ONNX's strict inference; empty if there is none.
    """

    model: ir.Model
    folded: bool
    fault: str


def at_sizes(
    model: ir.Model, dims: Mapping[str, int], input_shapes: Shapes, arrays: Mapping[str, Array] | None = None
) -> SizedModel:
    """Return a copy of a model at given sizes (see `fix_dimensions`).

    Constants are folded if that makes more sizes of recurrent nodes known; if an input becomes a constant or the
    model is not valid, also if it decides an If: paddings and branches may depend on sizes.

    Raises:
        OptionError, UnsupportedError: As `fix_dimensions`.
    """
    copy = clone(model)
    inferred = fix_dimensions(copy, dims, input_shapes, arrays)
    fault = fault_of(copy)
    known = folded(copy, decide=bool(arrays or fault), inferred=inferred)
    if known is None:
        return SizedModel(copy, folded=False, fault=fault)
    return SizedModel(known, folded=True, fault=fault_of(known))


def fix_dimensions(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    input_shapes: Shapes | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> Inferred:
    """Set symbolic dimensions to sizes in a whole model, in place, and infer all other shapes again.

    A declared shape of a computed value is used only for sizes that inference cannot find. If any declared size
    contradicts an inferred one, the model was traced at other sizes: then no declared number is used, only
    symbolic names that are fixed here.

    Args:
        model: The model.
        dims: Sizes by symbolic name.
        input_shapes: Whole shapes by input name; a symbolic name in that input is fixed everywhere.
        arrays: Inputs that become constants, as returned by `input_arrays`.

    Returns:
        What follows from the inputs alone.

    Raises:
        OptionError: The model has no such name, or a default has another shape. The model is unchanged.
        UnsupportedError: A size contradicts another. The model is unchanged.
    """
    sizes = dict(dims or {})
    arrays = arrays or {}
    inputs = {value.name: value for value in model.graph.inputs}
    for name, array in arrays.items():
        _bind(inputs[name], list(array.shape), sizes)
    shapes = {name: _bind(_input(model, name), list(shape), sizes) for name, shape in (input_shapes or {}).items()}
    _check_names(sizes, model)
    for name, shape in shapes.items():
        _check_default(inputs[name], shape)
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = with_sizes(value.shape, [size_of_dim(dim, sizes) for dim in value.shape])
    for name, shape in shapes.items():
        value = inputs[name]
        value.shape = ir.Shape(shape) if value.shape is None else with_sizes(value.shape, shape)
    _fix_inputs(model, arrays)
    return infer_anew(model, sizes)


def _check_names(sizes: Mapping[str, int], model: ir.Model) -> None:
    """Refuse a name that the model does not have, or whose size follows from those of the inputs."""
    present = {name for value in model.graph.inputs for name in _names(value)}
    computed = {name for value in computed_values(model) for name in _names(value)}
    others = [name for name in sizes if name not in present]
    following = _following(model, sizes) if computed.intersection(others) else {}
    for name in others:
        if name not in computed or name in following:
            raise OptionError(
                f"dimension '{name}' of '{following[name].name}' follows from the inputs"
                if name in following
                else f"no dimension is called '{name}'",
                hint=f"the dimensions of the inputs: {listed(sorted(present), name)}",
            )


def _following(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, ir.Value]:
    """Return the dimensions whose size follows from the inputs, each with a computed value that has it.

    A size does if inference finds a number once all inputs have numbers.
    """
    trial = clone(model)
    for value in trial.graph.inputs:
        if value.shape is not None:
            known = [dim if isinstance(dim, int) else sizes.get(dim.value or "", TRIAL) for dim in value.shape]
            value.shape = with_sizes(value.shape, known)
    inferred = inferred_values(trial)
    found: dict[str, ir.Value] = {}
    for value, tried in zip(computed_values(model), computed_values(trial), strict=True):
        for dim, size in zip(value.shape or (), inferred[tried].shape or (), strict=False):
            if isinstance(dim, ir.SymbolicDim) and dim.value and isinstance(size, int):
                found.setdefault(dim.value, value)
    return found


def _names(value: ir.Value) -> set[str]:
    """Return the names of the dimensions of a value."""
    return {dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value}


def _input(model: ir.Model, name: str) -> ir.Value:
    for value in model.graph.inputs:
        if value.name == name:
            return value
    raise _no_input(name, model)


def _no_input(name: str, model: ir.Model) -> OptionError:
    known = listed((str(v.name) for v in model.graph.inputs), name)
    return OptionError(f"the model has no input '{name}'", hint=f"its inputs: {known}")


def _check_default(value: ir.Value, shape: list[int]) -> None:
    """Check that the default value of an input has a shape."""
    default = value.const_value
    if default is not None and list(default.shape.numpy()) != shape:
        raise OptionError(
            f"the default value of input '{value.name}' has the shape {list(default.shape.numpy())}, not {shape}",
            hint=f"give that shape, or set the input (--set-input {quote(f'{value.name}=')}FILE.npy)",
        )


def _bind(value: ir.Value, shape: list[int], sizes: dict[str, int]) -> list[int]:
    """Check a shape against the declared one of an input, and add the sizes of its symbolic names to `sizes`."""
    declared = list(value.shape) if value.shape is not None else [None] * len(shape)
    if len(declared) != len(shape):
        raise UnsupportedError(f"input '{value.name}' has {len(declared)} dimensions, not {len(shape)}")
    for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
        name = dim.value if isinstance(dim, ir.SymbolicDim) else None
        if size < 0:
            raise UnsupportedError(f"axis {axis} of input '{value.name}' cannot be {size}")
        expected = sizes.setdefault(name, size) if name else dim if isinstance(dim, int) and dim >= 0 else size
        if expected != size:
            what = f"dimension '{name}'" if name else f"axis {axis} of input '{value.name}'"
            raise UnsupportedError(f"{what} is {expected} and cannot be {size}")
    return shape


def _fix_inputs(model: ir.Model, arrays: Mapping[str, Array]) -> None:
    """Replace inputs by Constant nodes with the given arrays, in place; their initializers are removed."""
    for value in [v for v in model.graph.inputs if v.name in arrays]:
        name, dtype = value.name or "", value.dtype
        model.graph.inputs.remove(value)
        model.graph.initializers.pop(name, None)
        tensor = ir.Tensor(arrays[name], dtype=dtype, name=name)
        nodes = _constant(tensor, default_opset(model.opset_imports))
        constant = nodes[-1].outputs[0]
        constant.type, constant.shape = value.type, ir.Shape(tensor.shape)
        value.replace_all_uses_with(constant, replace_graph_outputs=True)
        value.name, constant.name = None, name
        if len(model.graph):
            model.graph.insert_before(model.graph[0], nodes)
        else:
            model.graph.extend(nodes)


def _constant(tensor: ir.TensorProtocol, opset: int) -> list[ir.Node]:
    """Return the nodes that produce a tensor; before opset 9 a Constant holds only floats, which are then cast."""
    floats_only = _FIRST_OPSET_OF_CAST <= opset < _FIRST_OPSET_OF_INTEGERS
    if not floats_only or tensor.dtype.is_floating_point():
        return [ir.node("Constant", [], {"value": tensor}, num_outputs=1)]
    floats = ir.Tensor(tensor.numpy().astype(np.float64))
    source = ir.node("Constant", [], {"value": floats}, num_outputs=1)
    return [source, ir.node("Cast", source.outputs, {"to": int(tensor.dtype)}, num_outputs=1)]


# Values of inputs


def input_arrays(model: ir.Model, given: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Convert the given input values to arrays of the declared types and ranks.

    Args:
        model: The model.
        given: Values by input name; a single number is also accepted for an input with one element.

    Raises:
        OptionError: The model has no such input, or declares another type or shape.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    for name in given:
        if name not in inputs:
            raise _no_input(name, model)
    return {name: _shaped(inputs[name], _typed(inputs[name], value)) for name, value in given.items()}


def _typed(value: ir.Value, given: ArrayLike) -> Array:
    """Convert a value to the declared type of an input; its numbers must not change."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.STRING):
        raise OptionError(f"input '{value.name}' is not a numeric tensor and cannot be set")
    dtype = value.type.dtype
    try:
        array: np.ndarray[Any, Any] = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"the value of input '{value.name}' is not an array: {error}") from error
    if array.dtype.kind not in "biufV" or (array.dtype.kind == "V" and array.dtype != dtype.numpy()):
        raise OptionError(f"the value of input '{value.name}' has type {array.dtype}, not numbers")
    with np.errstate(all="ignore"):
        typed = array.astype(dtype.numpy())
        rounds = array.dtype.kind == "f" and dtype.is_floating_point()
        same = np.isfinite(typed.astype(np.float64)) == np.isfinite(array) if rounds else typed == array
    if not np.all(same):
        raise OptionError(
            f"input '{value.name}' is of type {dtype.name.lower()}, which cannot hold the given value",
            hint="give numbers of that type",
        )
    return typed


def _shaped(value: ir.Value, array: Array) -> Array:
    """Give an array the declared rank of an input."""
    shape = value.shape
    if shape is None:
        return array
    if array.ndim == 0 and all(size == 1 for size in shape):
        return array.reshape([1] * len(shape))
    fits = len(shape) == array.ndim and all(
        not isinstance(size, int) or size < 0 or size == given
        for size, given in zip(shape, array.shape, strict=True)
    )
    if not fits:
        declared = ",".join(str(size) if isinstance(size, int) else size.value or "?" for size in shape)
        raise OptionError(
            f"input '{value.name}' has the shape [{declared}], the given value {list(array.shape)}",
            hint=f"give an array of that shape (--set-input {quote(f'{value.name}=')}FILE.npy)",
        )
    return array


def record(model: ir.Model, given: Mapping[str, Array]) -> None:
    """Record in the metadata which inputs became constants, for a later comparison."""
    if given:
        model.metadata_props[_KEY] = json.dumps({name: array.tolist() for name, array in given.items()})


def has_record(model: onnx.ModelProto) -> bool:
    """Whether `record` wrote into the metadata of a model."""
    return any(entry.key == _KEY for entry in model.metadata_props)


def recorded(original: ir.Model, lowered: ir.Model) -> dict[str, Array]:
    """Return the recorded values of the inputs that the lowered model no longer has."""
    left = {value.name for value in lowered.graph.inputs}
    names = {value.name for value in original.graph.inputs} - left
    with suppress(ValueError, TypeError, AttributeError, OptionError):  # whatever is written there
        given = json.loads(lowered.metadata_props.get(_KEY, "{}"))
        return input_arrays(original, {name: given[name] for name in given if name in names})
    return {}


# Folding


def folded(model: ir.Model, *, decide: bool = False, inferred: Inferred | None = None) -> ir.Model | None:
    """Return a copy with folded constants; None if no more is known then: no size or length of a recurrent node,
    and no size of what a Loop or Scan reads.

    Only shapes that follow from the model's inputs are used: declared shapes of computed values may be wrong.

    Args:
        model: The model.
        decide: Also return a copy that has fewer Ifs, since their conditions are constant.
        inferred: Types and shapes that follow from the model's inputs, if known.
    """
    known = inferred_values(model) if inferred is None else inferred
    best, unknown = None, _count_unknown(model, decide, known)
    for _ in range(_MOST_PASSES if unknown else 0):
        trial = _inferred(model, known) if best is None else clone(best)
        if not is_sound(trial):
            break
        fold(trial)
        _infer(trial)
        before, unknown = unknown, _count_unknown(trial, decide)
        if unknown >= before:
            break
        best = trial
        if not unknown:
            break
    if best is not None:
        _declare_again(best, model)
    return best


def with_constants(model: ir.Model, *, sizes: bool = False) -> ir.Model | None:
    """Return a copy in which constants are folded; None if no node computes something from constants only, or
    with `sizes` from sizes. Declared shapes count as in `folded`."""
    if not any(_is_constant(node) or (sizes and node.op_type == "Shape") for node in model.graph.all_nodes()):
        return None
    trial = _inferred(model, inferred_values(model))
    if not is_sound(trial):
        return None
    fold(trial)
    _infer(trial)
    _declare_again(trial, model)
    return trial


def _is_constant(node: ir.Node) -> bool:
    given = [value for value in node.inputs if value is not None]
    return node.op_type != "DequantizeLinear" and bool(given) and all(map(_is_constant_value, given))


def _is_constant_value(value: ir.Value) -> bool:
    node = value.producer()
    return node.op_type == "Constant" if node else value.is_initializer() and not value.is_graph_input()


def _inferred(model: ir.Model, known: Inferred) -> ir.Model:
    """Return a copy in which computed values have only the shapes that follow from the model's inputs."""
    copy = clone(model)
    _declare(zip(computed_values(copy), (known[value] for value in computed_values(model)), strict=True))
    return copy


def _infer(model: ir.Model) -> None:
    """Keep only those shapes of computed values that follow from the model's inputs, in place."""
    _declare(inferred_values(model).items())


def _declare(values: Iterable[tuple[ir.Value, ir.Value]]) -> None:
    for value, known in values:
        value.type, value.shape = value.type or known.type, merge_shapes(known.shape, None)


def _count_unknown(model: ir.Model, decide: bool, known: Inferred = MappingProxyType({})) -> int:
    """Count recurrent nodes with an X of unknown sizes, those with open lengths, and what Loops and Scans read of
    unknown sizes; with `decide` also Ifs.

    A value that is not `known` has the shape that it declares.
    """
    unknown = sum(node.op_type == "If" for node in model.graph.all_nodes()) if decide else 0
    for entry in recurrent_nodes(model):
        X, lengths = (input_at(entry.node, n) for n in (0, 4))
        if X is not None:
            shape = known.get(X, X).shape
            unknown += shape is None or not all(isinstance(size, int) for size in shape[:2])
        unknown += lengths is not None and constant_of(lengths, entry.opset) is None
    for _, node in repeating_nodes(model):
        given = [value for value in node.inputs if value is not None]
        shapes = [known.get(value, value).shape for value in dict.fromkeys([*given, *captured_values(node)])]
        unknown += sum(shape is None or not shape.is_static() for shape in shapes)
    return unknown


def _declare_again(model: ir.Model, before: ir.Model) -> None:
    """Restore declared sizes that inference does not find; values are matched by name, if unique."""
    names = Counter(value.name for value in computed_values(before))
    declared = {value.name: value.shape for value in computed_values(before) if names[value.name] == 1}
    for value in computed_values(model):
        value.shape = merge_shapes(value.shape, declared.get(value.name))
