"""Models in onnxruntime-web, WebAssembly in one process of node for all jobs."""

import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from jobs import Arrays, each_time, main, once

SCRIPT = Path(__file__).with_name("onnxruntime_web.mjs")
LIBRARY = Path(sys.prefix, "node_modules", "onnxruntime-web", "dist", "ort.wasm.bundle.min.mjs")


def written(array: Any) -> dict[str, Any]:
    """An array as the script reads it."""
    return {
        "type": array.dtype.name,
        "dims": array.shape,
        "data": base64.b64encode(array.tobytes()).decode(),
    }


def read(entry: Mapping[str, Any]) -> Any:
    """An array as the script wrote it."""
    return np.frombuffer(base64.b64decode(entry["data"]), entry["type"]).reshape(entry["dims"])


if __name__ == "__main__":
    with subprocess.Popen(
        ["node", SCRIPT, LIBRARY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        asked: IO[str] | None = node.stdin
        answers: IO[str] | None = node.stdout

        def run(model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
            assert asked is not None
            assert answers is not None
            inputs = {name: written(array) for name, array in feed.items()}
            print(json.dumps({"model": str(model), "inputs": inputs, "outputs": names}), file=asked, flush=True)
            answer = json.loads(answers.readline() or '{"error": "node has ended"}')
            if "error" in answer:
                raise RuntimeError(answer["error"])
            return {name: read(answer["outputs"][name]) for name in names}

        main(once(each_time(run)))
