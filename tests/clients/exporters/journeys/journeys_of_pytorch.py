"""The nets of nets_of_*.py as both exporters of PyTorch write them, and quantized.

    python journeys_of_pytorch.py FOLDER [NET.EXPORTER ...]

writes NET.older.onnx, NET.dynamo.onnx, NET.fixed.onnx (dynamo, no open axis) and NET.int8.onnx (by
onnxruntime), and beside each its runs: see exported.py. What an exporter cannot write leaves NET.EXPORTER.error.
"""

import multiprocessing
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from exported import Feed, save_runs
from inputs import Sizes, Words, feed, fixed, open_axes, runs
from nets_of_motion import MOTION
from nets_of_series import SERIES
from nets_of_sound import SOUND
from nets_of_speech import SPEECH
from nets_of_structures import STRUCTURES
from nets_of_text import TEXT
from nets_of_today import TODAY
from torch import nn
from torch.utils import _pytree

ALL = SPEECH | SOUND | TEXT | SERIES | MOTION | TODAY | STRUCTURES

OPSET = 17
"""What the older exporter writes."""

FIXED = (
    *("tagger", "crnn", "autoencoder", "vad", "convlstm", "elman", "forecaster"),
    *("band_split", "gestures", "pitch", "recommender", "spectrogram", "variational", "sketch", "elmo"),
)
INT8 = (
    *("tagger", "crnn", "keyword_spotting", "forecaster", "policy", "language_model"),
    *("names_in_letters", "residual_grus", "siamese", "speaker_encoder", "elmo", "awd", "languages", "characters"),
)
STATIC = ("crnn", "keyword_spotting", "activity", "tagger")


def exports() -> list[str]:
    """NET.EXPORTER of all."""
    dynamo = [name for name, net in ALL.items() if net.dynamo and any(map(open_axes, net.inputs.values()))]
    names = {"older": ALL, "dynamo": dynamo, "fixed": FIXED, "int8": INT8, "static": STATIC}
    return [f"{name}.{exporter}" for exporter, nets in names.items() for name in nets]


def save(name: str, exporter: str, folder: Path) -> None:
    """Write a net, as an exporter does, and its runs."""
    net, path = ALL[name], folder / f"{name}.{exporter}.onnx"
    opened = {"dynamo": net.dynamo, "fixed": ()}.get(exporter, ("batch", "time"))
    inputs = fixed(net.inputs, net.lengths[0], opened)
    torch.manual_seed(0)
    made = net.make().eval()
    given = {name: torch.from_numpy(array) for name, array in feed(inputs, net.lengths[0]).items()}
    if exporter in ("int8", "static"):
        older = folder / f"{name}.to_quantize.{exporter}"
        of_torchscript(made, given, inputs, older)
        quantize(older, path, Calibration(inputs, net.lengths[0]) if exporter == "static" else None)
        older.unlink()
    else:
        (of_torchscript if exporter == "older" else of_dynamo)(made, given, inputs, path)

    def compute(given: Feed) -> Sequence[Any]:
        with torch.no_grad():
            computed = made(*(torch.from_numpy(array) for array in given.values()))
        return [value.numpy() for value in _pytree.tree_leaves(computed)]

    save_runs(path, list(runs(inputs, net.lengths)), compute)


def of_torchscript(net: nn.Module, given: dict[str, Any], inputs: Words, path: Path) -> None:
    axes = {name: open_axes(words) for name, words in inputs.items() if open_axes(words)}
    options: Any = {"opset_version": OPSET, "input_names": list(given), "dynamic_axes": axes}
    torch.onnx.export(net, tuple(given.values()), path, dynamo=False, **options)


def of_dynamo(net: nn.Module, given: dict[str, Any], inputs: Words, path: Path) -> None:
    axes = tuple(open_axes(words) for words in inputs.values())
    options: Any = {"input_names": list(given), "dynamic_shapes": (axes,) if any(axes) else None}
    torch.onnx.export(net, tuple(given.values()), path, dynamo=True, external_data=False, verbose=False, **options)


class Calibration:
    """The inputs from which `quantize_static` learns ranges."""

    def __init__(self, inputs: Words, sizes: Sizes) -> None:
        self.feeds = iter([feed(inputs, sizes, seed) for seed in range(4)])

    def get_next(self) -> Any:
        return next(self.feeds, None)


def quantize(path: Path, to: Path, calibration: Calibration | None) -> None:
    from onnxruntime.quantization import quantize_dynamic, quantize_static

    if calibration:
        quantize_static(path, to, calibration)
    else:
        quantize_dynamic(path, to)


def attempt(journey: str, folder: Path) -> None:
    try:
        name, exporter = journey.split(".")
        save(name, exporter, folder)
    except Exception as error:
        (folder / f"{journey}.error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if len(sys.argv) < 2:
        print(*exports(), sep="\n")
    # dynamo opens the axes of an LSTM in the first export of a process only.
    for journey in sys.argv[2:]:
        process = multiprocessing.get_context("fork").Process(target=attempt, args=(journey, Path(sys.argv[1])))
        process.start()
        process.join()
