"""The weights of several recurrences as one: of nodes side by side, or of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rnn_lowering.emit.constants import Constant, row_product
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.weights import Operands


def with_added_constants(op: Ops, k: Operands, added: Sequence[Constant]) -> Operands:
    """Return the operands of a cell whose input is X plus constants: (X + c) W + b = X W + (c W + b).

    W must be constant; each constant has size 1 or [input].
    """
    for constant in added:
        assert isinstance(k.W.value, Constant)
        c = constant if constant.dtype == op.dtype else constant.cast(op.dtype)
        k = replace(k, Wb=k.Wb + op.known(row_product(c, k.W.value)))
    return k


def side_by_side_operands(op: Ops, ks: Sequence[Operands]) -> Operands:
    """Return the operands of one recurrence that computes several side by side; its hidden size is their sum.

    The gates of the parts are interleaved. Each R must be constant; the joined R is block diagonal. The joined W is
    valid only if all parts read the same X; otherwise each part computes its X W before.

    Example: hidden sizes H0 and H1, gates a and b. The state is [h0, h1] of size H0 + H1, the gates are
    [a0, a1, b0, b1], and R of gate a is [[Ra0, 0], [0, Ra1]] of shape [H0 + H1, H0 + H1].
    """
    first, sizes = ks[0], [k.hidden_size for k in ks]
    alike = all(k.W.shape[0] == first.W.shape[0] for k in ks)
    peepholes: tuple[Tensor, Tensor, Tensor] | None = None
    if all(k.P is not None for k in ks):
        Pi, Po, Pf = (op.concat(parts, 0) for parts in zip(*(k.P for k in ks if k.P), strict=True))
        peepholes = Pi, Po, Pf
    return replace(
        first,
        W=interleaved_gates(op, [k.W for k in ks], sizes) if alike else first.W,
        Wb=interleaved_gates(op, [k.Wb for k in ks], sizes),
        groups=[size // sizes[0] * sum(sizes) for size in first.groups],
        R=tuple(_block_diagonal(op, parts, sizes) for parts in zip(*(k.R for k in ks), strict=True)),
        Rbh=op.concat([k.Rbh for k in ks], 0),
        Rb=tuple(interleaved_gates(op, parts, sizes) for parts in zip(*(k.Rb for k in ks), strict=True)),
        P=peepholes,
        hidden_size=sum(sizes),
    )


def layered_operands(op: Ops, ks: Sequence[Operands], *, hidden_apart: bool) -> tuple[Operands, Tensor | None]:
    """Return the operands of one recurrence of layers: X of each layer is H of the layer below.

    Example: two layers with states [h0, h1]. R is [[R0, W1], [0, R1]]: layer 0 gets h0 R0, layer 1 gets
    h0 W1 + h1 R1. W is [W0, 0]. With `hidden_apart` (GRU), a second matrix holds W of the last gate, because the
    reset gate does not apply to X.
    """
    sizes, k = [each.hidden_size for each in ks], side_by_side_operands(op, ks)
    above = [op.zero((ks[0].W.shape[0] or 0, each.W.shape[1] or 0)) for each in ks[1:]]
    W = interleaved_gates(op, [ks[0].W, *above], sizes)
    Ws = [_gates(op, each.W, each.hidden_size) for each in ks]
    Rs = [[gate for group in each.R for gate in _gates(op, group, each.hidden_size)] for each in ks]
    gates = range(len(Rs[0]))

    def matrix(gate: int, *, of_R: bool, of_W: bool) -> Tensor:
        rows = [{n: R[gate]} if of_R else {} for n, R in enumerate(Rs)]
        for n, W in enumerate(Ws[1:] if of_W else [], 1):
            rows[n - 1][n] = W[gate]
        return _block_matrix(op, rows, sizes)

    apart = gates[-1] if hidden_apart else None
    wide = [matrix(gate, of_R=True, of_W=gate != apart) for gate in gates]
    counts = [(group.shape[1] or 0) // sizes[0] for group in ks[0].R]
    left = iter(wide)
    R = tuple(op.concat([next(left) for _ in range(count)], 1) for count in counts)
    between = None if apart is None else matrix(apart, of_R=False, of_W=True)
    return replace(k, W=W, R=R), between


def _gates(op: Ops, matrix: Tensor, H: int) -> list[Tensor]:
    """Split a matrix [..., G*H] by gate."""
    return op.split(matrix, [H] * ((matrix.shape[-1] or 0) // H))


def _block_diagonal(op: Ops, parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return one block diagonal R for several R, each [H, G*H]."""
    gates = zip(*(_gates(op, part, H) for part, H in zip(parts, sizes, strict=True)), strict=True)
    return op.concat([_block_matrix(op, [{n: R} for n, R in enumerate(gate)], sizes) for gate in gates], 1)


def _block_matrix(op: Ops, rows: Sequence[Mapping[int, Tensor]], sizes: Sequence[int]) -> Tensor:
    """Return a matrix of blocks: each row has some by column, the others are zero."""
    return op.concat(
        [
            op.concat([row[n] if n in row else op.zero((H, size)) for n, size in enumerate(sizes)], 1)
            for row, H in zip(rows, sizes, strict=True)
        ],
        0,
    )


def interleaved_gates(op: Ops, parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return gate 0 of each part, gate 1 of each, ...: parts [..., G*H], with an H for each, -> [..., G*sum(H)]."""
    gates = [_gates(op, x, H) for x, H in zip(parts, sizes, strict=True)]
    return op.concat([gate for same in zip(*gates, strict=True) for gate in same], -1)
