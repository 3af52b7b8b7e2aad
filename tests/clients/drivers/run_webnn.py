"""Models in onnxruntime-web on WebNN, which Chromium computes with LiteRT on the CPU."""

import sys
from functools import partial
from pathlib import Path

from in_page import main_on

from browsers import headless_webnn  # isort: skip  in_page knows its folder

if __name__ == "__main__":
    main_on("webnn", partial(headless_webnn, Path(sys.prefix)))
