"""A headless browser for tests that look at pages."""

import shutil
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def headless(profile: Path) -> list[str]:
    """The command of a headless Chromium that writes what a page says to the console to stderr; skips the test
    where there is none."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    offline = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    return [path, *options, *offline, "--disable-component-update", f"--user-data-dir={profile}"]
