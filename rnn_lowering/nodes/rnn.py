"""What an RNN, GRU, LSTM or DynamicQuantizeLSTM specifies: the only place that knows their attributes and defaults.

`RecurrentSpec.parse` checks everything that the specification and onnxruntime require, and edits nothing.
Specifications: https://onnx.ai/onnx/operators/onnx__RNN.html, onnx__GRU.html and onnx__LSTM.html.

DynamicQuantizeLSTM of com.microsoft is an LSTM whose products are of integers: X and H are quantized at run time
(DynamicQuantizeLinear). W and R are those of LSTM transposed; each direction, or each column of it, has a scale and
a zero point. Source in onnxruntime: contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.constants import QuantizedTensor, quantized_of
from rnn_lowering.nodes.connections import Connections, KnownInputs, SpecifiedShape, agree, describe
from rnn_lowering.nodes.kinds import DYNAMIC_QUANTIZE_LSTM, Cell, cell_of
from rnn_lowering.nodes.spec import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.types import Array, Dims, array_of, dequantized_numbers

DIRECTIONS = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}

_QUANTIZED_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class Parameters:
    """The parameters of an activation function.

    Attributes:
        alpha: Its default, None for a function without alpha.
        beta: Its default, None for a function without beta.
        defaults_disputed: onnxruntime's defaults (given here) are not those of the operator specification.
    """

    alpha: float | None = None
    beta: float | None = None
    defaults_disputed: bool = False


ACTIVATION_PARAMETERS = {
    "Relu": Parameters(),
    "Tanh": Parameters(),
    "Sigmoid": Parameters(),
    "Affine": Parameters(0.0, 0.0, defaults_disputed=True),
    "ScaledTanh": Parameters(0.0, 0.0, defaults_disputed=True),
    "LeakyRelu": Parameters(0.01),
    "ThresholdedRelu": Parameters(0.0, defaults_disputed=True),
    "HardSigmoid": Parameters(0.2, 0.5),
    "Elu": Parameters(1.0),
    "Softsign": Parameters(),
    "Softplus": Parameters(),
}

_CANONICAL_NAMES = {name.lower(): name for name in ACTIVATION_PARAMETERS}
"""Names are valid in any letter case."""


@dataclass(frozen=True)
class ActivationSpec:
    """An activation of one gate in one direction, with its parameters (0.0 for one that it does not have)."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __str__(self) -> str:
        row = ACTIVATION_PARAMETERS[self.name]
        parameters = [(row.alpha, self.alpha), (row.beta, self.beta)]
        numbers = [f"{number:g}" for default, number in parameters if default is not None]
        return f"{self.name}({', '.join(numbers)})" if numbers else self.name


@dataclass(frozen=True, kw_only=True, repr=False)
class RecurrentSpec(NodeSpec):
    """A validated RNN, GRU or LSTM node.

    Attributes:
        node: Its name, operator and scope.
        cell: The gates and states of its operator.
        version: Version of the operator: 1, 3, 7, 14 or 22.
        dtype: Element type T of the operator specification.
        directions: ("forward",), ("reverse",) or ("forward", "reverse").
        hidden_size: From the attribute or the shape of R.
        seq_length, batch_size, input_size: T, N and I; None if unknown.
        layout: 0: X is [seq, batch, input]; 1: X is [batch, seq, input].
        activations: One tuple per direction.
        clip: Bound of the pre-activations, None for none.
        input_forget: LSTM: whether f = 1 - i.
        linear_before_reset: GRU: whether the recurrent bias is inside the product with the reset gate.
        inputs: The connected inputs by their names in the operator specification.
        outputs: The outputs that something uses, by their names in the operator specification.
        constants: The tensors of those inputs that are constants.
        quantized: W and R, where the model stores them as integers behind DequantizeLinear.
        warnings: How unclear attributes were interpreted.
        rounds: Whether X and H are rounded to 8 bits before products (DynamicQuantizeLSTM); W and R are then as in
            LSTM, dequantized among the constants.
        gives_sequence: Whether the node has an output Y, used or not.
        shape_of_X: The sizes of X that follow from its own shape; other inputs may tell more of T, N and I.
        stored: The constants as the node has them.

    Examples:
        >>> lstm, gru = rl.inspect(model)
        >>> lstm.op_type, lstm.hidden_size, lstm.seq_length, gru.linear_before_reset
        ('LSTM', 16, None, True)
    """

    data = "X"

    cell: Cell = field(repr=False)
    hidden_size: int
    directions: tuple[str, ...]
    layout: int
    activations: tuple[tuple[ActivationSpec, ...], ...]
    clip: float | None
    input_forget: bool
    linear_before_reset: bool
    gives_sequence: bool = False
    shape_of_X: Dims | None = field(default=None, repr=False)  # noqa: N815

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        if slot == 0:
            layout = next((a.i for a in node.attribute if a.name == "layout"), 0)
            return InputRole(("N", "T") if layout else ("T", "N"), is_data=True)
        if slot in dict(cell_of(node).state_slots().values()):
            return InputRole((None, "N"), is_state=True)
        return InputRole(is_lengths=slot == 4)

    @property
    def op_type(self) -> str:
        """RNN, GRU or LSTM."""
        return self.cell.operator

    @property
    def details(self) -> str:
        return ", ".join(str(a) for per_direction in self.activations for a in per_direction)

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        return _axes_of(self.cell, self.layout).get(symbol, ())

    def dtype_of(self, symbol: str) -> ir.DataType:
        return ir.DataType.INT32 if symbol == "sequence_lens" else self.dtype

    def as_floats(self) -> RecurrentSpec:
        """Return the node with floats for weights that are stored as integers; X and H are rounded no more."""
        return replace(self, quantized={}, rounds=False)

    @property
    def used_by_steps(self) -> Sequence[str]:
        return ("R", "P", "B") if self.linear_before_reset else ("R", "P")

    @classmethod
    def read(cls, reader: NodeReader) -> RecurrentSpec:
        rounds = reader.node.op_type == DYNAMIC_QUANTIZE_LSTM
        cell = cell_of(reader.node)
        connections = _RnnConnections(reader.node, reader.ref, reader.schema, reader.opset, reader.known)
        directions, stored = _directions(reader), dict(connections.constants)
        if rounds:
            connections.quantized = _stored_weights(reader, stored, len(directions))
            connections.constants |= {s: _floats(q) for s, q in connections.quantized.items()}
        layout = reader.choice("layout", 0, (0, 1))
        hidden_size = connections.hidden_size(reader.attribute("hidden_size", None), len(cell.gates))
        sizes = connections.sizes(cell, len(directions), hidden_size, layout)
        activations = _activations(reader, cell, len(directions), connections.warnings)
        connections.check_lengths(sizes.get("seq_length"))
        return cls(
            **connections.fields() | {"stored": stored},
            cell=cell,
            dtype=connections.dtype(),
            directions=directions,
            hidden_size=hidden_size,
            seq_length=sizes.get("seq_length"),
            batch_size=sizes.get("batch_size"),
            input_size=sizes.get("input_size"),
            layout=layout,
            activations=activations,
            clip=_clip(reader),
            input_forget=bool(reader.attribute("input_forget", 0)),
            linear_before_reset=bool(reader.attribute("linear_before_reset", 0)),
            quantized=connections.quantized,
            rounds=rounds,
            gives_sequence=reader.gives(0),
            shape_of_X=connections.dims("X"),
        )


_AXES: dict[str | int, AxisName] = {"seq_length": "T", "batch_size": "N"}


@cache
def _axes_of(cell: Cell, layout: int) -> Mapping[str, tuple[AxisName, ...]]:
    """Return what runs along each axis of inputs and outputs, by symbol: it is asked often."""
    shapes = _specified_shapes(cell, 1, 1, layout)
    return {symbol: tuple(_AXES.get(size) for size in shape) for symbol, shape in shapes.items()}


class _RnnConnections(Connections):
    """The connections of an RNN, GRU or LSTM.

    Attributes:
        quantized: W and R, where the model stores them as integers.
    """

    def __init__(
        self, node: ir.Node, ref: NodeRef, schema: onnx.defs.OpSchema, opset: int, known: KnownInputs
    ) -> None:
        super().__init__(node, ref, schema, opset, known)
        weights = {
            symbol: quantized_of(self.inputs[symbol], opset) for symbol in ("W", "R") if symbol in self.constants
        }
        self.quantized: dict[str, QuantizedTensor] = {
            symbol: weight for symbol, weight in weights.items() if weight is not None
        }

    def dtype(self) -> ir.DataType:
        """Return the element type T of the operator specification."""
        types = {s: t for s, t in self.types().items() if not s.endswith(("_scale", "_zero_point"))}
        lengths = types.pop("sequence_lens", ir.DataType.INT32)
        if lengths != ir.DataType.INT32:
            raise self.invalid(f"sequence_lens is {lengths.name}, not INT32")
        return self.common_type(types)

    def hidden_size(self, declared: int | None, gates: int) -> int:
        """Return hidden_size from the shapes, which its attribute, if there is one, must agree with."""
        if declared is not None and declared <= 0:
            raise self.invalid(f"hidden_size is {declared}", "it must be positive")
        rows, shape = self.dims("W"), self.dims("R")
        if shape is not None and len(shape) == 3 and shape[2] is not None:
            size = shape[2]
        elif declared is not None:
            size = int(declared)
        elif rows is not None and len(rows) == 3 and rows[1] is not None:
            size = rows[1] // gates
        else:
            raise self.invalid("neither hidden_size nor the shape of R is known", "set the attribute hidden_size")
        if declared is not None and size != declared:
            raise self.invalid(f"hidden_size is {declared}, but R has {size} columns")
        if size <= 0:
            raise self.invalid(f"R has {size} columns", "it must be positive")
        return size

    def sizes(self, cell: Cell, dirs: int, hidden: int, layout: int) -> dict[str, int]:
        """Return those of seq_length, batch_size and input_size that are known; the shapes must agree on them."""
        wanted = _specified_shapes(cell, dirs, hidden, layout)
        shapes = {symbol: shape for symbol in wanted if (shape := self.dims(symbol)) is not None}
        sizes, wrong = agree(shapes, wanted)
        if wrong is None:
            return sizes
        if "X" in shapes and self.inputs["X"].producer() is not None:
            without_x, still_wrong = agree({s: shape for s, shape in shapes.items() if s != "X"}, wanted)
            if still_wrong is None:
                declared = list(shapes["X"])
                self.warnings.append(f"{self.ref}: the declared shape {declared} of X cannot be right: ignored")
                return without_x
        reason = f"{wrong} has shape {list(shapes[wrong])}, not {describe(wanted[wrong], sizes)}"
        if (
            wrong == "initial_c"
            and shapes[wrong][-1] != hidden
            and shapes.get("initial_h", (hidden,))[-1] == hidden
        ):
            raise self.invalid(
                reason,
                "torch.onnx.export loses a projection (proj_size): export its steps as a loop over Linear layers",
            )
        raise self.invalid(reason)

    def check_lengths(self, seq_length: int | None) -> None:
        """Refuse constant sequence_lens out of range."""
        tensor = self.constants.get("sequence_lens")
        if tensor is None:
            return
        lengths = tensor.numpy()
        longest = math.inf if seq_length is None else seq_length
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= longest):
            raise self.invalid(f"sequence_lens is {lengths.tolist()}", f"values from 0 to {longest} are allowed")


def _specified_shapes(cell: Cell, dirs: int, hidden: int, layout: int) -> dict[str, SpecifiedShape]:
    """Return the shapes of inputs and outputs by symbol; "seq_length", "batch_size" and "input_size" are to be
    found."""
    state: SpecifiedShape = ("batch_size", dirs, hidden) if layout else (dirs, "batch_size", hidden)
    steps: SpecifiedShape = ("batch_size", "seq_length") if layout else ("seq_length", "batch_size")
    gates = len(cell.gates)
    return {
        "W": (dirs, gates * hidden, "input_size"),
        "R": (dirs, gates * hidden, hidden),
        "B": (dirs, 2 * gates * hidden),
        "P": (dirs, len(cell.peepholes) * hidden),
        "sequence_lens": ("batch_size",),
        **dict.fromkeys(cell.initial_states, state),
        "X": (*steps, "input_size"),
        "Y": (*steps, dirs, hidden) if layout else ("seq_length", dirs, "batch_size", hidden),
        **{f"Y_{name}": state for name in cell.states},
    }


def _directions(reader: NodeReader) -> tuple[str, ...]:
    if reader.attribute("direction", "") == "foward" and reader.schema.since_version < 7:
        return DIRECTIONS["forward"]  # the default in the schema of GRU-1, a typing error
    return DIRECTIONS[reader.choice("direction", "forward", DIRECTIONS)]


def _clip(reader: NodeReader) -> float | None:
    clip = reader.attribute("clip", None)
    if clip is None or clip == math.inf:
        return None
    if reader.node.op_type != "RNN" and not clip > 0:
        raise reader.invalid(f"clip is {clip:g}", "it must be positive; remove the attribute for no clipping")
    return float(clip) if clip >= 0 else None  # a negative or NaN clip of an RNN is none


def _activations(
    reader: NodeReader, cell: Cell, directions: int, warnings: list[str]
) -> tuple[tuple[ActivationSpec, ...], ...]:
    """Return the activations of each direction; add to `warnings` which defaults are unclear."""
    default = cell.activations
    names = list(reader.attribute("activations", ())) or list(default * directions)
    wanted = len(default) * directions
    if cell.operator == "RNN" and directions == 1 and len(names) == 2:
        names = names[:1]  # the specification's own default has two
    if len(names) != wanted:
        raise reader.invalid(
            f"{len(names)} activations, not {wanted}", f"a {cell.operator} has {len(default)} per direction"
        )
    alphas, betas = (list(reader.attribute(f"activation_{name}", ())) for name in ("alpha", "beta"))
    parsed = [_activation(reader, name, alphas, betas, warnings) for name in names]
    return tuple(tuple(parsed[n : n + len(default)]) for n in range(0, wanted, len(default)))


def _activation(
    reader: NodeReader, name: str, alphas: list[float], betas: list[float], warnings: list[str]
) -> ActivationSpec:
    """Read one activation; alpha and beta are queues, read only by activations that have such a parameter."""
    canonical = _CANONICAL_NAMES.get(name.lower())
    if canonical is None:
        known = ", ".join(ACTIVATION_PARAMETERS)
        raise reader.invalid(f"activation '{name}' does not exist", f"known are {known}")
    row = ACTIVATION_PARAMETERS[canonical]
    parameters: list[float] = []
    defaulted = False
    for default, queue in ((row.alpha, alphas), (row.beta, betas)):
        defaulted = defaulted or (default is not None and not queue)
        # A FLOAT attribute holds 32 bits, and so does its default.
        parameters.append(0.0 if default is None else float(np.float32(queue.pop(0) if queue else default)))
    activation = ActivationSpec(canonical, parameters[0], parameters[1])
    if defaulted and row.defaults_disputed:
        warnings.append(
            f"{reader.ref}: the parameters of {canonical} are missing; the result uses {activation}, as "
            "onnxruntime does, not the defaults of the operator specification; set activation_alpha and "
            "activation_beta"
        )
    return activation


def _stored_weights(
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
    if weight.dtype not in _QUANTIZED_TYPES:
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


def _floats(weight: QuantizedTensor) -> ir.TensorProtocol:
    """Return the dequantized numbers, computed late."""

    def compute() -> ir.TensorProtocol:
        return ir.tensor(dequantized_numbers(*map(array_of, (weight.integers, weight.scale, weight.zero_point))))

    return ir.LazyTensor(compute, ir.DataType.FLOAT, ir.Shape(weight.integers.shape.numpy()))
