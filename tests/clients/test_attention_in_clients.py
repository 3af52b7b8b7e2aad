"""Models in the shape of Qwen3.5 and Mamba in other runtimes: a prompt, then a token in each call, whose states are
fed back."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention import Attention
from attention_blocks import BLOCKS, first_states, next_states
from cases import Arrays
from one_process import run_workers_here
from running import run

import rnn_lowering as rl
from clients.driving import assert_right, drive, judge

PREFILL, DECODE = 100, 20
CLIENTS = ("openvino", "tract", "tvm", "iree", "mnn", "opencv")
CHOSEN = ("qwen, com.microsoft", "mamba, standard")


def by_kernels(original: onnx.ModelProto, x: Arrays) -> list[Arrays]:
    """Return the outputs of onnxruntime's kernels for the prompt, and of those for all tokens behind it."""
    first = run(original, {**x, "hidden": x["hidden"][:, :PREFILL]}, relabel=False)
    second = run(original, {"hidden": x["hidden"][:, PREFILL:], **next_states(first)}, relabel=False)
    return [first, second]


@pytest.mark.parametrize("client", CLIENTS)
def test_prefill_and_decode(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in one call; then each token starts from the states of the one before, the first from those of the
    prompt."""
    run_workers_here(monkeypatch)
    rng = np.random.default_rng(1)
    jobs, calls, expected = {}, {}, {}
    for name, width in zip(CHOSEN, (16, 8), strict=True):
        hidden = {"hidden": rng.standard_normal((1, PREFILL + DECODE, width)).astype(np.float32)}
        prompt, tokens = by_kernels(BLOCKS[name], hidden | first_states(BLOCKS[name]))
        parts = {
            (PREFILL, PREFILL): (hidden["hidden"][:, :PREFILL], first_states(BLOCKS[name]), prompt),
            (DECODE, 1): (hidden["hidden"][:, PREFILL:], next_states(prompt), tokens),
        }
        for (length, T), (given, states, wanted) in parts.items():
            job = f"{name}, {length} tokens"
            jobs[job] = (lowered(name, client, T), {"hidden": given, **states})
            fed_back = {state.replace("past", "present"): state for state in states}
            axes = {"hidden": 1, "output": 1}
            calls[job] = {"frames": T, "axes": axes, "fed_back": fed_back, "grows": {}}
            expected[job] = wanted
    got = drive(client, jobs, tmp_path, calls)
    assert {job: judge(got[job], expected[job]) for job in jobs} == dict.fromkeys(jobs, ("right", ""))


def lowered(name: str, client: Any, T: int) -> onnx.ModelProto:
    model: onnx.ModelProto = rl.lower(BLOCKS[name], target=client, dims={"B": 1, "T": T})
    return model


@pytest.mark.parametrize("client", [*CLIENTS, "tinygrad", "onnxruntime-web"])
def test_forms(client: Any, tmp_path: Path) -> None:
    """Each runtime's row says which forms it runs."""
    case = Attention(T=4, B=1, Hq=1, H=1, by_key=True, opset=17)
    forms: Any = rl.TARGETS[client].attention.forms
    jobs = {form: (rl.lower(case.model(), form, target=client), case.feed()) for form in forms}
    assert_right(client, jobs, dict.fromkeys(forms, case.expected(case.feed())), tmp_path)


@pytest.mark.parametrize("client", [*CLIENTS, "tinygrad"])
def test_chunks(client: Any, tmp_path: Path) -> None:
    """So many steps that there are several chunks, each of several blocks; tinygrad takes minutes for 70.
    MNN, OpenVINO, tract and TVM have open sizes."""
    T = 20 if client == "tinygrad" else 70
    opened = {"mnn": "BT", "openvino": "B", "tract": "BT", "tvm": "B"}.get(client, "")
    cases = {
        by_key: Attention(T=T, by_key=by_key, opset=17, decays="strong", open=opened) for by_key in (False, True)
    }
    jobs = {str(k): (rl.lower(case.model(), "chunked", target=client), case.feed()) for k, case in cases.items()}
    assert_right(client, jobs, {str(k): case.expected(case.feed()) for k, case in cases.items()}, tmp_path)
