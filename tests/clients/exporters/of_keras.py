"""Keras layers and functions of TensorFlow, exported by tf2onnx."""

# mypy: disable-error-code="misc, untyped-decorator"

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import tensorflow as tf
import tf2onnx
from exported import main, numbers, save_runs

OPSET = 17


class Leaky(keras.layers.Layer):
    """A cell of one's own: its state leaks, and a second one counts."""

    state_size = (4, 1)
    output_size = 4

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 4), initializer="glorot_uniform")

    def call(self, x: Any, states: Any) -> Any:
        h = 0.9 * states[0] + tf.nn.tanh(x @ self.kernel)
        return h, [h, states[1] + 1.0]


def masked_gru(x: Any) -> Any:
    return keras.layers.GRU(4, return_sequences=True)(keras.layers.Masking()(x))


def own_cell(x: Any) -> Any:
    return keras.layers.RNN(Leaky(), return_sequences=True, return_state=True)(x)


def bidirectional_gru(x: Any) -> Any:
    return keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True))(x)


def backwards(x: Any) -> Any:
    return keras.layers.SimpleRNN(3, go_backwards=True, return_sequences=True)(x)


def export_layer(layers: Callable[[Any], Any], steps: int | None, path: Path, *, stateful: bool = False) -> None:
    keras.utils.set_random_seed(0)
    batch = 2 if stateful else None
    x = keras.Input((steps, 3), batch_size=batch, name="x")
    net = keras.Model(x, layers(x))
    spec = (tf.TensorSpec((batch, steps, 3), tf.float32, name="x"),)
    tf2onnx.convert.from_keras(net, spec, opset=OPSET, output_path=str(path))
    feeds = [{"x": numbers(2, steps or length, 3, seed=length)} for length in (1, 5)]
    if layers is masked_gru:
        feeds[1]["x"][1, 3:] = 0
    save_runs(path, feeds[1:] if steps else feeds, lambda feed: tf.nest.flatten(net(feed["x"])))


def stateful_lstm(path: Path) -> None:
    export_layer(lambda x: keras.layers.LSTM(4, stateful=True, return_sequences=True)(x), 5, path, stateful=True)


def export_function(function: Any, spec: tf.TensorSpec, feeds: Any, path: Path) -> None:
    tf2onnx.convert.from_function(function, input_signature=(spec,), opset=OPSET, output_path=str(path))
    save_runs(path, feeds, lambda feed: tf.nest.flatten(function(feed["x"])))


def while_loop(path: Path) -> None:
    spec = tf.TensorSpec((None, 3), tf.float32, name="x")

    @tf.function(input_signature=(spec,))
    def downwards(x: Any) -> Any:
        """Every other row from the last one up, until the counter is below one."""
        start = tf.shape(x)[0] - 1
        state = (start, tf.zeros(3))
        return tf.while_loop(lambda i, _: i >= 0, lambda i, h: (i - 2, 0.5 * h + x[i]), state)[1]

    export_function(downwards, spec, [{"x": numbers(n, 3)} for n in (1, 6)], path)


def autograph_for(path: Path) -> None:
    spec = tf.TensorSpec((None, 3), tf.float32, name="x")

    @tf.function(input_signature=(spec,))
    def running_product(x: Any) -> Any:
        rows = tf.TensorArray(tf.float32, tf.shape(x)[0])
        product = tf.ones(3)
        for i in tf.range(tf.shape(x)[0]):
            product *= x[i] + 1.0
            rows = rows.write(i, product)
        return rows.stack()

    export_function(running_product, spec, [{"x": numbers(n, 3)} for n in (1, 6)], path)


if __name__ == "__main__":
    main(
        {
            "masked_gru": lambda path: export_layer(masked_gru, None, path),
            "masked_gru_of_5": lambda path: export_layer(masked_gru, 5, path),
            "own_cell": lambda path: export_layer(own_cell, None, path),
            "bidirectional_gru": lambda path: export_layer(bidirectional_gru, None, path),
            "backwards": lambda path: export_layer(backwards, 5, path),
            "stateful_lstm": stateful_lstm,
            "while_loop": while_loop,
            "autograph_for": autograph_for,
        }
    )
