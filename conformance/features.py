"""The features of the suite: for each a model, its inputs, and its outputs in float64."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import attention
import causal_conv
import numpy as np
import onnx
import quantized_lstm
from cases import Arrays, Case, expected, feed, model
from graphs import MS

from conformance import loop_features, rnn_features

OPSET = 17
RTOL, ATOL = 1e-4, 1e-5


@dataclass(frozen=True)
class Feature:
    """One model of the suite.

    Attributes:
        name: Unique; lower case, with underscores.
        group: The operator.
        label: What is special in it, for people.
        proto: The model.
        feed: Its inputs.
        expected: Its outputs, by the operator's page in float64, stored in the types of the model.
        rtol, atol: By how much a runtime may differ.
    """

    name: str
    group: str
    label: str
    proto: onnx.ModelProto
    feed: Arrays
    expected: Arrays
    rtol: float = RTOL
    atol: float = ATOL


def features() -> Iterator[Feature]:
    """Yield the suite."""
    for group, label, proto, given, wanted, limits in _all():
        name = "".join(c if c.isalnum() else "_" for c in f"{group} {label}".lower())
        outputs = {}
        for value in proto.graph.output:
            held = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(held.elem_type)
            outputs[value.name] = np.asarray(wanted[value.name]).astype(dtype)
            if not held.HasField("shape"):  # the checker wants one
                shape = outputs[value.name].shape
                value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, held.elem_type, shape))
        yield Feature(name, group, label, proto, given, outputs, **limits)


def plain_feature() -> Feature:
    """Return a model of one Sub, which is in no suite."""
    text = f'<ir_version: 8, opset_import: ["": {OPSET}]> plain (float[2,3] a, float[2,3] b) => (float[2,3] c)'
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 0.5, np.float32)
    proto = onnx.parser.parse_model(f"{text} {{ c = Sub (a, b) }}")
    return Feature("plain", "Sub", "a model of one Sub", proto, {"a": a, "b": b}, {"c": a - b})


_Row = tuple[str, str, onnx.ModelProto, Arrays, Arrays, dict[str, float]]


def _all() -> Iterator[_Row]:
    yield from _rnn()
    yield from _quantized()
    yield from _attention()
    yield from _conv()
    for loop in loop_features.features():
        given = loop_features.feed()
        yield (
            loop.name.split()[0],
            _rest(loop.name),
            loop_features.model(loop),
            given,
            loop.expected(given["X"]),
            {},
        )


def _rest(name: str) -> str:
    return name.partition(" ")[2] or "forward"


def _rnn() -> Iterator[_Row]:
    for name, case in rnn_features.cases().items():
        yield case.op_type, _rest(name), *_of(case), {}
    for (op, place), chosen in rnn_features.activations().items():
        for function, case in chosen.items():
            yield op, f"activation {place + 1} is {function}", *_of(case), {}
    for name, case in rnn_features.saturated().items():
        yield case.op_type, f"{'Softplus' if name == 'Softplus' else 'gates'} saturated", *_of(case), {}
    for op in ("RNN", "GRU", "LSTM"):
        base = Case(f"{op} of 1 step", op, {}, T=1, N=1, I=3, H=4)
        yield op, "one step, one row", *_of(base), {}
        yield op, "open sizes", *_of(replace(base, name=f"{op} open", T=4, N=2, x="symbolic")), {}
        yield op, "weights are inputs", *_of(replace(base, name=f"{op} weights", T=4, N=2, weights="input")), {}


def _of(case: Case) -> tuple[onnx.ModelProto, Arrays, Arrays]:
    return model(case, OPSET), feed(case), expected(case)


def _quantized() -> Iterator[_Row]:
    """Products of integers may fall to the other side of a rounding: one step of 8 bits is allowed."""
    of = quantized_lstm.Model
    rows = {
        "int8": of(N=1),
        "uint8": of(dtype="uint8", N=1),
        "scale of each column": of(per_column=True, N=1),
        "bidirectional": of(dirs=2, N=1),
        "peepholes": of(peepholes=True, N=1),
        "sequence_lens": of(lengths=True, N=2),
        "initial states": of(states=True, N=1),
    }
    for label, case in rows.items():
        lengths = (4, 6) if case.lengths else ()
        given = case.feed(lengths)
        # the kernel is the only definition
        wanted = dict(zip(case.outputs, quantized_lstm.run(case.proto(), given), strict=True))
        yield "DynamicQuantizeLSTM", label, case.proto(), given, wanted, {"rtol": 1e-2, "atol": 1e-2}


def _attention() -> Iterator[_Row]:
    of = attention.Attention
    for rule in attention.RULES:
        yield *_attended(rule, of(rule, T=7)), {}
    rows = {
        "decay of each key dimension": of(by_key=True),
        "gated, decay of each key dimension": of("gated", by_key=True),
        "one beta for all heads": of(one_beta=True),
        "groups of query heads": of(Hq=4),
        "inverse groups": of(Hq=2, H=4, n=2),
        "no past state": of(state=False),
        "one token": of(T=1),
        "strong decays": of(decays="strong", T=24),
        "equal keys": of(keys="equal", T=24),
        "scale": of(scale=-0.3),
        "float16": of(dtype="float16"),
    }
    for label, case in rows.items():
        limits = {"rtol": 1e-2, "atol": 2e-3} if case.dtype == "float16" else {}
        yield *_attended(label, case), limits
    yield *_attended("standard operator", of(domain=attention.STANDARD)), {}


def _attended(label: str, case: Any) -> tuple[str, str, onnx.ModelProto, Arrays, Arrays]:
    given = case.feed()
    return "LinearAttention", label, case.model(), given, case.expected(given)


def _conv() -> Iterator[_Row]:
    of = causal_conv.ConvCase
    rows = {
        "silu": of(MS),
        "no activation": of(MS, activation=None),
        "no bias, no past state": of(MS, optional=()),
        "one frame": of(MS, length=1),
        "33 frames": of(MS, length=33),
        "fewer frames than the kernel": of(MS, length=2, kernel=5),
        "kernel of 1": of(MS, kernel=1),
        "standard operator": of(""),
    }
    for label, case in rows.items():
        wanted = causal_conv.expected(case)
        yield "CausalConvWithState", label, causal_conv.model(case), causal_conv.feed(case), wanted, {}
