"""Models simplified by onnxslim or onnxsim, whichever is here: optimized.onnx in the folder of each job.

The arguments after those of the jobs are passes of onnxsim to skip.
"""

import importlib.util
import sys
from pathlib import Path

import onnx
from jobs import Arrays, Feed, main

SLIM = importlib.util.find_spec("onnxslim") is not None
if SLIM:
    import onnxslim
else:
    import onnxsim


def run(model: Path, feed: Feed, names: list[str]) -> Arrays:
    if SLIM:
        onnxslim.slim(str(model), "optimized.onnx")
    else:
        onnx.save(onnxsim.simplify(str(model), skipped_optimizers=sys.argv[3:])[0], "optimized.onnx")
    return {}


if __name__ == "__main__":
    main(run)
