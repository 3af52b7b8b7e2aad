"""The weights of each direction as a cell uses them: W, R, B and P, split and transposed.

Every operation here is one of `Ops`: operations on constants are folded, others are emitted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import ml_dtypes
import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, leaf
from rnn_lowering.emit.integer_constants import dequantized_constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.activations import FORMULAS
from rnn_lowering.recurrence.integer_product import integer_product
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.spec.rnn import GATES, Activation, RecurrentSpec
from rnn_lowering.types import Dims, array_of

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Operands:
    """The operands of a cell in one direction; G is the number of gates.

    Attributes:
        W: Transposed input weights [input, G*hidden].
        Wb: Wb + Rb, [G*hidden]; with linear_before_reset without Rbh, which the reset gate multiplies.
        groups: The sizes of the gate groups of that sum, which a cell receives one by one.
        R: Transposed recurrent weights by gate group, each [hidden, ...].
        product: Multiplies X by W, or H by a group of R: as tensors or, for a DynamicQuantizeLSTM, as integers.
        Rbh: GRU with linear_before_reset: the recurrent bias of the hidden gate [hidden]; else zero.
        Rb: Rbh split like R, with zeros for the other gates.
        P: LSTM: the peepholes i, o, f, each [hidden]; None without them.
        b, Pb: DynamicQuantizeLSTM: the bias, which follows the sum of both products and the peephole: by gate group
            of R, and by peephole; else zero.
        f, g, h: The activations of the operator specification.
        clip: Clips a pre-activation.
        hidden_size: H of the operator specification.
        input_forget, linear_before_reset: The attributes of the node.
        gates_apart: LSTM: f is applied to each gate, not to three at once.
    """

    W: Tensor
    Wb: Tensor
    groups: Sequence[int]
    R: tuple[Tensor, ...]
    product: Callable[[Tensor, Tensor], Tensor]
    Rbh: Tensor
    Rb: tuple[Tensor, ...]
    b: Sequence[Tensor]
    Pb: Sequence[Tensor]
    P: tuple[Tensor, Tensor, Tensor] | None
    f: Function
    g: Function
    h: Function
    clip: Function
    hidden_size: int
    input_forget: bool
    linear_before_reset: bool
    gates_apart: bool = False


_MAY_BE_ZERO = frozenset(("B", "P", "initial_h", "initial_c", "bias", "past_state"))
"""Inputs for which zeros mean the same as no input."""


def node_input(op: Ops, spec: NodeSpec, symbol: str, shape: Dims) -> Tensor:
    """Return an input of a node, floats in the type to compute in; a symbolic zero where it is absent or all zero.

    Args:
        op: The emitter.
        spec: The node.
        symbol: The name of the input in the operator specification.
        shape: The shape by the operator specification, with None for a size that may vary at run time.
    """
    value, tensor = spec.inputs.get(symbol), spec.constants.get(symbol)
    if value is None:
        return op.zero(shape)
    if tensor is None:
        x = op.given(value, spec.dtype_of(symbol), shape)
    else:
        x = op.known(_integers(spec, symbol) or leaf(tensor, value, symbol))
        if symbol in _MAY_BE_ZERO and not array_of(tensor).any():
            return op.zero(x.shape)
    return op.cast(x, op.dtype) if x.dtype.is_floating_point() else x


def _integers(spec: NodeSpec, symbol: str) -> Constant | None:
    """Return an input that the model stores as integers; None for others."""
    weight, source = spec.quantized.get(symbol), spec.inputs[symbol]
    if weight is None:
        return None
    return dequantized_constant(
        leaf(weight.integers, (source, "integers"), symbol),
        leaf(weight.scale, (source, "scale"), symbol),
        leaf(weight.zero_point, (source, "zero_point"), symbol),
    )


def by_direction(op: Ops, spec: RecurrentSpec, symbol: str, shape: Dims) -> list[Tensor]:
    """Return an input split by its first axis, the directions: [dirs, *shape] -> for each direction [*shape]."""
    dirs = len(spec.directions)
    whole = node_input(op, spec, symbol, (dirs, *shape))
    return [op.squeeze(part, [0]) for part in op.split(whole, [1] * dirs, axis=0)]


def operands(op: Ops, spec: RecurrentSpec) -> list[Operands]:
    """Return the operands of each direction."""
    H, rows = spec.hidden_size, GATES[spec.op_type] * spec.hidden_size
    return [
        _of_direction(op, spec, activations, *parts)
        for activations, *parts in zip(
            spec.activations,
            by_direction(op, spec, "W", (rows, spec.input_size)),
            by_direction(op, spec, "R", (rows, H)),
            by_direction(op, spec, "B", (2 * rows,)),
            by_direction(op, spec, "P", (3 * H,)),
            strict=True,
        )
    ]


def _of_direction(
    op: Ops,
    spec: RecurrentSpec,
    activations: tuple[Activation, ...],
    W: Tensor,
    R: Tensor,
    B: Tensor,
    P: Tensor,
) -> Operands:
    H, rows = spec.hidden_size, GATES[spec.op_type] * spec.hidden_size
    Wb, Rb = op.split(B, [rows, rows])
    Rbh = op.zero((H,))
    if spec.op_type == "GRU" and spec.linear_before_reset:
        Rb_zr, Rbh = op.split(Rb, [2 * H, H])
        Rb = op.concat([Rb_zr, op.zero((H,))], 0)
    x_groups, h_groups = _groups(op, spec)
    *others, last = h_groups
    Pi, Po, Pf = op.split(P, [H, H, H])
    functions = [_function(op, a) for a in activations]
    f, g, h = (*functions, *functions[:1] * 2)[:3]
    operands = Operands(
        W=op.transpose(W, [1, 0]),
        Wb=Wb + Rb,
        groups=x_groups,
        R=tuple(op.transpose(part, [1, 0]) for part in op.split(R, h_groups, axis=0)),
        product=partial(integer_product, op) if spec.rounds else operator.matmul,
        Rbh=Rbh,
        Rb=(*(op.zero((n,)) for n in others), op.concat([op.zero((last - H,)), Rbh], 0) if last > H else Rbh),
        b=[op.zero((n,)) for n in h_groups],
        Pb=[op.zero((H,))] * 3,
        P=None if P.is_zero else (Pi, Po, Pf),
        f=f,
        g=g,
        h=h,
        clip=_clip(op, spec.clip),
        hidden_size=H,
        input_forget=spec.input_forget,
        linear_before_reset=spec.linear_before_reset,
        gates_apart=op.dialect.gates_apart,
    )
    return _bias_last(op, operands) if spec.rounds else operands


def _bias_last(op: Ops, k: Operands) -> Operands:
    """Return operands whose cell adds the bias after both products and the peepholes, as the onnxruntime kernel of
    DynamicQuantizeLSTM does (uni_directional_lstm.cc)."""
    H, bias, Pb = k.hidden_size, k.Wb, k.Pb
    if k.P is not None:
        *Pb, bc = op.split(bias, [H] * 4)
        bias = op.concat([op.zero((3 * H,)), bc], 0)
    return replace(k, Wb=op.zero(bias.shape), b=op.split(bias, k.groups), Pb=Pb)


def _groups(op: Ops, spec: RecurrentSpec) -> tuple[list[int], list[int]]:
    """Return how the gates of X W^T and the rows of R are grouped: a product with R computes the gates of a group.

    The hidden gate of a GRU is a group of its own, except in R with linear_before_reset. With `gemm_per_activation`
    the gates of each activation are a group.
    """
    H, rows = spec.hidden_size, GATES[spec.op_type] * spec.hidden_size
    together, apart = [rows], [rows - H, H]
    if op.dialect.gemm_per_activation and spec.op_type != "RNN":
        return apart, apart
    if spec.op_type != "GRU":
        return together, together
    return apart, together if spec.linear_before_reset else apart


def _clip(op: Ops, bound: float | None) -> Function:
    """Return what clips a pre-activation: nothing if no finite number of the type is beyond the bound."""
    if bound is None or bound > float(ml_dtypes.finfo(op.dtype.numpy()).max):  # type: ignore[no-untyped-call]
        return lambda x: x
    return lambda x: op.clip(x, bound)


def _function(op: Ops, activation: Activation) -> Function:
    row = FORMULAS[activation.name]
    lacks_kernel = op.dtype == ir.DataType.DOUBLE or not op.exists(activation.name)
    formula = row.compose if row.compose is not None and lacks_kernel else row.operator
    return lambda x: formula(op, x, activation.alpha, activation.beta)
