"""Export a torch model to ONNX: used by the training scripts of this folder, and for the conformer."""

import warnings
from pathlib import Path

import guide
import torch

OPSET = 17


def export(model: torch.nn.Module, example: torch.Tensor, path: Path, *, given: str, returned: str) -> None:
    """Write a model with one input and one output to an ONNX file with open batch and time axes.

    It uses the older of torch's two exporters. In torch 2.13 the newer one fixes the time axis at the length of
    the example, as torch.export does for every recurrent layer.

    Args:
        model: The trained model.
        example: An input.
        path: The file.
        given, returned: The names of the input and the output.
    """
    axes = {0: "batch", 1: "time"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter is deprecated
        torch.onnx.export(
            model,
            (example,),
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=[given],
            output_names=[returned],
            dynamic_axes={given: axes, returned: axes},
        )


if __name__ == "__main__":
    guide.only_imported()
