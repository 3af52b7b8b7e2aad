"""The suite as files, in the layout of ONNX's own backend tests.

DIR/features.json                             name, group, label, rtol and atol of each
DIR/NAME/model.onnx
DIR/NAME/test_data_set_0/input_0.pb           TensorProto, in the order of the graph's inputs
DIR/NAME/test_data_set_0/output_0.pb
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from conformance.features import Feature, features, plain_feature

INDEX = "features.json"
KEYS = ("name", "group", "label", "rtol", "atol")


def write(folder: Path) -> int:
    """Write all features into a new folder; return how many there are.

    Raises:
        FileExistsError: The folder exists and is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    index = []
    for feature in features():
        _write(feature, folder)
        index.append({key: getattr(feature, key) for key in KEYS})
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return len(index)


def _write(feature: Feature, folder: Path) -> None:
    data = folder / feature.name / "test_data_set_0"
    write_arrays(data, "input", {value.name: feature.feed[value.name] for value in feature.proto.graph.input})
    write_arrays(data, "output", feature.expected)
    onnx.save(feature.proto, data.parent / "model.onnx")


def write_arrays(folder: Path, kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the tensors of a data set in their order; `kind` is "input" or "output"."""
    folder.mkdir(parents=True, exist_ok=True)
    for n, (name, array) in enumerate(arrays.items()):
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        (folder / f"{kind}_{n}.pb").write_bytes(tensor.SerializeToString())


@dataclass(frozen=True)
class Stored:
    """A feature as it was written."""

    name: str
    group: str
    label: str
    rtol: float
    atol: float
    folder: Path

    def arrays(self, kind: str) -> dict[str, npt.NDArray[np.generic]]:
        """Return its inputs or outputs; `kind` is "input" or "output"."""
        return read_arrays(self.folder / "test_data_set_0", kind)


def read_arrays(folder: Path, kind: str) -> dict[str, npt.NDArray[np.generic]]:
    """Return the tensors of a data set by name, in their order."""
    found = {}
    for n in range(len(list(folder.glob(f"{kind}_*.pb")))):
        tensor = onnx.TensorProto.FromString((folder / f"{kind}_{n}.pb").read_bytes())
        found[tensor.name or str(n)] = numpy_helper.to_array(tensor)
    return found


def plain(folder: Path) -> Stored:
    """Write a model without a recurrent node, which tells a command that works from one that rejects all."""
    feature = plain_feature()
    _write(feature, folder)
    return Stored(**{key: getattr(feature, key) for key in KEYS}, folder=folder / feature.name)


def stored(folder: Path) -> Iterator[Stored]:
    """Yield the features of a folder."""
    for row in json.loads((folder / INDEX).read_text()):
        yield Stored(**row, folder=folder / row["name"])
