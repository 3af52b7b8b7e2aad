"""Nets of speech: recognizers, vocoders, detectors."""

# mypy: disable-error-code="misc, no-any-return"

from typing import Any

import torch
from nets import BATCH, ROWS, WAVES, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def deepspeech2(enforce_sorted: bool = False) -> nn.Module:
    """Convolutions over spectrograms and packed bidirectional GRUs."""

    def forward(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
        maps = m.cnn(x.unsqueeze(1))
        rows = maps.transpose(1, 2).flatten(2)
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=enforce_sorted)
        padded, _ = pad_packed_sequence(m.gru(packed)[0], batch_first=True, total_length=rows.shape[1])
        return F.log_softmax(m.head(padded), -1)

    cnn = nn.Sequential(nn.Conv2d(1, 4, (5, 3), padding=(2, 1)), nn.BatchNorm2d(4), nn.Hardtanh(0, 20))
    gru = nn.GRU(32, 6, 2, batch_first=True, bidirectional=True)
    return Of(forward, cnn=cnn, gru=gru, head=nn.Linear(12, 7))


def vad() -> nn.Module:
    """Speech or not in a chunk of a wave, with states."""

    def forward(m: Any, x: Tensor, h: Tensor, c: Tensor) -> Any:
        y, (h, c) = m.lstm(m.cnn(x.unsqueeze(1)).transpose(1, 2), (h, c))
        return torch.sigmoid(m.head(y)).mean(1), h, c

    cnn = nn.Sequential(nn.Conv1d(1, 8, 16, 8), nn.ReLU(), nn.Conv1d(8, 8, 3, 2, padding=1), nn.ReLU())
    return Of(forward, cnn=cnn, lstm=nn.LSTM(8, 8, batch_first=True), head=nn.Linear(8, 1))


def keyword_spotting() -> nn.Module:
    """Convolutions, a GRU, and its last state."""

    def forward(m: Any, mfcc: Tensor) -> Tensor:
        y = m.cnn(mfcc.unsqueeze(1))
        rows = y.permute(0, 3, 1, 2).flatten(2)
        return torch.softmax(m.head(m.gru(rows)[1][-1]), -1)

    cnn = nn.Sequential(nn.Conv2d(1, 4, (5, 3), (2, 2), (2, 1)), nn.BatchNorm2d(4), nn.ReLU())
    return Of(forward, cnn=cnn, gru=nn.GRU(20, 8, batch_first=True), head=nn.Linear(8, 6))


def duration_predictor() -> nn.Module:
    """How long each phoneme is, nothing where there is none."""

    def forward(m: Any, phonemes: Tensor) -> Tensor:
        mask = (phonemes != 0).unsqueeze(-1).float()
        x = m.embed(phonemes) * mask
        x = m.norm(F.relu(m.conv(x.transpose(1, 2)).transpose(1, 2)))
        return F.softplus(m.head(m.lstm(x)[0]) * mask).squeeze(-1) * mask.squeeze(-1)

    lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
    conv = nn.Conv1d(8, 8, 3, padding=1)
    return Of(forward, embed=nn.Embedding(30, 8), conv=conv, norm=nn.LayerNorm(8), lstm=lstm, head=nn.Linear(12, 1))


def acoustic_model() -> nn.Module:
    """Residual bidirectional LSTMs with LayerNorm."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.into(x)
        for norm, lstm in zip(m.norms, m.lstms, strict=True):
            x = x + lstm(norm(x))[0]
        return F.log_softmax(m.head(x), -1)

    lstms = nn.ModuleList(nn.LSTM(8, 4, batch_first=True, bidirectional=True) for _ in range(2))
    norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
    return Of(forward, into=nn.Linear(5, 8), lstms=lstms, norms=norms, head=nn.Linear(8, 6))


def speaker_encoder() -> nn.Module:
    """An embedding of a voice: the last state of three LSTMs, normalized."""
    return Of(
        lambda m, mel: F.normalize(F.relu(m.head(m.lstm(mel)[1][0][-1])), dim=1),
        lstm=nn.LSTM(8, 6, 3, batch_first=True),
        head=nn.Linear(6, 6),
    )


def transducer() -> nn.Module:
    """Predictor and joiner: each pair of a frame and a word."""

    def forward(m: Any, frames: Tensor, words: Tensor) -> Tensor:
        y = m.predictor(m.embed(words))[0]
        joined = torch.tanh(m.of_frames(m.encoder(frames)[0]).unsqueeze(2) + m.of_words(y).unsqueeze(1))
        return F.log_softmax(m.head(joined), -1)

    lstms = {"encoder": nn.LSTM(5, 6, batch_first=True), "predictor": nn.LSTM(4, 6, batch_first=True)}
    layers = {"of_frames": nn.Linear(6, 8), "of_words": nn.Linear(6, 8), "head": nn.Linear(8, 7)}
    return Of(forward, embed=nn.Embedding(20, 4), **lstms, **layers)


def pitch() -> nn.Module:
    """The pitch of a voice: strided convolutions, a GRU, and as many rows as there were."""

    def forward(m: Any, mel: Tensor) -> Tensor:
        y = m.gru(m.cnn(mel.transpose(1, 2)).transpose(1, 2))[0]
        y = F.interpolate(y.transpose(1, 2), scale_factor=2.0, mode="nearest").transpose(1, 2)
        return torch.sigmoid(m.head(y))

    cnn = nn.Sequential(nn.Conv1d(8, 8, 3, 2, 1), nn.LeakyReLU(0.1))
    return Of(forward, cnn=cnn, gru=nn.GRU(8, 6, batch_first=True, bidirectional=True), head=nn.Linear(12, 4))


def spectrogram() -> nn.Module:
    """A spectrogram by convolutions, its logarithm, and a bidirectional LSTM: a model that takes a wave."""

    def forward(m: Any, wave: Tensor) -> Tensor:
        x = F.pad(wave.unsqueeze(1), (8, 8), mode="reflect")
        real, imaginary = F.conv1d(x, m.kernel, stride=8).chunk(2, 1)
        power = torch.log(m.mel @ (real**2 + imaginary**2) + 1e-6).transpose(1, 2)
        y = m.lstm((power - power.mean(1, keepdim=True)) * 0.1)[0]
        return m.head(y.max(1).values)

    n = torch.arange(16)
    turns = 2 * torch.pi * torch.arange(9).unsqueeze(1) * n / 16
    kernel = (torch.cat([turns.cos(), -turns.sin()]) * torch.hann_window(16)).unsqueeze(1)
    params = {"kernel": nn.Parameter(kernel), "mel": nn.Parameter(torch.rand(5, 9))}
    return Of(forward, **params, lstm=nn.LSTM(5, 6, batch_first=True, bidirectional=True), head=nn.Linear(12, 3))


def tacotron() -> nn.Module:
    """One step of a decoder: prenet, an attention LSTMCell, location-sensitive attention."""

    def forward(
        m: Any,
        frame: Tensor,
        memory: Tensor,
        h1: Tensor,
        c1: Tensor,
        h2: Tensor,
        c2: Tensor,
        weights: Tensor,
        total: Tensor,
    ) -> Any:
        x = F.relu(m.p2(F.relu(m.p1(frame))))
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        h1, c1 = m.cell1(torch.cat([x, context], 1), (h1, c1))
        place = m.location(torch.stack([weights, total], 1)).transpose(1, 2)
        energies = m.v(torch.tanh(m.query(h1).unsqueeze(1) + m.key(memory) + m.place(place))).squeeze(-1)
        weights = F.softmax(energies, 1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        h2, c2 = m.cell2(torch.cat([h1, context], 1), (h2, c2))
        out = torch.cat([h2, context], 1)
        return m.mel(out), torch.sigmoid(m.stop(out)), h1, c1, h2, c2, weights, total + weights

    return Of(
        forward,
        p1=nn.Linear(5, 6),
        p2=nn.Linear(6, 6),
        cell1=nn.LSTMCell(14, 8),
        cell2=nn.LSTMCell(16, 8),
        location=nn.Conv1d(2, 4, 5, padding=2, bias=False),
        query=nn.Linear(8, 6, bias=False),
        key=nn.Linear(8, 6, bias=False),
        place=nn.Linear(4, 6, bias=False),
        v=nn.Linear(6, 1),
        mel=nn.Linear(16, 5),
        stop=nn.Linear(16, 1),
    )


def lpcnet() -> nn.Module:
    """Frame-rate network, repeated for each sample; GRUs at the sample rate."""

    def forward(m: Any, frames: Tensor, samples: Tensor) -> Any:
        c = torch.tanh(m.conv(F.pad(frames.transpose(1, 2), (2, 0)))).transpose(1, 2)
        c = torch.repeat_interleave(c, 4, dim=1)
        x = torch.cat([m.embed(samples).flatten(2), c], -1)
        y, _ = m.a(x)
        z, _ = m.b(torch.cat([y, c], -1))
        return F.log_softmax(m.dual1(z).tanh() * m.w1 + m.dual2(z).tanh() * m.w2, -1)

    return Of(
        forward,
        conv=nn.Conv1d(5, 6, 3),
        embed=nn.Embedding(16, 4),
        a=nn.GRU(14, 8, batch_first=True),
        b=nn.GRU(14, 6, batch_first=True),
        dual1=nn.Linear(6, 16),
        dual2=nn.Linear(6, 16),
        w1=nn.Parameter(torch.randn(16)),
        w2=nn.Parameter(torch.randn(16)),
    )


def li_gru() -> nn.Module:
    """A light GRU with BatchNorm and relu, written as a loop; the way back by flip."""

    def forward(m: Any, x: Tensor) -> Any:
        b = x.shape[0]
        w = m.norm(m.w(torch.cat([x, x.flip(1)], 0)).transpose(1, 2)).transpose(1, 2)
        h = torch.zeros(2 * b, 6)
        rows = []
        for n in range(x.shape[1]):
            a, z = (w[:, n] + m.u(h)).chunk(2, 1)
            z = torch.sigmoid(z)
            h = z * h + (1 - z) * F.relu(a)
            rows.append(h)
        y = torch.stack(rows, 1)
        f, r = y.chunk(2, 0)
        return F.log_softmax(m.head(torch.cat([f, r.flip(1)], 2)), -1)

    return Of(
        forward,
        w=nn.Linear(5, 12, bias=False),
        norm=nn.BatchNorm1d(12),
        u=nn.Linear(6, 12, bias=False),
        head=nn.Linear(12, 4),
    )


SPEECH = {
    "deepspeech2": Net(deepspeech2, {"x": "batch time 8", "lengths": "lengths: batch"}, ROWS, ()),
    "vad": Net(vad, {"x": "1 160", "h": "1 1 8", "c": "1 1 8"}),
    "keyword_spotting": Net(keyword_spotting, {"mfcc": "batch 10 time"}, dynamo=BATCH),
    "duration_predictor": Net(duration_predictor, {"phonemes": "<20: batch time"}),
    "acoustic_model": Net(acoustic_model, {"x": "batch time 5"}),
    "speaker_encoder": Net(speaker_encoder, {"mel": "batch time 8"}),
    "transducer": Net(transducer, {"frames": "batch time 5", "words": "<20: batch 4"}),
    "pitch": Net(pitch, {"mel": "batch time 8"}, dynamo=BATCH),
    "spectrogram": Net(spectrogram, {"wave": "batch time"}, WAVES, BATCH),
    "tacotron": Net(
        tacotron,
        {
            "frame": "batch 5",
            "memory": "batch time 8",
            "h1": "batch 8",
            "c1": "batch 8",
            "h2": "batch 8",
            "c2": "batch 8",
            "weights": "batch time",
            "total": "batch time",
        },
    ),
    "lpcnet": Net(lpcnet, {"frames": "batch 6 5", "samples": "<16: batch 24 2"}),
    "li_gru": Net(li_gru, {"x": "batch 6 5"}),
}
