"""Faults by the case that must notice them: each replaces one behavior of the package (see planting.py)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper
from planting import Fault, Planting

from rnn_lowering.emit.composites import can_flip, flip
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.recurrence import (
    cells,
    directions,
    equivalents,
    forms,
    sequence_lens,
    weights,
)
from rnn_lowering.recurrence.activations import FORMULAS
from rnn_lowering.recurrence.forms import Recurrence
from rnn_lowering.recurrence.sequence_lens import Lengths


def function(original: Any, fault: Callable[..., Any]) -> Fault:
    """fault(original, *arguments) runs instead of a function."""
    return lambda at: at.function(original, fault)


def method(owner: type, name: str, fault: Callable[..., Any]) -> Fault:
    """fault(original, self, *arguments) runs instead of a method."""
    return lambda at: at.method(owner, name, fault)


# Cells: a cell gets other operands, or its gates in another order


class Splitting:
    """Operators of which `split` returns other gates; all else is as it was."""

    def __init__(self, op: Any, change: Callable[[list[Any]], list[Any]]) -> None:
        self._op, self._change = op, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)

    def split(self, x: Any, sizes: Sequence[int], axis: int = -1) -> list[Any]:
        parts = self._op.split(x, sizes, axis)
        return self._change(parts) if len(set(sizes)) == 1 else parts


def other_cell(op_type: str, cell: Callable[..., list[Any]]) -> Fault:
    return lambda at: at.item(cells.STEPS, op_type, cell)


def cell(op_type: str, change: Callable[..., tuple[Any, ...]]) -> Fault:
    """A cell runs on change(op, k, states, x)."""
    original = cells.STEPS[op_type]
    return other_cell(op_type, lambda *given: original(*change(*given)))


def gates(op_type: str, count: int, change: Callable[..., list[Any]], **only: object) -> Fault:
    """The gates that a cell splits, where they are so many, are others; `only` in operands with these fields."""

    def changed(op: Any, k: Any, states: Any, x: Any) -> tuple[Any, ...]:
        def parts_of(parts: list[Any]) -> list[Any]:
            return change(op, *parts) if len(parts) == count else parts

        applies = all(getattr(k, name) == value for name, value in only.items())
        return (Splitting(op, parts_of) if applies else op), k, states, x

    return cell(op_type, changed)


def with_operands(op_type: str, **fields: Callable[[Any], Any]) -> Fault:
    """A cell gets other operands: field=what it becomes, as a function of all operands."""

    def changed(op: Any, k: Any, states: Any, x: Any) -> tuple[Any, ...]:
        return op, replace(k, **{name: change(k) for name, change in fields.items()}), states, x

    return cell(op_type, changed)


def unclipped(op_type: str, *numbers: int) -> Fault:
    """The pre-activations that a cell clips first, second, ... stay as they are."""

    def changed(op: Any, k: Any, states: Any, x: Any) -> tuple[Any, ...]:
        calls: list[None] = []

        def clip(value: Any) -> Any:
            calls.append(None)
            return value if len(calls) in numbers else k.clip(value)

        return op, replace(k, clip=clip), states, x

    return cell(op_type, changed)


def with_hidden_bias(zero: bool) -> Fault:
    """Rbh is added to the projected input: once more, or outside of the reset product."""

    def changed(op: Any, k: Any, states: Any, x: Any) -> tuple[Any, ...]:
        if not k.linear_before_reset:
            return op, k, states, x
        none = {"Rbh": k.Rbh - k.Rbh, "Rb": tuple(b - b for b in k.Rb)} if zero else {}
        return op, replace(k, **none), states, [x[0], x[1] + k.Rbh]

    return cell("GRU", changed)


def without(k: Any, field: str, index: int | None = None) -> Any:
    held = getattr(k, field)
    if held is None or not isinstance(held, tuple):
        return None if held is None else held - held
    return tuple(part - part if index in (None, n) else part for n, part in enumerate(held))


def gru(clipped: bool) -> Callable[..., list[Any]]:
    """The equations of a GRU with linear_before_reset, whose reset product is clipped or not."""
    original = cells.STEPS["GRU"]

    def equations(op: Any, k: Any, states: Any, x: Any) -> list[Any]:
        if not k.linear_before_reset:
            return original(op, k, states, x)
        (h,), (x_zr, x_h), H = states, x, k.hidden_size
        R, Rb = (op.concat(list(parts), -1) if len(parts) > 1 else parts[0] for parts in (k.R, k.Rb))
        matrix = len(h.shape) == 2
        h_zr, h_h = op.split(k.product(h, R) + Rb if matrix else k.product(h, R), [2 * H, H])
        product = h_h if matrix else h_h + k.Rbh
        zt, rt = op.split(k.f(k.clip(h_zr + x_zr)), [H, H])
        ht = k.g(k.clip(x_h + rt * (k.clip(product) if clipped else product)))
        return [ht + zt * (h - ht)]

    return equations


def lstm(fault: str) -> Callable[..., list[Any]]:
    """The equations of an LSTM, with a fault or with none."""

    def equations(op: Any, k: Any, states: Any, x: Any) -> list[Any]:
        (h, c), H = states, k.hidden_size
        sums = [k.product(h, R) + xw + b for R, xw, b in zip(k.R, x, k.step_bias, strict=True)]
        i, o, f, g = (gate for part in sums for gate in op.split(part, [H] * (part.shape[-1] // H)))
        clip = k.clip
        if k.P is not None:
            (Pi, Po, Pf), (bi, bo, bf) = k.P, k.Pb
            if fault == "clip before the peephole":
                i, f, clip = k.clip(i), k.clip(f), lambda gate: gate
            i, f = i + Pi * c + bi, f + Pf * c + bf
        it, ft, ct = k.f(clip(i)), k.f(clip(f)), k.g(k.clip(g))
        if k.input_forget:
            ft = it if fault == "f = i with input_forget" else op.constant(1.0) - it
        Ct = ft * c + (k.f(k.clip(o)) if fault == "gates i and o of LSTM swapped" else it) * ct
        if k.P is not None:
            o = o + Po * (c if fault == "output gate looks at the old C" else Ct) + bo
        ot = k.f(k.clip(o))
        return [ot * k.h(Ct), Ct]

    return equations


def formula(name: str, **forms: Callable[..., Any]) -> Fault:
    """An activation has another formula: operator= or compose=, a function of the right one and its arguments."""

    def plant(at: Planting) -> None:
        row = FORMULAS[name]
        new = {form: lambda *args, form=form: forms[form](getattr(row, form), *args) for form in forms}
        at.item(FORMULAS, name, replace(row, **new))

    return plant


# Reading: the package reads another node than is there


def attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def given(node: onnx.NodeProto, **attributes: Any) -> None:
    """Give attributes to a node; None takes one away."""
    kept = [a for a in node.attribute if a.name not in attributes]
    new = [helper.make_attribute(name, value) for name, value in attributes.items() if value is not None]
    del node.attribute[:]
    node.attribute.extend([*kept, *new])


def reading(change: Callable[..., None]) -> Fault:
    return lambda at: at.reading(lambda node, model: change(node))


def without_attribute(name: str, values: Callable[[Any], bool] = lambda value: True) -> Fault:
    """An attribute of such values is not read."""
    return reading(lambda node: given(node, **{name: None}) if values(attribute(node, name)) else None)


def default(name: str, **parameters: list[float]) -> Fault:
    """An activation has other defaults."""

    def change(node: onnx.NodeProto) -> None:
        if [text.decode() for text in attribute(node, "activations") or []] == [name]:
            given(node, **{n: attribute(node, n) or value for n, value in parameters.items()})

    return reading(change)


def by_position(node: onnx.NodeProto) -> None:
    """Alpha n belongs to activation n, whether or not it has one."""
    names, alphas = attribute(node, "activations"), attribute(node, "activation_alpha")
    if names and alphas:
        takes = {b"LeakyRelu", b"ThresholdedRelu", b"Elu", b"Affine", b"ScaledTanh", b"HardSigmoid"}
        given(node, activation_alpha=[a for name, a in zip(names, alphas, strict=False) if name in takes])


def restarting(node: onnx.NodeProto) -> None:
    """The second direction reads alpha and beta from the start of their queues."""
    if attribute(node, "direction") == b"bidirectional":
        for name in ("activation_alpha", "activation_beta"):
            values = attribute(node, name)
            if values:
                half = values[: len(values) // 2]
                given(node, **{name: [*half, *half]})


def second_of_two_names(node: onnx.NodeProto) -> None:
    names = attribute(node, "activations")
    if node.op_type == "RNN" and names and len(names) == 2 and attribute(node, "direction") != b"bidirectional":
        given(node, activations=names[1:])


def overridable_as_constants(node: onnx.NodeProto, model: onnx.ModelProto) -> None:
    """Initializers that are inputs are read as what they hold."""
    inputs = {value.name for value in model.graph.input}
    for tensor in [t for t in model.graph.initializer if t.name in inputs]:
        copy = model.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = f"{tensor.name}_held"
        node.input[:] = [copy.name if name == tensor.name else name for name in node.input]


# Weights and nodes


def half_of_B(first: bool) -> Callable[..., Any]:
    """B without its first half, the biases of X, or without its second."""

    def fault(read: Any, op: Any, spec: Any, symbol: str, shape: Any) -> Any:
        found = read(op, spec, symbol, shape)
        if symbol != "B" or found.is_zero:
            return found
        half = found.shape[-1] // 2
        Wb, Rb = op.split(found, [half, half])
        return op.concat([Wb - Wb, Rb] if first else [Wb, Rb - Rb], -1)

    return fault


def each_operands(change: Callable[[Any, Any], dict[str, Any]]) -> Fault:
    """Operands of a direction are others: change(op, k) returns the fields."""

    def fault(read: Any, op: Any, spec: Any) -> list[Any]:
        return [replace(k, **change(op, k)) for k in read(op, spec)]

    return function(weights.operands, fault)


def outputs(change: Callable[[Any, Any, dict[str, Any]], dict[str, Any]]) -> Fault:
    """A node has other outputs: change(op, spec, outputs)."""
    return function(
        equivalents.lower_rnn,
        lambda lower, op, specs, *form, **repeat: [
            change(op, spec, found) for spec, found in zip(specs, lower(op, specs, *form, **repeat), strict=True)
        ],
    )


def read_as(change: Callable[[Any], dict[str, Any]]) -> Fault:
    """A node is lowered as another: change(spec) returns the fields."""
    return function(
        equivalents.lower_rnn,
        lambda lower, op, specs, *form, **repeat: lower(
            op, [replace(spec, **change(spec)) for spec in specs], *form, **repeat
        ),
    )


def states_swapped(op: Any, spec: Any, found: dict[str, Any]) -> dict[str, Any]:
    both = {"Y_h", "Y_c"} <= found.keys()
    return found | ({"Y_h": found["Y_c"], "Y_c": found["Y_h"]} if both else {})


def initial_c_is_h(spec: Any) -> dict[str, Any]:
    c = {"initial_c": spec.inputs["initial_h"]} if "initial_c" in spec.inputs else {}
    return {"inputs": spec.inputs | c}


def run_with(change: Callable[[Any, bool, list[Any], list[Any]], tuple[list[Any], list[Any]]]) -> Fault:
    """The directions give change(op, whether one loop computes both, final states, ys)."""

    def fault(run: Any, op: Any, nodes: Any, repeat: Any, *rest: Any) -> Any:
        calls: list[None] = []

        def counted(*given: Any) -> Any:
            calls.append(None)
            return repeat(*given)

        found = run(op, nodes, counted, *rest)
        pairs = zip(nodes, found, strict=True)
        return [change(op, len(n.spec.directions) == 2 and len(calls) == 1, *results) for n, results in pairs]

    return each_run(fault)


def each_run(fault: Callable[..., Any]) -> Fault:
    """Plant a fault where directions have a loop each, and where one loop computes several."""

    def plant(at: Planting) -> None:
        at.function(directions.run_apart, fault)
        at.function(directions.run_joined, fault)

    return plant


def start_from_the_first(run: Any, op: Any, nodes: Any, *rest: Any) -> Any:
    first = [replace(node, init=[[states[0]] * len(states) for states in node.init]) for node in nodes]
    return run(op, first, *rest)


# Forms and lengths


def not_turned_back(repeat: Any, op: Any, r: Recurrence) -> Any:
    final, ys = repeat(op, r)
    return final, [flip(op, y) for y in ys] if r.reverse and can_flip(op.opset, r.xs[0].shape[0]) else ys


def forward_where_it_cannot_flip(repeat: Any, op: Any, r: Recurrence) -> Any:
    return repeat(op, replace(r, reverse=r.reverse and can_flip(op.opset, r.xs[0].shape[0])))


def always_forward(repeat: Any, op: Any, r: Recurrence) -> Any:
    return repeat(op, replace(r, reverse=False))


def from_zeros(repeat: Any, op: Any, r: Recurrence) -> Any:
    return repeat(op, replace(r, init=[op.zero(state.shape) for state in r.init]))


def another_operator_outside(repeat: Any, op: Any, r: Recurrence) -> Any:
    """What is computed once after the loop is computed from its first operand alone."""

    def changed(states: Any, rows: Any) -> Any:
        new, ys = r.step(states, rows)
        return new, [replace(y, terms=y.terms[:1] * len(y.terms)) for y in ys]

    return repeat(op, replace(r, step=changed))


def output_directions_forward(emit: Any, op: Any, op_type: str, *given: Any, **attributes: Any) -> Any:
    if "scan_output_directions" in attributes:
        attributes["scan_output_directions"] = [0] * len(attributes["scan_output_directions"])
    return emit(op, op_type, *given, **attributes)


def lengths_with(change: Callable[..., dict[str, Any]]) -> Fault:
    """Other rows are gathered: change(op, found, read(lengths) -> rows for other lengths, lengths)."""

    def fault(read: Any, op: Any, given: Any, seq: Any, batch: Any) -> Any:
        found = read(op, given, seq, batch)
        return found and replace(found, **change(op, found, lambda other: read(op, other, seq, batch), given))

    return function(sequence_lens.read_lengths, fault)


def one_less(op: Any, lengths: Any) -> Any:
    return lengths - op.constant(1, lengths.dtype)


def at_least_one(op: Any, lengths: Any) -> Any:
    return lengths + op.cast(op.less(lengths, op.constant(1, lengths.dtype)), lengths.dtype)


# Operators


def clip_of_one_side(
    inputs: bool, emit: Any, op: Any, op_type: str, values: Any, *rest: Any, **attributes: Any
) -> Any:
    """Let a Clip have no bound from above, where its bounds are inputs or where they are attributes."""
    if op_type == "Clip" and (op.opset >= 11) == inputs:
        attributes["max"] = 9e9
    return emit(op, op_type, values, *rest, **attributes)


def clip_float64(clip: Any, op: Any, x: Any, bound: float) -> Any:
    if op.dtype != ir.DataType.DOUBLE:
        return clip(op, x, bound)
    return x - op.unary("Relu", x - op.constant(bound))


def above_or_equal(_: Any, op: Any, x: Any, threshold: float) -> Any:
    return op.constant(1.0) - op.cast(op.less(x, op.constant(threshold)), x.dtype)


FAULTS: dict[tuple[str, int], dict[str, Fault]] = {
    ("RNN_Elu_float64", 13): {
        "composed Elu without its alpha": formula("Elu", compose=lambda f, op, x, a, b: f(op, x, 1.0, b)),
    },
    ("RNN_HardSigmoid_float64_of_large_arguments", 13): {
        "HardSigmoid without its upper bound": formula(
            "HardSigmoid", compose=lambda f, op, x, a, b: op.unary("Relu", x * op.constant(a) + op.constant(b))
        ),
    },
    ("RNN_T_0_length_states", 13): {
        "a Loop without a step gives the initial states": method(Ops, "zero_unless", lambda _, op, condition, x: x),
    },
    ("RNN_ThresholdedRelu_is_0_at_alpha_float64", 13): {
        "ThresholdedRelu includes its threshold": method(Ops, "above", above_or_equal),
    },
    ("RNN_clip_0", 13): {
        "clip 0 of RNN is none": without_attribute("clip", lambda clip: clip == 0),
    },
    ("RNN_clip_bidirectional", 13): {
        "RNN not clipped": unclipped("RNN", 1),
        "clip ignored": without_attribute("clip"),
        "Clip of one side": method(Ops, "emit", partial(clip_of_one_side, True)),
    },
    ("RNN_clip_float64", 9): {
        "Clip of one side in float64": method(Ops, "clip", clip_float64),
    },
    ("RNN_clip_forward", 10): {
        "Clip of one side at opset 10": method(Ops, "emit", partial(clip_of_one_side, False)),
    },
    ("RNN_default_parameters_of_Elu", 13): {
        "default alpha of Elu": default("Elu", activation_alpha=[0.9]),
    },
    ("RNN_default_parameters_of_HardSigmoid", 13): {
        "default beta of HardSigmoid": default("HardSigmoid", activation_alpha=[0.2], activation_beta=[0.6]),
    },
    ("RNN_default_parameters_of_LeakyRelu", 13): {
        "default alpha of LeakyRelu": default("LeakyRelu", activation_alpha=[0.02]),
    },
    ("RNN_forward_uses_the_first_of_two_names", 13): {
        "the second of two names": reading(second_of_two_names),
    },
    ("RNN_initial_states_bidirectional", 13): {
        "bidirectional is reverse first": read_as(lambda spec: {"directions": spec.directions[::-1]}),
        "directions joined the other way": function(
            weights.side_by_side_operands, lambda join, op, ks: join(op, ks[::-1])
        ),
        "joined Y not turned back": run_with(
            lambda op, joined, finals, ys: (finals, [ys[0], flip(op, ys[1])] if joined and ys else ys)
        ),
        "joined directions swapped": run_with(
            lambda op, joined, finals, ys: (finals[::-1] if joined else finals, ys)
        ),
        "second direction starts from the first's states": each_run(start_from_the_first),
    },
    ("RNN_initial_states_reverse", 13): {
        "Scan's Y not flipped back": function(forms.scan, not_turned_back),
        "Loop's Y not flipped back": function(forms.loop, not_turned_back),
        "unrolled reverse runs forward": function(forms.unroll, always_forward),
        "initial states ignored when unrolled": function(forms.unroll, from_zeros),
        "initial states ignored in a Scan": function(forms.scan, from_zeros),
        "initial states ignored in a Loop": function(forms.loop, from_zeros),
        "flip with a known length does not": function(
            flip, lambda flip, op, x: flip(op, x) if x.shape[0] is None or isinstance(x.value, Constant) else x
        ),
    },
    ("RNN_layout_1_bidirectional", 14): {
        "Y of layout 1 transposed wrongly": outputs(
            lambda op, spec, found: (
                found | ({"Y": op.transpose(found["Y"], [1, 0, 2, 3])} if spec.layout and "Y" in found else {})
            )
        ),
    },
    ("RNN_lengths_bidirectional_nan", 8): {
        "padding of Y kept": method(Lengths, "mask", lambda _, lengths, op, y: y),
        "final state of padded steps": method(
            Lengths,
            "final",
            lambda _, lengths, op, states: op.squeeze(op.take(states, op.dim(states, 0) - op.constant([1])), [0]),
        ),
        "length 0 keeps a state": lengths_with(lambda op, found, read, L: {"last": read(at_least_one(op, L)).last}),
        "sequence_lens off by one": lengths_with(
            lambda op, found, read, L: {"within": read(one_less(op, L)).within}
        ),
        "turned one row too far": lengths_with(
            lambda op, found, read, L: {"reversed": read(one_less(op, L)).reversed}
        ),
        "ragged Y not turned back": method(
            Lengths, "reverse", lambda reverse, lengths, op, x: x if x.rank == 4 else reverse(lengths, op, x)
        ),
        "ragged X not turned": method(
            Lengths, "reverse", lambda reverse, lengths, op, x: reverse(lengths, op, x) if x.rank == 4 else x
        ),
    },
    ("RNN_plain", 13): {
        "recurrent bias dropped": function(weights.node_input, half_of_B(first=False)),
        "input bias dropped": function(weights.node_input, half_of_B(first=True)),
    },
    ("RNN_queues_run_across_directions", 13): {
        "alpha restarts in the second direction": reading(restarting),
    },
    ("RNN_square_weights", 13): {
        "square W not transposed": each_operands(
            lambda op, k: {"W": op.transpose(k.W, [1, 0])} if k.W.shape[0] == k.W.shape[1] else {}
        ),
    },
    ("RNN_weights_overridable", 13): {
        "overridable initializers are constants": lambda at: at.reading(overridable_as_constants),
    },
    ("RNN_x_unknown", 9): {
        "Scan's Y forward at opset 9": method(Ops, "emit_all", output_directions_forward),
        "Loop counts up in reverse": function(forms.loop, forward_where_it_cannot_flip),
    },
    ("GRU_clip_bidirectional", 13): {
        "hidden gate of GRU not clipped": unclipped("GRU", 2),
    },
    ("GRU_initial_states_bidirectional", 13): {
        "gates of two directions not interleaved": function(
            weights.interleaved_gates, lambda _, op, parts, sizes: op.concat(list(parts), -1)
        ),
    },
    ("GRU_linear_before_reset_2", 13): {
        "linear_before_reset must be 1": without_attribute("linear_before_reset", lambda flag: flag != 1),
    },
    ("GRU_linear_before_reset_bidirectional", 13): {
        "GRU gates swapped with linear_before_reset": gates(
            "GRU", 2, lambda op, z, r: [r, z], linear_before_reset=True
        ),
        "Rbh outside of the reset product": with_hidden_bias(zero=True),
        "Rbh dropped": with_operands("GRU", Rbh=lambda k: without(k, "Rbh")),
        "Rbh of matrices dropped": with_operands("GRU", Rb=lambda k: without(k, "Rb")),
        "hidden bias counted twice": with_hidden_bias(zero=False),
    },
    ("GRU_linear_before_reset_clip", 13): {
        "reset product is clipped": other_cell("GRU", gru(clipped=True)),
    },
    ("GRU_plain", 13): {
        "GRU gates swapped": gates("GRU", 2, lambda op, z, r: [r, z], linear_before_reset=False),
        "GRU H swaps the old state and the new": gates("GRU", 2, lambda op, z, r: [op.constant(1.0) - z, r]),
        "reset after the product": reading(
            lambda node: given(node, linear_before_reset=1) if node.op_type == "GRU" else None
        ),
        "the operator after the loop is another": function(forms.scan, another_operator_outside),
        "0 - b is b": method(
            Ops, "binary", lambda emit, op, name, a, b: b if name == "Sub" and a.is_zero else emit(op, name, a, b)
        ),
    },
    ("GRU_queues_run_across_directions", 13): {
        "alpha and beta of ScaledTanh swapped": formula(
            "ScaledTanh", operator=lambda f, op, x, a, b: f(op, x, b, a)
        ),
        "alpha by position": reading(by_position),
    },
    ("LSTM_clip_bidirectional", 13): {
        "cell gate of LSTM not clipped": with_operands(
            "LSTM", clip=lambda k: lambda x: x, f=lambda k: lambda x: k.f(k.clip(x))
        ),
        "clip before the peephole": other_cell("LSTM", lstm("clip before the peephole")),
        "output gate with a peephole not clipped": unclipped("LSTM", 4),
        "C is clipped": with_operands("LSTM", h=lambda k: lambda x: k.h(k.clip(x))),
    },
    ("LSTM_initial_states_reverse", 13): {
        "initial_c ignored": read_as(initial_c_is_h),
    },
    ("LSTM_input_forget_1", 13): {
        "input_forget ignored": with_operands("LSTM", input_forget=lambda k: False),
        "f = i with input_forget": other_cell("LSTM", lstm("f = i with input_forget")),
    },
    ("LSTM_input_forget_2_peepholes", 13): {
        "input_forget must be 1": without_attribute("input_forget", lambda flag: flag != 1),
    },
    ("LSTM_lengths_bidirectional_nan", 8): {
        "gates swapped beside peepholes": gates("LSTM", 4, lambda op, i, o, f, g: [i, f, o, g]),
        "output gate looks at the old C": other_cell("LSTM", lstm("output gate looks at the old C")),
        "input gate's peephole dropped": with_operands("LSTM", P=lambda k: without(k, "P", 0)),
        "peepholes in the order i, f, o": each_operands(lambda op, k: {"P": k.P and (k.P[0], k.P[2], k.P[1])}),
    },
    ("LSTM_plain", 13): {
        "gates o and f of LSTM swapped": gates("LSTM", 3, lambda op, i, o, f: [i, f, o]),
        "gates i and o of LSTM swapped": other_cell("LSTM", lstm("gates i and o of LSTM swapped")),
        "Y_h and Y_c swapped": outputs(states_swapped),
    },
    ("LSTM_queues_run_across_directions", 13): {
        "activation h is g": with_operands("LSTM", h=lambda k: k.g),
        "activations g and h swapped": with_operands("LSTM", g=lambda k: k.h, h=lambda k: k.g),
    },
}
"""By the case that notices them, and its opset."""
