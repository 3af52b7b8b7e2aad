"""The step equations of RNN, GRU and LSTM, in the notation of the operator specification:
https://onnx.ai/onnx/operators/onnx__RNN.html, onnx__GRU.html and onnx__LSTM.html.

A cell maps (op, operands, states, projected inputs) to the new states; the first is Ht, which is also the output.
It only uses `split`, `constant`, `name` and `dialect` of op, the functions in the operands, and + - * of tensors.

The projected inputs are Xt*(W^T) + Wb + Rb, with the gates in the order of the specification (z, r, h; i, o, f, c).
Rbh of a GRU with linear_before_reset, and the bias of a DynamicQuantizeLSTM, are added in the step.
The product with R is the left term of its sum, since one runtime computes a plain RNN wrongly otherwise. Where the
specification leaves something open, onnxruntime decides:
onnxruntime/core/providers/cpu/rnn/{rnn.cc, deep_cpu_gru.cc, uni_directional_lstm.cc}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.weights import CellOperands

CellStep = Callable[[Ops, CellOperands, Sequence[Tensor], Sequence[Tensor]], list[Tensor]]


def rnn(op: Ops, k: CellOperands, state: Sequence[Tensor], x: Sequence[Tensor]) -> list[Tensor]:
    """Ht = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi)."""
    (h,), (xi,), (Ri,) = state, x, k.R
    Ht = k.f(k.clip(k.product(h, Ri) + xi))
    op.name(Ht=Ht)
    return [Ht]


def gru(op: Ops, k: CellOperands, state: Sequence[Tensor], x: Sequence[Tensor]) -> list[Tensor]:
    """zt = f(Xt*(Wz^T) + Ht-1*(Rz^T) + Wbz + Rbz)
    rt = f(Xt*(Wr^T) + Ht-1*(Rr^T) + Wbr + Rbr)
    ht = g(Xt*(Wh^T) + (rt (.) Ht-1)*(Rh^T) + Rbh + Wbh)    when linear_before_reset = 0
    ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh)  when linear_before_reset != 0
    Ht = (1 - zt) (.) ht + zt (.) Ht-1, here as ht + zt (.) (Ht-1 - ht)
    """
    (h,), (x_zr, x_h), H = state, x, k.hidden_size
    if k.linear_before_reset:
        matrix = len(h.shape) == 2  # then a product and a sum are one kernel in onnxruntime and ncnn
        sums = [k.product(h, R) + Rb if matrix else k.product(h, R) for R, Rb in zip(k.R, k.Rb, strict=True)]
        h_zr, h_h = _split_groups(op, sums, [2 * H, H])
        zt, rt = op.split(k.f(k.clip(h_zr + x_zr)), [H, H])
        hidden = x_h + rt * (h_h if matrix else h_h + k.Rbh)  # in this order tract makes it a part of the product
    else:
        R_zr, Rh = k.R
        zt, rt = op.split(k.f(k.clip(k.product(h, R_zr) + x_zr)), [H, H])
        hidden = k.product(rt * h, Rh) + x_h
    ht = k.g(k.clip(hidden))
    Ht = ht + zt * (h - ht)
    op.name(zt=zt, rt=rt, ht=ht, Ht=Ht)
    return [Ht]


def lstm(op: Ops, k: CellOperands, state: Sequence[Tensor], x: Sequence[Tensor]) -> list[Tensor]:
    """it = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Pi (.) Ct-1 + Wbi + Rbi)
    ft = f(Xt*(Wf^T) + Ht-1*(Rf^T) + Pf (.) Ct-1 + Wbf + Rbf), or 1 - it with input_forget
    ct = g(Xt*(Wc^T) + Ht-1*(Rc^T) + Wbc + Rbc)
    Ct = ft (.) Ct-1 + it (.) ct
    ot = f(Xt*(Wo^T) + Ht-1*(Ro^T) + Po (.) Ct + Wbo + Rbo)
    Ht = ot (.) h(Ct)
    """
    (h, c), H = state, k.hidden_size
    sums = [k.product(h, R) + xw + b for R, xw, b in zip(k.R, x, k.step_bias, strict=True)]
    together = k.P is None and not op.dialect.gates_apart  # f is applied to three gates at once
    if together:
        iof, g = _split_groups(op, sums, [3 * H, H])
        it, ot, ft = op.split(k.f(k.clip(iof)), [H, H, H])
    else:
        i, o, f, g = op.split(sums[0], [H] * 4) if len(sums) == 1 else [*op.split(sums[0], [H] * 3), sums[1]]
        if k.P is not None:
            (Pi, Po, Pf), (bi, bo, bf) = k.P, k.Pb
            i, f = i + Pi * c + bi, f + Pf * c + bf
        it, ft = k.f(k.clip(i)), k.f(k.clip(f))
    if k.input_forget:
        ft = op.constant(1.0) - it
    ct = k.g(k.clip(g))
    Ct = ft * c + it * ct
    if k.P is not None:
        o = o + Po * Ct + bo
    if not together:
        ot = k.f(k.clip(o))
    Ht = ot * k.h(Ct)
    op.name(it=it, ot=ot, ft=ft, ct=ct, Ct=Ct, Ht=Ht)
    return [Ht, Ct]


def _split_groups(op: Ops, groups: list[Tensor], sizes: list[int]) -> list[Tensor]:
    """Return one tensor for each size: the groups themselves, or the one group split."""
    return groups if len(groups) == len(sizes) else op.split(groups[0], sizes)


STEPS: dict[str, CellStep] = {"RNN": rnn, "GRU": gru, "LSTM": lstm}
"""By the operator of the `Cell`."""
