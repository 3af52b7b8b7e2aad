"""A headless browser for tests that look at pages."""

import re
import shutil
import subprocess
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = Path("browser", "chromium")
"""Where an environment has a browser of its own."""


def why_absent() -> str | None:
    """Why there is no browser, None where there is one."""
    return None if _found() else f"none of {', '.join(BROWSERS)} is installed"


def headless(profile: Path) -> list[str]:
    """The command of a headless Chromium that writes what a page says to the console to stderr; skips the test
    where there is none."""
    return _command(["--headless", "--disable-gpu"], profile)


def headless_gpu(profile: Path) -> list[str]:
    """The same with WebGPU, which SwiftShader computes on the CPU."""
    return _command(["--headless=new", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"], profile)


def headless_webnn(environment: Path, profile: Path) -> list[str]:
    """The same with WebNN: the Chromium in the environment of the client."""
    return _command(
        ["--headless", "--enable-features=WebMachineLearningNeuralNetwork"], profile, str(environment / CHROMIUM)
    )


def _found() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def _command(mode: list[str], profile: Path, path: str | None = None) -> list[str]:
    path = path or _found()
    if path is None:
        import pytest  # the driver of a client has none

        pytest.skip(str(why_absent()))
    options = ["--no-sandbox", "--hide-scrollbars", "--enable-logging=stderr"]
    offline = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    return [path, *mode, *options, *offline, "--disable-component-update", f"--user-data-dir={profile}"]


REPORTING = b"""<script>
setInterval(() => fetch("/shown", { method: "POST", body: document.documentElement.outerHTML }), 200);
</script>"""


class Reported(SimpleHTTPRequestHandler):
    """Serves files; pages tell what they show."""

    shown = ""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        file = Path(self.translate_path(self.path))
        if file.suffix == ".html":
            body = file.read_bytes() + REPORTING
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        type(self).shown = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        self.end_headers()


def page_once(folder: Path, page: str, pattern: str, command: list[str], seconds: float = 60) -> str:
    """A page of a folder, opened by the command of a browser, once it matches a pattern."""

    class Handler(Reported):
        """Has what this page shows."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{page}"
    with subprocess.Popen([*command, address], stderr=subprocess.PIPE, text=True) as browser:
        end = time.monotonic() + seconds
        while not re.search(pattern, Handler.shown) and time.monotonic() < end:
            time.sleep(0.1)
        browser.terminate()
        said = browser.stderr.read() if browser.stderr else ""
    server.shutdown()
    server.server_close()
    lines = [line for line in said.splitlines() if "CONSOLE" in line]
    assert re.search(pattern, Handler.shown), [Handler.shown[-500:], *lines]
    return Handler.shown
