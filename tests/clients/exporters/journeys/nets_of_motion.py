"""Nets of pictures, motion and agents."""

# mypy: disable-error-code="misc, no-any-return"

from typing import Any

import torch
from nets import BATCH, STATES, Net, Of
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def bilstm(width: int, size: int, layers: int = 1) -> nn.LSTM:
    return nn.LSTM(width, size, layers, batch_first=True, bidirectional=True)


def crnn() -> nn.Module:
    """Text in images: a row of columns of features, for CTC."""

    def forward(m: Any, image: Tensor) -> Tensor:
        rows = m.cnn(image).squeeze(2).permute(2, 0, 1)
        return F.log_softmax(m.head(m.lstm(rows)[0]), 2)

    def block(into: int, out: int, pool: Any) -> list[nn.Module]:
        return [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(pool)]

    cnn = [*block(1, 4, 2), *block(4, 8, (2, 1)), *block(8, 8, (4, 1))]
    lstm = nn.LSTM(8, 6, 2, bidirectional=True)
    return Of(forward, cnn=nn.Sequential(*cnn), lstm=lstm, head=nn.Linear(12, 10))


def convlstm() -> nn.Module:
    """Pictures of rain: a ConvLSTM, written as a loop over frames."""

    def forward(m: Any, frames: Tensor) -> Tensor:
        h = c = torch.zeros(frames.shape[0], 4, *frames.shape[3:])
        for n in range(frames.shape[1]):
            i, f, o, g = m.gates(torch.cat([frames[:, n], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return m.head(h)

    return Of(forward, gates=nn.Conv2d(6, 16, 3, padding=1), head=nn.Conv2d(4, 1, 1))


def video() -> nn.Module:
    """A CNN on every frame, then an LSTM over them."""

    def forward(m: Any, frames: Tensor) -> Tensor:
        batch, time = frames.shape[:2]
        rows = m.cnn(frames.flatten(0, 1)).reshape(batch, time, -1)
        return m.head(m.lstm(rows)[0][:, -1])

    cnn = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Of(forward, cnn=cnn, lstm=nn.LSTM(4, 6, batch_first=True), head=nn.Linear(6, 3))


def policy() -> nn.Module:
    """An actor and a critic, with a state."""

    def forward(m: Any, seen: Tensor, state: Tensor) -> Any:
        y, state = m.gru(F.elu(m.body(seen)), state)
        return torch.tanh(m.actor(y)), m.critic(y).squeeze(-1), state

    return Of(forward, body=nn.Linear(6, 8), gru=nn.GRU(8, 8), actor=nn.Linear(8, 2), critic=nn.Linear(8, 1))


def world_model() -> nn.Module:
    """What comes next in a game: a mixture of normal distributions, with states."""

    def forward(m: Any, z: Tensor, action: Tensor, h: Tensor, c: Tensor) -> Any:
        y, (h, c) = m.lstm(torch.cat([z, action], -1), (h, c))
        weights, means, logs = m.head(y).split((3, 12, 12), -1)
        return torch.softmax(weights, -1), means.unflatten(-1, (3, 4)), logs.unflatten(-1, (3, 4)).exp(), h, c

    return Of(forward, lstm=nn.LSTM(6, 8, batch_first=True), head=nn.Linear(8, 27))


def caption() -> nn.Module:
    """Words about a picture, which is the initial state."""

    def forward(m: Any, picture: Tensor, tokens: Tensor) -> Tensor:
        seen = m.cnn(picture).flatten(1)
        h, c = torch.tanh(m.h(seen)).unsqueeze(0), torch.tanh(m.c(seen)).unsqueeze(0)
        return m.head(m.lstm(m.embed(tokens), (h, c))[0])

    cnn = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1)
    )
    layers = {"h": nn.Linear(6, 8), "c": nn.Linear(6, 8), "head": nn.Linear(8, 20)}
    return Of(forward, cnn=cnn, embed=nn.Embedding(20, 6), lstm=nn.LSTM(6, 8, batch_first=True), **layers)


def skeletons() -> nn.Module:
    """Joints of a body over time, one LSTM for each part."""

    def forward(m: Any, joints: Tensor) -> Tensor:
        parts = [lstm(part.flatten(2))[0][:, -1] for lstm, part in zip(m.parts, joints.chunk(2, 2), strict=True)]
        return m.head(torch.cat(parts, 1))

    return Of(
        forward, parts=nn.ModuleList(nn.LSTM(9, 5, batch_first=True) for _ in range(2)), head=nn.Linear(10, 4)
    )


def r2d2() -> nn.Module:
    """A dueling agent: pictures of each step, the last action and reward, states."""

    def forward(m: Any, pictures: Tensor, actions: Tensor, rewards: Tensor, h: Tensor, c: Tensor) -> Any:
        t, b = actions.shape
        x = F.relu(m.conv2(F.relu(m.conv1(pictures.flatten(0, 1) / 255.0)))).flatten(1)
        x = F.relu(m.fc(x)).view(t, b, -1)
        x = torch.cat([x, F.one_hot(actions, 4).float(), rewards.unsqueeze(-1)], -1)
        y, (h, c) = m.lstm(x, (h, c))
        adv = m.adv(y)
        q = m.value(y) + adv - adv.mean(-1, keepdim=True)
        return q, q.argmax(-1), h, c

    return Of(
        forward,
        conv1=nn.Conv2d(1, 4, 4, 2),
        conv2=nn.Conv2d(4, 4, 3, 1),
        fc=nn.Linear(36, 6),
        lstm=nn.LSTM(11, 8),
        adv=nn.Linear(8, 4),
        value=nn.Linear(8, 1),
    )


def raft() -> nn.Module:
    """Three updates of a flow by a separable ConvGRU."""

    def forward(m: Any, h: Tensor, inp: Tensor, corr: Tensor) -> Any:
        flow = torch.zeros_like(corr[:, :2])
        for _ in range(3):
            x = torch.cat([inp, F.relu(m.enc(torch.cat([flow, corr], 1)))], 1)
            for z, r, q in ((m.z1, m.r1, m.q1), (m.z2, m.r2, m.q2)):
                hx = torch.cat([h, x], 1)
                u, e = torch.sigmoid(z(hx)), torch.sigmoid(r(hx))
                h = (1 - u) * h + u * torch.tanh(q(torch.cat([e * h, x], 1)))
            flow = flow + m.head(h)
        return F.interpolate(flow, scale_factor=2.0, mode="bilinear", align_corners=False), h

    def conv(kernel: tuple[int, int], padding: tuple[int, int]) -> nn.Conv2d:
        return nn.Conv2d(12, 4, kernel, padding=padding)

    return Of(
        forward,
        enc=nn.Conv2d(5, 4, 3, padding=1),
        z1=conv((1, 3), (0, 1)),
        r1=conv((1, 3), (0, 1)),
        q1=conv((1, 3), (0, 1)),
        z2=conv((3, 1), (1, 0)),
        r2=conv((3, 1), (1, 0)),
        q2=conv((3, 1), (1, 0)),
        head=nn.Conv2d(4, 2, 3, padding=1),
    )


def sketch() -> nn.Module:
    """Drawings: a bidirectional encoder's last states make a code, which every step of the decoder sees."""

    def forward(m: Any, strokes: Tensor) -> Any:
        _, (h, _) = m.encoder(strokes)
        z = m.mu(torch.cat(torch.unbind(h, 0), 1))
        h0, c0 = torch.tanh(m.init(z)).split(8, 1)
        x = torch.cat([strokes, z.unsqueeze(1).expand(-1, strokes.shape[1], -1)], 2)
        y, _ = m.decoder(x, (h0.unsqueeze(0).contiguous(), c0.unsqueeze(0).contiguous()))
        p = m.head(y)
        pen, mix = p[..., :3], p[..., 3:].reshape(p.shape[0], p.shape[1], 4, 6)
        pi, mx, my, sx, sy, rho = torch.unbind(mix, -1)
        return pen.softmax(-1), pi.softmax(-1), mx, my, sx.exp(), sy.exp(), rho.tanh()

    return Of(
        forward,
        encoder=bilstm(5, 4),
        mu=nn.Linear(8, 3),
        init=nn.Linear(3, 16),
        decoder=nn.LSTM(8, 8, batch_first=True),
        head=nn.Linear(8, 27),
    )


def social() -> nn.Module:
    """People who walk: an LSTM for each, pooled over all who are near."""

    def forward(m: Any, tracks: Tensor) -> Any:
        b, n, t, _ = tracks.shape
        steps = tracks[:, :, 1:] - tracks[:, :, :-1]
        h = m.lstm(F.leaky_relu(m.embed(steps)).view(b * n, t - 1, 6))[1][0].squeeze(0).view(b, n, 6)
        end = tracks[:, :, -1]
        rel = end.unsqueeze(1) - end.unsqueeze(2)
        pooled = F.relu(m.pool(torch.cat([m.place(rel), h.unsqueeze(1).expand(-1, n, -1, -1)], -1))).amax(2)
        state, c = torch.cat([h, pooled], -1).view(b * n, 12), torch.zeros(b * n, 12)
        step, out = steps[:, :, -1].reshape(b * n, 2), []
        for _ in range(3):
            state, c = m.cell(m.embed(step), (state, c))
            step = m.head(state)
            out.append(step)
        return torch.cumsum(torch.stack(out, 1), 1).view(b, n, 3, 2) + end.unsqueeze(2)

    return Of(
        forward,
        embed=nn.Linear(2, 6),
        lstm=nn.LSTM(6, 6, batch_first=True),
        place=nn.Linear(2, 6),
        pool=nn.Linear(12, 6),
        cell=nn.LSTMCell(6, 12),
        head=nn.Linear(12, 2),
    )


def pointer() -> nn.Module:
    """Tours of cities: what was visited is masked."""

    def forward(m: Any, cities: Tensor) -> Any:
        x = m.embed(cities)
        keys, (h, c) = m.encoder(x)
        h, c = h[0], c[0]
        mask = torch.zeros_like(cities[:, :, 0])
        item = m.first.expand(cities.shape[0], -1)
        tour = []
        for _ in range(3):
            h, c = m.cell(item, (h, c))
            scores = m.v(torch.tanh(m.w1(keys) + m.w2(h).unsqueeze(1))).squeeze(2) - 1e4 * mask
            best = scores.argmax(1)
            tour.append(best)
            picked = F.one_hot(best, cities.shape[1]).to(mask.dtype)
            mask = mask + picked
            item = torch.bmm(picked.unsqueeze(1), x).squeeze(1)
        return torch.stack(tour, 1), scores

    return Of(
        forward,
        embed=nn.Linear(2, 6),
        encoder=nn.LSTM(6, 6, batch_first=True),
        cell=nn.LSTMCell(6, 6),
        first=nn.Parameter(torch.randn(1, 6)),
        v=nn.Linear(6, 1),
        w1=nn.Linear(6, 6),
        w2=nn.Linear(6, 6),
    )


MOTION = {
    "crnn": Net(crnn, {"image": "batch 1 16 time"}, ({"batch": 2, "time": 24}, {"batch": 1, "time": 40}), BATCH),
    "convlstm": Net(convlstm, {"frames": "2 4 2 6 5"}),
    "video": Net(video, {"frames": "batch time 3 8 8"}),
    "policy": Net(policy, {"seen": "1 batch 6", "state": "1 batch 8"}),
    "world_model": Net(world_model, {"z": "batch time 4", "action": "batch time 2"} | STATES),
    "caption": Net(caption, {"picture": "batch 3 20 20", "tokens": "<20: batch time"}),
    "skeletons": Net(skeletons, {"joints": "batch time 6 3"}),
    "r2d2": Net(
        r2d2,
        {
            "pictures": "time batch 1 12 12",
            "actions": "<4: time batch",
            "rewards": "time batch",
            "h": "1 batch 8",
            "c": "1 batch 8",
        },
    ),
    "raft": Net(raft, {"h": "batch 4 6 6", "inp": "batch 4 6 6", "corr": "batch 3 6 6"}),
    "sketch": Net(sketch, {"strokes": "batch time 5"}),
    "social": Net(social, {"tracks": "batch 4 time 2"}),
    "pointer": Net(pointer, {"cities": "batch time 2"}, dynamo=BATCH),
}
