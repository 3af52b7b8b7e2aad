"""What recurrent nodes of every kind specify (`NodeSpec`), and what reads it from a node (`NodeReader`)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import onnx
import onnx_ir as ir
from typing_extensions import Self

from rnn_lowering.errors import InvalidNodeError, NodeRef, UnsupportedError, boundary
from rnn_lowering.facts.constants import QuantizedTensor
from rnn_lowering.facts.contrib_schemas import CONTRIB_SCHEMAS, DOMAIN
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.nodes.connections import REQUIRED, Connections, KnownInputs
from rnn_lowering.types import Array, in_brackets

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

AxisName = Literal["T", "N"] | None
"""The content of an axis: "T" for steps, "N" for rows of the batch, None for anything else."""


def axis_by_name(name: str) -> AxisName:
    """Return what runs along an axis of this name, None if the name does not say."""
    if re.search(r"batch|^b$|^n$|bs\b", name.lower()):
        return "N"
    if re.search(r"seq|time|len|^t$|frame|step|width", name.lower()):
        return "T"
    return None


@dataclass(frozen=True)
class InputRole:
    """The role of an input of a recurrent node, by its slot.

    Attributes:
        axes: The content of its first axes.
        is_data: Whether it has a row for each step.
        is_state: Whether it is a state before the first step.
        is_lengths: Whether it holds lengths of sequences.
        bounds: Between which numbers it usually is; None for any.
    """

    axes: tuple[AxisName, ...] = ()
    is_data: bool = False
    is_state: bool = False
    is_lengths: bool = False
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class NodeSpec(ABC):
    """A validated recurrent node. A kind of recurrent nodes is a subclass, with a row in `kinds.KINDS`.

    Attributes:
        node: Its name, operator and scope.
        version: Version of the operator.
        dtype: Its element type.
        seq_length, batch_size: T and N; None if unknown.
        inputs: The connected inputs by their names in the operator specification.
        outputs: The outputs that something uses, by their names in the operator specification.
        constants: The tensors of those inputs that are constants.
        warnings: How unclear attributes were interpreted.
        stored: The constants as the node has them.
        quantized: Weights that the model stores as integers behind DequantizeLinear.
        rounds: Whether its products round their operands to 8 bits.
        input_size, hidden_size: I and H, of kinds that have them; None if unknown.
        directions: ("forward",), ("reverse",) or ("forward", "reverse").

    Examples:
        >>> [(spec.op_type, spec.seq_length, spec.direction, spec.details) for spec in rl.inspect(model)]
        [('LSTM', None, 'forward', 'Sigmoid, Tanh, Tanh'), ('GRU', None, 'forward', 'Sigmoid, Tanh')]
        >>> print(rl.inspect(model)[0])
        LSTM node '/lstm/LSTM' in main graph: version 14, float, forward, T ?, N 1, I 80, H 16, Sigmoid, Tanh, Tanh
    """

    node: NodeRef
    version: int
    dtype: ir.DataType
    seq_length: int | None
    batch_size: int | None
    inputs: Mapping[str, ir.Value] = field(repr=False)
    outputs: Mapping[str, ir.Value] = field(repr=False)
    constants: Mapping[str, ir.TensorProtocol] = field(repr=False)
    warnings: tuple[str, ...] = ()
    stored: Mapping[str, ir.TensorProtocol] = field(default_factory=dict, repr=False)
    quantized: Mapping[str, QuantizedTensor] = field(default_factory=dict, repr=False)
    rounds: bool = False
    input_size: int | None = None
    hidden_size: int | None = None
    directions: tuple[str, ...] = ("forward",)

    roles: ClassVar[Mapping[int, InputRole]] = MappingProxyType({})
    """By slot, the inputs that are no weights, where no attribute decides."""

    data: ClassVar[str]
    """The input that has a row for each step, and every row of the batch."""

    repeats: ClassVar[bool] = True
    """Whether it has steps; otherwise it is a straight line at any length."""

    in_float32: ClassVar[bool] = False
    """Whether it computes in float32 whatever its element type is."""

    @classmethod
    def parse(
        cls, node: ir.Node, opset: int, scope: str = "main graph", known: KnownInputs = MappingProxyType({})
    ) -> Self:
        """Read a node of this kind.

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
        ref = node_ref(node, scope)
        with boundary(ref):
            _check_opset(opset, ref)
            reader = NodeReader(node, opset, ref, known)
            reader.check_attributes()
            return cls.read(reader)

    @classmethod
    @abstractmethod
    def read(cls, reader: NodeReader) -> Self:
        """Return what a node of this kind specifies; its attributes have the names and types of its operator's."""

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        """Return what input number `slot` of a node is, which may not be valid."""
        return cls.roles.get(slot, InputRole())

    @classmethod
    def fits(cls, node: ir.Node) -> bool:
        """Return whether a node may be of this kind, where the model also has a function of the operator's name."""
        return True

    __repr__ = in_brackets

    def __str__(self) -> str:
        """Return the node, its version and type, its sizes (?: not known) and its activations in one line."""
        sizes = {"T": self.seq_length, "N": self.batch_size, "I": self.input_size, "H": self.hidden_size}
        texts = [f"{symbol} {'?' if size is None else size}" for symbol, size in sizes.items()]
        facts = [f"version {self.version}", self.dtype.name.lower(), self.direction, *texts, self.details]
        return f"{self.node}: {', '.join(filter(None, facts))}"

    @property
    def op_type(self) -> str:
        """The operator whose steps it computes."""
        return self.node.operator

    @property
    def direction(self) -> str:
        """forward, reverse or bidirectional."""
        return self.directions[0] if len(self.directions) == 1 else "bidirectional"

    @property
    @abstractmethod
    def details(self) -> str:
        """Its other attributes in a few words, for tables."""

    @abstractmethod
    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        """Return what runs along each axis of an input or output."""

    def of_rows(self, arrays: Mapping[str, Array], rows: slice) -> dict[str, Array]:
        """Return inputs or outputs of some rows of the batch, by symbol; weights have none, nor wrong ranks."""
        axes = {s: self.axes(s) for s, array in arrays.items() if array.ndim == self.rank(s)}
        index = {s: (*[slice(None)] * names.index("N"), rows) for s, names in axes.items() if "N" in names}
        return {s: array[index[s]] if s in index else array for s, array in arrays.items()}

    def rank(self, symbol: str) -> int:
        """Return the rank of an input or output."""
        return len(self.axes(symbol))

    def dtype_of(self, symbol: str) -> ir.DataType:
        """Return the element type of an input or output."""
        return self.dtype

    def computes_in(self, *, widen: bool) -> ir.DataType:
        """Return the element type to compute in; with `widen`, float32 in place of half precision."""
        return ir.DataType.FLOAT if self.in_float32 or (widen and self.dtype in _HALF) else self.dtype

    def as_floats(self) -> Self:
        """Return the node with floats for weights that are stored as integers."""
        return self

    @property
    def straight_line_reason(self) -> str:
        """Why it is a straight line in any form; "" if it is not."""
        if not self.repeats:
            return "it has no steps"
        T = self.seq_length
        return f"sequence length {T} needs no loop" if T is not None and T <= 1 else ""

    @property
    def used_by_steps(self) -> Sequence[str]:
        """The inputs that every step uses besides its row."""
        return ()

    @property
    def steps_of_chunk(self) -> int:
        """Maximum steps of a chunk, for kinds with the form "chunked"."""
        return 1

    def why_not(self, form: str) -> str:
        """Return why nodes of this kind have no such form; empty if they have."""
        if form != "chunked":
            return ""
        return f"the step of {self.op_type} is not linear in its state, so steps cannot be joined into chunks"

    def preferred_form(self) -> str:
        """Return the form that runs fastest nearly everywhere; "" if the runtime decides."""
        return ""


def node_ref(node: ir.Node, scope: str = "main graph") -> NodeRef:
    """Return the reference of a node; one without a name goes by its first output."""
    name = node.name or next((f"-> {v.name}" for v in node.outputs if v.name), "unnamed")
    return NodeRef(name, node.op_type, scope)


def _check_opset(opset: int, ref: NodeRef) -> None:
    """Check that the installed onnx package knows a version of the default domain.

    Raises:
        UnsupportedError: It does not.
    """
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise UnsupportedError(
            f"opset {opset} is not one that the installed onnx package knows (1 to {newest})",
            hint="upgrade the onnx package, or correct the model's opset import",
            node=ref,
        )


FIRST_ATTENTION_OPSET = 27
"""First opset with LinearAttention and CausalConvWithState; com.microsoft has them too."""


@dataclass(frozen=True)
class NodeReader:
    """A node and what is known of its inputs; its methods return what it specifies, or raise an error that names
    it."""

    node: ir.Node
    opset: int
    ref: NodeRef
    known: KnownInputs

    @property
    def is_standard(self) -> bool:
        """Whether its operator is ONNX's own."""
        return self.node.domain in DEFAULT_DOMAIN

    @cached_property
    def schema(self) -> onnx.defs.OpSchema:
        """The schema of its operator."""
        operator = self.node.op_type
        if not self.is_standard:
            return CONTRIB_SCHEMAS[operator]
        if not onnx.defs.has(operator, self.opset, ""):
            raise self.invalid(
                f"opset {self.opset} has no {operator}",
                f"it exists from opset {FIRST_ATTENTION_OPSET} on, and in the domain {DOMAIN}",
            )
        return onnx.defs.get_schema(operator, self.opset, "")

    @cached_property
    def connections(self) -> Connections:
        """Its inputs and outputs."""
        return Connections(self.node, self.ref, self.schema, self.opset, self.known)

    def invalid(self, reason: str, hint: str = "") -> InvalidNodeError:
        return InvalidNodeError(reason, hint=hint, node=self.ref)

    def unsupported(self, reason: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(reason, hint=hint, node=self.ref)

    def unknown(self, what: str, hint: str = "declare its shape (onnx.shape_inference)") -> UnsupportedError:
        return self.unsupported(f"{what} is not known", hint)

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def choice(self, name: str, default: Any, allowed: Iterable[Any]) -> Any:
        """Return the value of an attribute, which must be one of several."""
        value, (*others, last) = self.attribute(name, default), allowed
        if value not in (*others, last):
            raise self.invalid(f"{name} is {value!r}", f"{', '.join(map(str, others))} and {last} are allowed")
        return value

    def gives(self, number: int) -> bool:
        """Whether the node has an output."""
        return number < len(self.node.outputs) and bool(self.node.outputs[number].name)

    def check_outputs(self) -> None:
        """Check that the node has every output that its operator always has.

        Raises:
            InvalidNodeError: One is missing.
        """
        needed = [formal.name for formal in self.schema.outputs if formal.option == REQUIRED]
        for number, name in enumerate(needed):
            if not self.gives(number):
                raise self.invalid(f"output {name} is missing", "both outputs are required" if needed[1:] else "")

    def check_attributes(self) -> None:
        """Check that the node has only attributes of its operator, each of the right type, and those that it needs.

        Raises:
            InvalidNodeError: It has others, or one is missing.
            UnsupportedError: One refers to an attribute of a function.
        """
        schema = self.schema
        for name, attribute in self.node.attributes.items():
            known = schema.attributes.get(name)
            if known is None:
                raise self.invalid(
                    f"{self.ref.operator}-{schema.since_version} has no attribute '{name}'",
                    f"its attributes are {', '.join(sorted(schema.attributes))}",
                )
            if attribute.is_ref():
                raise self.unsupported(
                    f"attribute '{name}' refers to the function's attribute '{attribute.ref_attr_name}'",
                    "inline the function first (onnx.inliner)",
                )
            wanted = str(known.type).rpartition(".")[2]
            if attribute.type.name != wanted:
                raise self.invalid(f"attribute '{name}' is of type {attribute.type.name}, not {wanted}")
        for name, known in schema.attributes.items():
            if known.required and name not in self.node.attributes:
                raise self.invalid(f"attribute '{name}' is missing")
