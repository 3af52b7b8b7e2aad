"""`--also`: exports at several sizes decide; what does not fit is one clear error, and the result is compared with
each of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from commands import Command
from frozen_nets import CONV, NETS, feeds, made
from onnx import numpy_helper
from running import run

import rnn_lowering as rl

TIME = {"X:1": "time"}


def opened(name: str, *sizes: int, **options: Any) -> onnx.ModelProto:
    first, *also = map(NETS[name], sizes)
    new: onnx.ModelProto = rl.lower(
        first, options.pop("to", "keep"), open_dims=options.pop("open_dims", TIME), also=also, **options
    )
    return new


def refused(
    first: onnx.ModelProto, *also: onnx.ModelProto, dims: Any = TIME, **options: Any
) -> rl.RnnLoweringError:
    with pytest.raises(rl.RnnLoweringError) as caught:
        rl.lower(first, "keep", open_dims=dims, also=also, **options)
    return caught.value


# What is given


def test_models_and_paths_in_memory_and_as_files(tmp_path: Path) -> None:
    first, second = NETS["heads"](11), NETS["heads"](160)
    onnx.save(second, tmp_path / "long.onnx")
    expected = rl.lower(first, "keep", open_dims=TIME, also=[second])
    path = tmp_path / "long.onnx"
    every: list[Any] = [[path], path, str(path), ir.from_proto(second)]
    for also in every:
        assert rl.lower(first, "keep", open_dims=TIME, also=also) == expected
    given = ir.from_proto(second)
    before = ir.to_proto(given)
    rl.lower(first, "keep", open_dims=TIME, also=[given])
    assert ir.to_proto(given) == before


def test_sizes_without_names_may_have_other_numbers() -> None:
    """tf2onnx numbers the open sizes that have no name."""
    exports = [NETS["heads"](11), NETS["heads"](160)]
    for export, name in zip(exports, ("unk__75", "unk__149"), strict=True):
        export.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    found: onnx.ModelProto = rl.lower(exports[0], "keep", open_dims=TIME, also=exports[1:])
    assert [dim.dim_param for dim in found.graph.input[0].type.tensor_type.shape.dim][:2] == ["unk__75", "time"]


def test_the_report_says_what_changed() -> None:
    first, second = NETS["without_the_last"](11), NETS["without_the_last"](160)
    _, report = rl.lower(first, "keep", open_dims=TIME, also=[second], full=True)
    assert report.notes == ["Slice node '-> Y' in main graph: 10 is time - 1"]


def test_the_line_names_the_sizes(rnn_lower: Command, tmp_path: Path) -> None:
    for size in (11, 37, 160):
        onnx.save(NETS["heads"](size), tmp_path / f"{size}.onnx")
    also = ("--also", tmp_path / "160.onnx", "--also", tmp_path / "37.onnx")
    said = rnn_lower(tmp_path / "11.onnx", tmp_path / "o.onnx", "--open-dim", "X:1=time", *also)
    assert "verified at time = 11, 160 and 37" in said.out
    assert "the inputs are now X [2, time, 6]" in said.out


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lengths_of_t", "lower_triangle", "behind_a_strided_conv"])
def test_verify_takes_each_export(name: str) -> None:
    axis = {"lengths_of_t": "X:0", "behind_a_strided_conv": "X:2"}.get(name, "X:1")
    new = opened(name, 11, 160, to="auto", open_dims={axis: "time"})
    for size in (11, 24, 160):
        assert rl.verify(NETS[name](size), new, runs=1)


def test_an_axis_that_is_declared_open_needs_its_sizes() -> None:
    def declared(size: int) -> onnx.ModelProto:
        model = NETS["expanded"](size)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[1].dim_param = "s0"
        return model

    error = refused(declared(11), declared(160))
    assert "open already" in str(error)
    new = rl.lower(declared(11), "keep", open_dims=TIME, also=[declared(160)], dims={"s0": (11, 160)})
    given = feeds(NETS["expanded"](24))
    np.testing.assert_allclose(run(new, given)["Y"], run(NETS["expanded"](24), given)["Y"], 1e-5, 1e-6)
    with pytest.raises(rl.OptionError, match=r"declared open in 2 exports.*\(\?, \?\)"):
        rl.lower(declared(11), "keep", open_dims=TIME, also=[declared(160)], dims={"s0": 11})


def test_sizes_of_an_axis_that_is_declared_open_on_the_command_line(rnn_lower: Command, tmp_path: Path) -> None:
    for size in (11, 160):
        model = NETS["expanded"](size)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "s0"
        onnx.save(model, tmp_path / f"{size}.onnx")
    options = ("--open-dim", "X:1=time", "--also", tmp_path / "160.onnx", "--set-dim", "s0=11,160")
    said = rnn_lower(tmp_path / "11.onnx", tmp_path / "o.onnx", *options)
    assert "verified at time = 11 and 160" in said.out


def test_several_sizes_of_an_axis_that_is_not_opened() -> None:
    model = NETS["expanded"](11)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(rl.OptionError, match="'n' gets 2 sizes"):
        rl.lower(model, dims={"n": (2, 3)})


WRONG_AXES = {
    "no such axis": ({"X:7": "t"}, "the model has no axis 'X:7' to open; axes of fixed size are X:0, X:1, X:2"),
    "no such input": ({"Z:1": "t"}, "the model has no axis 'Z:1' to open"),
    "one name for two sizes": ({"X:0": "t", "X:1": "t"}, "'t' is the name of axes of 2 and 11"),
}


@pytest.mark.parametrize("name", WRONG_AXES)
def test_a_wrong_axis_is_an_error(name: str) -> None:
    dims, text = WRONG_AXES[name]
    assert text in str(refused(NETS["heads"](11), NETS["heads"](160), dims=dims))


def test_the_name_of_another_axis_is_refused() -> None:
    models = [NETS["expanded"](size) for size in (11, 160)]
    for model in models:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"
    assert "choose another name" in str(refused(*models))


def test_two_axes() -> None:
    def both(batch: int, time: int) -> onnx.ModelProto:
        shape, merged = np.array([batch, time, 2, 3]), np.array([batch * time, 6])
        nodes = "r = Reshape (X, s) f = Relu (r) m = Reshape (f, v) q = MatMul (m, w) Y = Reshape (q, u)"
        return made(
            f"float[{batch},{time},6] X",
            f"float[{batch},{time},6] Y",
            nodes,
            s=shape,
            v=merged,
            w=np.eye(6, dtype=np.float32) * 3,
            u=np.array([batch, time, 6]),
        )

    new = rl.lower(both(5, 11), "keep", open_dims={"X:0": "batch", "X:1": "time"}, also=[both(12, 160)])
    for sizes in ((1, 1), (3, 50), (12, 7)):
        given = feeds(both(*sizes))
        np.testing.assert_allclose(run(new, given)["Y"], run(both(*sizes), given)["Y"], 1e-5)
    error = refused(both(11, 11), both(160, 160), dims={"X:0": "batch", "X:1": "time"})
    assert "'batch' and 'time' are both 11 and 160" in str(error)
    assert "open it too" in str(refused(both(5, 11), both(12, 160)))


# Several exports


def test_a_third_export_refuses_what_two_do_not_show() -> None:
    assert "no size explains" in str(refused(*map(NETS["clamped"], (7, 11, 160))))
    new = opened("heads", 11, 160, 37)
    assert new == opened("heads", 11, 160)


def test_a_third_export_decides() -> None:
    """Twice a half is the whole where both are even; a crop to another half is told by an odd one."""

    def net(size: int) -> onnx.ModelProto:
        half = (size + 1) // 2
        conv = "Conv <strides = [2], pads = [1,1], kernel_shape = [3]>"
        nodes = (
            f"a = {conv} (X, w) b = {conv} (a, w) u = ConvTranspose <strides = [2], kernel_shape = [2]> (b, v)"
            " c = Slice (u, o, e, k) Y = Concat <axis = 1> (a, c)"
        )
        random = np.random.default_rng(0)
        w, v = random.normal(size=(6, 6, 3)), random.normal(size=(6, 6, 2))
        arrays = {"o": np.array([0]), "e": np.array([half]), "k": np.array([2])}
        return made(f"float[2,6,{size}] X", f"float[2,12,{half}] Y", nodes, w=w, v=v, **arrays)

    axis = {"X:2": "time"}
    error = refused(net(11), net(160), dims=axis)
    assert "may be" in str(error)
    assert "give one more export, at time = " in str(error)
    new = rl.lower(net(11), "keep", open_dims=axis, also=[net(160), net(37)])
    for size in (8, 13, 50):
        given = feeds(net(size))
        np.testing.assert_allclose(run(new, given)["Y"], run(net(size), given)["Y"], 1e-4, 1e-5)


def test_a_number_beside_a_size_that_all_exports_round_alike_is_refused() -> None:
    """T // 3 - 1 and (T + 2) // 3 - 2 are the same but where 3 divides T."""

    def net(size: int) -> onnx.ModelProto:
        conv = "Conv <strides = [3], pads = [1,1], kernel_shape = [3]>"
        nodes = f"a = {conv} (X, w) b = Slice (a, o, e, k) Y = ReduceMean <axes = [2]> (b)"
        arrays = {"o": np.array([0]), "e": np.array([size // 3 - 1]), "k": np.array([2])}
        return made(f"float[2,6,{size}] X", "float[2,6,1] Y", nodes, w=CONV, **arrays)

    axis = {"X:2": "time"}
    assert "by chance or always" in str(refused(net(11), net(160), net(37), dims=axis))
    error = refused(net(11), net(160), net(37), net(24), dims=axis)
    assert "no size explains" in str(error)


# Errors


def other_weights(model: onnx.ModelProto) -> None:
    random = np.random.default_rng(1)
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(numpy_helper.from_array(random.normal(size=(6, 6)).astype(np.float32), "w"))


def rename(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "Z"


def newer(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 18


def another_operator(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Add"


BAD: dict[str, tuple[tuple[str, int, int], Any, str]] = {
    "equal sizes": (("merged_rows", 24, 24), None, "all exports have a size of 24 for 'time'"),
    "the wrong order": (("merged_rows", 37, 24), None, "wrong order; give the smallest first"),
    "a size of 1": (("merged_rows", 1, 24), None, "a size of 1 for 'time' tells nothing"),
    "other weights": (("merged_rows", 24, 37), other_weights, "the weights differ: same seed?"),
    "another opset": (("merged_rows", 24, 37), newer, "the exports have opsets 17 and 18"),
    "another input": (
        ("merged_rows", 24, 37),
        rename,
        "the exports have different inputs ('X' and 'Z') or outputs",
    ),
    "another operator": (
        ("merged_rows", 24, 37),
        another_operator,
        "MatMul node '-> m' in main graph: the exports differ from this node on: another has Add here",
    ),
    "more nodes": (("unrolled", 24, 37), None, "the exports differ from this node on"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_exports_are_one_clear_error(name: str) -> None:
    (net, first, second), change, text = BAD[name]
    other = NETS[net](second)
    if change is not None:
        change(other)
    assert text in str(refused(NETS[net](first), other))


def test_a_number_that_grows_before_opset_12() -> None:
    models = [NETS["positions"](size) for size in (11, 160)]
    for model in models:
        model.opset_import[0].version = 11
    assert "export at opset 13 or later" in str(refused(*models))


REFUSALS = {
    "a_table": "B is the first rows of a table, [11, 6] and [160, 6]; export without folding",
    "adaptive_pool": "its attribute kernel_shape is",
    "decay_matrix": "export without folding",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_node_the_numbers_and_what_to_export(name: str) -> None:
    error = refused(NETS[name](11), NETS[name](160))
    assert isinstance(error, rl.UnsupportedError)
    assert REFUSALS[name] in str(error)
    assert error.node is not None
    assert error.page == "frozen-axis.md"


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_a_number_that_two_sizes_explain_is_refused(factor: float) -> None:
    """Behind the strides both inputs have as many frames."""
    axes = {"X:2": "time", "Z:2": "rows"}

    def export(size: int) -> onnx.ModelProto:
        left = (size - 3) // 2 + 1
        inputs = f"float[2,6,{size}] X, float[2,6,{size + 2}] Z, float[3] Q"
        outputs = f"float[2,4,{left}] U, float[2,4,{left}] V, float[3] Y"
        nodes = "U = Conv <strides = [2]> (X, K)  V = Conv <strides = [2]> (Z, L)  Y = Mul (Q, k)"
        weights = {"K": np.ones((4, 6, 3)), "L": np.ones((4, 6, 5)), "k": np.float32(factor * left**-0.5)}
        return made(inputs, outputs, nodes, **weights)

    exports = [export(size) for size in (11, 160, 37)]
    with pytest.raises(rl.UnsupportedError, match=r" may be .* or "):
        rl.lower(exports[0], "keep", open_dims=axes, also=exports[1:])


@pytest.mark.parametrize(
    ("sizes", "numbers"),
    [
        ([(5, 11), (12, 160)], (1.0, 0.5)),  # 7 / (batch + 2)
        ([(2, 24), (2, 37)], (2.0, 3.0)),  # (time + 2) / 13
        ([(2, 11), (2, 160)], (0.1 / 61, 0.1 / 210)),  # the root of 1 / (27100 time + 74000)
        ([(5, 11), (12, 160)], (1, 8)),  # batch - 4, and time / 20
        ([(5, 11), (12, 160)], (11, 25)),  # 2 batch + 1, and min(time, 25)
    ],
)
def test_numbers_that_a_size_has_by_chance_are_refused(sizes: Any, numbers: Any) -> None:
    """With some factor and rest, small sizes and roots fit most numbers."""

    def export(batch: int, time: int, number: float) -> onnx.ModelProto:
        node = "Mul (X, k)" if isinstance(number, float) else "Slice (X, o, k, a)"
        given = f"float[{batch},{time},30] X", "float[b,t,n] Y", f"Y = {node}"
        shape = () if isinstance(number, float) else (1,)
        return made(*given, k=np.full(shape, number), o=np.array([0]), a=np.array([2]))

    first, second = (export(batch, time, k) for (batch, time), k in zip(sizes, numbers, strict=True))
    dims = {"X:1": "time"} if sizes[0][0] == sizes[1][0] else {"X:0": "batch", "X:1": "time"}
    assert "which no size explains" in str(refused(first, second, dims=dims))


@pytest.mark.parametrize(
    ("sizes", "text"), [((24, 28), "differ by 4 only"), ((24, 54), "product of small numbers")]
)
def test_sizes_that_decide_badly_are_warned_of(sizes: tuple[int, int], text: str) -> None:
    with pytest.warns(rl.RnnLoweringWarning, match=text):
        opened("heads", *sizes)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sizes", [(11, 160), (24, 37), (11, 24, 160)])
def test_sizes_that_decide_well(sizes: tuple[int, ...]) -> None:
    opened("heads", *sizes)


def test_another_export_without_an_axis() -> None:
    with pytest.raises(rl.OptionError, match="none is named"):
        rl.lower(NETS["heads"](11), also=[NETS["heads"](160)])


# What follows


def test_a_stream_of_an_opened_net(rnn_lower: Command, tmp_path: Path) -> None:
    for size in (11, 160):
        onnx.save(NETS["heads"](size), tmp_path / f"{size}.onnx")
    options = ("--open-dim", "X:1=time", "--also", tmp_path / "160.onnx", "--stream", "time=1")
    said = rnn_lower(tmp_path / "11.onnx", tmp_path / "o.onnx", *options)
    assert "verified at time = 11 and 160" in said.out
    assert "in chunks" in said.out


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["onnxruntime", "tract", "openvino"])
def test_an_opened_net_for_a_target(target: Any) -> None:
    new = opened("lengths_of_t", 11, 160, to="auto", target=target, open_dims={"X:0": "time"})
    assert rl.verify(NETS["lengths_of_t"](37), new, runs=1)


def test_a_wrong_opening_fails_the_comparison(rnn_lower: Command, tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever the rules do, each export is the truth at its size."""
    from rnn_lowering.opening import evidence

    rules = tuple(
        (pool, lambda numbers, sizes, wide: iter([next(iter(sizes)) + 1])) for pool, _ in evidence.INTEGER_RULES
    )
    monkeypatch.setattr(evidence, "INTEGER_RULES", rules)
    with pytest.raises(rl.VerificationError):
        rl.lower_file(
            _saved(tmp_path, "last_row", 11),
            tmp_path / "o.onnx",
            "keep",
            open_dims=TIME,
            also=[_saved(tmp_path, "last_row", 160)],
        )
    assert not (tmp_path / "o.onnx").exists()


def _saved(folder: Path, name: str, size: int) -> Path:
    path = folder / f"{name}.{size}.onnx"
    onnx.save(NETS[name](size), path)
    return path
