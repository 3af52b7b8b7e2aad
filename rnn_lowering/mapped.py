"""The numbers of tensors, of which those in files are mapped for as long as they are used."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.types import Array


def array_of(tensor: ir.TensorProtocol) -> Array:
    """Return the array of a tensor; the file that it is in is closed as soon as the array is released."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.numpy()
    anew = ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        base_dir=tensor.base_dir,
    )
    return anew.numpy()


def in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """Return a tensor of a file as one in memory; the file is closed."""
    return ir.Tensor(array_of(tensor).copy(), tensor.dtype, name=tensor.name)
