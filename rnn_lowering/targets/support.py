"""Check that a target supports a node: its opset, lengths, sizes and emitted operators."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from rnn_lowering.emit.versions import first_opset
from rnn_lowering.errors import NodeRef, UnknownLengthsError, UnknownSizeError, UnsupportedError
from rnn_lowering.recurrence.integer_product import integer_product
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.targets.target import Target

_INTEGERS_OPSET = first_opset(integer_product)
_NAMES = {"T": "sequence length", "N": "batch size"}


def check_node(spec: NodeSpec, opset: int, target: Target) -> None:
    """Check opset, sizes and lengths, which no form changes.

    Raises:
        UnsupportedError: The target does not support such a node.
        UnknownSizeError: The target needs a size that is not known.
        UnknownLengthsError: The target needs lengths that are not known.
    """
    newest, oldest = target.newest_opset, target.oldest_opset
    limit = f"{newest} or earlier" if newest and opset > newest else ""
    limit = f"{oldest} or later" if oldest and opset < oldest else limit
    if limit:
        raise UnsupportedError(
            f"{target.name} supports opset {limit}, but the model has {opset}",
            hint="export it at a supported opset, or convert it (onnx.version_converter)",
            node=spec.node,
        )
    if reason := dict(target.lacks).get(spec.node.operator):
        hint = "use another runtime, or drop --target"
        raise UnsupportedError(f"{target.name} cannot run its equivalent: {reason}", hint=hint, node=spec.node)
    check_types([spec.dtype], spec.node, target)
    if spec.rounds:
        _check_integers(spec, opset, target)
    if not target.sequence_lens and _has_open_lengths(spec):
        raise UnknownLengthsError(f"{target.name} needs constant sequence_lens", node=spec.node)
    unknown = tuple(size for size in _unknown(spec) if size in target.sizes)
    if unknown:
        raise UnknownSizeError(
            f"{target.name} needs a known {' and '.join(_NAMES[u] for u in unknown)}", node=spec.node, sizes=unknown
        )
    if target.batch_size not in (None, spec.batch_size):
        raise UnsupportedError(
            f"{target.name} supports only batch size {target.batch_size}, not {spec.batch_size}",
            hint=f"export the model with batch size {target.batch_size}",
            node=spec.node,
        )


def check_types(dtypes: Collection[ir.DataType | None], node: NodeRef | None, target: Target) -> None:
    """Check the element types of a node.

    Raises:
        UnsupportedError: The target computes nothing of one of them.
    """
    missing = [str(dtype.numpy()) for dtype in target.lacks_types if dtype in dtypes]
    if missing:
        hint = "export the model in float32, use another runtime, or drop --target"
        raise UnsupportedError(f"{target.name} has no {' and '.join(missing)}", hint=hint, node=node)


def check_operators(emitted: frozenset[str], node: NodeRef, target: Target) -> None:
    """Check the operators that are emitted for a node, or are in its body, against the list of a documented target.
    Any other target runs them all.

    Raises:
        UnsupportedError: The list lacks one.
    """
    known = target.documented
    missing = emitted - known.operators if known else frozenset()
    if known is None or not missing:
        return
    reason = f"{target.name} is not known to support {' and '.join(sorted(missing))} ({known.source}, {known.date})"
    that = "that" if len(missing) == 1 else "those"
    hint = f"if it does support {that}, use --target portable --to {target.forms[0]}"
    if missing == {"DequantizeLinear"}:
        hint = "convert the weights to floats (--dequantize)"
    if missing == {"Constant"}:
        hint = "convert the model to IR version 4 or later"
    raise UnsupportedError(reason, hint=hint, node=node)


def _check_integers(spec: NodeSpec, opset: int, target: Target) -> None:
    """Raise if the opset or the target has no integer products."""
    hint = "convert the weights to floats (--dequantize)"
    if opset < _INTEGERS_OPSET:
        reason = f"DynamicQuantizeLinear needs opset {_INTEGERS_OPSET}, but the model has {opset}"
        raise UnsupportedError(reason, hint=hint, node=spec.node)
    if not target.integer_products:
        lacks = "does not support" if target.integer_products is False else "is not known to support"
        reason = f"{target.name} {lacks} DynamicQuantizeLinear and MatMulInteger"
        raise UnsupportedError(reason, hint=hint, node=spec.node)


def _has_open_lengths(spec: NodeSpec) -> bool:
    return "sequence_lens" in spec.inputs and "sequence_lens" not in spec.constants


def _unknown(spec: NodeSpec) -> tuple[str, ...]:
    """Return those of T and N that are unknown."""
    return tuple(name for name, size in (("T", spec.seq_length), ("N", spec.batch_size)) if size is None)
