"""Nodes and constants in other words: defaults, pads, orders and numbers are written out.

ncnn loads a Pad with its mode, a pad for each axis and the number that fills, and crashes at a Split without sizes.

tract crashes at negative pads, which crop, and MNN computes them wrongly: they are a Slice. MNN loses the
axis of a ScatterElements that is written behind a reduction, also behind "none".

Without its number tract takes a fill for one of float64, OpenCV fails, and MNN has other numbers in every third
run. TVM, onnx2tf and esp-ppq read only the tensor of a Constant; OpenCV and MNN give a single number an axis.
jaxonnxruntime takes sizes and axes from initializers only.
OpenCV compares the shapes of a scale and its zero point; onnxruntime's quantizer writes the scale of a bias with an
axis, and its zero point without.
MNN computes no Pow whose exponents are integers, but for a 2.
OpenCV loses the type of a constant without elements, and rejects its Concat with others. It makes a HardSwish of a
HardSigmoid whose beta is written, times any other tensor.
onnx2tf writes a Concat, a Sum or a Max of one tensor as an operator that LiteRT lacks: it is an Identity.

tract computes Shape, Size and Cast to int64 in a type of its own, which some operators reject. A CastLike of a
constant of int64 makes plain numbers of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.facts.operators import input_at, is_of_default_domain, is_used, parameter
from rnn_lowering.model.model_sizes import computed_values, take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import Scope, all_graphs, standard_nodes
from rnn_lowering.nodes.spec import node_ref
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Array, array_of

# Pads, strides, sizes and orders

_OF_INPUTS = 11
"""The first opset of a Pad whose pads are an input."""


def spell_pads(model: AdaptedModel) -> int:
    """Write each constant Pad of a value of known type and rank in full, in place; return their number."""
    found = model.nodes("Pad", in_functions=False) if model.opset >= _OF_INPUTS else ()
    constant = [node for node in found if node.attributes.get_string("mode", "constant") == "constant"]
    return sum(_spell(node, model) for node in constant)


def _spell(node: ir.Node, model: AdaptedModel) -> bool:
    number, (widths, axes) = input_at(node, 2), _constant_pads(node, model)
    shape, dtype = model.shape_of(node.inputs[0]), model.dtype_of(node.inputs[0])
    if shape is None or dtype is None or widths is None:
        return False
    if number is not None and input_at(node, 3) is None and "mode" in node.attributes:
        return False
    full = np.zeros((2, len(shape)), np.int64)
    full[:, axes % len(shape)] = widths
    node.attributes["mode"] = ir.AttrString("mode", "constant")
    fill = number if number is not None else model.constant(node, 0, dtype.numpy(), "fill")
    node.resize_inputs(3)
    node.replace_input_with(1, model.constant(node, full.reshape(-1)))
    node.replace_input_with(2, fill)
    return True


_BETA = 0.5
"""The default of a HardSigmoid."""

_OF_ANY_NUMBER = ("Concat", "Max", "Mean", "Min", "Sum")


def copy_lone_operands(model: AdaptedModel) -> int:
    """Make an Identity of each node that joins or compares a single tensor, in place; return their number."""
    found = [node for node in model.nodes(*_OF_ANY_NUMBER) if len(node.inputs) == 1]
    for node in found:
        node.op_type = "Identity"
        node.attributes.clear()
    return len(found)


_TRAINS = 2
"""The input of a Dropout that says whether it drops numbers."""


def skip_dropouts(model: AdaptedModel) -> int:
    """Make an Identity, in place, of each Dropout of an input of the model that drops nothing; return how many."""
    found = [node for node in model.nodes("Dropout") if node.inputs[0] in model.graph.inputs and _drops_none(node)]
    for node in found:
        node.op_type = "Identity"
        node.resize_inputs(1)
        node.resize_outputs(1)
        node.attributes.clear()
    return len(found)


def _drops_none(node: ir.Node) -> bool:
    return input_at(node, _TRAINS) is None and not any(output.uses() for output in node.outputs[1:])


def flatten_by_reshape(model: AdaptedModel) -> int:
    """Write, in place, each Flatten of several open sizes as a Reshape; return their number."""
    found = {node: _flat_sizes(node, model) for node in model.nodes("Flatten")}
    written = {node: sizes for node, sizes in found.items() if sizes is not None}
    for node, sizes in written.items():
        model.replace(node, model.before(node, "Reshape", [node.inputs[0]], shape=sizes))
    return len(written)


def _flat_sizes(node: ir.Node, model: AdaptedModel) -> list[int] | None:
    """Return the sizes for a Reshape; None if none is needed, or both are open and neither of one axis."""
    shape, axis = list(model.shape_of(node.inputs[0]) or ()), node.attributes.get_int("axis", 1)
    halves = shape[:axis], shape[axis:]
    numbers = [[size for size in half if isinstance(size, int)] for half in halves]
    known = [
        math.prod(each) if len(each) == len(half) else None for each, half in zip(numbers, halves, strict=True)
    ]
    if sum(not isinstance(size, int) for size in shape) < len("ab"):
        return None
    if None not in known[:1] or None not in known[1:]:
        return [-1 if number is None else number for number in known]
    return [0, -1] if axis == 1 else None


def leave_default_beta(model: AdaptedModel) -> int:
    """Leave out the beta of each HardSigmoid that has the default one, in place; return their number."""
    found = [node for node in model.nodes("HardSigmoid") if node.attributes.get_float("beta", 0.0) == _BETA]
    for node in found:
        del node.attributes["beta"]
    return len(found)


def drop_empty_operands(model: AdaptedModel) -> int:
    """Let each Concat leave out constants without rows, in place; return their number."""
    return sum(_drop_empty(node, model) for node in model.nodes("Concat"))


def _drop_empty(node: ir.Node, model: AdaptedModel) -> bool:
    axis, constants = node.attributes["axis"].as_int(), map(model.constant_of, node.inputs)
    full = [v for v, c in zip(node.inputs, constants, strict=True) if c is None or c.shape.numpy()[axis]]
    if len(full) in (0, len(node.inputs)):
        return False
    for slot, value in enumerate(full):
        node.replace_input_with(slot, value)
    node.resize_inputs(len(full))
    return True


def crop_by_slice(model: AdaptedModel) -> int:
    """Write what each Pad of constant pads crops as a Slice in front of it, in place; return their number."""
    return sum(_crop(node, model) for node in (model.nodes("Pad") if model.opset >= _OF_INPUTS else ()))


def _crop(node: ir.Node, model: AdaptedModel) -> bool:
    widths, axes = _constant_pads(node, model)
    if widths is None or (widths >= 0).all():
        return False
    begins, ends = widths
    behind = np.where(ends < 0, ends, np.iinfo(np.int64).max)
    slices = [model.constant(node, numbers) for numbers in (np.maximum(-begins, 0), behind, axes)]
    node.replace_input_with(0, model.before(node, "Slice", (node.inputs[0], *slices)))
    node.replace_input_with(1, model.constant(node, np.maximum(widths, 0).reshape(-1), np.int64, "pads"))
    return True


def _constant_pads(node: ir.Node, model: AdaptedModel) -> tuple[Array | None, Array]:
    """Return the pads of a Pad, [2, axes], and their axes; None for pads that are not constant."""
    pads, axes = (model.constant_of(input_at(node, slot)) for slot in (1, 3))
    if pads is None or (input_at(node, 3) is not None and axes is None):
        return None, np.zeros(0, np.int64)
    widths = pads.numpy().reshape(2, -1)
    return widths, np.arange(widths.shape[1]) if axes is None else axes.numpy()


def plain_scatters(model: AdaptedModel) -> int:
    """Leave out the reduction of each ScatterElements that has none, in place; return their number."""
    found = [n for n in model.nodes("ScatterElements") if n.attributes.get_string("reduction", "") == "none"]
    for node in found:
        del node.attributes["reduction"]
    return len(found)


def spell_strides(model: AdaptedModel) -> int:
    """Write the strides of each pool that has none, in place; return their number."""
    found = [node for node in model.nodes("AveragePool", "LpPool", "MaxPool") if "strides" not in node.attributes]
    for node in found:
        node.attributes.add(ir.AttrInt64s("strides", [1] * len(node.attributes.get_ints("kernel_shape", ()))))
    return len(found)


_EPSILON = 1e-5
"""The default of a norm."""


def spell_epsilons(model: AdaptedModel) -> int:
    """Write the number that each norm without one adds to variances, in place; return their number."""
    norms = model.nodes("BatchNormalization", "InstanceNormalization")
    found = [node for node in norms if "epsilon" not in node.attributes]
    for node in found:
        node.attributes.add(ir.AttrFloat32("epsilon", _EPSILON))
    return len(found)


_PLACES = 11
"""The first opset of a Resize that says how places correspond."""


def spell_modes(model: AdaptedModel) -> int:
    """Write the modes that each Resize has by default, in place; return the number of those that lacked one."""
    count = 0
    for node in model.nodes("Resize"):
        nearest = node.attributes.get_string("mode", "nearest") == "nearest"
        modes = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"}
        modes |= {"nearest_mode": "round_prefer_floor"} if nearest else {}
        lacking = [name for name in modes if name not in node.attributes]
        if lacking and model.opset >= _PLACES:
            node.attributes.update({name: ir.AttrString(name, modes[name]) for name in lacking})
            count += 1
    return count


_SIZES_OF_INPUTS = 13
"""The first opset of a Split whose sizes are an input."""


def spell_splits(model: AdaptedModel) -> int:
    """Write the sizes of each Split that has none, where they are known, in place; return their number."""
    found = [node for node in model.nodes("Split") if parameter(node, "split", model.opset) is None]
    return sum(_spell_split(node, model) for node in found)


def _spell_split(node: ir.Node, model: AdaptedModel) -> bool:
    axis, shapes = node.attributes.get_int("axis", 0), [model.shape_of(value) for value in node.outputs]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    if not all(isinstance(size, int) for size in sizes):
        return False
    node.attributes.pop("num_outputs", None)
    if model.opset >= _SIZES_OF_INPUTS:
        node.resize_inputs(2)
        node.replace_input_with(1, model.constant(node, sizes))
    else:
        node.attributes.add(ir.AttrInt64s("split", [int(str(size)) for size in sizes]))
    return True


def spell_axes_of_sums(model: AdaptedModel) -> int:
    """Make scalars, in place, of the constant axes of CumSums that are vectors; return their number."""
    found = [node for node in model.nodes("CumSum") if (axis := model.constant_of(node.inputs[1])) and axis.shape]
    for node in found:
        axis = model.constant_of(node.inputs[1])
        assert axis is not None
        node.replace_input_with(1, model.constant(node, axis.numpy().reshape(()), axis.dtype.numpy()))
    return len(found)


def spell_orders(model: AdaptedModel) -> int:
    """Write the order of axes of each Transpose that has none, in place; return their number."""
    shapes = {n: model.shape_of(n.outputs[0]) for n in model.nodes("Transpose") if "perm" not in n.attributes}
    ranks = {node: len(shape) for node, shape in shapes.items() if shape is not None}
    for node, rank in ranks.items():
        node.attributes.add(ir.AttrInt64s("perm", range(rank - 1, -1, -1)))
    return len(ranks)


# Constants


def write_fills(model: AdaptedModel) -> int:
    """Write the default number of each ConstantOfShape, in place; return how many had none."""
    found = [node for node in model.nodes("ConstantOfShape") if "value" not in node.attributes]
    for node in found:
        node.attributes.add(ir.AttrTensor("value", ir.tensor([0.0], ir.DataType.FLOAT)))
    return len(found)


_PLAIN = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
"""The attributes of a Constant that have plain numbers, and their type."""


def write_tensors(model: AdaptedModel) -> int:
    """Write the plain numbers of each Constant as a tensor, in place; return how many had some."""
    count = 0
    for node in model.nodes("Constant"):
        for name, dtype in _PLAIN.items():
            if name in node.attributes:
                tensor = ir.tensor(np.array(node.attributes.pop(name).value, dtype))
                node.attributes.add(ir.AttrTensor("value", tensor))
                count += 1
    return count


_TYPES_APART = 12
"""The first opset of a Pow whose exponents may have another type than the base."""


def type_exponents(model: AdaptedModel) -> int:
    """Write the exponents of each Pow in the type of its base, in place; return how many had another."""
    count = 0
    for node in model.nodes("Pow", since=_TYPES_APART):
        dtype, given = (model.dtype_of(value) for value in node.inputs)
        if dtype is None or given in (None, dtype):
            continue
        numbers = model.constant_of(node.inputs[1])
        if numbers is None:
            exponents = model.before(node, "Cast", node.inputs[1:], to=int(dtype))
        else:
            exponents = model.constant(node, array_of(numbers), dtype.numpy(), "exponents")
        node.replace_input_with(1, exponents)
        count += 1
    return count


def drop_unused_constants(model: AdaptedModel) -> str:
    """Remove the initializers that nothing uses, in place; return their names."""
    dropped = []
    for graph in all_graphs(model.model):
        for name, value in list(graph.initializers.items()):
            if not (is_used(value) or value.is_graph_input()):
                del graph.initializers[name]
                dropped.append(name)
    return ", ".join(dropped)


def forget_declared(model: AdaptedModel) -> int:
    """Remove what a model declares of computed values, in place, but for those that a graph returns; a body keeps
    the numbers of its inputs and outputs; return the number of shapes."""
    changed = 0
    for value in computed_values(model.model):
        if value.producer() is not None and not value.is_graph_output():
            changed += value.shape is not None
            value.shape = value.type = None
    for graph in all_graphs(model.model):
        for value in (*graph.inputs, *graph.outputs) if graph is not model.graph else ():
            if value.shape is not None and any(getattr(size, "value", None) for size in value.shape):
                value.shape = ir.Shape([size if isinstance(size, int) else None for size in value.shape])
                changed += 1
    return changed


_APART = 4
"""The first version of the format in which an initializer is no input."""


def store_constants(model: AdaptedModel) -> int:
    """Make initializers of Constants, in place; return their number."""
    before = len(model.nodes("Constant", in_functions=False))
    if before and model.model.ir_version >= _APART:
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model.model)
    return before - len(model.nodes("Constant", in_functions=False))


def store_indices(model: AdaptedModel) -> int:
    """Make initializers of the indices of each Gather of integers that are a Constant, in place; return their
    number."""
    found = [node for node in model.nodes("Gather", in_functions=False) if _is_constant(node.inputs[1])]
    found = [node for node in found if (dtype := model.dtype_of(node.inputs[0])) is not None and dtype.is_integer()]
    for node in found:
        old, numbers = node.inputs[1], model.constant_of(node.inputs[1])
        if numbers is not None:
            node.replace_input_with(1, model.constant(node, array_of(numbers), numbers.dtype.numpy(), "indices"))
            drop_unused([old])
    return len(found)


def _is_constant(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    return node is not None and node.op_type == "Constant"


def shape_as_scales(model: AdaptedModel) -> int:
    """Give each constant zero point of one number the shape of its scale, in place; return how many had another."""
    changed = 0
    for node in model.nodes("QuantizeLinear", "DequantizeLinear"):
        scale, zero = (model.constant_of(value) for value in [*node.inputs[1:], None, None][:2])
        if scale is not None and zero is not None and scale.size == zero.size == 1 and scale.shape != zero.shape:
            numbers = zero.numpy().reshape(scale.numpy().shape)
            node.replace_input_with(2, model.constant(node, numbers, numbers.dtype, "zero_point"))
            changed += 1
    return changed


# Sizes as data


_REJECTING = ("ArgMax", "ArgMin", "CumSum", "NonZero", "Pad", "Sign", "TopK", "Trilu")

_REJECTED_AT = {"Trilu": 1}
"""By operator the input that it rejects, if it is not the first."""

_MAKES_SIZES = ("Cast", "Shape", "Size")

CAST_LIKE = 15
"""The first opset of the operator."""


def make_numbers(model: AdaptedModel) -> int:
    """Insert a CastLike before what rejects sizes, and behind outputs of the model that are sizes, in place; return
    their number."""
    fed = [node for scope, node in _fed_with_sizes(model) if scope.opset >= CAST_LIKE]
    returned = _sizes_returned(model) if model.opset >= CAST_LIKE else []
    for node in fed:
        slot = _REJECTED_AT.get(node.op_type, 0)
        node.replace_input_with(slot, _plain(model, node, node.inputs[slot]))
    for value in returned:
        name, uses, plain = value.name, [*value.uses()], _plain(model, model.graph[-1], value)
        cast = plain.producer()
        assert cast is not None
        model.graph.remove(cast)
        model.graph.append(cast)
        take_over(value, plain)
        cast.replace_input_with(0, value)
        for use in uses:
            use.node.replace_input_with(use.idx, value)
        value.name = model.unique(f"{name}/sizes")
    return len(fed) + len(returned)


def unconverted(model: AdaptedModel, target: Target) -> Iterator[UnsupportedError]:
    """Yield an error for each node that rejects its sizes, or returns some, in an opset without CastLike."""
    fed = [(scope.opset, node_ref(n, scope.text), "rejects it behind") for scope, n in _fed_with_sizes(model)]
    makers = [node for value in _sizes_returned(model) if (node := value.producer()) is not None]
    returned = [(model.opset, node_ref(node), "returns no integers from") for node in makers]
    for opset, ref, how in [*fed, *returned]:
        if opset < CAST_LIKE:
            reason = f"{target.name} {how} Shape, Size or Cast, and opset {opset} has no CastLike"
            yield UnsupportedError(reason, hint=f"export the model at opset {CAST_LIKE} or later", node=ref)


def _plain(model: AdaptedModel, node: ir.Node, value: ir.Value | None) -> ir.Value:
    return model.before(node, "CastLike", [value, model.constant(node, [0])])


def _fed_with_sizes(model: AdaptedModel) -> list[tuple[Scope, ir.Node]]:
    """Return the nodes that reject sizes and get some, each with its scope."""
    found = standard_nodes(model.model, *_REJECTING)
    return [(scope, n) for scope, n in found if is_of_sizes(input_at(n, _REJECTED_AT.get(n.op_type, 0)), model)]


def _sizes_returned(model: AdaptedModel) -> list[ir.Value]:
    integers = [v for v in model.graph.outputs if v.dtype == ir.DataType.INT64 and v.producer() is not None]
    return [value for value in integers if is_of_sizes(value, model)]


def is_of_sizes(value: ir.Value | None, model: AdaptedModel, makes: Collection[str] = _MAKES_SIZES) -> bool:
    """Return whether an integer follows from Shape, Size or a Cast to int64 by operators of int64 only."""
    seen, pending = set[ir.Value](), [value]
    while pending:
        top = pending.pop()
        node = None if top is None or top in seen else top.producer()
        if top is None or node is None or model.dtype_of(top) != ir.DataType.INT64:
            continue
        seen.add(top)
        if is_of_default_domain(node) and node.op_type in makes:
            return True
        pending += node.inputs if node.op_type not in ("CastLike", *_REJECTING) else ()
    return False
