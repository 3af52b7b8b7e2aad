"""Tensors of a model that is made for one run: large ones go into one file, beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.types import array_of

_LARGE = 1 << 16
"""Smaller tensors, in bytes, are in the model itself: onnxruntime folds and fuses only such."""

_ALIGNMENT = 64


class TensorFile:
    """Makes protos of tensors: small ones with their data, large ones as external data.

    Args:
        folder: Where large tensors are written that are in no file yet, each once. None: every proto has its data.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._file = None if folder is None else folder / "tensors.data"
        self._written: dict[int, tuple[ir.TensorProtocol, onnx.TensorProto]] = {}

    def proto(self, tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
        """Return the proto of a tensor; bfloat16 becomes float32, which onnxruntime's CPU kernels support.

        Locations start from the root of the file system, links followed: a `Session` needs `data=root(...)`.
        """
        half = tensor.dtype == ir.DataType.BFLOAT16
        if self._file is None or tensor.nbytes < _LARGE or tensor.dtype == ir.DataType.STRING:
            return _inline(tensor, name, half)
        if isinstance(tensor, ir.ExternalTensor) and not half:
            return _reference(name, tensor, Path(tensor.path), tensor.offset or 0)
        if id(tensor) not in self._written:  # the tensor is kept with it: another may not get its identity
            self._written[id(tensor)] = tensor, self._write(tensor, half)
        copy = onnx.TensorProto()
        copy.CopyFrom(self._written[id(tensor)][1])
        copy.name = name
        return copy

    def _write(self, tensor: ir.TensorProtocol, half: bool) -> onnx.TensorProto:
        assert self._file is not None
        stored = ir.Tensor(array_of(tensor).astype(np.float32)) if half else tensor
        with self._file.open("ab") as file:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            offset = file.tell()
            file.write(stored.tobytes())
        return _reference("", stored, self._file, offset)


def root(path: Path) -> Path:
    """Return the folder that references start from."""
    return Path(path.absolute().anchor)


def _inline(tensor: ir.TensorProtocol, name: str, half: bool) -> onnx.TensorProto:
    array = array_of(tensor)
    held = ir.Tensor(array.astype(np.float32), name=name) if half else ir.Tensor(array, tensor.dtype, name=name)
    proto: onnx.TensorProto = ir.to_proto(held)
    return proto


def _reference(name: str, tensor: ir.TensorProtocol, path: Path, offset: int) -> onnx.TensorProto:
    place = path.resolve()
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
    proto.data_location = onnx.TensorProto.EXTERNAL
    fields = {"location": place.relative_to(place.anchor).as_posix(), "offset": offset, "length": tensor.nbytes}
    for key, value in fields.items():
        proto.external_data.add(key=key, value=str(value))
    return proto
