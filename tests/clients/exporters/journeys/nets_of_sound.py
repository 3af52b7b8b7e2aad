"""Nets of sounds: separation, denoising, events."""

# mypy: disable-error-code="misc, no-any-return"

from typing import Any

import torch
from inputs import LENGTHS
from nets import BATCH, WAVES, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def dprnn() -> nn.Module:
    """Separation of speakers: LSTMs in chunks and across them."""

    def forward(m: Any, wave: Tensor) -> Tensor:
        z = F.relu(m.encoder(wave.unsqueeze(1)))
        batch, width, length = z.shape
        x = z.reshape(batch, width, length // 4, 4).permute(0, 2, 3, 1)
        inner = m.inner(x.reshape(-1, 4, width))[0]
        x = x + m.norm(m.of_inner(inner).reshape(x.shape))
        across = x.transpose(1, 2).reshape(-1, length // 4, width)
        y = m.of_outer(m.outer(across)[0]).reshape(batch, 4, length // 4, width).transpose(1, 2)
        masks = torch.sigmoid((x + y).permute(0, 3, 1, 2).reshape(batch, width, length))
        return m.decoder(z * masks).squeeze(1)

    def lstm() -> nn.LSTM:
        return nn.LSTM(8, 6, batch_first=True, bidirectional=True)

    layers: Any = {"inner": lstm(), "outer": lstm(), "of_inner": nn.Linear(12, 8), "of_outer": nn.Linear(12, 8)}
    ends = {"encoder": nn.Conv1d(1, 8, 4, 4), "decoder": nn.ConvTranspose1d(8, 1, 4, 4)}
    return Of(forward, **layers, **ends, norm=nn.LayerNorm(8))


def enhancement() -> nn.Module:
    """A mask of a spectrum from its logarithm."""

    def forward(m: Any, spectrum: Tensor) -> Tensor:
        power = spectrum.pow(2).sum(-1)
        y = m.gru(F.relu(m.first(torch.log10(power.clamp(min=1e-9)))))[0]
        return spectrum * torch.sigmoid(m.last(F.relu(m.middle(y)))).unsqueeze(-1)

    layers = {"first": nn.Linear(9, 8), "middle": nn.Linear(8, 8), "last": nn.Linear(8, 9)}
    return Of(forward, gru=nn.GRU(8, 8, 2, batch_first=True), **layers)


def wave_classifier() -> nn.Module:
    """Strided convolutions over a wave, then a GRU."""

    def forward(m: Any, wave: Tensor) -> Tensor:
        wave = (wave - wave.mean(1, keepdim=True)) / (wave.std(1, keepdim=True) + 1e-5)
        return m.head(m.gru(m.cnn(wave.unsqueeze(1)).transpose(1, 2))[0].mean(1))

    cnn = nn.Sequential(
        nn.Conv1d(1, 8, 10, 5), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv1d(8, 8, 3, 2, padding=1), nn.GELU()
    )
    return Of(forward, cnn=cnn, gru=nn.GRU(8, 6, batch_first=True, bidirectional=True), head=nn.Linear(12, 4))


def band_split() -> nn.Module:
    """Music: LSTMs along time in each band, and along bands at each time."""

    def forward(m: Any, spectrum: Tensor) -> Tensor:
        bands = torch.stack([layer(part) for layer, part in zip(m.bands, spectrum.split(4, 2), strict=True)], 1)
        batch, count, time, width = bands.shape
        y = m.along_time(m.norm(bands).reshape(batch * count, time, width))[0]
        bands = bands + m.of_time(y).reshape(batch, count, time, width)
        y = m.along_bands(bands.permute(0, 2, 1, 3).reshape(batch * time, count, width))[0]
        bands = bands + m.of_bands(y).reshape(batch, time, count, width).transpose(1, 2)
        masks = torch.cat([layer(bands[:, n]) for n, layer in enumerate(m.masks)], 2)
        return spectrum * torch.sigmoid(masks)

    def lstm() -> nn.LSTM:
        return nn.LSTM(6, 4, batch_first=True, bidirectional=True)

    lstms = {"along_time": lstm(), "along_bands": lstm()}
    layers = {"of_time": nn.Linear(8, 6), "of_bands": nn.Linear(8, 6)}
    bands = nn.ModuleList(nn.Linear(4, 6) for _ in range(3))
    masks = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))
    return Of(forward, **lstms, **layers, bands=bands, masks=masks, norm=nn.LayerNorm(6))


def tasnet() -> nn.Module:
    """Separation of speakers by masks of learned waves."""

    def forward(m: Any, wave: Tensor) -> Tensor:
        z = F.relu(m.encoder(wave.unsqueeze(1)))
        y = m.lstm(m.norm(z.transpose(1, 2)))[0]
        masks = torch.softmax(m.masks(y).unflatten(2, (2, 8)), 2)
        parts = z.transpose(1, 2).unsqueeze(2) * masks
        return torch.stack([m.decoder(parts[:, :, n].transpose(1, 2)).squeeze(1) for n in range(2)], 1)

    ends = {"encoder": nn.Conv1d(1, 8, 8, 4, bias=False), "decoder": nn.ConvTranspose1d(8, 1, 8, 4, bias=False)}
    return Of(
        forward, **ends, norm=nn.LayerNorm(8), lstm=nn.LSTM(8, 8, 2, batch_first=True), masks=nn.Linear(8, 16)
    )


def recurrent_unet() -> nn.Module:
    """A net of convolutions over frequencies with skips, and a GRU in its middle."""

    def forward(m: Any, x: Tensor) -> Tensor:
        a = F.elu(m.down1(x))
        b = F.elu(m.down2(a))
        batch, width, time, size = b.shape
        y = m.gru(b.permute(0, 2, 1, 3).reshape(batch, time, width * size))[0]
        y = m.back(y).reshape(batch, time, width, size).permute(0, 2, 1, 3)
        y = F.elu(m.up1(torch.cat([y, b], 1)))
        return torch.sigmoid(m.up2(torch.cat([y, a], 1))) * x

    convs = {
        "down1": nn.Conv2d(1, 4, (1, 4), (1, 2), (0, 1)),
        "down2": nn.Conv2d(4, 4, (1, 4), (1, 2), (0, 1)),
        "up1": nn.ConvTranspose2d(8, 4, (1, 4), (1, 2), (0, 1)),
        "up2": nn.ConvTranspose2d(8, 1, (1, 4), (1, 2), (0, 1)),
    }
    return Of(forward, **convs, gru=nn.GRU(16, 8, batch_first=True), back=nn.Linear(8, 16))


def denoising_stream() -> nn.Module:
    """One frame of a denoiser, with the states of two GRUs."""

    def forward(m: Any, frame: Tensor, h1: Tensor, h2: Tensor) -> Any:
        x = torch.tanh(m.first(frame))
        y, h1 = m.vad(x, h1)
        z, h2 = m.noise(torch.cat([x, y], -1), h2)
        return torch.sigmoid(m.gains(torch.cat([y, z], -1))), torch.sigmoid(m.speech(y)), h1, h2

    grus = {"vad": nn.GRU(8, 6, batch_first=True), "noise": nn.GRU(14, 8, batch_first=True)}
    return Of(forward, first=nn.Linear(9, 8), **grus, gains=nn.Linear(14, 9), speech=nn.Linear(6, 1))


def deepfilter() -> nn.Module:
    """Grouped linear layers by einsum around a GRU, with a skip; complex filters over frames."""

    def forward(m: Any, erb: Tensor, spec: Tensor) -> Any:
        t = erb.shape[1]
        x = (erb.unflatten(-1, (2, 4)).unsqueeze(-2) @ m.win).flatten(2)
        y, _ = m.gru(F.relu(x))
        y = (y.unflatten(-1, (2, 4)).unsqueeze(-2) @ m.wout).flatten(2) + x
        gains = torch.sigmoid(m.gain(y))
        coefs = torch.tanh(m.coef(y)).unflatten(-1, (3, 6)).transpose(2, 3)
        padded = F.pad(spec, (0, 0, 2, 0))
        stacked = torch.stack([padded[:, n : n + t] for n in range(3)], -1)
        return (stacked * coefs).sum(-1) * gains

    return Of(
        forward,
        win=nn.Parameter(torch.randn(2, 4, 4)),
        wout=nn.Parameter(torch.randn(2, 4, 4)),
        gru=nn.GRU(8, 8, 2, batch_first=True),
        gain=nn.Linear(8, 6),
        coef=nn.Linear(8, 18),
    )


def fullsubnet() -> nn.Module:
    """A fullband LSTM, then an LSTM on each frequency with its neighbours."""

    def forward(m: Any, mag: Tensor) -> Any:
        b, f, t = mag.shape
        full = F.relu(m.ffc(m.full((mag / (mag.mean((1, 2), keepdim=True) + 1e-5)).transpose(1, 2))[0])).transpose(
            1, 2
        )
        padded = F.pad(mag.unsqueeze(1), (0, 0, 2, 2), mode="reflect")
        near = F.unfold(padded, (5, 1)).view(b, 5, f, t)
        sub = torch.cat([near, full.unsqueeze(1)], 1).permute(0, 2, 3, 1).reshape(b * f, t, 6)
        return m.sfc(m.sub(sub)[0]).reshape(b, f, t, 2).permute(0, 3, 1, 2)

    return Of(
        forward,
        full=nn.LSTM(8, 6, batch_first=True),
        ffc=nn.Linear(6, 8),
        sub=nn.LSTM(6, 5, 2, batch_first=True),
        sfc=nn.Linear(5, 2),
    )


def sound_events() -> nn.Module:
    """Sounds in a scene: gated convolutions, GRUs, and weak labels from strong ones."""

    def forward(m: Any, mel: Tensor) -> Any:
        x = mel.unsqueeze(1)
        for conv, bn in zip(m.convs, m.bns, strict=True):
            x = F.avg_pool2d(F.glu(bn(conv(x)), 1), (1, 2))
        x = x.permute(0, 2, 1, 3).flatten(2)
        y = m.gru(x)[0]
        strong = torch.sigmoid(m.strong(y))
        soft = torch.softmax(m.soft(y), -1).clamp(min=1e-7)
        weak = (strong * soft).sum(1) / soft.sum(1)
        return strong.transpose(1, 2), weak

    return Of(
        forward,
        convs=nn.ModuleList([nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)]),
        bns=nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)]),
        gru=nn.GRU(8, 6, 2, batch_first=True, bidirectional=True),
        strong=nn.Linear(12, 3),
        soft=nn.Linear(12, 3),
    )


SOUND = {
    "dprnn": Net(dprnn, {"wave": "batch time"}, WAVES),
    "enhancement": Net(enhancement, {"spectrum": "batch time 9 2"}),
    "wave_classifier": Net(wave_classifier, {"wave": "batch time"}, WAVES, BATCH),
    "band_split": Net(band_split, {"spectrum": "batch time 12"}),
    "tasnet": Net(tasnet, {"wave": "batch time"}, WAVES, BATCH),
    "recurrent_unet": Net(recurrent_unet, {"x": "batch 1 time 16"}),
    "denoising_stream": Net(denoising_stream, {"frame": "batch 1 9", "h1": "1 batch 6", "h2": "1 batch 8"}),
    "deepfilter": Net(deepfilter, {"erb": "batch 12 8", "spec": "batch 12 6"}, LENGTHS[:1], BATCH),
    "fullsubnet": Net(fullsubnet, {"mag": "batch 8 time"}),
    "sound_events": Net(sound_events, {"mel": "batch time 8"}, dynamo=BATCH),
}
