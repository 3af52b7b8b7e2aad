"""Each recipe of the pages runs alone and prints what its page shows; no two pages name a file; pages are short."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import pytest
from one_process import run_workers_here
from paths import EXAMPLES, ROOT
from running import recurrent_left

from rnn_lowering.cli.command import main, parser

DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / folder / "README.md" for folder in ("examples", "tests", "benchmarks")),
        *sorted(DOCS.glob("*.md")),
    )
}
"""By name: the set of pages, without the changelog."""

GIVEN = {"model.onnx", "X.npy", "silero_vad.onnx"}
"""What a recipe starts with, and what a reader gets from elsewhere."""

THEIRS = (
    "silero_vad",
    "nets/",
    "enc.onnx",
    "URL",
    "docker",
    "http.server",
    "npm ",
    "MY_DENOISER",
    "joined",
    "short.onnx",
    "--run-in-target",
)
"""Parts of the commands that need what a reader has."""

HERE = {"json", "numpy", "onnx", "onnx_ir", "onnxruntime", "os", "rnn_lowering", "subprocess", "sys"}
"""What the Python of a page may import to be run here; the tests of clients run the rest."""

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="only in a checkout are there documents")


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def recipes(page: str) -> dict[str, str]:
    """The text below each heading of a page that has something to type."""
    titles_and_texts = re.split(
        r"^#+ (.*)$", re.sub(r"^```\w+\n.*?^```", _shielded, text_of(page), flags=re.M | re.S), flags=re.M
    )
    pairs = zip(titles_and_texts[1::2], titles_and_texts[2::2], strict=True)
    return {title: text.replace("\0", "#") for title, text in pairs if steps(text)}


def _shielded(block: re.Match[str]) -> str:
    return block[0].replace("#", "\0")


def steps(text: str) -> list[str]:
    """The commands of a text and its blocks of Python, in their order."""
    commands = r"^    ((?:rnn-lower|cp|python -c|python examples/\S+) [^\n]*)$"
    matches = re.findall(rf"{commands}|^```python\n(.*?)^```", text, re.M | re.S)
    return [command or code for command, code in matches]


def imports(code: str) -> set[str]:
    """The top packages that Python imports."""
    nodes = list(ast.walk(ast.parse(code)))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in modules}


def follow(step: str) -> dict[str, Any]:
    """Run a command as it is typed, or Python that needs nothing of the lines before; return its names."""
    names: dict[str, Any] = {}
    if "\n" in step:
        exec(step, names)
        return names
    program, *arguments = shlex.split(step, comments=True)
    if program == "cp":
        shutil.copy(*arguments)
    elif program == "python" and arguments[0] == "-c":
        exec(arguments[1], {})
    elif program == "python":
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    else:
        assert exit_code(arguments) in ({0, 4} if "--list" in arguments else {0}), step
    return names


def exit_code(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:  # wrong usage
        return int(end.code or 0)


def is_run(step: str) -> bool:
    """Whether a step needs nothing but what the tests have."""
    if "\n" in step:
        return imports(step) <= HERE and "self." not in step and "sys.argv" not in step
    if script := re.match(r"python examples/(\S+\.py)", step):
        wanted = imports((EXAMPLES / script[1]).read_text(encoding="utf-8"))
        if not all(find_spec(name) or (EXAMPLES / f"{name}.py").exists() for name in wanted):
            return False  # PyTorch or TVM
    return not any(part in step for part in THEIRS) and "examples/browser" not in step


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, empty but for the examples and the model of the pages."""
    run_workers_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "model.onnx", tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (setup,) = re.findall(r"^    python -c \"(.*X\.npy.*)\"$", text_of("docs/getting-started.md"), re.M)
    exec(setup, {})
    return tmp_path


RECIPES = [(page, title) for page in PAGES if DOCS.exists() for title in recipes(page)]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("page", "title"), RECIPES)
def test_each_recipe_runs_alone(page: str, title: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file that another has written; Python prints."""
    if page == "docs/getting-started.md":
        shutil.copy("model.onnx", "mine.onnx")
    printed = ""
    for step in filter(is_run, steps(recipes(page)[title])):
        if step.startswith("rnn-lower") and not {"--list", "--force"} & {*step.split()}:
            assert not (folder / step.split()[2]).exists(), step
        follow(step)
        said = capsys.readouterr().out
        assert said or "\n" not in step, step
        printed += said
    for line in shown(recipes(page)[title]) if printed else ():
        assert masked(line) in masked(printed), line


SAID = (
    "lowered ",
    "verified (",
    "written to ",
    "report: ",
    "for a runtime ",
    "run it",
    "quantized to ",
    "Loop node ",
)
"""How lines that the command prints begin."""


def shown(text: str) -> list[str]:
    """The lines of a text that its first command prints, without what differs from run to run."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.M)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(SAID)]


def masked(text: str) -> str:
    """A text with its numbers as 0."""
    return re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "0", text)


@pytest.mark.usefixtures("quiet", "folder")
def test_the_readme_runs_as_it_stands() -> None:
    names: dict[str, Any] = {}
    for step in steps(text_of("README.md")):
        names |= follow(step)
    assert recurrent_left(onnx.load("any_steps.onnx")) == []
    assert names["check"]
    assert recurrent_left(names["new"]) == []
    assert recurrent_left(onnx_ir.to_proto(names["ir_model"])) == []


@pytest.mark.usefixtures("folder")
def test_getting_started_begins_with_a_model_of_the_reader(capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands, and the error that it tells of."""
    shutil.move("model.onnx", "mine.onnx")
    first = [step for step in steps(text_of("docs/getting-started.md")) if "mine" in step]
    assert next(shlex.split(step, comments=True)[1:3] for step in first) == ["mine.onnx", "--list"]
    for step in first:
        follow(step)
    assert "inputs: X [seq, 1, 80]" in capsys.readouterr().out
    assert recurrent_left(onnx.load("mine_tvm.onnx")) == []
    assert exit_code(["mine.onnx", "other.onnx", "--target", "tvm"]) == 1
    (asked,) = re.findall(r"--set-dim seq=\?", capsys.readouterr().err)
    assert f"`{asked}`" in text_of("docs/getting-started.md")


def test_no_recipe_names_the_file_of_another_page() -> None:
    """But for those that all start with."""
    named: dict[str, set[str]] = {}
    for page in PAGES:
        for word in re.findall(
            r"(?<![\w/.*-])[\w-]+\.(?:onnx|npy|json|html|py)\b(?!\.)", "\n".join(steps(text_of(page)))
        ):
            named.setdefault(word, set()).add(page)
    assert {word: pages for word, pages in named.items() if len(pages) > 1 and word not in GIVEN} == {}


def test_no_recipe_writes_the_file_of_another() -> None:
    written = [
        str(arguments.models[1])
        for page in PAGES
        for step in steps(text_of(page))
        if step.startswith("rnn-lower ")
        and not (arguments := parser().parse_args(shlex.split(step, comments=True)[1:])).list
        and arguments.out_dir is None
    ]
    assert len(written) > 80
    assert {name for name in written if written.count(name) > 1} == set()


def test_a_page_says_where_its_model_is_from() -> None:
    pages = [page for page in PAGES if page.startswith("docs/") and "rnn-lower model.onnx" in text_of(page)]
    assert len(pages) > 9
    assert [page for page in pages if "#the-model-of-these-pages" not in text_of(page)] == [
        "docs/getting-started.md"
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_to_type_and_what_comes_out(page: str) -> None:
    """An indented block that is typed, then one that is printed, before the first section."""
    beginning = re.split(r"^#+ ", text_of(page), flags=re.M)[1]
    blocks = re.findall(r"^\n((?:    .*\n)+)", beginning, re.M)
    assert len(blocks) > 1
    assert re.match(r"(?:    # .*\n)*    (rnn-lower|python|pip|\.venv/bin|cp) ?", blocks[0])
    assert re.search(r"^    (\.\.\.|verified|\S+: | *as exported|\d)", "".join(blocks[1:]), re.M)


def test_the_pages_are_short() -> None:
    """32,000 words are two hours."""
    words = {page: len(text_of(page).split()) for page in PAGES}
    assert words["README.md"] <= 1000
    assert words["docs/conformance.md"] <= 600
    assert words["docs/step-models.md"] <= 700
    assert words["docs/streaming.md"] <= 2000
    assert sum(words.values()) <= 32_000
