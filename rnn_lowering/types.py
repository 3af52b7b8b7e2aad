"""Types that several folders share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ArrayLike = Array | float | int | bool | Sequence[Any]
"""What NumPy makes an array of numbers of."""

Dims = tuple["int | None", ...]
"""Dimensions of a value, None for one that is not known."""

PathLike = str | os.PathLike[str]

Shapes = Mapping[str, Sequence[int]]
"""Shapes by the names of inputs."""
