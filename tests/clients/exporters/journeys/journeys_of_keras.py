"""Nets as people build them in Keras, small, with random weights, exported by `export(format="onnx")`.

    python journeys_of_keras.py FOLDER [NET.keras ...]

writes NET.keras.onnx, and beside it its runs: see exported.py. Without names it prints those of all.
"""

# mypy: disable-error-code="misc"

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import exported
import keras
import numpy as np
import tensorflow as tf
from keras import layers as K  # noqa: N812

LENGTHS = ((2, 12), (3, 20))
"""Batch and steps of each run, where they are open."""


def rows(width: int, steps: int | None = None) -> Any:
    return keras.Input((steps, width), name="x")


def words(steps: int | None = None) -> Any:
    return keras.Input((steps,), dtype="int32", name="x")


def tagger() -> Any:
    x = words()
    y = K.Bidirectional(K.LSTM(6, return_sequences=True))(K.Embedding(20, 8)(x))
    return keras.Model(x, K.TimeDistributed(K.Dense(5, activation="softmax"))(y))


def sentiment() -> Any:
    x = words()
    y = K.Bidirectional(K.LSTM(6))(K.Embedding(20, 8)(x))
    return keras.Model(x, K.Dense(1, activation="sigmoid")(K.Dropout(0.5)(y)))


def masked_words() -> Any:
    x = words(12)
    y = K.GRU(6, return_sequences=True)(K.Embedding(20, 8, mask_zero=True)(x))
    return keras.Model(x, K.Dense(4)(y))


def autoencoder() -> Any:
    x = rows(4, 12)
    y = K.RepeatVector(12)(K.LSTM(6, activation="relu")(x))
    return keras.Model(x, K.TimeDistributed(K.Dense(4))(K.LSTM(6, activation="relu", return_sequences=True)(y)))


def forecaster() -> Any:
    x = rows(3, 12)
    y = K.LSTM(8)(K.LSTM(8, return_sequences=True)(K.LayerNormalization()(x)))
    return keras.Model(x, K.Reshape((4, 3))(K.Dense(12)(y)))


def keyword_spotting() -> Any:
    x = rows(8)
    y = K.BatchNormalization()(K.Conv1D(8, 3, strides=2, padding="same", activation="relu")(x))
    return keras.Model(x, K.Dense(6, activation="softmax")(K.GRU(8, dropout=0.1)(y)))


def attention() -> Any:
    x = rows(5)
    y = K.LSTM(6, return_sequences=True)(x)
    return keras.Model(x, K.Dense(3)(K.GlobalAveragePooling1D()(K.MultiHeadAttention(2, 3)(y, y))))


def older_gru() -> Any:
    x = rows(5)
    return keras.Model(
        x, K.GRU(6, reset_after=False, return_sequences=True, recurrent_activation="hard_sigmoid")(x)
    )


def backwards() -> Any:
    x = rows(5)
    return keras.Model(x, K.Dense(2)(K.SimpleRNN(6, go_backwards=True, return_sequences=True)(x)))


def stacked_cells() -> Any:
    x = rows(5)
    return keras.Model(x, K.RNN([K.LSTMCell(6), K.GRUCell(4)], return_sequences=True)(x))


def convlstm() -> Any:
    x = keras.Input((4, 6, 5, 2), name="x")
    return keras.Model(x, K.Conv2D(1, 1)(K.ConvLSTM2D(4, 3, padding="same")(x)))


def video() -> Any:
    x = keras.Input((6, 8, 8, 3), name="x")
    y = K.TimeDistributed(K.GlobalMaxPooling2D())(K.TimeDistributed(K.Conv2D(4, 3, activation="relu"))(x))
    return keras.Model(x, K.Dense(3)(K.LSTM(6)(y)))


def masked_series() -> Any:
    """Rows of zeros are masked, backwards too."""
    x = rows(4, 12)
    y = K.Bidirectional(K.LSTM(5, return_sequences=True))(K.Masking(0.0)(x))
    return keras.Model(x, K.Dense(3)(K.GRU(6)(y)))


def unet() -> Any:
    """A norm of groups, strided convolutions, a GRU in the middle, upsampling and skips."""
    x = rows(3, 16)
    a = K.GroupNormalization(2)(K.Conv1D(4, 5, padding="same", activation="elu")(x))
    b = K.Conv1D(6, 4, strides=2, padding="same", activation="leaky_relu")(a)
    y = K.Conv1DTranspose(4, 4, strides=2, padding="same")(K.Add()([K.GRU(6, return_sequences=True)(b), b]))
    return keras.Model(x, K.Conv1D(2, 1, activation="softplus")(K.Concatenate()([K.UpSampling1D(2)(b), y, a])))


NETS: dict[str, Callable[[], Any]] = {
    net.__name__: net
    for net in (
        *(tagger, sentiment, masked_words, autoencoder, forecaster, keyword_spotting, attention),
        *(older_gru, backwards, stacked_cells, convlstm, video, masked_series, unet),
    )
}


def feeds(x: Any) -> list[dict[str, Any]]:
    shapes = [(batch, *(steps if size is None else size for size in x.shape[1:])) for batch, steps in LENGTHS]
    if x.dtype == "int32":
        random = np.random.default_rng(0)
        return [{"x": random.integers(0, 20, shape).astype(np.int32)} for shape in shapes]
    return [{"x": exported.numbers(*shape, seed=n)} for n, shape in enumerate(shapes)]


def save(name: str, path: Path) -> None:
    keras.utils.set_random_seed(0)
    net = NETS[name]()
    net(feeds(net.inputs[0])[0]["x"])  # only a net that was called is exported
    net.export(path, format="onnx", verbose=False)
    exported.save_runs(path, feeds(net.inputs[0]), lambda feed: tf.nest.flatten(net(feed["x"])))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(*(f"{name}.keras" for name in NETS), sep="\n")
    else:
        exported.main({name: partial(save, name.removesuffix(".keras")) for name in sys.argv[2:]})
