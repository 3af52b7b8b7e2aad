"""The example page: a lowered denoiser cleans a signal frame by frame in a browser, as Python does at once."""

import base64
import re
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from browsers import headless
from paths import EXAMPLES

import rnn_lowering as rl
from clients.environments import environment, why_absent

pytestmark = pytest.mark.browser


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of the page, with the library beside it, that is served here until the test ends."""
    if reason := why_absent("onnxruntime-web"):
        pytest.skip(reason)
    shutil.copytree(EXAMPLES / "browser", tmp_path / "page")
    (tmp_path / "page" / "node_modules").symlink_to(environment("onnxruntime-web") / "node_modules")
    step = tmp_path / "page" / "step.onnx"
    rl.lower_file(EXAMPLES / "denoiser_forward.onnx", step, stream="time=1", target="onnxruntime-web", verify=0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "page")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, *_: object) -> None: ...


def looked_at(address: str, tmp_path: Path) -> str:
    """The page when all its work is done."""
    command = [*headless(tmp_path / "profile"), "--virtual-time-budget=60000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def test_a_signal_is_cleaned_as_at_once(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import signals

    monkeypatch.delitem(sys.modules, "signals")
    noisy = signals.noisy_signals(np.random.default_rng(7), 1, 0.5, (0.0, 0.0))[1]
    head = struct.pack(
        "<4sI8sIHHIIHH4sI",
        b"RIFF",
        36 + noisy.nbytes,
        b"WAVEfmt ",
        16,
        3,
        1,
        8000,
        32000,
        4,
        32,
        b"data",
        noisy.nbytes,
    )
    (tmp_path / "page" / "noisy.wav").write_bytes(head + noisy.tobytes())
    shown = looked_at(f"{page}?recording=noisy.wav", tmp_path)
    assert re.search(r"33 frames, \d+ microseconds each", shown), shown[-600:]
    found = re.search(r'id="cleaned"[^>]* src="data:audio/wav;base64,([^"]+)"', shown)
    assert found
    cleaned = np.frombuffer(base64.b64decode(found[1])[44:], np.float32)
    spectra = signals.to_spectra(noisy)
    session = onnxruntime.InferenceSession(EXAMPLES / "denoiser_forward.onnx", providers=["CPUExecutionProvider"])
    mask = np.asarray(session.run(["mask"], {"magnitude": np.abs(spectra)})[0])
    expected = signals.to_signals(spectra * mask, noisy.shape[1])[0]
    np.testing.assert_allclose(cleaned, expected, rtol=0, atol=1e-5)


def test_a_missing_model_is_told(page: str, tmp_path: Path) -> None:
    (tmp_path / "page" / "step.onnx").unlink()
    command = [*headless(tmp_path / "profile"), "--virtual-time-budget=20000", "--dump-dom", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "failed: " in done.stdout
