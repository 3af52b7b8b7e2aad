"""W, R, B and P as a cell uses them: by direction, transposed, split into groups of gates; and their products.

The operands of several recurrences can be joined to those of one: side by side, or in layers one above the other.
Every operation here is one of `Ops`: operations on constants are folded, others are emitted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

import ml_dtypes
import onnx_ir as ir

from rnn_lowering.emit.constants import (
    FIRST_WITH_AXIS,
    Constant,
    Dequantized,
    dequantized_constant,
    gates_of_blocks,
    leaf,
    row_product,
)
from rnn_lowering.emit.dialect import since
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.kinds import CELLS
from rnn_lowering.nodes.rnn import ActivationSpec, RecurrentSpec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.activations import Function, activation_function
from rnn_lowering.types import Dims, array_of

_FLOAT, _UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8

_MAY_BE_ZERO = {"B", "P", "bias", "past_state", *(s for cell in CELLS.values() for s in cell.initial_states)}
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
        x = op.from_constant(_integers(spec, symbol) or leaf(tensor, value, symbol))
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


@dataclass(frozen=True)
class CellOperands:
    """The operands of a cell in one direction; G is the number of gates.

    Attributes:
        W: Transposed input weights [input, G*hidden].
        bias: Wb + Rb, [G*hidden]; with linear_before_reset without Rbh, which the reset gate multiplies.
        R: Transposed recurrent weights by gate group, each [hidden, ...].
        product: Multiplies X by W, or H by a group of R: as tensors or, for a DynamicQuantizeLSTM, as integers.
        Rbh: GRU with linear_before_reset: the recurrent bias of the hidden gate [hidden]; else zero.
        Rb: Rbh split like R, with zeros for the other gates.
        step_bias: DynamicQuantizeLSTM: the bias, added in the step behind both products, split like R; else zero.
        Pb: DynamicQuantizeLSTM with peepholes: the bias of their gates, added in the step behind them; else zero.
        P: The peepholes in the order of the node, each [hidden]; None without them.
        f, g, h: The activations of the operator specification.
        clip: Clips a pre-activation.
        hidden_size: H of the operator specification.
        input_forget, linear_before_reset: The attributes of the node.
    """

    W: Tensor
    bias: Tensor
    R: tuple[Tensor, ...]
    product: Callable[[Tensor, Tensor], Tensor]
    Rbh: Tensor
    Rb: tuple[Tensor, ...]
    step_bias: Sequence[Tensor]
    Pb: Sequence[Tensor]
    P: tuple[Tensor, ...] | None
    f: Function
    g: Function
    h: Function
    clip: Function
    hidden_size: int
    input_forget: bool
    linear_before_reset: bool

    @property
    def groups(self) -> list[int]:
        """The sizes of the gate groups of X W^T, which a cell gets one by one: those of R, or with
        linear_before_reset the hidden gate alone."""
        sizes = [R.shape[-1] or 0 for R in self.R]
        return [sum(sizes) - self.hidden_size, self.hidden_size] if self.linear_before_reset else sizes


def operands(op: Ops, spec: RecurrentSpec) -> list[CellOperands]:
    """Return the operands of each direction."""
    H, rows = spec.hidden_size, len(spec.cell.gates) * spec.hidden_size
    return [
        _of_direction(op, spec, activations, *parts)
        for activations, *parts in zip(
            spec.activations,
            _by_direction(op, spec, "W", (rows, spec.input_size)),
            _by_direction(op, spec, "R", (rows, H)),
            _by_direction(op, spec, "B", (2 * rows,)),
            _by_direction(op, spec, "P", (len(spec.cell.peepholes) * H,)),
            strict=True,
        )
    ]


def _of_direction(
    op: Ops,
    spec: RecurrentSpec,
    activations: tuple[ActivationSpec, ...],
    W: Tensor,
    R: Tensor,
    B: Tensor,
    P: Tensor,
) -> CellOperands:
    H, rows = spec.hidden_size, len(spec.cell.gates) * spec.hidden_size
    Wb, Rb = op.split(B, [rows, rows])
    Rbh = op.zero((H,))
    if spec.linear_before_reset:
        Rb_others, Rbh = op.split(Rb, [rows - H, H])
        Rb = op.concat([Rb_others, op.zero((H,))], 0)
    groups = _groups(op, spec)
    *others, last = groups
    peepholes = None if P.is_zero else tuple(op.split(P, [H] * len(spec.cell.peepholes)))
    functions = [activation_function(op, a) for a in activations]
    f, g, h = (*functions, *functions[:1] * 2)[:3]
    k = CellOperands(
        W=op.transpose(W, [1, 0]),
        bias=Wb + Rb,
        R=tuple(op.transpose(part, [1, 0]) for part in op.split(R, groups, axis=0)),
        product=partial(integer_product, op) if spec.rounds else operator.matmul,
        Rbh=Rbh,
        Rb=(*(op.zero((n,)) for n in others), op.concat([op.zero((last - H,)), Rbh], 0) if last > H else Rbh),
        step_bias=[op.zero((n,)) for n in groups],
        Pb=[op.zero((H,))] * len(spec.cell.peepholes),
        P=peepholes,
        f=f,
        g=g,
        h=h,
        clip=_clip(op, spec.clip),
        hidden_size=H,
        input_forget=spec.input_forget,
        linear_before_reset=spec.linear_before_reset,
    )
    return _bias_last(op, k) if spec.rounds else k


def _bias_last(op: Ops, k: CellOperands) -> CellOperands:
    """Return operands whose cell adds the bias after both products and the peepholes, as the onnxruntime kernel of
    DynamicQuantizeLSTM does (uni_directional_lstm.cc)."""
    H, bias, Pb = k.hidden_size, k.bias, k.Pb
    if k.P is not None:
        *Pb, bc = op.split(bias, [H] * 4)
        bias = op.concat([op.zero((3 * H,)), bc], 0)
    return replace(k, bias=op.zero(bias.shape), step_bias=op.split(bias, k.groups), Pb=Pb)


def _groups(op: Ops, spec: RecurrentSpec) -> list[int]:
    """Return the sizes of the gate groups of R: one product computes the gates of a group.

    A gate for which a reset gate multiplies H is a group of its own, unless it has linear_before_reset. With
    `gemm_per_activation` the gates of each activation are a group.
    """
    H, rows = spec.hidden_size, len(spec.cell.gates) * spec.hidden_size
    by_activation = op.dialect.gemm_per_activation and len(spec.cell.gates) > 1
    hidden_apart = spec.cell.resets and not spec.linear_before_reset
    return [rows - H, H] if by_activation or hidden_apart else [rows]


def _by_direction(op: Ops, spec: RecurrentSpec, symbol: str, shape: Dims) -> list[Tensor]:
    """Return an input split by its first axis, the directions: [dirs, *shape] -> for each direction [*shape]."""
    dirs = len(spec.directions)
    whole = node_input(op, spec, symbol, (dirs, *shape))
    return [op.squeeze(part, [0]) for part in op.split(whole, [1] * dirs, axis=0)]


def _clip(op: Ops, bound: float | None) -> Function:
    """Return what clips a pre-activation: nothing if no finite number of the type is beyond the bound."""
    if bound is None or bound > float(ml_dtypes.finfo(op.dtype.numpy()).max):  # type: ignore[no-untyped-call]
        return lambda x: x
    return lambda x: op.clip(x, bound)


@since(11)
def integer_product(op: Ops, a: Tensor, weights: Tensor) -> Tensor:
    """Return a [..., m, k] @ weights [k, n], where the weights are `Dequantized`.

    DynamicQuantizeLinear rounds `a` to 8 bits by the range of all its numbers, MatMulInteger multiplies. The scales
    are multiplied first, as onnxruntime does: float(product) * (scale of a * scale of the weights).
    """
    shape, constant = (*a.shape[:-1], weights.shape[-1]), weights.value
    if a.is_zero:
        return op.zero(shape)
    assert isinstance(constant, Dequantized)
    stored = constant.stored(FIRST_WITH_AXIS)
    assert stored is not None
    weights_scale, weights_zero_point = map(op.from_constant, stored.parts())
    types = [_UINT8, _FLOAT, _UINT8]
    integers, scale, zero_point = op.emit_all("DynamicQuantizeLinear", [a], [a.shape, (), ()], types)
    inputs = [integers, op.from_constant(constant.integers), zero_point, weights_zero_point]
    product = op.emit("MatMulInteger", inputs, shape, ir.DataType.INT32)
    return op.cast(product, _FLOAT) * (scale * weights_scale)


def with_added_constants(op: Ops, k: CellOperands, added: Sequence[Constant]) -> CellOperands:
    """Return the operands of a cell whose input is X plus constants: (X + c) W + b = X W + (c W + b).

    W must be constant; each constant has size 1 or [input].
    """
    for constant in added:
        assert isinstance(k.W.value, Constant)
        c = constant if constant.dtype == op.dtype else constant.cast(op.dtype)
        k = replace(k, bias=k.bias + op.from_constant(row_product(c, k.W.value)))
    return k


def side_by_side_operands(op: Ops, ks: Sequence[CellOperands]) -> CellOperands:
    """Return the operands of one recurrence that computes several side by side; its hidden size is their sum.

    The gates of the parts are interleaved. Each R must be constant; the joined R is block diagonal. The joined W is
    valid only if all parts read the same X; otherwise each part computes its X W before.

    Example: hidden sizes H0 and H1, gates a and b. The state is [h0, h1] of size H0 + H1, the gates are
    [a0, a1, b0, b1], and R of gate a is [[Ra0, 0], [0, Ra1]] of shape [H0 + H1, H0 + H1].
    """
    sizes = [k.hidden_size for k in ks]
    alike = all(k.W.shape[0] == ks[0].W.shape[0] for k in ks)
    return replace(
        _beside(op, ks),
        W=interleaved_gates(op, [k.W for k in ks], sizes) if alike else ks[0].W,
        R=tuple(_blocks(op, _diagonal(Rs), sizes, sizes) for Rs in zip(*(k.R for k in ks), strict=True)),
    )


def _beside(op: Ops, ks: Sequence[CellOperands]) -> CellOperands:
    """Return the operands of one recurrence that computes several side by side, but for W and R."""
    sizes = [k.hidden_size for k in ks]
    Ps = zip(*(k.P or [op.zero(b.shape) for b in k.Pb] for k in ks), strict=True)
    return replace(
        ks[0],
        bias=interleaved_gates(op, [k.bias for k in ks], sizes),
        Rbh=op.concat([k.Rbh for k in ks], 0),
        Rb=tuple(interleaved_gates(op, parts, sizes) for parts in zip(*(k.Rb for k in ks), strict=True)),
        P=tuple(op.concat(parts, 0) for parts in Ps) if any(k.P for k in ks) else None,
        hidden_size=sum(sizes),
    )


def layered_operands(
    op: Ops, ks: Sequence[CellOperands], *, hidden_apart: bool
) -> tuple[CellOperands, Tensor | None]:
    """Return the operands of one recurrence of layers: X of each layer is H of the layer below.

    Example: two layers with states [h0, h1]. R is [[R0, W1], [0, R1]]: layer 0 gets h0 R0, layer 1 gets
    h0 W1 + h1 R1. W is [W0, 0]. With `hidden_apart` (GRU), a second matrix holds W of the last gate, because the
    reset gate does not apply to X.
    """
    sizes = [k.hidden_size for k in ks]
    above = [op.zero((ks[0].W.shape[0] or 0, k.W.shape[1] or 0)) for k in ks[1:]]
    Ws = [*zip(*(op.split(k.W, k.groups) for k in ks[1:]), strict=True)]
    between = _blocks(op, _above(Ws.pop()), sizes, sizes) if hidden_apart else None
    Rs = zip_longest(zip(*(k.R for k in ks), strict=True), Ws, fillvalue=())
    R = tuple(_blocks(op, _diagonal(of_R) | _above(of_W), sizes, sizes) for of_R, of_W in Rs)
    return replace(_beside(op, ks), W=interleaved_gates(op, [ks[0].W, *above], sizes), R=R), between


def _diagonal(parts: Sequence[Tensor]) -> dict[tuple[int, int], Tensor]:
    """Return the blocks of a layer, or of one of several side by side, from and to its own state."""
    return {(n, n): part for n, part in enumerate(parts)}


def _above(parts: Sequence[Tensor]) -> dict[tuple[int, int], Tensor]:
    """Return the blocks from the state of each layer to the layer above it."""
    return {(n, n + 1): part for n, part in enumerate(parts)}


def _blocks(
    op: Ops, blocks: Mapping[tuple[int, int], Tensor], heights: Sequence[int], widths: Sequence[int]
) -> Tensor:
    """Return `gates_of_blocks` of constants and symbolic zeros."""
    (_, column), first = next(iter(blocks.items()))
    gates = (first.shape[-1] or 0) // widths[column]
    constants = {place: part.value for place, part in blocks.items() if isinstance(part.value, Constant)}
    if not constants:
        return op.zero((sum(heights), gates * sum(widths)))
    return op.from_constant(gates_of_blocks(constants, heights, widths, gates))


def interleaved_gates(op: Ops, parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return gate 0 of each part, gate 1 of each, ...: parts [..., G*H], with an H for each, -> [..., G*sum(H)]."""
    first = parts[0]
    if any(isinstance(part.value, ir.Value) for part in parts):
        gates = [op.split(x, [H] * ((x.shape[-1] or 0) // H)) for x, H in zip(parts, sizes, strict=True)]
        return op.concat([gate for same in zip(*gates, strict=True) for gate in same], -1)
    row = {(0, n): part for n, part in enumerate(parts)}
    if first.rank == 1:
        return op.squeeze(_blocks(op, row, [1], sizes), [0])
    return _blocks(op, row, [first.shape[0] or 0], sizes)
