"""`Dialect`: options that shape loops for one runtime; and variants of functions by opset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import onnx
import onnx_ir as ir


@dataclass(frozen=True)
class Dialect:
    """Options for loops and steps, off by default. Single operators are rewritten by `Target.instead` and
    `Target.finish`.

    Attributes:
        gemm_per_activation: One product per activation, which onnxruntime fuses with it (FusedGemm), instead of one
            product for as many gates as possible.
        gates_apart: Split all gates of an LSTM at once, and apply each activation alone.
        stack_outside: Compute the last sum or product of a step after the loop, once for all steps.
        join_up_to: Lower both directions of a node, or several nodes, to one loop if the sum of their hidden sizes
            is at most this; 0: never.
        stack_up_to: Lower layers, one above the other, to one loop up to this sum of hidden sizes; 0: never.
        reverse_in_loop: Reverse a Scan of unknown length by its direction attributes, and a Loop by counting down,
            instead of flipping rows before and after.
        dequantize_inside: Dequantize integer weights in the body, right before their product, instead of once
            outside of all bodies and behind a Reshape.
        matrix_product: Multiply X of known sizes by W as a matrix [seq * batch, input].
        matrix_steps: Compute unrolled steps on matrices [batch, ...] if the batch size is known, instead of [1,
            batch, ...].
        by_length: Choose by an If what is fastest for an open length: steps for few tokens and chunks for more, or
            the sums of one frame and a convolution of more.
        states_apart: Start each state of a loop from a tensor of its own, and linear attention from one of zeros.
        equal_apart: Emit equal nodes again: it rejects a Concat that two nodes read.
        index_type: The integers in which `sequence_lens` and the rows that follow from them are computed.
    """

    gemm_per_activation: bool = False
    gates_apart: bool = False
    stack_outside: bool = False
    join_up_to: int = 0
    stack_up_to: int = 0
    reverse_in_loop: bool = False
    dequantize_inside: bool = False
    matrix_product: bool = False
    matrix_steps: bool = False
    states_apart: bool = False
    by_length: bool = False
    equal_apart: bool = False
    index_type: ir.DataType = ir.DataType.INT64


PLAIN = Dialect()
"""Without options."""


# Variants of functions by opset: @since(1) def split(op, x): ... @split.since(13) def _split_13(op, x): ...
# `split(op, x)` calls the newest variant that is not newer than `op.opset`. Methods are called in the same way.


class HasOpset(Protocol):
    """An object with an opset, by which a function chooses its variant."""

    @property
    def opset(self) -> int: ...


Op = TypeVar("Op", bound=HasOpset)
Args = ParamSpec("Args")
Result = TypeVar("Result")


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
