"""Cells of Paddle in loops over rows, exported by paddle2onnx."""

# mypy: disable-error-code="misc"

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import paddle
from exported import Feed, main, numbers, save_runs

N, T, I, H = 2, 5, 3, 4  # noqa: E741


class Rnn(paddle.nn.Layer):
    """The last state of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = paddle.nn.Linear(I, H), paddle.nn.Linear(H, H)

    def forward(self, x: Any) -> Any:
        h = paddle.zeros([N, H])
        for i in range(x.shape[1]):
            h = paddle.tanh(self.x(x[:, i]) + self.h(h))
        return h


class Gru(paddle.nn.Layer):
    """As paddle.nn.GRUCell computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = paddle.nn.Linear(I, 3 * H), paddle.nn.Linear(H, 3 * H)

    def forward(self, x: Any) -> Any:
        h = paddle.zeros([N, H])
        for i in range(x.shape[1]):
            xr, xz, xc = paddle.split(self.x(x[:, i]), 3, axis=1)
            hr, hz, hc = paddle.split(self.h(h), 3, axis=1)
            r, z = paddle.nn.functional.sigmoid(xr + hr), paddle.nn.functional.sigmoid(xz + hz)
            c = paddle.tanh(xc + r * hc)
            h = (h - c) * z + c
        return h


class Lstm(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.gates = paddle.nn.Linear(I + H, 4 * H)

    def forward(self, x: Any) -> Any:
        h, c = paddle.zeros([N, H]), paddle.zeros([N, H])
        for k in range(x.shape[1]):
            i, f, g, o = paddle.split(self.gates(paddle.concat([x[:, k], h], axis=1)), 4, axis=1)
            sigmoid = paddle.nn.functional.sigmoid
            c = sigmoid(f) * c + sigmoid(i) * paddle.tanh(g)
            h = sigmoid(o) * paddle.tanh(c)
        return h, c


class Swish(Rnn):
    """A trap: no activation of the operator."""

    def forward(self, x: Any) -> Any:
        h = paddle.zeros([N, H])
        for i in range(x.shape[1]):
            h = paddle.nn.functional.swish(self.x(x[:, i]) + self.h(h))
        return h


def save(make: Callable[[], Any], path: Path) -> None:
    paddle.seed(0)
    net = make()
    net.eval()
    spec = [paddle.static.InputSpec([N, None, I], "float32", "x")]
    paddle.onnx.export(net, str(path.with_suffix("")), input_spec=spec, opset_version=17)

    def compute(feed: Feed) -> Sequence[Any]:
        found = net(paddle.to_tensor(feed["x"]))
        return [value.numpy() for value in paddle.utils.flatten(found)]

    save_runs(path, [{"x": numbers(N, n, I, seed=n)} for n in (1, T)], compute)


if __name__ == "__main__":
    nets = {"rnn": Rnn, "gru": Gru, "lstm": Lstm, "trap_swish": Swish}
    main({name: lambda path, net=net: save(net, path) for name, net in nets.items()})
