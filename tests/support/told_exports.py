"""Nets opened from two exports and those that errors ask for, and compared with other exports."""

import re
from collections.abc import Sequence

import numpy as np
import onnx
from frozen_nets import Builder, feeds
from running import run

import rnn_lowering as rl


def opened_as_told(net: Builder, most: int = 1, axis: str = "X:1") -> onnx.ModelProto:
    """Open a net from exports at 11 and 160, and as many more as the errors ask for."""
    sizes = [11, 160]
    while len(sizes) < 2 + most:
        try:
            return _opened(net, sizes, axis)
        except rl.UnsupportedError as error:
            sizes += map(int, re.findall(r"give one more export, at time = (\d+)", str(error)) or [sizes[-1]])
    return _opened(net, sizes, axis)


def _opened(net: Builder, sizes: Sequence[int], axis: str) -> onnx.ModelProto:
    first, *others = map(net, sizes)
    new: onnx.ModelProto = rl.lower(first, "keep", open_dims={axis: "time"}, also=others)
    return new


def right(new: onnx.ModelProto, net: Builder, *sizes: int) -> None:
    """Check that a model computes what the exports at some sizes do."""
    for size in sizes:
        given = feeds(truth := net(size))
        np.testing.assert_allclose(run(new, given)["Y"], run(truth, given)["Y"], 1e-4, 1e-5)
