"""Nets of structures: trees, spans, graphs, tables of covariates, waves with skips, volumes."""

# mypy: disable-error-code="misc, no-any-return"

import math
from typing import Any

import torch
from nets import BATCH, WAVES, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def bilstm(width: int, size: int, layers: int = 1) -> nn.LSTM:
    return nn.LSTM(width, size, layers, batch_first=True, bidirectional=True)


def biaffine_parser() -> nn.Module:
    """The head of each word and its label: products of three, no word is its own head."""

    def forward(m: Any, words: Tensor) -> Any:
        x = m.embed(words)
        y = m.lstm(torch.cat([m.root.expand(x.size(0), -1, -1), x], 1))[0]
        head, word = F.leaky_relu(m.head(y), 0.1), F.leaky_relu(m.word(y), 0.1)
        n = torch.arange(y.shape[1])
        arcs = torch.einsum("bxi,ij,byj->bxy", torch.cat([word, torch.ones_like(word[..., :1])], -1), m.arcs, head)
        arcs = arcs.masked_fill((n[:, None] == n[None]).unsqueeze(0), -1e9)
        labels = torch.einsum("bxi,oij,byj->boxy", word, m.labels, head).permute(0, 2, 3, 1)
        best = arcs.argmax(-1)
        chosen = labels.gather(2, best[:, :, None, None].expand(-1, -1, 1, 3)).squeeze(2)
        return arcs.log_softmax(-1)[:, 1:], best[:, 1:], chosen.argmax(-1)[:, 1:]

    layers = {"head": nn.Linear(10, 4), "word": nn.Linear(10, 4), "root": nn.Parameter(torch.randn(1, 1, 6))}
    products = {"arcs": nn.Parameter(torch.randn(5, 4)), "labels": nn.Parameter(torch.randn(3, 4, 4))}
    return Of(forward, embed=nn.Embedding(20, 6), lstm=bilstm(6, 5, 2), **layers, **products)


def inference() -> nn.Module:
    """Two sentences that look at each other; what is masked as a whole is no number, and becomes 0."""

    def forward(m: Any, a: Tensor, b: Tensor) -> Tensor:
        x, y = m.lstm(m.embed(a))[0], m.lstm(m.embed(b))[0]
        scores = x @ y.transpose(1, 2)
        to_b = torch.nan_to_num(F.softmax(scores.masked_fill((b == 0).unsqueeze(1), float("-inf")), -1))
        to_a = torch.nan_to_num(F.softmax(scores.masked_fill((a == 0).unsqueeze(2), float("-inf")), 1))
        u, v = torch.cat([x, to_b @ y], -1), torch.cat([y, to_a.transpose(1, 2) @ x], -1)
        return m.head(torch.cat([m.compare(u)[0].amax(1), m.compare(v)[0].mean(1)], -1))

    lstms = {"lstm": bilstm(6, 4), "compare": bilstm(16, 4)}
    return Of(forward, embed=nn.Embedding(20, 6), **lstms, head=nn.Linear(16, 3))


def pointer_generator() -> nn.Module:
    """Words are written or copied: weights of attention are added up at the words of the source."""

    def forward(m: Any, source: Tensor, target: Tensor) -> Any:
        keys, (h, c) = m.encoder(m.embed(source))
        h, c = h.sum(0), c.sum(0)
        covered, rows, loss = torch.zeros(source.shape), [], 0
        for n in range(target.shape[1]):
            h, c = m.cell(m.embed(target[:, n]), (h, c))
            e = m.score(torch.tanh(m.key(keys) + m.query(h).unsqueeze(1) + m.cover(covered.unsqueeze(2)))).squeeze(
                2
            )
            a = F.softmax(e, 1) * (source != 0)
            read = torch.bmm(a.unsqueeze(1), keys).squeeze(1)
            loss, covered = loss + torch.min(a, covered).sum(1), covered + a
            gate = torch.sigmoid(m.gate(torch.cat([read, h], 1)))
            p = gate * F.softmax(m.out(torch.cat([h, read], 1)), 1)
            rows.append(torch.log(p.scatter_add(1, source, (1 - gate) * a) + 1e-12))
        return torch.stack(rows, 1), loss

    attention = {
        "key": nn.Linear(10, 7),
        "query": nn.Linear(5, 7),
        "cover": nn.Linear(1, 7),
        "score": nn.Linear(7, 1),
    }
    heads = {"gate": nn.Linear(15, 1), "out": nn.Linear(15, 16)}
    return Of(
        forward, embed=nn.Embedding(16, 6), encoder=bilstm(6, 5), cell=nn.LSTMCell(6, 5), **attention, **heads
    )


def crf_score() -> nn.Module:
    """The logarithm of the sum of all paths by a loop, less the score of given tags by gathers."""

    def forward(m: Any, tokens: Tensor, tags: Tensor) -> Tensor:
        mask = tokens.ne(0)
        e = m.head(m.lstm(m.embed(tokens))[0])
        a, score = m.start + e[:, 0], m.start[tags[:, 0]] + e[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for n in range(1, 6):
            new = torch.logsumexp(a.unsqueeze(2) + m.trans + e[:, n].unsqueeze(1), dim=1)
            a = torch.where(mask[:, n].unsqueeze(1), new, a)
            step = m.trans[tags[:, n - 1], tags[:, n]] + e[:, n].gather(1, tags[:, n : n + 1]).squeeze(1)
            score = score + step * mask[:, n]
        return torch.logsumexp(a, 1) - score

    numbers = {"start": nn.Parameter(torch.randn(5)), "trans": nn.Parameter(torch.randn(5, 5))}
    return Of(forward, embed=nn.Embedding(20, 6), lstm=bilstm(6, 5), head=nn.Linear(10, 5), **numbers)


def molecules() -> nn.Module:
    """Messages are added up at the atoms of more bonds than atoms, Set2Set reads the whole."""

    def forward(m: Any, atoms: Tensor, bonds: Tensor) -> Any:
        h = torch.tanh(m.given(atoms))
        for _ in range(2):
            sent = m.message(h)[bonds[0]]
            h = m.cell(torch.zeros_like(h).scatter_add(0, bonds[1].unsqueeze(1).expand(-1, 8), sent), h)
        read, state = torch.zeros(1, 16), (torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
        for _ in range(2):
            y, state = m.lstm(read.unsqueeze(0), state)
            a = torch.softmax((h * y.view(1, 8)).sum(-1, keepdim=True), 0)
            read = torch.cat([y.view(1, 8), (a * h).sum(0, keepdim=True)], -1)
        return m.head(read), h

    layers = {"given": nn.Linear(5, 8), "message": nn.Linear(8, 8), "head": nn.Linear(16, 2)}
    return Of(forward, cell=nn.GRUCell(8, 8), lstm=nn.LSTM(16, 8), **layers)


def roads() -> nn.Module:
    """Traffic: rows of senders are gathered and added up at receivers, then a GRU of each crossing."""

    def forward(m: Any, x: Tensor) -> Tensor:
        b, t, n, _ = x.shape
        h = m.sent(x)
        sums = torch.zeros_like(h).index_add(2, m.receivers, h[:, :, m.senders] * m.weights[None, None, :, None])
        y = F.relu(sums + m.own(x)).permute(0, 2, 1, 3).reshape(b * n, t, -1)
        return m.head(m.gru(y)[1][0]).view(b, n, 3)

    net = Of(
        forward,
        sent=nn.Linear(2, 6),
        own=nn.Linear(2, 6),
        weights=nn.Parameter(torch.rand(7)),
        gru=nn.GRU(6, 7, batch_first=True),
        head=nn.Linear(7, 3),
    )
    net.register_buffer("senders", torch.tensor([0, 1, 2, 3, 4, 0, 2]))
    net.register_buffer("receivers", torch.tensor([1, 2, 3, 4, 0, 2, 4]))
    return net


class GatedResidual(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.skip, self.first, self.second = nn.Linear(width, out), nn.Linear(width, out), nn.Linear(out, out)
        self.gate, self.norm = nn.Linear(out, 2 * out), nn.LayerNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.skip(x) + F.glu(self.gate(self.second(F.elu(self.first(x)))), -1))


def covariates() -> nn.Module:
    """A temporal fusion transformer: variables are selected, states come from what is static."""

    def forward(m: Any, past: Tensor, future: Tensor, static: Tensor) -> Any:
        s = m.embed(static).squeeze(1)
        each = torch.stack([layer(past[..., n : n + 1]) for n, layer in enumerate(m.variables)], -1)
        w = torch.softmax(m.select(each.flatten(-2)), -1).unsqueeze(-2)
        x, state = m.encoder((w * each).sum(-1), (m.h(s).unsqueeze(0), m.c(s).unsqueeze(0)))
        y = torch.cat([x, m.decoder(m.known(future), state)[0]], 1)
        q = y[:, -4:]
        steps, last = y.shape[1], q.shape[1]
        mask = torch.triu(torch.ones(last, steps, dtype=torch.bool), diagonal=steps - last + 1)
        scores = (m.query(q) @ m.key(y).transpose(1, 2) / math.sqrt(8)).masked_fill(mask, float("-inf"))
        return m.out(m.last(q + scores.softmax(-1) @ y)), w.squeeze(-2)

    lstms = {name: nn.LSTM(8, 8, batch_first=True) for name in ("encoder", "decoder")}
    residuals = {name: GatedResidual(8, 8) for name in ("h", "c", "last")} | {"select": GatedResidual(24, 3)}
    variables = nn.ModuleList(nn.Linear(1, 8) for _ in range(3))
    layers = {"known": nn.Linear(2, 8), "query": nn.Linear(8, 8), "key": nn.Linear(8, 8), "out": nn.Linear(8, 3)}
    return Of(forward, embed=nn.Embedding(5, 8), variables=variables, **lstms, **residuals, **layers)


def demucs() -> nn.Module:
    """Waves, interpolated by two: strided convolutions with skips, LSTMs in the middle, back to the scale."""

    def forward(m: Any, wave: Tensor) -> Tensor:
        std = wave.std(dim=-1, keepdim=True)
        x = F.interpolate(wave / (1e-3 + std), scale_factor=2, mode="linear", align_corners=False)
        skips = []
        for encode in m.encoders:
            x = encode(x)
            skips.append(x)
        x = m.back(m.lstm(x.permute(2, 0, 1))[0]).permute(1, 2, 0)
        for decode in m.decoders:
            x = decode(x + skips.pop()[..., : x.shape[-1]])
        return std * F.avg_pool1d(x, 2)[..., : wave.shape[-1]]

    def encoder(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv1d(i, o, 8, 4, 2), nn.ReLU(), nn.Conv1d(o, 2 * o, 1), nn.GLU(1))

    def decoder(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv1d(i, 2 * i, 1), nn.GLU(1), nn.ConvTranspose1d(i, o, 8, 4, 2))

    encoders = nn.ModuleList([encoder(1, 4), encoder(4, 6)])
    decoders = nn.ModuleList([decoder(6, 4), decoder(4, 1)])
    lstm = nn.LSTM(6, 6, bidirectional=True)
    return Of(forward, encoders=encoders, decoders=decoders, lstm=lstm, back=nn.Linear(12, 6))


def lips() -> nn.Module:
    """Words from lips: convolutions and pools of volumes, then a GRU."""

    def forward(m: Any, frames: Tensor) -> Tensor:
        y = F.max_pool3d(F.relu(m.conv(frames)), (1, 2, 2), (1, 2, 2)).permute(2, 0, 1, 3, 4)
        return m.head(m.gru(y.flatten(2))[0])

    conv = nn.Conv3d(3, 4, (3, 5, 5), (1, 2, 2), (1, 2, 2))
    return Of(forward, conv=conv, gru=nn.GRU(16, 5, bidirectional=True), head=nn.Linear(10, 6))


def characters() -> nn.Module:
    """Words from their letters by convolutions and highways."""

    def forward(m: Any, letters: Tensor) -> Tensor:
        batch, time, count = letters.size()
        x = m.embed(letters.view(batch * time, count)).transpose(1, 2)
        y = torch.cat([torch.tanh(conv(x)).amax(-1) for conv in m.convs], 1)
        gate, new = m.highway(y).chunk(2, 1)
        y = torch.sigmoid(gate) * F.relu(new) + (1 - torch.sigmoid(gate)) * y
        return F.log_softmax(m.head(m.lstm(y.view(batch, time, -1))[0]), -1)

    convs = nn.ModuleList(nn.Conv1d(5, 3, width) for width in (1, 3))
    return Of(
        forward,
        embed=nn.Embedding(40, 5, padding_idx=0),
        convs=convs,
        highway=nn.Linear(6, 12),
        lstm=bilstm(6, 5),
        head=nn.Linear(10, 8),
    )


FRAMES = {"batch": 2, "time": 8}, {"batch": 1, "time": 12}

STRUCTURES = {
    "biaffine_parser": Net(biaffine_parser, {"words": "<20: batch time"}),
    "inference": Net(inference, {"a": "<20: batch time", "b": "<20: batch 7"}, dynamo=BATCH),
    "pointer_generator": Net(
        pointer_generator, {"source": "<16: batch time", "target": "<16: batch 4"}, dynamo=BATCH
    ),
    "crf_score": Net(crf_score, {"tokens": "<20: batch 6", "tags": "<5: batch 6"}, dynamo=BATCH),
    "molecules": Net(molecules, {"atoms": "6 5", "bonds": "<6: 2 9"}),
    "roads": Net(roads, {"x": "batch time 5 2"}),
    "covariates": Net(
        covariates, {"past": "batch time 3", "future": "batch 4 2", "static": "<5: batch 1"}, dynamo=BATCH
    ),
    "demucs": Net(demucs, {"wave": "batch 1 128"}, WAVES, BATCH),
    "lips": Net(lips, {"frames": "batch 3 time 8 10"}, FRAMES, BATCH),
    "characters": Net(characters, {"letters": "<40: batch time 9"}),
}
