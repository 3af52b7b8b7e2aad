"""Loops over cells that both exporters of PyTorch trace step by step, each at two lengths."""

# mypy: disable-error-code="misc, override"

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from exported import Feed, main, numbers, save_runs
from torch import Tensor, nn

N, I, H = 2, 5, 6  # noqa: E741
LENGTHS = (11, 24)


class Traced(nn.Module):
    """A cell over the rows of x [N, T, I], from zeros."""

    def __init__(self, kind: type[nn.Module] = nn.LSTMCell, rows: int = I) -> None:
        super().__init__()
        self.cell, self.head = kind(rows, H), nn.Linear(H, 3)

    def zeros(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(x.shape[0], H), x.new_zeros(x.shape[0], H)

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        state, ys = self.zeros(x), []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            ys.append(state[0])
        return torch.stack(ys, 1), *state


class LstmOfNone(Traced):
    """Its first states are the cell's own zeros."""

    def forward(self, x: Tensor) -> Tensor:
        state, ys = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            ys.append(state[0])
        return self.head(torch.stack(ys, 1))


class Gru(Traced):
    """Backwards, by rows of unbind."""

    def __init__(self) -> None:
        super().__init__(nn.GRUCell)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, ys = self.zeros(x)[0], list[Tensor]()
        for row in reversed(x.unbind(1)):
            h = self.cell(row, h)
            ys.insert(0, h)
        return torch.stack(ys, 1), h


class Rnn(Traced):
    """Rows of one step, joined by cat."""

    def __init__(self) -> None:
        super().__init__(nn.RNNCell)

    def forward(self, x: Tensor) -> Tensor:
        h, ys = self.zeros(x)[0], []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t : t + 1].squeeze(1), h)
            ys.append(h.unsqueeze(1))
        return torch.cat(ys, 1)


class Policy(Traced):
    """States in and out, layers before and after the cell in each step."""

    def __init__(self) -> None:
        super().__init__(rows=8)
        self.before, self.value = nn.Sequential(nn.Linear(I, 8), nn.ELU()), nn.Linear(H, 1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        actions, values = [], []
        for t in range(x.shape[1]):
            h, c = self.cell(self.before(x[:, t]), (h, c))
            actions.append(torch.tanh(self.head(h)))
            values.append(self.value(h))
        return torch.stack(actions, 1), torch.stack(values, 1), h, c


class Layers(Traced):
    """Three cells in one loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(I, H), nn.LSTMCell(H, H), nn.LSTMCell(H, H)])

    def forward(self, x: Tensor) -> Tensor:
        states, ys = [self.zeros(x) for _ in self.cells], []
        for t in range(x.shape[1]):
            row = x[:, t]
            for n, cell in enumerate(self.cells):
                states[n] = cell(row, states[n])
                row = states[n][0]
            ys.append(self.head(row))
        return torch.stack(ys, 1)


class Bidirectional(Traced):
    """Both directions in one loop, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards, self.backwards = (nn.ModuleList([nn.GRUCell(I, H), nn.GRUCell(2 * H, H)]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            (f, b), fs, bs = self.zeros(x), [], []
            for t in range(T):
                f, b = forwards(x[:, t], f), backwards(x[:, T - 1 - t], b)
                fs.append(f)
                bs.append(b)
            x = torch.cat([torch.stack(fs, 1), torch.stack(bs[::-1], 1)], -1)
        return x


class ByHand(Traced):
    """One product of x and h, joined, with peepholes."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(I, 4 * H), nn.Linear(H, 4 * H, bias=False)
        self.p = nn.Parameter(torch.randn(3, H))

    def forward(self, x: Tensor) -> Tensor:
        (h, c), ys = self.zeros(x), []
        for t in range(x.shape[1]):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, 1)
            i, f = torch.sigmoid(i + self.p[0] * c), torch.sigmoid(f + self.p[1] * c)
            c = f * c + i * torch.tanh(g)
            h = torch.sigmoid(o + self.p[2] * c) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys, 1)


class Joined(Traced):
    """The minimal gated unit, with products of cat([h, x])."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.n = nn.Linear(I + H, H), nn.Linear(I + H, H)

    def forward(self, x: Tensor) -> Tensor:
        h, ys = self.zeros(x)[0], []
        for t in range(x.shape[1]):
            f = torch.sigmoid(self.f(torch.cat([h, x[:, t]], 1)))
            h = (1 - f) * h + f * torch.tanh(self.n(torch.cat([f * h, x[:, t]], 1)))
            ys.append(h)
        return torch.stack(ys, 1)


class TrapDecoder(Traced):
    """What it returns is its next row, so it is no LSTM over rows."""

    def __init__(self) -> None:
        super().__init__(rows=3)

    def forward(self, x: Tensor) -> Tensor:
        state, y, ys = self.zeros(x), x[:, 0, :3], []
        for _ in range(x.shape[1]):
            state = self.cell(y, state)
            y = self.head(state[0])
            ys.append(y)
        return torch.stack(ys, 1)


class TrapOneStep(Traced):
    """One step in the middle is another one: its steps stay, or those beside it become a node."""

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.zeros(x)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            if t == 3:
                c = 2 * c
        return h


NETS: dict[str, Callable[[], nn.Module]] = {
    "lstm": Traced,
    "lstm_of_none": LstmOfNone,
    "gru": Gru,
    "rnn": Rnn,
    "policy": Policy,
    "layers": Layers,
    "bidirectional": Bidirectional,
    "by_hand": ByHand,
    "joined": Joined,
    "trap_decoder": TrapDecoder,
    "trap_one_step": TrapOneStep,
}


def feed_of(name: str, T: int) -> Feed:
    states = {state: numbers(N, H, seed=n) for n, state in enumerate(("h", "c"))}
    return {"x": numbers(N, T, I, seed=T)} | (states if name == "policy" else {})


def export(name: str, dynamo: bool, T: int, path: Path) -> None:
    torch.manual_seed(0)
    net, feed = NETS[name]().eval(), feed_of(name, T)
    given = tuple(map(torch.from_numpy, feed.values()))
    if dynamo:
        program = torch.onnx.export(net, given, dynamo=True, verbose=False, input_names=[*feed])
        assert program is not None
        program.save(path)
    else:
        torch.onnx.export(net, given, str(path), dynamo=False, opset_version=17, input_names=[*feed])

    def compute(feed: Feed) -> list[Tensor]:
        with torch.no_grad():
            outputs = net(*map(torch.from_numpy, feed.values()))
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    save_runs(path, [feed], compute)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(
        {
            f"{name}.{'dynamo' if dynamo else 'older'}.{T}": partial(export, name, dynamo, T)
            for name in NETS
            for dynamo in (False, True)
            for T in LENGTHS
        }
    )
