"""Loops of JAX, exported by jax2onnx."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import onnx
from exported import main, numbers, save_runs
from jax import lax
from jax2onnx import to_onnx

WEIGHT = numbers(3, 3, seed=7)


def scan(x: Any) -> Any:
    """A recurrence with its states and outputs as a tree."""

    def step(carry: Any, row: Any) -> Any:
        h, best = carry
        h = jnp.tanh(0.5 * h + row @ WEIGHT)
        return (h, jnp.maximum(best, h)), {"h": h, "sum": h.sum()}

    (last, best), rows = lax.scan(step, (jnp.zeros(3), jnp.full(3, -1e9)), x)
    return last, best, rows["h"], rows["sum"]


def scan_backwards(x: Any) -> Any:
    """Of rows in reverse order: jax2onnx exports no reverse=True."""
    return lax.scan(lambda h, row: (0.5 * h + row, h), jnp.zeros(3), x[::-1])


def fori_loop(x: Any) -> Any:
    """Every step reads the row of its number, and the one before, of a tensor that is carried."""

    def step(i: Any, state: Any) -> Any:
        h, rows = state
        return 0.5 * h + lax.dynamic_index_in_dim(rows, i, keepdims=False) - rows[i - 1], rows

    return lax.fori_loop(1, 5, step, (jnp.zeros(3), x))[0]


def while_loop(x: Any) -> Any:
    going, step = lambda state: state[0] < 7, lambda state: (state[0] + 3, jnp.sin(state[1]) + 0.1)
    return lax.while_loop(going, step, (0, x))


def while_of_data(x: Any) -> Any:
    return lax.while_loop(lambda h: jnp.abs(h).max() > 0.1, lambda h: h * 0.5, x)


def nested(x: Any) -> Any:
    """A fori_loop in each step of a scan."""

    def step(h: Any, row: Any) -> Any:
        h, _ = lax.fori_loop(0, 3, lambda i, state: (jnp.tanh(state[0] + state[1]), state[1]), (h, row))
        return h, h

    return lax.scan(step, jnp.zeros(3), x)


def save(function: Callable[[Any], Any], path: Path) -> None:
    onnx.save(to_onnx(function, [jax.ShapeDtypeStruct((5, 3), jnp.float32)]), path)
    given = onnx.load(path).graph.input[0].name

    def compute(feed: Any) -> Sequence[Any]:
        leaves: list[Any] = jax.tree_util.tree_leaves(function(jnp.asarray(feed[given])))
        return leaves

    save_runs(path, [{given: numbers(5, 3)}], compute)


if __name__ == "__main__":
    functions = (scan, scan_backwards, fori_loop, while_loop, while_of_data, nested)
    main({f.__name__: lambda path, f=f: save(f, path) for f in functions})
