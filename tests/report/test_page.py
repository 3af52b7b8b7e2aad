"""The HTML page about a lowering: what it holds, that it needs nothing else, and what a browser shows."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from browsers import headless
from cases import Case, model
from chains import Link, chain
from commands import Command
from one_process import run_workers_here
from paths import EXAMPLES
from running import nodes, run
from texts import parse

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.compare.node_pairs import node_pairs
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.recurrence import cells
from rnn_lowering.report import page
from rnn_lowering.report.plots import plot_errors
from rnn_lowering.report.step import step_graph
from rnn_lowering.targets.calls import CALLS

pytestmark = pytest.mark.usefixtures("workers_here")
RAGGED = Case("page", "LSTM", {"direction": "bidirectional"}, x="symbolic", H=3, optional=("sequence_lens",))
HOSTILE = '<img src="http://x.test/" onerror=alert(1)></style>&amp;"$x_1$'
VOID = ("meta", "img", "br", "link", "input", "hr")


class Page(HTMLParser):
    """What a page consists of; its tags must match.

    Attributes:
        tags: How often each tag occurs.
        attributes: Name and value of every attribute.
        rows: The texts of the cells of every table row.
        codes: The texts of every block of code.
        boxes: The texts in pictures.
        text: All text.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.codes: list[str] = []
        self.boxes: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "pre":
            self.codes.append("")
        if tag == "text":
            self.boxes.append("")

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "svg" not in self._open or "title" not in self._open:  # else it shows while the mouse is there
            self.text += data
        if "pre" in self._open:
            self.codes[-1] += data
        if "text" in self._open:
            self.boxes[-1] += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] = " ".join([*self.rows[-1][-1].split(), *data.split()])

    @property
    def plots(self) -> int:
        """How many pictures there are beside the two of the graph."""
        return sum(map(self.values("class").count, ("plot", "step")))

    def row(self, first: str) -> list[str]:
        """The first row of a table that starts so."""
        return next(row for row in self.rows if row[0] == first)

    def values(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        run_workers_here(patch)
        patch.setenv("SOURCE_DATE_EPOCH", "1234567890")
        yield


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page about a bidirectional LSTM with sequence_lens."""
    return written(tmp_path_factory.mktemp("ragged"), model(RAGGED, 17))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at no single node: the page has no plots of them."""
    monkeypatch.setattr(page, "MOST_NODES", 0)


@pytest.fixture
def wrong_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """An RNN without its activation."""

    def rnn(op: Any, k: Any, state: Any, x: Any) -> Any:
        return [state[0] @ k.R[0] + x[0]]

    monkeypatch.setitem(cells.STEPS, "RNN", rnn)


def written(folder: Path, proto: onnx.ModelProto, **options: Any) -> Path:
    """Lower a model file and return the path of its page."""
    onnx.save(proto, folder / "in.onnx")
    rl.lower_file(folder / "in.onnx", folder / "out.onnx", report=folder / "page.html", **options)
    return folder / "page.html"


def test_the_page_needs_nothing_else(ragged: Path) -> None:
    parsed = Page(ragged)
    links = [link for name in ("src", "href", "xlink:href", "srcset", "action") for link in parsed.values(name)]
    assert links
    assert all(link.startswith("#") for link in links)
    assert not parsed.tags.keys() & {"script", "link", "img", "image", "iframe", "object", "embed"}
    assert not re.search(r"@import|@font-face|url\((?!#)", ragged.read_text(encoding="utf-8"))


def test_the_tables(ragged: Path) -> None:
    parsed, folder = Page(ragged), ragged.parent
    assert re.search(r"Verified\s+3 runs \(onnxruntime\), largest difference", parsed.text)
    assert "1 of 1 node proven for every length and input, up to rounding" in parsed.text
    assert re.search(r"Proofs\s+LSTM node .*: proven", parsed.text)
    node = ["LSTM-14", "bidirectional", "?", "?", "2", "3", "float", "scan first choice for target portable"]
    assert parsed.row("recurrent main graph")[1:] == node
    assert parsed.row("LSTM")[1:] == ["1", "0"]
    assert parsed.row("Scan")[1:] == ["0", "1"]  # both directions share it
    counts = [len(list(nodes(onnx.load(folder / name)))) for name in ("in.onnx", "out.onnx")]
    assert parsed.row("All")[1:] == [str(count) for count in counts]
    for name in ("in.onnx", "out.onnx"):
        assert parsed.row(name)[2] == str((folder / name).stat().st_size)
    for output in ("Y", "Y_h", "Y_c"):
        assert parsed.row(output)[2] == "passed"
        assert float(parsed.row(output)[1]) < 1e-6


def test_how_it_was_made_and_how_it_is_run(ragged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Page(ragged)
    assert "2009-02-13 23:31 UTC, for portable\n" in parsed.text
    assert re.search(r"Opset\s*17\s", parsed.text)
    assert parsed.row("input X")[1:] == ["seq, batch, 2", "float32"]
    assert parsed.row("input sequence_lens")[1:] == ["batch", "int32"]
    assert parsed.row("output Y")[1:] == ["seq, 2, batch, 3", "float32"]
    assert parsed.row("output Y_h")[1:] == ["2, batch, 3", "float32"]
    monkeypatch.chdir(ragged.parent)
    held: dict[str, Any] = {}
    exec(code_of(parsed, "import numpy as np\nimport onnxruntime"), held)
    assert [output.shape for output in held["outputs"]] == [(1, 2, 1, 3), (2, 1, 3), (2, 1, 3)]


def code_of(parsed: Page, start: str) -> str:
    (text,) = [text for text in parsed.codes if text.startswith(start)]
    return text


def test_how_a_stream_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(chain(Link("LSTM", "stepped")), tmp_path / "in.onnx")
    monkeypatch.chdir(tmp_path)
    given = ["in.onnx", "out of 1.onnx", "--stream", "seq=1", "--report", "page.html", "-q"]
    assert main([*given, "--target", "tract"]) == 0
    parsed = Page(tmp_path / "page.html")
    assert f"for tract, by rnn-lower in.onnx 'out of 1.onnx' {' '.join(given[2:])} --target tract\n" in parsed.text
    assert code_of(parsed, "import numpy as np\nimport tract")
    assert "A report of a stream has no plots of single nodes" in parsed.text
    assert not [code for code in parsed.codes if "onnxruntime" in code or "rnn_lowering" in code]
    assert main([*given, "--target", "webnn", "--set-dim", "batch=1", "--force"]) == 0
    where = "is in docs/runtimes.md#onnxruntime-web-on-webnn of the repository, and in docs/streaming.md of the"
    assert f"The code for webnn, and for streams, {where} repository." in Page(tmp_path / "page.html").text
    assert main([*given, "--force"]) == 0
    parsed = Page(tmp_path / "page.html")
    held: dict[str, Any] = {}
    exec(code_of(parsed, "import numpy as np, rnn_lowering"), held)
    assert held["outputs"]["out"].shape == (1, 1, 4)
    assert held["stream"].states == {}
    host = code_of(parsed, "states = {\n").splitlines()
    assert '    "past_stepped_h": zeros [1, batch, 4],' in host
    assert "for each chunk of 1 frame (axis 0 of X):" in host


def test_how_a_late_stream_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the page returns every frame."""
    proto = parse(
        """g (float[1, 3, time] X) => (float[1, 3, time] Y) <float[3, 3, 5] W = {}> {
        Y = Conv <kernel_shape = [5], pads = [2, 2]> (X, W) }"""
    )
    onnx.save(proto, tmp_path / "in.onnx")
    monkeypatch.chdir(tmp_path)
    assert main(["in.onnx", "out.onnx", "--stream", "time", "--delay", "--report", "page.html", "-q"]) == 0
    held: dict[str, Any] = {}
    code = code_of(Page(tmp_path / "page.html"), "import numpy as np, rnn_lowering")
    exec(code.replace("np.zeros([1, 3, 1]", "np.ones([1, 3, 9]"), held)
    expected = run(proto, {"X": np.ones((1, 3, 9), np.float32)})["Y"]
    got = np.concatenate([held["outputs"]["Y"], held["last"]["Y"]], 2)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("target", [name for name in CALLS if name != "onnxruntime"])
def test_the_code_of_a_target(tmp_path: Path, target: str) -> None:
    """It is Python, has the names of the model, and what to install."""
    shapes = None if target in ("tract", "openvino") else {"X": [6, 1, 80]}
    onnx.save(onnx.load(EXAMPLES / "model.onnx"), tmp_path / "in.onnx")
    page = tmp_path / "page.html"
    options: Any = {"target": target, "input_shapes": shapes, "verify": 0, "report": page}
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "it's.onnx", **options)
    parsed = Page(page)
    (code,) = [code for code in parsed.codes if code.startswith("import numpy as np\n")]
    compile(code, "page", "exec")
    assert "\noutputs = run({\n    'X': np.zeros([" in code
    assert "To install what the tests ran: pip install" in parsed.text
    assert any("it's.onnx" in text.replace("'\"'\"'", "'") for text in parsed.codes)


STREAMS = {
    "late": ("time", "Y = Conv <kernel_shape = [5], pads = [2, 2]> (X, W)", 12),
    "of a size": ("time=4", "Y = Conv <kernel_shape = [5], pads = [2, 2]> (X, W)", 12),
    "of half the frames": ("time=4", "Y = Conv <kernel_shape = [5], pads = [2, 2], strides = [2]> (X, W)", 12),
    "of two delays": (
        "time=2",
        "Y = Conv <kernel_shape = [5], pads = [2, 2]> (X, W) Z = Conv <kernel_shape = [5], pads = [4, 0]> (X, W)",
        8,
    ),
    "a first state": ("time=2", "O = Cos (X) Y = Conv <kernel_shape = [5], pads = [4, 0]> (O, W)", 8),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", STREAMS)
def test_the_chunks_of_a_target(tmp_path: Path, name: str) -> None:
    """The loop of the page gives what the original gives: its function `run` is onnxruntime here."""
    stream, text, length = STREAMS[name]
    others = ", float[1, 3, n] Z" if " Z =" in text else ""
    proto = parse(f"g (float[1, 3, time] X) => (float[1, 3, m] Y{others}) <float[3, 3, 5] W = {{}}> {{ {text} }}")
    page = written(tmp_path, proto, target="tract", stream=stream, delay=True)
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    X = np.random.default_rng(0).standard_normal((1, 3, length)).astype(np.float32)
    cuts = [X[..., n : n + 4] for n in range(0, length, 4)] if stream != "time=2" else np.split(X, length // 2, 2)
    _, loop = code_of(Page(page), "import numpy as np\nimport tract").split("\nchunks = [")
    _, loop = loop.split("\n}]\n")
    held: dict[str, Any] = {"np": np, "chunks": [{"X": cut} for cut in cuts]}
    held["run"] = lambda feed: session.run(None, feed)
    exec(loop, held)
    expected = run(proto, {"X": X})
    assert held["outputs"].keys() == expected.keys()
    for output, array in expected.items():
        np.testing.assert_allclose(held["outputs"][output], array, rtol=1e-4, atol=1e-5)


def test_every_picture_has_a_text(ragged: Path) -> None:
    parsed = Page(ragged)
    assert parsed.plots == 3
    titles = ("Absolute error of Y", "Signals of Y", "One step")
    labels = [label for label in parsed.values("aria-label") if label.startswith(titles)]
    assert len(labels) == 3
    assert all("recurrent" in label for label in labels)
    assert "beyond a sequence's length are left out" in parsed.text
    assert "not written" not in parsed.text


def test_the_runs_of_a_node(ragged: Path) -> None:
    parsed = Page(ragged)
    assert "Run on one random input, batch 3: 48 steps." in parsed.text
    errors = [row for row in parsed.rows if row[0] in ("Y", "Y_h", "Y_c") and len(row) == 3 and row[2] != "passed"]
    assert [row[0] for row in errors] == ["Y", "Y_h", "Y_c"]
    assert all(0 < float(error) < 1e-6 for row in errors for error in row[1:])


def test_equal_lowerings_have_equal_pages(tmp_path: Path, ragged: Path) -> None:
    assert written(tmp_path, model(RAGGED, 17)).read_bytes() == ragged.read_bytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_a_hostile_name(tmp_path: Path, form: str) -> None:
    parsed = Page(written(tmp_path, chain(Link("GRU", HOSTILE), dims=(3, 2)), to=form))
    assert parsed.tags["img"] == 0
    assert parsed.plots == 3
    assert parsed.tags["style"] == 1
    assert parsed.row(f"{HOSTILE} main graph")[1] == "GRU-14"
    assert parsed.text.count(HOSTILE) == 3  # the node, its plots, its proof
    assert sum(HOSTILE in label for label in parsed.values("aria-label")) == 3


@pytest.mark.usefixtures("no_plots")
def test_warnings_and_what_was_left(tmp_path: Path) -> None:
    proto = chain(Link("RNN", "/decoder/rnn", {"activations": ["Affine"]}), Link("GRU", "kept"))
    with pytest.warns(rl.RnnLoweringWarning, match="Affine"):
        target = written(tmp_path, proto, only=["RNN"], verify=0)
    parsed = Page(target)
    assert "Left as it is: GRU node 'kept' in main graph: not selected." in parsed.text
    assert any("Warning: RNN node '/decoder/rnn'" in cell for row in parsed.rows for cell in row)
    assert "Not compared" in parsed.text


@pytest.mark.usefixtures("wrong_cell")
def test_a_failed_verification(tmp_path: Path) -> None:
    proto = chain(Link("GRU", "good"), Link("RNN", "bad"))
    with pytest.raises(rl.VerificationError):
        written(tmp_path, proto)
    assert not (tmp_path / "out.onnx").exists()
    parsed = Page(tmp_path / "page.html")
    assert re.search(r"Failed\s+3 runs", parsed.text)
    assert "first in RNN node 'bad'" in parsed.text
    assert "in.onnx \N{RIGHTWARDS ARROW} not written" in parsed.text
    assert parsed.text.count("out.onnx") == parsed.text.count("out.onnx is not written.") == 1
    assert "the states stay" not in parsed.text
    assert "How to run it" not in parsed.text
    assert parsed.codes == []
    assert parsed.row("out")[2].startswith("failed")
    good, bad = (row for row in parsed.rows if row[0] == "Y")
    assert float(good[2]) < 1e-6 < float(bad[2])
    assert parsed.plots == 6


def test_a_node_that_onnxruntime_does_not_run(tmp_path: Path) -> None:
    case = Case("page_layout", "GRU", {"layout": 1}, outputs=("Y_h",), dtype="float16")
    parsed = Page(written(tmp_path, model(case, 17)))
    assert "each node against float64 NumPy" in parsed.text
    assert "its final states, since the output of all steps is not connected" in parsed.text
    assert "No result, original in onnxruntime: GRU node 'recurrent'" in parsed.text
    assert "Colored: the operator specification in float64." in parsed.text
    assert parsed.plots == 3


def test_an_output_without_numbers_is_not_plotted(tmp_path: Path) -> None:
    parsed = Page(written(tmp_path, model(Case("page_empty", "GRU", {"layout": 1}, T=0, outputs=("Y",)), 17)))
    assert "0 steps" in parsed.text
    assert parsed.plots == 1  # the step


def test_a_node_that_cannot_run_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_lowering.compare.node_models.LoweredFile.part", lambda *_: None)
    case = Case("page_without_pictures", "GRU")
    parsed = Page(written(tmp_path, model(case, 17)))
    assert parsed.plots == 0
    assert "Verified" in parsed.text
    assert "No plots" in parsed.text or "This node cannot be run on its own." in parsed.text


@pytest.mark.few(1)
@pytest.mark.parametrize("attributes", [{}, {"direction": "bidirectional", "clip": 0.5}], ids=["size", "more"])
def test_a_node_whose_attributes_refer_to_those_of_its_function(tmp_path: Path, attributes: dict[str, Any]) -> None:
    proto = model(Case("page_function", "GRU", attributes, scope="function"), 17)
    references = {a.name for node in nodes(proto) for a in node.attribute if a.ref_attr_name}
    assert references == {"hidden_size", *attributes}
    parsed = Page(written(tmp_path, proto))
    assert parsed.plots == 3
    assert "Verified" in parsed.text
    assert "No plots" not in parsed.text


def test_a_function_that_is_called_twice(tmp_path: Path) -> None:
    """Each call has sizes of its own; a function that is left does not hide the other's nodes."""
    cell = """<domain: "my", opset_import: ["": 17]>
        {} <hidden_size> (X, W, R) => (Y) {{ Y = {} <hidden_size: int = @hidden_size> (X, W, R) }}"""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "my": 1]>
        g (float[seq,2,3] X, float[1,4,3] W, float[1,4,4] R, float[1,5,3] W5, float[1,5,5] R5,
           float[1,6,3] W2, float[1,6,2] R2) => (float[seq,1,2,4] Y, float[seq,1,2,5] Y5, float[seq,1,2,2] Y2)
        {
            Y = my.rnn <hidden_size = 4> (X, W, R)
            Y5 = my.rnn <hidden_size = 5> (X, W5, R5)
            Y2 = my.gru <hidden_size = 2> (X, W2, R2)
        }"""
        + cell.format("rnn", "RNN")
        + cell.format("gru", "GRU")
    )
    parsed = Page(written(tmp_path, proto, only=["RNN"], verify=1))
    assert [row[6] for row in parsed.rows if row[1:2] == ["RNN-14"]] == ["4", "5"]
    assert parsed.plots == 6
    assert len([row for row in parsed.rows if row[0] == "Y" and len(row) == 3 and row[2] != "passed"]) == 2


def test_constant_lengths_beyond_the_steps_of_a_picture(tmp_path: Path) -> None:
    proto = parse(
        """g (float[seq,2,3] X) => (float[seq,1,2,4] Y)
        <float[1,4,3] W = {}, float[1,4,4] R = {}, int32[2] lengths = {60, 2}>
        { Y, H = RNN <hidden_size = 4, direction = "reverse"> (X, W, R, , lengths) }"""
    )
    assert "60 steps" in Page(written(tmp_path, proto)).text


@pytest.mark.exhaustive
def test_the_number_of_nodes_with_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three = chain(*(Link("RNN", f"rnn{n}") for n in range(3)))
    assert set(Counter(Page(written(tmp_path, three, verify=0)).values("id")).values()) == {1}
    monkeypatch.setattr(page, "MOST_NODES", 1)
    parsed = Page(written(tmp_path, three, verify=0, overwrite=True))
    assert parsed.plots == 3
    assert "2 more nodes have no plots." in parsed.text
    assert [parsed.row(f"rnn{n} main graph")[1] for n in range(3)] == ["RNN-14"] * 3


def test_nothing_to_lower(tmp_path: Path) -> None:
    parsed = Page(written(tmp_path, chain()))
    assert "There was nothing to lower." in parsed.text
    assert "Unchanged" in parsed.text
    assert "nothing was lowered: the result is the original" in parsed.text
    assert parsed.plots == 0


def test_errors_without_a_logarithm() -> None:
    assert "<svg" in plot_errors({"zero": np.zeros(3)}, "time step", "salt")
    assert "<svg" in plot_errors({"far": np.array([0.0, np.inf, 1e-3]), "lowered": np.full(3, np.inf)}, "t", "salt")


# The drawing of the graph


def graphs(path: Path) -> list[Page]:
    """The pictures of the graph in a page, before and after."""
    pictures = re.findall(r'<svg class="graph".*?</svg>', path.read_text(encoding="utf-8"), re.DOTALL)
    pages = []
    for n, text in enumerate(pictures):
        (path.parent / f"{n}.svg").write_text(text, encoding="utf-8")
        pages.append(Page(path.parent / f"{n}.svg"))
    return pages


@pytest.mark.usefixtures("no_plots")
def test_the_graph_before_and_after(tmp_path: Path) -> None:
    """What changed with its neighbors, and the body of a Scan as a box within."""
    proto = parse(
        """g (float[seq,2,3] X) => (float[seq,1,2,4] Z, float[seq,2,3] A)
        <float[1,4,3] W = {}, float[1,4,4] R = {}> {
        A = Abs (X) B = Neg (A) C = Sin (B) Y, H = RNN <hidden_size = 4> (C, W, R) D = Cos (Y) Z = Exp (D) }"""
    )
    before, after = graphs(written(tmp_path, proto, verify=0))
    assert sorted(before.boxes) == ["Cos", "RNN", "Sin"]
    assert {"Cos", "Sin", "Scan", "Tanh"} <= {*after.boxes}
    assert not {"Abs", "Neg", "Exp", "RNN"} & {*after.boxes}
    assert after.values("class").count("neighbor") == before.values("class").count("neighbor") == 2


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.few(1)
def test_the_size_of_the_graph(tmp_path: Path, form: str) -> None:
    """Of hundreds of nodes, a few dozen are drawn."""
    many = chain(*(Link("GRU", f"gru{n}") for n in range(40)), dims=(6, 2))
    before, after = graphs(written(tmp_path, many, verify=0, to=form))
    for picture in (before, after):
        assert 20 < len(picture.boxes) < 120
        assert any(re.match("… [0-9,]+ more", text) for text in picture.boxes)
        assert float(picture.values("width")[0]) < 2000
        assert float(picture.values("height")[0]) < 6000


@pytest.mark.usefixtures("no_plots")
def test_the_graph_of_nodes_in_no_order(tmp_path: Path) -> None:
    """What is left out stands for nodes before and behind those that are drawn."""
    steps = [f"Y{n}, H{n + 1} = RNN <hidden_size = 4> (X, W, R, , , H{n})" for n in range(30)]
    proto = parse(
        f"""g (float[seq,2,3] X, float[1,2,4] H0) => (float[1,2,4] H30)
        <float[1,4,3] W = {{}}, float[1,4,4] R = {{}}> {{ {" ".join(steps)} }}"""
    )
    listed = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(listed[::2] + listed[1::2])
    before, _ = graphs(written(tmp_path, proto, verify=0))
    assert any(re.match("… [0-9,]+ more", text) for text in before.boxes)


@pytest.mark.usefixtures("no_plots")
def test_a_changed_branch(tmp_path: Path) -> None:
    """Of a branch that stays, only what changed in it."""
    case = Case("page_branch", "GRU", scope="if")
    before, after = graphs(written(tmp_path, model(case, 17), verify=0))
    assert {"If", "GRU"} <= {*before.boxes}
    assert {"If", "Scan"} <= {*after.boxes}


# The drawing of a step


def labels(op_type: str, form: Any, kinds: Sequence[str] = ("value", "port"), **fields: Any) -> Counter[str]:
    """The labels in the drawing of one step."""
    original = model(Case("page_step", op_type, **fields), 17)
    lowered = rl.lower(original, form)
    (node,) = node_pairs(ir.from_proto(original), ModelSource(Path("lowered.onnx"), lowered))
    assert node.cut is not None
    graph = step_graph(node.cut.graph, {name: symbol for symbol, name in node.feeds.items()})
    return Counter(data["label"] for _, data in graph.nodes(data=True) if data["kind"] in kinds)


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize(
    ("op_type", "symbols"),
    [
        ("RNN", ["Hₜ₋₁", "XWₜ", "Hₜ"]),
        ("GRU", ["Hₜ₋₁", "XWₜ", "zₜ", "rₜ", "hₜ", "Hₜ"]),
        ("LSTM", ["Hₜ₋₁", "Cₜ₋₁", "XWₜ", "iₜ", "oₜ", "fₜ", "cₜ", "Cₜ", "Hₜ"]),
    ],
)
@pytest.mark.parametrize("optional", [("B",), ("B", "sequence_lens", "initial_h", "initial_c", "P")])
def test_the_symbols_of_a_step(op_type: str, form: str, symbols: list[str], optional: tuple[str, ...]) -> None:
    found = labels(op_type, form, optional=optional, T=5)
    assert found.keys() >= {*symbols}
    assert found.keys() <= {*symbols, "i", "Yₜ"}


def test_the_operators_of_a_step() -> None:
    found = labels("LSTM", "unroll", ["operator"], T=5)
    assert found == {"MatMul R": 1, "Add": 2, "Split": 2, "Sigmoid": 1, "Tanh": 2, "Mul": 3}


# The command and the libraries


@pytest.mark.parametrize("library", ["jinja2", "matplotlib", "networkx"])
def test_a_missing_library(
    rnn_lower: Command, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(chain(Link("RNN", "rnn")), tmp_path / "in.onnx")
    monkeypatch.setitem(sys.modules, library, None)
    for name in list(sys.modules):
        if name.startswith((f"{library}.", "rnn_lowering.report.")):
            monkeypatch.delitem(sys.modules, name)
    outcome = rnn_lower(tmp_path / "in.onnx", tmp_path / "out.onnx", "--report", tmp_path / "done.html")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert "; pip install jinja2 matplotlib networkx" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_the_libraries_are_imported_for_a_page_only(tmp_path: Path) -> None:
    onnx.save(chain(Link("RNN", "rnn")), tmp_path / "in.onnx")
    code = """import sys
from rnn_lowering.libraries import load_late
load_late()
from rnn_lowering.cli.command import main
assert main(["in.onnx", "out.onnx", "--report", "done.json", "--quiet", "--verify", "1"]) == 0
print(*sorted({"jinja2", "matplotlib", "networkx"} & sys.modules.keys()))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() == []


# In a browser


@pytest.fixture
def browser(tmp_path: Path) -> list[str]:
    return headless(tmp_path / "profile")


@pytest.mark.exhaustive
@pytest.mark.browser
def test_the_console_is_read(browser: list[str], tmp_path: Path) -> None:
    """The tests below would notice an error."""
    wrong = tmp_path / "wrong.html"
    wrong.write_text("<script>throw new Error('noticed')</script>")
    command = [*browser, "--dump-dom", wrong.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" in done.stderr
    assert "noticed" in done.stderr


@pytest.mark.browser
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--window-size=1280,2000"], id="desktop"),
        pytest.param(["--window-size=400,2000"], id="phone", marks=pytest.mark.exhaustive),
        pytest.param(["--blink-settings=preferredColorScheme=0"], id="dark", marks=pytest.mark.exhaustive),
    ],
)
def test_in_a_browser(ragged: Path, browser: list[str], tmp_path: Path, options: list[str]) -> None:
    picture = tmp_path / "page.png"
    command = [*browser, *options, f"--screenshot={picture}", "--dump-dom", ragged.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 20_000
    assert done.stdout.count("<svg") == done.stdout.count("</svg>") == 5


@pytest.mark.browser
@pytest.mark.usefixtures("no_plots")
def test_a_wide_drawing_is_seen_whole(browser: list[str], tmp_path: Path) -> None:
    both = {"direction": "bidirectional"}
    page = written(
        tmp_path, chain(*(Link("LSTM", f"/encoder/{n}", both) for n in "ab")), verify=0, target="openvino"
    )
    assert float(graphs(page)[1].values("width")[0]) > 600
    fits = "[...document.querySelectorAll('.graphs .across')].map(pane => pane.scrollWidth <= pane.clientWidth)"
    text = page.read_text(encoding="utf-8").replace("http-equiv", "x-equiv")  # the page itself runs no script
    page.write_text(f"{text}<script>document.title = {fits}</script>", encoding="utf-8")
    command = [*browser, "--window-size=1280,2000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "<title>true,true</title>" in done.stdout
