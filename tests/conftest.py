"""What all tests share: the tests in folders of a kind are marked as such."""

from pathlib import Path

import pytest

FOLDERS = {"clients": pytest.mark.clients}
"""Folder -> the mark of the tests in it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder in Path(item.path).relative_to(Path(__file__).parent).parts[:-1]:
            if folder in FOLDERS:
                item.add_marker(FOLDERS[folder])
