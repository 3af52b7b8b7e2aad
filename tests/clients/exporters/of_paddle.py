"""Loops of Paddle, exported by paddle2onnx."""

# mypy: disable-error-code="misc"

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
from exported import Feed, main, numbers, save_runs


class While(paddle.nn.Layer):
    """A while over a counter, as paddle.jit makes it."""

    def forward(self, x: Any) -> Any:
        i, h = paddle.zeros([1], "int64"), x
        while i < 4:
            h = paddle.sin(h) + 0.1
            i = i + 1
        return h


class Rows(paddle.nn.Layer):
    """A for over the rows of the input."""

    def forward(self, x: Any) -> Any:
        h = paddle.zeros([2, 3])
        for i in range(x.shape[1]):
            h = 0.5 * h + x[:, i]
        return h


class Lstm(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = paddle.nn.LSTM(3, 4)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0]


def save(net: Any, length: int | None, path: Path) -> None:
    paddle.seed(0)
    net.eval()
    spec = [paddle.static.InputSpec([2, length, 3], "float32", "x")]
    paddle.onnx.export(net, str(path.with_suffix("")), input_spec=spec, opset_version=17)

    def compute(feed: Feed) -> Sequence[Any]:
        found = net(paddle.to_tensor(feed["x"]))
        return [value.numpy() for value in paddle.utils.flatten(found)]

    save_runs(path, [{"x": numbers(2, n, 3, seed=n)} for n in ((length,) if length else (1, 5))], compute)


if __name__ == "__main__":
    main(
        {
            "while_loop": lambda path: save(While(), 5, path),
            "rows": lambda path: save(Rows(), None, path),
            "lstm": lambda path: save(Lstm(), None, path),
        }
    )
