"""One child process for the version converter, instead of one for each case of an old opset."""

from collections.abc import Iterator

import pytest

from rnn_lowering.model.native import one_child


@pytest.fixture(autouse=True, scope="module")
def shared_child() -> Iterator[None]:
    with one_child():
        yield
