"""Layers of Keras that take rows [2, 6, 8], each in a small configuration."""

from collections.abc import Callable
from typing import Any

import keras
from keras import activations, ops
from keras import layers as K  # noqa: N812

STEPS, SIZE = 6, 8

Function = Callable[[Any], Any]


def of_planes(*layers: Function) -> Function:
    """Layers of images of one channel."""
    return lambda x: _through(K.Reshape((STEPS, SIZE, 1))(x), layers)


def of_volumes(*layers: Function) -> Function:
    """Layers of volumes of one channel."""
    return lambda x: _through(K.Reshape((STEPS, 2, SIZE // 2, 1))(x), layers)


def of_steps(layer: Any) -> Function:
    """A layer of each row as a row of 4 pairs."""
    return lambda x: K.TimeDistributed(layer)(K.Reshape((STEPS, 4, 2))(x))


def _through(x: Any, layers: tuple[Function, ...]) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def classes(x: Any) -> Any:
    """Numbers of the largest columns."""
    return ops.argmax(x, axis=-1)


def masked(layer: Any) -> Function:
    return lambda x: layer(K.Masking()(ops.where(ops.arange(STEPS)[:, None] < 4, x, ops.zeros_like(x))))


_ACTIVATIONS = (
    *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh"),
    *("leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu"),
    *("soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus"),
    *("tanh", "tanh_shrink", "threshold"),
)

LAYERS: dict[str, Function] = {
    **{name: K.Activation(getattr(activations, name)) for name in _ACTIVATIONS if name != "threshold"},
    "threshold": lambda x: activations.threshold(x, 0.5, -1.0),
    "log_sigmoid_of_large": lambda x: activations.log_sigmoid(x * 60),
    "softplus_of_large": lambda x: activations.softplus(x * 60),
    # Dense
    "Dense": K.Dense(5),
    "Dense_softmax": K.Dense(5, activation="softmax"),
    "EinsumDense": K.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"),
    "EinsumDense_heads": K.EinsumDense("abc,cde->abde", (None, 2, 4)),
    "Embedding": lambda x: K.Embedding(8, 5)(classes(x)),
    "ReversibleEmbedding": lambda x: K.ReversibleEmbedding(8, 5)(classes(x)),
    "SpectralNormalization": K.SpectralNormalization(K.Dense(5)),
    "TimeDistributed": K.TimeDistributed(K.Dense(3, activation="relu")),
    "TimeDistributed_conv": of_steps(K.Conv1D(3, 2)),
    "TimeDistributed_flatten": of_steps(K.Flatten()),
    "TimeDistributed_lstm": of_steps(K.LSTM(3)),
    "Identity": K.Identity(),
    "Lambda": K.Lambda(lambda x: ops.square(x) - 1),
    # Convolutions
    "Conv1D": K.Conv1D(4, 3),
    "Conv1D_same": K.Conv1D(4, 4, padding="same", activation="relu"),
    "Conv1D_causal": K.Conv1D(4, 3, padding="causal", dilation_rate=2),
    "Conv1D_strides": K.Conv1D(4, 3, strides=2, padding="same"),
    "Conv1D_groups": K.Conv1D(4, 3, groups=2),
    "Conv1DTranspose": K.Conv1DTranspose(4, 3, strides=2),
    "Conv1DTranspose_same": K.Conv1DTranspose(4, 4, strides=2, padding="same"),
    "DepthwiseConv1D": K.DepthwiseConv1D(3, depth_multiplier=2),
    "SeparableConv1D": K.SeparableConv1D(4, 3, padding="same"),
    "Conv2D": of_planes(K.Conv2D(3, 3)),
    "Conv2D_same": of_planes(K.Conv2D(3, (2, 4), strides=2, padding="same")),
    "Conv2D_dilated": of_planes(K.Conv2D(3, 2, dilation_rate=2)),
    "Conv2DTranspose": of_planes(K.Conv2DTranspose(3, 3, strides=2)),
    "Conv2DTranspose_same": of_planes(K.Conv2DTranspose(3, 3, strides=2, padding="same")),
    "DepthwiseConv2D": of_planes(K.Conv2D(3, 1), K.DepthwiseConv2D(3, padding="same")),
    "SeparableConv2D": of_planes(K.SeparableConv2D(3, 3)),
    "Conv3D": of_volumes(K.Conv3D(3, 2)),
    "Conv3DTranspose": of_volumes(K.Conv3DTranspose(2, 2, strides=2)),
    # Recurrences
    "LSTM": K.LSTM(5),
    "LSTM_state": K.LSTM(5, return_state=True, return_sequences=True),
    "GRU_backwards": K.GRU(5, go_backwards=True),
    "GRU_before": K.GRU(5, reset_after=False, return_sequences=True),
    "GRU_masked": masked(K.GRU(5, return_sequences=True)),
    "SimpleRNN": K.SimpleRNN(5, return_sequences=True),
    "Bidirectional": K.Bidirectional(K.LSTM(4, return_sequences=True)),
    "Bidirectional_sum": K.Bidirectional(K.GRU(4), merge_mode="sum"),
    "RNN_cells": K.RNN(K.StackedRNNCells([K.LSTMCell(4), K.GRUCell(3)]), return_sequences=True),
    "ConvLSTM1D": lambda x: K.ConvLSTM1D(3, 2)(K.Reshape((STEPS, SIZE, 1))(x)),
    "ConvLSTM2D": lambda x: K.ConvLSTM2D(2, 2, padding="same")(K.Reshape((STEPS, 2, 4, 1))(x)),
    # Norms
    "BatchNormalization": K.BatchNormalization(),
    "BatchNormalization_of_planes": of_planes(K.Conv2D(3, 2), K.BatchNormalization()),
    "LayerNormalization": K.LayerNormalization(),
    "LayerNormalization_of_two": K.LayerNormalization(axis=[1, 2]),
    "RMSNormalization": K.RMSNormalization(),
    "GroupNormalization": K.GroupNormalization(4),
    "GroupNormalization_of_planes": of_planes(K.Conv2D(4, 2), K.GroupNormalization(2)),
    "UnitNormalization": K.UnitNormalization(),
    "Normalization": K.Normalization(mean=[0.5] * SIZE, variance=[2.0] * SIZE),
    "Rescaling": K.Rescaling(0.5, 1.0),
    # Pools
    "AveragePooling1D": K.AveragePooling1D(2),
    "AveragePooling1D_same": K.AveragePooling1D(4, 1, "same"),
    "MaxPooling1D": K.MaxPooling1D(2),
    "MaxPooling1D_same": K.MaxPooling1D(3, 2, "same"),
    "AveragePooling2D": of_planes(K.AveragePooling2D(2)),
    "AveragePooling2D_same": of_planes(K.AveragePooling2D(3, 2, "same")),
    "MaxPooling2D": of_planes(K.MaxPooling2D((1, 2))),
    "MaxPooling2D_same": of_planes(K.MaxPooling2D(3, 2, "same")),
    "AveragePooling3D": of_volumes(K.AveragePooling3D(2)),
    "MaxPooling3D": of_volumes(K.MaxPooling3D((1, 2, 2))),
    "AdaptiveAveragePooling1D": K.AdaptiveAveragePooling1D(4),
    "AdaptiveMaxPooling1D": K.AdaptiveMaxPooling1D(3),
    "AdaptiveAveragePooling2D": of_planes(K.AdaptiveAveragePooling2D((2, 3))),
    "AdaptiveMaxPooling2D": of_planes(K.AdaptiveMaxPooling2D((3, 2))),
    "GlobalAveragePooling1D": K.GlobalAveragePooling1D(),
    "GlobalMaxPooling1D": K.GlobalMaxPooling1D(keepdims=True),
    "GlobalAveragePooling2D": of_planes(K.GlobalAveragePooling2D()),
    "GlobalMaxPooling2D": of_planes(K.GlobalMaxPooling2D(keepdims=True)),
    "GlobalAveragePooling3D": of_volumes(K.GlobalAveragePooling3D()),
    "GlobalMaxPooling3D": of_volumes(K.GlobalMaxPooling3D()),
    # Shapes
    "Cropping1D": K.Cropping1D((1, 2)),
    "Cropping2D": of_planes(K.Cropping2D(((1, 0), (2, 1)))),
    "Cropping3D": of_volumes(K.Cropping3D(((1, 1), (0, 1), (1, 0)))),
    "ZeroPadding1D": K.ZeroPadding1D((1, 2)),
    "ZeroPadding2D": of_planes(K.ZeroPadding2D(((1, 0), (2, 1)))),
    "ZeroPadding3D": of_volumes(K.ZeroPadding3D(1)),
    "UpSampling1D": K.UpSampling1D(2),
    "UpSampling2D": of_planes(K.UpSampling2D((2, 3))),
    "UpSampling2D_bilinear": of_planes(K.UpSampling2D(2, interpolation="bilinear")),
    "UpSampling2D_bicubic": of_planes(K.UpSampling2D(2, interpolation="bicubic")),
    "UpSampling3D": of_volumes(K.UpSampling3D(2)),
    "Resizing": of_planes(K.Resizing(4, 5)),
    "Resizing_nearest": of_planes(K.Resizing(9, 12, interpolation="nearest")),
    "CenterCrop": of_planes(K.CenterCrop(4, 5)),
    "Flatten": K.Flatten(),
    "Permute": K.Permute((2, 1)),
    "Reshape": K.Reshape((3, 16)),
    "RepeatVector": lambda x: K.RepeatVector(4)(x[:, -1]),
    # Several inputs
    "Add": lambda x: K.Add()([x, x * 2]),
    "Average": lambda x: K.Average()([x, x * 2, x - 1]),
    "Concatenate": lambda x: K.Concatenate(axis=1)([x, x * 2]),
    "Dot": lambda x: K.Dot(axes=2)([x, x * 2]),
    "Dot_normalized": lambda x: K.Dot(axes=(1, 1), normalize=True)([x, x + 1]),
    "Maximum": lambda x: K.Maximum()([x, x * x]),
    "Minimum": lambda x: K.Minimum()([x, x * x]),
    "Multiply": lambda x: K.Multiply()([x, x + 1]),
    "Subtract": lambda x: K.Subtract()([x, x * 2]),
    # Attention
    "Attention": lambda x: K.Attention(use_scale=True)([x, x]),
    "Attention_concat": lambda x: K.Attention(score_mode="concat")([x, x]),
    "Attention_causal": lambda x: K.Attention()([x, x], use_causal_mask=True),
    "AdditiveAttention": lambda x: K.AdditiveAttention()([x, x]),
    "MultiHeadAttention": lambda x: K.MultiHeadAttention(2, 4)(x, x),
    "MultiHeadAttention_causal": lambda x: K.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True),
    "MultiHeadAttention_scores": lambda x: K.MultiHeadAttention(2, 4)(x, x, return_attention_scores=True),
    "GroupQueryAttention": lambda x: K.GroupQueryAttention(4, 4, 2)(x, x),
    # What trains only, and what prepares data
    "ActivityRegularization": K.ActivityRegularization(0.1),
    "AlphaDropout": K.AlphaDropout(0.5),
    "Dropout": K.Dropout(0.5),
    "GaussianDropout": K.GaussianDropout(0.5),
    "GaussianNoise": K.GaussianNoise(0.5),
    "SpatialDropout1D": K.SpatialDropout1D(0.5),
    "CategoryEncoding": lambda x: K.CategoryEncoding(8, output_mode="multi_hot")(classes(x)),
    "Discretization": K.Discretization([-1.0, 0.0, 1.0]),
    # Activations that are layers
    "ELU": K.ELU(0.5),
    "LeakyReLU": K.LeakyReLU(0.2),
    "PReLU": K.PReLU(keras.initializers.Constant(0.3), shared_axes=[1]),
    "ReLU": K.ReLU(max_value=2.0, negative_slope=0.1, threshold=0.2),
    "Softmax": K.Softmax(axis=1),
    "Softmax_masked": lambda x: K.Softmax()(x, mask=x > 0),
}  # fmt: skip
