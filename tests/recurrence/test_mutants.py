"""Faults planted in the package: a fixed subset of the cases must notice each of them.

Each mutant is one replacement in a module. Equations are judged on NumPy arrays; for the other modules the package
is imported anew with the fault, and what it lowers runs in onnxruntime.
"""

import importlib
import sys
import warnings
from itertools import product
from typing import Any

import pytest
from cases import BY_NAME, expected, feed, model
from equations import first_wrong
from forms import FORMS, runs
from planting import Mutant, planted
from running import assert_close, run
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.recurrence import cells
from rnn_lowering.recurrence.activations import FORMULAS

SUBSET = [
    *[(f"{op}_plain", 13) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_initial_states_{d}", 13) for op in ("RNN", "GRU", "LSTM") for d in ("reverse", "bidirectional")],
    *[(f"{op}_lengths_bidirectional_nan", opset) for op in ("RNN", "GRU", "LSTM") for opset in (8, 13)],
    *[(f"{op}_clip_bidirectional", 13) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_layout_1_bidirectional", 14) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_layout_1_batch_is_length", 14) for op in ("RNN", "GRU", "LSTM")],
    *[(f"{op}_square_weights", 13) for op in ("RNN", "GRU")],
    *[(f"{op}_queues_run_across_directions", 13) for op in ("RNN", "GRU", "LSTM")],
    ("RNN_x_unknown", 9),
    ("RNN_x_unknown_reverse_states", 9),
    ("RNN_x_length", 8),
    ("RNN_T_0_length_states", 13),
    ("RNN_clip_0", 13),
    ("RNN_clip_float64", 9),
    ("RNN_clip_forward", 10),
    ("RNN_default_parameters_of_LeakyRelu", 13),
    ("RNN_default_parameters_of_HardSigmoid", 13),
    ("RNN_default_parameters_of_Elu", 13),
    ("RNN_default_parameters_of_Affine", 13),
    ("RNN_forward_uses_the_first_of_two_names", 13),
    ("RNN_ThresholdedRelu_is_0_at_alpha_float32", 13),
    ("RNN_ThresholdedRelu_is_0_at_alpha_float64", 13),
    ("RNN_ScaledTanh_float32", 13),
    ("RNN_Elu_float64", 13),
    ("RNN_HardSigmoid_float64_of_large_arguments", 13),
    ("RNN_Softplus_float64_of_large_arguments", 13),
    ("RNN_weights_overridable", 13),
    ("GRU_linear_before_reset_bidirectional", 13),
    ("GRU_linear_before_reset_clip", 13),
    ("GRU_linear_before_reset_2", 13),
    ("LSTM_alpha_is_a_queue", 13),
    ("LSTM_different_activations_float32", 13),
    ("LSTM_clip_not_of_C", 13),
    ("LSTM_peepholes_forward", 13),
    ("LSTM_input_forget_1", 13),
    ("LSTM_input_forget_2_peepholes", 13),
    ("LSTM_lengths_known", 13),
]


MUTANTS = [
    Mutant("gates o and f of LSTM swapped", "recurrence/cells", "it, ot, ft = op.split(", "it, ft, ot = op.split("),
    Mutant(
        "gates swapped beside peepholes", "recurrence/cells", "i, o, f, g = op.split(", "i, f, o, g = op.split("
    ),
    Mutant("gates i and c of LSTM swapped", "recurrence/cells", "Ct = ft * c + it * ct", "Ct = ft * c + ot * ct"),
    Mutant(
        "GRU gates swapped",
        "recurrence/cells",
        "zt, rt = op.split(k.f(k.clip(k.product(",
        "rt, zt = op.split(k.f(k.clip(k.product(",
    ),
    Mutant(
        "GRU gates swapped with linear_before_reset",
        "recurrence/cells",
        "zt, rt = op.split(k.f(k.clip(h_zr",
        "rt, zt = op.split(k.f(k.clip(h_zr",
    ),
    Mutant("GRU H swaps the old state and the new", "recurrence/cells", "ht + zt * (h - ht)", "h + zt * (ht - h)"),
    Mutant("reset after the product", "recurrence/cells", "k.product(rt * h, Rh)", "rt * k.product(h, Rh)"),
    Mutant("reset product is clipped", "recurrence/cells", "h_h + k.Rbh)", "k.clip(h_h + k.Rbh))"),
    Mutant("reset product of matrices is clipped", "recurrence/cells", "(h_h if matrix", "(k.clip(h_h) if matrix"),
    Mutant("Rbh outside of the reset product", "recurrence/cells", "else h_h + k.Rbh)", "else h_h) + k.Rbh"),
    Mutant("Rbh dropped", "recurrence/cells", "h_h + k.Rbh)", "h_h)"),
    Mutant(
        "Rbh of matrices dropped", "recurrence/cells", "k.product(h, R) + Rb if matrix", "k.product(h, R) if matrix"
    ),
    Mutant("hidden gate of GRU not clipped", "recurrence/cells", "k.g(k.clip(hidden))", "k.g(hidden)"),
    Mutant(
        "RNN not clipped", "recurrence/cells", "k.f(k.clip(k.product(h, Ri) + xi))", "k.f(k.product(h, Ri) + xi)"
    ),
    Mutant("cell gate of LSTM not clipped", "recurrence/cells", "k.g(k.clip(g))", "k.g(g)"),
    Mutant("clip before the peephole", "recurrence/cells", "i, f = i + Pi * c", "i, f = k.clip(i) + Pi * c"),
    Mutant(
        "output gate with a peephole not clipped",
        "recurrence/cells",
        "ot = k.f(k.clip(o))",
        "ot = k.f(o)",
    ),
    Mutant("C is clipped", "recurrence/cells", "k.h(Ct)", "k.h(k.clip(Ct))"),
    Mutant("output gate looks at the old C", "recurrence/cells", "Po * Ct", "Po * c"),
    Mutant("input gate's peephole dropped", "recurrence/cells", "i + Pi * c", "i"),
    Mutant("input_forget ignored", "recurrence/cells", "    if k.input_forget:", "    if False:"),
    Mutant("f = i with input_forget", "recurrence/cells", "op.constant(1.0) - it", "it"),
    Mutant("activation h is g", "recurrence/cells", "k.h(Ct)", "k.g(Ct)"),
    Mutant("activations g and h swapped", "recurrence/weights", "f, g, h = (*functions", "f, h, g = (*functions"),
    Mutant("clip ignored", "recurrence/weights", "if clip is None else", "if True else"),
    Mutant("hidden bias counted twice", "recurrence/weights", "op.concat([Rb_zr, op.zero((H,))], 0)", "Rb"),
    Mutant(
        "alpha and beta by position",
        "spec/node",
        "parameters.append(0.0 if default is None else",
        "parameters.append(queue and queue.pop(0) or 0.0 if default is None else",
    ),
    Mutant(
        "alpha restarts in the second direction",
        "spec/node",
        "alphas, betas) for name in names]",
        "alphas if n < len(default) else again, betas) for again in [[*alphas]] for n, name in enumerate(names)]",
    ),
    Mutant("the second of two names", "spec/node", "names = names[:1]", "names = names[1:]"),
    Mutant("clip 0 of RNN is none", "spec/node", "if clip >= 0 else None", "if clip > 0 else None"),
    Mutant(
        "input_forget must be 1", "spec/node", 'bool(self._flag("input_forget"))', 'self._flag("input_forget") == 1'
    ),
    Mutant(
        "linear_before_reset must be 1",
        "spec/node",
        'bool(self._flag("linear_before_reset"))',
        'self._flag("linear_before_reset") == 1',
    ),
    Mutant("bidirectional is reverse first", "spec/node", '": ("forward", "reverse")', '": ("reverse", "forward")'),
    Mutant("overridable initializers are constants", "spec/constants", "if value.is_graph_input():", "if False:"),
    Mutant("default alpha of LeakyRelu", "spec/activations", "Parameters(0.01)", "Parameters(0.02)"),
    Mutant("default beta of HardSigmoid", "spec/activations", "Parameters(0.2, 0.5)", "Parameters(0.2, 0.6)"),
    Mutant("default alpha of Elu", "spec/activations", "Parameters(1.0)", "Parameters(0.9)"),
    Mutant(
        "alpha and beta of ScaledTanh swapped",
        "recurrence/activations",
        "x * op.constant(b)) * op.constant(a)",
        "x * op.constant(a)) * op.constant(b)",
    ),
    Mutant(
        "HardSigmoid without its upper bound",
        "recurrence/activations",
        'one - op.unary("Relu", one - op.unary("Relu", line))',
        'op.unary("Relu", line)',
    ),
    Mutant(
        "composed Elu without its alpha",
        "recurrence/activations",
        "- op.constant(1.0)) * op.constant(alpha)",
        "- op.constant(1.0))",
    ),
    Mutant(
        "Scan's Y not flipped back",
        "recurrence/folds",
        "[op.flip(y) for y in stacked] if flipped",
        "stacked if flipped",
    ),
    Mutant("Loop's Y not flipped back", "recurrence/folds", "elif flipped:", "elif False:"),
    Mutant(
        "Scan's Y forward at opset 9",
        "recurrence/folds",
        '"scan_output_directions": [1]',
        '"scan_output_directions": [0]',
    ),
    Mutant("Loop counts up in reverse", "recurrence/folds", "else last - i", "else i"),
    Mutant("unrolled reverse runs forward", "recurrence/folds", "reversed(range(T)) if reverse else", ""),
    Mutant(
        "initial states ignored when unrolled",
        "recurrence/folds",
        "list(init)",
        "[op.zero(s.shape) for s in init]",
    ),
    Mutant("initial states ignored in loops", "recurrence/folds", "if not state.is_zero:", "if False:"),
    Mutant("initial_c ignored", "recurrence/node", 'f"initial_{s}"', '"initial_h"'),
    Mutant("Y_h and Y_c swapped", "recurrence/node", "_at_axis(op, final[n]", "_at_axis(op, final[-1 - n]"),
    Mutant("Y of layout 1 transposed wrongly", "recurrence/node", "[2, 0, 1, 3]", "[0, 2, 1, 3]"),
    Mutant(
        "second direction starts from the first's states", "recurrence/directions", "states[index]", "states[0]"
    ),
    Mutant("recurrent bias dropped", "recurrence/weights", "Wb=Wb + Rb,", "Wb=Wb,"),
    Mutant("input bias dropped", "recurrence/weights", "Wb=Wb + Rb,", "Wb=Rb,"),
    Mutant(
        "peepholes in the order i, f, o",
        "recurrence/weights",
        "(Pi, Po, Pf),\n        f=f",
        "(Pi, Pf, Po),\n        f=f",
    ),
    Mutant(
        "square W not transposed",
        "recurrence/weights",
        "W=op.transpose(W, [1, 0]),",
        "W=op.transpose(W, [1, 0] if W.shape[0] != W.shape[1] else [0, 1]),",
    ),
    Mutant(
        "directions joined the other way",
        "recurrence/weights",
        "for part in (zero, gate)",
        "for part in (gate, zero)",
    ),
    Mutant(
        "gates of two directions not interleaved",
        "recurrence/weights",
        "for pair in pairs for part in pair",
        "for pair in zip(*pairs) for part in pair",
    ),
    Mutant(
        "joined Y not turned back",
        "recurrence/directions",
        "return finals, [above, flip(below)]",
        "return finals, [above, below]",
    ),
    Mutant(
        "joined directions swapped",
        "recurrence/directions",
        "finals = [[half[n] for half",
        "finals = [[half[1 - n] for half",
    ),
    Mutant(
        "the operator after the loop is another",
        "recurrence/folds",
        "return list(y.terms), producer.op_type",
        'return list(y.terms), "Sub"',
    ),
    Mutant("a Loop without a step gives the initial states", "recurrence/folds", "op.zero_unless(ran, s)", "s"),
    Mutant("padding of Y kept", "recurrence/ragged", "zeros + inside * (place - zeros)", "place"),
    Mutant(
        "final state of padded steps",
        "recurrence/ragged",
        "last=zeros + some * ((L - one)",
        "last=zeros + some * ((seq - one)",
    ),
    Mutant(
        "length 0 keeps the initial state",
        "recurrence/ragged",
        "some = op.cast(op.less(op.constant([0]), L), _INT64)",
        "some = op.constant([1])",
    ),
    Mutant(
        "sequence_lens off by one",
        "recurrence/ragged",
        "within = op.less(t, L)",
        "within = op.less(t, L - op.constant([1]))",
    ),
    Mutant("turned one row too far", "recurrence/ragged", "(L - t - t - one)", "(L - t - t)"),
    Mutant(
        "ragged Y not turned back",
        "recurrence/ragged",
        "[lengths.reverse(op, y) for y in ys] if reverse",
        "ys if reverse",
    ),
    Mutant(
        "ragged X not turned",
        "recurrence/ragged",
        "[lengths.reverse(op, x) for x in xs] if reverse",
        "list(xs) if reverse",
    ),
    Mutant(
        "ThresholdedRelu includes its threshold",
        "emit/ops",
        "self.cast(self.less(self.constant(threshold), x), x.dtype)",
        "self.constant(1.0) - self.cast(self.less(x, self.constant(threshold)), x.dtype)",
    ),
    Mutant("Clip of one side at opset 10", "emit/ops", "min=-bound, max=bound", "min=-bound, max=9e9"),
    Mutant(
        "Clip of one side",
        "emit/ops",
        "self.constant(-bound), self.constant(bound)]",
        "self.constant(-9e9), self.constant(bound)]",
    ),
    Mutant("Clip of one side in float64", "emit/ops", "x - over + under", "x - over"),
    Mutant("0 - b is b", "emit/ops", "return self.neg(b) if", "return b if"),
    Mutant("flip with a known length does not", "emit/ops", "range(length - 1, -1, -1)", "range(length)"),
]


@pytest.mark.parametrize("mutant", thinned(MUTANTS, 6), ids=lambda m: m.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with planted(mutant) as package:
        imported = importlib.import_module(mutant.imported_as)
        if mutant.module == "recurrence/cells":
            assert first_wrong(imported, FORMULAS)
        elif mutant.module == "recurrence/activations":
            assert first_wrong(cells, imported.FORMULAS)
        else:
            mismatch, errors = first_mismatch(package)
            assert mismatch, errors


def test_the_package_itself_passes() -> None:
    assert first_wrong(cells, FORMULAS) == ""
    assert first_mismatch(rl) == ("", [])


def test_a_planted_fault_is_gone_afterwards() -> None:
    before = sys.modules["rnn_lowering.recurrence.cells"]
    with planted(MUTANTS[0]) as package:
        assert package is not rl
        assert importlib.import_module(MUTANTS[0].imported_as) is not before
    assert sys.modules["rnn_lowering.recurrence.cells"] is before
    assert sys.modules["rnn_lowering"] is rl


def first_mismatch(package: Any) -> tuple[str, list[str]]:
    """The first case that a package computes wrongly, if any, and those that did not run before it."""
    errors = []
    for name, opset in SUBSET:
        case = BY_NAME[name]
        for form, target in product(FORMS, ("portable", "onnxruntime")):
            if not runs(case, form, opset) or (target == "onnxruntime" and form == "unroll"):
                continue
            label = f"{name} {form} {opset} for {target}"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results = run(package.lower(model(case, opset), form, target=target), feed(case))
            except Exception as error:
                errors.append(f"{label}: {error!r}")
                continue
            try:
                assert_close(results, expected(case), case.dtype)
            except AssertionError:
                return label, errors
    return "", errors
