"""ncnn, with models that pnnx converts (`pip install ncnn pnnx`): no recurrent ONNX operator, Scan or Loop.

pnnx runs a model on uninitialized integers. It leaves in a model what it cannot convert, and ncnn loads none such.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.composites import as_transpose
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.targets.target import Target
from rnn_lowering.targets.traits import KnownValue, ModelTraits


def _layer_norm(node: ir.Node, known: KnownValue, opset: int) -> str:
    x, axis = node.inputs[0], node.attributes.get_int("axis", -1)
    shape = None if x is None else known(x).shape
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
    return "" if last and len(node.inputs) > 2 else "along the last axis only, with scale and bias"


def _group_norm(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "with a scale for each channel, not each group" if opset < _OF_CHANNELS else ""


_OF_CHANNELS = 21
"""The first opset at which a GroupNormalization has a scale for each channel."""


def _resize(node: ir.Node, known: KnownValue, opset: int) -> str:
    mode = node.attributes.get_string("mode", "nearest")
    of = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest" and (of, node.attributes.get_string("nearest_mode", "")) != ("asymmetric", "floor"):
        return "with asymmetric coordinates, rounded down, only"
    return (
        "with coordinates of half pixels or aligned corners only" if (mode, of) == ("linear", "asymmetric") else ""
    )


def _depth_to_space(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "" if node.attributes.get_string("mode", "DCR") == "CRD" else "in the order CRD only"


def _space_to_depth(node: ir.Node, known: KnownValue, opset: int) -> str:
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    return "" if shape is not None and shape[1] == 1 else "of one channel only"


def _lp_pool(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "along some axes only"


_WAYS = {
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "GlobalLpPool": _lp_pool,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "Resize": _resize,
}


def _misread(node: ir.Node, known: KnownValue) -> str:
    """Return how it computes a node wrongly, or which it runs only, or ""."""
    imports = node.graph.opset_imports if isinstance(node.graph, ir.Graph) else {}
    return _WAYS[node.op_type](node, known, default_opset(imports)) if node.op_type in _WAYS else ""


NCNN = Target(
    "ncnn",
    "pnnx 20261020",
    ("unroll",),
    other_names=("pnnx",),
    newest_opset=26,
    lacks_types=(ir.DataType.DOUBLE,),
    unsupported=("Softplus", "Softsign", "ThresholdedRelu", "Less", "Gather", "ReduceSum"),
    lacks=(("LinearAttention", "its tensors have at most 4 axes"),),
    sequence_lens=False,
    # Masks from a table crash too: pnnx runs the model on uninitialized integers, and Gather reads them.
    why_no_lengths="pnnx converts no arithmetic of integers",
    integer_products=False,
    model=ModelTraits(
        # pnnx has no QuantizeLinear, and crashes at inputs and outputs without elements.
        adaptations=(
            *("rows of sequences", "no sequences", "rounding of floats", "no products of integers"),
            *("tables of floats", "computed copies", "bounded lookups", "crops as Slice", "spelled pads"),
            *("spelled splits", "spelled orders", "vectors as biases", "rank 4", "clipped norms"),
            *(
                "inputs with elements",
                "axes of reductions",
                "integers as indices",
                "at most 4 axes",
                "batches apart",
            ),
        ),
        misreads=_misread,
        refuses_lacking=True,
        outputs_apart=as_transpose,  # pnnx aborts at an Identity of an output of the model
    ),
    dialect=Dialect(matrix_product=True, matrix_steps=True),
)
