"""What differs between opsets: variants of functions, and parameters that are attributes or inputs.

A function has variants by opset:

    @since(1)
    def split(op, x): ...

    @split.since(13)
    def _split_13(op, x): ...

`split(op, x)` calls the newest variant that is not newer than `op.opset`. Methods are called in the same way.

A parameter such as `axes`, `starts`, `pads` or `split` is an attribute in some opsets and an input in others: the
schema of the operator tells which (`inputs_and_attributes`, `parameter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import onnx
import onnx_ir as ir


class HasOpset(Protocol):
    """An object with an opset, by which a function chooses its variant."""

    @property
    def opset(self) -> int: ...


Op = TypeVar("Op", bound=HasOpset)
Args = ParamSpec("Args")
Result = TypeVar("Result")
V = TypeVar("V")


class Versioned(Generic[Op, Args, Result]):
    """A function with variants; see `since`.

    Raises:
        ValueError: When the module is imported: an opset does not exist, or is not newer than those before it.
    """

    def __init__(self, opset: int, function: Callable[Concatenate[Op, Args], Result]) -> None:
        self.__doc__ = function.__doc__
        self._name = function.__name__
        self.variants: list[tuple[int, Callable[Concatenate[Op, Args], Result]]] = []
        self.since(opset)(function)

    def since(
        self, opset: int
    ) -> Callable[[Callable[Concatenate[Op, Args], Result]], Callable[Concatenate[Op, Args], Result]]:
        """Return a decorator that adds a variant; variants are added in the order of their opsets."""
        oldest = self.variants[-1][0] + 1 if self.variants else 1
        if not oldest <= opset <= onnx.defs.onnx_opset_version():
            raise ValueError(f"variant {opset} of {self._name} does not follow {oldest - 1}")

        def add(function: Callable[Concatenate[Op, Args], Result]) -> Callable[Concatenate[Op, Args], Result]:
            self.variants.append((opset, function))
            return function

        return add

    def at(self, opset: int) -> Callable[Concatenate[Op, Args], Result]:
        """Return the variant for an opset.

        Raises:
            LookupError: All variants are for newer opsets.
        """
        for first, function in reversed(self.variants):
            if first <= opset:
                return function
        raise LookupError(f"{self._name} has no variant for opset {opset}")

    def __call__(self, op: Op, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        return self.at(op.opset)(op, *args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Versioned[Op, Args, Result]: ...

    @overload
    def __get__(self, instance: Op, owner: type[Any]) -> Callable[Args, Result]: ...

    def __get__(
        self, instance: Op | None, owner: type[Any]
    ) -> Versioned[Op, Args, Result] | Callable[Args, Result]:
        return self if instance is None else partial(self.at(instance.opset), instance)


def first_opset(function: object) -> int:
    """Return the first opset for which a function has a variant; 1 for a function without variants."""
    return function.variants[0][0] if isinstance(function, Versioned) else 1


def since(
    opset: int,
) -> Callable[[Callable[Concatenate[Op, Args], Result]], Versioned[Op, Args, Result]]:
    """Return a decorator that makes a function the first variant of a `Versioned` one."""
    return partial(Versioned, opset)


TO_THE_END = 2**31 - 1
"""An end of a Slice behind every axis; not the largest int64, which some runtimes get wrong."""

BEFORE_THE_START = -(2**31)
"""An end of a backwards Slice; not the smallest int64, which some runtimes get wrong."""


@cache
def input_slots(op_type: str, opset: int) -> Mapping[str, int]:
    """Return the inputs of an operator of the default domain, by the names that its schema gives them."""
    schema = onnx.defs.get_schema(op_type, opset, "")
    return {given.name: slot for slot, given in enumerate(schema.inputs) if given.name not in schema.attributes}


def parameter(node: ir.Node, name: str, opset: int) -> ir.Attr | ir.Value | None:
    """Return what holds a parameter of a node of the default domain: an attribute or an input; None for neither."""
    slot = input_slots(node.op_type, opset).get(name)
    if slot is not None:
        return node.inputs[slot] if slot < len(node.inputs) else None
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute


def inputs_and_attributes(
    op_type: str,
    opset: int,
    inputs: Sequence[V],
    parameters: Mapping[str, Any],
    constant: Callable[[Any], V],
) -> tuple[list[V | None], dict[str, Any]]:
    """Return the inputs and the attributes of a node.

    Args:
        op_type: An operator of the default domain.
        opset: The opset.
        inputs: The first inputs.
        parameters: Parameters by name: attributes, or inputs that follow the first ones.
        constant: Makes a parameter an input.
    """
    slots = input_slots(op_type, opset) if parameters else {}
    found = {slots[name]: constant(value) for name, value in parameters.items() if name in slots}
    followed = [found.get(slot) for slot in range(len(inputs), max(found, default=-1) + 1)]
    return [*inputs, *followed], {name: value for name, value in parameters.items() if name not in slots}
