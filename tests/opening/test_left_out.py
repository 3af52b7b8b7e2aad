"""Exports of which one lacks a node that does nothing at its size, or computes its constants otherwise, and numbers
of which one size shows a limit."""

import numpy as np
import onnx
import pytest
from frozen_nets import Builder, made
from told_exports import opened_as_told, right

import rnn_lowering as rl

NETS: dict[str, Builder] = {}


def net(function: Builder) -> Builder:
    NETS[function.__name__] = function
    return function


def cut(rows: int, time: int, name: str = "c") -> str:
    """A Slice of the first rows; where it takes all, dynamo writes an Identity."""
    return f"{name} = Slice (X, zero, rows, one)" if rows < time else f"{name} = Identity (X)"


def nodes(time: int, text: str, output: str = "", **constants: object) -> onnx.ModelProto:
    named = {"zero": np.array([0]), "one": np.array([1])}
    given = f"float[2,{time},6] X", f"{output or 'float[a,b,c]'} Y", text
    used = {name: array for name, array in (named | constants).items() if name in text}
    return made(*given, **used)


@net
def even_rows(time: int) -> onnx.ModelProto:
    rows = time // 2 * 2
    return nodes(
        time, f"{cut(rows, time)} Y = Reshape (c, s)", rows=np.array([rows]), s=np.array([2, rows // 2, 12])
    )


@net
def nothing_is_cut_from_an_output(time: int) -> onnx.ModelProto:
    rows = time // 5 * 5
    return nodes(time, cut(rows, time, "Y"), rows=np.array([rows]))


@net
def the_last_row_is_cut_if_it_is_odd(time: int) -> onnx.ModelProto:
    cut = "c = Slice (X, zero, last, one)" if time % 2 else "c = Identity (X)"
    return nodes(time, f"{cut} Y = Reshape (c, s)", last=np.array([-1]), s=np.array([2, time // 2, 12]))


@net
def filled_if_needed(time: int) -> onnx.ModelProto:
    """The code asks whether there is something to fill: there is no node at all if not."""
    more = -time % 4
    text = "p = Pad (X, more) a = Relu (p)" if more else "a = Relu (X)"
    pads = np.array([0, 0, 0, 0, more, 0])
    return nodes(time, f"{text} Y = Reshape (a, s)", more=pads, s=np.array([2, (time + more) // 4, 24]))


@net
def filled_where_both_are_read(time: int) -> onnx.ModelProto:
    more = -time % 4
    pad, name = ("p = Pad (X, more)", "p") if more else ("", "X")
    text = f"{pad} m = ReduceMax <axes = [1]> (X) Y = Sub ({name}, m)"
    return nodes(time, text, more=np.array([0, 0, 0, 0, more, 0]))


@net
def at_most_64_rows(time: int) -> onnx.ModelProto:
    return nodes(time, f"{cut(min(time, 64), time)} Y = Relu (c)", rows=np.array([min(time, 64)]))


@net
def at_most_64_rows_as_the_older_exporter_writes(time: int) -> onnx.ModelProto:
    return nodes(time, "c = Slice (X, zero, rows, one) Y = Relu (c)", rows=np.array([min(time, 64)]))


@net
def numbers_that_one_export_computes(time: int) -> onnx.ModelProto:
    """Rows behind the first ones: where all are left over, the exporter computed nothing."""
    left = time % 8
    computed = "i = Cast <to = 7> (n) k = Mod (i, eight)" if left else "k = Identity (n)"
    number = np.array([time if left else 0])
    return nodes(
        time, f"{computed} Y = Slice (X, k, end, one)", n=number, eight=np.array([8]), end=np.array([2**31])
    )


@net
def rows_of_chunks(time: int) -> onnx.ModelProto:
    rows = (np.arange(time) // 4).astype(np.float32)[:, None]
    return nodes(time, "Y = Add (X, k)", k=rows)


@net
def gaps_between_all_rows(time: int) -> onnx.ModelProto:
    text = "g = Slice (X, zero, last, one) u = Unsqueeze (g, one) d = Expand (u, e) r = Reshape (d, s) Y = Relu (r)"
    sizes, merged = np.array([2, time, time - 1, 6]), np.array([-1, time * (time - 1), 6])
    return nodes(time, text, last=np.array([-1]), e=sizes, s=merged)


@net
def numbers_of_gaps(time: int) -> onnx.ModelProto:
    return nodes(time, "f = Cast <to = 1> (k) Y = Mul (X, f)", k=np.array([time * (time - 1)]))


@net
def logarithm(time: int) -> onnx.ModelProto:
    return nodes(time, "Y = Mul (X, k)", k=np.float32(np.log(time)))


@net
def scale_between_corners(time: int) -> onnx.ModelProto:
    return nodes(time, "Y = Mul (X, k)", k=np.float32((time - 1) / (2 * time - 1)))


@net
def angles(time: int) -> onnx.ModelProto:
    return nodes(time, "Y = Add (X, k)", k=np.linspace(-np.pi, np.pi, time)[:, None])


@net
def centred_rows(time: int) -> onnx.ModelProto:
    rows = (np.arange(time) - (time - 1) / 2) / time
    return nodes(time, "Y = Add (X, k)", k=rows[:, None])


@net
def equal_sizes_behind_strides(time: int) -> onnx.ModelProto:
    whole = time + -time % 4
    conv = "Conv <strides = [2], pads = [1,1], kernel_shape = [3]>"
    up = "ConvTranspose <strides = [2], kernel_shape = [2]>"
    text = (
        f"p = Pad (X, more) t = Transpose <perm = [0,2,1]> (p) a = {conv} (t, w) b = {conv} (a, w) u = {up} (b, v)"
    )
    random = np.random.default_rng(0)
    w, v = random.normal(size=(6, 6, 3)), random.normal(size=(6, 6, 2))
    assert whole % 4 == 0
    return nodes(time, f"{text} Y = Add (a, u)", w=w, v=v, more=np.array([0, 0, 0, 0, whole - time, 0]))


@pytest.mark.parametrize("name", NETS)
def test_right_at_other_sizes(name: str) -> None:
    new = opened_as_told(NETS[name])
    onnx.checker.check_model(new, full_check=True)
    right(new, NETS[name], 8, 13, 50, 97, 200)


@pytest.mark.parametrize(
    ("name", "sizes"), [("even_rows", (12, 161, 94)), ("nothing_is_cut_from_an_output", (10, 161, 97, 159))]
)
def test_the_first_export_lacks_the_node(name: str, sizes: tuple[int, ...]) -> None:
    first, *others = map(NETS[name], sizes)
    new: onnx.ModelProto = rl.lower(first, "keep", open_dims={"X:1": "time"}, also=others)
    assert [value.name for value in new.graph.output] == ["Y"]
    right(new, NETS[name], 8, 13, 50, 97, 200)


@pytest.mark.parametrize("limit", [lambda time: 64 if time < 100 else 96, lambda time: min(time, 64) + time // 150])
def test_another_limit_in_each_export_is_refused(limit: "object") -> None:
    def limited(time: int) -> onnx.ModelProto:
        return nodes(time, "Y = Slice (X, zero, rows, one)", rows=np.array([limit(time)]))  # type: ignore[operator]

    first, *others = map(limited, (70, 93, 160))
    with pytest.raises(rl.UnsupportedError, match=r"which no size explains| may be "):
        rl.lower(first, "keep", open_dims={"X:1": "time"}, also=others)


def test_a_flag_is_no_part_of_a_size() -> None:
    """2 and 1 are T % 3 at 11 and 160, and perhaps the two branches of a question."""

    def scaled(time: int) -> onnx.ModelProto:
        return nodes(time, "Y = Mul (X, k)", k=np.float32(2.0 if time < 100 else 1.0))

    for sizes in ((11, 160), (11, 93, 160)):
        first, *others = map(scaled, sizes)
        with pytest.raises(rl.UnsupportedError, match="which no size explains"):
            rl.lower(first, "keep", open_dims={"X:1": "time"}, also=others)


def test_random_numbers_are_no_constant() -> None:
    def noisy(time: int) -> onnx.ModelProto:
        change = "Cast <to = 1> (k)" if time < 100 else "Identity (k)"
        kind = np.int64 if time < 100 else np.float32
        return nodes(time, f"f = {change} r = RandomNormalLike <dtype = 1> (f) Y = Add (X, r)", k=np.ones(6, kind))

    new = rl.lower(noisy(11), "keep", open_dims={"X:1": "time"}, also=[noisy(160)])
    assert "RandomNormalLike" in [node.op_type for node in new.graph.node]
