"""Models in the dnn module of OpenCV, on its CPU."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
from jobs import Arrays, main, once


def load(model: Path, feed: Mapping[str, Any], names: list[str]) -> Callable[..., Arrays]:
    net = cv2.dnn.readNetFromONNX(str(model))

    def call(feed: Mapping[str, Any] = feed) -> Arrays:
        for name, array in feed.items():
            net.setInput(array, name)
        return dict(zip(names, net.forward(names), strict=True))

    return call


if __name__ == "__main__":
    main(once(load))
