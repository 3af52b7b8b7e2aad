"""Each cell of Keras as tf2onnx writes it: of Keras 3, of Keras 2, and of TensorFlow 1's dynamic_rnn."""

# mypy: disable-error-code="misc, untyped-decorator"

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
import tf_keras
from exported import main, numbers, save_runs
from tf_keras.src.layers.rnn import legacy_cells

OPSET = 17
OF_KERAS_2 = ("rnn_states", "gru_hard", "gru_no_bias", "gru_reset_before", "lstm_softsign")
"""Those that are Loops of another kind there: tf2onnx finds its GRUs."""

N, T, I, H = 2, 5, 3, 4  # noqa: E741


def layers(of: Any) -> Mapping[str, Callable[[Any], Any]]:
    """By name what is exported; an LSTM with its default activations is a node already."""
    rnn, gru, lstm, both = of.layers.SimpleRNN, of.layers.GRU, of.layers.LSTM, of.layers.Bidirectional
    return {
        "rnn": lambda x: rnn(H)(x),
        "rnn_relu": lambda x: rnn(H, activation="relu", return_sequences=True)(x),
        "rnn_states": lambda x: rnn(H, return_sequences=True, return_state=True)(x),
        "rnn_backwards": lambda x: rnn(H, go_backwards=True, return_sequences=True)(x),
        "rnn_both_ways": lambda x: both(rnn(H, return_sequences=True))(x),
        "gru": lambda x: gru(H)(x),
        "gru_sequences": lambda x: gru(H, return_sequences=True, return_state=True)(x),
        "gru_reset_before": lambda x: gru(H, reset_after=False, return_sequences=True)(x),
        "gru_hard": lambda x: gru(H, recurrent_activation="hard_sigmoid", return_sequences=True)(x),
        "gru_relu": lambda x: gru(H, activation="relu", return_sequences=True)(x),
        "gru_no_bias": lambda x: gru(H, use_bias=False, return_sequences=True)(x),
        "gru_both_ways": lambda x: both(gru(H, return_sequences=True))(x),
        "gru_two_layers": lambda x: gru(H)(gru(H, return_sequences=True)(x)),
        "gru_backwards": lambda x: gru(H, go_backwards=True)(x),
        "gru_dense": lambda x: of.layers.Dense(2, activation="softmax")(gru(H, return_sequences=True)(x)),
        "lstm_hard": lambda x: lstm(H, recurrent_activation="hard_sigmoid", return_sequences=True)(x),
        "lstm_relu": lambda x: lstm(H, activation="relu", return_sequences=True, return_state=True)(x),
        "lstm_softsign": lambda x: lstm(H, activation="softsign", return_sequences=True)(x),
        "lstm_no_forget_bias": lambda x: lstm(H, activation="elu", unit_forget_bias=False)(x),
    }


def traps(of: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Those that no node computes."""
    gru, lstm = of.layers.GRU, of.layers.LSTM
    return {
        "silu": lambda x: gru(H, activation="swish", return_sequences=True)(x),
        "masked": lambda x: gru(H, return_sequences=True)(of.layers.Masking()(x)),
        "stacked_cells": lambda x: of.layers.RNN([of.layers.GRUCell(H), of.layers.GRUCell(H)])(x),
        "softmax": lambda x: lstm(H, activation="softmax")(x),
    }


def export(of: Any, net: Callable[[Any], Any], path: Path, *, batch: int | None = None) -> None:
    """Export a layer for any batch and length."""
    of.utils.set_random_seed(1)
    x = of.Input((None, I), batch_size=batch, name="x")
    model = of.Model(x, net(x))
    rng = np.random.default_rng(2)
    model.set_weights([w + rng.normal(0, 0.3, w.shape).astype(np.float32) for w in model.get_weights()])
    spec = (tf.TensorSpec((batch, None, I), tf.float32, name="x"),)
    tf2onnx.convert.from_keras(model, spec, opset=OPSET, output_path=str(path))
    feeds = [{"x": numbers(N, length, I, seed=length)} for length in (1, T)]
    save_runs(path, feeds, lambda feed: tf.nest.flatten(model(feed["x"])))


def dynamic_rnn(cell: Callable[[], Any], path: Path, *, lengths: bool = False) -> None:
    """Export a cell of TensorFlow 1 as dynamic_rnn repeats it."""
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        x = v1.placeholder(tf.float32, (None, None, I), "x")
        given = v1.placeholder(tf.int32, (None,), "lens") if lengths else None
        outputs, last = v1.nn.dynamic_rnn(cell(), x, dtype=tf.float32, sequence_length=given)
        results = [tf.identity(value, f"out{n}") for n, value in enumerate(tf.nest.flatten((outputs, last)))]
        session.run(v1.global_variables_initializer())
        names = [value.name for value in results]
        frozen = v1.graph_util.convert_variables_to_constants(
            session, session.graph_def, [name.split(":")[0] for name in names]
        )
        feeds = [{"x:0": numbers(N, length, I, seed=length)} for length in (1, T)]
        if lengths:
            feeds = [feed | {"lens:0": np.array([1, feed["x:0"].shape[1]], np.int32)} for feed in feeds]
        inputs = ["x:0", *(["lens:0"] if lengths else [])]
        tf2onnx.convert.from_graph_def(
            frozen, input_names=inputs, output_names=names, opset=OPSET, output_path=str(path)
        )
        save_runs(path, feeds, lambda feed: session.run(results, feed))
    v1.enable_control_flow_v2()


def cells_of_1() -> Mapping[str, Callable[[], Any]]:
    rnn = legacy_cells
    return {
        "v1_rnn": lambda: rnn.BasicRNNCell(H),
        "v1_gru": lambda: rnn.GRUCell(H),
        "v1_gru_relu": lambda: rnn.GRUCell(H, activation=tf.nn.relu),
        "v1_lstm": lambda: rnn.BasicLSTMCell(H),
        "v1_lstm_peepholes": lambda: rnn.LSTMCell(H, use_peepholes=True),
        "v1_lstm_softsign": lambda: rnn.LSTMCell(H, activation=tf.nn.softsign),
        "trap_v1_projected": lambda: rnn.LSTMCell(H, num_proj=H, activation=tf.nn.relu),
        "trap_v1_clipped": lambda: rnn.LSTMCell(H, cell_clip=0.1, activation=tf.nn.relu),
    }


def exports() -> dict[str, Callable[[Path], None]]:
    found: dict[str, Callable[[Path], None]] = {}
    for prefix, of in (("", keras), ("2_", tf_keras)):
        for name, net in layers(of).items():
            if of is tf_keras and name not in OF_KERAS_2:
                continue
            found[f"{prefix}{name}"] = lambda path, of=of, net=net: export(of, net, path)
    for name, net in traps(keras).items():
        found[f"trap_{name}"] = lambda path, net=net: export(keras, net, path)
    for name, cell in cells_of_1().items():
        found[name] = lambda path, cell=cell: dynamic_rnn(cell, path)
    found["masked_v1_gru"] = lambda path: dynamic_rnn(cells_of_1()["v1_gru"], path, lengths=True)
    return found


if __name__ == "__main__":
    main(exports())
