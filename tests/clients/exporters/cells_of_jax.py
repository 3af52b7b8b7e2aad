"""Cells of JAX in lax.scan and fori_loop, exported by jax2onnx."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import onnx
from exported import main, numbers, save_runs
from jax import lax
from jax2onnx import to_onnx

N, T, I, H = 2, 5, 3, 4  # noqa: E741
W, R, b = 0.6 * numbers(I, 4 * H, seed=1), 0.6 * numbers(H, 4 * H, seed=2), 0.6 * numbers(4 * H, seed=3)
sigmoid = jax.nn.sigmoid


def rnn(x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(row @ W[:, :H] + h @ R[:, :H] + b[:H])
        return h, h

    return lax.scan(step, jnp.zeros((N, H)), x)


def gru(x: Any) -> Any:
    """As Flax has it: the bias of the state is in the product of the reset gate."""

    def step(h: Any, row: Any) -> Any:
        xs, hs = row @ W[:, : 3 * H] + b[: 3 * H], h @ R[:, : 3 * H]
        r, z = sigmoid(xs[:, :H] + hs[:, :H]), sigmoid(xs[:, H : 2 * H] + hs[:, H : 2 * H])
        n = jnp.tanh(xs[:, 2 * H :] + r * (hs[:, 2 * H :] + b[3 * H :]))
        h = (1.0 - z) * n + z * h
        return h, h

    return lax.scan(step, jnp.zeros((N, H)), x)


def gru_as_haiku(x: Any) -> Any:
    """The gate is before the product, and z is the other way round."""

    def step(h: Any, row: Any) -> Any:
        zr = sigmoid(row @ W[:, : 2 * H] + h @ R[:, : 2 * H] + b[: 2 * H])
        z, r = jnp.split(zr, 2, axis=-1)
        n = jnp.tanh(row @ W[:, 2 * H : 3 * H] + (r * h) @ R[:, 2 * H : 3 * H] + b[2 * H : 3 * H])
        h = (1 - z) * h + z * n
        return h, h

    return lax.scan(step, jnp.zeros((N, H)), x)[1]


def lstm(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        i, g, f, o = jnp.split(jnp.concatenate([row, h], -1) @ jnp.concatenate([W, R]) + b, 4, axis=-1)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, c), y = lax.scan(step, (jnp.zeros((N, H)), jnp.zeros((N, H))), x)
    return h, c, y


def lstm_hard(x: Any) -> Any:
    """Gates by hard_sigmoid, which is relu6(x + 3) / 6; a vector for each state."""

    def step(carry: Any, row: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(row @ W + h @ R + b, 4)
        hard = jax.nn.hard_sigmoid
        c = hard(f) * c + hard(i) * jnp.tanh(g)
        h = hard(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (jnp.zeros(H), jnp.zeros(H)), x[:, 0])[1]


def rnn_of_fori_loop(x: Any) -> Any:
    """The last state only."""

    def step(i: Any, state: Any) -> Any:
        h, rows = state
        row = lax.dynamic_index_in_dim(rows, i, keepdims=False)
        return jax.nn.relu(row @ W[:, :H] + h @ R[:, :H] + b[:H]), rows

    return lax.fori_loop(0, T, step, (jnp.zeros((N, H)), x))[0]


def trap_gelu(x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jax.nn.gelu(row @ W[:, :H] + h @ R[:, :H])
        return h, h

    return lax.scan(step, jnp.zeros((N, H)), x)[1]


def trap_simple_unit(x: Any) -> Any:
    """An SRU: c without h."""

    def step(c: Any, row: Any) -> Any:
        f = sigmoid(row @ W[:, :H] + b[:H] * c)
        c = f * c + (1 - f) * (row @ W[:, H : 2 * H])
        return c, jnp.tanh(c)

    return lax.scan(step, jnp.zeros((N, H)), x)[1]


def save(function: Callable[[Any], Any], path: Path) -> None:
    onnx.save(to_onnx(function, [jax.ShapeDtypeStruct((T, N, I), jnp.float32)]), path)
    given = onnx.load(path).graph.input[0].name

    def compute(feed: Any) -> Sequence[Any]:
        leaves: list[Any] = jax.tree_util.tree_leaves(function(jnp.asarray(feed[given])))
        return leaves

    save_runs(path, [{given: numbers(T, N, I)}], compute)


if __name__ == "__main__":
    functions = (rnn, gru, gru_as_haiku, lstm, lstm_hard, rnn_of_fori_loop, trap_gelu, trap_simple_unit)
    main({f.__name__: lambda path, f=f: save(f, path) for f in functions})
