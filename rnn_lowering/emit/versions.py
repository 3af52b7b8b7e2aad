"""Variants of functions by opset:

    @since(1)
    def split(op, x): ...

    @split.since(13)
    def _split_13(op, x): ...

`split(op, x)` calls the newest variant that is not newer than `op.opset`. Methods are called in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import onnx


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
