"""`--list`: what would be done, and that nothing is."""

from pathlib import Path

import pytest
from cases import Case, model
from chains import Link, chain
from commands import (
    STATIC,
    THREE,
    Command,
    Outcome,
    assert_refused,
    cells,
    files,
    saved,
    table,
    without_recurrent_nodes,
)


def test_list(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE, dims=(6, "batch")))
    outcome = rnn_lower(source, "--list")
    assert (outcome.code, outcome.err) == (4, "")
    lines = outcome.lines
    assert len(lines) == 1 + len(THREE) + 2
    assert lines[-2] == "inputs: X [6, batch, 3]"
    assert lines[-1].startswith("outputs: ")
    for part in ("/decoder/gru", "GRU-14", "main graph", "bidirectional", "?", "4", "float", "Sigmoid, Tanh"):
        assert part in lines[2]
    assert cells(lines[1])[:10] == [
        "/encoder/lstm",
        "LSTM-14",
        "main",
        "graph",
        "forward",
        "6",
        "?",
        "3",
        "4",
        "float",
    ]
    assert files(tmp_path).keys() == {"in.onnx"}


def test_list_shows_nodes_in_subgraphs(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", model(Case("cli_in_if", "GRU", scope="if"), 17))
    outcome = rnn_lower(source, "--list")
    assert outcome.code == 4
    assert "then_recurrent" in outcome.out
    assert "main graph > if (If) else_branch" in outcome.out


def test_list_of_none(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", without_recurrent_nodes())
    outcome = rnn_lower(source, "--list")
    assert (outcome.code, outcome.err) == (0, "")
    assert "no recurrent nodes" in outcome.out


def test_list_writes_nothing_even_with_an_output(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    assert rnn_lower(source, tmp_path / "out.onnx", "--list").code == 4
    assert files(tmp_path).keys() == {"in.onnx"}


def listed(outcome: Outcome) -> list[tuple[str, str, str]]:
    """T, form and reason of every node of a list."""
    titles, *rows = table(outcome, "node")
    assert [titles[n] for n in (0, 4, 10, 11)] == ["node", "T", "form", "why"]
    return [(row[4], row[10], row[11]) for row in rows]


LEFT = ("?", "left as it is", "not selected")


SCAN = ("?", "scan", "first choice for target portable")


UNKNOWN = ("?", "refused", "the sequence length is not known, so the steps cannot be unrolled")


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ([], [SCAN] * 3),
        (["--to", "loop"], [("?", "loop", "requested")] * 3),
        (["--to", "unroll"], [UNKNOWN] * 3),
        (["--to", "unroll", "--set-dim", "seq=9"], [("9", "unroll", "requested")] * 3),
        (["--set-dim", "seq=1"], [("1", "unroll", "sequence length 1 needs no loop")] * 3),
        (["--to", "unroll", "--input-shape", "X:5,2,3"], [("5", "unroll", "requested")] * 3),
        (
            ["--to", "unroll", "--set-dim", "seq=9", "--max-unroll", "8"],
            [("9", "refused", "9 steps are more than the limit of 8 for unrolling")] * 3,
        ),
        (["--only", "LSTM"], [SCAN, LEFT, LEFT]),
        (["--except", "/decoder/gru"], [SCAN, LEFT, SCAN]),
        (["--to", "unroll", "--only", "/decoder/*"], [LEFT, UNKNOWN, UNKNOWN]),
    ],
    ids=str,
)
def test_list_shows_what_would_be_done(
    rnn_lower: Command, tmp_path: Path, options: list[str], rows: list[tuple[str, str, str]]
) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    outcome = rnn_lower(source, "--list", *options)
    assert (outcome.code, outcome.err) == (4, "")
    assert listed(outcome) == rows
    hints = [line for line in outcome.lines if line.startswith("to lower refused nodes: ")]
    assert len(hints) == ("refused" in {form for _, form, _ in rows})
    assert files(tmp_path).keys() == {"in.onnx"}
    done = rnn_lower(source, tmp_path / "out.onnx", "--no-verify", *options)
    assert done.code == (1 if hints else 0)
    if not hints:
        given = [form for _, form, _ in rows if form != LEFT[1]]
        _, *rest = table(done, "node")
        assert [row[-1] for row in rest[: len(given)]] == given
        assert rest[len(given)][0].startswith("operator")  # the next table


def test_list_shows_a_form_that_the_opset_has_not(rnn_lower: Command, tmp_path: Path) -> None:
    outcome = rnn_lower(saved(tmp_path / "in.onnx", model(STATIC, 8)), "--list", "--to", "scan")
    assert outcome.code == 4
    assert listed(outcome) == [(str(STATIC.T), "refused", "Scan needs opset 9, but the model has 8")]
    assert "use --to loop" in outcome.lines[-1]


def test_list_shows_a_node_that_is_left_because_it_is_wrong(rnn_lower: Command, tmp_path: Path) -> None:
    bad = Link("LSTM", "bad", {"activations": ["Foo", "Tanh", "Tanh"]})
    source = saved(tmp_path / "in.onnx", chain(THREE[0], bad))
    outcome = rnn_lower(source, "--list", "--except", "bad")
    assert outcome.code == 4
    assert listed(outcome) == [SCAN, LEFT]
    assert table(outcome, "node")[2][:4] == ["bad", "LSTM", "main graph", "?"]


def test_list_of_an_old_model(rnn_lower: Command, tmp_path: Path) -> None:
    good = rnn_lower(saved(tmp_path / "in.onnx", model(Case("cli_old", "LSTM"), 6)), "--list")
    assert (good.code, listed(good)) == (4, [("5", "scan", "first choice for target portable")])
    assert "converted from opset 6 to 13" in good.lines
    hard = rnn_lower(saved(tmp_path / "if.onnx", model(Case("cli_old_if", "GRU", scope="if"), 6)), "--list")
    assert hard.code == 4
    assert [form for _, form, _ in listed(hard)] == ["refused"] * 2


def test_list_refuses_what_the_lowering_refuses(rnn_lower: Command, tmp_path: Path) -> None:
    source = saved(tmp_path / "in.onnx", chain(*THREE))
    assert_refused(rnn_lower(source, "--list", "--set-dim", "time=3"), "'time'", "seq")
    assert_refused(rnn_lower(source, "--list", "--input-shape", "Z:3"), "'Z'")
