"""What a recurrent node specifies: the only place that knows attributes, their defaults and the operator versions.

`RecurrentSpec.parse` validates everything that the specification and onnxruntime require, and edits nothing.
Specifications: https://onnx.ai/onnx/operators/onnx__RNN.html, onnx__GRU.html and onnx__LSTM.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.errors import InvalidNodeError, NodeRef, UnsupportedError, boundary
from rnn_lowering.spec import dynamic_quantize_lstm
from rnn_lowering.spec.connections import Connections, InputFacts
from rnn_lowering.spec.integer_weights import QuantizedTensor


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


ACTIVATIONS = {
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

CANONICAL_NAMES = {name.lower(): name for name in ACTIVATIONS}
"""Names are valid in any letter case."""


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""Gates per operator: W and R have GATES * hidden_size rows in each direction."""

DIRECTIONS = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}

_DEFAULT_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@dataclass(frozen=True)
class Activation:
    """An activation of one gate in one direction, with its parameters (0.0 for one that it does not have)."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __str__(self) -> str:
        row = ACTIVATIONS[self.name]
        taken = [(row.alpha, self.alpha), (row.beta, self.beta)]
        numbers = [f"{number:g}" for default, number in taken if default is not None]
        return f"{self.name}({', '.join(numbers)})" if numbers else self.name


@dataclass(frozen=True)
class RecurrentSpec:
    """A validated RNN, GRU or LSTM node.

    Attributes:
        node: Its name, operator and scope.
        version: Version of the operator: 1, 3, 7, 14 or 22.
        dtype: Element type T of the operator specification.
        directions: ("forward",), ("reverse",) or ("forward", "reverse").
        hidden_size: From the attribute or the shape of R.
        seq_length, batch_size, input_size: T, N and I; None where they are not known.
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
        stored: The constants as the node has them.

    Example:
        >>> lstm, gru = rl.inspect(model)
        >>> lstm.op_type, lstm.hidden_size, lstm.seq_length, gru.linear_before_reset
        ('LSTM', 16, None, True)
    """

    node: NodeRef
    version: int
    dtype: ir.DataType
    directions: tuple[str, ...]
    hidden_size: int
    seq_length: int | None
    batch_size: int | None
    input_size: int | None
    layout: int
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    input_forget: bool
    linear_before_reset: bool
    inputs: Mapping[str, ir.Value] = field(repr=False)
    outputs: Mapping[str, ir.Value] = field(repr=False)
    constants: Mapping[str, ir.TensorProtocol] = field(repr=False)
    warnings: tuple[str, ...] = ()
    quantized: Mapping[str, QuantizedTensor] = field(default_factory=dict, repr=False)
    rounds: bool = False
    gives_sequence: bool = False
    stored: Mapping[str, ir.TensorProtocol] = field(default_factory=dict, repr=False)

    @property
    def op_type(self) -> str:
        """RNN, GRU or LSTM."""
        return "LSTM" if self.node.operator == dynamic_quantize_lstm.OPERATOR else self.node.operator

    def as_floats(self) -> RecurrentSpec:
        """Return the node with floats for weights that are stored as integers; X and H are rounded no more."""
        return replace(self, quantized={}, rounds=False)

    @classmethod
    def parse(
        cls,
        node: ir.Node,
        opset: int,
        scope: str = "main graph",
        known: InputFacts = MappingProxyType({}),
    ) -> RecurrentSpec:
        """Read a node of the default domain at `opset`.

        Args:
            node: The node.
            opset: The version of the default domain that its graph imports.
            scope: Where the node is, for messages.
            known: Types and shapes of inputs that count instead of the declared ones.

        Raises:
            InvalidNodeError: It specifies what its operator does not allow.
            UnsupportedError: Its opset is newer than the onnx package knows, or it is in a function and refers to
                the function's attributes.
        """
        with boundary(node_ref(node, scope)):
            return _NodeReader(node, opset, scope).parse(known)


DEFAULT_DOMAIN = ("", "ai.onnx")
"""The two names of ONNX's own domain. In the intermediate form a node has the first, an opset import either."""


def is_recurrent(node: ir.Node | onnx.NodeProto) -> bool:
    """Whether a node is an RNN, GRU or LSTM of the default domain, or onnxruntime's DynamicQuantizeLSTM."""
    if node.op_type == dynamic_quantize_lstm.OPERATOR:
        return node.domain == dynamic_quantize_lstm.DOMAIN
    return node.op_type in GATES and node.domain in DEFAULT_DOMAIN


def default_opset(imports: Mapping[str, int]) -> int:
    """Return the version of the default domain among opset imports."""
    return next((imports[name] for name in DEFAULT_DOMAIN if name in imports), 1)


def node_ref(node: ir.Node, scope: str) -> NodeRef:
    """Return the reference of a node; one without a name goes by its first output."""
    name = node.name or next((f"-> {v.name}" for v in node.outputs if v.name), "unnamed")
    return NodeRef(name, node.op_type, scope)


class _NodeReader:
    """The reading of one node: holds what every step of it needs."""

    def __init__(self, node: ir.Node, opset: int, scope: str) -> None:
        self.node = node
        self.ref = node_ref(node, scope)
        self.rounds = node.op_type == dynamic_quantize_lstm.OPERATOR
        self.op_type = "LSTM" if self.rounds else node.op_type
        newest = onnx.defs.onnx_opset_version()
        if not 1 <= opset <= newest:
            raise UnsupportedError(
                f"opset {opset} is not one that the installed onnx package knows (1 to {newest})",
                hint="upgrade the onnx package, or correct the model's opset import",
                node=self.ref,
            )
        self.opset = opset
        self.schema = (
            dynamic_quantize_lstm.schema() if self.rounds else onnx.defs.get_schema(self.op_type, opset, "")
        )
        self.version = self.schema.since_version
        self.warnings: list[str] = []

    def invalid(self, reason: str, hint: str = "") -> InvalidNodeError:
        return InvalidNodeError(reason, hint=hint, node=self.ref)

    def parse(self, known: InputFacts) -> RecurrentSpec:
        self._check_attributes()
        connections = Connections(self.node, self.ref, self.schema, self.opset, known)
        directions = self._directions()
        stored = dict(connections.constants)
        if self.rounds:
            connections.quantized = dynamic_quantize_lstm.stored_weights(
                self.ref, stored, len(directions), connections.inputs
            )
            connections.constants |= {s: dynamic_quantize_lstm.floats(q) for s, q in connections.quantized.items()}
        layout = self._flag("layout")
        if layout not in (0, 1):
            raise self.invalid(f"layout is {layout}", "0 and 1 are allowed")
        gates = GATES[self.op_type]
        hidden_size = connections.hidden_size(self._attribute("hidden_size", None), gates)
        sizes = connections.sizes(gates, len(directions), hidden_size, layout)
        activations = self._activations(len(directions))
        spec = RecurrentSpec(
            node=self.ref,
            version=self.version,
            dtype=connections.dtype(),
            directions=directions,
            hidden_size=hidden_size,
            seq_length=sizes.get("seq_length"),
            batch_size=sizes.get("batch_size"),
            input_size=sizes.get("input_size"),
            layout=layout,
            activations=activations,
            clip=self._clip(),
            input_forget=bool(self._flag("input_forget")),
            linear_before_reset=bool(self._flag("linear_before_reset")),
            inputs=connections.inputs,
            outputs=connections.outputs,
            constants=connections.constants,
            warnings=(*connections.warnings, *self.warnings),
            quantized=connections.quantized,
            rounds=self.rounds,
            gives_sequence=bool(self.node.outputs and self.node.outputs[0].name),
            stored=stored,
        )
        connections.check_lengths(spec.seq_length)
        return spec

    def _check_attributes(self) -> None:
        for name, attribute in self.node.attributes.items():
            known = self.schema.attributes.get(name)
            if known is None:
                raise self.invalid(
                    f"{self.op_type}-{self.version} has no attribute '{name}'",
                    f"its attributes are {', '.join(sorted(self.schema.attributes))}",
                )
            if attribute.is_ref():
                raise UnsupportedError(
                    f"attribute '{name}' refers to the function's attribute '{attribute.ref_attr_name}'",
                    hint="inline the function first (onnx.inliner)",
                    node=self.ref,
                )
            wanted = str(known.type).rpartition(".")[2]
            if attribute.type.name != wanted:
                raise self.invalid(f"attribute '{name}' is of type {attribute.type.name}, not {wanted}")

    def _attribute(self, name: str, default: Any) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def _flag(self, name: str) -> int:
        return int(self._attribute(name, 0))

    def _directions(self) -> tuple[str, ...]:
        direction = self._attribute("direction", "forward")
        if direction == "foward" and self.version < 7:
            direction = "forward"  # the default in the schema of GRU-1, a typing error
        if direction not in DIRECTIONS:
            raise self.invalid(f"direction is '{direction}'", f"{', '.join(DIRECTIONS)} are allowed")
        return DIRECTIONS[direction]

    def _clip(self) -> float | None:
        clip = self._attribute("clip", None)
        if clip is None or clip == math.inf:
            return None
        if self.op_type != "RNN" and not clip > 0:
            raise self.invalid(f"clip is {clip:g}", "it must be positive; remove the attribute for no clipping")
        return float(clip) if clip >= 0 else None  # a negative or NaN clip of an RNN is none

    def _activations(self, num_directions: int) -> tuple[tuple[Activation, ...], ...]:
        default = _DEFAULT_ACTIVATIONS[self.op_type]
        names = list(self._attribute("activations", ())) or list(default * num_directions)
        wanted = len(default) * num_directions
        if self.op_type == "RNN" and num_directions == 1 and len(names) == 2:
            names = names[:1]  # the specification's own default has two
        if len(names) != wanted:
            raise self.invalid(
                f"{len(names)} activations, not {wanted}",
                f"a {self.op_type} has {len(default)} per direction",
            )
        alphas = list(self._attribute("activation_alpha", ()))
        betas = list(self._attribute("activation_beta", ()))
        parsed = [self._activation(name, alphas, betas) for name in names]
        return tuple(tuple(parsed[n : n + len(default)]) for n in range(0, wanted, len(default)))

    def _activation(self, name: str, alphas: list[float], betas: list[float]) -> Activation:
        """Read one activation; alpha and beta are queues, read only by activations that have such a parameter."""
        canonical = CANONICAL_NAMES.get(name.lower())
        if canonical is None:
            raise self.invalid(f"activation '{name}' does not exist", f"known are {', '.join(ACTIVATIONS)}")
        row = ACTIVATIONS[canonical]
        parameters: list[float] = []
        defaulted = False
        for default, queue in ((row.alpha, alphas), (row.beta, betas)):
            defaulted = defaulted or (default is not None and not queue)
            # A FLOAT attribute holds 32 bits, and so does its default.
            parameters.append(0.0 if default is None else float(np.float32(queue.pop(0) if queue else default)))
        activation = Activation(canonical, parameters[0], parameters[1])
        if defaulted and row.defaults_disputed:
            self.warnings.append(
                f"{self.ref}: parameters of {canonical} are not given; onnxruntime's default 0 is used, which is "
                f"not that of the operator specification: {activation}; set activation_alpha and activation_beta"
            )
        return activation
