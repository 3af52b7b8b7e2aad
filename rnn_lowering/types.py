"""Types that several folders share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ArrayLike = Array | float | int | bool | Sequence[Any]
"""Anything that NumPy converts to an array of numbers."""

Dims = tuple["int | None", ...]
"""The shape of a value, None for dimensions that are not known."""

PathLike = str | os.PathLike[str]

Shapes = Mapping[str, Sequence[int]]
"""Shapes by the names of inputs."""
