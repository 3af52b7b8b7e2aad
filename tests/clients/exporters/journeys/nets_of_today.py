"""Nets of today: recurrences that are spelled out, masks, experts, frames of the net's own."""

# mypy: disable-error-code="misc, no-any-return"

from typing import Any

import torch
from nets import BATCH, WORDS, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def rwkv() -> nn.Module:
    """Time mixing: rows are shifted by a Pad that crops, and weighed by a decaying sum of exponentials."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.norm(x)
        mixed = y * m.mix + m.shift(y) * (1 - m.mix)
        k, v, r = m.key(mixed), m.value(mixed), torch.sigmoid(m.gate(mixed))
        a, b, top = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], -1e38)
        rows = []
        for t in range(x.shape[1]):
            most = torch.maximum(top, m.first + k[:, t])
            old, new = torch.exp(top - most), torch.exp(m.first + k[:, t] - most)
            rows.append((old * a + new * v[:, t]) / (old * b + new))
            most = torch.maximum(top - torch.exp(m.decay), k[:, t])
            old, new = torch.exp(top - torch.exp(m.decay) - most), torch.exp(k[:, t] - most)
            a, b, top = old * a + new * v[:, t], old * b + new, most
        return x + m.out(r * torch.stack(rows, 1))

    layers = {name: nn.Linear(8, 8, bias=False) for name in ("key", "value", "gate", "out")}
    numbers = {name: nn.Parameter(torch.rand(8)) for name in ("mix", "first", "decay")}
    return Of(forward, norm=nn.LayerNorm(8), shift=nn.ZeroPad2d((0, 0, 1, -1)), **layers, **numbers)


def slstm() -> nn.Module:
    """An sLSTM: exponential gates with heads, and a norm of groups of the rows of all steps."""

    def forward(m: Any, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        given = m.given(x).view(batch, time, 4, 2, 4)
        h, c, top = torch.zeros(batch, 2, 4), torch.zeros(batch, 2, 4), torch.zeros(batch, 2, 4)
        n = torch.ones(batch, 2, 4)
        rows = []
        for t in range(time):
            z, i, f, o = (given[:, t] + torch.einsum("bhi,ghij->bghj", h, m.own)).unbind(1)
            f = F.logsigmoid(f)
            most = torch.maximum(f + top, i)
            i, f, top = torch.exp(i - most), torch.exp(f + top - most), most
            c, n = f * c + i * torch.tanh(z), f * n + i
            h = torch.sigmoid(o) * c / n
            rows.append(h)
        y = m.norm(torch.stack(rows, 1).reshape(batch * time, 8))
        return x + m.out(y.view(batch, time, 8))

    own = nn.Parameter(0.2 * torch.randn(4, 2, 4, 4))
    return Of(forward, given=nn.Linear(6, 32), own=own, norm=nn.GroupNorm(2, 8), out=nn.Linear(8, 6))


def masked_pooling() -> nn.Module:
    """Attention, mean and maximum over words that are not padding."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        mask = tokens.ne(0).unsqueeze(-1)
        y = m.gru(m.embed(tokens))[0]
        a = torch.softmax(m.score(y).masked_fill(~mask, -1e9), 1)
        mean = (y * mask).sum(1) / mask.sum(1).clamp(min=1)
        return m.head(torch.cat([(a * y).sum(1), mean, y.masked_fill(~mask, -1e4).max(1).values], -1))

    gru = nn.GRU(8, 6, batch_first=True, bidirectional=True)
    return Of(forward, embed=nn.Embedding(20, 8), gru=gru, score=nn.Linear(12, 1), head=nn.Linear(36, 3))


def framed_vad() -> nn.Module:
    """Frames are cut in the net; its states are outputs that nodes read too."""

    def forward(m: Any, wave: Tensor, context: Tensor, h: Tensor, c: Tensor) -> Any:
        x = torch.cat([context, wave], 1)
        y = F.pad(x.unsqueeze(1), (0, 8), "reflect")
        y = torch.log1p(torch.sqrt(m.real(y) ** 2 + m.imaginary(y) ** 2 + 1e-9))
        h, c = m.cell(F.relu(m.conv(y))[..., -1], (h, c))
        return torch.sigmoid(m.head(F.relu(h).unsqueeze(-1))).squeeze(-1), x[:, -8:], h, c

    frames = {name: nn.Conv1d(1, 9, 16, 8, bias=False) for name in ("real", "imaginary")}
    head = nn.Conv1d(8, 1, 1)
    return Of(forward, **frames, conv=nn.Conv1d(9, 8, 3, padding=1), cell=nn.LSTMCell(8, 8), head=head)


def experts() -> nn.Module:
    """Four LSTMs, of which the two that suit a sequence most are added up."""

    def forward(m: Any, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(m.gate(x.mean(1)), 2, -1)
        weights = torch.zeros(x.shape[0], 4).scatter(1, chosen, scores.softmax(-1))
        y = torch.stack([lstm(x)[0] for lstm in m.lstms], 1)
        return m.head((y * weights[:, :, None, None]).sum(1))

    lstms = nn.ModuleList(nn.LSTM(5, 6, batch_first=True) for _ in range(4))
    return Of(forward, lstms=lstms, gate=nn.Linear(5, 4), head=nn.Linear(6, 2))


def languages() -> nn.Module:
    """A language scales and shifts the rows of an LSTM, then comes an exact Gelu."""

    def forward(m: Any, x: Tensor, language: Tensor) -> Tensor:
        gamma, beta = m.film(m.embed(language)).chunk(2, -1)
        y = m.lstm(m.pre(x))[0]
        return m.head(F.gelu(y * (1 + gamma[:, None]) + beta[:, None]))

    layers = {"film": nn.Linear(4, 16), "pre": nn.Linear(5, 6), "head": nn.Linear(8, 3)}
    return Of(forward, embed=nn.Embedding(6, 4), lstm=nn.LSTM(6, 8, batch_first=True), **layers)


def mixture() -> nn.Module:
    """How likely the next row is, by a mixture of normal distributions."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.gru(x[:, :-1])[0]
        mean, log = m.mean(y).view(-1, 11, 3, 6), m.log(y).view(-1, 11, 3, 6).clamp(-4, 4)
        d = (x[:, 1:].unsqueeze(2) - mean) * torch.exp(-log)
        return torch.logsumexp(F.log_softmax(m.which(y), -1) - 0.5 * (d**2).sum(-1) - log.sum(-1), -1)

    layers = {"which": nn.Linear(8, 3), "mean": nn.Linear(8, 18), "log": nn.Linear(8, 18)}
    return Of(forward, gru=nn.GRU(6, 8, batch_first=True), **layers)


def collapsed_labels() -> nn.Module:
    """The best labels of an LSTM, without blanks and repeated ones."""

    def forward(m: Any, x: Tensor) -> Any:
        scores = F.log_softmax(m.head(m.lstm(x)[0]), -1)
        best = scores.argmax(-1)
        repeated = F.pad((best[:, 1:] == best[:, :-1]).long(), (1, 0)).bool()
        keep = (best != 0) & ~repeated
        return scores, torch.where(keep, best, torch.full_like(best, -1)), keep.sum(1)

    return Of(forward, lstm=nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), head=nn.Linear(10, 6))


FRAMES = {"wave": "batch 64", "context": "batch 8", "h": "batch 8", "c": "batch 8"}

TODAY = {
    "rwkv": Net(rwkv, {"x": "batch 6 8"}),
    "slstm": Net(slstm, {"x": "batch 6 6"}),
    "masked_pooling": Net(masked_pooling, WORDS),
    "framed_vad": Net(framed_vad, FRAMES, dynamo=BATCH),
    "experts": Net(experts, {"x": "batch time 5"}),
    "languages": Net(languages, {"x": "batch time 5", "language": "<6: batch"}),
    "mixture": Net(mixture, {"x": "batch 12 6"}),
    "collapsed_labels": Net(collapsed_labels, {"x": "batch time 6"}),
}
