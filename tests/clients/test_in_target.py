"""`rl.verify(original, lowered, target=...)` in each runtime that has a driver in the package: models, streams."""

from typing import Any

import pytest
from cases import Case, model
from stream_nets import keyword_spotter

import rnn_lowering as rl
from clients.environments import HERE_TOO, python, version
from rnn_lowering.targets.installed import PACKAGES

RUN = [target for target in PACKAGES if target not in HERE_TOO]
STREAMED = [target for target in RUN if target not in ("tinygrad", "jaxonnxruntime")]
"""tinygrad wants a compiler of C for this net, jaxonnxruntime rejects it."""


@pytest.mark.parametrize("client", RUN)
def test_a_model(client: Any) -> None:
    """At two lengths where the runtime takes any, else at one."""
    target = rl.TARGETS[client]
    is_open = bool({"scan", "loop"} & {*target.forms}) and "T" not in target.sizes
    original = model(Case("in_target", "LSTM", x="symbolic"), 17)
    sizes: Any = {} if is_open else {"input_shapes": {"X": [8, 3, 2]}}
    lowered = rl.lower(original, target=client, **sizes)
    found = rl.verify(original, lowered, target=client, target_python=python(client), timeout=300)
    said = f"verified ({client} {version(client)}): {2 if is_open else 1} run"
    assert str(found.in_target).startswith(said), found


@pytest.mark.parametrize("client", STREAMED)
def test_a_stream(client: Any) -> None:
    original = keyword_spotter()[0]
    stream = rl.lower(original, target=client, stream="time=1", dims={"batch": 1})
    check = rl.Check(target_python=python(client), timeout=300)
    assert rl.verify_stream(original, stream, check=check, target=client)
