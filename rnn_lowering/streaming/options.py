"""The options of a stream, and of a stream in integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import SIZES
from rnn_lowering.errors import OptionError
from rnn_lowering.types import Array

BITS = ("w8a8", "w8a16")

StreamAxis = str | Mapping[str, int | None]
"""AXIS or "AXIS=FRAMES", or the frames by AXIS: a symbolic dimension of the inputs, or INPUT:AXIS. With unlike
numbers a frame of the stream is the greatest common divisor: "mic=160,features=1"."""

Sequences = Path | Sequence[Mapping[str, Array]]
"""Whole sequences by input name, or the file or folder that has them."""


def parse_stream(stream: StreamAxis) -> dict[str, int | None]:
    """Return the number of frames by axis, from "AXIS", "AXIS=FRAMES", several of these with commas, or a mapping.

    Raises:
        OptionError: FRAMES is not a positive integer, or no axis is named.
    """
    if isinstance(stream, str):
        parts = stream.split(",")
        stream = dict(map(_parsed, parts if all("=" in part for part in parts) else [stream]))
    given = _frames("stream", stream)
    if "" in given:
        raise OptionError(
            "the time axis has no name", hint="give the time dimension, or AXIS=FRAMES, such as time=16"
        )
    return given


def check_whole_calls(stream: StreamAxis | None, max_frames: int | None) -> None:
    """Check that calls of a fixed number of frames end with the last frame of the stream.

    Raises:
        OptionError: They do not.
    """
    counts = [count for count in parse_stream(stream).values() if count] if stream else []
    frames = math.gcd(*counts)
    if max_frames is not None and frames and max_frames % frames:
        raise OptionError(
            f"a maximum of {max_frames} frames is no multiple of the {frames} frames of a call",
            hint=f"give a multiple: --max-frames {-(-max_frames // frames) * frames}",
        )


def _parsed(text: str) -> tuple[str, int | None]:
    axis, equals, frames = text.rpartition("=")
    if not equals:
        return text, None
    if not frames.isdecimal():
        raise OptionError(
            f"'{frames}' is not a number of frames", hint="give the time dimension, or AXIS=FRAMES, such as time=16"
        )
    return axis, int(frames)


_frames = argument_checks.mapping(
    argument_checks.optional(argument_checks.integer(1)),
    "AXIS, AXIS=FRAMES, or frames by axis, such as {'time': 1}",
)


def parse_delay(name: str, given: Any) -> bool | int:
    """Take a delay: the maximum of frames, or True for any number."""
    if isinstance(given, bool):
        return given
    return argument_checks.integer()(name, given)


def _stream(_: str, given: Any) -> StreamAxis:
    parse_stream(given)
    return given  # type: ignore[no-any-return]


@dataclass(frozen=True)
class StreamOptions:
    """How a model becomes a stream.

    Attributes:
        stream: The time axis of a model to call chunk by chunk, with states as inputs and outputs: "time", "time=1"
            for one frame in each call, or {"X:1": None} for axis 1 of X and any number of frames. {"mic": 160,
            "features": 1}: 160 samples of one input belong to a frame of the other. Example: `stream="time=1"`.
        delay: By how many frames the outputs of a stream may come late if its nodes look ahead; True: any number.
            Example: `stream="time", delay=True`.
        max_frames: The length of the longest sequence of a stream, in frames: attention to all past frames then
            keeps that many keys and values, and the next frame is an error. Without it, they grow with each call.
            Example: `stream="time", max_frames=400`.
    """

    stream: StreamAxis | None = SIZES.option(
        "--stream AXIS[=FRAMES]",
        "stream",
        None,
        "make a stream: a model that you call chunk by chunk, with its states as inputs and outputs. AXIS: the "
        "time dimension, by name or as INPUT:AXIS. FRAMES: frames in each call (default: any number); inputs may "
        "have different numbers: mic=160,features=1. Of IN.onnx alone, without AXIS: list the axes",
        argument_checks.optional(_stream),
    )
    delay: bool | int = SIZES.option(
        "--delay FRAMES",
        "delay",
        False,
        "for nets that look ahead: outputs of the stream may come late, by at most FRAMES (default: any number)",
        parse_delay,
    )
    max_frames: int | None = SIZES.option(
        "--max-frames N",
        "frames",
        None,
        "for attention to all past frames: give the stream fixed shapes, for sequences of at most N frames "
        "(default: its states grow)",
    )

    def check_stream(self) -> None:
        """Check that the options fit each other.

        Raises:
            OptionError: They do not.
        """
        if self.max_frames is not None and self.stream is None:
            raise OptionError("a maximum of frames needs a stream", hint="add --stream, or drop --max-frames")
        if self.delay is not False and self.stream is None:
            raise OptionError("a delay needs a stream", hint="add --stream, or drop --delay")
        check_whole_calls(self.stream, self.max_frames)
