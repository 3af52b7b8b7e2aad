"""Nets of series: forecasts, records, sensors, sessions."""

# mypy: disable-error-code="misc, no-any-return"

from typing import Any

import torch
from nets import BATCH, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def autoencoder() -> nn.Module:
    """The last state, repeated, is decoded."""

    def forward(m: Any, x: Tensor) -> Tensor:
        code = m.encoder(x)[1][0][-1]
        return m.head(m.decoder(code.unsqueeze(1).repeat(1, x.shape[1], 1))[0])

    lstm = {"encoder": nn.LSTM(4, 6, batch_first=True), "decoder": nn.LSTM(6, 6, batch_first=True)}
    return Of(forward, **lstm, head=nn.Linear(6, 4))


def forecaster() -> nn.Module:
    """The next values from those of a window, normalized by its mean and deviation."""

    def forward(m: Any, x: Tensor) -> Tensor:
        mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        y = m.lstm((x - mean) / deviation)[0][:, -1]
        return m.head(y).reshape(-1, 4, 3) * deviation + mean

    return Of(forward, lstm=nn.LSTM(3, 8, 2, batch_first=True), head=nn.Linear(8, 12))


def elman() -> nn.Module:
    return Of(
        lambda m, x: m.head(m.rnn(x)[0]),
        rnn=nn.RNN(5, 6, 2, nonlinearity="relu", batch_first=True),
        head=nn.Linear(6, 2),
    )


def lstm_cells() -> nn.Module:
    """Two LSTMCells, called in a loop."""

    def forward(m: Any, x: Tensor) -> Tensor:
        states: list[Any] = [None, None]
        for row in x.unbind(1):
            states[0] = m.first(row, states[0])
            states[1] = m.second(states[0][0], states[1])
        return m.head(states[1][0])

    return Of(forward, first=nn.LSTMCell(5, 6), second=nn.LSTMCell(6, 6), head=nn.Linear(6, 2))


def projection() -> nn.Module:
    """LSTMs whose states are projected in between."""
    return Of(
        lambda m, x: m.head(m.second(m.project(m.first(x)[0]))[0]),
        first=nn.LSTM(8, 12, batch_first=True),
        project=nn.Linear(12, 5, bias=False),
        second=nn.LSTM(5, 12, batch_first=True),
        head=nn.Linear(12, 6),
    )


def learned_states() -> nn.Module:
    """The initial states are parameters, expanded to the batch."""

    def forward(m: Any, x: Tensor) -> Tensor:
        states = (m.h.expand(-1, x.shape[0], -1).contiguous(), m.c.expand(-1, x.shape[0], -1).contiguous())
        return m.head(m.lstm(x, states)[0])

    h, c = (nn.Parameter(torch.randn(2, 1, 6)) for _ in range(2))
    return Of(forward, h=h, c=c, lstm=nn.LSTM(5, 6, 2, batch_first=True), head=nn.Linear(6, 3))


def variational() -> nn.Module:
    """Anomalies: a code with a mean and a deviation, decoded at every step."""

    def forward(m: Any, x: Tensor) -> Any:
        code = m.encoder(x)[1][0]
        mean, deviation = m.mean(code), torch.exp(0.5 * m.log(code))
        z = torch.tanh(m.state(mean))
        steps = mean.unsqueeze(1).expand(-1, x.size(1), -1)
        y = m.decoder(steps, z.unsqueeze(0))[0]
        rebuilt = m.head(y)
        return rebuilt, deviation, (rebuilt - x).abs().mean((1, 2))

    layers = {"mean": nn.Linear(6, 3), "log": nn.Linear(6, 3), "state": nn.Linear(3, 6), "head": nn.Linear(6, 4)}
    grus = {"encoder": nn.GRU(4, 6, batch_first=True), "decoder": nn.GRU(3, 6, batch_first=True)}
    return Of(forward, **layers, **grus)


def activity() -> nn.Module:
    """What a person does, from sensors: convolutions, BatchNorm, LSTMs and a mean over time."""

    def forward(m: Any, x: Tensor) -> Tensor:
        rows = m.cnn(x.transpose(1, 2)).transpose(1, 2)
        return torch.softmax(m.head(F.adaptive_avg_pool1d(m.lstm(rows)[0].transpose(1, 2), 1).squeeze(2)), 1)

    cnn = nn.Sequential(nn.Conv1d(6, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.Dropout())
    return Of(forward, cnn=cnn, lstm=nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), head=nn.Linear(12, 5))


def gestures() -> nn.Module:
    """Bidirectional nn.RNN with tanh, both last states."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.rnn(x)[1]
        return m.head(torch.cat([h[-2], h[-1]], 1))

    return Of(forward, rnn=nn.RNN(4, 6, 2, bidirectional=True), head=nn.Linear(12, 3))


def deepar() -> nn.Module:
    """A distribution of the next value, from values and a category."""

    def forward(m: Any, x: Tensor, kind: Tensor) -> Any:
        scale = x.abs().mean(1, keepdim=True) + 1.0
        same = m.embed(kind).unsqueeze(1).expand(-1, x.shape[1], -1)
        y = m.lstm(torch.cat([x / scale, same], 2))[0]
        return m.mean(y) * scale, F.softplus(m.deviation(y)) * scale

    lstm = nn.LSTM(6, 8, 2, batch_first=True)
    return Of(forward, embed=nn.Embedding(20, 3), lstm=lstm, mean=nn.Linear(8, 1), deviation=nn.Linear(8, 1))


def fusion() -> nn.Module:
    """Forecasts: gated LSTMs, then attention to all that was."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.into(x)
        y = m.norm(x + F.glu(m.gate(m.lstm(x)[0]), -1))
        q, k, v = m.qkv(y).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return m.head(y + z)[:, -1]

    layers: Any = {
        "into": nn.Linear(4, 8),
        "gate": nn.Linear(8, 16),
        "qkv": nn.Linear(8, 24),
        "head": nn.Linear(8, 3),
    }
    return Of(forward, **layers, lstm=nn.LSTM(8, 8, batch_first=True), norm=nn.LayerNorm(8))


def normalized_cells() -> nn.Module:
    """A GRUCell with LayerNorm, called in a loop."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 6)
        rows = []
        for n in range(x.shape[1]):
            h = m.norm(m.cell(x[:, n], h))
            rows.append(h)
        return m.head(torch.stack(rows, 1))

    return Of(forward, cell=nn.GRUCell(5, 6), norm=nn.LayerNorm(6), head=nn.Linear(6, 2))


def residual_grus() -> nn.Module:
    """GRUs with gates around them, as in highways."""

    def forward(m: Any, x: Tensor) -> Any:
        lasts = []
        for gru, gate in zip(m.grus, m.gates, strict=True):
            y, last = gru(x)
            t = torch.sigmoid(gate(x))
            x = t * y + (1 - t) * x
            lasts.append(last)
        return m.head(x), torch.cat(lasts)

    grus = nn.ModuleList(nn.GRU(6, 6, batch_first=True) for _ in range(3))
    gates = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    return Of(forward, grus=grus, gates=gates, head=nn.Linear(6, 2))


def recommender() -> nn.Module:
    """The next items of a session, by the products of their embeddings with the last state."""

    def forward(m: Any, items: Tensor) -> Any:
        h = m.gru(m.embed(items))[1][-1]
        scores = h @ m.embed.weight.T
        best = torch.topk(scores, 3)
        return scores, best.values

    return Of(forward, embed=nn.Embedding(20, 6), gru=nn.GRU(6, 6, batch_first=True))


def gru_d() -> nn.Module:
    """Records with holes: values decay towards means, the state decays too."""

    def forward(m: Any, x: Tensor, mask: Tensor, delta: Tensor) -> Any:
        h = torch.zeros(x.size(0), 6)
        last = m.mean.expand(x.size(0), -1)
        out = []
        for n in range(x.size(1)):
            d, k = delta[:, n], mask[:, n]
            gamma = torch.exp(-F.relu(m.gx * d + m.bx))
            last = torch.where(k > 0, x[:, n], last)
            value = k * x[:, n] + (1 - k) * (gamma * last + (1 - gamma) * m.mean)
            h = torch.exp(-F.relu(m.gh(d))) * h
            h = m.cell(torch.cat([value, k], 1), h)
            out.append(h)
        return torch.sigmoid(m.head(torch.stack(out, 1).mean(1)))

    return Of(
        forward,
        mean=nn.Parameter(torch.randn(4)),
        gx=nn.Parameter(torch.rand(4)),
        bx=nn.Parameter(torch.rand(4)),
        gh=nn.Linear(4, 6),
        cell=nn.GRUCell(8, 6),
        head=nn.Linear(6, 1),
    )


def lstnet() -> nn.Module:
    """Electricity: a convolution, a GRU, a GRU that skips a period, and an autoregression."""

    def forward(m: Any, x: Tensor) -> Any:
        b = x.size(0)
        c = F.relu(m.conv(x.unsqueeze(1))).squeeze(3)
        r = m.gru(c.permute(2, 0, 1))[1].squeeze(0)
        s = c[:, :, -12:].reshape(b, 6, 3, 4).permute(2, 0, 3, 1).reshape(3, b * 4, 6)
        s = m.skip(s)[1].view(b, 16)
        z = m.ar(x[:, -8:].permute(0, 2, 1).reshape(-1, 8)).view(-1, 5)
        return torch.sigmoid(m.head(torch.cat([r, s], 1)) + z)

    return Of(
        forward,
        conv=nn.Conv2d(1, 6, (3, 5)),
        gru=nn.GRU(6, 8),
        skip=nn.GRU(6, 4),
        ar=nn.Linear(8, 1),
        head=nn.Linear(24, 5),
    )


def ecg() -> nn.Module:
    """Heart beats: residual convolutions with squeeze and excitation, a GRU, attention over time."""

    def forward(m: Any, x: Tensor) -> Any:
        y = F.relu(m.bn1(m.c1(x)))
        y = m.bn2(m.c2(y))
        s = torch.sigmoid(m.se2(F.relu(m.se1(y.mean(2)))))
        y = F.relu(y * s.unsqueeze(2) + m.down(x))
        y = F.max_pool1d(y, 3, 2, 1)
        r = m.gru(y.permute(0, 2, 1))[0]
        a = F.softmax(m.att(r).squeeze(-1), dim=1)
        return torch.sigmoid(m.head(torch.einsum("bt,bth->bh", a, r)))

    return Of(
        forward,
        c1=nn.Conv1d(3, 8, 7, 2, 3),
        bn1=nn.BatchNorm1d(8),
        c2=nn.Conv1d(8, 8, 3, 1, 1),
        bn2=nn.BatchNorm1d(8),
        down=nn.Conv1d(3, 8, 1, 2),
        se1=nn.Linear(8, 2),
        se2=nn.Linear(2, 8),
        gru=nn.GRU(8, 6, batch_first=True, bidirectional=True),
        att=nn.Linear(12, 1),
        head=nn.Linear(12, 5),
    )


def sru() -> nn.Module:
    """Simple recurrent units: all products at once, a loop of elementwise steps, highways."""

    def forward(m: Any, x: Tensor) -> Any:
        for lin in m.lins:
            u, f, r = lin(x).chunk(3, 2)
            f, r = torch.sigmoid(f), torch.sigmoid(r)
            c, out = torch.zeros_like(x[:, 0]), []
            for n in range(x.shape[1]):
                c = f[:, n] * c + (1 - f[:, n]) * u[:, n]
                out.append(r[:, n] * torch.tanh(c) + (1 - r[:, n]) * x[:, n])
            x = torch.stack(out, 1)
        return m.head(x[:, -1])

    return Of(forward, lins=nn.ModuleList(nn.Linear(6, 18) for _ in range(2)), head=nn.Linear(6, 3))


def interest() -> nn.Module:
    """What a user will like: a GRU over what they saw, then a GRU whose update gate is attention to the item."""

    def forward(m: Any, items: Tensor, target: Tensor) -> Any:
        e, q = m.embed(items), m.embed(target)
        y = m.gru(e)[0]
        a = torch.softmax((m.w(y) * q.unsqueeze(1)).sum(-1).masked_fill(items == 0, -1e9), 1)
        h = torch.zeros(items.shape[0], 6)
        for n in range(8):
            xh = torch.cat([y[:, n], h], 1)
            u = torch.sigmoid(m.u(xh)) * a[:, n : n + 1]
            g = torch.tanh(m.g(torch.cat([y[:, n], torch.sigmoid(m.r(xh)) * h], 1)))
            h = (1 - u) * h + u * g
        z = torch.cat([h, q, h * q], 1)
        return torch.sigmoid(m.head(F.prelu(m.fc(z), m.slope)))

    return Of(
        forward,
        embed=nn.Embedding(20, 6, padding_idx=0),
        gru=nn.GRU(6, 6, batch_first=True),
        w=nn.Linear(6, 6),
        u=nn.Linear(12, 6),
        r=nn.Linear(12, 6),
        g=nn.Linear(12, 6),
        fc=nn.Linear(18, 6),
        slope=nn.Parameter(torch.full((6,), 0.2)),
        head=nn.Linear(6, 1),
    )


def memory_net() -> nn.Module:
    """A controller with a memory that it reads by content and writes."""

    def forward(m: Any, x: Tensor) -> Any:
        h = c = x.new_zeros(x.shape[0], 6)
        memory = m.memory.unsqueeze(0).expand(x.shape[0], -1, -1)
        read = memory.mean(1)
        out = []
        for n in range(x.shape[1]):
            h, c = m.cell(torch.cat([x[:, n], read], 1), (h, c))
            w = torch.softmax(F.cosine_similarity(m.key(h).unsqueeze(1), memory, dim=-1) * F.softplus(m.beta(h)), 1)
            memory = memory * (1 - w.unsqueeze(2) * torch.sigmoid(m.erase(h)).unsqueeze(1)) + w.unsqueeze(
                2
            ) * torch.tanh(m.add(h)).unsqueeze(1)
            read = (w.unsqueeze(2) * memory).sum(1)
            out.append(m.head(torch.cat([h, read], 1)))
        return torch.stack(out, 1)

    return Of(
        forward,
        memory=nn.Parameter(torch.randn(5, 4)),
        cell=nn.LSTMCell(7, 6),
        key=nn.Linear(6, 4),
        beta=nn.Linear(6, 1),
        erase=nn.Linear(6, 4),
        add=nn.Linear(6, 4),
        head=nn.Linear(10, 2),
    )


SERIES = {
    "autoencoder": Net(autoencoder, {"x": "batch time 4"}),
    "forecaster": Net(forecaster, {"x": "batch time 3"}),
    "elman": Net(elman, {"x": "batch time 5"}, dynamo=BATCH),
    "lstm_cells": Net(lstm_cells, {"x": "batch 6 5"}),
    "projection": Net(projection, {"x": "batch time 8"}),
    "learned_states": Net(learned_states, {"x": "batch time 5"}),
    "variational": Net(variational, {"x": "batch time 4"}),
    "activity": Net(activity, {"x": "batch time 6"}, dynamo=BATCH),
    "gestures": Net(gestures, {"x": "time batch 4"}, dynamo=BATCH),
    "deepar": Net(deepar, {"x": "batch time 3", "kind": "<20: batch"}),
    "fusion": Net(fusion, {"x": "batch time 4"}),
    "normalized_cells": Net(normalized_cells, {"x": "batch 6 5"}),
    "residual_grus": Net(residual_grus, {"x": "batch time 6"}),
    "recommender": Net(recommender, {"items": "<20: batch time"}),
    "gru_d": Net(gru_d, {"x": "batch 6 4", "mask": "batch 6 4", "delta": "batch 6 4"}),
    "lstnet": Net(lstnet, {"x": "batch 20 5"}),
    "ecg": Net(ecg, {"x": "batch 3 time"}, ({"batch": 2, "time": 64}, {"batch": 3, "time": 96}), BATCH),
    "sru": Net(sru, {"x": "batch 6 6"}),
    "interest": Net(interest, {"items": "<20: batch 8", "target": "<20: batch"}),
    "memory_net": Net(memory_net, {"x": "batch 5 3"}),
}
