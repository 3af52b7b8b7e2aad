"""Loops of PyTorch: torch.jit.script by the older exporter, scan and while_loop by that of torch.export."""

# mypy: disable-error-code="misc"

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from exported import Feed, main, numbers, save_runs
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop

OPSET = 18


class Decoder(nn.Module):
    """Feeds its output back until it has enough rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.last = nn.Linear(7, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, token = x, torch.zeros(x.size(0), 3)
        rows: list[Tensor] = []
        while len(rows) < 5:
            forget, new = self.gates(torch.cat([token, h], 1)).chunk(2, 1)
            h = forget.sigmoid() * h + new.tanh()
            token = self.last(h).tanh()
            rows.append(token)
        return torch.stack(rows, 1)


class Attractor(nn.Module):
    """A while whose end depends on a counter and on data."""

    def forward(self, x: Tensor) -> Tensor:
        steps = 0
        while steps < 20 and bool(x.abs().max() > 0.1):
            x = x * 0.5
            steps += 1
        return x


class RowsWritten(nn.Module):
    """Rows of a tensor, which are written into another one."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        h = torch.zeros(x.size(0), x.size(2))
        for i in range(x.size(1)):
            h = 0.5 * h + x[:, i]
            y[:, i] = h.tanh()
        return y


class LayersInLoop(nn.Module):
    """An LSTM that is called in each step of a for."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.size(0)):
            x = x + self.lstm(x)[0]
        return x


class Leak(nn.Module):
    """The higher-order scan, with a weight that it captures."""

    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.weight, self.reverse = nn.Parameter(torch.randn(3, 3)), reverse

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = 0.5 * h + torch.tanh(row @ self.weight)
            return new, new * 2.0

        last, rows = scan(step, torch.zeros(x.shape[1], 3), x, reverse=self.reverse)
        return last, rows


class Halving(nn.Module):
    """The higher-order while_loop over a counter."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def going(i: Tensor, h: Tensor) -> Tensor:
            return i < 6

        def step(i: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return i + 2, torch.sin(h) + 0.1

        found: tuple[Tensor, Tensor] = while_loop(going, step, (torch.tensor(0), x))
        return found


def save(
    net: nn.Module, shapes: Sequence[tuple[int, ...]], path: Path, *, script: bool, open_axes: Any = None
) -> None:
    torch.manual_seed(0)
    net.eval()
    feeds = [{"x": numbers(*shape, seed=n)} for n, shape in enumerate(shapes)]
    given = (torch.from_numpy(feeds[-1]["x"]),)
    if script:
        torch.onnx.export(
            torch.jit.script(net),
            given,
            path,
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            dynamic_axes={"x": open_axes} if open_axes else None,
        )
    else:
        torch.onnx.export(
            net,
            given,
            path,
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            input_names=["x"],
            dynamic_shapes=({axis: torch.export.Dim(name) for axis, name in open_axes.items()},)
            if open_axes
            else None,
        )

    def compute(feed: Feed) -> Sequence[Any]:
        with torch.no_grad():
            found = net(torch.from_numpy(feed["x"]))
        return [value.numpy() for value in (found if isinstance(found, tuple) else (found,))]

    save_runs(path, feeds, compute)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(
        {
            "script_decoder": lambda path: save(Decoder(), [(2, 4)], path, script=True, open_axes={0: "N"}),
            "script_data": lambda path: save(Attractor(), [(2, 3)], path, script=True),
            "script_rows_written": lambda path: save(
                RowsWritten(), [(2, 1, 3), (2, 5, 3)], path, script=True, open_axes={1: "T"}
            ),
            "script_lstm_in_loop": lambda path: save(
                LayersInLoop(), [(1, 2, 3), (4, 2, 3)], path, script=True, open_axes={0: "T"}
            ),
            "scan": lambda path: save(Leak(), [(5, 2, 3)], path, script=False),
            "scan_open": lambda path: save(Leak(), [(3, 2, 3), (5, 2, 3)], path, script=False, open_axes={0: "T"}),
            "scan_backwards": lambda path: save(Leak(reverse=True), [(5, 2, 3)], path, script=False),
            "while_loop": lambda path: save(Halving(), [(2, 3)], path, script=False),
        }
    )
