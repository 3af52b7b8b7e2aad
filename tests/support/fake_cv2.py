"""A runtime that is called as OpenCV is: it computes what onnxruntime does, unless DEED says what else it does.

The tests put it, as cv2, where a Python finds its modules.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

DEED = os.environ.get("DEED", "")
if DEED == "is broken":
    raise ImportError("libGL.so.1: cannot open shared object file")
if DEED == "never starts":
    time.sleep(600)

KEPT: list[Any] = []
SPOILED = "\x1b[31mred\x1b[0m"


class Net:
    """A model, and the inputs that are set."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(Path(path).read_bytes(), providers=["CPUExecutionProvider"])
        self.feed: dict[str, Any] = {}

    def setInput(self, array: Any, name: str) -> None:
        self.feed[name] = array

    def forward(self, names: list[str]) -> list[Any]:
        outputs = list(self.session.run(names, self.feed))
        if DEED == "is wrong":
            outputs[0] = outputs[0] + 0.01
        if DEED == "is wrong at one length" and next(iter(self.feed.values())).shape[0] > 10:
            outputs[0] = outputs[0][:1]
        if DEED == "has other integers for NaN" and any(array.min() < 0 for array in self.feed.values()):
            outputs[0] = outputs[0] + 0.01
        if DEED == "is wrong with more edges" and len(self.feed["edges"]) > len(self.feed["atoms"]):
            outputs[0] = outputs[0] + 0.01
        if DEED == "orders otherwise":
            outputs = [a[..., ::-1].copy() for a in outputs]
        if DEED == "has no int64":
            outputs = [a.astype(np.int32) if a.dtype == np.int64 else a for a in outputs]
        return outputs


class dnn:  # noqa: N801  as in OpenCV
    """The module of nets."""

    @staticmethod
    def readNetFromONNX(path: str) -> Net:
        if DEED == "rejects":
            print("loading ...", flush=True)
            print(f"Unknown layer {SPOILED}", flush=True)
            raise RuntimeError("cannot read the net")
        if DEED == "aborts":
            print("assertion failed: axis < rank", file=sys.stderr, flush=True)
            os.abort()
        if DEED == "hangs":
            Path(os.environ["STARTED"]).write_text(str(os.getpid()))
            time.sleep(600)
        if DEED == "takes all memory":
            KEPT.append(np.zeros(1 << 30))  # 8 GB, which no page of memory has yet
        if DEED == "prints much":
            for _ in range(64):
                os.write(1, b"x" * (1 << 20))
        return Net(path)
