"""Sizes that are rounded: parts of an axis, which three exports show, and sizes behind a stride."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from frozen_nets import CONV, feeds, made
from running import run

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
def test_three_exports_show_a_rounded_part(name: str) -> None:
    exports = [halved(time, ROUNDED[name]) for time in (11, 160, 37)]
    with pytest.raises(rl.UnsupportedError, match="a third export in between"):
        rl.lower(exports[0], "keep", open_dims=TIME, also=exports[1:2])
    new = rl.lower(exports[0], "keep", open_dims=TIME, also=exports[1:])
    for time in (8, 13, 50, 201):
        given = feeds(truth := halved(time, ROUNDED[name]))
        np.testing.assert_allclose(run(new, given)["Y"], run(truth, given)["Y"], 1e-4, 1e-5)


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
    with pytest.raises(rl.UnsupportedError, match=r"which no size explains|by chance or always"):
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
    for time in (8, 13, 50):
        given = feeds(net(time))
        np.testing.assert_allclose(run(new, given)["Y"], run(net(time), given)["Y"], 1e-4, 1e-5)
