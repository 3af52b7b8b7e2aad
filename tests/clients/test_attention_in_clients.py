"""Models in the shape of Qwen3.5 and Mamba in other runtimes: prefill, then a token, with the states fed back."""

from pathlib import Path

import numpy as np
import pytest
from attention_blocks import BLOCKS, first_states, next_states
from one_process import run_workers_here
from running import run

import rnn_lowering as rl
from clients.driving import drive, judge
from clients.environments import why_absent

PREFILL = 12
CLIENTS = ("openvino", "tract", "tvm", "iree", "mnn")
CHOSEN = ("qwen, com.microsoft", "mamba, standard")


@pytest.mark.parametrize("client", CLIENTS)
def test_prefill_and_decode(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call starts from what the first returned."""
    if reason := why_absent(client):
        pytest.skip(reason)
    run_workers_here(monkeypatch)
    x = {
        name: np.random.default_rng(1).standard_normal((1, PREFILL + 1, width)).astype(np.float32)
        for name, width in zip(CHOSEN, (16, 8), strict=True)
    }
    states = {name: first_states(BLOCKS[name]) for name in CHOSEN}
    for call, (start, end) in enumerate(((0, PREFILL), (PREFILL, PREFILL + 1))):
        feeds = {name: {"hidden": x[name][:, start:end], **states[name]} for name in CHOSEN}
        expected = {name: run(BLOCKS[name], feeds[name], relabel=False) for name in CHOSEN}
        sizes = {"B": 1, "T": end - start}
        jobs = {n: (rl.lower(BLOCKS[n], target=client, dims=sizes), feeds[n]) for n in CHOSEN}
        got = drive(client, jobs, tmp_path / str(call))
        judged = {name: judge(got[name], expected[name]) for name in CHOSEN}
        assert judged == dict.fromkeys(CHOSEN, ("right", ""))
        states = {name: next_states(outputs) for name in CHOSEN if not isinstance(outputs := got[name], str)}
