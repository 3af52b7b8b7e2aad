"""Layers of torch.nn on rows [2, time, 8]: of one axis, time, and of planes [time, 8]."""

# mypy: disable-error-code="misc, no-any-return"

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as fn
from torch import nn

Make = Callable[[], Callable[[Any], Any]]


class OfTime(nn.Module):
    """Layers along time, on [2, 8, time]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x.transpose(1, 2)).transpose(1, 2)


class OfPlanes(nn.Module):
    """Layers on images [2, 1, time, 8]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x.unsqueeze(1)).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, mask: str = "", weights: bool = True, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.mask, self.weights = mask, weights

    def forward(self, x: torch.Tensor) -> Any:
        given: dict[str, Any] = {"need_weights": self.weights}
        if self.mask == "padding":
            given["key_padding_mask"] = x[..., 0] > 1.5
        elif self.mask:
            mask = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool()
            given["attn_mask"] = mask if self.mask == "bool" else mask.float().masked_fill(mask, float("-inf"))
        return self.attention(x, x, x, **given)[0]


class Resized(nn.Module):
    def __init__(self, planes: bool = False, **options: Any) -> None:
        super().__init__()
        self.planes, self.options = planes, options

    def forward(self, x: torch.Tensor) -> Any:
        if self.planes:
            return fn.interpolate(x.unsqueeze(1), **self.options).squeeze(1)
        return fn.interpolate(x.transpose(1, 2), **self.options).transpose(1, 2)


def batch_norm(norm: Any) -> Any:
    """A norm with statistics of its own."""
    norm.running_mean += torch.linspace(-1, 1, norm.num_features)
    norm.running_var *= 2
    return norm


LAYERS: dict[str, Make] = {
    "Conv1d": lambda: OfTime(nn.Conv1d(8, 6, 3, padding=1)),
    "Conv1d_strided": lambda: OfTime(nn.Conv1d(8, 6, 3, stride=2)),
    "Conv1d_dilated": lambda: OfTime(nn.Conv1d(8, 6, 3, dilation=2, padding=2)),
    "Conv1d_grouped": lambda: OfTime(nn.Conv1d(8, 8, 3, groups=8, padding=1, bias=False)),
    "Conv1d_same": lambda: OfTime(nn.Conv1d(8, 6, 4, padding="same")),
    "Conv1d_reflected": lambda: OfTime(nn.Conv1d(8, 6, 3, padding=1, padding_mode="reflect")),
    "Conv1d_circular": lambda: OfTime(nn.Conv1d(8, 6, 3, padding=1, padding_mode="circular")),
    "ConvBlock": lambda: OfTime(nn.Conv1d(8, 6, 3, padding=1), batch_norm(nn.BatchNorm1d(6)), nn.ReLU()),
    "ConvGlu": lambda: OfTime(nn.Conv1d(8, 12, 3, padding=1), nn.GLU(1)),
    "ConvPrelu": lambda: OfTime(nn.Conv1d(8, 6, 1), nn.PReLU(), nn.GroupNorm(1, 6)),
    "ConvTranspose1d": lambda: OfTime(nn.ConvTranspose1d(8, 6, 3)),
    "ConvTranspose1d_strided": lambda: OfTime(nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1)),
    "ConvTranspose1d_output_padding": lambda: OfTime(nn.ConvTranspose1d(8, 8, 3, 2, 1, 1, groups=2)),
    "Conv2d": lambda: OfPlanes(nn.Conv2d(1, 3, 3, padding=1)),
    "Conv2d_strided": lambda: OfPlanes(
        nn.Conv2d(1, 3, (3, 5), (1, 2), (1, 2)), batch_norm(nn.BatchNorm2d(3)), nn.ELU()
    ),
    "Conv2d_separable": lambda: OfPlanes(
        nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 2, 1)
    ),
    "ConvTranspose2d": lambda: OfPlanes(nn.ConvTranspose2d(1, 2, (1, 3), (1, 2), (0, 1), (0, 1))),
    "BatchNorm1d": lambda: OfTime(batch_norm(nn.BatchNorm1d(8))),
    "BatchNorm2d": lambda: OfPlanes(batch_norm(nn.BatchNorm2d(1))),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "LayerNorm_plain": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "LayerNorm_of_planes": lambda: OfPlanes(nn.Conv2d(1, 2, 1), nn.LayerNorm([8])),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "GroupNorm": lambda: OfTime(nn.GroupNorm(4, 8)),
    "GroupNorm_1": lambda: OfTime(nn.GroupNorm(1, 8)),
    "GroupNorm_of_planes": lambda: OfPlanes(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4)),
    "InstanceNorm1d": lambda: OfTime(nn.InstanceNorm1d(8, affine=True)),
    "InstanceNorm2d": lambda: OfPlanes(nn.InstanceNorm2d(1)),
    "LocalResponseNorm": lambda: OfTime(nn.LocalResponseNorm(3)),
    "CrossMapLRN": lambda: OfPlanes(nn.Conv2d(1, 4, 1), nn.LocalResponseNorm(2)),
    "MaxPool1d": lambda: OfTime(nn.MaxPool1d(2)),
    "MaxPool1d_padded": lambda: OfTime(nn.MaxPool1d(3, 1, 1)),
    "MaxPool1d_ceil": lambda: OfTime(nn.MaxPool1d(4, 4, ceil_mode=True)),
    "MaxPool1d_dilated": lambda: OfTime(nn.MaxPool1d(2, 1, dilation=2)),
    "AvgPool1d": lambda: OfTime(nn.AvgPool1d(2)),
    "AvgPool1d_padded": lambda: OfTime(nn.AvgPool1d(3, 1, 1)),
    "AvgPool1d_uncounted": lambda: OfTime(nn.AvgPool1d(3, 1, 1, count_include_pad=False)),
    "AvgPool1d_ceil": lambda: OfTime(nn.AvgPool1d(4, 4, ceil_mode=True)),
    "LPPool1d": lambda: OfTime(nn.LPPool1d(2, 2)),
    "AdaptiveAvgPool1d_1": lambda: OfTime(nn.AdaptiveAvgPool1d(1)),
    "AdaptiveMaxPool1d_1": lambda: OfTime(nn.AdaptiveMaxPool1d(1)),
    "AdaptiveAvgPool1d_3": lambda: OfTime(nn.AdaptiveAvgPool1d(3)),
    "MaxPool2d": lambda: OfPlanes(nn.MaxPool2d((1, 2))),
    "MaxPool2d_padded": lambda: OfPlanes(nn.MaxPool2d(3, (1, 2), 1)),
    "AvgPool2d": lambda: OfPlanes(nn.AvgPool2d((1, 2))),
    "AvgPool2d_padded": lambda: OfPlanes(nn.AvgPool2d(3, 1, 1)),
    "LPPool2d": lambda: OfPlanes(nn.LPPool2d(2, (1, 2))),
    "AdaptiveAvgPool2d": lambda: OfPlanes(nn.AdaptiveAvgPool2d((None, 1))),
    "AdaptiveMaxPool2d": lambda: OfPlanes(nn.AdaptiveMaxPool2d((None, 1))),
    "ReflectionPad1d": lambda: OfTime(nn.ReflectionPad1d(2)),
    "ReplicationPad1d": lambda: OfTime(nn.ReplicationPad1d((2, 0))),
    "ConstantPad1d": lambda: OfTime(nn.ConstantPad1d((2, 0), 0.3)),
    "ZeroPad2d": lambda: OfPlanes(nn.ZeroPad2d((1, 2, 0, 1))),
    "ReflectionPad2d": lambda: OfPlanes(nn.ReflectionPad2d(1)),
    "ReplicationPad2d": lambda: OfPlanes(nn.ReplicationPad2d((1, 1, 2, 0))),
    "CircularPad2d": lambda: OfPlanes(nn.CircularPad2d(1)),
    "Upsample_nearest": lambda: OfTime(nn.Upsample(scale_factor=2)),
    "Upsample_linear": lambda: OfTime(nn.Upsample(scale_factor=2, mode="linear")),
    "Upsample_aligned": lambda: OfTime(nn.Upsample(scale_factor=2, mode="linear", align_corners=True)),
    "Upsample_to_size": lambda: Resized(size=12),
    "Upsample_to_size_linear": lambda: Resized(size=12, mode="linear"),
    "Upsample_half": lambda: Resized(scale_factor=0.5),
    "Upsample_area": lambda: Resized(size=3, mode="area"),
    "Upsample_of_planes": lambda: Resized(True, scale_factor=(1, 2)),
    "Upsample_bilinear": lambda: Resized(True, scale_factor=2, mode="bilinear"),
    "Upsample_bilinear_aligned": lambda: Resized(True, scale_factor=2, mode="bilinear", align_corners=True),
    "Upsample_bicubic": lambda: Resized(True, scale_factor=2, mode="bicubic"),
    "PixelShuffle": lambda: OfPlanes(nn.Conv2d(1, 4, 1), nn.PixelShuffle(2)),
    "PixelUnshuffle": lambda: OfPlanes(
        nn.ConstantPad2d(0, 0.0), nn.ConvTranspose2d(1, 1, 2, 2), nn.PixelUnshuffle(2)
    ),
    "ChannelShuffle": lambda: OfPlanes(nn.Conv2d(1, 4, 1), nn.ChannelShuffle(2)),
    "Linear": lambda: nn.Linear(8, 5),
    "LinearRelu": lambda: nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 8), nn.Sigmoid()),
    "Bilinear": lambda: _Twice(nn.Bilinear(8, 8, 3)),
    "PReLU": lambda: nn.PReLU(),
    "PReLU_of_channels": lambda: OfTime(nn.PReLU(8)),
    "RReLU": lambda: nn.RReLU(),
    "Hardswish": lambda: nn.Hardswish(),
    "Softmax2d": lambda: OfPlanes(nn.Conv2d(1, 3, 1), nn.Softmax2d()),
    "CosineSimilarity": lambda: _Twice(nn.CosineSimilarity(-1)),
    "PairwiseDistance": lambda: _Twice(nn.PairwiseDistance()),
    "Embedding": lambda: _OfIndices(nn.Embedding(8, 5)),
    "Embedding_padded": lambda: _OfIndices(nn.Embedding(8, 5, padding_idx=0)),
    "EmbeddingBag": lambda: _OfIndices(nn.EmbeddingBag(8, 5, mode="mean")),
    "EmbeddingBag_sum": lambda: _OfIndices(nn.EmbeddingBag(8, 5, mode="sum")),
    "Dropout": lambda: nn.Dropout(0.5),
    "Flatten": lambda: nn.Flatten(2),
    "Unflatten": lambda: nn.Unflatten(2, (2, 4)),
    "MultiheadAttention": Attention,
    "MultiheadAttention_causal": lambda: Attention("bool"),
    "MultiheadAttention_float_mask": lambda: Attention("float"),
    "MultiheadAttention_padding": lambda: Attention("padding"),
    "MultiheadAttention_without_weights": lambda: Attention(weights=False),
    "MultiheadAttention_causal_without_weights": lambda: Attention("bool", weights=False),
    "MultiheadAttention_zero": lambda: Attention(add_zero_attn=True),
    "MultiheadAttention_bias": lambda: Attention(add_bias_kv=True),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "TransformerEncoderLayer_first": lambda: nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=True, activation="gelu"
    ),
    "TransformerDecoderLayer": lambda: _Twice(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)),
    "SqueezeExcite": lambda: _Excited(),
    "Fold": lambda: OfPlanes(nn.Unfold((1, 8)), nn.Unflatten(1, (1, 8))),
    "LSTM": lambda: _First(nn.LSTM(8, 4, batch_first=True, bidirectional=True)),
    "RNN_relu": lambda: _First(nn.RNN(8, 4, nonlinearity="relu", batch_first=True)),
}


class _Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x, x.flip(1))


class _First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


class _OfIndices(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x.argmax(-1))


class _Excited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(8, 2), nn.Linear(2, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean(1))))).unsqueeze(1)
