"""Cells of PyTorch in loops of torch.jit.script, and in the higher-order scan."""

# mypy: disable-error-code="misc"

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from exported import Feed, main, numbers, save_runs
from torch import Tensor, nn
from torch._higher_order_ops import scan

N, T, I, H = 2, 5, 3, 4  # noqa: E741


class LstmByHand(nn.Module):
    """One product of x, one of h, and chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(I, 4 * H), nn.Linear(H, 4 * H)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4)
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            i, f, g, o = (self.x(x[t]) + self.h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            rows.append(h)
        return torch.stack(rows), h, c


class LstmJoined(nn.Module):
    """A Linear of x and h, batch first, slices for the gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(I + H, 4 * H)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(x.size(0), 4), torch.zeros(x.size(0), 4)
        rows: list[Tensor] = []
        for t in range(x.size(1)):
            s = self.gates(torch.cat([x[:, t], h], dim=1))
            f, i = torch.sigmoid(s[:, :4]), torch.sigmoid(s[:, 4:8])
            c = f * c + i * torch.tanh(s[:, 8:12])
            h = torch.sigmoid(s[:, 12:]) * torch.tanh(c)
            rows.append(h)
        return torch.stack(rows, 1)


class Peepholes(nn.Module):
    """An LSTM with peepholes."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(I, 4 * H), nn.Linear(H, 4 * H, bias=False)
        self.p = nn.Parameter(torch.randn(3, H))

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4)
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            i, f, g, o = (self.x(x[t]) + self.h(h)).chunk(4, 1)
            i, f = torch.sigmoid(i + self.p[0] * c), torch.sigmoid(f + self.p[1] * c)
            c = f * c + i * g.tanh()
            h = torch.sigmoid(o + self.p[2] * c) * c.tanh()
            rows.append(h)
        return torch.stack(rows)


class GruByHand(nn.Module):
    """A GRU as PyTorch's page has it."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(I, 3 * H), nn.Linear(H, 3 * H)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            xr, xz, xn = self.x(x[t]).chunk(3, 1)
            hr, hz, hn = self.h(h).chunk(3, 1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            h = (1 - z) * torch.tanh(xn + r * hn) + z * h
            rows.append(h)
        return torch.stack(rows), h


class GruJoined(nn.Module):
    """A GRU of three Linears of x and h, with z the other way round, and torch.lerp."""

    def __init__(self) -> None:
        super().__init__()
        self.z, self.r, self.n = (nn.Linear(I + H, H) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(1), 4)
        for t in range(x.size(0)):
            both = torch.cat([x[t], h], 1)
            z, r = torch.sigmoid(self.z(both)), torch.sigmoid(self.r(both))
            h = torch.lerp(h, torch.tanh(self.n(torch.cat([x[t], r * h], 1))), z)
        return h


class Minimal(nn.Module):
    """The minimal gated unit."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.n = nn.Linear(I + H, H), nn.Linear(I + H, H)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(1), 4)
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            f = torch.sigmoid(self.f(torch.cat([x[t], h], 1)))
            h = (1 - f) * h + f * torch.tanh(self.n(torch.cat([x[t], f * h], 1)))
            rows.append(h)
        return torch.stack(rows)


class Elman(nn.Module):
    """An RNN with its output layer in the loop; `cell` is nn.RNNCell where it is true."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.y = nn.Linear(I, H), nn.Linear(H, H), nn.Linear(H, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros(x.size(1), 4)
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            h = torch.relu(self.x(x[t]) + self.h(h))
            rows.append(torch.softmax(self.y(h), dim=1))
        return torch.stack(rows), h


class Backwards(nn.Module):
    """An RNN from the last row on, whose rows are put in the order of x."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(I, H), nn.Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(1), 4)
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            h = torch.tanh(self.x(x[x.size(0) - 1 - t]) + self.h(h))
            rows.append(h)
        return torch.stack(rows).flip(0)


class GruScan(nn.Module):
    """A GRU in the higher-order scan."""

    def __init__(self) -> None:
        super().__init__()
        self.W, self.R = nn.Parameter(torch.randn(I, 3 * H) / 2), nn.Parameter(torch.randn(H, 3 * H) / 2)
        self.b = nn.Parameter(torch.randn(3 * H) / 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            xs, hs = row @ self.W + self.b, h @ self.R
            z, r = torch.sigmoid(xs[:, :4] + hs[:, :H]), torch.sigmoid(xs[:, 4:8] + hs[:, H : 2 * H])
            new = z * h + (1 - z) * torch.tanh(xs[:, 2 * H :] + r * hs[:, 2 * H :])
            return new, new.clone()

        last, rows = scan(step, torch.zeros(x.shape[1], H), x)
        return last, rows


class LayerNormed(LstmByHand):
    """A trap: the sums are normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * H)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4)
        rows: list[Tensor] = []
        for t in range(x.size(0)):
            i, f, g, o = self.norm(self.x(x[t]) + self.h(h)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            rows.append(h)
        return torch.stack(rows), h, c


class TwoLayers(nn.Module):
    """A trap: two cells in one loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(I + H, H), nn.Linear(H + H, H)

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4)
        for t in range(x.size(0)):
            a = torch.tanh(self.first(torch.cat([x[t], a], 1)))
            b = torch.tanh(self.second(torch.cat([a, b], 1)))
        return b


def save(make: Callable[[], nn.Module], path: Path, *, script: bool = True, time: int = 0, states: int = 0) -> None:
    """Export a net, for any length where it is scripted."""
    torch.manual_seed(0)
    net = make().eval()
    feeds = []
    for length in (1, T) if script else (T,):
        shape = (N, length, I) if time else (length, N, I)
        more = {f"h{n}": numbers(N, H, seed=7 + n) for n in range(states)}
        feeds.append({"x": numbers(*shape, seed=length), **more})
    given = tuple(torch.from_numpy(array) for array in feeds[-1].values())
    if script:
        torch.onnx.export(
            torch.jit.script(net),
            given,
            path,
            dynamo=False,
            opset_version=17,
            input_names=[*feeds[0]],
            dynamic_axes={"x": {time: "T"}},
        )
    else:
        torch.onnx.export(
            net, given, path, dynamo=True, external_data=False, opset_version=18, input_names=[*feeds[0]]
        )

    def compute(feed: Feed) -> Sequence[object]:
        with torch.no_grad():
            found = net(*(torch.from_numpy(array) for array in feed.values()))
        return [value.numpy() for value in (found if isinstance(found, tuple) else (found,))]

    save_runs(path, feeds, compute)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(
        {
            "lstm": lambda path: save(LstmByHand, path),
            "lstm_joined": lambda path: save(LstmJoined, path, time=1),
            "lstm_peepholes": lambda path: save(Peepholes, path),
            "gru": lambda path: save(GruByHand, path, states=1),
            "gru_joined": lambda path: save(GruJoined, path),
            "gru_minimal": lambda path: save(Minimal, path),
            "rnn_head": lambda path: save(Elman, path),
            "rnn_backwards": lambda path: save(Backwards, path),
            "gru_scan": lambda path: save(GruScan, path, script=False),
            "trap_layer_normed": lambda path: save(LayerNormed, path),
            "trap_two_layers": lambda path: save(TwoLayers, path),
        }
    )
