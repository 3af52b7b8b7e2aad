"""Two walks through a graph, of any depth: to all that something follows from, and in the order of computation."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import TypeVar

import onnx_ir as ir

T = TypeVar("T", bound=Hashable)


def reached(starts: Iterable[T | None], following: Callable[[T], Iterable[T | None]]) -> Iterator[T]:
    """Yield all that can be reached, each once; None leads nowhere.

    Args:
        starts: Where the walk starts.
        following: Returns what comes next; it is asked once the caller goes on.
    """
    pending = [item for item in dict.fromkeys(starts) if item is not None]
    seen = set(pending)
    while pending:
        item = pending.pop()
        yield item
        new = [other for other in dict.fromkeys(following(item)) if other is not None and other not in seen]
        seen.update(new)
        pending += new


def in_order(value: T, needed: Callable[[T], Iterable[T | None]], done: Container[T]) -> Iterator[T]:
    """Yield what a value needs, and then the value, but nothing that is done.

    Args:
        value: The value.
        needed: Returns what comes before something.
        done: What the caller has done with: what was yielded must be in it when the caller goes on.
    """
    pending = [value]
    while pending:
        last = pending[-1]
        missing = [] if last in done else [v for v in needed(last) if v is not None and v not in done]
        pending += missing
        if not missing:
            pending.pop()
            if last not in done:
                yield last


def inputs_of(value: ir.Value) -> list[ir.Value]:
    """Return the inputs of the node that computes a value; none without one."""
    node = value.producer()
    return [] if node is None else [v for v in node.inputs if v is not None]
