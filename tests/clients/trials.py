"""What every client is given: small models, each with one feature of the operators, and real models."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import causal_conv
import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir
import onnxscript.optimizer
from attention import Attention
from cases import Arrays, Case, expected, feed, model
from causal_conv import STANDARD as CONVOLUTION
from graphs import MS
from oracle import DEFAULT_ACTIVATIONS, GATES
from paths import MODELS
from running import run
from stored_models import variants
from stream_models import net, over, random, recurrent
from stream_nets import enhancer, keyword_spotter

import rnn_lowering as rl
from clients.driving import Job
from clients.environments import CLIENTS
from conformance.rnn_features import activations as every_activation
from conformance.rnn_features import cases as cases
from conformance.rnn_features import saturated as saturated
from rnn_lowering import TARGETS

OPSET = 17


def activations(client: str) -> dict[str, dict[str, Case]]:
    """Each activation in each place of each operator, by operator and place; for slow clients in one place of each
    operator, by turns."""
    return {
        f"{op} {place + 1}": {
            function: case
            for turn, (function, case) in enumerate(chosen.items())
            if not CLIENTS[client].slow or turn % len(DEFAULT_ACTIVATIONS[op]) == place
        }
        for (op, place), chosen in every_activation().items()
    }


def joined(chosen: Mapping[str, Case]) -> tuple[Job, Arrays]:
    """One model with the nodes of several cases beside each other, its inputs, and its outputs in float64."""
    graph, given, truth = onnx.GraphProto(name="joined"), Arrays(), Arrays()
    for name, case in chosen.items():
        part = onnx.compose.add_prefix(model(case, OPSET), f"{name}_")
        for field in ("node", "initializer", "input", "output"):
            getattr(graph, field).extend(getattr(part.graph, field))
        given |= {f"{name}_{key}": array for key, array in feed(case).items()}
        truth |= {f"{name}_{key}": array for key, array in expected(case).items()}
    return (
        onnx.helper.make_model(graph, opset_imports=part.opset_import, ir_version=part.ir_version),
        given,
    ), truth


def contrib(client: str) -> dict[str, tuple[Job, Arrays]]:
    """Small models of com.microsoft's LinearAttention and CausalConvWithState, and their outputs in float64;
    without those whose equivalents a client cannot run."""
    found: dict[str, tuple[Job, Arrays]] = {}
    target = TARGETS[client]
    for name, node in ATTENTIONS.items() if not target.lacks else ():
        found[f"attention {name}"] = (node.model(), node.feed()), node.expected(node.feed())
    for length in (1, 33):
        conv = dataclasses.replace(CONVOLUTION, domain=MS, opset=OPSET, length=length)
        job = causal_conv.model(conv), causal_conv.feed(conv)
        found[f"convolution of {length}"] = job, causal_conv.expected(conv)
    return found


ATTENTIONS = {
    "linear": Attention("linear", opset=OPSET),
    "gated": Attention("gated", opset=OPSET),
    "delta": Attention("delta", opset=OPSET),
    "gated_delta": Attention(opset=OPSET),
    "gated_delta by key": Attention(by_key=True, opset=OPSET),
    "groups": Attention(Hq=4, opset=OPSET),
}


def names(client: str) -> list[str]:
    """The names of all small models of a client."""
    return [*cases(), *contrib(client)]


def case_for(case: Case, client: str) -> Case:
    """A case as a client can have it: ncnn has no lengths that are known at run time only."""
    return dataclasses.replace(case, lengths_from="initializer") if client == "ncnn" else case


def original(case: Case) -> Job:
    """The model with the recurrent node, and its inputs."""
    return model(case, OPSET), feed(case)


def lowered(job: Job, client: Any) -> Job:
    """A job without recurrent nodes, for a client."""
    return rl.lower(job[0], target=client), job[1]


def truth(case: Case) -> Arrays:
    """What onnxruntime gives for the original, or the operator specification where it does not support layout 1."""
    return expected(case) if "layout" in case.attributes else run(*original(case))


# Streams

FRAMES = 3
"""Of the sequences of `nets`."""


def nets() -> dict[str, tuple[onnx.ModelProto, Arrays, str]]:
    """Models with a whole sequence of FRAMES frames, and the name of their time."""
    spotter, heard = keyword_spotter()
    found = {"keyword spotter": (spotter, {"features": heard["features"][:1, :, :FRAMES]}, "time")}
    spectra = enhancer()
    found["speech enhancement"] = (spectra[0], {"spectra": spectra[1]["spectra"][:1, :, :FRAMES]}, "time")
    for name, width, file in (("logspec", 161, "nsnet2_op12"), ("feat", 42, "rnnoise_op15")):
        path = MODELS / "exported" / "nets" / f"{file}.onnx"
        if path.exists():
            found[file] = (onnx.load(path), {name: random((1, FRAMES, width), 8)}, "t")
    for op in GATES:  # the last state is an output of the model already
        model, feed = original(Case("returned", op, T=FRAMES, N=1, x="length", outputs=("Y", "Y_h")))
        found[f"{op} returned"] = (model, feed, "seq")
    return found | from_the_start()


def attention_nets() -> dict[str, tuple[onnx.ModelProto, Arrays]]:
    """Two layers of causal attention with two heads: a window of 8 frames with a bias, all past frames, and these
    behind a learned row."""
    positions = """s = Shape (P)  n = Gather (s, 1)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])
        j = Unsqueeze (r, [0])  d = Sub (i, j)  c = LessOrEqual (0, d)  e = Less (d, 8)  w = And (c, e)
        p = Clip (d, 0, 7)
        b = Gather <axis = 1> (table[2, 8], p)"""
    layer = """q{0} = MatMul ({1}, Q{0}[8, 8])  k{0} = MatMul ({1}, K{0}[8, 8])  v{0} = MatMul ({1}, V{0}[8, 8])
        q4{0} = Reshape (q{0}, [0, 0, 2, 4])  k4{0} = Reshape (k{0}, [0, 0, 2, 4])
        v4{0} = Reshape (v{0}, [0, 0, 2, 4])  qt{0} = Transpose <perm = [0, 2, 1, 3]> (q4{0})
        kt{0} = Transpose <perm = [0, 2, 3, 1]> (k4{0})  vt{0} = Transpose <perm = [0, 2, 1, 3]> (v4{0})
        a{0} = MatMul (qt{0}, kt{0})  {2}  h{0} = Softmax (m{0})  o{0} = MatMul (h{0}, vt{0})
        t{0} = Transpose <perm = [0, 2, 1, 3]> (o{0})  f{0} = Reshape (t{0}, [0, 0, 8])
        y{0} = Add ({1}, f{0})"""
    window = "z{0} = Add (a{0}, b)  m{0} = Where (w, z{0}, -1e9)"
    causal, last = "m{0} = Where (c, a{0}, -1e9)", "Y = Identity (y2)"
    parts = {
        "window": ("P = Identity (X)", window, last),
        "all past frames": ("P = Identity (X)", causal, last),
        "a row in front": (
            "P = Concat <axis = 1> (row[1, 1, 8], X)",
            causal,
            "Y = Slice (y2, [1], [9223372036854775807], [1])",
        ),
    }
    feed = {"X": random((1, 64, 8), 8)}
    return {
        name: (
            over(
                "float[1, time, 8] X",
                f"{front}  {positions}  {layer.format(1, 'P', mask.format(1))}"
                f"  {layer.format(2, 'y1', mask.format(2))}  {end}",
            ),
            feed,
        )
        for name, (front, mask, end) in parts.items()
    }


def from_the_start() -> dict[str, tuple[onnx.ModelProto, Arrays, str]]:
    """Nets whose first call differs: the first frame repeated, and an initial state that a side input gives."""
    numbers = {f"i{n}": np.array([n]) for n in (0, 1, 2)} | {"minus1": np.array([-1])}
    repeated = net(
        """g (float[1, 3, time] X) => (float[a, b, c] Y) { f = Slice (X, i0, i1, i2)
            e = Slice (X, i0, minus1, i2)  p = Concat <axis = 2> (f, e)  Y = Sub (X, p) }""",
        numbers,
    )
    given = net(
        """g (float[1, 3, time] X, float[1, 5] S) => (float[a, b, c] Y) {
            m = MatMul (S, P)  t = Tanh (m)  h = Unsqueeze (t, i0)  x = Transpose <perm = [2, 0, 1]> (X)
            y = GRU <hidden_size = 4> (x, W, R, B, , h)  s = Squeeze (y, i1)
            Y = Transpose <perm = [1, 2, 0]> (s) }""",
        {**recurrent("GRU", 3, 4), "P": random((5, 4), 3), "i0": numbers["i0"], "i1": numbers["i1"]},
    )
    X = random((1, 3, FRAMES), 1)
    return {
        "first frame repeated": (repeated, {"X": X}, "time"),
        "computed initial state": (given, {"X": X, "S": random((1, 5), 2)}, "time"),
    }


# Real models

_NETS = "exported/nets"
_TORCH = "exported/torch_legacy"
REAL = {
    "tinygrad": {
        f"{_NETS}/rnnt_predictor_joiner_op14.onnx": "u4",
        f"{_NETS}/wakeword_gru_stream_op13.onnx": "t1",
        "exported/keras_tf2onnx/k3_lstm_bi_op15.onnx": "b",
    },
    "tvm": {
        "github/snakers4__silero-vad/silero_vad_16k_op15.onnx": "16k_b1",
        "github/breizhn__DTLN/model_1.onnx": "auto0",
        f"{_NETS}/crnn_ocr_op11.onnx": "b2w64",
        f"{_NETS}/nsnet2_op12.onnx": "b2t5",
        f"{_NETS}/rnnoise_op15.onnx": "export",
    },
    "ncnn": {
        "github/snakers4__silero-vad/silero_vad_v3_op13.onnx": "n1536",
        "github/breizhn__DTLN/model_1.onnx": "auto0",
        f"{_NETS}/crnn_ocr_op11.onnx": "b2w64",
        f"{_NETS}/wakeword_gru_stream_op13.onnx": "b3",
    },
    "mnn": {
        f"{_NETS}/deepspeech2_gru_op14.onnx": "b3",
        f"{_TORCH}/lstm_packed_sorted_op17.onnx": "b4",
        f"{_TORCH}/rnn_relu_op17.onnx": "export",
    },
    "tract": {
        "github/kraiskil__onnx2c/local_ops/test_lstm_all_outputs/model.onnx": "auto0",
        f"{_TORCH}/rnn_relu_op17.onnx": "export",
        f"{_TORCH}/lstm_packed_sorted_op17.onnx": "b4",
        f"{_TORCH}/gru_packed_sorted_op17.onnx": "b4",
    },
    "iree": {
        "exported/keras_tf2onnx/k2_gru_bi_op15.onnx": "b",
        f"{_NETS}/crdnn_vad_gru_op17.onnx": "export",
        f"{_TORCH}/gru_packed_sorted_op17.onnx": "b4",
        f"{_TORCH}/lstm_packed_sorted_op17.onnx": "b4",
        f"{_TORCH}/rnn_relu_op17.onnx": "export",
    },
    "litert": {
        "github/kraiskil__onnx2c/local_ops/test_lstm_all_outputs/model.onnx": "auto0",
        "github/snakers4__silero-vad/silero_vad_16k_op15.onnx": "16k_b1",
        f"{_TORCH}/rnn_relu_op17.onnx": "export",
        f"{_TORCH}/lstm_packed_sorted_op17.onnx": "b4",
        f"{_TORCH}/gru_packed_sorted_op17.onnx": "b4",
    },
    "opencv": {
        "exported/keras_tf2onnx/k3_lstm_bi_op15.onnx": "b",
        f"{_NETS}/crdnn_vad_gru_op17.onnx": "export",
        f"{_NETS}/deepspeech2_gru_op14.onnx": "b3",
        f"{_NETS}/nsnet2_op12.onnx": "b2t5",
        f"{_NETS}/rnnoise_op15.onnx": "export",
    },
}
"""Models of real exporters that a client rejects or computes wrongly, by client, and the inputs that it gets."""


def real_original(file: str, label: str) -> Job:
    """A real model with the sizes of its inputs fixed and its constants folded, and the inputs that it has then."""
    given = dict(variants(file))[label]
    fixed = onnx.load(MODELS / file)
    for value in fixed.graph.input:
        if value.name in given:
            shape = value.type.tensor_type.shape
            shape.ClearField("dim")
            for size in given[value.name].shape:
                shape.dim.add().dim_value = size
    return without_unused(folded(fixed), given)


def real_truth(file: str, label: str) -> Arrays:
    """What onnxruntime gives for the model as it is."""
    return run(onnx.load(MODELS / file), dict(variants(file))[label])


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model without what follows from the sizes of its inputs: some have these in branches and paddings."""
    read = ir.from_proto(model)
    onnxscript.optimizer.fold_constants(
        read,
        onnx_shape_inference=True,
        should_fold=lambda node: True if node.op_type == "ConstantOfShape" else None,
    )
    onnxscript.optimizer.optimize(read)
    return ir.to_proto(read)


def without_unused(model: onnx.ModelProto, given: Arrays) -> Job:
    """Leave out the inputs that folding left without a use: some clients drop these."""
    used = {name for node in model.graph.node for name in node.input}
    for value in [value for value in model.graph.input if value.name not in used]:
        model.graph.input.remove(value)
    left = [value.name for value in model.graph.input]
    return model, {name: array for name, array in given.items() if name in left}
