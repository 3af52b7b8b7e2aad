"""A Resize is products with matrices where a runtime computes it wrongly."""

from typing import Any

import pytest
from running import assert_close, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

RESIZES = {
    "twice": 'Resize <mode = "cubic"> (x, "", scales)',
    "to a size": 'Resize <mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1> (x, "", "", sizes)',
    "of dynamo": 'Resize <mode = "cubic", antialias = 0, keep_aspect_ratio_policy = "stretch"> (x, "", scales)',
    "corners": 'Resize <mode = "cubic", coordinate_transformation_mode = "align_corners"> (x, "", "", sizes)',
    "one row": 'Resize <mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel"> (x, "", row)',
    "rounded corners": 'Resize <mode = "cubic", coordinate_transformation_mode = "align_corners"> (x, "", parts)',
    "one axis": 'Resize <mode = "cubic", coordinate_transformation_mode = "asymmetric"> (x, "", one_axis)',
}
TEXT = """g (float[{N}, 3, 5, 4] x) => (float[{N}, 3, c, d] y) <float[4] scales = {{1, 1, 2, 1.5}},
    float[4] one_axis = {{1, 1, 2, 1}},
    float[4] row = {{1, 1, 0.3, 0.7}}, float[4] parts = {{1, 1, 1.5, 0.7}},
    int64[4] sizes = {{2, 3, 8, 3}}> {{ y = {text} }}"""


@pytest.mark.parametrize("name", RESIZES)
def test_a_cubic_resize_is_products(name: str) -> None:
    opset = 18 if "antialias" in RESIZES[name] else 17
    net = parse(TEXT.format(N="N" if "scales" in RESIZES[name] else 2, text=RESIZES[name]), opset)
    lowered = rl.lower(net, target="mnn")
    assert operators(lowered) == {"MatMul"}
    feed = random_feed(net, N=2)
    assert_close(run(lowered, feed), run(net, feed))


def test_one_that_crops_is_refused() -> None:
    mode = 'mode = "cubic", coordinate_transformation_mode = "tf_crop_and_resize"'
    net = parse(TEXT.format(N=2, text=f"Resize <{mode}> (x, one_axis, scales)"), 17)
    with pytest.raises(rl.UnsupportedError, match=r"Resize node .*computes it wrongly if it is cubic"):
        rl.lower(net, target="mnn")


@pytest.mark.parametrize("outside", [0, 1])
def test_openvino_gets_none_that_excludes_what_is_outside(outside: int) -> None:
    net = parse(
        TEXT.format(N="N", text=f'Resize <mode = "cubic", exclude_outside = {outside}> (x, "", scales)'), 17
    )
    lowered = rl.lower(net, target="openvino")
    assert operators(lowered) == {"MatMul" if outside else "Resize"}
    feed = random_feed(net, N=2)
    assert_close(run(lowered, feed), run(net, feed))


LINEAR = {"half_pixel": "MatMul", "asymmetric": "MatMul", "align_corners": "Resize"}


@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("mode", LINEAR)
def test_opencv_gets_products_where_a_size_is_rounded(mode: str, kind: str) -> None:
    """It takes the scale of the rounded size."""
    resize = f'Resize <mode = "{kind}", coordinate_transformation_mode = "{mode}"> (x, "", scales)'
    net = parse(TEXT.format(N=1, text=resize).replace("2, 1.5", "1.5, 1.5"), 17)
    lowered = rl.lower(net, target="opencv")
    assert operators(lowered) == {LINEAR[mode]}
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("mode", ["half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scale", ["1.5", "0.7", "0.5"])
def test_opencv_gets_products_where_the_nearest_is_of_a_rounded_size(mode: str, nearest: str, scale: str) -> None:
    """Every second element is the same of any size, if places are not rounded."""
    attributes = f'coordinate_transformation_mode = "{mode}", nearest_mode = "{nearest}"'
    net = parse(
        TEXT.format(N=1, text=f'Resize <{attributes}> (x, "", scales)').replace("2, 1.5", f"1, {scale}"), 17
    )
    net.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 7
    if mode.startswith("tf"):
        with pytest.raises(rl.UnsupportedError, match="computes it wrongly where a size is rounded"):
            rl.lower(net, target="opencv")
        return
    lowered, stays = rl.lower(net, target="opencv"), (mode, nearest, scale) == ("asymmetric", "floor", "0.5")
    assert operators(lowered) == {"Resize" if stays else "MatMul"}
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


CORNERS = 'mode = "{}", coordinate_transformation_mode = "align_corners"'


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize(("size", "scale"), [("T", 2.5), ("7", 0.7), ("T", 0.7), ("T", 2)])
def test_tract_gets_the_sizes_between_which_corners_are_aligned(mode: str, size: str, scale: float) -> None:
    """It aligns those of the sizes before they are rounded."""
    net = parse(
        f"""g (float[N, 2, {size}] x) => (float[N, 2, b] y) <float[3] s = {{1, 1, {scale}}}>
        {{ y = Resize <{CORNERS.format(mode)}> (x, "", s) }}""",
        17,
    )
    if (size, scale) == ("T", 0.7):
        with pytest.raises(rl.UnsupportedError, match="with corners of the sizes before they are rounded"):
            rl.lower(net, target="tract")
        return
    lowered = rl.lower(net, target="tract")
    (resize,) = (node for node in lowered.graph.node if node.op_type == "Resize")
    assert len(resize.input) == (3 if scale == 2 else 4)
    for T in (7,) if size == "7" else (7, 10):
        feed = random_feed(net, N=2, T=T)
        assert_close(run(lowered, feed), run(net, feed))


def test_opencv_is_refused_one_of_open_size() -> None:
    net = parse(
        """g (float[1, 2, T, 4] x) => (float[1, 2, a, b] y) <float[4] s = {1, 1, 1.5, 1}>
        { y = Resize <mode = "linear"> (x, "", s) }""",
        17,
    )
    with pytest.raises(rl.UnsupportedError, match="computes it wrongly where a size is rounded"):
        rl.lower(net, target="opencv")


@pytest.mark.parametrize("target", ["opencv", "mnn"])
def test_a_linear_one_of_opset_10_says_its_places_at_opset_13(target: Any) -> None:
    """Its places are multiplied by the scales; both take them as later opsets do."""
    text = """g (float[1, 2, 6, 4] x) => (float[1, 2, a, b] y) <float[4] s = {{1, 1, 2, 1}}> {{
        y = Resize <mode = {}> (x, s) }}"""
    linear = parse(text.format('"linear"'), 10)
    feed, lowered = random_feed(linear), rl.lower(linear, target=target)
    assert lowered.opset_import[0].version == 13
    assert_close(run(lowered, feed), run(linear, feed))
    nearest = parse(text.format('"nearest"'), 10)
    assert rl.lower(nearest, target=target).graph == nearest.graph


def test_mnn_gets_a_number_of_a_pad_as_an_input() -> None:
    text = "g (float[2, 3] x) => (float[2, 6] y) {{ y = Pad <pads = [0, 1, 0, 2], value = {}> (x) }}"
    model = parse(text.format(1.5), 10)
    feed, lowered = random_feed(model), rl.lower(model, target="mnn")
    assert lowered.opset_import[0].version == 13
    assert_close(run(lowered, feed), run(model, feed))
    zeros = parse(text.format(0.0), 10)
    assert rl.lower(zeros, target="mnn").graph == zeros.graph
