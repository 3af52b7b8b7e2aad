"""The options of files."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import COMPARISON, FILES, QUANTIZATION
from rnn_lowering.errors import OptionError
from rnn_lowering.streaming.options import BITS, Sequences


def _calibration(name: str, given: Any) -> Sequences:
    """Take a path, or sequences by input name."""
    if isinstance(given, str | PathLike):
        return argument_checks.path(name, given)
    return argument_checks.feeds(name, given)


@dataclass(frozen=True)
class Files:
    """The options of `lower_file` about files: each attribute means the same as its keyword."""

    keep_failed: Path | None = COMPARISON.option(
        "--keep-failed FILE", "file", None, "write a model that fails the comparison to FILE"
    )
    report: Path | None = FILES.option(
        "--report FILE.json|FILE.html",
        "report",
        None,
        "write a report as JSON or as an HTML page with plots, also if the comparison fails",
    )
    external_data: str = FILES.option(
        "--external-data auto|always|never|FILE",
        "",
        "auto",
        "write large tensors to a file beside OUT.onnx (default: {default}, as in the input)",
    )
    trust_external_data: bool = FILES.switch(
        "--trust-external-data", "allow data files outside the folder of IN.onnx"
    )
    require_verified: bool = COMPARISON.switch("--require-verified", "write nothing if no comparison is possible")
    require_proven: bool = COMPARISON.switch(
        "--require-proven", "write nothing unless each lowered node is proven for every input"
    )
    calibrate: Sequences | None = QUANTIZATION.option(
        "--calibrate FILE|FOLDER",
        "file",
        None,
        "quantize the stream, with ranges measured on whole sequences: a .npy file, a .npz file with an array for "
        "each input, or a folder of such files",
        argument_checks.optional(_calibration),
    )
    bits: str = QUANTIZATION.option(
        "--bits bits", "", "w8a8", "bits of weights and of activations (default: {default})", choices=BITS
    )
    overwrite: bool = FILES.switch(
        "--force",
        "replace existing files; a data file gets a new name if one exists. Also write a quantized stream with an "
        "output below 10 dB",
    )

    def __post_init__(self) -> None:
        argument_checks.take_fields(self)
        if self.calibrate is None and self.bits != Files.bits:
            raise OptionError("the number of bits needs a calibration", hint="add --calibrate FILE, or drop --bits")
