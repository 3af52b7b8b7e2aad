"""DynamicQuantizeLSTM of com.microsoft: an LSTM whose products are of integers.

Source in onnxruntime: contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc. W and R are those of LSTM transposed.
Each direction, or each column of it, has a scale and a zero point. X and H are quantized at run time
(DynamicQuantizeLinear).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnn_lowering.spec.integer_weights import QuantizedTensor
from rnn_lowering.spec.node_spec import NodeReader
from rnn_lowering.types import Array, array_of, dequantized_numbers

OPERATOR = "DynamicQuantizeLSTM"

_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)


def stored_weights(
    reader: NodeReader, constants: Mapping[str, ir.TensorProtocol], dirs: int
) -> dict[str, QuantizedTensor]:
    """Return W and R in the layout of LSTM, [dirs, 4*hidden, ...], by symbol.

    Args:
        reader: The node.
        constants: Its constant inputs as they are.
        dirs: The number of its directions.

    Raises:
        InvalidNodeError: An input has a type, shape or number that the kernel does not allow.
        UnsupportedError: One is not a constant.
    """
    return {symbol: _stored(reader, symbol, constants, dirs) for symbol in "WR"}


def _stored(
    reader: NodeReader, symbol: str, constants: Mapping[str, ir.TensorProtocol], dirs: int
) -> QuantizedTensor:
    names = symbol, f"{symbol}_scale", f"{symbol}_zero_point"
    for name in names:
        if name not in constants:
            raise reader.unsupported(f"input {name} is not constant", "make it an initializer")
    weight, scale, zero_point = (constants[name] for name in names)
    if weight.dtype not in _INTEGERS:
        raise reader.invalid(f"{symbol} is of type {weight.dtype.name}, not INT8 or UINT8")
    if scale.dtype != ir.DataType.FLOAT:
        raise reader.invalid(f"{names[1]} is of type {scale.dtype.name}, not FLOAT")
    if zero_point.dtype != weight.dtype:
        wanted = f"{weight.dtype.name} as {symbol} is"
        raise reader.invalid(f"{names[2]} is of type {zero_point.dtype.name}, not {wanted}")
    shape = [int(size) for size in weight.shape.numpy()]
    if len(shape) != 3 or shape[0] != dirs or shape[2] % 4:
        raise reader.invalid(f"{symbol} has shape {shape}, not [{dirs}, ..., 4*hidden_size]")
    numbers = scale.numpy(), zero_point.numpy()
    _check_numbers(reader, names[1:], numbers, (dirs, shape[2]), weight.dtype)
    columns = [part.reshape(dirs, -1, 1) for part in numbers]
    columns[1] = columns[1][:, :1]  # the kernel reads the first of each direction
    turned = shape[0], shape[2], shape[1]
    return QuantizedTensor(
        ir.LazyTensor(
            lambda: ir.tensor(array_of(weight).transpose(0, 2, 1), dtype=weight.dtype),
            weight.dtype,
            ir.Shape(turned),
        ),
        ir.tensor(np.broadcast_to(columns[0], turned)),
        ir.tensor(np.broadcast_to(columns[1], turned), dtype=weight.dtype),
    )


def _check_numbers(
    reader: NodeReader,
    names: tuple[str, ...],
    numbers: tuple[Array, Array],
    most: tuple[int, int],
    dtype: ir.DataType,
) -> None:
    """Refuse scales and zero points that the kernel refuses or misreads."""
    for name, part in zip(names, numbers, strict=True):
        if part.shape not in (most[:1], most):
            raise reader.invalid(f"{name} has shape {list(part.shape)}, not {list(most[:1])} or {list(most)}")
    scale, zero_point = numbers
    if most[0] == 2 and scale.ndim != zero_point.ndim:
        raise reader.invalid(
            f"{names[0]} and {names[1]} have the different ranks {scale.ndim} and {zero_point.ndim}",
            "give both per direction or both per column: the kernel misreads them otherwise",
        )
    if zero_point.ndim == 2 and dtype == ir.DataType.INT8 and zero_point.any():
        raise reader.invalid(f"{names[1]} per column must be 0 for INT8 weights")
    if zero_point.ndim == 2 and (zero_point != zero_point.flat[0]).any():
        raise reader.invalid(f"{names[1]} per column has different values")


def floats(weight: QuantizedTensor) -> ir.TensorProtocol:
    """Return the dequantized numbers, computed late."""

    def compute() -> ir.TensorProtocol:
        return ir.tensor(dequantized_numbers(*map(array_of, (weight.integers, weight.scale, weight.zero_point))))

    return ir.LazyTensor(compute, ir.DataType.FLOAT, ir.Shape(weight.integers.shape.numpy()))
