"""What a few bytes of a model ask for is bounded: memory, nodes and time."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from running import assert_close, run
from texts import parse, random_feed, refusal

import rnn_lowering as rl
from rnn_lowering.cli.command import main, parser
from rnn_lowering.compare.node_pairs import node_pairs
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.limits import limited
from rnn_lowering.model import copying, folding
from rnn_lowering.model.copying import clone_graph

MIB = 1 << 20
LARGE, HUGE = 1 << 27, 1 << 32

LSTM = """
main (float[T,N,3] X) => (float[T,1,N,4] Y) <float[1,16,3] W = {}, float[1,16,4] R = {}> {
    [node] Y = LSTM <hidden_size=4> (X, W, R)
}
"""


@contextmanager
def peak_below(most: int) -> Iterator[None]:
    """Fail where the block takes more memory at a time, of which NumPy's arrays are a part even where untouched."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"


# Constants that are computed


CONSTANTS = {
    "ConstantOfShape": "Z = ConstantOfShape <value = float[1] {1}> (huge)",
    "Expand": "Z = Expand (one, huge)",
    "Expand, to more axes": "Z = Expand (row, many)",
    "Gather": "i = ConstantOfShape (some) n = Cast <to = 7> (i) Z = Gather (rows, n)",
    "Concat": "a0 = Identity (row) "
    + " ".join(f"a{n + 1} = Concat <axis = 0> (a{n}, a{n})" for n in range(20))
    + " Z = Identity (a20)",
}


def computed(text: str) -> ir.Value:
    model = parse(
        f"""main (float[1] X) => (float[n] Z) <
            float[1] one = {{1}}, float[1024] row = {{}}, float[1,4096] rows = {{}},
            int64[1] huge = {{{HUGE}}}, int64[3] many = {{65536, 4096, 1}}, int64[1] some = {{16384}}
        > {{ {text} }}"""
    )
    return ir.from_proto(model).graph.outputs[0]


@pytest.mark.parametrize("text", CONSTANTS.values(), ids=list(CONSTANTS))
def test_a_constant_that_exceeds_the_limit_stays_a_computation(text: str) -> None:
    value = computed(text)
    with limited(MIB), peak_below(8 * MIB):
        assert constant_of(value, 17) is None


def test_the_limit_counts_bytes() -> None:
    value = computed("Z = Expand (one, some)")
    with limited(4 * 16384 - 1):
        assert constant_of(value, 17) is None
    with limited(4 * 16384):
        tensor = constant_of(value, 17)
    assert tensor is not None
    assert tensor.nbytes == 4 * 16384


def test_a_large_constant_is_computed_again_under_the_limit_that_it_had() -> None:
    value = computed("shape = Constant <value_ints = [5000000]> () Z = Expand (one, shape)")
    with limited(1 << 25):
        tensor = constant_of(value, 17)
    assert isinstance(tensor, ir.LazyTensor)
    with limited(0):
        assert tensor.numpy().shape == (5_000_000,)


def test_no_constant_of_the_model_is_subject_to_the_limit() -> None:
    assert rl.lower(parse(LSTM), max_bytes=0).graph.node


INFER = """
import re, resource, sys, onnx, rnn_lowering as rl
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
rl.lower(onnx.load(sys.argv[1]))
print(int(re.search(r"VmPeak:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10)
"""


MANY_ROWS = """
main (float[2147483647,3,2] X, float[2,4,2] W, float[2,4,4] R, int32[3] lens) => (float[5,2,3,4] Y) {
    Y = RNN <hidden_size=4, direction="bidirectional"> (X, W, R, , lens)
}
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="limits its memory")
def test_inference_does_not_hold_the_numbers_of_a_range(tmp_path: Path) -> None:
    onnx.save(parse(MANY_ROWS, 13), tmp_path / "in.onnx")
    command = [sys.executable, "-c", INFER, str(tmp_path / "in.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000, "MiB"


# Folding


FOLDED = {
    "ConstantOfShape": "big = ConstantOfShape (n)",
    "Expand": "big = Expand (one, n)",
    "Tile": "big = Tile (one, n)",
    "Range": "big = Range (start, stop, step)",
    "Pad": "big = Pad (one, pads)",
}


def folding_model(text: str) -> ir.Model:
    return ir.from_proto(
        parse(
            f"""main (float[5,2,3] X) => (float[t,d,b,4] Y, int64[1] Z) <
                float[1,16,3] W = {{}}, float[1,16,4] R = {{}}, int64[1] one = {{1}}, int64[1] n = {{{LARGE}}},
                int64 start = {{0}}, int64 stop = {{{LARGE}}}, int64 step = {{1}}, int64[2] pads = {{0, {LARGE}}}
            > {{
                {text}
                Z = ReduceSum (big)
                x = Slice (X, Z, n)
                Y = LSTM <hidden_size=4> (x, W, R)
            }}"""
        )
    )


@pytest.mark.parametrize("text", FOLDED.values(), ids=list(FOLDED))
def test_nothing_large_is_folded(text: str) -> None:
    with peak_below(32 * MIB):
        folding.folded(folding_model(text))


# Verification


def fixed(**dims: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    original = parse(LSTM)
    return original, rl.lower(original, dims=dims)


def test_inputs_of_a_comparison_are_bounded_before_they_are_made() -> None:
    models = fixed(T=2, N=100_000_000)
    with peak_below(32 * MIB):
        check = rl.verify(*models)
    assert check.status == "not verified"
    assert "random inputs would need 7.2 GB, more than the limit of 268.4 MB (max_bytes)" in check.reason
    assert "inputs and outputs would need" in check.reason


def test_inputs_of_a_page_are_bounded_too() -> None:
    original, lowered = fixed(T=2, N=100_000_000)
    (node,) = node_pairs(ir.from_proto(original), ModelSource(Path("lowered.onnx"), lowered))
    with peak_below(32 * MIB), pytest.raises(rl.UnsupportedError, match="more than the limit"):
        node.reference.usual_feed(node.feeds, np.random.default_rng(0), 7)


def test_the_limit_can_be_raised() -> None:
    models = fixed(T=2, N=50)
    assert rl.verify(*models, max_bytes=1000).status == "not verified"
    assert rl.verify(*models, runs=1)


def test_sizes_that_are_open_are_chosen_within_the_limit() -> None:
    original = parse(LSTM)
    check = rl.verify(original, rl.lower(original), max_bytes=3000)
    assert check
    assert check.nodes
    sizes = {tuple(given.shape) for one in check.each_run for given in one.inputs}
    assert max(np.prod(shape) for shape in sizes) * 12 <= 3000


def test_given_inputs_count_for_the_caller_only() -> None:
    models = fixed(T=2, N=50)
    assert rl.verify(*models, max_bytes=1000, feeds=[{"X": np.ones((2, 50, 3), np.float32)}])


def test_a_run_that_needs_too_much_memory_is_no_verdict() -> None:
    if sys.platform != "linux":
        pytest.skip("the system limits no memory")
    text = LSTM.replace("Y)", "Y, float[1] Z)", 1).replace(
        "[node]",
        f"s = Constant <value = int64[1] {{{HUGE}}}> () big = ConstantOfShape (s) Z = ReduceSum (big) [node]",
    )
    original = parse(text)
    check = rl.verify(original, rl.lower(original), runs=1)
    assert check.status == "not verified"
    assert "needs more than 4.3 GB of memory" in check.reason


def test_the_command_stays_small(tmp_path: Path) -> None:
    """Also in the processes that it starts."""
    onnx.save(parse(LSTM), tmp_path / "in.onnx")
    options = ["--set-dim", "T=2", "--set-dim", "N=100000000"]
    command = [
        sys.executable,
        "-m",
        "rnn_lowering",
        str(tmp_path / "in.onnx"),
        str(tmp_path / "out.onnx"),
        *options,
    ]
    # A child begins as large as what starts it.
    measure = """import resource, subprocess, sys
print(subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stdout)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""
    wrapped = [sys.executable, "-c", measure, *command]
    said = subprocess.run(wrapped, check=True, capture_output=True, text=True)
    assert "not verified: random inputs would need" in said.stdout
    assert int(said.stdout.split()[-1]) * 1024 < 1 << 30


@pytest.mark.parametrize(("given", "number"), [("800", 800), ("2K", 2048), ("3M", 3 * MIB), ("1G", 1 << 30)])
def test_a_number_of_bytes(given: str, number: int) -> None:
    assert parser().parse_args(["in.onnx", "out.onnx", "--max-bytes", given]).max_bytes == number


@pytest.mark.parametrize("given", ["", "G", "-1", "1.5G", "1T", "²"])
def test_what_is_no_number_of_bytes(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["in.onnx", "out.onnx", f"--max-bytes={given}"])
    assert "is not a number of bytes" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["max_bytes", "max_nodes"])
def test_a_negative_limit_is_refused(limit: str) -> None:
    options: Any = {limit: -1}
    with pytest.raises(rl.OptionError, match=f"{limit} cannot be -1"):
        rl.lower(parse(LSTM), **options)


# Functions


LOCAL = '<domain: "local", opset_import: ["": 17, "local": 1]>'
MAIN = """main (float[2,1,3] X) => (float[2,1,1,4] Y) <float[1,12,3] W = {}, float[1,12,4] R = {}>
    { Y = local.f0 (X, W, R) }"""


def calls(depth: int, width: int = 2) -> onnx.ModelProto:
    """A model in which each of `depth` functions calls the next `width` times; the last holds a GRU."""
    texts = [MAIN, f"{LOCAL} f{depth} (X, W, R) => (Y) {{ [gru] Y = GRU <hidden_size = 4> (X, W, R) }}"]
    for n in range(depth):
        called = " ".join(f"y{k} = local.f{n + 1} (X, W, R)" for k in range(width))
        joined = ", ".join(f"y{k}" for k in range(width))
        texts.append(f"{LOCAL} f{n} (X, W, R) => (Y) {{ {called} Y = Sum ({joined}) }}")
    return parse(" ".join(texts), domains=', "local": 1')


def test_2_to_the_30th_calls_are_counted_and_not_made() -> None:
    reason = refusal(lambda: rl.lower(calls(30)))
    assert "would make 2,147,483,647 nodes, more than 100,000" in reason
    assert "max_nodes" in reason


def test_the_limit_of_nodes_is_exact() -> None:
    proto = calls(3)  # 8 nodes and 7 sums
    assert "would make 15 nodes" in refusal(lambda: rl.lower(proto, max_nodes=14))
    new = rl.lower(proto, max_nodes=15)
    feed = random_feed(proto)
    assert_close(run(new, feed), run(proto, feed))


@pytest.mark.few(1)
@pytest.mark.parametrize("proto", [calls(9), calls(1, 500)], ids=["nested", "wide"])
def test_inlining_copies_nodes_in_proportion_to_its_result(
    proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []

    def counting(graph: ir.Graph) -> ir.Graph:
        copied.append(sum(1 for _ in graph.all_nodes()))
        return clone_graph(graph)

    monkeypatch.setattr(copying, "clone_graph", counting)
    model = ir.from_proto(proto)
    copying.inline_functions(model, lambda _: True, 100_000)
    result = sum(1 for _ in model.graph.all_nodes())
    assert result > 500
    assert result <= sum(copied) <= 4 * result


def test_overloads_defaults_and_references_mean_what_they_do_to_onnxruntime() -> None:
    """One name with two bodies; an attribute that a call gives, one with a default, and one that is passed on."""
    passed_on = "<hidden_size: int = @hidden_size, linear_before_reset: int = @linear_before_reset> (X, W, R)"
    declared = "<hidden_size, linear_before_reset: int = {}> (X, W, R) => (Y) {{ Y = {} {} }}"
    zero = LOCAL.replace(">", ', overload: "zero">')
    texts = [
        MAIN.replace("local.f0", "local.outer <hidden_size = 4>")
        .replace("4] Y)", "4] Y, float[2,1,1,4] Y0)")
        .replace(" }", " Y0 = local.f0:zero <hidden_size = 4> (X, W, R) }"),
        f"{LOCAL} outer {declared.format(1, 'local.f0', passed_on)}",
        f"{LOCAL} f0 {declared.format(1, 'GRU', passed_on)}",
        f"{zero} f0 {declared.format(0, 'GRU', passed_on)}",
    ]
    proto = parse(" ".join(texts), ir_version=10, domains=', "local": 1')
    plain = [MAIN.replace("local.f0", f"GRU <hidden_size = 4, linear_before_reset = {n}>") for n in (1, 0)]
    feed = random_feed(proto)
    expected = [run(parse(text), feed)["Y"] for text in plain]
    for got, wanted in zip(run(rl.lower(proto), feed).values(), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected[0], expected[1])


# Depth and length


def test_1000_chained_nodes_before_the_weights() -> None:
    chain = " ".join(f"W{n + 1} = Identity (W{n})" for n in range(1000))
    proto = parse(LSTM.replace("W = {}", "W0 = {}").replace("[node]", chain).replace("(X, W,", "(X, W1000,"))
    feed = random_feed(proto, T=3, N=2)
    assert_close(run(rl.lower(proto), feed), run(proto, feed))


def nested(depth: int) -> ir.Model:
    """The LSTM in the branches of so many Ifs, each in that of another."""
    model = ir.from_proto(parse(LSTM))
    go = ir.Value(name="go", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    zero = ir.Value(name="zero", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 1, 1, 4]))
    model.graph.inputs.extend([go, zero])
    (node,) = model.graph
    result = model.graph.outputs.pop()
    model.graph.remove(node)
    for n in range(depth):
        kept = ir.node("Identity", [zero], outputs=[ir.Value(name=f"E{n}")], name=f"kept{n}")
        branches = {
            "then_branch": ir.Graph([], node.outputs, nodes=[node], name=f"then{n}"),
            "else_branch": ir.Graph([], kept.outputs, nodes=[kept], name=f"else{n}"),
        }
        node = ir.node("If", [go], branches, outputs=[ir.Value(name=f"Y{n}")], name=f"if{n}")
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    node.outputs[0].type, node.outputs[0].shape = result.type, result.shape
    return model


def test_nested_branches_are_lowered() -> None:
    proto = ir.to_proto(nested(25))
    new = rl.lower(proto)
    feed = random_feed(proto, T=3, N=1) | {"go": np.array(True)}
    assert_close(run(new, feed), run(proto, feed))


def test_500_nested_branches_are_lowered_or_refused() -> None:
    with suppress(rl.UnsupportedError):
        rl.lower(nested(500))


def test_a_file_of_500_nested_branches_is_refused(tmp_path: Path) -> None:
    """protobuf reads none that is deeper than 33 of them."""

    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + data

    graph = parse(LSTM).graph.SerializeToString()
    for _ in range(500):
        graph = field(1, field(1, b"go") + field(2, b"Y") + field(4, b"If") + field(5, field(6, graph)))
    (tmp_path / "in.onnx").write_bytes(b"\x08\x08" + field(8, field(1, b"")) + field(7, graph))
    with pytest.raises(rl.ModelFileError):
        rl.inspect(tmp_path / "in.onnx")
