"""What all tests share: the tests in folders of a kind are marked as such."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rnn_lowering.model.onnx_checks import one_child

pytest_plugins = ["commands"]
"""Fixtures of the command."""

FOLDERS = {"clients": pytest.mark.clients}
"""Folder -> the mark of the tests in it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder in Path(item.path).relative_to(Path(__file__).parent).parts[:-1]:
            if folder in FOLDERS:
                item.add_marker(FOLDERS[folder])


@pytest.fixture(scope="module")
def shared_child() -> Iterator[None]:
    """One process for onnx's version converter, instead of one for each model of an old opset."""
    with one_child():
        yield
