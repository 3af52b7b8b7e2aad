"""Nets of text."""

# mypy: disable-error-code="misc, no-any-return"

from typing import Any

import torch
from nets import BATCH, ROWS, WORDS, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def bilstm(width: int, size: int, layers: int = 1) -> nn.LSTM:
    return nn.LSTM(width, size, layers, batch_first=True, bidirectional=True)


def tagger() -> nn.Module:
    return Of(
        lambda m, tokens: m.head(m.lstm(m.embed(tokens))[0]),
        embed=nn.Embedding(50, 8),
        lstm=nn.LSTM(8, 6, batch_first=True, bidirectional=True),
        head=nn.Linear(12, 5),
    )


def sentiment() -> nn.Module:
    return Of(
        lambda m, tokens: m.head(m.lstm(m.embed(tokens))[0].max(1).values),
        embed=nn.Embedding(50, 8),
        lstm=nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True),
        head=nn.Linear(12, 2),
    )


def attention_pooling() -> nn.Module:
    """Words are weighted by additive attention."""

    def forward(m: Any, tokens: Tensor) -> Any:
        y = m.gru(m.embed(tokens))[0]
        weights = torch.softmax(m.score(torch.tanh(m.key(y))), 1)
        return m.head((weights * y).sum(1)), weights.squeeze(-1)

    gru = nn.GRU(8, 6, batch_first=True, bidirectional=True)
    layers = {"key": nn.Linear(12, 8), "score": nn.Linear(8, 1, bias=False), "head": nn.Linear(12, 4)}
    return Of(forward, embed=nn.Embedding(40, 8, padding_idx=0), gru=gru, **layers)


def seq2seq() -> nn.Module:
    """A decoder that takes its own best words, with attention to the encoder."""

    def forward(m: Any, tokens: Tensor) -> Tensor:
        keys, state = m.encoder(m.embed(tokens))
        h, word = state[-1], torch.ones_like(tokens[:, 0])
        words = []
        for _ in range(4):
            weights = torch.softmax(torch.bmm(keys, h.unsqueeze(2)), 1)
            h = m.cell(torch.cat([m.embed(word), (weights * keys).sum(1)], 1), h)
            words.append(m.head(h))
            word = words[-1].argmax(1)
        return torch.stack(words, 1)

    gru = {"encoder": nn.GRU(8, 6, batch_first=True), "cell": nn.GRUCell(14, 6)}
    return Of(forward, embed=nn.Embedding(20, 8), **gru, head=nn.Linear(6, 20))


def language_model() -> nn.Module:
    """Logits of the next word, with states and tied weights."""

    def forward(m: Any, tokens: Tensor, h: Tensor, c: Tensor) -> Any:
        y, (h, c) = m.lstm(m.embed(tokens), (h, c))
        return F.linear(y, m.embed.weight, m.bias), h, c

    lstm = nn.LSTM(8, 8, 2)
    return Of(forward, embed=nn.Embedding(30, 8), lstm=lstm, bias=nn.Parameter(torch.randn(30)))


def names_in_letters() -> nn.Module:
    """Words from their letters, then sentences from their words."""

    def forward(m: Any, letters: Tensor, words: Tensor) -> Tensor:
        batch, time, count = letters.shape
        h = m.of_letters(m.letters(letters.reshape(-1, count)))[1][0]
        x = torch.cat([m.words(words), h.transpose(0, 1).reshape(batch, time, -1)], -1)
        return m.head(m.of_words(x)[0])

    embeddings = {"letters": nn.Embedding(26, 4), "words": nn.Embedding(20, 6)}
    lstms = {
        "of_letters": nn.LSTM(4, 3, batch_first=True, bidirectional=True),
        "of_words": nn.LSTM(12, 6, batch_first=True, bidirectional=True),
    }
    return Of(forward, **embeddings, **lstms, head=nn.Linear(12, 5))


def translator() -> nn.Module:
    """Luong's attention with a mask from lengths, every word of the target at once."""

    def forward(m: Any, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        keys, state = m.encoder(m.words(source))
        h = torch.tanh(m.bridge(torch.cat([state[0], state[1]], 1))).unsqueeze(0)
        y = m.decoder(m.targets(target), h)[0]
        scores = m.score(y) @ keys.transpose(1, 2)
        absent = torch.arange(source.shape[1]).unsqueeze(0) >= lengths.unsqueeze(1)
        weights = torch.softmax(scores.masked_fill(absent.unsqueeze(1), float("-inf")), -1)
        return m.head(torch.tanh(m.join(torch.cat([weights @ keys, y], -1))))

    grus = {
        "encoder": nn.GRU(6, 4, batch_first=True, bidirectional=True),
        "decoder": nn.GRU(6, 6, batch_first=True),
    }
    layers = {
        "bridge": nn.Linear(8, 6),
        "score": nn.Linear(6, 8),
        "join": nn.Linear(14, 6),
        "head": nn.Linear(6, 9),
    }
    return Of(forward, words=nn.Embedding(20, 6), targets=nn.Embedding(9, 6), **grus, **layers)


def siamese() -> nn.Module:
    """How alike two sentences are: one LSTM reads both."""

    def forward(m: Any, first: Tensor, second: Tensor) -> Tensor:
        a, b = (m.lstm(m.embed(words))[1][0][-1] for words in (first, second))
        return torch.exp(-(a - b).abs().sum(1))

    return Of(forward, embed=nn.Embedding(20, 6), lstm=nn.LSTM(6, 6, batch_first=True))


def packed_pooling() -> nn.Module:
    """Packed sentences, a mean over what is there."""

    def forward(m: Any, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(m.embed(tokens), lengths, batch_first=True, enforce_sorted=True)
        rows, _ = pad_packed_sequence(m.lstm(packed)[0], batch_first=True, total_length=tokens.shape[1])
        return m.head(rows.sum(1) / lengths.unsqueeze(1))

    lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
    return Of(forward, embed=nn.Embedding(20, 8), lstm=lstm, head=nn.Linear(12, 3))


def crf_emissions() -> nn.Module:
    """Emissions with transitions and the best label of each word."""

    def forward(m: Any, tokens: Tensor) -> Any:
        mask = tokens.ne(0)
        scores = m.head(m.drop(m.lstm(m.embed(tokens))[0])) * mask.unsqueeze(-1)
        return scores, scores.argmax(-1)

    lstm = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True, dropout=0.2)
    return Of(forward, embed=nn.Embedding(20, 8, 0), lstm=lstm, drop=nn.Dropout(), head=nn.Linear(12, 5))


def crf_viterbi() -> nn.Module:
    """Labels of a fixed number of words by Viterbi's recursion, written as a loop."""

    def forward(m: Any, tokens: Tensor) -> Any:
        e = m.head(m.lstm(m.embed(tokens))[0])
        best = e[:, 0] + m.start
        back = []
        for n in range(1, 6):
            scores = best.unsqueeze(2) + m.trans.unsqueeze(0)
            best, index = scores.max(1)
            best = best + e[:, n]
            back.append(index)
        label = best.argmax(1, keepdim=True)
        path = [label]
        for index in reversed(back):
            label = index.gather(1, label)
            path.append(label)
        return torch.cat(path[::-1], 1), best

    return Of(
        forward,
        embed=nn.Embedding(20, 6),
        lstm=bilstm(6, 4),
        head=nn.Linear(8, 4),
        start=nn.Parameter(torch.randn(4)),
        trans=nn.Parameter(torch.randn(4, 4)),
    )


def elmo() -> nn.Module:
    """A forward and a backward language model; layers are weighted."""

    def forward(m: Any, tokens: Tensor) -> Any:
        x = m.embed(tokens)
        layers = [torch.cat([x, x], -1)]
        f, b = x, x.flip(1)
        for lf, lb in zip(m.fw, m.bw, strict=True):
            yf, yb = m.proj(lf(f)[0]), m.proj(lb(b)[0])
            f, b = f + yf, b + yb
            layers.append(torch.cat([f, b.flip(1)], -1))
        w = torch.softmax(m.mix, 0)
        return sum(w[n] * y for n, y in enumerate(layers)) * m.gamma

    return Of(
        forward,
        embed=nn.Embedding(30, 6),
        fw=nn.ModuleList(nn.LSTM(6, 8, batch_first=True) for _ in range(2)),
        bw=nn.ModuleList(nn.LSTM(6, 8, batch_first=True) for _ in range(2)),
        proj=nn.Linear(8, 6),
        mix=nn.Parameter(torch.randn(3)),
        gamma=nn.Parameter(torch.ones(1)),
    )


def awd() -> nn.Module:
    """Three LSTMs of different widths with all their states, tied words."""

    def forward(
        m: Any, tokens: Tensor, h1: Tensor, c1: Tensor, h2: Tensor, c2: Tensor, h3: Tensor, c3: Tensor
    ) -> Any:
        x = m.embed(tokens)
        x, (h1, c1) = m.l1(x, (h1, c1))
        x, (h2, c2) = m.l2(x, (h2, c2))
        x, (h3, c3) = m.l3(x, (h3, c3))
        return (
            F.log_softmax(F.linear(x, m.embed.weight), -1).transpose(0, 1).contiguous().view(-1, 25),
            h1,
            c1,
            h2,
            c2,
            h3,
            c3,
        )

    return Of(forward, embed=nn.Embedding(25, 6), l1=nn.LSTM(6, 9), l2=nn.LSTM(9, 9), l3=nn.LSTM(9, 6))


def bidaf() -> nn.Module:
    """Questions about a text: attention in both directions, where the answer starts and ends."""

    def forward(m: Any, text: Tensor, question: Tensor) -> Any:
        def embed(tokens: Tensor) -> Any:
            x = m.embed(tokens)
            g = torch.sigmoid(m.gate(x))
            return m.encode(g * F.relu(m.flow(x)) + (1 - g) * x)[0]

        c, q = embed(text), embed(question)
        s = m.c(c) + m.q(q).transpose(1, 2) + torch.matmul(c * m.cq, q.transpose(1, 2))
        a = torch.matmul(s.softmax(2), q)
        bw = torch.matmul(s.max(2).values.softmax(1).unsqueeze(1), c).expand(-1, c.shape[1], -1)
        g = torch.cat([c, a, c * a, c * bw], 2)
        y = m.model(g)[0]
        z = m.end(y)[0]
        first = m.p1(torch.cat([g, y], 2)).squeeze(2)
        last = m.p2(torch.cat([g, z], 2)).squeeze(2)
        return first.softmax(1), last.log_softmax(1)

    return Of(
        forward,
        embed=nn.Embedding(20, 6),
        gate=nn.Linear(6, 6),
        flow=nn.Linear(6, 6),
        encode=bilstm(6, 3),
        c=nn.Linear(6, 1),
        q=nn.Linear(6, 1),
        cq=nn.Parameter(torch.randn(6)),
        model=bilstm(24, 3, 2),
        end=bilstm(6, 3),
        p1=nn.Linear(30, 1),
        p2=nn.Linear(30, 1),
    )


def documents() -> nn.Module:
    """Words make sentences, sentences make documents: attention in both."""

    def forward(m: Any, tokens: Tensor) -> Any:
        b, s, w = tokens.shape
        y = m.words(m.embed(tokens.view(b * s, w)))[0]
        a = torch.softmax(torch.tanh(m.wp(y)) @ m.wc, 1)
        x = (a.unsqueeze(2) * y).sum(1).view(b, s, -1)
        y = m.sentences(x)[0]
        a = torch.softmax(torch.tanh(m.sp(y)) @ m.sc, 1)
        return m.head((a.unsqueeze(2) * y).sum(1)), a

    return Of(
        forward,
        embed=nn.Embedding(20, 6),
        words=nn.GRU(6, 4, batch_first=True, bidirectional=True),
        wp=nn.Linear(8, 8),
        wc=nn.Parameter(torch.randn(8)),
        sentences=nn.GRU(8, 4, batch_first=True, bidirectional=True),
        sp=nn.Linear(8, 8),
        sc=nn.Parameter(torch.randn(8)),
        head=nn.Linear(8, 3),
    )


OF_EACH = {f"{kind}{n}": f"1 batch {width}" for n, width in ((1, 9), (2, 9), (3, 6)) for kind in "hc"}
TARGETS = {"source": "<20: batch time", "lengths": "lengths: batch", "target": "<9: batch 5"}

TEXT = {
    "tagger": Net(tagger, WORDS),
    "sentiment": Net(sentiment, WORDS),
    "attention_pooling": Net(attention_pooling, WORDS),
    "seq2seq": Net(seq2seq, WORDS),
    "language_model": Net(language_model, {"tokens": "<30: time batch", "h": "2 batch 8", "c": "2 batch 8"}),
    "names_in_letters": Net(names_in_letters, {"letters": "<26: batch time 7", "words": "<20: batch time"}),
    "translator": Net(translator, TARGETS, ROWS),
    "siamese": Net(siamese, {"first": "<20: batch time", "second": "<20: batch time"}),
    "packed_pooling": Net(packed_pooling, {**WORDS, "lengths": "lengths: batch"}, ROWS, ()),
    "crf_emissions": Net(crf_emissions, WORDS),
    "crf_viterbi": Net(crf_viterbi, {"tokens": "<20: batch 6"}),
    "elmo": Net(elmo, {"tokens": "<30: batch time"}),
    "awd": Net(awd, {"tokens": "<25: time batch"} | OF_EACH, dynamo=BATCH),
    "bidaf": Net(bidaf, {"text": "<20: batch time", "question": "<20: batch 5"}),
    "documents": Net(documents, {"tokens": "<20: batch 3 time"}),
}
