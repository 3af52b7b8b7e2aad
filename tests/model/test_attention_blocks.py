"""Models in the shape of Qwen3.5 and Mamba: prefill and decode beside onnxruntime's kernels."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import pytest
from attention_blocks import BLOCKS, first_states, next_states
from one_process import run_workers_here
from running import run
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.types import Array

PREFILL, DECODE = 100, 20


@pytest.fixture(autouse=True)
def every_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let onnxruntime run originals of opset 27, and verification do so in this process."""
    run_workers_here(monkeypatch)


def tokens(model: onnx.ModelProto) -> Array:
    width = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    return np.random.default_rng(1).standard_normal((1, PREFILL + DECODE, width)).astype(np.float32)


def generated(prefill: onnx.ModelProto, decode: onnx.ModelProto) -> Iterator[Mapping[str, Array]]:
    """Yield the outputs of one call with the first tokens, and of a call for each token behind them."""
    x, states = tokens(prefill), first_states(prefill)
    starts = [0, *range(PREFILL, PREFILL + DECODE)]
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
        found = run(decode if n else prefill, {"hidden": x[:, start:end], **states}, relabel=False)
        states = next_states(found)
        yield found


@pytest.mark.few(1)
@pytest.mark.parametrize("name", thinned(list(BLOCKS), 3))
def test_prefill_and_decode(name: str) -> None:
    """One model of open length; and one of 100 tokens, in chunks of steps, with one of a single token."""
    original = BLOCKS[name]
    open_length = rl.lower(original)
    fixed = [rl.lower(original, dims={"B": 1, "T": T}, full=True) for T in (PREFILL, 1)]
    chunked = {node.form for node in fixed[0][1].nodes if node.operator == "LinearAttention"}
    assert chunked == ({"chunked"} if name.startswith("qwen") else {"scan"})
    assert {node.form for node in fixed[1][1].nodes} == {"unroll"}
    for model in (open_length, *(model for model, _ in fixed)):
        assert not [node.op_type for node in model.graph.node if node.domain]
        assert model.opset_import[0].version <= 26  # an ordinary onnxruntime runs it
    kernels = generated(original, original)
    for theirs, ours, others in zip(
        kernels, generated(open_length, open_length), generated(fixed[0][0], fixed[1][0]), strict=True
    ):
        for symbol, array in theirs.items():
            near = 1e-5 * max(1.0, np.abs(array).max())
            np.testing.assert_allclose(ours[symbol], array, rtol=0, atol=near)
            np.testing.assert_allclose(others[symbol], array, rtol=0, atol=near)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", thinned([*reversed(BLOCKS)], 4))
def test_is_verified(name: str) -> None:
    original = BLOCKS[name]
    check = rl.verify(original, rl.lower(original), runs=1)
    assert check.whole
    assert check.status == "verified", check.reason
    assert len({node.name.partition(" of ")[2] for node in check.nodes}) == len(rl.inspect(original))
