"""The documents: their commands run, their messages are those that appear, their links lead somewhere."""

import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import onnxruntime as ort
import pytest
from cases import Case, model
from one_process import run_workers_here
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from paths import MODELS as REAL_MODELS
from paths import PACKAGE, ROOT
from running import TOLERANCES, recurrent_left

import rnn_lowering as rl
from rnn_lowering.cli.command import main, parser

DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]

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
    sections = re.split(r"^## `(.*)`$", text, flags=re.MULTILINE)[1:]
    return [Trouble(*pair) for pair in zip(sections[::2], sections[1::2], strict=True)]


BOTH = Case("trouble", "LSTM", {"direction": "bidirectional"}, T=16, N=1, I=80, H=3, outputs=("Y",), x="symbolic")
GRU = replace(BOTH, op_type="GRU", attributes={"direction": "bidirectional", "linear_before_reset": 1})
SUBJECTS = {
    "Non constant seq_len": replace(BOTH, optional=("B", "sequence_lens")),
    "Clashing resolution": replace(BOTH, attributes={}, N=2),
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
    assert recurrent_left(onnx.load("lowered.onnx")) == []


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


def test_every_document_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert {path.name for path in DOCS.glob("*.md")} - set(re.findall(r"\]\(([\w.-]+)\)", index)) == {"index.md"}


def test_the_tree_of_the_architecture() -> None:
    """Each folder and each module at the top is listed in the order of the imports, and what is listed exists."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    tree = text.partition("    rnn_lowering/\n")[2].partition("\n\n")[0]
    top, folder = [], PACKAGE
    for line in tree.splitlines():
        name, description = line.split(maxsplit=1)
        assert description
        if line.startswith("        "):
            assert (folder / f"{name}.py").exists(), line
        else:
            top.append(name)
            folder = PACKAGE / name
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert set(top) == folders | modules


def test_files_that_documents_name_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests/)?\w+/[\w/]+\.py)`", text)
    assert len(named) > 20
    for name in named:
        assert ((ROOT if name.startswith("tests/") else PACKAGE) / name).exists(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_are_of_this_command_line(document: Path) -> None:
    """Each line of `rnn-lower` in a document has options that exist."""
    for line in document.read_text(encoding="utf-8").splitlines():
        if line.startswith("    rnn-lower "):
            parser().parse_args(shlex.split(line.strip(), comments=True)[1:])


def test_tolerances_of_the_documents() -> None:
    text = (DOCS / "verification.md").read_text(encoding="utf-8")
    for dtype, limits in TOLERANCES.items():
        (row,) = re.findall(rf"^\| {dtype} \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
        assert tuple(map(float, row)) == limits


def test_the_python_of_getting_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    onnx.save(model(BOTH, 17), "model.onnx")
    code = re.findall(r"```python\n(.*?)```", _section("Python"), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["check"]
    assert recurrent_left(names["new"]) == []
    assert recurrent_left(onnx_ir.to_proto(names["ir_model"])) == []


EXPORTED = {"Keras": "keras_tf2onnx/k3_lstm_bi_op15.onnx", "Paddle": "paddle/lstm_1l.onnx"}


@pytest.mark.skipif(not REAL_MODELS.exists(), reason=f"{REAL_MODELS.name} is not there")
@pytest.mark.parametrize("exporter", EXPORTED)
def test_what_exporters_wrote_is_lowered(exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the document that lowers, on a model of that exporter."""
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(REAL_MODELS / "exported" / EXPORTED[exporter], "model.onnx")
    (line,) = re.findall(r"^report = rl\.lower_file.*$", _section(f"From {exporter}"), re.MULTILINE)
    names: dict[str, Any] = {"rl": rl}
    exec(line, names)
    assert names["report"].verification
    assert recurrent_left(onnx.load("lowered.onnx")) == []


def _section(title: str) -> str:
    text = (DOCS / "getting-started.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def readme_commands() -> list[str]:
    text = DOCUMENTS[0].read_text(encoding="utf-8") if DOCS.exists() else ""
    return re.findall(r"^    (rnn-lower .*?)(?:  +#.*)?$", text, re.MULTILINE)


@pytest.mark.parametrize("command", readme_commands())
def test_commands_of_the_readme_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    stream = "--stream" in command
    onnx.save(model(replace(BOTH, attributes={}) if stream else BOTH, 17), "IN.onnx")
    listing = "--list" in command
    assert main(shlex.split(command)[1:]) == (4 if listing else 0)
    assert "verified" in capsys.readouterr().out or listing


def test_counts_of_the_readme_are_those_of_its_table() -> None:
    text = " ".join(DOCUMENTS[0].read_text(encoding="utf-8").split())
    rows = re.findall(r"\| (OpenVINO|tract)[^|]*\| (\d+) of 47 right[^|]*\| (\d+) of 47 right", text)
    ours = {name: (before, after) for name, before, after in rows}
    (told,) = re.findall(
        r"the importers of OpenVINO and tract get (\d+) and (\d+) right; lowered, (\d+) are right in each", text
    )
    assert told == (ours["OpenVINO"][0], ours["tract"][0], ours["tract"][1])
    assert ours["OpenVINO"][1] == ours["tract"][1]


def test_the_python_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    onnx.save(model(BOTH, 17), "in.onnx")
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENTS[0].read_text(encoding="utf-8"), re.DOTALL)
    exec(code, names)
    assert names["check"]
    assert names["report"].verification
    assert recurrent_left(names["new"]) == []
    assert recurrent_left(onnx_ir.to_proto(names["ir_model"])) == []
