"""Models in onnxruntime-web on a device of a browser, in one page of a headless Chromium for all jobs."""

import base64
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from jobs import Arrays, each_time, main, once
from run_onnxruntime_web import read, written

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))  # for what starts a browser

FILES = (HERE / "in_page.html", HERE.parents[2] / "examples" / "browser" / "gpu.mjs")
SECONDS = 50
jobs: "queue.Queue[bytes]" = queue.Queue()
answers: "dict[int, queue.Queue[bytes]]" = {}
"""By the process of the job; one that was late is not mistaken for the next."""


class Handler(SimpleHTTPRequestHandler):
    """Serves the page, gives it jobs, and gives their answers to who posted them."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path != "/job":
            return super().do_GET()
        try:
            return self.say(200, jobs.get(timeout=5))
        except queue.Empty:
            return self.say(204, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        job = json.loads(body)["job"]
        if self.path == "/answer":
            answers[job].put(body)
            return self.say(200, b"")
        answers[job] = queue.Queue()
        jobs.put(body)
        return self.say(200, answers[job].get())

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def run(address: str, model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
    """Run a model in the page; called in the process of a job."""
    job = {
        "job": os.getpid(),
        "model": base64.b64encode(model.read_bytes()).decode(),
        "inputs": {name: written(array) for name, array in feed.items()},
        "outputs": names,
    }
    with urlopen(Request(address, json.dumps(job).encode()), timeout=SECONDS) as response:
        answer = json.load(response)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return {name: read(answer["outputs"][name]) for name in names}


def main_on(device: str, headless: Callable[[Path], list[str]]) -> None:
    """Run every job of the folder given on the command line.

    Args:
        device: "webgpu" or "webnn".
        headless: Gives the command of a browser with a profile.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the browser still writes its profile
        for file in FILES:
            shutil.copy(file, folder)
        Path(folder, "onnxruntime-web").symlink_to(Path(sys.prefix, "node_modules", "onnxruntime-web"))
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        page = f"{address}/{FILES[0].name}#{device}"
        with subprocess.Popen([*headless(Path(folder, "profile")), page], stderr=subprocess.DEVNULL) as browser:
            main(once(each_time(partial(run, f"{address}/run"))))
            browser.terminate()
