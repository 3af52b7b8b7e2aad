"""A model with external data in a folder, and what a folder holds."""

import hashlib
import os
from pathlib import Path

import onnx
from cases import Arrays
from running import run
from texts import parse, random_feed

LAYERS = """
main (float[6,2,16] X) => (float[6,1,2,16] Y, float[6,1,2,16] Z)
<float[1,64,16] W = {}, float[1,64,16] R = {}, float[1,128] B = {}, float[1,48,16] V = {}, float[1,48,16] S = {},
 int64[1] one = {1}, float[3] odd = {1,2,3}> {
    [lstm] Y = LSTM <hidden_size=16> (X, W, R, B)
    y = Squeeze(Y, one)
    [gru] Z = GRU <hidden_size=16, direction="reverse"> (y, V, S)
}
"""


def layers() -> onnx.ModelProto:
    return parse(LAYERS)


def write(path: Path, data: str = "weights.bin", location: str | None = None) -> Path:
    """Write the model with all large tensors in the file `data` beside it, referred to as `location`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = layers()
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0, convert_attribute=True)
    if location is not None:
        relocate(path, location)
    return path


def relocate(path: Path, location: str, **extra: int) -> None:
    """Change the data file that the tensors of a model refer to, and other entries."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key in ("location", *extra):
                entry.value = location if entry.key == "location" else str(extra[entry.key])
    path.write_bytes(model.SerializeToString())


def state(folder: Path) -> dict[str, str]:
    """Every file below a folder with a hash of its contents, every link with its target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


def results_of(path: Path) -> Arrays:
    """What onnxruntime computes from a file, reading its data itself."""
    return run(path, random_feed(layers()))
