"""The tables of the documents are those of what is stored."""

from clients import table


def test_the_table_of_exported_loops_is_that_of_what_is_stored() -> None:
    assert table.in_loops() == table.table_of_loops(table.outcomes_of_loops())
