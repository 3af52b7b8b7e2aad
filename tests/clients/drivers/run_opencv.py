"""Models in the dnn module of OpenCV, on its CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
from jobs import Arrays, main


def run(model: Path, feed: Mapping[str, Any], names: list[str]) -> Arrays:
    net = cv2.dnn.readNetFromONNX(str(model))
    for name, array in feed.items():
        net.setInput(array, name)
    return dict(zip(names, net.forward(names), strict=True))


if __name__ == "__main__":
    main(run)
