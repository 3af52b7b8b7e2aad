"""Sizes that are rounded: parts of an axis, which a further export shows, and sizes behind a stride."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from frozen_nets import CONV, made
from told_exports import opened_as_told, right

import rnn_lowering as rl

TIME = {"X:1": "time"}


def halved(time: int, half: Callable[[int], int]) -> onnx.ModelProto:
    nodes = "f = Gather <axis = 1> (X, m) r = Slice (X, h, e, a) s = ReduceSum (r, a) Y = Add (f, s)"
    given = f"float[2,{time},6] X", "float[2,1,6] Y", nodes
    return made(
        *given, m=np.array([half(time)]), h=np.array([half(time)]), e=np.array([2**31 - 1]), a=np.array([1])
    )


ROUNDED: dict[str, Callable[[int], int]] = {
    "down": lambda time: time // 2,
    "up": lambda time: (time + 1) // 2,
    "from the end": lambda time: -(time // 4),
    "the rest": lambda time: time - time // 3,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_the_export_that_the_error_asks_for_shows_a_rounded_part(name: str) -> None:
    def net(time: int) -> onnx.ModelProto:
        return halved(time, ROUNDED[name])

    right(opened_as_told(net), net, 8, 13, 50, 201)


def test_two_exports_show_the_half_that_is_rounded_down() -> None:
    """11 and 160 tell it from every other rounding: from that of round, too."""
    new = rl.lower(halved(11, ROUNDED["down"]), "keep", open_dims=TIME, also=[halved(160, ROUNDED["down"])])
    right(new, lambda time: halved(time, ROUNDED["down"]), 8, 13, 50, 201)


@pytest.mark.parametrize(
    ("sizes", "half"),
    [
        ((11, 160, 24), lambda time: round(time / 2)),  # one of them is odd
        ((11, 160, 37), lambda time: round(time / 2)),
        ((11, 160, 37), lambda time: (time + 2) // 3),  # time // 3 + 1, as 3 divides none
        ((11, 160, 37), lambda time: min(time // 2, 40)),
        ((11, 160, 37), lambda time: int(time * 0.3)),
    ],
)
def test_what_is_no_rounded_part_is_refused(sizes: tuple[int, ...], half: Callable[[int], int]) -> None:
    first, *others = (halved(time, half) for time in sizes)
    with pytest.raises(rl.UnsupportedError, match=r"which no size explains|by chance or always| and may be "):
        rl.lower(first, "keep", open_dims=TIME, also=others)


def test_a_size_behind_a_stride_is_read_in_the_branch_that_has_it() -> None:
    """Both branches have a value of that size, and neither sees that of the other."""

    def net(time: int) -> onnx.ModelProto:
        conv, rows = "Conv <strides = [2], kernel_shape = [3]>", (time - 3) // 2 + 1
        then, other = (
            f"{n} () => (float[2,{rows},6] {n}y) {{ {n}c = {conv} (X, w) {n}t = Transpose <perm = [0,2,1]> ({n}c)"
            f" {n}r = Add ({n}t, one) {n}e = Expand (one, s) {n}y = {end} ({n}r, {n}e) }}"
            for n, end in (("p", "Add"), ("q", "Sub"))
        )
        branches = f"then_branch = {then}, else_branch = {other}"
        nodes = f"m = ReduceMax <keepdims = 0> (X) c = Less (m, m) Y = If (c) <{branches}>"
        given = f"float[2,6,{time}] X", f"float[2,{rows},6] Y", nodes
        return made(*given, w=CONV, one=np.float32(1), s=np.array([2, rows, 6]))

    exports = [net(time) for time in (11, 160, 37)]
    new = rl.lower(exports[0], "keep", open_dims={"X:2": "time"}, also=exports[1:])
    right(new, net, 8, 13, 50)
