"""The documents: their commands run, their messages are those that appear, their links lead somewhere."""

import ast
import email
import json
import re
import runpy
import shlex
import shutil
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from cases import Case, model
from one_process import run_workers_here
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from paths import EXAMPLES, MODELS, PACKAGE, ROOT
from running import TOLERANCES, recurrent_left

import rnn_lowering as rl
from rnn_lowering.cli.command import main, parser

DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="only in a checkout are there documents")


@dataclass(frozen=True)
class Trouble:
    """A message, what its section tells, and the commands in it."""

    message: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        lines = [line.strip() for line in self.text.splitlines() if line.startswith("    rnn-lower")]
        return [shlex.split(line)[1:] for line in lines]

    @property
    def cause(self) -> list[str]:
        """The command of ours that gives the message; none where it is another's."""
        found = re.search(r"From `rnn-lower ([^`]*)`", self.text)
        return shlex.split(found[1]) if found else []


def troubles() -> list[Trouble]:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8") if DOCS.exists() else ""
    sections = re.split(r"^##? (.*)$", text, flags=re.MULTILINE)[1:]
    pairs = zip(sections[::2], sections[1::2], strict=True)
    return [Trouble(title.strip("`"), text) for title, text in pairs if title.startswith("`")]


SILERO = MODELS / "github" / "snakers4__silero-vad" / "silero_vad_v6_op16.onnx"
BOTH = Case("trouble", "LSTM", {"direction": "bidirectional"}, T=16, N=1, I=80, H=3, outputs=("Y",), x="symbolic")
GRU = replace(BOTH, op_type="GRU", attributes={"direction": "bidirectional", "linear_before_reset": 1})
SUBJECTS = {
    "Non constant seq_len": replace(BOTH, optional=("B", "sequence_lens")),
    "Clashing resolution": replace(BOTH, attributes={}, N=2),
    "non-zero h_state": replace(BOTH, attributes={}),
    "Batchwise": replace(BOTH, attributes={"layout": 1}),
    "GRU": GRU,
}
"""A part of the message -> the model that it is about; another one gets an LSTM in both directions."""


def case_of(message: str) -> Case:
    return next((case for part, case in SUBJECTS.items() if part in message), BOTH)


def exit_code(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:  # wrong usage
        return int(end.code or 0)


@pytest.mark.few(2)
@pytest.mark.parametrize("trouble", troubles(), ids=lambda trouble: trouble.message[:40])
def test_a_command_mends_each_message(
    trouble: Trouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    onnx.save(model(case_of(trouble.message), 17), "model.onnx")
    if trouble.cause:
        assert exit_code(trouble.cause) != 0
        assert trouble.message in capsys.readouterr().err
    (command,) = trouble.commands
    assert main(command) == 0
    assert "verified" in capsys.readouterr().out
    assert recurrent_left(onnx.load(command[1])) == []


@pytest.mark.exhaustive
@pytest.mark.skipif(not SILERO.exists(), reason=f"{SILERO.name} is not there")
@pytest.mark.usefixtures("quiet")
def test_the_if_of_silero_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command of the page, for a runtime that has no If."""
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(SILERO, "silero_vad.onnx")
    (line,) = re.findall(r"^    (rnn-lower silero_vad.*)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert main(shlex.split(line)[1:]) == 0
    assert not {"If", "Loop", "Scan", "LSTM"} & {node.op_type for node in onnx.load("rknn_vad.onnx").graph.node}


def test_there_are_many_messages_of_others() -> None:
    assert sum(not trouble.cause for trouble in troubles()) >= 12


def test_the_message_of_onnxruntime() -> None:
    (trouble,) = (trouble for trouble in troubles() if "Batchwise" in trouble.message)
    text = model(case_of(trouble.message), 17).SerializeToString()
    with pytest.raises(Fail, match=re.escape(trouble.message)):
        ort.InferenceSession(text, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if ":" in target:
            continue
        path = (document.parent / target) if target else document
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def anchors(path: Path) -> set[str]:
    """The anchors that a Markdown page has, one for each heading."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


ERROR_PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown size": ("getting-started.md#sizes-and-inputs", {"to": "unroll"}),
    "a limit": (
        "getting-started.md#which-form-do-i-need",
        {"to": "unroll", "dims": {"seq": 9}, "max_unroll": 8},
    ),
    "a stream": ("streaming-reference.md#my-net-is-refused-because", {"stream": "X:2"}),
    "an axis that does not exist": ("", {"stream": "batch"}),
    "a target that does not exist": ("", {"target": "abacus"}),
    "a wrong node": ("", {"only": "LSTM"}),
}


@pytest.mark.parametrize("name", ERROR_PAGES)
def test_an_error_names_a_section_that_bears_on_it(name: str) -> None:
    page, options = ERROR_PAGES[name]
    given = onnx.load(EXAMPLES / "model.onnx")
    if name == "a wrong node":
        given = model(Case("wrong", "LSTM", {"clip": -1.0}), 17)
    with pytest.raises(rl.RnnLoweringError) as refused:
        rl.lower(given, **options)
    assert refused.value.page == page


def test_every_section_that_an_error_can_name_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    pages = {page for text in texts for page in re.findall(r'"([a-z-]+\.md(?:#[^\s"]+)?)"', text)}
    assert {page for page, _ in ERROR_PAGES.values()} - {""} < pages
    for page, _, section in (text.partition("#") for text in pages):
        assert not section or section in anchors(DOCS / page), page


def test_the_command_names_the_address_of_the_section_if_the_package_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(EXAMPLES / "model.onnx"), str(tmp_path / "out.onnx"), "--to", "unroll"]
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    known = email.message_from_string(str(metadata.metadata("rnn-lowering")))
    kept = [url for url in known.get_all("Project-URL", []) if not url.startswith("Documentation")]
    del known["Project-URL"]
    for url in kept:
        known["Project-URL"] = url
    monkeypatch.setattr(metadata, "metadata", lambda _: known)
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("or use --to scan or --to loop")
    known["Project-URL"] = "Documentation, https://example.org/rnn/"
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" (see https://example.org/rnn/getting-started/#sizes-and-inputs)")
    assert main([*command, "--set-dim", "frames=1"]) == 1
    assert "(see" not in capsys.readouterr().err


def test_every_document_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert {path.name for path in DOCS.glob("*.md")} - set(re.findall(r"\]\(([\w.-]+)\)", index)) == {"index.md"}


def test_each_table_of_the_pages_is_made() -> None:
    """Of what was measured; a page says where the site has it."""
    tables = runpy.run_path(str(DOCS / "tables.py"))
    pages = [page.read_text(encoding="utf-8") for page in DOCUMENTS]
    named = [comment[1] for page in pages for comment in tables["COMMENT"].finditer(page)]
    assert sorted(named) == sorted(tables["TABLES"])
    for name, make in tables["TABLES"].items():
        assert len(re.findall(r"^\| \S", make(), re.MULTILINE)) > 3, name
    for page in pages:
        assert tables["anew"](page) == page, "python docs/tables.py --write"
    rows = re.findall(r"^\| `(\S+)` \|", tables["by_a_list"](), re.MULTILINE)
    assert rows == [name for name, target in rl.TARGETS.items() if target.documented]


def test_the_readme_shows_what_was_measured() -> None:
    """Six runtimes: how many models are right and wrong as exported, and right lowered."""
    stored = json.loads((ROOT / "tests" / "clients" / "outcomes.json").read_text(encoding="utf-8"))
    rows = re.findall(
        r"^\| (.*?) \| (\d+)(?:, and (\d+) wrong.*?)? \| (\d+) \|$", page_text("README"), re.MULTILINE
    )
    shown = {name.lower(): numbers for names, *numbers in rows for name in names.split(", ")}
    assert len(shown) == 6
    for name, (right, wrong, lowered) in shown.items():
        before, after = stored[name]["native"].values(), stored[name]["lowered"].values()
        assert [right, wrong or "0"] == [str([*before].count(kind)) for kind in ("right", "wrong")]
        assert int(lowered) == len(after)
        assert {*after} == {"right"}


def test_the_readme_counts_the_exports_that_run() -> None:
    """Of each runtime that it names; the others of those are refused, and none is wrong."""
    path = ROOT / "tests" / "clients" / "outcomes_of_journeys.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    words = r"Of (\d+) exports.*?MNN\s+and\s+TVM\s+run all,\s+LiteRT\s+(\d+)\s+and\s+ncnn\s+(\d+)"
    told = re.search(words, page_text("README"), re.DOTALL)
    assert told
    every, *others = map(int, told.groups())
    right = dict.fromkeys(("tract", "openvino", "opencv", "mnn", "tvm"), every)
    right |= zip(("litert", "ncnn"), others, strict=True)
    for name, count in right.items():
        outcomes = [*stored[name]["outcomes"].values()]
        assert (outcomes.count("right"), outcomes.count("refused")) == (count, every - count), name


def page_text(page: str) -> str:
    (path,) = (path for path in DOCUMENTS if path.stem == page)
    return path.read_text(encoding="utf-8")


def test_the_architecture_names_each_room() -> None:
    """Each folder and each module at the top, in at most 2,000 words."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert {name for name in folders | modules if f"`{name}`" not in text} == set()
    assert len(text.split()) <= 2000


def test_files_that_documents_name_exist() -> None:
    pages = [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"]
    named = re.findall(r"`(\w[\w/]+\.(?:py|md))`", " ".join(page.read_text(encoding="utf-8") for page in pages))
    assert len(named) > 30
    for name in named:
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_are_of_this_command_line(document: Path) -> None:
    """Each line of `rnn-lower` in a document has options that exist."""
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("    rnn-lower "):
            parser().parse_args(shlex.split(line.strip(), comments=True)[1:])


def test_the_page_of_the_tests_names_each_of_them() -> None:
    """By its file, or by its folder."""
    tests = ROOT / "tests"
    page = (tests / "README.md").read_text(encoding="utf-8").partition("| test | guarantee |")[2]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    named: set[Path] = set()
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row)
        patterns = [f"{first}test_*.py" if first.endswith("/") else first]
        patterns += [str(Path(first).with_name(other)) for other in others]
        for pattern in patterns:
            found = set(tests.glob(pattern))
            assert found, pattern
            named |= found
    assert {*tests.rglob("test_*.py")} == named


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, EXAMPLES / "README.md"], ids=lambda path: path.parent.name + path.stem
)
def test_an_older_onnxruntime_is_named_with_the_reason(document: Path) -> None:
    """It was measured, or what is said holds up to it; all else is of the version that the tests run with."""
    tested = rl.TARGETS["onnxruntime"].version
    for paragraph in re.split(r"\n\s*\n|\n\|", document.read_text(encoding="utf-8")):
        for version in re.findall(r"onnxruntime (?:up to |before )?(1\.\d+(?:\.\d+)?)", paragraph):
            assert tested.startswith(version) or re.search("[Mm]easured|up to 1|before 1|does not", paragraph), (
                paragraph
            )
    if document.stem == "verification":
        assert f"The tests run with onnxruntime {tested};" in document.read_text(encoding="utf-8")


def test_documents_agree_on_how_long_the_tests_take() -> None:
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "tests" / "README.md"]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    said = [re.findall(r"\d+ minutes on \d+ free cores|a few minutes", line) for line in lines if "tests" in line]
    figures = [figure for found in said for figure in found]
    assert len(figures) == len(pages)
    assert len({*figures}) == 1


def test_tolerances_of_the_documents() -> None:
    text = (DOCS / "verification.md").read_text(encoding="utf-8")
    for dtype, limits in TOLERANCES.items():
        (row,) = re.findall(rf"^\| {dtype} \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
        assert tuple(map(float, row)) == limits


EXPORTED = {"Keras": "keras_tf2onnx/k3_lstm_bi_op15.onnx", "Paddle": "paddle/lstm_1l.onnx"}


@pytest.mark.few(1)
@pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")
@pytest.mark.parametrize("exporter", EXPORTED)
def test_what_exporters_wrote_is_lowered(exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the document that lowers, on a model of that exporter."""
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(MODELS / "exported" / EXPORTED[exporter], f"{exporter.lower()}.onnx")
    (line,) = re.findall(r"^report = rl\.lower_file.*$", _section(f"From {exporter}"), re.MULTILINE)
    names: dict[str, Any] = {"rl": rl}
    exec(line, names)
    assert names["report"].verification
    assert recurrent_left(onnx.load(f"{exporter.lower()}_lowered.onnx")) == []


def _section(title: str) -> str:
    text = (DOCS / "getting-started.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def reasons(module: Path) -> list[str]:
    """The longest fixed part of each reason for which a module refuses a model."""
    found = []
    for call in (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        place = {"refuse": 1, "OptionError": 0, "UnsupportedError": 0, "_unlike": 2}.get(name)
        if place is not None and len(call.args) > place:
            texts = [n.value for n in ast.walk(call.args[place]) if isinstance(n, ast.Constant)]
            found.append(max((text for text in texts if isinstance(text, str)), key=len, default=""))
    return found


def test_each_reason_to_refuse_a_stream_has_a_way_out_and_no_row_is_without_a_reason() -> None:
    kinds = json.loads((DOCS / "refusals.json").read_text(encoding="utf-8"))
    rows = {error.replace("`", ""): cure for table in kinds.values() for error, cure in table.items()}
    others = ("integers", "metadata.py", "options.py", "stream_runner.py")  # which refuse no nets
    modules = [
        module
        for module in (PACKAGE / "streaming").rglob("*.py")
        if not {*others} & {*module.relative_to(PACKAGE).parts}
    ]
    said = {reason.strip(" ,;:'()") for module in modules for reason in reasons(module)} - {""}
    assert len(said) > 80
    assert [reason for reason in said if not any(reason in row for row in rows)] == []
    assert [row for row in rows if not any(reason in row for reason in said)] == []
    assert "" not in rows.values()
