"""Make one step model of an encoder and two decoders that keep no states, as DeepFilterNet's three files.

    python examples/join_models.py                                # nets of that shape, with random weights
    python examples/join_models.py joined.onnx enc.onnx erb_dec.onnx df_dec.onnx     # joins your files

Called frame by frame, each file starts anew with each frame: GRUs from zeros, convolutions without past frames. The
script joins the files: an output of the encoder becomes the input of that name. It then makes a stream, and
prints how far both are from the whole sequence. It needs numpy, onnxruntime and rnn_lowering.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guide  # noqa: F401  (says what is missing)
import numpy as np
import onnx
import onnxruntime
from onnx import compose, numpy_helper

import rnn_lowering as rl

BANDS, BINS, CHANNELS, HIDDEN, FRAMES = 32, 24, 4, 48, 100
Arrays = dict[str, Any]


def joined(encoder: onnx.ModelProto, *decoders: onnx.ModelProto) -> onnx.ModelProto:
    """Return one model with the inputs of the encoder, and the outputs of all that no decoder reads."""
    names = [value.name for value in encoder.graph.output]
    read = {value.name for decoder in decoders for value in decoder.graph.input}
    results = [name for name in names if name not in read]
    model = encoder
    for n, decoder in enumerate(decoders):
        own = compose.add_prefix(decoder, f"decoder_{n}/", rename_inputs=False, rename_outputs=False)
        later = {value.name for other in decoders[n + 1 :] for value in other.graph.input}
        results += [value.name for value in decoder.graph.output]
        kept = [name for name in (*names, *results) if name in later or name in results]
        links = [(value.name, value.name) for value in decoder.graph.input]
        model = compose.merge_models(model, own, links, outputs=list(dict.fromkeys(kept)))
    return model


GRU = (
    "rows = Transpose <perm = [1, 0, 2]> ({x})"
    " all = GRU <hidden_size = 48, linear_before_reset = 1> (rows, W, R, B)"
    " one = Constant <value_ints = [1]> () flat = Squeeze (all, one) {y} = Transpose <perm = [1, 0, 2]> (flat) "
)
ROWS = (
    "{x}t = Transpose <perm = [0, 2, 1, 3]> ({x}) {x}s = Constant <value_ints = [0, 0, -1]> ()"
    " {y} = Reshape ({x}t, {x}s) "
)
IMAGE = (
    "{x}s = Constant <value_ints = [0, 0, 1, -1]> () {x}i = Reshape ({x}, {x}s)"
    " {y} = Transpose <perm = [0, 2, 1, 3]> ({x}i) "
)
CAUSAL = "{y}c = Conv <pads = [2, 1, 0, 1]> ({x}, {y}w) {y} = Relu ({y}c) "
"""Nodes from {x} to {y}, as ONNX's text."""


def nets() -> dict[str, onnx.ModelProto]:
    """Return nets in the shape of DeepFilterNet's: causal convolutions, and a GRU in each."""
    e0, c0 = f"float[1,{CHANNELS},S,{BANDS}] e0", f"float[1,{CHANNELS},S,{BINS}] c0"
    emb = f"float[1,S,{HIDDEN}] emb"
    inside = CHANNELS * (BANDS + BINS)
    encoder = CAUSAL.format(x="feat_erb", y="e0") + CAUSAL.format(x="feat_spec", y="c0")
    encoder += ROWS.format(x="e0", y="u") + ROWS.format(x="c0", y="v")
    encoder += "both = Concat <axis = -1> (u, v) x = MatMul (both, V) "
    encoder += GRU.format(x="x", y="emb") + "l = MatMul (emb, L) lsnr = Sigmoid (l)"
    bands = GRU.format(x="emb", y="h") + "k = MatMul (h, K) " + IMAGE.format(x="k", y="image")
    bands += "e = Conv (e0, E) a = Add (e, image) m = Sigmoid (a)"
    filters = GRU.format(x="emb", y="h") + "k = MatMul (h, K) " + IMAGE.format(x="k", y="image")
    filters += CAUSAL.format(x="c0", y="d") + "coefs = Add (d, image)"
    given = f"float[1,1,S,{BANDS}] feat_erb, float[1,2,S,{BINS}] feat_spec"
    convolutions = {"e0w": (CHANNELS, 1, 3, 3), "c0w": (CHANNELS, 2, 3, 3)}
    return {
        "enc": net(
            f"({given}) => ({e0}, {c0}, {emb}, float[1,S,1] lsnr) {{ {encoder} }}",
            {**convolutions, "V": (inside, HIDDEN), "L": (HIDDEN, 1)},
        ),
        "erb_dec": net(
            f"({emb}, {e0}) => (float[1,1,S,{BANDS}] m) {{ {bands} }}",
            {"K": (HIDDEN, BANDS), "E": (1, CHANNELS, 1, 1)},
        ),
        "df_dec": net(
            f"({emb}, {c0}) => (float[1,2,S,{BINS}] coefs) {{ {filters} }}",
            {"K": (HIDDEN, BINS), "dw": (2, CHANNELS, 3, 3)},
        ),
    }


def net(text: str, shapes: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Return a model of this text with a GRU and other weights, all random."""
    rng = np.random.default_rng(0)
    gates = 3 * HIDDEN
    shapes = {**shapes, "W": (1, gates, HIDDEN), "R": (1, gates, HIDDEN), "B": (1, 2 * gates)}
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net {text}')
    for name, shape in shapes.items():
        array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def runner(model: onnx.ModelProto) -> Callable[[Arrays], Arrays]:
    """Return a function from the inputs of a model, among others, to its outputs by name."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    return lambda given: dict(zip(outputs, session.run(None, {name: given[name] for name in names}), strict=True))


def one_after_the_other(models: dict[str, onnx.ModelProto]) -> Callable[[Arrays], Arrays]:
    """Return a function that runs all files, as a host without states does."""
    runs = [runner(model) for model in models.values()]

    def call(given: Arrays) -> Arrays:
        for run in runs:
            given = {**given, **run(given)}
        return given

    return call


def main(arguments: list[str]) -> None:
    """Join files, or compare nets of that shape."""
    if arguments:
        output, *paths = arguments
        onnx.save(joined(*map(onnx.load, paths)), output)
        print(f"written to {output}; next: rnn-lower {output} {Path(output).stem}_step.onnx --stream S=1")
        return
    rng = np.random.default_rng(0)
    sequence = {
        "feat_erb": rng.standard_normal((1, 1, FRAMES, BANDS)).astype(np.float32),
        "feat_spec": rng.standard_normal((1, 2, FRAMES, BINS)).astype(np.float32),
    }
    frames = [{name: array[:, :, t : t + 1] for name, array in sequence.items()} for t in range(FRAMES)]
    files = nets()
    run = one_after_the_other(files)
    expected = run(sequence)
    stream = rl.Stream(rl.lower(joined(*files.values()), stream={"S": 1}).SerializeToString())
    calls = {"three files": [run(frame) for frame in frames], "one stream ": [stream(frame) for frame in frames]}
    print(f"{FRAMES} frames, one per call: largest difference to the whole sequence")
    for how, got in calls.items():
        far = {
            name: np.abs(np.concatenate([each[name] for each in got], axis) - expected[name]).max()
            for name, axis in {"lsnr": 1, "m": 2, "coefs": 2}.items()
        }
        print(f"{how}  " + ", ".join(f"{name} {value:.1e}" for name, value in far.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
